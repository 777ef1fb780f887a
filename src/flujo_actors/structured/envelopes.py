"""What models wrap an answer in: envelopes of one key, tool calls, status objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_PAYLOADS = ("arguments", "parameters", "args", "input", "function_call", "function", "tool_calls", "tool_call")
_CALL_KEYS = frozenset(
    {"name", "type", "id", "tool", "tool_name", "tool_call_id", "call_id", "recipient_name", "index", "role"}
    | {"function_name", "action"}
)
_STATUS_KEYS = frozenset({"status", "success", "ok", "error", "errors", "message", "code", "version", "model"})
_CONTENTS = ("data", "result", "results", "response", "output", "answer", "value", "payload", "json", "content")
_MAX_DEPTH = 4


def insides(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """What `value` may be an envelope of, from the outside in, each with the name of the pass."""
    inner = _inside(value)
    if inner is None or depth >= _MAX_DEPTH:
        return
    yield inner
    yield from insides(inner[1], depth + 1)


def _inside(value: Any) -> tuple[str, Any] | None:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        return "element_from_list", value[0]
    if not isinstance(value, dict):
        return None
    if len(value) == 1:
        return "envelope", next(iter(value.values()))
    return _tool_call(value) or _status(value)


def _tool_call(value: dict[str, Any]) -> tuple[str, Any] | None:
    payloads = [key for key in value if key in _PAYLOADS]
    rest = set(value) - set(payloads)
    if len(payloads) == 1 and rest <= _CALL_KEYS:
        return "tool_call", value[payloads[0]]
    return None


def _status(value: dict[str, Any]) -> tuple[str, Any] | None:
    contents = [key for key in value if key in _CONTENTS]
    if len(contents) == 1 and set(value) - set(contents) <= _STATUS_KEYS:
        return "status_envelope", value[contents[0]]
    return None
