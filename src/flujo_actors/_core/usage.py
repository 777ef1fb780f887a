"""Usage of model calls as values that add up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from ..errors import DeclarationError
from .validators import brief_repr, is_count, is_number, suggests_options

if TYPE_CHECKING:
    import datetime

    from .validators import AttrsField, V


@attrs.frozen(kw_only=True)
class Usage:
    """Tokens, calls and dollars of one or more model calls."""

    input_tokens: int = 0
    """Input tokens."""
    output_tokens: int = 0
    """Output tokens."""
    cached_tokens: int = 0
    """Input tokens served from the provider's cache; already contained in `input_tokens`."""
    requests: int = 0
    """Number of model requests."""
    tool_calls: int = 0
    """Number of tool calls."""
    cost_usd: float = 0.0
    """Cost in dollars."""
    largest_request_tokens: int = attrs.field(default=0, eq=False, repr=False)
    """Tokens of the largest request, the estimate of the next one."""
    largest_request_usd: float = attrs.field(default=0.0, eq=False, repr=False)
    """The dollars of the dearest request among them."""
    failed_requests: int = attrs.field(default=0, eq=False, repr=False)
    """Requests without an answer under a limit; they count as spent."""
    failed_tool_calls: int = attrs.field(default=0, eq=False, repr=False)
    """Tool calls that began and did not return."""
    steps: int = attrs.field(default=0, eq=False, repr=False)
    """The steps of agents, as far as a limit counts them."""

    @property
    def tokens(self) -> int:
        """Input plus output."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        if other is NO_USAGE:
            return self
        if self is NO_USAGE:
            return other
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            requests=self.requests + other.requests,
            tool_calls=self.tool_calls + other.tool_calls,
            cost_usd=self.cost_usd + other.cost_usd,
            largest_request_tokens=max(self.largest_request_tokens, other.largest_request_tokens),
            largest_request_usd=max(self.largest_request_usd, other.largest_request_usd),
            failed_requests=self.failed_requests + other.failed_requests,
            failed_tool_calls=self.failed_tool_calls + other.failed_tool_calls,
            steps=self.steps + other.steps,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            cached_tokens=self.cached_tokens - other.cached_tokens,
            requests=self.requests - other.requests,
            tool_calls=self.tool_calls - other.tool_calls,
            cost_usd=self.cost_usd - other.cost_usd,
        )

    def as_one_request(self) -> Usage:
        """Return the same usage, of a single request."""
        return attrs.evolve(self, largest_request_tokens=self.tokens, largest_request_usd=self.cost_usd)


NO_USAGE = Usage()
"""The neutral element: nothing was called."""

MOST_TOKENS = 10**12
"""Largest accepted count: refused by any limit, free of overflow."""
MOST_USD = 1e12


def counted(reported: object, most: int = MOST_TOKENS) -> int:
    """Return a reported count from 0 to `most`; 0 if invalid."""
    if isinstance(reported, bool) or not isinstance(reported, int | float) or reported != reported:
        return 0
    return int(max(0, min(reported, most)))


def dollars(reported: object) -> float:
    """Return a reported amount as a finite number, or 0 if invalid."""
    if isinstance(reported, bool) or not isinstance(reported, int | float) or reported != reported:
        return 0.0
    return float(max(0.0, min(reported, MOST_USD)))


def sanitized(usage: Usage) -> Usage:
    """Return foreign usage without negative counts or oversized parts."""
    if usage is NO_USAGE:
        return usage
    given = counted(usage.input_tokens)
    return Usage(
        input_tokens=given,
        output_tokens=counted(usage.output_tokens),
        cached_tokens=counted(usage.cached_tokens, given),
        requests=counted(usage.requests),
        tool_calls=counted(usage.tool_calls),
        cost_usd=dollars(usage.cost_usd),
        largest_request_tokens=counted(usage.largest_request_tokens),
        largest_request_usd=dollars(usage.largest_request_usd),
        failed_requests=counted(usage.failed_requests),
        failed_tool_calls=counted(usage.failed_tool_calls),
        steps=counted(usage.steps),
    )


def less(whole: Usage, part: Usage) -> Usage:
    """Return the rest of a usage without a part of it."""
    left = {
        each.name: max(0, getattr(whole, each.name) - getattr(part, each.name))
        for each in attrs.fields(Usage)
        if not each.name.startswith("largest_")
    }
    return Usage(**left) if any(left.values()) else NO_USAGE


def _positive(_: object, attribute: AttrsField, value: V) -> None:
    if value is None:
        return
    if not is_number(value) or value < 0:
        raise DeclarationError(
            f"UsageLimits.{attribute.name} must be a finite number >= 0 or None, not {brief_repr(value)}"
        )


def _count(_: object, attribute: AttrsField, value: V) -> None:
    if value is not None and not is_count(value, at_least=0):
        raise DeclarationError(
            f"UsageLimits.{attribute.name} must be a whole number >= 0 or None, not {brief_repr(value)}"
        )


WhenReached: TypeAlias = Literal["fail", "pause", "wait"]
"""Action at a limit: fail the run, pause it, or wait for the next window."""

Window: TypeAlias = Literal["hour", "day", "week", "month"]
"""Calendar window of a budget."""

_WINDOWS = ("hour", "day", "week", "month")
_ONLY_OF_WINDOWS = ("scope", "name", "warn_at")
_NOT_OF_WINDOWS = ("step_limit", "time_limit_s")


def _known_end(_: object, attribute: AttrsField, value: V) -> None:
    if value not in ("fail", "pause", "wait"):
        raise DeclarationError(f"UsageLimits.when_reached must be 'fail', 'pause' or 'wait', not {brief_repr(value)}")


def _share(_: object, attribute: AttrsField, value: V) -> None:
    if value is None:
        return
    if not is_number(value) or not 0 < value <= 1:
        raise DeclarationError(f"UsageLimits.warn_at must be a number > 0 and <= 1, not {brief_repr(value)}")


@suggests_options
@attrs.frozen
class UsageLimits:
    """Limits of a step or a run; `None` means no limit.

    Args:
        total_cost_usd_limit: dollars.
        total_tokens_limit: input and output tokens.
        request_limit: model requests, also failed ones.
        tool_calls_limit: tool calls.
        step_limit: steps of agents.
        time_limit_s: time worked, without pauses.
        when_reached: `"fail"`, `"pause"` for a higher limit, or with a window `"wait"`.
        window: `"hour"`, `"day"`, `"week"` or `"month"`: one budget for all runs of a scope.
        zone: time zone of the window.
        scope: `"pipeline"`, `"key"` or `"label:<name>"`.
        name: name of the budget, shared by pipelines with the same name.
        warn_at: share of a limit at which `budget.warned` is emitted.

    Raises:
        DeclarationError: a limit is negative, or an argument needs a window.

    Example:
        ```python
        model = scripted_model("ok", forever=True)
        two = Step("a", make_agent_async(model)) >> Step("b", make_agent_async(model))
        with pytest.raises(UsageLimitExceededError):
            Flujo(two, usage_limits=UsageLimits(request_limit=1)).run("hello")
        ```
    """

    total_cost_usd_limit: float | None = attrs.field(default=None, validator=_positive)
    total_tokens_limit: int | None = attrs.field(default=None, validator=_positive)
    request_limit: int | None = attrs.field(default=None, validator=_count)
    """Maximum number of model requests."""
    tool_calls_limit: int | None = attrs.field(default=None, validator=_count)
    """Maximum number of started tool calls, successful or not."""
    step_limit: int | None = attrs.field(default=None, validator=_count)
    """Maximum number of agent steps; retries of a step count once."""
    time_limit_s: float | None = attrs.field(default=None, validator=_positive)
    """Maximum work time in seconds, without pauses and downtime."""
    when_reached: WhenReached = attrs.field(default="fail", validator=_known_end)
    """`"pause"` requests new limits or `False`; `"wait"` sleeps until the window ends."""
    window: Window | None = attrs.field(default=None, kw_only=True)
    """Calendar window: the limits hold for all runs of the name and scope in it."""
    zone: str = attrs.field(default="UTC", kw_only=True)
    """Time zone of the window."""
    scope: str | None = attrs.field(default=None, kw_only=True)
    """`"pipeline"` (default), `"key"` or `"label:NAME"`: one budget for each value."""
    name: str | None = attrs.field(default=None, kw_only=True)
    """Name of the budget; by default the pipeline's."""
    warn_at: float | None = attrs.field(default=None, kw_only=True, validator=_share)
    """Used share of a limit at which `budget.warned` is emitted."""

    def __attrs_post_init__(self) -> None:
        _check_window(self)

    def data(self) -> dict[str, Any]:
        """Return the fields as data; those of windows only with a window."""
        found = attrs.asdict(self)
        return found if self.window is not None else {key: found[key] for key in found if key not in _OF_WINDOWS}


