"""Turns at a store's connection: one step transaction per process.

An `async` step writes from its loop's thread. If two of them had transactions open, one would block there on the
other's locks, and the other could not commit, because that takes the loop.

Rules:

1. The turn at a database is shared by all loops and threads of the process, and by all stores of that database.
2. It is granted in order of arrival. Waiting takes no thread, does not block the loop, and can be cancelled.
3. A borrower whose loop was closed is skipped, and a slow one is logged.
4. A step inside a borrower's own step, which would wait forever, is refused. So is a run inside it, if the store has
   one writer: the run would wait for the borrower's transaction before its first step.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar

import attrs
import trio

from .._bridge.host_loop import host_lives
from ..errors import StoreError
from ..stores._fork_safety import watch_forks
from ..stores._store_port import Store
from .timer_thread import alarms

logger = logging.getLogger("flujo_actors")

_PATIENCE_S = 30.0
"""Wait time after which the borrower is checked."""


@attrs.frozen(eq=False)
class LockWaiter:
    """Turn of a step: waited for, then held until it is released."""

    step_name: str
    queue: Queue
    come: trio.Event = attrs.field(factory=trio.Event)
    lives: Callable[[], bool] = attrs.field(factory=host_lives)
    """Whether the step's loop is still running."""
    _token: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)

    def call(self) -> bool:
        """Grant the turn from any thread; return whether it was accepted."""
        try:
            self._token.run_sync_soon(self.come.set)
        except trio.RunFinishedError:
            return False
        return self.lives()

    def release(self) -> None:
        """Let the next one borrow; once is enough."""
        self.queue.next(after=self)


_around: ContextVar[tuple[LockWaiter, ...]] = ContextVar("flujo_actors turns", default=())
"""Turns of steps enclosing the current code, possibly over."""


@attrs.define(eq=False)
class Queue:
    """Queue of steps at one database; see the module's rules."""

    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    _now: LockWaiter | None = None
    _waiting: deque[LockWaiter] = attrs.field(factory=deque)
    _watched: bool = False

    @property
    def borrower(self) -> str | None:
        """Return the step that has a transaction open now."""
        now = self._now
        return None if now is None else now.step_name

    def refuse_inside_borrower(self, caller: str) -> None:
        """Refuse a wait for an enclosing step."""
        if self._now is not None and self._now in _around.get():
            raise StoreError(
                f"{caller} inside step {self._now.step_name!r}, which has a transaction of the same store open, so "
                "both would wait for ever; let it run before or after that step"
            )

    async def turn(self, step_name: str) -> LockWaiter:
        """Return the step's turn, when it has come."""
        self.refuse_inside_borrower(f"step {step_name!r} asks for a transaction")
        turn = LockWaiter(step_name, self)
        self._line_up(turn)
        try:
            await turn.come.wait()
        except BaseException:
            self._dequeue(turn)
            raise
        _around.set((*_around.get(), turn))
        return turn

    def next(self, *, after: LockWaiter) -> None:
        """The turn is over; the next one's begins."""
        with self._lock:
            if self._now is after:
                self._advance()

    def _line_up(self, turn: LockWaiter) -> None:
        with self._lock:
            self._waiting.append(turn)
            if self._now is None or not self._now.lives():
                self._advance()
            else:
                self._watch()

    def _dequeue(self, turn: LockWaiter) -> None:
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif self._now is turn:
                self._advance()

    def _advance(self) -> None:
        self._now = None
        while self._now is None and self._waiting:
            turn = self._waiting.popleft()
            self._now = turn if turn.call() else None

    def _watch(self) -> None:
        if not self._watched:
            with contextlib.suppress(StoreError):  # without a timer thread the queue still advances
                alarms.set(_PATIENCE_S, self._check_holder)
                self._watched = True

    def _check_holder(self) -> None:
        """Keep the queue moving; called by the timer thread."""
        with self._lock:
            self._watched = False
            if self._now is not None and not self._now.lives():
                self._advance()
            if self._now is not None and self._waiting:
                waiting, holder = len(self._waiting), self._now.step_name
                logger.warning("%d steps wait for step %r to end its transaction", waiting, holder)
                self._watch()


class _Queues:
    """The queues of this process, by place."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        watch_forks(self)

    def at(self, place: str) -> Queue:
        with self._lock:
            queue = self._queues.get(place)
            if queue is None:
                queue = self._queues[place] = Queue()
            return queue

    def before_fork(self) -> None:
        """Do nothing: the child begins with no queues."""

    def after_fork_in_parent(self) -> None:
        """Do nothing: the parent keeps its queues."""

    def after_fork_in_child(self) -> None:
        self._queues: weakref.WeakValueDictionary[str, Queue] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()


_queues = _Queues()


def refuse_inside_borrower(store: Store, caller: str) -> None:
    """Raise `StoreError` inside a step whose transaction blocks all other writers."""
    if _around.get() and getattr(store, "one_writer", False):  # most code has no such step around it
        queue_for(store).refuse_inside_borrower(caller)


def queue_for(store: Store) -> Queue:
    """Return the queue of a store's database, or its own."""
    place = getattr(store, "place", None)
    return _queues.at(place if isinstance(place, str) else f"the store at {id(store)}")
