"""How a guest run waits when it has nothing to do: on the host's loop, not in a thread.

Trio lets an idle guest wait for I/O in a thread. Going there and back costs more than most calls between the two
libraries take, and the thread competes with the code that the guest waits for. But what trio waits for is one file
descriptor, and the host's loop can watch that as well. So the rounds of a guest are driven from here. Rules:

1. A round is what trio's own driver would do in one: run what can run.
2. While there is more to do, the next round is asked for at once. Otherwise the guest is parked, if a last look shows
   no I/O.
3. A parked guest goes on when its descriptor has news, when its next deadline is due, or when somebody in the host's
   thread says so. Who changes something in a parked guest without a word is heard, too: trio then writes to itself.
4. Other rounds leave it to the turn of the loop they are in to look for I/O: looking is a system call, and the rounds
   of a turn are over within a millisecond or so.
5. Trio's hooks for asynchronous generators are in force during rounds only. In between they would be asked about every
   generator of the host's, of which an agent has dozens, only to hand it on.
6. Where the host's loop cannot watch descriptors, or trio is newer than what this was tested with or made in another
   way, trio's own driver stays, with its thread: slower, but nothing else.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import sniffio
import trio
from outcome import Error

Round: TypeAlias = Callable[[], object]
"""What trio wants to be called, once."""

_OF_STATE = ("unrolled_run_gen", "unrolled_run_next_send", "done_callback")
_OF_RUNNER = ("io_manager", "guest_tick_scheduled", "main_task_outcome")
"""What is used of trio's own driver, see rule 6."""

NEWEST_KNOWN = (0, 35)
"""The last release of trio whose own driver was compared with this one; its inside may change with any release."""

_FOREVER_S = 86_400.0
"""A deadline further away than this needs no timer of its own: trio looks again once a day."""


def watched_by_loop(own: Round, loop: asyncio.AbstractEventLoop, soon: Callable[[Round], object]) -> ParkedGuest | None:
    """A driver for the guest run whose first round is `own`; `None` if the loop cannot watch over it."""
    state = getattr(own, "__self__", None)
    runner: Any = getattr(state, "runner", None)
    if not (_is_known(trio.__version__) and _has(state, _OF_STATE) and _has(runner, _OF_RUNNER)):
        return None
    queue = _queue_of(runner.io_manager)
    if queue is None:
        return None
    try:
        return ParkedGuest(state, loop, soon, queue.fileno())
    except (NotImplementedError, OSError):  # as loops say that they cannot watch it
        return None


def _is_known(version: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version)
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
            loop.add_reader(self._descriptor, self._hear)
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
            self.look()
        if timeout <= 0 or self._has_news:
            self._soon(self.round)
        else:
            self._park(timeout)

    def look(self) -> None:
        """Rule 4; what was seen is kept until the next round, since it is not seen twice."""
        if self._has_news:
            return
        try:
            self._events = self._get_events(0)
        except OSError as error:  # trio's to deal with: its run ends with it
            self._broken = error

    def look_first(self) -> None:
        """At the beginning of a turn; a guest just woken looked before it parked, and looks before it parks again."""
        if self._woken:
            self._woken = False
        else:
            self.look()

    @property
    def _has_news(self) -> bool:
        return bool(self._events) or self._broken is not None

    def wake(self) -> None:
        """Somebody in the host's thread is about to give the guest something to do."""
        if self._parked:
            self._woken = True
            self._go_on()

    def wait_without_loop(self, patience_s: float) -> bool:
        """In the place of a closed loop: wait until a parked guest can go on; whether it could in that time."""
        if not self._parked:
            return True
        due = self._patience_s < patience_s
        heard, _, _ = select.select([self._descriptor], [], [], min(self._patience_s, patience_s))
        if heard or due:
            self._go_on()
        return bool(heard) or due

    def _park(self, patience_s: float) -> None:
        self._parked, self._patience_s = True, patience_s
        self._runner.guest_tick_scheduled = False
        if patience_s < _FOREVER_S and not self._loop.is_closed():
            self._timer = self._loop.call_later(patience_s, self._hear)

    def _hear(self) -> None:
        if self._parked:
            self._go_on()

    def _go_on(self) -> None:
        self._parked = False
        self._runner.guest_tick_scheduled = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._soon(self.round)

    def _step(self) -> float | None:
        """Run what can run; how long there is nothing to do then, or `None` if the run has ended."""
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
    """Through which the operating system tells trio of I/O; Windows has none that a loop could watch."""
    return getattr(io_manager, "_epoll", None) or getattr(io_manager, "_kqueue", None)
