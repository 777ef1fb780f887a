"""Deletion of runs, duties, outbox and disk space of a Postgres store."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, LiteralString

from ..._core.attempt_results import ConversationMoved
from ..._core.outcomes import RunId
from ..._core.records.records import RECORD_VERSION, Append, OutboxMessage, OutboxStatus
from .._record_rows import add_messages_to, outbox_message, restored, settled_status, storable
from .._store_status import Migration, StoreStatus, TableSize, name_of, orphan_finding, record_findings
from . import _statements as sql
from ._budgets import forget_budgets
from ._run_queries import delete_labels, hash_of
from ._schema import (
    MIGRATIONS,
    index_names,
    migrate,
    migrate_in_parts,
    migrating_alone,
    record_format,
    repeatable,
    version,
)

if TYPE_CHECKING:
    from ._connections import IsThere, PostgresConnections
    from ._session import PostgresSession

_TAKE_DUTY: LiteralString = f"""
    INSERT INTO flujo_duties AS d (name, owner, until) VALUES (%(name)s, %(owner)s, {sql.TODAY} + %(for_s)s::float8)
    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until
        WHERE d.owner = excluded.owner OR d.until <= {sql.TODAY}
    RETURNING 1"""


# --- Messages to webhooks -----------------------------------------------------------------------------------------


_MESSAGE: LiteralString = "m.id, hook, url, event, body, run_id, attempts, m.status, m.created_at, next_at, error"

_ADD_MESSAGE: LiteralString = f"""
    INSERT INTO flujo_outbox (id, run, hook, url, event, body, status, attempts, created_at, next_at)
    VALUES (%(id)s, %(run)s, %(hook)s, %(url)s, %(event)s, %(body)s, 'pending', 0, {sql.TODAY}, {sql.TODAY})"""

_CLAIM_MESSAGES: LiteralString = f"""
    WITH due AS (
        SELECT number FROM flujo_outbox
        WHERE status = 'pending' AND next_at <= {sql.TODAY} AND hook = ANY(%(hooks)s)
        ORDER BY next_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED),
    claimed AS (
        UPDATE flujo_outbox o SET owner = %(owner)s, next_at = {sql.TODAY} + %(for_s)s::float8
        FROM due WHERE o.number = due.number RETURNING o.*)
    SELECT {_MESSAGE} FROM claimed AS m JOIN flujo_runs AS r ON r.id = run ORDER BY number"""

_SETTLE_MESSAGE: LiteralString = f"""
    UPDATE flujo_outbox SET status = %(status)s, attempts = attempts + %(failed)s, error = %(error)s, owner = NULL,
                            next_at = {sql.TODAY} + %(after_s)s::float8
    WHERE id = %(id)s AND owner = %(owner)s AND status = 'pending'"""

_LIST_MESSAGES: LiteralString = f"""
    SELECT {_MESSAGE} FROM flujo_outbox AS m JOIN flujo_runs AS r ON r.id = run
    WHERE (%(status)s::text IS NULL OR m.status = %(status)s)
      AND (%(hash)s::bytea IS NULL OR run = (SELECT id FROM flujo_runs WHERE run_hash = %(hash)s))
    ORDER BY number DESC LIMIT %(limit)s"""

_RETRY_MESSAGES: LiteralString = f"""
    UPDATE flujo_outbox SET status = 'pending', attempts = 0, next_at = {sql.TODAY}
    WHERE status = 'failed' AND (%(ids)s::text[] IS NULL OR id = ANY(%(ids)s::text[])) RETURNING 1"""


def add_messages(
    db: PostgresSession, run: int, messages: Iterable[OutboxMessage], today: Mapping[str, float | None]
) -> None:
    """Write the messages of an append."""
    for each in messages:
        texts = {"id": each.id, "hook": each.hook, "url": each.url, "event": each.event}
        db.execute(_ADD_MESSAGE, {**texts, **today, "run": run, "body": storable(each.body)})


class PostgresOutbox(ABC):
    """Messages to webhooks in a Postgres store."""

    _connections: PostgresConnections

    @abstractmethod
    def _today(self) -> Mapping[str, float | None]:
        """Return the time parameters of statements."""

    def claim_messages(self, hooks: Sequence[str], *, owner: str, for_s: float, limit: int) -> list[OutboxMessage]:
        asked = {**self._today(), "hooks": list(hooks), "owner": owner, "for_s": for_s, "limit": limit}
        rows = self._connections.write(lambda db: (db.ask(_CLAIM_MESSAGES, asked), _never))
        return [outbox_message(*row) for row in rows]

    def settle_message(self, message_id: str, *, owner: str, error: str | None, after_s: float | None) -> None:
        parameters = {
            **self._today(),
            "id": message_id,
            "owner": owner,
            "status": settled_status(error, after_s),
            "failed": int(error is not None),
            "error": None if error is None else storable(error),
            "after_s": after_s,
        }
        self._connections.write(lambda db: (db.execute(_SETTLE_MESSAGE, parameters), _never))

    def messages(
        self, *, status: OutboxStatus | None = None, run_id: RunId | None = None, limit: int | None = None
    ) -> list[OutboxMessage]:
        wanted = {"status": status, "hash": None if run_id is None else hash_of(run_id), "limit": limit}
        rows = self._connections.read(lambda db: db.ask(_LIST_MESSAGES, wanted))
        return [outbox_message(*row) for row in rows]

    def retry_messages(self, message_ids: Sequence[str] | None = None) -> int:
        asked = {**self._today(), "ids": None if message_ids is None else list(message_ids)}
        return len(self._connections.write(lambda db: (db.ask(_RETRY_MESSAGES, asked), _never)))


# --- Deletion, duties and disk space -------------------------------------------------------------------------------


_NAMED = re.compile(r"\{(\w+)\}")
_TOGETHER: LiteralString = "SELECT pg_advisory_xact_lock_shared(4935112608003)"
_ALONE: LiteralString = "SELECT pg_advisory_xact_lock(4935112608003)"


def _executor(db: PostgresSession) -> Callable[[str, Mapping[str, object]], Sequence[tuple[Any, ...]]]:
    def ask(text: str, named: Mapping[str, object]) -> Sequence[tuple[Any, ...]]:
        cursor = db.execute(_NAMED.sub(r"%(\1)s", text.replace("%", "%%")).encode(), dict(named))
        db.turn()
        return cursor.fetchall() if cursor.description else []

    return ask


def refuse_moved(
    db: PostgresSession, batch: Sequence[Append], leases: Sequence[Mapping[str, object]]
) -> dict[int, ConversationMoved]:
    """Write new messages of conversations; return the conflicting appends.

    The run is locked under its lease first: an append that is written now cannot lose it.
    """
    refused: dict[int, ConversationMoved] = {}
    for place, (append, lease) in enumerate(zip(batch, leases, strict=True)):
        if append.conversation is not None and db.ask(_LOCK_LEASED, lease):
            db.execute(_TOGETHER)
            if not add_messages_to(_executor(db), append.conversation):
                refused[place] = ConversationMoved(append.conversation.row.id)
    return refused


_LOCK_LEASED: LiteralString = """
    SELECT id FROM flujo_runs
    WHERE run_hash = %(hash)s AND owner = %(owner)s::text AND epoch = %(epoch)s::bigint FOR UPDATE"""


class PostgresMaintenance(PostgresOutbox):
    """Deletion and upkeep of a Postgres store."""

    _connections: PostgresConnections
    _wall: Callable[[], float] | None

    @abstractmethod
    def _time(self) -> Mapping[str, object]:
        """Return the time parameters of deletions."""

    def conversation_sql(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the statements that read and write conversation rows."""

        def read(do: Callable[..., Any]) -> Any:
            return self._connections.read(lambda db: do(_executor(db)))

        def write(do: Callable[..., Any], *, alone: bool) -> Any:
            lock = _ALONE if alone else _TOGETHER  # a fork must not refer to entries that a deletion removes

            def locked(db: PostgresSession) -> tuple[Any, IsThere]:
                db.execute(lock)
                return do(_executor(db)), _never

            return self._connections.write(locked)

        return read, write

    def take_duty(self, name: str, *, owner: str, for_s: float) -> bool:
        wall = self._wall() if self._wall else None
        asked = {"name": storable(name), "owner": storable(owner), "for_s": for_s, "wall": wall}
        return bool(self._connections.write(lambda db: (db.ask(_TAKE_DUTY, asked), _never)))

    def delete(self, run_ids: Sequence[RunId]) -> int:
        return self.delete_sized(run_ids)[0]

    def delete_sized(self, run_ids: Sequence[RunId]) -> tuple[int, int]:
        return self._connections.write(lambda db: self._delete(db, run_ids), slow=True) if run_ids else (0, 0)

    def _delete(self, db: PostgresSession, run_ids: Sequence[RunId]) -> tuple[tuple[int, int], IsThere]:
        db.execute(sql.OWN_BLOBS)
        hashes = [hash_of(run_id) for run_id in run_ids]
        deleted = db.ask(sql.DELETE_RUNS, {**self._time(), "hashes": hashes})
        children = db.ask(sql.DELETE_CHILDREN, ([run_id for _, run_id in deleted],))
        runs = [*(run for run, _ in deleted), *(run for (run,) in children)]
        forget_budgets(db, [run_id for _, run_id in deleted])
        size = _delete_rows(db, runs)
        db.execute(sql.DROP_TEXTS, (hashes,))
        db.execute(sql.DROP_WANTED_TEXTS, (hashes,))
        return (len(deleted), size), lambda db: not db.ask(sql.FIND_KEYS, (runs,))

    def status(self) -> StoreStatus:
        with self._connections.inspecting() as db:
            return _status(db, pool_size=self._connections.pool_size)

    def check(self) -> Iterator[str]:
        with self._connections.inspecting() as db:
            if version(db):
                yield from _findings(db)

    def migration(self) -> Migration:
        with self._connections.inspecting() as db:
            return Migration(found=version(db), needed=len(MIGRATIONS), statements=repeatable(version(db)))

    def migrate_now(self) -> None:
        self._connections.may_migrate()
        with self._connections.inspecting(creates=True) as db:
            is_new = version(db) == 0
            if is_new:
                migrate(db)
        if is_new:
            return
        with self._connections.commanding() as guard, migrating_alone(guard), self._connections.commanding() as db:
            migrate_in_parts(db)

    def finalize(self) -> None:
        def write(db: PostgresSession) -> tuple[None, IsThere]:
            self._connections.refuse_former()
            db.execute("UPDATE flujo_schema SET record_format = %s", (RECORD_VERSION,))
            return None, _never

        self._connections.write(write)
        self._connections.record_format = RECORD_VERSION

    def grants(self, role: str) -> list[str]:
        """Return the statements that let a role execute runs."""
        schema = self._connections.read(lambda db: db.ask("SELECT current_schema()"))
        quoted, place = _quoted(role), _quoted(str(schema[0][0]) if schema else "public")
        return [
            f"GRANT USAGE ON SCHEMA {place} TO {quoted};",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {place} TO {quoted};",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {place} TO {quoted};",
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {place} TO {quoted};",
        ]

    def vacuum(self) -> None:
        """Make the space of deleted runs reusable now, and renew statistics."""
        with self._connections.inspecting() as db:
            is_new = version(db) == 0
        if is_new:
            return
        with self._connections.commanding() as db:  # no transaction may contain it, so each table names its schema
            place = "" if db.schema is None else f'"{db.schema}".'
            db.execute(sql.VACUUM.replace("flujo_", f"{place}flujo_").encode())


