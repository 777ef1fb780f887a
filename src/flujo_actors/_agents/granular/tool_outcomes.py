"""How a tool call ended, as JSON: what it returned, or what it told pydantic-ai by raising.

A tool that raises one of pydantic-ai's signals (retry, failed, deferred, …) has ended, and its unit is committed. Any
other exception ends the agent's run and is not an outcome: nobody knows what the tool had done by then.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable
from typing import Any, TypeAlias

import attrs
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_ai.durable_exec import JSON_CODEC
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, RunCancelled, RunTimedOut, ToolFailed
from pydantic_ai.messages import ToolReturn, ToolReturnContent
from pydantic_core import (
    InitErrorDetails,
    PydanticCustomError,
    PydanticSerializationError,
    to_jsonable_python,
)

from ...errors import NotSerializable

Signal: TypeAlias = ModelRetry | ToolFailed | CallDeferred | ApprovalRequired | RunCancelled | ValidationError
"""What a tool raises to say something to the agent that called it."""

_content: TypeAdapter[Any] = TypeAdapter(
    ToolReturnContent, config=ConfigDict(ser_json_bytes="base64", ser_json_inf_nan="constants")
)
"""Bytes are written as pydantic-ai shows them to a model; a number that JSON has no word for stays what it is."""


@attrs.frozen
class Returned:
    """The tool returned a value."""

    value: Any


@attrs.frozen
class Raised:
    """The tool raised a signal."""

    signal: Signal


ToolOutcome: TypeAlias = Returned | Raised


async def outcome_of(call: Awaitable[object]) -> ToolOutcome:
    """Await a tool call, its signals as values."""
    try:
        return Returned(await call)
    except (ModelRetry, ToolFailed, CallDeferred, ApprovalRequired, RunCancelled, ValidationError) as signal:
        return Raised(signal)


def name_of(outcome: ToolOutcome) -> str:
    """One word for people: `returned`, `retry`, `failed`, …"""
    return "returned" if isinstance(outcome, Returned) else str(_signal_to_plain(outcome.signal)["kind"])


# --- to JSON ----------------------------------------------------------------------------------------------


def outcome_to_json(outcome: ToolOutcome, *, tool: str) -> str:
    """The outcome as JSON text; `NotSerializable` if the returned value has none."""
    try:
        plain = _returned_to_plain(outcome.value) if isinstance(outcome, Returned) else _signal_to_plain(outcome.signal)
        return json.dumps(plain, ensure_ascii=False)
    except (PydanticSerializationError, TypeError, ValueError) as error:
        raise NotSerializable(
            f"tool {tool!r} returned a value without a JSON form, so its call cannot be recorded: {error}; "
            "let it return text, numbers, lists, dicts, dataclasses or models"
        ) from error


def _returned_to_plain(value: object) -> dict[str, object]:
    if not isinstance(value, ToolReturn):
        return {"kind": "returned", "value": _plain(value)}
    around: dict[str, object] = JSON_CODEC.dump(
        ToolReturn[Any], dataclasses.replace(value, return_value=None, metadata=None)
    )
    said = {"return_value": _plain(value.return_value), "metadata": _plain(value.metadata)}
    return {"kind": "tool_return", "value": around | said}


def _plain(value: object) -> object:
    return _content.dump_python(value, mode="json", by_alias=True)


def _signal_to_plain(signal: Signal) -> dict[str, object]:
    match signal:
        case ModelRetry():
            return {"kind": "retry", "message": signal.message}
        case ToolFailed():
            return {"kind": "failed", "message": signal.message}
        case CallDeferred():
            return {"kind": "deferred", "metadata": to_jsonable_python(signal.metadata)}
        case ApprovalRequired():
            return {"kind": "approval_required", "metadata": to_jsonable_python(signal.metadata)}
        case RunTimedOut():
            return {"kind": "timed_out", "message": signal.message}
        case RunCancelled():
            return {"kind": "cancelled", "message": signal.message}
        case ValidationError():
            return {"kind": "invalid", "title": signal.title, "errors": [_detail(error) for error in signal.errors()]}


def _detail(error: Any) -> dict[str, Any]:
    return {
        "type": error["type"],
        "loc": list(error["loc"]),
        "message": error["msg"],
        "input": to_jsonable_python(error.get("input"), fallback=repr),
    }


# --- and back ---------------------------------------------------------------------------------------------


def outcome_from_json(text: str) -> ToolOutcome:
    """The outcome that `outcome_to_json` wrote."""
    plain = json.loads(text)
    match plain["kind"]:
        case "returned":
            return Returned(_content.validate_python(plain["value"]))
        case "tool_return":
            return Returned(JSON_CODEC.load(ToolReturn[Any], plain["value"]))  # reads what older releases wrote, too
        case _:
            return Raised(_signal_from_plain(plain))


def _signal_from_plain(plain: dict[str, Any]) -> Signal:
    match plain["kind"]:
        case "retry":
            return ModelRetry(plain["message"])
        case "failed":
            return ToolFailed(plain["message"])
        case "deferred":
            return CallDeferred(metadata=plain["metadata"])
        case "approval_required":
            return ApprovalRequired(metadata=plain["metadata"])
        case "timed_out":
            return RunTimedOut(plain["message"])
        case "cancelled":
            return RunCancelled(plain["message"])
        case "invalid":
            details = [_detail_from_plain(error) for error in plain["errors"]]
            return ValidationError.from_exception_data(plain["title"], details)
        case unknown:
            raise NotSerializable(f"a recorded tool call ended in a way this version does not know: {unknown!r}")


def _detail_from_plain(error: dict[str, Any]) -> InitErrorDetails:
    told = PydanticCustomError(error["type"], "{message}", {"message": error["message"]})
    return InitErrorDetails(type=told, loc=tuple(error["loc"]), input=error["input"])


def unwrap(outcome: ToolOutcome) -> object:
    """What the caller of the tool gets: the value, or the signal raised."""
    if isinstance(outcome, Raised):
        raise outcome.signal
    return outcome.value
