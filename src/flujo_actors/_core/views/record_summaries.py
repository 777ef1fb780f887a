"""Record summaries for listings and trees, read without record bodies.

Rules:

1. A short body is parsed for the facts of its summary.
2. A long body is stored with a *gist*: a short JSON text with the same facts, the only text a listing reads. Default
   values are omitted.
3. The start of a step is `at - latency_s`, for every kind: a `started` record contains the time since the step's start
   when it was written.

Sections:

- Record summaries of in-process outcomes, for live views.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, NamedTuple, assert_never

from .. import step_paths
from ..outcomes import (
    Aborted,
    Chunk,
    Failure,
    Paused,
    PipelineResult,
    Started,
    StepResult,
    Success,
    TerminalOutcome,
    ToldOutcome,
    ToolCalled,
)
from ..records.records import Record, RecordKind
from ..step_paths import ROOT, StepPath, unit_name

NOTE_CHARS = 200
"""Maximum length of a note in a record summary."""

SHORT_BODY = 512
"""A body of so many characters needs no gist."""

_write = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class RecordSummary(NamedTuple):
    """One thing that happened in a run, without its body.

    A tuple, because a listing makes them by the ten thousand.
    """

    seq: int
    """Number of the record."""
    kind: RecordKind
    """Kind of the record."""
    path: StepPath
    """Path of the step."""
    at: float | None = None
    """Store time of the record in epoch seconds; `None` if unknown."""
    name: str = ""
    """Name of the step."""
    status: str | None = None
    """`success` or `failure` of a step, `sleeping` of a pause that asks no person, or the run's end status."""
    latency_s: float = 0.0
    """Seconds of the step."""
    tokens: int = 0
    """Tokens of the step."""
    cost_usd: float = 0.0
    """Cost of the step."""
    attempts: int = 1
    """Number of attempts."""
    note: str = ""
    """Failure, prompt or tool call in at most 200 characters."""
    of: int = 0
    """Number of siblings in a map or parallel stage, itself included."""
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
_DEFAULTS = RecordSummary._field_defaults


def gist(**facts: Any) -> str:
    """Return the short text of the given facts; empty for defaults only."""
    stored = {_KEYS[name]: fact for name, fact in facts.items() if fact is not None and fact != _DEFAULTS[name]}
    if "x" in stored:
        stored["x"] = stored["x"][:NOTE_CHARS]
    if "l" in stored:
        stored["l"] = round(stored["l"], 6)
    return _write(stored) if stored else ""


def settled_gist(outcome: TerminalOutcome, *, of: int = 0) -> str:
    """Return the gist of how a step ended."""
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


def light(seq: int, kind: RecordKind, path: StepPath, at: float | None, text: str) -> RecordSummary:
    """Return a row's summary, from its body if the gist fails."""
    return RecordSummary(seq, kind, path, at, **_facts(text))


