"""Tables and migrations of a SQLite store.

All names begin with `flujo_`, so that a store can share its file with the tables of an application.

Every page that a commit touches is written to the log and synced, so a commit of one record touches one:

1. A record's key is its run's key and its number in one integer. No second index has to find it, and the records of
   a run are adjacent.
2. While a run has an owner its row is unchanged: the last write is the run's last record, which also has the time. The
   row's own `updated_at` and `records` are valid once the run has no owner.
"""

from __future__ import annotations

import sqlite3

from ..._core.records.records import PLAIN_VERSION, RECORD_VERSION
from .._record_rows import other_schema

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
"""Migration to one page per record; `after_us` counts from admission."""

_CANCEL_REQUESTS = (
    "ALTER TABLE flujo_runs ADD COLUMN cancel TEXT",
    "CREATE INDEX flujo_runs_to_cancel ON flujo_runs (run_id) WHERE cancel IS NOT NULL",
)
"""Cancel requests of open runs, in a partial index."""

_QUEUES = (
    "ALTER TABLE flujo_runs ADD COLUMN queue TEXT",
    "ALTER TABLE flujo_runs ADD COLUMN parent TEXT",
    "CREATE INDEX flujo_runs_by_queue ON flujo_runs (queue, id) WHERE queue IS NOT NULL AND status = 'running'",
    "CREATE INDEX flujo_runs_by_parent ON flujo_runs (parent) WHERE parent IS NOT NULL",
    "CREATE TABLE flujo_workers (name TEXT PRIMARY KEY, body TEXT NOT NULL, seen_at REAL NOT NULL) WITHOUT ROWID",
)
"""Queue and parent of a run, and workers."""

_LISTINGS = (
    "ALTER TABLE flujo_records ADD COLUMN gist TEXT",
    "ALTER TABLE flujo_runs ADD COLUMN tokens INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE flujo_runs ADD COLUMN cost_usd REAL NOT NULL DEFAULT 0",
)
"""Gist of records and usage of runs, for listings."""

_DEADLINES = (
    "ALTER TABLE flujo_pauses ADD COLUMN due_at REAL",
    "CREATE INDEX flujo_pauses_due ON flujo_pauses (due_at) WHERE answered IS NULL AND due_at IS NOT NULL",
)
"""Deadlines of pauses; a partial index, since few have one."""

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
"""Selection statistics: evidence without a prior."""

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
"""Spending and reservations of a run's processes by lease."""

_RESTING = (
    """CREATE INDEX flujo_runs_resting ON flujo_runs (queue, id)
        WHERE queue IS NOT NULL AND parent IS NULL AND status = 'paused'""",
)
"""Index of paused runs in queues, which workers poll."""

_STATES = (
    "ALTER TABLE flujo_runs ADD COLUMN fingerprint TEXT",
    "ALTER TABLE flujo_runs ADD COLUMN started_at REAL",
    "ALTER TABLE flujo_runs ADD COLUMN claimed_at REAL",
    "ALTER TABLE flujo_runs ADD COLUMN ended_at REAL",
    "ALTER TABLE flujo_runs ADD COLUMN worked_s REAL NOT NULL DEFAULT 0",
    "ALTER TABLE flujo_runs ADD COLUMN retries INTEGER NOT NULL DEFAULT 0",
    "UPDATE flujo_runs SET ended_at = updated_at WHERE status IN ('completed', 'failed', 'aborted')",
)
"""Version, times and retries of runs, for their states."""

_READY = """
        NOT EXISTS (SELECT 1 FROM flujo_pauses AS p WHERE p.run = flujo_runs.id AND answered IS NULL)
        OR EXISTS (SELECT 1 FROM flujo_pauses AS p WHERE p.run = flujo_runs.id AND answered = 2)"""
"""Whether all pauses of a paused run are answered, or one expired."""