_OF_WINDOWS = ("window", "zone", *_ONLY_OF_WINDOWS)


def _check_window(limits: UsageLimits) -> None:
    """Refuse options that contradict the window, or its absence."""
    if limits.window is None:
        if limits.when_reached == "wait":
            raise DeclarationError("UsageLimits: when_reached='wait' has no meaning without window")
        for name in _ONLY_OF_WINDOWS:
            if getattr(limits, name) is not None:
                raise DeclarationError(f"UsageLimits: {name} has no meaning without window")
        if limits.zone != "UTC":
            raise DeclarationError("UsageLimits: zone has no meaning without window")
        return
    _check_options_of_window(limits)
    _check_scope(limits)
    zone_of(limits.zone)


def _check_options_of_window(limits: UsageLimits) -> None:
    if not isinstance(limits.window, str) or limits.window not in _WINDOWS:
        raise DeclarationError(f"UsageLimits.window must be one of {', '.join(_WINDOWS)}, not {limits.window!r:.100}")
    for name in _NOT_OF_WINDOWS:
        if getattr(limits, name) is not None:
            raise DeclarationError(f"UsageLimits: {name} has no meaning with window={limits.window!r}")


def _check_scope(limits: UsageLimits) -> None:
    scope, name = limits.scope, limits.name
    label = scope[len("label:") :] if isinstance(scope, str) and scope.startswith("label:") else None
    if scope not in (None, "pipeline", "key") and not label:
        raise DeclarationError(f"UsageLimits.scope must be 'pipeline', 'key' or 'label:NAME', not {brief_repr(scope)}")
    if name is not None and (not isinstance(name, str) or not name):
        raise DeclarationError(f"UsageLimits.name must be a text with at least one character, not {brief_repr(name)}")


