"""Appends to a SQLite file, under leases and with the fewest statements.

Rules:

1. Every statement has the lease in its predicate: if it is outdated, nothing is written.
2. The position of a run is known from the previous write (`_places`); otherwise the statement reads it.
3. Cancel requests are read once per transaction.
4. Many records of one run are written a hundred at a time. After each statement the thread waits for the interpreter,
   for 5 ms or more where the loop is busy: one by one, the records of ten thousand concurrent steps took longer than a
   lease lasts. Single records of many runs are written together, too.

Sections:

- Pauses in a SQLite file: opened, answered, deferred and timed out, with their records.
- Selection statistics in a SQLite file: one statement adds each outcome.
"""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from ..._core.attempt_results import CancelPending, ConversationMoved
from ..._core.outcomes import RunId
from ..._core.policies.selection import Belief, Evidence
from ..._core.records.records import (
    SESSION_KINDS,
    TIMED_OUT,
    Admission,
    Append,
    CancelRequest,
    Compaction,
    Lease,
    OpenPause,
    OutboxMessage,
    OwnerNotice,
    Record,
    has_ended,
)
from ..._core.records.sent_events import refusal_of
from ..._core.step_paths import ROOT, StepPath
from ..._core.views.record_summaries import gist_of
from ...errors import LeaseLost
from .. import _question_lists as question_lists
from .. import _record_rows as record_rows
from .._record_rows import Blob, as_blob, restored, storable
from .._store_port import Verdict
from . import _statements as sql
from ._budgets import write_share
from ._connections import SqliteConnections
from ._run_queries import RunPositions, RunRow, owner_of
from ._schedules import write_cached

# --- Pauses in a SQLite file --------------------------------------------------------------------------------------


def consume(
    db: sqlite3.Connection, run_id: RunId, path: StepPath, token: str, records: Sequence[Record], wall: float
) -> int:
    """Consume an open pause for an answer; return its run's key."""
    pause = {"run_id": storable(run_id), "path": storable(path), "token": storable(token), "wall": wall}
    for (run,) in db.execute(sql.CONSUME, pause).fetchall():
        add_records(db, run, records, wall)
        return int(run)
    for answered, over in db.execute(sql.FIND_PAUSE, pause).fetchall():
        by_time = answered in (sql.EXPIRED, sql.TAKEN_UP) or (answered is None and over)
        raise record_rows.expired(run_id, path) if by_time else record_rows.already_answered(run_id, path)
    raise record_rows.not_paused(run_id, path)


def add_records(db: sqlite3.Connection, run: int, records: Sequence[Record], wall: float) -> None:
    """Append records outside any lease."""
    answered = {"run": run, "wall": wall}
    for record in records:
        insert(db, sql.APPEND_ANSWER, record, answered)
    db.execute(sql.ANSWERED, answered)


def expire(db: sqlite3.Connection, body: str, wall: float) -> dict[int, RunId]:
    """End some timed-out pauses; return their runs by key."""
    return end_waits(db, db.execute(sql.EXPIRE, {"wall": wall}).fetchall(), body, wall)


def expire_run(db: sqlite3.Connection, run: int, wall: float) -> None:
    """End the timed-out pauses of a run that is claimed."""
    end_waits(db, db.execute(sql.EXPIRE_RUN, (run, wall)).fetchall(), TIMED_OUT, wall)


def end_waits(db: sqlite3.Connection, ended: Sequence[Any], body: str, wall: float) -> dict[int, RunId]:
    """Record the end of consumed waits; return their runs by key."""
    for run, path in ended:
        add_records(db, run, [Record(kind="answered", path=StepPath(restored(path)), body=body)], wall)
    return {run: run_named(db, run) for run, _ in ended}


def mark_ready(db: sqlite3.Connection, runs: Iterable[int], wall: float) -> None:
    """Decide when runs without an owner can be claimed."""
    db.executemany(sql.MARK_READY, [{"run": run, "wall": wall} for run in runs])