_TABLES: LiteralString = """
    SELECT relname, reltuples::bigint, pg_total_relation_size(oid) FROM pg_class
    WHERE relkind = 'r' AND relname LIKE 'flujo\\_%' AND pg_table_is_visible(oid) ORDER BY relname"""

_INDEX_STATES: LiteralString = """
    SELECT c.relname, indisvalid FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
    WHERE c.relname LIKE 'flujo\\_%' AND pg_table_is_visible(i.indrelid)"""

_WORKERS: LiteralString = f"SELECT count(*) FROM flujo_workers WHERE seen_at > {sql.WALL} - 60"

_OLDEST_OPEN: LiteralString = """
    SELECT run_id FROM flujo_runs WHERE ended_at IS NULL AND parent IS NULL ORDER BY id LIMIT 1"""

_EXACT = 100_000
"""Largest number of rows that is counted; larger ones are estimates."""

_CHECKED_RUNS: LiteralString = "SELECT id, run_id FROM flujo_runs WHERE id > %s ORDER BY id LIMIT 500"

_CHECKED_RECORDS: LiteralString = """
    SELECT seq, kind, path, body, blob, data, at, gist FROM flujo_records LEFT JOIN flujo_blobs ON hash = blob
    WHERE run = %s AND seq > %s ORDER BY seq LIMIT 200"""

