"""Options and supervision common to every kind of step.

Sections:

- `>>`: composition of steps and pipelines, with their types.
- Constructors of approvals, selections and waits, mixed into `Step`.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import attrs

from .. import _dsl
from .._core.retry_decisions import Backoff
from .._core.step_paths import FALLBACK, REVIEW, Segment
from .._core.type_parameters import Generic, In, Out
from .._core.usage import UsageLimits
from .._core.validators import brief_repr, checked_seconds, is_count, nearest, suggests_options
from ..errors import DeclarationError, RefusedOutput, StructuredOutputError, UnknownOption
from .call_plan import CallPlan, asks_for_budget, check_takes_pair, plan_callable, scope_keywords_of

if TYPE_CHECKING:
    from .._core.policies.approval_policy import Option
    from .._core.retry_decisions import RetryRule
    from .._core.validators import AttrsField, Owner, V
    from .compensation_options import Compensate
    from .output_options import Cache
    from .pipeline import AnyStep, Pipeline, StepLike
    from .selection_step import Reward, SelectAgent
    from .typed_parts import Answers, I, Returns, Streams, T, TypedStep
    from .wait_steps import Approval, Instant, OnTimeout, OnWaitTimeout, Sleep, WaitFor


# --- `>>`: composition of steps and pipelines ---------------------------------------------------------------------


class Chained(Generic[In, Out]):
    """Element of a sequence; its successor must accept its output."""

    __slots__ = ()

    @overload
    def __rshift__(self, following: TypedStep[Out, T]) -> Pipeline[In, T]: ...
    @overload
    def __rshift__(self, following: Streams[Out, str]) -> Pipeline[In, str]: ...  # type: ignore[overload-overlap]
    @overload
    def __rshift__(self, following: Streams[Out, bytes]) -> Pipeline[In, bytes]: ...  # type: ignore[overload-overlap]
    @overload
    def __rshift__(self, following: Streams[Out, T]) -> Pipeline[In, list[T]]: ...
    @overload
    def __rshift__(self, following: Answers[Out, T]) -> Pipeline[In, T]: ...
    @overload
    def __rshift__(self, following: Returns[Out, T]) -> Pipeline[In, T]: ...
    def __rshift__(self, following: StepLike) -> Pipeline[In, Any]:
        return _dsl.chain(self, following)

    @overload
    def __rrshift__(self, preceding: Streams[I, Any]) -> Pipeline[I, Out]: ...
    @overload
    def __rrshift__(self, preceding: Answers[I, In]) -> Pipeline[I, Out]: ...
    @overload
    def __rrshift__(self, preceding: Returns[I, In]) -> Pipeline[I, Out]: ...
    def __rrshift__(self, preceding: StepLike) -> Pipeline[Any, Out]:
        return _dsl.chain(preceding, self)


# --- Options and supervision common to every kind of step ---------------------------------------------------------


NOTHING_REQUESTED: frozenset[str] = frozenset()
EMPTY: Mapping[str, object] = MappingProxyType({})


def checked_name(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    """Refuse an invalid name, which identifies a step everywhere."""
    if not isinstance(value, str) or not value:
        raise DeclarationError(f"a step's name must be a non-empty text, not {brief_repr(value)}")


def checked_count(instance: Owner, attribute: attrs.Attribute[int], value: int) -> None:
    """A whole number that is not negative."""
    if not is_count(value, at_least=0):
        raise DeclarationError(f"step {instance.name!r}: {attribute.name} must be 0 or more, not {brief_repr(value)}")


def checked_limit(instance: Owner, attribute: AttrsField, value: int | None) -> None:
    """A whole number of at least one, or no limit."""
    if value is not None and not is_count(value):
        raise DeclarationError(f"step {instance.name!r}: {attribute.name} must be at least 1, not {brief_repr(value)}")


def _checked_seconds(instance: Owner, attribute: attrs.Attribute[float | None], value: float | None) -> None:
    if value is not None:
        checked_seconds(value, subject=f"step {instance.name!r}: {attribute.name}")


def _checked_runs_on(instance: Owner, _: object, value: str | None) -> None:
    """Engines keep the names of queues in columns and channels."""
    if value is None:
        return
    if not (isinstance(value, str) and 0 < len(value) <= 100 and value.isprintable()) or value != value.strip(" ,"):
        raise DeclarationError(
            f"step {instance.name!r}: runs_on must be the name of a queue, 1 to 100 printable characters, "
            f"not {value!r:.120}"
        )
    if "," in value:
        raise DeclarationError(
            f"step {instance.name!r}: runs_on names one queue, without commas, not {brief_repr(value)}"
        )


def checked_source(instance: Owner, attribute: AttrsField, value: V) -> None:
    """Refuse anything but a value or function `(previous, context)`."""
    if callable(value) and not isinstance(value, type):
        check_takes_pair(value, subject=f"step {instance.name!r}: {attribute.name}", first="previous")


def _as_callables(value: Callable[..., object] | Iterable[Callable[..., object]]) -> tuple[Callable[..., object], ...]:
    if callable(value) or not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        return (value,)  # type: ignore[return-value]  # left to the validator, which names the step
    return tuple(value)


def _checked_callables(instance: object, attribute: AttrsField, value: tuple[object, ...]) -> None:
    for each in value:
        if not callable(each):
            name = f"step {instance.name!r}" if hasattr(instance, "name") else type(instance).__name__
            raise DeclarationError(f"{name}: {attribute.name} holds {each!r}, not a callable")


def of_type(expected: type, wanted: str) -> Callable[[Owner, attrs.Attribute[V], V], None]:
    """Return a validator that requires this type, or `None`."""

    def check(instance: Owner, attribute: attrs.Attribute[V], value: V) -> None:
        if value is not attribute.default and not isinstance(value, expected):
            raise DeclarationError(
                f"step {instance.name!r}: {attribute.name} must be {wanted}, not {brief_repr(value)}"
            )

    return check


def _as_fallback(value: StepLike | None) -> AnyStep | None:
    return None if value is None else _dsl.step_of(value)


def _checked_fallback(instance: Owner, _: object, value: V) -> None:
    if value is not None:
        _dsl.as_step(value, where=f"the fallback of step {instance.name!r}")


def as_handlers(value: StepLike | Iterable[StepLike] | None) -> tuple[AnyStep, ...]:
    """Return the handlers that were declared; none of them costs nothing."""
    if value is None or (isinstance(value, tuple) and not value):
        return ()
    return _dsl.handlers_of(value)


def _as_rules(value: RetryRule | Iterable[RetryRule] | None) -> tuple[RetryRule, ...] | None:
    if value is None:
        return None
    if callable(value) or not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        return (value,)  # type: ignore[return-value]  # left to the validator, which names the step
    return tuple(value)


def _checked_rules(instance: Owner, attribute: AttrsField, value: tuple[RetryRule, ...] | None) -> None:
    for rule in value or ():
        known = issubclass(rule, BaseException) if isinstance(rule, type) else callable(rule) or _is_status(rule)
        if not known:
            raise DeclarationError(
                f"step {instance.name!r}: {attribute.name} holds {rule!r}; give exception classes, HTTP statuses "
                "from 100 to 599 or functions of an exception"
            )


def _is_status(rule: object) -> bool:
    return isinstance(rule, int) and not isinstance(rule, bool) and 100 <= rule <= 599


def as_compensation(
    value: StepLike | Compensate | Mapping[str, StepLike | Compensate] | None,
) -> Compensate | Mapping[str, Compensate] | None:
    """Return the declared compensation, or None."""
    if value is None:
        return None
    return _dsl.as_compensate(value)


def _as_review(value: object) -> AnyStep | None:
    if value is None:
        return None
    return _dsl.as_review(value)


def as_one_compensation(value: StepLike | Compensate | None) -> Compensate | None:
    """Return the compensation of a step without tools, or None."""
    found = as_compensation(value)
    if isinstance(found, Mapping):
        raise DeclarationError("a pipeline has no tools: its `compensate` is a function, a step or a pipeline")
    return found


_options: dict[type, frozenset[str]] = {}


def options_of(kind: type[Declared]) -> frozenset[str]:
    """Return the keyword options of this kind of step."""
    if kind not in _options:
        _options[kind] = frozenset(field.name for field in attrs.fields(kind) if field.init)
    return _options[kind]


def public_options(kind: type[Declared]) -> frozenset[str]:
    """Return the keyword options of this kind of step for its factory."""
    return options_of(kind) - _INTERNAL


_INTERNAL = frozenset({"deadline_s", "resumable"})
"""Fields that a factory such as `Step.approval` sets from its own arguments."""

_MEANT = {"retry": "max_retries", "deadline_s": "timeout_s"}
"""Options meant by a name that is closer to another one."""


def refuse_unknown(name: object, options: Mapping[str, object], known: frozenset[str]) -> None:
    """Refuse an unknown option, with the nearest known one."""
    if options.keys() <= known:
        return
    wrong = next(option for option in options if option not in known)
    shown = sorted(known - _INTERNAL)
    near = _MEANT.get(wrong) or nearest(wrong, shown, cutoff=0.5)
    hint = f"did you mean {near!r}?" if near else f"it has {', '.join(shown)}"
    raise UnknownOption(f"step {name!r} has no option {wrong!r}: {hint}")


def planned(functions: Iterable[Callable[..., object]], subject: str) -> tuple[CallPlan, ...]:
    """Return the call plans of a step's functions on one value."""
    plans = tuple(plan_callable(fn, step_name=subject) for fn in functions)
    if not all(plan.takes_data for plan in plans):
        raise DeclarationError(f"{subject}: it is called with the value it is about, but takes no argument")
    return plans


