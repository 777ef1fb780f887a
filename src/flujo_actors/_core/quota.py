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
7. Requests, tool calls and steps have the size 1 and are spent when they begin: as many as the limit says are begun,
   and the next is refused at once, whatever is under way.
8. A budget that other processes draw on, too, goes by what they have spent and set aside, as far as it was told
   (`shared_budgets`); nothing is granted then before the store has agreed.

So calls of equal size consume a limit exactly and never pass it, however many race for it. A call passes it only if
it is larger than what its caller, or before it anybody, has called for until then, and than it says itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import attrs

from ..errors import UsageLimitExceededError
from .paths import ROOT, StepPath
from .usage import NO_USAGE, Usage, UsageLimits

if TYPE_CHECKING:
    from .budgets import Resources

Verdict: TypeAlias = Literal["granted", "wait", "refused"]


@attrs.frozen(kw_only=True)
class Amount:
    """What is spent or about to be, as limits see it."""

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
        """What is left of it without the other, and never less than nothing."""
        left = self - other
        return Amount(**{name: max(0, value) for name, value in attrs.asdict(left).items()})

    def largest(self, other: Amount) -> Amount:
        """The larger of both in tokens and dollars, which is what the size of a call is about."""
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

_LIMITED: dict[str, str] = {
    "total_cost_usd_limit": "cost_usd",
    "total_tokens_limit": "tokens",
    "request_limit": "requests",
    "tool_calls_limit": "tool_calls",
    "step_limit": "steps",
    "time_limit_s": "time_s",
}
"""What each limit is about, in the order of the fields."""

_UNITS = {"tokens": "tokens", "requests": "requests", "tool_calls": "tool calls", "steps": "steps", "time_s": "s"}


def amount_of(usage: Usage) -> Amount:
    """What a usage weighs against limits."""
    return Amount(
        tokens=usage.tokens,
        cost_usd=usage.cost_usd,
        requests=usage.requests + usage.failed_requests,
        tool_calls=usage.tool_calls + usage.failed_tool_calls,
        steps=usage.steps,
    )


@attrs.frozen(kw_only=True)
class Held:
    """What others have of a budget."""

    spent: Amount = NOTHING
    reserved: Amount = NOTHING
    under_way: int = 0
    """How many calls they have under way."""
    largest: Amount | None = None
    """How large their largest call was, if there was one."""


NOBODY = Held()


@attrs.frozen(kw_only=True)
class Wanted:
    """What is asked of a budget that other processes draw on."""

    spends: Amount = NOTHING
    """What is spent at once."""
    reserves: Amount = NOTHING
    """What is set aside for a request."""
    reckoned: Amount = NOTHING
    """What must fit if no other call is under way."""
    knows: Amount | None = None
    """By which largest call that was reckoned; `None` if the caller's own size is known."""


class Shared(Protocol):
    """Where a budget stands that other processes draw on. These methods block, but for `changed`."""

    def take(self, quotas: Sequence[Quota], caller: str, sure: Amount) -> tuple[Amount, ...] | None:
        """Set aside what a request is expected to use, in all of these; `None` if one has no room for it now."""

    def take_one(self, quotas: Sequence[Quota], one: Amount) -> Quota | None:
        """Spend one tool call, or one step; the first of these that does not allow it, and then nothing is spent."""

    def changed(self) -> None:
        """Less is set aside than before: somebody else may have waited for that."""


