"""Questions as they are stored: in a record, for the run, and beside it, for whoever wants to answer."""

from __future__ import annotations

from typing import Any

import attrs

from .._core import record_bodies
from .._core.outcomes import Paused
from .._core.questions import read_question
from .._core.records import OpenPause, Record
from ..errors import InvalidAnswer
from .journal import Answered, Pause


def pause_body(pause: Pause) -> str:
    """What the run's own record holds of a question; `NotSerializable` if what its step wrote cannot be stored."""
    kept = {} if pause.context is None else {"context": record_bodies.stored_value(pause.context)}
    return record_bodies.make_body(**_asked(pause), **kept)


def open_pause(pause: Pause) -> OpenPause:
    """A question as the store keeps it for whoever wants to answer."""
    return OpenPause(
        path=pause.path,
        token=pause.paused.state_token or "",
        message=pause.paused.message,
        body=record_bodies.make_body(**_asked(pause)),
        timeout_s=None if pause.question is None else pause.question.timeout_s,
    )


def _asked(pause: Pause) -> dict[str, Any]:
    return {
        "step_name": pause.step_name,
        "message": pause.paused.message,
        "token": pause.paused.state_token,
        "attempts": pause.attempts,
        "usage": record_bodies.usage_data(pause.usage),
        "schema": _json_schema(pause.input_schema),
        **({} if pause.question is None else {"question": pause.question.data()}),
    }


def _json_schema(schema: object) -> object:
    """What an answer must fit, for those who answer without having the pipeline."""
    if schema is None or isinstance(schema, dict):
        return schema
    from ..structured._schema import compile_schema  # loads pydantic, which only pauses with a schema need

    return dict(compile_schema(schema).json_schema)


def read_pause(record: Record, declared_schema: object, *, where: str) -> Pause:
    """A question from its record, with the schema that the pipeline declares for its step."""
    body = record_bodies.read_body(record.body, where=where)
    question = read_question(body.get("question"))
    return Pause(
        path=record.path,
        step_name=record_bodies.text_in(body, "step_name"),
        paused=Paused(message=record_bodies.text_in(body, "message"), state_token=record_bodies.text_in(body, "token")),
        input_schema=declared_schema if question is None else question.schema,
        attempts=record_bodies.number_in(body, "attempts"),
        usage=record_bodies.read_usage(body["usage"], where=where),
        question=question,
        context=record_bodies.read_value(body["context"], where=where) if "context" in body else None,
    )


def as_asked(answered: Answered) -> Answered:
    """An answer from somebody who only had the JSON Schema, as the pipeline's own `input_schema` wants it."""
    if answered.pause.input_schema is None:
        return answered
    from .answers import checked_answer  # loads pydantic, as above

    pause = answered.pause
    try:
        answer = checked_answer(answered.answer, pause.input_schema, step_name=pause.step_name, todo="")
    except InvalidAnswer as error:
        return attrs.evolve(answered, refused=error)
    return attrs.evolve(answered, answer=answer)
