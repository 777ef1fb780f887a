"""Engine on procrastinate: a queue in the store's Postgres, with NOTIFY.

Needs the extra `fleet`.

Rules:

1. A ticket is one job of the task `flujo.play`; its queueing lock is the run, so a run is queued at most once.
2. Tickets are fetched in batches, as many as the worker has free slots, and deleted by the fetch: the run is in the
   store. A ticket that is lost with its worker costs time, and no run: workers poll the store, too.
3. A worker has one connection, in one thread, which listens and fetches. It reconnects when the database goes away.
4. Before it waits, a worker looks once more at a queue that had more tickets than it fetched.
5. A notice reaches all workers of a queue, and its number selects one of them, which looks at once, or 5 ms after its
   last look. Successive numbers select the same worker: it fetches and claims them together. The others look a moment
   later, together for all notices of that time. So the cost of a ticket does not grow with the number of workers.
6. Jobs of dead workers of former versions, which fetched without deleting, are put back into the queue.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import logging
import math
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, LiteralString, cast

import procrastinate
import psycopg
from procrastinate.exceptions import AlreadyEnqueued
from procrastinate.jobs import Job
from procrastinate.schema import SchemaManager
from psycopg import sql

from ..errors import StoreError
from ..stores.postgres._session import PostgresSession
from .engine_port import ExecuteTicket, Ticket, run_named

TASK = "flujo.play"

_PREPARE_LOCK = 4_935_112_608_003
"""Advisory lock that serializes table creation."""

_NO_TABLES = (
    "the tables of engine 'postgres' do not exist, and this role may not create them ({}): run "
    "`flujo-actors store migrate --engine postgres --store URL` with the URL of the owner"
)

_CHANNEL = "procrastinate_queue_v1#"
"""Start of the channel of a queue."""

_STOP_POLL_S = 0.2
"""Polling interval of the worker's stop."""

_TOGETHER_S = 0.005
"""Shortest interval of looks after notices, in which tickets gather."""

_SUCCESSIVE = 4
"""Number of successive tickets that select the same worker."""

_OTHERS_S = 0.05
"""Delay of a look after a notice for another worker."""

_PEERS_S = 1.0
"""Time for which the workers of a queue are remembered."""

_SILENT_S = 30.0
"""Time for an answer of the server."""

_WAITING: LiteralString = "SELECT id FROM procrastinate_jobs WHERE status = 'todo' AND queueing_lock = ANY(%(locks)s)"

_FETCH: LiteralString = """
    DELETE FROM procrastinate_jobs WHERE id = ANY(ARRAY(
        SELECT id FROM procrastinate_jobs
        WHERE status = 'todo' AND task_name = %(task)s AND queue_name = ANY(%(queues)s)
          AND (scheduled_at IS NULL OR scheduled_at <= now())
        ORDER BY priority DESC, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
    RETURNING args"""

_REQUEUE: LiteralString = """
    WITH lost AS (
        DELETE FROM procrastinate_jobs j
        WHERE status = 'doing' AND task_name = %(task)s AND queue_name = ANY(%(queues)s) AND NOT EXISTS (
            SELECT 1 FROM procrastinate_workers w
            WHERE w.id = j.worker_id AND last_heartbeat > now() - make_interval(secs => %(stalled_s)s))
        RETURNING queue_name, task_name, priority, queueing_lock, args)
    INSERT INTO procrastinate_jobs (queue_name, task_name, priority, queueing_lock, args)
    SELECT * FROM lost ON CONFLICT DO NOTHING"""

_PEERS: LiteralString = """
    SELECT pid, application_name FROM pg_stat_activity
    WHERE datname = current_database() AND starts_with(application_name, %s)"""

logger = logging.getLogger("flujo_actors")


