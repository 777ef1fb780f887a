"""Recovering in the background: what other processes left, and questions whose time is over, while a program lives."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

import trio

from ._bridge.host import Host, current_host
from ._core.error_info import message_of
from .errors import FlujoError

logger = logging.getLogger("flujo_actors")

Pass = Callable[[Host], Awaitable[float | None]]
"""Recovers once; in how many seconds there is something to do again, if that is known."""


class Recovering:
    """A block during which runs are recovered."""

    def __init__(self, recover: Pass, *, every_s: float) -> None:
        self._recover, self._every_s = recover, every_s
        self._host: Host | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def __aenter__(self) -> Recovering:
        if self._host is not None:
            raise RuntimeError("this block has been entered already: make another one with flujo.recovering()")
        self._host = await current_host()
        self._host.spawn(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._host is not None
        if not self._ended.is_set():
            await self._host.enter(self._stop)

    async def _run(self) -> None:
        try:
            with self._scope:
                while True:
                    wait_s = await self._once()
                    await trio.sleep(wait_s)
        finally:
            self._ended.set()

    async def _once(self) -> float:
        """One pass; how long to wait for the next one."""
        assert self._host is not None
        due_s: float | None = None
        try:
            due_s = await self._recover(self._host)
        except FlujoError as error:
            logger.warning("recovering failed, and is tried again: %s", message_of(error))
        return self._every_s if due_s is None else min(self._every_s, max(0.0, due_s))

    async def _stop(self) -> None:
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()
