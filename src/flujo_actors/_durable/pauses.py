"""Where an answer would go: the pause behind a token, in a store."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from .._core import record_bodies
from .._core.approvals import Decision, checked_tool_answer
from .._core.outcomes import RunId
from .._core.paths import StepPath
from .._core.pause_tokens import parse_token
from .._core.questions import read_question
from .._core.records import OpenPause, Record
from ..errors import AlreadyAnswered, Expired, NotPaused, RunNotFound, StoreError
from ..stores._port import Store
from .deferring import asked_again, decision_on, defers, next_token


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
    match _answer_to(store.read(run_id), path, token):
        case {"timeout": True}:
            raise Expired(f"the answer at {token!r} comes too late: its time is over")
        case {}:
            raise AlreadyAnswered(f"the pause at {token!r} has been answered already")
    raise NotPaused(f"run {run_id!r} is {run.status}; nothing in it waits for an answer at {token!r}")


def give_answer(store: Store, token: str, answer: object, *, by: str | None = None) -> None:
    """Answer a question, once, without the pipeline that asked it; `by` is kept with the answer. Blocks."""
    run_id, path = parse_token(token)
    pause = waiting_pause(store, token)
    body = record_bodies.read_body(pause.body, where=f"the pause at {token!r}")
    question, step_name = read_question(body.get("question")), body.get("step_name", path)
    if question is not None and question.kind == "approval":
        decision = decision_on(question, answer, step_name=step_name)
        decision = decision if by is None or decision.by else attrs.evolve(decision, by=by)
        if defers(question, decision):
            put_off(store, token, decision)
            return
        given = record_bodies.make_body(answer=record_bodies.stored_value(attrs.asdict(decision)))
    elif question is not None and question.kind == "tool":
        told = checked_tool_answer(answer, step_name=step_name)
        given = record_bodies.make_body(answer=record_bodies.stored_value(told))
    else:
        from .answers import checked_answer  # pydantic, which only those load who answer

        checked = checked_answer(answer, body.get("schema"), step_name=step_name)
        # The pipeline may read more into an answer than its JSON Schema says: it does so when the run goes on.
        signed = {} if by is None else {"by": by}
        given = record_bodies.make_body(answer=record_bodies.stored_value(checked), as_given=True, **signed)
    store.answer(run_id, path, token=token, record=Record(kind="answered", path=path, body=given))


def put_off(store: Store, token: str, decision: Decision) -> None:
    """Consume a question with a decision that puts it off, and ask it again, at once and in one piece. Blocks."""
    run_id, path = parse_token(token)
    if not hasattr(store, "defer"):
        raise StoreError(f"{type(store).__name__} has no `defer`, so its questions cannot be put off: answer yes or no")
    pause = waiting_pause(store, token)
    body = record_bodies.read_body(pause.body, where=f"the pause at {token!r}")
    question = read_question(body.get("question"))
    assert question is not None
    again = asked_again(question)
    body |= {"token": next_token(run_id, path, again, token), "question": again.data()}
    text = record_bodies.make_body(**{name: each for name, each in body.items() if name != "v"})
    given = record_bodies.make_body(answer=record_bodies.stored_value(attrs.asdict(decision)))
    records = (Record(kind="answered", path=path, body=given), Record(kind="paused", path=path, body=text))
    asked = attrs.evolve(pause, token=body["token"], body=text, timeout_s=again.timeout_s, due_at=None)
    store.defer(run_id, path, token=token, records=records, pause=asked)


def expire(store: Store) -> list[RunId]:
    """End the questions of a store whose time is over; the runs that asked them. Blocks."""
    return store.expire(body=record_bodies.make_body(timeout=True))


def _answer_to(records: Iterable[Record], path: StepPath, token: str) -> dict[str, object] | None:
    """What was stored for an answer to the question of that token; `None` if nothing was."""
    asked = False
    for record in records:
        if record.path == path and record.kind == "paused":
            asked = record_bodies.read_body(record.body, where=f"the question at {path!r}").get("token") == token
        elif record.path == path and record.kind == "answered" and asked:
            return record_bodies.read_body(record.body, where=f"the answer at {path!r}")
    return None
