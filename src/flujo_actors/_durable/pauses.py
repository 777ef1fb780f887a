"""Where an answer would go: the pause behind a token, in a store."""

from __future__ import annotations

from collections.abc import Iterable

from .._core import record_bodies
from .._core.paths import StepPath
from .._core.pause_tokens import parse_token
from .._core.records import OpenPause, Record
from ..errors import AlreadyAnswered, NotPaused, RunNotFound
from ..stores._port import Store


def waiting_pause(store: Store, token: str) -> OpenPause:
    """What waits behind the token; `AlreadyAnswered` if it waits no more, `NotPaused` if nothing ever did. Blocks."""
    run_id, path = parse_token(token)
    try:
        run = store.get(run_id)
    except RunNotFound as error:
        raise NotPaused(f"no run waits for an answer at {token!r}: {error}") from error
    for pause in run.pauses:
        if pause.token == token:
            return pause
    if _was_answered(store.read(run_id), path, token):
        raise AlreadyAnswered(f"the pause at {token!r} has been answered already")
    raise NotPaused(f"run {run_id!r} is {run.status}; nothing in it waits for an answer at {token!r}")


def _was_answered(records: Iterable[Record], path: StepPath, token: str) -> bool:
    asked = False
    for record in records:
        if record.path == path and record.kind == "paused":
            asked = record_bodies.read_body(record.body, where=f"the question at {path!r}").get("token") == token
        elif record.path == path and record.kind == "answered" and asked:
            return True
    return False
