"""What model calls cost, as values that add up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from ..errors import DeclarationError

if TYPE_CHECKING:
    from .fields import Field, V


@attrs.frozen(kw_only=True)
class Usage:
    """Tokens, calls and dollars of one or more model calls."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens served from the provider's cache; already contained in `input_tokens`."""
    requests: int = 0
    tool_calls: int = 0
    cost_usd: float = 0.0
    largest_request_tokens: int = attrs.field(default=0, eq=False, repr=False)
    """The tokens of the largest request among them: what the next one is reckoned at."""
    largest_request_usd: float = attrs.field(default=0.0, eq=False, repr=False)
    """The dollars of the dearest request among them."""
    failed_requests: int = attrs.field(default=0, eq=False, repr=False)
    """Requests that were made under a limit and got no answer: these are spent, too."""
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
        """The same usage, of a single request."""
        return attrs.evolve(self, largest_request_tokens=self.tokens, largest_request_usd=self.cost_usd)


NO_USAGE = Usage()
"""The neutral element: nothing was called."""


def _positive(_: object, attribute: Field, value: V) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise DeclarationError(f"UsageLimits.{attribute.name} must be a finite number >= 0 or None, not {value!r}")


def _count(_: object, attribute: Field, value: V) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise DeclarationError(f"UsageLimits.{attribute.name} must be a whole number >= 0 or None, not {value!r}")


WhenReached: TypeAlias = Literal["fail", "pause"]
"""What happens at a limit: the run ends with an error, or it asks for another limit."""


def _known_end(_: object, attribute: Field, value: V) -> None:
    if value not in ("fail", "pause"):
        raise DeclarationError(f"UsageLimits.when_reached must be 'fail' or 'pause', not {value!r}")


@attrs.frozen
class UsageLimits:
    """What a step or a run may spend; `None` is no limit."""

    total_cost_usd_limit: float | None = attrs.field(default=None, validator=_positive)
    total_tokens_limit: int | None = attrs.field(default=None, validator=_positive)
    request_limit: int | None = attrs.field(default=None, validator=_count)
    """How many requests are made to models."""
    tool_calls_limit: int | None = attrs.field(default=None, validator=_count)
    """How many tool calls begin, whether they succeed or not."""
    step_limit: int | None = attrs.field(default=None, validator=_count)
    """How many steps of agents are done; trying one again is the same step."""
    time_limit_s: float | None = attrs.field(default=None, validator=_positive)
    """How long is worked in all: not the time in which the run is paused, nor between a crash and going on."""
    when_reached: WhenReached = attrs.field(default="fail", validator=_known_end)
    """`"pause"` asks for new limits instead of failing; the answer is new limits, or `False`."""
