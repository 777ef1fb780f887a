"""Engine on standalone activities of a Temporal server (1.31 or later).

Needs the extra `temporal`.

Rules:

1. A ticket is one activity, identified by its run: a second one for the same run is the same one while it is running.
2. An activity sends heartbeats while its run is executed. One whose worker died is delivered again by the server.
3. Only names are in the server's history: no payload limit is met, and there are no workflows, so no rules of
   determinism.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.common import ActivityIDConflictPolicy, RetryPolicy
from temporalio.service import RPCError
from temporalio.worker import Worker

from ..errors import DeclarationError
from .engine_port import ExecuteTicket, Ticket, run_named

ACTIVITY = "flujo_play"

_LONGEST = datetime.timedelta(days=3650)
"""Activity timeout; leases bound the execution of a run, not the server."""

_AT_ONCE = 50
"""Number of tickets submitted concurrently."""


class TemporalEngine:
    """A Temporal server as a carrier of tickets; see the module's rules."""

    def __init__(
        self, address: str, *, namespace: str = "default", heartbeat_s: float = 3.0, prefix: str = "flujo-"
    ) -> None:
        self._address, self._namespace = address, namespace
        self._heartbeat_s, self._prefix = heartbeat_s, prefix
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    @classmethod
    def at(cls, url: str) -> TemporalEngine:
        """Return the engine behind `temporal://host:port` or `temporal://host:port/namespace`."""
        address, _, namespace = url.removeprefix("temporal://").partition("/")
        if not address:
            raise DeclarationError(f"{url!r:.100} names no Temporal server: use temporal://host:7233[/namespace]")
        return cls(address, namespace=namespace or "default")

    def prepare(self) -> None:
        self._wait(self._connected())

    def submit(self, tickets: Sequence[Ticket], connection: object = None) -> None:
        if tickets:
            self._wait(self._start(tickets))

    def again(self, tickets: Sequence[Ticket]) -> None:
        self.submit(tickets)  # a running activity is not replaced

    def withdraw(self, run_ids: Sequence[str]) -> None:
        pass  # a ticket too many finds its run ended, or at rest

    def _wait(self, work: Any) -> object:
        """Run a coroutine on the engine's process-wide loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True, name="flujo-temporal").start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = await Client.connect(self._address, namespace=self._namespace)
        return self._client

    async def _start(self, tickets: Sequence[Ticket]) -> None:
        client, at_once = await self._connected(), asyncio.Semaphore(_AT_ONCE)

        async def start(ticket: Ticket) -> None:
            async with at_once:
                await client.start_activity(
                    ACTIVITY,
                    _name(ticket.run_id),
                    id=self._prefix + _name(ticket.run_id),
                    task_queue=self._prefix + ticket.queue,
                    id_conflict_policy=ActivityIDConflictPolicy.USE_EXISTING,
                    start_to_close_timeout=_LONGEST,
                    heartbeat_timeout=datetime.timedelta(seconds=self._heartbeat_s),
                    retry_policy=RetryPolicy(maximum_interval=datetime.timedelta(seconds=5)),
                )

        await asyncio.gather(*map(start, tickets))

    # --- the worker's side ---

    def serve(self, queues: Sequence[str], slots: int, play: ExecuteTicket, stopping: threading.Event) -> None:
        with ThreadPoolExecutor(slots, thread_name_prefix="flujo-play") as threads:
            while not stopping.is_set():
                try:
                    asyncio.run(self._serve(queues, slots, play, stopping, threads))
                except (RPCError, RuntimeError, OSError):  # the server is away
                    stopping.wait(1.0)

    async def _serve(
        self,
        queues: Sequence[str],
        slots: int,
        play: ExecuteTicket,
        stopping: threading.Event,
        threads: ThreadPoolExecutor,
    ) -> None:
        client = await Client.connect(self._address, namespace=self._namespace)
        workers = [
            Worker(
                client,
                task_queue=self._prefix + queue,
                activities=[self._activity(play, threads)],
                max_concurrent_activities=slots,
                graceful_shutdown_timeout=_LONGEST,
            )
            for queue in queues
        ]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        while not stopping.is_set() and not any(task.done() for task in running):  # noqa: ASYNC110 (set by a thread)
            await asyncio.sleep(0.1)
        await asyncio.gather(*(worker.shutdown() for worker in workers))
        await asyncio.gather(*running)

    def _activity(self, play: ExecuteTicket, threads: ThreadPoolExecutor) -> Any:
        @activity.defn(name=ACTIVITY)
        async def flujo_play(run: str) -> None:
            named = run_named(run)
            if named is None:
                return
            done = asyncio.get_running_loop().run_in_executor(threads, play, named)
            while not (await asyncio.wait([done], timeout=self._heartbeat_s / 3))[0]:
                activity.heartbeat()
            done.result()

        return flujo_play


def _name(run_id: str) -> str:
    """Return a run id as text for the server."""
    return json.dumps(run_id)
