"""Record bodies: versioned JSON objects, encoded and decoded in one place.

Rules:

1. A body of an unknown version is refused.
2. An exception is stored as its redacted description.
3. Nothing is stored twice or needlessly. Omitted are a context unchanged by the step, a nested result with a record
   of its own, and fields with default values.
4. Bodies of earlier versions keep their meaning:
   version 1 had `same_context`, and contained every nested result. Version 3 marks a context patch
   (`context_patches`); a body without one is written as version 2.

Sections:

- Hand-written record bodies of the most frequent outcomes.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring as _quoted
from typing import Any, TypeVar, cast

import attrs
import cattrs

from ...errors import CorruptRecord, FlujoError, NotSerializable, RecordVersionError
from ..error_info import describe_error, message_of
from ..outcomes import (
    ErrorInfo,
    Failure,
    ItemRange,
    PipelineResult,
    StepOutcome,
    StepResult,
    StoredResults,
    Success,
    TerminalOutcome,
    TracebackFrame,
)
from ..step_paths import StepPath, inside, number_of
from ..type_registry import read_by
from ..usage import NO_USAGE, Usage
from .json_codec import decode, from_data, to_data, value_data
from .records import PLAIN_VERSION, RECORD_VERSION

T = TypeVar("T")

Redact = Callable[[str], str]
"""Takes the secrets out of a text."""

Place = Callable[[StepResult], str | None]
"""Relative path to a nested step with its own record, if any."""

OutcomeAt = Callable[[StepPath], TerminalOutcome | None]
"""Lookup of a step's recorded outcome by path."""

_write = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


MAX_BYTES = 500_000_000
"""Maximum body length in UTF-8; databases allow about 1 GB."""


def make_body(**parts: object) -> str:
    """Return a body; the parts are JSON data."""
    return _bounded(as_text({"v": PLAIN_VERSION, **parts}))


def newest_body(**parts: object) -> str:
    """Return a body that only readers of the newest version know."""
    return _bounded(as_text({"v": RECORD_VERSION, **parts}))


def of_texts(parts: Mapping[str, str]) -> str:
    """Return a body; the parts are JSON texts."""
    texts = "".join(f',"{name}":{text}' for name, text in parts.items())
    return _bounded(f'{{"v":{PLAIN_VERSION}{texts}}}')


def as_text(data: object) -> str:
    """JSON data as bodies have it."""
    try:
        return _write(data)
    except RecursionError:
        raise NotSerializable("the value is nested too deeply to be stored, or contains itself") from None


