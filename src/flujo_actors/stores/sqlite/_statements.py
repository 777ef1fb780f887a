"""SQL of the SQLite store.

A record's key is its run's key and its number, `(run << 32) + seq`. Every write to a run has its lease, owner and
epoch, in its predicate. An expired lease does not end by itself: it permits a claim, and the claim ends it. So a slow
owner continues if no other process claimed the run.
"""

from __future__ import annotations

import functools

from ..._core.records.records import AT_ONCE

HELD = "owner IS NOT NULL AND lease_boot = :boot AND lease_from <= :now AND :now < lease_until"
"""Held lease; without boot ids, a future grant is an earlier boot's."""

_LEASE = "run_id = ? AND owner = ? AND epoch = ?"

_NAMED_LEASE = "run_id = :run_id AND owner = :owner AND epoch = :epoch"

_LAST = """
    max(flujo_runs.id << 32, coalesce((SELECT max(id) FROM flujo_records WHERE id < (flujo_runs.id + 1) << 32), 0))"""
"""Key of a run's last record; never another run's, even without records."""

_INSERT_NEXT = f"""
    INSERT INTO flujo_records (id, after_us, kind, path, body, blob, gist)
    SELECT {_LAST} + 1, CAST(round((:wall - created_at) * 1e6) AS INTEGER), :kind, :path, :body, :blob, :gist
    FROM flujo_runs"""

ADMIT = """
    INSERT INTO flujo_runs (run_id, pipeline, status, created_at, updated_at, owner, epoch,
                            lease_boot, lease_from, lease_until, records, queue, parent,
                            fingerprint, started_at, claimed_at, wake_at, ready, key, priority)
    VALUES (:run_id, :pipeline, CASE WHEN :wake_at > :wall THEN 'sleeping' ELSE 'running' END, :wall, :wall, :owner,
            :epoch, :boot, :now, :until, 1, :queue, :parent, :fingerprint, :started_at, :wall, :wake_at,
            CASE WHEN :wake_at <= :wall THEN 1 END,
            coalesce((SELECT key FROM flujo_runs WHERE run_id = :parent), :key),
            coalesce((SELECT priority FROM flujo_runs WHERE run_id = :parent), :priority))
    ON CONFLICT (run_id) DO NOTHING"""
"""A remote step has the key and the priority of its parent."""

CLAIM = f"""
    UPDATE flujo_runs
    SET owner = :owner, epoch = epoch + 1, lease_boot = :boot, lease_from = :now, lease_until = :until,
        started_at = coalesce(started_at, :wall), claimed_at = :wall, ready = NULL, wake_at = NULL,
        status = CASE WHEN epoch = 0 THEN 'running' ELSE status END
    WHERE run_id = :run_id AND (owner = :dead OR NOT ({HELD})) RETURNING epoch, id"""

_RECORD = "INSERT INTO flujo_records (id, after_us, kind, path, body, blob, gist)"

APPEND = f"""
    {_RECORD}
    SELECT {_LAST} + 1, CAST(round((? - created_at) * 1e6) AS INTEGER), ?, ?, ?, ?, ? FROM flujo_runs WHERE {_LEASE}
    RETURNING id, after_us"""

INSERT_AT = f"""
    {_RECORD} SELECT ?, ?, ?, ?, ?, ?, ? FROM flujo_runs WHERE id = ? AND {_LEASE}
    ON CONFLICT DO NOTHING"""
"""Insert with a known key and time; no effect if used."""


@functools.cache
def insert_many_at(count: int) -> str:
    """Return the insert of `count` records: all, none, or an error."""
    rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * count)
    columns = ", ".join(f"column{number}" for number in range(1, 8))
    return f"{_RECORD} SELECT {columns} FROM (VALUES {rows}), flujo_runs WHERE id = ? AND {_LEASE}"


