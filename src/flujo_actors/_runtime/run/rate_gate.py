"""Rate limits of a run's model requests: reserve, wait, send, settle.

`_core.policies.rate_limits` has the rules of a bucket. Further rules:

1. A request needs all of its limits: of its agent, of its step, and of the `Flujo` by the name of the model. Limits of
   one name are one limit.
2. Waits use the clock of the trio run. While a request waits, it reads its bucket now and then: refunds of others let
   it start earlier, a block later.
3. A refused or cancelled request gives its reservations back.
4. Waiting does not count for the step's `timeout_s`.
5. Slots are taken in order within a process; between processes a waiting request polls.
6. A request of a granular step that waits longer than five seconds puts its run away as soon as every step of the run
   waits. It keeps its reservations, and the run wakes when they start. A request that wakes too late, more than
   `burst_s` or two seconds, reserves again and waits in process: late starts would exceed the rate.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs
import trio

from ..._bridge.to_asyncio import waiting_on_trio
from ..._bridge.to_trio import TrioCaller
from ..._core import step_paths
from ..._core.policies.rate_limits import (
    LOOK_S,
    PUT_AWAY_S,
    RateGrant,
    RateInfo,
    RateLimit,
    RateReservation,
    Rates,
    RateTable,
    RateWait,
    block_s,
)
from ..._core.records.records import Lease
from ..._core.retry_decisions import retry_after_of
from ..._durable.store_executor import call_store
from ...errors import RateLimited
from .run_environment import OpenWait, release_if_idle

if TYPE_CHECKING:
    from ..._dsl.step_declaration import Step
    from ..._durable.journal import Pause
    from ...stores._store_port import Store
    from .messages import AttemptInput
    from .run_environment import Run

T = TypeVar("T")

LATE_S = 2.0
"""Lateness of a woken request that keeps its reservation, if `burst_s` is smaller."""


class ProcessRates:
    """Buckets of runs without a store, on the clock of their loop."""

    def __init__(self) -> None:
        self._table, self._lock = RateTable(), threading.Lock()

    def reserve(self, wanted: RateReservation) -> RateGrant:
        with self._lock:
            return self._table.reserve(wanted, trio.current_time())

    def settle(self, name: str, resource: str, seconds: float, *, only_at: float | None = None) -> None:
        with self._lock:
            self._table.settle(name, resource, seconds, only_at)

    def block(self, name: str, *, for_s: float) -> None:
        with self._lock:
            self._table.block(name, trio.current_time() + for_s)

    def slots(self, lease: Lease, name: str, holder: str, *, limit: int | None) -> bool:
        with self._lock:
            if limit is None:
                self._table.release(name, holder)
                return True
            return self._table.take(lease, name, holder, limit, lambda _: True)

    def rates(self, name: str | None = None) -> list[RateInfo]:
        with self._lock:
            return self._table.infos(name, lambda _: True)


_process_rates: trio.lowlevel.RunVar[ProcessRates] = trio.lowlevel.RunVar("flujo_actors rates")


def _of_this_loop() -> ProcessRates:
    try:
        return _process_rates.get()
    except LookupError:
        _process_rates.set(made := ProcessRates())
        return made


@attrs.define
class _SlotQueue:
    """Requests of one trio run that wait for a slot, in order."""

    order: trio.Lock = attrs.field(factory=trio.Lock)
    freed: trio.Event = attrs.field(factory=trio.Event)


_slot_queues: trio.lowlevel.RunVar[dict[str, _SlotQueue]] = trio.lowlevel.RunVar("flujo_actors slots")


def _slot_queue(name: str) -> _SlotQueue:
    try:
        queues = _slot_queues.get()
    except LookupError:
        _slot_queues.set(queues := {})
    return queues.setdefault(name, _SlotQueue())


@attrs.frozen(kw_only=True)
class _Part:
    """One granted reservation."""

    limit: RateLimit
    resource: str
    seconds: float
    grant: RateGrant


@attrs.define(kw_only=True)
class HeldRates:
    """Reservations and slots of one request."""

    holder: str
    parts: list[_Part] = attrs.field(factory=list)
    slots: list[str] = attrs.field(factory=list)
    tokens: float = 0.0
    """Reserved tokens."""


@attrs.define(eq=False)
class RateLimits:
    """Rate limits of one `Flujo`, with call sizes and waiters."""

    store: Store | None
    by_model: Mapping[str, RateLimit]
    retries: int
    """Repetitions of a request that a provider refused with 429."""
    guess: float
    """Tokens of a first call."""
    _largest: dict[str, float] = attrs.field(factory=dict, init=False)
    _streaks: dict[str, int] = attrs.field(factory=dict, init=False)
    _numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    def of(self, model_id: str, own: Iterable[RateLimit]) -> list[RateLimit]:
        """Return the limits of a request (rule 1)."""
        matching = [limit for glob, limit in self.by_model.items() if fnmatch.fnmatchcase(model_id, glob)]
        return list({limit.name: limit for limit in (*own, *matching)}.values())

    def estimate(self, caller: str, sure: float) -> float:
        """Return the expected tokens of a call: at least its prompt."""
        known = self._largest.get(caller)
        return max(sure, self.guess if known is None else known, 1.0)

    def learn(self, caller: str, tokens: float) -> None:
        """Remember the size of a call."""
        self._largest[caller] = max(tokens, self._largest.get(caller, 0.0))

    def streak(self, name: str, *, refused: bool) -> int:
        """Count the refusals of a provider in a row."""
        self._streaks[name] = self._streaks.get(name, 0) + 1 if refused else 0
        return self._streaks[name]

    def gate(self, run: Run, step: Step, work: AttemptInput, caller: str) -> RateGate:
        """Return the rate limits of an attempt's requests."""
        agent = (work.plan or step.plan).target
        return RateGate(
            run=run,
            limits=self,
            own=(*getattr(agent, "rate_limits", ()), *step.rate_limit),
            state=work.state,
            path=work.span,
            caller=caller,
            trio=TrioCaller(run.host.asyncio().keep_awake),
            rests=step.resumable is not None and self.store is not None and getattr(run.journal, "puts_away", False),
        )

    def new_holder(self) -> str:
        """Return the name of a request, unique among processes of a run."""
        return f"{os.getpid()}:{id(self):x}:{next(self._numbers)}"


