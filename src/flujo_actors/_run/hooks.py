"""Hooks: user code told about moments of a run.

Rules:

1. A hook is a callable, sync or async, on one payload; annotated with one payload type (or a union), it is told
   only that.
2. Hooks run in the order of their declaration, and the run waits for them.
3. A hook that raises is reported in the log and as an event; the run goes on as if it had not been there.
4. A hook gets copies of the context and the data that it is shown: it can look, but not change.
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
from outcome import Error

from .._bridge.guard import guarded
from .._bridge.host import Host
from .._context.isolation import isolated, own
from .._core.attempts import escalating
from .._core.error_info import message_of
from .._core.hook_payloads import PAYLOAD_TYPES, HookPayload, OnPause, OnStepFailure, PostRun, PostStep, PreRun, PreStep
from .._core.outcomes import Aborted, Failure, RunId, Success
from .._core.own_outcomes import checked_outcome
from .._dsl.call_plan import name_of
from ..errors import AbortRun, DeclarationError

logger = logging.getLogger("flujo_actors")

Settled = TypeVar("Settled", bound=Success | Failure)

Report = Callable[[str, HookPayload, BaseException], None]
"""Told of a hook that failed: its name, what it was told, what it raised."""


@attrs.frozen
class PlannedHook:
    """A hook with the payload types it wants."""

    fn: Callable[..., object]
    wants: tuple[type, ...]

    @property
    def name(self) -> str:
        """What to call it in a report."""
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)


def plan_hooks(hooks: Iterable[Callable[..., object]] | Callable[..., object]) -> tuple[PlannedHook, ...]:
    """The hooks of a `Flujo`, each with what it wants to be told."""
    listed = (hooks,) if callable(hooks) else tuple(hooks)
    for hook in listed:
        if not callable(hook):
            raise DeclarationError(f"hooks holds {hook!r}, which cannot be called")
        _refuse_other_arity(hook)
    return tuple(PlannedHook(hook, _wanted(hook)) for hook in listed)


def _refuse_other_arity(hook: Callable[..., object]) -> None:
    """A hook that cannot be called with one payload is a wrong declaration; one that cannot be read has the benefit."""
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(object())
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
    """What has the annotations: the function behind partials and callable objects."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook if inspect.isroutine(hook) else type(hook).__call__


@attrs.frozen(eq=False)
class Hooks:
    """The hooks of one run."""

    planned: tuple[PlannedHook, ...]
    run_id: RunId
    host: Host
    report: Report
    redact: Callable[[str], str]

    async def tell(self, kind: str, **facts: object) -> Aborted | Failure | None:
        """Tell everybody who wants to know of such a moment; the first veto is returned when all have been told."""
        payload: HookPayload = PAYLOAD_TYPES[kind](run_id=self.run_id, **facts)
        veto: Aborted | Failure | None = None
        for hook in self.planned:
            if isinstance(payload, hook.wants):
                answer = await self._call(hook, payload)
                veto = veto or answer
        return veto

    async def _call(self, hook: PlannedHook, payload: HookPayload) -> Aborted | Failure | None:
        got = await guarded(self._answer, hook.fn, payload)
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

    async def _answer(self, fn: Callable[..., object], payload: HookPayload) -> object:
        answer = fn(_as_own(payload))
        answer = await self.host.finish(answer) if isinstance(answer, Awaitable) else answer
        return checked_outcome(answer) if isinstance(answer, Aborted) else answer


def _as_own(payload: HookPayload) -> HookPayload:
    """The payload with copies of what others read after the hook (rule 4)."""
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
