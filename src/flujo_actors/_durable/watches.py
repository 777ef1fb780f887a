"""One watch of a run: light records as an async iterator, on trio or asyncio, and as a wait for a plain thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import anyio
import anyio.to_thread
import attrs
import sniffio

from .._core.light_records import LightRecord
from .._core.outcomes import RunId
from .._core.paths import StepPath
from .._core.records import StoredRun
from ..stores._port import Store
from .live_texts import live_texts
from .watching import WatchedRun, Watcher, required, watchers


class RunWatch:
    """The records of a run as they are written, without their bodies: `async for record in …`.

    It ends when the run has ended. Leaving the loop ends the watch, and leaves the run alone.
    """

    def __init__(self, store: Store, run_id: RunId, *, after: int = 0, texts: bool = False) -> None:
        self._seat: _Seat | None = None
        required(store, "look", what="watching a run")
        self._store, self._run_id, self._after = store, run_id, max(after, 0)
        self._given: deque[LightRecord] = deque()
        self.run: StoredRun | None = None
        """How the run stood when the last records were given."""
        self._texts, self._heard = texts, 0

    def __aiter__(self) -> RunWatch:
        return self

    async def __anext__(self) -> LightRecord:
        while not self._given:
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._given.extend(batch)
        return self._given.popleft()

    async def next_batch(self) -> list[LightRecord] | None:
        """What was found next, all at once: empty if only the run stands otherwise; `None` when the run is over."""
        seat, batch = self._seat or self._take_seat(), None
        try:
            batch = await self._batch(seat)
        finally:
            if batch is None:  # the run is over, or it cannot be read, or nobody waits for it any more
                self.close()
        return batch

    async def _batch(self, seat: _Seat) -> list[LightRecord] | None:
        while True:
            seat.change.begin()
            batch, run = await self._read(seat), seat.watched.run
            if batch or self._stands_otherwise(run) or self._is_heard():
                self.run = run
                self._after = batch[-1].seq if batch else self._after
                return batch
            if seat.watched.is_over and self._after >= seat.watched.read_to:
                return None
            await seat.change.wait()

    async def _read(self, seat: _Seat) -> list[LightRecord]:
        if seat.watcher.is_at_hand(seat.watched, self._after):
            return seat.watcher.records(seat.watched, self._after)
        return await anyio.to_thread.run_sync(seat.watcher.records, seat.watched, self._after, abandon_on_cancel=True)

    def _take_seat(self) -> _Seat:
        change = _Change()
        watcher, watched = watchers.join(self._store, self._run_id, change.tell)
        if self._texts:
            live_texts.join(self._run_id, change.tell)
        self._seat = _Seat(watcher=watcher, watched=watched, change=change)
        return self._seat

    def _is_heard(self) -> bool:
        return self._texts and live_texts.since(self._run_id, self._heard)[1] != self._heard

    def new_texts(self) -> dict[StepPath, str]:
        """What steps at work have written since this was last asked: the end of it, by path."""
        texts, self._heard = live_texts.since(self._run_id, self._heard)
        return texts

    def _stands_otherwise(self, run: StoredRun | None) -> bool:
        if run is None or self.run is None:
            return run is not self.run
        return (run.status, run.leased, run.pauses) != (self.run.status, self.run.leased, self.run.pauses)

    def close(self) -> None:
        """End the watch."""
        seat, self._seat = self._seat, None
        if seat is not None:
            seat.watcher.leave(seat.watched, seat.change.tell)
            live_texts.leave(self._run_id, seat.change.tell)

    async def aclose(self) -> None:
        """End the watch."""
        self.close()

    def __del__(self) -> None:
        self.close()


@attrs.frozen(kw_only=True, eq=False)
class _Seat:
    """A place among those who watch a run."""

    watcher: Watcher
    watched: WatchedRun
    change: _Change


class _Change:
    """A bell that any thread may ring for one task on trio or asyncio."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._ring = ringer()

    def begin(self) -> None:
        """From now on, whatever happens is not missed."""
        self._event = anyio.Event()

    def tell(self) -> None:
        """From any thread: something has changed."""
        self._ring(lambda: self._event.set())

    async def wait(self) -> None:
        """Until something has changed."""
        await self._event.wait()


def ringer() -> Callable[[Callable[[], object]], None]:
    """What does something in the loop of the current task, called from any thread; nothing if the loop is gone."""
    if sniffio.current_async_library() == "trio":
        import trio

        return _quiet(trio.lowlevel.current_trio_token().run_sync_soon, trio.RunFinishedError)
    import asyncio

    return _quiet(asyncio.get_running_loop().call_soon_threadsafe, RuntimeError)


def _quiet(call: Callable[..., object], gone: type[Exception]) -> Callable[[Callable[[], object]], None]:
    def ring(do: Callable[[], object]) -> None:
        try:
            call(do)
        except gone:
            return

    return ring


def wait_until(store: Store, run_id: RunId, done: Callable[[StoredRun], bool], *, timeout: float | None) -> StoredRun:
    """The run, once it stands as asked; `TimeoutError` after so many seconds, `RunNotFound` without one. Blocks."""
    required(store, "look", what="waiting for a run")
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
                raise TimeoutError(f"run {run_id!r} has not come to an end within {timeout:g} s; it is {status}")
            changed.wait(left)
    finally:
        watcher.leave(watched, changed.set)
