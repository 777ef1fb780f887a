"""Engine on DBOS queues in the store's Postgres (extra `dbos`).

Rules:

1. A ticket is one workflow without steps, identified by its run, so that a run is queued at most once. It is submitted
   by DBOS's database function: many in one statement, in any transaction.
2. DBOS runs in a sidecar process next to the worker: it is one global per process.
3. DBOS polls for tickets ten times a second, and does not notice a dead worker. Its tickets are deleted and
   submitted again on the next request.
4. An executed workflow is deleted: the result is in the store.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from dbos import DBOS, DBOSClient
from psycopg import sql

from ..engine_port import ExecuteTicket, Ticket
from ..sidecar_process import SidecarGone, serve_in_sidecar
from .dbos_sidecar import APPLICATION, VERSION, WORKFLOW

_PREPARE_LOCK = 4_935_112_608_004
"""Advisory lock that serializes table creation."""

_LOOK_S = 0.1
"""Poll interval for the process that creates the tables."""

_PREFIX = "flujo:"
"""Prefix that separates our queues from those of the application."""

_HAND_IN = """
SELECT {schema}.enqueue_workflow(
    workflow_name => %(workflow)s, queue_name => queue, positional_args => ARRAY[to_json(run), to_json(queue)],
    app_version => %(version)s, deduplication_id => run, priority => priority, delay_until_epoch_ms => at,
    application_name => %(application)s)
FROM unnest(%(runs)s::text[], %(queues)s::text[], %(priorities)s::int4[], %(at)s::int8[]) AS t(run, queue, priority, at)
WHERE NOT EXISTS (
    SELECT FROM {schema}.workflow_status AS w WHERE w.queue_name = queue AND w.deduplication_id = run)
"""

_FIND = "SELECT workflow_uuid FROM {schema}.workflow_status WHERE deduplication_id = ANY(%s) AND status = ANY(%s)"

_LOWEST = 1_000_000
"""DBOS priority of our 0; lower numbers go first there."""

logger = logging.getLogger("flujo_actors")


class DbosEngine:
    """DBOS queues in a Postgres database; see the module's rules."""

    def __init__(self, url: str, *, polling_s: float = 0.1, start_s: float = 30.0, retry_s: float = 1.0) -> None:
        self._url, self._polling_s, self._start_s, self._retry_s = url, polling_s, start_s, retry_s
        self._schema = ""

    def prepare(self) -> None:
        schema = self._known_schema()
        with psycopg.connect(self._url, autocommit=True) as db:
            self._wait_for_turn(db)
            DBOS.migrate(_for_sqlalchemy(self._url), schema=schema)

    def _wait_for_turn(self, db: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Wait for the creator of indexes, which waits for other statements."""
        late = time.monotonic() + self._start_s
        while db.execute("SELECT pg_try_advisory_lock(%s)", (_PREPARE_LOCK,)).fetchone() != (True,):
            if time.monotonic() > late:
                raise ConnectionError(f"another process makes the tables of DBOS, for more than {self._start_s:g} s")
            time.sleep(_LOOK_S)

    def submit(self, tickets: Sequence[Ticket], connection: Any = None) -> None:
        if connection is not None:
            self._enqueue(connection, tickets)
        elif tickets:
            self._defer(tickets)

    def again(self, tickets: Sequence[Ticket]) -> None:
        if tickets:
            self._delete([ticket.run_id for ticket in tickets], ["PENDING"])
            self._defer(tickets)

    def withdraw(self, run_ids: Sequence[str]) -> None:
        if run_ids:
            self._delete(run_ids, ["ENQUEUED", "DELAYED", "PENDING"])

    def _defer(self, tickets: Sequence[Ticket]) -> None:
        """Submit all at once, or one by one after a conflict."""
        with self._connection() as db:
            try:
                self._enqueue(db, tickets)
            except psycopg.errors.UniqueViolation:
                for ticket in tickets:
                    with contextlib.suppress(psycopg.errors.UniqueViolation):
                        self._enqueue(db, [ticket])

    def _enqueue(self, db: Any, tickets: Sequence[Ticket]) -> None:
        known = {_name(ticket.run_id): ticket for ticket in tickets}
        given = {
            "workflow": WORKFLOW,
            "version": VERSION,
            "application": APPLICATION,
            "runs": list(known),
            "queues": [_PREFIX + ticket.queue for ticket in known.values()],
            "priorities": [max(1, _LOWEST - ticket.priority) for ticket in known.values()],
            "at": [None if ticket.not_before is None else int(ticket.not_before * 1000) for ticket in known.values()],
        }
        db.execute(self._statement(_HAND_IN), given)

    def _delete(self, run_ids: Sequence[str], statuses: list[str]) -> None:
        with self._connection() as db:
            found = db.execute(self._statement(_FIND), ([_name(run_id) for run_id in run_ids], statuses)).fetchall()
        if found:
            with self._client() as client:
                client.delete_workflows([workflow for (workflow,) in found])

    # --- the database ---

    def _statement(self, text: Any) -> sql.Composed:
        return sql.SQL(text).format(schema=sql.Identifier(self._known_schema()))

    def _known_schema(self) -> str:
        """Return the schema of DBOS's tables, next to the store's."""
        if not self._schema:
            with psycopg.connect(self._url) as db:
                [(ours,)] = db.execute("SELECT current_schema()").fetchall()
            self._schema = "dbos" if ours == "public" else f"{ours[:50]}_dbos"
        return self._schema

    def _connection(self) -> psycopg.Connection[Any]:
        """Open a connection for one submit of many tickets."""
        return psycopg.connect(self._url, autocommit=True, application_name="flujo dbos")

    @contextlib.contextmanager
    def _client(self) -> Iterator[DBOSClient]:
        client = DBOSClient(
            system_database_url=_for_sqlalchemy(self._url),
            dbos_system_schema=self._known_schema(),
            application_name=APPLICATION,
            retry_connection_errors=False,
        )
        try:
            yield client
        finally:
            client.destroy()

    # --- the worker's side ---

    def serve(self, queues: Sequence[str], slots: int, play: ExecuteTicket, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                config = {
                    "url": _for_sqlalchemy(self._url),
                    "schema": self._known_schema(),
                    "queues": [_PREFIX + queue for queue in queues],
                    "slots": slots,
                    "polling_s": self._polling_s,
                }
                left = serve_in_sidecar("contrib.dbos_sidecar", config, slots, play, stopping, start_s=self._start_s)
                self.again([Ticket(run_id=each.run_id, queue=each.queue.removeprefix(_PREFIX)) for each in left])
            except (SidecarGone, psycopg.Error) as error:
                logger.warning("the DBOS queue is out of reach (%s); trying again", type(error).__name__)
                stopping.wait(self._retry_s)


def _for_sqlalchemy(url: str) -> str:
    return "postgresql+psycopg://" + url.partition("://")[2]


def _name(run_id: str) -> str:
    """Return a run id as text for any column."""
    return json.dumps(run_id)
