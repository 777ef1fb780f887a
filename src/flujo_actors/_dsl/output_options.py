"""Options of steps: structured output, and all options for type checkers.

Sections:

- Cache: reuse of outputs in later runs.
- Redirect: validator result that passes the work to another agent.
- Granular execution: each model turn and tool call of an agent is committed.
- Options of steps for type checkers: a misspelled one is an error in the editor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Required, TypeAlias, TypedDict, get_args

import attrs

from .. import _dsl
from .._core import policies
from .._core.validators import brief_repr, is_count, is_number, nearest, suggests_options
from ..errors import DeclarationError
from .call_plan import plan_agent

if TYPE_CHECKING:
    from .._core.policies.loop_detection import LoopGuard
    from .._core.policies.rate_limits import RateLimit
    from .._core.retry_decisions import Backoff, RetryRule
    from .._core.usage import UsageLimits
    from .._core.validators import AttrsField, V
    from .compensation_options import Compensate
    from .context_sources import ContextSources, Source
    from .declared_step import Processors
    from .kinds import Merging, OnBranchFailure
    from .pipeline import StepLike


StructuredOutput: TypeAlias = Literal["off", "auto", "openai_json"]
"""Structured output: `auto`, `openai_json` or `off`.

`auto`: structured if the step or its agent has a schema; `openai_json`: also request JSON that fits the schema from a
provider that supports it (without a schema: accept any object or list); `off`: the output is the agent's return value.
"""

Enforcement: TypeAlias = Literal["off", "validate", "repair"]
"""Enforcement of a schema: `repair`, `validate` or `off`.

`repair`: parse, repair, retry and fall back until the value fits; `validate`: parse and repair, then fail; `off`: the
output is the agent's return value, valid or not.
"""


ANY_JSON = {"type": ["object", "array"]}
"""The schema of an answer that shall be JSON and nothing more."""


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise DeclarationError(f"processing.{name} must be one of {', '.join(allowed)}, not {brief_repr(value)}")


def _check_schema(schema: object) -> None:
    try:
        _dsl.reader_of(schema)
    except DeclarationError as error:
        raise DeclarationError(f"processing.schema cannot serve as a schema: {error}") from error.__cause__


@suggests_options
@attrs.frozen(kw_only=True)
class Processing:
    """The switches of one step."""

    structured_output: StructuredOutput = "auto"
    """Mode of structured output."""
    schema: Any = None
    """JSON Schema or model class; by default the agent's own."""
    enforcement: Enforcement = "repair"
    """`"repair"`, or `"validate"` to refuse an unfit output."""
    degrade: bool | None = None
    """Whether text may replace the value as a last resort.

    The result is marked as degraded. By default it may if the agent returns text and the step has a schema; an agent's
    declared output type is never degraded.
    """

    def __attrs_post_init__(self) -> None:
        if self.degrade not in (None, True, False):
            raise DeclarationError(f"processing.degrade must be True, False or None, not {self.degrade!r}")
        _one_of("structured_output", self.structured_output, get_args(StructuredOutput))
        _one_of("enforcement", self.enforcement, get_args(Enforcement))
        if self.schema is not None:
            _check_schema(self.schema)

    @property
    def wanted(self) -> Any:
        """Return the step's schema; any JSON if only JSON is requested."""
        asked = self.schema is None and self.structured_output == "openai_json"
        return ANY_JSON if asked else self.schema


NO_PROCESSING = Processing()


def as_processing(value: Processing | Mapping[str, Any]) -> Processing:
    """Return the switches, from a value or a dict."""
    if isinstance(value, Processing):
        return value
    if not isinstance(value, Mapping):
        raise DeclarationError(f"processing must be Processing(…) or a dict, not {brief_repr(value)}")
    known = list(attrs.fields_dict(Processing))
    for key in value:
        if key not in known:
            near = nearest(str(key), known)
            hint = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}"
            raise DeclarationError(f"processing has no switch {key!r}: {hint}")
    return Processing(**value)


def as_rate_limits(value: RateLimit | Iterable[RateLimit] | None) -> tuple[RateLimit, ...]:
    """Return the rate limits of a step."""
    return () if value is None or value == () else policies.checked_limits(value, "rate_limit of a step")


# --- Cache --------------------------------------------------------------------------------------------------------


def _checked_ttl(_: object, attribute: AttrsField, value: float) -> None:
    if not is_number(value) or value <= 0:
        raise DeclarationError(f"Cache: ttl_s must be a finite number > 0, not {brief_repr(value)}")


def _checked_scope(_: object, attribute: AttrsField, value: str | None) -> None:
    if value not in (None, "pipeline", "key") and not (isinstance(value, str) and value.startswith("label:")):
        raise DeclarationError(f"Cache: scope must be 'pipeline', 'key' or 'label:NAME', not {brief_repr(value)}")


def _checked_key(_: object, attribute: AttrsField, value: V) -> None:
    if value is not None and not callable(value):
        raise DeclarationError(f"Cache: key must be a function of (data, context) or None, not {brief_repr(value)}")


