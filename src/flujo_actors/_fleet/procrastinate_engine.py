"""Tickets as jobs of procrastinate: a queue in the store's own Postgres, woken by NOTIFY. Needs the extra `fleet`.

Rules:

1. A ticket is one job of the task `flujo.play`; its queueing lock is the run, so a run waits in the queue at most once.
2. A job that was played is deleted: the store says what became of it.
3. The library's worker ends when the database goes away; this one comes back with it.
4. Jobs of dead workers are known by their heartbeats, and are put back into the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import procrastinate
import psycopg
from procrastinate.exceptions import AlreadyEnqueued, ProcrastinateException
from procrastinate.jobs import Job
from procrastinate.schema import SchemaManager
from procrastinate.worker import Worker
from psycopg_pool import AsyncConnectionPool

from .port import Play, Ticket

TASK = "flujo.play"

_PREPARE_LOCK = 4_935_112_608_003
"""Names the advisory lock under which one process at a time makes the tables."""

_WAITING = "SELECT id FROM procrastinate_jobs WHERE status = 'todo' AND queueing_lock = ANY(%(locks)s)"

logger = logging.getLogger("flujo_actors")


class ProcrastinateEngine:
    """A job queue in a Postgres database; see the module's rules."""

    def __init__(
        self,
        url: str,
        *,
        heartbeat_s: float = 1.0,
        stalled_s: float = 5.0,
        polling_s: float = 5.0,
        retry_s: float = 1.0,
    ) -> None:
        self._url = url
        self._heartbeat_s, self._stalled_s = heartbeat_s, stalled_s
        self._polling_s, self._retry_s = polling_s, retry_s
        self._app: procrastinate.App | None = None
        self._lock = threading.Lock()

    def lives_in(self, url: str | None) -> bool:
        """Whether tickets can be part of a transaction of the database there."""
        return url == self._url

    def prepare(self) -> None:
        with psycopg.connect(self._url) as db:
            db.execute("SELECT pg_advisory_xact_lock(%s)", (_PREPARE_LOCK,))
            [(there,)] = db.execute("SELECT to_regclass('procrastinate_jobs')").fetchall()
            if there is None:
                db.execute(SchemaManager.get_schema())

    def submit(self, tickets: Sequence[Ticket], connection: object = None) -> None:
        if connection is not None:
            self._manager().batch_defer_jobs([_job(ticket) for ticket in tickets], connection=connection)
        elif tickets:
            self._defer(tickets)

    def again(self, tickets: Sequence[Ticket]) -> None:
        if tickets:
            self._defer(tickets)

    def withdraw(self, run_ids: Sequence[str]) -> None:
        manager = self._manager()
        locks = [_name(run_id) for run_id in run_ids]
        connector = manager.connector.get_sync_connector()
        for row in connector.execute_query_all(_WAITING, locks=locks):
            manager.cancel_job_by_id(row["id"], delete_job=True)

    def _defer(self, tickets: Sequence[Ticket]) -> None:
        """All at once; one by one if one of them waits already, since that refuses them all."""
        manager = self._manager()
        jobs = [_job(ticket) for ticket in tickets]
        try:
            manager.batch_defer_jobs(jobs)
        except AlreadyEnqueued:
            for job in jobs:
                with contextlib.suppress(AlreadyEnqueued):
                    manager.defer_job(job)

    def _manager(self) -> Any:
        with self._lock:
            if self._app is None:
                self._app = _opened(self._url)
                weakref.finalize(self, self._app.close)
            return self._app.job_manager

    # --- the worker's side ---

    def serve(self, queues: Sequence[str], slots: int, play: Play, stopping: threading.Event) -> None:
        with ThreadPoolExecutor(slots, thread_name_prefix="flujo-play") as threads:
            while not stopping.is_set():
                try:
                    asyncio.run(self._serve(queues, slots, play, stopping, threads))
                except (ProcrastinateException, psycopg.Error, OSError) as error:
                    logger.warning("the queue is out of reach (%s); trying again", type(error).__name__)
                stopping.wait(self._retry_s)

    async def _serve(
        self, queues: Sequence[str], slots: int, play: Play, stopping: threading.Event, threads: ThreadPoolExecutor
    ) -> None:
        connector = _Connector(conninfo=self._url, min_size=1, max_size=4, pool_factory=_pool)
        app = procrastinate.App(connector=connector)

        @app.task(name=TASK)
        async def played(run: str, **_: object) -> None:
            await asyncio.get_running_loop().run_in_executor(threads, play, json.loads(run))

        async with app.open_async():
            worker = connector.worker = _Worker(
                app,
                queues=list(queues),
                concurrency=slots,
                install_signal_handlers=False,
                delete_jobs="always",
                fetch_job_polling_interval=self._polling_s,
                update_heartbeat_interval=self._heartbeat_s,
                stalled_worker_timeout=self._stalled_s,
            )
            beside = [asyncio.create_task(_stop(worker, stopping)), asyncio.create_task(self._put_back(app, queues))]
            try:
                await worker.run()  # type: ignore[no-untyped-call]
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)

    async def _put_back(self, app: procrastinate.App, queues: Sequence[str]) -> None:
        """Deliver again what dead workers took: the library knows them, and leaves the rest to its users."""
        while True:
            await asyncio.sleep(self._stalled_s / 2)
            for queue in queues:
                with contextlib.suppress(ProcrastinateException):  # another worker was faster, or the database is away
                    stalled = await app.job_manager.get_stalled_jobs(
                        queue=queue, task_name=TASK, seconds_since_heartbeat=self._stalled_s
                    )
                    for job in stalled:
                        await _retried(app, job)


