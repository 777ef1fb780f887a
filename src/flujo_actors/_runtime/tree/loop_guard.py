"""Guarded loop: detection of cycles in its turns, and reactions.

Sections:

- Kept turns of a loop with `keep_history`.
"""

from __future__ import annotations

import hashlib
from typing import Any

import attrs
from outcome import Error

from ..._core import step_paths
from ..._core.attempt_results import NO_TEXTS, AttemptFailed, AttemptStopped, degraded_texts
from ..._core.outcomes import Paused, StepResult
from ..._core.policies.approval_policy import GO_ON, STOP_LOOP, QuestionSpec
from ..._core.policies.loop_detection import DetectedLoop, LoopGuard, LoopStep, canonical, find_loop
from ..._core.records.json_codec import value_data
from ..._core.records.run_state import LoopTurns
from ..._dsl.kinds import LoopUntil
from ...errors import LoopDetected, NotSerializable
from ..run.messages import AttemptInput
from ..run.run_environment import Run
from ..run.step_results import charge
from ..run.user_functions import call, failure_of
from .step_supervisor import WRAPPERS

_SHORT = 60


@WRAPPERS.entry("loop_guard")
@attrs.define(eq=False)
class GuardedLoop:
    """Turns of one loop so far, replayed ones first."""

    run: Run
    guard: LoopGuard
    work: AttemptInput
    _history: list[LoopStep] = attrs.field(factory=list)
    _texts: list[str] = attrs.field(factory=list)
    _detections: int = 0

    def state(self) -> object:
        """Return the history as JSON data, for `restore`."""
        turns = [[each.signature, list(each.names)] for each in self._history]
        return {"turns": turns, "texts": list(self._texts), "detections": self._detections}

    def restore(self, state: Any) -> None:
        """Continue with the history of an earlier session."""
        self._history = [LoopStep(signature, tuple(names)) for signature, names in state["turns"]]
        self._texts, self._detections = list(state["texts"]), state["detections"]

    async def turned(self, output: object, context: object) -> AttemptFailed | AttemptStopped | str | None:
        """Return the loop's end after a turn, or feedback for its body."""
        text = _text(output)
        self._history.append(LoopStep(_signature(output, context), (text[:_SHORT],)))
        del self._history[: -self.guard.longest]
        if self.guard.similar is not None:
            self._texts = [*self._texts, text][-self.guard.window :]
        found = find_loop(self._history, self.guard) or await self._similar()
        if isinstance(found, AttemptFailed) or found is None:
            return found
        return self._reaction(found)

    async def _similar(self) -> DetectedLoop | AttemptFailed | None:
        guard = self.guard
        if guard.similar is None or len(self._texts) < guard.window:
            return None
        found = await call(self.run, guard.similar, self._texts[-guard.window :])
        if isinstance(found, Error):
            return failure_of(self.run, found.error, subject=f"The similarity of loop {self.work.name!r}")
        return (
            DetectedLoop("similarity", self._history[-1].names, guard.window)
            if found.value >= guard.similar_at
            else None
        )

    def _reaction(self, found: DetectedLoop) -> AttemptFailed | AttemptStopped | str | None:
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
                return self._failed(error)

    def _failed(self, error: LoopDetected) -> AttemptFailed:
        return AttemptFailed(error=error, feedback=self.run.redact(str(error)))

    def _asked(self, error: LoopDetected) -> AttemptFailed | AttemptStopped | str | None:
        place = step_paths.unit(self.work.path, f"loop {self._detections}")
        answered, waiting = self.run.journal.answered(place), self.run.journal.waiting(place)
        if answered is not None and answered.answer == STOP_LOOP:
            return self._failed(error)
        if answered is not None:
            return None if answered.answer == GO_ON else str(answered.answer)
        if waiting is not None:
            return AttemptStopped(outcome=waiting.paused)
        text = f"{error}. Answer {GO_ON!r} to let it continue, or with a hint."
        return AttemptStopped(outcome=Paused(message=text), place=place, question=QuestionSpec(kind="loop"))


def _signature(output: object, context: object) -> str | None:
    try:
        text = canonical([value_data(output), value_data(context)])
        return None if text is None else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    except NotSerializable:
        return None


def _text(output: object) -> str:
    if isinstance(output, str):
        return output
    try:
        return canonical(value_data(output)) or type(output).__name__
    except NotSerializable:
        return type(output).__name__


# --- Kept turns of a loop with `keep_history` -----------------------------------------------------------------------


@WRAPPERS.entry("kept_turns")
class KeptTurns:
    """Last turns of one loop, and the state that its journal keeps."""

    def __init__(self, run: Run, loop: LoopUntil, work: AttemptInput, guarded: GuardedLoop | None) -> None:
        self._run, self._work, self._guarded = run, work, guarded
        self._before = len(work.state.history)
        """Number of results of earlier attempts, which are all kept."""
        self._recalled = run.journal.turns(work.path) if run.resumed else None
        assert loop.keep_history is not None
        new = LoopTurns(loop=work.path, keep=loop.keep_history)
        self._turns = new if self._recalled is None else attrs.evolve(self._recalled, keep=loop.keep_history)
        if self._recalled is not None:
            self._continue(self._recalled)

    def _continue(self, turns: LoopTurns) -> None:
        """Count the turns of earlier sessions."""
        state = self._work.state
        charge(state, turns.usage, turns.results)
        state.history = [*state.history, *turns.results]
        state.usage = state.usage + turns.usage
        if self._guarded is not None and turns.guard is not None:
            self._guarded.restore(turns.guard)

    @property
    def first(self) -> tuple[int, object, object, frozenset[str]] | None:
        """Return number, output, context and degraded texts of the last stored turn."""
        turns = self._recalled
        if turns is None:
            return None
        last = turns.results[-1]
        return turns.turn, last.output, turns.context, degraded_texts(last) if last.metadata else NO_TEXTS

    @property
    def is_recalled(self) -> bool:
        """Return whether the condition is evaluated on a stored turn first."""
        return self._recalled is not None

    def begin(self) -> bool:
        """Prepare the next turn; false if a stored one is evaluated first."""
        if self._recalled is not None:
            self._recalled = None
            return False
        self._run.journal.compact(self._turns, None if self._guarded is None else self._guarded.state())
        return True

    def end(self, result: StepResult, context: object) -> None:
        """Count a turn that succeeded, and forget the oldest one."""
        state = self._work.state
        guard = None if self._guarded is None else self._guarded.state()
        self._turns = self._turns.after(result, context, guard)
        if isinstance(state.history, list):
            del state.history[self._before : -self._turns.keep]
        self._run.ledger.forget(self._turns.path)
        if self._turns.compaction is not None:
            self._run.emit(
                "loop.compacted",
                self._work.span,
                step_name=self._work.name,
                attempt=max(self._work.attempt, 1),
                turn=self._turns.turn,
                kept=self._turns.keep,
            )
