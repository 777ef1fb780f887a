"""Waiting for a store: its calls block, so threads make them, and tasks wait for what the threads bring back.

Rules:

1. A call that was begun is not cut short: what it writes is written as a whole or not at all, whoever waits for it.
2. Whoever is cancelled waits on for the answer, since a store that is well answers at once. But if the store has been
   silent for `PATIENCE_S`, the waiter leaves: a timeout around a run, or a Ctrl-C, does not depend on the store.
3. A thread that cannot be started is a `StoreError`.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
from outcome import Outcome, Value, capture

from .._bridge.arrivals import way_in
from ..errors import StoreError
from .alarms import alarms, no_thread

R = TypeVar("R")

PATIENCE_S = 2.0
"""How long a store may be silent before those who are cancelled leave."""


class StoreWait:
    """The current task, waiting for an answer; see the module's rules. Used in the loop's thread alone."""

    __slots__ = ("_raise", "_since", "_task")

    def __init__(self, since: Callable[[], float]) -> None:
        self._since = since
        """Since when the store has been silent, on the monotonic clock."""
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        self._raise: Callable[[], object] | None = None

    def answer(self) -> Awaitable[Any]:
        """What is given, once."""
        return trio.lowlevel.wait_task_rescheduled(self)  # noqa: ASYNC105 - awaited by whoever asks

    def give(self, answer: Outcome[object]) -> bool:
        """Wake the task with its answer; false if it has left."""
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task, answer)
        return task is not None

    def __call__(self, raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
        """Trio asks whether the wait can be cut short."""
        self._raise = raise_cancel
        token = trio.lowlevel.current_trio_token()
        with contextlib.suppress(StoreError):  # without a thread to watch the time, the store's own bound must do
            alarms.set(self._since() + PATIENCE_S - time.monotonic(), lambda: post(token, self._leave))
        return trio.lowlevel.Abort.FAILED

    def _leave(self) -> None:
        assert self._raise is not None
        self.give(capture(self._raise))


def post(token: trio.lowlevel.TrioToken, do: Callable[..., object], *args: object) -> None:
    """From any thread: do something in the loop's, if it still runs."""
    with contextlib.suppress(trio.RunFinishedError):
        token.run_sync_soon(do, *args)


def start_thread(do: Callable[[], R], done: Callable[[Outcome[R]], object]) -> None:
    """Do something in a thread, which then calls `done`; `StoreError` if there is none to be had."""
    # Not `to_thread`: its limit is shared with whatever else blocks, and keeping it takes a scheduling round.
    try:
        trio.lowlevel.start_thread_soon(do, done)
    except RuntimeError as error:
        raise no_thread(error) from error


async def call_store(call: Callable[[], R], *, if_left: Callable[[R], object] = lambda answer: None) -> R:
    """What a store's method returns; `if_left` is called in a thread with what nobody waits for any more."""
    async with trio.to_thread.current_default_thread_limiter():
        return await call_at_once(call, if_left=if_left)


@trio.lowlevel.enable_ki_protection  # whoever is going to be woken must have begun to wait
async def call_at_once(call: Callable[[], R], *, if_left: Callable[[R], object] = lambda answer: None) -> R:
    """The same without waiting for a thread to be free, and for whoever is being cancelled, too."""
    begun, waits, post_in = time.monotonic(), _waits_of_run(), way_in()
    wait = StoreWait(lambda: begun)

    def answer(got: Outcome[R]) -> None:
        if not wait.give(got) and isinstance(got, Value):
            start_thread(lambda: if_left(got.value), lambda ended: None)

    waits.add(wait)
    try:
        start_thread(call, lambda got: post_in(functools.partial(answer, got)))
        value: R = await wait.answer()
    finally:
        waits.discard(wait)
    return value


_waits: trio.lowlevel.RunVar[set[StoreWait]] = trio.lowlevel.RunVar("flujo_actors waits")


def _waits_of_run() -> set[StoreWait]:
    try:
        return _waits.get()
    except LookupError:
        waits: set[StoreWait] = set()
        _waits.set(waits)
        return waits


def calls_under_way() -> bool:
    """Whether the current trio run waits for a call to a store."""
    return bool(_waits_of_run())