def _facts(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        stored = json.loads(text)
    except ValueError:
        return {}
    return (
        {_NAMES[short]: fact for short, fact in stored.items() if short in _NAMES} if isinstance(stored, dict) else {}
    )


def light_of(record: Record) -> RecordSummary:
    """Return a record's summary, from its gist or else its body."""
    if record.gist is None:
        return light_of_body(record.seq, record.kind, record.path, record.at, record.body)
    return light(record.seq, record.kind, record.path, record.at, record.gist)


def light_of_body(seq: int, kind: RecordKind, path: StepPath, at: float | None, body: str) -> RecordSummary:
    """Return the light record of a row that has no gist."""
    stored = _facts_in(kind, path, body)
    if stored.get("note"):
        stored["note"] = stored["note"][:NOTE_CHARS]
    return RecordSummary(seq, kind, path, at, **stored)


# --- facts of a body -----------------------------------------------------------------------------------------


def gist_of(record: Record) -> str | None:
    """Return the gist stored with a long body; `None` if short."""
    if record.gist is not None or len(record.body) <= SHORT_BODY:
        return record.gist
    return gist(**_facts_in(record.kind, record.path, record.body))


def _facts_in(kind: RecordKind, path: StepPath, text: str) -> dict[str, Any]:
    """Return a body's facts; none if unreadable, reported by full reads."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return _status_by(kind, path, body) if isinstance(body, dict) else {}


def _status_by(kind: RecordKind, path: StepPath, body: dict[str, object]) -> dict[str, object]:
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
                "status": "sleeping" if body.get("wait") else None,
                **_spent(body.get("usage")),
            }
        case "ended":
            return {
                "status": body.get("status"),
                "tokens": _number(body.get("total_tokens")),
                "cost_usd": _number(body.get("total_cost_usd")),
                "note": _text(body.get("feedback")),
            }
        case "compacted":
            return {**_result(body.get("result")), "note": f"{int(_number(body.get('turn')))} turns"}
        case "retried":
            return {"note": _text(body.get("reason"))}
        case "answered" | "resumed" | "chosen" | "rewarded" | "steered":
            return {}
        case _:  # a record kind of a later version, admitted by another part of the code
            return {}


def origin_facts(origin: object) -> dict[str, object]:
    """Return the origin of a forked run from its admission record."""
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
    """Return the note of a successful step: retries, fallback, degraded output."""
    facts = metadata if isinstance(metadata, dict) else {}
    if facts.get("fallback_triggered"):
        return f"fell back: {facts.get('original_error')}"
    if "loops" in facts:
        return f"{facts['loops']} turns"
    if "branch" in facts:
        return f"took branch {facts['branch']}"
    return f"{attempts} attempts" if attempts > 1 else ""


def _spent(usage: object) -> dict[str, object]:
    if not isinstance(usage, dict):
        return {}
    tokens = _number(usage.get("input_tokens")) + _number(usage.get("output_tokens"))
    return {"tokens": int(tokens), "cost_usd": _number(usage.get("cost_usd"))}


def _tool(intent: object) -> str:
    try:
        facts = json.loads(intent) if isinstance(intent, str) else None
    except (ValueError, RecursionError):
        return ""
    return called(_text(facts.get("tool")), facts.get("arguments")) if isinstance(facts, dict) else ""


def called(tool: str, arguments: object) -> str:
    """Return a tool call in one line: `book(city=Oslo)`."""
    if not tool or not isinstance(arguments, dict):
        return tool
    shown = (f"{name}={value if isinstance(value, str) else _write(value)}" for name, value in arguments.items())
    return f"{tool}({', '.join(shown)})"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


# --- Record summaries of in-process outcomes ----------------------------------------------------------------------


class LightOutcomes:
    """Convert outcomes to numbered record summaries."""

    def __init__(self, *, at: float) -> None:
        self._numbers = itertools.count(2)
        self.first = RecordSummary(seq=1, kind="admitted", path=ROOT, at=at)
        """The run's first record."""

    def record(self, outcome: ToldOutcome, *, at: float) -> RecordSummary | None:
        """Return the summary of an outcome; `None` for a chunk."""
        match outcome:
            case Chunk():
                return None
            case Started():
                return self._started(outcome, at)
            case ToolCalled():
                return self._tool_call(outcome, at)
            case Success(step_result=result):
                return self._settled(
                    outcome.path, result, "success", success_note(result.metadata, result.attempts), at
                )
            case Failure(step_result=result, feedback=feedback):
                return self._settled(outcome.path, result, "failure", feedback or "", at)
            case Paused(message=message):
                return self._new(kind="paused", path=StepPath(outcome.path), at=at, note=message[:NOTE_CHARS])
            case Aborted(reason=reason):
                return self._settled(outcome.path, None, "aborted", reason, at)
            case _:
                assert_never(outcome)

    def end(self, result: PipelineResult, *, at: float) -> RecordSummary:
        """Return the run's last record."""
        return self._new(
            kind="ended",
            path=ROOT,
            at=at,
            status=result.status,
            tokens=result.total_tokens,
            cost_usd=result.total_cost_usd,
            note=(result.feedback or "")[:NOTE_CHARS],
        )

    def _new(self, **facts: object) -> RecordSummary:
        return RecordSummary(seq=next(self._numbers), **facts)  # type: ignore[arg-type]

    def _started(self, started: Started, at: float) -> RecordSummary:
        return self._new(kind="started", path=StepPath(started.path), at=at, name=started.step_name, of=started.of)

    def _tool_call(self, call: ToolCalled, at: float) -> RecordSummary:
        kind = "intent" if call.status == "started" else "unit"
        place = step_paths.unit(StepPath(call.path), call.tool_call_id)
        note = called(call.tool_name, call.arguments)[:NOTE_CHARS]
        return self._new(kind=kind, path=place, at=at, name=call.tool_call_id, note=note)

    def _settled(self, path: str, result: StepResult | None, status: str, note: str, at: float) -> RecordSummary:
        shown = StepResult(name="") if result is None else result
        return self._new(
            kind="settled",
            path=StepPath(path),
            at=at,
            name=shown.name,
            status=status,
            latency_s=shown.latency_s,
            tokens=shown.token_counts,
            cost_usd=shown.cost_usd,
            attempts=shown.attempts,
            note=note[:NOTE_CHARS],
        )
