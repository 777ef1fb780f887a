"""No secret belongs into a file that is copied and committed (V-X2): found by shape and by name, never printed."""

from __future__ import annotations

import re

from ..telemetry._redaction.credential_shapes import shape_spans
from ..telemetry._redaction.secret_names import is_secret_name
from .nodes import Mapping, Node, Scalar, key_of, walk
from .source import Source
from .telling import Told

_SHORTEST = 6
_REFERS = re.compile(r"\{\{|\$\{|^<.*>$|^(?:env|secret)[.:]", re.IGNORECASE)
_TOLD = "there is a secret here: take it out of the file, hand it over from the environment in Python, and change it"
HIDDEN = "[redacted]"


def look(told: Told, root: Node | None) -> frozenset[str]:
    """Put down what is found; the secrets themselves, so that nothing else prints them."""
    source = told.source
    spans = {*shape_spans(source.text), *(_by_name(root) if root is not None else ())}
    for start, _ in sorted(_apart(spans)):
        told.tell("V-X2", _line_of(source, start), _TOLD)
    return frozenset(source.text[start:end] for start, end in spans)


def _apart(spans: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans, without those that begin inside another one."""
    kept: list[tuple[int, int]] = []
    for span in sorted(spans):
        if not kept or span[0] >= kept[-1][1]:
            kept.append(span)
    return kept


def _line_of(source: Source, at: int) -> int:
    start = source.line_start(at)
    line = source.text[start : source.line_end(at)]
    return start + len(line) - len(line.lstrip(" -"))


def _by_name(root: Node) -> set[tuple[int, int]]:
    return {
        (value.start, value.end)
        for node in walk(root)
        if isinstance(node, Mapping)
        for key, value in node.pairs
        if isinstance(value, Scalar) and _is_secret(key_of(key), value)
    }


def _is_secret(name: str, value: Scalar) -> bool:
    text = value.value
    return (
        isinstance(text, str)
        and len(text) >= _SHORTEST
        and " " not in text.strip()
        and is_secret_name(name)
        and not _REFERS.search(text)
    )


def without(secrets: frozenset[str], text: str) -> str:
    """A text in which no secret is left."""
    for secret in sorted(secrets, key=len, reverse=True):
        for spelled in (secret, secret.strip("'\"")):
            if len(spelled) >= _SHORTEST:
                text = text.replace(spelled, HIDDEN)
    return text
