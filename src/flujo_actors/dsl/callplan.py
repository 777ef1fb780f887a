"""How an agent is called: decided once, when its step is declared.

The runner offers keywords (`context`, `resources`, …); a call passes those that the callable really takes.
Rules:

1. A parameter of the offered name that can be passed by keyword takes it.
2. `**kwargs` takes `context` and `resources`, the two the contract names; other offers must be asked for by name.
3. `**kwargs: Never` takes nothing.
4. A wrapper made with `functools.wraps` is read by its own parameters, not those it pretends to have; if it
   only forwards `**kwargs`, what it wraps must take the keyword too.
5. A signature that cannot be read, a mock without a specification, and a model agent get nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, Never, NoReturn, TypeAlias

import attrs

from ..errors import DeclarationError, MissingAgentError

Shape: TypeAlias = Literal["async", "sync", "stream", "model"]
"""How a target answers: a coroutine, a plain call (in a worker thread), an async generator, or as a model agent."""

FORWARDED = frozenset({"context", "resources"})
"""What `**kwargs` receives."""

OFFERED = FORWARDED | {"feedback", "transaction", "idempotency_key"}
"""Everything a call may receive by keyword."""

_NOBODY = (Never, NoReturn, "Never", "NoReturn", "typing.Never", "typing.NoReturn", "t.Never")


class ModelAgent(ABC):
    """An agent that talks to a model and never receives `context` or `resources`."""

    @abstractmethod
    def bound_to(self, model: object) -> ModelAgent:
        """The same agent on another model."""


@attrs.frozen(kw_only=True)
class CallPlan:
    """What to call, how it answers, and which of the offered keywords it takes."""

    target: Callable[..., Any]
    shape: Shape
    keywords: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    """Those of `keywords` that are parameters of their own, not swept up by `**kwargs`."""
    takes_data: bool = True
    stream: CallPlan | None = None
    """The plan of the agent's own `stream` method, used when somebody watches the run."""


def plan_agent(agent: Any, *, step_name: str) -> CallPlan:
    """The plan for whatever a user gives as an agent; `DeclarationError` if it cannot be called."""
    if agent is None:
        raise MissingAgentError(f"step {step_name!r} has no agent: give it a function, an agent or a step")
    if is_model_agent(agent):
        return CallPlan(target=agent.run, shape="model")
    run = None if _is_plain_callable(agent) else getattr(agent, "run", None)
    if inspect.isclass(agent) and hasattr(agent, "run"):
        raise DeclarationError(f"step {step_name!r} got the class {agent.__name__}; give it an instance")
    if callable(run):
        stream = getattr(agent, "stream", None)
        return attrs.evolve(
            plan_callable(run, step_name=step_name),
            stream=_stream_plan(stream, step_name) if callable(stream) and not _is_mock(agent) else None,
        )
    stream = None if _is_plain_callable(agent) else getattr(agent, "stream", None)
    if callable(stream) and not callable(agent):
        return _stream_plan(stream, step_name)
    if callable(agent):
        return plan_callable(agent, step_name=step_name)
    raise DeclarationError(
        f"step {step_name!r} cannot call its agent, a {type(agent).__name__}: "
        "it needs to be callable, or to have an async method `run`"
    )


def plan_callable(fn: Callable[..., Any], *, step_name: str) -> CallPlan:
    """The plan for one callable."""
    if inspect.isgeneratorfunction(_innermost(fn)):
        raise DeclarationError(f"step {step_name!r} is a plain generator; make it `async def` to stream")
    keywords = frozenset(name for name in OFFERED if accepts(fn, name))
    return CallPlan(
        target=fn,
        shape=_shape(fn),
        keywords=keywords,
        named=frozenset(name for name in keywords if _names(fn, name)),
        takes_data=_takes_data(fn),
    )


def _stream_plan(stream: Callable[..., Any], step_name: str) -> CallPlan:
    return attrs.evolve(plan_callable(stream, step_name=step_name), shape="stream", stream=None)


def is_model_agent(agent: Any) -> bool:
    """Whether this is a pydantic-ai agent or one of ours; pydantic-ai is never imported to find out."""
    if isinstance(agent, ModelAgent):
        return True
    pydantic_ai = sys.modules.get("pydantic_ai")
    return pydantic_ai is not None and isinstance(agent, pydantic_ai.agent.AbstractAgent)


# --- signatures -------------------------------------------------------------------------------------------


def accepts(fn: Callable[..., Any], name: str) -> bool:
    """Whether `fn(data, **{name: …})` is a call that `fn` allows; see the module's rules."""
    parameters = _parameters(fn)
    if parameters is None:
        return False
    if _names(fn, name):
        return True
    if name not in FORWARDED or not any(map(_sweeps, parameters.values())):
        return False
    wrapped = getattr(fn, "__wrapped__", None)
    return accepts(wrapped, name) if callable(wrapped) else True


def _names(fn: Callable[..., Any], name: str) -> bool:
    parameter = (_parameters(fn) or {}).get(name)
    return parameter is not None and parameter.kind in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )


def _sweeps(parameter: inspect.Parameter) -> bool:
    return parameter.kind is inspect.Parameter.VAR_KEYWORD and parameter.annotation not in _NOBODY


def _takes_data(fn: Callable[..., Any]) -> bool:
    parameters = _parameters(fn)
    if parameters is None:
        return True
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return any(each.kind in positional and name not in OFFERED for name, each in parameters.items())


def _parameters(fn: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    if _is_mock(fn) and "__signature__" not in vars(fn):
        return None
    try:
        return dict(inspect.signature(fn, follow_wrapped=False).parameters)
    except (TypeError, ValueError):
        return None


def _is_mock(value: object) -> bool:
    mock = sys.modules.get("unittest.mock")
    return mock is not None and isinstance(value, mock.NonCallableMock)


# --- shapes -----------------------------------------------------------------------------------------------


def _shape(fn: Callable[..., Any]) -> Shape:
    mock = sys.modules.get("unittest.mock")
    if mock is not None and isinstance(fn, mock.AsyncMock):
        return "async"
    chain = [_innermost(layer) for layer in _layers(fn)]
    if inspect.isasyncgenfunction(chain[0]):
        return "stream"
    if any(inspect.iscoroutinefunction(layer) or inspect.isasyncgenfunction(layer) for layer in chain):
        return "async"
    return "sync"


def _layers(fn: Callable[..., Any]) -> list[Callable[..., Any]]:
    layers = [fn]
    while callable(wrapped := getattr(layers[-1], "__wrapped__", None)) and len(layers) < 100:
        layers.append(wrapped)
    return layers


def _innermost(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind partials, bound methods and callable objects: the one with the code flags."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif not inspect.isroutine(fn) and not inspect.isclass(fn):
            call = getattr(type(fn), "__call__", None)  # noqa: B004 - the function is wanted, not whether there is one
            if not inspect.isfunction(call):
                return fn
            fn = call
        else:
            return fn


def _is_plain_callable(agent: object) -> bool:
    return inspect.isroutine(agent) or isinstance(agent, functools.partial)