_ORPHANS = "SELECT count(*) FROM {} t WHERE NOT EXISTS (SELECT 1 FROM flujo_runs r WHERE r.id = t.run)"


def _status(db: PostgresSession, *, pool_size: int) -> StoreStatus:
    found = version(db)
    states = dict(db.ask(_INDEX_STATES)) if found else {}
    return StoreStatus(
        kind="postgres",
        schema={"store": found, "code": len(MIGRATIONS)},
        record_format=record_format(db, found) if found else RECORD_VERSION,
        tables={name: _size(db, name, rows, size) for name, rows, size in db.ask(_TABLES)},
        missing_indexes=sorted(index_names() - set(states)) if found == len(MIGRATIONS) else [],
        invalid_indexes=sorted(name for name, valid in states.items() if not valid),
        workers=int(_scalar(db, _WORKERS)) if found else 0,
        pool_size=pool_size,
        oldest_open=restored(str(_scalar(db, _OLDEST_OPEN) or "")) or None if found == len(MIGRATIONS) else None,
    )


def _size(db: PostgresSession, table: str, estimate: int, size: int) -> TableSize:
    counted = f"SELECT count(*) FROM {table}".encode()
    return TableSize(rows=int(estimate if estimate > _EXACT else _scalar(db, counted)), bytes=int(size))


