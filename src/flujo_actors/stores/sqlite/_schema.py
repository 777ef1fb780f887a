"""The tables of a SQLite store, and how an older file becomes a newer one.

All names begin with `flujo_`, so that a store can share its file with the tables of an application.

Every page that a commit touches is written to the log and waits for the disk, so a commit of one record touches one:

1. A record's key is its run's key and its number in one integer. No second index has to find it, and the records of
   a run stand side by side.
2. While a run has an owner its row stays as it is: what was written last is the run's last record, which also says
   when. The row's own `updated_at` and `records` hold once nobody owns the run.
"""

from __future__ import annotations

import sqlite3

from ...errors import StoreVersionError

_FIRST = (
    """CREATE TABLE flujo_runs (
        id INTEGER PRIMARY KEY,
        run_id TEXT NOT NULL UNIQUE,
        pipeline TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        owner TEXT,
        epoch INTEGER NOT NULL,
        lease_boot TEXT NOT NULL,
        lease_from REAL NOT NULL,
        lease_until REAL NOT NULL,
        next_seq INTEGER NOT NULL
    )""",
    "CREATE INDEX flujo_runs_by_status ON flujo_runs (status)",
    """CREATE TABLE flujo_records (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        kind TEXT NOT NULL,
        path TEXT NOT NULL,
        body TEXT NOT NULL,
        blob BLOB
    )""",
    "CREATE UNIQUE INDEX flujo_records_by_run ON flujo_records (run, seq)",
    "CREATE INDEX flujo_records_by_blob ON flujo_records (blob) WHERE blob IS NOT NULL",
    """CREATE TABLE flujo_pauses (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        path TEXT NOT NULL,
        token TEXT NOT NULL,
        message TEXT NOT NULL,
        body TEXT NOT NULL,
        answered INTEGER
    )""",
    "CREATE INDEX flujo_pauses_by_run ON flujo_pauses (run)",
    "CREATE TABLE flujo_blobs (hash BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID",
)

_ONE_PAGE_PER_RECORD = (
    """CREATE TABLE flujo_new_records (
        id INTEGER PRIMARY KEY,
        after_us INTEGER NOT NULL,
        kind TEXT NOT NULL,
        path TEXT NOT NULL,
        body TEXT NOT NULL,
        blob BLOB,
        run INTEGER GENERATED ALWAYS AS (id >> 32) VIRTUAL,
        seq INTEGER GENERATED ALWAYS AS (id & 0xFFFFFFFF) VIRTUAL
    )""",
    """INSERT INTO flujo_new_records (id, after_us, kind, path, body, blob)
        SELECT (run << 32) + seq, 0, kind, path, body, blob FROM flujo_records ORDER BY run, seq""",
    "DROP TABLE flujo_records",
    "ALTER TABLE flujo_new_records RENAME TO flujo_records",
    "CREATE INDEX flujo_records_by_blob ON flujo_records (blob) WHERE blob IS NOT NULL",
    "ALTER TABLE flujo_runs RENAME COLUMN next_seq TO records",
    "UPDATE flujo_runs SET records = records - 1",
)
"""`after_us` is when the record was written, in microseconds since the run was admitted: short numbers."""

_CANCEL_REQUESTS = (
    "ALTER TABLE flujo_runs ADD COLUMN cancel TEXT",
    "CREATE INDEX flujo_runs_to_cancel ON flujo_runs (run_id) WHERE cancel IS NOT NULL",
)
"""Why a run shall end, until it has. Hardly any run has such a request, and the index holds no others."""

_QUEUES = (
    "ALTER TABLE flujo_runs ADD COLUMN queue TEXT",
    "ALTER TABLE flujo_runs ADD COLUMN parent TEXT",
    "CREATE INDEX flujo_runs_by_queue ON flujo_runs (queue, id) WHERE queue IS NOT NULL AND status = 'running'",
    "CREATE INDEX flujo_runs_by_parent ON flujo_runs (parent) WHERE parent IS NOT NULL",
    "CREATE TABLE flujo_workers (name TEXT PRIMARY KEY, body TEXT NOT NULL, seen_at REAL NOT NULL) WITHOUT ROWID",
)
"""Where a run waits for a worker, whose remote step it is, and who is there to work."""