@functools.cache
def insert_each_at(count: int) -> str:
    """Return the insert of a record of each run; unused keys alone."""
    rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * count)
    columns = ", ".join(f"column{number}" for number in range(1, 8))
    return f"""{_RECORD} SELECT {columns} FROM (VALUES {rows}) CROSS JOIN flujo_runs
        WHERE id = column8 AND run_id = column9 AND owner = column10 AND epoch = column11
        ON CONFLICT DO NOTHING RETURNING id"""


_STATE = """
    updated_at = ?, status = coalesce(?, status),
    tokens = coalesce(?, tokens), cost_usd = coalesce(?, cost_usd),
    owner = CASE WHEN ? THEN NULL ELSE owner END, cancel = CASE WHEN ? THEN NULL ELSE cancel END,
    ended_at = coalesce(?, ended_at), worked_s = worked_s + coalesce(? - claimed_at, 0)"""

CHANGE = f"UPDATE flujo_runs SET records = {_LAST} & 0xFFFFFFFF, {_STATE} WHERE {_LEASE} RETURNING id"

CHANGE_AT = f"UPDATE flujo_runs SET records = ?, {_STATE} WHERE id = ? AND {_LEASE}"

RENEW = f"""
    UPDATE flujo_runs SET lease_boot = :boot, lease_from = :now, lease_until = :until
    WHERE {_NAMED_LEASE} RETURNING id"""

APPEND_ANSWER = f"{_INSERT_NEXT} WHERE id = :run RETURNING id"

ANSWERED = f"UPDATE flujo_runs SET records = {_LAST} & 0xFFFFFFFF, updated_at = :wall WHERE id = :run"

RETRY = """
    UPDATE flujo_runs SET status = 'running', owner = NULL, cancel = NULL, ended_at = NULL, retries = :number,
                          queue = coalesce(queue, :queue), updated_at = :wall, ready = 1, wake_at = :wall
    WHERE run_id = :run_id AND retries = :number - 1
      AND (status IN ('failed', 'aborted') OR (status = 'completed' AND parent IS NOT NULL)) RETURNING id"""

EXPIRED, TAKEN_UP = 2, 3
"""Values of `answered` for a pause ended by itself, resumed or not."""

CONSUME = """
    UPDATE flujo_pauses SET answered = 1
    WHERE run = (SELECT id FROM flujo_runs WHERE run_id = :run_id)
      AND path = :path AND token = :token AND answered IS NULL AND (due_at IS NULL OR due_at > :wall)
    RETURNING run"""

EXPIRE = f"""
    UPDATE flujo_pauses SET answered = {EXPIRED}
    WHERE id IN (SELECT id FROM flujo_pauses WHERE answered IS NULL AND due_at IS NOT NULL AND due_at <= :wall
                 ORDER BY due_at LIMIT {AT_ONCE}) RETURNING run, path"""

EXPIRE_RUN = f"""
    UPDATE flujo_pauses SET answered = {EXPIRED}
    WHERE run = ? AND answered IS NULL AND due_at <= ? RETURNING run, path"""

WAKE = f"""
    UPDATE flujo_pauses SET answered = {EXPIRED}
    WHERE run = (SELECT id FROM flujo_runs WHERE run_id = :run_id) AND answered IS NULL
      AND wait IN ('sleep', 'rate', 'budget') AND path = coalesce(:path, path) RETURNING run, path"""

START_NOW = """
    UPDATE flujo_runs SET ready = 1, wake_at = :wall
    WHERE run_id = :run_id AND status = 'sleeping' AND epoch = 0 AND ready IS NULL RETURNING id"""

_ASLEEP = "ready IS NULL AND wake_at IS NOT NULL"

PROMOTE = f"""
    UPDATE flujo_runs SET ready = 1 WHERE id IN (
        SELECT id FROM flujo_runs WHERE {_ASLEEP} AND wake_at <= ? ORDER BY wake_at LIMIT {AT_ONCE})"""
"""Sleepers that become ready, oldest first."""

