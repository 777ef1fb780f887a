"""Dependency injection: call plan of an agent, made once at declaration.

The runner offers keywords (`context`, `resources`, …); a call passes those that the callable really takes. Rules:

1. A parameter of the offered name that can be passed by keyword takes it.
2. `**kwargs` takes `context` and `resources`, the two the contract names; other keywords need a named parameter.
3. `**kwargs: Never` takes nothing.
4. A wrapper made with `functools.wraps` is read by its own parameters, not those it pretends to have; if it
   only forwards `**kwargs`, the wrapped callable must take the keyword too.
5. A keyword that a `functools.partial` has bound stays bound.
6. Data is passed to the first positional parameter that is neither `context` nor `resources`, regardless of its name:
   by position, or by name if one of those two precedes it.
7. A parameter `labels` takes the labels of the run if it is keyword-only or has no default.
8. An unreadable signature, a mock without a specification, and a model agent get nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Literal, Never, NoReturn, TypeAlias, get_args

import attrs

from ..errors import DeclarationError, MissingAgentError

Shape: TypeAlias = Literal["async", "sync", "stream", "model"]
"""Kind of target: coroutine, plain call, async generator or model agent."""

FORWARDED = frozenset({"context", "resources"})
"""Keywords that `**kwargs` receives."""

JUDGMENTS = frozenset({"decision", "confidence"})
"""Keywords available in a review or after a rejection."""

_BY_NAME = {
    "assembled",
    "budget",
    "failure",
    "feedback",
    "idempotency_key",
    "scheduled_at",
    "labels",
    "transaction",
    "undo",
}
OFFERED = FORWARDED | JUDGMENTS | _BY_NAME
"""Everything a call may receive by keyword."""

SCOPE = frozenset({"steps", "item", "run_input", "scheduled_at"})
"""Scope keywords of `(data, context)`: step outputs, map item, run input, scheduled time."""

LABELS = "labels"
"""Keyword of the run's labels."""

BUDGET = "budget"
"""Further keyword of a function of data and context."""

_NOBODY = (Never, NoReturn)
_Parameters: TypeAlias = dict[str, inspect.Parameter] | None
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@attrs.frozen(kw_only=True)
class CallPlan:
    """Target of a call, its kind, and its accepted keywords."""

    target: Any
    """The callable, or the model agent itself."""
    shape: Shape
    keywords: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    """Keywords that are named parameters, not part of `**kwargs`."""
    required: frozenset[str] = frozenset()
    """Those of `named` that have no default: without them the call fails."""
    takes_data: bool = True
    input_type: object = None
    """Annotation of the data parameter."""
    stream: CallPlan | None = None
    """Plan of the agent's `stream` method, for runs with a reader."""

    @property
    def sees_context(self) -> bool:
        """Return whether the target receives the context."""
        return "context" in self.keywords or (self.stream is not None and self.stream.sees_context)


def plan_agent(agent: object, *, step_name: str) -> CallPlan:
    """Return an agent's plan; raise `DeclarationError` if not callable."""
    if agent is None:
        raise MissingAgentError(f"step {step_name!r} has no agent: give it a function, an agent or a step")
    if is_model_agent(agent):
        return CallPlan(target=agent, shape="model")
    run = _method(agent, "run")
    if inspect.isclass(agent) and hasattr(agent, "run"):
        raise DeclarationError(f"step {step_name!r} got the class {agent.__name__}; give it an instance")
    if callable(run):
        stream = _method(agent, "stream")
        return attrs.evolve(
            plan_callable(run, step_name=step_name),
            stream=_stream_plan(stream, step_name) if callable(stream) else None,
        )
    stream = _method(agent, "stream")
    if callable(stream) and not callable(agent):
        return _stream_plan(stream, step_name)
    if callable(agent):
        return plan_callable(agent, step_name=step_name)
    cure = "it needs to be callable, or to have an async method `run`"
    if isinstance(agent, str):
        cure = f"for the model of that name, give it `make_agent_async({agent!r:.100})`"
    raise DeclarationError(f"step {step_name!r} cannot call its agent, a {type(agent).__name__}: {cure}")


