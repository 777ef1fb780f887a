"""Loop detection of an agent, by tool calls and results per turn.

The history consists of committed turns, recalled ones like new ones: a resumed step continues the count. Telemetry
reports every detected loop; the step's guard decides on further reactions.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence

import attrs
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart

from ..._core.policies.approval_policy import GO_ON, STOP_LOOP
from ..._core.policies.loop_detection import DEFAULT_GUARD, DetectedLoop, LoopGuard, LoopStep, entry_of, find_loop
from ..._core.telemetry_events import LoopFound
from ...errors import FlujoError, LoopDetected
from ..request_meter import Emit
from .tool_outcomes import Returned, ToolOutcome
from .units import UnitJournal


class LoopQuestion(FlujoError):
    """A loop was detected, and the run pauses for a decision."""

    def __init__(self, found: DetectedLoop, key: str) -> None:
        self.found, self.key = found, key
        super().__init__(str(LoopDetected(found.kind, found.cycle, found.times)))


@attrs.define(eq=False, kw_only=True)
class LoopWatch:
    """The history of one conversation."""

    guard: LoopGuard | None
    journal: UnitJournal
    emit: Emit | None
    _calls: list[tuple[str, object, object, bool]] = attrs.field(factory=list)
    _history: list[LoopStep] = attrs.field(factory=list)
    _texts: list[str] = attrs.field(factory=list)
    _detections: int = 0

    def note(self, name: str, arguments: object, outcome: ToolOutcome, result: str) -> None:
        """Add a tool call of the current turn, of any attempt."""
        if self.guard is None or name not in self.guard.polling:
            self._calls.append((name, arguments, json.loads(result), not isinstance(outcome, Returned)))

    async def turn_ended(self, text: str, messages: list[ModelMessage]) -> None:
        """Detect a loop before the next request and react.

        `LoopDetected` or `LoopQuestion` end the attempt.
        """
        calls, self._calls = self._calls, []
        entry = entry_of(calls)
        if entry is None:
            return
        self._history.append(entry)
        self._texts.append(text or entry.signature or "")
        found = find_loop(self._history, self.guard or DEFAULT_GUARD) or await self._similar()
        if found is not None:
            await self._react(found, messages)

    async def _similar(self) -> DetectedLoop | None:
        guard = self.guard
        if guard is None or guard.similar is None or len(self._texts) < guard.window:
            return None
        said = guard.similar(self._texts[-guard.window :])
        number = await said if inspect.isawaitable(said) else said
        return DetectedLoop("similarity", self._history[-1].names, guard.window) if number >= guard.similar_at else None

    async def _react(self, found: DetectedLoop, messages: list[ModelMessage]) -> None:
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
                await self._apply_answer(found, messages)
            case "fail" | "rotate":
                raise LoopDetected(found.kind, found.cycle, found.times, rotates=reaction == "rotate")

    async def _apply_answer(self, found: DetectedLoop, messages: list[ModelMessage]) -> None:
        key = f"loop {self._detections}"
        answered = await self.journal.answer(key)
        if answered is None:
            raise LoopQuestion(found, key)
        if answered[0] == STOP_LOOP:
            raise LoopDetected(found.kind, found.cycle, found.times)
        if answered[0] != GO_ON:
            _hint(messages, str(answered[0]))


def hint_for(found: DetectedLoop) -> str:
    """Return a loop's hint for a model or a loop body."""
    what = ", ".join(found.cycle)
    return (
        f"You have done this {found.times} times with the same result: {what}. Doing it again will not change that: "
        "try something else, or explain why you cannot continue."
    )


def _hint(messages: Sequence[ModelMessage], text: str) -> None:
    """Add a part after the tool results of the next request."""
    last = messages[-1]
    if isinstance(last, ModelRequest):
        last.parts = [*last.parts, UserPromptPart(text)]