_LISTINGS = (
    "ALTER TABLE flujo_records ADD COLUMN gist TEXT",
    "ALTER TABLE flujo_runs ADD COLUMN tokens INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE flujo_runs ADD COLUMN cost_usd REAL NOT NULL DEFAULT 0",
)
"""What listings show of a record without its body, and what a run has used; older records have no gist."""

_DEADLINES = (
    "ALTER TABLE flujo_pauses ADD COLUMN due_at REAL",
    "CREATE INDEX flujo_pauses_due ON flujo_pauses (due_at) WHERE answered IS NULL AND due_at IS NOT NULL",
)
"""Until when a question waits for its answer. Few do, and the index holds no others."""

_BELIEFS = (
    """CREATE TABLE flujo_beliefs (
        name TEXT NOT NULL,
        category TEXT NOT NULL,
        arm TEXT NOT NULL,
        alpha REAL NOT NULL,
        beta REAL NOT NULL,
        observations INTEGER NOT NULL,
        mean_cost_usd REAL NOT NULL,
        updated_at REAL NOT NULL,
        PRIMARY KEY (name, category, arm)
    ) WITHOUT ROWID""",
)
"""What is known of agents that selections choose from: evidence, without any prior."""

_BUDGETS = (
    """CREATE TABLE flujo_budgets (
        id INTEGER PRIMARY KEY, run TEXT NOT NULL, path TEXT NOT NULL, limits TEXT, UNIQUE (run, path)
    )""",
    """CREATE TABLE flujo_shares (
        budget INTEGER NOT NULL,
        holder TEXT NOT NULL,
        run TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        version INTEGER NOT NULL,
        tokens REAL NOT NULL,
        cost_usd REAL NOT NULL,
        requests INTEGER NOT NULL,
        tool_calls INTEGER NOT NULL,
        steps INTEGER NOT NULL,
        reserved_tokens REAL NOT NULL,
        reserved_usd REAL NOT NULL,
        reserved_requests INTEGER NOT NULL,
        under_way INTEGER NOT NULL,
        largest_tokens REAL,
        largest_usd REAL,
        PRIMARY KEY (budget, holder)
    ) WITHOUT ROWID""",
)
"""What the processes of a run have spent of its budgets, and set aside under which lease."""

_RESTING = (
    """CREATE INDEX flujo_runs_resting ON flujo_runs (queue, id)
        WHERE queue IS NOT NULL AND parent IS NULL AND status = 'paused'""",
)
"""The runs of queues that wait for answers, at which workers look again and again."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    _FIRST,
    _ONE_PAGE_PER_RECORD,
    _CANCEL_REQUESTS,
    _QUEUES,
    _LISTINGS,
    _DEADLINES,
    _BELIEFS,
    _BUDGETS,
    _RESTING,
)
"""What leads from each version to the next; an empty file has version 0."""


def migrate(db: sqlite3.Connection) -> None:
    """Bring the schema up to date, in one transaction; `StoreVersionError`, before any change, if it is newer."""
    if version(db) == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        # Somebody else may have done it while this connection waited for the lock.
        _migrate_from(db, version(db))
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def version(db: sqlite3.Connection) -> int:
    """The version of the file's schema; 0 if it has none of our tables, `StoreVersionError` if it is not known."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'flujo_schema'").fetchall():
        return 0
    [(number,)] = db.execute("SELECT version FROM flujo_schema").fetchall()
    if not isinstance(number, int) or not 0 < number <= len(MIGRATIONS):
        raise StoreVersionError(
            f"the database has schema version {number!r}, and this version of flujo-actors knows 1 to "
            f"{len(MIGRATIONS)}; it was left as it is"
        )
    return number


def _migrate_from(db: sqlite3.Connection, number: int) -> None:
    for statements in MIGRATIONS[number:]:
        for statement in statements:
            db.execute(statement)
    if number == 0:
        db.execute("CREATE TABLE flujo_schema (version INTEGER NOT NULL)")
        db.execute("INSERT INTO flujo_schema VALUES (?)", (len(MIGRATIONS),))
    else:
        db.execute("UPDATE flujo_schema SET version = ?", (len(MIGRATIONS),))
