"""Worker: executes queued runs until stopped.

Rules:

1. The claimant of its lease executes a run. Tickets and polls only select candidates.
2. At most `slots` runs are executed at once.
3. Without an engine the store is polled a few times a second, and after commits that it gives notice of. With one it
   is still polled every second: for runs of dead workers, for answers, and for lost tickets. A worker of the queue
   `default` also adopts runs started without a worker, by `run()`, say, when their process has died, or their pauses
   are answered.
4. A worker that starts while the server of its store or engine is away retries for a minute.
5. A stopping worker claims nothing new; runs of a claim that the store answers later are released at once for other
   workers. It has a grace period to finish its runs, and releases unfinished ones. A second stop does not wait.
6. Neither an error of a run nor a malformed ticket ends the worker.
7. A ticket wakes a worker; the store selects the run, in the order of `claim_order`. So tickets and polls claim as
   many runs at once as there are free slots, and priorities, keys and limits hold with every engine and without one.
   A store without `claim_next` leaves the selection to the tickets, and to the age of runs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

import attrs
import trio
from outcome import Error, Outcome, acapture, capture

from .._bridge.host_loop import IN_WORKER, Host, TrioHost, current_host
from .._bridge.user_code_guard import guarded
from .._core.error_info import message_of
from .._core.outcomes import RunId
from .._core.records.records import ClaimedRun, ClaimOrder, StoredRun
from .._core.retry_decisions import Backoff
from .._durable.claims import can_be_had, release_runs
from .._durable.leases import this_process
from .._durable.store_executor import call_store, post
from ..errors import (
    ControlError,
    CorruptRecord,
    FingerprintMismatch,
    FlujoError,
    NotPaused,
    RunLeased,
    RunNotFound,
    StoreError,
    StoreVersionError,
)
from ..stores._store_port import Notices, Store
from .engine_port import Engine, Ticket, TicketExecutor
from .health_probe import HealthPort, Heartbeat, show_health
from .map_batches import WorkerSlot

logger = logging.getLogger("flujo_actors")

State: TypeAlias = Literal["starting", "ready", "draining", "stopped"]

SKIPPED_S = 5.0
"""Time to leave an unexecutable run to other workers."""

TRY_AGAIN_S = 1.0
"""Time to leave an unfinished run to other workers, after failures."""

START_S = 60.0
"""Timeout of a starting worker for its store and engine."""

_AGAIN = Backoff(first=0.25, ceiling=5.0)
"""Backoff of these attempts."""

STOP_S = 10.0
"""Timeout of the engine's stop after the last run."""

EXTRA_POLLS, AGAIN_S = 2, 0.05
"""Number and interval of looks after a ticket without a run."""

COMMIT_DELAYS_S = (0.002, 0.004, 0.014)
"""Delays of claims after a write of another process.

The write is noticed before it is synced and visible.
"""

ADOPT_AFTER_S = 1.5
"""Time without a change before a worker adopts a run."""

ADOPT_EVERY_S = 1.0
"""Interval of polls for such runs."""

PURGE_EVERY_S = 60.0
"""Interval of deleting old events, a thousand at a time."""

SHORTEST_S = 0.01
"""Shortest interval of polls, for sleepers that another worker promotes."""

Play: TypeAlias = Callable[[RunId, Host, ClaimedRun | None, int | None], Awaitable[object]]
"""Execute a run until it ends, pauses or stops.

Arguments: its id, the host loop, its claim if it is claimed, and the limit per key of a claim.
"""

TakeNext: TypeAlias = Callable[[ClaimOrder], Awaitable[list[ClaimedRun]]]
"""Claim the next runs of an order."""


