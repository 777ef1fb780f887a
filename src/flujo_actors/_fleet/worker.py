"""A worker: plays runs that wait in queues, until it is told to stop (a consumer, an executor).

Rules:

1. A run is played by whoever claims its lease. Tickets, and looks at the store, only say which ones to try.
2. At most `slots` runs are played at once.
3. Without an engine the store is looked at a few times a second. With one it is looked at every second all the same:
   for what dead workers left, for answers, and for tickets that were lost. Who plays the queue `default` also adopts
   runs that were begun without a worker, by `run()`, say, when their process has died, or their questions are answered.
4. A worker that stops takes nothing new. It has a time of grace to finish what it plays; what is not finished then is
   given up, whole and at once, for others to take over. Told to stop again, it does not wait.
5. Whatever a run raises, the worker lives on.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias

import attrs
import trio
from outcome import Error, Outcome, acapture, capture

from .._bridge.guard import guarded
from .._bridge.host import Host, current_host
from .._core.error_info import message_of
from .._core.outcomes import RunId
from .._core.records import StoredRun
from .._durable.claiming import can_be_had
from .._durable.processes import this_process
from .._durable.store_wait import call_store, post
from ..errors import (
    ControlError,
    CorruptRecord,
    FingerprintMismatch,
    FlujoError,
    NotPaused,
    RunLeased,
    RunNotFound,
)
from ..stores._port import Store
from .health import HealthPort, show_health
from .port import Engine, Ticket
from .seats import Seat
from .signing import Signs

logger = logging.getLogger("flujo_actors")

State: TypeAlias = Literal["starting", "ready", "draining", "stopped"]

LEFT_ALONE_S = 5.0
"""How long a run is left to others that this worker cannot play: it is of another version, or cannot be read."""

TRY_AGAIN_S = 1.0
"""How long a run is left to others that could not be finished: its store was away for a moment, say."""

STOP_S = 10.0
"""How long the engine may take to stop when nothing is played any more."""

ADOPT_AFTER_S = 5.0
"""How long a run must have stood still before a worker adopts it."""

ADOPT_EVERY_S = 2.0
"""How often a worker looks for such runs."""

Play: TypeAlias = Callable[[RunId, Host], Awaitable[object]]
"""Claims a run and works on it until it ends, pauses or cannot go on."""


@attrs.frozen(kw_only=True, eq=False)
class Post:
    """Where a worker stands, and what it works for."""

    store: Store
    pipeline: str
    """What the runs of one pipeline have in common."""
    fingerprint: str
    """Which version of it this worker plays."""
    play: Play
    queues: tuple[str, ...]
    slots: int
    engine: Engine | None
    grace_s: float
    look_s: float
    unclaimed_s: float
    redact: Callable[[str], str]
    expire: Callable[[], Awaitable[None]]
    """Ends questions whose time is over."""
    adopts: bool = False
    """Whether the worker adopts runs that were begun without one, and belong to nobody."""
    once: bool = False
    """Whether the worker stops when nothing waits any more."""
    health: HealthPort | Path | None = None
    """Where the worker's health is told."""


