"""Store calls in threads, awaited by tasks.

Rules:

1. A started call is not cancelled: it writes everything or nothing, with or without a waiter.
2. A cancelled waiter keeps waiting for the reply, since a healthy store answers at once. But if the store has been
   silent for `PATIENCE_S`, the waiter leaves: a timeout around a run, or a Ctrl-C, does not depend on the store.
3. A thread that cannot be started is a `StoreError`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
from outcome import Error, Outcome, Value, capture

from .._bridge.threads import way_in
from .._core import seams
from ..errors import FlujoError, StoreError
from ..telemetry._redaction.redactor import redacted
from .timer_thread import alarms, no_thread

R = TypeVar("R")

PATIENCE_S = 2.0
"""Silence of a store after which cancelled waiters leave."""


class StoreExecutor:
    """Current task waiting for a reply; used in the loop's thread only."""

    __slots__ = ("_raise", "_since", "_task")

    def __init__(self, since: Callable[[], float]) -> None:
        self._since = since
        """Since when the store has been silent, on the monotonic clock."""
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        self._raise: Callable[[], object] | None = None

    def answer(self) -> Awaitable[Any]:
        """Wait for the reply and return it, once."""
        return trio.lowlevel.wait_task_rescheduled(self)  # noqa: ASYNC105 - awaited by the caller

    def give(self, answer: Outcome[object]) -> bool:
        """Wake the task with its answer; false if it has left."""
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task, answer)
        return task is not None

    def __call__(self, raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
        """Decide for trio whether the wait can be cancelled."""
        self._raise = raise_cancel
        token = trio.lowlevel.current_trio_token()
        with contextlib.suppress(StoreError):  # without a timer thread, the store's own timeout must do
            alarms.set(self._since() + PATIENCE_S - seams.clock.monotonic(), lambda: post(token, self._abort))
        return trio.lowlevel.Abort.FAILED

    def _abort(self) -> None:
        assert self._raise is not None
        self.give(capture(self._raise))


def post(token: trio.lowlevel.TrioToken, do: Callable[..., object], *args: object) -> None:
    """From any thread: do something in the loop's, if it still runs."""
    with contextlib.suppress(trio.RunFinishedError):
        token.run_sync_soon(do, *args)


def store_reply(call: Callable[[], R]) -> Value[R] | Error:
    """Return the store's reply; its own exceptions become a `StoreError`."""
    got = capture(call)
    if isinstance(got, Value) or isinstance(got.error, FlujoError) or not isinstance(got.error, Exception):
        return got
    broken = StoreError(redacted(f"the store raised {type(got.error).__name__}: {got.error}"))
    broken.__cause__ = got.error
    return Error(broken)


def start_thread(do: Callable[[], R], done: Callable[[Outcome[R]], object]) -> None:
    """Run a function in a thread, then `done`, or raise `StoreError`."""
    # Not `to_thread`: its limit is shared with other blocking calls, and keeping it takes a scheduling round.
    try:
        (seams.start_store_call or trio.lowlevel.start_thread_soon)(do, done)
    except RuntimeError as error:
        raise no_thread(error) from error


async def call_store(call: Callable[[], R], *, if_left: Callable[[R], object] = lambda answer: None) -> R:
    """Return a store method's result; `if_left` gets an abandoned one."""
    async with trio.to_thread.current_default_thread_limiter():
        return await call_at_once(call, if_left=if_left)


@trio.lowlevel.enable_ki_protection  # a task to be woken must have begun to wait
async def call_at_once(call: Callable[[], R], *, if_left: Callable[[R], object] = lambda answer: None) -> R:
    """Call the store without a free thread, even during cancellation."""
    begun, waits, post_in = seams.clock.monotonic(), _waits_of_run(), way_in()
    wait = StoreExecutor(lambda: begun)

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


_waits: trio.lowlevel.RunVar[set[StoreExecutor]] = trio.lowlevel.RunVar("flujo_actors waits")


def _waits_of_run() -> set[StoreExecutor]:
    try:
        return _waits.get()
    except LookupError:
        waits: set[StoreExecutor] = set()
        _waits.set(waits)
        return waits


def calls_in_flight() -> bool:
    """Return whether the current trio run waits for a store."""
    return bool(_waits_of_run())