class ProcrastinateEngine:
    """A job queue in a Postgres database; see the module's rules."""

    def __init__(
        self,
        url: str,
        *,
        stalled_s: float = 5.0,
        polling_s: float = 5.0,
        retry_s: float = 1.0,
    ) -> None:
        self._url = url
        self._stalled_s, self._polling_s, self._retry_s = stalled_s, polling_s, retry_s
        self._app: procrastinate.App | None = None
        self._lock = threading.Lock()

    def lives_in(self, url: str | None) -> bool:
        """Return whether tickets can join a transaction of that database."""
        return url == self._url

    def prepare(self) -> None:
        with psycopg.connect(self._url) as db:
            db.execute("SELECT pg_advisory_xact_lock(%s)", (_PREPARE_LOCK,))
            [(there,)] = db.execute("SELECT to_regclass('procrastinate_jobs')").fetchall()
            if there is not None:
                return
            try:
                db.execute(SchemaManager.get_schema())
            except psycopg.errors.InsufficientPrivilege as error:
                raise StoreError(_NO_TABLES.format(str(error).strip())) from error

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
        """Submit all at once, or one by one if some are queued."""
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

    def serve(self, queues: Sequence[str], slots: int, play: ExecuteTicket, stopping: threading.Event) -> None:
        with _Deliveries(slots, play) as deliveries:
            while not stopping.is_set():
                try:
                    with contextlib.closing(_TicketQueue(self._url, queues, deliveries)) as tickets:
                        self._serve(tickets, stopping)
                except (psycopg.Error, OSError) as error:
                    logger.warning("the queue is out of reach (%s); trying again", type(error).__name__)
                    stopping.wait(self._retry_s)

    def _serve(self, tickets: _TicketQueue, stopping: threading.Event) -> None:
        tickets.listen()
        requeues_at = polls_at = 0.0
        while not stopping.is_set():
            now = time.monotonic()
            if now >= requeues_at:
                tickets.requeue_lost(self._stalled_s)
                requeues_at = now + self._stalled_s / 2
            if now >= polls_at:
                tickets.poll_by(now)
                polls_at = now + self._polling_s
            tickets.deliver()
            tickets.wait(min(_STOP_POLL_S, max(0.0, polls_at - time.monotonic())))


class _Deliveries:
    """Tickets that a worker executes, at most `slots` at once."""

    def __init__(self, slots: int, play: ExecuteTicket) -> None:
        self._slots, self._play = slots, play
        self._begin: Callable[[Sequence[str], Callable[[], None]], None] | None = getattr(play, "begin", None)
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="flujo-play")  # of callbacks that block
        self._lock, self._busy = threading.Lock(), 0
        self.freed: Callable[[], object] = lambda: None
        """Called when the first of all slots is free again, in any thread."""

    def __enter__(self) -> _Deliveries:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()

    @property
    def free(self) -> int:
        """Return the number of further tickets that can be delivered."""
        return self._slots - self._busy

    def add(self, run_ids: Sequence[str]) -> None:
        """Deliver tickets without waiting for their ends."""
        with self._lock:
            self._busy += len(run_ids)
        if self._begin is not None:
            self._begin(run_ids, self._done)
        else:
            for run_id in run_ids:
                self._threads.submit(self._execute, run_id)

    def _execute(self, run_id: str) -> None:
        try:
            self._play(run_id)
        finally:
            self._done()

    def _done(self) -> None:
        with self._lock:
            self._busy -= 1
            was_full = self._busy == self._slots - 1
        if was_full:  # else the next look comes by itself
            self.freed()


