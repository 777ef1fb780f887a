"""Tables and migrations of a Postgres store.

They are created in the first schema of the connection's `search_path`. Runs are found by the hash of their id: an index
entry of Postgres cannot be longer than a third of a page, a run id can.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, LiteralString

from ..._core.records.records import PLAIN_VERSION, RECORD_VERSION
from ...errors import StoreError, StoreVersionError
from .._record_rows import other_schema

if TYPE_CHECKING:
    from ._session import PostgresSession

_MIGRATION_LOCK = 4_935_112_608_001
"""Advisory lock that serializes migrations."""

_FIND_SCHEMA: LiteralString = "SELECT 1 FROM pg_class WHERE relname = 'flujo_schema' AND pg_table_is_visible(oid)"
"""Catalog query: a lookup by name may use a cached miss."""

_FIRST: tuple[LiteralString, ...] = (
    """CREATE TABLE flujo_runs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        run_hash bytea NOT NULL UNIQUE,
        run_id text NOT NULL,
        pipeline text NOT NULL,
        status text NOT NULL,
        created_at float8 NOT NULL,
        updated_at float8 NOT NULL,
        owner text,
        epoch bigint NOT NULL,
        lease_until float8 NOT NULL,
        next_seq bigint NOT NULL
    ) WITH (fillfactor = 70)""",
    "CREATE INDEX flujo_runs_by_status ON flujo_runs (status)",
    """CREATE TABLE flujo_records (
        run bigint NOT NULL,
        seq bigint NOT NULL,
        kind text NOT NULL,
        path text NOT NULL,
        body text NOT NULL,
        blob bytea,
        PRIMARY KEY (run, seq)
    )""",
    "CREATE INDEX flujo_records_by_blob ON flujo_records (blob) WHERE blob IS NOT NULL",
    """CREATE TABLE flujo_pauses (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        run bigint NOT NULL,
        path text NOT NULL,
        token text NOT NULL,
        message text NOT NULL,
        body text NOT NULL,
        answered uuid
    )""",
    "CREATE INDEX flujo_pauses_by_run ON flujo_pauses (run)",
    "CREATE TABLE flujo_blobs (hash bytea PRIMARY KEY, data bytea NOT NULL)",
)

_CANCEL_REQUESTS: tuple[LiteralString, ...] = (
    "ALTER TABLE flujo_runs ADD COLUMN cancel text",
    "CREATE INDEX flujo_runs_to_cancel ON flujo_runs (run_hash) WHERE cancel IS NOT NULL",
)
"""Cancel requests of open runs, in a partial index."""

_QUEUES: tuple[LiteralString, ...] = (
    "ALTER TABLE flujo_runs ADD COLUMN queue text",
    "ALTER TABLE flujo_runs ADD COLUMN parent text",
    "CREATE INDEX flujo_runs_by_queue ON flujo_runs (queue, id) WHERE queue IS NOT NULL AND status = 'running'",
    "CREATE INDEX flujo_runs_by_parent ON flujo_runs USING hash (parent) WHERE parent IS NOT NULL",
    "CREATE TABLE flujo_workers (name text PRIMARY KEY, body text NOT NULL, seen_at float8 NOT NULL)",
)
"""Queue and parent of a run, and workers, hash-indexed."""

_LISTINGS: tuple[LiteralString, ...] = (
    "ALTER TABLE flujo_records ADD COLUMN gist text, ADD COLUMN at float8",
    "ALTER TABLE flujo_runs ADD COLUMN tokens bigint NOT NULL DEFAULT 0, ADD COLUMN cost_usd float8 NOT NULL DEFAULT 0",
)
"""Gist and time of records, and usage of runs, for listings."""

_DEADLINES: tuple[LiteralString, ...] = (
    "ALTER TABLE flujo_pauses ADD COLUMN due_at float8",
    "CREATE INDEX flujo_pauses_due ON flujo_pauses (due_at) WHERE answered IS NULL AND due_at IS NOT NULL",
)
"""Deadlines of pauses; a partial index, since few have one."""

_BELIEFS: tuple[LiteralString, ...] = (
    """CREATE TABLE flujo_beliefs (
        scope bytea NOT NULL,
        arm text NOT NULL,
        alpha float8 NOT NULL,
        beta float8 NOT NULL,
        observations bigint NOT NULL,
        mean_cost_usd float8 NOT NULL,
        updated_at float8 NOT NULL,
        PRIMARY KEY (scope, arm)
    )""",
)
"""Selection statistics; the scope is a hash of their name and category."""

_TEXTS: tuple[LiteralString, ...] = (
    "CREATE UNLOGGED TABLE flujo_texts_wanted (run bytea PRIMARY KEY, until float8 NOT NULL)",
    "CREATE UNLOGGED TABLE flujo_texts (run bytea NOT NULL, path text NOT NULL, text text NOT NULL)",
    "CREATE INDEX flujo_texts_by_run ON flujo_texts (run)",
)
"""Live text of steps for watchers; unlogged, lost in a crash."""

_BUDGETS: tuple[LiteralString, ...] = (
    """CREATE TABLE flujo_budgets (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        hash bytea NOT NULL UNIQUE,
        run text NOT NULL,
        limits text
    )""",
    "CREATE INDEX flujo_budgets_by_run ON flujo_budgets USING hash (run)",
    """CREATE TABLE flujo_shares (
        budget bigint NOT NULL,
        holder_hash bytea NOT NULL,
        holder text NOT NULL,
        run bytea NOT NULL,
        epoch bigint NOT NULL,
        version bigint NOT NULL,
        tokens float8 NOT NULL,
        cost_usd float8 NOT NULL,
        requests bigint NOT NULL,
        tool_calls bigint NOT NULL,
        steps bigint NOT NULL,
        reserved_tokens float8 NOT NULL,
        reserved_usd float8 NOT NULL,
        reserved_requests bigint NOT NULL,
        under_way bigint NOT NULL,
        largest_tokens float8,
        largest_usd float8,
        PRIMARY KEY (budget, holder_hash)
    ) WITH (fillfactor = 70)""",
)
"""Spending and reservations by lease; `run` is its hash."""

_RESTING: tuple[LiteralString, ...] = (
    """CREATE INDEX flujo_runs_resting ON flujo_runs (queue, id)
        WHERE queue IS NOT NULL AND parent IS NULL AND status = 'paused'""",
    "CREATE INDEX flujo_pauses_open ON flujo_pauses (run) WHERE answered IS NULL",
)
"""Queued runs that wait for answers, polled by workers."""

_REPLIES: tuple[LiteralString, ...] = ("ALTER TABLE flujo_runs ADD COLUMN reply text",)
"""New waiter of a remote step, if changed since the request."""

_STATES: tuple[LiteralString, ...] = (
    """ALTER TABLE flujo_runs ADD COLUMN fingerprint text, ADD COLUMN started_at float8, ADD COLUMN claimed_at float8,
        ADD COLUMN IF NOT EXISTS ended_at float8, ADD COLUMN worked_s float8 NOT NULL DEFAULT 0,
        ADD COLUMN retries bigint NOT NULL DEFAULT 0""",
    """UPDATE flujo_runs SET ended_at = updated_at
        WHERE ended_at IS NULL AND status IN ('completed', 'failed', 'aborted')""",
)
"""Version, times and retries of runs, for their states."""

_READY: LiteralString = """
        NOT EXISTS (SELECT 1 FROM flujo_pauses p WHERE p.run = r.id AND answered IS NULL)
        OR EXISTS (SELECT 1 FROM flujo_pauses p
                   WHERE p.run = r.id AND answered < '00000000-0000-0001-0000-000000000000'::uuid)"""
"""Whether all pauses of a paused run are answered, or one expired."""

_INDEXES: tuple[LiteralString, ...] = (
    """CREATE TABLE flujo_labels (
        name text NOT NULL, value text NOT NULL, run bigint NOT NULL, PRIMARY KEY (name, value, run)
    )""",
    "CREATE INDEX flujo_labels_by_run ON flujo_labels (run)",
    "ALTER TABLE flujo_runs ADD COLUMN singleton text, ADD COLUMN ready smallint",
    f"UPDATE flujo_runs r SET ready = 1 WHERE status = 'paused' AND ({_READY})",
    "DROP INDEX flujo_runs_by_status",
    "DROP INDEX flujo_runs_resting",
    "CREATE INDEX flujo_runs_by_status ON flujo_runs (status, id) WHERE parent IS NULL",
    "CREATE INDEX flujo_runs_by_pipeline ON flujo_runs (left(pipeline, 200), id) WHERE parent IS NULL",
    "CREATE INDEX flujo_runs_listed ON flujo_runs (queue, id) WHERE parent IS NULL AND queue IS NOT NULL",
    "CREATE INDEX flujo_runs_ended ON flujo_runs (ended_at, id) WHERE parent IS NULL AND ended_at IS NOT NULL",
    "CREATE INDEX flujo_runs_open ON flujo_runs (id) WHERE parent IS NULL AND ended_at IS NULL",
    "CREATE INDEX flujo_runs_ready ON flujo_runs (ready, id) WHERE parent IS NULL AND ready = 1",
    "CREATE INDEX flujo_runs_by_prefix ON flujo_runs (left(run_id, 200) text_pattern_ops) WHERE parent IS NULL",
    """CREATE UNIQUE INDEX flujo_runs_singleton ON flujo_runs (singleton)
        WHERE ended_at IS NULL AND singleton IS NOT NULL""",
    "CREATE INDEX flujo_pauses_asked ON flujo_pauses (id) WHERE answered IS NULL",
)
"""Indexes of listings and claimable runs; none on `updated_at`.

