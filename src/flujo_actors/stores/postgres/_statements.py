"""SQL of the Postgres store.

Every write to a run has its lease, owner and epoch, in its predicate. An expired lease does not end by itself: it
permits a claim, and the claim ends it. So a slow owner continues if no other process claimed the run.

Time is the database's: `now` is null, except in a test with its own clock.
"""

from __future__ import annotations

from typing import LiteralString

WALL: LiteralString = "extract(epoch FROM clock_timestamp())::float8"

NOW: LiteralString = f"coalesce(%(now)s::float8, {WALL})"

TODAY: LiteralString = f"coalesce(%(wall)s::float8, {WALL})"
"""Time of deadlines; `wall` is null except in tests."""

STABLE: LiteralString = "coalesce(%(wall)s::float8, extract(epoch FROM statement_timestamp())::float8)"
"""The same for predicates: a volatile function uses no index."""

HELD: LiteralString = f"(owner IS NOT NULL AND {NOW} < lease_until)"

SESSION: LiteralString = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"

LIMIT_IDLE: LiteralString = """
    SELECT set_config('lock_timeout', %(lock)s, %(local)s),
           set_config('idle_in_transaction_session_timeout', %(transaction)s, %(local)s)"""

LIMIT: LiteralString = f"{LIMIT_IDLE}, set_config('transaction_timeout', %(transaction)s, %(local)s)"

TRANSACTION: LiteralString = """
    SELECT pid, backend_start, xact_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"""
"""Identity of the open transaction: poolers share sessions."""

END_TRANSACTION: LiteralString = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s AND xact_start = %s"""

END_SESSION: LiteralString = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s"""

SHARE_BLOBS: LiteralString = "SELECT pg_advisory_xact_lock_shared(4935112608002)"
"""Lock between writers of blob references and the deleter of blobs.

Neither sees uncommitted rows of the other.
"""

OWN_BLOBS: LiteralString = "SELECT pg_advisory_xact_lock(4935112608002)"

_START: LiteralString = f"coalesce({STABLE} + %(delay_s)s::float8, %(start_at)s::float8)"

_IS_LATER: LiteralString = f"(%(owner)s::text IS NULL AND coalesce({_START} > {STABLE}, false))"
"""Whether a run without an owner starts later."""

ADMIT: LiteralString = f"""
    INSERT INTO flujo_runs (run_hash, run_id, pipeline, status, created_at, updated_at, owner, epoch,
                            lease_until, next_seq, queue, parent, fingerprint, started_at, claimed_at, wake_at, ready,
                            key, priority)
    VALUES (%(hash)s, %(run_id)s, %(pipeline)s, CASE WHEN {_IS_LATER} THEN 'sleeping' ELSE 'running' END,
            {WALL}, {WALL}, %(owner)s, %(epoch)s, {NOW} + %(lease_s)s::float8, 2, %(queue)s, %(parent)s,
            %(fingerprint)s, CASE WHEN %(started)s::bool THEN {WALL} END, {WALL},
            CASE WHEN %(owner)s::text IS NULL THEN CASE WHEN {_IS_LATER} THEN {_START} ELSE {TODAY} END END,
            CASE WHEN %(owner)s::text IS NULL AND NOT {_IS_LATER} THEN 1 END,
            coalesce((SELECT key FROM flujo_runs WHERE run_hash = %(above)s), %(key)s),
            coalesce((SELECT priority FROM flujo_runs WHERE run_hash = %(above)s), %(priority)s))
    ON CONFLICT (run_hash) DO NOTHING RETURNING id, queue IS NOT NULL AND (key <> '' OR priority <> 0)"""
"""A remote step has the key and the priority of its parent."""

_WATCHED: LiteralString = f"EXISTS (SELECT 1 FROM flujo_texts_wanted WHERE run = %(hash)s AND until > {WALL})"
"""Whether another process watches the run that is claimed."""

CLAIM: LiteralString = f"""
    UPDATE flujo_runs SET owner = %(owner)s, epoch = epoch + 1, lease_until = {NOW} + %(lease_s)s::float8,
                          started_at = coalesce(started_at, {WALL}), claimed_at = {WALL}, ready = NULL, wake_at = NULL,
                          status = CASE WHEN epoch = 0 THEN 'running' ELSE status END
    WHERE run_hash = %(hash)s AND (owner = %(dead)s::text OR NOT {HELD}) RETURNING epoch, {_WATCHED}, id"""

