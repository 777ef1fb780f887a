"""A sequence of steps, each fed with the output of the one before."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast, overload

import attrs

from .._core.paths import Named, Segment, StepPath
from .._core.type_parameters import In, Out
from ..errors import DeclarationError
from .chaining import Chained
from .declared import Declared, as_handlers, as_one_compensation

if TYPE_CHECKING:
    from .._core.usage import UsageLimits
    from .compensation import Compensate
    from .typed_parts import Answers, I, O, Returns, Streams, T, TypedStep


def as_step(value: object, *, where: str) -> AnyStep:
    """The step that `value` is, or becomes; anything else is an error that says where it stood."""
    step: object = step_of(cast("StepLike", value))
    if isinstance(step, Declared | Pipeline):
        return step
    raise DeclarationError(
        f'{where} must be a step or a pipeline, not {value!r}; an agent becomes one as Step("…", agent)'
    )


def step_of(value: StepLike) -> AnyStep:
    """The step that calls a function; anything else is left as it is, to whoever knows where it stands."""
    if isinstance(value, Declared | Pipeline | type) or not callable(value):
        return cast("AnyStep", value)
    from .step import Step  # a cycle, as in `Chained`

    return Step.from_callable(value)


def _as_steps(steps: StepLike | Iterable[StepLike]) -> tuple[AnyStep, ...]:
    if isinstance(steps, Declared | Pipeline) or callable(steps):
        return (as_step(steps, where="step number 1 of a pipeline"),)
    if not isinstance(steps, Iterable):
        raise DeclarationError(f"a pipeline is made of steps, not {steps!r}")
    return tuple(as_step(step, where=f"step number {n} of a pipeline") for n, step in enumerate(steps, 1))


_LONGEST_TITLE = 200


@attrs.frozen(eq=False)
class Pipeline(Chained[In, Out]):
    """Steps in a row; wherever a step may stand, a pipeline may stand."""

    steps: tuple[AnyStep, ...] = attrs.field(converter=_as_steps)
    name: str | None = None
    on_failure: tuple[AnyStep, ...] = attrs.field(default=(), converter=as_handlers)
    """Who is told when the pipeline has failed, and been undone."""
    compensate: Compensate | None = attrs.field(default=None, converter=as_one_compensation)
    """What undoes the pipeline as a whole once it has completed; without it, its steps are undone one by one."""

    usage_limits: UsageLimits | None = attrs.field(default=None, kw_only=True)
    """What a run of it may spend, where its `Flujo` says nothing else."""
    initial_context_data: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    """What the context of a run begins with; its `Flujo` may say more."""

    def __attrs_post_init__(self) -> None:
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise DeclarationError(f"a pipeline's name must be a non-empty text or None, not {self.name!r}")
        if not self.steps:
            raise DeclarationError("a pipeline needs at least one step")
        places: dict[str, int] = {}
        for place, name in enumerate(self.step_names(), start=1):
            if name in places:
                raise DeclarationError(
                    f"two steps of one pipeline are named {name!r}: number {places[name]} and number {place}; "
                    'give one of them another name, a function as Step("another name", function)'
                )
            places[name] = place

    @overload
    @staticmethod
    def from_step(step: TypedStep[I, O]) -> Pipeline[I, O]: ...
    @overload
    @staticmethod
    def from_step(step: Streams[I, str]) -> Pipeline[I, str]: ...  # type: ignore[overload-overlap]
    @overload
    @staticmethod
    def from_step(step: Streams[I, bytes]) -> Pipeline[I, bytes]: ...  # type: ignore[overload-overlap]
    @overload
    @staticmethod
    def from_step(step: Streams[I, T]) -> Pipeline[I, list[T]]: ...
    @overload
    @staticmethod
    def from_step(step: Answers[I, O]) -> Pipeline[I, O]: ...
    @overload
    @staticmethod
    def from_step(step: Returns[I, O]) -> Pipeline[I, O]: ...
    @staticmethod
    def from_step(step: StepLike) -> Pipeline:
        """A pipeline of one step, or of one function; a pipeline stays what it is."""
        return step if isinstance(step, Pipeline) else Pipeline((step,))

    def step_names(self) -> Iterator[str]:
        """What each step is called here; a nested pipeline without a name is called by its place."""
        for place, step in enumerate(self.steps, start=1):
            yield step.name or f"pipeline {place}"

    kind: ClassVar[str] = "pipeline"

    def children(self) -> Iterator[tuple[Segment, AnyStep]]:
        """The steps in order, each with its segment of the path, then its handlers and what undoes it."""
        yield from ((Named(name), step) for step, name in self.named_steps)
        if self.on_failure or self.compensate is not None:
            from .compensation import beside  # what only such pipelines need

            yield from beside(self)

    @functools.cached_property
    def title(self) -> str:
        """What its runs are known by: its name, or those of its steps."""
        title = self.name or " >> ".join(self.step_names())
        return title if len(title) <= _LONGEST_TITLE else title[: _LONGEST_TITLE - 1] + "…"

    @functools.cached_property
    def asks_of_scope(self) -> frozenset[str]:
        """Which of `steps`, `item` and `run_input` anybody inside asks for: only that is kept while it runs."""
        from .tree import walk_steps  # it walks pipelines

        inside = (step.asks_of_scope for step in walk_steps(self) if isinstance(step, Declared))
        return frozenset().union(*inside)

    @functools.cached_property
    def closing_steps(self) -> frozenset[StepPath]:
        """The steps that can be written down together with what is around them."""
        from .closing import closing_steps  # what only durable runs need

        return closing_steps(self)

    @functools.cached_property
    def named_steps(self) -> tuple[tuple[AnyStep, str], ...]:
        """Each step with what it is called here."""
        return tuple(zip(self.steps, self.step_names(), strict=True))

    @property
    def dissolves(self) -> bool:
        """Whether nothing tells the pipeline from its steps."""
        alone = self.name is None and self.usage_limits is None and self.initial_context_data is None
        return alone and not self.on_failure and self.compensate is None

    def __repr__(self) -> str:
        names = list(self.step_names())
        shown = names if len(names) <= 6 else [*names[:3], "…", *names[-2:]]
        label = "" if self.name is None else f"{self.name!r}: "
        return f"Pipeline({label}{' >> '.join(shown)})"


AnyStep: TypeAlias = Declared | Pipeline
"""Whatever can stand in a pipeline."""

StepLike: TypeAlias = AnyStep | Callable[..., object]
"""Whatever may be given for a step: a function becomes the step that calls it, named after it."""


def chain(first: object, following: object) -> Pipeline:
    """`first >> following`: plain pipelines dissolve into the sequence; one with a name, handlers or a compensation
    stays a step."""
    return Pipeline((*_links(first, "left"), *_links(following, "right")))


def _links(step: object, side: str) -> tuple[AnyStep, ...]:
    if isinstance(step, Pipeline) and step.dissolves:
        return step.steps
    return (as_step(step, where=f"the {side}-hand side of >>"),)
