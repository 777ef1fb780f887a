"""Records as a list or a tree of a run shows them: without their bodies, so that ten thousand are read at a glance.

Rules:

1. What a light record says beyond its place is in its body, and a short body is read for it.
2. Of a long body a *gist* is written beside it: a short JSON text that says the same, and is all that a listing reads.
   What is as by default is left out.
3. The start of a step is `at - latency_s`, for every kind: a `started` record says how long the step had been at work
   when it was written.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from .outcomes import Failure, StepResult, Success, TerminalOutcome
from .path_names import unit_name
from .paths import StepPath
from .records import Record, RecordKind

NOTE_CHARS = 200
"""How much of a text a light record holds."""

SHORT_BODY = 512
"""A body of so many characters needs no gist."""

_write = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class LightRecord(NamedTuple):
    """One thing that happened in a run, without its body.

    A tuple, because a listing makes them by the ten thousand.
    """

    seq: int
    kind: RecordKind
    path: StepPath
    at: float | None = None
    """When it was written, in seconds since the epoch by the store's clock; `None` where nobody noted it."""
    name: str = ""
    """What the step is called."""
    status: str | None = None
    """`success` or `failure` of a step that settled, the status of a run that ended."""
    latency_s: float = 0.0
    tokens: int = 0
    cost_usd: float = 0.0
    attempts: int = 1
    note: str = ""
    """Why it failed, what it asks, which tool it calls and with what: at most 200 characters."""
    of: int = 0
    """How many siblings the step has, itself included, where it is one of a map or a parallel stage."""
    origin: str = ""
    """Of an admission: the run that this one was forked from."""
    origin_seq: int = 0
    """Up to which of its records."""


_KEYS = {
    "name": "n",
    "status": "s",
    "latency_s": "l",
    "tokens": "t",
    "cost_usd": "c",
    "attempts": "a",
    "note": "x",
    "of": "o",
    "origin": "r",
    "origin_seq": "q",
}
_NAMES = {short: name for name, short in _KEYS.items()}
_DEFAULTS = LightRecord._field_defaults


def gist(**facts: Any) -> str:
    """The short text of what is known; empty if that is nothing but defaults."""
    told = {_KEYS[name]: fact for name, fact in facts.items() if fact is not None and fact != _DEFAULTS[name]}
    if "x" in told:
        told["x"] = told["x"][:NOTE_CHARS]
    if "l" in told:
        told["l"] = round(told["l"], 6)
    return _write(told) if told else ""


def settled_gist(outcome: TerminalOutcome, *, of: int = 0) -> str:
    """The gist of how a step ended."""
    if isinstance(outcome, Success):
        result = outcome.step_result
        note = success_note(result.metadata, result.attempts) if result.metadata or result.attempts > 1 else None
        return gist(status="success", note=note, of=of, **_facts_of(result))
    if isinstance(outcome, Failure):
        facts = {} if outcome.step_result is None else _facts_of(outcome.step_result)
        return gist(status="failure", note=outcome.feedback, of=of, **facts)
    return gist(status="aborted", of=of)


def _facts_of(result: StepResult) -> dict[str, object]:
    return {
        "name": result.name,
        "latency_s": result.latency_s,
        "tokens": result.token_counts,
        "cost_usd": result.cost_usd,
        "attempts": result.attempts,
    }


def light(seq: int, kind: RecordKind, path: StepPath, at: float | None, text: str) -> LightRecord:
    """The light record of a row; a gist that cannot be read says nothing, since its body says it all."""
    return LightRecord(seq, kind, path, at, **_facts(text))


