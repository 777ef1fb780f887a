"""A text as it was read: its characters, where its lines begin, and how they end."""

from __future__ import annotations

import re
from bisect import bisect_right

import attrs

MOST_BYTES = 1024 * 1024
"""No blueprint is longer."""

BOM = "\ufeff"
_LINE_END = re.compile(r"\r\n|\n|\r")


@attrs.frozen(eq=False)
class Source:
    """The text of one file, without its byte order mark."""

    file: str
    """What the file is called in findings."""
    text: str
    has_bom: bool = False
    _lines: list[int] = attrs.field(init=False, repr=False)

    @_lines.default
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in _LINE_END.finditer(self.text))]

    @classmethod
    def of(cls, file: str, text: str) -> Source:
        """The source of a text that may begin with a byte order mark."""
        return cls(file, text.removeprefix(BOM), text.startswith(BOM))

    @property
    def newline(self) -> str:
        """How the file ends its lines: as it ends the first one."""
        found = _LINE_END.search(self.text)
        return found.group() if found else "\n"

    def place(self, at: int) -> tuple[int, int]:
        """Line and column of a character, both counted from 1."""
        line = bisect_right(self._lines, at)
        return line, at - self._lines[line - 1] + 1

    def line_start(self, at: int) -> int:
        """Where the line of a character begins."""
        return self._lines[bisect_right(self._lines, at) - 1]

    def line_end(self, at: int) -> int:
        """Where the line of a character ends, before what ends it."""
        found = _LINE_END.search(self.text, at)
        return found.start() if found else len(self.text)

    def next_line(self, at: int) -> int:
        """Where the line after the one of a character begins; the end of the text if it is the last one."""
        found = _LINE_END.search(self.text, at)
        return found.end() if found else len(self.text)

    def with_text(self, text: str) -> Source:
        """The same file with another text."""
        return attrs.evolve(self, text=text)

    @property
    def whole(self) -> str:
        """The text as it stands in the file."""
        return BOM + self.text if self.has_bom else self.text
