"""Watching the runs of a store, whichever process works on them: a poller shared by all who watch.

Rules:

1. There is one thread per store and process, for as long as somebody watches. It asks the store once for all watched
   runs, `POLL_S` after the last time, and at once when a commit of this process says so (`poke`).
2. What is new in a run is read once, into a window that all who watch the run share. Whoever is behind the window, as
   everybody is at first, reads from the store by itself; so a slow watcher costs nobody anything.
3. A watcher is woken from the thread, on trio, on asyncio or in another thread, and never runs in it.
4. What goes wrong with the store is told to everybody who watches, and the thread goes on with who comes next.
5. A watch ends when the run has ended and all its records were given. `RunNotFound` if it is, or goes, away.
6. What steps in other processes are writing is asked for by the same thread (`text_exchange`), twice a second.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import attrs

from .._core.light_records import LightRecord
from .._core.outcomes import RunId
from .._core.records import StoredRun, has_ended
from ..errors import DeclarationError, FlujoError, StoreError
from ..stores._forking import watch_forks
from ..stores._port import Store
from ..stores._refusals import not_found
from .text_exchange import EVERY_S, take_texts

POLL_S = 0.15
"""How long the thread rests between two questions."""

PAGE = 2_000
"""How many records are read at a time."""

_WINDOW = 10_000

Wake: TypeAlias = Callable[[], object]


def required(store: Store, method: str, *, what: str) -> None:
    """`DeclarationError` if the store lacks a part that not every store has."""
    if not hasattr(store, method):
        raise DeclarationError(
            f"{what} needs a store with `{method}`, and {type(store).__name__} has none: see `RunScan`, "
            "or use SqliteStore, PostgresStore or MemoryStore"
        )


@attrs.define(eq=False)
class WatchedRun:
    """What the watchers of one run share. Changed by the thread alone, under the watcher's lock."""

    run_id: RunId
    run: StoredRun | None = None
    """How the run stood when the store was last asked."""
    read_to: int = 0
    """Up to which record the window reaches."""
    window: deque[LightRecord] = attrs.Factory(lambda: deque(maxlen=_WINDOW))
    error: FlujoError | None = None
    wakes: list[Wake] = attrs.Factory(list)

    def after(self, seq: int) -> list[LightRecord] | None:
        """The window's records after a number; `None` if it does not reach back that far, or is not there yet."""
        if self.run is None or seq < self.read_to - len(self.window):
            return None
        newest = itertools.islice(reversed(self.window), max(0, self.read_to - seq))
        return list(newest)[::-1]

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be written."""
        return self.run is not None and has_ended(self.run.status)


class Watcher:
    """The watchers of one store in this process; see the module's rules."""

    def __init__(self, store: Store, forget: Callable[[], object]) -> None:
        self._store, self._forget = store, forget
        self._changed = threading.Condition()
        self._runs: dict[RunId, WatchedRun] = {}
        self._poked = False
        self._at_work = False
        self._listens_at = 0.0

    def join(self, run_id: RunId, wake: Wake) -> WatchedRun:
        """Watch a run: `wake` is called, in the thread, whenever there may be something new."""
        with self._changed:
            watched = self._runs.setdefault(run_id, WatchedRun(run_id))
            watched.wakes.append(wake)
            if not self._at_work:
                self._begin()
            self._poke()
        return watched

    def leave(self, watched: WatchedRun, wake: Wake) -> None:
        """Watch no longer."""
        with self._changed:
            if wake in watched.wakes:
                watched.wakes.remove(wake)
            if not watched.wakes and self._runs.get(watched.run_id) is watched:
                del self._runs[watched.run_id]
            self._poke()

    def poke(self) -> None:
        """Something was written just now: look at once."""
        with self._changed:
            self._poke()

    def records(self, watched: WatchedRun, seq: int) -> list[LightRecord]:
        """What comes after a record, from the window or the store; blocks if it is the store."""
        with self._changed:
            found, error = watched.after(seq), watched.error
        if error is not None:
            raise error
        if found is not None:
            return found
        return list(self._store.scan(watched.run_id, after=seq, limit=PAGE))

    def is_at_hand(self, watched: WatchedRun, seq: int) -> bool:
        """Whether `records` would not block."""
        with self._changed:
            return watched.error is not None or watched.after(seq) is not None

    def _poke(self) -> None:
        self._poked = True
        self._changed.notify()

    def _begin(self) -> None:
        try:
            threading.Thread(target=self._work, name="flujo_actors watcher", daemon=True).start()
        except RuntimeError as error:
            raise StoreError(f"no thread could be started to watch the store ({error})") from error
        self._at_work = True

    def _work(self) -> None:
        while (runs := self._watched()) is not None:
            wakes = self._look(runs)
            for wake in wakes:
                wake()
            del runs, wakes
            self._rest()

    def _watched(self) -> list[WatchedRun] | None:
        """Who is watched now; `None` if nobody is, and the thread is to end."""
        with self._changed:
            self._poked = False
            if not self._runs:
                self._at_work = False
                self._forget()
                return None
            return list(self._runs.values())

    def _rest(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._poked, POLL_S)

    def _look(self, runs: Sequence[WatchedRun]) -> list[Wake]:
        """Ask the store; what comes back are those to wake."""
        try:
            run_ids = [each.run_id for each in runs]
            stored = self._store.look(run_ids)
            self._listen(run_ids)
        except FlujoError as error:
            return self._told(runs, error)
        return [wake for each in runs for wake in self._advanced(each, stored.get(each.run_id))]

    def _listen(self, run_ids: Sequence[RunId]) -> None:
        """Rule 6."""
        now = time.monotonic()
        if now >= self._listens_at:
            self._listens_at = now + EVERY_S
            take_texts(self._store, run_ids)

    def _told(self, runs: Iterable[WatchedRun], error: FlujoError) -> list[Wake]:
        """Tell everybody, once: those who watch again begin anew."""
        with self._changed:
            for each in runs:
                each.error = error
                if self._runs.get(each.run_id) is each:
                    del self._runs[each.run_id]
            return [wake for each in runs for wake in each.wakes]

    def _advanced(self, watched: WatchedRun, run: StoredRun | None) -> Sequence[Wake]:
        if run is None:
            return self._told([watched], not_found(watched.run_id))
        if watched.run is not None and _as_seen(run) == _as_seen(watched.run):
            return ()
        try:
            new = self._new_in(watched, run)
        except FlujoError as error:
            return self._told([watched], error)
        with self._changed:
            watched.window.extend(new)
            watched.read_to = new[-1].seq if new else max(watched.read_to, run.records if watched.run is None else 0)
            watched.run = run if watched.read_to >= run.records else _still_at_work(run)
            return list(watched.wakes)

    def _new_in(self, watched: WatchedRun, run: StoredRun) -> Sequence[LightRecord]:
        """What was written since the last look; at the first look nothing is, for history is everybody's own."""
        if watched.run is None or run.records <= watched.read_to:
            return ()
        return list(self._store.scan(watched.run_id, after=watched.read_to, limit=_WINDOW))


