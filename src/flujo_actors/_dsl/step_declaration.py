"""`Step`: a supervised agent, and constructors of all other kinds.

Sections:

- Constructors of approvals, selections and waits, mixed into `Step`.
- Options of steps for type checkers: a misspelled one is an error in the editor.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Required, TypedDict, Unpack, overload

import attrs

from .. import _dsl
from .._core.type_parameters import In, Out
from ..errors import DeclarationError
from .call_plan import CallPlan, check_agent_only, name_of, plan_agent, plan_maker
from .declared_step import Declared, of_type, options_of, refuse_unknown
from .output_options import NO_PROCESSING, Processing, Resumable, as_processing, as_rate_limits, checked_rehearse
from .pipeline import StepLike

if TYPE_CHECKING:
    from .._core.policies.approval_policy import Option
    from .._core.policies.loop_detection import LoopGuard
    from .._core.policies.rate_limits import RateLimit
    from .._core.retry_decisions import Backoff, RetryRule
    from .._core.usage import UsageLimits
    from .compensation_options import Compensate
    from .context_sources import ContextSources, Source
    from .declared_step import Processors
    from .kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, Merging, OnBranchFailure, Parallel, SequenceOf
    from .output_options import Cache, OnUncertain, Rehearse
    from .selection_step import Reward, SelectAgent
    from .typed_parts import Answers, I, K, ModelAgent, O, Returns, RunsAgent, StepMaker, Streams, T, TypedStep
    from .wait_steps import Approval, Instant, OnTimeout, OnWaitTimeout, Sleep, WaitFor


# --- Constructors of approvals, selections and waits ------------------------------------------------------------------


class GovernedKinds:
    """The makers of these kinds."""

    __slots__ = ()

    @staticmethod
    def approval(
        name: str,
        message: str | Callable[..., str],
        options: Mapping[str, str | Option] | Iterable[Option] | None = None,
        *,
        to: str | None = None,
        timeout_s: float | None = None,
        on_timeout: OnTimeout | StepLike = "fail",
        on_rejection: StepLike | None = None,
        max_deferrals: int = 3,
        comment_required: bool = False,
        metadata: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> Approval[Any, Any]:
        """Return a step that pauses for an approver or its timeout.

        With `comment_required`, a rejection without a comment is refused.
        """
        return _dsl.Approval(
            name,
            message,
            options=options,
            to=to,
            deadline_s=timeout_s,
            on_timeout=on_timeout,
            on_rejection=on_rejection,
            max_deferrals=max_deferrals,
            comment_required=comment_required,
            metadata={} if metadata is None else metadata,
            **config,
        )

    @staticmethod
    def sleep(
        name: str,
        seconds: float | Callable[..., float] | None = None,
        *,
        until: Instant | Callable[..., Instant] | None = None,
        **config: Any,
    ) -> Sleep[T, T]:
        """Return a step that passes its input on after a time.

        A stored run that sleeps needs no process. `until` is an aware datetime or seconds since the epoch.
        """
        return _dsl.Sleep(name, seconds, until=until, **config)

    @staticmethod
    def wait_for(
        name: str,
        event: str,
        *,
        key: str | Callable[..., str] | None = None,
        schema: type[T] | None = None,
        timeout_s: float | None = None,
        on_timeout: OnWaitTimeout | StepLike = "fail",
        **config: Any,
    ) -> WaitFor[Any, T]:
        """Return a step that waits for an event and outputs its data.

        `RunClient.send(event, key=…)` sends it. Without `key`, that is the run's id.
        """
        return _dsl.WaitFor(name, event, key=key, schema=schema, deadline_s=timeout_s, on_timeout=on_timeout, **config)

    @staticmethod
    def select_agent(
        name: str,
        arms: Mapping[str, object],
        by: object = None,
        *,
        category: Callable[..., object] | None = None,
        reward: Reward = None,
        beliefs: str | None = None,
        **config: Any,
    ) -> SelectAgent[Any, Any]:
        """Return a step that selects an agent, by default by Thompson sampling."""
        rule: dict[str, Any] = {} if by is None else {"by": by}
        return _dsl.SelectAgent(name, arms, **rule, category=category, reward=reward, beliefs=beliefs, **config)


# --- `Step`: a supervised agent -----------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False, repr=False, init=False)
class Step(Declared[In, Out], GovernedKinds):
    """Step with one agent: callable, `async run` object or pydantic-ai agent."""

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
        """Return a step for a sync or async function, named after it."""
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

        `guard` acts on loops.
        """
        refuse_unknown(name, options, options_of(Step) | {"max_turns", "on_uncertain", "keep_last", "guard"})
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
        return plan_maker(self.deps, what=f"{self.name} (deps)")

    @functools.cached_property
    def history_plan(self) -> CallPlan | None:
        """Return the call plan of a `message_history` function, or None."""
        return plan_maker(self.message_history, what=f"{self.name} (message_history)")

    @functools.cached_property
    def options_plan(self) -> CallPlan | None:
        """Return the call plan of the `agent_options`, if a function makes them."""
        return plan_maker(self.agent_options, what=f"{self.name} (agent_options)")

    def asking(self) -> Iterator[Any]:
        """Yield the callables that control flow, dependencies and histories."""
        yield from Declared.asking(self)
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

        The output is a dict by key.
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

        Items come from `items` or the incoming data.
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
        """One branch, chosen by `select(data, context)`."""
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
        """Return a step that repeats the body until `until(output, context)` is true.

        The body gets its own last output; past `max_loops` the step fails. With `keep_history=N` only the last `N`
        turns are kept, in memory and in the store; then `max_loops=None` permits any number of turns.
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
        """Return a pipeline as one step with its own options."""
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
        """Pauses the run, at any depth; the answer is the step's output."""
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
    """Make a function a step named after it: `@step`, or `@step(max_retries=2)`."""
    if fn is None:
        return lambda function: Step.from_callable(function, name, **options)
    return Step.from_callable(fn, name, **options)


