"""`AsyncRunClient`: the methods of `RunClient` for event loops, on asyncio and trio.

Rules:

1. Every call runs in a thread; a client uses at most eight at a time.
2. A reader that is cancelled leaves at once. Its thread ends by itself.
3. A write that was begun is awaited, also by a caller that is cancelled, for two seconds at most.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Concatenate, ParamSpec, TypeVar

import anyio
import anyio.to_thread
from outcome import Outcome, capture

from .._core.outcomes import PipelineResult
from .._core.settings_model import Settings
from .._durable.watch_poller import RunWatch
from ..errors import StoreError
from ..stores._store_port import Store
from .client import RunClient, RunFilter, is_at_rest
from .run_info import RunsWatch

THREADS = 8
"""Maximum number of concurrent calls of one client."""

WRITE_S = 2.0
"""Time that a cancelled caller waits for its write, in seconds."""

P = ParamSpec("P")
T = TypeVar("T")

_Method = Callable[Concatenate[RunClient, P], T]
_AsyncMethod = Callable[Concatenate["AsyncRunClient", P], Awaitable[T]]
_Declared = Callable[["AsyncRunClient"], None]


def _reading(method: _Method[P, T]) -> Callable[[_Declared], _AsyncMethod[P, T]]:
    """Declare the awaitable form of a method that only reads."""

    @functools.wraps(method)
    async def call(client: AsyncRunClient, /, *given: P.args, **named: P.kwargs) -> T:
        return await client._read(functools.partial(method, client._client, *given, **named))

    return lambda _: call


def _writing(method: _Method[P, T]) -> Callable[[_Declared], _AsyncMethod[P, T]]:
    """Declare the awaitable form of a method that writes."""

    @functools.wraps(method)
    async def call(client: AsyncRunClient, /, *given: P.args, **named: P.kwargs) -> T:
        return await client._write(functools.partial(method, client._client, *given, **named))

    return lambda _: call


class AsyncRunClient:
    """Runs of a store for event loops: `RunClient` as async methods.

    It belongs to one event loop. A cancelled reader leaves at once; a write that was begun is awaited.

    Args:
        store: a store or its URL.
        settings: settings of telemetry, for `send`.

    Raises:
        StoreVersionError: the schema of the database is of another release.

    Example:
        ```python
        async def main():
            async with AsyncRunClient("sqlite:///runs.db") as client:
                return await client.list(limit=10)

        assert trio.run(main) == []
        ```
    """

    def __init__(self, store: Store | str, *, settings: Settings | Mapping[str, object] | None = None) -> None:
        self._client = RunClient(store, settings=settings)
        self._limiter: anyio.CapacityLimiter | None = None
        self._closed = False

    async def __aenter__(self) -> AsyncRunClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Refuse further calls; the store stays open for others."""
        self._closed = True

    @_reading(RunClient.list)
    def list(self) -> None: ...

    @_reading(RunClient.get)
    def get(self) -> None: ...

    @_reading(RunClient.evaluation)
    def evaluation(self) -> None: ...

    @_reading(RunClient.totals)
    def totals(self) -> None: ...

    @_reading(RunClient.queues)
    def queues(self) -> None: ...

    @_reading(RunClient.workers)
    def workers(self) -> None: ...

    @_reading(RunClient.outcomes)
    def outcomes(self) -> None: ...

    @_reading(RunClient.state)
    def state(self) -> None: ...

    @_reading(RunClient.state_at)
    def state_at(self) -> None: ...

    @_reading(RunClient.records)
    def records(self) -> None: ...

    @_reading(RunClient.record)
    def record(self) -> None: ...

    @_reading(RunClient.questions)
    def questions(self) -> None: ...

    @_reading(RunClient.prompts)
    def prompts(self) -> None: ...

    @_reading(RunClient.webhooks)
    def webhooks(self) -> None: ...

    @_reading(RunClient.schema_of)
    def schema_of(self) -> None: ...

    @_reading(RunClient.choices)
    def choices(self) -> None: ...

    @_reading(RunClient.beliefs)
    def beliefs(self) -> None: ...

    @_reading(RunClient.schedules)
    def schedules(self) -> None: ...

    @_reading(RunClient.schedule)
    def schedule(self) -> None: ...

    @_reading(RunClient.rates)
    def rates(self) -> None: ...

    @_reading(RunClient.budgets)
    def budgets(self) -> None: ...

    @_writing(RunClient.clear_cache)
    def clear_cache(self) -> None: ...

    @_writing(RunClient.pause_schedule)
    def pause_schedule(self) -> None: ...

    @_writing(RunClient.resume_schedule)
    def resume_schedule(self) -> None: ...

    @_writing(RunClient.delete_schedule)
    def delete_schedule(self) -> None: ...

    @_writing(RunClient.trigger)
    def trigger(self) -> None: ...

    @_writing(RunClient.backfill)
    def backfill(self) -> None: ...

    @_writing(RunClient.answer)
    def answer(self) -> None: ...

    @_writing(RunClient.retry_webhooks)
    def retry_webhooks(self) -> None: ...

    @_writing(RunClient.reward)
    def reward(self) -> None: ...

    @_writing(RunClient.expire)
    def expire(self) -> None: ...

    @_writing(RunClient.send)
    def send(self) -> None: ...

    @_writing(RunClient.steer)
    def steer(self) -> None: ...

    @_reading(RunClient.events)
    def events(self) -> None: ...

    @_reading(RunClient.waits)
    def waits(self) -> None: ...

    @_writing(RunClient.wake)
    def wake(self) -> None: ...

    @_writing(RunClient.cancel)
    def cancel(self) -> None: ...

    @_writing(RunClient.retry)
    def retry(self) -> None: ...

    @_writing(RunClient.set_labels)
    def set_labels(self) -> None: ...

    @_writing(RunClient.bulk_cancel)
    def bulk_cancel(self) -> None: ...

    @_writing(RunClient.bulk_retry)
    def bulk_retry(self) -> None: ...

    @_writing(RunClient.bulk_delete)
    def bulk_delete(self) -> None: ...

    @_writing(RunClient.bulk_answer)
    def bulk_answer(self) -> None: ...

    @_writing(RunClient.fork)
    def fork(self) -> None: ...

    @_reading(RunClient.export)
    def export(self) -> None: ...

    @_writing(RunClient.import_runs)
    def import_runs(self) -> None: ...

    @_writing(RunClient.import_run)
    def import_run(self) -> None: ...

    @_writing(RunClient.delete)
    def delete(self) -> None: ...

    @_writing(RunClient.prune)
    def prune(self) -> None: ...

    @_writing(RunClient.forget)
    def forget(self) -> None: ...

    def watch(self, run_id: str, *, after: int = 0, texts: bool = False, reconnect_s: float = 60.0) -> RunWatch:
        """Return a run's records as written: `async for record in client.watch(run_id)`.

        Args:
            run_id: id of the run.
            after: number of the record before the first one.
            texts: whether `new_texts()` returns the live text of open steps.
            reconnect_s: time of failures of the store after which its error is raised.
        """
        return self._client.watch(run_id, after=after, texts=texts, reconnect_s=reconnect_s)

    def watch_runs(self, where: RunFilter | None = None, every_s: float = 1.0) -> RunsWatch:
        """Return the changes of many runs: `async for info in client.watch_runs(where)`.

        Args:
            where: runs to watch; by default all.
            every_s: seconds between two reads of the store.
        """
        return self._client.watch_runs(where, every_s)

    async def wait(self, run_id: str, timeout: float | None = None) -> PipelineResult:
        """Return the result of an ended or paused run, without a thread.

        `TimeoutError` after so many seconds, with the run as `info`; `RunNotFound` without such a run.

        Args:
            run_id: id of the run.
            timeout: most seconds to wait; `None` waits without a limit.
        """
        with anyio.move_on_after(timeout):
            await self._until_rest(run_id)
            return await self._read(functools.partial(self._client.wait, run_id))
        raise await self._read(functools.partial(self._client.not_ended, run_id, timeout))

    async def _until_rest(self, run_id: str) -> None:
        watch = self._client.watch(run_id, reconnect_s=0.0)
        try:
            while await watch.next_batch() is not None:
                if watch.run is not None and is_at_rest(watch.run):
                    return
        finally:
            watch.close()

    async def _read(self, call: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads())

    async def _write(self, call: Callable[[], T]) -> T:
        got: list[Outcome[T]] = []
        done = anyio.Event()
        scope = anyio.CancelScope(shield=True)

        async def write() -> None:
            with scope:
                alone = anyio.CapacityLimiter(1)
                got.append(await anyio.to_thread.run_sync(capture, call, abandon_on_cancel=True, limiter=alone))
            done.set()

        async with self._threads(), anyio.create_task_group() as group:
            group.start_soon(write)
            try:
                await done.wait()
            except anyio.get_cancelled_exc_class():
                scope.deadline = anyio.current_time() + WRITE_S
                raise
        return got[0].unwrap()

    def _threads(self) -> anyio.CapacityLimiter:
        if self._closed:
            raise StoreError("this AsyncRunClient is closed")
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(THREADS)
        return self._limiter