def _as_seen(run: StoredRun) -> tuple[object, ...]:
    """What makes a difference to somebody who watches; the seconds left of a lease do not."""
    return run.records, run.status, run.leased, run.pauses, run.tokens, run.cost_usd


def _still_at_work(run: StoredRun) -> StoredRun:
    """A run whose last records are still to be read: it is not over for who watches, and is looked at again."""
    return attrs.evolve(run, status="running", records=-1)


class _Watchers:
    """The watchers of this process."""

    def __init__(self) -> None:
        self._reset()
        watch_forks(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._by_place: dict[object, Watcher] = {}

    def join(self, store: Store, run_id: RunId, wake: Wake) -> tuple[Watcher, WatchedRun]:
        """Watch a run of a store with whoever else watches that store."""
        key = _key(store)
        with self._lock:
            watcher = self._by_place.get(key)
            if watcher is None:
                watcher = self._by_place[key] = Watcher(store, lambda: self._by_place.pop(key, None))
            watched = watcher.join(run_id, wake)
            self._by_place[key] = watcher  # its thread may have ended, and forgotten it, a moment ago
            return watcher, watched

    def poke(self, store: Store | None) -> None:
        """This process has written to a store."""
        if self._by_place and store is not None:
            watcher = self._by_place.get(_key(store))
            if watcher is not None:
                watcher.poke()

    def before_fork(self) -> None:
        """Nothing to do: the thread stays with the parent."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do."""

    def after_fork_in_child(self) -> None:
        self._reset()


def _key(store: Store) -> object:
    """Stores of one place share a watcher, which keeps its store while somebody watches: no id is used twice."""
    return getattr(store, "place", None) or id(store)


watchers = _Watchers()
"""The watchers of this process."""
