"""`to_json`: what a program sends to others, without the secrets that errors quote."""

from __future__ import annotations

import json

from ._core.json_codec import json_of
from ._core.plain_json import TAG, untagged
from ._core.redacting import without_secrets
from .telemetry._redaction.live_redaction import redacted

_AN_ERROR = f'"{TAG}":"error"'


def to_json(value: object, *, plain: bool = False) -> str:
    """An outcome, a result or any value the library can keep, as JSON text.

    What errors, feedback, reasons and questions say is freed of secrets; outputs and contexts are as they are.
    `plain` leaves out what only `from_json` needs, type tags and the names of classes and modules: for browsers.
    """
    if plain:
        return _plain(value)
    text = json_of(without_secrets(value, redacted))
    if _AN_ERROR not in text:
        return text
    return json.dumps(_errors_redacted(json.loads(text)), separators=(",", ":"))


def _plain(value: object) -> str:
    data = json.loads(json_of(without_secrets(value, redacted)))
    return json.dumps(untagged(_errors_redacted(data)), separators=(",", ":"))


def _errors_redacted(data: object) -> object:
    """The same data; an exception that is part of an output or a context is what it says, too."""
    if isinstance(data, list):
        return [_errors_redacted(each) for each in data]
    if not isinstance(data, dict):
        return data
    if data.get(TAG) == "error":
        return {TAG: "error", "value": _texts_redacted(data.get("value"))}
    return {name: _errors_redacted(each) for name, each in data.items()}


def _texts_redacted(data: object) -> object:
    if isinstance(data, str):
        return redacted(data)
    if isinstance(data, list):
        return [_texts_redacted(each) for each in data]
    return {name: _texts_redacted(each) for name, each in data.items()} if isinstance(data, dict) else data