class _TicketQueue:
    """Connection of one worker to the queue, for one thread."""

    def __init__(self, url: str, queues: Sequence[str], deliveries: _Deliveries) -> None:
        self._queues, self._deliveries = list(queues), deliveries
        self._poll_at = 0.0
        self._looked_at = -math.inf
        self._peers: dict[str, list[int]] = {}
        """Server processes of the workers of each queue, in order."""
        self._peers_until = -math.inf
        self._db = PostgresSession.connect(url, autocommit=True, connect_timeout=10, prepare_threshold=1)
        self._near, self._far = socket.socketpair()
        for end in (self._near, self._far):
            end.setblocking(False)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._near, selectors.EVENT_READ)
        self._ready.register(self._db.fileno(), selectors.EVENT_READ)
        self._db.add_notify_handler(lambda notice: self._noticed(notice.channel, notice.payload))
        deliveries.freed = self._interrupt

    def close(self) -> None:
        self._deliveries.freed = lambda: None
        self._ready.close()
        self._db.close()
        for end in (self._near, self._far):
            end.close()

    def listen(self) -> None:
        """Receive notices of later tickets."""
        [(table,)] = self._query("SELECT to_regclass('procrastinate_jobs')::oid::text")
        self._group = f"flujo worker {table} "
        named = self._group + ",".join(map(_mark, self._queues))
        self._query("SELECT set_config('application_name', %s, false)", (named[:63],))
        for queue in self._queues:
            self._db.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"{_CHANNEL}{queue}")))

    def deliver(self) -> None:
        """Deliver waiting tickets to free slots, if it is time to look."""
        while self._deliveries.free > 0 and time.monotonic() >= self._poll_at:
            self._poll_at = math.inf  # a later notice sets it again
            self._looked_at = time.monotonic()
            self._find_peers()
            wanted = self._deliveries.free
            rows = self._query(_FETCH, {"queues": self._queues, "task": TASK, "limit": wanted})
            named = [run_id for (arguments,) in rows if (run_id := run_named(_run_in(arguments))) is not None]
            if named:
                self._deliveries.add(named)
            if len(rows) == wanted:
                self.poll_by(time.monotonic())

    def poll_by(self, at: float) -> None:
        """Poll the queue at that monotonic time, or before."""
        self._poll_at = min(self._poll_at, at)

    def wait(self, timeout_s: float) -> None:
        """Wait for a notice, a run's end, or a timeout."""
        if self._deliveries.free > 0:
            timeout_s = min(timeout_s, max(0.0, self._poll_at - time.monotonic()))
        ready = {key.fileobj for key, _ in self._ready.select(timeout_s)}
        if self._near in ready:
            with contextlib.suppress(OSError):
                self._near.recv(4_096)
        if self._db.fileno() in ready:
            self._db.pgconn.consume_input()
            while (notice := self._db.pgconn.notifies()) is not None:
                self._noticed(notice.relname.decode(), notice.extra.decode())

    def requeue_lost(self, stalled_s: float) -> None:
        """Put the jobs of dead workers of former versions back."""
        self._query(_REQUEUE, {"queues": self._queues, "task": TASK, "stalled_s": stalled_s})

    def _noticed(self, channel: str, payload: str) -> None:
        """Poll at once, or later if the ticket selects another worker."""
        peers = self._peers.get(channel.removeprefix(_CHANNEL), [])
        mine = len(peers) < 2 or peers[_number(payload) // _SUCCESSIVE % len(peers)] == self._db.pgconn.backend_pid
        now = time.monotonic()
        self.poll_by(max(now, self._looked_at + _TOGETHER_S) if mine else now + _OTHERS_S)

    def _find_peers(self) -> None:
        """Read the connections of each queue's workers, once a second."""
        now = time.monotonic()
        if now >= self._peers_until:
            self._peers_until = now + _PEERS_S
            rows = self._query(_PEERS, (self._group,))
            self._peers = {
                queue: sorted(pid for pid, name in rows if _mark(queue) in name.removeprefix(self._group))
                for queue in self._queues
            }

    def _query(self, statement: Any, parameters: Any = None) -> list[tuple[Any, ...]]:
        self._db.deadline = time.monotonic() + _SILENT_S
        cursor = self._db.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []

    def _interrupt(self) -> None:
        with contextlib.suppress(OSError):  # it is full, or closed
            self._far.send(b".")


def _mark(queue: str) -> str:
    """Return a short name of a queue for connection names."""
    return hashlib.sha256(queue.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _number(payload: str) -> int:
    """Return the number of a ticket in a notice."""
    return int("".join(filter(str.isdigit, payload)) or 0)


def _run_in(arguments: object) -> object:
    return arguments.get("run") if isinstance(arguments, dict) else None


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
    """Return a run id as text for any column."""
    return json.dumps(run_id)
