"""Pause of a token in a store.

Sections:

- Validation of answers to pauses.
- Decisions on approvals, and deferral of pauses.
- Events sent to waiting steps.
- Open pauses as shown to approvers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
import cattrs
import jsonschema_rs
from pydantic import ValidationError

from .. import _durable
from .._core import seams
from .._core.labels import NO_LABELS
from .._core.outcomes import RunId
from .._core.policies.approval_policy import (
    NEEDED,
    Decision,
    JsonObject,
    JsonSchema,
    Option,
    QuestionKind,
    QuestionSpec,
    answer_schema,
    checked_decision,
    checked_tool_answer,
    chooses_option,
    kind_of,
    option_named,
    plain_answer,
    read_question,
)
from .._core.records import record_bodies
from .._core.records.pause_tokens import approval_hash, make_token, parse_token
from .._core.records.records import AskedPause, OpenPause, QuestionQuery, Record, StoredRun
from .._core.records.sent_events import OutgoingEvent, Sent, refusal_of
from .._core.settings_model import EventSettings
from .._core.step_paths import StepPath
from .._core.usage import UsageLimits
from .._core.validators import nearest
from .._dsl.wait_steps import checked_event_name, reader_of, refuse_to_fetch
from ..errors import (
    AlreadyAnswered,
    DeclarationError,
    Expired,
    InvalidAnswer,
    InvalidEvent,
    NotPaused,
    RunNotFound,
    StoreError,
)
from ..stores._store_port import Store, required
from ..structured._stages import as_data
from .cancel_requests import webhook_admission

# --- Validation of answers to pauses ------------------------------------------------------------------------------


STILL_PAUSED = "; the run is still paused, answer again"


def checked_answer(answer: object, schema: object, *, step_name: str, todo: str = STILL_PAUSED) -> Any:
    """Return the answer validated by its schema, as a model."""
    if schema is None:
        return answer
    try:
        # A JSON Schema is about JSON data: a model is validated as its JSON data.
        return reader_of(schema)(as_data(_plain(answer)) if isinstance(schema, Mapping) else answer)
    except (ValueError, cattrs.BaseValidationError, TypeError) as error:
        raise InvalidAnswer(
            f"the answer to {step_name!r} does not fit its input_schema: {_reason(error)}{todo}"
        ) from error


def _plain(answer: object) -> object:
    """Return limits as data without the fields of windows."""
    return answer.data() if isinstance(answer, UsageLimits) else answer


def checked_verdict(answer: object, question: QuestionSpec, *, step_name: str) -> JsonSchema:
    """Return the decision on a tool call; raise `InvalidAnswer` for bad arguments."""
    verdict, wanted = checked_tool_answer(answer, step_name=step_name), question.facts.get("parameters")
    if verdict["approved"] and verdict.get("arguments") is not None and wanted is not None:
        _refuse(problems_in(as_data(verdict["arguments"]), wanted, at=("arguments",)), step_name)
    return verdict


def checked_choice(answer: JsonObject, kind: QuestionKind, schema: JsonSchema, *, step_name: str) -> object:
    """Return the plain form of an answer to the run's own question."""
    chosen = {name: _plain(each) for name, each in answer.items() if name != "by"}
    found = problems_in(as_data(chosen), schema)
    if not found and chosen["option"] in NEEDED and NEEDED[chosen["option"]] not in chosen:
        found = [f"{NEEDED[chosen['option']]} is missing"]
    if found and kind == "uncertain" and not _is_closed(schema):
        return answer  # the result of a tool call
    _refuse(found, step_name)
    return plain_answer(kind, chosen)


def _is_closed(schema: JsonSchema) -> bool:
    """Return whether only options are answers, and no other value is."""
    return "result" not in schema["properties"]


def _refuse(problems: Sequence[str], step_name: str) -> None:
    if problems:
        sentences = "".join(each + (" " if each.endswith("?") else "; ") for each in problems).rstrip(" ;")
        raise InvalidAnswer(f"the answer to {step_name!r}: {sentences}; the question is still open")