NEXT_WAKE = f"SELECT min(wake_at) FROM flujo_runs WHERE {_ASLEEP}"

TAKE_UP = f"UPDATE flujo_pauses SET answered = {TAKEN_UP} WHERE run = ? AND answered = {EXPIRED}"

NEXT_DUE = "SELECT min(due_at) FROM flujo_pauses WHERE answered IS NULL AND due_at IS NOT NULL"

_IS_PUT_AWAY = "owner IS NULL AND status IN ('paused', 'sleeping')"

_IS_READY = f"""owner IS NULL AND (status = 'running' OR ({_IS_PUT_AWAY} AND parent IS NULL AND (
        NOT EXISTS (SELECT 1 FROM flujo_pauses WHERE run = flujo_runs.id AND answered IS NULL)
        OR EXISTS (SELECT 1 FROM flujo_pauses WHERE run = flujo_runs.id AND answered = {EXPIRED}))))"""

MARK_READY = f"""
    UPDATE flujo_runs SET ready = CASE WHEN {_IS_READY} THEN 1 END,
        wake_at = CASE WHEN {_IS_READY} THEN CASE status WHEN 'running' THEN created_at ELSE :wall END
                       WHEN {_IS_PUT_AWAY} THEN
                       (SELECT min(due_at) FROM flujo_pauses WHERE run = flujo_runs.id AND answered IS NULL) END
    WHERE id = :run"""
"""Wake time and readiness; a released run keeps its place."""

FIND_PREFIX = "SELECT id FROM flujo_runs WHERE parent IS NULL AND {} LIMIT :most"

PIPELINES = """
    WITH RECURSIVE names (name) AS (
        SELECT min(pipeline) FROM flujo_runs WHERE parent IS NULL
        UNION ALL
        SELECT (SELECT min(pipeline) FROM flujo_runs WHERE parent IS NULL AND pipeline > name)
        FROM names WHERE name IS NOT NULL)
    SELECT 1 FROM names WHERE instr(lower(name), lower(:search)) > 0 LIMIT 1"""
"""Whether a pipeline name contains a text; reads each name once."""

NEWEST = "SELECT coalesce(max(id), 0) FROM flujo_runs"

CREATED = "SELECT id, created_at FROM flujo_runs WHERE id >= ? ORDER BY id LIMIT 1"

RUN_NAME = "SELECT run_id FROM flujo_runs WHERE id = ?"

FIND_PAUSE = """
    SELECT answered, due_at IS NOT NULL AND due_at <= :wall FROM flujo_pauses
    WHERE run = (SELECT id FROM flujo_runs WHERE run_id = :run_id) AND path = :path AND token = :token"""

OWNER = "SELECT owner, epoch FROM flujo_runs WHERE run_id = ?"

HOLDER = "SELECT owner, lease_until - :now FROM flujo_runs WHERE run_id = :run_id"

REQUEST_CANCEL = """
    UPDATE flujo_runs SET cancel = CASE WHEN ended_at IS NULL THEN :reason END,
        wake_at = CASE WHEN owner IS NULL AND status = 'sleeping' THEN :wall ELSE wake_at END,
        ready = CASE WHEN owner IS NULL AND status = 'sleeping' THEN 1 ELSE ready END
    WHERE run_id = :run_id RETURNING id"""

OWNER_NOTICES = """
    SELECT run_id, cancel AS reason, NULL AS message FROM flujo_runs WHERE cancel IS NOT NULL UNION ALL
    SELECT run_id, NULL, steered FROM flujo_runs WHERE steered IS NOT NULL AND owner IS NOT NULL AND cancel IS NULL"""

INSERT_BLOB = "INSERT INTO flujo_blobs (hash, data) VALUES (?, ?) ON CONFLICT DO NOTHING"

INSERT_FIRST = f"{_RECORD} VALUES (?, 0, ?, ?, ?, ?, ?)"

REPLACE_PAUSE = "DELETE FROM flujo_pauses WHERE run = ? AND path = ? AND (answered IS NULL OR token = ?)"

