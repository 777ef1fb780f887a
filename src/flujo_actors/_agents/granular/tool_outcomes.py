"""Outcome of a tool call as JSON: return value or signal.

A tool that raises one of pydantic-ai's signals (retry, failed, deferred, …) has ended, and its unit is committed. Any
other exception ends the agent's run and is not an outcome: the tool's effect is unknown.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeAlias

import attrs
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_ai.durable_exec import JSON_CODEC
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    RunCancelled,
    RunTimedOut,
    ToolFailed,
    UserError,
)
from pydantic_ai.messages import ModelMessagesTypeAdapter, ToolReturn, ToolReturnContent
from pydantic_core import (
    InitErrorDetails,
    PydanticCustomError,
    PydanticSerializationError,
    to_jsonable_python,
)

from ...errors import NotSerializable

Signal: TypeAlias = ModelRetry | ToolFailed | CallDeferred | ApprovalRequired | RunCancelled | ValidationError
"""Exceptions with which a tool signals its agent."""

_content: TypeAdapter[Any] = TypeAdapter(
    ToolReturnContent, config=ConfigDict(ser_json_bytes="base64", ser_json_inf_nan="constants")
)
"""Serializer that writes bytes as pydantic-ai does and allows non-JSON numbers."""


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


def refuse_misused_return(outcome: ToolOutcome, *, tool: str) -> None:
    """Raise `UserError` for a `ToolReturn` that pydantic-ai refuses, before JSON hides it."""
    value = outcome.value if isinstance(outcome, Returned) else None
    if isinstance(value, list) and any(isinstance(item, ToolReturn) for item in value):
        raise UserError(
            f"The return value of tool {tool!r} contains invalid nested `ToolReturn` objects: "
            "return one `ToolReturn`, or a list without any"
        )
    if isinstance(value, ToolReturn) and not _names_tools(value.tools):
        raise UserError(f"`ToolReturn.tools` of tool {tool!r} must be a list of tool names, not {value.tools!r:.100}")


def _names_tools(tools: object) -> bool:
    listed = isinstance(tools, Sequence) and not isinstance(tools, str) and all(isinstance(name, str) for name in tools)
    return tools is None or listed


def without_secrets(outcome: ToolOutcome, redact: Callable[[str], str]) -> ToolOutcome:
    """Return the outcome with a redacted signal; return values are unchanged."""
    if isinstance(outcome, Returned):
        return outcome
    plain = _signal_to_plain(outcome.signal)
    texts = [plain, *plain["errors"]] if "errors" in plain else [plain]
    clean = [{**each, "message": redact(each["message"])} if "message" in each else each for each in texts]
    if clean == texts:
        return outcome
    return Raised(_signal_from_plain({**clean[0], "errors": clean[1:]} if "errors" in plain else clean[0]))


def name_of(outcome: ToolOutcome) -> str:
    """One word for people: `returned`, `retry`, `failed`, …"""
    return "returned" if isinstance(outcome, Returned) else str(_signal_to_plain(outcome.signal)["kind"])


# --- to JSON ----------------------------------------------------------------------------------------------


def outcome_to_json(outcome: ToolOutcome, *, tool: str) -> str:
    """Return the outcome as JSON text, or raise `NotSerializable`."""
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


def _signal_to_plain(signal: Signal) -> dict[str, Any]:
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
    """Return the outcome that `outcome_to_json` wrote."""
    plain = json.loads(text)
    match plain["kind"]:
        case "returned":
            return Returned(_content.validate_python(plain["value"]))
        case "tool_return":
            return Returned(JSON_CODEC.load(ToolReturn[Any], plain["value"]))  # also reads the form of older releases
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
    described = PydanticCustomError(error["type"], "{message}", {"message": error["message"]})
    return InitErrorDetails(type=described, loc=tuple(error["loc"]), input=error["input"])


def unwrap(outcome: ToolOutcome) -> object:
    """Return the tool's value, or raise its signal."""
    if isinstance(outcome, Raised):
        raise outcome.signal
    return outcome.value


# --- messages of tools --------------------------------------------------------------------------------------


def with_messages(outcome: str, pending: Sequence[Any]) -> str:
    """Return an outcome and its tool's enqueued messages as JSON text."""
    if not pending:
        return outcome
    enqueued = [
        {"messages": ModelMessagesTypeAdapter.dump_python(each.messages, mode="json"), "priority": each.priority}
        for each in pending
    ]
    return json.dumps({**json.loads(outcome), "enqueued": enqueued}, ensure_ascii=False)


def messages_in(outcome: str) -> Iterator[tuple[Sequence[Any], Any]]:
    """Yield content and priority of the messages that a recorded call enqueued."""
    for each in json.loads(outcome).get("enqueued", ()):
        messages = ModelMessagesTypeAdapter.validate_python(each["messages"])
        # Parts of one request stay next to the result of their call.
        yield (messages[0].parts if len(messages) == 1 else messages), each["priority"]
