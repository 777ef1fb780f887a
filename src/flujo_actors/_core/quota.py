"""Quota shared by concurrent calls: reserve, call, settle.

The cost of a call is unknown before it is made, so a call reserves the cost of the caller's largest call so far. A
caller without calls uses the largest call of any caller, and its own minimum: its prompt and the requested answer. It
reserves that, or a guess if the guess is larger. Rules:

1. The first call runs alone: the others wait until a size is known.
2. While spent and reserved amounts leave room for the reservation, a call is granted.
3. Otherwise, while other calls are in flight, it waits: when they settle, there may be room.
4. With no other call in flight, a call is refused if its estimate does not fit. A guess refuses no call.
5. The actual usage replaces the reservation when a call settles.
6. Sizes learned by an earlier session of the run are known from the start.
7. Requests, tool calls and steps have the size 1 and are spent when they begin: the limit's number of them begins,
   and the next is refused at once, regardless of calls in flight.
8. A quota shared with other processes uses their spent and reserved amounts as far as known
   (`shared_budgets`); nothing is granted then before the store has agreed.

So calls of equal size consume a limit exactly and never exceed it, even when they race. A call exceeds it only if it is
larger than every earlier call of its caller (or of any caller before its first) and than its own estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import attrs

from ..errors import UsageLimitExceededError
from .step_paths import ROOT, StepPath
from .usage import NO_USAGE, Resources, Usage, UsageLimits, share_left

Verdict: TypeAlias = Literal["granted", "wait", "refused"]


@attrs.frozen(kw_only=True)
class Amount:
    """Spent or reserved amount, as limits count it."""

    tokens: float = 0
    cost_usd: float = 0.0
    requests: int = 0
    tool_calls: int = 0
    steps: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            tokens=self.tokens + other.tokens,
            cost_usd=self.cost_usd + other.cost_usd,
            requests=self.requests + other.requests,
            tool_calls=self.tool_calls + other.tool_calls,
            steps=self.steps + other.steps,
        )

    def __sub__(self, other: Amount) -> Amount:
        return Amount(
            tokens=self.tokens - other.tokens,
            cost_usd=self.cost_usd - other.cost_usd,
            requests=self.requests - other.requests,
            tool_calls=self.tool_calls - other.tool_calls,
            steps=self.steps - other.steps,
        )

    def less(self, other: Amount) -> Amount:
        """Return the difference, at least zero."""
        left = self - other
        return Amount(**{name: max(0, value) for name, value in attrs.asdict(left).items()})

    def largest(self, other: Amount) -> Amount:
        """Return the maximum of both in tokens and in dollars."""
        return Amount(tokens=max(self.tokens, other.tokens), cost_usd=max(self.cost_usd, other.cost_usd))

    @property
    def size(self) -> Amount:
        """Its tokens and dollars alone."""
        return Amount(tokens=self.tokens, cost_usd=self.cost_usd)


NOTHING = Amount()
ONE_REQUEST = Amount(requests=1)
ONE_TOOL_CALL = Amount(tool_calls=1)
ONE_STEP = Amount(steps=1)
_ROUNDING = 1e-9

LIMITED: dict[str, str] = {
    "total_cost_usd_limit": "cost_usd",
    "total_tokens_limit": "tokens",
    "request_limit": "requests",
    "tool_calls_limit": "tool_calls",
    "step_limit": "steps",
    "time_limit_s": "time_s",
}
"""Resource of each limit, in field order."""

_UNITS = {"tokens": "tokens", "requests": "requests", "tool_calls": "tool calls", "steps": "steps", "time_s": "s"}


def amount_of(usage: Usage) -> Amount:
    """Return the amount of a usage."""
    return Amount(
        tokens=usage.tokens,
        cost_usd=usage.cost_usd,
        requests=usage.requests + usage.failed_requests,
        tool_calls=usage.tool_calls + usage.failed_tool_calls,
        steps=usage.steps,
    )


@attrs.frozen(kw_only=True)
class Held:
    """Amounts of a quota held by other processes."""

    spent: Amount = NOTHING
    reserved: Amount = NOTHING
    under_way: int = 0
    """Number of their calls in flight."""
    largest: Amount | None = None
    """Size of their largest call, if any."""


NONE_HELD = Held()


@attrs.frozen(kw_only=True)
class ReservationRequest:
    """Reservation request to a quota shared with other processes."""

    spends: Amount = NOTHING
    """Amount spent at once."""
    reserves: Amount = NOTHING
    """Amount reserved for a request."""
    estimate: Amount = NOTHING
    """Estimate that must fit if no other call is in flight."""
    knows: Amount | None = None
    """Largest call behind the estimate; `None` with an own size."""


class Shared(Protocol):
    """Quota state shared between processes. All methods but `changed` block."""

    def reserve_all(self, quotas: Sequence[Quota], caller: str, minimum: Amount) -> tuple[Amount, ...] | None:
        """Reserve a request's expected usage in all quotas; `None` if full."""

    def spend_one(self, quotas: Sequence[Quota], one: Amount) -> Quota | None:
        """Spend one tool call or step, or return the refusing quota."""

    def changed(self) -> None:
        """Notify that reservations shrank: another process may wait for the room."""