class _Worker(Worker):
    """The library's, which forgets notices that come while it fetches a job: it would find that job by polling."""

    _notices = 0

    def noticed(self) -> None:
        """There may be something to fetch."""
        self._notices += 1
        self._new_job_event.set()

    async def _handle_notification(self, **told: Any) -> None:
        self._notices += 1
        await super()._handle_notification(**told)

    async def _fetch_and_process_jobs(self) -> None:
        known = -1
        while known != self._notices and not self._stop_event.is_set():
            known = self._notices
            await super()._fetch_and_process_jobs()  # type: ignore[no-untyped-call]


class _Connector(procrastinate.PsycopgConnector):
    """The library's, which tells its worker when it listens: what came before that was not heard."""

    worker: _Worker | None = None

    async def _loop_notify(self, **options: Any) -> None:
        if self.worker is not None:
            self.worker.noticed()
        await super()._loop_notify(**options)


def _pool(**options: Any) -> AsyncConnectionPool:
    """Connections that are not asked each time whether they live: a worker that meets a dead one comes back."""
    return AsyncConnectionPool(**{**options, "check": None})


async def _retried(app: procrastinate.App, job: Job) -> None:
    """Put a job back, or drop it if its run waits in the queue anyway."""
    try:
        await app.job_manager.retry_job(job)
    except ProcrastinateException:
        assert job.id is not None
        await app.job_manager.finish_job_by_id_async(
            job_id=job.id, status=procrastinate.jobs.Status.FAILED, delete_job=True
        )


async def _stop(worker: Worker, stopping: threading.Event) -> None:
    """A look ten times a second costs less than a thread that waits, which nothing could end."""
    while not stopping.is_set():  # noqa: ASYNC110 (it is set by threads that do not know this loop)
        await asyncio.sleep(0.1)
    worker.stop()  # type: ignore[no-untyped-call]


def _opened(url: str) -> procrastinate.App:
    connector = procrastinate.SyncPsycopgConnector(conninfo=url, min_size=0, max_size=4, timeout=30.0)
    app = procrastinate.App(connector=connector)
    app.open()
    return app


def _job(ticket: Ticket) -> Job:
    at = ticket.not_before
    arguments: dict[str, Any] = {"run": _name(ticket.run_id), **({"trace": dict(ticket.trace)} if ticket.trace else {})}
    return Job(
        queue=ticket.queue,
        lock=None,
        queueing_lock=_name(ticket.run_id),
        task_name=TASK,
        task_kwargs=cast(Any, arguments),
        priority=ticket.priority,
        scheduled_at=None if at is None else datetime.datetime.fromtimestamp(at, datetime.UTC),
    )


def _name(run_id: str) -> str:
    """A run's id as text that every column takes: ids may hold any character."""
    return json.dumps(run_id)
