"""Whether an agent goes in circles: its turns, with their tool calls and results, compared as they end.

The history consists of what was committed, recalled turns like new ones: a resumed step counts on. Somebody who listens
is told of every loop that is found; what happens besides is said by the step's guard.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence

import attrs
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart

from ..._core.events import LoopFound
from ..._core.loops import DEFAULT_GUARD, Entry, Found, LoopGuard, entry_of, find_loop
from ...errors import FlujoError, LoopDetected
from ..metering import Emit
from .tool_outcomes import Returned, ToolOutcome
from .units import UnitJournal

GO_ON = "go on"
"""The answer that lets an agent go on as it does; any other is a hint for its model."""


class LoopQuestion(FlujoError):
    """A loop was found, and a person is asked what to do about it."""

    def __init__(self, found: Found, key: str) -> None:
        self.found, self.key = found, key
        super().__init__(str(LoopDetected(found.kind, found.cycle, found.times)))


@attrs.define(eq=False, kw_only=True)
class LoopWatch:
    """The history of one conversation."""

    guard: LoopGuard | None
    journal: UnitJournal
    emit: Emit | None
    _calls: list[tuple[str, object, object, bool]] = attrs.field(factory=list)
    _history: list[Entry] = attrs.field(factory=list)
    _texts: list[str] = attrs.field(factory=list)
    _detections: int = 0

    def note(self, name: str, arguments: object, outcome: ToolOutcome, result: str) -> None:
        """A tool call of the current turn has ended, now or in an earlier attempt."""
        if self.guard is None or name not in self.guard.polling:
            self._calls.append((name, arguments, json.loads(result), not isinstance(outcome, Returned)))

    async def turn_ended(self, text: str, messages: list[ModelMessage]) -> None:
        """Before the next request: look for a loop, and react; `LoopDetected` or `LoopQuestion` end the attempt."""
        calls, self._calls = self._calls, []
        entry = entry_of(calls)
        if entry is None:
            return
        self._history.append(entry)
        self._texts.append(text or entry.signature or "")
        found = find_loop(self._history, self.guard or DEFAULT_GUARD) or await self._similar()
        if found is not None:
            await self._react(found, messages)

    async def _similar(self) -> Found | None:
        guard = self.guard
        if guard is None or guard.similar is None or len(self._texts) < guard.window:
            return None
        said = guard.similar(self._texts[-guard.window :])
        number = await said if inspect.isawaitable(said) else said
        return Found("similarity", self._history[-1].names, guard.window) if number >= guard.similar_at else None

    async def _react(self, found: Found, messages: list[ModelMessage]) -> None:
        self._history, self._texts = [], []
        self._detections += 1
        reaction = None if self.guard is None else self.guard.reaction(self._detections)
        if self.emit is not None:
            self.emit(LoopFound, loop=found.kind, cycle=found.cycle, times=found.times, reaction=reaction)
        match reaction:
            case None:
                return
            case "hint":
                _hint(messages, hint_for(found))
            case "pause":
                await self._asked(found, messages)
            case "fail" | "rotate":
                raise LoopDetected(found.kind, found.cycle, found.times, rotates=reaction == "rotate")

    async def _asked(self, found: Found, messages: list[ModelMessage]) -> None:
        key = f"loop {self._detections}"
        told = await self.journal.told(key)
        if told is None:
            raise LoopQuestion(found, key)
        if told[0] != GO_ON:
            _hint(messages, str(told[0]))


def hint_for(found: Found) -> str:
    """What a model, or the body of a loop, is told of its own doing."""
    what = ", ".join(found.cycle)
    return (
        f"You have done this {found.times} times with the same result: {what}. Doing it again will not change that: "
        "try something else, or say why you cannot go on."
    )


def _hint(messages: Sequence[ModelMessage], text: str) -> None:
    """Add a part after the tool results that the model is about to read."""
    last = messages[-1]
    if isinstance(last, ModelRequest):
        last.parts = [*last.parts, UserPromptPart(text)]