@suggests_options
@attrs.frozen
class Cache:
    """Reuse of a step's output in later runs, for `ttl_s` seconds.

    Args:
        ttl_s: age up to which an output is reused.
        key: function of the data; an agent with tools or `deps` needs it.
        scope: the pipeline, `"key"`, or `"label:<name>"`.

    Raises:
        DeclarationError: the age is not positive, or the key is missing.

    Example:
        ```python
        calls = []
        step = Step("count", lambda text: calls.append(text), cache=Cache(ttl_s=3600))
        flujo = Flujo(step, store="sqlite:///runs.db")
        flujo.run("tea"), flujo.run("tea")
        assert calls == ["tea"]
        ```
    """

    ttl_s: float = attrs.field(validator=_checked_ttl)
    key: Callable[..., str] | None = attrs.field(default=None, kw_only=True, validator=_checked_key)
    """Function of `(data, context)` whose text replaces the input."""
    scope: str | None = attrs.field(default=None, kw_only=True, validator=_checked_scope)
    """Runs that share entries: `pipeline` (default), `key` or `label:NAME`."""


_HIDDEN_INPUTS = ("context", "resources", "transaction", "idempotency_key")


def check_cache(step: Any) -> None:
    """Refuse a cache whose entries would depend on more than the input."""
    where, cache = f"step {step.name!r}: cache", step.cache
    if not isinstance(cache, Cache):
        raise DeclarationError(f"{where} must be Cache(…) or None, not {brief_repr(cache)}")
    plan = getattr(step, "plan", None)
    if plan is None:
        raise DeclarationError(f"{where} belongs to a step with an agent, and this one has none")
    asked = [name for name in _HIDDEN_INPUTS if name in plan.named]
    if asked:
        raise DeclarationError(f"{where} is impossible: its function asks for {asked[0]!r}")
    if step.compensate is not None:
        raise DeclarationError(f"{where} is impossible: it has a compensation, and a stored output undoes nothing")
    if plan.shape == "stream" or plan.stream is not None:
        raise DeclarationError(f"{where} is impossible: it streams its output")
    if cache.key is None:
        _require_key(step, plan, where)


def _require_key(step: Any, plan: Any, where: str) -> None:
    if plan.shape == "model" and _dsl.has_tools(plan.target):
        raise DeclarationError(f"{where} needs key=: its agent has tools, whose results are not part of the input")
    if step.deps is not None:
        raise DeclarationError(f"{where} needs key=: its agent has deps, which are not part of the input")
    if step.context_sources is not None or step.message_history is not None:
        raise DeclarationError(f"{where} needs key=: its context is not part of the input")


# --- Redirect -----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class Redirect:
    """Pass the next attempt to `to` with `feedback`, without a retry.

    An agent is redirected to once: a cycle raises `InfiniteRedirectError`.

    Example:
        ```python
        async def short(question: str) -> str:
            return "?"

        async def thorough(question: str, *, feedback: str | None = None) -> str:
            return f"answered: {feedback}"

        def judge(answer: str) -> Redirect | None:
            return Redirect(to=thorough, feedback="too short") if answer == "?" else None

        assert Flujo(Step("ask", short, validators=judge)).run("Why?").output == "answered: too short"
        ```
    """

    to: Any
    """Agent of the next attempt."""
    feedback: str = "the validator asked for another agent"
    """Text for the next attempt."""

    def __attrs_post_init__(self) -> None:
        plan_agent(self.to, step_name="after a redirect")  # a value that is not callable is refused where it is named


# --- Granular execution -------------------------------------------------------------------------------------------


OnUncertain: TypeAlias = Literal["rerun", "pause", "fail"]
"""Handling of a tool call that may have run before a crash.

Rerun with the same idempotency key, pause for a person, or fail the step. A tool can override it in its `metadata`.
"""


Rehearse: TypeAlias = Literal["recorded", "live"]
"""Handling of a step in replays and rehearsals; `live` is for pure functions and reads."""


def checked_rehearse(step: Any, _: object, value: object) -> None:
    """Refuse any other handling of a step in rehearsals."""
    if value not in get_args(Rehearse):
        raise DeclarationError(f"step {step.name!r}: rehearse must be 'recorded' or 'live', not {brief_repr(value)}")


def _checked_turns(_: object, attribute: AttrsField, value: int) -> None:
    if not is_count(value):
        raise DeclarationError(f"max_turns must be at least 1, not {brief_repr(value)}")


def _checked_history(_: object, attribute: AttrsField, value: int | None) -> None:
    if value is not None and not is_count(value):
        raise DeclarationError(f"keep_last must be at least 1, or None for the whole history, not {brief_repr(value)}")


def _checked_policy(_: object, attribute: AttrsField, value: str) -> None:
    if value not in get_args(OnUncertain):
        raise DeclarationError(
            f"on_uncertain must be one of {', '.join(get_args(OnUncertain))}, not {brief_repr(value)}"
        )


def _checked_guard(_: object, attribute: AttrsField, value: V) -> None:
    if value is not None and not isinstance(value, policies.LoopGuard):
        raise DeclarationError(f"guard must be a LoopGuard(…) or None, not {brief_repr(value)}")


@attrs.frozen(kw_only=True)
class Resumable:
    """Resume options of an agent that continues from its last committed unit."""

    max_turns: int = attrs.field(default=20, validator=_checked_turns)
    on_uncertain: OnUncertain = attrs.field(default="rerun", validator=_checked_policy)
    keep_last: int | None = attrs.field(default=None, validator=_checked_history)
    """Minimum number of later messages for the model; `None` for all.

    Tool calls stay together with their returns.
    """
    guard: LoopGuard | None = attrs.field(default=None, validator=_checked_guard)
    """Loop guard: reaction to a detected cycle."""


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
