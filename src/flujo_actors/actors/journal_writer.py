"""The journal actor: gathers what runs want written into one transaction, and answers after the commit.

Rules:

1. There is one writer per store and trio run, so that concurrent runs share commits: while one transaction commits in
   its thread, everything that comes in waits, and goes into the next one together.
2. A write returns when it is durable. It raises `LeaseLost` if the run has another owner by now, and `StoreError` if
   the store failed: then either nothing of it was written, or all of it and the answer was lost.
3. A commit that has begun is not cancelled with whoever waits for it.
4. Leases of open runs are renewed together, three times per lease. A run that lost its lease is told at once, and so
   is one whose lease must have expired because the store could not be asked, by this process's monotonic clock.
5. The writer's task lives while there is something to write, the renewing one while a run is open.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import attrs
import trio
from outcome import Error, Value, acapture

from ..core.records import Admission, Append, Lease
from ..errors import FlujoError, LeaseLost, RunExists, StoreError
from ..stores.port import Store

J = TypeVar("J")
R = TypeVar("R")


def new_owner() -> str:
    """A name for this process and this claim, for people who look at leases."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


@attrs.define(eq=False)
class _Waiting(Generic[J, R]):
    """A job that somebody waits for."""

    job: J
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: Value[R] | Error | None = None

    async def result(self) -> R:
        await self.done.wait()
        assert self.answer is not None
        return self.answer.unwrap()


class JournalWriter:
    """The one that writes to a store for all runs of a trio run; see the module's rules."""

    def __init__(self, store: Store, *, lease_s: float) -> None:
        self._store = store
        self._lease_s = lease_s
        self._owner = new_owner()
        self._admissions: list[_Waiting[Admission, Lease]] = []
        self._appends: list[_Waiting[Append, None]] = []
        self._writing = False
        self._leases: dict[Lease, _Held] = {}
        self._renewing: trio.CancelScope | None = None
        self.commits = 0
        """How many transactions were committed."""
        self.written = 0
        """How many records were written."""

    async def admit(self, admission: Admission) -> Lease:
        """Make a run exist; `RunExists` if its id is taken."""
        waiting: _Waiting[Admission, Lease] = _Waiting(admission)
        self._admissions.append(waiting)
        self._wake()
        return await waiting.result()

    async def write(self, append: Append) -> None:
        """Make the append durable; see the module's rules."""
        if append.release:
            self.let_go(append.lease)  # a renewal that comes after the release must not look like a loss
        waiting: _Waiting[Append, None] = _Waiting(append)
        self._appends.append(waiting)
        self._wake()
        await waiting.result()

    def _wake(self) -> None:
        if not self._writing:
            self._writing = True
            trio.lowlevel.spawn_system_task(self._write_all)

    async def _write_all(self) -> None:
        try:
            while self._admissions or self._appends:
                admissions, self._admissions = self._admissions, []
                appends, self._appends = self._appends, []
                await self._commit(admissions, self._admit_all)
                await self._commit(appends, self._append_all)
        finally:
            self._writing = False

    async def _commit(self, batch: list[_Waiting[J, R]], write: Callable[[list[J]], list[Any]]) -> None:
        """Write a batch in one transaction and tell everybody what came of it."""
        if not batch:
            return
        with trio.CancelScope(shield=True):
            got = await _asked(trio.to_thread.run_sync(write, [waiting.job for waiting in batch]))
        self.commits += isinstance(got, Value)
        answers = got.value if isinstance(got, Value) else [_copied(got.error) for _ in batch]
        for waiting, answer in zip(batch, answers, strict=True):
            waiting.answer = Error(answer) if isinstance(answer, FlujoError) else Value(answer)
            waiting.done.set()

    def _admit_all(self, admissions: list[Admission]) -> list[Lease | RunExists]:
        return self._store.admit_all(admissions, owner=self._owner, lease_s=self._lease_s)

    def _append_all(self, appends: list[Append]) -> list[LeaseLost | None]:
        answers = self._store.append(appends)
        self.written += sum(len(append.records) for append in appends)
        return answers

    # --- leases ---

    def hold(self, lease: Lease, lost: Callable[[LeaseLost], None]) -> None:
        """Keep a lease alive until it is let go; `lost` is called if it cannot be."""
        self._leases[lease] = _Held(tell=lost, until=trio.current_time() + self._lease_s)
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
        asked_at, leases, renew = trio.current_time(), list(self._leases), self._store.renew
        got = await _asked(trio.to_thread.run_sync(lambda: renew(leases, lease_s=self._lease_s)))
        if isinstance(got, Error):
            self._give_up_expired(got.error)
            return
        for lease, answer in zip(leases, got.value, strict=True):
            held = self._leases.get(lease)
            if held is not None and answer is not None:
                held.tell(answer)
            elif held is not None:
                held.until = asked_at + self._lease_s

    def _give_up_expired(self, error: BaseException) -> None:
        for lease, held in self._leases.items():
            if held.until <= trio.current_time():
                lost = LeaseLost(f"the lease of run {lease.run_id!r} expired: it could not be renewed ({error})")
                lost.__cause__ = error
                held.tell(lost)


@attrs.define(eq=False)
class _Held:
    """A lease that is kept alive."""

    tell: Callable[[LeaseLost], None]
    until: float
    """When it expires, at the earliest, if it is not renewed."""


async def _asked(call: Awaitable[R]) -> Value[R] | Error:
    """What the store answered, or a `StoreError`: also for what a store may not raise, since runs wait for it."""

    async def wait() -> R:
        return await call

    got = await acapture(wait)
    if isinstance(got, Value) or isinstance(got.error, StoreError):
        return got
    if not isinstance(got.error, Exception):
        raise got.error
    broken = StoreError(f"the store raised {type(got.error).__name__}: {got.error}")
    broken.__cause__ = got.error
    return Error(broken)


def _copied(error: BaseException) -> BaseException:
    """The error for one of several that wait: each raises its own, with its own traceback."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error
    return copy


_writers: trio.lowlevel.RunVar[dict[tuple[int, float], JournalWriter]] = trio.lowlevel.RunVar("flujo_actors writers")


def writer_for(store: Store, *, lease_s: float) -> JournalWriter:
    """The writer of a store in the current trio run."""
    try:
        writers = _writers.get()
    except LookupError:
        writers = {}
        _writers.set(writers)
    writer = writers.get((id(store), lease_s))
    if writer is None:
        writer = writers[id(store), lease_s] = JournalWriter(store, lease_s=lease_s)
    return writer
