"""`Step`: a supervised agent, and constructors of all other kinds."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack, overload

import attrs

from .. import _dsl
from .._core.type_parameters import In, Out
from ..errors import DeclarationError
from .call_plan import CallPlan, check_agent_only, name_of, plan_agent, plan_maker
from .declared_step import Declared, GovernedKinds, of_type, public_options, refuse_unknown
from .output_options import NO_PROCESSING, Processing, Resumable, as_processing, as_rate_limits, checked_rehearse
from .output_options import AgentOptions as AgentOptions
from .output_options import AllOptions as AllOptions
from .output_options import DataOptions as DataOptions
from .output_options import GivenInput as GivenInput
from .output_options import KindOptions as KindOptions
from .output_options import LoopOptions as LoopOptions
from .output_options import MapOptions as MapOptions
from .output_options import Options as Options
from .output_options import ParallelOptions as ParallelOptions
from .output_options import WithProcessing as WithProcessing
from .output_options import WithProcessors as WithProcessors
from .pipeline import StepLike

if TYPE_CHECKING:
    from .._core.policies.loop_detection import LoopGuard
    from .._core.policies.rate_limits import RateLimit
    from .context_sources import ContextSources
    from .kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, Merging, OnBranchFailure, Parallel, SequenceOf
    from .output_options import OnUncertain, Rehearse
    from .typed_parts import Answers, I, K, ModelAgent, O, Returns, RunsAgent, StepMaker, Streams, T, TypedStep


# --- `Step`: a supervised agent -----------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False, repr=False, init=False)
class Step(Declared[In, Out], GovernedKinds):
    """Step with one agent: callable, `async run` object or pydantic-ai agent.

    Args:
        name: name of the step, unique in its pipeline.
        agent: function, object with an async `run` or `stream`, or pydantic-ai agent.
        options: options of all kinds of steps.

    Keyword Args:
        input (object): value or function `(previous, context)` that replaces the previous output.
        max_retries (int): further attempts after a failure; default: 0.
        backoff (Backoff): delays between attempts; default: `Backoff()`.
        retry_on (object): retried failures: classes, HTTP statuses or functions of the exception; default: all.
        timeout_s (float | None): longest time of an attempt; default: None.
        fallback (StepLike | None): step after the last failed attempt; default: None.
        validators (object): functions on the output; a returned reason refuses it; default: none.
        processors (object): functions on the data before the call, and on the output after it; default: none.
        processing (object): options of structured output, e.g. `{"schema": City}`; default: by the type of the agent.
        updates_context (bool): whether a dict output is merged into the context; default: False.
        usage_limits (UsageLimits | None): limits of each execution of the step; default: None.
        cache (Cache | None): reuse of the output in later runs; default: None.
        on_failure (object): handler after the fallback; default: none.
        compensate (object): function that undoes the step if the run fails later; default: None.
        min_confidence (float | None): lowest accepted confidence, from 0 to 1; default: None.
        confidence (object): source of the confidence: a field, a function or `Votes(n)`; default: None.
        on_low_confidence (StepLike | None): review of an output below `min_confidence`; default: None.
        deps (object): value of pydantic-ai's `deps`, or a function called per attempt; default: None.
        message_history (object): earlier messages, or a function like `deps`; default: None.
        conversation (object): id of a stored conversation that the agent continues; default: None.
        agent_options (object): further arguments of pydantic-ai's `Agent.run`; default: None.
        context_sources (object): context that the agent gets in addition to its prompt; default: None.
        rate_limit (object): rate limits of the agent's requests; default: none.
        mergeable_output (bool): whether the output can merge into the context, for blind tools; default: False.
        rehearse (str): `"live"` if the step has no effect, for replays; default: `"recorded"`.
        runs_on (str | None): queue of the workers that execute the step; default: None.
        meta (Mapping): data for your own tools; default: empty.

    Raises:
        DeclarationError: the agent's signature or an option is not valid.
        UnknownOption: an option is misspelled; the message has the nearest one.

    Example:
        ```python
        async def double(number: int) -> int:
            return 2 * number

        assert Flujo(Step("double", double, max_retries=2, timeout_s=5)).run(21).output == 42
        ```
    """

    agent: Any = attrs.field(default=None, kw_only=False)
    deps: Any = attrs.field(default=None, repr=False)
    """Value of pydantic-ai's `deps`, or a function called per attempt."""
    message_history: Any = attrs.field(default=None, repr=False)
    """Earlier messages: pydantic-ai messages, their JSON, or a function like `deps`."""
    conversation: Any = attrs.field(default=None, repr=False)
    """Stored conversation that the agent continues: its id, or a function `(data, context) -> id`."""
    agent_options: Any = attrs.field(default=None, repr=False)
    """Further arguments of a model agent's `run`, or a function like `deps`."""
    context_sources: ContextSources | None = attrs.field(default=None, repr=False)
    """Context added to the prompt: a list of sources, or `ContextSources(…)`."""
    processing: Processing = attrs.field(default=NO_PROCESSING, converter=as_processing)
    """Structured output options; a schema makes the step structured."""
    resumable: Resumable | None = None
    """Set by `Step.granular`: every model turn and tool call is committed."""
    rate_limit: tuple[RateLimit, ...] = attrs.field(default=(), converter=as_rate_limits)
    """Rate limits of the agent's requests, in addition to the agent's own."""
    mergeable_output: bool = attrs.field(default=False, validator=of_type(bool, "True or False"))
    """Whether the output can merge into the context, for blind tools."""
    rehearse: Rehearse = attrs.field(default="recorded", validator=checked_rehearse)
    """Handling in replays and rehearsals: its record, or `live` if it has no effect."""
    plan: CallPlan = attrs.field(init=False)

    @overload
    def __init__(self: Step[I, str], name: str, agent: Streams[I, str], **options: Unpack[AgentOptions]) -> None: ...
    @overload
    def __init__(
        self: Step[I, bytes], name: str, agent: Streams[I, bytes], **options: Unpack[AgentOptions]
    ) -> None: ...
    @overload
    def __init__(self: Step[I, list[T]], name: str, agent: Streams[I, T], **options: Unpack[AgentOptions]) -> None: ...
    @overload
    def __init__(self: Step[I, O], name: str, agent: Answers[I, O], **options: Unpack[AgentOptions]) -> None: ...
    @overload
    def __init__(self: Step[Any, O], name: str, agent: ModelAgent[O], **options: Unpack[AgentOptions]) -> None: ...
    @overload
    def __init__(self: Step[I, O], name: str, agent: RunsAgent[I, O], **options: Unpack[AgentOptions]) -> None: ...
    @overload
    def __init__(self: Step[I, O], name: str, agent: Returns[I, O], **options: Unpack[AgentOptions]) -> None: ...
    @overload
    def __init__(
        self: Step[Any, O], name: str, agent: Callable[[], Awaitable[O]], **options: Unpack[AgentOptions]
    ) -> None: ...
    @overload
    def __init__(self: Step[Any, O], name: str, agent: Callable[[], O], **options: Unpack[AgentOptions]) -> None: ...
    @overload
    def __init__(self: Step[Any, str], name: str, agent: Streams[Any, str], **options: Unpack[GivenInput]) -> None: ...
    @overload
    def __init__(
        self: Step[Any, bytes], name: str, agent: Streams[Any, bytes], **options: Unpack[GivenInput]
    ) -> None: ...
    @overload
    def __init__(
        self: Step[Any, list[T]], name: str, agent: Streams[Any, T], **options: Unpack[GivenInput]
    ) -> None: ...
    @overload
    def __init__(self: Step[Any, O], name: str, agent: Answers[Any, O], **options: Unpack[GivenInput]) -> None: ...
    @overload
    def __init__(self: Step[Any, O], name: str, agent: ModelAgent[O], **options: Unpack[GivenInput]) -> None: ...
    @overload
    def __init__(self: Step[Any, O], name: str, agent: RunsAgent[Any, O], **options: Unpack[GivenInput]) -> None: ...
    @overload
    def __init__(self: Step[Any, O], name: str, agent: Returns[Any, O], **options: Unpack[GivenInput]) -> None: ...
    @overload
    def __init__(self: Step[Any, Any], name: str, agent: object, **options: Unpack[WithProcessors]) -> None: ...
    @overload
    def __init__(self: Step[Any, Any], name: str, agent: object, **options: Unpack[WithProcessing]) -> None: ...
    def __init__(self, name: str, agent: object = None, **options: Any) -> None:
        if options.get("context_sources") is not None:
            options["context_sources"] = _dsl.sources_of(name, options["context_sources"])
        self.__attrs_init__(name, agent, **options)

    @plan.default
    def _plan(self) -> CallPlan:
        if isinstance(self.agent, Declared):
            raise DeclarationError(f"step {self.name!r}: its agent is itself a step, {self.agent!r}; use it as it is")
        return plan_agent(self.agent, step_name=self.name)

    @functools.cached_property
    def shows_context(self) -> bool:
        """Return whether the agent, or user code around it, sees the context."""
        return any(plan.sees_context for plan in (self.plan, *self.surrounding_plans))

    @functools.cached_property
    def road(self) -> str:
        """Return whether the step is a bare call of an async function."""
        plan = self.plan
        if not self._is_tried_once or self.context_sources is not None or self.conversation is not None:
            return "attempts"
        if plan.shape == "model":
            return "attempts" if callable(self.input) else "agent"
        plain = plan.shape == "async" and not plan.keywords and plan.takes_data and plan.stream is None
        alone = self.input is None and self.processing.wanted is None and self.usage_limits is None
        return "call" if plain and alone and self.runs_on is None else "attempts"

    @property
    def _is_tried_once(self) -> bool:
        once = self.max_retries == 0 and self.fallback is None and self.timeout_s is None and self.cache is None
        return once and self.bare and not self.on_failure

    @overload
    @staticmethod
    def from_callable(  # type: ignore[overload-overlap]
        fn: Streams[I, str], name: str | None = None, **options: Unpack[AgentOptions]
    ) -> Step[I, str]: ...
    @overload
    @staticmethod
    def from_callable(  # type: ignore[overload-overlap]
        fn: Streams[I, bytes], name: str | None = None, **options: Unpack[AgentOptions]
    ) -> Step[I, bytes]: ...
    @overload
    @staticmethod
    def from_callable(
        fn: Streams[I, T], name: str | None = None, **options: Unpack[AgentOptions]
    ) -> Step[I, list[T]]: ...
    @overload
    @staticmethod
    def from_callable(fn: Answers[I, O], name: str | None = None, **options: Unpack[AgentOptions]) -> Step[I, O]: ...
    @overload
    @staticmethod
    def from_callable(fn: Returns[I, O], name: str | None = None, **options: Unpack[AgentOptions]) -> Step[I, O]: ...
    @overload
    @staticmethod
    def from_callable(
        fn: Callable[..., Awaitable[O]], name: str | None = None, **options: Unpack[GivenInput]
    ) -> Step[Any, O]: ...
    @overload
    @staticmethod
    def from_callable(fn: Callable[..., Any], name: str | None = None, **options: Unpack[AllOptions]) -> Step: ...
    @staticmethod
    def from_callable(fn: Callable[..., Any], name: str | None = None, **options: Any) -> Step:
        """Return a step for a sync or async function, named after it.

        Args:
            fn: function; its first parameter is the data.
            name: other name of the step.
            **options: options of steps.

        Raises:
            DeclarationError: the function needs an unknown argument.

        Example:
            ```python
            def shout(text: str) -> str:
                return text.upper()

            assert Step.from_callable(shout, max_retries=1).name == "shout"
            ```
        """
        return Step(name or name_of(fn), fn, **options)

    @overload
    @staticmethod
    def granular(
        name: str,
        agent: ModelAgent[O],
        input: Any = None,
        max_turns: int = 20,
        on_uncertain: OnUncertain = "rerun",
        keep_last: int | None = None,
        guard: LoopGuard | None = None,
        **options: Unpack[AgentOptions],
    ) -> Step[Any, O]: ...
    @overload
    @staticmethod
    def granular(
        name: str,
        agent: Any,
        input: Any = None,
        max_turns: int = 20,
        on_uncertain: OnUncertain = "rerun",
        keep_last: int | None = None,
        guard: LoopGuard | None = None,
        **options: Unpack[DataOptions],
    ) -> Step: ...
    @staticmethod
    def granular(
        name: str,
        agent: Any,
        input: Any = None,
        max_turns: int = 20,
        on_uncertain: OnUncertain = "rerun",
        keep_last: int | None = None,
        guard: LoopGuard | None = None,
        **options: Any,
    ) -> Step:
        """Return a step that resumes after its last committed unit.

        Args:
            name: name of the step.
            agent: pydantic-ai agent.
            input: value or function that replaces the previous output.
            max_turns: most model turns; then `MaxTurnsReached`.
            on_uncertain: a call in flight at a crash: `"rerun"`, `"pause"` or `"fail"`.
            keep_last: messages that the model is shown, at least.
            guard: detection of repeated turns.
            **options: options of steps.

        Raises:
            DeclarationError: the agent is no pydantic-ai agent, or an option is not valid.

        Example:
            ```python
            agent = make_agent_async(scripted_model("Booked."), "Book what the user asks for.")
            flujo = Flujo(Step.granular("travel", agent), store="sqlite:///runs.db")
            assert flujo.run("Oslo, please").output == "Booked."
            ```
        """
        refuse_unknown(name, options, public_options(Step) | {"max_turns", "on_uncertain", "keep_last", "guard"})
        options["resumable"] = Resumable(
            max_turns=max_turns, on_uncertain=on_uncertain, keep_last=keep_last, guard=guard
        )
        return Step(name, agent, input=input, **options)

    @property
    def remembers(self) -> bool:
        """Return whether a history source of the step keeps its messages."""
        history = None if self.context_sources is None else self.context_sources.history
        return history is not None and history.remember

    @functools.cached_property
    def deps_plan(self) -> CallPlan | None:
        """Return the call plan of a `deps` function, or None."""
        return plan_maker(self.deps, subject=f"{self.name} (deps)")

    @functools.cached_property
    def history_plan(self) -> CallPlan | None:
        """Return the call plan of a `message_history` function, or None."""
        return plan_maker(self.message_history, subject=f"{self.name} (message_history)")

    @functools.cached_property
    def options_plan(self) -> CallPlan | None:
        """Return the call plan of the `agent_options`, if a function makes them."""
        return plan_maker(self.agent_options, subject=f"{self.name} (agent_options)")

    def scoped_functions(self) -> Iterator[Any]:
        """Yield the callables that control flow, dependencies and histories."""
        yield from Declared.scoped_functions(self)
        plans = (self.deps, "deps_plan"), (self.message_history, "history_plan"), (self.agent_options, "options_plan")
        yield from (made for made, plan in plans if made is not None and getattr(self, plan) is not None)
        if callable(self.conversation):
            yield self.conversation
        if self.context_sources is not None:
            yield from self.context_sources.functions()

    def _check(self) -> None:
        if self.deps is not None:
            _ = self.deps_plan  # planned now, so that a wrong function is refused now
        check_agent_only(self.name, self.plan, self.deps, self.rate_limit)
        if not (self.context_sources is self.message_history is self.conversation is None):
            _dsl.check_sources(self)
        if self.agent_options is not None:
            self._check_agent_options()
        if self.resumable is not None and self.plan.shape != "model":
            raise DeclarationError(
                f"step {self.name!r} is granular, so its agent must be a pydantic-ai agent, not {self.agent!r}"
            )

    def _check_agent_options(self) -> None:
        where = f"step {self.name!r}: agent_options"
        if self.plan.shape != "model":
            raise DeclarationError(f"{where} are arguments of a pydantic-ai agent's run, and {self.agent!r} is none")
        if self.options_plan is None:
            _dsl.checked_options(self.agent_options, self.agent, where=where)

    def deciding(self) -> Iterator[tuple[str, Any]]:
        """Yield the options of every step, and the context sources."""
        yield from Declared.deciding(self)
        if self.context_sources is not None:
            yield "context_sources", _dsl.sources_text(self.context_sources)

    # The other kinds are loaded with the first of them: building their classes takes a tenth of a plain import.

    @overload
    @staticmethod
    def parallel(
        name: str, branches: Mapping[K, TypedStep[I, O] | Answers[I, O]], **options: Unpack[ParallelOptions]
    ) -> Parallel[I, dict[K, O]]: ...
    @overload
    @staticmethod
    def parallel(
        name: str, branches: Mapping[K, StepLike], **options: Unpack[ParallelOptions]
    ) -> Parallel[Any, dict[K, Any]]: ...
    @staticmethod
    def parallel(
        name: str,
        branches: Mapping[Any, StepLike],
        *,
        merge: Merging = "context_update",
        on_branch_failure: OnBranchFailure = "propagate",
        max_concurrency: int | None = None,
        **options: Any,
    ) -> Parallel:
        """Return a step that runs all branches on the same input.

        Args:
            name: name of the step.
            branches: steps by key; the output is a dict by key.
            merge: strategy for changes of the context, or reducers by field.
            on_branch_failure: `"propagate"` cancels the others, `"ignore"` keeps their results.
            max_concurrency: most branches at once.
            **options: options of steps.

        Raises:
            DeclarationError: an argument or an option is not valid.

        Example:
            ```python
            both = Step.parallel("both", {"up": Step("up", str.upper), "title": Step("title", str.title)})
            assert Flujo(both).run("tea time").output == {"up": "TEA TIME", "title": "Tea Time"}
            ```
        """
        return _dsl.Parallel(
            name,
            branches,
            merge=merge,
            on_branch_failure=on_branch_failure,
            max_concurrency=max_concurrency,
            **options,
        )

    @overload
    @staticmethod
    def map_over(
        name: str,
        body: TypedStep[I, O] | Answers[I, O],
        items: None = None,
        max_concurrency: int | None = None,
        **options: Unpack[MapOptions],
    ) -> MapOver[Iterable[I], list[O]]: ...
    @overload
    @staticmethod
    def map_over(
        name: str,
        body: TypedStep[I, O] | Answers[I, O],
        items: Iterable[I] | Callable[..., object],
        max_concurrency: int | None = None,
        **options: Unpack[MapOptions],
    ) -> MapOver[Any, list[O]]: ...
    @overload
    @staticmethod
    def map_over(
        name: str, body: StepLike, items: Any = None, max_concurrency: int | None = None, **options: Unpack[MapOptions]
    ) -> MapOver[Any, list[Any]]: ...
    @staticmethod
    def map_over(
        name: str, body: StepLike, items: object = None, max_concurrency: int | None = None, **options: Any
    ) -> MapOver:
        """Return a step that runs the body per item, in order.

        Args:
            name: name of the step.
            body: step of one item.
            items: items, or a function `(data, context)`; by default the incoming data. May be an async iterator.
            max_concurrency: most items at once.
            **options: options of steps.

        Raises:
            DeclarationError: an argument or an option is not valid.

        Example:
            ```python
            each = Step.map_over("each", Step("up", str.upper), max_concurrency=8)
            assert Flujo(each).run(["a", "b"]).output == ["A", "B"]
            ```
        """
        return _dsl.MapOver(name, body, items=items, max_concurrency=max_concurrency, **options)

    @overload
    @staticmethod
    def branch_on(
        name: str,
        select: Callable[..., object],
        branches: Mapping[Any, TypedStep[I, O] | Answers[I, O]],
        default: TypedStep[I, O] | Answers[I, O] | None = None,
        **options: Unpack[KindOptions],
    ) -> BranchOn[I, O]: ...
    @overload
    @staticmethod
    def branch_on(
        name: str,
        select: Callable[..., object],
        branches: Mapping[Any, StepLike],
        default: StepLike | None = None,
        **options: Unpack[KindOptions],
    ) -> BranchOn[Any, Any]: ...
    @staticmethod
    def branch_on(
        name: str,
        select: Callable[..., object],
        branches: Mapping[Any, StepLike],
        default: StepLike | None = None,
        **options: Any,
    ) -> BranchOn:
        """Return a step that runs one branch, chosen by a function.

        Args:
            name: name of the step.
            select: function `(data, context)` that returns a key.
            branches: steps by key.
            default: step for other keys; without it the step fails.
            **options: options of steps.

        Raises:
            DeclarationError: an argument or an option is not valid.

        Example:
            ```python
            size = Step.branch_on("size", lambda n, context: n > 9, {True: Step("big", str)})
            assert Flujo(size).run(10).output == "10"
            ```
        """
        return _dsl.BranchOn(name, select, branches, default=default, **options)

    @overload
    @staticmethod
    def loop_until(
        name: str,
        body: TypedStep[T, T] | Answers[T, T],
        until: Callable[..., object],
        max_loops: int | None = 5,
        **options: Unpack[LoopOptions],
    ) -> LoopUntil[T, T]: ...
    @overload
    @staticmethod
    def loop_until(
        name: str,
        body: Returns[T, T],
        until: Callable[..., object],
        max_loops: int | None = 5,
        **options: Unpack[LoopOptions],
    ) -> LoopUntil[T, T]: ...
    @staticmethod
    def loop_until(
        name: str, body: StepLike, until: Callable[..., object], max_loops: int | None = 5, **options: Any
    ) -> LoopUntil:
        """Return a step that repeats the body until a condition holds.

        With `keep_history=N` only the last `N` turns are kept, in memory and in the store.

        Args:
            name: name of the step.
            body: step that gets its own last output.
            until: function `(output, context)`.
            max_loops: most turns; then the step fails. `None` needs `keep_history`.
            **options: options of steps.

        Raises:
            DeclarationError: an argument or an option is not valid.

        Example:
            ```python
            grow = Step.loop_until("grow", Step("double", lambda n: 2 * n), lambda n, context: n > 100, max_loops=10)
            assert Flujo(grow).run(5).output == 160
            ```
        """
        return _dsl.LoopUntil(name, body, until, max_loops=max_loops, **options)

    @overload
    @staticmethod
    def sequence(
        name: str, body: TypedStep[I, O] | Answers[I, O], **options: Unpack[KindOptions]
    ) -> SequenceOf[I, O]: ...
    @overload
    @staticmethod
    def sequence(name: str, body: StepLike, **options: Unpack[KindOptions]) -> SequenceOf[Any, Any]: ...
    @staticmethod
    def sequence(name: str, body: StepLike, **options: Any) -> SequenceOf:
        """Return a pipeline as one step with its own options.

        Args:
            name: name of the step.
            body: steps in sequence; a retry repeats all of them.
            **options: options of steps.

        Raises:
            DeclarationError: an argument or an option is not valid.

        Example:
            ```python
            search = Step.sequence("search", Step("a", str.upper) >> Step("b", str.title), max_retries=2)
            assert Flujo(search).run("tea").output == "Tea"
            ```
        """
        return _dsl.SequenceOf(name, body, **options)

    @overload
    @staticmethod
    def human_in_the_loop(
        name: str, message: str | Callable[..., str], input_schema: type[T], **options: Unpack[KindOptions]
    ) -> HumanInTheLoop[Any, T]: ...
    @overload
    @staticmethod
    def human_in_the_loop(
        name: str, message: str | Callable[..., str], input_schema: object = None, **options: Unpack[KindOptions]
    ) -> HumanInTheLoop[Any, Any]: ...
    @staticmethod
    def human_in_the_loop(
        name: str, message: str | Callable[..., str], input_schema: object = None, **options: Any
    ) -> HumanInTheLoop:
        """Return a step that pauses the run; the answer is its output.

        Args:
            name: name of the step.
            message: text of the question, or a function `(data, context)`.
            input_schema: type of the answer; another one raises `InvalidAnswer`.
            **options: options of steps.

        Raises:
            DeclarationError: an argument or an option is not valid.

        Example:
            ```python
            flujo = Flujo(Step.human_in_the_loop("size", "Which size?", input_schema=int))
            assert flujo.resume(flujo.run("shirt").state_token, 42).output == 42
            ```
        """
        return _dsl.HumanInTheLoop(name, message, input_schema=input_schema, **options)