@attrs.frozen(kw_only=True, eq=False)
class Post:
    """Configuration of a worker."""

    store: Store
    pipeline: str
    """Pipeline name shared by its runs."""
    fingerprint: str
    """Pipeline version of this worker."""
    mode: str = "strict"
    """Handling of runs of another version."""
    play: Play
    take_next: TakeNext | None = None
    """Claim in order; `None` if the store has none."""
    per_key: int | None = None
    """Maximum number of leases of a key, over all workers."""
    queues: tuple[str, ...]
    slots: int
    engine: Engine | None
    grace_s: float
    look_s: float
    unclaimed_s: float
    redact: Callable[[str], str]
    expire: Callable[[], Awaitable[None]]
    """End timed-out pauses."""
    fire: Callable[[], Awaitable[None]]
    """Create the runs of due schedules."""
    adopts: bool = False
    """Whether the worker adopts unowned runs started without a worker."""
    once: bool = False
    """Whether the worker stops when nothing waits any more."""
    health: HealthPort | Path | None = None
    """Address of the health probes."""
    duties: tuple[Callable[[str, Callable[[], bool]], Awaitable[None]], ...] = ()
    """Duties of the named worker for the store, until it stops."""
    flush: Callable[[str], Awaitable[None]] | None = None
    """Deliver the due webhooks, as the last action of a worker that runs `once`."""


