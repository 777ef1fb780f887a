"""Waits of steps: for a time, event, rate or budget window.

Rules:

1. Without a store a sleep passes in process, on the clock of the event loop, without a record.
2. With a store the wait is committed first. It passes in process while another step of the run executes, or if at most
   `durability.inline_wait_s` are left. Otherwise the run is put away: no owner, no slot, no task.
3. The run is put away when every open step waits. From then on no step starts.
4. A wait in process ends by its time, or by a record of another process: an event, or a wake.
5. A resumed wait continues with its record: its time is not computed again.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Protocol, cast

import attrs
import cattrs
import trio
from outcome import Error, Value

from ..._core import seams, step_paths
from ..._core.attempt_results import Attempt, AttemptFailed, AttemptStopped, AttemptSucceeded
from ..._core.outcomes import Paused, Success
from ..._core.policies.approval_policy import QuestionSpec
from ..._core.records.sent_events import EventInfo
from ..._core.step_paths import StepPath
from ..._dsl.pipeline import AnyStep
from ..._dsl.wait_steps import Sleep, WaitFor, checked_delay_s, epoch_of, reader_of
from ..._durable.journal import Pause, PauseAnswer
from ...errors import WaitTimeout
from ...structured import compile_schema
from ..run.messages import AttemptInput, StepState, work_of
from ..run.run_environment import OpenWait, Run, release_if_idle
from ..run.step_results import budget_for
from ..run.user_functions import failure_of, given, with_context_copy
from .step_supervisor import KINDS, WRAPPERS, Supervises, ended_by, of_one_child, output_of

logger = logging.getLogger("flujo_actors")

LOOK_S = 0.5
"""Interval of looks for an event or a wake."""


class WaitRecords(Protocol):
    """Records of waits in the journal of a stored run."""

    puts_away: bool
    """Whether the run may be put away while it waits."""

    async def now(self) -> float:
        """Return the store's wall clock."""

    async def deadline(self, path: StepPath) -> tuple[float, float] | None:
        """Return the end of a wait and the seconds left, or None."""

    async def refused_events(self, event: str, key: str) -> list[EventInfo]:
        """Return the events refused by waits since the last call."""

    async def ended_wait(self, path: StepPath, *, due: bool) -> PauseAnswer | None:
        """Return the end of a wait in the store, or None.

        `due` lets time end it."""


class PausesSteps(Supervises, Protocol):
    """Supervisor that commits pauses."""

    async def pause(self, state: StepState, paused: Paused, place: StepPath, question: QuestionSpec) -> Paused:
        """Give the pausing step a token, and commit its pause."""


def _waits_of(run: Run) -> WaitRecords:
    return cast("WaitRecords", run.journal)


# --- sleep ----------------------------------------------------------------------------------------------------


@KINDS.entry("sleep")
async def sleep(spawner: PausesSteps, step: Sleep, work: AttemptInput) -> Attempt:
    """Pass the input on after a time; see the module's rules."""
    run = spawner.run
    asked = await _time_of(run, step, work)
    if isinstance(asked, AttemptFailed):
        return asked
    durable = run.journal.durable
    left_s = asked if step.until is None else asked - (await _waits_of(run).now() if durable else seams.clock.time())
    if left_s <= 0 or not durable:
        await trio.sleep(max(0.0, left_s))
        return AttemptSucceeded(output=work.data, context=work.context)
    if step.until is None:
        spec = QuestionSpec(kind="sleep", timeout_s=asked)
    else:
        spec = QuestionSpec(kind="sleep", facts={"due_at": asked})
    return await _commit_and_wait(spawner, step, work, spec, f"sleeps for {left_s:g} s")


async def _time_of(run: Run, step: Sleep, work: AttemptInput) -> float | AttemptFailed:
    """Return the declared or computed time of a sleep."""
    name = "seconds" if step.until is None else "until"
    declared = step.seconds if step.until is None else step.until
    asked: Value[Any] | Error = Value(declared)
    if callable(declared):
        budget = budget_for(step, name, work.quotas)
        asked = await with_context_copy(run, declared, work.data, work.context, work.scope, **budget)
    if isinstance(asked, Error):
        return failure_of(run, asked.error, subject=f"The {name} of step {step.name!r}")
    try:
        if step.until is None:
            return checked_delay_s(asked.value, subject=f"step {step.name!r}: seconds")
        return epoch_of(asked.value, subject=f"step {step.name!r}: until")
    except ValueError as error:
        return AttemptFailed(error=error, feedback=str(error))