def write(db: sqlite3.Connection, run: int, append: Append, wall: float) -> None:
    """Apply the opened and withdrawn pauses of an append."""
    for place in append.withdrawn:
        db.execute(sql.WITHDRAW_PAUSE, (run, storable(place)))
    for pause in append.pauses:
        ask(db, run, pause, wall)
        if pause.event is not None:
            _take_buffered(db, run, append.lease.run_id, pause, wall)
    if append.status == "running":
        db.execute(sql.TAKE_UP, (run,))
    if has_ended(append.status):
        db.execute(sql.CLOSE_PAUSES, (run,))
    elif append.release:
        mark_ready(db, [run], wall)


_BUFFERED = """
    SELECT number, body FROM flujo_events
    WHERE event = ? AND key = ? AND status = 'buffered' AND retain_until > ? ORDER BY number LIMIT 1"""

_REFUSE = "UPDATE flujo_events SET status = 'refused', refused_by = ?, reason = ? WHERE number = ?"

_DELIVER = "UPDATE flujo_events SET status = 'delivered', delivered = ? WHERE number = ?"

_CONSUME_AT = f"""
    UPDATE flujo_pauses SET answered = {sql.EXPIRED} WHERE run = ? AND path = ? AND token = ? AND answered IS NULL"""


def _take_buffered(db: sqlite3.Connection, run: int, run_id: RunId, pause: OpenPause, wall: float) -> None:
    """Deliver the oldest buffered event to a wait that opens."""
    wanted: tuple[Any, ...] = (storable(pause.event or ""), storable(pause.key or ""), wall)
    while rows := db.execute(_BUFFERED, wanted).fetchall():
        [(number, stored)] = rows
        body = restored(stored)
        reason = refusal_of(body, pause.body)
        if reason is None:
            db.execute(_DELIVER, (json.dumps([run_id]), number))
            db.execute(_CONSUME_AT, (run, storable(pause.path), storable(pause.token)))
            add_records(db, run, [Record(kind="answered", path=pause.path, body=body)], wall)
            return
        db.execute(_REFUSE, (storable(run_id), storable(reason), number))


def ask(db: sqlite3.Connection, run: int, pause: OpenPause, wall: float) -> None:
    """Open a pause, replacing the open one at its path."""
    path, token = storable(pause.path), storable(pause.token)
    due_at = pause.due_at if pause.timeout_s is None else wall + pause.timeout_s
    db.execute(sql.REPLACE_PAUSE, (run, path, token))
    texts = (storable(pause.message), storable(pause.body))
    others = (pause.to, pause.kind, pause.wait, pause.event, pause.key)
    stored = (None if text is None else storable(text) for text in others)
    db.execute(sql.INSERT_PAUSE, (run, path, token, *texts, due_at, wall, *stored))


def run_named(db: sqlite3.Connection, run: int) -> RunId:
    """Return the id of a run by its key."""
    [(run_id,)] = db.execute(sql.RUN_NAME, (run,)).fetchall()
    return RunId(restored(run_id))


def open_pauses(db: sqlite3.Connection, runs: list[int]) -> dict[int, list[OpenPause]]:
    """Return the open pauses by run."""
    pauses: dict[int, list[OpenPause]] = {}
    for run, *columns in db.execute(sql.OPEN_PAUSES, (json.dumps(runs),)).fetchall():
        pauses.setdefault(run, []).append(question_lists.open_pause(*columns))
    return pauses


def insert(db: sqlite3.Connection, statement: str, record: Record, where: Mapping[str, object]) -> list[Any]:
    """Insert a record and its long body; return nothing if refused."""
    blob, gist = as_blob(record.body), gist_of(record)
    columns = {
        **where,
        "kind": record.kind,
        "path": storable(record.path),
        "body": storable(record.body) if blob is None else "",
        "blob": None if blob is None else blob.hash,
        "gist": None if gist is None else storable(gist),
    }
    inserted = db.execute(statement, columns).fetchall()
    if blob is not None and inserted:
        db.execute(sql.INSERT_BLOB, blob)
    return inserted


# --- Selection statistics in a SQLite file ------------------------------------------------------------------------