class Quota:
    """The budget of one run or one step; see the module's rules."""

    local_models_are_free = False
    """Whether models of this process need no price under a cost limit."""

    def __init__(
        self,
        limits: UsageLimits,
        *,
        owner: str,
        guess: Amount,
        spent: Usage = NO_USAGE,
        path: StepPath = ROOT,
        watch: Callable[[Quota], None] | None = None,
        known: dict[str, Amount] | None = None,
    ) -> None:
        """Create a quota; `known` maps callers to call sizes, maybe shared."""
        self.limits = limits
        self.owner = owner
        """Owner of the limits, for messages."""
        self.path = path
        """Path of the limits: the run itself or a step of it."""
        self.spent = amount_of(spent)
        self.worked: Callable[[], float] = _no_time
        """Callable that returns the work time so far, where time is limited."""
        self.shared: Shared | None = None
        """State shared with other processes, if any."""
        self.ends_at: float | None = None
        """End of its window in epoch seconds, if it has one."""
        self._others = NONE_HELD
        self._guess = guess
        self.watch = watch
        self._reserved = NOTHING
        self._in_flight = 0
        self._known: dict[str, Amount] = {} if known is None else known
        self._largest: Amount | None = None
        self._sized = is_sized(limits)

    @property
    def key(self) -> str:
        """Key of the owner of its limits, for answers that raise them."""
        return self.path

    @property
    def exceeded(self) -> bool:
        """Return whether more was spent than allowed."""
        return not self._fits(self.spent)

    def needs_price(self, provider: str) -> bool:
        """Return whether a cost limit needs the prices of a provider."""
        return self.limits.total_cost_usd_limit is not None and not self.is_free(provider)

    def is_free(self, provider: str) -> bool:
        """Return whether calls of a provider cost nothing."""
        return self.local_models_are_free and provider in ("function", "test")

    def ask(self, caller: str, minimum: Amount = NOTHING) -> Verdict:
        """Return whether `caller` may request at least `sure`, without reserving."""
        reserved, under_way = self._reserved, self._in_flight
        if self._others is not NONE_HELD:
            reserved, under_way = reserved + self._others.reserved, under_way + self._others.under_way
        if not self._allows(self.spent + reserved + ONE_REQUEST):
            return "refused"
        if not self._sized:
            return "granted"
        if caller not in self._known and self._reached():
            return "refused"
        if under_way and self._largest is None:
            return "wait"
        if self._fits(self.spent + reserved + self._expected(caller, minimum)):
            return "granted"
        if under_way:
            return "wait"
        return "granted" if self._fits(self.spent + self._estimate(caller, minimum)) else "refused"

    def reserve(self, caller: str, minimum: Amount = NOTHING) -> Amount:
        """Reserve the expected usage of a granted call."""
        return self.reserve_amount(self._expected(caller, minimum) + ONE_REQUEST)

    def reserve_amount(self, expected: Amount) -> Amount:
        """Set so much aside for a call."""
        self._reserved += expected
        self._in_flight += 1
        return expected

    def settle(self, caller: str, reserved: Amount, used: Usage) -> None:
        """Replace a reservation with the actual usage."""
        self._reserved -= reserved
        self._in_flight -= 1
        self._spend(amount_of(used))
        if _implies_size(used):
            self._learn(caller, amount_of(used).size)

    def spend(self, used: Usage, caller: str | None = None) -> None:
        """Count usage that was not reserved."""
        self._spend(amount_of(used))
        if caller is not None and _implies_size(used):
            self._learn(caller, amount_of(used).size)

    def recall(self, used: Usage, caller: str | None = None) -> None:
        """Count usage of an earlier session of the run."""
        self.spend(used, caller)

    def recall_tool_call(self, one: Amount) -> None:
        """Count a tool call of an earlier session of the run."""
        self.begin(one)

    def allows(self, one: Amount) -> bool:
        """Return whether one more tool call, or one more step, may begin."""
        return self._allows(self.spent + self._reserved + self._others.reserved + one)

    def begin(self, one: Amount) -> None:
        """Count a tool call or a step that begins."""
        self._spend(one)

    def learn(self, caller: str | None, size: Amount) -> None:
        """Record a call size of an earlier session of the run."""
        if size != NOTHING:
            self._learn(caller, size)

    def refuses(self, caller: str) -> bool:
        """Return whether a call that cannot wait must be refused.

        It is refused if its size is known and does not fit, or if nothing is left.
        """
        return self.exceeded or (caller in self._known and not self._fits(self.spent + self._known[caller]))

    # --- with other processes ---

    def update_others(self, others: Held, limits: UsageLimits | None = None) -> None:
        """Update the other holders' amounts and limits."""
        self.spent, self._others = self.own + others.spent, others
        if others.largest is not None:
            self._learn(None, others.largest)
        if limits is not None and limits != self.limits:
            self.limits, self._sized = limits, is_sized(limits)
        if self.watch is not None:
            self.watch(self)

    def absorb(self, used: Usage) -> None:
        """Add amounts spent by another holder to this side's account."""
        self.update_others(attrs.evolve(self._others, spent=self._others.spent.less(amount_of(used))))

    @property
    def own(self) -> Amount:
        """Return the amount spent on this side."""
        return self.spent - self._others.spent

    def held(self) -> Held:
        """Return this side's share of the quota."""
        return Held(spent=self.own, reserved=self._reserved, under_way=self._in_flight, largest=self._largest)

    def reservation_request(self, caller: str, minimum: Amount) -> ReservationRequest:
        """Return the reservation request of a caller."""
        known = caller in self._known
        return ReservationRequest(
            reserves=self._expected(caller, minimum) + ONE_REQUEST,
            estimate=self._estimate(caller, minimum),
            knows=None if known else (self._largest or NOTHING),
        )

    # --- read access ---

    def used(self) -> Resources:
        """Return the amount spent so far, including requests in flight (rule 7)."""
        spent = self.spent
        return Resources(
            cost_usd=spent.cost_usd,
            tokens=spent.tokens,
            requests=spent.requests + self._begun,
            tool_calls=spent.tool_calls,
            steps=spent.steps,
            time_s=self.worked(),
        )

    def limited(self) -> dict[str, tuple[float, float]]:
        """Return spent amount and limit of each limited resource."""
        used, pairs = self.used(), {}
        for limit, resource in LIMITED.items():
            allowed = getattr(self.limits, limit)
            if allowed is not None:
                pairs[resource] = (getattr(used, resource), allowed)
        return pairs

    @property
    def fraction(self) -> float:
        """Return the remaining share of the scarcest resource."""
        return min((share_left(spent, limit) for spent, limit in self.limited().values()), default=1.0)

    def describe(self) -> str:
        """Return the limits and the spend, for people."""
        names = {resource: limit for limit, resource in LIMITED.items()}
        ordered = sorted(self.limited().items(), key=lambda pair: pair[0] == "cost_usd")
        parts = [f"{_measured(each, *pair)} ({names[each]})" for each, pair in ordered]
        return f"{self.owner} has used {' and '.join(parts)}"

    def error(
        self, refused: str | None = None, minimum: Amount = NOTHING, *, needed: Amount = NOTHING
    ) -> UsageLimitExceededError:
        """Return the error of a limit reached or about to be exceeded.

        The refused call is one of `refused`, of size `needed`.
        """
        size = NOTHING if refused is None else self._estimate(refused, minimum)
        hidden = not self._sized or size == NOTHING or self.exceeded
        estimate = "" if hidden else f"; the next call was reckoned at {self._sizes(size)}"
        error = UsageLimitExceededError(f"usage limit reached: {self.describe()}{estimate}")
        error.limits = self._short(size + (needed if refused is None else needed + ONE_REQUEST))
        error.reached = self
        return error

    def _short(self, needed: Amount) -> tuple[str, ...]:
        """Return the limits that are used up or too small next."""
        reservation_request, short = self.spent + needed + Amount(requests=self._begun), []
        for limit, resource in LIMITED.items():
            allowed = getattr(self.limits, limit)
            if allowed is None:
                continue
            if resource == "time_s":
                passed = self.worked() >= allowed
            elif resource in ("tokens", "cost_usd"):
                left = _rounding(allowed) if resource == "cost_usd" else 0.0
                spent = getattr(self.spent, resource)
                passed = getattr(reservation_request, resource) > allowed + left or spent >= allowed - left
            else:
                passed = getattr(reservation_request, resource) > allowed
            short.extend([limit] if passed else [])
        return tuple(short)

    def _sizes(self, amount: Amount) -> str:
        """Return a call size for messages, in the units of the limits."""
        tokens, cost = self.limits.total_tokens_limit, self.limits.total_cost_usd_limit
        parts = [] if tokens is None else [f"{amount.tokens:g} tokens"]
        return " and ".join(parts if cost is None else [*parts, f"${amount.cost_usd:.6g}"])

    # --- estimates ---

    @property
    def _begun(self) -> int:
        """Return the number of requests in flight."""
        return self._reserved.requests + self._others.reserved.requests

    def _spend(self, amount: Amount) -> None:
        self.spent += amount
        if self.watch is not None:
            self.watch(self)

    def _learn(self, caller: str | None, actual: Amount) -> None:
        if caller is not None:
            self._known[caller] = self._known.get(caller, NOTHING).largest(actual)
        self._largest = actual if self._largest is None else self._largest.largest(actual)

    def _expected(self, caller: str, minimum: Amount) -> Amount:
        """Return the amount to reserve for a call."""
        estimate = self._estimate(caller, minimum)
        return estimate if caller in self._known else estimate.largest(self._guess)

    def _estimate(self, caller: str, minimum: Amount) -> Amount:
        """Return a call's estimate: the caller's size, else the largest known."""
        known = self._known.get(caller)
        return (self._largest or NOTHING).largest(minimum) if known is None else known

    def _fits(self, amount: Amount) -> bool:
        return fits(self.limits, amount)

    def _allows(self, amount: Amount) -> bool:
        return allows(self.limits, amount)

    def _reached(self) -> bool:
        return is_reached(self.limits, self.spent)


