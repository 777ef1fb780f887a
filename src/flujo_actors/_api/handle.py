"""Run handle of `run_async`: await it, iterate it or enter it.

Rules:

1. Nothing happens before the handle is awaited, iterated or entered; awaiting runs in the caller's own task.
2. Iterating and entering start the run in the background of the same trio run, with a bounded channel of outcomes
   between it and the reader: a slow reader slows the run.
3. Leaving the loop (`break`, an exception, `aclose`, losing the iterator) or the `async with` block cancels the
   run; `aclose` and the block also wait for its cleanup.
4. Cancelling the reader cancels the run and waits for its cleanup.
5. A handle is a coroutine too, the one that awaits it: `asyncio.run`, `create_task` and nurseries take nothing else.
6. An error that stopped the run (a control error, a store that is down, a used id) is raised to its reader: to the
   first that awaits or iterates, or else when the block is left, unless the block raises by itself.
7. A handle that is dropped unused was a mistake: it warns.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import trio
from outcome import Error, Value

from .._bridge.host_loop import Host, current_host
from .._bridge.user_code_guard import asyncio_cancellation
from .._core.outcomes import PipelineResult, StepOutcome
from .._core.type_parameters import Ctx, Generic, Out
from .._runtime.run.messages import EventStream as EventStream
from ..actors._mailbox import Mailbox

if TYPE_CHECKING:
    from .._core.labels import Labels
    from .._core.outcomes import RunId
    from .._dsl.chunk_filter import ShownChunks

OUTCOME_BUFFER = 64
"""Number of outcomes buffered between a run and its reader."""

_AWAITED_TWICE = (
    "another task awaits this run, which runs in that task; await it once and hand the result on, or begin it with "
    "`async with flujo.run_async(…) as run`, and let as many tasks await `run` as you like"
)

Drive: TypeAlias = Callable[[Host, EventStream | None], Awaitable[PipelineResult]]
"""Run a pipeline on a host, with a reader's event stream."""


class RunHandle(Coroutine[Any, Any, PipelineResult[Out, Ctx]], Generic[Out, Ctx]):
    """Handle of a run: await it, iterate over outcomes, or enter.

    Example:
        ```python
        async def main() -> str:
            async with Flujo(Step("greet", str.upper)).run_async("ada") as run:
                steps = [each.path async for each in run if isinstance(each, Success)]
                return f"{steps}: {(await run).output}"

        assert trio.run(main) == "['greet']: ADA"
        ```
    """

    def __init__(
        self, drive: Drive, *, started: bool = False, tools: bool = False, chunks: ShownChunks | None = None
    ) -> None:
        self._drive = drive
        self._started, self._tools, self._chunks = started, tools, chunks
        self._background: _Background | None = None
        self._awaited: Value[PipelineResult] | Error | None = None
        self._stepped: Coroutine[Any, Any, PipelineResult] | None = None
        self._awaiting = self._used = False

    def __await__(self) -> Generator[Any, Any, PipelineResult[Out, Ctx]]:
        return self._result().__await__()

    def send(self, value: object) -> Any:
        """Advance the awaiting coroutine, for the loop of its task."""
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise `error`, a cancellation mostly, where the run is awaited."""
        return self._coroutine().throw(*error)

    def close(self) -> None:
        """Give up awaiting the run."""
        self._used = True
        if self._stepped is not None:
            self._stepped.close()

    def _coroutine(self) -> Coroutine[object, object, PipelineResult]:
        self._used = True
        if self._stepped is None:
            self._stepped = self._result()
        return self._stepped

    def __aiter__(self) -> OutcomeIterator:
        return OutcomeIterator(self)

    async def __aenter__(self) -> Self:
        await self.background()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        background = await self.background()
        await background.end()
        if error is None:
            background.raise_unreported()

    async def _result(self) -> PipelineResult[Out, Ctx]:
        self._used = True
        if self._background is not None:
            background = self._background
            return await background.host.enter(background.result)
        if self._awaited is not None:
            return _unpacked(self._awaited)
        if self._awaiting:  # in the caller's own task (rule 1), which cannot be two
            raise RuntimeError(_AWAITED_TWICE)
        self._awaiting = True
        try:
            host = await current_host()
            self._awaited = await host.enter(_captured, self._drive, host, None)
        finally:
            self._awaiting = False
        return _unpacked(self._awaited)

    async def background(self) -> _Background:
        """Return the run, started if it was not."""
        self._used = True
        if self._background is None:
            if self._awaited is not None:
                raise RuntimeError("this run has been awaited; its outcomes are over. Start another one")
            if self._awaiting:
                raise RuntimeError(_AWAITED_TWICE)
            event_stream = EventStream(OUTCOME_BUFFER, started=self._started, tools=self._tools, chunks=self._chunks)
            self._background = _Background(await current_host(), self._drive, event_stream)
        return self._background

    def request_events(self, *, started: bool = False, tools: bool = False) -> None:
        """Request step starts and tool calls, before the run begins."""
        if self._background is not None:
            raise RuntimeError("this run has begun: ask run_async for started=True and tools=True")
        self._started, self._tools = self._started or started, self._tools or tools

    def show_chunks(self, chunks: ShownChunks) -> None:
        """Select the chunks to show, before the run begins."""
        if self._background is not None:
            raise RuntimeError("this run has started: select chunks by run_async(chunks=…)")
        self._chunks = chunks

    if not TYPE_CHECKING:  # or type checkers would believe in every name

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(self._why_not(name))

    def _why_not(self, name: str) -> str:
        if not hasattr(PipelineResult, name):
            return f"{type(self).__name__!r} object has no attribute {name!r}"
        self._used = True  # one complaint is enough
        return f"a run has no {name!r} before it has ended: await it first, as in `(await flujo.run_async(…)).{name}`"

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                "a run was never started: await, iterate or enter the handle of `run_async` or `resume_async`",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


class OutcomeIterator:
    """Live outcomes of one run; dropping it cancels the run."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle
        self._background: _Background | None = None

    def __aiter__(self) -> OutcomeIterator:
        return self

    async def __anext__(self) -> StepOutcome:
        background = self._background or await self._started()
        return background.next_nowait() if background.ready else await self._awaited(background)

    async def _started(self) -> _Background:
        self._background = await self._handle.background()
        return self._background

    async def _awaited(self, background: _Background) -> StepOutcome:
        try:
            return await background.next()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        except asyncio_cancellation():  # it may come while an outcome is in transit, which is then lost
            await background.end()
            raise

    async def aclose(self) -> None:
        """End the run and wait for its cleanup."""
        if self._background is not None:
            await self._background.end()

    def __del__(self) -> None:
        if self._background is not None:
            self._background.abandon()