_FOR_EVER = 1e18
"""Over how many outcomes costs are averaged if nothing is forgotten."""

_LEARN = """
    INSERT INTO flujo_beliefs (name, category, arm, alpha, beta, observations, mean_cost_usd, updated_at)
    VALUES (:name, :category, :arm, :reward, 1.0 - :reward, 1, :cost_usd, :wall)
    ON CONFLICT (name, category, arm) DO UPDATE SET
        alpha = alpha * :keep + :reward, beta = beta * :keep + 1.0 - :reward, observations = observations + 1,
        mean_cost_usd = mean_cost_usd + (:cost_usd - mean_cost_usd) / min(observations + 1, :span),
        updated_at = :wall"""

_BELIEFS = """
    SELECT arm, alpha, beta, observations, mean_cost_usd, :wall - updated_at FROM flujo_beliefs
    WHERE name = :name AND category = :category"""

_REWARDED = """
    SELECT flujo_runs.id, EXISTS (
        SELECT 1 FROM flujo_records
        WHERE flujo_records.id > flujo_runs.id << 32 AND flujo_records.id < (flujo_runs.id + 1) << 32
          AND kind = 'rewarded' AND path = :path)
    FROM flujo_runs WHERE run_id = :run_id"""


class SqliteBeliefs:
    """Selection statistics of a SQLite store."""

    _connections: SqliteConnections
    _wall: Callable[[], float]

    def beliefs(self, name: str, category: str) -> dict[str, Belief]:
        wanted = {"name": storable(name), "category": storable(category), "wall": self._wall()}
        with self._connections.reading() as db:
            rows = db.execute(_BELIEFS, wanted).fetchall()
        return {restored(arm): _belief(*facts) for arm, *facts in rows}

    def reward(self, run_id: RunId, path: StepPath, *, record: Record, evidence: Evidence) -> None:
        with self._connections.writing() as db:
            found = db.execute(_REWARDED, {"run_id": storable(run_id), "path": storable(path)}).fetchall()
            if not found:
                raise record_rows.not_found(run_id)
            [(run, rewarded)] = found
            if rewarded:
                raise record_rows.rewarded(run_id, path)
            answered = {"run": run, "wall": self._wall()}
            insert(db, sql.APPEND_ANSWER, record, answered)
            db.execute(sql.ANSWERED, answered)
            learn(db, evidence, self._wall())

    def steer(self, run_id: RunId, *, record: Record, after: int) -> int | None:
        with self._connections.writing() as db:
            found = db.execute(_STEERABLE, (after, storable(run_id))).fetchall()
            if not found:
                raise record_rows.not_found(run_id)
            [(run, is_open, is_newest)] = found
            if not (is_open and is_newest):
                return 0 if is_open else None
            add_records(db, run, [record], self._wall())
            [(seq,)] = db.execute(_STEERED, (run,)).fetchall()
            return int(seq)


_STEERABLE = "SELECT id, ended_at IS NULL, coalesce(steered, 0) <= ? FROM flujo_runs WHERE run_id = ?"
_STEERED = "UPDATE flujo_runs SET steered = records WHERE id = ? RETURNING steered"


def learn(db: sqlite3.Connection, evidence: Evidence, wall: float) -> None:
    """Add an outcome to the statistics of its arm."""
    said: dict[str, object] = {
        "name": storable(evidence.name),
        "category": storable(evidence.category),
        "arm": storable(evidence.arm),
        "reward": evidence.reward,
        "cost_usd": evidence.cost_usd,
        "keep": evidence.keep,
        "span": min(evidence.span, _FOR_EVER),
        "wall": wall,
    }
    db.execute(_LEARN, said)


def _belief(alpha: float, beta: float, observations: int, mean_cost_usd: float, idle_s: float) -> Belief:
    return Belief(
        alpha=alpha, beta=beta, observations=observations, mean_cost_usd=mean_cost_usd, idle_s=max(0.0, idle_s)
    )


# --- Appends to a SQLite file -------------------------------------------------------------------------------------


