"""Undoing what an attempt has done that does not count (compensation, the saga pattern).

Rules:

1. What is undone and in which order is decided by `_core.undoing`; here it is carried out, one at a time.
2. A compensation is a step of its own beside the one it undoes. It is counted in whatever undoes it, and draws on no
   budget: nothing is left undone because money ran out.
3. One that failed for good is noted; then the next one is run, or undoing stops, or a person is asked, as it says.
4. One that waits for a person makes the attempt wait; what comes after it is undone when the run goes on.
5. What is not undone yet is kept in the tally, so that whoever cuts the undoing short can finish it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from outcome import Value, capture

from .._context.isolation import own as own_copy
from .._context.merging import merged
from .._core import paths
from .._core.attempts import Failed, Stopped
from .._core.failures import StepFailure, ToolCall, Undo
from .._core.outcomes import Aborted, Failure, Paused, Success, TerminalOutcome, Undone
from .._core.paths import ROOT, StepPath
from .._core.pause_tokens import idempotency_key
from .._core.undoing import HALT, Halt, ToUndo, Undoable, in_order, left_by, state_of
from .._dsl.compensation import Compensate, doubt
from .._dsl.step import Step
from .._locks import QUOTA_LOCK
from .._run.aftermath import Aftermath, Aside, input_of
from .._run.failure_facts import failure_from
from .._run.messages import Around, Request, Settled, Tally, Work
from .children import Spawner, of_one_child


def left(request: Request, outcome: TerminalOutcome, context: object, *, attempts: int) -> tuple[ToUndo, ...]:
    """What a step that settled leaves to undo, in the order of starting."""
    inside: Sequence[ToUndo] = request.tally.left_inside()
    if isinstance(outcome, Success):
        inside = [each for each in inside if not isinstance(each, Halt)]  # it was made again, and that attempt counts
    declared = request.step.compensate
    when = declared.when if isinstance(declared, Compensate) else "started"
    own = None if declared is None or not attempts else _own(request, outcome, context, attempts)
    return left_by(state_of(outcome), own=own, inside=inside, is_call=isinstance(request.step, Step), when=when)


def _own(request: Request, outcome: TerminalOutcome, context: object, attempts: int) -> ToUndo:
    result = outcome.step_result if isinstance(outcome, Success | Failure) else None
    return Undoable(
        step=request.step,
        name=request.name,
        path=request.path,
        input=input_of(request),
        output=None if result is None else own_copy(result.output),
        completed=isinstance(outcome, Success),
        attempts=attempts,
        context=None if context is request.context else context,
    )


async def take_back(spawner: Spawner, work: Work, reason: str) -> Stopped | Failed | None:
    """Undo what is left inside an attempt; how the step ends, if it has to wait for a person or the run stops."""
    listed = work.tally.left_inside()
    if not listed:
        return None
    if spawner.run.only_looks:
        return Stopped(outcome=Aborted(reason=spawner.run.closing or reason))
    aftermath = work.tally.aftermath
    assert aftermath is not None
    failure = None if aftermath.cause is None else failure_from(spawner.run, aftermath.cause)
    rest: list[ToUndo] = list(listed)
    aftermath.undo = {0: rest}
    spawner.run.emit("undo.started", work.span, step_name=work.name, steps=len(in_order(listed)), feedback=reason)
    before = len(spawner.run.undone)
    ended = await _Undoing(spawner, work, reason, failure, rest).all()
    if ended is None and spawner.run.closing is not None and len(spawner.run.undone) > before:
        return Stopped(outcome=Aborted(reason=spawner.run.closing))  # when it was cancelled, nothing else had begun
    return ended


async def take_back_branch(spawner: Spawner, work: Work, settled: Settled) -> Settled:
    """Undo one branch of an attempt that goes on without it; the branch waits if its compensation does."""
    aftermath, tally = work.tally.aftermath, Tally()
    assert aftermath is not None
    started = next(number for number, left in aftermath.undo.items() if left is settled.undo)
    tally.aftermath = Aftermath()
    tally.aftermath.undo, tally.aftermath.cause = {0: aftermath.undo.pop(started)}, settled.cause
    feedback = getattr(settled.verdict, "feedback", None) or ""
    try:
        waits = await take_back(spawner, attrs.evolve(work, tally=tally), feedback)
    finally:
        aftermath.undo[started] = tally.left_inside()
        aftermath.cause = None if aftermath.cause is settled.cause else aftermath.cause
        for result in tally.history:
            work.tally.include(result)
    match waits:
        case Stopped(outcome=outcome):
            return attrs.evolve(settled, outcome=outcome)
        case Failed(error=error, feedback=feedback):
            return attrs.evolve(settled, overruled=Failure(error=error, feedback=feedback))
        case None:
            return settled


@attrs.frozen(eq=False)
class _Target:
    """One thing to undo: a step, or a tool call of one."""

    path: StepPath
    """Where its compensation stands."""
    by: Compensate
    undo: Undo


@attrs.define(eq=False)
class _Undoing:
    """The undoing of one attempt; see the module's rules."""

    spawner: Spawner
    work: Work
    reason: str
    failure: StepFailure | None
    rest: list[ToUndo]
    """What is not undone yet, in the order of starting."""
    context: Any = attrs.field(init=False)

    @context.default
    def _all_that_was_written(self) -> object:
        """The context of the attempt with what all its steps left in it, also in branches that were not merged."""
        written = [(each.name, each.context) for each in self.rest if isinstance(each, Undoable)]
        written.append((self.work.name, self.work.tally.context))
        branches = [(name, context) for name, context in written if context is not None]
        return _merged(self.work.context, branches)

    async def all(self) -> Stopped | Failed | None:
        """Undo one after the other, the last first."""
        before = self.context
        while self.rest and not isinstance(self.rest[-1], Halt):
            entry = self.rest[-1]
            if entry.waiting is not None:
                return Stopped(outcome=entry.waiting)
            ended = await self._each(entry)
            if ended is not None:
                return ended
        self._keep(before)
        return None

    def _keep(self, before: object) -> None:
        """What compensations have left in the context stays at the top of the run; other attempts are dropped."""
        if self.context is not before and self.work.span == ROOT:
            self.work.tally.context = self.context

    async def _each(self, entry: Undoable) -> Stopped | Failed | None:
        # One that is cut short is run again by whoever finishes this, as another step of the run.
        self.rest[-1] = attrs.evolve(entry, number=entry.number + 1)
        for target in self._targets(entry):
            ended = await self._one(entry, target)
            if ended is not None:
                return ended
            if isinstance(self.rest[-1], Halt):
                return None
        self.rest.pop()
        return None

    def _targets(self, entry: Undoable) -> Iterator[_Target]:
        declared = None if entry.step is None else entry.step.compensate
        if isinstance(declared, Compensate):
            yield _Target(paths.compensation(entry.path), declared, self._undo(entry))
        elif declared is not None:
            from .undoing_tools import tool_targets  # what only granular steps have

            for path, by, undo in tool_targets(self.spawner.run, entry, declared, self._undo(entry)):
                yield _Target(path, by, undo)

    def _undo(self, entry: Undoable) -> Undo:
        return Undo(
            run_id=self.spawner.run.run_id,
            step_name=entry.name,
            path=entry.path,
            input=entry.input,
            output=entry.output,
            completed=entry.completed,
            attempts=entry.attempts,
            forward_key=idempotency_key(self.spawner.run.run_id, entry.path),
            reason=self.reason,
            failure=self.failure,
            tool_calls=self._tool_calls(entry),
        )

    def _tool_calls(self, entry: Undoable) -> tuple[ToolCall, ...]:
        if getattr(entry.step, "resumable", None) is None:
            return ()
        from .undoing_tools import tool_calls  # what only granular steps have

        return tuple(call for _, call in tool_calls(self.spawner.run, entry.path))

    async def _one(self, entry: Undoable, target: _Target) -> Stopped | Failed | None:
        """Run one compensation, as often as a person wants it."""
        number = entry.number
        ended = await self._run(target, number)
        while isinstance(ended, str) and target.by.if_it_fails == "pause":
            answer = await self._asked(target, number, ended)
            if isinstance(answer, Paused):
                ended = answer
            elif answer == "retry":
                number += 1
                ended = await self._run(target, number)
            else:
                break
        if isinstance(ended, Paused):
            self.rest[-1] = attrs.evolve(entry, number=number, waiting=ended)
            return Stopped(outcome=ended)
        if isinstance(ended, Failed):
            return ended
        self._over(target, ended)
        return None

    def _over(self, target: _Target, feedback: str | None) -> None:
        """A compensation has ended, for good or ill."""
        self._note(target, feedback)
        if feedback is not None and target.by.if_it_fails == "stop":
            self.rest.append(HALT)

    async def _run(self, target: _Target, number: int) -> Paused | Failed | str | None:
        """Run a compensation: what it waits for, why it failed, `None` if all is well, `Failed` if the process ends."""
        settled = await self._performed_free(target, number)
        match settled.verdict:
            case Success():
                self.context = settled.context
                return None
            case Paused() as paused:
                return paused
            case Aborted(reason=text):
                return text
            case Failure(error=KeyboardInterrupt() | SystemExit() as error, feedback=feedback):
                return Failed(error=error, feedback=feedback or "")
            case Failure(feedback=feedback):
                return feedback or "it failed"

    async def _performed_free(self, target: _Target, number: int) -> Settled:
        """Perform a compensation: budgets count it, and do not refuse it."""
        by, undo = target.by.by, target.undo
        request = Request(
            step=by,
            name=by.name or f"undo {undo.step_name}",
            path=paths.again(target.path, number),
            parent=self.work.span,
            data=undo,
            context=self.context,
            around=Around(aside=Aside(failure=undo.failure, undo=undo)),
        )
        settled = await self._performed(request)
        result = settled.result
        if result is not None and self.work.quotas:
            with QUOTA_LOCK:
                for quota in self.work.quotas:
                    quota.spend(result.usage)
        return settled

    async def _performed(self, request: Request) -> Settled:
        return await of_one_child(self.spawner, self.work.tally, request)

    async def _asked(self, target: _Target, number: int, feedback: str) -> object:
        """What a person wants to be done about a compensation that failed; the pause while nobody has said."""
        step = doubt(target.undo.step_name, feedback)
        path = paths.doubt(target.path, number)
        request = Request(
            step=step, name=step.name, path=path, parent=self.work.span, data=feedback, context=self.context
        )
        match (await self._performed(request)).verdict:
            case Paused() as paused:
                return paused
            case Success(step_result=result):
                return result.output
            case _:
                return "skip"

    def _note(self, target: _Target, feedback: str | None) -> None:
        run, name = self.spawner.run, target.undo.step_name
        path = paths.undone_by(target.path) or target.path
        noted = Undone(step_name=name, path=path, success=feedback is None, feedback=feedback)
        run.undone[path] = noted
        status = "success" if noted.success else "failure"
        run.emit("undo.ended", path, step_name=name, status=status, feedback=feedback)


def _merged(context: object, branches: list[tuple[str, object]]) -> object:
    """The context with what branches changed in it, the last one counts; unchanged if they cannot be merged."""
    got = capture(merged, context, branches, strategy="overwrite", where="what is undone")
    return got.value if isinstance(got, Value) else context