Such an index would prevent HOT updates.

Ids and pipelines are indexed by their beginning: an entry cannot be longer than a third of a page.
"""

_ADDRESSEE: LiteralString = "body::json #>> '{question,facts,to}'"

_QUESTION_KIND: LiteralString = """
    CASE coalesce(body::json #>> '{question,kind}', '')
        WHEN 'approval' THEN 'approval' WHEN 'tool' THEN 'tool' WHEN 'loop' THEN 'loop' WHEN 'limits' THEN 'limit'
        WHEN '' THEN CASE WHEN path LIKE '%/~u%' OR path LIKE '%/~q%' THEN 'uncertain' ELSE 'input' END
        ELSE 'input' END"""

_QUESTION_FACTS: LiteralString = f"{_ADDRESSEE} AS addressee, {_QUESTION_KIND} AS kind"
"""Addressee and kind of a question, from its body."""

_TIME: tuple[LiteralString, ...] = (
    # Wake times: claims read `claimable`, recovery `answered`, promotion of sleepers `asleep`, and the search for
    # dead owners `leased`.
    """ALTER TABLE flujo_runs ADD COLUMN wake_at float8, ADD COLUMN key text NOT NULL DEFAULT '',
        ADD COLUMN priority smallint NOT NULL DEFAULT 0""",
    """ALTER TABLE flujo_pauses ADD COLUMN wait text, ADD COLUMN event text, ADD COLUMN key text""",
    """UPDATE flujo_runs SET ready = 1, wake_at = CASE status WHEN 'running' THEN created_at ELSE updated_at END
        WHERE owner IS NULL AND (status = 'running' OR (status = 'paused' AND ready = 1))""",
    """UPDATE flujo_runs r
        SET wake_at = (SELECT min(due_at) FROM flujo_pauses p WHERE p.run = r.id AND answered IS NULL)
        WHERE owner IS NULL AND status = 'paused' AND ready IS NULL""",
    "CREATE INDEX flujo_runs_asleep ON flujo_runs (wake_at) WHERE ready IS NULL AND wake_at IS NOT NULL",
    "CREATE INDEX flujo_runs_claimable ON flujo_runs (queue, priority DESC, key, wake_at, id) WHERE ready = 1",
    "DROP INDEX flujo_runs_ready",
    "CREATE INDEX flujo_runs_answered ON flujo_runs (id) WHERE parent IS NULL AND ready = 1 AND status <> 'running'",
    "CREATE INDEX flujo_runs_leased ON flujo_runs (lease_until) WHERE owner IS NOT NULL",
    # Questions: filters of the inbox. A damaged body has no addressee, and does not stop the migration.
    "ALTER TABLE flujo_pauses ADD COLUMN asked_at float8, ADD COLUMN addressee text, ADD COLUMN kind text",
    f"""DO $$ DECLARE each record; BEGIN
        FOR each IN SELECT id FROM flujo_pauses WHERE answered IS NULL LOOP
            BEGIN
                UPDATE flujo_pauses p SET (addressee, kind) =
                    (SELECT q.addressee, q.kind
                     FROM (SELECT {_QUESTION_FACTS} FROM flujo_pauses o WHERE o.id = each.id) q)
                WHERE p.id = each.id;
            EXCEPTION WHEN others THEN NULL;
            END;
        END LOOP;
    END $$""",
    """CREATE INDEX flujo_pauses_by_addressee ON flujo_pauses (left(addressee, 200), id)
        WHERE answered IS NULL AND addressee IS NOT NULL""",
    # Compacted turns of loops with `keep_history`.
    "CREATE INDEX flujo_records_compacted ON flujo_records (run, seq) WHERE kind = 'compacted'",
    # Timed-out pauses of listed runs: without it, each listing reads all pauses.
    """CREATE INDEX flujo_pauses_expired ON flujo_pauses (run)
        WHERE answered < '00000000-0000-0001-0000-000000000000'::uuid""",
    # Messages to webhooks.
    """CREATE TABLE flujo_outbox (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id text NOT NULL UNIQUE,
        run bigint NOT NULL,
        hook text NOT NULL,
        url text NOT NULL,
        event text NOT NULL,
        body text NOT NULL,
        status text NOT NULL,
        attempts bigint NOT NULL,
        created_at float8 NOT NULL,
        next_at float8,
        owner text,
        error text
    )""",
    "CREATE INDEX flujo_outbox_by_run ON flujo_outbox (run)",
    "CREATE INDEX flujo_outbox_due ON flujo_outbox (next_at) WHERE status = 'pending'",
    # Duties that one process of the store at a time has, such as retention.
    "CREATE TABLE flujo_duties (name text PRIMARY KEY, owner text NOT NULL, until float8 NOT NULL)",
    # Deleted runs are reused early: a table of a million rows would wait for 200,000 dead ones.
    *(
        f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.02)"
        for table in ("flujo_runs", "flujo_records", "flujo_pauses", "flujo_blobs", "flujo_labels")
    ),
    # Schedules: workers read the due ones of their pipeline.
    """CREATE TABLE flujo_schedules (
        name text PRIMARY KEY, pipeline text NOT NULL, queue text NOT NULL, declared text NOT NULL,
        progress text NOT NULL, due_at float8, version bigint NOT NULL
    )""",
    "CREATE INDEX flujo_schedules_due ON flujo_schedules (pipeline, due_at)",
    # Claims in order: `flujo_queues` has the queues with keys or priorities.
    "CREATE TABLE flujo_queues (name text PRIMARY KEY)",
    "DROP INDEX flujo_runs_by_queue",
    "DROP INDEX flujo_pauses_asked",
    "CREATE INDEX flujo_pauses_asked ON flujo_pauses (id) WHERE answered IS NULL AND wait IS NULL",
    """CREATE INDEX flujo_pauses_by_event ON flujo_pauses (event, key, id)
        WHERE answered IS NULL AND event IS NOT NULL""",
    # Events: buffered ones by name and key, all by name and id.
    """CREATE TABLE flujo_events (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event text NOT NULL, key text NOT NULL,
        id text NOT NULL, body text NOT NULL, sender text, sent_at float8 NOT NULL, status text NOT NULL,
        delivered text NOT NULL, refused_by text, reason text, retain_until float8 NOT NULL, dedupe_s float8 NOT NULL,
        keep_until float8 NOT NULL, UNIQUE (event, id)
    )""",
    "CREATE INDEX flujo_events_buffered ON flujo_events (event, key, number) WHERE status = 'buffered'",
    "CREATE INDEX flujo_events_old ON flujo_events (keep_until)",
    # Conversations: records, and entries that point at the one before.
    """CREATE TABLE flujo_conversations (
        id text PRIMARY KEY, scope text, revision text NOT NULL, updated_at float8 NOT NULL, head text,
        tips text NOT NULL, body text NOT NULL
    )""",
    "CREATE INDEX flujo_conversations_listed ON flujo_conversations (updated_at)",
    "CREATE INDEX flujo_conversations_by_scope ON flujo_conversations (left(scope, 200), updated_at)",
    "CREATE INDEX flujo_conversations_by_head ON flujo_conversations (head)",
    "CREATE INDEX flujo_conversations_branched ON flujo_conversations (id) WHERE tips <> '[]'",
    "CREATE TABLE flujo_entries (id text PRIMARY KEY, parent text, body text NOT NULL)",
    "CREATE INDEX flujo_entries_by_parent ON flujo_entries (parent)",
    # Outputs of steps for later runs.
    """CREATE TABLE flujo_cache (
        key text PRIMARY KEY, pipeline text NOT NULL, step text NOT NULL, until float8 NOT NULL, body text NOT NULL
    )""",
    "CREATE INDEX flujo_cache_by_time ON flujo_cache (until)",
    # Rate limits: virtual clocks by name and resource, and requests under way under the leases of their runs.
    """CREATE TABLE flujo_rates (
        name text NOT NULL, resource text NOT NULL, free_at float8 NOT NULL DEFAULT 0,
        refunded float8 NOT NULL DEFAULT 0, blocked_until float8 NOT NULL DEFAULT 0, granted boolean, asked_at float8,
        PRIMARY KEY (name, resource)
    )""",
    """CREATE TABLE flujo_slots (
        name text NOT NULL, run bytea NOT NULL, epoch bigint NOT NULL, holder text NOT NULL,
        PRIMARY KEY (name, run, holder)
    )""",
    # Messages to granular steps: the number of a run's newest one, for its owner.
    "ALTER TABLE flujo_runs ADD COLUMN steered bigint",
    "CREATE INDEX flujo_runs_steered ON flujo_runs (run_hash) WHERE steered IS NOT NULL AND owner IS NOT NULL",
    # Budgets of windows: their end, limits raised by a person, and whether a warning was emitted.
    "ALTER TABLE flujo_budgets ADD COLUMN ends_at float8",
    "ALTER TABLE flujo_budgets ADD COLUMN raised text",
    "ALTER TABLE flujo_budgets ADD COLUMN warned boolean",
    "CREATE INDEX flujo_budgets_by_end ON flujo_budgets (ends_at) WHERE ends_at IS NOT NULL",
)
"""Times, keys and priorities of runs, and the tables of features that use them."""

MIGRATIONS: tuple[tuple[LiteralString, ...], ...] = (
    _FIRST,
    _CANCEL_REQUESTS,
    _QUEUES,
    _LISTINGS,
    _DEADLINES,
    _BELIEFS,
    _TEXTS,
    _BUDGETS,
    _RESTING,
    _REPLIES,
    _STATES,
    _INDEXES,
    _TIME,
)
"""Statements from each version to the next, from 0."""


FORMER: dict[LiteralString, dict[LiteralString, LiteralString]] = {
    "flujo_runs": {
        "wake_at": "NULL::float8",
        "key": "''::text",
        "priority": "0::smallint",
        "steered": "NULL::bigint",
    },
    "flujo_pauses": {
        "asked_at": "NULL::float8",
        "addressee": _ADDRESSEE,
        "kind": _QUESTION_KIND,
        **dict.fromkeys(("wait", "event", "key"), "NULL::text"),
    },
    "flujo_events": {
        "number": "0::bigint",
        **dict.fromkeys(("event", "key", "id", "body", "sender", "status", "delivered", "refused_by"), "''::text"),
        "reason": "''::text",
        **dict.fromkeys(("sent_at", "retain_until", "dedupe_s", "keep_until"), "0::float8"),
    },
    "flujo_schedules": {
        **dict.fromkeys(("name", "pipeline", "queue", "declared", "progress"), "''::text"),
        "due_at": "NULL::float8",
        "version": "0::bigint",
    },
    "flujo_queues": {"name": "NULL::text"},
    "flujo_outbox": {
        **dict.fromkeys(("number", "run", "attempts"), "NULL::bigint"),
        **dict.fromkeys(("id", "hook", "url", "event", "body", "status", "owner", "error"), "NULL::text"),
        **dict.fromkeys(("created_at", "next_at"), "NULL::float8"),
    },
    "flujo_conversations": {
        **dict.fromkeys(("id", "scope", "revision", "head", "tips", "body"), "''::text"),
        "updated_at": "0",
    },
    "flujo_entries": dict.fromkeys(("id", "parent", "body"), "''::text"),
    "flujo_cache": {**dict.fromkeys(("key", "pipeline", "step", "body"), "''::text"), "until": "0::float8"},
    "flujo_rates": {
        **dict.fromkeys(("name", "resource"), "''::text"),
        **dict.fromkeys(("free_at", "refunded", "blocked_until"), "0::float8"),
    },
    "flujo_slots": {"name": "''::text", "run": "''::bytea", "epoch": "0::bigint", "holder": "''::text"},
    "flujo_budgets": {"ends_at": "NULL::float8", "raised": "NULL::text", "warned": "NULL::boolean"},
}
"""Values of the columns that the former schema does not have, by table."""

_COLUMNS: LiteralString = """
    SELECT relname, attname FROM pg_class c JOIN pg_attribute a ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped
    WHERE relkind = 'r' AND relname LIKE 'flujo\\_%' AND pg_table_is_visible(c.oid)"""


def former_views(db: PostgresSession) -> list[str]:
    """Return views that show the former schema as the present one.

    A new table is an empty view. A migration in parts may have added some columns and tables already.
    """
    there: dict[str, set[str]] = {}
    for table, column in db.execute(_COLUMNS).fetchall():
        there.setdefault(table, set()).add(column)
    views = (_view(table, columns, there.get(table)) for table, columns in FORMER.items())
    return [view for view in views if view is not None]


def _view(table: str, columns: Mapping[LiteralString, LiteralString], there: set[str] | None) -> str | None:
    missing = ", ".join(f"{value} AS {name}" for name, value in columns.items() if name not in (there or ()))
    if not missing:
        return None
    rows = f"{missing} WHERE false" if there is None else f"*, {missing} FROM {table}"
    return f"CREATE TEMP VIEW {table} AS SELECT {rows}"


def readable(db: PostgresSession) -> int:
    """Return the version without migrating; raise `StoreVersionError` if too old."""
    found, needed = version(db), len(MIGRATIONS)
    if 0 < found < needed - 1:
        raise other_schema(found, needed)
    return found


def migrate(db: PostgresSession) -> None:
    """Migrate in one transaction; raise `StoreVersionError` if newer or large."""
    with db.transaction():
        found = version(db)
        if found == len(MIGRATIONS):
            return
        if found:
            _refuse_if_large(db, found)
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
        _migrate_from(db, version(db))  # read again: another process may have migrated meanwhile


def version(db: PostgresSession) -> int:
    """Return the schema version; 0 without our tables, `StoreVersionError` if unknown."""
    if not db.execute(_FIND_SCHEMA).fetchall():
        return 0
    [(number,)] = db.execute("SELECT version FROM flujo_schema").fetchall()
    if not 0 < number <= len(MIGRATIONS):
        raise other_schema(number, len(MIGRATIONS))
    return int(number)


MOST_ROWS = 100_000
"""Largest table that a starting process migrates; a larger one would wait for locks."""


def _refuse_if_large(db: PostgresSession, found: int) -> None:
    for table in ("flujo_runs", "flujo_records"):
        counted = f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {MOST_ROWS + 1}) t".encode()
        if db.execute(counted).fetchall()[0][0] > MOST_ROWS:
            raise StoreVersionError(
                f"the store has schema {found}, this process needs {len(MIGRATIONS)}, and the migration touches more "
                f"than {MOST_ROWS:,} rows of {table}: run `flujo-actors store migrate --store …`, which works in "
                "batches while workers of the former version run"
            )


_INDEX = re.compile(r"CREATE (UNIQUE )?INDEX (\w+)")


def index_names() -> set[str]:
    """Return the indexes of the present schema, without those of keys."""
    names: dict[str, None] = {}
    for statement in itertools.chain(*MIGRATIONS):
        if found := _INDEX.match(statement):
            names[found[2]] = None
        elif statement.startswith("DROP INDEX"):
            names.pop(statement.split()[-1], None)
    return set(names)


def repeatable(found: int) -> list[str]:
    """Return the migration from a version as statements that can be repeated."""
    return [_repeatable(statement) for part in MIGRATIONS[found:] for statement in part]


def _repeatable(statement: str) -> str:
    """Return an idempotent statement with short locks."""
    if found := _INDEX.match(statement):
        return statement.replace(found[0], f"CREATE {found[1] or ''}INDEX CONCURRENTLY IF NOT EXISTS {found[2]}", 1)
    for old, new in _REPEATABLE.items():
        if statement.startswith(old):
            return statement.replace(old, new, 1)
    if statement.startswith("ALTER TABLE"):
        return re.sub(r"ADD COLUMN (?!IF NOT)", "ADD COLUMN IF NOT EXISTS ", statement)
    return statement


_REPEATABLE = {
    "DROP INDEX ": "DROP INDEX CONCURRENTLY IF EXISTS ",
    "CREATE TABLE ": "CREATE TABLE IF NOT EXISTS ",
    "CREATE UNLOGGED TABLE ": "CREATE UNLOGGED TABLE IF NOT EXISTS ",
}


def migrate_in_parts(db: PostgresSession) -> None:
    """Migrate statement by statement, next to running workers; repeatable."""
    with db.in_schema():
        found = version(db)
    while found <= MIGRATIONS.index(_STATES) and _backfilled(db) == _BACKFILL_ROWS:
        pass
    for statement in repeatable(found):
        _drop_invalid(db, statement)
        _execute(db, statement)
    if found < len(MIGRATIONS):
        with db.in_schema():
            _set_version(db)


@contextlib.contextmanager
def migrating_alone(db: PostgresSession) -> Iterator[None]:
    """Hold the lock of the migrating command, or raise `StoreError`.

    The transaction of a second connection has it: behind a pooler, a lock of a session would outlast the command.
    """
    with db.transaction():
        [(taken,)] = db.execute("SELECT pg_try_advisory_xact_lock(%s)", (_COMMAND_LOCK,)).fetchall()
        if not taken:
            raise StoreError("Postgres: another process migrates this store now")
        # After the query: that would keep its snapshot until the next statement, and new indexes wait for snapshots.
        db.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield


_COMMAND_LOCK = 4_935_112_608_003
"""Advisory lock of the command that migrates in parts."""


def _execute(db: PostgresSession, statement: str) -> None:
    if "CONCURRENTLY" in statement:  # no transaction may contain it
        db.execute(placed(statement, db.schema).encode())
        return
    with db.in_schema():
        db.execute(statement.encode())


_OBJECT = re.compile(r"(?<= ON )(?=flujo_)|(?<=DROP INDEX CONCURRENTLY )(?=flujo_)|(?<=IF EXISTS )(?=flujo_)")


def placed(statement: str, schema: str | None) -> str:
    """Return a statement about an index that names its schema."""
    return statement if schema is None else _OBJECT.sub(f'"{schema}".', statement, count=1)


def _drop_invalid(db: PostgresSession, statement: str) -> None:
    """Drop an index whose creation was interrupted."""
    found = re.search(r"INDEX CONCURRENTLY IF NOT EXISTS (\w+)", statement)
    invalid = "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(%s) AND NOT indisvalid"
    with db.in_schema():
        is_left = found is not None and db.execute(invalid, (found[1],)).fetchall()
    if found and is_left:
        _execute(db, f"DROP INDEX CONCURRENTLY {found[1]}")


def _set_version(db: PostgresSession) -> None:
    db.execute("ALTER TABLE flujo_schema ADD COLUMN IF NOT EXISTS record_format bigint NOT NULL DEFAULT 2")
    db.execute("UPDATE flujo_schema SET version = %s", (len(MIGRATIONS),))


_BACKFILL_ROWS = 10_000
"""Rows of one backfill transaction; other writers continue in between."""

_BACKFILL: LiteralString = """
    UPDATE flujo_runs SET ended_at = updated_at WHERE id IN (
        SELECT id FROM flujo_runs WHERE ended_at IS NULL AND status IN ('completed', 'failed', 'aborted') LIMIT %s)"""


def _backfilled(db: PostgresSession) -> int:
    """Set the end of some ended runs; return their number."""
    with db.transaction(), db.in_schema():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
        db.execute("ALTER TABLE flujo_runs ADD COLUMN IF NOT EXISTS ended_at float8")
        return db.execute(_BACKFILL, (_BACKFILL_ROWS,)).rowcount


def _migrate_from(db: PostgresSession, number: int) -> None:
    for statements in MIGRATIONS[number:]:
        for statement in statements:
            db.execute(statement)
    if number == 0:
        db.execute("CREATE TABLE flujo_schema (version bigint NOT NULL, record_format bigint NOT NULL)")
        db.execute("INSERT INTO flujo_schema VALUES (%s, %s)", (len(MIGRATIONS), RECORD_VERSION))
        return
    _set_version(db)


def record_format(db: PostgresSession, found: int) -> int:
    """Return the record format of a store with that schema."""
    if found <= MIGRATIONS.index(_TIME):
        return PLAIN_VERSION
    return next(int(number) for (number,) in db.ask("SELECT record_format FROM flujo_schema"))