MANY, MOST_AT_ONCE = 8, 100


def append_all(db: sqlite3.Connection, batch: Sequence[Append], wall: float, places: RunPositions) -> list[Verdict]:
    """Write the appends, each all of it or nothing."""
    cursor = db.cursor()
    requests = owner_notices(db)  # no other process can add one before this transaction ends
    lost: list[LeaseLost | ConversationMoved | CancelPending | None] = []
    written = _bulk_inserted(cursor, batch, wall, places) if len(batch) >= MANY else set()
    for append, count in _merged(batch):
        if append.lease.run_id in written:
            lost.append(None)
            continue
        why = _cancelled(db, append, requests) or _appended(cursor, append, wall, places)
        lost.append(why)
        lost += [None if why is None else _lost(cursor, append.lease, places) for _ in range(count - 1)]
    if not requests and not any(lost):
        return [None] * len(batch)
    return [why or _notice(requests, append) for why, append in zip(lost, batch, strict=True)]


def _cancelled(db: sqlite3.Connection, append: Append, requests: Mapping[RunId, OwnerNotice]) -> CancelPending | None:
    """Return the refusal of an append to a cancelled run."""
    lease, request = append.lease, requests.get(append.lease.run_id) if append.unless_cancelled else None
    if isinstance(request, CancelRequest) and owner_of(db, lease.run_id) == (lease.owner, lease.epoch):
        return CancelPending(request)
    return None


def _notice(requests: Mapping[RunId, OwnerNotice], append: Append) -> OwnerNotice | None:
    """Return the news for the owner of a run that continues."""
    return None if has_ended(append.status) else requests.get(append.lease.run_id)


def _merged(batch: Sequence[Append]) -> Iterator[tuple[Append, int]]:
    """Yield the appends, merging consecutive records of a run (rule 4)."""
    for _, group in itertools.groupby(batch, lambda append: append.lease if _is_plain(append) else id(append)):
        first, *others = group
        yield (attrs.evolve(first, records=_records_of(first, *others)) if others else first), 1 + len(others)


def _records_of(*appends: Append) -> tuple[Record, ...]:
    return tuple(itertools.chain.from_iterable(append.records for append in appends))


def _is_plain(append: Append) -> bool:
    return not (
        _changes_run(append)
        or append.evidence
        or append.shares
        or append.outbox
        or append.compaction
        or append.cached
        or append.conversation
    )


def owner_notices(db: sqlite3.Connection) -> dict[RunId, OwnerNotice]:
    """Return the runs with a cancel request or with messages; usually none."""
    rows = db.execute(sql.OWNER_NOTICES).fetchall()
    return {RunId(restored(run_id)): record_rows.owner_notice(*news) for run_id, *news in rows}


def insert_first(
    db: sqlite3.Connection, admission: Admission, lease: Lease, run: int, wall: float, places: RunPositions
) -> None:
    """The record of a run that was admitted just now."""
    columns, blob = columns_of(Record(kind="admitted", path=ROOT, body=admission.body))
    first = (run << 32) + 1
    db.execute(sql.INSERT_FIRST, (first, *columns))
    if blob is not None:
        db.execute(sql.INSERT_BLOB, blob)
    if lease.epoch:
        places.update(RunRow(lease, _under(run, lease), first, wall))


def columns_of(record: Record) -> tuple[tuple[str, str, str, bytes | None, str | None], Blob | None]:
    """Return the stored columns of a record, and its long body.

    The columns are kind, path, body, hash of a long body and gist.
    """
    blob, gist = as_blob(record.body), gist_of(record)
    body = storable(record.body) if blob is None else ""
    hashed = None if blob is None else blob.hash
    return (record.kind, storable(record.path), body, hashed, None if gist is None else storable(gist)), blob


_NAMED = re.compile(r"\{(\w+)\}")


def executor(db: sqlite3.Connection) -> record_rows.Ask:
    """Return how to execute statements with `{name}`."""
    return lambda text, named: db.execute(_NAMED.sub(r":\1", text), named).fetchall()


