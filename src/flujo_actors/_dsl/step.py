"""`Step`: an agent under supervision, and the way to every other kind of step."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack, overload

import attrs

from .._core.type_parameters import In, Out
from ..errors import DeclarationError
from .call_plan import CallPlan, name_of, plan_agent, plan_maker
from .declared import Declared, of_type, options_of, refuse_unknown
from .governed_kinds import GovernedKinds
from .pipeline import StepLike
from .processing import NO_PROCESSING, Processing, as_processing

if TYPE_CHECKING:
    from .._core.loops import LoopGuard
    from .context_sources import ContextSources
    from .options import (
        AgentOptions,
        AllOptions,
        DataOptions,
        GivenInput,
        KindOptions,
        LoopOptions,
        MapOptions,
        ParallelOptions,
        WithProcessing,
        WithProcessors,
    )
    from .typed_parts import Answers, I, K, ModelAgent, O, Returns, Runs, StepMaker, Streams, T, TypedStep

if TYPE_CHECKING:  # see where `Step` makes them
    from .kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, Merging, OnBranchFailure, Parallel, SequenceOf
    from .resumable import OnUncertain, Resumable


@attrs.frozen(kw_only=True, eq=False, repr=False, init=False)
class Step(Declared[In, Out], GovernedKinds):
    """One agent: a callable, an object with `async run(data, **kw)`, or a pydantic-ai agent."""

    agent: Any = attrs.field(default=None, kw_only=False)
    deps: Any = attrs.field(default=None, repr=False)
    """What a model agent's tools get as pydantic-ai's `deps`: a value, or a function that makes it for every attempt,
    called by its signature with data, context and resources."""
    message_history: Any = attrs.field(default=None, repr=False)
    """What a model agent heard and said before: messages of pydantic-ai, their JSON, or a function as for `deps`."""
    context_sources: ContextSources | None = attrs.field(default=None, repr=False)
    """What the agent is shown besides its prompt: a list of sources, or `ContextSources(…)`."""
    processing: Processing = attrs.field(default=NO_PROCESSING, converter=as_processing)
    """How the output becomes a value; a schema makes the step a structured one."""
    resumable: Resumable | None = None
    """Set by `Step.granular`: every model turn and tool call is committed by itself."""
    mergeable_output: bool = attrs.field(default=False, validator=of_type(bool, "True or False"))
    """Says that the output can be merged into the context, where tools cannot see it."""
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
    def __init__(self: Step[I, O], name: str, agent: Runs[I, O], **options: Unpack[AgentOptions]) -> None: ...
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
    def __init__(self: Step[Any, O], name: str, agent: Runs[Any, O], **options: Unpack[GivenInput]) -> None: ...
    @overload
    def __init__(self: Step[Any, O], name: str, agent: Returns[Any, O], **options: Unpack[GivenInput]) -> None: ...
    @overload
    def __init__(self: Step[Any, Any], name: str, agent: object, **options: Unpack[WithProcessors]) -> None: ...
    @overload
    def __init__(self: Step[Any, Any], name: str, agent: object, **options: Unpack[WithProcessing]) -> None: ...
    def __init__(self, name: str, agent: object = None, **options: Any) -> None:
        if options.get("context_sources") is not None:
            from .source_checks import sources_of  # only for steps that have sources

            options["context_sources"] = sources_of(name, options["context_sources"])
        self.__attrs_init__(name, agent, **options)

    @plan.default
    def _plan(self) -> CallPlan:
        if isinstance(self.agent, Declared):
            raise DeclarationError(f"step {self.name!r}: its agent is itself a step, {self.agent!r}; use it as it is")
        return plan_agent(self.agent, step_name=self.name)

    @functools.cached_property
    def shows_context(self) -> bool:
        """Whether the agent, or user code around it, sees the context."""
        return any(plan.sees_context for plan in (self.plan, *self.surrounding_plans))

    @functools.cached_property
    def is_just_a_call(self) -> bool:
        """Whether the step is one call of an async function with its data, and nothing around it."""
        plan = self.plan
        plain = plan.shape == "async" and not plan.keywords and plan.takes_data and plan.stream is None
        alone = self.input is None and self.processing.wanted is None and self.usage_limits is None
        alone = alone and self.context_sources is None and self.runs_on is None
        return plain and alone and self._is_tried_once

    @functools.cached_property
    def is_just_a_question(self) -> bool:
        """Whether the step is one question to a model agent, and nothing around it."""
        alone = self.context_sources is None and not callable(self.input)
        return self.plan.shape == "model" and self._is_tried_once and alone

    @functools.cached_property
    def is_alone(self) -> bool:
        """Whether no other step is part of its attempts: no fallback, handler, review or vote."""
        beside = self.fallback is not None or self.on_low_confidence is not None or bool(self.on_failure)
        return not (beside or self.weighs)

    @property
    def _is_tried_once(self) -> bool:
        once = self.max_retries == 0 and self.fallback is None and self.timeout_s is None
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
        """A step from a function, sync or async, called by its name unless another is given."""
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
        """An agent that resumes after its last committed model turn or tool call; `guard` acts on loops."""
        from .resumable import Resumable  # here, as below: what a pipeline of plain functions does without

        refuse_unknown(name, options, options_of(Step) | {"max_turns", "on_uncertain", "keep_last", "guard"})
        options["resumable"] = Resumable(
            max_turns=max_turns, on_uncertain=on_uncertain, keep_last=keep_last, guard=guard
        )
        return Step(name, agent, input=input, **options)

    @property
    def remembers(self) -> bool:
        """Whether a history of the step wants what is said and heard."""
        history = None if self.context_sources is None else self.context_sources.history
        return history is not None and history.remember

    @functools.cached_property
    def deps_plan(self) -> CallPlan | None:
        """How to make the `deps`, if a function does."""
        return plan_maker(self.deps, what=f"{self.name} (deps)")

    @functools.cached_property
    def history_plan(self) -> CallPlan | None:
        """How to make the `message_history`, if a function does."""
        return plan_maker(self.message_history, what=f"{self.name} (message_history)")

    def asking(self) -> Iterator[Any]:
        """What decides, and what makes deps and histories."""
        yield from Declared.asking(self)
        if self.deps is not None and self.deps_plan is not None:
            yield self.deps
        if self.message_history is not None and self.history_plan is not None:
            yield self.message_history
        if self.context_sources is not None:
            yield from self.context_sources.functions()

    def _check(self) -> None:
        if self.deps is not None:
            _ = self.deps_plan  # planned now, so that a wrong function is refused now
        if self.context_sources is not None or self.message_history is not None:
            from .source_checks import check_sources  # only for steps that have them

            check_sources(self)
        if self.resumable is not None and self.plan.shape != "model":
            raise DeclarationError(
                f"step {self.name!r} is granular, so its agent must be a pydantic-ai agent, not {self.agent!r}"
            )

    def deciding(self) -> Iterator[tuple[str, Any]]:
        """What every step has, and where its context comes from."""
        yield from Declared.deciding(self)
        if self.context_sources is not None:
            from .source_facts import sources_text  # see `__init__`

            yield "context_sources", sources_text(self.context_sources)

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
        """All branches at once on the same input; the output is a dict by key."""
        from .kinds import Parallel

        return Parallel(
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
        """The body once per item, of `items` or of the incoming data; the output is a list in item order."""
        from .kinds import MapOver

        return MapOver(name, body, items=items, max_concurrency=max_concurrency, **options)

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
        from .kinds import BranchOn

        return BranchOn(name, select, branches, default=default, **options)

    @overload
    @staticmethod
    def loop_until(
        name: str,
        body: TypedStep[T, T] | Answers[T, T],
        until: Callable[..., object],
        max_loops: int = 5,
        **options: Unpack[LoopOptions],
    ) -> LoopUntil[T, T]: ...
    @overload
    @staticmethod
    def loop_until(
        name: str, body: Returns[T, T], until: Callable[..., object], max_loops: int = 5, **options: Unpack[LoopOptions]
    ) -> LoopUntil[T, T]: ...
    @staticmethod
    def loop_until(
        name: str, body: StepLike, until: Callable[..., object], max_loops: int = 5, **options: Any
    ) -> LoopUntil:
        """The body on its own last output until `until(output, context)`; past `max_loops` it fails."""
        from .kinds import LoopUntil

        return LoopUntil(name, body, until, max_loops=max_loops, **options)

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
        """A pipeline as one step with options of its own: an input, retries, a fallback, limits."""
        from .kinds import SequenceOf

        return SequenceOf(name, body, **options)

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
        from .kinds import HumanInTheLoop

        return HumanInTheLoop(name, message, input_schema=input_schema, **options)


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
