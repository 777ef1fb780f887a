"""Renewal of open runs' leases for their process's life.

Rules:

1. `LeaseTimes` decides when to renew and when to give up, by the clock of the trio run.
2. Two parties check: a task of the run, which knows its clock, and a timer thread, which does not depend on the
   event loop. So a step that blocks its loop keeps its lease, and a store that hangs does not keep the owner running.
3. The store is called in its own thread. The owner of a lost lease is notified in the run's thread.
4. A closed loop never continues: the leases of its runs are released.
5. No effect starts after the lease must have expired: `HeldLease.lapsed` reads a clock that runs while the process is
   stopped or the machine sleeps. A lapsed owner asks the store first, and starts the effect if the lease is renewed.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import attrs
import trio
from outcome import Error, Outcome, Value

from .._bridge.host_loop import host_lives
from .._core import seams
from .._core.records.records import Lease
from ..errors import LeaseLost, StoreError
from ..stores._lease_clock import boot_id
from .store_executor import start_thread
from .timer_thread import alarms

Fate: TypeAlias = Literal["here", "alive", "dead", "unknown"]
"""Liveness of an owner: this process, live, dead, or unknown."""

GONE = "gone"
"""Start time of a process that does not exist any more."""

StartedAt: TypeAlias = Callable[[int], str | None]
"""Start time of a process by the system; `GONE` or `None`."""


@attrs.frozen(kw_only=True)
class Process:
    """A process of a machine, named for good."""

    host: str
    pid: int
    boot: str = ""
    """Boot id of the machine; empty if the system has none."""
    spaces: str = ""
    """Namespaces of `pid` and `started`; empty if unknown."""
    started: str = ""

    def owner(self, claim: str) -> str:
        """Return the owner text of the process for a claim."""
        return ":".join((self.host, str(self.pid), claim, self.boot, self.spaces, self.started))


def process_of(owner: str | None) -> Process | None:
    """Return the process in an owner text; None for another form."""
    parts = (owner or "").rsplit(":", 5)
    if len(parts) != 6 or not parts[1].isdecimal() or len(parts[1]) > 15 or int(parts[1]) < 1:
        return None
    host, pid, _, boot, spaces, started = parts
    return Process(host=host, pid=int(pid), boot=boot, spaces=spaces, started=started)


def liveness_of(owner: str | None, *, here: Process, started_at: StartedAt) -> Fate:
    """Return an owner's liveness as seen from process `here` (module rules)."""
    process = process_of(owner)
    if process is None or not _comparable(process, here):
        return "unknown"
    if process == here:
        return "here"
    match started_at(process.pid):
        case None:
            return "unknown"
        case process.started:
            return "alive"
        case _:
            return "dead"


def _comparable(process: Process, here: Process) -> bool:
    known = here.boot and here.spaces and process.started
    return bool(known) and (process.host, process.boot, process.spaces) == (here.host, here.boot, here.spaces)


# --- Renewal and expiry decisions for leases ----------------------------------------------------------------------
# Rules:
#
# 1. Leases are renewed together, three times per lease. One renewal is in flight at a time.
# 2. A lease is given up when it must have expired, and the store has refused to renew it or has not answered for a
#    third
#    of a lease. A late owner, for example after a suspend, asks the store first: the run may be unclaimed.
# 3. A renewal that failed is repeated thirty times per lease: a locked database may be free again before the expiry.


@attrs.define(kw_only=True)
class LeaseTimes:
    """Renewal state of a set of leases; see the module's rules."""

    lease_s: float
    asked_at: float
    """Time of the last renewal request, or of the first grant."""
    asking: bool = False
    """Whether it has not answered yet."""
    failed: bool = False
    """Whether the last answer was an error."""

    @property
    def every_s(self) -> float:
        return self.lease_s / 3

    @property
    def wait_s(self) -> float:
        """Return the time to the next check: shorter after an error."""
        return self.every_s / 10 if self.failed or self.asking else self.every_s

    def is_due(self, now: float) -> bool:
        """Return whether to ask the store now."""
        return not self.asking and now >= self.asked_at + self.wait_s

    def is_over(self, until: float, now: float, *, silent_s: float) -> bool:
        """Return whether to give up a lease: expired, or store silent."""
        return now >= until and (self.failed or (self.asking and silent_s >= self.every_s))

    def next_check(self, untils: Iterable[float], now: float) -> float:
        """Return the next check's time; renewals never make it earlier."""
        times = (self.asked_at + self.wait_s, now + self.wait_s, *untils)
        return min(time for time in times if time > now)


Renew: TypeAlias = Callable[[Sequence[Lease]], list[LeaseLost | None]]
"""Store call that renews leases; called in a thread."""

Answers: TypeAlias = dict[Lease, LeaseLost | None]

Tell: TypeAlias = Callable[[LeaseLost], None]

_SUSPENDED = getattr(time, "CLOCK_BOOTTIME", None)
"""Clock that also counts system suspend, if available."""