class Worker:
    """Open worker; leaving the block stops it. See the module's rules."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._ready, self._stop, self._stop_now, self._ended = (trio.Event() for _ in range(4))
        self._polled, self._changed = trio.Event(), trio.Event()
        self._free = trio.CapacityLimiter(post.slots)
        self._executing: dict[RunId, float] = {}
        self._claims = 0
        """Number of claims that the store has not answered yet."""
        self._skipped: dict[RunId, float] = {}
        self._polls_left = 0
        """Number of looks for runs without a ticket, in quick succession."""
        self._last_keys: dict[str, str] = {}
        """Last claimed key by queue, behind which the round robin continues."""
        self._adopts_at = self._purges_at = -math.inf
        self._wakes_s: float | None = None
        """Seconds from the last poll to the next wake, if known."""
        self._stopping, self._claiming = threading.Event(), trio.CancelScope()
        self._result: Outcome[object] | None = None
        self._signs = Heartbeat(post.store, post)
        self.executed: int = 0
        """Number of executed runs with any outcome."""
        self.backend: str = ""
        self.health_port: int | None = None
        """Port of the health probes, if any."""

    # --- host interface ---

    async def __aenter__(self) -> Worker:
        self._host = await current_host()
        self.backend = "trio" if isinstance(self._host, TrioHost) else "asyncio"
        self._host.spawn(self._run)
        await self._host.enter(self._wait_until_ready)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._ended.is_set():
            await self._host.enter(self._finish)
        if error is None:
            self._raise_if_failed()

    async def stopped(self) -> None:
        """Wait until the worker has stopped or cannot continue."""
        await self._host.enter(self._ended.wait)
        self._raise_if_failed()

    def stop(self, *, now: bool = False) -> None:
        """Stop claiming; finish within the grace period, or release `now`.

        Args:
            now: whether to release the runs at once.
        """
        post(self._token, self._stop_requested, now)

    @property
    def state(self) -> State:
        """Return the worker's state."""
        if self._ended.is_set():
            return "stopped"
        if self._stop.is_set():
            return "draining"
        return "ready" if self._ready.is_set() else "starting"

    @property
    def is_ready(self) -> bool:
        """Return whether it takes runs, and its store answers."""
        return self.state == "ready" and self._signs.fresh

    @property
    def busy(self) -> tuple[str, ...]:
        """Return the runs being executed."""
        return tuple(self._executing)

    def _stop_requested(self, now: bool) -> None:
        if now or self._stop.is_set():
            self._stop_now.set()
        self._stop.set()
        self._claiming.cancel()
        self._stopping.set()
        self._polled.set()

    async def _wait_until_ready(self) -> None:
        try:
            await self._ready.wait()
        except trio.Cancelled:
            self._stop_requested(now=True)
            raise
        self._raise_if_failed()

    async def _finish(self) -> None:
        """Drain; cancelled callers do not wait for the grace period."""
        self._stop_requested(now=False)
        try:
            await self._ended.wait()
        except trio.Cancelled:
            self._stop_requested(now=True)
            with trio.CancelScope(shield=True):
                await self._ended.wait()
            raise

    def _raise_if_failed(self) -> None:
        if isinstance(self._result, Error):
            raise self._result.error

    # --- its life ---

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        IN_WORKER.set(True)
        self._result = await acapture(self._serve)
        self._stopping.set()
        self._ended.set()
        self._ready.set()

    async def _serve(self) -> None:
        if not await self._reached():
            return
        async with trio.open_nursery() as around:
            if self._post.health is not None:
                await around.start(show_health, self, self._post.health)
            around.start_soon(self._sign)
            for duty in self._post.duties:
                around.start_soon(duty, self.name, self._stop.is_set)
            await self._execute_until_stopped()
            around.cancel_scope.cancel()
        if self._post.flush is not None:
            with trio.move_on_after(STOP_S):
                await self._post.flush(self.name)
        await guarded(self._signs.erase, self.name)

    async def _reached(self) -> bool:
        """Reach engine and store (rule 4); False if stopped meanwhile."""
        late = trio.current_time() + START_S
        for failures in itertools.count(1):
            got = await guarded(self._reach)
            if not isinstance(got, Error):
                break
            text = self._post.redact(message_of(got.error))
            if not _may_pass(got.error) or trio.current_time() >= late:
                raise _cannot_start(got.error, text) from got.error
            logger.warning("the worker cannot start yet (%s); trying again", text)
            with trio.move_on_after(_AGAIN.delay(failures, random.random)):
                await self._stop.wait()
                return False
        return True

    async def _reach(self) -> None:
        if self._post.engine is not None:
            await call_store(self._post.engine.prepare)
        await self._signs.write(self)

    async def _execute_until_stopped(self) -> None:
        async with trio.open_nursery() as beside, trio.open_nursery() as self._plays:
            beside.start_soon(self._poll_until_stopped)
            beside.start_soon(self._claim_on_commits)
            if self._post.engine is not None:
                beside.start_soon(self._serve_engine, self._post.engine)
            self._ready.set()
            logger.info("worker %s executes %s", self.name, ", ".join(self._post.queues))
            await self._stop.wait()
            await self._drain()
            self._plays.cancel_scope.cancel()
            beside.cancel_scope.deadline = trio.current_time() + STOP_S

    async def _drain(self) -> None:
        logger.info("worker %s stops: it executes %d runs", self.name, len(self._executing))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guarded, self._signs.write, self)
            nursery.start_soon(self._cancel_on_stop, nursery.cancel_scope)
            with trio.move_on_after(self._post.grace_s):
                await self._idle()
            nursery.cancel_scope.cancel()
        if self._executing:
            logger.warning("worker %s releases %d runs that were not finished in time", self.name, len(self._executing))

    async def _cancel_on_stop(self, scope: trio.CancelScope) -> None:
        await self._stop_now.wait()
        scope.cancel()

    async def _idle(self) -> None:
        while self._executing or self._claims:
            self._changed = trio.Event()
            await self._changed.wait()

    @property
    def name(self) -> str:
        """Return the worker's name: machine, process and index."""
        process = this_process()
        return f"{process.host}:{process.pid}:{id(self):x}"

    async def _sign(self) -> None:
        while True:
            await trio.sleep(self._signs.every_s)
            await guarded(self._signs.write, self)  # a store that is away for a moment gets the report later

    # --- execution ---

    async def _serve_engine(self, engine: Engine) -> None:
        def serve() -> None:
            play = TicketExecutor(self._deliver, self._ended.is_set)
            engine.serve(self._post.queues, self._post.slots, play, self._stopping)

        while not self._stopping.is_set():
            got = await guarded(_in_thread, serve)
            if isinstance(got, Error):
                logger.warning("the engine fails (%s); it is tried again", self._post.redact(message_of(got.error)))
                await trio.sleep(self._post.look_s)

    def _deliver(self, run_ids: Sequence[RunId], done: Callable[[], None]) -> None:
        """Execute a run per ticket (rule 7); from any thread."""
        if self._stopping.is_set():
            for _ in run_ids:
                done()
        else:
            post(self._token, self._receive, run_ids, done)

    def _receive(self, run_ids: Sequence[RunId], done: Callable[[], None]) -> None:
        slots = [WorkerSlot(self._free, done) for _ in run_ids]
        if self._stop.is_set() or self._post.take_next is None:
            for run_id, slot in zip(run_ids, slots, strict=True):
                self._begin(run_id, slot)
        else:
            self._plays.start_soon(self._serve_tickets, run_ids, slots)

    async def _serve_tickets(self, run_ids: Sequence[RunId], slots: Sequence[WorkerSlot]) -> None:
        """Claim runs for all free slots; other tickets wait."""
        free = [slot for slot in slots if slot.reserve()]
        late = [slot for slot in slots if slot not in free]
        try:
            got = await guarded(functools.partial(self._claimed_for, free, tickets=tuple(run_ids)))
        except trio.Cancelled:
            for slot in slots:
                slot.close()
            raise
        taken = [] if isinstance(got, Error) else got.value  # the ticket's own run meets the same error, and reports it
        if len(taken) < len(free):
            self._poll_again()
        found = {each.run.run_id for each in taken}
        left = [run_id for run_id in run_ids if run_id not in found]
        for run_id, slot in zip(left, free[len(taken) :], strict=False):  # resumed runs, say, which are not next
            self._begin(run_id, slot)
        for run_id, slot in zip(left[len(free) - len(taken) :], late, strict=False):
            self._plays.start_soon(self._serve_late, run_id, slot)
        for slot in [*free[len(taken) :], *late][len(left) :]:
            slot.close()

    def _poll_again(self) -> None:
        """Look for runs whose tickets were used for other runs.

        Of two workers that claim at the same time, one may see only the run that the other one is about to get, and not
        the run of the other one's ticket, which was committed a moment later.
        """
        self._polls_left = EXTRA_POLLS
        self._polled.set()

    async def _serve_late(self, run_id: RunId, slot: WorkerSlot) -> None:
        try:
            await slot.wait()
        except trio.Cancelled:
            slot.close()
            raise
        await self._serve_tickets([run_id], [slot])

    async def _claimed_for(self, slots: Sequence[WorkerSlot], **wanted: Any) -> list[ClaimedRun]:
        """Claim and begin at most one run per slot."""
        take_next, now = self._post.take_next, trio.current_time()
        if take_next is None or not slots or self._stop.is_set():
            return []
        order = ClaimOrder(
            pipeline=self._post.pipeline,
            queues=self._post.queues,
            limit=len(slots),
            fingerprint=self._post.fingerprint if self._post.mode == "strict" else None,
            after=dict(self._last_keys),
            per_key=self._post.per_key,
            without=(*self._executing, *(run_id for run_id, until in self._skipped.items() if until > now)),
            **wanted,
        )
        self._claims += 1
        try:
            taken = await take_next(order)
            if self._stop.is_set():
                await self._release(taken)
                return []
            for slot, claimed in zip(slots, taken, strict=False):
                self._last_keys[claimed.run.queue or ""] = claimed.run.key
                self._begin(claimed.run.run_id, slot, claimed)
        finally:
            self._claims -= 1
            self._changed.set()
        return taken

    async def _release(self, taken: list[ClaimedRun]) -> None:
        """Release runs that were claimed while the worker stopped."""
        if taken:
            with trio.move_on_after(STOP_S, shield=True):
                await call_store(functools.partial(release_runs, self._post.store, taken))
        for each in taken:
            await self._redeliver(each.run.run_id, 0.0)

    def _begin(self, run_id: RunId, slot: WorkerSlot, claimed: ClaimedRun | None = None) -> None:
        if claimed is None and (run_id in self._executing or self._stop.is_set()):
            slot.close()
        else:
            self._executing[run_id] = trio.current_time()
            self._plays.start_soon(self._execute, run_id, slot, claimed)

    async def _execute(self, run_id: RunId, slot: WorkerSlot, claimed: ClaimedRun | None) -> None:
        try:
            async with slot.held():
                got = await guarded(self._post.play, run_id, self._host, claimed, self._post.per_key)
                if isinstance(got, Error):
                    await self._note(run_id, got.error)
                self.executed += 1
        except trio.Cancelled:
            await self._redeliver(run_id, 0.0)
            raise
        finally:
            self._executing.pop(run_id, None)
            self._changed.set()
            if self._post.engine is None or self._post.once or self._post.per_key is not None:
                self._polled.set()  # else the engine delivers the next ticket by itself
            slot.close()

    async def _note(self, run_id: RunId, error: BaseException) -> None:
        """Whatever a run raises, the worker lives on: rule 6."""
        text = self._post.redact(message_of(error))
        match error:
            case RunLeased() | NotPaused() | RunNotFound():
                logger.debug("a ticket too many for run %r: %s", run_id, text)
            case ControlError():
                logger.info("run %r was ended by a %s: %s", run_id, type(error).__name__, text)
            case FingerprintMismatch():
                await self._skip(run_id, text)
            case CorruptRecord() | StoreVersionError():
                await self._skip(run_id, text)
            case FlujoError():
                logger.warning("run %r was not finished here: %s", run_id, text)
                self._skipped[run_id] = trio.current_time() + TRY_AGAIN_S
            case _:
                await self._skip(run_id, f"{type(error).__name__}: {text}")

    async def _skip(self, run_id: RunId, why: str) -> None:
        """Leave a run to other workers, possibly of another version."""
        first = run_id not in self._skipped
        logger.log(logging.WARNING if first else logging.DEBUG, "run %r is left to others: %s", run_id, why)
        self._skipped[run_id] = trio.current_time() + SKIPPED_S
        self._signs.refused[run_id] = why
        if first:
            await guarded(self._signs.write, self)  # clients show why the run is blocked
        await self._redeliver(run_id, SKIPPED_S)

    async def _redeliver(self, run_id: RunId, after_s: float) -> None:
        """Redeliver the run's ticket to other workers, now or later."""
        engine = self._post.engine
        if engine is not None:
            with trio.move_on_after(STOP_S, shield=True):
                got = await guarded(call_store, lambda: _redeliver_ticket(self._post.store, engine, run_id, after_s))
                if isinstance(got, Error):
                    logger.debug("the ticket of run %r was not redelivered: %r", run_id, got.error)

    # --- polling ---

    async def _poll_until_stopped(self) -> None:
        while not self._stop.is_set():
            self._polled = trio.Event()  # before the look: a run that ends meanwhile causes another one
            fired = await guarded(self._post.fire)
            if isinstance(fired, Error):
                logger.warning("the schedules cannot be fired: %s", self._post.redact(message_of(fired.error)))
            self._wakes_s = None
            if self._free.available_tokens > 0:
                got = await guarded(self._poll)
                if isinstance(got, Error):
                    logger.warning("the store cannot be polled: %s", self._post.redact(message_of(got.error)))
                elif self._post.once and not self._executing and not self._claims:
                    self._stop_requested(now=False)
            with trio.move_on_after(AGAIN_S if self._polls_left else self._idle_s()):
                await self._polled.wait()

    async def _claim_on_commits(self) -> None:
        """Claim runs soon after commits of other processes."""
        listen = getattr(self._post.store, "commit_notices", None)
        notices: Notices | None = listen() if listen is not None and self._post.engine is None else None
        if notices is None or self._post.take_next is None:
            return
        with self._claiming, contextlib.closing(notices):  # no commit may come after the stop
            while not self._stop.is_set():
                await trio.lowlevel.wait_readable(notices)
                notices.drain()
                for delay_s in COMMIT_DELAYS_S:
                    await trio.sleep(delay_s)
                    await guarded(self._claim_next, self._slots_left())  # errors are reported by the next poll

    def _slots_left(self) -> int:
        return max(0, int(self._free.available_tokens) - self._free.statistics().tasks_waiting)

    def _idle_s(self) -> float:
        """Return the seconds until the next poll or due sleeper."""
        look_s = self._post.look_s
        return look_s if self._wakes_s is None else min(look_s, max(self._wakes_s, SHORTEST_S))

    async def _poll(self) -> None:
        post, store = self._post, self._post.store
        free = self._slots_left()
        host = f"{this_process().host}:"
        limit = free + len(self._executing) + len(self._skipped) + 50
        if hasattr(store, "due"):
            await call_store(lambda: self._promote(store))
        free -= await self._claim_next(free)
        ask = lambda: store.wanting(pipeline=post.pipeline, queues=post.queues, host=host, limit=limit)  # noqa: E731
        found = [*await call_store(ask), *await self._orphans(host, limit)] if free else []
        now = trio.current_time()
        self._skipped = {run_id: until for run_id, until in self._skipped.items() if until > now - 60}
        for run in [run for run in found if self._is_for_me(run, now)][:free]:
            self._begin(run.run_id, WorkerSlot(self._free))

    async def _claim_next(self, free: int) -> int:
        """Claim and begin the next runs of the queues; return their number.

        An engine has a while to deliver the tickets of new runs, unless a full key may have used them up.
        """
        waits = self._post.engine is not None and not self._post.once and self._post.per_key is None
        waits, self._polls_left = waits and not self._polls_left, max(0, self._polls_left - 1)
        slots = [slot for slot in (WorkerSlot(self._free) for _ in range(free)) if slot.reserve()]
        taken: list[ClaimedRun] = []
        try:
            taken = await self._claimed_for(slots, waiting_s=self._post.unclaimed_s if waits else 0.0)
        finally:
            for slot in slots[len(taken) :]:
                slot.close()
        return len(taken)

    def _promote(self, store: Store) -> None:
        """Make due sleepers ready, and note the next wake. Blocks."""
        self._wakes_s = store.next_wake_s(self._post.queues)
        if self._wakes_s is not None and self._wakes_s <= 0:
            while store.due() and self._post.once:  # else the next poll promotes the others
                pass

    async def _orphans(self, host: str, limit: int) -> list[StoredRun]:
        """Return orphans without a recent change, after ending timed-out pauses.

        A recent change may belong to a process that answered a pause and is about to resume.
        """
        post, now = self._post, trio.current_time()
        if now < self._adopts_at:
            return []
        self._adopts_at = now + ADOPT_EVERY_S
        if now >= self._purges_at and hasattr(post.store, "purge"):
            self._purges_at = now + PURGE_EVERY_S
            await call_store(post.store.purge)
            if hasattr(post.store, "purge_budgets"):
                await call_store(post.store.purge_budgets)
        if not hasattr(post.store, "due"):  # otherwise a claim ends the timed-out pauses of its run
            await post.expire()
        if not post.adopts:
            return []
        before = time.time() - (0.0 if post.once else ADOPT_AFTER_S)
        asked = functools.partial(post.store.orphans, pipeline=post.pipeline, host=host)
        return await call_store(lambda: asked(updated_before=before, limit=limit))

    def _is_for_me(self, run: StoredRun, now: float) -> bool:
        if run.run_id in self._executing or self._skipped.get(run.run_id, -math.inf) > now:
            return False
        return can_be_had(self._post.store, run) and not self._is_on_its_way(run) and not self._is_in_order(run)

    def _is_in_order(self, run: StoredRun) -> bool:
        """Return whether `claim_next` selects the run when its turn has come."""
        if self._post.take_next is None or run.queue is None or run.status != "running":
            return False
        same = self._post.mode != "strict" or run.fingerprint in (None, self._post.fingerprint)
        return run.last_owner is None and run.cancel is None and same

    def _is_on_its_way(self, run: StoredRun) -> bool:
        """Return whether a ticket is about to deliver the run."""
        if self._post.engine is None or self._post.once or not run.unclaimed or run.status == "sleeping":
            return False
        return time.time() - run.created_at < self._post.unclaimed_s


