"""The SQL of a SQLite store.

A record's key is its run's key and its number, `(run << 32) + seq`. Every write to a run has its lease, owner and
epoch, in its predicate. That a lease has run out does not end it: it lets others claim the run, and the claim ends it.
So an owner that was only slow goes on if nobody was waiting.
"""

from __future__ import annotations

import functools

HELD = "owner IS NOT NULL AND lease_boot = :boot AND lease_from <= :now AND :now < lease_until"
"""A lease that was granted in the future is of an earlier boot, where the system does not name its boots."""

_LEASE = "run_id = ? AND owner = ? AND epoch = ?"

_NAMED_LEASE = "run_id = :run_id AND owner = :owner AND epoch = :epoch"

_LAST = """
    max(flujo_runs.id << 32, coalesce((SELECT max(id) FROM flujo_records WHERE id < (flujo_runs.id + 1) << 32), 0))"""
"""The key of a run's last record; of no other run's, should all of its records be gone."""

_INSERT_NEXT = f"""
    INSERT INTO flujo_records (id, after_us, kind, path, body, blob, gist)
    SELECT {_LAST} + 1, CAST(round((:wall - created_at) * 1e6) AS INTEGER), :kind, :path, :body, :blob, :gist
    FROM flujo_runs"""

ADMIT = """
    INSERT INTO flujo_runs (run_id, pipeline, status, created_at, updated_at, owner, epoch,
                            lease_boot, lease_from, lease_until, records, queue, parent)
    VALUES (:run_id, :pipeline, 'running', :wall, :wall, :owner, :epoch, :boot, :now, :until, 1, :queue, :parent)
    ON CONFLICT (run_id) DO NOTHING"""

CLAIM = f"""
    UPDATE flujo_runs
    SET owner = :owner, epoch = epoch + 1, lease_boot = :boot, lease_from = :now, lease_until = :until
    WHERE run_id = :run_id AND (owner = :dead OR NOT ({HELD})) RETURNING epoch"""

_RECORD = "INSERT INTO flujo_records (id, after_us, kind, path, body, blob, gist)"

APPEND = f"""
    {_RECORD}
    SELECT {_LAST} + 1, CAST(round((? - created_at) * 1e6) AS INTEGER), ?, ?, ?, ?, ? FROM flujo_runs WHERE {_LEASE}
    RETURNING id, after_us"""

INSERT_AT = f"""
    {_RECORD} SELECT ?, ?, ?, ?, ?, ?, ? FROM flujo_runs WHERE id = ? AND {_LEASE}
    ON CONFLICT DO NOTHING"""
"""The same where the record's key and time are known; nothing if somebody else has used the key."""


@functools.cache
def insert_many_at(count: int) -> str:
    """The same for so many records: all of them, none without the lease, and an error if a key was used."""
    rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * count)
    columns = ", ".join(f"column{number}" for number in range(1, 8))
    return f"{_RECORD} SELECT {columns} FROM (VALUES {rows}), flujo_runs WHERE id = ? AND {_LEASE}"


_STATE = """
    updated_at = ?, status = coalesce(?, status), tokens = coalesce(?, tokens), cost_usd = coalesce(?, cost_usd),
    owner = CASE WHEN ? THEN NULL ELSE owner END, cancel = CASE WHEN ? THEN NULL ELSE cancel END"""

CHANGE = f"UPDATE flujo_runs SET records = {_LAST} & 0xFFFFFFFF, {_STATE} WHERE {_LEASE} RETURNING id"

CHANGE_AT = f"UPDATE flujo_runs SET records = ?, {_STATE} WHERE id = ? AND {_LEASE}"

RENEW = f"""
    UPDATE flujo_runs SET lease_boot = :boot, lease_from = :now, lease_until = :until
    WHERE {_NAMED_LEASE} RETURNING id"""

APPEND_ANSWER = f"{_INSERT_NEXT} WHERE id = :run RETURNING id"

ANSWERED = f"UPDATE flujo_runs SET records = {_LAST} & 0xFFFFFFFF, updated_at = :wall WHERE id = :run"

EXPIRED, TAKEN_UP = 2, 3
"""What `answered` says of a question that time has ended: nobody has gone on with its run since, or somebody has."""

CONSUME = """
    UPDATE flujo_pauses SET answered = 1
    WHERE run = (SELECT id FROM flujo_runs WHERE run_id = :run_id)
      AND path = :path AND token = :token AND answered IS NULL AND (due_at IS NULL OR due_at > :wall)
    RETURNING run"""

EXPIRE = f"""
    UPDATE flujo_pauses SET answered = {EXPIRED}
    WHERE answered IS NULL AND due_at IS NOT NULL AND due_at <= :wall RETURNING run, path"""

TAKE_UP = f"UPDATE flujo_pauses SET answered = {TAKEN_UP} WHERE run = ? AND answered = {EXPIRED}"

NEXT_DUE = "SELECT min(due_at) FROM flujo_pauses WHERE answered IS NULL AND due_at IS NOT NULL"

RUN_NAME = "SELECT run_id FROM flujo_runs WHERE id = ?"

FIND_PAUSE = """
    SELECT answered, due_at IS NOT NULL AND due_at <= :wall FROM flujo_pauses
    WHERE run = (SELECT id FROM flujo_runs WHERE run_id = :run_id) AND path = :path AND token = :token"""

OWNER = "SELECT owner, epoch FROM flujo_runs WHERE run_id = ?"

HOLDER = "SELECT owner, lease_until - :now FROM flujo_runs WHERE run_id = :run_id"

REQUEST_CANCEL = """
    UPDATE flujo_runs SET cancel = CASE WHEN status IN ('running', 'paused') THEN :reason END
    WHERE run_id = :run_id RETURNING id"""

