"""Compensation of discarded attempts (saga pattern).

Rules:

1. `_core.failure_info` decides the entries and their order; this module executes them, one at a time.
2. A compensation is a step of its own next to the compensated one. It is counted in the compensating step, and draws on
   no budget: no compensation is skipped for lack of money.
3. A final failure is recorded; then the next one is run, or compensation stops, or the run pauses, as declared.
4. A compensation that waits for a person makes the attempt wait; later ones are run when the run resumes.
5. Remaining entries are kept in the state, so that they survive a cancelled compensation.

Sections:

- Compensation of tool calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from outcome import Value, capture

from ..._agents.granular.tool_outcomes import Returned, ToolOutcome, name_of, outcome_from_json
from ..._core import step_paths
from ..._core.attempt_results import AttemptFailed, AttemptStopped
from ..._core.failure_info import (
    HALT,
    CompensatedToolCall,
    CompensationStop,
    StepFailure,
    ToUndo,
    Undo,
    Undoable,
    compensation_entries_of,
    in_order,
    state_of,
)
from ..._core.locks import QUOTA_LOCK
from ..._core.outcomes import Aborted, Failure, Paused, Success, TerminalOutcome, Undone
from ..._core.records.pause_tokens import idempotency_key
from ..._core.step_paths import ROOT, StepPath, below, compensation
from ..._dsl.compensation_options import Compensate, doubt
from ..._dsl.step_declaration import Step
from ..context.copies import own as own_copy
from ..context.merge import merged
from ..run.messages import (
    AttemptInput,
    CompensationState,
    HandlerScope,
    InheritedScope,
    StepRequest,
    StepSettled,
    StepState,
    input_of,
)
from ..run.run_environment import Run
from ..run.step_results import failure_from
from .step_supervisor import WRAPPERS, Supervises, of_one_child


@WRAPPERS.entry("left")
def compensation_entries(
    state: StepState, outcome: TerminalOutcome, context: object, *, attempts: int
) -> tuple[ToUndo, ...]:
    """Return the compensation entries of a settled step in start order."""
    inside: Sequence[ToUndo] = state.nested_entries()
    if isinstance(outcome, Success):
        inside = [
            each for each in inside if not isinstance(each, CompensationStop)
        ]  # it was made again, and that attempt counts
    declared = state.step.compensate
    when = declared.when if isinstance(declared, Compensate) else "started"
    own = None if declared is None or not attempts else _own(state, outcome, context, attempts)
    return compensation_entries_of(
        state_of(outcome), own=own, inside=inside, is_call=isinstance(state.step, Step), when=when
    )


def _own(state: StepState, outcome: TerminalOutcome, context: object, attempts: int) -> ToUndo:
    result = outcome.step_result if isinstance(outcome, Success | Failure) else None
    return Undoable(
        step=state.step,
        name=state.name,
        path=state.path,
        input=input_of(state),
        output=None if result is None else own_copy(result.output),
        completed=isinstance(outcome, Success),
        attempts=attempts,
        context=None if context is state.context else context,
    )


@WRAPPERS.entry("compensation")
async def compensate_attempt(
    spawner: Supervises, work: AttemptInput, reason: str
) -> AttemptStopped | AttemptFailed | None:
    """Compensate an attempt's entries; return its pause or stop, if any."""
    listed = work.state.nested_entries()
    if not listed:
        return None
    if spawner.run.read_only:
        return AttemptStopped(outcome=Aborted(reason=spawner.run.stopping or reason))
    compensation_state = work.state.compensation_state
    assert compensation_state is not None
    failure = None if compensation_state.cause is None else failure_from(spawner.run, compensation_state.cause)
    rest: list[ToUndo] = list(listed)
    compensation_state.undo = {0: rest}
    spawner.run.emit("undo.started", work.span, step_name=work.name, steps=len(in_order(listed)), feedback=reason)
    before = len(spawner.run.compensated)
    ended = await _CompensationRun(spawner, work, reason, failure, rest).all()
    if ended is None and spawner.run.stopping is not None and len(spawner.run.compensated) > before:
        return AttemptStopped(
            outcome=Aborted(reason=spawner.run.stopping)
        )  # when it was cancelled, nothing else had begun
    return ended


