"""Composite steps, and the step that waits for a person.

A kind yields its children with their paths (`_inside`), and the options that must stay unchanged while a run waits
(`deciding`, `resume_options`). Code that walks, finds or compares steps uses these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, cast, get_args

import attrs

from .. import _dsl
from .._core import policies
from .._core.reducers import Reducer, is_reducer
from .._core.step_paths import DEFAULT, EACH, Named, Segment
from .._core.type_parameters import In, Out
from ..errors import DeclarationError
from .call_plan import check_takes_pair
from .declared_step import Declared, checked_limit, checked_source, frozen_mapping
from .pipeline import AnyStep, Pipeline, StepLike, as_step, step_of

if TYPE_CHECKING:
    from .._core.policies.loop_detection import LoopGuard
    from .._core.validators import AttrsField, Owner, V

MergeStrategy: TypeAlias = Literal["context_update", "overwrite", "keep_first", "error_on_conflict", "no_merge"]
"""Merge strategy for the context copies of parallel branches:

- `context_update`: changes are merged; a key that two branches changed is a conflict, which is an error, unless its
  field has a reducer; branches may fill different keys of one dict
- `overwrite`: of two changes of one key the later branch's, in declaration order, wins
- `keep_first`: of two changes of one key the earlier branch's wins
- `error_on_conflict`: as `context_update`, but two branches may not fill one dict together either
- `no_merge`: changes are dropped
"""

Merging: TypeAlias = MergeStrategy | Mapping[str, Reducer]
"""Merge strategy, or reducers for some keys; other keys use `context_update`."""

OnBranchFailure: TypeAlias = Literal["propagate", "ignore"]


def _as_merging(value: Merging) -> Merging:
    return frozen_mapping(value) if isinstance(value, Mapping) else value


def _checked_merge(instance: Owner, _: object, value: Merging) -> None:
    if isinstance(value, Mapping):
        wrong = next(((key, each) for key, each in value.items() if not is_reducer(each)), None)
        if wrong is not None:
            raise DeclarationError(
                f"step {instance.name!r}: merge[{wrong[0]!r}] must be Add, Append, Merge or a function "
                f"(base, one, other), not {wrong[1]!r}"
            )
    elif value not in get_args(MergeStrategy):
        raise DeclarationError(
            f"step {instance.name!r}: merge must be one of {get_args(MergeStrategy)}, or a dict of reducers by "
            f"context key, not {value!r}"
        )


def _checked_on_failure(instance: Owner, _: object, value: str) -> None:
    if value not in get_args(OnBranchFailure):
        allowed = get_args(OnBranchFailure)
        raise DeclarationError(f"step {instance.name!r}: on_branch_failure must be one of {allowed}, not {value!r}")


def _checked_callable(instance: Owner, attribute: AttrsField, value: V) -> None:
    if not callable(value):
        raise DeclarationError(f"step {instance.name!r}: {attribute.name} must be a callable, not {value!r}")
    first = "output" if attribute.name == "until" else "data"
    check_takes_pair(value, subject=f"step {instance.name!r}: {attribute.name}", first=first)


def _as_branches(value: Mapping[Any, StepLike]) -> Mapping[object, AnyStep]:
    return frozen_mapping({key: step_of(step) for key, step in value.items()} if isinstance(value, Mapping) else value)


def _checked_branches(instance: Owner, _: object, value: Mapping[object, object]) -> None:
    if not isinstance(value, Mapping) or not value:
        raise DeclarationError(
            f"step {instance.name!r}: branches must be a dict of at least one step or pipeline by key, not {value!r}"
        )
    for key, step in value.items():
        as_step(step, where=f"branch {key!r} of step {instance.name!r}")


def _branch_names_differ(step: Parallel | BranchOn) -> None:
    names: dict[str, object] = {}
    for key in step.branches:
        if str(key) in names:
            raise DeclarationError(f"step {step.name!r}: branches {names[str(key)]!r} and {key!r} look the same")
        names[str(key)] = key


def _checked_body(instance: Owner, _: object, value: AnyStep) -> None:
    as_step(value, where=f"the body of step {instance.name!r}")


def _checked_items(instance: Owner, attribute: AttrsField, value: V) -> None:
    if value is None or (callable(value) and not isinstance(value, type)):
        checked_source(instance, attribute, value)
        return
    if isinstance(value, str | bytes | Iterator) or not isinstance(value, Iterable):
        raise DeclarationError(
            f"step {instance.name!r}: items must be a collection that every run can read, "
            f"or a callable that gives one, not {value!r}"
        )


def _checked_batch(instance: Owner, attribute: AttrsField, value: int | None) -> None:
    if value is None:
        raise DeclarationError(f"step {instance.name!r}: batch must be at least 1, not None")
    checked_limit(instance, attribute, value)


def _refuse_compensations(loop: LoopUntil) -> None:
    """Refuse compensations in a loop that deletes its old turns."""
    step = next((each for each in _dsl.walk_steps(loop.body) if each.compensate is not None), None)
    if step is not None:
        raise DeclarationError(
            f"step {loop.name!r}: keep_history deletes the records of old turns, but step {step.name!r} has a "
            "compensation, which needs them: remove one of the two"
        )


def refuse_compacted_loops(step: Declared) -> None:
    """Refuse a loop with `keep_history` that is not executed alone."""
    pending: list[AnyStep] = [step] if step.runs_on is not None else [child for _, child in step._inside()]
    while pending:
        found = pending.pop()
        if isinstance(found, LoopUntil) and found.keep_history is not None:
            raise DeclarationError(
                f"step {step.name!r}: loop {found.name!r} has keep_history, so it cannot be inside a parallel, map or "
                "remote step"
            )
        if found is step or not _is_checked(found):
            pending.extend(child for _, child in found.children())


def _is_checked(step: AnyStep) -> bool:
    return isinstance(step, Declared) and (isinstance(step, Parallel | MapOver) or step.runs_on is not None)


def _checked_guard(instance: Owner, _: object, value: Any) -> None:
    if value is not None and not isinstance(value, policies.LoopGuard):
        raise DeclarationError(f"step {instance.name!r}: guard must be a LoopGuard(…) or None, not {value!r}")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Parallel(Declared[In, Out]):
    """Run all branches at once on one input; return a dict."""

    branches: Mapping[object, AnyStep] = attrs.field(kw_only=False, converter=_as_branches, validator=_checked_branches)
    merge: Merging = attrs.field(default="context_update", converter=_as_merging, validator=_checked_merge)
    on_branch_failure: OnBranchFailure = attrs.field(default="propagate", validator=_checked_on_failure)
    max_concurrency: int | None = attrs.field(default=None, validator=checked_limit)

    kind: ClassVar[str] = "parallel"

    def _inside(self) -> Iterator[tuple[Segment, AnyStep]]:
        return ((Named(str(key)), branch) for key, branch in self.branches.items())

    def resume_options(self) -> Iterator[tuple[str, object]]:
        """Yield the merge of the branches' contexts."""
        yield "merge", self.merge

    def _check(self) -> None:
        _branch_names_differ(self)
        refuse_compacted_loops(self)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MapOver(Declared[In, Out]):
    """Run the body once per item; return a list in order."""

    body: AnyStep = attrs.field(kw_only=False, converter=step_of, validator=_checked_body)
    items: Any = attrs.field(default=None, validator=_checked_items)
    """Items, or `(previous, context) -> items`; by default the incoming data."""
    merge: Merging = attrs.field(default="context_update", converter=_as_merging, validator=_checked_merge)
    max_concurrency: int | None = attrs.field(default=None, validator=checked_limit)
    batch: int = attrs.field(default=1, validator=_checked_batch)
    """Number of items per remote call; each has its record."""

    kind: ClassVar[str] = "map"

    def _inside(self) -> Iterator[tuple[Segment, AnyStep]]:
        yield EACH, self.body

    def deciding(self) -> Iterator[tuple[str, object]]:
        """Yield the options of every step, and the items."""
        yield from Declared.deciding(self)
        yield "items", self.items

    def _check(self) -> None:
        refuse_compacted_loops(self)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BranchOn(Declared[In, Out]):
    """One branch, chosen by `select(data, context)`."""

    select: Callable[..., object] = attrs.field(kw_only=False, validator=_checked_callable)
    branches: Mapping[object, AnyStep] = attrs.field(kw_only=False, converter=_as_branches, validator=_checked_branches)
    default: AnyStep | None = attrs.field(default=None, converter=attrs.converters.optional(step_of))

    kind: ClassVar[str] = "branch"

    def _inside(self) -> Iterator[tuple[Segment, AnyStep]]:
        yield from ((Named(str(key)), branch) for key, branch in self.branches.items())
        if self.default is not None:
            yield DEFAULT, self.default

    def deciding(self) -> Iterator[tuple[str, object]]:
        """Yield the options of every step, and the selector."""
        yield from Declared.deciding(self)
        yield "select", self.select

    def _check(self) -> None:
        _branch_names_differ(self)
        if self.default is not None:
            as_step(self.default, where=f"the default of {self.name!r}")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LoopUntil(Declared[In, Out]):
    """The body on its own last output until `until(output, context)` is true."""

    body: AnyStep = attrs.field(kw_only=False, converter=step_of, validator=_checked_body)
    until: Callable[..., Any] = attrs.field(kw_only=False, validator=_checked_callable)
    max_loops: int | None = attrs.field(default=5, validator=checked_limit)
    """Maximum number of turns; `None`, only with `keep_history`, for no limit."""
    keep_history: int | None = attrs.field(default=None, validator=checked_limit)
    """Number of turns whose results and records are kept; `None` for all."""
    guard: LoopGuard | None = attrs.field(default=None, validator=_checked_guard)
    """Loop guard: reaction to a detected cycle."""

    kind: ClassVar[str] = "loop"

    def _inside(self) -> Iterator[tuple[Segment, AnyStep]]:
        yield EACH, self.body

    def deciding(self) -> Iterator[tuple[str, object]]:
        """Yield the options of every step, and the condition."""
        yield from Declared.deciding(self)
        yield "until", self.until

    def resume_options(self) -> Iterator[tuple[str, object]]:
        """Return the number of turns there are at most."""
        yield "max_loops", self.max_loops

    def _check(self) -> None:
        if self.keep_history is not None:
            _refuse_compensations(self)
        elif self.max_loops is None:
            raise DeclarationError(
                f"step {self.name!r}: max_loops must be at least 1, not None: a loop without an end needs "
                "keep_history=…, the number of turns to keep"
            )


