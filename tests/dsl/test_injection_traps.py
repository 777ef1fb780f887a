"""Injection by signature, trap by trap: what each kind of callable gets, and that the call then works."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import AsyncIterator, Callable
from typing import Any, Never, NoReturn
from unittest.mock import AsyncMock, MagicMock, Mock, create_autospec

import pytest

from flujo_actors import Context, Flujo, Step
from flujo_actors._dsl.call_plan import plan_agent
from flujo_actors.errors import DeclarationError, MockDetectionError

BOTH = {"context", "resources"}


def forwarding(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that passes everything on."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


def with_own_parameters(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator whose wrapper takes the data and nothing else."""

    @functools.wraps(fn)
    async def wrapper(data: Any) -> Any:
        return await fn(data, context="from the wrapper")

    return wrapper


def asking_for_context(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator whose wrapper wants the context that the wrapped function does not."""

    @functools.wraps(fn)
    async def wrapper(data: Any, *, context: Any) -> Any:
        return await fn(data)

    return wrapper


async def plain(data: Any) -> Any:
    return "plain"


async def aware(data: Any, *, context: Any) -> Any:
    return type(context).__name__


async def positional(data: Any, context: Any = None) -> Any:
    return type(context).__name__


async def sweeping(data: Any, **kwargs: Any) -> Any:
    return sorted(kwargs)


async def counting(data: Any, **kwargs: Any) -> Any:
    return len(kwargs)


async def both(data: Any, *, resources: Any, context: Any) -> Any:
    return [type(context).__name__, resources]


class Agent:
    async def plain(self, data: Any) -> Any:
        return "plain"

    async def aware(self, data: Any, *, context: Any) -> Any:
        return type(context).__name__

    @forwarding
    async def wrapped(self, data: Any) -> Any:
        return "plain"

    @forwarding
    async def wrapped_aware(self, data: Any, context: Any) -> Any:
        return type(context).__name__

    @staticmethod
    async def static(data: Any, *, context: Any) -> Any:
        return type(context).__name__

    @classmethod
    async def of_class(cls, data: Any, *, context: Any) -> Any:
        return type(context).__name__

    def sync(self, data: Any, *, context: Any) -> Any:
        return type(context).__name__


class CallableObject:
    async def __call__(self, data: Any, *, context: Any) -> Any:
        return type(context).__name__


class WrappedCallableObject:
    @forwarding
    async def __call__(self, data: Any) -> Any:
        return "plain"


class SyncCallableObject:
    def __call__(self, data: Any) -> Any:
        return "plain"


class Built:
    """A class as an agent: calling it makes the output."""

    def __init__(self, data: Any, *, context: Any) -> None:
        self.said = (data, type(context).__name__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Built) and self.said == other.said


async def only_positional(data: Any, context: Any = "mine", /) -> Any:
    return context


async def positional_context_is_the_data(context: Any, /) -> Any:
    return context


async def positional_and_kwargs(data: Any, context: Any = "mine", /, **kwargs: Any) -> Any:
    return [context, sorted(kwargs)]


async def never(data: Any, **kwargs: Never) -> Any:
    return sorted(kwargs)


async def never_as_text(data: Any, **kwargs: "typing.Never") -> Any:  # noqa: UP037 - the quotes are what is tested
    return sorted(kwargs)


async def no_return(data: Any, **kwargs: NoReturn) -> Any:
    return sorted(kwargs)


async def never_but_context(data: Any, *, context: Any, **kwargs: Never) -> Any:
    return [type(context).__name__, sorted(kwargs)]


async def nothing() -> Any:
    return "nothing"


async def only_context(*, context: Any) -> Any:
    return type(context).__name__


async def context_first(context: Any, text: Any) -> Any:
    return [type(context).__name__, text]


async def resources_then_context(resources: Any, context: Any, /, text: Any) -> Any:
    return [resources, context, text]


async def about_feedback(feedback: str) -> Any:
    return feedback


async def about_a_transaction(transaction: str, *, context: Any) -> Any:
    return [transaction, type(context).__name__]


async def variadic(*args: Any) -> Any:
    return list(args)


async def variadic_everything(*args: Any, **kwargs: Any) -> Any:
    return [list(args), sorted(kwargs)]


def sync_around_async(data: Any) -> Any:
    return plain(data)


CASES: list[tuple[str, Any, set[str], Any]] = [
    ("function", plain, set(), "plain"),
    ("keyword-only", aware, {"context"}, "Context"),
    ("positional or keyword", positional, {"context"}, "Context"),
    ("kwargs", sweeping, BOTH, ["context", "resources"]),
    ("both by name", both, BOTH, ["Context", "pool"]),
    ("lambda", lambda data: "plain", set(), "plain"),
    ("lambda with context", lambda data, context: type(context).__name__, {"context"}, "Context"),
    ("lambda with kwargs", lambda data, **kw: sorted(kw), BOTH, ["context", "resources"]),
    ("bound method", Agent().plain, set(), "plain"),
    ("bound method, aware", Agent().aware, {"context"}, "Context"),
    ("sync bound method", Agent().sync, {"context"}, "Context"),
    ("class method", Agent.of_class, {"context"}, "Context"),
    ("static method", Agent.static, {"context"}, "Context"),
    ("static method object", Agent.__dict__["static"], {"context"}, "Context"),
    ("partial", functools.partial(aware), {"context"}, "Context"),
    ("partial of a partial", functools.partial(functools.partial(both), resources=1), {"context"}, ["Context", 1]),
    ("partial that binds context", functools.partial(aware, context=1.5), set(), "float"),
    ("partial that binds into kwargs", functools.partial(counting, context=1), {"resources"}, 2),
    ("partial of a bound method", functools.partial(Agent().aware), {"context"}, "Context"),
    ("callable object", CallableObject(), {"context"}, "Context"),
    ("sync callable object", SyncCallableObject(), set(), "plain"),
    ("callable object with a wrapped call", WrappedCallableObject(), set(), "plain"),
    ("class", Built, {"context"}, Built("in", context=Context())),
    ("forwarding wrapper", forwarding(plain), set(), "plain"),
    ("forwarding wrapper, aware", forwarding(aware), {"context"}, "Context"),
    ("forwarding wrapper of kwargs", forwarding(sweeping), BOTH, ["context", "resources"]),
    ("two forwarding wrappers", forwarding(forwarding(plain)), set(), "plain"),
    ("partial of a forwarding wrapper", functools.partial(forwarding(plain)), set(), "plain"),
    ("partial of a forwarding wrapper, aware", functools.partial(forwarding(aware)), {"context"}, "Context"),
    ("forwarding wrapper of a partial", forwarding(functools.partial(plain)), set(), "plain"),
    ("wrapped method", Agent().wrapped, set(), "plain"),
    ("wrapped method, aware", Agent().wrapped_aware, {"context"}, "Context"),
    ("wrapper with its own parameters", with_own_parameters(aware), set(), "str"),
    ("wrapper that asks for context", asking_for_context(plain), {"context"}, "plain"),
    ("positional-only context", only_positional, set(), "mine"),
    ("positional-only context alone", positional_context_is_the_data, set(), "in"),
    ("positional-only context and kwargs", positional_and_kwargs, BOTH, ["mine", ["context", "resources"]]),
    ("kwargs: Never", never, set(), []),
    ("kwargs: text of Never", never_as_text, set(), []),
    ("kwargs: NoReturn", no_return, set(), []),
    ("context and kwargs: Never", never_but_context, {"context"}, ["Context", []]),
    ("no parameter at all", nothing, set(), "nothing"),
    ("no data parameter", only_context, {"context"}, "Context"),
    ("context before the data", context_first, {"context"}, ["Context", "in"]),
    ("data called feedback", about_feedback, set(), "in"),
    ("data called transaction", about_a_transaction, {"context"}, ["in", "Context"]),
    ("variadic", variadic, set(), ["in"]),
    ("variadic in every way", variadic_everything, BOTH, [["in"], ["context", "resources"]]),
    ("builtin", len, set(), 2),
    ("method descriptor", str.upper, set(), "IN"),
    ("bound builtin", "in and out".startswith, set(), True),
    ("builtin class", list, set(), ["i", "n"]),
    ("builtin without a signature", max, set(), "n"),
]  # fmt: skip


@pytest.mark.parametrize(("agent", "keywords"), [case[1:3] for case in CASES], ids=[case[0] for case in CASES])
def test_each_callable_is_offered_what_its_signature_takes(agent: Any, keywords: set[str]) -> None:
    """The plan names exactly the keywords among context and resources that the callable accepts."""
    assert plan_agent(agent, step_name="s").keywords & BOTH == keywords


def test_each_call_works() -> None:
    """Every one of them runs in a pipeline, with a context and resources there to be passed."""
    for name, agent, _, expected in CASES:
        result = Flujo(Step("s", agent), resources="pool").run("in")
        assert (name, result.feedback, result.output) == (name, None, expected)


def test_a_partial_that_binds_the_data_gets_none() -> None:
    """What a partial has filled is not filled again."""
    plan = plan_agent(functools.partial(aware, "bound"), step_name="s")
    assert not plan.takes_data
    assert Flujo(Step("s", functools.partial(aware, "bound"))).run("in").output == "Context"


def test_a_sync_function_may_return_a_coroutine() -> None:
    """Nobody can see from outside that it does; what it returns is awaited."""
    assert Flujo(Step("s", sync_around_async)).run("in").output == "plain"
    assert Flujo(Step("s", lambda data: plain(data))).run("in").output == "plain"


def test_a_bound_method_gets_the_same_plan_every_time() -> None:
    """A bound method is a new object at every access; its plan does not depend on that."""
    agent = Agent()
    assert agent.aware is not agent.aware
    assert plan_agent(agent.aware, step_name="s") == plan_agent(agent.aware, step_name="s")


@pytest.mark.parametrize(
    ("agent", "shape"),
    [
        (plain, "async"),
        (CallableObject(), "async"),
        (functools.partial(plain), "async"),
        (forwarding(plain), "async"),
        (functools.partial(forwarding(plain)), "async"),
        (Agent.__dict__["static"], "async"),
        (AsyncMock(), "async"),
        (len, "sync"),
        (SyncCallableObject(), "sync"),
        (sync_around_async, "sync"),
        (Mock(), "sync"),
    ],
)
def test_coroutines_are_told_from_plain_calls(agent: Any, shape: str) -> None:
    """What returns a coroutine runs on the loop; what does not say so runs in a thread."""
    assert plan_agent(agent, step_name="s").shape == shape


# --- streams ------------------------------------------------------------------------------------------------


async def streaming(data: Any, *, context: Any) -> AsyncIterator[str]:
    yield data
    yield type(context).__name__


class StreamingCall:
    async def __call__(self, data: Any) -> AsyncIterator[str]:
        yield data


class RunAndStream:
    async def run(self, data: Any) -> str:
        return "run"

    async def stream(self, data: Any, *, context: Any) -> AsyncIterator[str]:
        yield type(context).__name__


class OnlyStream:
    async def stream(self, data: Any, **kwargs: Any) -> AsyncIterator[Any]:
        yield sorted(kwargs)


@pytest.mark.parametrize(
    ("agent", "keywords", "output"),
    [
        (streaming, {"context"}, "inContext"),
        (functools.partial(streaming), {"context"}, "inContext"),
        (StreamingCall(), set(), "in"),
        (OnlyStream(), BOTH, [["context", "resources"]]),
    ],
)
def test_async_generators_stream_and_are_injected_alike(agent: Any, keywords: set[str], output: Any) -> None:
    """An async generator function is a stream, whatever it is wrapped in."""
    plan = plan_agent(agent, step_name="s")
    assert (plan.shape, plan.keywords & BOTH) == ("stream", keywords)
    assert Flujo(Step("s", agent), resources="pool").run("in").output == output


def test_run_and_stream_have_plans_of_their_own() -> None:
    """An agent's two methods may take different keywords."""
    plan = plan_agent(RunAndStream(), step_name="s")
    assert (plan.shape, plan.keywords) == ("async", frozenset())
    assert plan.stream is not None
    assert (plan.stream.shape, plan.stream.keywords) == ("stream", {"context"})


# --- mocks --------------------------------------------------------------------------------------------------


class Real:
    async def run(self, data: Any, *, context: Any) -> Any:
        return data


@pytest.mark.parametrize("mock", [Mock, MagicMock, AsyncMock])
def test_a_mock_without_a_specification_gets_nothing(mock: Any) -> None:
    """It would accept anything; that says nothing about what it stands for."""
    agent = mock()
    agent.run.return_value = "answer"
    assert plan_agent(agent, step_name="s").keywords == frozenset()
    assert Flujo(Step("s", agent)).run("in").output == "answer"
    agent.run.assert_called_once_with("in")


@pytest.mark.parametrize(
    "double", [create_autospec(Real, instance=True), create_autospec(Real()), create_autospec(Real)()]
)
def test_an_autospecced_agent_is_called_like_the_real_one(double: Any) -> None:
    """A mock that checks its calls against a signature is planned by that signature."""
    double.run.return_value = "answer"
    result = Flujo(Step("s", double)).run("in")
    assert (result.feedback, result.output) == (None, "answer")
    assert set(double.run.call_args.kwargs) == {"context"}


@pytest.mark.parametrize(("fn", "keywords"), [(plain, set()), (aware, {"context"})])
def test_an_autospecced_function_is_called_like_the_real_one(fn: Any, keywords: set[str]) -> None:
    """The same for functions, which stay functions when they are specified."""
    double = create_autospec(fn, return_value="answer")
    assert Flujo(Step("s", double)).run("in").output == "answer"
    assert set(double.call_args.kwargs) == keywords


def test_a_mock_that_answers_with_a_mock_is_found_out() -> None:
    """A test double that leaks into a run stops it."""
    with pytest.raises(MockDetectionError, match="'s' returned a"):
        Flujo(Step("s", MagicMock())).run("in")


# --- what is refused ----------------------------------------------------------------------------------------


def test_a_class_of_agents_is_refused() -> None:
    """Whoever forgot to make an instance is told so."""
    with pytest.raises(DeclarationError, match="step 's' got the class Real; give it an instance"):
        Step("s", Real)


def test_a_plain_generator_is_refused() -> None:
    """Only async generators stream."""

    def generator(data: Any) -> Any:
        yield data

    with pytest.raises(DeclarationError, match="step 's' is a plain generator; make it `async def` to stream"):
        Step("s", generator)


def test_a_class_method_object_is_refused() -> None:
    """A `classmethod` that is not bound yet cannot be called."""
    with pytest.raises(DeclarationError, match="cannot call its agent, a classmethod"):
        Step("s", Agent.__dict__["of_class"])


# --- feedback, the offer that must be asked for by name -----------------------------------------------------


def test_feedback_goes_only_to_whoever_asks_for_it_beside_the_data() -> None:
    """`**kwargs` does not receive it, and a data parameter of that name is data."""

    async def asks(data: Any, *, feedback: str | None = None) -> Any:
        return feedback

    assert plan_agent(asks, step_name="s").keywords == {"feedback"}
    assert plan_agent(sweeping, step_name="s").keywords == BOTH
    assert plan_agent(about_feedback, step_name="s").keywords == frozenset()


def test_reading_a_signature_never_calls_the_agent() -> None:
    """Planning looks at parameters only."""
    called = []
    plan_agent(lambda data: called.append(data), step_name="s")
    assert not called
    assert inspect.signature(plan_agent).parameters["step_name"].kind is inspect.Parameter.KEYWORD_ONLY


def test_a_signature_that_changes_between_two_declarations_is_read_again() -> None:
    """A decorator may set defaults or a signature after a first step was declared."""

    def greet(data: str, context: object) -> str:
        return data

    required = plan_agent(greet, step_name="s").required
    greet.__defaults__ = (None,)
    assert (required, plan_agent(greet, step_name="s").required) == (frozenset({"context"}), frozenset())
    greet.__signature__ = inspect.signature(lambda data: data)  # type: ignore[attr-defined]
    assert plan_agent(greet, step_name="s").keywords == frozenset()
