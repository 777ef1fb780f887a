"""Hooks: user callbacks at moments of a run.

Rules:

1. A hook is a callable, sync or async, on one payload; annotated with one payload type (or a union), it receives
   only that. The keyword-only parameter `labels` receives the labels of the run.
2. Hooks run in declaration order, and the run waits for them.
3. A hook that raises is reported in the log and as an event; the run continues without it.
4. A hook gets copies of context and data: it can read, but not change them.
5. A hook aborts the run by returning `Aborted(reason=…)` or raising `AbortRun("reason")`.
6. A hook that raises a control error stops the run with it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import typing
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar, assert_never

import attrs
import trio
from outcome import Error

from ..._bridge.host_loop import IN_HOOK, Host
from ..._bridge.user_code_guard import guarded
from ..._core.attempt_results import escalating
from ..._core.error_info import message_of
from ..._core.failure_info import PAYLOAD_TYPES, HookPayload, OnPause, OnStepFailure, PostRun, PostStep, PreRun, PreStep
from ..._core.labels import NO_LABELS, Labels
from ..._core.outcomes import Aborted, Failure, Paused, RunId, Started, Success, TerminalOutcome, checked_outcome
from ..._core.records.pause_tokens import parse_token
from ..._core.step_paths import StepPath, below
from ..._dsl.call_plan import LABELS, accepts, name_of
from ...errors import AbortRun, DeclarationError
from ..context.copies import isolated, own
from .messages import PendingNotification, StepRequest, StepState
from .run_environment import Run

logger = logging.getLogger("flujo_actors")

Settled = TypeVar("Settled", bound=Success | Failure)

Report = Callable[[str, HookPayload, BaseException], None]
"""Callback for a failed hook: name, payload and exception."""


@attrs.frozen
class HookCall:
    """A hook with the payload types it wants."""

    fn: Callable[..., object]
    wants: tuple[type, ...]
    labelled: bool = False
    """Whether it has the keyword-only parameter `labels`."""

    @property
    def name(self) -> str:
        """Return the display name."""
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)


def plan_hooks(hooks: Iterable[Callable[..., object]] | Callable[..., object]) -> tuple[HookCall, ...]:
    """Return the hooks of a `Flujo` with their payload types."""
    listed = (hooks,) if callable(hooks) else tuple(hooks)
    for hook in listed:
        if not callable(hook):
            raise DeclarationError(f"hooks holds {hook!r}, which cannot be called")
        _refuse_other_arity(hook)
    return tuple(HookCall(hook, _wanted(hook), accepts(hook, LABELS)) for hook in listed)


def _refuse_other_arity(hook: Callable[..., object]) -> None:
    """Refuse a hook that cannot take one payload."""
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(object(), **({LABELS: NO_LABELS} if accepts(hook, LABELS) else {}))
    except TypeError as error:
        raise DeclarationError(
            f"hook {name_of(hook)!r} is called with one argument, the payload, but takes {signature}: {error}"
        ) from None


def _wanted(hook: Callable[..., object]) -> tuple[type, ...]:
    everything = typing.get_args(HookPayload)
    annotation = _first_annotation(hook)
    named = typing.get_args(annotation) or (annotation,)
    return tuple(kind for kind in everything if kind in named) or everything


def _first_annotation(hook: Callable[..., object]) -> object:
    try:
        parameters = inspect.signature(hook).parameters
        hints = typing.get_type_hints(_function_of(hook))
    except (TypeError, ValueError, NameError):
        return None
    return hints.get(next(iter(parameters), ""))


def _function_of(hook: Callable[..., object]) -> Callable[..., object]:
    """Return the annotated function behind partials and callable objects."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook if inspect.isroutine(hook) else type(hook).__call__


@attrs.frozen(eq=False)
class Hooks:
    """The hooks of one run."""

    planned: tuple[HookCall, ...]
    run_id: RunId
    host: Host
    report: Report
    redact: Callable[[str], str]
    labels: Labels = NO_LABELS

    async def notify(self, kind: str, **facts: object) -> Aborted | Failure | None:
        """Call all interested hooks; return the first veto afterwards."""
        payload: HookPayload = PAYLOAD_TYPES[kind](run_id=self.run_id, **facts)
        veto: Aborted | Failure | None = None
        for hook in self.planned:
            if isinstance(payload, hook.wants):
                answer = await self._call(hook, payload)
                veto = veto or answer
        return veto

    async def _call(self, hook: HookCall, payload: HookPayload) -> Aborted | Failure | None:
        got = await guarded(self._answer, hook, payload)
        if not isinstance(got, Error):
            return self._aborted(got.value.reason) if isinstance(got.value, Aborted) else None
        if isinstance(got.error, AbortRun):
            return self._aborted(message_of(got.error) or f"aborted by hook {hook.name}")
        control = escalating(got.error)
        if control is not None:
            return Failure(error=control, feedback=self.redact(f"hook {hook.name} raised {message_of(control)}"))
        logger.warning("hook %s failed on %s", hook.name, payload.kind, exc_info=got.error)
        self.report(hook.name, payload, got.error)
        return None

    def _aborted(self, reason: str) -> Aborted:
        return Aborted(reason=self.redact(str(reason)))

    async def _answer(self, hook: HookCall, payload: HookPayload) -> object:
        token = IN_HOOK.set(True)
        try:
            answer = hook.fn(_as_own(payload), **({LABELS: self.labels} if hook.labelled else {}))
        finally:
            IN_HOOK.reset(token)
        answer = await self.host.finish(_in_hook(answer)) if isinstance(answer, Awaitable) else answer
        return checked_outcome(answer) if isinstance(answer, Aborted) else answer


