"""Simulated process: one life on simulated clocks, in one thread.

Rules:

1. Time is frozen while any task can run, and jumps to the next timer when none can.
2. Store calls and synchronous user code run inline. A slow store call is a timer.
3. The order of trio's tasks is shuffled by the seed. Callbacks of an asyncio loop keep their order.
4. A killed process is cancelled: its code unwinds, and reaches neither store nor effects nor models.
5. A life without a timer of its own is stuck: renewals and polls of the library do not count as timers.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import heapq
import itertools
import logging
import math
import random
import selectors
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableSequence
from concurrent.futures import Executor
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

import trio
from outcome import Error, capture

from .._bridge.guest_scheduler import TURN_S, is_known_trio
from .._core import seams
from .._durable.leases import Leases, Process

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Replacement: TypeAlias = tuple[object, str, object]
"""Module or object, name of an attribute, and its simulated value."""

EPOCH = 1_750_000_000.0
"""Wall clock at the beginning of a history."""

_QUIET_TIMERS = 60
"""Number of timers without an event before a life may be stuck."""

_MOST_TIMERS = 200_000
_MOST_ROUNDS = 200_000
"""Bounds of one life: timers, and scheduling rounds without a timer."""

_ROUNDS_PER_S = 1_000
"""Scheduling rounds in which a busy loop spends a second."""

_ROUNDS_PER_TURN = 8
_LONGEST_POLL_S = 5.0
"""Longest interval of the library's polls in a quiet life."""


class ProcessCrashed(BaseException):
    """End of a simulated process."""