class Quota:
    """The budget of one run or one step; see the module's rules."""

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
        """`known` is how large the calls of each caller are: a dict that others may know, and learn from, too."""
        self.limits = limits
        self.owner = owner
        """Whose limits these are, for messages."""
        self.path = path
        """Where they stand: the run itself, or a step of it."""
        self.spent = amount_of(spent)
        self.worked: Callable[[], float] = _no_time
        """How long was worked so far, where time is limited."""
        self.shared: Shared | None = None
        """Where it stands, if other processes draw on it."""
        self._others = NOBODY
        self._guess = guess
        self._watch = watch
        self._reserved = NOTHING
        self._under_way = 0
        self._known: dict[str, Amount] = {} if known is None else known
        self._largest: Amount | None = None
        self._sized = is_sized(limits)

    @property
    def exceeded(self) -> bool:
        """Whether more was spent than allowed."""
        return not self._fits(self.spent)

    def ask(self, caller: str, sure: Amount = NOTHING) -> Verdict:
        """Whether `caller` may make a request that uses at least what is `sure`; nothing is reserved yet."""
        reserved, under_way = self._reserved, self._under_way
        if self._others is not NOBODY:
            reserved, under_way = reserved + self._others.reserved, under_way + self._others.under_way
        if not self._allows(self.spent + reserved + ONE_REQUEST):
            return "refused"
        if not self._sized:
            return "granted"
        if caller not in self._known and self._reached():
            return "refused"
        if under_way and self._largest is None:
            return "wait"
        if self._fits(self.spent + reserved + self._expected(caller, sure)):
            return "granted"
        if under_way:
            return "wait"
        return "granted" if self._fits(self.spent + self._reckoned(caller, sure)) else "refused"

    def reserve(self, caller: str, sure: Amount = NOTHING) -> Amount:
        """Set aside what a granted call is expected to use."""
        return self.set_aside(self._expected(caller, sure) + ONE_REQUEST)

    def set_aside(self, expected: Amount) -> Amount:
        """Set so much aside for a call."""
        self._reserved += expected
        self._under_way += 1
        return expected

    def settle(self, caller: str, reserved: Amount, used: Usage) -> None:
        """Replace a reservation by what the call used."""
        self._reserved -= reserved
        self._under_way -= 1
        self._spend(amount_of(used))
        if _tells_a_size(used):
            self._learn(caller, amount_of(used).size)

    def spend(self, used: Usage, caller: str | None = None) -> None:
        """Count usage that was not reserved."""
        self._spend(amount_of(used))
        if caller is not None and _tells_a_size(used):
            self._learn(caller, amount_of(used).size)

    def allows(self, one: Amount) -> bool:
        """Whether one more tool call, or one more step, may begin."""
        return self._allows(self.spent + self._reserved + self._others.reserved + one)

    def begin(self, one: Amount) -> None:
        """Count a tool call or a step that begins."""
        self._spend(one)

    def learn(self, caller: str | None, size: Amount) -> None:
        """Know how large a call was that an earlier part of the run has made, of this caller or of anybody."""
        if size != NOTHING:
            self._learn(caller, size)

    def refuses(self, caller: str) -> bool:
        """Whether a call that cannot wait must not be made: its size is known and does not fit, or nothing is left."""
        return self.exceeded or (caller in self._known and not self._fits(self.spent + self._known[caller]))

    # --- with other processes ---

    def see(self, others: Held, limits: UsageLimits | None = None) -> None:
        """Know what others have of this budget, and its limits, if they were set elsewhere."""
        self.spent, self._others = self.own + others.spent, others
        if others.largest is not None:
            self._learn(None, others.largest)
        if limits is not None and limits != self.limits:
            self.limits, self._sized = limits, is_sized(limits)
        if self._watch is not None:
            self._watch(self)

    def take_in(self, used: Usage) -> None:
        """What others have spent is on this side's account from now on."""
        self.see(attrs.evolve(self._others, spent=self._others.spent.less(amount_of(used))))

    @property
    def own(self) -> Amount:
        """What was spent on this side."""
        return self.spent - self._others.spent

    def held(self) -> Held:
        """What this side has of the budget."""
        return Held(spent=self.own, reserved=self._reserved, under_way=self._under_way, largest=self._largest)

    def wanted(self, caller: str, sure: Amount) -> Wanted:
        """What a request of this caller asks for."""
        known = caller in self._known
        return Wanted(
            reserves=self._expected(caller, sure) + ONE_REQUEST,
            reckoned=self._reckoned(caller, sure),
            knows=None if known else (self._largest or NOTHING),
        )

    # --- for people and for code that looks ---

    def used(self) -> Resources:
        """What was spent so far, requests that are under way among it: see rule 7."""
        from .budgets import Resources  # what only runs with limits need

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
        """For each resource that has a limit: what was spent, and the limit."""
        used, pairs = self.used(), {}
        for limit, resource in _LIMITED.items():
            allowed = getattr(self.limits, limit)
            if allowed is not None:
                pairs[resource] = (getattr(used, resource), allowed)
        return pairs

    @property
    def fraction(self) -> float:
        """The share that is left of the resource of which least is left."""
        from .budgets import share_left  # as above

        return min((share_left(spent, limit) for spent, limit in self.limited().values()), default=1.0)

    def describe(self) -> str:
        """The limits and the spend, for people."""
        names = {resource: limit for limit, resource in _LIMITED.items()}
        ordered = sorted(self.limited().items(), key=lambda pair: pair[0] == "cost_usd")
        parts = [f"{_measured(each, *pair)} ({names[each]})" for each, pair in ordered]
        return f"{self.owner} has used {' and '.join(parts)}"

    def error(
        self, refused: str | None = None, sure: Amount = NOTHING, *, needed: Amount = NOTHING
    ) -> UsageLimitExceededError:
        """The error of a limit that was reached, or would be with what was refused: a call of `refused`, `needed`."""
        size = NOTHING if refused is None else self._reckoned(refused, sure)
        hidden = not self._sized or size == NOTHING or self.exceeded
        reckoned = "" if hidden else f"; the next call was reckoned at {self._sizes(size)}"
        error = UsageLimitExceededError(f"usage limit reached: {self.describe()}{reckoned}")
        error.limits = self._short(size + (needed if refused is None else needed + ONE_REQUEST))
        error.reached = self
        return error

    def _short(self, needed: Amount) -> tuple[str, ...]:
        """The limits that the next call would pass, or of which nothing is left for it."""
        wanted, short = self.spent + needed + Amount(requests=self._begun), []
        for limit, resource in _LIMITED.items():
            allowed = getattr(self.limits, limit)
            if allowed is None:
                continue
            if resource == "time_s":
                passed = self.worked() >= allowed
            elif resource in ("tokens", "cost_usd"):
                left = _rounding(allowed) if resource == "cost_usd" else 0.0
                spent = getattr(self.spent, resource)
                passed = getattr(wanted, resource) > allowed + left or spent >= allowed - left
            else:
                passed = getattr(wanted, resource) > allowed
            short.extend([limit] if passed else [])
        return tuple(short)

    def _sizes(self, amount: Amount) -> str:
        """The size of a call in what the limits are given in, for people."""
        tokens, cost = self.limits.total_tokens_limit, self.limits.total_cost_usd_limit
        parts = [] if tokens is None else [f"{amount.tokens:g} tokens"]
        return " and ".join(parts if cost is None else [*parts, f"${amount.cost_usd:.6g}"])

    # --- reckoning ---

    @property
    def _begun(self) -> int:
        """How many requests are under way."""
        return self._reserved.requests + self._others.reserved.requests

    def _spend(self, amount: Amount) -> None:
        self.spent += amount
        if self._watch is not None:
            self._watch(self)

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
        return fits(self.limits, amount)

    def _allows(self, amount: Amount) -> bool:
        return allows(self.limits, amount)

    def _reached(self) -> bool:
        return is_reached(self.limits, self.spent)


