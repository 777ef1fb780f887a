"""The bodies of records: JSON objects with a version, made and read in one place.

Rules:

1. A body of an unknown version is refused.
2. An exception is stored as what it said, after redaction.
3. Nothing is stored twice or needlessly: not a context that a step left as it found it, not a result inside another
   one if it has a record of its own, not a field that is as by default.
4. Bodies of earlier versions are read as they were meant:
   version 1 said `same_context`, and held every result that was inside another one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import attrs
import cattrs

from .._type_registry import read_by
from ..errors import CorruptRecord, FlujoError, NotSerializable
from .error_info import describe_error, message_of
from .json_codec import decode, from_data, to_data, value_data
from .outcomes import ErrorInfo, Failure, Frame, PipelineResult, StepOutcome, StepResult, TerminalOutcome
from .paths import StepPath, inside
from .records import RECORD_VERSION
from .usage import Usage

T = TypeVar("T")

Redact = Callable[[str], str]
"""Takes the secrets out of a text."""

Place = Callable[[StepResult], str | None]
"""The way from a step to one inside it whose result has a record of its own; `None` if it has none."""

OutcomeAt = Callable[[StepPath], TerminalOutcome | None]
"""How the step at a path ended, by its own record."""

_write = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


MAX_BYTES = 500_000_000
"""How long a body may be in UTF-8: databases take a value of about 1 GB, and drivers need some of that."""


def make_body(**parts: object) -> str:
    """A body of the current version; the parts are JSON data."""
    return _bounded(as_text({"v": RECORD_VERSION, **parts}))


def of_texts(parts: Mapping[str, str]) -> str:
    """A body of the current version; the parts are JSON texts."""
    texts = "".join(f',"{name}":{text}' for name, text in parts.items())
    return _bounded(f'{{"v":{RECORD_VERSION}{texts}}}')


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


_WORKED = ',"worked":'


def with_worked(body: str, worked: Mapping[str, float]) -> str:
    """The body, with how long was worked so far where that is limited."""
    return f"{body[:-1]}{_WORKED}{_write(worked)}}}" if worked else body


def worked_in(body: str) -> dict[str, float]:
    """How long was worked when the body was written; empty if nobody wanted to know."""
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
    except Exception as error:  # a record can be damaged in any way, and users' classes put together what it holds
        raise CorruptRecord(f"{where}: it cannot be read ({type(error).__name__}: {message_of(error)})") from error


def read_body(text: str, *, where: str) -> dict[str, Any]:
    """The parts of a body; `CorruptRecord` names `where` it cannot be read."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(f"{where}: its body is not JSON ({error})") from error
    version = body.get("v") if isinstance(body, dict) else None
    if not isinstance(version, int) or not 1 <= version <= RECORD_VERSION:
        raise CorruptRecord(f"{where}: its body has version {version!r}, this code knows 1 to {RECORD_VERSION}")
    parts: dict[str, Any] = body
    return parts


def text_in(body: dict[str, object], name: str) -> str:
    """A part of a body that must be a text."""
    return _of_type(str, body[name], name)


def number_in(body: dict[str, object], name: str) -> int:
    """A part of a body that must be a whole number."""
    return _of_type(int, body[name], name)


def _of_type(expected: type[T], part: object, name: str) -> T:
    if not isinstance(part, expected):
        raise TypeError(f"its {name} is a {type(part).__name__}, not a {expected.__name__}")
    return part


def read_value(data: object, *, where: str) -> object:
    """A stored value."""
    with reading(where):
        return decode(data)


_AS_THEY_ARE = frozenset({str, bool, type(None)})
"""Types of values whose JSON data are the values themselves."""


def stored_value(value: object) -> object:
    """A value as JSON data that a fresh process of the same program can read; `NotSerializable` if it cannot be."""
    return value if type(value) in _AS_THEY_ARE else _stored_value(value)


@read_by("a fresh process")
def _stored_value(value: object) -> object:
    return value_data(value)


@read_by("a fresh process")
def settled_data(outcome: TerminalOutcome, redact: Redact, place: Place) -> dict[str, Any]:
    """How a step ended, under the kind of its outcome, and its history where it is not empty."""
    outcome, history = _apart(_redacted(outcome, redact))
    data = to_data(outcome, brief=True)
    kind = data.pop("kind")
    parts = {kind: data["step_result"] if kind == "success" else data}
    if history:
        parts["history"] = [place(result) or to_data(result, brief=True) for result in history]
    return parts


def _apart(outcome: TerminalOutcome) -> tuple[Any, tuple[StepResult, ...]]:
    """The outcome without its history, and the history."""
    result = getattr(outcome, "step_result", None)
    if result is None or not result.step_history:
        return outcome, ()
    return attrs.evolve(outcome, step_result=attrs.evolve(result, step_history=())), result.step_history


def _redacted(outcome: TerminalOutcome, redact: Redact) -> TerminalOutcome:
    if not isinstance(outcome, Failure) or outcome.error is None:
        return outcome
    info = outcome.error if isinstance(outcome.error, ErrorInfo) else describe_error(outcome.error)
    return attrs.evolve(outcome, error=redacted_error(info, redact))


def read_settled(path: StepPath, body: dict[str, object], outcome_at: OutcomeAt, *, where: str) -> Any:
    """How the step at `path` ended; the records that its history refers to must have been read."""
    outcome = _read_message(_outcome_in(body, where=where), StepOutcome, where=where)
    if "history" not in body:
        return outcome
    if not isinstance(body["history"], list) or getattr(outcome, "step_result", None) is None:
        raise CorruptRecord(f"{where}: its history cannot be read")
    history = tuple(_read_part(path, part, outcome_at, where=where) for part in body["history"])
    return attrs.evolve(outcome, step_result=attrs.evolve(outcome.step_result, step_history=history))


def steps_inside(path: StepPath, body: dict[str, object]) -> list[StepPath]:
    """The steps whose own records hold parts of this one's history."""
    history = body.get("history")
    return [inside(path, part) for part in history if isinstance(part, str)] if isinstance(history, list) else []


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


def result_data(result: PipelineResult) -> dict[str, object]:
    """What a result adds to the records before it: how the run stands, and its totals where there are any."""
    totals = {
        "feedback": result.feedback,
        "total_tokens": result.total_tokens,
        "total_cost_usd": result.total_cost_usd,
    }
    return {"status": result.status, **{name: total for name, total in totals.items() if total}}


def redacted_error(info: ErrorInfo, redact: Redact) -> ErrorInfo:
    """The error without secrets, down to its causes."""
    return ErrorInfo(
        type_name=info.type_name,
        message=redact(info.message),
        notes=tuple(map(redact, info.notes)),
        causes=tuple(redacted_error(cause, redact) for cause in info.causes),
        frames=tuple(_redacted_frame(frame, redact) for frame in info.frames),
    )


def _redacted_frame(frame: Frame, redact: Redact) -> Frame:
    return Frame(file=redact(frame.file), line=frame.line, function=redact(frame.function))


def read_usage(data: object, *, where: str) -> Usage:
    """A stored usage; none at all if there is none."""
    with reading(f"{where}: its usage"):
        return cattrs.structure(data or {}, Usage)


def usage_data(usage: Usage) -> dict[str, object]:
    """A usage as JSON data, without what is zero."""
    return {name: amount for name, amount in attrs.asdict(usage).items() if amount}
