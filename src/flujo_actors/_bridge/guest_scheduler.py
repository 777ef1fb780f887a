"""Scheduler of a guest run's trio rounds on the host's event loop.

Rules:

1. Rounds follow one another within one turn of the loop while trio has work of its own: a turn costs as much as a
   round, and a run that needs nothing from the loop need not pay for it.
2. After `TURN_S` the loop has its turn, regardless of trio's work; and at once after a round that cancelled
   something on the loop, which must see it within a round.
3. While the guest is kept awake, a task waits for asyncio: then every round has a turn of its own.
4. Work deferred to the end of a round runs outside of trio's tasks, where only asyncio runs.
5. A closed loop has no turns; the code that ends the guest runs the rounds itself.
6. Between rounds an idle guest is parked on the loop, if the loop supports it, and otherwise waits in a thread.

Sections:

- Idle guest run parked on the host's loop instead of in a thread.
"""

from __future__ import annotations

import asyncio
import os
import queue
import re
import select
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import sniffio
import trio
from outcome import Error
from trio.lowlevel import Abort, Task, cancel_shielded_checkpoint, current_task, reschedule, wait_task_rescheduled

from .._core import seams
from .threads import ThreadWakeups

# --- Idle guest run parked on the host's loop instead of in a thread ----------------------------------------------
# Trio lets an idle guest wait for I/O in a thread. The crossing costs more than most calls between the two libraries
# take, and the thread competes with the code that the guest waits for. But trio waits for one file descriptor, and
# the
# host's loop can watch that as well. So the rounds of a guest are driven from here. Rules:
#
# 1. A round does the same as one of trio's own driver: run all runnable tasks.
# 2. While there is more work, the next round is scheduled at once. Otherwise the guest is parked, if a last check
#    shows
#    no I/O.
# 3. A parked guest continues when its descriptor is ready, when its next deadline is due, or on a wake-up from the
#    host's
#    thread. An unannounced change is noticed, too: trio then writes to itself.
# 4. Other rounds leave the check for I/O to the turn of the loop they are in: it is a system call, and the rounds
#    of a turn are over within a millisecond or so.
# 5. Trio's hooks for asynchronous generators are installed during rounds only. In between they would be called for
#    every
#    generator of the host's, of which an agent has dozens, only to pass it on.
# 6. If the host's loop cannot watch descriptors, or trio is newer than the tested releases or built differently,
#    trio's own driver stays, with its thread: slower, but nothing else.


Round: TypeAlias = Callable[[], object]
"""Callback that trio schedules, once."""

_OF_STATE = ("unrolled_run_gen", "unrolled_run_next_send", "done_callback")
_OF_RUNNER = ("io_manager", "guest_tick_scheduled", "main_task_outcome")
"""Used attributes of trio's own driver, see rule 6."""

NEWEST_KNOWN = (0, 35)
"""Newest compared release of trio; its internals may change with any release."""

_FOREVER_S = 86_400.0
"""Deadline beyond which no timer is needed: trio checks once a day."""


def watched_by_loop(own: Round, loop: asyncio.AbstractEventLoop, soon: Callable[[Round], object]) -> ParkedGuest | None:
    """Return a driver for the guest of first round `own`, or None."""
    state = getattr(own, "__self__", None)
    runner: Any = getattr(state, "runner", None)
    # A loop with a clock of its own simulates time, and a thread would wait in real time.
    known = is_known_trio() or hasattr(loop, "trio_clock")
    if not (known and _has(state, _OF_STATE) and _has(runner, _OF_RUNNER)):
        return None
    queue = _queue_of(runner.io_manager)
    if queue is None:
        return None
    try:
        return ParkedGuest(state, loop, soon, queue.fileno())
    except (NotImplementedError, OSError):  # raised by loops that cannot watch it
        return None


def is_known_trio() -> bool:
    """Return whether the internals of this trio release were compared."""
    numbers = re.match(r"(\d+)\.(\d+)", trio.__version__)
    return numbers is not None and tuple(map(int, numbers.groups())) <= NEWEST_KNOWN


def _has(part: object, names: tuple[str, ...]) -> bool:
    return all(hasattr(part, name) for name in names)


class _Queue(Protocol):
    def fileno(self) -> int: ...


