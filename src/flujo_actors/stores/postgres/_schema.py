"""The tables of a Postgres store, and how an older database becomes a newer one.

They stand in the schema that the connection's `search_path` names first. Runs are found by the hash of their id: an
index entry of Postgres cannot be longer than a third of a page, a run id can.
"""

from __future__ import annotations

from typing import LiteralString

from ...errors import StoreVersionError
from ._session import Connection

_MIGRATION_LOCK = 4_935_112_608_001
"""Names the advisory lock under which one process at a time migrates."""

_FIND_SCHEMA: LiteralString = "SELECT 1 FROM pg_class WHERE relname = 'flujo_schema' AND pg_table_is_visible(oid)"
"""Read from the catalog itself: a lookup by name may remember that the table was not there a moment ago."""

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
"""Why a run shall end, until it has. Hardly any run has such a request, and the index holds no others."""

_QUEUES: tuple[LiteralString, ...] = (
    "ALTER TABLE flujo_runs ADD COLUMN queue text",
    "ALTER TABLE flujo_runs ADD COLUMN parent text",
    "CREATE INDEX flujo_runs_by_queue ON flujo_runs (queue, id) WHERE queue IS NOT NULL AND status = 'running'",
    "CREATE INDEX flujo_runs_by_parent ON flujo_runs USING hash (parent) WHERE parent IS NOT NULL",
    "CREATE TABLE flujo_workers (name text PRIMARY KEY, body text NOT NULL, seen_at float8 NOT NULL)",
)
"""Where a run waits for a worker, whose remote step it is, and who is there to work. A hash takes ids of any length."""

_LISTINGS: tuple[LiteralString, ...] = (
    "ALTER TABLE flujo_records ADD COLUMN gist text, ADD COLUMN at float8",
    "ALTER TABLE flujo_runs ADD COLUMN tokens bigint NOT NULL DEFAULT 0, ADD COLUMN cost_usd float8 NOT NULL DEFAULT 0",
)
"""What listings show of a record without its body, when it was written, and what a run has used."""

_DEADLINES: tuple[LiteralString, ...] = (
    "ALTER TABLE flujo_pauses ADD COLUMN due_at float8",
    "CREATE INDEX flujo_pauses_due ON flujo_pauses (due_at) WHERE answered IS NULL AND due_at IS NOT NULL",
)
"""Until when a question waits for its answer. Few do, and the index holds no others."""

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
"""What is known of agents that selections choose from; the scope is a hash of the beliefs' name and the category."""

_TEXTS: tuple[LiteralString, ...] = (
    "CREATE UNLOGGED TABLE flujo_texts_wanted (run bytea PRIMARY KEY, until float8 NOT NULL)",
    "CREATE UNLOGGED TABLE flujo_texts (run bytea NOT NULL, path text NOT NULL, text text NOT NULL)",
    "CREATE INDEX flujo_texts_by_run ON flujo_texts (run)",
)
"""What steps are writing, for those who watch; nothing of it survives a crash."""

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
"""What the processes of a run have spent of its budgets, and set aside under which lease; `run` is that one's hash."""

_RESTING: tuple[LiteralString, ...] = (
    """CREATE INDEX flujo_runs_resting ON flujo_runs (queue, id)
        WHERE queue IS NOT NULL AND parent IS NULL AND status = 'paused'""",
    "CREATE INDEX flujo_pauses_open ON flujo_pauses (run) WHERE answered IS NULL",
)
"""The runs of queues that wait for answers, at which workers look again and again, and what they wait for."""

_REPLIES: tuple[LiteralString, ...] = ("ALTER TABLE flujo_runs ADD COLUMN reply text",)
"""Who is told when a remote step ends, once that is not who asked for it any more."""

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
)
"""What leads from each version to the next; an empty schema has version 0."""


def migrate(db: Connection) -> None:
    """Bring the schema up to date, in one transaction; `StoreVersionError`, before any change, if it is newer."""
    with db.transaction():
        if version(db) == len(MIGRATIONS):
            return
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
        _migrate_from(db, version(db))  # read again: somebody else may have done it meanwhile


def version(db: Connection) -> int:
    """The version of the schema; 0 if it has none of our tables, `StoreVersionError` if it is not known."""
    if not db.execute(_FIND_SCHEMA).fetchall():
        return 0
    [(number,)] = db.execute("SELECT version FROM flujo_schema").fetchall()
    if not 0 < number <= len(MIGRATIONS):
        raise StoreVersionError(
            f"the database has schema version {number!r}, and this version of flujo-actors knows 1 to "
            f"{len(MIGRATIONS)}; it was left as it is"
        )
    return int(number)


def _migrate_from(db: Connection, number: int) -> None:
    for statements in MIGRATIONS[number:]:
        for statement in statements:
            db.execute(statement)
    if number == 0:
        db.execute("CREATE TABLE flujo_schema (version bigint NOT NULL)")
        db.execute("INSERT INTO flujo_schema VALUES (%s)", (len(MIGRATIONS),))
    else:
        db.execute("UPDATE flujo_schema SET version = %s", (len(MIGRATIONS),))