_PASSING = (
    "builtins.OSError",
    "builtins.RuntimeError",
    "procrastinate.exceptions.ConnectorException",
    "psycopg.OperationalError",
    "sqlalchemy.exc.OperationalError",
    "temporalio.service.RPCError",
)
"""Errors of stores and engines while their server is away, by name."""


def _may_pass(error: BaseException) -> bool:
    """Return whether a store's or engine's server may soon return."""
    cause = error.__cause__ if isinstance(error, StoreError) else error
    return any(f"{kind.__module__}.{kind.__qualname__}" in _PASSING for kind in type(cause).__mro__)


def _cannot_start(error: BaseException, text: str) -> BaseException:
    if isinstance(error, FlujoError) or not isinstance(error, Exception):
        return error
    return StoreError(f"the engine cannot be reached: {type(error).__name__}: {text.strip()}")


async def _in_thread(serve: Callable[[], None]) -> None:
    """Run a worker-long blocking call in a thread outside the limit."""
    got = await trio.to_thread.run_sync(capture, serve, limiter=trio.CapacityLimiter(1), abandon_on_cancel=True)
    got.unwrap()


def _redeliver_ticket(store: Store, engine: Engine, run_id: RunId, after_s: float) -> None:
    for run in store.standing([run_id]):
        if run.queue is not None and run.status == "running":
            at = time.time() + after_s if after_s else None
            engine.again([Ticket(run_id=run_id, queue=run.queue, pipeline=run.pipeline[:100], not_before=at)])