ADVANCE: LiteralString = f"""
    UPDATE flujo_runs
    SET next_seq = next_seq + %(count)s::bigint, updated_at = {WALL}, status = coalesce(%(status)s::text, status),
        tokens = coalesce(%(tokens)s::bigint, tokens), cost_usd = coalesce(%(cost_usd)s::float8, cost_usd),
        owner = CASE WHEN %(release)s::bool THEN NULL ELSE owner END,
        cancel = CASE WHEN %(ends)s::bool THEN NULL ELSE cancel END,
        ended_at = CASE WHEN %(ends)s::bool THEN {WALL} ELSE ended_at END,
        worked_s = worked_s + CASE WHEN %(release)s::bool THEN coalesce({WALL} - claimed_at, 0) ELSE 0 END
    WHERE run_hash = %(hash)s AND owner = %(owner)s::text AND epoch = %(epoch)s::bigint
      AND (cancel IS NULL OR NOT %(unless_cancelled)s::bool)
    RETURNING id, next_seq - %(count)s::bigint, cancel, steered"""

PENDING_CANCEL: LiteralString = """
    SELECT cancel FROM flujo_runs WHERE run_hash = %(hash)s AND owner = %(owner)s::text AND epoch = %(epoch)s::bigint
      AND cancel IS NOT NULL"""
"""The reason for which an append under this lease was refused."""

RENEW: LiteralString = f"""
    UPDATE flujo_runs SET lease_until = {NOW} + %(lease_s)s::float8
    WHERE run_hash = %(hash)s AND owner = %(owner)s::text AND epoch = %(epoch)s::bigint RETURNING id"""

ADVANCE_BY_ANSWER: LiteralString = f"""
    UPDATE flujo_runs SET next_seq = next_seq + %(count)s::bigint, updated_at = {WALL}
    WHERE run_hash = %(hash)s RETURNING id, next_seq - %(count)s::bigint"""

RETRY: LiteralString = f"""
    UPDATE flujo_runs SET status = 'running', owner = NULL, cancel = NULL, ended_at = NULL, retries = %(number)s,
                          queue = coalesce(queue, %(queue)s::text), updated_at = {WALL}, next_seq = next_seq + 1,
                          ready = 1, wake_at = {WALL}
    WHERE run_hash = %(hash)s AND retries = %(number)s::bigint - 1
      AND (status IN ('failed', 'aborted') OR (status = 'completed' AND parent IS NOT NULL))
    RETURNING id, next_seq - 1"""

_EXPIRED: LiteralString = "answered < '00000000-0000-0001-0000-000000000000'::uuid"
_ENDED_BY_TIME: LiteralString = "answered < '00000000-0000-0002-0000-000000000000'::uuid"

CONSUME: LiteralString = f"""
    UPDATE flujo_pauses SET answered = %(answered)s
    WHERE run = %(run)s AND path = %(path)s AND token = %(token)s AND answered IS NULL
      AND (due_at IS NULL OR due_at > {TODAY}) RETURNING id"""

DUE_RUNS: LiteralString = f"""
    SELECT id, run_id FROM flujo_runs WHERE id IN
        (SELECT run FROM flujo_pauses WHERE answered IS NULL AND due_at IS NOT NULL AND due_at <= {STABLE}
         ORDER BY due_at LIMIT %(most)s)
    ORDER BY run_hash FOR UPDATE"""

EXPIRE: LiteralString = f"""
    UPDATE flujo_pauses SET answered = %(answered)s
    WHERE run = ANY(%(runs)s) AND answered IS NULL AND due_at IS NOT NULL AND due_at <= {STABLE}
    RETURNING run, path"""

WAKE: LiteralString = """
    UPDATE flujo_pauses SET answered = %(answered)s
    WHERE run = (SELECT id FROM flujo_runs WHERE run_hash = %(hash)s) AND answered IS NULL
      AND wait IN ('sleep', 'rate', 'budget') AND path = coalesce(%(path)s::text, path) RETURNING run, path"""

START_NOW: LiteralString = f"""
    UPDATE flujo_runs SET ready = 1, wake_at = {STABLE}
    WHERE run_hash = %(hash)s AND status = 'sleeping' AND epoch = 0 AND ready IS NULL RETURNING id"""

ADVANCE_BY_TIME: LiteralString = f"""
    UPDATE flujo_runs r SET next_seq = next_seq + n.count, updated_at = {WALL}
    FROM unnest(%(runs)s::bigint[], %(counts)s::bigint[]) AS n (run, count)
    WHERE r.id = n.run RETURNING r.id, r.next_seq - n.count"""

