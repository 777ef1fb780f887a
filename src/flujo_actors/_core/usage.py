"""What model calls cost, as values that add up."""

from __future__ import annotations

import math
from typing import Any

import attrs

from ..errors import DeclarationError


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


def _positive(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise DeclarationError(f"UsageLimits.{attribute.name} must be a finite number >= 0 or None, not {value!r}")


@attrs.frozen
class UsageLimits:
    """What a step or a run may spend; `None` is no limit."""

    total_cost_usd_limit: float | None = attrs.field(default=None, validator=_positive)
    total_tokens_limit: int | None = attrs.field(default=None, validator=_positive)