@suggests_options
@attrs.frozen(kw_only=True)
class Processors:
    """Functions on the data before the agent and on its output."""

    before: tuple[Callable[..., Any], ...] = attrs.field(
        default=(), converter=_as_callables, validator=_checked_callables
    )
    """Functions of the data, called in order."""
    after: tuple[Callable[..., Any], ...] = attrs.field(
        default=(), converter=_as_callables, validator=_checked_callables
    )
    """Functions of the output, called in order before validators."""
    before_plans: tuple[CallPlan, ...] = attrs.field(init=False)
    after_plans: tuple[CallPlan, ...] = attrs.field(init=False)

    @before_plans.default
    def _plan_before(self) -> tuple[CallPlan, ...]:
        return planned(self.before, "a processor")

    @after_plans.default
    def _plan_after(self) -> tuple[CallPlan, ...]:
        return planned(self.after, "a processor")


NO_PROCESSORS = Processors()


# Converters do not know the owner of their value: they leave inconvertible values to the validators, which do.


def _as_processors(value: Processors | Mapping[str, Any]) -> Processors:
    if isinstance(value, Mapping) and set(value) <= {"before", "after"}:
        return Processors(**value)
    return typing.cast("Processors", value)


def frozen_mapping(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return an immutable copy of a dict; any other value unchanged."""
    return MappingProxyType(dict(value)) if isinstance(value, Mapping) else value


# Declarations compare by identity: equal-looking steps are distinct, and comparing must not walk a deep pipeline.
@attrs.frozen(kw_only=True, eq=False)
class Declared(Chained[In, Out]):
    """A supervised step of any kind."""

    name: str = attrs.field(kw_only=False, validator=checked_name)
    input: Any = attrs.field(default=None, validator=checked_source)
    """Replacement of the incoming data: a value, or `(previous, context) -> value`."""
    max_retries: int = attrs.field(default=0, validator=checked_count)
    backoff: Backoff = attrs.field(factory=Backoff, validator=of_type(Backoff, "a Backoff(…)"))
    retry_on: tuple[RetryRule, ...] | None = attrs.field(default=None, converter=_as_rules, validator=_checked_rules)
    """Failures that are retried: classes, HTTP statuses or functions; `None` for all."""
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
    cache: Cache | None = None
    """Reuse of the output in later runs of a store."""
    meta: Mapping[str, Any] = attrs.field(default=EMPTY, converter=frozen_mapping, validator=of_type(Mapping, "a dict"))
    on_failure: tuple[AnyStep, ...] = attrs.field(default=(), converter=as_handlers)
    """Handlers called in order after the final failure: functions, steps or pipelines."""
    compensate: Compensate | Mapping[str, Compensate] | None = attrs.field(default=None, converter=as_compensation)
    """Compensation after an enclosing failure: function, step, pipeline or `Compensate(…)`."""
    min_confidence: float | None = None
    """Minimum confidence of an output, from 0 to 1."""
    confidence: Any = None
    """Source of confidence: output field, function, agent or `Votes(…)`."""
    on_low_confidence: AnyStep | None = attrs.field(default=None, converter=_as_review)
    """Review of a low-confidence output after all retries; replaces it."""
    runs_on: str | None = attrs.field(default=None, validator=_checked_runs_on)
    """Queue of the step's (or map items') workers, with an engine."""
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
        """Return whether the conversation is kept in the context."""
        return False

    @functools.cached_property
    def bare(self) -> bool:
        """Return whether there is no work before and after the call itself."""
        around = self.checks or self.updates_context or self.processors is not NO_PROCESSORS
        return not (around or self.remembers or self.weighs)

    @property
    def weighs(self) -> bool:
        """Return whether the confidence of an output is evaluated."""
        return self.min_confidence is not None or self.confidence is not None

    @functools.cached_property
    def may_read_again(self) -> bool:
        """Return whether the data may be read after an attempt.

        Readers are another attempt, the fallback, a handler or a compensation.
        """
        again = self.max_retries or self.checks or self.fallback is not None
        return bool(again or self.on_failure or self.compensate is not None)

    @property
    def road(self) -> str:
        """The entry of the runtime's road table that performs the step."""
        return "attempts"

    @property
    def retries_refusals(self) -> bool:
        """Return whether `retry_on` can match a refused answer."""
        kinds = RefusedOutput, StructuredOutputError
        rules = (object,) if self.retry_on is None else self.retry_on
        return any(
            any(issubclass(kind, rule) for kind in kinds) if isinstance(rule, type) else callable(rule)
            for rule in rules
        )

    kind: ClassVar[str] = "step"
    """Name of this kind of step in stored fingerprints; unique per kind."""

    def children(self) -> Iterator[tuple[Segment, AnyStep]]:
        """Yield the child steps with path segments, handlers and compensations last."""
        yield from self._inside()
        if self.fallback is not None:
            yield FALLBACK, self.fallback
        if self.on_low_confidence is not None:
            yield REVIEW, self.on_low_confidence
        if self.on_failure or self.compensate is not None:
            yield from _dsl.attached_steps(self)

    @functools.cached_property
    def budget_functions(self) -> frozenset[str]:
        """Return the functions that take the budget."""
        return frozenset(name for name, each in self.deciding() if asks_for_budget(each))

    @property
    def contains_steps(self) -> bool:
        """Return whether the step only executes other steps."""
        return any(True for _ in self._inside())

    def _inside(self) -> Iterable[tuple[Segment, AnyStep]]:
        """Return the children specific to one kind of step."""
        return ()

    def deciding(self) -> Iterator[tuple[str, Any]]:
        """Yield the options that control flow, inputs and prompts, by name."""
        yield "input", self.input

    def scoped_functions(self) -> Iterator[Any]:
        """Yield the values that may be functions with scope keywords."""
        yield from (value for _, value in self.deciding())

    @functools.cached_property
    def scope_keywords(self) -> frozenset[str]:
        """Return the scope keywords that the step's own functions take."""
        functions = [each for each in self.scoped_functions() if callable(each) and not isinstance(each, type)]
        return frozenset().union(*map(scope_keywords_of, functions)) if functions else NOTHING_REQUESTED

    def resume_options(self) -> Iterator[tuple[str, Any]]:
        """Yield the other options that a resume needs unchanged."""
        return iter(())

    @property
    def surrounding_plans(self) -> tuple[CallPlan, ...]:
        """Return the call plans of user code around the work itself."""
        return (*self.checks, *self.processors.before_plans, *self.processors.after_plans)

    @functools.cached_property
    def shows_context(self) -> bool:
        """Return whether user code sees the context, requiring a copy."""
        return any(plan.sees_context for plan in self.surrounding_plans)

    def __attrs_post_init__(self) -> None:
        _refuse_circular_fallback(self)
        if self.weighs or self.on_low_confidence is not None:
            _dsl.check_confidence(self)
        if isinstance(self.compensate, Mapping):
            _dsl.check_tools(self)
        if self.cache is not None:
            _dsl.check_cache(self)
        if self.runs_on is not None:
            _dsl.refuse_compacted_loops(self)
        self._check()

    def _check(self) -> None:
        """Raise `DeclarationError` for invalid options of one kind of step."""

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

        Args:
            name: name of the step.
            message: text of the question, or a function `(data, context)`.
            options: other options than `approve`, `reject` and `defer`, by name.
            to: addressee; `RunClient.questions(to=…)` lists by it.
            timeout_s: time for an answer, by the store's clock.
            on_timeout: `"fail"`, `"approve"`, `"reject"`, or a step such as the next approval.
            on_rejection: step after a rejection; without it the step fails with `Rejected`.
            max_deferrals: how often the question can be deferred.
            comment_required: whether a rejection needs a comment.
            metadata: JSON data that the question has.
            **config: options of steps.

        Raises:
            DeclarationError: an argument is not valid.

        Example:
            ```python
            flujo = Flujo(Step.approval("pay", "Pay 900 dollars?", to="finance"))
            paused = flujo.run(900)
            assert flujo.resume(paused.state_token, Decision("approve", by="ada")).output == 900
            ```
        """
        refuse_unknown(name, config, public_options(_dsl.Approval))
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

        A stored run that sleeps needs no process.

        Args:
            name: name of the step.
            seconds: length, or a function `(data, context)`.
            until: aware datetime or seconds since the epoch, or a function.
            **config: options of steps.

        Raises:
            DeclarationError: neither or both of `seconds` and `until` are given.

        Example:
            ```python
            reminder = Step.sleep("a week", 7 * 24 * 3600) >> Step("send", str.upper)
            assert run_on_mock_clock(Flujo(reminder), "hello").output == "HELLO"
            ```
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

        `RunClient.send(event, key=…)` sends it.

        Args:
            name: name of the step.
            event: name of the event.
            key: key of the event, or a function `(data, context)`; by default the run's id.
            schema: type of the data.
            timeout_s: longest wait.
            on_timeout: `"fail"`, `"none"`, or a step that gets the input of the wait.
            **config: options of steps.

        Raises:
            DeclarationError: an argument is not valid.

        Example:
            ```python
            flujo = Flujo(Step.wait_for("paid", "payment", schema=int), store="sqlite:///runs.db")
            assert flujo.run("order", run_id="order-7").status == "sleeping"
            RunClient("sqlite:///runs.db").send("payment", key="order-7", data=12)
            assert [result.output for result in flujo.recover()] == [12]
            ```
        """
        refuse_unknown(name, config, public_options(_dsl.WaitFor))
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
        """Return a step that selects an agent, by default by Thompson sampling.

        Args:
            name: name of the step.
            arms: agents, steps or pipelines by name.
            by: rule of selection: `ThompsonSampling(…)`, `ByBudget(…)` or an object with `choose`.
            category: function `(data, context)`; statistics are kept apart by its result.
            reward: function `(result, context)` from 0 to 1, or `"later"` for `RunClient.reward`.
            beliefs: name of the statistics; by default the step's path.
            **config: options of steps.

        Raises:
            DeclarationError: there is no arm, or an argument is not valid.

        Example:
            ```python
            step = Step.select_agent("case", {"upper": str.upper, "title": str.title})
            assert Flujo(step).run("tea").output in ("TEA", "Tea")
            ```
        """
        rule: dict[str, Any] = {} if by is None else {"by": by}
        return _dsl.SelectAgent(name, arms, **rule, category=category, reward=reward, beliefs=beliefs, **config)