def check_agent_only(step_name: str, plan: CallPlan, deps: object, rate_limit: tuple[object, ...]) -> None:
    """Refuse deps and rate limits that no agent uses, and missing deps."""
    if plan.shape != "model":
        if rate_limit:
            raise DeclarationError(
                f"step {step_name!r}: rate_limit is for the requests of a pydantic-ai agent, and its agent is none"
            )
        if deps is not None:
            raise DeclarationError(
                f"step {step_name!r}: deps are for a pydantic-ai agent, and its agent is none; a function takes "
                "`resources` of the Flujo"
            )
        return
    wanted = getattr(plan.target, "deps_type", None) if deps is None else None
    if wanted is not None and wanted not in (Any, object, type(None)) and type(None) not in get_args(wanted):
        raise DeclarationError(
            f"step {step_name!r}: its agent has deps_type {getattr(wanted, '__name__', wanted)}, and the step gives no "
            f"deps: write Step({step_name!r}, agent, deps=…), with a value or a function that makes it"
        )


def plan_maker(fn: Any, *, subject: str) -> CallPlan | None:
    """Return the plan of a per-attempt function; `None` for a value.

    It is called with data, context and resources by its signature, and with the scope keywords that it names.
    """
    if not _is_plain_callable(fn):
        return None
    return plan_callable(fn, step_name=subject, also=scope_keywords_of(fn))


def plan_callable(fn: Callable[..., object], *, step_name: str, also: frozenset[str] = frozenset()) -> CallPlan:
    """Return the plan of one callable; `also` lists further keywords to pass."""
    if inspect.isgeneratorfunction(_innermost(fn)):
        raise DeclarationError(f"step {step_name!r} is a plain generator; make it `async def` to stream")
    keywords = frozenset(name for name in _offered(fn) if accepts(fn, name))
    _refuse_unknown_needs(fn, keywords | also, step_name)
    return CallPlan(
        target=_data_first(fn),
        shape=_shape(fn),
        keywords=keywords,
        named=frozenset(name for name in keywords if _names(fn, name)),
        required=frozenset(name for name in keywords if _requires(fn, name)),
        takes_data=_takes_data(fn),
        input_type=input_type(fn),
    )


def _offered(fn: Callable[..., object]) -> frozenset[str]:
    """Return the offered keywords that a callable may accept."""
    parameters = _parameters(fn) or {}
    if any(map(_sweeps, parameters.values())):
        return OFFERED
    return OFFERED & parameters.keys()  # a signature is read once or twice per keyword: 35 times per step without this


def _refuse_unknown_needs(fn: Callable[..., object], keywords: frozenset[str], step_name: str) -> None:
    """Refuse a required parameter that no caller passes."""
    given = keywords | {_data_parameter(fn)}
    needed = [name for name, each in (_parameters(fn) or {}).items() if _must_be_given(each) and name not in given]
    if needed:
        raise DeclarationError(
            f"step {step_name!r} calls a function that needs {', '.join(map(repr, needed))}, which no caller "
            f"passes: it gets its data, and by keyword any of {', '.join(sorted(OFFERED))}. Give the parameter a "
            "default, or bind it with functools.partial"
        )


