"""Budget ledger of one process for budgets shared with other processes.

Rules:

1. A budget is shared from the first remote step below it on. Until then, and in runs without remote steps or without
   limits, the store does not know it.
2. Nothing is reserved before the store has agreed: one transaction for each request to a model, and for each step and
   tool call that begins.
3. Actual usage is written with the next record of the run, in its transaction, or by itself after a delay.
4. Usage of an ended remote step is absorbed by its waiting caller; earlier sessions are known from the run's
   records.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import attrs
import trio
from outcome import Error

from .._bridge.user_code_guard import guarded
from .._core.labels import PARENT
from .._core.locks import QUOTA_LOCK
from .._core.outcomes import RunId
from .._core.policies.shared_budgets import (
    RAISABLE,
    BudgetClaim,
    BudgetShare,
    BudgetSnapshot,
    KeyedQuota,
    ParentQuota,
    WindowQuota,
    warns,
)
from .._core.quota import NOTHING, Amount, Held, Quota, ReservationRequest
from .._core.records.records import Append, Lease
from .._core.step_paths import ROOT, StepPath
from .._core.usage import UsageLimits
from .._durable.group_commit import CommitWaiter, Expected, JournalWriter, T
from .._durable.store_executor import call_store, post
from .._durable.store_journal import StoreJournal
from .._runtime.run.messages import StepRequest
from .._runtime.run.run_environment import Run
from .._runtime.tree.run_supervisor import Windows
from ..errors import DeclarationError, StoreError
from ..stores._store_port import Store

logger = logging.getLogger("flujo_actors")

DRAW_S = 0.002
"""Time of a draw."""

SOON_S = 0.02
"""Time for which a settlement waits for another record."""


@attrs.define(kw_only=True, eq=False)
class _Entry:
    """One budget, as known to this process."""

    holder: StepPath
    home: bool
    """Whether its limits are local."""
    written: Held = attrs.field(factory=Held)
    absorbs: tuple[StepPath, ...] = ()
    taken: Amount = NOTHING
    """Usage of holders, absorbed by the next write."""
    opened: bool = False
    raises: Mapping[str, float] | None = None
    """Raised limits that the next draw writes."""
    warned: bool = False
    """Whether the share `warn_at` was found spent."""


class BudgetLedger:
    """Shared budgets of one run's steps in this process."""

    def __init__(self, store: Store, root: RunId, journal: StoreJournal) -> None:
        if not hasattr(store, "draw"):
            raise StoreError(f"{type(store).__name__} keeps no budgets (`draw`): remote steps cannot have limits there")
        self._store, self._root, self._journal = store, root, weakref.ref(journal)
        self._lease = journal.lease
        self._entries: weakref.WeakKeyDictionary[Quota, _Entry] = weakref.WeakKeyDictionary()
        self._formers: weakref.WeakSet[Quota] = weakref.WeakSet()
        self._versions = itertools.count(1)
        self._lock = threading.Lock()
        self._token = trio.lowlevel.current_trio_token()
        self._flushes = False
        self.warn: Callable[[WindowQuota], None] | None = None
        """Callback of a draw that has to warn, on the trio thread."""
        self.opening = trio.Lock()
        """Lock while budgets become shared: their remote steps begin after that."""

    # --- opening ---

    def knows(self, quotas: Sequence[Quota]) -> bool:
        """Return whether all of these are shared."""
        return all(quota in self._entries and self._entries[quota].opened for quota in quotas)

    def enter_own(self, quotas: Sequence[Quota]) -> None:
        """Share local budgets from now on, nested ones with their outer."""
        around = self._entries.get(quotas[0])
        self.enter(quotas, holder=ROOT if around is None else around.holder, home=True)

    def enter(self, quotas: Sequence[Quota], *, holder: StepPath, home: bool) -> None:
        """Share budgets from now on, local or of a remote caller."""
        with QUOTA_LOCK:
            for quota in quotas:
                if quota not in self._entries:
                    self._entries[quota] = _Entry(holder=holder, home=home)
                    quota.shared = self

    def enter_windows(
        self, quotas: Sequence[WindowQuota], *, holder: StepPath, raised: Callable[[str], Mapping[str, Any]]
    ) -> None:
        """Share the run's window budgets, with limits raised by answers."""
        self.enter(quotas, holder=holder, home=True)
        for quota in quotas:
            known = {name: value for name, value in raised(quota.key).items() if name in RAISABLE and value is not None}
            self._entries[quota].raises = known or None

    def open(self, quotas: Sequence[Quota]) -> None:
        """Register these budgets in the store and read the other shares; blocks."""
        self._draw(quotas, first=True)

    # --- quota interface; see `Shared` ---

    def reserve_all(self, quotas: Sequence[Quota], caller: str, sure: Amount) -> tuple[Amount, ...] | None:
        return self._draw(
            quotas,
            lambda quota: quota.reservation_request(caller, sure),
            lambda quota, wanted: quota.reserve_amount(wanted.reserves),
        )

    def spend_one(self, quotas: Sequence[Quota], one: Amount) -> Quota | None:
        taken = self._draw(
            quotas, lambda quota: ReservationRequest(spends=one), lambda quota, wanted: quota.begin(wanted.spends)
        )
        if taken is not None:
            return None
        with QUOTA_LOCK:
            return next((quota for quota in quotas if not quota.allows(one)), quotas[0])

    def changed(self) -> None:
        post(self._token, self._flush_soon)

    # --- dispatcher interface ---

    def absorb(self, quotas: Sequence[Quota], paths: Sequence[StepPath], used: Amount = NOTHING) -> None:
        """Absorb remote steps' usage; their shares end with the next write.

        The caller counts it under the same lock of the quotas, or it would count twice for a moment.
        """
        with QUOTA_LOCK:
            for quota in quotas:
                if isinstance(quota, WindowQuota):
                    continue  # the remote step has a share of its own
                entry = self._entries[quota]
                entry.absorbs, entry.taken = (*entry.absorbs, *paths), entry.taken + used

    def write(self, quotas: Sequence[Quota]) -> None:
        """Write this side's shares of these budgets and read the others; blocks."""
        self._draw(quotas)

    def write_warnings(self) -> None:
        """Draw on windows whose `warn_at` share is spent; blocks."""
        with QUOTA_LOCK:
            due = [quota for quota, entry in list(self._entries.items()) if _warns(quota, entry)]
        if due:
            self._draw(due)

    def unwritten(self) -> tuple[BudgetShare, ...] | None:
        """Return unsaved budget shares; None while a reservation is in flight.

        A share written after a draw without its result would revert it. A share that absorbs remote usage is left to
        the next draw: overtaken by that, it would count twice.
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
        wants: Callable[[Quota], ReservationRequest] | None = None,
        apply: Callable[[Quota, ReservationRequest], object] = lambda quota, wanted: None,
        *,
        first: bool = False,
    ) -> tuple[Any, ...] | None:
        """Return `apply`'s results for granted budgets, one draw at a time."""
        with self._lock:
            begins = wants is not None and any(isinstance(quota, WindowQuota) for quota in quotas)
            now = self._store.now() if begins else 0.0
            with QUOTA_LOCK:
                self.enter_own(quotas)
                if begins:  # a settlement belongs to the window of its reservation
                    self._roll(quotas, now)
                entries = [self._entries[quota] for quota in quotas]
                claims = [self._claim(quota, wants and wants(quota), first) for quota in quotas]
                carried = [entry.taken for entry in entries]
            replies = self._store.draw(self._lease, claims)
            with QUOTA_LOCK:
                for quota, entry, claim, each, taken in zip(quotas, entries, claims, replies, carried, strict=True):
                    entry.opened = True
                    late = entry.taken - taken  # it is on this side's account by now
                    others = attrs.evolve(each.others, spent=each.others.spent.less(late))
                    if isinstance(quota, WindowQuota):
                        quota.update_others(others, each.limits)
                        self._note_warning(quota, entry, claim, each)
                    else:
                        quota.update_others(others, None if entry.home else each.limits)
                    if not claim.reads:
                        entry.absorbs, entry.taken = entry.absorbs[len(claim.share.absorbs) :], late
                        entry.written = _held_in(claim)
                if not replies[0].granted:
                    return None
                pairs = zip(quotas, claims, strict=True)
                return tuple(claim.wants and self._applied(quota, claim.wants, apply) for quota, claim in pairs)

    def _roll(self, quotas: Sequence[Quota], now: float) -> None:
        """Begin the current windows; the former ones keep their shares."""
        for quota in quotas:
            former = quota.roll(now) if isinstance(quota, WindowQuota) and quota not in self._formers else None
            if former is not None:
                entry = self._entries[former] = self._entries[quota]
                self._formers.add(former)
                self._entries[quota] = _Entry(holder=entry.holder, home=True)

    def _note_warning(self, quota: WindowQuota, entry: _Entry, claim: BudgetClaim, found: BudgetSnapshot) -> None:
        entry.raises = None
        entry.home = entry.home or found.limits is None  # a remote step that is the first one of its window
        entry.warned = entry.warned or warns(found.limits, claim, found.others)
        if found.warns and self.warn is not None:
            post(self._token, functools.partial(self.warn, quota))

    def _applied(
        self, quota: Quota, wanted: ReservationRequest, apply: Callable[[Quota, ReservationRequest], object]
    ) -> Any:
        before, entry = quota.held(), self._entries[quota]
        applied = apply(quota, wanted)
        if entry.written == before:
            entry.written = quota.held()
        return applied

    def _claim(self, quota: Quota, wants: ReservationRequest | None, first: bool) -> BudgetClaim:
        entry = self._entries[quota]
        claim = BudgetClaim(
            share=self._share(quota, entry),
            wants=wants,
            limits=quota.limits if entry.home else None,
            reads=first and not entry.home,
        )
        if not isinstance(quota, WindowQuota):
            return claim
        return attrs.evolve(
            claim,
            limits=quota.declared if entry.home else None,
            ends_at=quota.ends_at,
            raises=entry.raises,
            folds=not entry.opened,
        )

    def _share(self, quota: Quota, entry: _Entry) -> BudgetShare:
        held = quota.held()
        return BudgetShare(
            run=quota.key if isinstance(quota, KeyedQuota) else self._root,
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
            return  # the lease is lost, or the store is away: the next record carries it, or it is not needed

    def _write_changed(self) -> None:
        with QUOTA_LOCK:
            quotas = [quota for quota, _ in self._changed()]
        if quotas:
            self._draw(quotas)
        self.write_warnings()


def _warns(quota: Quota, entry: _Entry) -> bool:
    """Return whether an unchecked warning may be due."""
    return isinstance(quota, WindowQuota) and entry.opened and not entry.warned and quota.warns


def _held_in(claim: BudgetClaim) -> Held:
    share = claim.share
    return Held(spent=share.spent, reserved=share.reserved, under_way=share.under_way, largest=share.largest)


@attrs.frozen(eq=False)
class SharingWriter:
    """Write the spending of shared budgets with the next record."""

    writer: JournalWriter
    book: BudgetLedger

    async def write(self, append: Append, journal: CommitWaiter | None, then: T) -> T:
        """Write the append with the changed shares."""
        shares = await self._shares()
        return await self.writer.write(attrs.evolve(append, shares=shares) if shares else append, journal, then)

    async def _shares(self) -> tuple[BudgetShare, ...]:
        with trio.CancelScope(shield=True):  # as short as a write, which a cancelled caller also waits for
            while True:
                shares = self.book.unwritten()
                if shares is not None:
                    return shares
                await trio.sleep(DRAW_S)
        raise AssertionError("a shielded scope is not left")

    def expect(self, run: Expected) -> None:
        """Announce a write of the run."""
        self.writer.expect(run)

    def newest_message(self, lease: Lease) -> int:
        """Return the number of the newest message to the run."""
        return self.writer.newest_message(lease)


def ledger_of(journal: StoreJournal) -> BudgetLedger | None:
    """Return the ledger of a run, if one was opened."""
    return getattr(journal._writer, "book", None)


def opened_ledger(store: Store, root: RunId, journal: StoreJournal) -> BudgetLedger:
    """Return the ledger of a run, opening it if needed."""
    book = ledger_of(journal)
    if book is None:
        book = BudgetLedger(store, root, journal)
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
    """Share the budgets of a step before its remote execution.

    Steps settled in `earlier` sessions count on this side, and the `counted` usage of the step itself.
    """
    book = opened_ledger(store, root, journal)
    async with book.opening:
        is_new = not book.knows(quotas)
        if is_new or counted:
            book.enter_own(quotas)
            book.absorb(quotas, [*(earlier if is_new else ()), *counted])
            await call_store(functools.partial(book.open, quotas))


async def drawn_on(store: Store, root: RunId, journal: StoreJournal, requests: Sequence[StepRequest]) -> None:
    """Draw on the budgets of these steps' caller, if any."""
    if any(request.quotas for request in requests):
        book = opened_ledger(store, root, journal)
        for request in requests:
            windows = [quota for quota in request.quotas if isinstance(quota, WindowQuota)]
            holder = StepPath(f"{journal.lease.run_id}/{journal.lease.epoch}/{request.path}")
            book.enter(windows, holder=holder, home=False)
            book.enter(request.quotas, holder=request.path, home=False)
        await call_store(functools.partial(book.open, [quota for each in requests for quota in each.quotas]))


# --- Budgets of windows ---------------------------------------------------------------------------------------------


@attrs.frozen
class WindowBudgets:
    """Budgets of windows that a pipeline's runs draw on."""

    store: Store
    limits: tuple[UsageLimits, ...]
    title: str

    async def opened(self, run: Run, quota: Quota) -> tuple[Quota, ...]:
        """Return the quotas of a run: its own and its windows'."""
        journal = run.journal
        assert isinstance(journal, StoreJournal)
        now = await call_store(self.store.now)
        windows = [self._quota(run, limits, quota, now) for limits in self.limits]
        book = opened_ledger(self.store, run.run_id, journal)
        book.warn = functools.partial(warn, run)
        book.enter((quota,), holder=ROOT, home=True)
        holder = StepPath(f"{run.run_id}/{journal.lease.epoch}")
        book.enter_windows(windows, holder=holder, raised=journal.raised)
        await call_store(functools.partial(book.open, [quota, *windows]))
        return (quota, *windows)

    async def close(self, run: Run) -> None:
        """Emit due warnings while the run has its lease."""
        if any(limits.warn_at is not None for limits in self.limits):
            assert isinstance(run.journal, StoreJournal)
            await call_store(opened_ledger(self.store, run.run_id, run.journal).write_warnings)

    def _quota(self, run: Run, limits: UsageLimits, own: Quota, now: float) -> WindowQuota:
        scope = limits.scope or "pipeline"
        value = run.key if scope == "key" else run.labels.get(scope[len("label:") :], "")
        value = "" if scope == "pipeline" else value
        name = limits.name or self.title
        return WindowQuota(limits, name=name, value=value, guess=_guess(run), now=now, watch=own.watch)


@contextlib.asynccontextmanager
async def warning(run: Run, journal: StoreJournal) -> AsyncIterator[None]:
    """Emit the warnings of a remote step's draws while it executes."""
    book = ledger_of(journal)
    if book is not None:
        book.warn = functools.partial(warn, run)
    yield
    if book is not None:
        await call_store(book.write_warnings)


def warn(run: Run, quota: WindowQuota) -> None:
    """Emit `budget.warned` and log it, for one window and scope value."""
    used = 1.0 - quota.fraction
    logger.warning("%s has used %.0f %% of its limit", quota.owner, 100 * used)
    facts = {"name": quota.name, "scope": quota.value, "window": quota.declared.window, "ends_at": quota.ends_at}
    run.emit("budget.warned", ROOT, fraction=used, **facts)


def window_budgets(store: Store | None, windows: Sequence[UsageLimits], title: str) -> WindowBudgets:
    """Return the budgets of a pipeline, or raise `DeclarationError`."""
    if store is None:
        raise DeclarationError("usage_limits with a window need a store: pass `store` to Flujo")
    missing = [name for name in ("draw", "now", "window_budgets") if not hasattr(store, name)]
    if missing:
        raise DeclarationError(f"usage_limits with a window: {type(store).__name__} has no `{missing[0]}`")
    named = [(each.name or title, each.scope or "pipeline", each.window) for each in windows]
    if len(set(named)) < len(named):
        raise DeclarationError("usage_limits: two limits have the same name, scope and window")
    return WindowBudgets(store, tuple(windows), title)


def _guess(run: Run) -> Amount:
    """Return the assumed size of a call, before one is known."""
    usage = run.settings.usage
    return Amount(tokens=usage.first_call_tokens, cost_usd=usage.first_call_usd)


# --- Budgets of parent runs -----------------------------------------------------------------------------------------


@attrs.define(eq=False)
class ParentBudget:
    """Budget of an evaluation in its store, drawn on by its cases.

    Each session of the parent and of a child is a holder, so that a continued evaluation knows all earlier spending.
    """

    store: Store
    parent: RunId
    limits: UsageLimits | None = None
    """Limits, in the parent's own process; others read them."""
    windows: Windows | None = None
    quota: ParentQuota | None = None
    """Quota of the parent's own process, once its run is open."""

    async def opened(self, run: Run, quota: Quota) -> tuple[Quota, ...]:
        """Return a run's quotas, including the parent's."""
        journal = run.journal
        assert isinstance(journal, StoreJournal)
        quotas = (quota,) if self.windows is None else await self.windows.opened(run, quota)
        book = opened_ledger(self.store, run.run_id, journal)
        book.enter(quotas, holder=ROOT, home=True)
        shared = ParentQuota(self.limits or UsageLimits(), parent=self.parent, guess=_guess(run))
        holder = StepPath(f"{run.run_id}/{journal.lease.epoch}")
        book.enter([shared], holder=holder, home=self.limits is not None)
        await call_store(functools.partial(book.open, [*quotas, shared]))
        if self.limits is None:
            return (*quotas, shared)
        self.quota = shared  # of judges only: steps of the evaluation itself are not stopped
        return quotas

    async def close(self, run: Run) -> None:
        """Emit due warnings of windows."""
        if self.windows is not None:
            await self.windows.close(run)


@attrs.frozen(eq=False)
class MemoryBudget:
    """Budget of an evaluation without a store: one quota."""

    quota: Quota
    windows: Windows | None = None

    async def opened(self, run: Run, quota: Quota) -> tuple[Quota, ...]:
        """Return a run's quotas, including the parent's."""
        quotas = (quota,) if self.windows is None else await self.windows.opened(run, quota)
        return (*quotas, self.quota)

    async def close(self, run: Run) -> None:
        """Emit due warnings of windows."""
        if self.windows is not None:
            await self.windows.close(run)


def child_budget(
    labels: Mapping[str, str], store: Store | None, windows: Windows | None, quota: Quota | None
) -> Windows:
    """Return the budgets of a run whose parent has one."""
    if store is None:
        assert quota is not None
        return MemoryBudget(quota, windows)
    return ParentBudget(store, RunId(labels[PARENT]), windows=windows)
