"""Questions in a Postgres database: asked, answered, deferred, and ended by time."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..._core.outcomes import RunId
from ..._core.paths import StepPath
from ..._core.records import Append, OpenPause, Record, has_ended
from .. import _refusals as refusals
from .._rows import restored, storable
from . import _statements as sql
from ._scanning import hash_of
from ._writing import insert_records, numbered

if TYPE_CHECKING:
    from ._connections import IsThere
    from ._session import Connection

Today: TypeAlias = Mapping[str, float | None]
"""The wall clock that a test brings, as a parameter."""


def answer(
    db: Connection,
    today: Today,
    run_id: RunId,
    path: StepPath,
    token: str,
    records: Sequence[Record],
    again: OpenPause | None = None,
) -> tuple[None, IsThere]:
    places = db.ask(sql.ADVANCE_BY_ANSWER, {"hash": hash_of(run_id), "count": len(records)})
    if not places:
        raise refusals.not_paused(run_id, path)
    [(run, seq)] = places
    pause = {"run": run, "path": storable(path), "token": storable(token), "answered": _by_a_person()}
    pause |= today
    if not db.ask(sql.CONSUME, pause):
        raise _refused(run_id, path, db.ask(sql.FIND_PAUSE, pause))
    insert_records(db, numbered(run, seq, records))
    if again is not None:
        _ask(db, today, run, again)
    return None, lambda db: any(pause["answered"] == row[0] for row in db.ask(sql.FIND_PAUSE, pause))


def expire(db: Connection, today: Today, body: str) -> tuple[list[RunId], IsThere]:
    due = {run: RunId(restored(run_id)) for run, run_id in db.ask(sql.DUE_RUNS, today)}
    answered = _by_time()
    over = db.ask(sql.EXPIRE, {**today, "runs": list(due), "answered": answered}) if due else []
    for run in dict.fromkeys(run for run, _ in over):
        paths = [StepPath(restored(path)) for each, path in over if each == run]
        [(seq,)] = db.ask(sql.ADVANCE_BY_TIME, {"run": run, "count": len(paths)})
        records = [Record(kind="answered", path=path, body=body) for path in paths]
        insert_records(db, numbered(run, seq, records))
    return [due[run] for run in due if any(each == run for each, _ in over)], lambda db: bool(
        db.ask(sql.FIND_EXPIRED, (answered,))
    )


def write(db: Connection, today: Today, run: int, append: Append) -> None:
    for place in append.withdrawn:
        db.execute(sql.WITHDRAW_PAUSE, (run, storable(place)))
    for pause in append.pauses:
        _ask(db, today, run, pause)
    if append.status == "running":
        db.execute(sql.TAKE_UP, (run,))
    if has_ended(append.status):
        db.execute(sql.CLOSE_PAUSES, (run,))


def _ask(db: Connection, today: Today, run: int, pause: OpenPause) -> None:
    path, token = storable(pause.path), storable(pause.token)
    db.execute(sql.REPLACE_PAUSE, (run, path, token))
    asked = {"run": run, "path": path, "token": token, "timeout_s": pause.timeout_s, **today}
    db.execute(sql.INSERT_PAUSE, {**asked, "message": storable(pause.message), "body": storable(pause.body)})


def _by_a_person() -> uuid.UUID:
    """Marks a question that was answered; larger than every mark of time."""
    return uuid.uuid4()


def _by_time() -> uuid.UUID:
    """Marks questions that time has ended, and that nobody has gone on with."""
    return uuid.UUID(int=uuid.uuid4().int & ((1 << 62) - 1) or 1)


def _refused(run_id: RunId, path: StepPath, found: Sequence[Any]) -> Exception:
    for _, by_time in found:
        return refusals.expired(run_id, path) if by_time else refusals.already_answered(run_id, path)
    return refusals.not_paused(run_id, path)


def open_pause(path: str, token: str, message: str, body: str, due_at: float | None) -> OpenPause:
    """A question as a listing shows it."""
    return OpenPause(
        path=StepPath(restored(path)),
        token=restored(token),
        message=restored(message),
        body=restored(body),
        due_at=due_at,
    )
