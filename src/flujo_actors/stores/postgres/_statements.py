"""The SQL of a Postgres store.

Every write to a run has its lease, owner and epoch, in its predicate. That a lease has run out does not end it: it lets
others claim the run, and the claim ends it. So an owner that was only slow goes on if nobody was waiting.

Time is the database's: `now` is null, except where a test brings its own clock.
"""

from __future__ import annotations

from typing import LiteralString

WALL: LiteralString = "extract(epoch FROM clock_timestamp())::float8"

NOW: LiteralString = f"coalesce(%(now)s::float8, {WALL})"

HELD: LiteralString = f"(owner IS NOT NULL AND {NOW} < lease_until)"

SESSION: LiteralString = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"

LIMIT_IDLE: LiteralString = """
    SELECT set_config('lock_timeout', %(lock)s, %(local)s),
           set_config('idle_in_transaction_session_timeout', %(transaction)s, %(local)s)"""

LIMIT: LiteralString = f"{LIMIT_IDLE}, set_config('transaction_timeout', %(transaction)s, %(local)s)"

END_SESSION: LiteralString = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s"""

SHARE_BLOBS: LiteralString = "SELECT pg_advisory_xact_lock_shared(4935112608002)"
"""Whoever refers to blobs and whoever deletes them exclude one another: neither sees uncommitted rows of the other."""

OWN_BLOBS: LiteralString = "SELECT pg_advisory_xact_lock(4935112608002)"

ADMIT: LiteralString = f"""
    INSERT INTO flujo_runs (run_hash, run_id, pipeline, status, created_at, updated_at, owner, epoch,
                            lease_until, next_seq, queue, parent)
    VALUES (%(hash)s, %(run_id)s, %(pipeline)s, 'running', {WALL}, {WALL}, %(owner)s, %(epoch)s,
            {NOW} + %(lease_s)s::float8, 2, %(queue)s, %(parent)s)
    ON CONFLICT (run_hash) DO NOTHING RETURNING id"""

CLAIM: LiteralString = f"""
    UPDATE flujo_runs SET owner = %(owner)s, epoch = epoch + 1, lease_until = {NOW} + %(lease_s)s::float8
    WHERE run_hash = %(hash)s AND (owner = %(dead)s::text OR NOT {HELD}) RETURNING epoch"""

TAKE_NEW: LiteralString = f"""
    WITH taken AS (
        UPDATE flujo_runs SET owner = %(owner)s, epoch = 1, lease_until = {NOW} + %(lease_s)s::float8
        WHERE run_hash = %(hash)s AND epoch = 0 AND owner IS NULL AND status = 'running' AND cancel IS NULL
        RETURNING id, pipeline, created_at, updated_at, queue, parent)
    SELECT pipeline, created_at, updated_at, queue, parent, seq, kind, path, body, blob, data, at, gist
    FROM taken JOIN flujo_records ON run = taken.id LEFT JOIN flujo_blobs ON hash = blob ORDER BY seq"""
"""The claim of a run that nobody has worked on, and its records."""

ADVANCE: LiteralString = f"""
    UPDATE flujo_runs
    SET next_seq = next_seq + %(count)s::bigint, updated_at = {WALL}, status = coalesce(%(status)s::text, status),
        tokens = coalesce(%(tokens)s::bigint, tokens), cost_usd = coalesce(%(cost_usd)s::float8, cost_usd),
        owner = CASE WHEN %(release)s::bool THEN NULL ELSE owner END,
        cancel = CASE WHEN %(ends)s::bool THEN NULL ELSE cancel END
    WHERE run_hash = %(hash)s AND owner = %(owner)s::text AND epoch = %(epoch)s::bigint
    RETURNING id, next_seq - %(count)s::bigint, cancel"""

RENEW: LiteralString = f"""
    UPDATE flujo_runs SET lease_until = {NOW} + %(lease_s)s::float8
    WHERE run_hash = %(hash)s AND owner = %(owner)s::text AND epoch = %(epoch)s::bigint RETURNING id"""

ADVANCE_BY_ANSWER: LiteralString = f"""
    UPDATE flujo_runs SET next_seq = next_seq + %(count)s::bigint, updated_at = {WALL}
    WHERE run_hash = %(hash)s RETURNING id, next_seq - %(count)s::bigint"""

TODAY: LiteralString = f"coalesce(%(wall)s::float8, {WALL})"
"""What deadlines are counted in; `wall` is null, except where a test brings its own."""

_EXPIRED: LiteralString = "answered < '00000000-0000-0001-0000-000000000000'::uuid"
_ENDED_BY_TIME: LiteralString = "answered < '00000000-0000-0002-0000-000000000000'::uuid"

CONSUME: LiteralString = f"""
    UPDATE flujo_pauses SET answered = %(answered)s
    WHERE run = %(run)s AND path = %(path)s AND token = %(token)s AND answered IS NULL
      AND (due_at IS NULL OR due_at > {TODAY}) RETURNING id"""

DUE_RUNS: LiteralString = f"""
    SELECT id, run_id FROM flujo_runs WHERE id IN
        (SELECT run FROM flujo_pauses WHERE answered IS NULL AND due_at IS NOT NULL AND due_at <= {TODAY})
    ORDER BY run_hash FOR UPDATE"""

EXPIRE: LiteralString = f"""
    UPDATE flujo_pauses SET answered = %(answered)s
    WHERE run = ANY(%(runs)s) AND answered IS NULL AND due_at IS NOT NULL AND due_at <= {TODAY}
    RETURNING run, path"""

ADVANCE_BY_TIME: LiteralString = f"""
    UPDATE flujo_runs SET next_seq = next_seq + %(count)s::bigint, updated_at = {WALL}
    WHERE id = %(run)s RETURNING next_seq - %(count)s::bigint"""

FIND_EXPIRED: LiteralString = "SELECT 1 FROM flujo_pauses WHERE answered = %s LIMIT 1"

TAKE_UP: LiteralString = f"""
    UPDATE flujo_pauses SET answered = '00000000-0000-0001-0000-000000000000' WHERE run = %s AND {_EXPIRED}"""

NEXT_DUE: LiteralString = f"""
    SELECT min(due_at) - {TODAY} FROM flujo_pauses WHERE answered IS NULL AND due_at IS NOT NULL"""

FIND_PAUSE: LiteralString = f"""
    SELECT answered, coalesce({_ENDED_BY_TIME}, due_at IS NOT NULL AND due_at <= {TODAY}) FROM flujo_pauses
    WHERE run = %(run)s AND path = %(path)s AND token = %(token)s"""

OWNER: LiteralString = "SELECT owner, epoch FROM flujo_runs WHERE run_hash = %s"

HOLDER: LiteralString = f"SELECT owner, lease_until - {NOW} FROM flujo_runs WHERE run_hash = %(hash)s"

REQUEST_CANCEL: LiteralString = """
    UPDATE flujo_runs SET cancel = CASE WHEN status IN ('running', 'paused') THEN %(reason)s::text END
    WHERE run_hash = %(hash)s RETURNING id"""

CANCEL_REQUESTS: LiteralString = """
    SELECT run_id, cancel FROM flujo_runs WHERE cancel IS NOT NULL AND run_hash = ANY(%s)"""

INSERT_BLOB: LiteralString = "INSERT INTO flujo_blobs (hash, data) VALUES (%s, %s) ON CONFLICT DO NOTHING"

INSERT_RECORDS: LiteralString = f"""
    INSERT INTO flujo_records (run, seq, kind, path, body, blob, gist, at)
    SELECT *, {WALL}
    FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::bytea[], %s::text[])"""

REPLACE_PAUSE: LiteralString = (
    "DELETE FROM flujo_pauses WHERE run = %s AND path = %s AND (answered IS NULL OR token = %s)"
)

INSERT_PAUSE: LiteralString = f"""
    INSERT INTO flujo_pauses (run, path, token, message, body, due_at)
    VALUES (%(run)s, %(path)s, %(token)s, %(message)s, %(body)s, {TODAY} + %(timeout_s)s::float8)"""

WITHDRAW_PAUSE: LiteralString = "DELETE FROM flujo_pauses WHERE run = %s AND path = %s AND answered IS NULL"

CLOSE_PAUSES: LiteralString = "DELETE FROM flujo_pauses WHERE run = %s AND answered IS NULL"

READ: LiteralString = """
    SELECT seq, kind, path, body, blob, data, at, gist FROM flujo_records LEFT JOIN flujo_blobs ON hash = blob
    WHERE run = (SELECT id FROM flujo_runs WHERE run_hash = %s) AND seq > %s ORDER BY seq LIMIT %s"""

READ_ALL: LiteralString = """
    SELECT run_id, seq, kind, path, body, blob, data, at, gist
    FROM flujo_runs r JOIN flujo_records ON run = r.id LEFT JOIN flujo_blobs ON hash = blob
    WHERE run_hash = ANY(%s) ORDER BY r.id, seq"""

SCAN: LiteralString = """
    SELECT seq, kind, path, at, gist, CASE WHEN gist IS NULL THEN body END, data
    FROM flujo_records LEFT JOIN flujo_blobs ON gist IS NULL AND hash = blob
    WHERE run = (SELECT id FROM flujo_runs WHERE run_hash = %s) AND seq > %s ORDER BY seq LIMIT %s"""
"""Bodies are read only of records without a gist."""

FIND_RECORD: LiteralString = """
    SELECT kind, path, body, blob FROM flujo_records WHERE run = %s AND seq = %s"""

FIND_KEYS: LiteralString = "SELECT id FROM flujo_runs WHERE id = ANY(%s)"

RUNS: LiteralString = f"""
    SELECT id, run_id, pipeline, status, created_at, updated_at, epoch, {HELD}, next_seq - 1, owner,
           lease_until - {NOW}, tokens, cost_usd,
           (SELECT json_agg(json_build_array(path, token, message, body, due_at) ORDER BY p.id)
            FROM flujo_pauses p WHERE run = r.id AND answered IS NULL), queue, parent,
           EXISTS (SELECT 1 FROM flujo_pauses p WHERE run = r.id AND {_EXPIRED})
    FROM flujo_runs r"""

_CAN_BE_HAD: LiteralString = f"status = 'running' AND (NOT {HELD} OR starts_with(owner, %(host)s))"

_IS_ANSWERED: LiteralString = f"""status = 'paused' AND parent IS NULL AND NOT {HELD}
      AND (NOT EXISTS (SELECT 1 FROM flujo_pauses WHERE run = r.id AND answered IS NULL)
           OR EXISTS (SELECT 1 FROM flujo_pauses WHERE run = r.id AND {_EXPIRED}))"""

WANTING: LiteralString = f"""
    WHERE pipeline = %(pipeline)s AND queue = ANY(%(queues)s) AND {_CAN_BE_HAD} ORDER BY r.id LIMIT %(limit)s"""

WANTING_ANSWERED: LiteralString = f"""
    WHERE pipeline = %(pipeline)s AND queue = ANY(%(queues)s) AND queue IS NOT NULL AND {_IS_ANSWERED}
    ORDER BY r.id LIMIT %(limit)s"""

ORPHANS: LiteralString = f"""
    WHERE pipeline = %(pipeline)s AND queue IS NULL AND parent IS NULL AND updated_at <= %(updated_before)s::float8
      AND (({_CAN_BE_HAD}) OR ({_IS_ANSWERED})) ORDER BY r.id LIMIT %(limit)s"""

REQUEUE: LiteralString = """
    UPDATE flujo_runs SET cancel = NULL, status = CASE WHEN owner IS NULL THEN 'running' ELSE status END
    WHERE run_hash = ANY(%s) AND parent IS NOT NULL AND status IN ('running', 'paused')"""

READDRESS: LiteralString = """
    UPDATE flujo_runs SET reply = %s
    WHERE run_hash = ANY(%s) AND parent IS NOT NULL AND status IN ('running', 'paused')"""

PARK: LiteralString = f"""
    UPDATE flujo_runs SET cancel = CASE WHEN {HELD} THEN %(reason)s::text END,
                          status = CASE WHEN {HELD} THEN status ELSE 'paused' END
    WHERE run_hash = ANY(%(hashes)s) AND parent IS NOT NULL AND status = 'running'"""

CHILDREN: LiteralString = "SELECT run_id FROM flujo_runs WHERE parent = %s ORDER BY id"

SIGN_ON: LiteralString = f"""
    INSERT INTO flujo_workers (name, body, seen_at) VALUES (%(name)s, %(body)s, {WALL})
    ON CONFLICT (name) DO UPDATE SET body = excluded.body, seen_at = excluded.seen_at"""

SIGN_OFF: LiteralString = f"DELETE FROM flujo_workers WHERE name = %(name)s OR seen_at < {WALL} - 86400"

SIGNED_ON: LiteralString = f"""
    SELECT name, body, seen_at FROM flujo_workers WHERE seen_at >= {WALL} - %(within_s)s::float8 ORDER BY name"""

DELETE_RUNS: LiteralString = f"""
    WITH doomed AS (SELECT id FROM flujo_runs WHERE run_hash = ANY(%(hashes)s) ORDER BY run_hash FOR UPDATE)
    DELETE FROM flujo_runs WHERE id IN (SELECT id FROM doomed) AND NOT {HELD} RETURNING id, run_id"""

DELETE_CHILDREN: LiteralString = """
    WITH doomed AS (SELECT id FROM flujo_runs WHERE parent = ANY(%s) ORDER BY run_hash FOR UPDATE)
    DELETE FROM flujo_runs WHERE id IN (SELECT id FROM doomed) RETURNING id"""

BLOBS_OF_RUNS: LiteralString = "SELECT DISTINCT blob FROM flujo_records WHERE run = ANY(%s) AND blob IS NOT NULL"

DELETE_RECORDS: LiteralString = "DELETE FROM flujo_records WHERE run = ANY(%s)"

DELETE_PAUSES: LiteralString = "DELETE FROM flujo_pauses WHERE run = ANY(%s)"

DELETE_UNUSED_BLOBS: LiteralString = """
    DELETE FROM flujo_blobs WHERE hash = ANY(%s) AND NOT EXISTS (SELECT 1 FROM flujo_records WHERE blob = hash)"""

WANTED_TEXTS: LiteralString = f"SELECT run FROM flujo_texts_wanted WHERE run = ANY(%s) AND until > {WALL}"

WANT_TEXTS: LiteralString = f"""
    INSERT INTO flujo_texts_wanted (run, until) VALUES (%(run)s, {WALL} + %(for_s)s::float8)
    ON CONFLICT (run) DO UPDATE SET until = excluded.until"""

DROP_STALE_TEXTS: LiteralString = f"""
    DELETE FROM flujo_texts WHERE run IN (SELECT run FROM flujo_texts_wanted WHERE until < {WALL} - 60)"""

DROP_TEXTS: LiteralString = "DELETE FROM flujo_texts WHERE run = ANY(%s)"

LEAVE_TEXT: LiteralString = "INSERT INTO flujo_texts (run, path, text) VALUES (%s, %s, %s)"

TEXTS: LiteralString = "SELECT run, path, text FROM flujo_texts WHERE run = ANY(%s)"
