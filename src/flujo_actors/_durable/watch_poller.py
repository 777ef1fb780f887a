"""Watcher of a store's runs: one thread for all watches.

Rules:

1. There is one thread per store and process while there are watches. It queries the store once for all watched
   runs, and again:

   - at once after a commit of this process (`wake`);
   - at once after a commit of another process, where the store can `listen` (Postgres). It listens from the second
     query on, and queries once more when it has begun, so that no change is missed. It also polls a few times
     a second;
   - else after `FIRST_LOOKS_S`, then every `POLL_S`. A new watch begins with the first of these delays.
2. New records of a run are read once, into a window shared by its watches. A watch behind the window, as each is at
   first, reads from the store by itself, up to the window's end; so a slow watcher does not delay others.
3. A watcher is woken from the thread, on trio, on asyncio or in another thread, and never runs in it.
4. An error of the store, whatever it raises, is passed to all watches, and the thread continues with later ones. A
   watch with `reconnect_s` joins again, and reads on after its last record.
5. A watch ends when the run has ended and all its records were delivered; `RunNotFound` for a missing run.
6. Live text of steps in other processes is read by the same thread (`text_exchange`), twice a second.

Sections:

- Watch of one run: record summaries as an async iterator.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, cast

import anyio
import anyio.to_thread
import attrs
import sniffio
from outcome import Error

from .._core.outcomes import RunId
from .._core.records.records import StoredRun, has_ended
from .._core.retry_decisions import Backoff
from .._core.step_paths import StepPath
from .._core.validators import is_number
from .._core.views.record_summaries import RecordSummary
from ..errors import DeclarationError, StoreError, TransactionLost
from ..stores._fork_safety import watch_forks
from ..stores._record_rows import not_found
from ..stores._store_port import ChangeListener, RunChanges, Store
from ..stores._store_port import required as required
from .live_text import live_key, live_texts, place_of
from .store_executor import store_reply
from .text_exchange import EVERY_S, fetch_texts

POLL_S = 0.15
"""Longest time between two queries of a store that cannot notify."""

FIRST_LOOKS_S = (0.002, 0.003, 0.005, 0.01, 0.02, 0.04, 0.08)
"""Delays of the first queries: 2, 5, 10, 20, 40, 80 and 160 ms after a watch began."""

_AFTER_NEWS = 4
"""Position in these delays after a query with news."""

_LISTENING_POLL_S = 0.25
"""Longest time between two queries while it listens: the signal of a killed process is lost."""

_LISTEN_AGAIN_S = 1.0
"""Time after which a failed subscription is tried again."""

PAGE = 2_000
"""Number of records read at a time."""

_WINDOW = 10_000

_RECONNECT = Backoff(first=0.1, ceiling=5.0)
"""Delays of a watch whose store failed."""

logger = logging.getLogger("flujo_actors")

Wake: TypeAlias = Callable[[], object]


@attrs.define(eq=False)
class WatchedRun:
    """Shared state of one run's watches; changed by one thread, locked."""

    run_id: RunId
    run: StoredRun | None = None
    """State of the run at the last query."""
    read_to: int = 0
    """Up to which record the window reaches."""
    window: deque[RecordSummary] = attrs.Factory(lambda: deque(maxlen=_WINDOW))
    error: BaseException | None = None
    wakes: list[Wake] = attrs.Factory(list)

    def after(self, seq: int) -> list[RecordSummary] | None:
        """Return the window's records after a number, or None."""
        if self.run is None or seq < self.read_to - len(self.window):
            return None
        newest = itertools.takewhile(lambda record: record.seq > seq, reversed(self.window))  # some were compacted
        return list(newest)[::-1]

    @property
    def is_over(self) -> bool:
        """Return whether nothing more will be written."""
        return self.run is not None and has_ended(self.run.status)