INSERT_PAUSE = """
    INSERT INTO flujo_pauses (run, path, token, message, body, due_at, asked_at, addressee, kind, wait, event, key)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

WITHDRAW_PAUSE = "DELETE FROM flujo_pauses WHERE run = ? AND path = ? AND answered IS NULL"

CLOSE_PAUSES = "DELETE FROM flujo_pauses WHERE run = ? AND answered IS NULL"

_OF_RUN = """
    id > (SELECT (id << 32) + :after FROM flujo_runs WHERE run_id = :run_id)
    AND id < (SELECT (id + 1) << 32 FROM flujo_runs WHERE run_id = :run_id)"""

_OF_RUN_AFTER = f"{_OF_RUN} ORDER BY id"

_AT = "(SELECT created_at FROM flujo_runs WHERE run_id = :run_id) + after_us / 1e6"

READ = f"""
    SELECT seq, kind, path, body, blob, data, {_AT}, gist FROM flujo_records LEFT JOIN flujo_blobs ON hash = blob
    WHERE {_OF_RUN_AFTER} LIMIT :limit"""

READ_OUTSIDE = f"""
    SELECT seq, kind, path, body, blob, data, {_AT}, gist FROM flujo_records LEFT JOIN flujo_blobs ON hash = blob
    WHERE instr(path, '/~i') = 0 AND {_OF_RUN_AFTER}"""

REPEATED = f"""
    SELECT DISTINCT substr(path, 1, instr(path, '/~i') - 1) FROM flujo_records
    WHERE instr(path, '/~i') > 0 AND {_OF_RUN}"""

READ_INSIDE = f"""
    SELECT seq, kind, path, CASE WHEN blob IS NULL AND instr(path || body, char(26)) = 0 THEN body END,
        CASE WHEN kind IN ('paused', 'answered') THEN {_AT} END
    FROM flujo_records
    WHERE instr(path, '/~i') > 0 AND id > (SELECT id << 32 FROM flujo_runs WHERE run_id = :run_id)
    AND id < (SELECT (id << 32) + :before FROM flujo_runs WHERE run_id = :run_id) ORDER BY id DESC LIMIT :limit"""

SCAN = f"""
    SELECT seq, kind, path, {_AT}, gist, CASE WHEN gist IS NULL THEN body END, data
    FROM flujo_records LEFT JOIN flujo_blobs ON gist IS NULL AND hash = blob
    WHERE {_OF_RUN_AFTER} LIMIT :limit"""
"""Bodies are read only of records without a gist."""

READ_RAW = f"""
    SELECT seq, CAST(kind AS BLOB), CAST(path AS BLOB), CAST(body AS BLOB) FROM flujo_records
    WHERE {_OF_RUN_AFTER}"""

RUNS = f"""
    SELECT id, run_id, pipeline, status, created_at, updated_at, epoch, {HELD}, records, owner, lease_until - :now,
           queue, parent, tokens, cost_usd,
           EXISTS (SELECT 1 FROM flujo_pauses WHERE run = r.id AND answered = {EXPIRED}),
           cancel, fingerprint, started_at, ended_at, worked_s, retries, key, priority,
           (SELECT json_group_object(name, value) FROM flujo_labels WHERE run = r.id), wake_at, ready
    FROM (
        SELECT flujo_runs.id, run_id, pipeline, status, created_at, owner, epoch, lease_boot, lease_from, lease_until,
               queue, parent, tokens, cost_usd, cancel, fingerprint, started_at, ended_at, worked_s, retries, ready,
               wake_at, key, priority,
               coalesce(last.seq, records) AS records,
               max(updated_at, coalesce(created_at + last.after_us / 1e6, updated_at)) AS updated_at
        FROM flujo_runs LEFT JOIN flujo_records AS last ON last.id = CASE WHEN owner IS NOT NULL THEN {_LAST} END
    ) AS r"""
"""Listing query; an owned run's missing columns come from its last record."""

