"""What may be shown on a terminal and in a log: text without anything that a terminal or a CI system obeys.

Rules:

1. Control characters, escape sequences and characters that change the direction of text are shown by their number.
2. A newline stays where several lines are meant; it is a space where one is.
3. Color only if `--color` says so, or a terminal reads it; `NO_COLOR` and `FORCE_COLOR` decide before the terminal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Literal, TextIO, TypeAlias

Color: TypeAlias = Literal["auto", "always", "never"]

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_STYLES = {"error": "31;1", "warning": "33;1", "note": "36", "rule": "1", "path": "", "dim": "2", "good": "32"}


def printable(text: str, *, lines: bool = False) -> str:
    """The text with what a terminal would obey written out; on one line unless `lines` are meant."""
    said = _OBEYED.sub(_written_out, text.replace("\r\n", "\n").replace("\t", "    "))
    return said if lines else " ".join(said.split("\n"))


def _written_out(found: re.Match[str]) -> str:
    number = ord(found.group())
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def wants_color(color: Color, stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether what is written to the stream may be colored (rule 3)."""
    if color != "auto":
        return color == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and environ.get("TERM") != "dumb"


def styled(text: str, style: str, *, color: bool) -> str:
    """The text in the style's color, if color is wanted."""
    code = _STYLES.get(style, "")
    return f"\x1b[{code}m{text}\x1b[0m" if color and code else text


def say(text: str, *, quiet: bool = False) -> None:
    """A line for people, on stderr; stdout is for the result alone."""
    if not quiet:
        sys.stderr.write(f"{printable(text, lines=True)}\n")
