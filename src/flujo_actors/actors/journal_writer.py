"""The journal actor: gathers what runs want written into one transaction, and answers after the commit.

Rules:

1. There is one writer per store and trio run, so that concurrent runs share commits: while one transaction commits in
   its thread, everything that comes in waits, and goes into the next one together.
2. A write returns when it is durable. It raises `LeaseLost` if the run has another owner by now, and `StoreError` if
   the store failed; then nothing of it was written.
3. A commit that has begun is not cancelled with whoever waits for it.
4. Leases of open runs are renewed together, three times per lease; a run that lost its lease is told at once.
5. The writer's task lives while there is something to write, the renewing one while a run is open.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from ..core.records import Append, Lease
from ..errors import FlujoError, LeaseLost, StoreError
from ..stores.port import Store


@attrs.define(eq=False)
class _Waiting:
    """A write that somebody waits for."""

    append: Append
    done: trio.Event = attrs.field(factory=trio.Event)
    error: FlujoError | None = None


class JournalWriter:
    """The one that writes to a store for all runs of a trio run; see the module's rules."""

    def __init__(self, store: Store, *, lease_s: float) -> None:
        self._store = store
        self._lease_s = lease_s
        self._queue: list[_Waiting] = []
        self._writing = False
        self._leases: dict[Lease, Callable[[LeaseLost], None]] = {}
        self._renewing: trio.CancelScope | None = None
        self.commits = 0
        """How many transactions were committed."""
        self.written = 0
        """How many records were written."""

    async def write(self, append: Append) -> None:
        """Make the append durable; see the module's rules."""
        waiting = _Waiting(append)
        self._queue.append(waiting)
        if not self._writing:
            self._writing = True
            trio.lowlevel.spawn_system_task(self._write_all)
        await waiting.done.wait()
        if waiting.error is not None:
            raise waiting.error

    async def _write_all(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue, []
                await self._commit(batch)
        finally:
            self._writing = False

    async def _commit(self, batch: list[_Waiting]) -> None:
        appends = [waiting.append for waiting in batch]
        try:
            with trio.CancelScope(shield=True):
                answers = await trio.to_thread.run_sync(self._store.append, appends)
        except StoreError as error:
            for waiting in batch:
                waiting.error = error
        else:
            self.commits += 1
            self.written += sum(len(append.records) for append in appends)
            for waiting, answer in zip(batch, answers, strict=True):
                waiting.error = answer
        finally:
            for waiting in batch:
                waiting.done.set()

    # --- leases ---

    def hold(self, lease: Lease, lost: Callable[[LeaseLost], None]) -> None:
        """Keep a lease alive until it is let go; `lost` is called if it cannot be."""
        self._leases[lease] = lost
        if self._renewing is None:
            self._renewing = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._renew_leases, self._renewing)

    def let_go(self, lease: Lease) -> None:
        """Stop renewing a lease."""
        self._leases.pop(lease, None)
        if not self._leases and self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None

    async def _renew_leases(self, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await trio.sleep(self._lease_s / 3)
                await self._renew()

    async def _renew(self) -> None:
        held = list(self._leases)
        renew = self._store.renew
        try:
            answers = await trio.to_thread.run_sync(lambda: renew(held, lease_s=self._lease_s))
        except StoreError:
            return  # the next round tries again; if the store stays away, the leases expire and writes fail
        for lease, answer in zip(held, answers, strict=True):
            tell = self._leases.get(lease)
            if answer is not None and tell is not None:
                tell(answer)


_writers: trio.lowlevel.RunVar[dict[int, JournalWriter]] = trio.lowlevel.RunVar("flujo_actors journal writers")


def writer_for(store: Store, *, lease_s: float) -> JournalWriter:
    """The writer of a store in the current trio run."""
    try:
        writers = _writers.get()
    except LookupError:
        writers = {}
        _writers.set(writers)
    writer = writers.get(id(store))
    if writer is None:
        writer = writers[id(store)] = JournalWriter(store, lease_s=lease_s)
    return writer
