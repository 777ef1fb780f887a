"""Credentials that are known by their shape alone, wherever they stand in a text.

Each shape has a marker, a literal that every match contains: a text without the marker is never given to the
regular expression, so ordinary text costs one substring search a shape. No expression can backtrack over more
than a bounded stretch, which keeps the whole linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

import attrs

Span: TypeAlias = tuple[int, int]
"""Where something to hide begins and ends."""


@attrs.frozen
class Shape:
    """`pattern` finds the credential; its first group, if it has one, is the part to hide."""

    marker: str
    pattern: re.Pattern[str]

    def spans(self, text: str) -> Iterator[Span]:
        """Where this shape occurs in `text`."""
        group = 1 if self.pattern.groups else 0
        return (match.span(group) for match in self.pattern.finditer(text))


def _prefixed(prefix: str, rest: str) -> Shape:
    return Shape(prefix, re.compile(re.escape(prefix) + rest, re.ASCII))


def _word(prefix: str, rest: str) -> Shape:
    """The same, where the prefix also occurs inside words: `sk-` in *task-force*, `AIza` in base64 data."""
    # Standing behind the literal, the look-behind leaves the engine its fast search for the prefix.
    return _prefixed(prefix, f"(?<![A-Za-z0-9]{re.escape(prefix)}){rest}")


# A word that only announces a token (*Bearer authentication*) has no digit and is not this long.
_AFTER_BEARER = r"[ \t]{1,4}((?=[\w.~+/=-]{0,40}\d|[\w.~+/=-]{24})[\w.~+/=-]{8,})"
# Digits before a slash or a question mark are a port, and the `@` after them belongs to something else.
_URL_PASSWORD = re.compile(r"://[^\s/?#@:\"']{0,128}:((?!\d{1,5}[/?#])[^\s/\"']{1,256})@")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN[A-Z0-9 ]{1,40}PRIVATE KEY(?: BLOCK)?-----"
    r"[\s\S]*?(?:-----END[A-Z0-9 ]{1,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
)

SHAPES: tuple[Shape, ...] = (
    _prefixed("sk-ant-", r"[\w-]{8,}"),
    _prefixed("sk-proj-", r"[\w-]{8,}"),
    _prefixed("sk-or-v1-", r"[\w-]{8,}"),
    _word("sk-", r"[\w-]{16,}"),
    *(_prefixed(f"{kind}_{mode}_", r"\w{8,}") for kind in ("sk", "rk", "pk") for mode in ("live", "test")),
    *(_prefixed(f"gh{kind}_", r"[A-Za-z0-9]{20,}") for kind in "pousr"),
    _prefixed("github_pat_", r"\w{20,}"),
    _prefixed("glpat-", r"[\w-]{16,}"),
    _word("AKIA", r"[A-Z0-9]{16}"),
    _word("ASIA", r"[A-Z0-9]{16}"),
    _word("AIza", r"[\w-]{30,}"),
    _word("ya29.", r"[\w-]{16,}"),
    _prefixed("GOCSPX-", r"[\w-]{16,}"),
    Shape("xox", re.compile(r"xox[abeoprs]-[\w-]{8,}", re.ASCII)),
    _word("xapp-", r"[\w-]{16,}"),
    Shape("hooks.slack.com/services/", re.compile(r"hooks\.slack\.com/services/([\w/]{16,})", re.ASCII)),
    _word("hf_", r"[A-Za-z0-9]{20,}"),
    _word("gsk_", r"[A-Za-z0-9]{20,}"),
    _word("xai-", r"[A-Za-z0-9]{20,}"),
    _word("pplx-", r"[A-Za-z0-9]{20,}"),
    _word("r8_", r"[A-Za-z0-9]{20,}"),
    _word("npm_", r"[A-Za-z0-9]{30,}"),
    _word("pypi-", r"[\w-]{32,}"),
    _word("dop_v1_", r"[a-f0-9]{32,}"),
    _word("SG.", r"[\w-]{16,64}\.[\w-]{16,}"),
    # The class before the point is the class of the look-behind: no run of it is scanned twice.
    Shape("eyJ", re.compile(r"eyJ(?<![\w-]eyJ)[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?", re.ASCII)),
    *(_prefixed(word, _AFTER_BEARER) for word in ("bearer", "Bearer", "BEARER")),
    Shape("://", _URL_PASSWORD),
    Shape("PRIVATE KEY", _PRIVATE_KEY),
)


def _sign(marker: str) -> str:
    return next((character for character in "-_./:" if character in marker), marker)


SHAPES_BY_SIGN: dict[str, tuple[Shape, ...]] = {
    sign: tuple(shape for shape in SHAPES if _sign(shape.marker) == sign)
    for sign in dict.fromkeys(_sign(shape.marker) for shape in SHAPES)
}
"""The shapes by a punctuation mark (or the whole marker) without which none of them occurs."""


def shape_spans(text: str) -> Iterator[Span]:
    """Where credentials of any known shape stand in `text`."""
    for sign, shapes in SHAPES_BY_SIGN.items():
        if sign in text:
            for shape in shapes:
                if shape.marker in text:
                    yield from shape.spans(text)


def url_passwords(text: str) -> Iterator[str]:
    """The passwords of the URLs in `text` that carry one."""
    if "://" in text:
        yield from _URL_PASSWORD.findall(text)
