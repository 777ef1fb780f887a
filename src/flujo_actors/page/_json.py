"""JSON (serialization) that every browser reads, of whatever runs left: halves of surrogate pairs and NaN, too."""

from __future__ import annotations

import json
import math

from starlette.responses import Response


def json_text(data: object, *, indent: int | None = None) -> str:
    """The data as JSON text that can be sent: halves of surrogate pairs are escaped, NaN and infinities are texts."""
    separators = (",", ":") if indent is None else None
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=separators, indent=indent)
        text.encode()
    except ValueError:  # of which UnicodeEncodeError is one
        text = json.dumps(_spelled(data), allow_nan=False, separators=separators, indent=indent)
    return text


def _spelled(data: object) -> object:
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {name: _spelled(each) for name, each in data.items()}
    return [_spelled(each) for each in data] if isinstance(data, list | tuple) else data


class JsonAnswer(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """The bytes of it."""
        return json_text(content).encode()