def _appended(
    cursor: sqlite3.Cursor, append: Append, wall: float, places: RunPositions
) -> LeaseLost | ConversationMoved | None:
    lease = append.lease
    if append.conversation is not None:
        moved = record_rows.moved(executor(cursor.connection), append.conversation)
        if moved is not None:
            return moved
    place, records = places.of(lease), append.records
    if len(records) >= MANY and place is not None:
        place, records = _many_inserted(cursor, place, records, wall)
    for record in records:
        place = _inserted(cursor, lease, place, record, wall)
        if place is None:
            return _lost(cursor, lease, places)
    if _changes_run(append):
        run = _changed(cursor, append, place if append.records else None, wall)
        if run is None:
            return _lost(cursor, lease, places)
        write(cursor.connection, run, append, wall)
    if append.release:
        places.forget(lease)
    elif place is not None:
        places.update(place)
    for each in append.evidence:
        learn(cursor.connection, each, wall)
    if append.cached:
        write_cached(cursor.connection, append.cached, wall)
    if append.conversation is not None:
        record_rows.add_messages_to(executor(cursor.connection), append.conversation)
    for share in append.shares:
        write_share(cursor.connection, lease, share)
    if append.outbox and place is not None:
        add_messages(cursor.connection, place.under[0], append.outbox, wall)
    if append.compaction is not None and place is not None:
        compact(cursor.connection, place.under[0], append.compaction)
    return None


_ADD_MESSAGE = """
    INSERT INTO flujo_outbox (id, run, hook, url, event, body, status, attempts, created_at, next_at)
    VALUES (?, ?, ?, ?, ?, ?, 'pending', 0, ?, ?)"""


def add_messages(db: sqlite3.Connection, run: int, messages: Iterable[OutboxMessage], wall: float) -> None:
    """Write the messages of an append."""
    rows = [(each.id, run, each.hook, each.url, each.event, storable(each.body), wall, wall) for each in messages]
    db.executemany(_ADD_MESSAGE, rows)


def compact(db: sqlite3.Connection, run: int, compaction: Compaction) -> None:
    """Delete the old turns of a loop, with their pauses and blobs."""
    turns, pauses = map(storable, compaction.prefixes)
    named = {"run": run, "base": storable(compaction.base), "turns": turns, "pauses": pauses}
    [(base,)] = db.execute(sql.COMPACTION_BASE, named).fetchall()
    if base is None:
        return
    named |= {"until": base, "kinds": json.dumps(SESSION_KINDS)}
    named["around"] = json.dumps([storable(path) for path in compaction.around])
    started = db.execute(sql.COMPACTION_START, named).fetchone()
    dropped = db.execute(sql.COMPACT, {**named, "from": started[0] if started else run << 32}).fetchall()
    db.executemany(sql.DELETE_ANSWERED, [(run, path) for kind, path, _ in dropped if kind == "paused"])
    blobs = {blob for _, _, blob in dropped if blob is not None}
    db.executemany(sql.DELETE_UNUSED_BLOB, [{"hash": blob} for blob in blobs])


def _many_inserted(
    cursor: sqlite3.Cursor, place: RunRow, records: tuple[Record, ...], wall: float
) -> tuple[RunRow, tuple[Record, ...]]:
    """Write records in bulk (rule 4); return position and remaining records."""
    after_us = round((wall - place.created_at) * 1e6)
    while len(records) >= MANY:
        stored = [columns_of(record) for record in records[:MOST_AT_ONCE]]
        if any(blob is not None for _, blob in stored):
            break
        rows = [(place.last + number, after_us, *columns) for number, (columns, _) in enumerate(stored, start=1)]
        try:
            cursor.execute(sql.insert_many_at(len(rows)), (*itertools.chain(*rows), *place.under))
        except sqlite3.IntegrityError:  # another process has used one of the keys
            break
        if cursor.rowcount != len(rows):
            break
        place, records = place._replace(last=place.last + len(rows)), records[len(rows) :]
    return place, records