class _Background:
    """A run in a trio task of its own."""

    def __init__(self, host: Host, drive: Drive, event_stream: EventStream) -> None:
        self.host = host
        self._drive = drive
        self._event_stream = event_stream
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._result: Value[PipelineResult] | Error | None = None
        self._told = False
        # A reader that requested more than outcomes knows the other types.
        self._told_to = cast("Mailbox[StepOutcome]", event_stream)
        self.ready = event_stream.queued
        """The outcomes that wait already."""
        self.next_nowait = self._told_to.get_nowait
        """Return a buffered outcome, without crossing to another library.

        The run cannot continue before its reader yields, so at most a buffer of them is returned in a row.
        """
        host.spawn(self._run)

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        try:
            with self._scope:
                self._result = await _captured(self._drive, self.host, self._event_stream)
        finally:
            self._event_stream.close()
            self._ended.set()

    async def next(self) -> StepOutcome:
        """Return the next outcome; raise `EndOfChannel` or the run's error."""
        try:
            return await self.host.receive(self._told_to)
        except trio.EndOfChannel:
            self.raise_unreported(again=True)
            raise
        except trio.Cancelled:
            await self.stop()
            raise

    async def result(self) -> PipelineResult:
        """Wait for the end, discarding unread outcomes."""
        try:
            async for _ in self._event_stream:
                pass
            await self._ended.wait()
        except trio.Cancelled:
            await self.stop()
            raise
        if self._result is None:
            raise RuntimeError("the run was ended before it had a result")
        self._told = True
        return _unpacked(self._result)

    def raise_unreported(self, *, again: bool = False) -> None:
        """Raise the run's error, unless it was raised already and not `again`."""
        if isinstance(self._result, Error) and (again or not self._told):
            self._told = True
            raise self._result.error from None

    async def end(self) -> None:
        """Stop the run from the host, unless it has ended."""
        if not self._ended.is_set():
            await self.host.enter(self.stop)

    async def stop(self) -> None:
        """Cancel the run and wait for its cleanup."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    def abandon(self) -> None:
        """Cancel the run without waiting; callable from anywhere, also the garbage collector."""
        if self._token is None or self._ended.is_set():
            self._scope.cancel()
            return
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)


async def _captured(drive: Drive, host: Host, event_stream: EventStream | None) -> Value[PipelineResult] | Error:
    try:
        return Value(await drive(host, event_stream))
    except trio.Cancelled:
        raise
    except BaseException as error:  # passed to the run's reader
        return Error(error)


def _unpacked(got: Value[PipelineResult] | Error) -> PipelineResult:
    """Return or raise the result; unlike `unwrap`, repeatable."""
    if isinstance(got, Error):
        raise got.error
    return got.value


class RunStart:
    """Start of one run on a host; smaller than a partial."""

    __slots__ = ("_context", "_data", "_flujo", "_labels", "_run_id")

    def __init__(self, flujo: Any, data: object, run_id: RunId, context: object, labels: Labels) -> None:
        self._flujo, self._data, self._run_id, self._context, self._labels = flujo, data, run_id, context, labels

    def __call__(self, host: Host, event_stream: EventStream | None) -> Awaitable[PipelineResult]:
        started: Awaitable[PipelineResult] = self._flujo._run_new(
            self._data, self._run_id, self._context, self._labels, host, event_stream
        )
        return started
