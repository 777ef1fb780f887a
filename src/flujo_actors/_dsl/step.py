"""`Step`: an agent under supervision, and the way to every other kind of step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, overload

import attrs

from ..errors import DeclarationError
from .call_plan import CallPlan, plan_agent
from .declared import Declared, of_type, options_of, refuse_unknown
from .pipeline import StepLike
from .processing import NO_PROCESSING, Processing, as_processing

if TYPE_CHECKING:  # see where `Step` makes them
    from .kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, Merging, OnBranchFailure, Parallel
    from .resumable import OnUncertain, Resumable


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Step(Declared):
    """One agent: a callable, an object with `async run(data, **kw)`, or a pydantic-ai agent."""

    agent: Any = attrs.field(default=None, kw_only=False)
    deps: Any = attrs.field(default=None, repr=False)
    """What a model agent's tools get as pydantic-ai's `deps`."""
    processing: Processing = attrs.field(default=NO_PROCESSING, converter=as_processing)
    """How the output becomes a value; a schema makes the step a structured one."""
    resumable: Resumable | None = None
    """Set by `Step.granular`: every model turn and tool call is committed by itself."""
    mergeable_output: bool = attrs.field(default=False, validator=of_type(bool, "True or False"))
    """Says that the output can be merged into the context, where tools cannot see it."""
    plan: CallPlan = attrs.field(init=False)

    @plan.default
    def _plan(self) -> CallPlan:
        if isinstance(self.agent, Declared):
            raise DeclarationError(f"step {self.name!r}: its agent is itself a step, {self.agent!r}; use it as it is")
        return plan_agent(self.agent, step_name=self.name)

    @functools.cached_property
    def shows_context(self) -> bool:
        """Whether the agent, or user code around it, sees the context."""
        plans = (self.plan, self.plan.stream, *self.surrounding_plans)
        return any(plan is not None and "context" in plan.keywords for plan in plans)

    @functools.cached_property
    def is_just_a_call(self) -> bool:
        """Whether the step is one call of an async function with its data, and nothing around it."""
        plan = self.plan
        plain = plan.shape == "async" and not plan.keywords and plan.takes_data and plan.stream is None
        alone = self.input is None and self.processing.wanted is None and self.usage_limits is None
        return plain and alone and self._is_tried_once

    @functools.cached_property
    def is_just_a_question(self) -> bool:
        """Whether the step is one question to a model agent, and nothing around it."""
        return self.plan.shape == "model" and self._is_tried_once and not callable(self.input)

    @property
    def _is_tried_once(self) -> bool:
        once = self.max_retries == 0 and self.fallback is None and self.timeout_s is None
        return once and self.bare

    @classmethod
    def from_callable(cls, fn: Callable[..., Any], name: str | None = None, **config: Any) -> Step:
        """A step from a function, sync or async, called by its name unless another is given."""
        return cls(name or name_of(fn), fn, **config)

    @classmethod
    def granular(
        cls,
        name: str,
        agent: Any,
        input: Any = None,
        max_turns: int = 20,
        on_uncertain: OnUncertain = "rerun",
        keep_last: int | None = None,
        **config: Any,
    ) -> Step:
        """An agent that resumes after its last committed model turn or tool call, instead of from the beginning.

        `keep_last` shortens what the model is shown of a long conversation.
        """
        from .resumable import Resumable  # here, as below: what a pipeline of plain functions does without

        refuse_unknown(name, config, options_of(cls) | {"max_turns", "on_uncertain", "keep_last"})
        return cls(
            name,
            agent,
            input=input,
            resumable=Resumable(max_turns=max_turns, on_uncertain=on_uncertain, keep_last=keep_last),
            **config,
        )

    def _check(self) -> None:
        if self.resumable is not None and self.plan.shape != "model":
            raise DeclarationError(
                f"step {self.name!r} is granular, so its agent must be a pydantic-ai agent, not {self.agent!r}"
            )

    # The other kinds are loaded with the first of them: building their classes takes a tenth of a plain import.

    @staticmethod
    def parallel(
        name: str,
        branches: Mapping[Any, StepLike],
        *,
        merge: Merging = "context_update",
        on_branch_failure: OnBranchFailure = "propagate",
        max_concurrency: int | None = None,
        **config: Any,
    ) -> Parallel:
        """All branches at once on the same input; the output is a dict by key."""
        from .kinds import Parallel

        return Parallel(
            name,
            branches,
            merge=merge,
            on_branch_failure=on_branch_failure,
            max_concurrency=max_concurrency,
            **config,
        )

    @staticmethod
    def map_over(
        name: str, body: StepLike, items: Any = None, max_concurrency: int | None = None, **config: Any
    ) -> MapOver:
        """The body once per item, of `items` or of the incoming data; the output is a list in item order."""
        from .kinds import MapOver

        return MapOver(name, body, items=items, max_concurrency=max_concurrency, **config)

    @staticmethod
    def branch_on(
        name: str,
        select: Callable[..., Any],
        branches: Mapping[Any, StepLike],
        default: StepLike | None = None,
        **config: Any,
    ) -> BranchOn:
        """One branch, chosen by `select(data, context)`."""
        from .kinds import BranchOn

        return BranchOn(name, select, branches, default=default, **config)

    @staticmethod
    def loop_until(
        name: str, body: StepLike, until: Callable[..., Any], max_loops: int = 5, **config: Any
    ) -> LoopUntil:
        """The body on its own last output until `until(output, context)`; past `max_loops` it fails."""
        from .kinds import LoopUntil

        return LoopUntil(name, body, until, max_loops=max_loops, **config)

    @staticmethod
    def human_in_the_loop(
        name: str, message: str | Callable[..., str], input_schema: Any = None, **config: Any
    ) -> HumanInTheLoop:
        """Pauses the run, at any depth; the answer is the step's output."""
        from .kinds import HumanInTheLoop

        return HumanInTheLoop(name, message, input_schema=input_schema, **config)


@overload
def step(fn: Callable[..., Any], /) -> Step: ...
@overload
def step(*, name: str | None = None, **config: Any) -> Callable[[Callable[..., Any]], Step]: ...
def step(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None, **config: Any
) -> Step | Callable[[Callable[..., Any]], Step]:
    """Make a function a step named after it: `@step`, or `@step(max_retries=2)`."""
    if fn is None:
        return lambda function: Step.from_callable(function, name, **config)
    return Step.from_callable(fn, name, **config)


def name_of(fn: Callable[..., Any]) -> str:
    """What a function is called, also behind partials; an object is called by its class."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", None) or type(fn).__name__
