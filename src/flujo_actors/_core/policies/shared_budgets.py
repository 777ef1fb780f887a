"""Budgets shared by several processes: each holder reports, a store adds up.

Rules:

1. A holder draws on a budget: the run's own process, or the remote step at a path. A holder has one share of
   the budget and always writes all of it, under its lease. So a share may be written twice, and the next owner of a
   remote step writes it anew.
2. A reservation counts while its lease lasts. Reservations of a dead process are released when its lease expires, or
   when another process claims its work.
3. More is reserved, or spent, only if all shares together leave room for it: decided and written in one transaction.
4. A holder that absorbs the spending of another one deletes that share in the transaction that writes its own.
5. Of two writes of one holder the later one wins: by epoch, and then by version.
6. A budget of a window belongs to a name, a scope value and the start of the window instead of a run. Each session of a
   run is a holder of its own, and usage recalled from records does not count: it counts in the window of its
   reservation. No holder absorbs another one.
7. The shares of ended sessions of a window are added up in one share, so the cost of a draw does not grow with the
   number of runs.
8. Limits raised by a person hold for one window and scope value, and for all of its runs.
9. The first draw that finds the share `warn_at` of a limit spent is asked to warn, once for each budget.
"""

from __future__ import annotations

import abc
import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from .. import seams
from ..outcomes import RunId
from ..quota import (
    LIMITED,
    NONE_HELD,
    NOTHING,
    Amount,
    Held,
    Quota,
    ReservationRequest,
    allows,
    fits,
    is_reached,
    is_sized,
)
from ..step_paths import StepPath
from ..usage import Resources, Usage, UsageLimits, zone_of

if TYPE_CHECKING:
    import datetime


@attrs.frozen(kw_only=True)
class BudgetShare:
    """Total spending and reservations of one holder."""

    run: RunId
    """Root run of the budget."""
    budget: StepPath
    """Path of its limits: the run itself or one of its steps."""
    holder: StepPath
    """Path of the holder."""
    version: int = 0
    """Number of the write; a lower one is ignored."""
    spent: Amount = NOTHING
    """Spent amount."""
    reserved: Amount = NOTHING
    """Reserved amount."""
    under_way: int = 0
    """For how many calls that is."""
    largest: Amount | None = None
    """Size of its largest call, if any."""
    absorbs: tuple[StepPath, ...] = ()
    """Paths of holders whose shares are contained in this one."""


@attrs.frozen(kw_only=True)
class BudgetClaim:
    """Share with an amount to add if there is room."""

    share: BudgetShare
    """Share of the claimant."""
    wants: ReservationRequest | None = None
    """Amount to add, if any."""
    limits: UsageLimits | None = None
    """Limits set by their owner; `None` from all other holders."""
    reads: bool = False
    """Whether the share is read-only: its spending is not known yet."""
    ends_at: float | None = None
    """End of the window; `None` for a budget of a run."""
    raises: Mapping[str, float] | None = None
    """Raised limits of the window, by field."""
    folds: bool = False
    """Whether to add up the shares of ended sessions (rule 7)."""


@attrs.frozen(kw_only=True)
class BudgetSnapshot:
    """State of a budget in the store."""

    granted: bool
    """Whether the request was granted; claims are granted all or none."""
    others: Held
    """Total of all other holders."""
    limits: UsageLimits | None = None
    """Limits, raised ones included; `None` if unset."""
    warns: bool = False
    """Whether this draw has to warn (rule 9)."""


def grants(limits: UsageLimits | None, claim: BudgetClaim, others: Held) -> bool:
    """Return whether a budget has room for a claim (`quota` rules).

    Args:
        limits: limits of the budget.
        claim: claim to decide.
        others: spending and reservations of the other holders.
    """
    wants, mine = claim.wants, claim.share
    if wants is None or limits is None:
        return True
    spent = mine.spent + others.spent
    after = spent + mine.reserved + others.reserved + wants.spends + wants.reserves
    if not allows(limits, after):
        return False
    if not is_sized(limits) or not wants.reserves.requests:
        return True
    under_way, largest = mine.under_way + others.under_way, _largest(mine.largest, others.largest)
    if wants.knows is not None:
        if is_reached(limits, spent) or (under_way and largest is None):
            return False
        if largest is not None and wants.knows.largest(largest) != wants.knows.size:
            return False  # it was reckoned without knowing how large calls are
    return fits(limits, after) or (not under_way and fits(limits, spent + wants.estimate))


def granted_share(claim: BudgetClaim) -> BudgetShare:
    """Return the share including the granted amount.

    Args:
        claim: granted claim.
    """
    wants, share = claim.wants, claim.share
    if wants is None:
        return share
    return attrs.evolve(
        share,
        spent=share.spent + wants.spends,
        reserved=share.reserved + wants.reserves,
        under_way=share.under_way + wants.reserves.requests,
    )