def is_sized(limits: UsageLimits) -> bool:
    """Return whether it matters how large calls are."""
    return limits.total_tokens_limit is not None or limits.total_cost_usd_limit is not None


def any_sized(quotas: Sequence[Quota], provider: str) -> bool:
    """Return whether a quota limits the size of a provider's calls."""
    return any(is_sized(quota.limits) and not quota.is_free(provider) for quota in quotas)


def fits(limits: UsageLimits, amount: Amount) -> bool:
    """Return whether so many tokens and dollars are allowed."""
    tokens, cost = limits.total_tokens_limit, limits.total_cost_usd_limit
    if tokens is not None and amount.tokens > tokens:
        return False
    return cost is None or amount.cost_usd <= cost + _rounding(cost)


def allows(limits: UsageLimits, amount: Amount) -> bool:
    """Return whether so many requests, tool calls and steps are allowed."""
    return (
        (limits.request_limit is None or amount.requests <= limits.request_limit)
        and (limits.tool_calls_limit is None or amount.tool_calls <= limits.tool_calls_limit)
        and (limits.step_limit is None or amount.steps <= limits.step_limit)
    )


def is_reached(limits: UsageLimits, spent: Amount) -> bool:
    """Return whether nothing is left of the tokens or the dollars."""
    tokens, cost = limits.total_tokens_limit, limits.total_cost_usd_limit
    if tokens is not None and spent.tokens >= tokens:
        return True
    return cost is not None and spent.cost_usd >= cost - _rounding(cost)


def _no_time() -> float:
    return 0.0


def _implies_size(used: Usage) -> bool:
    """Return whether a usage implies a size, unlike a failed request."""
    return used is not NO_USAGE and bool(used.requests or used.tokens or used.cost_usd)


def _measured(resource: str, spent: float, limit: float) -> str:
    if resource == "cost_usd":
        return f"${spent:.6g} of ${limit:.6g}"
    return f"{spent:g} of {limit:g} {_UNITS[resource]}"


def _rounding(cost_usd: float) -> float:
    """Return the tolerance of dollar sums: 8 × 0.1 < 0.8."""
    return _ROUNDING * (cost_usd + 1e-3)
