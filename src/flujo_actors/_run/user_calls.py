"""Calls into what users wrote around their agents: inputs, selectors, conditions, processors, validators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from outcome import Error, Value

from .._bridge.guard import guarded, vanished
from .._context.isolation import isolated, own
from .._core.attempts import Failed
from .._core.error_info import message_of, put_note, said_by
from .._dsl.call_plan import CallPlan
from .run import Run

if TYPE_CHECKING:
    from .messages import Assembly, Work
    from .scope import Scope


async def ask(run: Run, fn: Callable[..., object], *args: object, **keywords: object) -> Value[Any] | Error:
    """Call a function of the user's, sync or async; it runs on the loop, so it should be quick."""
    return await guarded(_answer, run, fn, args, keywords)


async def _answer(run: Run, fn: Callable[..., object], args: tuple[object, ...], keywords: dict[str, object]) -> object:
    answer = fn(*args, **keywords)
    return await run.host.finish(answer) if isinstance(answer, Awaitable) else answer


async def ask_planned(
    run: Run, plan: CallPlan, value: object, context: object, assembly: Assembly | None = None
) -> Value[Any] | Error:
    """Call a processor or a validator on a value, with the keywords it takes."""
    offered = {"context": context, "resources": run.resources}
    if "assembled" in plan.named:
        offered["assembled"] = assembled_of(assembly)
    keywords = {name: offered[name] for name in plan.keywords if name in offered}
    return await ask(run, plan.target, value, **keywords)


def assembled_of(assembly: Assembly | None) -> object:
    """What code that asks for `assembled` gets: the step's context, or an empty one."""
    if assembly is not None:
        return assembly.context
    from .._core.assembled import AssembledContext  # few ask for it, fewer without sources

    return AssembledContext.EMPTY


async def made(run: Run, plan: CallPlan, fn: Any, work: Work) -> Value[Any] | Error:
    """What a function `(data, context, resources)` makes for an attempt, called by its signature."""
    copied = await guarded(_isolated, work.context)
    if isinstance(copied, Error):
        return copied
    offered = {"context": copied.value, "resources": run.resources}
    keywords = {name: offered[name] for name in plan.keywords if name in offered}
    asked = {} if work.scope is None else work.scope.asked_by(fn)
    return await ask(run, plan.target, *((own(work.data),) if plan.takes_data else ()), **keywords, **asked)


async def given(
    run: Run, declared: object, data: object, context: object, scope: Scope | None = None, **asked: object
) -> Value[Any] | Error:
    """A copy of the value as declared, or what the declared callable `(previous, context)` makes of it."""
    if not callable(declared) or isinstance(declared, type):
        return Value(own(declared))
    return await with_context_copy(run, declared, data, context, scope, **asked)


async def with_context_copy(
    run: Run, fn: Callable[..., object], data: object, context: object, scope: Scope | None = None, **asked: object
) -> Value[Any] | Error:
    """Call `fn(data, context)` on a copy of the context, since looking must not change it; with what it asks for."""
    copied = await guarded(_isolated, context)
    if isinstance(copied, Error):
        return copied
    return await ask(run, fn, data, copied.value, **({} if scope is None else scope.asked_by(fn)), **asked)


async def _isolated(context: object) -> object:
    return isolated(context)


def failure_of(run: Run, error: BaseException, *, what: str = "", plan: CallPlan | None = None) -> Failed:
    """How user code that raised looks to everybody else; `what` says which, if it was not the agent."""
    if vanished(error):
        text = f"The step ended without an outcome: {type(error).__name__} was raised, but nobody cancelled it"
    else:
        text = f"Agent execution failed with {told_of(run, error, plan)}"
    return Failed(error=error, feedback=run.redact(f"{what}: {text}" if what else text))


def told_of(run: Run, error: BaseException, plan: CallPlan | None = None) -> str:
    """What an exception says, and what it cannot know: that its code was given the wrong library, or no resources."""
    from .._bridge.wrong_library import library_hint  # only to word a failure

    hint = library_hint(error, run.host) or _resources_hint(run, error, plan)
    if hint is None:
        return said_by(error)
    put_note(error, "flujo_actors hint: ", hint)
    return f"{said_by(error)} ({hint})"


def _resources_hint(run: Run, error: BaseException, plan: CallPlan | None) -> str | None:
    asked = plan is not None and "resources" in plan.named and run.resources is None
    if not asked or not isinstance(error, TypeError | AttributeError) or "NoneType" not in message_of(error):
        return None
    return "this code asks for `resources`, and there are none: give them to `Flujo(…, resources=…)`"
