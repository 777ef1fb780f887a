"""Calls of user code around agents: inputs, selectors, conditions, processors, validators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from outcome import Error, Value

from ... import _bridge
from ..._bridge.user_code_guard import guarded, left_scope_open
from ..._core import records
from ..._core.attempt_results import AttemptFailed
from ..._core.error_info import message_of, put_note, text_from
from ..._dsl.call_plan import LABELS, CallPlan
from ..context.copies import isolated, own
from .run_environment import Run

if TYPE_CHECKING:
    from .messages import AssembledInput, AttemptInput
    from .step_results import Scope


async def call(run: Run, fn: Callable[..., object], *args: object, **keywords: object) -> Value[Any] | Error:
    """Call a user's quick sync or async function on the loop."""
    if run.journal.lapsed:
        await run.journal.confirm()
    return await guarded(_answer, run, fn, args, keywords)


async def _answer(run: Run, fn: Callable[..., object], args: tuple[object, ...], keywords: dict[str, object]) -> object:
    answer = fn(*args, **keywords)
    return await run.host.finish(answer) if isinstance(answer, Awaitable) else answer


async def call_planned(
    run: Run, plan: CallPlan, value: object, context: object, assembly: AssembledInput | None = None
) -> Value[Any] | Error:
    """Call a processor or validator on a value, with accepted keywords."""
    offered = {"context": context, "resources": run.resources, LABELS: run.labels}
    if "assembled" in plan.named:
        offered["assembled"] = assembled_of(assembly)
    keywords = {name: offered[name] for name in plan.keywords if name in offered}
    return await call(run, plan.target, value, **keywords)


def assembled_of(assembly: AssembledInput | None) -> object:
    """Return the keyword `assembled`: the step's context, maybe empty."""
    if assembly is not None:
        return assembly.context
    return records.AssembledContext.EMPTY


async def made(run: Run, plan: CallPlan, fn: Any, work: AttemptInput) -> Value[Any] | Error:
    """Return a per-attempt value from a function `(data, context, resources)`."""
    copied = await guarded(_isolated, work.context)
    if isinstance(copied, Error):
        return copied
    offered = {"context": copied.value, "resources": run.resources, LABELS: run.labels}
    keywords = {name: offered[name] for name in plan.keywords if name in offered}
    asked = {} if work.scope is None else work.scope.asked_by(fn)
    return await call(run, plan.target, *((own(work.data),) if plan.takes_data else ()), **keywords, **asked)


async def given(
    run: Run, declared: object, data: object, context: object, scope: Scope | None = None, **asked: object
) -> Value[Any] | Error:
    """Return a copy of the declared value, or its callable's result."""
    if not callable(declared) or isinstance(declared, type):
        return Value(own(declared))
    return await with_context_copy(run, declared, data, context, scope, **asked)


async def with_context_copy(
    run: Run, fn: Callable[..., object], data: object, context: object, scope: Scope | None = None, **asked: object
) -> Value[Any] | Error:
    """Call `fn(data, context)` with a context copy and scope keywords."""
    copied = await guarded(_isolated, context)
    if isinstance(copied, Error):
        return copied
    return await call(run, fn, data, copied.value, **({} if scope is None else scope.asked_by(fn)), **asked)


async def _isolated(context: object) -> object:
    return isolated(context)


def failure_of(run: Run, error: BaseException, *, subject: str = "", plan: CallPlan | None = None) -> AttemptFailed:
    """Return the failure of raising user code, named by `what`."""
    if left_scope_open(error):
        text = f"The step ended without an outcome: {type(error).__name__} was raised without a cancelled scope"
    else:
        text = f"Agent execution failed with {error_text(run, error, plan)}"
    return AttemptFailed(error=error, feedback=run.redact(f"{subject}: {text}" if subject else text))


def error_text(run: Run, error: BaseException, plan: CallPlan | None = None) -> str:
    """Return an exception's text with hints about libraries and resources."""
    hint = _bridge.library_hint(error, run.host) or _resources_hint(run, error, plan)
    if hint is None:
        return text_from(error)
    put_note(error, "flujo_actors hint: ", hint)
    return f"{text_from(error)} ({hint})"


def _resources_hint(run: Run, error: BaseException, plan: CallPlan | None) -> str | None:
    asked = plan is not None and "resources" in plan.named and run.resources is None
    if not asked or not isinstance(error, TypeError | AttributeError) or "NoneType" not in message_of(error):
        return None
    return "this code asks for `resources`, and there are none: give them to `Flujo(…, resources=…)`"