_ASLEEP: LiteralString = "ready IS NULL AND wake_at IS NOT NULL"

PROMOTE: LiteralString = f"""
    UPDATE flujo_runs SET ready = 1 WHERE id IN (
        SELECT id FROM flujo_runs WHERE {_ASLEEP} AND wake_at <= {STABLE} ORDER BY wake_at LIMIT %(most)s
        FOR UPDATE SKIP LOCKED) RETURNING id"""
"""Sleepers that become ready, oldest first."""

IDENTITY: LiteralString = """
    SELECT pg_postmaster_start_time()::text, current_database(), to_regclass('flujo_runs')::oid::bigint
"""
"""Identity of a store's tables; no privilege is needed."""

NEXT_WAKE: LiteralString = f"SELECT min(wake_at) - {STABLE} FROM flujo_runs WHERE {_ASLEEP}"

FIND_EXPIRED: LiteralString = "SELECT 1 FROM flujo_pauses WHERE answered = %s LIMIT 1"

TAKE_UP: LiteralString = f"""
    UPDATE flujo_pauses SET answered = '00000000-0000-0001-0000-000000000000' WHERE run = %s AND {_EXPIRED}"""

NEXT_DUE: LiteralString = f"""
    SELECT min(due_at) - {STABLE} FROM flujo_pauses WHERE answered IS NULL AND due_at IS NOT NULL"""

_IS_PUT_AWAY: LiteralString = "owner IS NULL AND status IN ('paused', 'sleeping')"

_IS_READY: LiteralString = f"""owner IS NULL AND (status = 'running' OR ({_IS_PUT_AWAY} AND parent IS NULL AND (
        NOT EXISTS (SELECT 1 FROM flujo_pauses WHERE run = r.id AND answered IS NULL)
        OR EXISTS (SELECT 1 FROM flujo_pauses WHERE run = r.id AND {_EXPIRED}))))"""

MARK_READY: LiteralString = f"""
    UPDATE flujo_runs r SET ready = CASE WHEN {_IS_READY} THEN 1 END,
        wake_at = CASE WHEN {_IS_READY} THEN CASE status WHEN 'running' THEN created_at ELSE {STABLE} END
                       WHEN {_IS_PUT_AWAY} THEN
                       (SELECT min(due_at) FROM flujo_pauses WHERE run = r.id AND answered IS NULL) END
    WHERE id = ANY(%(runs)s)"""
"""Wake time and readiness; a released run keeps its place."""

FIND_PREFIX: LiteralString = """
    SELECT id FROM flujo_runs WHERE parent IS NULL AND {} ORDER BY left(run_id, 200) USING ~<~ LIMIT %(most)s"""
"""In the order of the index: a bitmap of all such runs took 19 ms for 100,000."""

PIPELINES: LiteralString = """
    WITH RECURSIVE names (name) AS (
        (SELECT left(pipeline, 200) FROM flujo_runs WHERE parent IS NULL ORDER BY left(pipeline, 200) LIMIT 1)
        UNION ALL
        SELECT (SELECT left(pipeline, 200) FROM flujo_runs
                WHERE parent IS NULL AND left(pipeline, 200) > name ORDER BY left(pipeline, 200) LIMIT 1)
        FROM names WHERE name IS NOT NULL)
    SELECT 1 FROM names
    WHERE length(name) = 200 OR strpos(lower(name), lower(%(search)s)) > 0 LIMIT 1"""
"""Whether a pipeline name may contain a text; reads each name once."""

NEWEST: LiteralString = "SELECT coalesce(max(id), 0) FROM flujo_runs"

CREATED: LiteralString = "SELECT id, created_at FROM flujo_runs WHERE id >= %s ORDER BY id LIMIT 1"

FIND_PAUSE: LiteralString = f"""
    SELECT answered, coalesce({_ENDED_BY_TIME}, due_at IS NOT NULL AND due_at <= {TODAY}) FROM flujo_pauses
    WHERE run = %(run)s AND path = %(path)s AND token = %(token)s"""

LOCK_RUN: LiteralString = "SELECT id FROM flujo_runs WHERE run_hash = %s FOR UPDATE"

OWNER: LiteralString = "SELECT owner, epoch FROM flujo_runs WHERE run_hash = %s"

HOLDER: LiteralString = f"SELECT owner, lease_until - {NOW} FROM flujo_runs WHERE run_hash = %(hash)s"

