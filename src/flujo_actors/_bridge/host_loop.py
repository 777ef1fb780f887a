"""Host program of the runtime: its event loop and its coroutines.

Sections:

- Protocols of a chunk consumer on the trio thread.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, get_args

import attrs
import trio
from outcome import Error, Value
from trio.lowlevel import checkpoint, checkpoint_if_cancelled, current_task

from .. import _bridge
from .._core.attempt_results import PLAIN
from .._core.default_settings import Backend
from .._core.error_info import cause_of, frames_of, leaves_of, message_of
from ..errors import LoopAlreadyRunning

if TYPE_CHECKING:
    from .guest import Guest
    from .to_asyncio import AsyncioLoop

T = TypeVar("T")
H = TypeVar("H")
T_co = TypeVar("T_co", covariant=True)


IN_WORKER: contextvars.ContextVar[bool] = contextvars.ContextVar("flujo_actors worker", default=False)
"""Whether the current task belongs to a worker, for error advice."""


IN_HOOK: contextvars.ContextVar[bool] = contextvars.ContextVar("flujo_actors hook", default=False)
"""Whether the current code is a hook, which may block the loop."""


class ReceivePort(Protocol[T_co]):
    """Channel from trio tasks to a host; ends with `trio.EndOfChannel`."""

    async def get(self) -> T_co:
        """From a trio task: the next item."""

    def deliver_next(self, deliver: Callable[[Value[Any] | Error], None]) -> None:
        """Pass the next item or the end to `deliver` once, thread-bound."""

    def withdraw(self, deliver: Callable[[Value[Any] | Error], None]) -> None:
        """Let `deliver` wait no longer."""


class Host(Protocol):
    """Interface between the trio runtime and its host."""

    def enter(self, fn: Callable[..., Awaitable[T]], *args: object) -> Awaitable[T]:
        """Await a trio function from the host; cancellation is passed on."""

    def spawn(self, fn: Callable[..., Awaitable[None]], *args: object) -> None:
        """From the host's side: start a trio task that outlives the caller."""

    def receive(self, box: ReceivePort[T]) -> Awaitable[T]:
        """Return the next item of a trio channel to the host."""

    def finish(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """Await a user's awaitable on its own library, from the runtime."""

    def call(self, fn: Callable[..., object], data: object) -> Awaitable[Any]:
        """Call a user's sync or async function from the runtime."""

    def read(
        self, make: Callable[[], object], taker: ChunkConsumer[object, H], last: tuple[type, ...]
    ) -> Awaitable[object]:
        """Consume a user's async iterator; one of type `last` ends it."""

    def asyncio(self) -> AsyncioLoop:
        """Return the loop for code that runs on asyncio only."""


class TrioHost:
    """Trio program (or anyio on trio, or `run()`) containing the runtime."""

    def enter(self, fn: Callable[..., Awaitable[T]], *args: object) -> Awaitable[T]:
        return fn(*args)

    def spawn(self, fn: Callable[..., Awaitable[None]], *args: object) -> None:
        trio.lowlevel.spawn_system_task(fn, *args, context=contextvars.copy_context())

    def receive(self, box: ReceivePort[T]) -> Awaitable[T]:
        return box.get()

    async def finish(self, awaitable: Awaitable[T]) -> T:
        return await awaitable

    def call(self, fn: Callable[..., object], data: object) -> Awaitable[Any]:
        answer = fn(data)
        return answer if type(answer) is CoroutineType or isinstance(answer, Awaitable) else _ready(answer)

    def read(
        self, make: Callable[[], object], taker: ChunkConsumer[object, H], last: tuple[type, ...]
    ) -> Awaitable[object]:
        return _read(make, taker, last)

    def asyncio(self) -> AsyncioLoop:
        return _bridge.helper_loop()


CHUNKS_IN_A_ROW = 100
"""Maximum number of consecutive chunks without a checkpoint."""


async def _read(make: Callable[[], object], taker: ChunkConsumer[object, H], last: tuple[type, ...]) -> object:
    """Consume a user's iterator, or that of an awaitable, and close it.

    No further chunk is requested once the reader is cancelled, and checkpoints are inserted, so neither a source that
    swallows cancellation nor one that never waits can block the run.
    """
    await checkpoint_if_cancelled()
    source: Any = make()
    if not hasattr(source, "__aiter__"):
        source = await source
    task, awake, in_a_row, take = current_task(), object(), 0, taker.accept
    try:
        async for chunk in source:
            if type(chunk) not in PLAIN and isinstance(chunk, last):
                return chunk
            if (held := take(chunk)) is not None and taker.box is not None:
                await taker.box.put(held)
            # Trio wipes this mark when it reschedules the task. Between two rounds no other task runs, so there is no
            # cancellation to check for: most chunks pay for the comparison only.
            if task.custom_sleep_data is not awake:
                task.custom_sleep_data, in_a_row = awake, 0
                await checkpoint_if_cancelled()
            elif (in_a_row := in_a_row + 1) >= CHUNKS_IN_A_ROW:
                await checkpoint()
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
    return None


@attrs.frozen(eq=False)
class AsyncioHost:
    """asyncio program (or anyio, or uvloop) with the runtime as guest."""

    guest: Guest
    loop: AsyncioLoop

    def enter(self, fn: Callable[..., Awaitable[T]], *args: object) -> Awaitable[T]:
        return self.guest.call(fn, *args)

    def spawn(self, fn: Callable[..., Awaitable[None]], *args: object) -> None:
        self.guest.spawn(fn, *args)

    def receive(self, box: ReceivePort[T]) -> Awaitable[T]:
        return self.guest.receive(box)

    def finish(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        return self.loop.finish(awaitable)

    def call(self, fn: Callable[..., Any], data: object) -> Awaitable[Any]:
        answer = fn(data)
        awaitable = type(answer) is CoroutineType or isinstance(answer, Awaitable)
        return self.finish(answer) if awaitable else _ready(answer)

    def read(
        self, make: Callable[[], object], taker: ChunkConsumer[object, H], last: tuple[type, ...]
    ) -> Awaitable[object]:
        return self.loop.produced(functools.partial(_bridge.stream_chunks, make, last), taker)

    def asyncio(self) -> AsyncioLoop:
        return self.loop


async def _ready(answer: T) -> T:
    return answer


TRIO = TrioHost()


async def current_host() -> Host:
    """Return the host of the awaiting caller."""
    if trio.lowlevel.in_trio_task():
        return TRIO
    return await _asyncio_host()


async def _asyncio_host() -> AsyncioHost:
    guest = await _bridge.current_guest()
    if guest.host is None:
        guest.host = _host_of(guest)
    host: AsyncioHost = guest.host
    return host


def _host_of(guest: Guest) -> AsyncioHost:
    import asyncio  # it takes as long to load as a tenth of trio

    return AsyncioHost(guest, _bridge.AsyncioLoop(asyncio.get_running_loop(), guest.rounds))


def running_loop() -> str | None:
    """Return the library of the loop running in this thread, or None."""
    if trio.lowlevel.in_trio_task():
        return "trio"
    if "asyncio" not in sys.modules:
        return None  # then no loop of its kind can run, and none has a guest
    import asyncio

    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        return "asyncio"
    _bridge.end_orphans()
    return None


_missing: set[str] = set()
"""Files that were not there when they were looked up last."""


def file_content(path: str) -> bytes | None:
    """Return the content of a small file, or None without one.

    On a loop, a file that was missing is not looked up again: a loop must not wait for the file system.
    """
    if path in _missing and running_loop() is not None:
        return None
    file = Path(path)
    content = file.read_bytes() if file.is_file() else None
    (_missing.add if content is None else _missing.discard)(path)
    return content


def host_lives() -> Callable[[], bool]:
    """Return a thread-safe check whether this thread's loop is open."""
    if "asyncio" in sys.modules:
        import asyncio

        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            return lambda: not loop.is_closed()
    return lambda: True


# --- a loop for programs that have none ---------------------------------------------------------------------


def refuse_inside_loop(*, instead: str) -> None:
    """Raise `LoopAlreadyRunning` if this thread runs a loop."""
    library = running_loop()
    if library is not None:
        raise LoopAlreadyRunning(
            f"a loop ({library}) runs in this thread, and this call would block it: use `await flujo.{instead}(…)`"
        )


def in_own_loop(start: Callable[[Host, None], Awaitable[T]], *, backend: Backend, instead: str) -> T:
    """Return the result of `start(host, None)` on a new loop."""
    refuse_inside_loop(instead=instead)
    if backend == "trio":
        return trio.run(start, TRIO, None)
    import asyncio  # which programs that stay on trio do without

    return asyncio.run(_entered(start))


async def _entered(start: Callable[[Host, None], Awaitable[T]]) -> T:
    host = await current_host()
    return await host.enter(start, host, None)


def checked_backend(backend: Backend) -> Backend:
    """Return a valid backend."""
    if backend not in get_args(Backend):
        raise ValueError(f"backend must be {' or '.join(map(repr, get_args(Backend)))}, not {backend!r}")
    return backend


# --- Protocols of a chunk consumer on the trio thread -------------------------------------------------------------


T_contra = TypeVar("T_contra", contravariant=True)


class SendPort(Protocol[T_contra]):
    """Sending side of a bounded channel."""

    async def put(self, item: T_contra) -> None:
        """From a trio task: add the item, waiting for room."""

    def put_or_wait(self, item: T_contra, accepted: Callable[[Value[object] | Error], None]) -> None:
        """Add an item once there is room, then call `accepted` once."""

    def withdraw(self, accepted: Callable[[Value[object] | Error], None]) -> None:
        """Let `accepted` wait no longer, and do not add its item."""


class ChunkConsumer(Protocol[T_contra, H]):
    """Consumer of one stream's chunks, in order."""

    @property
    def box(self) -> SendPort[H] | None:
        """Return the channel of read chunks, or None."""

    def accept(self, chunk: T_contra) -> H | None:
        """Accept a chunk; return a value that must go to the channel."""


Library: TypeAlias = Literal["asyncio", "trio"]

_NEEDS_ASYNCIO = (
    "no running event loop",
    "There is no current event loop",
    "trio.run received unrecognized yield message",
    "Timeout should be used inside a task",
    "Timeout context manager should be used inside a task",
)
"""Message prefixes of code that lacked an asyncio loop."""

_NEEDS_TRIO = (
    "must be called from async context",
    "Task got bad yield: <class 'trio.",
    "Task got bad yield: <trio.",
    "this thread wasn't created by Trio",
)
"""The same of code that found no trio run."""

_LONGEST_CHAIN = 20
_THREADS = os.path.join(os.path.dirname(__file__), "threads.py")
_ASYNCIO = f"{os.sep}asyncio{os.sep}"

_ON_THE_OTHER = (
    'this code is written for {needed}, but it ran on {other}: call `flujo.run(data, backend="{needed}")`, or await '
    "`flujo.run_async(data)` in {a} {needed} program; code written with anyio runs on both"
)
_IN_A_THREAD = (
    "this code is written for {needed}, but a plain function runs in a thread, where there is no loop: make it "
    '`async def`, and call `flujo.run(data, backend="{needed}")`, or await `flujo.run_async(data)` in {a} {needed} '
    "program"
)
_IN_A_WORKER = (
    "this code is written for {needed}, but this worker runs on {other}: start it with `flujo-actors worker … "
    "--backend {needed}` or the setting `run.backend = {needed}`, or enter `flujo.worker()` in {a} {needed} program; "
    "code written with anyio runs on both"
)
_IN_AN_AGENT = (
    "this code is written for {needed}, but the tools and models of an agent always run on {other}: write it with "
    "anyio, which runs on both"
)
_IN_AN_EVALUATOR = (
    'this evaluator is written for {needed}, but it ran on {other}: pass `backend="{needed}"`, or await the call in '
    "{a} {needed} program; code written with anyio runs on both"
)


def library_hint(error: BaseException, host: Host, *, evaluator: bool = False) -> str | None:
    """Return the remedy for code on the wrong library, or None."""
    found = next(((each, needed) for each in _behind(error) if (needed := _needed_by(each))), None)
    if found is None:
        return None
    raised, needed = found
    facts = {"needed": needed, "other": "trio" if needed == "asyncio" else "asyncio"}
    advice = _IN_AN_EVALUATOR if evaluator else _advice(raised, needed, host)
    return advice.format(**facts, a="an" if needed == "asyncio" else "a")


def _advice(error: BaseException, needed: Library, host: Host) -> str:
    if any(frame.file == _THREADS for frame in frames_of(error)):
        return _IN_A_THREAD
    if needed == "trio" and isinstance(host, TrioHost):
        return _IN_AN_AGENT
    return _IN_A_WORKER if IN_WORKER.get() else _ON_THE_OTHER


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, the members of a group, and their causes."""
    for leaf in leaves_of(error):
        yield from itertools.islice(_raised_from(leaf), _LONGEST_CHAIN)


def _raised_from(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = cause_of(error)


def _needed_by(error: BaseException) -> Library | None:
    if not isinstance(error, RuntimeError | TypeError | AttributeError):
        return None
    text = message_of(error)
    if text.startswith(_NEEDS_ASYNCIO) or _misses_its_loop(error, text):
        return "asyncio"
    return "trio" if text.startswith(_NEEDS_TRIO) else None


def _misses_its_loop(error: BaseException, text: str) -> bool:
    """Return whether asyncio itself missed its loop, as in locks."""
    frames = frames_of(error)
    return text.startswith("'NoneType' object has no attribute") and bool(frames) and _ASYNCIO in frames[-1].file