def _as_pipeline(value: StepLike) -> Pipeline:
    is_step = isinstance(value, Declared) or (callable(value) and not isinstance(value, type))
    return Pipeline((value,)) if is_step else cast("Pipeline", value)


def _checked_steps(instance: Owner, _: object, value: object) -> None:
    if not isinstance(value, Pipeline):
        as_step(value, where=f"the body of step {instance.name!r}")  # which refuses it and names its location
    elif value.on_failure or value.compensate is not None:
        raise DeclarationError(
            f"step {instance.name!r}: give `on_failure` and `compensate` to the step itself, not to the pipeline in it"
        )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SequenceOf(Declared[In, Out]):
    """Sequence of steps as one step with its own options."""

    body: Pipeline = attrs.field(kw_only=False, converter=_as_pipeline, validator=_checked_steps)

    kind: ClassVar[str] = "sequence"

    def _inside(self) -> Iterator[tuple[Segment, AnyStep]]:
        return ((Named(name), step) for step, name in self.body.named_steps)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HumanInTheLoop(Declared[In, Out]):
    """Pause the run until a person answers; output the answer."""

    message: str | Callable[..., str] = attrs.field(kw_only=False)
    """Prompt: a text, or a callable `(data, context) -> text`."""
    input_schema: object = None
    """Schema of the answer: type, model class, dataclass or JSON Schema."""

    kind: ClassVar[str] = "question"

    def deciding(self) -> Iterator[tuple[str, object]]:
        """Yield the options of every step, and the prompt."""
        yield from Declared.deciding(self)
        yield "message", self.message

    def _check(self) -> None:
        if not isinstance(self.message, str) and not callable(self.message):
            raise DeclarationError(f"step {self.name!r}: message must be a text or a callable")
        if callable(self.message):
            check_takes_pair(self.message, subject=f"step {self.name!r}: message", first="data")
        if self.input_schema is not None:
            try:
                _dsl.reader_of(self.input_schema)
            except DeclarationError as error:
                raise DeclarationError(f"step {self.name!r}: input_schema: {error}") from error.__cause__
