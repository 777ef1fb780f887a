"""The program the runtime is embedded in: which event loop it runs on, and how to reach its coroutines."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, get_args

import attrs
import trio
from outcome import Error, Value
from trio.lowlevel import checkpoint, checkpoint_if_cancelled, current_task

from .._core.attempts import PLAIN
from .._core.default_settings import Backend
from ..errors import LoopAlreadyRunning

if TYPE_CHECKING:
    from .guest import Guest
    from .taking import Taker
    from .to_asyncio import AsyncioLoop

T = TypeVar("T")
H = TypeVar("H")
T_co = TypeVar("T_co", covariant=True)


class Box(Protocol[T_co]):
    """A queue that trio tasks put into, as a host reads it; its end is `trio.EndOfChannel`."""

    async def get(self) -> T_co:
        """From a trio task: the next item."""

    def hand_next_to(self, deliver: Callable[[Value[Any] | Error], None]) -> None:
        """From anywhere else in the thread: `deliver` gets the next item, or the end, once."""

    def withdraw(self, deliver: Callable[[Value[Any] | Error], None]) -> None:
        """Let `deliver` wait no longer."""


class Host(Protocol):
    """How the trio runtime and its host reach each other."""

    def enter(self, fn: Callable[..., Awaitable[T]], *args: object) -> Awaitable[T]:
        """From the host's side: await a trio function; the host's cancellation is its cancellation."""

    def spawn(self, fn: Callable[..., Awaitable[None]], *args: object) -> None:
        """From the host's side: start a trio task that outlives the caller."""

    def receive(self, box: Box[T]) -> Awaitable[T]:
        """From the host's side: the next item of a box that trio tasks put into."""

    def finish(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """From the runtime's side: await something of the user's on the library the user wrote it for."""

    def call(self, fn: Callable[..., object], data: object) -> Awaitable[Any]:
        """From the runtime's side: call a function of the user's that answers, or leads to an answer."""

    def read(self, make: Callable[[], object], taker: Taker[object, H], last: tuple[type, ...]) -> Awaitable[object]:
        """From the runtime's side: let a user's asynchronous iterator give its pieces; one of type `last` ends it."""

    def asyncio(self) -> AsyncioLoop:
        """The loop for code that runs on asyncio only."""


class TrioHost:
    """A trio program (or anyio on trio, or `run()`): the runtime is part of it."""

    def enter(self, fn: Callable[..., Awaitable[T]], *args: object) -> Awaitable[T]:
        return fn(*args)

    def spawn(self, fn: Callable[..., Awaitable[None]], *args: object) -> None:
        trio.lowlevel.spawn_system_task(fn, *args, context=contextvars.copy_context())

    def receive(self, box: Box[T]) -> Awaitable[T]:
        return box.get()

    async def finish(self, awaitable: Awaitable[T]) -> T:
        return await awaitable

    def call(self, fn: Callable[..., object], data: object) -> Awaitable[Any]:
        answer = fn(data)
        return answer if type(answer) is CoroutineType or isinstance(answer, Awaitable) else _ready(answer)

    def read(self, make: Callable[[], object], taker: Taker[object, H], last: tuple[type, ...]) -> Awaitable[object]:
        return _read(make, taker, last)

    def asyncio(self) -> AsyncioLoop:
        from .to_asyncio import helper_loop  # loads asyncio, which most trio programs do without

        return helper_loop()


PIECES_IN_A_ROW = 100
"""How many pieces of a stream may come without giving way to others."""


async def _read(make: Callable[[], object], taker: Taker[object, H], last: tuple[type, ...]) -> object:
    """Let the pieces be taken of a user's iterator, or of the one that an awaitable leads to; then it is closed.

    The source is asked for no further piece once its reader is cancelled, and others get a turn now and then, so that
    neither a source that swallows cancellation nor one that never waits can hold the run.
    """
    await checkpoint_if_cancelled()
    source: Any = make()
    if not hasattr(source, "__aiter__"):
        source = await source
    task, awake, in_a_row, take = current_task(), object(), 0, taker.take
    try:
        async for piece in source:
            if type(piece) not in PLAIN and isinstance(piece, last):
                return piece
            if (held := take(piece)) is not None and taker.box is not None:
                await taker.box.put(held)
            # Trio wipes this mark when it reschedules the task. Between two rounds nobody else runs, so there is no
            # cancellation to look for: most pieces pay for the comparison only.
            if task.custom_sleep_data is not awake:
                task.custom_sleep_data, in_a_row = awake, 0
                await checkpoint_if_cancelled()
            elif (in_a_row := in_a_row + 1) >= PIECES_IN_A_ROW:
                await checkpoint()
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
    return None


@attrs.frozen(eq=False)
class AsyncioHost:
    """An asyncio program (or anyio on asyncio, or uvloop): the runtime is a guest on its loop."""

    guest: Guest
    loop: AsyncioLoop

    def enter(self, fn: Callable[..., Awaitable[T]], *args: object) -> Awaitable[T]:
        return self.guest.call(fn, *args)

    def spawn(self, fn: Callable[..., Awaitable[None]], *args: object) -> None:
        self.guest.spawn(fn, *args)

    def receive(self, box: Box[T]) -> Awaitable[T]:
        return self.guest.receive(box)

    def finish(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        return self.loop.finish(awaitable)

    def call(self, fn: Callable[..., Any], data: object) -> Awaitable[Any]:
        answer = fn(data)
        awaitable = type(answer) is CoroutineType or isinstance(answer, Awaitable)
        return self.finish(answer) if awaitable else _ready(answer)

    def read(self, make: Callable[[], object], taker: Taker[object, H], last: tuple[type, ...]) -> Awaitable[object]:
        from .asyncio_stream import read  # loads asyncio, which is there by now

        return self.loop.produced(functools.partial(read, make, last), taker)

    def asyncio(self) -> AsyncioLoop:
        return self.loop


async def _ready(answer: T) -> T:
    return answer


TRIO = TrioHost()


async def current_host() -> Host:
    """The host of whoever awaits this."""
    if trio.lowlevel.in_trio_task():
        return TRIO
    return await _asyncio_host()


async def _asyncio_host() -> AsyncioHost:
    from .guest import current_guest  # loads asyncio, as below: trio programs do without it

    guest = await current_guest()
    if guest.host is None:
        guest.host = _host_of(guest)
    host: AsyncioHost = guest.host
    return host


def _host_of(guest: Guest) -> AsyncioHost:
    import asyncio  # it takes as long to load as a tenth of trio

    from .to_asyncio import AsyncioLoop

    return AsyncioHost(guest, AsyncioLoop(asyncio.get_running_loop(), guest.rounds))


def running_loop() -> str | None:
    """The name of the library whose loop runs in this thread; if none does, the thread is free for one."""
    if trio.lowlevel.in_trio_task():
        return "trio"
    if "asyncio" not in sys.modules:
        return None  # then nobody can run a loop of its kind, and nobody has left a guest on one
    import asyncio

    from .guest import end_orphans

    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        return "asyncio"
    end_orphans()
    return None


def host_lives() -> Callable[[], bool]:
    """Tells from any thread whether the loop of this one can still go on: asyncio's cannot once it is closed."""
    if "asyncio" in sys.modules:
        import asyncio

        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            return lambda: not loop.is_closed()
    return lambda: True


# --- a loop for programs that have none ---------------------------------------------------------------------


def refuse_inside_loop(*, instead: str) -> None:
    """`LoopAlreadyRunning` if a loop runs in this thread, which a call that waits would block."""
    library = running_loop()
    if library is not None:
        raise LoopAlreadyRunning(
            f"a loop ({library}) runs in this thread, and this call would block it: use `await flujo.{instead}(…)`"
        )


def in_own_loop(start: Callable[[Host, None], Awaitable[T]], *, backend: Backend, instead: str) -> T:
    """What `start(host, None)` comes to on a loop of that library, which runs for this call alone."""
    refuse_inside_loop(instead=instead)
    if backend == "trio":
        return trio.run(start, TRIO, None)
    import asyncio  # which programs that stay on trio do without

    return asyncio.run(_entered(start))


async def _entered(start: Callable[[Host, None], Awaitable[T]]) -> T:
    host = await current_host()
    return await host.enter(start, host, None)


def checked_backend(backend: Backend) -> Backend:
    """The backend, if there is such a one."""
    if backend not in get_args(Backend):
        raise ValueError(f"backend must be {' or '.join(map(repr, get_args(Backend)))}, not {backend!r}")
    return backend