CANCEL_REQUESTS = "SELECT run_id, cancel FROM flujo_runs WHERE cancel IS NOT NULL"

INSERT_BLOB = "INSERT INTO flujo_blobs (hash, data) VALUES (?, ?) ON CONFLICT DO NOTHING"

INSERT_FIRST = f"{_RECORD} VALUES (?, 0, ?, ?, ?, ?, ?)"

REPLACE_PAUSE = "DELETE FROM flujo_pauses WHERE run = ? AND path = ? AND (answered IS NULL OR token = ?)"

INSERT_PAUSE = "INSERT INTO flujo_pauses (run, path, token, message, body, due_at) VALUES (?, ?, ?, ?, ?, ?)"

WITHDRAW_PAUSE = "DELETE FROM flujo_pauses WHERE run = ? AND path = ? AND answered IS NULL"

CLOSE_PAUSES = "DELETE FROM flujo_pauses WHERE run = ? AND answered IS NULL"

_OF_RUN_AFTER = """
    id > (SELECT (id << 32) + :after FROM flujo_runs WHERE run_id = :run_id)
    AND id < (SELECT (id + 1) << 32 FROM flujo_runs WHERE run_id = :run_id) ORDER BY id"""

_AT = "(SELECT created_at FROM flujo_runs WHERE run_id = :run_id) + after_us / 1e6"

READ = f"""
    SELECT seq, kind, path, body, blob, data, {_AT}, gist FROM flujo_records LEFT JOIN flujo_blobs ON hash = blob
    WHERE {_OF_RUN_AFTER} LIMIT :limit"""

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
           EXISTS (SELECT 1 FROM flujo_pauses WHERE run = r.id AND answered = {EXPIRED})
    FROM (
        SELECT flujo_runs.id, run_id, pipeline, status, created_at, owner, epoch, lease_boot, lease_from, lease_until,
               queue, parent, tokens, cost_usd,
               coalesce(last.seq, records) AS records,
               max(updated_at, coalesce(created_at + last.after_us / 1e6, updated_at)) AS updated_at
        FROM flujo_runs LEFT JOIN flujo_records AS last ON last.id = CASE WHEN owner IS NOT NULL THEN {_LAST} END
    ) AS r"""
"""What the row of a run with an owner does not say, its last record does."""

_IN_QUEUES = "pipeline = :pipeline AND queue IN (SELECT value FROM json_each(:queues))"

_CAN_BE_HAD = f"status = 'running' AND (NOT ({HELD}) OR substr(owner, 1, length(:host)) = :host)"

_IS_ANSWERED = f"""status = 'paused' AND parent IS NULL AND NOT ({HELD})
      AND (id NOT IN (SELECT run FROM flujo_pauses WHERE answered IS NULL)
           OR id IN (SELECT run FROM flujo_pauses WHERE answered = {EXPIRED}))"""

WANTING = f"WHERE {_IN_QUEUES} AND queue IS NOT NULL AND {_CAN_BE_HAD} ORDER BY id LIMIT :limit"

WANTING_ANSWERED = f"WHERE {_IN_QUEUES} AND queue IS NOT NULL AND {_IS_ANSWERED} ORDER BY id LIMIT :limit"

ORPHANS = f"""
    WHERE pipeline = :pipeline AND queue IS NULL AND parent IS NULL AND updated_at <= :updated_before
      AND (({_CAN_BE_HAD}) OR ({_IS_ANSWERED})) ORDER BY id LIMIT :limit"""

REQUEUE = """
    UPDATE flujo_runs SET cancel = NULL, status = CASE WHEN owner IS NULL THEN 'running' ELSE status END
    WHERE run_id = ? AND parent IS NOT NULL AND status IN ('running', 'paused')"""

PARK = f"""
    UPDATE flujo_runs SET cancel = CASE WHEN {HELD} THEN :reason END,
                          status = CASE WHEN {HELD} THEN status ELSE 'paused' END
    WHERE run_id = :run_id AND parent IS NOT NULL AND status = 'running'"""

CHILDREN = "SELECT run_id FROM flujo_runs WHERE parent = ? ORDER BY id"

SIGN_ON = "INSERT OR REPLACE INTO flujo_workers (name, body, seen_at) VALUES (?, ?, ?)"

SIGN_OFF = "DELETE FROM flujo_workers WHERE name = ? OR seen_at < ? - 86400"

SIGNED_ON = "SELECT name, body, seen_at FROM flujo_workers WHERE seen_at >= ? ORDER BY name"

OPEN_PAUSES = """
    SELECT run, path, token, message, body, due_at FROM flujo_pauses
    WHERE answered IS NULL AND run IN (SELECT value FROM json_each(?)) ORDER BY id"""

DELETE_RUN = f"DELETE FROM flujo_runs WHERE run_id = :run_id AND NOT ({HELD}) RETURNING id"

DELETE_CHILDREN = "DELETE FROM flujo_runs WHERE parent = :run_id RETURNING id"

_OF_RUN = "id > ?1 << 32 AND id < (?1 + 1) << 32"

BLOBS_OF_RUN = f"SELECT DISTINCT blob FROM flujo_records WHERE {_OF_RUN} AND blob IS NOT NULL"

DELETE_RECORDS = f"DELETE FROM flujo_records WHERE {_OF_RUN}"

DELETE_PAUSES = "DELETE FROM flujo_pauses WHERE run = ?"

DELETE_UNUSED_BLOB = """
    DELETE FROM flujo_blobs WHERE hash = ?1 AND NOT EXISTS (SELECT 1 FROM flujo_records WHERE blob = ?1)"""
