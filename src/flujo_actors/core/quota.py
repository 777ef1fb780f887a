"""A budget that concurrent calls share: reserve, call, settle.

Nobody knows what a call costs before it is made, so a call reserves what its step's largest call so far has cost,
or a guess if the step has not called yet. Rules:

1. While what is spent and reserved leaves room for the reservation, the call is granted.
2. Otherwise, while other calls are under way, it waits: when they settle, there may be room.
3. With no other call under way, a step whose cost is known is refused if it does not fit, and a step whose cost is
   only guessed is granted as long as the limit is not reached.
4. What a call really used replaces its reservation when it settles.

So calls of equal size consume a limit exactly, and never more than one call of unknown size passes it.
"""

from __future__ import annotations

import threading
from typing import Literal, TypeAlias

import attrs

from ..errors import UsageLimitExceededError
from .usage import NO_USAGE, Usage, UsageLimits

Verdict: TypeAlias = Literal["granted", "wait", "refused"]


@attrs.frozen(kw_only=True)
class Amount:
    """Tokens and dollars together, as limits see them."""

    tokens: float = 0
    cost_usd: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(tokens=self.tokens + other.tokens, cost_usd=self.cost_usd + other.cost_usd)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(tokens=self.tokens - other.tokens, cost_usd=self.cost_usd - other.cost_usd)

    def largest(self, other: Amount) -> Amount:
        """The larger of both in each respect."""
        return Amount(tokens=max(self.tokens, other.tokens), cost_usd=max(self.cost_usd, other.cost_usd))


QUOTA_LOCK = threading.RLock()
"""Held while quotas are asked and changed: model calls may be made on another thread than the run."""

NOTHING = Amount()
_ROUNDING = 1e-9


def amount_of(usage: Usage) -> Amount:
    """What a usage weighs against limits."""
    return Amount(tokens=usage.tokens, cost_usd=usage.cost_usd)


class Quota:
    """The budget of one run or one step; see the module's rules."""

    def __init__(self, limits: UsageLimits, *, owner: str, guess: Amount, spent: Usage = NO_USAGE) -> None:
        self.limits = limits
        self.owner = owner
        """Whose limits these are, for messages."""
        self.spent = amount_of(spent)
        self._guess = guess
        self._reserved = NOTHING
        self._under_way = 0
        self._known: dict[str, Amount] = {}

    @property
    def exceeded(self) -> bool:
        """Whether more was spent than allowed."""
        return not self._fits(self.spent)

    def ask(self, caller: str) -> Verdict:
        """Whether `caller` may call now; nothing is reserved yet."""
        if self._fits(self.spent + self._reserved + self._expected(caller)):
            return "granted"
        if self._under_way:
            return "wait"
        return "refused" if caller in self._known or self._reached() else "granted"

    def reserve(self, caller: str) -> Amount:
        """Set aside what a granted call is expected to use."""
        expected = self._expected(caller)
        self._reserved += expected
        self._under_way += 1
        return expected

    def settle(self, caller: str, reserved: Amount, used: Usage) -> None:
        """Replace a reservation by what the call used."""
        actual = amount_of(used)
        self._reserved -= reserved
        self._under_way -= 1
        self.spent += actual
        if used is not NO_USAGE:
            self._learn(caller, actual)

    def spend(self, used: Usage, caller: str | None = None) -> None:
        """Count usage that was not reserved."""
        self.spent += amount_of(used)
        if caller is not None and used is not NO_USAGE:
            self._learn(caller, amount_of(used))

    def refuses(self, caller: str) -> bool:
        """Whether a call that cannot wait must not be made: its size is known and does not fit, or nothing is left."""
        return self.exceeded or (caller in self._known and not self._fits(self.spent + self._known[caller]))

    def describe(self) -> str:
        """The limit and the spend, for people."""
        parts = []
        if self.limits.total_tokens_limit is not None:
            parts.append(f"{self.spent.tokens:g} of {self.limits.total_tokens_limit:g} tokens (total_tokens_limit)")
        if self.limits.total_cost_usd_limit is not None:
            spent, limit = self.spent.cost_usd, self.limits.total_cost_usd_limit
            parts.append(f"${spent:.6g} of ${limit:.6g} (total_cost_usd_limit)")
        return f"{self.owner} has used {' and '.join(parts)}"

    def error(self) -> UsageLimitExceededError:
        """The error of a limit that was reached."""
        return UsageLimitExceededError(f"usage limit reached: {self.describe()}")

    def _learn(self, caller: str, actual: Amount) -> None:
        self._known[caller] = self._known.get(caller, NOTHING).largest(actual)

    def _expected(self, caller: str) -> Amount:
        return self._known.get(caller, self._guess)

    def _fits(self, amount: Amount) -> bool:
        tokens, cost = self.limits.total_tokens_limit, self.limits.total_cost_usd_limit
        if tokens is not None and amount.tokens > tokens:
            return False
        return cost is None or amount.cost_usd <= cost * (1 + _ROUNDING) + _ROUNDING * 1e-3

    def _reached(self) -> bool:
        tokens, cost = self.limits.total_tokens_limit, self.limits.total_cost_usd_limit
        if tokens is not None and self.spent.tokens >= tokens:
            return True
        return cost is not None and self.spent.cost_usd >= cost