def zone_of(name: str) -> datetime.tzinfo:
    """Return a time zone by its name; raise `DeclarationError`."""
    import zoneinfo  # only for windows

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise DeclarationError(
            f"UsageLimits.zone must be a zone like 'Europe/Madrid', not {brief_repr(name)}"
        ) from None


BudgetLevel: TypeAlias = Literal["abundant", "normal", "scarce", "critical"]
"""Level of the scarcest resource."""

_ABOVE: tuple[tuple[float, BudgetLevel], ...] = ((0.7, "abundant"), (0.3, "normal"), (0.1, "scarce"))
_ROUNDING = 1e-9


@attrs.frozen(kw_only=True)
class Resources:
    """Amount of each resource that can be limited; `None` means unlimited."""

    cost_usd: float | None = None
    tokens: float | None = None
    requests: float | None = None
    tool_calls: float | None = None
    steps: float | None = None
    time_s: float | None = None


@attrs.frozen(kw_only=True)
class Budget:
    """Remaining budget of a step, injected into callables with a `budget` parameter.

    Example:
        ```python
        def write(topic: str, *, budget: Budget) -> str:
            return f"{topic}, {budget.level}"

        assert Flujo(Step("write", write)).run("tea").output == "tea, abundant"
        ```
    """

    fraction: float = 1.0
    """Remaining share of the scarcest resource."""
    remaining: Resources = attrs.field(factory=Resources)
    """Remaining amounts; `None` without a limit."""
    spent: Resources = attrs.field(factory=Resources)
    """Amounts used by the run."""

    @property
    def level(self) -> BudgetLevel:
        """`abundant`, `normal`, `scarce` or `critical`."""
        return level_of(self.fraction)


def level_of(fraction: float) -> BudgetLevel:
    """Return the level of a share that is left."""
    for above, level in _ABOVE:
        if fraction > above + _ROUNDING:
            return level
    return "critical"


def share_left(spent: float, limit: float) -> float:
    """Return the remaining share of a limit; zero for a zero limit."""
    return max(0.0, (limit - spent) / limit) if limit > 0 else 0.0
