"""What one process draws on the budgets of a run that other processes draw on, too (distributed quotas).

Rules:

1. A budget is shared from the first remote step below it on. Until then, and in runs without remote steps or without
   limits, the store knows nothing of it.
2. Nothing is set aside before the store has agreed: one transaction for each request to a model, and for each step and
   tool call that begins.
3. What a call used is written with the next record of the run, in its transaction, or by itself if none comes soon.
4. What a remote step used is taken over by whoever waited for it when it has ended; what ended in an earlier part of
   the run is known from its records.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import trio
from outcome import Error

from .._bridge.guard import guarded
from .._core.outcomes import RunId
from .._core.paths import ROOT, StepPath
from .._core.quota import NOTHING, Amount, Held, Quota, Wanted
from .._core.records import Append
from .._core.shared_budgets import BudgetClaim, BudgetShare
from .._durable.group_commit import Expected, JournalWriter, Speaker, T
from .._durable.store_journal import StoreJournal
from .._durable.store_wait import call_store, post
from .._locks import QUOTA_LOCK
from .._run.messages import Request
from ..errors import StoreError
from ..stores._port import Store

DRAW_S = 0.002
"""How long a draw takes."""

SOON_S = 0.02
"""How long a settlement waits for a record to be written with."""


@attrs.define(kw_only=True, eq=False)
class _Entry:
    """One budget, as this process knows it."""

    holder: StepPath
    home: bool
    """Whether its limits stand here."""
    written: Held = attrs.field(factory=Held)
    absorbs: tuple[StepPath, ...] = ()
    taken: Amount = NOTHING
    """What those have used whose shares are absorbed by the next write: till then the store has it on theirs."""
    opened: bool = False


class BudgetBook:
    """The budgets that the steps of one run draw on in this process; see the module's rules."""

    def __init__(self, store: Store, root: RunId, journal: StoreJournal) -> None:
        if not hasattr(store, "draw"):
            raise StoreError(f"{type(store).__name__} keeps no budgets (`draw`): remote steps cannot have limits there")
        self._store, self._root, self._journal = store, root, weakref.ref(journal)
        self._lease = journal.lease
        self._entries: weakref.WeakKeyDictionary[Quota, _Entry] = weakref.WeakKeyDictionary()
        self._versions = itertools.count(1)
        self._lock = threading.Lock()
        self._token = trio.lowlevel.current_trio_token()
        self._flushes = False
        self.opening = trio.Lock()
        """Held while budgets become shared: remote steps that share one begin after that."""

    # --- opening ---

    def knows(self, quotas: Sequence[Quota]) -> bool:
        """Whether all of these are shared."""
        return all(quota in self._entries and self._entries[quota].opened for quota in quotas)

    def enter_own(self, quotas: Sequence[Quota]) -> None:
        """Share budgets whose limits stand here, from now on; those inside a shared one are shared with it."""
        around = self._entries.get(quotas[0])
        self.enter(quotas, holder=ROOT if around is None else around.holder, home=True)

    def enter(self, quotas: Sequence[Quota], *, holder: StepPath, home: bool) -> None:
        """Share budgets from now on: those whose limits stand here, or those of whoever asked for a remote step."""
        with QUOTA_LOCK:
            for quota in quotas:
                if quota not in self._entries:
                    self._entries[quota] = _Entry(holder=holder, home=home)
                    quota.shared = self

    def open(self, quotas: Sequence[Quota]) -> None:
        """Have the store know these budgets, and know what the others have of them; blocks."""
        self._draw(quotas, first=True)

    # --- what quotas ask for; see `Shared` ---

    def take(self, quotas: Sequence[Quota], caller: str, sure: Amount) -> tuple[Amount, ...] | None:
        return self._draw(
            quotas, lambda quota: quota.wanted(caller, sure), lambda quota, wanted: quota.set_aside(wanted.reserves)
        )

    def take_one(self, quotas: Sequence[Quota], one: Amount) -> Quota | None:
        taken = self._draw(quotas, lambda quota: Wanted(spends=one), lambda quota, wanted: quota.begin(wanted.spends))
        if taken is not None:
            return None
        with QUOTA_LOCK:
            return next((quota for quota in quotas if not quota.allows(one)), quotas[0])

    def changed(self) -> None:
        post(self._token, self._flush_soon)

    # --- what the office does ---

    def take_in(self, quotas: Sequence[Quota], paths: Sequence[StepPath], used: Amount = NOTHING) -> None:
        """What the remote steps at these paths used is on this side's account: their shares go with the next write.

        Whoever counts it does both under the lock of the quotas, or it counts twice for a moment.
        """
        with QUOTA_LOCK:
            for quota in quotas:
                entry = self._entries[quota]
                entry.absorbs, entry.taken = (*entry.absorbs, *paths), entry.taken + used

    def write(self, quotas: Sequence[Quota]) -> None:
        """Write what this side has of these budgets, and know what the others have; blocks."""
        self._draw(quotas)

    def unwritten(self) -> tuple[BudgetShare, ...] | None:
        """The shares that have changed since they were written, to be written now; `None` while somebody draws.

        A share that is written later than a draw, and does not know what came of it, would undo it. One that takes over
        what remote steps used is left to the draw that follows: were it overtaken by that, they would count twice.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            with QUOTA_LOCK:
                changed = [(quota, entry) for quota, entry in self._changed() if not entry.absorbs]
                shares = tuple(self._share(quota, entry) for quota, entry in changed)
                for quota, entry in changed:
                    entry.written = quota.held()
            return shares
        finally:
            self._lock.release()

    def _changed(self) -> list[tuple[Quota, _Entry]]:
        return [(quota, entry) for quota, entry in list(self._entries.items()) if entry.written != quota.held()]

    # --- writing ---

    def _draw(
        self,
        quotas: Sequence[Quota],
        wants: Callable[[Quota], Wanted] | None = None,
        apply: Callable[[Quota, Wanted], object] = lambda quota, wanted: None,
        *,
        first: bool = False,
    ) -> tuple[Any, ...] | None:
        """What `apply` returns for each of the budgets, if they grant what is wanted; one draws at a time."""
        with self._lock:
            with QUOTA_LOCK:
                self.enter_own(quotas)
                entries = [self._entries[quota] for quota in quotas]
                claims = [self._claim(quota, wants and wants(quota), first) for quota in quotas]
                carried = [entry.taken for entry in entries]
            told = self._store.draw(self._lease, claims)
            with QUOTA_LOCK:
                for quota, entry, claim, each, taken in zip(quotas, entries, claims, told, carried, strict=True):
                    entry.opened = True
                    late = entry.taken - taken  # it is on this side's account by now
                    others = attrs.evolve(each.others, spent=each.others.spent.less(late))
                    quota.see(others, None if entry.home else each.limits)
                    if not claim.reads:
                        entry.absorbs, entry.taken = entry.absorbs[len(claim.share.absorbs) :], late
                        entry.written = _held_in(claim)
                if not told[0].granted:
                    return None
                pairs = zip(quotas, claims, strict=True)
                return tuple(claim.wants and self._applied(quota, claim.wants, apply) for quota, claim in pairs)

    def _applied(self, quota: Quota, wanted: Wanted, apply: Callable[[Quota, Wanted], object]) -> Any:
        before, entry = quota.held(), self._entries[quota]
        applied = apply(quota, wanted)
        if entry.written == before:
            entry.written = quota.held()
        return applied

    def _claim(self, quota: Quota, wants: Wanted | None, first: bool) -> BudgetClaim:
        entry = self._entries[quota]
        return BudgetClaim(
            share=self._share(quota, entry),
            wants=wants,
            limits=quota.limits if entry.home else None,
            reads=first and not entry.home,
        )

    def _share(self, quota: Quota, entry: _Entry) -> BudgetShare:
        held = quota.held()
        return BudgetShare(
            run=self._root,
            budget=quota.path,
            holder=entry.holder,
            version=next(self._versions),
            spent=held.spent,
            reserved=held.reserved,
            under_way=held.under_way,
            largest=held.largest,
            absorbs=entry.absorbs,
        )

    # --- settlements that no record carries ---

    def _flush_soon(self) -> None:
        if not self._flushes:
            self._flushes = True
            trio.lowlevel.spawn_system_task(self._flush)

    async def _flush(self) -> None:
        await trio.sleep(SOON_S)
        self._flushes = False
        got = await guarded(call_store, self._write_changed)
        if isinstance(got, Error):
            return  # the lease is lost, or the store is away: the next record says it, or nobody needs it

    def _write_changed(self) -> None:
        with QUOTA_LOCK:
            quotas = [quota for quota, _ in self._changed()]
        if quotas:
            self._draw(quotas)


def _held_in(claim: BudgetClaim) -> Held:
    share = claim.share
    return Held(spent=share.spent, reserved=share.reserved, under_way=share.under_way, largest=share.largest)


@attrs.frozen(eq=False)
class SharingWriter:
    """Writes what a run has spent of shared budgets with whatever record comes next."""

    writer: JournalWriter
    book: BudgetBook

    async def write(self, append: Append, speaker: Speaker | None, then: T) -> T:
        """As the writer's own."""
        shares = await self._shares()
        return await self.writer.write(attrs.evolve(append, shares=shares) if shares else append, speaker, then)

    async def _shares(self) -> tuple[BudgetShare, ...]:
        with trio.CancelScope(shield=True):  # as short as a write, and whoever is cancelled waits for those, too
            while True:
                shares = self.book.unwritten()
                if shares is not None:
                    return shares
                await trio.sleep(DRAW_S)
        raise AssertionError("a shielded scope is not left")

    def expect(self, run: Expected) -> None:
        """As the writer's own."""
        self.writer.expect(run)