def _bounded(body: str) -> str:
    if len(body) <= MAX_BYTES // 4:  # a character is four bytes at most
        return body
    size = len(body.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise NotSerializable(
            f"it is too long: {size:,} bytes as JSON, and {MAX_BYTES:,} can be stored in one piece; keep it in a file "
            "or a bucket, and pass its name on"
        )
    return body


_PLAIN_START = f'{{"v":{PLAIN_VERSION}'


def with_part(body: str, name: str, text: str) -> str:
    """Return the body with one more part, given as JSON text."""
    return _bounded(f'{body[:-1]},"{name}":{text}}}')


def with_patch(body: str, name: str, text: str) -> str:
    """Return the body with a part for readers of the newest version."""
    return with_part(f'{{"v":{RECORD_VERSION}{body.removeprefix(_PLAIN_START)}', name, text)


_WORKED = ',"worked":'


def with_worked(body: str, worked: Mapping[str, float]) -> str:
    """Return the body with the elapsed work time, where that is limited."""
    return f"{body[:-1]}{_WORKED}{_write(worked)}}}" if worked else body


def worked_in(body: str) -> dict[str, float]:
    """Return the elapsed work times of a body; empty without time limits."""
    if not body.endswith("}}") or _WORKED not in body:
        return {}
    found = read_body(body, where="a record").get("worked")
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Whatever goes wrong in the block is a `CorruptRecord` that names `where`."""
    try:
        yield
    except NotSerializable as error:
        raise CorruptRecord(f"{where}: {error}") from error
    except FlujoError:
        raise
    except Exception as error:  # a record may be damaged in any way, and users' classes rebuild its values
        raise CorruptRecord(f"{where}: it cannot be read ({type(error).__name__}: {message_of(error)})") from error


def newer_record(where: str, version: int) -> RecordVersionError:
    """Return the error of a record that a later release wrote."""
    return RecordVersionError(
        f"{where} has format {version!s:.20}, this process reads up to {RECORD_VERSION}: upgrade it"
    )


def read_body(text: str, *, where: str) -> dict[str, Any]:
    """Return the parts of a body; `CorruptRecord` names `where` it fails."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(f"{where}: its body is not JSON ({error})") from error
    version = body.get("v") if isinstance(body, dict) else None
    if isinstance(version, int) and version > RECORD_VERSION:
        raise newer_record(where, version)
    if not isinstance(version, int) or version < 1:
        raise CorruptRecord(f"{where}: its body has version {version!r}, this code knows 1 to {RECORD_VERSION}")
    parts: dict[str, Any] = body
    return parts


def text_in(body: dict[str, object], name: str) -> str:
    """Return a part of a body that must be a text."""
    return _of_type(str, body[name], name)


def number_in(body: dict[str, object], name: str) -> int:
    """Return a part of a body that must be a whole number."""
    return _of_type(int, body[name], name)


def _of_type(expected: type[T], part: object, name: str) -> T:
    if not isinstance(part, expected):
        raise TypeError(f"its {name} is a {type(part).__name__}, not a {expected.__name__}")
    return part


def read_value(data: object, *, where: str) -> object:
    """Return a stored value."""
    with reading(where):
        return decode(data)


_AS_THEY_ARE = frozenset({str, bool, type(None)})
"""Types whose values are their own JSON data."""


def stored_value(value: object) -> object:
    """Return a value as JSON data for fresh processes, or raise."""
    return value if type(value) in _AS_THEY_ARE else _stored_value(value)


@read_by("a fresh process")
def _stored_value(value: object) -> object:
    return value_data(value)


@read_by("a fresh process")
def settled_data(outcome: TerminalOutcome, redact: Redact, place: Place) -> dict[str, Any]:
    """Return an outcome under its kind, with any history."""
    outcome, history = _apart(_redacted(outcome, redact))
    if isinstance(history, StoredResults):
        history = history.parts
    data = to_data(outcome, brief=True)
    kind = data.pop("kind")
    parts = {kind: data["step_result"] if kind == "success" else data}
    if history:
        parts["history"] = [_history_part(each, place) for each in history]
    return parts


def _history_part(part: StepResult | ItemRange, place: Place) -> Any:
    if isinstance(part, ItemRange):
        return {"items": part.parent, "first": part.first, "last": part.last}
    return place(part) or to_data(_without_items(part), brief=True)


def _without_items(result: StepResult) -> StepResult:
    """Return a result without nested results that have records of their own."""
    if not result.step_history:
        return result
    stored = isinstance(result.step_history, StoredResults)
    return attrs.evolve(result, step_history=() if stored else tuple(map(_without_items, result.step_history)))


def _apart(outcome: TerminalOutcome) -> tuple[Any, Any]:
    """Return the outcome without its history, and the history."""
    result = getattr(outcome, "step_result", None)
    if result is None or not result.step_history:
        return outcome, ()
    return attrs.evolve(outcome, step_result=attrs.evolve(result, step_history=())), result.step_history


def _redacted(outcome: TerminalOutcome, redact: Redact) -> TerminalOutcome:
    if not isinstance(outcome, Failure) or outcome.error is None:
        return outcome
    info = outcome.error if isinstance(outcome.error, ErrorInfo) else describe_error(outcome.error)
    return attrs.evolve(outcome, error=redacted_error(info, redact))


def read_settled(
    path: StepPath,
    body: dict[str, object],
    outcome_at: OutcomeAt,
    *,
    where: str,
    stored: Callable[[], Sequence[StepResult]] | None = None,
) -> Any:
    """Return the outcome of the step at `path`.

    The records that its history refers to must have been read; with `stored`, which reads its results, items need not.
    """
    outcome = _read_message(_outcome_in(body, where=where), StepOutcome, where=where)
    if "history" not in body:
        return outcome
    if not isinstance(body["history"], list) or getattr(outcome, "step_result", None) is None:
        raise CorruptRecord(f"{where}: its history cannot be read")
    history: Any = None if stored is None else _items_by_reference(path, body["history"], outcome_at, stored, where)
    if history is None:
        parts = _spelled_out(path, body["history"])
        history = tuple(_read_part(path, part, outcome_at, where=where) for part in parts)
    return attrs.evolve(outcome, step_result=attrs.evolve(outcome.step_result, step_history=history))


def _items_by_reference(
    path: StepPath, history: list[Any], outcome_at: OutcomeAt, stored: Callable[[], Sequence[StepResult]], where: str
) -> StoredResults | None:
    """Return a history whose items are read on use, or None."""
    parts = [(part, _item_range(path, part)) for part in history]
    if not any(items for _, items in parts):
        return None
    found = StoredResults([], stored)
    for part, items in parts:
        found.add(_read_part(path, part, outcome_at, where=where) if items is None else items)
    return found


def _item_range(path: StepPath, part: Any) -> ItemRange | None:
    """Return the items referenced by a part of a history."""
    if isinstance(part, dict):
        return ItemRange(part["items"], part["first"], part["last"]) if "items" in part else None
    way, _, key = part.rpartition("~i")
    number = number_of(key)
    if number is None or (way and not way.endswith("/")):
        return None
    return ItemRange(inside(path, way[:-1]) if way else path, number, number)


def steps_inside(path: StepPath, body: dict[str, object], *, items: bool = True) -> list[StepPath]:
    """Return the steps whose records hold parts of this step's history."""
    history = body.get("history")
    if not isinstance(history, list):
        return []
    if not items:
        history = [part for part in history if _item_range(path, part) is None]
    return [inside(path, part) for part in _spelled_out(path, history) if isinstance(part, str)]


def _spelled_out(path: StepPath, history: list[Any]) -> Iterator[Any]:
    """Yield the parts of a history, one per item of a range."""
    for part in history:
        if isinstance(part, dict) and "items" in part:
            way = f"{part['items'][len(path) :].removeprefix('/')}/~i".removeprefix("/")
            yield from (f"{way}{number}" for number in range(part["first"], part["last"] + 1))
        else:
            yield part


def _outcome_in(body: dict[str, Any], *, where: str) -> object:
    if "outcome" in body:  # version 1
        return body["outcome"]
    if "success" in body:
        return {"kind": "success", "step_result": body["success"]}
    if isinstance(body.get("failure"), dict):
        return {"kind": "failure", **body["failure"]}
    raise CorruptRecord(f"{where}: it does not say how the step ended, only {', '.join(body)}")


def _read_part(path: StepPath, part: object, outcome_at: OutcomeAt, *, where: str) -> StepResult:
    if not isinstance(part, str):
        return cast(StepResult, _read_message(part, StepResult, where=where))
    result = getattr(outcome_at(inside(path, part)), "step_result", None)
    if result is None:
        raise CorruptRecord(f"{where}: it refers to the result of {inside(path, part)!r}, which is not there")
    return cast(StepResult, result)


def _read_message(data: object, kind: object, *, where: str) -> Any:
    with reading(where):
        return from_data(data, kind)


@read_by("a fresh process")
def result_part(result: StepResult) -> dict[str, Any]:
    """Return a result without its nested results, as JSON data."""
    data: dict[str, Any] = to_data(attrs.evolve(result, step_history=()), brief=True)
    return data


def read_result_part(data: object, *, where: str) -> StepResult:
    """Return the result that `result_part` wrote."""
    return cast(StepResult, _read_message(data, StepResult, where=where))


def result_data(result: PipelineResult) -> dict[str, object]:
    """Return a result's new parts: status and totals."""
    totals = {
        "feedback": result.feedback,
        "total_tokens": result.total_tokens,
        "total_cost_usd": result.total_cost_usd,
    }
    return {"status": result.status, **{name: total for name, total in totals.items() if total}}


def redacted_error(info: ErrorInfo, redact: Redact) -> ErrorInfo:
    """Return the error without secrets, down to its causes."""
    return ErrorInfo(
        type_name=info.type_name,
        message=redact(info.message),
        notes=tuple(map(redact, info.notes)),
        causes=tuple(redacted_error(cause, redact) for cause in info.causes),
        frames=tuple(_redacted_frame(frame, redact) for frame in info.frames),
    )


def _redacted_frame(frame: TracebackFrame, redact: Redact) -> TracebackFrame:
    return TracebackFrame(file=redact(frame.file), line=frame.line, function=redact(frame.function))


def read_usage(data: object, *, where: str) -> Usage:
    """Return a stored usage; zero if absent."""
    with reading(f"{where}: its usage"):
        return cattrs.structure(data, Usage) if data else NO_USAGE


def usage_data(usage: Usage) -> dict[str, object]:
    """Return a usage as JSON data without zeros."""
    return {name: amount for name, amount in attrs.asdict(usage).items() if amount}


# --- Hand-written record bodies of the most frequent outcomes -----------------------------------------------------
# They equal the output of `record_bodies` character by character, in a tenth of the time. Any other outcome (other
# types,
# long texts, large numbers, metadata, usage) is left to that module.


_LONG = 4 * 1024
_LARGE = 1 << 53
_COMPLETED = f'{{"v":{PLAIN_VERSION},"status":"completed"}}'


def plain_body(outcome: TerminalOutcome) -> str | None:
    """Return the body of a plain first-attempt success, or None."""
    if type(outcome) is not Success or not _is_plain(outcome.step_result):
        return None
    result = outcome.step_result
    output = plain_text(result.output)
    if output is None:
        return None
    latency = f',"latency_s":{round(result.latency_s, 6)!r}' if result.latency_s else ""
    return f'{{"v":{PLAIN_VERSION},"success":{{"name":{_quoted(result.name)},"output":{output}{latency}}}}}'


def plain_end(result: PipelineResult) -> str | None:
    """Return the body of a plain `completed` record, or None."""
    used = result.total_tokens or result.total_cost_usd or result.feedback
    return _COMPLETED if result.status == "completed" and not used else None


def plain_text(value: object) -> str | None:
    """Return the JSON text of a plain value; `None` of any other."""
    if type(value) is str:
        return _quoted(value) if len(value) < _LONG else None
    if type(value) is int:
        return repr(value) if -_LARGE < value < _LARGE else None
    if value is True or value is False:
        return "true" if value else "false"
    return "null" if value is None else None


def _is_plain(result: StepResult) -> bool:
    """Return whether a result has only name, output and latency."""
    if result.usage is not NO_USAGE or result.metadata or result.step_history or result.feedback is not None:
        return False
    used = result.token_counts or result.cost_usd or result.attempts != 1 or not result.success
    used = used or result.transcript is not None
    return not used and type(result.latency_s) is float and math.isfinite(result.latency_s)
