"""Text as a database can hold it.

SQLite refuses lone surrogates and Postgres refuses NUL too. Both are written as the substitute character U+001A
followed by four hexadecimal digits, and so is U+001A itself; every other text stands for itself.
"""

from __future__ import annotations

import re

_UNSTORABLE = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a([0-9a-f]{4})")


def storable(text: str) -> str:
    """The text in a form that every database takes."""
    if _UNSTORABLE.search(text) is None:
        return text
    return _UNSTORABLE.sub(lambda found: f"\x1a{ord(found[0]):04x}", text)


def restored(stored: str) -> str:
    """The text that `storable` was given."""
    if "\x1a" not in stored:
        return stored
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), stored)