# --- events ---------------------------------------------------------------------------------------------------


@KINDS.entry("wait_for")
async def wait_for_event(spawner: PausesSteps, step: WaitFor, work: AttemptInput) -> Attempt:
    """Return the data of the awaited event; see the module's rules."""
    run = spawner.run
    key = await _key_of(run, step, work)
    if isinstance(key, AttemptFailed):
        return key
    spec = QuestionSpec(
        kind="event",
        schema=_json_schema(step.schema),
        timeout_s=step.deadline_s,
        facts={"event": step.event, "key": key},
    )
    return await _commit_and_wait(spawner, step, work, spec, f"waits for event {step.event!r} with key {key!r}")


async def _emit_refused(run: Run, state: StepState, spec: QuestionSpec) -> None:
    """Report the buffered events that did not fit a wait."""
    event, key = spec.facts["event"], spec.facts["key"]
    for info in await _waits_of(run).refused_events(event, key):
        reason = run.redact(info.reason or "")
        logger.warning(
            "event %r with key %r does not fit step %r of run %r: %s", event, key, state.name, run.run_id, reason
        )
        run.emit("event.refused", state.path, step_name=state.name, event=event, feedback=reason)


async def _key_of(run: Run, step: WaitFor, work: AttemptInput) -> str | AttemptFailed:
    if step.key is None:
        return run.run_id
    if isinstance(step.key, str):
        return step.key
    budget = budget_for(step, "key", work.quotas)
    asked = await with_context_copy(run, step.key, work.data, work.context, work.scope, **budget)
    if isinstance(asked, Error):
        return failure_of(run, asked.error, subject=f"The key of step {step.name!r}")
    key = asked.value
    if isinstance(key, str) and 0 < len(key) <= 200 and key.isprintable():
        return key
    error = ValueError(f"step {step.name!r}: key must return a text of 1 to 200 characters, not {key!r:.100}")
    return AttemptFailed(error=error, feedback=run.redact(str(error)))


def _json_schema(schema: object) -> object:
    if schema is None or isinstance(schema, dict):
        return schema
    return dict(compile_schema(schema).json_schema)


# --- both -----------------------------------------------------------------------------------------------------


async def _commit_and_wait(
    spawner: PausesSteps, step: Sleep | WaitFor, work: AttemptInput, spec: QuestionSpec, message: str
) -> Attempt:
    """Commit a wait, and wait."""
    state, run = work.state, spawner.run
    span = run.telemetry.span_of(run.run_id) if run.telemetry.enabled else None
    if span is not None:  # the next span of the run links to it
        spec = attrs.evolve(spec, facts={**spec.facts, "span": span})
    paused = await spawner.pause(state, Paused(message=message), state.path, spec)
    if spec.wait == "event":
        await _emit_refused(spawner.run, state, spec)
    return await _ended(spawner, step, state, paused, spec, work.data)


@WRAPPERS.entry("wait")
async def resumed_wait(
    spawner: PausesSteps, state: StepState, step: Sleep | WaitFor, pause: Pause, answered: PauseAnswer | None
) -> Attempt:
    """Continue a wait of an earlier session, ended or not."""
    data = state.data
    if step.input is not None:
        resolved = await given(spawner.run, step.input, data, state.context, state.scope)
        if isinstance(resolved, Error):
            return failure_of(spawner.run, resolved.error, subject=f"The input of step {step.name!r}")
        data = resolved.value
    assert pause.question is not None
    if answered is None:
        return await _ended(spawner, step, state, pause.paused, pause.question, data)
    emit_woken(spawner.run, state, pause.question, answered)
    return await _outcome(spawner, step, state, pause.question, answered, data)