def _bulk_inserted(cursor: sqlite3.Cursor, batch: Sequence[Append], wall: float, places: RunPositions) -> set[RunId]:
    """Insert single records of many runs in bulk (rule 4); return them."""
    counts = Counter(append.lease.run_id for append in batch)
    rows: dict[int, tuple[RunRow, tuple[object, ...]]] = {}
    for append in batch:
        single = counts[append.lease.run_id] == len(append.records) == 1 and _is_plain(append)
        place = places.of(append.lease) if single else None
        if place is not None and as_blob(append.records[0].body) is None:
            after_us, key = round((wall - place.created_at) * 1e6), place.last + 1
            columns = (key, after_us, *columns_of(append.records[0])[0], *place.under)
            rows[key] = place._replace(last=key), columns
    if len(rows) < MANY:
        return set()
    written: set[RunId] = set()
    places_and_columns = list(rows.values())
    for start in range(0, len(rows), MOST_AT_ONCE):
        part = places_and_columns[start : start + MOST_AT_ONCE]
        values = itertools.chain.from_iterable(columns for _, columns in part)
        for (key,) in cursor.execute(sql.insert_each_at(len(part)), (*values,)).fetchall():
            places.update(rows[key][0])
            written.add(rows[key][0].lease.run_id)
    return written


def _inserted(cursor: sqlite3.Cursor, lease: Lease, place: RunRow | None, record: Record, wall: float) -> RunRow | None:
    """Return the run's position after the record; `None` if outdated."""
    columns, blob = columns_of(record)
    written = None if place is None else _insert_at(cursor, place, columns, wall)
    written = written or _insert_after_last(cursor, lease, columns, wall)
    if blob is not None and written is not None:
        cursor.execute(sql.INSERT_BLOB, blob)
    return written


def _insert_at(cursor: sqlite3.Cursor, place: RunRow, columns: tuple[object, ...], wall: float) -> RunRow | None:
    """Insert at a known position; `None` if taken or outdated."""
    following, after_us = place.last + 1, round((wall - place.created_at) * 1e6)
    cursor.execute(sql.INSERT_AT, (following, after_us, *columns, *place.under))
    return RunRow(place.lease, place.under, following, place.created_at) if cursor.rowcount == 1 else None


def _insert_after_last(cursor: sqlite3.Cursor, lease: Lease, columns: tuple[object, ...], wall: float) -> RunRow | None:
    found = cursor.execute(sql.APPEND, (wall, *columns, *_under(0, lease)[1:])).fetchall()
    for last, after_us in found:
        return RunRow(lease, _under(last >> 32, lease), last, wall - after_us / 1e6)
    return None


def _under(run: int, lease: Lease) -> tuple[int, str, str, int]:
    """Return the run's key and its lease, as predicates ask for them."""
    return run, storable(lease.run_id), storable(lease.owner), lease.epoch


def _lost(cursor: sqlite3.Cursor, lease: Lease, places: RunPositions) -> LeaseLost:
    places.forget(lease)
    return record_rows.lost(lease, owner_of(cursor.connection, lease.run_id))


def _changes_run(append: Append) -> bool:
    """Return whether an append writes more than records.

    The row of an owned run does not count its records.
    """
    others = append.pauses or append.withdrawn or append.tokens is not None or append.cost_usd is not None
    return append.release or append.status is not None or bool(others) or not append.records


def _changed(cursor: sqlite3.Cursor, append: Append, place: RunRow | None, wall: float) -> int | None:
    """Change the run's row; return its key, `None` if outdated."""
    ends = has_ended(append.status)
    times = (wall if ends else None, wall if append.release else None)
    new = (append.status, append.tokens, append.cost_usd, append.release, ends, *times)
    if place is not None:
        cursor.execute(sql.CHANGE_AT, (place.last & 0xFFFFFFFF, wall, *new, *place.under))
        return place.under[0] if cursor.rowcount == 1 else None
    for (run,) in cursor.execute(sql.CHANGE, (wall, *new, *_under(0, append.lease)[1:])).fetchall():
        return int(run)
    return None