class ParkedGuest:
    """Drives the rounds of one guest run; see the module's rules."""

    def __init__(
        self, state: Any, loop: asyncio.AbstractEventLoop, soon: Callable[[Round], object], descriptor: int
    ) -> None:
        self._runner, self._run, self._done = state.runner, state.unrolled_run_gen, state.done_callback
        self._get_events = state.runner.io_manager.get_events
        self._hooks = sys.get_asyncgen_hooks()  # trio's, which has just begun
        self._events: object = state.unrolled_run_next_send.value
        self._broken: OSError | None = None
        self._loop, self._soon = loop, soon
        self._parked = self._woken = False
        self._patience_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        # A descriptor of our own, so that it is ours to close, whenever trio closes the other.
        self._descriptor = os.dup(descriptor)
        try:
            loop.add_reader(self._descriptor, self._on_callback)
        except (NotImplementedError, OSError):
            os.close(self._descriptor)
            raise

    def round(self) -> None:
        """Rules 1 and 2."""
        timeout = self._step()
        if timeout is None:
            return
        self._events = ()
        if timeout > 0:
            self.poll()
        if timeout <= 0 or self._has_news:
            self._soon(self.round)
        else:
            self._park(timeout)

    def poll(self) -> None:
        """Check for I/O (rule 4); results are kept until the next round."""
        if self._has_news:
            return
        try:
            self._events = self._get_events(0)
        except OSError as error:  # trio's to deal with: its run ends with it
            self._broken = error

    def poll_first(self) -> None:
        """Check for I/O at a turn's start, unless just woken."""
        if self._woken:
            self._woken = False
        else:
            self.poll()

    @property
    def _has_news(self) -> bool:
        return bool(self._events) or self._broken is not None

    def wake(self) -> None:
        """Wake the guest before the host's thread gives it work."""
        if self._parked:
            self._woken = True
            self._resume()

    def wait_without_loop(self, patience_s: float) -> bool:
        """Wait for a closed loop; return whether the parked guest can continue."""
        if not self._parked:
            return True
        due = self._patience_s < patience_s
        heard, _, _ = select.select([self._descriptor], [], [], min(self._patience_s, patience_s))
        if heard or due:
            self._resume()
        return bool(heard) or due

    def _park(self, patience_s: float) -> None:
        self._parked, self._patience_s = True, patience_s
        self._runner.guest_tick_scheduled = False
        if patience_s < _FOREVER_S and not self._loop.is_closed():
            self._timer = self._loop.call_later(patience_s, self._on_callback)

    def _on_callback(self) -> None:
        if self._parked:
            self._resume()

    def _resume(self) -> None:
        self._parked = False
        self._runner.guest_tick_scheduled = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._soon(self.round)

    def _step(self) -> float | None:
        """Run all runnable tasks; return the idle time; None at the end."""
        library = sniffio.thread_local
        before, library.name = library.name, "trio"
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(*self._hooks)
        try:
            timeout: float = self._run.send(self._events) if self._broken is None else self._run.throw(self._broken)
        except StopIteration:
            self._end(self._runner.main_task_outcome)
            return None
        except trio.TrioInternalError as error:
            self._end(Error(error))
            return None
        finally:
            sys.set_asyncgen_hooks(*hooks)
            library.name = before
        return timeout

    def _end(self, result: object) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._done(result)


def _queue_of(io_manager: object) -> _Queue | None:
    """Return trio's I/O queue of the operating system; Windows has none."""
    return getattr(io_manager, "_epoll", None) or getattr(io_manager, "_kqueue", None)


# --- Scheduler of a guest run's trio rounds on the host's event loop ----------------------------------------------


TURN_S = 0.001
"""Maximum time of a turn before no further round begins."""