def _scalar(db: PostgresSession, statement: Any, *parameters: object) -> Any:
    for row in db.ask(statement, parameters or None):
        return row[0]
    return None


def _findings(db: PostgresSession) -> Iterator[str]:
    """Yield a line for each defect of a database."""
    last = 0
    while runs := db.ask(_CHECKED_RUNS, (last,)):
        for last, run_id in runs:
            yield from record_findings(name_of(run_id), _records(db, last), 0)
    for table in ("flujo_records", "flujo_pauses", "flujo_labels"):
        yield from orphan_finding(table, int(_scalar(db, _ORPHANS.format(table).encode())))


def _records(db: PostgresSession, run: int) -> Iterator[tuple[Any, ...]]:
    """Yield the record rows of a run in pages."""
    last = 0
    while rows := db.ask(_CHECKED_RECORDS, (run, last)):
        yield from rows
        last = rows[-1][0]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _delete_rows(db: PostgresSession, runs: Sequence[int]) -> int:
    """Delete the rows that belong to deleted runs; return their bytes."""
    blobs = [blob for (blob,) in db.ask(sql.BLOBS_OF_RUNS, (runs,))]
    sizes = db.ask(sql.DELETE_RECORDS, (runs,))
    db.execute(sql.DELETE_PAUSES, (runs,))
    delete_labels(db, runs)
    db.execute("DELETE FROM flujo_outbox WHERE run = ANY(%s)", (runs,))
    sizes += db.ask(sql.DELETE_UNUSED_BLOBS, (blobs,))
    return sum(int(size) for (size,) in sizes)


def _never(db: PostgresSession) -> bool:
    return False
