"""What models wrap an answer in: envelopes of one key, tool calls, status objects.

1. A container may come out of any envelope: its schema tells whether it was meant.
2. A scalar says less about itself, so the keys around it have to say something. Under keys that announce an answer,
   or that are the schema's own name, it may be any scalar.
3. Under other keys, it may be a text of a kind that the schema describes (a member, a date), or a number or truth value
   if the key is not that of a status (`error`, `code`). Free text and null would make an answer of any object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from ._scalars import describes
from ._schema import Schema
from ._spelling import skeleton

_PAYLOADS = ("arguments", "parameters", "args", "input", "function_call", "function", "tool_calls", "tool_call")
_CALL_KEYS = frozenset(
    {"name", "type", "id", "tool", "tool_name", "tool_call_id", "call_id", "recipient_name", "index", "role"}
    | {"function_name", "action"}
)
_STATUS_KEYS = frozenset({"status", "success", "ok", "error", "errors", "message", "code", "version", "model"})
_CONTENTS = ("data", "result", "results", "response", "output", "answer", "value", "payload", "json", "content")
_ANSWERS = frozenset(
    {*map(skeleton, _PAYLOADS), *_CONTENTS}
    | {"text", "string", "reply", "completion", "final", "finalanswer", "finalresult", "finaloutput"}
)
_MAX_DEPTH = 4


@attrs.frozen(kw_only=True)
class Inside:
    """What an envelope holds."""

    value: object
    rules: tuple[str, ...]
    """The names of the passes that open it, from the outside in."""
    keys: tuple[str, ...]
    """The keys it stands under, from the outside in."""

    def may_be(self, value: object, schema: Schema) -> bool:
        """Whether `value`, which the schema accepts, may be taken out as the answer; see the module's rules."""
        if isinstance(value, dict | list) or not self.keys:
            return True
        names = {skeleton(key) for key in self.keys}
        if names <= {*_ANSWERS, skeleton(schema.name)}:
            return True
        if isinstance(value, str):
            return describes(schema, value)
        return value is not None and not names & _STATUS_KEYS


def insides(value: object) -> Iterator[Inside]:
    """The value itself, then what it may be an envelope of, from the outside in."""
    inside = Inside(value=value, rules=(), keys=())
    yield inside
    while len(inside.rules) < _MAX_DEPTH and (opened := _opened(inside.value)):
        rule, key, value = opened
        inside = Inside(value=value, rules=(*inside.rules, rule), keys=(*inside.keys, *key))
        yield inside


def _opened(value: object) -> tuple[str, tuple[str, ...], object] | None:
    """The name of the pass, the key if there is one, and what is inside."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        return "element_from_list", (), value[0]
    if not isinstance(value, dict):
        return None
    if len(value) == 1:
        key, inner = next(iter(value.items()))
        return "envelope", (key,), inner
    return _tool_call(value) or _status(value)


def _tool_call(value: dict[str, object]) -> tuple[str, tuple[str, ...], object] | None:
    payloads = [key for key in value if key in _PAYLOADS]
    rest = set(value) - set(payloads)
    if len(payloads) == 1 and rest <= _CALL_KEYS:
        return "tool_call", (payloads[0],), value[payloads[0]]
    return None


def _status(value: dict[str, object]) -> tuple[str, tuple[str, ...], Any] | None:
    contents = [key for key in value if key in _CONTENTS]
    if len(contents) == 1 and set(value) - set(contents) <= _STATUS_KEYS:
        return "status_envelope", (contents[0],), value[contents[0]]
    return None