_INDEXES = (
    """CREATE TABLE flujo_labels (
        name TEXT NOT NULL, value TEXT NOT NULL, run INTEGER NOT NULL, PRIMARY KEY (name, value, run)
    ) WITHOUT ROWID""",
    "CREATE INDEX flujo_labels_by_run ON flujo_labels (run, name, value)",
    "ALTER TABLE flujo_runs ADD COLUMN singleton TEXT",
    "ALTER TABLE flujo_runs ADD COLUMN ready INTEGER",
    f"UPDATE flujo_runs SET ready = 1 WHERE status = 'paused' AND ({_READY})",
    "DROP INDEX flujo_runs_by_status",
    "DROP INDEX flujo_runs_resting",
    "CREATE INDEX flujo_runs_by_status ON flujo_runs (status, id) WHERE parent IS NULL",
    "CREATE INDEX flujo_runs_by_pipeline ON flujo_runs (pipeline, id) WHERE parent IS NULL",
    "CREATE INDEX flujo_runs_listed ON flujo_runs (queue, id) WHERE parent IS NULL AND queue IS NOT NULL",
    "CREATE INDEX flujo_runs_ended ON flujo_runs (ended_at, id) WHERE parent IS NULL AND ended_at IS NOT NULL",
    "CREATE INDEX flujo_runs_open ON flujo_runs (id) WHERE parent IS NULL AND ended_at IS NULL",
    "CREATE INDEX flujo_runs_ready ON flujo_runs (ready, id) WHERE parent IS NULL AND ready = 1",
    """CREATE UNIQUE INDEX flujo_runs_singleton ON flujo_runs (singleton)
        WHERE ended_at IS NULL AND singleton IS NOT NULL""",
    "CREATE INDEX flujo_pauses_open ON flujo_pauses (id) WHERE answered IS NULL",
)
"""Indexes of listings and claimable runs; none on `updated_at`."""

_QUESTION_FACTS = """
    json_extract(CASE WHEN json_valid(body) THEN body END, '$.question.facts.to') AS addressee,
    CASE coalesce(json_extract(CASE WHEN json_valid(body) THEN body END, '$.question.kind'), '')
        WHEN 'approval' THEN 'approval' WHEN 'tool' THEN 'tool' WHEN 'loop' THEN 'loop' WHEN 'limits' THEN 'limit'
        WHEN '' THEN CASE WHEN path LIKE '%/~u%' OR path LIKE '%/~q%' THEN 'uncertain' ELSE 'input' END
        ELSE 'input' END AS kind"""
"""Addressee and kind of a question, from its body."""

