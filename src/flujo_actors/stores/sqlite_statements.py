"""The SQL of a SQLite store.

Every write to a run has its lease, owner and epoch, in its predicate. That a lease has run out does not end it: it lets
others claim the run, and the claim ends it. So an owner that was only slow goes on if nobody was waiting.
"""

from __future__ import annotations

HELD = "owner IS NOT NULL AND lease_boot = :boot AND lease_from <= :now AND :now < lease_until"
"""A lease that was granted in the future is of an earlier boot, where the system does not name its boots."""

ADMIT = """
    INSERT INTO flujo_runs (run_id, pipeline, status, created_at, updated_at, owner, epoch,
                            lease_boot, lease_from, lease_until, next_seq)
    VALUES (:run_id, :pipeline, 'running', :wall, :wall, :owner, 1, :boot, :now, :until, 2)
    ON CONFLICT (run_id) DO NOTHING RETURNING id"""

CLAIM = f"""
    UPDATE flujo_runs
    SET owner = :owner, epoch = epoch + 1, lease_boot = :boot, lease_from = :now, lease_until = :until
    WHERE run_id = :run_id AND NOT ({HELD}) RETURNING epoch"""

ADVANCE = """
    UPDATE flujo_runs
    SET next_seq = next_seq + :count, updated_at = :wall, status = coalesce(:status, status),
        owner = CASE WHEN :release THEN NULL ELSE owner END
    WHERE run_id = :run_id AND owner = :owner AND epoch = :epoch
    RETURNING id, next_seq - :count"""

RENEW = """
    UPDATE flujo_runs SET lease_boot = :boot, lease_from = :now, lease_until = :until
    WHERE run_id = :run_id AND owner = :owner AND epoch = :epoch RETURNING id"""

ADVANCE_BY_ANSWER = """
    UPDATE flujo_runs SET next_seq = next_seq + 1, updated_at = :wall WHERE id = :run RETURNING next_seq - 1"""

CONSUME = f"""
    UPDATE flujo_pauses SET answered = 1
    WHERE run = (SELECT id FROM flujo_runs WHERE run_id = :run_id AND NOT ({HELD}))
      AND path = :path AND token = :token AND answered IS NULL
    RETURNING run"""

FIND_PAUSE = """
    SELECT answered FROM flujo_pauses
    WHERE run = (SELECT id FROM flujo_runs WHERE run_id = :run_id) AND path = :path AND token = :token"""

OWNER = "SELECT owner, epoch FROM flujo_runs WHERE run_id = ?"

INSERT_BLOB = "INSERT INTO flujo_blobs (hash, data) VALUES (?, ?) ON CONFLICT DO NOTHING"

INSERT_RECORD = "INSERT INTO flujo_records (run, seq, kind, path, body, blob) VALUES (?, ?, ?, ?, ?, ?)"

REPLACE_PAUSE = "DELETE FROM flujo_pauses WHERE run = ? AND path = ? AND (answered IS NULL OR token = ?)"

INSERT_PAUSE = "INSERT INTO flujo_pauses (run, path, token, message, body) VALUES (?, ?, ?, ?, ?)"

CLOSE_PAUSES = "DELETE FROM flujo_pauses WHERE run = ? AND answered IS NULL"

READ = """
    SELECT seq, kind, path, body, blob, data FROM flujo_records LEFT JOIN flujo_blobs ON hash = blob
    WHERE run = (SELECT id FROM flujo_runs WHERE run_id = ?) AND seq > ? ORDER BY seq"""

READ_RAW = """
    SELECT seq, CAST(kind AS BLOB), CAST(path AS BLOB), CAST(body AS BLOB) FROM flujo_records
    WHERE run = (SELECT id FROM flujo_runs WHERE run_id = ?) AND seq > ? ORDER BY seq"""

RUNS = f"""
    SELECT id, run_id, pipeline, status, created_at, updated_at, epoch, {HELD}, next_seq - 1 FROM flujo_runs"""

OPEN_PAUSES = """
    SELECT run, path, token, message, body FROM flujo_pauses
    WHERE answered IS NULL AND run IN (SELECT value FROM json_each(?)) ORDER BY id"""

DELETE_RUN = f"DELETE FROM flujo_runs WHERE run_id = :run_id AND NOT ({HELD}) RETURNING id"

BLOBS_OF_RUN = "SELECT DISTINCT blob FROM flujo_records WHERE run = ? AND blob IS NOT NULL"

DELETE_RECORDS = "DELETE FROM flujo_records WHERE run = ?"

DELETE_PAUSES = "DELETE FROM flujo_pauses WHERE run = ?"

DELETE_UNUSED_BLOB = """
    DELETE FROM flujo_blobs WHERE hash = ?1 AND NOT EXISTS (SELECT 1 FROM flujo_records WHERE blob = ?1)"""