def _must_be_given(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and not variadic


def _stream_plan(stream: Callable[..., object], step_name: str) -> CallPlan:
    return attrs.evolve(plan_callable(stream, step_name=step_name), shape="stream", stream=None)


def check_takes_pair(fn: Callable[..., object], *, subject: str, first: str) -> None:
    """Refuse a function that cannot take a value and the context.

    A function without a readable signature is accepted.
    """
    parameters = _parameters(fn)
    if parameters is None:
        return
    try:
        asked = [each for name, each in parameters.items() if name != BUDGET or not _names(fn, BUDGET)]
        inspect.Signature(asked).bind(object(), object(), **dict.fromkeys(scope_keywords_of(fn)))
    except TypeError as error:
        named = ", ".join(parameters) or "nothing"
        raise DeclarationError(
            f"{subject} is called with two arguments, ({first}, context), but this one takes {named}: {error}; by "
            f"keyword it may ask for {', '.join(sorted(SCOPE))}"
        ) from None


def scope_keywords_of(fn: Callable[..., object]) -> frozenset[str]:
    """Return the scope keywords (`steps`, `item`, `run_input`) that a function names."""
    named = [each for each in (_parameters(fn) or {}).values() if each.kind is not inspect.Parameter.VAR_POSITIONAL]
    positional = [each.name for each in named if each.kind in _POSITIONAL]
    return frozenset(
        each.name for each in named if each.name in SCOPE and _names(fn, each.name) and each.name not in positional[:2]
    )


def asks_for_budget(fn: object) -> bool:
    """Return whether a function of data and context has a `budget` parameter."""
    return callable(fn) and not isinstance(fn, type) and _names(fn, BUDGET) and not _binds(fn, BUDGET)


def is_model_agent(agent: object) -> bool:
    """Return whether this is a pydantic-ai agent, without importing pydantic-ai."""
    pydantic_ai = sys.modules.get("pydantic_ai")
    return pydantic_ai is not None and isinstance(agent, pydantic_ai.agent.AbstractAgent)


# --- signatures -------------------------------------------------------------------------------------------


def accepts(fn: Callable[..., object], name: str, *, also: bool = False) -> bool:
    """Return whether `fn` accepts `fn(data, **{name: …})`; see the module's rules.

    `also` includes `**kwargs` and unreadable signatures.
    """
    parameters = _parameters(fn)
    if also and (parameters is None or any(map(_sweeps, parameters.values()))):
        return not _binds(fn, name)
    if parameters is None or _binds(fn, name):
        return False
    if _names(fn, name):
        return name in FORWARDED or (name != _data_parameter(fn) and (name != LABELS or _asks_for_labels(parameters)))
    if name not in FORWARDED or not any(map(_sweeps, parameters.values())):
        return False
    wrapped = _wrapped(fn)
    return True if wrapped is None else accepts(wrapped, name)


def _asks_for_labels(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether `labels` are those of the run (rule 7)."""
    parameter = parameters[LABELS]
    return parameter.kind is inspect.Parameter.KEYWORD_ONLY or parameter.default is inspect.Parameter.empty


def _binds(fn: Callable[..., object], name: str) -> bool:
    return isinstance(fn, functools.partial) and name in fn.keywords


def _names(fn: Callable[..., object], name: str) -> bool:
    parameter = (_parameters(fn) or {}).get(name)
    return parameter is not None and parameter.kind in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )


def _sweeps(parameter: inspect.Parameter) -> bool:
    return parameter.kind is inspect.Parameter.VAR_KEYWORD and not _is_never(parameter.annotation)


def _is_never(annotation: object) -> bool:
    if isinstance(annotation, str):
        return annotation.strip("'\"").rpartition(".")[2] in ("Never", "NoReturn")
    return any(annotation is nobody for nobody in _NOBODY)


def _takes_data(fn: Callable[..., object]) -> bool:
    parameters = _parameters(fn)
    if parameters is None:
        return True
    variadic = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters.values())
    return variadic or _data_parameter(fn) is not None


def _data_parameter(fn: Callable[..., object]) -> str | None:
    """Return the first positional parameter other than `context` and `resources`."""
    positional = (each for each in (_parameters(fn) or {}).values() if each.kind in _POSITIONAL)
    return next((each.name for each in positional if each.name not in FORWARDED or not _names(fn, each.name)), None)


def _data_first(fn: Callable[..., object]) -> Callable[..., object]:
    """Return `fn` with the data as its only positional argument."""
    name = _data_parameter(fn)
    if name is None or name == next(iter(_parameters(fn) or {})):
        return fn
    return lambda data, **keywords: fn(**{name: data}, **keywords)


def _requires(fn: Callable[..., object], name: str) -> bool:
    parameter = (_parameters(fn) or {}).get(name)
    return _names(fn, name) and parameter is not None and parameter.default is inspect.Parameter.empty


def input_type(fn: Callable[..., object]) -> object:
    """Return the annotation of a function's data parameter."""
    data = (_parameters(fn) or {}).get(_data_parameter(fn) or "")
    return None if data is None or data.annotation is inspect.Parameter.empty else data.annotation


def _parameters(fn: Callable[..., object]) -> _Parameters:
    if isinstance(fn, staticmethod):
        return _parameters(fn.__func__)
    if _is_mock(fn):
        return _specified(fn)
    if not isinstance(fn, FunctionType):
        return _read_parameters(fn)
    facts = (fn, fn.__code__, fn.__defaults__, fn.__kwdefaults__, vars(fn).get("__signature__"))
    return _latest.parameters(facts)


def _read_parameters(fn: Callable[..., object]) -> _Parameters:
    try:
        return dict(inspect.signature(fn, follow_wrapped=False).parameters)
    except (TypeError, ValueError):
        return None


class _LatestFunction:
    """Parameters of the function that was read last.

    A plan asks for them about ten times in a row. Only one function is kept alive.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[object, ...], _Parameters] = ((), None)

    def parameters(self, facts: tuple[Any, ...]) -> _Parameters:
        """Return the parameters of `facts[0]`, read again if a fact has changed."""
        known = self._known
        if len(known[0]) != len(facts) or any(before is not now for before, now in zip(known[0], facts, strict=True)):
            known = self._known = facts, _read_parameters(facts[0])
        return known[1]


_latest = _LatestFunction()


def _specified(mock: object) -> _Parameters:
    """Return the parameters of a mock with a specification, or None."""
    signature = getattr(type(mock), "__signature__", None)
    return dict(signature.parameters) if isinstance(signature, inspect.Signature) else None


def _is_mock(value: object) -> bool:
    mock = sys.modules.get("unittest.mock")
    return mock is not None and isinstance(value, mock.NonCallableMock)


# --- shapes -----------------------------------------------------------------------------------------------


def shape_of(fn: Callable[..., object]) -> Shape:
    """Return the kind of a function."""
    return _shape(fn)


def _shape(fn: Callable[..., object]) -> Shape:
    mock = sys.modules.get("unittest.mock")
    if mock is not None and isinstance(fn, mock.AsyncMock):
        return "async"
    chain = [_innermost(layer) for layer in _layers(fn)]
    if inspect.isasyncgenfunction(chain[0]):
        return "stream"
    if any(map(_is_async, chain)):
        return "async"
    return "sync"


def _is_async(fn: Callable[..., object]) -> bool:
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        return True
    # The asyncio marker of functions that return coroutines without being `async def`.
    return not _is_mock(fn) and bool(getattr(fn, "_is_coroutine", False))


def _layers(fn: Callable[..., object]) -> list[Callable[..., object]]:
    layers = [fn]
    while (wrapped := _wrapped(layers[-1])) is not None and len(layers) < 100:
        layers.append(wrapped)
    return layers


def _wrapped(fn: Callable[..., object]) -> Callable[..., object] | None:
    """Return the callable behind a wrapper, a partial or an object's `__call__`."""
    if _is_mock(fn):
        return None
    wrapped = getattr(fn, "__wrapped__", None) or getattr(_innermost(fn), "__wrapped__", None)
    return wrapped if callable(wrapped) else None


def _innermost(fn: Callable[..., object]) -> Callable[..., object]:
    """Return the function with the code flags, behind partials, methods and objects."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif inspect.ismethod(fn) or isinstance(fn, staticmethod):
            fn = fn.__func__
        elif not inspect.isroutine(fn) and not inspect.isclass(fn):
            call = getattr(type(fn), "__call__", None)  # noqa: B004 - the function is wanted, not whether there is one
            if not inspect.isfunction(call):
                return fn
            fn = call
        else:
            return fn


def _method(agent: Any, name: str) -> object:
    """Return the agent's method; a mock's only if set explicitly."""
    if _is_plain_callable(agent) or (_is_mock(agent) and name not in {*vars(agent), *agent._mock_children}):
        return None
    return getattr(agent, name, None)


def _is_plain_callable(agent: object) -> bool:
    return inspect.isroutine(agent) or isinstance(agent, functools.partial)


def agent_name(step: Any) -> str:
    """Return a step's agent name for messages; empty if redundant."""
    agent = getattr(step, "agent", None)
    if agent is None:
        return ""
    named = getattr(agent, "name" if is_model_agent(agent) else "__name__", None)
    return "" if named in (None, step.name, "<lambda>") else str(named)


def name_of(fn: Callable[..., object]) -> str:
    """Return a function's name, even behind partials, or its class's."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", None) or type(fn).__name__
