"""Deletion of runs, duties, outbox and disk space of a SQLite store."""

from __future__ import annotations

import json
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..._core.outcomes import RunId
from ..._core.records.records import (
    RECORD_VERSION,
    OpenPause,
    OutboxMessage,
    OutboxStatus,
    Record,
    StoredRun,
    has_ended,
)
from .. import _record_rows as refusals
from .._record_rows import as_page, outbox_message, restored, settled_status, storable
from .._store_status import Migration, StoreStatus, TableSize, name_of, orphan_finding, record_findings
from . import _statements as sql
from ._budgets import forget_budgets
from ._connections import SqliteConnections
from ._record_writes import columns_of, executor, mark_ready
from ._run_queries import delete_labels, insert_labels, owner_of, record_rows
from ._schema import MIGRATIONS, migrate, record_format, version

_TRIM_S = 0.1
"""Maximum wait of a log truncation for other connections."""

_TAKE_DUTY = """
    INSERT INTO flujo_duties (name, owner, until) VALUES (:name, :owner, :until)
    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until
        WHERE flujo_duties.owner = excluded.owner OR flujo_duties.until <= :wall
    RETURNING 1"""


# --- Messages to webhooks -----------------------------------------------------------------------------------------


_MESSAGE = "m.id, hook, url, event, body, run_id, attempts, m.status, m.created_at, next_at, error"

_CLAIM_MESSAGES = """
    UPDATE flujo_outbox SET owner = :owner, next_at = :wall + :for_s WHERE number IN (
        SELECT number FROM flujo_outbox
        WHERE status = 'pending' AND next_at <= :wall AND hook IN (SELECT value FROM json_each(:hooks))
        ORDER BY next_at LIMIT :limit)
    RETURNING number"""

_READ_MESSAGES = f"""
    SELECT {_MESSAGE} FROM flujo_outbox AS m JOIN flujo_runs AS r ON r.id = run
    WHERE number IN (SELECT value FROM json_each(?)) ORDER BY number"""

_SETTLE_MESSAGE = """
    UPDATE flujo_outbox SET status = :status, attempts = attempts + (:error IS NOT NULL), error = :error, owner = NULL,
                            next_at = :wall + :after_s
    WHERE id = :id AND owner = :owner AND status = 'pending'"""

_LIST_MESSAGES = f"""
    SELECT {_MESSAGE} FROM flujo_outbox AS m CROSS JOIN flujo_runs AS r
    WHERE r.id = run AND (:status IS NULL OR m.status = :status) AND (:run_id IS NULL OR run_id = :run_id)
    ORDER BY number DESC LIMIT :limit"""

_RETRY_MESSAGES = """
    UPDATE flujo_outbox SET status = 'pending', attempts = 0, next_at = :wall
    WHERE status = 'failed' AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))"""


class SqliteOutbox:
    """Messages to webhooks in a SQLite store."""

    _connections: SqliteConnections
    _wall: Callable[[], float]

    def claim_messages(self, hooks: Sequence[str], *, owner: str, for_s: float, limit: int) -> list[OutboxMessage]:
        asked = {"hooks": json.dumps(list(hooks)), "owner": owner, "for_s": for_s, "limit": limit}
        with self._connections.writing() as db:
            claimed = db.execute(_CLAIM_MESSAGES, {**asked, "wall": self._wall()}).fetchall()
            found = db.execute(_READ_MESSAGES, (json.dumps([number for (number,) in claimed]),))
            return [outbox_message(*row) for row in found]

    def settle_message(self, message_id: str, *, owner: str, error: str | None, after_s: float | None) -> None:
        parameters = {
            "id": message_id,
            "owner": owner,
            "status": settled_status(error, after_s),
            "error": None if error is None else storable(error),
            "after_s": after_s,
            "wall": self._wall(),
        }
        with self._connections.writing() as db:
            db.execute(_SETTLE_MESSAGE, parameters)

    def messages(
        self, *, status: OutboxStatus | None = None, run_id: RunId | None = None, limit: int | None = None
    ) -> list[OutboxMessage]:
        named = None if run_id is None else storable(run_id)
        wanted = {"status": status, "run_id": named, "limit": -1 if limit is None else limit}
        with self._connections.reading() as db:
            return [outbox_message(*row) for row in db.execute(_LIST_MESSAGES, wanted)]

    def retry_messages(self, message_ids: Sequence[str] | None = None) -> int:
        ids = None if message_ids is None else json.dumps(list(message_ids))
        with self._connections.writing() as db:
            return db.execute(_RETRY_MESSAGES, {"ids": ids, "wall": self._wall()}).rowcount