@WRAPPERS.entry("branch_compensation")
async def compensate_branch(spawner: Supervises, work: AttemptInput, settled: StepSettled) -> StepSettled:
    """Compensate one branch; it waits if compensation pauses."""
    compensation_state, branch = work.state.compensation_state, StepState(work.state.request)
    assert compensation_state is not None
    started = next(
        number
        for number, compensation_entries in compensation_state.undo.items()
        if compensation_entries is settled.undo
    )
    branch.compensation_state = CompensationState()
    branch.compensation_state.undo, branch.compensation_state.cause = (
        {0: compensation_state.undo.pop(started)},
        settled.cause,
    )
    feedback = getattr(settled.verdict, "feedback", None) or ""
    try:
        waits = await compensate_attempt(spawner, attrs.evolve(work, state=branch), feedback)
    finally:
        compensation_state.undo[started] = branch.nested_entries()
        compensation_state.cause = None if compensation_state.cause is settled.cause else compensation_state.cause
        for result in branch.history:
            work.state.include(result)
    match waits:
        case AttemptStopped(outcome=outcome):
            return attrs.evolve(settled, outcome=outcome)
        case AttemptFailed(error=error, feedback=feedback):
            return attrs.evolve(settled, overruled=Failure(error=error, feedback=feedback))
        case None:
            return settled


@attrs.frozen(eq=False)
class _Target:
    """One entry to compensate: a step, or one of its tool calls."""

    path: StepPath
    """Path of its compensation."""
    by: Compensate
    undo: Undo


