"""A loop whose turns are watched: what was found, and what happens then."""

from __future__ import annotations

import attrs
from outcome import Error

from .._core import paths
from .._core.attempts import Failed, Stopped
from .._core.json_codec import value_data
from .._core.loops import Entry, Found, LoopGuard, canonical, find_loop
from .._core.outcomes import Paused
from .._core.questions import Question
from .._run.messages import Work
from .._run.run import Run
from .._run.user_calls import ask, failure_of
from ..errors import LoopDetected, NotSerializable

GO_ON = "go on"
"""The answer that lets a loop go on as it does; any other is feedback for its body."""

_SHORT = 60


@attrs.define(eq=False)
class GuardedLoop:
    """The turns of one loop so far; those of earlier parts of the run are replayed before it goes on."""

    run: Run
    guard: LoopGuard
    work: Work
    _history: list[Entry] = attrs.field(factory=list)
    _texts: list[str] = attrs.field(factory=list)
    _detections: int = 0

    async def turned(self, output: object, context: object) -> Failed | Stopped | str | None:
        """After a turn: how the loop ends, if it does, or what its body shall be told."""
        text = _text(output)
        self._history.append(Entry(_signature(output, context), (text[:_SHORT],)))
        self._texts.append(text)
        found = find_loop(self._history, self.guard) or await self._similar()
        if isinstance(found, Failed) or found is None:
            return found
        return self._reaction(found)

    async def _similar(self) -> Found | Failed | None:
        guard = self.guard
        if guard.similar is None or len(self._texts) < guard.window:
            return None
        said = await ask(self.run, guard.similar, self._texts[-guard.window :])
        if isinstance(said, Error):
            return failure_of(self.run, said.error, what=f"The similarity of loop {self.work.name!r}")
        return Found("similarity", self._history[-1].names, guard.window) if said.value >= guard.similar_at else None

    def _reaction(self, found: Found) -> Failed | Stopped | str | None:
        self._history, self._texts = [], []
        self._detections += 1
        reaction = self.guard.reaction(self._detections)
        self.run.emit(
            "loop.detected",
            self.work.span,
            step_name=self.work.name,
            loop=found.kind,
            cycle=found.cycle,
            times=found.times,
            reaction=reaction,
        )
        error = LoopDetected(found.kind, found.cycle, found.times, rotates=reaction == "rotate")
        match reaction:
            case "hint":
                return f"{error}. Doing the same again will not change the result."
            case "pause":
                return self._asked(error)
            case "fail" | "rotate":
                return Failed(error=error, feedback=self.run.redact(str(error)))

    def _asked(self, error: LoopDetected) -> Stopped | str | None:
        place = paths.unit(self.work.path, f"loop {self._detections}")
        answered, waiting = self.run.journal.answered(place), self.run.journal.waiting(place)
        if answered is not None:
            return None if answered.answer == GO_ON else str(answered.answer)
        if waiting is not None:
            return Stopped(outcome=waiting.paused)
        text = f"{error}. Answer {GO_ON!r} to let it go on, or with what it shall be told."
        return Stopped(outcome=Paused(message=text), place=place, question=Question(kind="loop"))


def _signature(output: object, context: object) -> str | None:
    try:
        return canonical([value_data(output), value_data(context)])
    except NotSerializable:
        return None


def _text(output: object) -> str:
    if isinstance(output, str):
        return output
    try:
        return canonical(value_data(output)) or type(output).__name__
    except NotSerializable:
        return type(output).__name__