class SimulatedProcess:
    """Clock, timers and loops of one history."""

    def __init__(self, seed: object, *, shuffles: bool, lease_s: float = 30.0) -> None:
        self.now: float = 0.0
        self.looked: bool = False
        """Whether trio has checked for I/O since a task last ran."""
        self.wall_offset: float = 0.0
        self.dead: bool = False
        """Whether the present life has crashed."""
        self.stuck: str | None = None
        """Reason why the present life cannot continue."""
        self.lease_s: float = lease_s
        self._seed = seed
        self.order: random.Random = _Order(self) if shuffles else _KeptOrder(self)
        self.jitter: random.Random = random.Random()
        self.ids: random.Random = random.Random()
        self.tool_ids: random.Random = random.Random()
        self.tasks: Iterator[int] = itertools.count()
        """Numbers of asyncio tasks in the present life."""
        self.scopes: Iterator[int] = itertools.count()
        """Numbers of deadlines."""
        self.first_task: int | None = None
        """Number of the first trio task in the present life."""
        self.died_at: float | None = None
        self.replace_late: Callable[[], object] = lambda: None
        """Replace parts of libraries that the factory has imported."""
        self.slow: Callable[[], tuple[float, bool]] = lambda: (0.0, False)
        """Delay of the next store call, and whether before the commit."""
        self.events: Callable[[], int] = lambda: 0
        """Number of events so far, to recognize a quiet life."""
        self._timers: list[tuple[float, int, bool, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._kill: Callable[[], object] = lambda: None
        self.rounds: int = 0
        self._quiet = self._fired = self._last = self._turns = 0
        self._deadlines: Callable[[], bool] = lambda: True

    # --- seams ---

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return EPOCH + self.now + self.wall_offset

    def turn(self) -> float:
        """Return a time by which a turn has a fixed length."""
        self._turns += 1
        return self._turns * TURN_S / _ROUNDS_PER_TURN

    def random_bytes(self, size: int) -> bytes:
        return self.ids.randbytes(size)

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.ids.randbytes(16), version=4)

    def start_inline(self, do: Callable[[], object], done: Callable[[object], object]) -> None:
        done(Error(ProcessCrashed()) if self.dead else capture(do))

    def start_store_call(self, do: Callable[[], object], done: Callable[[object], object]) -> None:
        """Run a store call inline, or with a delay."""
        delay, before = (0.0, False) if self.dead else self.slow()
        if not delay:
            done(capture(do))  # also of a dead process: the store refuses, and the reply is the callback's to handle
        elif before:
            self._after(delay, lambda: done(capture(do)))
        else:
            got = capture(do)
            self._after(delay, lambda: done(got))

    def set_alarm(self, after_s: float, ring: Callable[[], object]) -> None:
        stretched = after_s * 2.0 ** min(self._quiet // 4, 10)
        self._push(max(after_s, min(stretched, _LONGEST_POLL_S)), True, ring)

    def _after(self, seconds: float, do: Callable[[], object]) -> None:
        self._push(seconds, False, do)

    def _push(self, seconds: float, house: bool, do: Callable[[], object]) -> None:
        heapq.heappush(self._timers, (self.now + max(0.0, seconds), next(self._numbers), house, do))

    # --- time ---

    def advance(self, deadline: float) -> None:
        """Jump to the deadline or the next timer, and fire it."""
        self.rounds = 0
        self._note_quiet()
        due = min(deadline, self._timers[0][0] if self._timers else math.inf)
        if due == math.inf:
            self.end_stuck("no task can run and no timer is set")
            return
        self.now = max(self.now, due)
        self._fire()

    def _fire(self) -> None:
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[3]()

    def _note_quiet(self) -> None:
        self._fired += 1
        events = self.events()
        self._quiet = self._quiet + 1 if events == self._last else 0
        self._last = events
        if self._fired > _MOST_TIMERS:
            self.end_stuck(f"it has not ended after {_MOST_TIMERS} timers")
        elif self._quiet and self._quiet % _QUIET_TIMERS == 0 and not self._has_own_timers():
            self.end_stuck("no task can run, and only renewals of the lease are scheduled")

    def _has_own_timers(self) -> bool:
        return any(not house for _, _, house, _ in self._timers) or self._deadlines()

    def count_round(self) -> None:
        """Count a scheduling round; time passes in a busy loop."""
        self.rounds += 1
        self.looked = False
        if self.rounds % _ROUNDS_PER_S == 0:
            self.now += 1.0
            self._fire()
        if self.rounds > _MOST_ROUNDS:
            self.rounds = 0
            self.end_stuck(f"its tasks have run for {_MOST_ROUNDS} rounds without a pause")

    def end_stuck(self, reason: str) -> None:
        """End a life that cannot continue, or give it up."""
        if self.stuck is not None:
            raise ProcessCrashed(f"a life does not end: {reason}")
        self.stuck = reason
        self._fired = self._quiet = 0
        self.kill()

    def pass_time(self, seconds: float) -> None:
        """Let time pass between lives; timers of dead processes are gone."""
        self.now = seconds + (self.now if self.died_at is None else self.died_at)
        self._timers.clear()

    def begin_life(self, life: int) -> None:
        """Begin a life with numbers and ids of its own.

        Code of the former life that ran after its end has no effect on it.
        """
        self.dead, self.stuck, self.died_at = False, None, None
        self.tasks, self.first_task, self._turns = itertools.count(), None, 0
        for name, rng in (("order", self.order), ("jitter", self.jitter), ("ids", self.ids), ("tools", self.tool_ids)):
            rng.seed(f"{self._seed}/{name}/{life}")

    # --- one life ---

    def kill(self) -> None:
        """Mark the life as dead and cancel its code.

        Delayed store calls end now, since their replies have no effect: code that waits for one despite its
        cancellation would spend the delay on scheduling rounds.
        """
        if not self.dead:
            self.dead, self.died_at = True, self.now
            self._timers = [(at if house else self.now, number, house, do) for at, number, house, do in self._timers]
            heapq.heapify(self._timers)
            self._kill()

    def run(self, main: Callable[[], Awaitable[T]], *, life: int, on_asyncio: bool) -> T:
        """Run one life to its end; raise `ProcessCrashed` if it was killed."""
        self._timers.clear()
        self._quiet = self._fired = self.rounds = 0
        seams.process = Process(host="simulated", pid=life)
        got = capture(self._on_asyncio if on_asyncio else self._on_trio, main)
        self._kill = lambda: None
        if self.dead:
            raise ProcessCrashed
        return got.unwrap()

    def _on_trio(self, main: Callable[[], Awaitable[T]]) -> T:
        clock = _TrioClock(self)

        async def life() -> T:
            scope, token = trio.CancelScope(), trio.lowlevel.current_trio_token()
            self._kill = lambda: token.run_sync_soon(scope.cancel)
            self._deadlines = _trio_deadlines
            with scope:
                return await main()
            raise ProcessCrashed

        return trio.run(life, clock=clock, instruments=() if is_known_trio() else (_Rounds(self),))

    def _on_asyncio(self, main: Callable[[], Awaitable[T]]) -> T:
        async def life() -> T:
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert task is not None
            assert isinstance(loop, SimulatedLoop)
            self._kill = lambda: loop.call_soon(task.cancel)
            self._deadlines = loop.has_own_timers
            return await main()

        with asyncio.Runner(loop_factory=lambda: SimulatedLoop(self)) as runner:
            runner.get_loop().set_exception_handler(lambda *_: None)
            return runner.run(life())


# --- order of tasks -----------------------------------------------------------------------------------------------


class _Order(random.Random):
    """Order of trio's tasks, by a seed."""

    def __init__(self, process: SimulatedProcess) -> None:
        super().__init__()
        self._process = process

    def shuffle(self, x: MutableSequence[T]) -> None:
        if x:
            self._process.count_round()
            super().shuffle(x)


class _KeptOrder(random.Random):
    """Tasks in the order of their creation."""

    def __init__(self, process: SimulatedProcess) -> None:
        super().__init__(0)
        self._process = process

    def shuffle(self, x: MutableSequence[T]) -> None:
        if x:
            self._process.count_round()
            x.reverse()

    def random(self) -> float:
        """Return a number by which trio keeps the order of a batch."""
        return 1.0


class _Rounds(trio.abc.Instrument):
    """Counter of rounds for trio releases with their own task order."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._process.count_round()


# --- loops --------------------------------------------------------------------------------------------------------


class _TrioClock(trio.abc.Clock):
    """Clock of a trio run that jumps over waiting."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process

    def start_clock(self) -> None:
        """Do nothing: time advances by jumps."""

    def current_time(self) -> float:
        return self._process.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if self._process.looked:
            self._process.advance(deadline)
        self._process.looked = not self._process.looked  # a callback may be on its way through trio's wake-up socket
        return 0.0


class _GuestClock(_TrioClock):
    """Clock of a guest run: its loop jumps over waiting."""

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self._process.now


class SimulatedLoop(asyncio.SelectorEventLoop):
    """asyncio loop that jumps over waiting."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        self.trio_clock: trio.abc.Clock = _GuestClock(process)
        super().__init__(_Selector(process))

    def time(self) -> float:
        return self._process.now

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run inline."""
        future: asyncio.Future[T] = self.create_future()
        got = capture(func, *args)
        if isinstance(got, Error):
            future.set_exception(got.error)
        else:
            future.set_result(got.value)
        return future

    def has_own_timers(self) -> bool:
        """Return whether user code or a run waits for a time."""
        scheduled: list[asyncio.TimerHandle] = getattr(self, "_scheduled", [])
        own = (handle for handle in scheduled if not handle.cancelled() and "ParkedGuest" not in repr(handle))
        return any(True for _ in own) or _trio_deadlines()


class _Selector(selectors.DefaultSelector):
    def __init__(self, process: SimulatedProcess) -> None:
        super().__init__()
        self._process = process

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return ready I/O, after a jump if there is none."""
        found = super().select(0)
        if not found and (timeout is None or timeout > 0):
            self._process.advance(math.inf if timeout is None else self._process.now + timeout)
            found = super().select(0)
        elif timeout == 0:
            self._process.count_round()
        return found


def _trio_deadlines() -> bool:
    """Return whether a trio task waits, except for lease renewals."""
    context: object = sys.modules["trio._core._run"].GLOBAL_RUN_CONTEXT
    runner = getattr(context, "runner", None)
    if runner is None or not is_known_trio():
        return True
    scopes = [scope for _, _, scope in runner.deadlines._heap if scope._registered_deadline < math.inf]
    return any(not _is_renewal(task) for scope in scopes for task in scope._cancel_status._tasks)


def _is_renewal(task: Any) -> bool:
    return getattr(task.coro, "cr_code", None) is Leases._renew_until_cancelled.__code__


# --- replaced parts of the process --------------------------------------------------------------------------------


@contextlib.contextmanager
def installed(process: SimulatedProcess) -> Iterator[None]:
    """Replace clocks, chance, identity and threads for the lives of a history."""
    replaced: list[Replacement] = [
        (seams, "clock", process),
        (seams, "boot_clock", process.monotonic),
        (seams, "turn_clock", process.turn),
        (seams, "generator", process.jitter),
        (seams, "random_bytes", process.random_bytes),
        (seams, "new_uuid", process.new_uuid),
        (seams, "process", None),
        (seams, "start_thread", process.start_inline),
        (seams, "start_store_call", process.start_store_call),
        (seams, "set_alarm", process.set_alarm),
        (seams, "on_call", None),
        (trio.to_thread, "run_sync", _run_sync_inline),
        (logging.getLogger("flujo_actors"), "disabled", True),
        *_of_trio(process),
        *_of_asyncio(process),
    ]
    with contextlib.ExitStack() as stack:
        _replace(stack, replaced)
        if not _replaced_late(stack, process):
            process.replace_late = functools.partial(_replaced_late, stack, process)
        yield


def _replace(stack: contextlib.ExitStack, replaced: Iterable[Replacement]) -> None:
    for where, name, value in replaced:
        stack.callback(setattr, where, name, getattr(where, name))
        setattr(where, name, value)


def _replaced_late(stack: contextlib.ExitStack, process: SimulatedProcess) -> bool:
    """Replace parts of pydantic-ai, and return whether it is loaded."""
    found = _of_pydantic_ai(process)
    _replace(stack, found)
    if found:
        process.replace_late = lambda: None
    return bool(found)


# Sets of tasks and scopes have an order, too: that of hashes, which are addresses by default. Cancellation is delivered
# in this order. So a task is hashed by its number in the present life, and scopes inside a scope are kept in the order
# of their creation. Equal deadlines expire in this order, too.


class _OrderedScopes(dict[Any, None]):
    """Set of scopes in the order of its additions."""

    def add(self, item: object) -> None:
        self[item] = None

    def remove(self, item: object) -> None:
        del self[item]


def _of_trio(process: SimulatedProcess) -> list[Replacement]:
    scheduler = sys.modules["trio._core._run"]
    if not is_known_trio():
        return [(scheduler, "_r", _KeptOrder(process))] if hasattr(scheduler, "_r") else []

    def number(task: Any) -> int:
        if process.first_task is None:
            process.first_task = task._counter
        return int(task._counter - process.first_task)

    def add(deadlines: Any, deadline: float, scope: trio.CancelScope) -> None:
        heapq.heappush(deadlines._heap, (deadline, next(process.scopes), scope))
        deadlines._active += 1

    begin = scheduler.CancelStatus.__attrs_post_init__

    def begin_in_order(status: Any) -> None:
        status._children = _OrderedScopes()
        begin(status)

    return [
        (scheduler, "_r", process.order),
        (scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        (trio.lowlevel.Task, "__hash__", number),
        (scheduler.Deadlines, "add", add),
        (scheduler.CancelStatus, "__attrs_post_init__", begin_in_order),
    ]


def _of_asyncio(process: SimulatedProcess) -> list[Replacement]:
    class NumberedTask(asyncio.Task[Any]):
        """Task that is hashed by its number."""

        def __init__(self, *given: Any, **options: Any) -> None:
            self._number = next(process.tasks)
            super().__init__(*given, **options)

        def __hash__(self) -> int:
            return self._number

    return [(asyncio.tasks, "Task", NumberedTask), (asyncio, "Task", NumberedTask)]


def _of_pydantic_ai(process: SimulatedProcess) -> list[Replacement]:
    """Return clock, ids and thread switch of pydantic-ai, if loaded."""
    used = sys.modules.get("pydantic_ai._utils")
    if used is None:
        return []
    from anyio._backends._asyncio import CancelScope  # loads a module that only model agents need

    class SimulatedDatetime(datetime.datetime):
        """Dates of the simulated wall clock."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.fromtimestamp(process.time(), tz)

    def new_id() -> uuid.UUID:
        return uuid.UUID(bytes=process.tool_ids.randbytes(16), version=4)

    ids = [(sys.modules.get(f"pydantic_ai.{name}"), "uuid7", new_id) for name in ("_agent_graph", "_enqueue")]
    return [
        (used, "datetime", SimulatedDatetime),
        (used, "uuid", SimpleNamespace(uuid4=new_id)),
        (used, "_disable_threads", _Always()),
        (CancelScope, "__hash__", lambda scope: hash(scope._host_task)),
        *((where, name, value) for where, name, value in ids if hasattr(where, name)),
    ]


class _Always:
    """Context variable that is always set."""

    def get(self) -> bool:
        return True

    def set(self, value: bool) -> object:
        return value

    def reset(self, token: object) -> None:
        """Do nothing: it stays set."""


async def _run_sync_inline(sync_fn: Callable[..., T], *args: object, **options: object) -> T:
    await trio.lowlevel.checkpoint()
    return sync_fn(*args)
