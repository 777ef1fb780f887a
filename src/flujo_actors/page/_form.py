"""Forms from JSON Schemas, questions with their forms, and answers.

Pure; the store validates the answer.

Rules:

1. Two truths, or up to four options, are buttons: one click answers.
2. A single value is one field. An object has a field for each property, a list one for its items, a union one for each
   alternative; they nest.
3. A value without a field is a box for JSON; the other fields stay.
4. A decimal number is a text, so that no digit is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from .._core.labels import LabelFilter
from .._core.outcomes import RunId
from .._core.records.records import AskedPause, RunQuery, StoredRun
from .._core.step_paths import ROOT, StepPath, is_tried, step_around
from .._core.views.record_summaries import RecordSummary
from .._durable.pause_lookup import Question, question_of
from ..stores._store_port import Store
from ._conversation import conversation_of, step_of_unit
from ._record_view import Bodies, Clean, Hide

JsonSchema: TypeAlias = Mapping[str, object]
Field: TypeAlias = dict[str, object]

BUTTONS = 4
"""Maximum number of options shown as buttons."""

_LONG_TEXT = 200
_DEEPEST = 4
"""Maximum nesting of fields; a model may contain itself."""
_TEXTS = {"date": "date", "time": "time", "date-time": "datetime"}


def answer_form(schema: JsonSchema | None) -> dict[str, Any]:
    """Return the form for `schema`: `buttons`, or `fields`.

    `whole` is true if the answer is the value of the only field, or an object with the fields by name.

    Args:
        schema: JSON Schema of the answer.
    """
    if not schema:
        return _form([_text_box("answer")], whole=True, schema=schema)
    resolved, nullable = _resolved(schema, schema)
    buttons = None if nullable else _buttons(resolved)
    if buttons is not None:
        return {"buttons": buttons, "fields": [], "whole": True, "schema": dict(schema)}
    if _has_properties(resolved) and not nullable:
        return _form(_properties(resolved, schema, depth=1), whole=False, schema=schema)
    field = _field("answer", schema, root=schema, required=True, depth=0)
    return _form([{**field, "label": resolved.get("title") or "answer"}], whole=True, schema=schema)


def _form(fields: list[Field], *, whole: bool, schema: JsonSchema | None) -> dict[str, Any]:
    return {"buttons": None, "fields": fields, "whole": whole, "schema": None if schema is None else dict(schema)}


def _text_box(name: str) -> Field:
    return {"name": name, "kind": "long", "label": name, "type": "text", "required": True}


def _has_properties(schema: Mapping[str, Any]) -> bool:
    return isinstance(schema.get("properties"), Mapping) and bool(schema["properties"])


def _properties(schema: Mapping[str, Any], root: JsonSchema, *, depth: int) -> list[Field]:
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    return [
        _field(str(name), part, root=root, required=name in needed, depth=depth)
        for name, part in schema["properties"].items()
    ]


def _buttons(schema: JsonSchema) -> list[dict[str, object]] | None:
    if schema.get("type") == "boolean":
        return [{"value": True, "label": "Yes"}, {"value": False, "label": "No"}]
    options = _options(schema)
    return options if options is not None and len(options) <= BUTTONS else None


def _options(schema: JsonSchema) -> list[dict[str, object]] | None:
    if "const" in schema:
        return [{"value": schema["const"], "label": str(schema["const"])}]
    given = schema.get("enum")
    if isinstance(given, list) and given:
        return [{"value": each, "label": str(each)} for each in given]
    one_of = schema.get("oneOf")
    if isinstance(one_of, list) and one_of and all(isinstance(each, Mapping) and "const" in each for each in one_of):
        return [{"value": each["const"], "label": str(each.get("title", each["const"]))} for each in one_of]
    return None


def _field(name: str, schema: object, *, root: JsonSchema, required: bool, depth: int) -> Field:
    """Return the field of one value; a JSON box for the rest."""
    if not isinstance(schema, Mapping):
        return {"name": name, "kind": "json", "label": name, "type": "JSON", "required": required}
    resolved, nullable = _resolved(schema, root)
    label = str(schema.get("title") or resolved.get("title") or name)
    kind, details = _kind(resolved, root, depth=depth)
    facts = _facts(schema, resolved, kind, nullable=nullable)
    type_name = details.pop("type", kind)
    return {
        "name": name,
        "kind": kind,
        "label": label,
        "type": type_name,
        "required": required and not nullable,
        **details,
        **facts,
    }


def _facts(schema: JsonSchema, resolved: JsonSchema, kind: str, *, nullable: bool) -> Field:
    bounds = {"min": resolved.get("minimum"), "max": resolved.get("maximum")}
    found = {
        "nullable": nullable or None,
        "help": schema.get("description") or resolved.get("description"),
        "initial": schema.get("default", resolved.get("default")),
        **(bounds if kind in ("number", "integer") else {}),
    }
    return {name: each for name, each in found.items() if each is not None}


def _kind(schema: Mapping[str, Any], root: JsonSchema, *, depth: int) -> tuple[str, Field]:
    """Return the kind of a field with its details."""
    options = _options(schema)
    if options is not None:
        return "choice", {"options": options, "type": "enum"}
    if _is_decimal(schema):
        return "decimal", {}
    match schema.get("type"):
        case "string":
            long = schema.get("maxLength", 0) > _LONG_TEXT if isinstance(schema.get("maxLength", 0), int) else False
            return _TEXTS.get(str(schema.get("format")), "long" if long else "text"), {"type": _text_type(schema)}
        case "number" | "integer" | "boolean" as kind:
            return str(kind), {}
    return _nested(schema, root, depth=depth) if depth < _DEEPEST else ("json", {"type": "JSON"})


def _text_type(schema: Mapping[str, Any]) -> str:
    return str(schema["format"]) if schema.get("format") in _TEXTS else "string"


def _nested(schema: Mapping[str, Any], root: JsonSchema, *, depth: int) -> tuple[str, Field]:
    """Return kind and inner fields of an object, list or union."""
    if _has_properties(schema):
        return "object", {"fields": _properties(schema, root, depth=depth + 1), "type": "object"}
    items = schema.get("items")
    if schema.get("type") == "array" and isinstance(items, Mapping) and items and "prefixItems" not in schema:
        item = _field("", items, root=root, required=True, depth=depth + 1)
        return "list", {"item": item, "items": _item_type(schema), "type": "list"}
    parts = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(parts, list) and len(parts) > 1 and all(isinstance(each, Mapping) for each in parts):
        return "union", {"choices": [_alternative(each, root, depth) for each in parts], "type": "union"}
    return "json", {"type": "JSON"}


def _alternative(schema: Mapping[str, Any], root: JsonSchema, depth: int) -> Field:
    """Return the field of one alternative of a union."""
    field = _field("", schema, root=root, required=True, depth=depth + 1)
    return {**field, "label": field["label"] or field["type"]}


def _is_decimal(schema: Mapping[str, Any]) -> bool:
    """Return whether a value is a number or its text (`Decimal`)."""
    parts = schema.get("anyOf")
    if not isinstance(parts, list) or not all(isinstance(each, Mapping) and "enum" not in each for each in parts):
        return False
    numeric = [each for each in parts if each.get("type") in ("number", "string")]
    return [each.get("type") for each in parts] == ["number", "string"] and (
        "pattern" in numeric[1] or len(parts[1]) == 1
    )


def _item_type(schema: JsonSchema) -> object:
    items = schema.get("items")
    return items.get("type") if isinstance(items, Mapping) else None


def _resolved(schema: JsonSchema, root: JsonSchema) -> tuple[JsonSchema, bool]:
    """Return the resolved schema, and whether it allows null."""
    nullable = False
    for _ in range(20):  # references may be circular
        following, may_be_none = _one_step(schema, root)
        nullable = nullable or may_be_none
        if following is schema:
            return schema, nullable
        schema = following
    return {}, nullable


def _one_step(schema: JsonSchema, root: JsonSchema) -> tuple[JsonSchema, bool]:
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _behind(reference, root), False
    parts = schema.get("anyOf")
    if isinstance(parts, list):
        rest = [each for each in parts if isinstance(each, Mapping) and each.get("type") != "null"]
        if len(rest) == len(parts) - 1:
            return (rest[0] if len(rest) == 1 else {**schema, "anyOf": rest}), True
        return schema, False
    types = schema.get("type")
    if isinstance(types, list):
        rest_types = [each for each in types if each != "null"]
        if len(rest_types) == 1:
            return {**schema, "type": rest_types[0]}, "null" in types
    return schema, False


def _behind(reference: str, root: JsonSchema) -> JsonSchema:
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


# --- Questions for the browser --------------------------------------------------------------------------------
# A question has the schema that `RunClient.questions` returns; fields and options are derived from it alone. The facts
# around it (input, reasoning, steps so far) are read for one question at a time. All is plain JSON, redacted.


_FEW_STEPS = 12

_PILLS = {
    "tool": "waiting for approval",
    "approval": "waiting for approval",
    "input": "waiting for an answer",
}
_COMMENTS = {"approval": "comment", "tool": "reason"}
"""Property of an answer that holds its comment, by kind."""

_OPTION_KINDS = {"approve": "approve", "deny": "reject", "reject": "reject", "defer": "defer", "stop": "stop"}


def questions_of_run(run: StoredRun, hide: Hide, clean: Clean, *, content: bool) -> list[dict[str, object]]:
    """Return the open questions of a run."""
    asked = [AskedPause(run_id=run.run_id, pause=each, pipeline=run.pipeline, labels=run.labels) for each in run.pauses]
    return [question_view(question_of(each), hide, clean, content=content) for each in asked]


def question_view(question: Question, hide: Hide, clean: Clean, *, content: bool) -> dict[str, object]:
    """Return a question with the form of its answer."""
    options = _offered(question)
    form, given = _form_of(question)
    return {
        "token": question.state_token,
        "run_id": question.run_id,
        "path": question.path,
        "step_path": step_of_unit(question.path),
        "step_name": question.step or question.path,
        "pipeline": question.pipeline,
        "title": _title(question),
        "kind": question.kind,
        "asks": f"Call {question.tool['name']}?" if question.tool is not None else hide(question.message),
        "pill": _PILLS.get(question.kind, f"waiting: {question.kind}"),
        "message": hide(question.message),
        "to": question.to,
        "due_ms": _ms(question.due_at),
        "asked_ms": _ms(question.asked_at),
        "labels": clean(dict(question.labels)),
        "tool": _tool(question, clean),
        "facts": clean(dict(question.metadata)) if question.kind == "approval" and content else {},
        "options": options,
        "comment": _comment(question),
        "form": clean(form),
        "given": clean(given) if content else None,
    }


def _ms(at: float | None) -> int | None:
    return None if at is None else round(at * 1000)


def _title(question: Question) -> str:
    labels = question.labels
    return labels.get("title") or labels.get("name") or question.pipeline


def _tool(question: Question, clean: Clean) -> dict[str, object] | None:
    if question.tool is None:
        return None
    facts: dict[str, object] = clean({"name": question.tool["name"], "description": question.tool.get("description")})
    return facts


def _offered(question: Question) -> list[dict[str, object]]:
    """Return the options that the answer schema offers, in order."""
    if question.kind == "input":
        return []
    kinds = {each.name: each.kind for each in question.options}
    offered = question.schema["properties"]["option"]["oneOf"]
    return [
        {
            "name": each["const"],
            "label": each["title"],
            "kind": kinds.get(each["const"]) or _kind_by_name(each["const"]),
        }
        for each in offered
    ]


def _kind_by_name(name: str) -> str:
    return _OPTION_KINDS.get(name, "approve" if name in ("raise", "continue", "retry", "rerun") else "")


def _comment(question: Question) -> dict[str, object] | None:
    name = _COMMENTS.get(question.kind)
    return None if name is None else {"name": name, "required": "then" in question.schema}


def _form_of(question: Question) -> tuple[dict[str, Any], object]:
    """Return the form next to the options, with its first value."""
    schema = question.schema
    if question.kind == "input":
        return answer_form(schema), None
    parts = schema["properties"]
    if question.kind == "tool":
        assert question.tool is not None
        form = answer_form({**parts["arguments"], **({"$defs": schema["$defs"]} if "$defs" in schema else {})})
        return (form if form["fields"] else {**form, "buttons": None}), question.tool["arguments"]
    rest = {name: part for name, part in parts.items() if name not in ("option", "comment")}
    if not rest:
        return {"buttons": None, "fields": [], "whole": False, "schema": None}, None
    return answer_form({"type": "object", "properties": rest, "required": []}), None


def about_question(store: Store, question: Question, clean: Clean) -> dict[str, object]:
    """Return input, reasoning and steps before a question. Blocks."""
    bodies = Bodies.of(store, RunId(question.run_id))
    path = StepPath(step_of_unit(question.path))
    record = RecordSummary(seq=bodies.light[-1].seq + 1 if bodies.light else 1, kind="started", path=path)
    messages = conversation_of(bodies, path)
    said = [each["text"] for each in messages if each["role"] == "assistant" and each.get("text")]
    return {
        "input": clean(bodies.input_of(record)),
        "reasoning": clean(said[-1]) if said else None,
        "steps": _steps(bodies.light),
    }


def _steps(light: tuple[RecordSummary, ...]) -> list[dict[str, object]]:
    """Return the last top-level steps with their status."""
    found: dict[StepPath, dict[str, object]] = {}
    for each in light:
        if each.path in (ROOT,) or step_around(each.path) != ROOT or is_tried(each.path) or "/~u" in each.path:
            continue
        known = found.setdefault(each.path, {"name": each.name or each.path, "status": "running", "latency_ms": 0})
        if each.kind == "settled":
            known |= {"status": "completed" if each.status == "success" else "failed"}
            known["latency_ms"] = round(each.latency_s * 1000)
        elif each.kind == "paused":
            known["status"] = "waiting"
    return list(found.values())[-_FEW_STEPS:]


# --- Answers of people ------------------------------------------------------------------------------------------------
# An answer has its user, the decision, the tool or step, a comment and the changed arguments. The list of a store has
# pages of the runs that changed last, with the latest records of each. Ends of sleeps and events are no answers.


_ANSWERED_RUNS = 60
"""Number of runs of one page of answers."""
_ANSWER_RECORDS = 1_000
_DECIDED = {"approve": "approved", "reject": "rejected", "deny": "denied", "defer": "deferred"}


def answers_of(store: Store, run_id: RunId) -> list[dict[str, object]]:
    """Return the answers in a run, oldest first. Blocks."""
    return list(_answer_views(store, store.get(run_id), tuple(store.scan(run_id))))


def latest_answers(store: Store, labels: LabelFilter, cursor: str | None) -> tuple[list[dict[str, object]], str | None]:
    """Return a page of answers, newest first, and the next cursor. Blocks.

    A page without an answer is passed over, up to a bound.
    """
    found: list[dict[str, object]] = []
    for _ in range(_EMPTY_PAGES):
        runs = store.find(RunQuery(order="updated", limit=_ANSWERED_RUNS, labels=labels, cursor=cursor))
        found = [each for run in runs for each in _answer_views(store, run, _last_records(store, run))]
        cursor = (runs[-1].cursor or None) if len(runs) == _ANSWERED_RUNS else None
        if found or cursor is None:
            break
    return sorted(found, key=lambda each: -_time(each)), cursor


_EMPTY_PAGES = 10


def _time(answer: Mapping[str, object]) -> float:
    at = answer["at_ms"]
    return at if isinstance(at, int) else 0


def _last_records(store: Store, run: StoredRun) -> Sequence[RecordSummary]:
    return store.scan(run.run_id, after=max(0, run.records - _ANSWER_RECORDS))


def _answer_views(store: Store, run: StoredRun, light: Sequence[RecordSummary]) -> Iterator[dict[str, object]]:
    bodies = Bodies(store, run.run_id, tuple(light))
    asked: dict[str, RecordSummary] = {}
    for each in light:
        if each.kind == "paused":
            asked[each.path] = each
        elif each.kind == "answered" and getattr(asked.get(each.path), "status", None) != "sleeping":
            yield _answer_view(bodies, run, each, asked.get(each.path))


def _answer_view(
    bodies: Bodies, run: StoredRun, record: RecordSummary, asked: RecordSummary | None
) -> dict[str, object]:
    body = bodies.raw(record.seq)
    answer = body.get("answer")
    given: Mapping[str, object] = answer if isinstance(answer, dict) else {}
    call = {} if asked is None else _tool_call(bodies.raw(asked.seq))
    step = step_of_unit(record.path)
    return {
        "run_id": run.run_id,
        "title": run.labels.get("title") or run.labels.get("name") or run.pipeline,
        "seq": record.seq,
        "at_ms": None if record.at is None else round(record.at * 1000),
        "step": step,
        "by": body.get("by") or given.get("by") or "",
        "decision": _decision(answer, given),
        "name": call.get("tool") or (asked.name if asked is not None and asked.name else step.rpartition("/")[2]),
        "comment": given.get("comment") or given.get("reason") or "",
        "changes": _argument_changes(call.get("arguments"), given.get("arguments")),
    }


def _tool_call(body: Mapping[str, object]) -> Mapping[str, object]:
    """Return tool and arguments of a tool call to approve."""
    found = body
    for name in ("question", "facts", "metadata"):
        inner = found.get(name)
        found = inner if isinstance(inner, dict) else {}
    return found if "tool" in found else {}


def _decision(answer: object, given: Mapping[str, object]) -> str:
    if answer is True or given.get("approved") is True:
        return "approved"
    if answer is False or given.get("approved") is False:
        return "denied"
    option = given.get("option")
    return _DECIDED.get(str(option), f"chose {option} for") if option else "answered"


def _argument_changes(asked: object, given: object) -> list[tuple[str, object, object]]:
    """Return name, requested value and given value of changed arguments."""
    if not isinstance(asked, dict) or not isinstance(given, dict):
        return []
    return [(name, asked.get(name), value) for name, value in given.items() if value != asked.get(name)]