def _times(grant: RateGrant) -> dict[str, float]:
    return {"free_at": grant.free_at, "refunded": grant.refunded}


def _kept_part(limit: RateLimit, written: Mapping[str, Any] | None, now: float) -> _Part | None:
    """Return a reservation from the record of its wait."""
    if written is None:
        return None
    seconds, free_at = written["seconds"], written["free_at"]
    starts_at = max(free_at - seconds - limit.burst_s, now)
    grant = RateGrant(
        granted=True,
        free_at=free_at,
        refunded=written["refunded"],
        blocked_until=0.0,
        now=now,
        starts_at=starts_at,
    )
    return _Part(limit=limit, resource=written["resource"], seconds=seconds, grant=grant)


class TimedAttempt(Protocol):
    """Holder of the timeout of an attempt."""

    name: str
    timeout: trio.CancelScope | None
    waiters: int
    timeout_left_s: float


@attrs.frozen(kw_only=True, eq=False)
class RateGate:
    """Rate limits for the requests of one attempt; called from asyncio."""

    run: Run
    limits: RateLimits
    own: Sequence[RateLimit]
    state: TimedAttempt
    path: Any
    caller: str
    trio: TrioCaller
    rests: bool = False
    """Whether the run can be put away while a request waits (rule 6)."""

    # --- asyncio ---

    async def acquire(self, model_id: str, sure: float, *, rests: bool = True) -> HeldRates | None:
        """Wait until a request may be sent; raise `RateLimited` or `RateWait`."""
        found = self.limits.of(model_id, self.own)
        return await self.trio.call(self._acquire, found, sure, rests and self.rests) if found else None

    async def release(self, held: HeldRates, used: float | None) -> None:
        """Settle a request that used so many tokens; `None` if it failed."""
        await self.trio.call(self._release, held, used)

    async def repeats(self, held: HeldRates | None, error: BaseException, tries: int) -> bool:
        """Block the buckets after a 429; return whether to repeat the request."""
        if held is None or not is_rate_limited(error):
            return False
        await self.trio.call(self._block, held, retry_after_of(error))
        return tries <= self.limits.retries

    # --- trio ---

    @property
    def _store(self) -> Rates:
        return _of_this_loop() if self.limits.store is None else self.limits.store

    async def _call(self, do: Callable[[], T]) -> T:
        return do() if self.limits.store is None else await call_store(do)

    async def _acquire(self, found: list[RateLimit], sure: float, rests: bool) -> HeldRates:
        held = HeldRates(holder=self.limits.new_holder(), tokens=self.limits.estimate(self.caller, sure))
        began, pause = trio.current_time(), self._previous_wait() if rests else None
        complete = False
        try:
            kept = pause is not None and await self._redeem(held, found, pause)
            if not kept:
                for limit in found:
                    for resource, amount, rate in _needs(limit, held.tokens):
                        held.parts.append(await self._reserve(limit, resource, amount, rate))
            with self._untimed():
                await self._wait(held, rests and (kept or pause is None), pause)
                for limit in found:
                    await self._take_slot(held, limit)
            complete = True
            if pause is not None:
                self._emit_woken(pause)
        except RateWait:
            complete = True  # it keeps its reservations
            raise
        finally:
            if not complete:
                with trio.CancelScope(shield=True):
                    await self._give_back(held)
        self._report(found, trio.current_time() - began)
        return held

    async def _reserve(self, limit: RateLimit, resource: str, amount: float, rate: float) -> _Part:
        wanted = RateReservation(
            name=limit.name,
            resource=resource,
            seconds=amount * 60.0 / rate,
            burst_s=limit.burst_s,
            max_wait_s=limit.max_wait_s,
            opening_s=limit.burst_s if resource == "tokens" else 0.0,
        )
        store = self._store
        grant = await self._call(lambda: store.reserve(wanted))
        if not grant.granted:
            raise _refusal(limit, resource, amount, grant)
        return _Part(limit=limit, resource=resource, seconds=wanted.seconds, grant=grant)

    async def _wait(self, held: HeldRates, rests: bool, pause: Pause | None) -> None:
        """Sleep until all reservations start, or release the run (rules 2, 6)."""
        starts = {id(part): part.grant.starts_at for part in held.parts}
        offset = {id(part): trio.current_time() - part.grant.now for part in held.parts}

        def begin() -> float:
            return max((starts[key] + offset[key] for key in starts), default=-math.inf)

        while (left := begin() - trio.current_time()) > 0:
            if rests and left > PUT_AWAY_S and await self._is_run_released(left):
                raise self._rate_wait(held, max(starts.values()), pause)
            with waiting_on_trio():
                await trio.sleep(min(left, LOOK_S))
            if left > LOOK_S:
                for part in held.parts:
                    starts[id(part)] = await self._start_of(part)

    # --- runs that are put away ---

    async def _is_run_released(self, left: float) -> bool:
        """Return whether every step of the run waits, after a short time."""
        wait = self.run.waits[self.path] = OpenWait(due=trio.current_time() + left)
        try:
            with waiting_on_trio(), trio.move_on_after(LOOK_S):
                await trio.lowlevel.checkpoint()  # concurrent steps start a round later
                release_if_idle(self.run)
                await wait.put_away.wait()
            return wait.put_away.is_set()
        finally:
            del self.run.waits[self.path]

    def _rate_wait(self, held: HeldRates, due_at: float, pause: Pause | None) -> RateWait:
        """Return the wait of a run for the start of its request."""
        name = held.parts[0].limit.name
        parts = [
            {"name": part.limit.name, "resource": part.resource, "seconds": part.seconds, **_times(part.grant)}
            for part in held.parts
        ]
        self.run.emit("run.waiting", self.path, step_name=self.state.name, wait_kind="rate", due_at=due_at)
        facts = {"due_at": due_at, "tokens": held.tokens, "parts": parts}
        return RateWait(name, facts, None if pause is None else pause.paused)

    def _previous_wait(self) -> Pause | None:
        """Return the wait with which an earlier session was put away."""
        journal, place = self.run.journal, step_paths.unit(self.path, step_paths.RATE)
        answered = journal.answered(place) if self.run.resumed else None
        pause = answered.pause if answered is not None else journal.waiting(place) if self.run.resumed else None
        return None if pause is None or pause.paused.state_token in self.run.waits.redeemed else pause

    def _emit_woken(self, pause: Pause) -> None:
        """Note that the wait of an earlier session is over."""
        self.run.waits.redeemed.add(pause.paused.state_token or "")
        answered = self.run.journal.answered(pause.path)
        late_s = 0.0 if answered is None else answered.late_s
        self.run.emit("run.woken", self.path, step_name=self.state.name, wait_kind="rate", late_s=late_s)

    async def _redeem(self, held: HeldRates, found: list[RateLimit], pause: Pause) -> bool:
        """Use an earlier session's reservations unless too old (rule 6)."""
        assert pause.question is not None
        facts, store = pause.question.facts, self.limits.store
        assert store is not None
        now, written = await self._call(store.now), {(each["name"], each["resource"]): each for each in facts["parts"]}
        needs = [(limit, resource) for limit in found for resource, *_ in _needs(limit, 1.0)]
        parts = [_kept_part(limit, written.get((limit.name, resource)), now) for limit, resource in needs]
        kept = [part for part in parts if part is not None]
        late = [part for part in kept if now - await self._start_of(part) > max(part.limit.burst_s, LATE_S)]
        if len(kept) < len(parts) or late:
            return False
        held.parts, held.tokens = kept, facts["tokens"]
        return True

    async def _start_of(self, part: _Part) -> float:
        """Return a reservation's start by the store's clock."""
        store, name = self._store, part.limit.name
        found = {each.resource: each for each in await self._call(lambda: store.rates(name))}
        now = found.get(part.resource)
        refunded = 0.0 if now is None else now.refunded - part.grant.refunded
        blocked = max((each.blocked_until or 0.0 for each in found.values()), default=0.0)
        start = part.grant.free_at - part.seconds - part.limit.burst_s - refunded
        return max(start, blocked)

    async def _take_slot(self, held: HeldRates, limit: RateLimit) -> None:
        if limit.at_once is None:
            return
        store, lease, name = self._store, self._lease(), limit.name
        queue = _slot_queue(name)
        async with queue.order:
            while not await self._call(lambda: store.slots(lease, name, held.holder, limit=limit.at_once)):
                queue.freed = trio.Event()
                with trio.move_on_after(LOOK_S), waiting_on_trio():
                    await queue.freed.wait()
        held.slots.append(name)

    def _lease(self) -> Lease:
        lease = getattr(self.run.journal, "lease", None)
        return lease if isinstance(lease, Lease) else Lease(run_id=self.run.run_id, owner="", epoch=0)

    async def _give_back(self, held: HeldRates) -> None:
        store = self._store
        for part in held.parts:
            name, resource, seconds, at = part.limit.name, part.resource, part.seconds, part.grant.free_at
            await self._call(lambda: store.settle(name, resource, seconds, only_at=at))  # noqa: B023
        await self._release_slots(held)

    async def _release_slots(self, held: HeldRates) -> None:
        store, lease = self._store, self._lease()
        for name in held.slots:
            await self._call(lambda: store.slots(lease, name, held.holder, limit=None))  # noqa: B023
            _slot_queue(name).freed.set()

    async def _release(self, held: HeldRates, used: float | None) -> None:
        store = self._store
        if used is not None:
            self.limits.learn(self.caller, used)
        for part in held.parts:
            if used is not None:
                self.limits.streak(part.limit.name, refused=False)
            if part.resource == "tokens":
                name, unused = part.limit.name, part.seconds * (1.0 - (used or 0.0) / held.tokens)
                await self._call(lambda: store.settle(name, "tokens", unused))  # noqa: B023
        await self._release_slots(held)

    async def _block(self, held: HeldRates, retry_after: float) -> None:
        store = self._store
        for name in {*(part.limit.name for part in held.parts), *held.slots}:
            for_s = block_s(retry_after, self.limits.streak(name, refused=True))
            await self._call(lambda: store.block(name, for_s=for_s))  # noqa: B023
            self.run.emit("rate.blocked", self.path, name=name, for_s=for_s)

    @contextmanager
    def _untimed(self) -> Iterator[None]:
        """Stop the clock of the attempt's timeout while requests wait (rule 4)."""
        scope, state = self.state.timeout, self.state
        if scope is None:
            yield
            return
        if not state.waiters:
            state.timeout_left_s = scope.deadline - trio.current_time()
        state.waiters += 1
        scope.deadline = math.inf
        try:
            yield
        finally:
            state.waiters -= 1
            if not state.waiters:
                scope.deadline = trio.current_time() + state.timeout_left_s

    def _report(self, found: list[RateLimit], waited: float) -> None:
        if waited > 0.001:
            for limit in found:
                self.run.emit("rate.waited", self.path, name=limit.name, wait_s=waited)


def _needs(limit: RateLimit, tokens: float) -> Iterator[tuple[str, float, float]]:
    """Yield the resources of a limit with the amount of a request."""
    if limit.requests_per_min is not None:
        yield "requests", 1.0, limit.requests_per_min
    if limit.tokens_per_min is not None:
        yield "tokens", tokens, limit.tokens_per_min


def _refusal(limit: RateLimit, resource: str, amount: float, grant: RateGrant) -> RateLimited:
    wait_s = grant.starts_at - grant.now
    what = "1 request is free" if resource == "requests" else f"{amount:,.0f} tokens are free"
    return RateLimited(
        f"rate limit {limit.name!r}: {wait_s:.0f} s until {what}, and max_wait_s is {limit.max_wait_s:g}",
        name=limit.name,
        wait_s=wait_s,
        max_wait_s=limit.max_wait_s,
    )


def is_rate_limited(error: BaseException) -> bool:
    """Return whether a provider refused a request's rate, not quota."""
    names = {kind.__name__ for kind in type(error).__mro__}
    limited = "ModelRateLimitError" in names or getattr(error, "status_code", None) == 429
    return limited and "ModelQuotaExceededError" not in names