_TIME = (
    # Wake times: claims read `claimable`, recovery `answered`, promotion of sleepers `asleep`, and the search for
    # dead owners `leased`.
    "ALTER TABLE flujo_runs ADD COLUMN wake_at REAL",
    "ALTER TABLE flujo_runs ADD COLUMN key TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE flujo_runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE flujo_pauses ADD COLUMN wait TEXT",
    "ALTER TABLE flujo_pauses ADD COLUMN event TEXT",
    "ALTER TABLE flujo_pauses ADD COLUMN key TEXT",
    """UPDATE flujo_runs SET ready = 1, wake_at = CASE status WHEN 'running' THEN created_at ELSE updated_at END
        WHERE owner IS NULL AND (status = 'running' OR (status = 'paused' AND ready = 1))""",
    """UPDATE flujo_runs
        SET wake_at = (SELECT min(due_at) FROM flujo_pauses WHERE run = flujo_runs.id AND answered IS NULL)
        WHERE owner IS NULL AND status = 'paused' AND ready IS NULL""",
    "CREATE INDEX flujo_runs_asleep ON flujo_runs (wake_at) WHERE ready IS NULL AND wake_at IS NOT NULL",
    "CREATE INDEX flujo_runs_claimable ON flujo_runs (queue, priority DESC, key, wake_at, id) WHERE ready = 1",
    "DROP INDEX flujo_runs_ready",
    "CREATE INDEX flujo_runs_answered ON flujo_runs (id) WHERE parent IS NULL AND ready = 1 AND status <> 'running'",
    "CREATE INDEX flujo_runs_leased ON flujo_runs (lease_until) WHERE owner IS NOT NULL",
    # Questions: filters of the inbox.
    "ALTER TABLE flujo_pauses ADD COLUMN asked_at REAL",
    "ALTER TABLE flujo_pauses ADD COLUMN addressee TEXT",
    "ALTER TABLE flujo_pauses ADD COLUMN kind TEXT",
    f"""UPDATE flujo_pauses SET (addressee, kind) = (SELECT addressee, kind FROM (
        SELECT {_QUESTION_FACTS} FROM flujo_pauses AS p WHERE p.id = flujo_pauses.id)) WHERE answered IS NULL""",
    """CREATE INDEX flujo_pauses_by_addressee ON flujo_pauses (addressee, id)
        WHERE answered IS NULL AND addressee IS NOT NULL""",
    # Compacted turns of loops with `keep_history`.
    "CREATE INDEX flujo_records_compacted ON flujo_records (id) WHERE kind = 'compacted'",
    # Messages to webhooks.
    """CREATE TABLE flujo_outbox (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        run INTEGER NOT NULL,
        hook TEXT NOT NULL,
        url TEXT NOT NULL,
        event TEXT NOT NULL,
        body TEXT NOT NULL,
        status TEXT NOT NULL,
        attempts INTEGER NOT NULL,
        created_at REAL NOT NULL,
        next_at REAL,
        owner TEXT,
        error TEXT
    )""",
    "CREATE INDEX flujo_outbox_by_run ON flujo_outbox (run)",
    "CREATE INDEX flujo_outbox_due ON flujo_outbox (next_at) WHERE status = 'pending'",
    # Duties that one process of the store at a time has, such as retention.
    "CREATE TABLE flujo_duties (name TEXT PRIMARY KEY, owner TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID",
    # Schedules: workers read the due ones of their pipeline.
    """CREATE TABLE flujo_schedules (
        name TEXT PRIMARY KEY, pipeline TEXT NOT NULL, queue TEXT NOT NULL, declared TEXT NOT NULL,
        progress TEXT NOT NULL, due_at REAL, version INTEGER NOT NULL
    )""",
    "CREATE INDEX flujo_schedules_due ON flujo_schedules (pipeline, due_at)",
    # Claims in order: `flujo_queues` has the queues with keys or priorities.
    "CREATE TABLE flujo_queues (name TEXT PRIMARY KEY) WITHOUT ROWID",
    "DROP INDEX flujo_runs_by_queue",
    "DROP INDEX flujo_pauses_open",
    "CREATE INDEX flujo_pauses_open ON flujo_pauses (id) WHERE answered IS NULL AND wait IS NULL",
    """CREATE INDEX flujo_pauses_by_event ON flujo_pauses (event, key, id)
        WHERE answered IS NULL AND event IS NOT NULL""",
    # Events: buffered ones by name and key, all by name and id.
    """CREATE TABLE flujo_events (
        number INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL, key TEXT NOT NULL, id TEXT NOT NULL,
        body TEXT NOT NULL, sender TEXT, sent_at REAL NOT NULL, status TEXT NOT NULL, delivered TEXT NOT NULL,
        refused_by TEXT, reason TEXT, retain_until REAL NOT NULL, dedupe_s REAL NOT NULL, keep_until REAL NOT NULL,
        UNIQUE (event, id)
    )""",
    "CREATE INDEX flujo_events_buffered ON flujo_events (event, key, number) WHERE status = 'buffered'",
    "CREATE INDEX flujo_events_old ON flujo_events (keep_until)",
    # Conversations: records, and entries that point at the one before.
    """CREATE TABLE flujo_conversations (
        id TEXT PRIMARY KEY, scope TEXT, revision TEXT NOT NULL, updated_at REAL NOT NULL, head TEXT,
        tips TEXT NOT NULL, body TEXT NOT NULL
    )""",
    "CREATE INDEX flujo_conversations_listed ON flujo_conversations (updated_at)",
    "CREATE INDEX flujo_conversations_by_scope ON flujo_conversations (scope, updated_at)",
    "CREATE INDEX flujo_conversations_by_head ON flujo_conversations (head)",
    "CREATE INDEX flujo_conversations_branched ON flujo_conversations (id) WHERE tips <> '[]'",
    "CREATE TABLE flujo_entries (id TEXT PRIMARY KEY, parent TEXT, body TEXT NOT NULL)",
    "CREATE INDEX flujo_entries_by_parent ON flujo_entries (parent)",
    # Outputs of steps for later runs.
    """CREATE TABLE flujo_cache (
        key TEXT PRIMARY KEY, pipeline TEXT NOT NULL, step TEXT NOT NULL, until REAL NOT NULL, body TEXT NOT NULL
    )""",
    "CREATE INDEX flujo_cache_by_time ON flujo_cache (until)",
    # Rate limits: virtual clocks by name and resource, and requests under way under the leases of their runs.
    """CREATE TABLE flujo_rates (
        name TEXT NOT NULL, resource TEXT NOT NULL, free_at REAL NOT NULL DEFAULT 0,
        refunded REAL NOT NULL DEFAULT 0, blocked_until REAL NOT NULL DEFAULT 0, granted INTEGER,
        PRIMARY KEY (name, resource)
    )""",
    """CREATE TABLE flujo_slots (
        name TEXT NOT NULL, run TEXT NOT NULL, epoch INTEGER NOT NULL, holder TEXT NOT NULL,
        PRIMARY KEY (name, run, holder)
    )""",
    # Messages to granular steps: the number of a run's newest one, for its owner.
    "ALTER TABLE flujo_runs ADD COLUMN steered INTEGER",
    "CREATE INDEX flujo_runs_steered ON flujo_runs (run_id) WHERE steered IS NOT NULL AND owner IS NOT NULL",
    # Budgets of windows: their end, limits raised by a person, and whether a warning was emitted.
    "ALTER TABLE flujo_budgets ADD COLUMN ends_at REAL",
    "ALTER TABLE flujo_budgets ADD COLUMN raised TEXT",
    "ALTER TABLE flujo_budgets ADD COLUMN warned INTEGER",
    "CREATE INDEX flujo_budgets_by_end ON flujo_budgets (ends_at) WHERE ends_at IS NOT NULL",
)
"""Times, keys and priorities of runs, and the tables of features that use them."""

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
    _STATES,
    _INDEXES,
    _TIME,
)
"""Statements from each version to the next, from 0."""


