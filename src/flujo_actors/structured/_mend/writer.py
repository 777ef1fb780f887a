"""Writing strict JSON: the stack of open containers, commas between items, keys together with their values."""

from __future__ import annotations

import re

import attrs

from .glyphs import SKIP_BETWEEN

_SKIPPED_PER_STEP = 200
"""How much of a comment is passed over in the time of a step."""


class TooDeep(Exception):
    """The text nests deeper than any answer does."""


class NotJson(Exception):
    """The text at this place cannot be read as JSON without guessing; `reason` says why.

    `ambiguous`: it has several readings, so no other engine's guess is better.
    """

    def __init__(self, reason: str, at: int, *, steps: int, solid: bool, ambiguous: bool) -> None:
        super().__init__(f"{reason} at character {at}")
        self.reason, self.at, self.steps, self.solid, self.ambiguous = reason, at, steps, solid, ambiguous


@attrs.define
class Frame:
    kind: str
    mark: int
    """Where in the output its opening bracket stands."""
    count: int = 0
    comma: bool = False
    key: str | None = None
    keys: set[str] = attrs.field(factory=set)


class Writer:
    """Where the mender stands in the source, and what it has written so far."""

    def __init__(self, text: str, start: int, end: int, max_depth: int, max_steps: int) -> None:
        self.text, self.start, self.pos, self.end = text, start, start, end
        self.max_depth, self.max_steps, self.steps = max_depth, max_steps, 0
        self.out: list[str] = []
        self.stack: list[Frame] = []
        self.repairs: dict[str, None] = {}
        self.complete, self.solid, self.pairs, self.scalars = True, False, 0, 0

    # --- bookkeeping ------------------------------------------------------------------------------------

    def spend(self) -> None:
        self.steps += 1
        if self.steps > self.max_steps:
            raise self.refuse("too many tokens")

    def note(self, repair: str | None) -> None:
        if repair:
            self.repairs[repair] = None

    def refuse(self, reason: str, *, ambiguous: bool = False) -> NotJson:
        solid = self.pairs > 0 or self.scalars > 1
        return NotJson(reason, self.pos, steps=self.steps + 1, solid=solid, ambiguous=ambiguous)

    def skip(self, pattern: re.Pattern[str] = SKIP_BETWEEN) -> None:
        was = self.pos
        self.pos = pattern.match(self.text, was, self.end).end()  # type: ignore[union-attr]
        self.steps += (self.pos - was) // _SKIPPED_PER_STEP
        if self.pos - was > 1 and not self.text[was : self.pos].isspace():
            self.note("comment")

    # --- writing ----------------------------------------------------------------------------------------

    def write(self, piece: str) -> None:
        frame = self.stack[-1] if self.stack else None
        if frame:
            if frame.count:
                self.out.append(",")
                if not frame.comma:
                    self.note("missing_comma")
            if frame.key is not None:
                self.out.append(frame.key + ":")
                self.pairs += 1
                if frame.key in frame.keys:
                    self.note("duplicate_key")
                frame.keys.add(frame.key)
            frame.count, frame.comma, frame.key = frame.count + 1, False, None
        self.out.append(piece)

    def open(self, kind: str) -> None:
        if len(self.stack) >= self.max_depth:
            raise TooDeep(f"the text nests deeper than {self.max_depth}")
        if self.stack:
            self.solid = True
        self.write("{" if kind == "{" else "[")
        self.stack.append(Frame(kind, len(self.out) - 1))
        self.pos += 1
        if kind == "(":
            self.note("tuple")

    def pop(self) -> None:
        frame = self.stack.pop()
        if frame.comma and frame.count and frame.kind != "(":
            self.note("trailing_comma")
        if frame.key is not None:
            self.note("dropped_key")
        grouping = frame.kind == "(" and frame.count == 1 and not frame.comma
        if grouping:
            self.out[frame.mark] = ""
        self.out.append("" if grouping else "}" if frame.kind == "{" else "]")

    def write_scalar(self, piece: str, *, solid: bool = False) -> None:
        self.scalars += 1
        self.solid = self.solid or solid
        self.write(piece)
