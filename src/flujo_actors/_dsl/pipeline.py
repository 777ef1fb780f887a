"""Sequence of steps, each fed with the output of its predecessor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast, overload

import attrs

from .. import _dsl
from .._core.labels import checked_labels
from .._core.step_paths import Named, Segment, StepPath
from .._core.type_parameters import In, Out
from .._core.usage import UsageLimits
from .._core.validators import suggests_options
from ..errors import DeclarationError
from .declared_step import Chained, Declared, as_handlers, as_one_compensation

if TYPE_CHECKING:
    from .compensation_options import Compensate
    from .typed_parts import Answers, I, O, Returns, Streams, T, TypedStep


def as_step(value: object, *, where: str) -> AnyStep:
    """Return `value` as a step, or raise an error with its location."""
    step: object = step_of(cast("StepLike", value))
    if isinstance(step, Declared | Pipeline):
        return step
    raise DeclarationError(
        f'{where} must be a step or a pipeline, not {value!r}; an agent becomes one as Step("…", agent)'
    )


def step_of(value: StepLike) -> AnyStep:
    """Return the step that calls a function; any other value unchanged."""
    if isinstance(value, Declared | Pipeline | type) or not callable(value):
        return cast("AnyStep", value)
    return _dsl.Step.from_callable(value)


def _as_steps(steps: StepLike | Iterable[StepLike]) -> tuple[AnyStep, ...]:
    if isinstance(steps, Declared | Pipeline) or callable(steps):
        return (as_step(steps, where="step number 1 of a pipeline"),)
    if not isinstance(steps, Iterable):
        raise DeclarationError(f"a pipeline is made of steps, not {steps!r}")
    return tuple(as_step(step, where=f"step number {n} of a pipeline") for n, step in enumerate(steps, 1))


_LONGEST_TITLE = 200


@suggests_options
@attrs.frozen(eq=False)
class Pipeline(Chained[In, Out]):
    """Sequence of steps; a pipeline can be used wherever a step can.

    Args:
        steps: steps, functions or pipelines.
        name: name; a named pipeline stays a step of its own where it is chained.
        on_failure: handlers of a failed step in it.
        compensate: function that undoes the whole pipeline.
        usage_limits: limits of its runs.
        initial_context_data: fields of its runs' context.
        labels: labels of its runs.
        schedules: schedules that its workers create.

    Raises:
        DeclarationError: it is empty, or two steps have the same name.

    Example:
        ```python
        letters = Pipeline([Step("draft", str.title), Step("sign", lambda text: f"{text}!")], name="letters")
        assert Flujo(letters).run("dear ada").output == "Dear Ada!"
        ```
    """

    steps: tuple[AnyStep, ...] = attrs.field(converter=_as_steps)
    name: str | None = None
    on_failure: tuple[AnyStep, ...] = attrs.field(default=(), converter=as_handlers)
    """Handlers called after the pipeline has failed and was compensated."""
    compensate: Compensate | None = attrs.field(default=None, converter=as_one_compensation)
    """Compensation of the completed pipeline, instead of its steps' own."""

    road: ClassVar[str] = "pipeline"
    """Road by which the runtime performs it."""
    usage_limits: UsageLimits | None = attrs.field(default=None, kw_only=True)
    """Limits of a run, unless its `Flujo` has its own."""
    initial_context_data: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    """Initial context of a run; its `Flujo` may extend it."""
    labels: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)
    """Labels of its runs, below those of its `Flujo` and of a run."""
    schedules: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict, kw_only=True)
    """Options of `Flujo.schedule` by name, which the command `worker` applies."""

    def __attrs_post_init__(self) -> None:
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise DeclarationError(f"a pipeline's name must be a non-empty text or None, not {self.name!r}")
        if not isinstance(self.schedules, Mapping):
            raise DeclarationError(f"schedules must be a mapping of names to options, not {self.schedules!r:.100}")
        if not self.steps:
            raise DeclarationError("a pipeline needs at least one step")
        if self.usage_limits is not None and not isinstance(self.usage_limits, UsageLimits):
            raise DeclarationError(f"a pipeline's usage_limits must be UsageLimits(…), not {self.usage_limits!r:.100}")
        if self.initial_context_data is not None and not isinstance(self.initial_context_data, Mapping):
            raise DeclarationError(f"initial_context_data must be a dict, not {self.initial_context_data!r:.100}")
        checked_labels(self.labels)
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
        """Return a pipeline of one step or function; pipelines unchanged.

        Args:
            step: first step.
        """
        return step if isinstance(step, Pipeline) else Pipeline((step,))

    def step_names(self) -> Iterator[str]:
        """Yield each step's name; unnamed pipelines are named by position."""
        for place, step in enumerate(self.steps, start=1):
            yield step.name or f"pipeline {place}"

    kind: ClassVar[str] = "pipeline"

    def children(self) -> Iterator[tuple[Segment, AnyStep]]:
        """Yield the steps with path segments, then handlers and compensation."""
        yield from ((Named(name), step) for step, name in self.named_steps)
        if self.on_failure or self.compensate is not None:
            yield from _dsl.attached_steps(self)

    @functools.cached_property
    def title(self) -> str:
        """Return the display name: its own, or its steps'."""
        title = self.name or " >> ".join(self.step_names())
        return title if len(title) <= _LONGEST_TITLE else title[: _LONGEST_TITLE - 1] + "…"

    @functools.cached_property
    def scope_keywords(self) -> frozenset[str]:
        """Return the scope keywords that nested functions use; only these are kept."""
        inside = (step.scope_keywords for step in _dsl.walk_steps(self) if isinstance(step, Declared))
        return frozenset().union(*inside)

    @functools.cached_property
    def coalesced_steps(self) -> frozenset[StepPath]:
        """Return the steps whose commit can be coalesced with their parent's."""
        return _dsl.coalesced_steps(self)

    @functools.cached_property
    def named_steps(self) -> tuple[tuple[AnyStep, str], ...]:
        """Return each step with its name in this pipeline."""
        return tuple(zip(self.steps, self.step_names(), strict=True))

    @property
    def dissolves(self) -> bool:
        """Return whether the pipeline has no name, handlers or compensation."""
        alone = self.name is None and self.usage_limits is None and self.initial_context_data is None
        plain = not self.labels and not self.schedules
        return alone and plain and not self.on_failure and self.compensate is None

    def __repr__(self) -> str:
        names = list(self.step_names())
        shown = names if len(names) <= 6 else [*names[:3], "…", *names[-2:]]
        label = "" if self.name is None else f"{self.name!r}: "
        return f"Pipeline({label}{' >> '.join(shown)})"


AnyStep: TypeAlias = Declared | Pipeline
"""Step or pipeline."""

StepLike: TypeAlias = AnyStep | Callable[..., object]
"""Step, pipeline or function; a function becomes a step of its name."""


def chain(first: object, following: object) -> Pipeline:
    """Return `first >> following`.

    Plain pipelines dissolve into the sequence; one with a name, handlers or a compensation stays a step.
    """
    return Pipeline((*_links(first, "left"), *_links(following, "right")))


def _links(step: object, side: str) -> tuple[AnyStep, ...]:
    if isinstance(step, Pipeline) and step.dissolves:
        return step.steps
    return (as_step(step, where=f"the {side}-hand side of >>"),)