REQUEST_CANCEL: LiteralString = f"""
    UPDATE flujo_runs SET cancel = CASE WHEN ended_at IS NULL THEN %(reason)s::text END,
        wake_at = CASE WHEN owner IS NULL AND status = 'sleeping' THEN {WALL} ELSE wake_at END,
        ready = CASE WHEN owner IS NULL AND status = 'sleeping' THEN 1 ELSE ready END
    WHERE run_hash = %(hash)s RETURNING id"""

OWNER_NOTICES: LiteralString = """
    SELECT run_id, cancel, NULL::bigint FROM flujo_runs WHERE cancel IS NOT NULL AND run_hash = ANY(%(runs)s) UNION ALL
    SELECT run_id, NULL, steered FROM flujo_runs
    WHERE steered IS NOT NULL AND owner IS NOT NULL AND cancel IS NULL AND run_hash = ANY(%(runs)s)"""

INSERT_BLOB: LiteralString = "INSERT INTO flujo_blobs (hash, data) VALUES (%s, %s) ON CONFLICT DO NOTHING"

INSERT_RECORDS: LiteralString = f"""
    INSERT INTO flujo_records (run, seq, kind, path, body, blob, gist, at)
    SELECT *, {WALL}
    FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::bytea[], %s::text[])"""

REPLACE_PAUSE: LiteralString = (
    "DELETE FROM flujo_pauses WHERE run = %s AND path = %s AND (answered IS NULL OR token = %s)"
)

INSERT_PAUSE: LiteralString = f"""
    INSERT INTO flujo_pauses (run, path, token, message, body, due_at, asked_at, addressee, kind, wait, event, key)
    VALUES (%(run)s, %(path)s, %(token)s, %(message)s, %(body)s,
            coalesce({TODAY} + %(timeout_s)s::float8, %(due_at)s::float8), {TODAY}, %(to)s, %(kind)s,
            %(wait)s, %(event)s, %(key)s)"""

WITHDRAW_PAUSE: LiteralString = "DELETE FROM flujo_pauses WHERE run = %s AND path = %s AND answered IS NULL"

CLOSE_PAUSES: LiteralString = "DELETE FROM flujo_pauses WHERE run = ANY(%s) AND answered IS NULL"

READ: LiteralString = """
    SELECT seq, kind, path, body, blob, data, at, gist FROM flujo_records LEFT JOIN flujo_blobs ON hash = blob
    WHERE run = (SELECT id FROM flujo_runs WHERE run_hash = %s) AND seq > %s ORDER BY seq LIMIT %s"""

READ_OUTSIDE: LiteralString = """
    SELECT seq, kind, path, body, blob, data, at, gist FROM flujo_records LEFT JOIN flujo_blobs ON hash = blob
    WHERE run = (SELECT id FROM flujo_runs WHERE run_hash = %s) AND strpos(path, '/~i') = 0 ORDER BY seq"""

REPEATED: LiteralString = """
    SELECT DISTINCT split_part(path, '/~i', 1) FROM flujo_records
    WHERE run = (SELECT id FROM flujo_runs WHERE run_hash = %s) AND strpos(path, '/~i') > 0"""