def warns(limits: UsageLimits | None, claim: BudgetClaim, others: Held) -> bool:
    """Return whether the share `warn_at` of a limit is spent."""
    if limits is None or limits.warn_at is None:
        return False
    return is_spent(limits, claim.share.spent + others.spent, limits.warn_at)


def is_spent(limits: UsageLimits, spent: Amount, share: float) -> bool:
    """Return whether this share of a limit is spent."""
    pairs = [(getattr(spent, LIMITED[name]), getattr(limits, name)) for name in RAISABLE]
    return any(limit is not None and used >= share * limit * (1 - _ROUNDING) for used, limit in pairs)


def raised_limits(limits: UsageLimits | None, raised: Mapping[str, Any] | None) -> UsageLimits | None:
    """Return limits with raised ones; a larger declared limit wins."""
    if limits is None or not raised:
        return limits
    known = {name: (getattr(limits, name), raised[name]) for name in RAISABLE if raised.get(name) is not None}
    return attrs.evolve(limits, **{name: max(pair) for name, pair in known.items() if pair[0] is not None})


def added_up(shares: Sequence[tuple[BudgetShare, bool]]) -> Held:
    """Return the sum of shares; reservations count only while their lease lasts."""
    spent, reserved, under_way = NOTHING, NOTHING, 0
    largest: Amount | None = None
    for share, lasts in shares:
        spent, largest = spent + share.spent, _largest(largest, share.largest)
        if lasts:
            reserved, under_way = reserved + share.reserved, under_way + share.under_way
    return Held(spent=spent, reserved=reserved, under_way=under_way, largest=largest)


def _largest(one: Amount | None, other: Amount | None) -> Amount | None:
    if one is None or other is None:
        return other if one is None else one
    return one.largest(other)


# --- Budgets of windows ---------------------------------------------------------------------------------------------


RAISABLE = ("total_cost_usd_limit", "total_tokens_limit", "request_limit", "tool_calls_limit")
"""Limits that a window can have."""

FOLDED = StepPath("")
"""Holder of the shares of ended sessions."""

KEPT_S = 400 * 86_400.0
"""Time for which a window is kept after its end."""

_ROUNDING = 1e-9

WINDOW_PREFIX = "budget:"
"""Beginning of the keys of windows, in the place of a run's id."""


@attrs.frozen(kw_only=True)
class StoredBudget:
    """Stored budget of a window, with the sum of its shares."""

    key: str
    limits: UsageLimits | None
    held: Held


@attrs.frozen(kw_only=True)
class BudgetInfo:
    """Budget of one window and scope value; see `RunClient.budgets`."""

    name: str
    """Name of the budget."""
    scope: str
    """Scope value: a key, a label's value, or empty for all runs of the name."""
    window: str
    """Length of the window."""
    starts_at: float
    """Seconds since the epoch."""
    ends_at: float
    """End of the window in epoch seconds."""
    spent: Resources
    """Spent amounts."""
    reserved: Resources
    """Reserved amounts of requests in flight."""
    limits: UsageLimits
    """Limits of the window."""


def window_key(name: str, scope: str, value: str, window: str, starts_at: float) -> RunId:
    """Return the key of a budget."""
    return RunId(WINDOW_PREFIX + json.dumps([name, scope, value, window, starts_at]))


def budget_info(stored: StoredBudget) -> BudgetInfo | None:
    """Return a stored budget for readers; None if it has no limits."""
    if stored.limits is None or stored.limits.window is None:
        return None
    name, _, value, window, starts_at = json.loads(stored.key[len(WINDOW_PREFIX) :])
    return BudgetInfo(
        name=name,
        scope=value,
        window=window,
        starts_at=starts_at,
        ends_at=window_at(stored.limits, starts_at)[1],
        spent=_resources(stored.held.spent),
        reserved=_resources(stored.held.reserved),
        limits=stored.limits,
    )


def budget_infos(stored: Sequence[StoredBudget], name: str | None, scope: str | None) -> list[BudgetInfo]:
    """Return stored budgets, optionally of one name or scope value."""
    found = [info for each in stored if (info := budget_info(each)) is not None]
    chosen = [each for each in found if name in (None, each.name) and scope in (None, each.scope)]
    return sorted(chosen, key=lambda each: (each.name, each.scope, each.window, each.starts_at))


def _resources(amount: Amount) -> Resources:
    return Resources(
        cost_usd=amount.cost_usd, tokens=amount.tokens, requests=amount.requests, tool_calls=amount.tool_calls
    )


def window_at(limits: UsageLimits, now: float) -> tuple[float, float]:
    """Return start and end of a time's window, in its zone."""
    import datetime  # only for windows

    zone = zone_of(limits.zone)
    if limits.window == "hour":
        return _hour_at(now, zone)
    local = datetime.datetime.fromtimestamp(now, zone)
    first = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    day = datetime.timedelta(days=1)
    if limits.window == "month":
        first = first.replace(day=1)
        return first.timestamp(), (first + 32 * day).replace(day=1).timestamp()
    if limits.window == "week":
        first -= first.weekday() * day
        return first.timestamp(), (first + 7 * day).timestamp()
    return first.timestamp(), (first + day).timestamp()