_IN_QUEUES = "+pipeline = :pipeline AND queue IN (SELECT value FROM json_each(:queues))"

_IS_DEAD = f"""
    owner IS NOT NULL AND ended_at IS NULL AND (NOT ({HELD}) OR substr(owner, 1, length(:host)) = :host)"""
"""Expired lease, or an owner on this machine.

The status does not matter: an owner may die between its claim of an answered run and its first write.
"""

ADOPT_FORMER = """
    UPDATE flujo_runs SET ready = 1, wake_at = created_at
    WHERE status = 'running' AND owner IS NULL AND ready IS NULL AND wake_at IS NULL AND parent IS NULL"""
"""Runs of the former release, which does not mark claimable runs."""

WANTING = f"WHERE ready = 1 AND {_IN_QUEUES} ORDER BY priority DESC, key, wake_at, id LIMIT :limit"

WANTING_DEAD = f"""
    WHERE {_IS_DEAD} AND +pipeline = :pipeline AND +queue IN (SELECT value FROM json_each(:queues))
    ORDER BY lease_until, id LIMIT :limit"""

_UNQUEUED = "+pipeline = :pipeline AND parent IS NULL AND updated_at <= :updated_before"

ORPHANS = f"WHERE ready = 1 AND queue IS NULL AND {_UNQUEUED} ORDER BY priority DESC, key, wake_at, id LIMIT :limit"

ORPHANS_DEAD = f"WHERE {_IS_DEAD} AND +queue IS NULL AND {_UNQUEUED} ORDER BY lease_until, id LIMIT :limit"

REQUEUE = """
    UPDATE flujo_runs SET cancel = NULL, status = CASE WHEN owner IS NULL THEN 'running' ELSE status END,
        ready = CASE WHEN owner IS NULL THEN 1 END, wake_at = CASE WHEN owner IS NULL THEN created_at END
    WHERE run_id = ? AND parent IS NOT NULL AND status IN ('running', 'paused')"""

PARK = f"""
    UPDATE flujo_runs SET cancel = CASE WHEN {HELD} THEN :reason END,
                          status = CASE WHEN {HELD} THEN status ELSE 'paused' END, ready = NULL, wake_at = NULL,
                          owner = CASE WHEN {HELD} THEN owner END
    WHERE run_id = :run_id AND parent IS NOT NULL AND status = 'running'"""

CHILDREN = "SELECT run_id FROM flujo_runs WHERE parent = ? ORDER BY id"

SIGN_ON = "INSERT OR REPLACE INTO flujo_workers (name, body, seen_at) VALUES (?, ?, ?)"

SIGN_OFF = "DELETE FROM flujo_workers WHERE name = ? OR seen_at < ? - 86400"

SIGNED_ON = "SELECT name, body, seen_at FROM flujo_workers WHERE seen_at >= ? ORDER BY name"

OPEN_PAUSES = """
    SELECT run, path, token, message, body, due_at, asked_at, addressee, kind, wait, event, key FROM flujo_pauses
    WHERE answered IS NULL AND run IN (SELECT value FROM json_each(?)) ORDER BY id"""

ASKED = """
    SELECT {columns}, (SELECT json_group_object(name, value) FROM flujo_labels WHERE run = r.id)
    FROM flujo_pauses AS p CROSS JOIN flujo_runs AS r
    WHERE r.id = p.run AND {part.where} ORDER BY {part.order} LIMIT :limit"""
"""Open questions by an index of pauses; `CROSS JOIN` keeps it first."""

RUN_KEY = "SELECT id FROM flujo_runs WHERE run_id = :run_id"