@attrs.define(eq=False)
class _CompensationRun:
    """The undoing of one attempt; see the module's rules."""

    spawner: Supervises
    work: AttemptInput
    reason: str
    failure: StepFailure | None
    rest: list[ToUndo]
    """Remaining entries in start order."""
    context: Any = attrs.field(init=False)

    @context.default
    def _all_that_was_written(self) -> object:
        """Return the attempt's context with all steps' changes, even unmerged."""
        written = [(each.name, each.context) for each in self.rest if isinstance(each, Undoable)]
        written.append((self.work.name, self.work.state.last_context))
        branches = [(name, context) for name, context in written if context is not None]
        return _merged(self.work.context, branches)

    async def all(self) -> AttemptStopped | AttemptFailed | None:
        """Compensate one entry after the other, the last first."""
        before = self.context
        while self.rest and not isinstance(self.rest[-1], CompensationStop):
            entry = self.rest[-1]
            if entry.waiting is not None:
                return AttemptStopped(outcome=entry.waiting)
            ended = await self._compensate_entry(entry)
            if ended is not None:
                return ended
        self._keep_context(before)
        return None

    def _keep_context(self, before: object) -> None:
        """Keep compensations' context changes at the top of the run."""
        if self.context is not before and self.work.span == ROOT:
            self.work.state.last_context = self.context

    async def _compensate_entry(self, entry: Undoable) -> AttemptStopped | AttemptFailed | None:
        # A cancelled one is run again later, as another step of the run.
        self.rest[-1] = attrs.evolve(entry, number=entry.number + 1)
        for target in self._targets(entry):
            ended = await self._compensate_target(entry, target)
            if ended is not None:
                return ended
            if isinstance(self.rest[-1], CompensationStop):
                return None
        self.rest.pop()
        return None

    def _targets(self, entry: Undoable) -> Iterator[_Target]:
        declared = None if entry.step is None else entry.step.compensate
        if isinstance(declared, Compensate):
            yield _Target(step_paths.compensation(entry.path), declared, self._undo(entry))
        elif declared is not None:
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
            forward_key=idempotency_key(self.spawner.run.key_id, entry.path),
            reason=self.reason,
            failure=self.failure,
            tool_calls=self._tool_calls(entry),
        )

    def _tool_calls(self, entry: Undoable) -> tuple[CompensatedToolCall, ...]:
        if getattr(entry.step, "resumable", None) is None:
            return ()

        return tuple(call for _, call in tool_calls(self.spawner.run, entry.path))

    async def _compensate_target(self, entry: Undoable, target: _Target) -> AttemptStopped | AttemptFailed | None:
        """Run one compensation, as often as a person wants it."""
        number = entry.number
        ended = await self._run(target, number)
        while isinstance(ended, str) and target.by.if_it_fails == "pause":
            answer = await self._decision(target, number, ended)
            if isinstance(answer, Paused):
                ended = answer
            elif answer == "retry":
                number += 1
                ended = await self._run(target, number)
            else:
                break
        if isinstance(ended, Paused):
            self.rest[-1] = attrs.evolve(entry, number=number, waiting=ended)
            return AttemptStopped(outcome=ended)
        if isinstance(ended, AttemptFailed):
            return ended
        self._over(target, ended)
        return None

    def _over(self, target: _Target, feedback: str | None) -> None:
        """A compensation has ended, for good or ill."""
        self._note(target, feedback)
        if feedback is not None and target.by.if_it_fails == "stop":
            self.rest.append(HALT)

    async def _run(self, target: _Target, number: int) -> Paused | AttemptFailed | str | None:
        """Run a compensation; return its pause, its failure, or None.

        `AttemptFailed` means that the process ends.
        """
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
                return AttemptFailed(error=error, feedback=feedback or "")
            case Failure(feedback=feedback):
                return feedback or "it failed"

    async def _performed_free(self, target: _Target, number: int) -> StepSettled:
        """Perform a compensation: budgets count it, and do not refuse it."""
        by, undo = target.by.by, target.undo
        request = StepRequest(
            step=by,
            name=by.name or f"undo {undo.step_name}",
            path=step_paths.again(target.path, number),
            parent=self.work.span,
            data=undo,
            context=self.context,
            around=InheritedScope(aside=HandlerScope(failure=undo.failure, undo=undo)),
        )
        settled = await self._performed(request)
        result = settled.result
        if result is not None and self.work.quotas:
            with QUOTA_LOCK:
                for quota in self.work.quotas:
                    quota.spend(result.usage)
        return settled

    async def _performed(self, request: StepRequest) -> StepSettled:
        return await of_one_child(self.spawner, self.work.state, request)

    async def _decision(self, target: _Target, number: int, feedback: str) -> object:
        """Return a person's decision on a failed compensation, or the open pause."""
        step = doubt(target.undo.step_name, feedback)
        path = step_paths.doubt(target.path, number)
        request = StepRequest(
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
        path = step_paths.compensated_by(target.path) or target.path
        noted = Undone(step_name=name, path=path, success=feedback is None, feedback=feedback)
        run.compensated[path] = noted
        status = "success" if noted.success else "failure"
        run.emit("undo.ended", path, step_name=name, status=status, feedback=feedback)


def _merged(context: object, branches: list[tuple[str, object]]) -> object:
    """Return the context with the branches' changes; unchanged on conflict."""
    got = capture(merged, context, branches, strategy="overwrite", where="the compensation")
    return got.value if isinstance(got, Value) else context


# --- Compensation of tool calls -----------------------------------------------------------------------------------


def tool_targets(
    run: Run, entry: Undoable, by_tool: Mapping[str, Compensate], undo: Undo
) -> Iterator[tuple[StepPath, Compensate, Undo]]:
    """Yield each tool call's compensation, last call first."""
    for path, call in reversed(tool_calls(run, entry.path)):
        by = by_tool.get(call.name)
        if by is not None and (call.completed or by.when == "started"):
            yield compensation(entry.path, below(entry.path, path)), by, _compensation_of(call, undo)


def _compensation_of(call: CompensatedToolCall, undo: Undo) -> Undo:
    return attrs.evolve(
        undo,
        input=call.arguments,
        output=call.result,
        completed=call.completed,
        forward_key=call.key,
        tool_calls=(call,),
    )


def tool_calls(run: Run, step: StepPath) -> list[tuple[StepPath, CompensatedToolCall]]:
    """Return a granular step's tool calls with paths, in order.

    A call that requested other arguments from the model, or that waits for approval, has no effect.
    """
    found = ((path, _read(run, path, intent)) for path, intent in run.journal.intents(step))
    return [(path, call) for path, call in found if call is not None]


def _read(run: Run, path: StepPath, intent: str) -> CompensatedToolCall | None:
    intended = json.loads(intent)
    if "tool" not in intended:
        return None  # a model request, or an operation of another capability
    kept = run.journal.unit(path)
    call = CompensatedToolCall(
        name=intended["tool"], arguments=intended.get("arguments") or {}, key=_key(run, path), completed=False
    )
    return call if kept is None else _ended(call, outcome_from_json(kept.result))


def _ended(call: CompensatedToolCall, outcome: ToolOutcome) -> CompensatedToolCall | None:
    if isinstance(outcome, Returned):
        value = outcome.value
        return attrs.evolve(call, result=getattr(value, "return_value", value), completed=True)
    return call if name_of(outcome) in ("failed", "timed_out", "cancelled") else None


def _key(run: Run, path: StepPath) -> str:
    """Return the idempotency key that the call was made with."""
    around, _, unit = path.partition("/~u")
    return f"{idempotency_key(run.key_id, StepPath(around))}:{unit}"