async def _ended(
    spawner: PausesSteps, step: Sleep | WaitFor, state: StepState, paused: Paused, spec: QuestionSpec, data: object
) -> Attempt:
    answered = await passed(spawner.run, state, spec)
    if answered is None:
        return AttemptStopped(outcome=paused)
    return await _outcome(spawner, step, state, spec, answered, data)


@WRAPPERS.entry("passed")
async def passed(run: Run, state: StepState, spec: QuestionSpec) -> PauseAnswer | None:
    """Return the end of a wait; None if put away."""
    path = state.path
    waits, by_event = _waits_of(run), spec.wait == "event"
    found = await waits.ended_wait(path, due=False) if by_event else None  # a buffered event ends it at once
    if found is not None:
        return found
    due_at, left_s = await waits.deadline(path) or (None, math.inf)
    run.emit("run.waiting", path, step_name=state.name, wait_kind=spec.kind, due_at=due_at)
    wait = run.waits[path] = OpenWait(due=trio.current_time() + max(0.0, left_s))
    try:
        await trio.lowlevel.checkpoint()  # concurrent steps start a round later
        release_if_idle(run)
        while not wait.put_away.is_set():
            with trio.move_on_at(min(wait.due, trio.current_time() + LOOK_S)):
                await wait.put_away.wait()
                return None
            due = trio.current_time() >= wait.due
            if due and spec.wait == "sleep":
                return PauseAnswer(pause=cast("Any", None), answer=None, expired=True)
            found = await waits.ended_wait(path, due=due)
            if found is not None:
                return found
            if due:  # by the clock of this process; the store's is behind
                wait = run.waits[path] = attrs.evolve(wait, due=trio.current_time() + LOOK_S / 10)
        return None
    finally:
        del run.waits[path]


@WRAPPERS.entry("woken")
def emit_woken(run: Run, state: StepState, spec: QuestionSpec, answered: PauseAnswer) -> None:
    late_s = answered.late_s if answered.expired else 0.0
    woken = {"wait_kind": spec.kind, "late_s": late_s, "span": spec.facts.get("span")}
    run.emit("run.woken", state.path, step_name=state.name, **woken)


async def _outcome(
    spawner: PausesSteps,
    step: Sleep | WaitFor,
    state: StepState,
    spec: QuestionSpec,
    answered: PauseAnswer,
    data: object,
) -> Attempt:
    """Return the attempt that ends with a wait."""
    if isinstance(step, Sleep):
        return AttemptSucceeded(output=data, context=state.context)
    if answered.expired:
        return await _timed_out(spawner, step, state, spec, data)
    spawner.run.emit("event.delivered", state.path, step_name=state.name, event=step.event)
    if step.schema is None:
        return AttemptSucceeded(output=answered.answer, context=state.context)
    try:
        return AttemptSucceeded(output=reader_of(step.schema)(answered.answer), context=state.context)
    except (ValueError, TypeError, cattrs.BaseValidationError) as error:
        return failure_of(spawner.run, error, subject=f"The event of step {step.name!r}")


async def _timed_out(
    spawner: PausesSteps, step: WaitFor, state: StepState, spec: QuestionSpec, data: object
) -> Attempt:
    if step.on_timeout == "none":
        return AttemptSucceeded(output=None, context=state.context)
    if isinstance(step.on_timeout, str):
        error = WaitTimeout(step.event, spec.facts["key"], step.deadline_s or 0.0)
        return AttemptFailed(error=error, feedback=spawner.run.redact(str(error)))
    return await _instead(spawner, state, step.on_timeout, data)


async def _instead(spawner: PausesSteps, state: StepState, way: AnyStep, data: object) -> Attempt:
    """Run the step that replaces the event."""
    work, path = work_of(state, data), step_paths.escalation(state.path)
    child = work.child(way, way.name or path.rpartition("/")[2], path, data, state.context)
    settled = await of_one_child(spawner, state, child)
    if not isinstance(settled.verdict, Success):
        return ended_by(work, child.name, settled, state.context)
    return AttemptSucceeded(output=output_of(settled), context=settled.context)
