"""Pauses and waits in Postgres: opened, answered, deferred, timed out and woken.

Sections:

- Events: sent, buffered, delivered and refused.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, LiteralString, TypeAlias

from ..._core.outcomes import RunId
from ..._core.records.records import AT_ONCE, TIMED_OUT, Append, OpenPause, Record, has_ended
from ..._core.records.sent_events import Accepts, EventInfo, EventStatus, Fate, OutgoingEvent, Sent, refusal_of
from ..._core.step_paths import StepPath
from .. import _record_rows as record_rows
from .._question_lists import open_pause
from .._record_rows import event_info, restored, storable
from . import _statements as sql
from ._maintenance import add_messages
from ._run_queries import hash_of, insert_records, numbered

if TYPE_CHECKING:
    from ._connections import IsThere, PostgresConnections
    from ._session import PostgresSession, Signals

Today: TypeAlias = Mapping[str, float | None]
"""The wall clock that a test brings, as a parameter."""


def answer(
    db: PostgresSession,
    today: Today,
    run_id: RunId,
    path: StepPath,
    token: str,
    records: Sequence[Record],
    again: OpenPause | None = None,
    *,
    marks: bool = True,
) -> tuple[None, IsThere]:
    places = db.ask(sql.ADVANCE_BY_ANSWER, {"hash": hash_of(run_id), "count": len(records)})
    if not places:
        raise record_rows.not_paused(run_id, path)
    [(run, seq)] = places
    pause = {"run": run, "path": storable(path), "token": storable(token), "answered": _by_a_person()}
    pause |= today
    if not db.ask(sql.CONSUME, pause):
        raise _refused(run_id, path, db.ask(sql.FIND_PAUSE, pause))
    insert_records(db, numbered(run, seq, records))
    if again is not None:
        _ask(db, today, run, again)
        add_messages(db, run, again.outbox, today)
    if marks:
        mark_ready(db, today, [run])
    return None, lambda db: any(pause["answered"] == row[0] for row in db.ask(sql.FIND_PAUSE, pause))


def steer(db: PostgresSession, run_id: RunId, record: Record, after: int) -> tuple[int | None, IsThere]:
    """Append a message to an open run; return its number."""
    found = db.ask(_STEERABLE, {"hash": hash_of(run_id), "after": after})
    if not found:
        raise record_rows.not_found(run_id)
    [(is_open, is_newest)] = found
    if not (is_open and is_newest):
        return (0 if is_open else None), lambda db: True
    [(run, seq)] = db.ask(_STEERED, {"hash": hash_of(run_id)})
    insert_records(db, numbered(run, seq, [record]))
    return seq, lambda db: bool(db.ask(_IS_STEERED, {"run": run, "seq": seq}))


_STEERABLE: LiteralString = """
    SELECT ended_at IS NULL, coalesce(steered, 0) <= %(after)s::bigint FROM flujo_runs
    WHERE run_hash = %(hash)s FOR UPDATE"""
_STEERED: LiteralString = f"""
    UPDATE flujo_runs SET next_seq = next_seq + 1, steered = next_seq, updated_at = {sql.WALL}
    WHERE run_hash = %(hash)s RETURNING id, steered"""
_IS_STEERED: LiteralString = """
    SELECT 1 FROM flujo_records WHERE run = %(run)s AND seq = %(seq)s AND kind = 'steered'"""


def expire(db: PostgresSession, today: Today, body: str, *, marks: bool = True) -> tuple[list[RunId], IsThere]:
    """End some timed-out pauses; return their runs."""
    due = {run: RunId(restored(run_id)) for run, run_id in db.ask(sql.DUE_RUNS, {**today, "most": AT_ONCE})}
    answered = by_time()
    over = db.ask(sql.EXPIRE, {**today, "runs": list(due), "answered": answered}) if due else []
    record_ends(db, over, body)
    ended = dict.fromkeys(run for run, _ in over)
    if marks:
        mark_ready(db, today, list(ended))
    return [due[run] for run in due if run in ended], lambda db: bool(db.ask(sql.FIND_EXPIRED, (answered,)))


def expire_run(db: PostgresSession, today: Today, run: int) -> None:
    """End the timed-out pauses of a run that is claimed."""
    record_ends(db, db.ask(sql.EXPIRE, {**today, "runs": [run], "answered": by_time()}), TIMED_OUT)


def record_ends(db: PostgresSession, ended: Sequence[tuple[int, str]], body: str) -> None:
    """Append a record for each consumed pause."""
    if not ended:
        return
    counts = Counter(run for run, _ in ended)
    rows = db.ask(sql.ADVANCE_BY_TIME, {"runs": list(counts), "counts": list(counts.values())})
    following = {run: itertools.count(seq) for run, seq in rows}
    records = [(run, Record(kind="answered", path=StepPath(restored(path)), body=body)) for run, path in ended]
    insert_records(db, [(run, next(following[run]), record) for run, record in records])


def mark_ready(db: PostgresSession, today: Today, runs: Sequence[int]) -> None:
    """Decide when runs without an owner can be claimed."""
    if runs:
        db.execute(sql.MARK_READY, {**today, "runs": list(runs)})


def _write_pauses(db: PostgresSession, today: Today, run: int, append: Append) -> None:
    """Apply the pauses of an append, and its messages about them."""
    if append.outbox:
        add_messages(db, run, append.outbox, today)
    for place in append.withdrawn:
        db.execute(sql.WITHDRAW_PAUSE, (run, storable(place)))
    for pause in append.pauses:
        _ask(db, today, run, pause)
    if append.status == "running":
        db.execute(sql.TAKE_UP, (run,))
    if append.release and not has_ended(append.status):
        mark_ready(db, today, [run])


def close(db: PostgresSession, runs: Sequence[int]) -> None:
    """Drop the open pauses of ended runs."""
    if runs:
        db.execute(sql.CLOSE_PAUSES, (list(runs),))


def _ask(db: PostgresSession, today: Today, run: int, pause: OpenPause) -> None:
    path, token = storable(pause.path), storable(pause.token)
    db.execute(sql.REPLACE_PAUSE, (run, path, token))
    asked = {"run": run, "path": path, "token": token, "timeout_s": pause.timeout_s, "due_at": pause.due_at, **today}
    texts = {"message": pause.message, "body": pause.body, "to": pause.to, "event": pause.event, "key": pause.key}
    stored = {name: None if text is None else storable(text) for name, text in texts.items()}
    db.execute(sql.INSERT_PAUSE, {**asked, **stored, "kind": pause.kind, "wait": pause.wait})


def _by_a_person() -> uuid.UUID:
    """Return the marker of an answered pause; larger than every timeout marker."""
    return uuid.uuid4()


def by_time() -> uuid.UUID:
    """Return the marker of timed-out pauses whose run has not resumed."""
    return uuid.UUID(int=uuid.uuid4().int & ((1 << 62) - 1) or 1)


def _refused(run_id: RunId, path: StepPath, found: Sequence[Any]) -> Exception:
    for _, by_time in found:
        return record_rows.expired(run_id, path) if by_time else record_rows.already_answered(run_id, path)
    return record_rows.not_paused(run_id, path)


class PostgresWaits:
    """Deadlines and wake times of a Postgres store."""

    _connections: PostgresConnections
    _wall: Callable[[], float] | None
    signals: Signals

    def _today(self) -> dict[str, float | None]:
        return {"wall": self._wall() if self._wall else None}

    def now(self) -> float:
        [(now,)] = self._connections.read(lambda db: db.ask(f"SELECT {sql.TODAY}", self._today()))
        return float(now)

    def expire(self, *, body: str) -> list[RunId]:
        found: dict[RunId, None] = {}
        while True:
            ended = self._connections.write(
                lambda db: expire(db, self._today(), body, marks=self._connections.is_current)
            )
            self.signals.announce(ended)
            found |= dict.fromkeys(ended)
            if not ended:
                return list(found)

    def next_due_s(self) -> float | None:
        return self._seconds(sql.NEXT_DUE)

    def due(self) -> int:
        most = {**self._today(), "most": AT_ONCE}
        return self._connections.write(lambda db: (len(db.ask(sql.PROMOTE, most)), lambda db: False))

    def next_wake_s(self, queues: Sequence[str] = ()) -> float | None:
        return self._seconds(sql.NEXT_WAKE)

    def wake(self, run_id: RunId, path: StepPath | None = None, *, body: str) -> bool:
        woken = self._connections.write(lambda db: _wake(db, self._today(), run_id, path, body))
        if woken is None:
            raise record_rows.not_found(run_id)
        self.signals.announce([run_id])
        return woken

    def _seconds(self, statement: LiteralString) -> float | None:
        rows = self._connections.read(lambda db: db.ask(statement, self._today()))
        return next((float(seconds) for (seconds,) in rows if seconds is not None), None)


def _wake(
    db: PostgresSession, today: Today, run_id: RunId, path: StepPath | None, body: str
) -> tuple[bool | None, IsThere]:
    """End the waits of a run; None without such a run."""
    if not db.ask(sql.LOCK_RUN, (hash_of(run_id),)):
        return None, lambda db: False
    answered = by_time()
    named = {**today, "hash": hash_of(run_id), "path": None if path is None else storable(path), "answered": answered}
    ended = db.ask(sql.WAKE, named)
    record_ends(db, ended, body)
    mark_ready(db, today, list({run for run, _ in ended}))
    started = db.ask(sql.START_NOW, named) if path is None else []
    return bool(ended or started), lambda db: bool(db.ask(sql.FIND_EXPIRED, (answered,)))


# --- Events -------------------------------------------------------------------------------------------------------
# A send and the opening of a wait with the same name and key hold an advisory lock until their commit. It is taken
# before the rows of runs, so the two never deadlock.


_LOCK: LiteralString = "SELECT pg_advisory_xact_lock(%s)"

_FIND: LiteralString = f"""
    SELECT number, sent_at + dedupe_s > {sql.STABLE}, delivered FROM flujo_events
    WHERE event = %(event)s AND id = %(id)s"""

_FORGET: LiteralString = "DELETE FROM flujo_events WHERE number = %s"

_PURGE: LiteralString = f"""
    DELETE FROM flujo_events WHERE number IN (
        SELECT number FROM flujo_events WHERE keep_until <= {sql.STABLE} LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
    RETURNING number"""

_INSERT: LiteralString = f"""
    INSERT INTO flujo_events (event, key, id, body, sender, sent_at, status, delivered, retain_until, dedupe_s,
                              keep_until)
    VALUES (%(event)s, %(key)s, %(id)s, %(body)s, %(by)s, {sql.STABLE}, %(status)s, %(delivered)s,
            {sql.STABLE} + %(retain_s)s::float8, %(dedupe_s)s::float8, {sql.STABLE} + %(keep_s)s::float8)"""

_COLUMNS: LiteralString = """
    p.id, p.run, run_id, p.path, p.token, p.message, p.body, p.due_at, p.asked_at, p.addressee, p.kind, p.wait, p.event,
    p.key"""

_NOT_DUE: LiteralString = f"(p.due_at IS NULL OR p.due_at > {sql.TODAY})"

_OPEN: LiteralString = f"""
    SELECT {_COLUMNS} FROM flujo_pauses p JOIN flujo_runs r ON r.id = p.run
    WHERE p.answered IS NULL AND p.event IS NOT NULL AND p.event = %(event)s AND p.key = %(key)s AND {_NOT_DUE}
    ORDER BY p.id"""

_LISTED_WAITS: LiteralString = f"""
    SELECT {_COLUMNS} FROM flujo_pauses p JOIN flujo_runs r ON r.id = p.run
    WHERE p.answered IS NULL AND p.event IS NOT NULL AND p.event = coalesce(%(event)s, p.event)
      AND p.key = coalesce(%(key)s, p.key) AND {_NOT_DUE} ORDER BY p.id"""

_LOCK_RUNS: LiteralString = "SELECT id FROM flujo_runs WHERE id = ANY(%s) ORDER BY run_hash FOR UPDATE"

_CONSUME: LiteralString = f"""
    UPDATE flujo_pauses p SET answered = %(answered)s
    WHERE id = ANY(%(pauses)s) AND answered IS NULL AND {_NOT_DUE} RETURNING id"""

_LISTED: LiteralString = """
    SELECT id, event, key, status, sent_at, body, sender, delivered, refused_by, reason FROM flujo_events
    WHERE event = coalesce(%(event)s, event) AND key = coalesce(%(key)s, key)
      AND status = coalesce(%(status)s, status) ORDER BY number DESC LIMIT %(limit)s"""

_BUFFERED: LiteralString = f"""
    SELECT number, body FROM flujo_events
    WHERE event = %(event)s AND key = %(key)s AND status = 'buffered' AND retain_until > {sql.STABLE}
    ORDER BY number LIMIT 1 FOR UPDATE"""

_REFUSE: LiteralString = "UPDATE flujo_events SET status = 'refused', refused_by = %s, reason = %s WHERE number = %s"

_DELIVER: LiteralString = "UPDATE flujo_events SET status = 'delivered', delivered = %s WHERE number = %s"

_CONSUME_AT: LiteralString = """
    UPDATE flujo_pauses SET answered = %s WHERE run = %s AND path = %s AND token = %s AND answered IS NULL"""


class PostgresEvents:
    """Events of a Postgres store."""

    _connections: PostgresConnections
    _wall: Callable[[], float] | None
    signals: Signals

    def send(self, event: OutgoingEvent, accepts: Accepts) -> Sent:
        today = {"wall": self._wall() if self._wall else None}
        sent = self._connections.write(lambda db: _send(db, today, event, accepts))
        self.signals.announce([RunId(run_id) for run_id in sent.delivered_to])
        return sent

    def waits(self, *, event: str | None = None, key: str | None = None) -> list[tuple[RunId, OpenPause]]:
        wall = self._wall() if self._wall else None
        named = {"event": event and storable(event), "key": key and storable(key), "wall": wall}
        rows = self._connections.read(lambda db: db.ask(_LISTED_WAITS, named))
        return [(RunId(restored(run_id)), open_pause(*columns)) for _, _, run_id, *columns in rows]

    def events(
        self, *, event: str | None = None, key: str | None = None, status: EventStatus | None = None, limit: int = 100
    ) -> list[EventInfo]:
        wanted = {"event": event and storable(event), "key": key and storable(key), "status": status, "limit": limit}
        return [event_info(*row) for row in self._connections.read(lambda db: db.ask(_LISTED, wanted))]

    def purge(self, *, limit: int = 1000) -> int:
        bounds = {"wall": self._wall() if self._wall else None, "limit": limit}
        return self._connections.write(lambda db: (len(db.ask(_PURGE, bounds)), lambda db: False))


def _send(db: PostgresSession, today: Today, event: OutgoingEvent, accepts: Accepts) -> tuple[Sent, IsThere]:
    named = {**today, "event": storable(event.event), "key": storable(event.key), "id": event.id}
    # The id is locked, too: two sends of one id may have different keys.
    for lock in sorted({lock_of(event.event, event.key), lock_of(event.event, f"\0{event.id}")}):
        db.execute(_LOCK, (lock,))
    for number, is_known, delivered in db.ask(_FIND, named):
        if is_known:
            return Sent(event.id, "duplicate", tuple(json.loads(delivered))), lambda db: False
        db.execute(_FORGET, (number,))
    runs = _deliver(db, today, event, named, accepts)
    status: Fate = "delivered" if runs or event.to_all else "buffered"
    kept = {"body": storable(event.body), "by": event.by and storable(event.by), "status": status}
    times = {"retain_s": event.retain_s, "dedupe_s": event.dedupe_s, "keep_s": event.keep_s}
    db.execute(_INSERT, {**named, **kept, **times, "delivered": json.dumps(list(runs))})
    return Sent(event.id, status, runs), lambda db: bool(db.ask(_FIND, named))


def _deliver(
    db: PostgresSession, today: Today, event: OutgoingEvent, named: dict[str, Any], accepts: Accepts
) -> tuple[str, ...]:
    """End the waits that get the event; return their runs."""
    rows = db.ask(_OPEN, named)
    while rows:
        chosen = rows if event.to_all else rows[:1]
        for _, _, run_id, *columns in chosen:
            accepts(restored(run_id), open_pause(*columns))
        db.ask(_LOCK_RUNS, ([run for _, run, *_ in chosen],))
        consumed = {"answered": by_time(), "pauses": [pause for pause, *_ in chosen], **today}
        done = {pause for (pause,) in db.ask(_CONSUME, consumed)}
        ended = [(run, path) for pause, run, _, path, *_ in chosen if pause in done]
        record_ends(db, ended, event.body)
        mark_ready(db, today, list(dict.fromkeys(run for run, _ in ended)))
        if ended or event.to_all:
            return tuple(restored(run_id) for pause, _, run_id, *_ in chosen if pause in done)
        rows = rows[1:]  # time was faster
    return ()


def lock_of(event: str, key: str) -> int:
    """Return the advisory lock of an event's name and key."""
    text = f"{len(event)}:{event}{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(b"flujo event " + text).digest()[:8], signed=True)


def lock_waits(db: PostgresSession, batch: Iterable[Append]) -> None:
    """Lock the events that an append waits for, before its runs."""
    awaited = {
        lock_of(pause.event, pause.key or "") for append in batch for pause in append.pauses if pause.event is not None
    }
    for lock in sorted(awaited):
        db.execute(_LOCK, (lock,))


def write(db: PostgresSession, today: Today, run: int, append: Append) -> None:
    """Apply an append's pauses; new waits consume buffered events."""
    _write_pauses(db, today, run, append)
    awaited = [pause for pause in append.pauses if pause.event is not None]
    for pause in awaited:
        _take_buffered(db, today, run, append.lease.run_id, pause)
    if awaited and append.release:
        mark_ready(db, today, [run])


def _take_buffered(db: PostgresSession, today: Today, run: int, run_id: RunId, pause: OpenPause) -> None:
    """Deliver the oldest buffered event to a wait that opens."""
    named = {**today, "event": storable(pause.event or ""), "key": storable(pause.key or "")}
    while rows := db.ask(_BUFFERED, named):
        [(number, stored)] = rows
        body = restored(stored)
        reason = refusal_of(body, pause.body)
        if reason is None:
            db.execute(_DELIVER, (json.dumps([run_id]), number))
            db.execute(_CONSUME_AT, (by_time(), run, storable(pause.path), storable(pause.token)))
            record_ends(db, [(run, storable(pause.path))], body)
            return
        db.execute(_REFUSE, (storable(run_id), storable(reason), number))