async def _in_hook(answer: Awaitable[object]) -> object:
    """Await a hook's answer, marked as a hook."""
    token = IN_HOOK.set(True)
    try:
        return await answer
    finally:
        IN_HOOK.reset(token)


def _as_own(payload: HookPayload) -> HookPayload:
    """Return the payload with copies of shared values (rule 4)."""
    match payload:
        case PreRun() | PreStep():
            return attrs.evolve(payload, input=own(payload.input), context=isolated(payload.context))
        case PostStep(outcome=Success() | Failure() as outcome):
            return attrs.evolve(payload, outcome=_with_own_output(outcome))
        case OnStepFailure(outcome=failure):
            return attrs.evolve(payload, outcome=_with_own_output(failure))
        case PostStep() | OnPause():
            return payload
        case PostRun(result=result):
            shown = attrs.evolve(result, output=own(result.output), final_context=own(result.final_context))
            return attrs.evolve(payload, result=shown)
        case _:
            assert_never(payload)


def _with_own_output(outcome: Settled) -> Settled:
    result = outcome.step_result
    output = None if result is None else own(result.output)
    if result is None or output is result.output:
        return outcome
    return attrs.evolve(outcome, step_result=attrs.evolve(result, output=output))


async def notify_start(run: Run, request: StepRequest) -> None:
    """Notify the reader of a step's start, if requested."""
    if run.event_stream is not None and run.event_stream.started:
        await run.event_stream.put(Started(step_name=request.name, path=request.path, of=request.of))


async def notify_outcome(run: Run, state: StepState, outcome: TerminalOutcome) -> Aborted | Failure | None:
    """Notify hooks and reader; return a hook's veto."""
    if run.journal.lapsed:
        await run.journal.confirm()
    pending, request = _pending(state, outcome), state.request
    if isinstance(outcome, Paused) and (run.hooks or await _is_all(run, request)):
        run.pausing.append(pending)
        return None
    veto = await _notify_dropped(run, request.path) if run.pausing and not isinstance(outcome, Paused) else None
    return await _deliver(run, pending) or veto


async def _is_all(run: Run, request: StepRequest) -> bool:
    """Return whether nothing else is running; concurrent steps start a round later."""
    await trio.lowlevel.cancel_shielded_checkpoint()
    return run.ledger.only_around(request.parent)


async def notify_pauses(run: Run, *, over: bool = False) -> Aborted | Failure | None:
    """Deliver a resting run's pauses; if `over`, none waits for answers."""
    veto: Aborted | Failure | None = None
    while run.pausing:
        pending = run.pausing.pop(0)
        answer = await _deliver(run, _dropped(pending) if over or not _waits(run, pending) else pending)
        veto = veto or answer
    return veto


async def _notify_dropped(run: Run, path: StepPath) -> Aborted | Failure | None:
    """Deliver withdrawn pauses inside a step before its outcome."""
    veto: Aborted | Failure | None = None
    for pending in [each for each in run.pausing if below(path, each.request.path)]:
        run.pausing.remove(pending)
        answer = await _deliver(run, _dropped(pending))
        veto = veto or answer
    return veto


def _waits(run: Run, pending: PendingNotification) -> bool:
    assert isinstance(pending.outcome, Paused)
    _, path = parse_token(pending.outcome.state_token or "")
    return run.journal.waiting(path) is not None


def _dropped(pending: PendingNotification) -> PendingNotification:
    reason = f"step {pending.request.name!r} was about to pause, but its parent ended without the answer"
    return attrs.evolve(pending, outcome=Aborted(reason=reason, path=pending.request.path))


def notify_later(run: Run, state: StepState, outcome: TerminalOutcome) -> None:
    """Leave the delivery to the canceller of the step."""
    if run.hooks or run.event_stream is not None:
        run.pending.append(_pending(state, outcome))


def _pending(state: StepState, outcome: TerminalOutcome) -> PendingNotification:
    """Return the outcome for hooks and readers, with its path."""
    request = state.request
    return PendingNotification(request=request, outcome=attrs.evolve(outcome, path=request.path), pauses=state.pauses)


async def notify_late(run: Run, *, watched: bool = True) -> Aborted | Failure | None:
    """Deliver pending outcomes in order."""
    veto: Aborted | Failure | None = None
    while run.pending:
        answer = await _deliver(run, run.pending.popleft(), watched=watched)
        veto = veto or answer
    return veto


async def _deliver(run: Run, pending: PendingNotification, *, watched: bool = True) -> Aborted | Failure | None:
    veto: Aborted | Failure | None = None
    try:
        if run.hooks and not pending.hooks_know:
            veto = await _notify_hooks(run.hooks, pending)
        if run.event_stream is not None and watched:
            await run.event_stream.put(pending.outcome)
    except trio.Cancelled:
        run.pending.appendleft(attrs.evolve(pending, hooks_know=True))
        raise
    return veto


async def _notify_hooks(hooks: Hooks, pending: PendingNotification) -> Aborted | Failure | None:
    request, outcome = pending.request, pending.outcome
    where = {"step_name": request.name, "path": request.path}
    veto = await hooks.notify("post_step", outcome=outcome, **where)
    also: Aborted | Failure | None = None
    match outcome:
        case Failure():
            also = await hooks.notify("on_step_failure", outcome=outcome, **where)
        case Paused() if pending.pauses:
            also = await hooks.notify("on_pause", outcome=outcome, **where)
    return veto or also
