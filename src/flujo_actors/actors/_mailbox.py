"""Channel of the actor library: a bounded queue across event loops.

Steps report through trio's own memory channels. A mailbox is used where a reader or producer is no trio task, and by
services. A hand-over that is ready costs no scheduling round.

1. Items leave in the order in which they were accepted, each exactly once.
2. At most `capacity` items are queued; a sender without room parks, a receiver without an item parks.
   No task parks while it could continue: parked receivers mean an empty queue, parked senders a full one.
3. Parked tasks go first come, first served. An item is transferred in the step that wakes a task, so a
   cancelled task either has its item or never had it: nothing is lost and nothing doubled.
4. `put` and `get` return at once when they can. A task that only ever succeeds still gives way after
   `LONGEST_RUN` of them; it gives way before it touches an item, so a cancelled call has done nothing.
5. `close` is the sender's end: queued items can still be received, then `EndOfChannel`; no further put.
6. `break_off` is the receiver's end: queued items are returned to the caller; no further put or get.
7. `deliver_next` is `get` for a receiver that is no task of this trio run: a callback that gets the item.
   `put_or_wait` is `put` for a sender that is none: a callback that is called when its item was accepted.
8. `suspend` ends receiving for now and leaves sending alone: a reader's loop ends, the queue stays
   for the next reader.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeAlias, TypeVar

import trio
from outcome import Error, Value
from trio.lowlevel import Abort, Task, checkpoint, current_task, reschedule, wait_task_rescheduled

from ..errors import DeclarationError

S = TypeVar("S")
T = TypeVar("T")

Deliver: TypeAlias = Callable[[Value[object] | Error], None]
"""Takes an item, or the error that there will be none."""

LONGEST_RUN = 1024
"""Maximum consecutive puts or gets of a mailbox without a checkpoint."""


class Mailbox(Generic[T]):
    """Bounded queue for many senders and receivers: `async for item in mailbox`.

    Args:
        capacity: most queued items.
    """

    __slots__ = (
        "_accepted",
        "_capacity",
        "_closed",
        "_items",
        "_put_limit",
        "_receivers",
        "_room",
        "_senders",
        "_suspended",
        "_take_limit",
        "_taken",
    )

    def __init__(self, capacity: int | float) -> None:
        if not capacity >= 1:
            raise DeclarationError(f"a mailbox holds at least one item, got capacity={capacity!r}")
        self._capacity = capacity
        self._items: deque[T] = deque()
        # Most mailboxes never have a parked task: the queues for that are made by the first who parks.
        self._senders: OrderedDict[Task | Deliver, T] | None = None
        self._receivers: OrderedDict[Task | Deliver, None] | None = None
        self._closed: type[Exception] | None = None
        self._suspended = False
        # `_room` is the capacity while the box is open and 0 afterwards; the limits are where rule 4 requires a round.
        # So the quick paths need one comparison for each, in every state of the box.
        self._room = capacity
        self._accepted = self._taken = 0
        self._put_limit = self._take_limit = LONGEST_RUN

    # --- sending ------------------------------------------------------------------------------------------

    async def put(self, item: T) -> None:
        """Add the item, waiting for room; `ClosedResourceError`, `BrokenResourceError` after the end.

        Args:
            item: item to append.
        """
        if len(self._items) < self._room and self._accepted < self._put_limit and not self._receivers:
            self._accepted += 1
            self._items.append(item)
        else:
            await self._put_slowly(item)

    def put_nowait(self, item: T) -> None:
        """Add the item now, or raise `WouldBlock` when the box is full.

        Args:
            item: item to append.
        """
        if not self.offer(item):
            raise trio.WouldBlock

    def offer(self, item: T) -> bool:
        """Add the item if there is room; return whether there was.

        Raises as `put` does after the end.
        """
        if self._receivers:
            receiver, _ = self._receivers.popitem(last=False)
            self._taken += 1
            _give(receiver, Value(item))
        elif len(self._items) < self._room:
            self._items.append(item)
        elif self._closed is None:
            return False
        else:
            raise self._closed("this mailbox has no reader any more")
        self._accepted += 1
        return True

    async def _put_slowly(self, item: T) -> None:
        if self._accepted >= self._put_limit:
            await checkpoint()
            self._put_limit = self._accepted + LONGEST_RUN
        if not self.offer(item):
            if self._senders is None:
                self._senders = OrderedDict()
            await _park(self._senders, item)
            self._put_limit = self._accepted + LONGEST_RUN

    def put_or_wait(self, item: T, accepted: Deliver) -> None:
        """Add the item as soon as there is room; notify `accepted`.

        For a sender on the host's loop, as `deliver_next` is for a receiver there.
        """
        try:
            if self.offer(item):
                accepted(Value(None))
                return
        except (trio.ClosedResourceError, trio.BrokenResourceError) as end:
            accepted(Error(end))
            return
        if self._senders is None:
            self._senders = OrderedDict()
        self._senders[accepted] = item

    # --- receiving ----------------------------------------------------------------------------------------

    async def get(self) -> T:
        """Wait for the next item; raise `EndOfChannel` at the end."""
        if self._items and self._taken < self._take_limit and not self._senders:
            self._taken += 1
            return self._items.popleft()
        return await self._get_slowly()

    def get_nowait(self) -> T:
        """Return the next item, or raise `WouldBlock`."""
        if self._suspended or not self._items:
            raise self._nothing()
        item = self._items.popleft()
        self._taken += 1
        if self._senders:
            sender, waiting = self._senders.popitem(last=False)
            self._items.append(waiting)
            self._accepted += 1
            _give(sender, Value(None))
        return item

    def deliver_next(self, deliver: Deliver) -> None:
        """Pass the next item or the end to `deliver`, immediately if available.

        For a receiver on the host's loop, which would need a task of this run to wait in its place.
        """
        if not (self._items or self._closed or self._suspended):
            if self._receivers is None:
                self._receivers = OrderedDict()
            self._receivers[deliver] = None
            return
        try:
            item = self.get_nowait()
        except (trio.EndOfChannel, trio.ClosedResourceError) as end:
            deliver(Error(end))
        else:
            deliver(Value(item))

    def withdraw(self, deliver: Deliver) -> None:
        """Stop the wait of `deliver` for an item or for acceptance."""
        if self._receivers:
            self._receivers.pop(deliver, None)
        if self._senders:
            self._senders.pop(deliver, None)

    def __aiter__(self) -> Mailbox[T]:
        return self

    async def __anext__(self) -> T:
        try:
            if self._items and self._taken < self._take_limit and not self._senders:
                self._taken += 1
                return self._items.popleft()
            return await self._get_slowly()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    async def _get_slowly(self) -> T:
        if self._taken >= self._take_limit and not self._suspended:
            await checkpoint()
            self._allow_takes()
        if self._items or self._suspended or self._closed is not None:
            return self.get_nowait()
        if self._receivers is None:
            self._receivers = OrderedDict()
        item: T = await _park(self._receivers, None)
        self._allow_takes()
        return item

    def _allow_takes(self) -> None:
        # A suspended box keeps its limit at zero: that sends every `get` to the slow path (rule 8).
        self._take_limit = 0 if self._suspended else self._taken + LONGEST_RUN

    def _nothing(self) -> Exception:
        if self._closed is trio.BrokenResourceError:
            return trio.ClosedResourceError("this mailbox was broken off by its receiver")
        ended = self._suspended or self._closed is not None
        return trio.EndOfChannel() if ended else trio.WouldBlock()

    # --- ends ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End sending: queued items can still be taken, parked senders get `ClosedResourceError`."""
        if self._closed is None:
            self._refuse(trio.ClosedResourceError)
            self._wake(self._receivers, trio.EndOfChannel)

    def break_off(self) -> list[T]:
        """End receiving for good; return the queued items."""
        self._refuse(trio.BrokenResourceError)
        self._wake(self._receivers, trio.ClosedResourceError)
        untaken = list(self._items)
        self._items.clear()
        return untaken

    def suspend(self) -> None:
        """End receiving for now: `EndOfChannel` until `resume`; senders are unaffected."""
        self._suspended = True
        self._allow_takes()
        self._wake(self._receivers, trio.EndOfChannel)

    def resume(self) -> None:
        """Let the next receiver read on where the last one stopped."""
        self._suspended = False
        self._allow_takes()

    def _refuse(self, why: type[Exception]) -> None:
        self._closed = why
        self._room = 0
        self._wake(self._senders, why)

    @staticmethod
    def _wake(parked: OrderedDict[Task | Deliver, Any] | None, why: type[Exception]) -> None:
        while parked:
            waiting, _ = parked.popitem(last=False)
            _give(waiting, Error(why()))

    # --- looking ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of items are queued."""
        return len(self._items)

    def __bool__(self) -> bool:
        """True: an empty mailbox is still a mailbox."""
        return True

    @property
    def queued(self) -> Collection[T]:
        """Return a live view of the queued items."""
        return self._items

    @property
    def capacity(self) -> int | float:
        """Return the number of items fit."""
        return self._capacity

    @property
    def accepted(self) -> int:
        """Return the number of accepted items: taken, queued and broken off."""
        return self._accepted

    @property
    def taken(self) -> int:
        """Return the number of items receivers ever got."""
        return self._taken

    @property
    def closed(self) -> bool:
        """Return whether puts are refused for good."""
        return self._closed is not None

    def untaken(self) -> list[T]:
        """Return unreceived items: the queue, then parked senders' items."""
        return [*self._items, *(self._senders or {}).values()]


def _give(waiting: Task | Deliver, what: Value[Any] | Error) -> None:
    if isinstance(waiting, Task):
        reschedule(waiting, what)
    else:
        waiting(what)


async def _park(parked: OrderedDict[Task | Deliver, S], offer: S) -> Any:
    """Park the task and return the value that wakes it."""
    task = current_task()

    def give_up(_: object) -> Abort:
        del parked[task]
        return Abort.SUCCEEDED

    try:
        parked[task] = offer
        return await wait_task_rescheduled(give_up)
    finally:
        parked.pop(task, None)  # a Ctrl-C may come before it waits
