"""The program the runtime is embedded in: what it runs on, and how to reach its coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from types import CoroutineType
from typing import Any, Protocol, TypeVar

import attrs
import trio
from trio.lowlevel import checkpoint, checkpoint_if_cancelled

from .asyncio_loop import AsyncioLoop, helper_loop
from .guest import Guest, current_guest, end_orphans

T = TypeVar("T")


class Host(Protocol):
    """How the trio runtime and its host reach each other."""

    def enter(self, fn: Callable[..., Awaitable[T]], *args: Any) -> Awaitable[T]:
        """From the host's side: await a trio function; the host's cancellation is its cancellation."""

    def spawn(self, fn: Callable[..., Awaitable[None]], *args: Any) -> None:
        """From the host's side: start a trio task that outlives the caller."""

    async def finish(self, awaitable: Awaitable[T]) -> T:
        """From the runtime's side: await something of the user's on the library the user wrote it for."""

    def call(self, fn: Callable[[Any], Any], data: Any) -> Awaitable[Any]:
        """From the runtime's side: call a function of the user's that answers, or leads to an answer."""

    def stream(self, make: Callable[[], Any]) -> AsyncIterator[Any]:
        """From the runtime's side: the pieces of a user's asynchronous iterator."""

    def asyncio(self) -> AsyncioLoop:
        """The loop for code that runs on asyncio only."""


class TrioHost:
    """A trio program (or anyio on trio, or `run()`): the runtime is part of it."""

    def enter(self, fn: Callable[..., Awaitable[T]], *args: Any) -> Awaitable[T]:
        return fn(*args)

    def spawn(self, fn: Callable[..., Awaitable[None]], *args: Any) -> None:
        trio.lowlevel.spawn_system_task(fn, *args, context=contextvars.copy_context())

    async def finish(self, awaitable: Awaitable[T]) -> T:
        return await awaitable

    def call(self, fn: Callable[[Any], Any], data: Any) -> Awaitable[Any]:
        answer = fn(data)
        return answer if type(answer) is CoroutineType or isinstance(answer, Awaitable) else _ready(answer)

    def stream(self, make: Callable[[], Any]) -> AsyncIterator[Any]:
        return _TrioStream(make)

    def asyncio(self) -> AsyncioLoop:
        return helper_loop()


PIECES_IN_A_ROW = 64
"""How many pieces of a stream may come without giving way to others."""


class _TrioStream:
    """A user's iterator, or the awaitable that leads to one.

    It is asked for no further piece once its reader is cancelled, and gives way now and then, so that neither a
    source that swallows cancellation nor one that never waits can hold the run.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._source: Any = None
        self._in_a_row = 0

    def __aiter__(self) -> _TrioStream:
        return self

    async def __anext__(self) -> Any:
        if self._source is None:
            source = self._make()
            self._source = source if hasattr(source, "__aiter__") else await source
            self._source = self._source.__aiter__()
        if self._in_a_row < PIECES_IN_A_ROW:
            self._in_a_row += 1
            await checkpoint_if_cancelled()
        else:
            self._in_a_row = 0
            await checkpoint()
        return await self._source.__anext__()

    async def aclose(self) -> None:
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


@attrs.frozen(eq=False)
class AsyncioHost:
    """An asyncio program (or anyio on asyncio, or uvloop): the runtime is a guest on its loop."""

    guest: Guest
    loop: AsyncioLoop

    def enter(self, fn: Callable[..., Awaitable[T]], *args: Any) -> Awaitable[T]:
        return self.guest.call(fn, *args)

    def spawn(self, fn: Callable[..., Awaitable[None]], *args: Any) -> None:
        self.guest.spawn(fn, *args)

    async def finish(self, awaitable: Awaitable[T]) -> T:
        return await self.loop.call(lambda: awaitable)

    def call(self, fn: Callable[[Any], Any], data: Any) -> Awaitable[Any]:
        answer = fn(data)
        awaitable = type(answer) is CoroutineType or isinstance(answer, Awaitable)
        return self.finish(answer) if awaitable else _ready(answer)

    def stream(self, make: Callable[[], Any]) -> AsyncIterator[Any]:
        return self.loop.stream(make)

    def asyncio(self) -> AsyncioLoop:
        return self.loop


async def _ready(answer: T) -> T:
    return answer


TRIO = TrioHost()


async def current_host() -> Host:
    """The host of whoever awaits this."""
    if trio.lowlevel.in_trio_task():
        return TRIO
    guest = await current_guest()
    return AsyncioHost(guest, AsyncioLoop(asyncio.get_running_loop(), guest.vigil))


def running_loop() -> str | None:
    """The name of the library whose loop runs in this thread; if none does, the thread is free for one."""
    if trio.lowlevel.in_trio_task():
        return "trio"
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        return "asyncio"
    end_orphans()
    return None
