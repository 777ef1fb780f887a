"""What every kind of step has in common: a name, and how it is supervised."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import attrs

from .._core.backoff import Backoff
from .._core.near_names import nearest
from .._core.paths import FALLBACK, REVIEW, Segment
from .._core.seconds import checked_seconds
from .._core.type_parameters import In, Out
from .._core.usage import UsageLimits
from ..errors import DeclarationError, UnknownOption
from .call_plan import CallPlan, asked_of_scope, asks_for_budget, check_takes_pair, plan_callable
from .chaining import Chained

if TYPE_CHECKING:
    from .._core.fields import Field, Owner, V
    from .compensation import Compensate
    from .pipeline import AnyStep, StepLike

NOTHING_ASKED: frozenset[str] = frozenset()
EMPTY: Mapping[str, object] = MappingProxyType({})


def checked_name(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    """Steps are told apart by name, in results, logs and stored runs."""
    if not isinstance(value, str) or not value:
        raise DeclarationError(f"a step's name must be a non-empty text, not {value!r}")


def checked_count(instance: Owner, attribute: attrs.Attribute[int], value: int) -> None:
    """A whole number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DeclarationError(f"step {instance.name!r}: {attribute.name} must be 0 or more, not {value!r}")


def checked_limit(instance: Owner, attribute: Field, value: int | None) -> None:
    """A whole number of at least one, or no limit."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise DeclarationError(f"step {instance.name!r}: {attribute.name} must be at least 1, not {value!r}")


def _checked_seconds(instance: Owner, attribute: attrs.Attribute[float | None], value: float | None) -> None:
    if value is not None:
        checked_seconds(value, what=f"step {instance.name!r}: {attribute.name}")


def _checked_runs_on(instance: Owner, _: object, value: str | None) -> None:
    """Engines keep the names of queues in columns and channels."""
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= 100 and value.isprintable()):
        raise DeclarationError(
            f"step {instance.name!r}: runs_on must be the name of a queue, 1 to 100 printable characters, "
            f"not {value!r:.120}"
        )


def checked_source(instance: Owner, attribute: Field, value: V) -> None:
    """A value, or a function `(previous, context)` that makes one; a class is a value."""
    if callable(value) and not isinstance(value, type):
        check_takes_pair(value, what=f"step {instance.name!r}: {attribute.name}", first="previous")


def _as_callables(value: Callable[..., object] | Iterable[Callable[..., object]]) -> tuple[Callable[..., object], ...]:
    if callable(value) or not isinstance(value, Iterable):
        return (value,)
    return tuple(value)


def _checked_callables(instance: object, attribute: Field, value: tuple[object, ...]) -> None:
    for each in value:
        if not callable(each):
            who = f"step {instance.name!r}" if hasattr(instance, "name") else type(instance).__name__
            raise DeclarationError(f"{who}: {attribute.name} holds {each!r}, not a callable")


def of_type(expected: type, wanted: str) -> Callable[[Owner, attrs.Attribute[V], V], None]:
    """A validator: the value, if there is one, is of this type."""

    def check(instance: Owner, attribute: attrs.Attribute[V], value: V) -> None:
        if value is not attribute.default and not isinstance(value, expected):
            raise DeclarationError(f"step {instance.name!r}: {attribute.name} must be {wanted}, not {value!r}")

    return check


def _as_fallback(value: StepLike | None) -> AnyStep | None:
    from .pipeline import step_of  # see `Chained`

    return None if value is None else step_of(value)


def _checked_fallback(instance: Owner, _: object, value: V) -> None:
    from .pipeline import as_step  # see `Chained`

    if value is not None:
        as_step(value, where=f"the fallback of step {instance.name!r}")


def as_handlers(value: StepLike | Iterable[StepLike] | None) -> tuple[AnyStep, ...]:
    """The handlers that were declared; none of them costs nothing."""
    if value is None or (isinstance(value, tuple) and not value):
        return ()
    from . import compensation  # what only steps with handlers or compensations need

    return compensation.as_handlers(value)


def as_compensation(
    value: StepLike | Compensate | Mapping[str, StepLike | Compensate] | None,
) -> Compensate | Mapping[str, Compensate] | None:
    """The compensation that was declared, if there is one."""
    if value is None:
        return None
    from . import compensation  # see above

    return compensation.as_compensate(value)


def _as_review(value: object) -> AnyStep | None:
    if value is None:
        return None
    from .sureness import as_review  # what only steps with a review need

    return as_review(value)


def as_one_compensation(value: StepLike | Compensate | None) -> Compensate | None:
    """The compensation of what has no tools, if there is one."""
    found = as_compensation(value)
    if isinstance(found, Mapping):
        raise DeclarationError("a pipeline has no tools: its `compensate` is a function, a step or a pipeline")
    return found


_options: dict[type, frozenset[str]] = {}


def options_of(kind: type[Declared]) -> frozenset[str]:
    """What can be said of a step of this kind by keyword."""
    if kind not in _options:
        _options[kind] = frozenset(field.name for field in attrs.fields(kind) if field.init)
    return _options[kind]


def refuse_unknown(name: object, options: Mapping[str, object], known: frozenset[str]) -> None:
    """Refuse an option that no such step has, with the one that was probably meant."""
    if options.keys() <= known:
        return
    wrong = next(option for option in options if option not in known)
    near = nearest(wrong, sorted(known), cutoff=0.5)
    hint = f"did you mean {near!r}?" if near else f"it has {', '.join(sorted(known))}"
    raise UnknownOption(f"step {name!r} has no option {wrong!r}: {hint}")


def planned(functions: Iterable[Callable[..., object]], what: str) -> tuple[CallPlan, ...]:
    """How to call each of a step's own functions, which are functions of a value."""
    plans = tuple(plan_callable(fn, step_name=what) for fn in functions)
    if not all(plan.takes_data for plan in plans):
        raise DeclarationError(f"{what}: it is called with the value it is about, but takes no argument")
    return plans