FORMER = (
    """CREATE TEMP VIEW flujo_runs AS SELECT *, NULL AS wake_at, '' AS key, 0 AS priority, NULL AS steered
        FROM main.flujo_runs""",
    f"""CREATE TEMP VIEW flujo_pauses AS
        SELECT *, NULL AS asked_at, {_QUESTION_FACTS}, NULL AS wait, NULL AS event, NULL AS key
        FROM main.flujo_pauses""",
    """CREATE TEMP VIEW flujo_events AS SELECT 0 AS number, '' AS event, '' AS key, '' AS id, '' AS body, '' AS sender,
        0 AS sent_at, '' AS status, '' AS delivered, '' AS refused_by, '' AS reason, 0 AS retain_until,
        0 AS dedupe_s, 0 AS keep_until WHERE 0""",
    """CREATE TEMP VIEW flujo_schedules AS SELECT '' AS name, '' AS pipeline, '' AS queue, '' AS declared,
        '' AS progress, NULL AS due_at, 0 AS version WHERE 0""",
    "CREATE TEMP VIEW flujo_queues AS SELECT NULL AS name WHERE 0",
    """CREATE TEMP VIEW flujo_outbox AS SELECT
        NULL AS number, NULL AS id, NULL AS run, NULL AS hook, NULL AS url, NULL AS event, NULL AS body, NULL AS status,
        NULL AS attempts, NULL AS created_at, NULL AS next_at, NULL AS owner, NULL AS error WHERE 0""",
    """CREATE TEMP VIEW flujo_conversations AS SELECT '' AS id, '' AS scope, '' AS revision, 0 AS updated_at,
        '' AS head, '' AS tips, '' AS body WHERE 0""",
    "CREATE TEMP VIEW flujo_entries AS SELECT '' AS id, '' AS parent, '' AS body WHERE 0",
    "CREATE TEMP VIEW flujo_cache AS SELECT '' AS key, '' AS pipeline, '' AS step, 0 AS until, '' AS body WHERE 0",
    """CREATE TEMP VIEW flujo_rates AS SELECT '' AS name, '' AS resource, 0.0 AS free_at, 0.0 AS refunded,
        0.0 AS blocked_until WHERE 0""",
    "CREATE TEMP VIEW flujo_slots AS SELECT '' AS name, '' AS run, 0 AS epoch, '' AS holder WHERE 0",
    """CREATE TEMP VIEW flujo_budgets AS
        SELECT *, NULL AS ends_at, NULL AS raised, NULL AS warned FROM main.flujo_budgets""",
)
"""Views that show the former schema to a session as the present one; a new table is an empty view."""


def readable(db: sqlite3.Connection) -> int:
    """Return the version without migrating; raise `StoreVersionError` if too old."""
    found, needed = version(db), len(MIGRATIONS)
    if 0 < found < needed - 1:
        raise other_schema(found, needed)
    return found


def migrate(db: sqlite3.Connection) -> None:
    """Migrate in one transaction; raise `StoreVersionError` if newer."""
    if version(db) == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have migrated while this connection waited for the lock.
        _migrate_from(db, version(db))
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def version(db: sqlite3.Connection) -> int:
    """Return the schema version; 0 without our tables, `StoreVersionError` if unknown."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'flujo_schema'").fetchall():
        return 0
    [(number,)] = db.execute("SELECT version FROM flujo_schema").fetchall()
    if not isinstance(number, int) or not 0 < number <= len(MIGRATIONS):
        raise other_schema(number, len(MIGRATIONS))
    return number


def _migrate_from(db: sqlite3.Connection, number: int) -> None:
    for statements in MIGRATIONS[number:]:
        for statement in statements:
            db.execute(statement)
    if number == 0:
        db.execute("CREATE TABLE flujo_schema (version INTEGER NOT NULL, record_format INTEGER NOT NULL)")
        db.execute("INSERT INTO flujo_schema VALUES (?, ?)", (len(MIGRATIONS), RECORD_VERSION))
        return
    if number <= MIGRATIONS.index(_TIME):
        db.execute(f"ALTER TABLE flujo_schema ADD COLUMN record_format INTEGER NOT NULL DEFAULT {PLAIN_VERSION}")
    db.execute("UPDATE flujo_schema SET version = ?", (len(MIGRATIONS),))


def record_format(db: sqlite3.Connection, found: int) -> int:
    """Return the record format of a store with that schema."""
    if found <= MIGRATIONS.index(_TIME):
        return PLAIN_VERSION
    [(number,)] = db.execute("SELECT record_format FROM flujo_schema").fetchall()
    return int(number)