class WatchPoller:
    """The watchers of one store in this process; see the module's rules."""

    def __init__(self, store: Store, forget: Callable[[], object]) -> None:
        self._store, self._forget = store, forget
        self._changed = threading.Condition()
        self._runs: dict[RunId, WatchedRun] = {}
        self._woken = False
        self._at_work = False
        self._reads_texts_at = 0.0
        self._looks = 0
        """Number of queries since the last watch began; lowered by news."""
        self._listens_at = 0.0
        self._interrupt: Callable[[], object] | None = None

    def join(self, run_id: RunId, wake: Wake) -> WatchedRun:
        """Watch a run; the thread calls `wake` when there may be news."""
        with self._changed:
            watched = self._runs.setdefault(run_id, WatchedRun(run_id))
            watched.wakes.append(wake)
            self._looks = 0
            self._reads_texts_at = 0.0  # its owner must learn of the watcher before the next claim
            if not self._at_work:
                self._begin()
            self._wake()
        return watched

    def unwatch(self, watched: WatchedRun, wake: Wake) -> None:
        """Watch no longer."""
        with self._changed:
            if wake in watched.wakes:
                watched.wakes.remove(wake)
            if not watched.wakes and self._runs.get(watched.run_id) is watched:
                del self._runs[watched.run_id]
            self._wake()

    def wake(self) -> None:
        """Query at once: a commit was made."""
        with self._changed:
            self._wake()

    def records(self, watched: WatchedRun, seq: int) -> list[RecordSummary]:
        """Return records up to the window's end, from it or the store."""
        with self._changed:
            found, error, read_to = watched.after(seq), watched.error, watched.read_to
        if error is not None:
            raise error
        if found is not None:
            return found
        stored = self._store.scan(watched.run_id, after=seq, limit=PAGE)
        return list(itertools.takewhile(lambda record: record.seq <= read_to, stored))

    def is_at_hand(self, watched: WatchedRun, seq: int) -> bool:
        """Return whether `records` would not block."""
        with self._changed:
            return watched.error is not None or watched.after(seq) is not None

    def _wake(self) -> None:
        if not self._woken and self._interrupt is not None:
            self._interrupt()
        self._woken = True
        self._changed.notify()

    def _begin(self) -> None:
        try:
            threading.Thread(target=self._work, name="flujo_actors watcher", daemon=True).start()
        except RuntimeError as error:
            raise StoreError(f"no thread could be started to watch the store ({error})") from error
        self._at_work = True

    def _work(self) -> None:
        listener: ChangeListener | None = None
        while (runs := self._watched()) is not None:
            wakes = self._poll(runs)
            for wake in wakes:
                wake()
            listener = self._wait_for_next(listener, [each.run_id for each in runs], news=bool(wakes))
            del runs, wakes
        if listener is not None:
            listener.release()

    def _watched(self) -> list[WatchedRun] | None:
        """Return the watched runs; `None` to end the thread."""
        with self._changed:
            self._woken = False
            if not self._runs:
                self._at_work, self._interrupt = False, None
                self._forget()
                return None
            return list(self._runs.values())

    def _wait_for_next(
        self, listener: ChangeListener | None, run_ids: Sequence[RunId], *, news: bool
    ) -> ChangeListener | None:
        """Wait until the next query; return the listener to use then."""
        if listener is not None:
            return self._wait_for_change(listener, run_ids)
        with self._changed:
            looks = min(self._looks, _AFTER_NEWS) if news else self._looks
            self._looks = looks + 1
            rest_s = min(POLL_S, FIRST_LOOKS_S[looks]) if looks < len(FIRST_LOOKS_S) else POLL_S
            if self._changed.wait_for(lambda: self._woken, rest_s):
                return None
        return self._listening()

    def _listening(self) -> ChangeListener | None:
        """Begin to listen where the store can; a query follows."""
        now = time.monotonic()
        if now < self._listens_at or not hasattr(self._store, "listen"):
            return None
        self._listens_at = now + _LISTEN_AGAIN_S
        got = store_reply(cast(RunChanges, self._store).listen)
        if isinstance(got, Error):
            return None  # it polls until it can listen
        with self._changed:
            self._interrupt = None if got.value is None else got.value.interrupt
        return got.value

    def _wait_for_change(self, listener: ChangeListener, run_ids: Sequence[RunId]) -> ChangeListener | None:
        """Wait for a change; return `None` if the subscription was lost."""
        with self._changed:
            if self._woken:
                return listener
        if isinstance(store_reply(lambda: listener.wait(run_ids, _LISTENING_POLL_S)), Error):
            with self._changed:
                self._interrupt = None
            listener.release()
            return None
        return listener

    def _poll(self, runs: Sequence[WatchedRun]) -> list[Wake]:
        """Query the store; return the callbacks to wake."""
        got = store_reply(lambda: self._queried([each.run_id for each in runs]))
        if isinstance(got, Error):
            return self._failed(runs, got.error)
        return [wake for each in runs for wake in self._advanced(each, got.value.get(each.run_id))]

    def _queried(self, run_ids: Sequence[RunId]) -> Mapping[RunId, StoredRun]:
        """Return the stored runs; read live texts: rule 6."""
        stored = self._store.look(run_ids)
        now = time.monotonic()
        if now >= self._reads_texts_at:
            self._reads_texts_at = now + EVERY_S
            fetch_texts(self._store, run_ids)
        return stored

    def _failed(self, runs: Iterable[WatchedRun], error: BaseException) -> list[Wake]:
        """Pass an error to all watches once; later ones start anew."""
        with self._changed:
            for each in runs:
                each.error = error
                if self._runs.get(each.run_id) is each:
                    del self._runs[each.run_id]
            return [wake for each in runs for wake in each.wakes]

    def _advanced(self, watched: WatchedRun, run: StoredRun | None) -> Sequence[Wake]:
        if run is None:
            return self._failed([watched], not_found(watched.run_id))
        if watched.run is not None and run.created_at != watched.run.created_at:  # deleted, and its id used again
            return self._failed([watched], not_found(watched.run_id))
        if watched.run is not None and _as_seen(run) == _as_seen(watched.run):
            return ()
        got = store_reply(lambda: self._new_in(watched, run))
        if isinstance(got, Error):
            return self._failed([watched], got.error)
        new = got.value
        with self._changed:
            watched.window.extend(new)
            watched.read_to = new[-1].seq if new else max(watched.read_to, run.records if watched.run is None else 0)
            watched.run = run if watched.read_to >= run.records else _as_running(run)
            return list(watched.wakes)

    def _new_in(self, watched: WatchedRun, run: StoredRun) -> Sequence[RecordSummary]:
        """Return the records since the last query; the first query returns none."""
        if watched.run is None or run.records <= watched.read_to:
            return ()
        return list(self._store.scan(watched.run_id, after=watched.read_to, limit=_WINDOW))


