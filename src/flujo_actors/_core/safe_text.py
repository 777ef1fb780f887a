"""Text of strangers for a terminal: nothing in it moves the cursor, changes a color, or turns the reading order.

Control characters, lone surrogates and the marks that reorder text are shown as escapes, for example `\\x1b`.
"""

from __future__ import annotations

import re

_C0_AND_C1 = "\x00-\x1f\x7f-\x9f"
_REORDERING = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSEEN = "\u2028\u2029\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_UNSAFE = re.compile(f"[{_C0_AND_C1}{_REORDERING}{_UNSEEN}\ud800-\udfff]")
_UNSAFE_BUT_LINES = re.compile(f"(?![\t\n])[{_C0_AND_C1}{_REORDERING}{_UNSEEN}\ud800-\udfff]")
_SPACES = re.compile(r"[ \t\r\n\v\f]+")


def one_line(text: str) -> str:
    """The text in one line: whatever parts its lines is a space."""
    return _UNSAFE.sub(_escaped, _SPACES.sub(" ", text)).strip()


def in_lines(text: str) -> str:
    """The text with its lines and tabs as they are; a line may end as those of Windows do."""
    return _UNSAFE_BUT_LINES.sub(_escaped, text.replace("\r\n", "\n"))


def last_words(text: str, chars: int) -> str:
    """The end of a text that is still being written, in one line of so many characters."""
    words = one_line(text[-4 * chars :])
    return words if len(words) <= chars else f"…{words[1 - chars :]}" if chars > 1 else "…"


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