def is_sized(limits: UsageLimits) -> bool:
    """Whether it matters how large calls are."""
    return limits.total_tokens_limit is not None or limits.total_cost_usd_limit is not None


def fits(limits: UsageLimits, amount: Amount) -> bool:
    """Whether so many tokens and dollars are allowed."""
    tokens, cost = limits.total_tokens_limit, limits.total_cost_usd_limit
    if tokens is not None and amount.tokens > tokens:
        return False
    return cost is None or amount.cost_usd <= cost + _rounding(cost)


def allows(limits: UsageLimits, amount: Amount) -> bool:
    """Whether so many requests, tool calls and steps are allowed."""
    return (
        (limits.request_limit is None or amount.requests <= limits.request_limit)
        and (limits.tool_calls_limit is None or amount.tool_calls <= limits.tool_calls_limit)
        and (limits.step_limit is None or amount.steps <= limits.step_limit)
    )


def is_reached(limits: UsageLimits, spent: Amount) -> bool:
    """Whether nothing is left of the tokens or the dollars."""
    tokens, cost = limits.total_tokens_limit, limits.total_cost_usd_limit
    if tokens is not None and spent.tokens >= tokens:
        return True
    return cost is not None and spent.cost_usd >= cost - _rounding(cost)


def _no_time() -> float:
    return 0.0


def _tells_a_size(used: Usage) -> bool:
    """Whether something was answered: a request that failed says nothing of how large the next one is."""
    return used is not NO_USAGE and bool(used.requests or used.tokens or used.cost_usd)


def _measured(resource: str, spent: float, limit: float) -> str:
    if resource == "cost_usd":
        return f"${spent:.6g} of ${limit:.6g}"
    return f"{spent:g} of {limit:g} {_UNITS[resource]}"


def _rounding(cost_usd: float) -> float:
    """What sums of dollars may be off by: eight times 0.1 is a bit less than 0.8."""
    return _ROUNDING * (cost_usd + 1e-3)