COUNTS = f"""
    SELECT status, count(*) FROM flujo_runs WHERE parent IS NULL GROUP BY status
    UNION ALL SELECT 'abandoned', count(*) FROM flujo_runs
        WHERE parent IS NULL AND status = 'running' AND epoch > 0 AND NOT ({HELD})
    UNION ALL SELECT 'questions', count(*) FROM flujo_pauses AS p CROSS JOIN flujo_runs AS r
        WHERE r.id = run AND answered IS NULL AND wait IS NULL AND parent IS NULL"""

_ONLY_ASKS = "ready IS NULL AND owner IS NULL AND cancel IS NULL"

OPEN_GROUPS = f"""
    SELECT 'paused', 0, 0, 0, 1, NULL, NULL, NULL, NULL, count(*) FROM flujo_runs
    WHERE parent IS NULL AND status = 'paused' AND {_ONLY_ASKS}
    UNION ALL
    SELECT status, {HELD}, cancel IS NOT NULL, owner IS NOT NULL,
           status <> 'running' AND ready IS NULL AND owner IS NULL, queue, pipeline, fingerprint,
           min(CASE WHEN epoch = 0 THEN created_at ELSE updated_at END), count(*)
    FROM flujo_runs
    WHERE parent IS NULL AND status IN ('running', 'sleeping', 'paused') AND ended_at IS NULL
      AND NOT (status = 'paused' AND {_ONLY_ASKS})
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8"""
"""Runs that wait for an answer are counted without a sort: they are many, and nothing else decides their state."""

GROUPS = f"""
    SELECT status, 0, 0, 0, 0, NULL, NULL, NULL, NULL, count(*) FROM flujo_runs
    WHERE parent IS NULL AND status IN ('completed', 'failed', 'aborted') GROUP BY status
    UNION ALL{OPEN_GROUPS}"""

DELETE_RUN = f"DELETE FROM flujo_runs WHERE run_id = :run_id AND NOT ({HELD}) RETURNING id"

DELETE_CHILDREN = "DELETE FROM flujo_runs WHERE parent = :run_id RETURNING id"

_OF_RUN = "id > :run << 32 AND id < (:run + 1) << 32"

BLOBS_OF_RUN = f"SELECT DISTINCT blob FROM flujo_records WHERE {_OF_RUN} AND blob IS NOT NULL"

DELETE_RECORDS = f"DELETE FROM flujo_records WHERE {_OF_RUN} RETURNING length(CAST(body AS BLOB))"

DELETE_PAUSES = "DELETE FROM flujo_pauses WHERE run = ?"

DELETE_UNUSED_BLOB = """
    DELETE FROM flujo_blobs WHERE hash = :hash AND NOT EXISTS (SELECT 1 FROM flujo_records WHERE blob = :hash)
    RETURNING length(data)"""

_COMPACTED = """
    FROM flujo_records INDEXED BY flujo_records_compacted
    WHERE kind = 'compacted' AND id > :run << 32 AND id < (:run + 1) << 32"""

COMPACTED = "SELECT min(seq) FROM flujo_records WHERE kind = 'compacted' AND id > :run << 32 AND id < (:run + 1) << 32"

COMPACTION_BASE = f"SELECT max(id) {_COMPACTED} AND path = :base"

COMPACTION_START = f"""
    SELECT first FROM (
        SELECT min(id) AS first {_COMPACTED} AND id < :until AND substr(path, 1, length(:turns)) = :turns)
    WHERE first IS NOT NULL AND NOT EXISTS (SELECT 1 FROM flujo_records WHERE id = first - 1)"""
"""Oldest compacted turn of a loop, if older turns were deleted before."""

COMPACT = """
    DELETE FROM flujo_records WHERE id >= :from AND id < :until AND (
        substr(path, 1, length(:turns)) = :turns OR substr(path, 1, length(:pauses)) = :pauses
        OR (kind IN (SELECT value FROM json_each(:kinds)) AND path IN (SELECT value FROM json_each(:around))))
    RETURNING kind, path, blob"""

DELETE_ANSWERED = "DELETE FROM flujo_pauses WHERE run = ? AND path = ? AND answered IS NOT NULL"