class GuestScheduler:
    """The rounds of one guest run."""

    __slots__ = ("_arrivals", "_at_the_end", "_delivered", "_gives_way", "_in_turn", "_loop", "_next", "keep_awake")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.keep_awake = IdleTimer()
        self._loop = loop
        self._next: Round | None = None
        self._delivered: queue.SimpleQueue[Round] = queue.SimpleQueue()
        self._at_the_end: list[Callable[[], None]] = []
        self._gives_way = self._in_turn = False
        self._arrivals: ThreadWakeups | None = None

    def detach_loop(self) -> bool:
        """Drive the rounds without a thread, if the loop supports it."""
        assert self._next is not None
        self.keep_awake.parked = watched_by_loop(self._next, self._loop, self.soon)
        if self.keep_awake.parked is not None:
            self._next = self.keep_awake.parked.round
        return self.keep_awake.parked is not None

    def begin(self) -> None:
        """Route threads' callbacks over the loop that drives the rounds."""
        if self.keep_awake.parked is not None:
            self._arrivals = ThreadWakeups(self._loop, self._on_callback)

    def end(self) -> None:
        """The run is over."""
        if self._arrivals is not None:
            self._arrivals.end()

    # --- trio interface ---

    def soon(self, round_: Round) -> None:
        """Schedule another round: trio has work left."""
        self._next = round_
        if not self._in_turn:
            self._request_turn()

    def soon_threadsafe(self, round_: Round) -> None:
        """The thread in which trio waited for I/O has news for it."""
        self._delivered.put(round_)
        try:
            self._loop.call_soon_threadsafe(self._turn_with_news)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def at_the_end(self, do: Callable[[], None]) -> None:
        """From a trio task: do this when the round is over."""
        self._at_the_end.append(do)

    def end_turn(self) -> None:
        """End the turn after this round: the loop has urgent work."""
        self._gives_way = True

    # --- turns of the loop ---

    def _request_turn(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon(self._turn)

    def _turn_with_news(self) -> None:
        self._next = self._delivered.get_nowait()
        self._turn()

    def _on_callback(self) -> None:
        """Run a round for a thread's callback, this turn if parked."""
        assert self._arrivals is not None
        if self._next is not None or self._in_turn:
            self._arrivals.take()
            return
        self._in_turn = True
        try:
            self.keep_awake.wake()
            self._arrivals.take()
        finally:
            self._in_turn = False
            if self._next is not None:
                self._turn()

    def _turn(self) -> None:
        now, keep_awake = seams.turn_clock, self.keep_awake
        until = now() + TURN_S
        if keep_awake.parked is not None:
            keep_awake.parked.poll_first()
        self._in_turn = True
        try:
            self._next_round()
            while (
                self._next is not None
                and not self._gives_way
                and not self.keep_awake.awake
                and seams.turn_clock() < until
            ):
                self._next_round()
        finally:
            self._in_turn = self._gives_way = False
            if self._next is not None:
                self._request_turn()

    def _next_round(self) -> None:
        round_, self._next = self._next, None
        assert round_ is not None
        round_()
        if self._at_the_end:
            left, self._at_the_end = self._at_the_end[::-1], []
            while left:
                left.pop()()

    def next_without_loop(self, patience_s: float) -> None:
        """Run a closed loop's next round; raise `queue.Empty` on timeout."""
        parked = self.keep_awake.parked
        if self._arrivals is not None:
            self._arrivals.take()
        if self._next is None and parked is not None and not parked.wait_without_loop(patience_s):
            raise queue.Empty
        if self._next is None:
            self._next = self._delivered.get(timeout=patience_s)
        if parked is not None:
            parked.poll()
        self._next_round()


# --- staying awake ----------------------------------------------------------------------------------------------
# Waking an idle guest in its thread costs more than most calls between the two libraries take. So a crossing keeps the
# guest awake for a few rounds: one task spins for all of them, and every other task can park, where cancellation
# reaches it at once. A guest that is parked on the host's loop is woken instead, at almost no cost.

ROUNDS_AWAKE = 10
"""Number of scheduling rounds a guest stays awake after a crossing."""


class IdleTimer:
    """Keep one guest run awake during calls."""

    __slots__ = ("_rounds", "_sleeper", "parked")

    def __init__(self) -> None:
        self.parked: ParkedGuest | None = None
        """The guest, if it needs no thread to wait in."""
        self._rounds = 0
        self._sleeper: Task | None = None

    @property
    def awake(self) -> bool:
        """Return whether a call crossed over recently."""
        return self._rounds > 0

    def keep(self) -> None:
        """Stay awake for a few rounds after a crossing."""
        if self.parked is not None:
            self.parked.wake()
            return
        self._rounds = ROUNDS_AWAKE
        if self._sleeper is not None:
            sleeper, self._sleeper = self._sleeper, None
            reschedule(sleeper)

    def wake(self) -> None:
        """Wake the guest before the host's thread gives it work."""
        if self.parked is not None:
            self.parked.wake()

    async def watch(self) -> None:
        """Spin while there are rounds left, sleep while there are none; forever."""
        while True:
            while self._rounds:
                self._rounds -= 1
                await cancel_shielded_checkpoint()
            self._sleeper = current_task()
            await wait_task_rescheduled(self._abort_wait)

    def _abort_wait(self, _: object) -> Abort:
        self._sleeper = None
        return Abort.SUCCEEDED
