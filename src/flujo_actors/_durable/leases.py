"""The leases of open runs, kept alive for as long as their process lives.

Rules:

1. When to renew and when to give up is decided in `_core.lease_times`, by the clock of the trio run.
2. Two look after that: a task of the run, which knows its clock, and an alarm in a thread, which does not depend on the
   event loop. So a step that blocks its loop keeps its lease, and a store that hangs does not keep the owner at work.
3. The store is asked in a thread of its own. Whoever loses a lease is told in the run's thread.
4. A loop that was closed will never go on: the leases of its runs are let go.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import trio
from outcome import Error, Outcome, Value

from .._bridge.host import host_lives
from .._core.lease_times import LeaseTimes
from .._core.records import Lease
from ..errors import LeaseLost, StoreError
from .alarms import alarms
from .store_wait import start_thread

Renew: TypeAlias = Callable[[Sequence[Lease]], list[LeaseLost | None]]
"""Asks the store; called in a thread."""

Answers: TypeAlias = dict[Lease, LeaseLost | None]

Tell: TypeAlias = Callable[[LeaseLost], None]


@attrs.define(eq=False)
class _Held:
    """A lease that is kept alive."""

    tell: Tell
    until: float
    """When it expires, at the earliest, if it is not renewed."""


class Leases:
    """The leases that a trio run keeps alive in one store; see the module's rules."""

    def __init__(self, renew: Renew, *, lease_s: float, borrower: Callable[[], str | None] = lambda: None) -> None:
        self._renew, self._borrower = renew, borrower
        self._clock = trio.lowlevel.current_clock()
        self._token = trio.lowlevel.current_trio_token()
        self._host_lives = host_lives()
        self._held: dict[Lease, _Held] = {}
        self._times = LeaseTimes(lease_s=lease_s, asked_at=self._clock.current_time())
        self._asked_at = 0.0
        """When the store was last asked, in real time: a run's clock may be ahead of it."""
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        """Guards all of these: loop, alarm and the store's thread change them."""
        self._scope: trio.CancelScope | None = None
        self._alarm_at = math.inf

    @property
    def renewing(self) -> bool:
        """Whether the store is being asked."""
        return self._times.asking

    def hold(self, lease: Lease, lost: Tell, *, since: float | None = None) -> None:
        """Keep a lease alive until it is let go; `lost`, or who holds it next, is called if it cannot be.

        `since` says when it was asked for, if that is a while ago.
        """
        now = self._clock.current_time()
        with self._lock:
            self._set_alarm(self._times.every_s)
            if not self._held and not self._times.asking:
                self._times = LeaseTimes(lease_s=self._times.lease_s, asked_at=now)
            new = _Held(tell=lost, until=(now if since is None else since) + self._times.lease_s)
            self._held.setdefault(lease, new).tell = lost
        if self._scope is None:
            self._scope = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._look_after, self._scope)

    def held(self) -> list[Lease]:
        """What is kept alive now; from any thread."""
        with self._lock:
            return list(self._held)

    def let_go(self, lease: Lease) -> None:
        """Stop renewing a lease."""
        with self._lock:
            self._held.pop(lease, None)
        if not self._held and self._scope is not None:
            self._scope.cancel()
            self._scope = None

    # --- who looks, and when ---

    async def _look_after(self, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await trio.sleep_until(self._next_look())
                self._look()

    def _next_look(self) -> float:
        with self._lock:
            return self._times.next_look((held.until for held in self._held.values()), self._clock.current_time())

    def _set_alarm(self, after_s: float) -> None:
        """Look again by then at the latest, also if the loop is blocked."""
        at = time.monotonic() + after_s
        if at < self._alarm_at:
            me = weakref.ref(self)
            alarms.set(after_s, lambda: _alarm(me(), at))
            self._alarm_at = at

    def alarm(self, at: float) -> None:
        """Called by the thread of alarms."""
        if at != self._alarm_at:
            return  # an earlier one was set meanwhile
        self._alarm_at = math.inf
        self._look()
        after_s = self._next_look() - self._clock.current_time()
        with self._lock:
            if self._held:
                self._set_alarm(after_s)

    # --- what is done then ---

    def _look(self) -> None:
        """Give up what is over, and ask for what is due; from any thread."""
        now = self._clock.current_time()
        with self._lock:
            if not self._host_lives():
                self._held.clear()
            self._give_up(now)
            leases = list(self._held) if self._times.is_due(now) else []
            if leases:
                self._times.asking, self._times.asked_at, self._asked_at = True, now, time.monotonic()
        if leases:
            self._ask(leases, now)

    def _ask(self, leases: list[Lease], now: float) -> None:
        def answers() -> Answers:
            return dict(zip(leases, self._renew(leases), strict=True))

        try:
            start_thread(answers, lambda got: self._take(got, now))
        except StoreError as error:
            self._take(Error(error), now)

    def _take(self, got: Outcome[Answers], asked_at: float) -> None:
        """In the store's thread: what it said, to what it was asked then."""
        with self._lock:
            self._error = got.error if isinstance(got, Error) else None
            self._times.failed = self._error is not None
            if isinstance(got, Value):
                self._take_answers(got.value, asked_at)
            self._give_up(self._clock.current_time())
            self._times.asking = False

    def _take_answers(self, answers: Answers, asked_at: float) -> None:
        for lease, answer in answers.items():
            held = self._held.get(lease)
            if held is not None and answer is not None:
                self._lose(lease, answer)
            elif held is not None:
                held.until = asked_at + self._times.lease_s

    def _give_up(self, now: float) -> None:
        silent_s = time.monotonic() - self._asked_at
        for lease, held in list(self._held.items()):
            if self._times.is_over(held.until, now, silent_s=silent_s):
                why = self._error or self._why_silent(silent_s)
                lost = LeaseLost(f"the lease of run {lease.run_id!r} expired: it could not be renewed ({why})")
                lost.__cause__ = self._error
                self._lose(lease, lost)

    def _why_silent(self, silent_s: float) -> str:
        silent, borrower = f"the store has not answered for {silent_s:.1f} s", self._borrower()
        if borrower is None:
            return silent
        todo = "do what takes time before or after it, or make durability.lease_s longer"
        return f"{silent}, and step {borrower!r} has a transaction of it open: {todo}"

    def _lose(self, lease: Lease, lost: LeaseLost) -> None:
        held = self._held.pop(lease)
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(held.tell, lost)


def _alarm(leases: Leases | None, at: float) -> None:
    if leases is not None:  # nobody may refer to them any more
        leases.alarm(at)