def _as_seen(run: StoredRun) -> tuple[object, ...]:
    """Return the facts relevant to a watch, without lease times."""
    return run.records, run.status, run.leased, run.pauses, run.tokens, run.cost_usd


def _as_running(run: StoredRun) -> StoredRun:
    """Return a run as running while its last records are unread."""
    return attrs.evolve(run, status="running", records=-1)


class _Watchers:
    """The watchers of this process."""

    def __init__(self) -> None:
        self._reset()
        watch_forks(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._by_place: dict[object, WatchPoller] = {}

    def join(self, store: Store, run_id: RunId, wake: Wake) -> tuple[WatchPoller, WatchedRun]:
        """Watch a run of a store with its shared watcher."""
        key = place_of(store)  # the watcher keeps its store, so no id is reused
        with self._lock:
            watcher = self._by_place.get(key)
            if watcher is None:
                watcher = self._by_place[key] = WatchPoller(store, lambda: self._by_place.pop(key, None))
            watched = watcher.join(run_id, wake)
            self._by_place[key] = watcher  # its thread may have ended, and forgotten it, a moment ago
            return watcher, watched

    def wake(self, store: Store | None) -> None:
        """This process has written to a store."""
        if self._by_place and store is not None:
            watcher = self._by_place.get(place_of(store))
            if watcher is not None:
                watcher.wake()

    def before_fork(self) -> None:
        """Do nothing: the thread stays with the parent."""

    def after_fork_in_parent(self) -> None:
        """Do nothing."""

    def after_fork_in_child(self) -> None:
        self._reset()


watchers = _Watchers()
"""The watchers of this process."""


# --- Watch of one run ---------------------------------------------------------------------------------------------


class RunWatch:
    """Record summaries as they are written: `async for record in …`.

    It ends with the run. Leaving the loop ends the watch, not the run.
    """

    def __init__(
        self, store: Store, run_id: RunId, *, after: int = 0, texts: bool = False, reconnect_s: float = 0.0
    ) -> None:
        self._registration: _WatchRegistration | None = None
        self._reconnect_s = _checked_patience(reconnect_s)
        self._lost_at: float | None = None
        self._failures = 0
        required(store, "look", subject="watching a run")
        self._store, self._run_id, self._after = store, run_id, max(after, 0)
        self._given: deque[RecordSummary] = deque()
        self.run: StoredRun | None = None
        """State of the run at the last records."""
        self._live, self._texts, self._wait_for_change = live_key(store, run_id), texts, 0

    def __aiter__(self) -> RunWatch:
        return self

    async def __anext__(self) -> RecordSummary:
        while not self._given:
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._given.extend(batch)
        return self._given.popleft()

    async def next_batch(self) -> list[RecordSummary] | None:
        """Return the next records; empty for state changes, `None` at the end."""
        batch = None
        try:
            batch = await self._retried_batch()
        finally:
            if batch is None:  # the run has ended, cannot be read, or has no waiter any more
                self.close()
        return batch

    async def _retried_batch(self) -> list[RecordSummary] | None:
        """Read on from the last record after an error that may pass."""
        while True:
            try:
                return await self._batch(self._registration or self._register())
            except StoreError as error:
                self.close()
                await anyio.sleep(self._delay_s(error))

    def _delay_s(self, error: StoreError) -> float:
        """Return the delay before another attempt; raise after the last one."""
        now = anyio.current_time()
        lost_at = self._lost_at = now if self._lost_at is None else self._lost_at
        self._failures += 1
        left_s = lost_at + self._reconnect_s - now
        if type(error) not in (StoreError, TransactionLost) or left_s <= 0:
            raise error
        logger.warning("the watch of run %r lost its store (%s); trying again", self._run_id, error)
        return min(left_s, _RECONNECT.delay(self._failures, random.random))

    async def _batch(self, registration: _WatchRegistration) -> list[RecordSummary] | None:
        while True:
            registration.change.begin()
            if registration.watched.run is None and registration.watched.error is None:
                await registration.change.wait()  # the first poll registers the watch and identifies the run
                continue
            batch, run = await self._read(registration), registration.watched.run
            if run is not None:  # the store answers
                self._lost_at, self._failures = None, 0
            if batch or self._has_changed(run) or self._has_text():
                self.run = run
                self._after = batch[-1].seq if batch else self._after
                return batch
            if registration.watched.is_over and self._after >= registration.watched.read_to:
                return None
            await registration.change.wait()

    async def _read(self, registration: _WatchRegistration) -> list[RecordSummary]:
        if registration.watcher.is_at_hand(registration.watched, self._after):
            return registration.watcher.records(registration.watched, self._after)
        return await anyio.to_thread.run_sync(
            registration.watcher.records, registration.watched, self._after, abandon_on_cancel=True
        )

    def _register(self) -> _WatchRegistration:
        change = _Change()
        if self._texts:  # before the watcher's first poll, which registers the run with its owner
            live_texts.join(self._live, change.notify)
        try:
            watcher, watched = watchers.join(self._store, self._run_id, change.notify)
        except StoreError:
            live_texts.unwatch(self._live, change.notify)
            raise
        self._registration = _WatchRegistration(watcher=watcher, watched=watched, change=change)
        return self._registration

    def _has_text(self) -> bool:
        return self._texts and live_texts.since(self._live, self._wait_for_change)[1] != self._wait_for_change

    def new_texts(self) -> dict[StepPath, str]:
        """Return the running steps' new text by path."""
        texts, self._wait_for_change = live_texts.since(self._live, self._wait_for_change)
        return texts

    def _has_changed(self, run: StoredRun | None) -> bool:
        if run is None or self.run is None:
            return run is not self.run
        return (run.status, run.leased, run.pauses) != (self.run.status, self.run.leased, self.run.pauses)

    def close(self) -> None:
        """End the watch."""
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.watcher.unwatch(registration.watched, registration.change.notify)
            live_texts.unwatch(self._live, registration.change.notify)

    async def aclose(self) -> None:
        """End the watch."""
        self.close()

    def __del__(self) -> None:
        self.close()


def _checked_patience(reconnect_s: float) -> float:
    if not is_number(reconnect_s) or reconnect_s < 0:
        raise DeclarationError(f"watch: reconnect_s must be a finite number of seconds, 0 or more, not {reconnect_s!r}")
    return reconnect_s


@attrs.frozen(kw_only=True, eq=False)
class _WatchRegistration:
    """Registration of a watcher."""

    watcher: WatchPoller
    watched: WatchedRun
    change: _Change


class _Change:
    """Event that any thread may set for one task."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._call_in_loop = loop_callback()

    def begin(self) -> None:
        """From now on, whatever happens is not missed."""
        self._event = anyio.Event()

    def notify(self) -> None:
        """From any thread: something has changed."""
        self._call_in_loop(lambda: self._event.set())

    async def wait(self) -> None:
        """Until something has changed."""
        await self._event.wait()


def loop_callback() -> Callable[[Callable[[], object]], None]:
    """Return a thread-safe function that calls back in this loop."""
    if sniffio.current_async_library() == "trio":
        import trio

        return _ignoring(trio.lowlevel.current_trio_token().run_sync_soon, trio.RunFinishedError)
    import asyncio

    return _ignoring(asyncio.get_running_loop().call_soon_threadsafe, RuntimeError)


def _ignoring(call: Callable[..., object], gone: type[Exception]) -> Callable[[Callable[[], object]], None]:
    def call_unless_gone(do: Callable[[], object]) -> None:
        try:
            call(do)
        except gone:
            return

    return call_unless_gone


def wait_until(store: Store, run_id: RunId, done: Callable[[StoredRun], bool], *, timeout: float | None) -> StoredRun:
    """Return the run in the requested state; raise `TimeoutError` or `RunNotFound`. Blocks."""
    required(store, "look", subject="waiting for a run")
    deadline = None if timeout is None else time.monotonic() + timeout
    changed = threading.Event()
    watcher, watched = watchers.join(store, run_id, changed.set)
    try:
        while True:
            changed.clear()
            if watched.error is not None:
                raise watched.error
            if watched.run is not None and done(watched.run):
                return watched.run
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                status = "not known yet" if watched.run is None else watched.run.status
                raise TimeoutError(f"run {run_id!r} has not ended within {timeout:g} s; it is {status}")
            changed.wait(left)
    finally:
        watcher.unwatch(watched, changed.set)