class Worker:
    """An open worker; enter it, and leave the block to stop it. See the module's rules."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._ready, self._stop, self._stop_now, self._ended = (trio.Event() for _ in range(4))
        self._looked, self._changed = trio.Event(), trio.Event()
        self._free = trio.CapacityLimiter(post.slots)
        self._playing: dict[RunId, float] = {}
        self._left_alone: dict[RunId, float] = {}
        self._adopts_at = -math.inf
        self._stopping = threading.Event()
        self._result: Outcome[object] | None = None
        self._signs = Signs(post.store, post)
        self.played: int = 0
        """How many runs this worker has played, to whatever end."""
        self.health_port: int | None = None
        """Where its health can be asked for, if it was to be a port."""

    # --- what its host does ---

    async def __aenter__(self) -> Worker:
        self._host = await current_host()
        self._host.spawn(self._run)
        await self._host.enter(self._begun)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._ended.is_set():
            await self._host.enter(self._finish)
        if error is None:
            self._raise_if_failed()

    async def stopped(self) -> None:
        """Wait until the worker has stopped, because it was told to, or cannot go on."""
        await self._host.enter(self._ended.wait)
        self._raise_if_failed()

    def stop(self, *, now: bool = False) -> None:
        """Take nothing new; finish what is played within the time of grace, or, if `now`, give it up at once."""
        post(self._token, self._told_to_stop, now)

    @property
    def state(self) -> State:
        """How the worker stands."""
        if self._ended.is_set():
            return "stopped"
        if self._stop.is_set():
            return "draining"
        return "ready" if self._ready.is_set() else "starting"

    @property
    def is_ready(self) -> bool:
        """Whether it takes runs, and its store answers."""
        return self.state == "ready" and self._signs.fresh

    @property
    def busy(self) -> tuple[str, ...]:
        """The runs that it plays now."""
        return tuple(self._playing)

    def _told_to_stop(self, now: bool) -> None:
        if now or self._stop.is_set():
            self._stop_now.set()
        self._stop.set()
        self._stopping.set()
        self._looked.set()

    async def _begun(self) -> None:
        try:
            await self._ready.wait()
        except trio.Cancelled:
            self._told_to_stop(now=True)
            raise
        self._raise_if_failed()

    async def _finish(self) -> None:
        """Whoever is cancelled while the worker drains does not wait for the grace to end."""
        self._told_to_stop(now=False)
        try:
            await self._ended.wait()
        except trio.Cancelled:
            self._told_to_stop(now=True)
            with trio.CancelScope(shield=True):
                await self._ended.wait()
            raise

    def _raise_if_failed(self) -> None:
        if isinstance(self._result, Error):
            raise self._result.error

    # --- its life ---

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._result = await acapture(self._serve)
        self._stopping.set()
        self._ended.set()
        self._ready.set()

    async def _serve(self) -> None:
        engine = self._post.engine
        if engine is not None:
            await call_store(engine.prepare)
        await self._signs.write(self)
        async with trio.open_nursery() as around:
            if self._post.health is not None:
                await around.start(show_health, self, self._post.health)
            around.start_soon(self._sign)
            await self._play_until_told()
            around.cancel_scope.cancel()
        await guarded(self._signs.erase, self.name)

    async def _play_until_told(self) -> None:
        async with trio.open_nursery() as beside, trio.open_nursery() as self._plays:
            beside.start_soon(self._look_after)
            if self._post.engine is not None:
                beside.start_soon(self._serve_engine, self._post.engine)
            self._ready.set()
            logger.info("worker %s plays %s", self.name, ", ".join(self._post.queues))
            await self._stop.wait()
            await self._drain()
            self._plays.cancel_scope.cancel()
            beside.cancel_scope.deadline = trio.current_time() + STOP_S

    async def _drain(self) -> None:
        logger.info("worker %s stops: it plays %d runs", self.name, len(self._playing))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guarded, self._signs.write, self)
            nursery.start_soon(self._cancel_when_told, nursery.cancel_scope)
            with trio.move_on_after(self._post.grace_s):
                await self._idle()
            nursery.cancel_scope.cancel()
        if self._playing:
            logger.warning("worker %s gives up %d runs that were not finished in time", self.name, len(self._playing))

    async def _cancel_when_told(self, scope: trio.CancelScope) -> None:
        await self._stop_now.wait()
        scope.cancel()

    async def _idle(self) -> None:
        while self._playing:
            self._changed = trio.Event()
            await self._changed.wait()

    @property
    def name(self) -> str:
        """What the worker is called: its machine and process, and which of its workers it is."""
        process = this_process()
        return f"{process.host}:{process.pid}:{id(self):x}"

    async def _sign(self) -> None:
        while True:
            await trio.sleep(self._signs.every_s)
            await guarded(self._signs.write, self)  # a store that is away for a moment is told later

    # --- what it plays ---

    async def _serve_engine(self, engine: Engine) -> None:
        def serve() -> None:
            engine.serve(self._post.queues, self._post.slots, self._play_from_thread, self._stopping)

        while not self._stopping.is_set():
            got = await guarded(_in_thread, serve)
            if isinstance(got, Error):
                logger.warning("the engine fails (%s); it is tried again", self._post.redact(message_of(got.error)))
                await trio.sleep(self._post.look_s)

    def _play_from_thread(self, run_id: str) -> None:
        """Called by the engine; returns when the run was played, or when there is nobody to play it any more."""
        done = threading.Event()
        if not self._stopping.is_set():
            post(self._token, self._begin, RunId(run_id), done.set)
            while not done.wait(1.0) and not self._ended.is_set():
                pass

    def _begin(self, run_id: RunId, done: Callable[[], None] = lambda: None) -> None:
        if run_id in self._playing or self._stop.is_set():
            done()
        else:
            self._playing[run_id] = trio.current_time()
            self._plays.start_soon(self._play, run_id, done)

    async def _play(self, run_id: RunId, done: Callable[[], None]) -> None:
        try:
            async with Seat(self._free, done).taken():
                got = await guarded(self._post.play, run_id, self._host)
                if isinstance(got, Error):
                    await self._note(run_id, got.error)
                self.played += 1
        except trio.Cancelled:
            await self._hand_back(run_id, 0.0)
            raise
        finally:
            self._playing.pop(run_id, None)
            self._changed.set()
            if self._post.engine is None or self._post.once:  # an engine brings what comes next by itself
                self._looked.set()
            done()

    async def _note(self, run_id: RunId, error: BaseException) -> None:
        """Whatever a run raises, the worker lives on: rule 5."""
        text = self._post.redact(message_of(error))
        match error:
            case RunLeased() | NotPaused() | RunNotFound():
                logger.debug("a ticket too many for run %r: %s", run_id, text)
            case ControlError():
                logger.info("run %r was ended by a %s: %s", run_id, type(error).__name__, text)
            case FingerprintMismatch():
                await self._leave_alone(run_id, text)
            case CorruptRecord():
                await self._leave_alone(run_id, text)
            case FlujoError():
                logger.warning("run %r was not finished here: %s", run_id, text)
                self._left_alone[run_id] = trio.current_time() + TRY_AGAIN_S
            case _:
                await self._leave_alone(run_id, f"{type(error).__name__}: {text}")

    async def _leave_alone(self, run_id: RunId, why: str) -> None:
        """Leave a run to other workers, which may be of another version."""
        first = run_id not in self._left_alone
        logger.log(logging.WARNING if first else logging.DEBUG, "run %r is left to others: %s", run_id, why)
        self._left_alone[run_id] = trio.current_time() + LEFT_ALONE_S
        self._signs.refused[run_id] = why
        await self._hand_back(run_id, LEFT_ALONE_S)

    async def _hand_back(self, run_id: RunId, after_s: float) -> None:
        """Have the run's ticket delivered to others: now, or when they had the time to come."""
        engine = self._post.engine
        if engine is not None:
            with trio.move_on_after(STOP_S, shield=True):
                got = await guarded(call_store, lambda: _handed_back(self._post.store, engine, run_id, after_s))
                if isinstance(got, Error):
                    logger.debug("the ticket of run %r was not handed back: %r", run_id, got.error)

    # --- what no ticket tells of ---

    async def _look_after(self) -> None:
        while not self._stop.is_set():
            if self._free.available_tokens > 0:
                got = await guarded(self._look)
                if isinstance(got, Error):
                    logger.warning("the store cannot be looked at: %s", self._post.redact(message_of(got.error)))
                elif self._post.once and not self._playing:
                    self._told_to_stop(now=False)
            self._looked = trio.Event()
            with trio.move_on_after(self._post.look_s):
                await self._looked.wait()

    async def _look(self) -> None:
        post, store = self._post, self._post.store
        free = max(0, int(self._free.available_tokens) - self._free.statistics().tasks_waiting)
        host = f"{this_process().host}:"
        limit = free + len(self._playing) + len(self._left_alone) + 50
        ask = lambda: store.wanting(pipeline=post.pipeline, queues=post.queues, host=host, limit=limit)  # noqa: E731
        found = [*await call_store(ask), *await self._left(host, limit)] if free else []
        now = trio.current_time()
        self._left_alone = {run_id: until for run_id, until in self._left_alone.items() if until > now - 60}
        for run in [run for run in found if self._is_for_me(run, now)][:free]:
            self._begin(run.run_id)

    async def _left(self, host: str, limit: int) -> list[StoredRun]:
        """Orphans that have not changed for a while, after the questions whose time is over.

        For a while, because whoever answered a question may be about to go on by himself.
        """
        post, now = self._post, trio.current_time()
        if now < self._adopts_at:
            return []
        self._adopts_at = now + ADOPT_EVERY_S
        await post.expire()
        if not post.adopts:
            return []
        before = time.time() - (0.0 if post.once else ADOPT_AFTER_S)
        asked = functools.partial(post.store.orphans, pipeline=post.pipeline, host=host)
        return await call_store(lambda: asked(updated_before=before, limit=limit))

    def _is_for_me(self, run: StoredRun, now: float) -> bool:
        if run.run_id in self._playing or self._left_alone.get(run.run_id, -math.inf) > now:
            return False
        return can_be_had(self._post.store, run) and not self._is_on_its_way(run)

    def _is_on_its_way(self, run: StoredRun) -> bool:
        """Whether a ticket is about to bring the run, to this worker or another one."""
        if self._post.engine is None or self._post.once or not run.unclaimed:
            return False
        return time.time() - run.created_at < self._post.unclaimed_s


async def _in_thread(serve: Callable[[], None]) -> None:
    """What blocks for as long as the worker lives has a thread beside those that everybody shares."""
    got = await trio.to_thread.run_sync(capture, serve, limiter=trio.CapacityLimiter(1), abandon_on_cancel=True)
    got.unwrap()


def _handed_back(store: Store, engine: Engine, run_id: RunId, after_s: float) -> None:
    for run in store.standing([run_id]):
        if run.queue is not None and run.status == "running":
            at = time.time() + after_s if after_s else None
            engine.again([Ticket(run_id=run_id, queue=run.queue, pipeline=run.pipeline[:100], not_before=at)])


def names_of(queues: str | Iterable[str]) -> tuple[str, ...]:
    """One queue or several, each once."""
    return (queues,) if isinstance(queues, str) else tuple(dict.fromkeys(queues))
