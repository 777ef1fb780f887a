"""Questions in a SQLite file: asked, answered, deferred, and ended by time; and how their records are written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from ..._core.light_records import gist_of
from ..._core.outcomes import RunId
from ..._core.paths import StepPath
from ..._core.records import Append, OpenPause, Record, has_ended
from .. import _refusals as refusals
from .._rows import as_blob, restored, storable
from . import _statements as sql


def consume(
    db: sqlite3.Connection, run_id: RunId, path: StepPath, token: str, records: Sequence[Record], wall: float
) -> int:
    """Take a pause that waits, for an answer; the key of its run."""
    pause = {"run_id": storable(run_id), "path": storable(path), "token": storable(token), "wall": wall}
    for (run,) in db.execute(sql.CONSUME, pause).fetchall():
        _add_answers(db, run, records, wall)
        return int(run)
    for answered, over in db.execute(sql.FIND_PAUSE, pause).fetchall():
        by_time = answered in (sql.EXPIRED, sql.TAKEN_UP) or (answered is None and over)
        raise refusals.expired(run_id, path) if by_time else refusals.already_answered(run_id, path)
    raise refusals.not_paused(run_id, path)


def _add_answers(db: sqlite3.Connection, run: int, records: Sequence[Record], wall: float) -> None:
    answered = {"run": run, "wall": wall}
    for record in records:
        insert(db, sql.APPEND_ANSWER, record, answered)
    db.execute(sql.ANSWERED, answered)


def expire(db: sqlite3.Connection, body: str, wall: float) -> list[RunId]:
    """End the questions whose time is over; the runs that asked them."""
    over = db.execute(sql.EXPIRE, {"wall": wall}).fetchall()
    for run, path in over:
        _add_answers(db, run, [Record(kind="answered", path=StepPath(restored(path)), body=body)], wall)
    return [_run_named(db, run) for run in dict.fromkeys(run for run, _ in over)]


def write(db: sqlite3.Connection, run: int, append: Append, wall: float) -> None:
    """What an append asks, and what it withdraws."""
    for place in append.withdrawn:
        db.execute(sql.WITHDRAW_PAUSE, (run, storable(place)))
    for pause in append.pauses:
        ask(db, run, pause, wall)
    if append.status == "running":
        db.execute(sql.TAKE_UP, (run,))
    if has_ended(append.status):
        db.execute(sql.CLOSE_PAUSES, (run,))


def ask(db: sqlite3.Connection, run: int, pause: OpenPause, wall: float) -> None:
    """Ask a question, in the place of the one that waits there."""
    path, token = storable(pause.path), storable(pause.token)
    due_at = None if pause.timeout_s is None else wall + pause.timeout_s
    db.execute(sql.REPLACE_PAUSE, (run, path, token))
    db.execute(sql.INSERT_PAUSE, (run, path, token, storable(pause.message), storable(pause.body), due_at))


def _run_named(db: sqlite3.Connection, run: int) -> RunId:
    [(run_id,)] = db.execute(sql.RUN_NAME, (run,)).fetchall()
    return RunId(restored(run_id))


def open_pauses(db: sqlite3.Connection, runs: list[int]) -> dict[int, list[OpenPause]]:
    """What waits for an answer, by run."""
    pauses: dict[int, list[OpenPause]] = {}
    for run, *texts, due_at in db.execute(sql.OPEN_PAUSES, (json.dumps(runs),)).fetchall():
        path, token, message, body = map(restored, texts)
        asked = OpenPause(path=StepPath(path), token=token, message=message, body=body, due_at=due_at)
        pauses.setdefault(run, []).append(asked)
    return pauses


def insert(db: sqlite3.Connection, statement: str, record: Record, where: Mapping[str, object]) -> list[Any]:
    """Insert a record, and its body by itself if it is long; nothing comes back if the statement did not let it in."""
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