@overload
def step(fn: Streams[I, str], /) -> Step[I, str]: ...  # type: ignore[overload-overlap]
@overload
def step(fn: Streams[I, bytes], /) -> Step[I, bytes]: ...  # type: ignore[overload-overlap]
@overload
def step(fn: Streams[I, T], /) -> Step[I, list[T]]: ...
@overload
def step(fn: Answers[I, O], /) -> Step[I, O]: ...
@overload
def step(fn: Returns[I, O], /) -> Step[I, O]: ...
@overload
def step(*, name: str | None = None, **options: Unpack[AgentOptions]) -> StepMaker: ...
@overload
def step(*, name: str | None = None, **options: Unpack[AllOptions]) -> Callable[[Callable[..., Any]], Step]: ...
def step(fn: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Make a function a step named after it: `@step`, or `@step(max_retries=2)`.

    Args:
        fn: function; its first parameter is the data.
        name: other name of the step.
        **options: options of steps.

    Raises:
        DeclarationError: the function or an option is not valid.

    Example:
        ```python
        @step(max_retries=2)
        async def greet(name: str) -> str:
            return f"Hello {name}"

        assert Flujo(greet).run("Ada").output == "Hello Ada"
        ```
    """
    if fn is None:
        return lambda function: Step.from_callable(function, name, **options)
    return Step.from_callable(fn, name, **options)