# --- Deletion, duties and disk space -------------------------------------------------------------------------------


class SqliteMaintenance(SqliteOutbox, ABC):
    """Deletion and upkeep of a SQLite store."""

    _connections: SqliteConnections
    _wall: Callable[[], float]

    @abstractmethod
    def _time(self) -> Mapping[str, object]:
        """Return the time parameters of statements."""

    @abstractmethod
    def _drop_texts(self, run_ids: Sequence[RunId]) -> None:
        """Delete the texts of runs."""

    def conversation_sql(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the statements that read and write conversation rows."""

        def read(do: Callable[..., Any]) -> Any:
            with self._connections.reading() as db:
                return do(executor(db))

        def write(do: Callable[..., Any], *, alone: bool) -> Any:
            with self._connections.writing() as db:
                return do(executor(db))

        return read, write

    def take_duty(self, name: str, *, owner: str, for_s: float) -> bool:
        wall = self._wall()
        asked = {"name": storable(name), "owner": storable(owner), "until": wall + for_s, "wall": wall}
        with self._connections.writing() as db:
            return bool(db.execute(_TAKE_DUTY, asked).fetchall())

    def delete(self, run_ids: Sequence[RunId]) -> int:
        return self.delete_sized(run_ids)[0]

    def delete_sized(self, run_ids: Sequence[RunId]) -> tuple[int, int]:
        if not run_ids:
            return 0, 0
        with self._connections.writing() as db:
            sizes = [self._delete(db, run_id) for run_id in run_ids]
        self._drop_texts(run_ids)
        return sum(runs for runs, _ in sizes), sum(size for _, size in sizes)

    def _delete(self, db: sqlite3.Connection, run_id: RunId) -> tuple[int, int]:
        deleted = db.execute(sql.DELETE_RUN, {**self._time(), "run_id": storable(run_id)}).fetchall()
        children = db.execute(sql.DELETE_CHILDREN, {"run_id": storable(run_id)}).fetchall() if deleted else []
        if deleted:
            forget_budgets(db, run_id)
        return len(deleted), sum(_delete_rows(db, run) for (run,) in (*deleted, *children))

    def status(self) -> StoreStatus:
        with self._connections.inspecting() as db:
            return _status(db, now=self._wall())

    def check(self) -> Iterator[str]:
        with self._connections.inspecting() as db:
            if version(db):
                yield from _findings(db)

    def migration(self) -> Migration:
        with self._connections.inspecting() as db:
            found = version(db)
        statements = [statement for part in MIGRATIONS[found:] for statement in part]
        return Migration(found=found, needed=len(MIGRATIONS), statements=statements)

    def migrate_now(self) -> None:
        self._connections.may_migrate()
        with self._connections.writing():
            pass

    def finalize(self) -> None:
        with self._connections.writing() as db:
            self._connections.refuse_former()
            db.execute("UPDATE flujo_schema SET record_format = ?", (RECORD_VERSION,))
        self._connections.record_format = RECORD_VERSION

    def vacuum_needs(self) -> int:
        """Return the bytes of free disk that a vacuum may need."""
        files = (self._connections.file, f"{self._connections.file}-wal")
        return 2 * sum(os.path.getsize(file) for file in files if os.path.exists(file))

    def trim(self) -> None:
        """Truncate the log, unless another connection uses it now."""
        self._connections.maintain("PRAGMA wal_checkpoint(TRUNCATE)", wait_s=_TRIM_S)

    def vacuum(self) -> None:
        """Rewrite the file without deleted pages; writers wait meanwhile."""
        self._connections.maintain("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)")


_OLDEST_OPEN = "SELECT run_id FROM flujo_runs WHERE ended_at IS NULL AND parent IS NULL ORDER BY id LIMIT 1"

_CHECKED_RECORDS = """
    SELECT seq, CAST(kind AS TEXT), CAST(path AS TEXT), body, blob, data, 0.0, NULL
    FROM flujo_records LEFT JOIN flujo_blobs ON hash = blob
    WHERE flujo_records.id > :run << 32 AND flujo_records.id < (:run + 1) << 32 ORDER BY flujo_records.id"""

_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'flujo%'"

_PAGES = """
    SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE name IN (SELECT name FROM sqlite_master WHERE tbl_name = ?)"""

_ORPHANS = "SELECT count(*) FROM {0} WHERE run NOT IN (SELECT id FROM flujo_runs)"


def _status(db: sqlite3.Connection, *, now: float) -> StoreStatus:
    found = version(db)
    names = [name for (name,) in db.execute(_TABLES)]
    return StoreStatus(
        kind="sqlite",
        schema={"store": found, "code": len(MIGRATIONS)},
        record_format=record_format(db, found) if found else RECORD_VERSION,
        tables={name: _size(db, name) for name in sorted(names)},
        missing_indexes=sorted(_indexes(_fresh()) - _indexes(db)) if found == len(MIGRATIONS) else [],
        workers=_scalar(db, "SELECT count(*) FROM flujo_workers WHERE seen_at > ?", now - 60) if found else 0,
        oldest_open=restored(_scalar(db, _OLDEST_OPEN) or "") or None if found == len(MIGRATIONS) else None,
    )


def _size(db: sqlite3.Connection, table: str) -> TableSize:
    try:
        size = _scalar(db, _PAGES, table)
    except sqlite3.OperationalError:  # SQLite without `dbstat`
        size = 0
    return TableSize(rows=_scalar(db, f"SELECT count(*) FROM {table}"), bytes=size)


def _indexes(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")}


def _fresh() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    return db


def _scalar(db: sqlite3.Connection, statement: str, *parameters: object) -> Any:
    row = db.execute(statement, parameters).fetchone()
    return None if row is None else row[0]


def _findings(db: sqlite3.Connection) -> Iterator[str]:
    """Yield a line for each defect of a file."""
    for problem, *_ in db.execute("PRAGMA quick_check"):
        if problem != "ok":
            yield f"SQLite reports: {problem}"
    for key, run_id in db.execute("SELECT id, run_id FROM flujo_runs ORDER BY id").fetchall():
        yield from record_findings(name_of(run_id), db.execute(_CHECKED_RECORDS, {"run": key}), 0)
    for table in ("flujo_records", "flujo_pauses", "flujo_labels"):
        yield from orphan_finding(table, _scalar(db, _ORPHANS.format(table)))


def _delete_rows(db: sqlite3.Connection, run: int) -> int:
    """Delete the rows that belong to a deleted run; return their bytes."""
    blobs = db.execute(sql.BLOBS_OF_RUN, {"run": run}).fetchall()
    size: int = sum(length for (length,) in db.execute(sql.DELETE_RECORDS, {"run": run}))
    db.execute(sql.DELETE_PAUSES, (run,))
    delete_labels(db, run)
    db.execute("DELETE FROM flujo_outbox WHERE run = ?", (run,))
    for (blob,) in blobs:
        size += sum(length for (length,) in db.execute(sql.DELETE_UNUSED_BLOB, {"hash": blob}).fetchall())
    return size


_PUT_RUN = """
    INSERT INTO flujo_runs (run_id, pipeline, status, created_at, updated_at, epoch, lease_boot, lease_from,
                            lease_until, records, queue, parent, tokens, cost_usd, cancel, fingerprint, started_at,
                            claimed_at, ended_at, worked_s, retries)
    VALUES (:run_id, :pipeline, :status, :created_at, :updated_at, :epoch, '', 0, 0, :records, :queue, :parent,
            :tokens, :cost_usd, :cancel, :fingerprint, :started_at, :started_at, :ended_at, :worked_s, :retries)
    ON CONFLICT (run_id) DO NOTHING"""

_PUT_RECORD = """
    INSERT INTO flujo_records (id, after_us, kind, path, body, blob, gist) VALUES (?, ?, ?, ?, ?, ?, ?)"""

_PUT_EXPIRED = f"""
    INSERT INTO flujo_pauses (run, path, token, message, body, answered) VALUES (?, '', '', '', '', {sql.EXPIRED})"""
"""A timed-out pause of a run that has not resumed since."""


_PUT_START = "UPDATE flujo_runs SET wake_at = ? WHERE id = ?"
"""Start of a delayed run."""


class SqliteTransfer:
    """Export and import of a SQLite store."""

    _connections: SqliteConnections

    def read_page(self, run_id: RunId, *, after: int, limit: int) -> list[Record]:
        with self._connections.reading() as db:
            rows = record_rows(db, run_id, after, limit=limit)
            if not rows and owner_of(db, run_id) is None:
                raise refusals.not_found(run_id)
        return as_page(run_id, rows)

    def put(self, runs: Iterable[tuple[StoredRun, Iterable[Record]]]) -> None:
        with self._connections.writing() as db:
            for run, records in runs:
                _put(db, run, records)


def _put(db: sqlite3.Connection, run: StoredRun, records: Iterable[Record]) -> None:
    added = db.execute(_PUT_RUN, _columns(run))
    if added.rowcount != 1 or added.lastrowid is None:
        raise refusals.exists(run.run_id)
    key = added.lastrowid
    for record in records:
        _put_record(db, key, run, record)
    for pause in (*run.pauses, *run.waits):
        db.execute(sql.INSERT_PAUSE, _pause_columns(key, pause))
    if run.expired:
        db.execute(_PUT_EXPIRED, (key,))
    insert_labels(db, key, run.labels)
    if run.status == "sleeping" and run.unclaimed:
        db.execute(_PUT_START, (run.wake_at, key))
    elif not has_ended(run.status):
        mark_ready(db, [key], run.updated_at)


def _columns(run: StoredRun) -> dict[str, object]:
    return {
        "run_id": storable(run.run_id),
        "pipeline": storable(run.pipeline),
        "status": run.status,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "epoch": run.epoch,
        "records": run.records,
        "queue": run.queue and storable(run.queue),
        "parent": run.parent and storable(run.parent),
        "tokens": run.tokens,
        "cost_usd": run.cost_usd,
        "cancel": run.cancel and storable(run.cancel),
        "fingerprint": run.fingerprint and storable(run.fingerprint),
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "worked_s": run.worked_s,
        "retries": run.retries,
    }


def _put_record(db: sqlite3.Connection, key: int, run: StoredRun, record: Record) -> None:
    columns, blob = columns_of(record)
    at = run.created_at if record.at is None else record.at
    after_us = round(at * 1e6) - round(run.created_at * 1e6)
    db.execute(_PUT_RECORD, ((key << 32) + record.seq, after_us, *columns))
    if blob is not None:
        db.execute(sql.INSERT_BLOB, blob)


def _pause_columns(key: int, pause: OpenPause) -> tuple[object, ...]:
    texts = (pause.path, pause.token, pause.message, pause.body)
    others = (pause.to, pause.kind, pause.wait, pause.event, pause.key)
    stored = (None if text is None else storable(text) for text in others)
    return (key, *map(storable, texts), pause.due_at, pause.asked_at, *stored)
