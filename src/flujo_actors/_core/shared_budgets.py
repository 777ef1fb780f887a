"""A budget that several processes draw on: each says what it has spent and set aside, and a store adds up.

Rules:

1. Whoever draws on a budget is a holder: the run's own process, or the remote step at a path. A holder has one share of
   the budget and always writes all of it, under its lease. So a share may be written twice, and whoever takes a remote
   step over writes it anew.
2. What a holder has set aside counts for as long as the lease lasts under which it was. What a dead process had set
   aside is free when its lease has run out, or when somebody takes over what it did.
3. More is set aside, or spent, only if all shares together leave room for it: decided and written in one transaction.
4. A holder that takes in what another one has spent deletes that one's share in the transaction that writes its own.
5. Of two writes of one holder the later one stands: by epoch, and then by version.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from .outcomes import RunId
from .paths import StepPath
from .quota import NOTHING, Amount, Held, Wanted, allows, fits, is_reached, is_sized
from .usage import UsageLimits


@attrs.frozen(kw_only=True)
class BudgetShare:
    """What one holder has spent of a budget, and set aside, in all."""

    run: RunId
    """Whose budget it is: the root run."""
    budget: StepPath
    """Where its limits stand: the run itself, or one of its steps."""
    holder: StepPath
    version: int = 0
    spent: Amount = NOTHING
    reserved: Amount = NOTHING
    under_way: int = 0
    """For how many calls that is."""
    largest: Amount | None = None
    """How large its largest call was, if it has made one."""
    absorbs: tuple[StepPath, ...] = ()
    """The shares of holders at or below these paths are contained in this one."""


@attrs.frozen(kw_only=True)
class BudgetClaim:
    """A share, and what is to be added to it if there is room."""

    share: BudgetShare
    wants: Wanted | None = None
    limits: UsageLimits | None = None
    """The limits, as whoever they belong to sets them; `None` from all others."""
    reads: bool = False
    """Whether the share is not to be written: who takes a step over does not know yet what it has spent."""


@attrs.frozen(kw_only=True)
class BudgetTold:
    """What a store says of a budget."""

    granted: bool
    """Whether what was wanted is spent or set aside now; of several claims all are granted, or none."""
    others: Held
    """What all other holders have spent and set aside."""
    limits: UsageLimits | None = None
    """The limits; `None` if nobody has set any."""


def grants(limits: UsageLimits | None, claim: BudgetClaim, others: Held) -> bool:
    """Whether a budget has room for what is wanted; the rules are those of `quota`."""
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
    return fits(limits, after) or (not under_way and fits(limits, spent + wants.reckoned))


def granted_share(claim: BudgetClaim) -> BudgetShare:
    """The share with what was wanted."""
    wants, share = claim.wants, claim.share
    if wants is None:
        return share
    return attrs.evolve(
        share,
        spent=share.spent + wants.spends,
        reserved=share.reserved + wants.reserves,
        under_way=share.under_way + wants.reserves.requests,
    )


def added_up(shares: Sequence[tuple[BudgetShare, bool]]) -> Held:
    """All of these together; what is set aside counts only where the share's lease still lasts."""
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