READ_INSIDE: LiteralString = """
    SELECT seq, kind, path, CASE WHEN blob IS NULL AND strpos(path || body, chr(26)) = 0 THEN body END,
        CASE WHEN kind IN ('paused', 'answered') THEN at END
    FROM flujo_records
    WHERE run = (SELECT id FROM flujo_runs WHERE run_hash = %s) AND seq < %s AND strpos(path, '/~i') > 0
    ORDER BY seq DESC LIMIT %s"""

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
           (SELECT json_agg(json_build_array(path, token, message, body, due_at, asked_at, addressee, kind, wait, event,
                                             key) ORDER BY p.id)
            FROM flujo_pauses p WHERE run = r.id AND answered IS NULL), queue, parent,
           EXISTS (SELECT 1 FROM flujo_pauses p WHERE run = r.id AND {_EXPIRED}),
           cancel, fingerprint, started_at, ended_at, worked_s, retries, key, priority,
           (SELECT json_object_agg(name, value) FROM flujo_labels WHERE run = r.id), wake_at, ready
    FROM flujo_runs r"""

ASKED: LiteralString = """
    SELECT {columns}, (SELECT json_object_agg(name, value) FROM flujo_labels WHERE run = r.id)
    FROM flujo_pauses AS p JOIN flujo_runs AS r ON r.id = p.run
    WHERE {part.where} ORDER BY {part.order} LIMIT %(limit)s"""
"""Open questions, with the labels of their runs."""

ADDRESSEE: LiteralString = "left(p.addressee, 200) = left(%(to)s::text, 200) AND p.addressee = %(to)s"
"""Condition of an addressee, by its index."""

RUN_KEY: LiteralString = "SELECT id FROM flujo_runs WHERE run_hash = %(hash)s"

COUNTS: LiteralString = f"""
    SELECT status, count(*) FROM flujo_runs WHERE parent IS NULL GROUP BY status
    UNION ALL SELECT 'abandoned', count(*) FROM flujo_runs
        WHERE parent IS NULL AND status = 'running' AND epoch > 0 AND NOT {HELD}
    UNION ALL SELECT 'questions', count(*) FROM flujo_pauses p JOIN flujo_runs r ON r.id = run
        WHERE answered IS NULL AND wait IS NULL AND parent IS NULL"""

_ONLY_ASKS: LiteralString = "ready IS NULL AND owner IS NULL AND cancel IS NULL"

OPEN_GROUPS: LiteralString = f"""
    SELECT 'paused', false, false, false, true, NULL, NULL, NULL, NULL, count(*) FROM flujo_runs
    WHERE parent IS NULL AND status = 'paused' AND {_ONLY_ASKS}
    UNION ALL
    SELECT status, {HELD} AS held, cancel IS NOT NULL, owner IS NOT NULL,
           status <> 'running' AND ready IS NULL AND owner IS NULL, queue, pipeline, fingerprint,
           min(CASE WHEN epoch = 0 THEN created_at ELSE updated_at END), count(*)
    FROM flujo_runs
    WHERE parent IS NULL AND status IN ('running', 'sleeping', 'paused') AND ended_at IS NULL
      AND NOT (status = 'paused' AND {_ONLY_ASKS})
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8"""
"""Runs that wait for an answer are counted apart: they are many, and nothing else decides their state."""

GROUPS: LiteralString = f"""
    SELECT status, false, false, false, false, NULL, NULL, NULL, NULL::float8, count(*) FROM flujo_runs
    WHERE parent IS NULL AND status IN ('completed', 'failed', 'aborted') GROUP BY status
    UNION ALL{OPEN_GROUPS}"""

_IN_QUEUES: LiteralString = "pipeline = %(pipeline)s AND queue = ANY(%(queues)s)"

_IS_DEAD: LiteralString = f"""
    owner IS NOT NULL AND ended_at IS NULL AND (NOT {HELD} OR starts_with(owner, %(host)s))"""
"""Expired lease, or an owner on this machine.

The status does not matter: an owner may die between its claim of an answered run and its first write.
"""

ADOPT_FORMER: LiteralString = """
    UPDATE flujo_runs SET ready = 1, wake_at = created_at
    WHERE status = 'running' AND owner IS NULL AND ready IS NULL AND wake_at IS NULL AND parent IS NULL"""
"""Runs of the former release, which does not mark claimable runs."""

WANTING: LiteralString = f"""
    WHERE ready = 1 AND {_IN_QUEUES} ORDER BY priority DESC, key, wake_at, r.id LIMIT %(limit)s"""

WANTING_DEAD: LiteralString = f"WHERE {_IS_DEAD} AND {_IN_QUEUES} ORDER BY lease_until, r.id LIMIT %(limit)s"

_UNQUEUED: LiteralString = """
    pipeline = %(pipeline)s AND queue IS NULL AND parent IS NULL AND updated_at <= %(updated_before)s::float8"""

ORPHANS: LiteralString = f"""
    WHERE ready = 1 AND {_UNQUEUED} ORDER BY priority DESC, key, wake_at, r.id LIMIT %(limit)s"""

ORPHANS_DEAD: LiteralString = f"WHERE {_IS_DEAD} AND {_UNQUEUED} ORDER BY lease_until, r.id LIMIT %(limit)s"

REQUEUE: LiteralString = """
    UPDATE flujo_runs SET cancel = NULL, status = CASE WHEN owner IS NULL THEN 'running' ELSE status END,
        ready = CASE WHEN owner IS NULL THEN 1 END, wake_at = CASE WHEN owner IS NULL THEN created_at END
    WHERE run_hash = ANY(%s) AND parent IS NOT NULL AND status IN ('running', 'paused')"""

READDRESS: LiteralString = """
    UPDATE flujo_runs SET reply = %s
    WHERE run_hash = ANY(%s) AND parent IS NOT NULL AND status IN ('running', 'paused')"""

PARK: LiteralString = f"""
    UPDATE flujo_runs SET cancel = CASE WHEN {HELD} THEN %(reason)s::text END,
                          status = CASE WHEN {HELD} THEN status ELSE 'paused' END, ready = NULL, wake_at = NULL,
                          owner = CASE WHEN {HELD} THEN owner END
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

