"""What a reading of a text gives, and how it says what was done."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Coercion:
    """One value that was brought to its schema's type without changing what it says."""

    path: str
    """A JSON path: `$.items[0].qty`."""
    rule: str
    """The name of the pass, e.g. `number_from_text`."""


@attrs.frozen(kw_only=True)
class Flaw:
    """One thing a schema has against a value."""

    path: str
    message: str


@attrs.frozen(kw_only=True)
class Reading:
    """A value read from a text, with the way that led to it."""

    value: Any
    """An instance of the schema's class, or plain JSON data."""
    data: Any
    """The same as plain JSON data."""
    span: tuple[int, int]
    """The part of the text it was read from."""
    engine: str
    """What read it: `strict`, `mended`, `scalar`, `fast_json_repair` or `json_repair`."""
    passes: tuple[str, ...] = ()
    """The repairs that were needed, by name, in order."""
    coercions: tuple[Coercion, ...] = ()
    truncated: bool = False
    """The text ended inside the value; what was there is kept, nothing was added."""
    schema_hash: str | None = None
    json: str = ""
    """The strict JSON that it was read from; empty where there was none."""
