"""Result of parsing a text, with its provenance."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Coercion:
    """One value converted to its schema's type without changing its meaning."""

    path: str
    """A JSON path: `$.items[0].qty`."""
    rule: str
    """The name of the pass, e.g. `number_from_text`."""


@attrs.frozen(kw_only=True)
class Flaw:
    """One thing a schema has against a value."""

    path: str
    """Location in the value."""
    message: str
    """Description of the flaw."""


@attrs.frozen(kw_only=True)
class ReadResult:
    """Value parsed from a text, with its provenance."""

    value: Any
    """An instance of the schema's class, or plain JSON data."""
    data: Any
    """The same as plain JSON data."""
    span: tuple[int, int]
    """The part of the text it was read from."""
    engine: str
    """Parser: `strict`, `mended`, `scalar` or `json_repair`."""
    passes: tuple[str, ...] = ()
    """The repairs that were needed, by name, in order."""
    coercions: tuple[Coercion, ...] = ()
    """Changes of types that were made."""
    truncated: bool = False
    """Whether the text ended inside the value; nothing was added."""
    schema_hash: str | None = None
    """Hash of the schema."""
    json: str = ""
    """Strict JSON source of the value; empty if there was none."""


class TooMuchWork(Exception):
    """The limits were passed before the text was read."""


@attrs.frozen(kw_only=True)
class Limits:
    """Bounds of parsing; exceeding one is a refusal, never a truncation."""

    max_chars: int = 64 * 1024 * 1024
    """Maximum length of valid JSON, equal to the default of `aros.streaming.max_bytes`."""
    max_searched_chars: int = 8_000_000
    """Of text in which JSON has to be found, or repaired."""
    max_commas_beyond: int = 1_000_000
    """Maximum number of commas in a longer text."""
    max_depth: int = 200
    """Deepest nesting of a repaired text."""
    max_steps: int = 60_000
    """Most steps of a repair."""
    max_starts: int = 2_000
    """Most places at which JSON may begin."""
    max_repair_chars: int = 1_000
    """Longest text for the repair library `json_repair`."""


DEFAULT_LIMITS = Limits()