DELETE_RECORDS: LiteralString = "DELETE FROM flujo_records WHERE run = ANY(%s) RETURNING octet_length(body)"

DELETE_PAUSES: LiteralString = "DELETE FROM flujo_pauses WHERE run = ANY(%s)"

DELETE_UNUSED_BLOBS: LiteralString = """
    DELETE FROM flujo_blobs WHERE hash = ANY(%s) AND NOT EXISTS (SELECT 1 FROM flujo_records WHERE blob = hash)
    RETURNING octet_length(data)"""

VACUUM: LiteralString = """
    VACUUM (ANALYZE) flujo_runs, flujo_records, flujo_pauses, flujo_blobs, flujo_labels, flujo_budgets, flujo_shares"""

WANTED_TEXTS: LiteralString = f"SELECT run FROM flujo_texts_wanted WHERE run = ANY(%s) AND until > {WALL}"

WANT_TEXTS: LiteralString = f"""
    INSERT INTO flujo_texts_wanted (run, until) VALUES (%(run)s, {WALL} + %(for_s)s::float8)
    ON CONFLICT (run) DO UPDATE SET until = excluded.until"""

DROP_STALE_TEXTS: LiteralString = f"""
    DELETE FROM flujo_texts WHERE run IN (SELECT run FROM flujo_texts_wanted WHERE until < {WALL} - 60)"""

DROP_TEXTS: LiteralString = "DELETE FROM flujo_texts WHERE run = ANY(%s)"

DROP_WANTED_TEXTS: LiteralString = "DELETE FROM flujo_texts_wanted WHERE run = ANY(%s)"

LEAVE_TEXT: LiteralString = "INSERT INTO flujo_texts (run, path, text) VALUES (%s, %s, %s)"

TEXTS: LiteralString = "SELECT run, path, text FROM flujo_texts WHERE run = ANY(%s)"

COMPACTED: LiteralString = """
    SELECT (SELECT min(seq) FROM flujo_records WHERE run = r.id AND kind = 'compacted')
    FROM flujo_runs r WHERE run_hash = %s"""

_OLD_TURNS: LiteralString = """
    WITH base AS (
        SELECT max(seq) AS until FROM flujo_records
        WHERE run = (SELECT id FROM flujo_runs WHERE run_hash = %(hash)s) AND kind = 'compacted' AND path = %(base)s
    ), oldest AS (
        SELECT r.id AS of_run, until, (
            SELECT min(seq) FROM flujo_records
            WHERE run = r.id AND kind = 'compacted' AND seq < until AND starts_with(path, %(turns)s)) AS seq
        FROM flujo_runs r, base WHERE run_hash = %(hash)s AND until IS NOT NULL
    ), range AS (
        SELECT of_run, until, CASE WHEN o.seq IS NULL OR EXISTS (
            SELECT 1 FROM flujo_records e WHERE e.run = of_run AND e.seq = o.seq - 1) THEN 0 ELSE o.seq END AS first
        FROM oldest o)"""
"""Range of the old turns; it begins at the oldest compacted one if older turns were deleted before."""

_IS_OLD_TURN: LiteralString = """
    run = of_run AND seq >= first AND seq < until AND (
        starts_with(path, %(turns)s) OR starts_with(path, %(pauses)s)
        OR (kind = ANY(%(kinds)s) AND path = ANY(%(around)s)))"""

BLOBS_OF_OLD_TURNS: LiteralString = f"""
    {_OLD_TURNS} SELECT DISTINCT blob FROM flujo_records, range WHERE {_IS_OLD_TURN} AND blob IS NOT NULL"""

COMPACT: LiteralString = f"""
    {_OLD_TURNS}, dropped AS (
        DELETE FROM flujo_records USING range WHERE {_IS_OLD_TURN} RETURNING run, kind, path)
    DELETE FROM flujo_pauses p USING dropped d
    WHERE p.run = d.run AND p.path = d.path AND d.kind = 'paused' AND answered IS NOT NULL"""