def elapsed_s() -> float:
    """Return seconds of a monotonic clock that runs during stops and suspends."""
    if seams.boot_clock is not None:
        return seams.boot_clock()
    return time.monotonic() if _SUSPENDED is None else time.clock_gettime(_SUSPENDED)


@attrs.define(eq=False)
class HeldLease:
    """Renewed lease."""

    leases: Leases
    lease: Lease
    tell: Tell
    until: float
    """Earliest expiry by the clock of the trio run, without another renewal."""
    valid_until: float
    """The same by `elapsed_s`; infinite for a lease that was released."""
    lost: LeaseLost | None = None

    @property
    def lapsed(self) -> bool:
        """Return whether the lease must have expired; from any thread."""
        return elapsed_s() >= self.valid_until

    async def confirm(self) -> None:
        """Return once the store renewed the lease; else raise `LeaseLost`."""
        while self.lapsed:
            if self.lost is not None:
                raise copied(self.lost)
            await self.leases.renewed(self)


class Leases:
    """Leases renewed by a trio run in one store (module rules)."""

    def __init__(self, renew: Renew, *, lease_s: float, borrower: Callable[[], str | None] = lambda: None) -> None:
        self._renew, self._borrower = renew, borrower
        self._clock = trio.lowlevel.current_clock()
        self._token = trio.lowlevel.current_trio_token()
        self._host_lives = host_lives()
        self._held: dict[Lease, HeldLease] = {}
        self._lapsed: list[trio.Event] = []
        """Effects that wait for a renewal; set with the store's next reply."""
        self._times = LeaseTimes(lease_s=lease_s, asked_at=self._clock.current_time())
        self._asked_at = 0.0
        """Real time of the last store call; run clocks may differ."""
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        """Guards all of these: loop, alarm and the store's thread change them."""
        self._scope: trio.CancelScope | None = None
        self._alarm_at = math.inf

    @property
    def renewing(self) -> bool:
        """Return whether a renewal is in flight."""
        return self._times.asking

    def hold(self, lease: Lease, lost: Tell, *, since: float | None = None) -> HeldLease:
        """Renew a lease until release; call `lost` with its next owner.

        `since` is the time of the claim, if that is a while ago.
        """
        now = self._clock.current_time()
        since = now if since is None else since
        with self._lock:
            self._set_alarm(self._times.every_s)
            if not self._held and not self._times.asking:
                self._times = LeaseTimes(lease_s=self._times.lease_s, asked_at=now)
            held = self._held.get(lease)
            if held is None:
                until = since + self._times.lease_s
                held = self._held[lease] = HeldLease(self, lease, lost, until, elapsed_s() + until - now)
            held.tell = lost
        if self._scope is None:
            self._scope = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._renew_until_cancelled, self._scope)
        return held

    async def renewed(self, held: HeldLease) -> None:
        """Renew a lapsed lease; a store error loses it."""
        answered = trio.Event()
        with self._lock:
            self._lapsed.append(answered)
        self._check(at_once=True)
        await answered.wait()
        with self._lock:
            if held.lapsed and self._error is not None and held.lease in self._held:
                self._drop(held.lease, self._not_renewed(held.lease, self._error))

    def held(self) -> list[Lease]:
        """Return the renewed leases; from any thread."""
        with self._lock:
            return list(self._held)

    def release_lease(self, lease: Lease) -> None:
        """Stop renewing a lease."""
        with self._lock:
            held = self._held.pop(lease, None)
            if held is not None:
                held.valid_until = math.inf
        if not self._held and self._scope is not None:
            self._scope.cancel()
            self._scope = None

    # --- schedule ---

    async def _renew_until_cancelled(self, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await trio.sleep_until(self._next_check())
                self._check()

    def _next_check(self) -> float:
        with self._lock:
            return self._times.next_check((held.until for held in self._held.values()), self._clock.current_time())

    def _set_alarm(self, after_s: float) -> None:
        """Schedule the next check, independent of a blocked loop."""
        at = seams.clock.monotonic() + after_s
        if at < self._alarm_at:
            me = weakref.ref(self)
            alarms.set(after_s, lambda: _alarm(me(), at))
            self._alarm_at = at

    def alarm(self, at: float) -> None:
        """Called by the thread of alarms."""
        if at != self._alarm_at:
            return  # an earlier timer was set meanwhile
        self._alarm_at = math.inf
        self._check()
        after_s = self._next_check() - self._clock.current_time()
        with self._lock:
            if self._held:
                self._set_alarm(after_s)

    # --- renewal ---

    def _check(self, *, at_once: bool = False) -> None:
        """Give up expired leases, renew due ones or all; any thread."""
        now = self._clock.current_time()
        with self._lock:
            if not self._host_lives():
                self._held.clear()
            self._drop_expired(now)
            due = self._times.is_due(now) or (at_once and not self._times.asking)
            leases = list(self._held) if due else []
            if leases:
                self._times.asking, self._times.asked_at, self._asked_at = True, now, seams.clock.monotonic()
            elif at_once and not self._times.asking:
                self._wake_expired()  # nothing is left to ask for
        if leases:
            self._send_renewals(leases, now)

    def _send_renewals(self, leases: list[Lease], now: float) -> None:
        def answers() -> Answers:
            return dict(zip(leases, self._renew(leases), strict=True))

        asked = elapsed_s()
        try:
            start_thread(answers, lambda got: self._on_reply(got, now, asked))
        except StoreError as error:
            self._on_reply(Error(error), now, asked)

    def _on_reply(self, got: Outcome[Answers], asked_at: float, asked: float) -> None:
        """Handle the store's reply in its thread."""
        with self._lock:
            self._error = got.error if isinstance(got, Error) else None
            self._times.failed = self._error is not None
            if isinstance(got, Value):
                self._apply_replies(got.value, asked_at, asked)
            self._drop_expired(self._clock.current_time())
            self._times.asking = False
            self._wake_expired()

    def _wake_expired(self) -> None:
        lapsed, self._lapsed = self._lapsed, []
        for answered in lapsed:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(answered.set)

    def _apply_replies(self, answers: Answers, asked_at: float, asked: float) -> None:
        for lease, answer in answers.items():
            held = self._held.get(lease)
            if held is not None and answer is not None:
                self._drop(lease, answer)
            elif held is not None:
                held.until, held.valid_until = asked_at + self._times.lease_s, asked + self._times.lease_s

    def _drop_expired(self, now: float) -> None:
        silent_s = seams.clock.monotonic() - self._asked_at
        for lease, held in list(self._held.items()):
            if self._times.is_over(held.until, now, silent_s=silent_s):
                self._drop(lease, self._not_renewed(lease, self._error or self._why_silent(silent_s)))

    def _not_renewed(self, lease: Lease, why: object) -> LeaseLost:
        lost = LeaseLost(f"the lease of run {lease.run_id!r} expired: it could not be renewed ({why})")
        lost.__cause__ = self._error
        return lost

    def _why_silent(self, silent_s: float) -> str:
        silent, borrower = f"the store has not answered for {silent_s:.1f} s", self._borrower()
        if borrower is None:
            return silent
        todo = "do what takes time before or after it, or make durability.lease_s longer"
        return f"{silent}, and step {borrower!r} has a transaction of it open: {todo}"

    def _drop(self, lease: Lease, lost: LeaseLost) -> None:
        held = self._held.pop(lease)
        held.lost, held.valid_until = lost, -math.inf
        self._wake_expired()
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(held.tell, lost)


def copied(error: LeaseLost) -> LeaseLost:
    """Return a copy of the error for one of several refused effects."""
    copy = LeaseLost(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def _alarm(leases: Leases | None, at: float) -> None:
    if leases is not None:  # they may be unreferenced by now
        leases.alarm(at)


_NAMESPACES = ("pid", "time")
"""Namespaces of process ids and of process start times."""

_STATE, _STARTED = 0, 19
"""Field positions in `/proc/<pid>/stat` after the program name, which may hold anything."""


def new_owner() -> str:
    """Return a name for this process and this claim."""
    return this_process().owner(seams.new_uuid().hex[:8])


def liveness_from_here(owner: str | None) -> Fate:
    """Return the liveness of a lease's owner, as seen from this process."""
    return liveness_of(owner, here=this_process(), started_at=_started_at)


def this_process() -> Process:
    """Return the identity of this process; a fork has another one."""
    replaced: Process | None = seams.process
    return replaced or _process(os.getpid())


@functools.lru_cache(maxsize=1)
def _process(pid: int) -> Process:
    host, boot, spaces = socket.gethostname(), boot_id(), _namespaces()
    started = _started_at(pid) if spaces else None
    if boot is None or started is None:
        return Process(host=host, pid=pid)
    return Process(host=host, pid=pid, boot=boot, spaces=spaces, started=started)


def _namespaces() -> str:
    """Return this process's namespace numbers; empty if `/proc` shows another namespace."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""
        return ".".join(str(os.stat(f"/proc/self/ns/{name}").st_ino) for name in _NAMESPACES)
    except OSError:
        return ""


def _started_at(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return GONE
    except OSError:
        pass  # it belongs to another user
    return _reported_by_proc(pid)


def _reported_by_proc(pid: int) -> str | None:
    place = Path(f"/proc/{pid}")
    try:
        facts = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
        ended = facts[_STATE] in "ZX" and len(os.listdir(place / "task")) <= 1  # no thread outlives its first one
    except (OSError, IndexError):
        return None
    return GONE if ended else facts[_STARTED]


# Read when the module is loaded, and in each fork: a loop must not wait for the file system.
this_process()
os.register_at_fork(after_in_child=this_process)