def _hour_at(now: float, zone: datetime.tzinfo) -> tuple[float, float]:
    """Return start and end of an hour, cut by half-hour clock changes."""
    begin = _full_hour(now, zone)
    before, after = _full_hour(begin, zone), _full_hour(begin + 3599, zone)
    return begin if before == begin else before + 3600, begin + 3600 if after <= begin else after


def _full_hour(now: float, zone: datetime.tzinfo) -> float:
    """Return the last full hour by the offset of a time."""
    import datetime  # only for windows

    offset = datetime.datetime.fromtimestamp(now, zone).utcoffset() or datetime.timedelta()
    whole = math.floor(now)
    return whole - (whole + offset.total_seconds()) % 3600


class KeyedQuota(Quota):
    """Quota whose shares belong to a key, not a run (rule 6)."""

    @property
    @abc.abstractmethod
    def key(self) -> RunId:
        """Key of the budget, in the place of a run's id."""

    def recall(self, used: Usage, caller: str | None = None) -> None:
        """Leave out usage of earlier sessions: their shares have it."""

    def recall_tool_call(self, one: Amount) -> None:
        """Leave out tool calls of earlier sessions."""


_OF_PARENT = StepPath("~children")
"""Path of a budget for children, apart from own limits."""


class ParentQuota(KeyedQuota):
    """Quota of a parent run, shared with its child runs."""

    def __init__(self, limits: UsageLimits, *, parent: RunId, guess: Amount) -> None:
        super().__init__(limits, owner=parent_owner(parent), guess=guess, path=_OF_PARENT)
        self._parent = parent

    @property
    def key(self) -> RunId:
        """Id of the parent."""
        return self._parent


def parent_owner(parent: str) -> str:
    """Return the owner of a parent's budget in messages."""
    return f"evaluation {parent!r}"


class WindowQuota(KeyedQuota):
    """Quota of the current window; see rule 6."""

    def __init__(
        self,
        limits: UsageLimits,
        *,
        name: str,
        value: str,
        guess: Amount,
        now: float,
        watch: Callable[[Quota], None] | None = None,
        known: dict[str, Amount] | None = None,
    ) -> None:
        shown = f" for {value!r}" if value else ""
        owner = f"budget {name!r}{shown} of this {limits.window}"
        super().__init__(limits, owner=owner, guess=guess, watch=watch, known=known)
        self.declared, self.name, self.value = limits, name, value
        self.starts_at, self.ends_at = window_at(limits, now)
        self._behind = now - seams.clock.monotonic()
        self._former: dict[float, WindowQuota] = {}

    @property
    def key(self) -> RunId:
        """Key of the current window's budget."""
        limits = self.declared
        return window_key(self.name, limits.scope or "pipeline", self.value, limits.window or "", self.starts_at)

    def roll(self, now: float) -> WindowQuota | None:
        """Begin the window of this time; return the former window's quota."""
        starts_at, ends_at = window_at(self.declared, now)
        self._behind = now - seams.clock.monotonic()
        if starts_at <= self.starts_at:
            return None
        former = copy.copy(self)
        former.watch = None
        self._former[self.starts_at] = former
        self.starts_at, self.ends_at, self.limits = starts_at, ends_at, self.declared
        self.spent, self._reserved, self._under_way, self._others = NOTHING, NOTHING, 0, NONE_HELD
        return former

    @property
    def warns(self) -> bool:
        """Return whether the share `warn_at` is spent, as far as known."""
        share = self.limits.warn_at
        return share is not None and is_spent(self.limits, self.spent, share)

    def reserve_amount(self, expected: Amount) -> Amount:
        """Set so much aside, in the current window."""
        return super().reserve_amount(_WindowAmount(**attrs.asdict(expected), starts_at=self.starts_at))

    def settle(self, caller: str, reserved: Amount, used: Usage) -> None:
        """Settle in the window of the reservation."""
        starts_at = reserved.starts_at if isinstance(reserved, _WindowAmount) else self.starts_at
        if starts_at == self.starts_at:
            super().settle(caller, reserved, used)
        else:
            self._former[starts_at].settle(caller, reserved, used)

    def absorb(self, used: Usage) -> None:
        """Exclude usage of remote steps, whose sessions have own shares."""

    def refuses(self, caller: str) -> bool:
        """Return whether a call is refused while the known window lasts."""
        lasts = self._behind + seams.clock.monotonic() < (self.ends_at or 0.0)
        return lasts and (is_reached(self.limits, self.spent) or super().refuses(caller))


@attrs.frozen(kw_only=True)
class _WindowAmount(Amount):
    """Reservation in a window."""

    starts_at: float