@attrs.frozen(kw_only=True)
class Processors:
    """Functions on the data before the agent sees it, and on the output before validators do."""

    before: tuple[Callable[..., Any], ...] = attrs.field(
        default=(), converter=_as_callables, validator=_checked_callables
    )
    after: tuple[Callable[..., Any], ...] = attrs.field(
        default=(), converter=_as_callables, validator=_checked_callables
    )
    before_plans: tuple[CallPlan, ...] = attrs.field(init=False)
    after_plans: tuple[CallPlan, ...] = attrs.field(init=False)

    @before_plans.default
    def _plan_before(self) -> tuple[CallPlan, ...]:
        return planned(self.before, "a processor")

    @after_plans.default
    def _plan_after(self) -> tuple[CallPlan, ...]:
        return planned(self.after, "a processor")


NO_PROCESSORS = Processors()


# Converters do not know whose value they convert: what they cannot convert they leave to the validators, which do.


def _as_processors(value: Processors | Mapping[str, Any]) -> Processors:
    if isinstance(value, Mapping) and set(value) <= {"before", "after"}:
        return Processors(**value)
    return typing.cast("Processors", value)


def frozen_mapping(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """A copy of a dict that nobody can change; anything else stays what it is."""
    return MappingProxyType(dict(value)) if isinstance(value, Mapping) else value


# Declarations compare by identity: two steps that look alike are still two steps, and a deep pipeline must
# not be walked to compare it.
@attrs.frozen(kw_only=True, eq=False)
class Declared(Chained[In, Out]):
    """A supervised step of any kind."""

    name: str = attrs.field(kw_only=False, validator=checked_name)
    input: Any = attrs.field(default=None, validator=checked_source)
    """Replaces what the previous step handed over: a value, or a callable `(previous, context) -> value`."""
    max_retries: int = attrs.field(default=0, validator=checked_count)
    backoff: Backoff = attrs.field(factory=Backoff, validator=of_type(Backoff, "a Backoff(…)"))
    timeout_s: float | None = attrs.field(default=None, validator=_checked_seconds)
    """The time one attempt may take."""
    fallback: AnyStep | None = attrs.field(default=None, converter=_as_fallback, validator=_checked_fallback)
    validators: tuple[Callable[..., Any], ...] = attrs.field(
        default=(), converter=_as_callables, validator=_checked_callables
    )
    processors: Processors = attrs.field(
        default=NO_PROCESSORS,
        converter=_as_processors,
        validator=of_type(Processors, 'Processors(…) or {"before": …, "after": …}'),
    )
    updates_context: bool = attrs.field(default=False, validator=of_type(bool, "True or False"))
    usage_limits: UsageLimits | None = attrs.field(
        default=None, validator=of_type(UsageLimits, "UsageLimits(…) or None")
    )
    meta: Mapping[str, Any] = attrs.field(default=EMPTY, converter=frozen_mapping, validator=of_type(Mapping, "a dict"))
    on_failure: tuple[AnyStep, ...] = attrs.field(default=(), converter=as_handlers)
    """Who is told when the step has failed for good: functions, steps or pipelines, one after the other."""
    compensate: Compensate | Mapping[str, Compensate] | None = attrs.field(default=None, converter=as_compensation)
    """What undoes the step if something around it fails: a function, step or pipeline, or a `Compensate(…)`."""
    min_confidence: float | None = None
    """How sure an output must be, from 0 to 1."""
    confidence: Any = None
    """Where that is known from: a field of the output, a function or an agent on it, or `Votes(…)`."""
    on_low_confidence: AnyStep | None = attrs.field(default=None, converter=_as_review)
    """Who reviews an output that was not sure enough after all tries; what it returns is the step's output."""
    runs_on: str | None = attrs.field(default=None, validator=_checked_runs_on)
    """The queue whose workers perform the step, if the `Flujo` has an engine; of a map, its items."""
    checks: tuple[CallPlan, ...] = attrs.field(init=False)
    """The validators, each with how to call it."""

    def __new__(cls, *arguments: object, **options: object) -> Self:
        refuse_unknown(arguments[0] if arguments else options.get("name"), options, options_of(cls))
        return object.__new__(cls)

    @checks.default
    def _plan_checks(self) -> tuple[CallPlan, ...]:
        return planned(self.validators, f"{self.name} (validator)")

    @property
    def remembers(self) -> bool:
        """Whether what is said and heard is kept in the context."""
        return False

    @functools.cached_property
    def bare(self) -> bool:
        """Whether there is nothing to do before and after the work itself."""
        around = self.checks or self.updates_context or self.processors is not NO_PROCESSORS
        return not (around or self.remembers or self.weighs)

    @property
    def weighs(self) -> bool:
        """Whether it is asked how sure an output is."""
        return self.min_confidence is not None or self.confidence is not None

    @functools.cached_property
    def may_read_again(self) -> bool:
        """Whether somebody may read the data after an attempt: another one, the fallback, whoever handles or undoes."""
        again = self.max_retries or self.checks or self.fallback is not None
        return bool(again or self.on_failure or self.compensate is not None)

    kind: ClassVar[str] = "step"
    """What this kind of step is called in stored fingerprints; every kind has its own."""

    def children(self) -> Iterator[tuple[Segment, AnyStep]]:
        """The steps directly inside this one, each with its segment of the path; those beside it last."""
        yield from self._inside()
        if self.fallback is not None:
            yield FALLBACK, self.fallback
        if self.on_low_confidence is not None:
            yield REVIEW, self.on_low_confidence
        if self.on_failure or self.compensate is not None:
            from .compensation import beside  # what only such steps need

            yield from beside(self)

    @functools.cached_property
    def asks_for_budget(self) -> frozenset[str]:
        """Which of the functions that decide something want to know the budget."""
        return frozenset(name for name, each in self.deciding() if asks_for_budget(each))

    @property
    def contains_steps(self) -> bool:
        """Whether the step is made of others, and does nothing by itself."""
        return any(True for _ in self._inside())

    def _inside(self) -> Iterable[tuple[Segment, AnyStep]]:
        """What `children` of one kind of step are, apart from those that every kind has."""
        return ()

    def deciding(self) -> Iterator[tuple[str, Any]]:
        """What decides between steps, what they work on, and what a person is asked, by the name of the option."""
        yield "input", self.input

    def asking(self) -> Iterator[Any]:
        """The values that may be functions of data and context, and may ask for what is in scope."""
        yield from (value for _, value in self.deciding())

    @functools.cached_property
    def asks_of_scope(self) -> frozenset[str]:
        """Which of `steps`, `item` and `run_input` the step's own functions ask for."""
        functions = [each for each in self.asking() if callable(each) and not isinstance(each, type)]
        return frozenset().union(*map(asked_of_scope, functions)) if functions else NOTHING_ASKED

    def lasting(self) -> Iterator[tuple[str, Any]]:
        """What else must stay the same for a run to go on, by the name of the option."""
        return iter(())

    @property
    def surrounding_plans(self) -> tuple[CallPlan, ...]:
        """How to call the user's code around the work itself."""
        return (*self.checks, *self.processors.before_plans, *self.processors.after_plans)

    @functools.cached_property
    def shows_context(self) -> bool:
        """Whether user code of this step sees the context, so that an attempt needs a copy."""
        return any(plan.sees_context for plan in self.surrounding_plans)

    def __attrs_post_init__(self) -> None:
        _refuse_circular_fallback(self)
        if self.weighs or self.on_low_confidence is not None:
            from .sureness import check_sureness  # see `_as_review`

            check_sureness(self)
        if isinstance(self.compensate, Mapping):
            from .compensation import check_tools  # see `as_compensation`

            check_tools(self)
        self._check()

    def _check(self) -> None:
        """What one kind of step must have; raises `DeclarationError`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _refuse_circular_fallback(step: Declared) -> None:
    names = [step.name]
    seen = {_identity(step)}
    standby = step.fallback
    while isinstance(standby, Declared):
        names.append(standby.name)
        if _identity(standby) in seen:
            raise DeclarationError(f"fallbacks go in a circle: {' -> '.join(map(repr, names))}")
        seen.add(_identity(standby))
        standby = standby.fallback


def _identity(step: Declared) -> tuple[str, object]:
    agent = getattr(step, "agent", None)
    return step.name, id(step) if agent is None else id(agent)
