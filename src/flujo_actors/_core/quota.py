"""A budget that concurrent calls share: reserve, call, settle.

Nobody knows what a call costs before it is made, so a call reserves what the caller's largest call so far has cost.
One that has not called yet is reckoned at the largest call of anybody, and at what is sure to come: its prompt, and the
answer it may ask for. It reserves that, or a guess if that is more. Rules:

1. The first call goes alone: the others wait until there is a size to go by.
2. While what is spent and reserved leaves room for the reservation, a call is granted.
3. Otherwise, while other calls are under way, it waits: when they settle, there may be room.
4. With no other call under way, a call is refused if what it is reckoned at does not fit. A guess refuses nobody.
5. What a call really used replaces its reservation when it settles.
6. Sizes that an earlier part of the run has learned are known from the start.

So calls of equal size consume a limit exactly and never pass it, however many race for it. A call passes it only if
it is larger than what its caller, or before it anybody, has called for until then, and than it says itself.
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
        self._largest: Amount | None = None

    @property
    def exceeded(self) -> bool:
        """Whether more was spent than allowed."""
        return not self._fits(self.spent)

    def ask(self, caller: str, sure: Amount = NOTHING) -> Verdict:
        """Whether `caller` may make a call that uses at least what is `sure`; nothing is reserved yet."""
        if caller not in self._known and self._reached():
            return "refused"
        if self._under_way and self._largest is None:
            return "wait"
        if self._fits(self.spent + self._reserved + self._expected(caller, sure)):
            return "granted"
        if self._under_way:
            return "wait"
        return "granted" if self._fits(self.spent + self._reckoned(caller, sure)) else "refused"

    def reserve(self, caller: str, sure: Amount = NOTHING) -> Amount:
        """Set aside what a granted call is expected to use."""
        expected = self._expected(caller, sure)
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

    def learn(self, caller: str | None, size: Amount) -> None:
        """Know how large a call was that an earlier part of the run has made, of this caller or of anybody."""
        if size != NOTHING:
            self._learn(caller, size)

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

    def error(self, refused: str | None = None, sure: Amount = NOTHING) -> UsageLimitExceededError:
        """The error of a limit that was reached, or would be with the next call of the caller that was refused."""
        size = NOTHING if refused is None else self._reckoned(refused, sure)
        hidden = size == NOTHING or self.exceeded
        reckoned = "" if hidden else f"; the next call was reckoned at {self._measured(size)}"
        return UsageLimitExceededError(f"usage limit reached: {self.describe()}{reckoned}")

    def _measured(self, amount: Amount) -> str:
        """An amount in what the limits are given in, for people."""
        tokens, cost = self.limits.total_tokens_limit, self.limits.total_cost_usd_limit
        parts = [] if tokens is None else [f"{amount.tokens:g} tokens"]
        return " and ".join(parts if cost is None else [*parts, f"${amount.cost_usd:.6g}"])

    def _learn(self, caller: str | None, actual: Amount) -> None:
        if caller is not None:
            self._known[caller] = self._known.get(caller, NOTHING).largest(actual)
        self._largest = actual if self._largest is None else self._largest.largest(actual)

    def _expected(self, caller: str, sure: Amount) -> Amount:
        """What is set aside for a call."""
        reckoned = self._reckoned(caller, sure)
        return reckoned if caller in self._known else reckoned.largest(self._guess)

    def _reckoned(self, caller: str, sure: Amount) -> Amount:
        """What a call is taken for: the caller's own size, or else the largest of anybody and what is sure."""
        known = self._known.get(caller)
        return (self._largest or NOTHING).largest(sure) if known is None else known

    def _fits(self, amount: Amount) -> bool:
        tokens, cost = self.limits.total_tokens_limit, self.limits.total_cost_usd_limit
        if tokens is not None and amount.tokens > tokens:
            return False
        return cost is None or amount.cost_usd <= cost + _rounding(cost)

    def _reached(self) -> bool:
        tokens, cost = self.limits.total_tokens_limit, self.limits.total_cost_usd_limit
        if tokens is not None and self.spent.tokens >= tokens:
            return True
        return cost is not None and self.spent.cost_usd >= cost - _rounding(cost)


def _rounding(cost_usd: float) -> float:
    """What sums of dollars may be off by: eight times 0.1 is a bit less than 0.8."""
    return _ROUNDING * (cost_usd + 1e-3)