# --- Options of steps for type checkers ---------------------------------------------------------------------------
# A test compares them with the options of the steps.


class Options(TypedDict, total=False):
    """Options of every kind of step."""

    max_retries: int
    backoff: Backoff
    retry_on: RetryRule | Iterable[RetryRule] | None
    timeout_s: float | None
    fallback: StepLike | None
    validators: Callable[..., Any] | Iterable[Callable[..., Any]]
    updates_context: bool
    usage_limits: UsageLimits | None
    cache: Cache | None
    on_failure: StepLike | Iterable[StepLike] | None
    compensate: StepLike | Compensate | Mapping[str, StepLike | Compensate] | None
    min_confidence: float | None
    confidence: object
    on_low_confidence: StepLike | Iterable[StepLike] | None
    meta: Mapping[str, object]
    runs_on: str | None


class KindOptions(Options, total=False):
    """Options of composite steps and of pauses."""

    input: object
    processors: Processors | Mapping[str, object]


class LoopOptions(KindOptions, total=False):
    """Options of a loop in addition to body and condition."""

    guard: LoopGuard | None
    keep_history: int | None


class MapOptions(KindOptions, total=False):
    """Options of a map in addition to body and items."""

    merge: Merging
    batch: int


class ParallelOptions(KindOptions, total=False):
    """Options of parallel branches."""

    merge: Merging
    on_branch_failure: OnBranchFailure
    max_concurrency: int | None


class AgentOptions(Options, total=False):
    """Options of an agent step that preserve its data types."""

    deps: Any
    message_history: object
    conversation: str | Callable[..., str] | None
    agent_options: Mapping[str, Any] | Callable[..., Any] | None
    context_sources: ContextSources | Iterable[Source] | None
    rate_limit: RateLimit | Iterable[RateLimit] | None
    mergeable_output: bool
    rehearse: Rehearse


class GivenInput(AgentOptions):
    """Agent options with an `input` that replaces the previous output."""

    input: Required[object]


class DataOptions(AgentOptions, total=False):
    """Agent options that change data types: processors or a schema."""

    processors: Processors | Mapping[str, object]
    processing: Processing | Mapping[str, object]


class AllOptions(DataOptions, total=False):
    """All options of an agent step."""

    input: object


class WithProcessors(AgentOptions, total=False):
    """Agent options with processors, whose types cannot be inferred."""

    processors: Required[Processors | Mapping[str, Any]]
    input: object
    processing: Processing | Mapping[str, object]


class WithProcessing(AgentOptions, total=False):
    """Agent options with structured output: a schema changes the output type."""

    processing: Required[Processing | Mapping[str, Any]]
    input: object
