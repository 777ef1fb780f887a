"""The journal of a run of this process, told as it is written: what is shown is what is stored."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import trio

from .._core.light_records import LightRecord
from .._core.outcomes import RunId
from .._durable.watches import RunWatch
from ..stores._port import Store
from ..terminal._displays import Display


class JournalLines:
    """Follows one run in a thread of its own, while another loop works on it."""

    def __init__(self, store: Store, display: Display) -> None:
        self._store, self._display = store, display
        self._seen = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, run_id: str) -> None:
        """From now on; the run must be there."""
        if self._thread is None:
            self._thread = threading.Thread(target=trio.run, args=(self._follow, RunId(run_id)), daemon=True)
            self._thread.start()

    def finish(self, run_id: str) -> None:
        """Tell the rest, now that nothing more comes."""
        self._over.set()
        with self._lock:
            self._take(self._store.scan(RunId(run_id), after=self._seen))

    async def _follow(self, run_id: RunId) -> None:
        watch = RunWatch(self._store, run_id)
        while (batch := await watch.next_batch()) is not None and not self._over.is_set():
            with self._lock:
                self._take([record for record in batch if record.seq > self._seen])

    def _take(self, records: Iterable[LightRecord]) -> None:
        for record in records:
            self._display.take(record)
            self._seen = record.seq
