"""The ways a secret is written inside other texts: by URLs, JSON, reprs, pages, drivers and HTTP headers."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

# What clients leave alone beside letters and digits: nothing, a path's slash, what may stand in a password or a query.
_LEFT_ALONE = ("", "/", "!$&'()*+,;=:", "!$&'()*+,;=:@/?")
_PERCENT = re.compile("%[0-9A-F]{2}")
_BOTH_QUOTES = "'\""


def spellings(secret: str) -> frozenset[str]:
    """The secret as it is, percent-encoded, escaped as in JSON, reprs and HTML."""
    return frozenset({secret, *_percent_encoded(secret), *_escaped(secret), *_in_quotes(secret)})


def _percent_encoded(secret: str) -> Iterator[str]:
    upper = [quote(secret, safe=safe, errors="replace") for safe in _LEFT_ALONE]
    for written in (*upper, quote_plus(secret, errors="replace")):
        yield written
        yield _PERCENT.sub(lambda found: found.group().lower(), written)


def _escaped(secret: str) -> Iterator[str]:
    yield from (html.escape(secret), html.escape(secret, quote=False))
    for ascii_only in (True, False):
        once = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield from (once, json.dumps(once, ensure_ascii=ascii_only)[1:-1])


def _in_quotes(secret: str) -> Iterator[str]:
    """As reprs of texts and bytes write it, and connection strings: which quotes they escape depends on their rest."""
    data = secret.encode("utf-8", "replace")
    yield from (repr(secret)[1:-1], repr(secret + _BOTH_QUOTES)[1:-4])
    yield from (repr(data)[2:-1], repr(data + _BOTH_QUOTES.encode())[2:-4])
    yield secret.replace("\\", "\\\\").replace("'", "\\'")


def base64_spellings(secret: str) -> frozenset[str]:
    """What every base64 text that contains the secret has in common, wherever in it the secret begins.

    `Authorization: Basic …` has a user's name before the password.
    """
    data = secret.encode("utf-8", "replace")
    found = (_core(data, shift) for shift in range(3))
    return frozenset(spelled for core in found for spelled in (core, core.replace("+", "-").replace("/", "_")))


def _core(data: bytes, shift: int) -> str:
    """The characters that stand for `data` alone, when `shift` bytes are before it."""
    written = base64.b64encode(bytes(shift) + data).decode("ascii")
    return written[-(-shift * 8 // 6) : (shift + len(data)) * 8 // 6]