def _facts(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    return {_NAMES[short]: fact for short, fact in told.items() if short in _NAMES} if isinstance(told, dict) else {}


def light_of(record: Record) -> LightRecord:
    """A record without its body; what it says is read from the body if it has no gist."""
    if record.gist is None:
        return light_of_body(record.seq, record.kind, record.path, record.at, record.body)
    return light(record.seq, record.kind, record.path, record.at, record.gist)


def light_of_body(seq: int, kind: RecordKind, path: StepPath, at: float | None, body: str) -> LightRecord:
    """The light record of a row that has no gist."""
    told = _facts_in(kind, path, body)
    if told.get("note"):
        told["note"] = told["note"][:NOTE_CHARS]
    return LightRecord(seq, kind, path, at, **told)


# --- what a body comes to ------------------------------------------------------------------------------------


def gist_of(record: Record) -> str | None:
    """What is written beside a body: nothing beside a short one, else what the record brings along or its body says."""
    if record.gist is not None or len(record.body) <= SHORT_BODY:
        return record.gist
    return gist(**_facts_in(record.kind, record.path, record.body))


def _facts_in(kind: RecordKind, path: StepPath, text: str) -> dict[str, Any]:
    """What a body says; nothing if it cannot be read, for whoever reads all of it is told so."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return _told_by(kind, path, body) if isinstance(body, dict) else {}


def _told_by(kind: RecordKind, path: StepPath, body: dict[str, object]) -> dict[str, object]:
    match kind:
        case "admitted":
            return origin_facts(body.get("origin"))
        case "started":
            return {
                "name": _text(body.get("name")),
                "latency_s": _number(body.get("latency_s")),
                "of": int(_number(body.get("of"))),
            }
        case "settled":
            return _settled(body)
        case "intent" | "unit":
            return {"name": unit_name(path), **_spent(body.get("usage")), "note": _tool(body.get("intent"))}
        case "paused":
            return {
                "name": _text(body.get("step_name")),
                "note": _text(body.get("message")),
                **_spent(body.get("usage")),
            }
        case "ended":
            return {
                "status": body.get("status"),
                "tokens": _number(body.get("total_tokens")),
                "cost_usd": _number(body.get("total_cost_usd")),
                "note": _text(body.get("feedback")),
            }
        case "answered" | "resumed" | "chosen" | "rewarded":
            return {}
        case _:  # a kind of a later version, which another part of the code has let in
            return {}


def origin_facts(origin: object) -> dict[str, object]:
    """Where a forked run comes from, out of its admission."""
    if not isinstance(origin, dict):
        return {}
    return {"origin": _text(origin.get("run_id")), "origin_seq": int(_number(origin.get("seq")))}


def _settled(body: dict[str, object]) -> dict[str, object]:
    body = body.get("outcome") if isinstance(body.get("outcome"), dict) else body  # type: ignore[assignment]
    of = int(_number(body.get("of")))
    failed = body.get("failure")
    if isinstance(failed, dict):
        return {
            **_result(failed.get("step_result")),
            "status": "failure",
            "note": _text(failed.get("feedback")),
            "of": of,
        }
    done = body.get("success") if isinstance(body.get("success"), dict) else body.get("step_result")
    kind = "success" if body.get("kind", "success") == "success" else "failure"
    return {**_result(done), "status": kind, "of": of}


def _result(result: object) -> dict[str, Any]:
    if not isinstance(result, dict):
        return {}
    attempts, metadata = int(_number(result.get("attempts", 1))), result.get("metadata")
    return {
        "name": _text(result.get("name")),
        "latency_s": _number(result.get("latency_s")),
        "tokens": int(_number(result.get("token_counts"))),
        "cost_usd": _number(result.get("cost_usd")),
        "attempts": attempts,
        "note": success_note(metadata, attempts) if metadata or attempts > 1 else "",
    }


def success_note(metadata: object, attempts: int) -> str:
    """What is worth knowing about a step that succeeded."""
    told = metadata if isinstance(metadata, dict) else {}
    if told.get("fallback_triggered"):
        return f"fell back: {told.get('original_error')}"
    if "loops" in told:
        return f"{told['loops']} turns"
    if "branch" in told:
        return f"took branch {told['branch']}"
    return f"{attempts} attempts" if attempts > 1 else ""


def _spent(usage: object) -> dict[str, object]:
    if not isinstance(usage, dict):
        return {}
    tokens = _number(usage.get("input_tokens")) + _number(usage.get("output_tokens"))
    return {"tokens": int(tokens), "cost_usd": _number(usage.get("cost_usd"))}


def _tool(intent: object) -> str:
    try:
        told = json.loads(intent) if isinstance(intent, str) else None
    except (ValueError, RecursionError):
        return ""
    return called(_text(told.get("tool")), told.get("arguments")) if isinstance(told, dict) else ""


def called(tool: str, arguments: object) -> str:
    """A tool call in a line, as far as it is known: `book(city=Oslo)`."""
    if not tool or not isinstance(arguments, dict):
        return tool
    said = (f"{name}={value if isinstance(value, str) else _write(value)}" for name, value in arguments.items())
    return f"{tool}({', '.join(said)})"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