def book_of(journal: StoreJournal) -> BudgetBook | None:
    """The book of a run, if one was opened."""
    return getattr(journal._writer, "book", None)


def opened_book(store: Store, root: RunId, journal: StoreJournal) -> BudgetBook:
    """The book of a run, which is opened if it was not."""
    book = book_of(journal)
    if book is None:
        book = BudgetBook(store, root, journal)
        writer: Any = SharingWriter(journal._writer, book)
        journal._writer = writer
    return book


async def shared(
    store: Store,
    root: RunId,
    journal: StoreJournal,
    quotas: Sequence[Quota],
    *,
    earlier: Sequence[StepPath],
    counted: Sequence[StepPath],
) -> None:
    """Share the budgets of a step that is about to be performed elsewhere.

    What `earlier` parts of the run have settled is on this side's account, and what was `counted` of the step itself.
    """
    book = opened_book(store, root, journal)
    async with book.opening:
        is_new = not book.knows(quotas)
        if is_new or counted:
            book.enter_own(quotas)
            book.take_in(quotas, [*(earlier if is_new else ()), *counted])
            await call_store(functools.partial(book.open, quotas))


async def drawn_on(store: Store, root: RunId, journal: StoreJournal, requests: Sequence[Request]) -> None:
    """Draw on the budgets of whoever asked for these steps, if there are any."""
    if any(request.quotas for request in requests):
        book = opened_book(store, root, journal)
        for request in requests:
            book.enter(request.quotas, holder=request.path, home=False)
        await call_store(functools.partial(book.open, [quota for each in requests for quota in each.quotas]))