def problems_in(data: object, schema: JsonObject, *, at: tuple[str, ...] = ()) -> list[str]:
    """Return the refused places of JSON data: unexpected, missing, then others."""
    validator = jsonschema_rs.validator_for(dict(schema), retriever=refuse_to_fetch)
    unexpected, missing, others = [], [], []
    for error in validator.iter_errors(data):
        place = (*at, *map(str, error.instance_path))
        match error.kind:
            case jsonschema_rs.ValidationErrorKind.AdditionalProperties(unexpected=names):
                known = _properties_at(schema, error.instance_path)
                unexpected += [_unexpected(place, name, known) for name in names]
            case jsonschema_rs.ValidationErrorKind.Required(property=name):
                missing.append(f"{_place((*place, name))} is missing")
            case _:
                others.append(f"{_place(place)}: {error.message}")
    return [*unexpected, *missing, *others]


def _unexpected(place: tuple[str, ...], name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    return f"{_place((*place, name))} is not expected" + (f"; did you mean {near!r}?" if near else "")


def _properties_at(schema: JsonObject, way: Iterable[object]) -> list[str]:
    """Return the known property names of an object in a schema."""
    part: Any = schema
    for name in way:
        part = part.get("items", {}) if isinstance(name, int) else part.get("properties", {}).get(name, {})
        part = schema.get("$defs", {}).get(str(part.get("$ref")).rpartition("/")[2], part)
    return list(part.get("properties", ()))


def _reason(error: Exception) -> str:
    """Return the reason of a refusal in one line."""
    return " ".join(_reasons(error).split())


def _reasons(error: Exception) -> str:
    if isinstance(error, cattrs.BaseValidationError):
        return "; ".join(cattrs.transform_error(error))
    if isinstance(error, ValidationError):
        return "; ".join(f"{_place(each['loc'])}: {each['msg']}" for each in error.errors())
    if isinstance(error, jsonschema_rs.ValidationError):
        return f"{_place(error.instance_path)}: {error.message}"
    return str(error)


def _place(way: Iterable[object]) -> str:
    return ".".join(map(str, way)) or "value"


# --- Decisions on approvals ---------------------------------------------------------------------------------------


def options_of(question: QuestionSpec) -> tuple[Option, ...]:
    """Return the options of an approval."""
    return tuple(Option(**each) for each in question.facts["options"])


def decision_on(question: QuestionSpec, answer: object, *, step_name: str) -> Decision:
    """Return an answer's decision; raise `InvalidAnswer` if it is no option."""
    return checked_decision(
        answer,
        options_of(question),
        step_name=step_name,
        deferrals=question.facts["deferrals"],
        max_deferrals=question.facts["max_deferrals"],
        comment_required=bool(question.facts.get("comment_required")),
    )


def defers(question: QuestionSpec | None, decision: object) -> bool:
    """Return whether a checked answer puts the decision off."""
    if question is None or question.kind != "approval" or not isinstance(decision, Decision):
        return False
    option = option_named(decision.option, options_of(question))
    return option is not None and option.kind == "defer"


def requested_again(question: QuestionSpec) -> QuestionSpec:
    """Return the pause after one more deferral."""
    return attrs.evolve(question, facts={**question.facts, "deferrals": question.facts["deferrals"] + 1})


def next_token(run_id: RunId, path: StepPath, question: QuestionSpec, token: str) -> str:
    """Return the token of a deferred pause; the previous one is consumed."""
    return make_token(run_id, path, asked=approval_hash(token, question.facts["deferrals"]))


# --- Pause of a token in a store ----------------------------------------------------------------------------------


def waiting_pause(store: Store, token: str) -> OpenPause:
    """Return the open pause of a token; raise `AlreadyAnswered` or `NotPaused`. Blocks."""
    return waiting_in_run(store, token)[0]


def waiting_in_run(store: Store, token: str) -> tuple[OpenPause, StoredRun]:
    """Return the open pause of a token, and its run; blocks."""
    run_id, path = parse_token(token)
    try:
        run = store.get(run_id)
    except RunNotFound as error:
        raise NotPaused(f"no run waits for an answer at {token!r}: {error}") from error
    for pause in run.pauses:
        if pause.token == token:
            return pause, run
    match _answer_to(store.read(run_id), path, token):
        case {"timeout": True}:
            raise Expired(f"the answer at {token!r} comes too late: its time is over")
        case {}:
            raise AlreadyAnswered(f"the pause at {token!r} has been answered already")
    raise NotPaused(f"run {run_id!r} is {run.status}; nothing in it waits for an answer at {token!r}")


def give_answer(store: Store, token: str, answer: object, *, by: str | None = None) -> None:
    """Answer a pause once, without its pipeline; stores `by`. Blocks."""
    run_id, path = parse_token(token)
    pause = waiting_pause(store, token)
    body = record_bodies.read_body(pause.body, where=f"the pause at {token!r}")
    question, step_name = read_question(body.get("question")), body.get("step_name", path)
    checked = accepted(answer, question, path, body.get("schema"), step_name=step_name)
    match kind_of(question, path):
        case "approval":
            decision = checked if by is None or checked.by else attrs.evolve(checked, by=by)
            if defers(question, decision):
                postponed(store, token, decision)
                return
            given = record_bodies.make_body(answer=record_bodies.stored_value(attrs.asdict(decision)))
        case "tool":
            signed = checked if by is None or checked.get("by") else {**checked, "by": by}
            given = record_bodies.make_body(answer=record_bodies.stored_value(signed))
        case _:
            # The pipeline may require more of an answer than its JSON Schema: it checks when the run resumes.
            signed = {} if by is None else {"by": by}
            given = record_bodies.make_body(answer=record_bodies.stored_value(checked), as_given=True, **signed)
    store.answer(run_id, path, token=token, record=Record(kind="answered", path=path, body=given))


def accepted(answer: object, question: QuestionSpec | None, path: StepPath, schema: object, *, step_name: str) -> Any:
    """Return an answer as its step reads it, or raise `InvalidAnswer`.

    `schema` is that of the plain form: an `input_schema`, or the one of a specification.
    """
    kind = kind_of(question, path)
    if kind == "approval" and question is not None:
        return decision_on(question, answer, step_name=step_name)
    if kind == "tool" and question is not None:
        return checked_verdict(answer, question, step_name=step_name)
    if kind != "input" and isinstance(answer, Mapping) and chooses_option(answer):
        answer = checked_choice(answer, kind, answer_schema(question, path, None), step_name=step_name)
    return checked_answer(answer, schema, step_name=step_name)


def postponed(store: Store, token: str, decision: Decision) -> None:
    """Consume a pause with a deferral and open it again, atomically. Blocks."""
    run_id, path = parse_token(token)
    if not hasattr(store, "defer"):
        raise StoreError(f"{type(store).__name__} has no `defer`, so its questions cannot be put off: answer yes or no")
    pause, run = waiting_in_run(store, token)
    body = record_bodies.read_body(pause.body, where=f"the pause at {token!r}")
    question = read_question(body.get("question"))
    assert question is not None
    again = requested_again(question)
    body |= {"token": next_token(run_id, path, again, token), "question": again.data()}
    text = record_bodies.make_body(**{name: each for name, each in body.items() if name != "v"})
    given = record_bodies.make_body(answer=record_bodies.stored_value(attrs.asdict(decision)))
    records = (Record(kind="answered", path=path, body=given), Record(kind="paused", path=path, body=text))
    asked = attrs.evolve(pause, token=body["token"], body=text, timeout_s=again.timeout_s, due_at=None)
    if admitted := webhook_admission(store, run):
        asked = attrs.evolve(asked, outbox=_durable.deferred_messages(run, admitted, asked))
    store.defer(run_id, path, token=token, records=records, pause=asked)


def expire(store: Store) -> list[RunId]:
    """End the timed-out pauses of a store; return their runs. Blocks."""
    return store.expire(body=record_bodies.make_body(timeout=True))


def _answer_to(records: Iterable[Record], path: StepPath, token: str) -> dict[str, object] | None:
    """Return the stored answer of a token's pause, or None."""
    asked = False
    for record in records:
        if record.path == path and record.kind == "paused":
            asked = record_bodies.read_body(record.body, where=f"the question at {path!r}").get("token") == token
        elif record.path == path and record.kind == "answered" and asked:
            return record_bodies.read_body(record.body, where=f"the answer at {path!r}")
    return None


# --- Open pauses as shown to approvers ----------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class AskedTool(JsonObject):
    """Tool call that waits for approval; also a mapping of its fields."""

    name: str
    arguments: JsonObject
    schema: JsonSchema | None = None
    """JSON Schema of the arguments, if it is known."""
    description: str | None = None

    def __getitem__(self, name: str) -> object:
        if name not in attrs.fields_dict(AskedTool):
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(attrs.fields_dict(AskedTool))

    def __len__(self) -> int:
        return len(attrs.fields_dict(AskedTool))


@attrs.frozen(kw_only=True)
class Question:
    """Open question of a run, with the schema of its answer.

    Example:
        ```python
        store = MemoryStore()
        Flujo(Step.approval("send", "Send it?", to="ada"), store=store).run("a letter", run_id="r1")
        [question] = RunClient(store).questions(to="ada")
        assert (question.run_id, question.message) == ("r1", "Send it?")
        ```
    """

    run_id: str
    """Id of the run."""
    state_token: str
    """Token for the answer."""
    message: str
    """Question to the person."""
    step: str = ""
    """Pausing step."""
    to: str | None = None
    """Addressee of an approval, if declared."""
    options: tuple[Option, ...] = ()
    """Options of an approval."""
    due_at: float | None = None
    """Until when, in seconds since the epoch; `None` is for ever."""
    level: int = 0
    """Number of escalations."""
    deferrals: int = 0
    """Number of deferrals."""
    metadata: Mapping[str, object] = attrs.field(factory=dict)
    """Further facts for the approver."""
    kind: QuestionKind = "input"
    """Kind of the question."""
    path: str = ""
    """Path of the pausing step."""
    pipeline: str = ""
    """Name of the pipeline."""
    labels: Mapping[str, str] = NO_LABELS
    """Labels of the run; read-only."""
    asked_at: float | None = None
    """Start of the pause in epoch seconds; None in older stores."""
    schema: JsonSchema = attrs.field(factory=dict)
    """JSON Schema of the answer; empty if every answer fits."""
    tool: AskedTool | None = None
    """Tool call that waits for approval."""
    cursor: str = attrs.field(default="", eq=False)
    """Cursor for `questions` that continues after this one."""


def open_questions(store: Store, query: QuestionQuery) -> list[Question]:
    """Return a page of open questions. Blocks."""
    if not hasattr(store, "asked"):
        raise StoreError(f"{type(store).__name__} has no `asked`, so its questions cannot be listed")
    return [question_of(each) for each in store.asked(query)]


def question_at(store: Store, token: str) -> Question:
    """Return the open question of a token; raise `AlreadyAnswered` or `NotPaused`. Blocks."""
    pause, run = waiting_pause(store, token), store.get(parse_token(token)[0])
    return question_of(AskedPause(run_id=run.run_id, pause=pause, pipeline=run.pipeline, labels=run.labels))


def question_of(asked: AskedPause) -> Question:
    """Return the question of a run's open pause."""
    pause = asked.pause
    body = record_bodies.read_body(pause.body, where=f"the pause at {pause.token!r}")
    spec = read_question(body.get("question"))
    facts = {} if spec is None else spec.facts
    return Question(
        run_id=asked.run_id,
        state_token=pause.token,
        message=pause.message,
        step=body.get("step_name", ""),
        to=facts.get("to"),
        options=options_of(spec) if spec is not None and spec.kind == "approval" else (),
        due_at=pause.due_at,
        level=facts.get("level", 0),
        deferrals=facts.get("deferrals", 0),
        metadata=facts.get("metadata", {}),
        kind=kind_of(spec, pause.path),
        path=pause.path,
        pipeline=asked.pipeline,
        labels=asked.labels,
        asked_at=pause.asked_at,
        schema=answer_schema(spec, pause.path, body.get("schema")),
        tool=_asked_tool(spec),
        cursor=asked.cursor,
    )


def _asked_tool(spec: QuestionSpec | None) -> AskedTool | None:
    if spec is None or spec.kind not in ("tool", "external"):
        return None
    shown, facts = spec.facts["metadata"], spec.facts
    return AskedTool(
        name=shown["tool"],
        arguments=shown["arguments"],
        schema=facts.get("parameters"),
        description=facts.get("description"),
    )


def question_data(question: Question) -> JsonSchema:
    """Return a question as JSON data."""
    data = attrs.asdict(question, filter=attrs.filters.exclude("cursor"), recurse=False)
    options = [attrs.asdict(each) for each in question.options]
    tool = None if question.tool is None else dict(question.tool)
    return {**data, "options": options, "labels": dict(question.labels), "tool": tool}


# --- Events sent to waiting steps ---------------------------------------------------------------------------------


def send(
    store: Store,
    event: str,
    *,
    key: str,
    data: object,
    id: str | None,
    to: Literal["one", "all"],
    by: str | None,
    settings: EventSettings,
) -> Sent:
    """Send an event once; raise `InvalidEvent` if it is refused. Blocks."""
    required(store, "send", subject="sending an event", port="Events")
    if to not in ("one", "all"):
        raise DeclarationError(f"send: to must be 'one' or 'all', not {to!r}")
    try:
        named = checked_event_name(event, subject="send: event"), checked_event_name(key, subject="send: key")
        chosen = seams.random_bytes(16).hex() if id is None else checked_event_name(id, subject="send: id")
    except ValueError as error:
        raise DeclarationError(str(error)) from None
    _check_data(event, data, settings.max_bytes)
    signed = {} if by is None else {"by": by}
    outgoing = OutgoingEvent(
        event=named[0],
        key=named[1],
        id=chosen,
        body=record_bodies.make_body(answer=record_bodies.stored_value(data), event=chosen, **signed),
        by=by,
        to_all=to == "all",
        retain_s=settings.retain_s,
        dedupe_s=settings.dedupe_s,
    )
    return store.send(outgoing, lambda run_id, pause: _accept(outgoing, run_id, pause))


def _accept(event: OutgoingEvent, run_id: str, pause: OpenPause) -> None:
    """Raise `InvalidEvent` if the wait does not accept the data."""
    reason = refusal_of(event.body, pause.body)
    if reason is not None:
        step = record_bodies.read_body(pause.body, where="a wait").get("step_name", pause.path)
        raise InvalidEvent(
            f"event {event.event!r} with key {event.key!r} does not fit what step {step!r} of run {run_id!r} waits "
            f"for: {reason}; nothing was stored, the run still waits"
        )


def _check_data(event: str, data: object, max_bytes: int) -> None:
    _check_json(event, data, "data")
    size = len(json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise InvalidEvent(f"event {event!r} has {size:,} bytes, and events.max_bytes is {max_bytes:,}")


def _check_json(event: str, root: object, name: str) -> None:
    """Raise `InvalidEvent` that names the first part without a JSON form."""
    left: list[tuple[str, Any]] = [(name, root)]
    while left:
        place, value = left.pop()
        if isinstance(value, dict):
            for part in value:
                if not isinstance(part, str):
                    raise InvalidEvent(f"event {event!r}: {place} has the key {part!r:.100}, which is no text")
            left += [(f"{place}.{part}", each) for part, each in value.items()]
        elif isinstance(value, list):
            left += [(f"{place}.{number}", each) for number, each in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise InvalidEvent(f"event {event!r}: {place} is {value!r}, which has no JSON form")
        elif not isinstance(value, str | int | float | None):
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise InvalidEvent(f"event {event!r}: {place} is a {kind}, which has no JSON form")
