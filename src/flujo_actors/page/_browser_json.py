"""Values for browsers: JSON of any stored value, and numbers for readers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response

from ..errors import InvalidAnswer

LONGEST_BODY = 256_000
"""Display limit of a value in characters; larger values are downloads."""
MOST_LEVELS = 200
_TOO_DEEP = f"that JSON is nested too deeply: at most {MOST_LEVELS} levels can be sent"


def json_text(data: object, *, indent: int | None = None) -> str:
    """Return JSON text with escaped lone surrogates; NaN and infinities are strings."""
    separators = (",", ":") if indent is None else None
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=separators, indent=indent)
        text.encode()
    except ValueError:  # of which UnicodeEncodeError is one
        text = json.dumps(_json_safe(data), allow_nan=False, separators=separators, indent=indent)
    return text


def _json_safe(data: object) -> object:
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {name: _json_safe(each) for name, each in data.items()}
    return [_json_safe(each) for each in data] if isinstance(data, list | tuple) else data


def bounded(shown: dict[str, object]) -> dict[str, object]:
    """Return a value within the display limit; larger ones are downloads."""
    chars = len(json.dumps(shown["body"], ensure_ascii=False))
    if len(json.dumps(shown, ensure_ascii=False)) <= LONGEST_BODY:
        return {**shown, "chars": chars, "cut": False}
    parts = {name: cut(part) for name, part in shown.items() if name != "seq"}
    return {**parts, "seq": shown["seq"], "chars": chars, "cut": True}


def cut(part: object) -> object:
    """Return a value whose texts and lists are within the display limit."""
    text = part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
    if len(text) <= LONGEST_BODY // 8:
        return part
    if isinstance(part, dict):
        return {name: cut(each) for name, each in part.items()}
    if isinstance(part, list):
        return [cut(each) for each in part[:100]] + ([f"… {len(part) - 100:,} more"] if len(part) > 100 else [])
    return f"{text[: LONGEST_BODY // 8]} …"


class JsonAnswer(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Return the bytes of it."""
        return json_text(content).encode()


# --- requests -------------------------------------------------------------------------------------------------


async def request_json(request: Request) -> dict[str, object]:
    """Return the JSON object of a request; `InvalidAnswer` without one."""
    try:
        body = json.loads(await request.body())
    except ValueError as error:
        raise InvalidAnswer(f"that is not JSON: {error}") from error
    except RecursionError as error:
        raise InvalidAnswer(_TOO_DEEP) from error
    if not isinstance(body, dict):
        raise InvalidAnswer("that is JSON, but no object")
    if _is_deeper(body, MOST_LEVELS):
        raise InvalidAnswer(_TOO_DEEP)
    return body


def _is_deeper(data: object, levels: int) -> bool:
    """Return whether data has more levels of objects and lists than this."""
    level: list[object] = [data]
    for _ in range(levels + 1):
        level = [part for each in level if isinstance(each, dict | list) for part in _parts(each)]
        if not level:
            return False
    return True


def _parts(data: dict[str, object] | list[object]) -> Iterable[object]:
    return data.values() if isinstance(data, dict) else data


# --- numbers: at most four digits, with their unit ------------------------------------------------------------


def seconds_text(seconds: float | None) -> str:
    """Return a duration, for example `8.40 s` or `3 m 58 s`."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, below, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit} {rest} {part}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def dollars_text(dollars: float) -> str:
    """Return an amount: `$0.0412`, `$71.70`, `$1,204`."""
    if not dollars:
        return "–"
    if dollars < 1:
        return f"${dollars:.4f}" if dollars >= 0.0001 else f"${dollars:.2g}"
    return f"${dollars:.2f}" if dollars < 1_000 else f"${dollars:,.0f}"


def count_text(number: float) -> str:
    """Return a count in short: `118`, `14.3 k`, `7.60 M`."""
    if number < 1_000:
        return f"{number:g}"
    return f"{number / 1_000:.3g} k" if number < 999_500 else f"{number / 1e6:.3g} M"


def share_text(share: float) -> str:
    """Return a share: `2.5 %`, `0 %`."""
    return f"{share * 100:.1f} %".replace(".0 %", " %")
