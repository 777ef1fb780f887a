"""Credentials recognized by their shape anywhere in a text.

Each shape has a marker, a literal that every match contains: a text without the marker is never passed to the regular
expression, so ordinary text costs one substring search per shape. Backtracking is bounded for every expression, which
keeps the whole linear in the length of the text.

Sections:

- Names that announce a secret.
- Secrets announced by name: `api_key=…`, `"password": "…"`, `Authorization: …`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeAlias

import attrs

Span: TypeAlias = tuple[int, int]
"""Start and end of a part to hide."""


@attrs.frozen
class Shape:
    """Credential pattern; its first group, if any, is the part to hide."""

    marker: str
    pattern: re.Pattern[str]

    def spans(self, text: str) -> Iterator[Span]:
        """Yield the occurrences of this shape in `text`."""
        group = 1 if self.pattern.groups else 0
        return (match.span(group) for match in self.pattern.finditer(text))


def _prefixed(prefix: str, rest: str) -> Shape:
    return Shape(prefix, re.compile(re.escape(prefix) + rest, re.ASCII))


def _word(prefix: str, rest: str) -> Shape:
    """Return a shape whose prefix also occurs inside words: `sk-` in *task-force*."""
    # After the literal, the look-behind leaves the engine its fast search for the prefix.
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
    _word("AKIA", r"[A-Z0-9]{16,}"),
    _word("ASIA", r"[A-Z0-9]{16,}"),
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
"""Shapes by a required punctuation mark (or the whole marker)."""


def shape_spans(text: str) -> Iterator[Span]:
    """Yield the positions of credentials of any known shape in `text`."""
    for sign, shapes in SHAPES_BY_SIGN.items():
        if sign in text:
            for shape in shapes:
                if shape.marker in text:
                    yield from shape.spans(text)


def url_passwords(text: str) -> Iterator[str]:
    """Yield the passwords of the URLs in `text` that carry one."""
    if "://" in text:
        yield from _URL_PASSWORD.findall(text)


# --- Names that announce a secret ---------------------------------------------------------------------------------


Words: TypeAlias = tuple[str, ...]

SECRET_ENDINGS: frozenset[Words] = frozenset(
    tuple(ending.split())
    for ending in (
        "password",
        "passwords",
        "passwd",
        "pwd",
        "passphrase",
        "secret",
        "secrets",
        "credential",
        "credentials",
        "authorization",
        "auth",
        "cookie",
        "cookies",
        "jwt",
        "token",
        "access tokens",
        "api tokens",
        "auth tokens",
        "bearer tokens",
        "refresh tokens",
        "accesstoken",
        "authtoken",
        "refreshtoken",
        "apitoken",
        "api key",
        "api keys",
        "apikey",
        "apikeys",
        "access key",
        "accesskey",
        "account key",
        "auth key",
        "client key",
        "encryption key",
        "master key",
        "private key",
        "privatekey",
        "secret key",
        "secretkey",
        "shared key",
        "signing key",
        "ssh key",
        "clientsecret",
    )
)

# `page_token` and `stop_token` are vocabulary of APIs and tokenizers, not credentials.
_HARMLESS_TOKENS = frozenset(
    {"next", "page", "continuation", "stop", "start", "end", "first", "last", "per", "max", "min", "num"}
    | {"eos", "bos", "pad", "cls", "sep", "unk", "mask", "special", "unexpected", "invalid", "every", "each"}
)
# Words that may follow without changing the meaning: `secret_value`, `Authorization-Header`.
_TRAILING = frozenset({"value", "raw", "text", "string", "str", "header", "hash", "pem", "bytes"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
_LONGEST_NAME = 80


def words_of(name: str) -> Words:
    """Return an identifier's lower-case words: `("api", "key")` for `apiKey`."""
    return tuple(word.lower() for word in _WORD.findall(name[-_LONGEST_NAME:]))


@lru_cache(maxsize=4096)
def is_secret_name(name: str, more: frozenset[Words] = frozenset()) -> bool:
    """Return whether a name holds a secret; `more` are additional endings."""
    words = words_of(name)
    if _ends_in(words, more):
        return True
    while words and words[-1] in _TRAILING:
        words = words[:-1]
    return _ends_in(words, SECRET_ENDINGS) and not _harmless_token(words)


def _ends_in(words: Words, endings: frozenset[Words]) -> bool:
    return any(words[start:] in endings for start in range(len(words)))


def _harmless_token(words: Words) -> bool:
    return words[-1] == "token" and len(words) > 1 and words[-2] in _HARMLESS_TOKENS


# --- Secrets announced by name ------------------------------------------------------------------------------------
# Rules, for a name that `is_secret_name`:
# 1. After a quoted name, as in JSON or a dict, any value is hidden.
# 2. `name=value` without spaces, or with a quoted value, is hidden.
# 3. Looser forms also occur in prose (*password: field required*, *unexpected token: '}'*):
#    there the value is hidden only if it looks like a credential, or is quoted after an unambiguous name.
# 4. The value of an `Authorization` or `Cookie` header extends to the end of its line.


_AROUND_OPERATOR = (
    r"(?P<closing>(?:\\{0,4}[\"'])?)(?P<before>[ \t]{0,3})(?P<operator>=>|[:=])(?!=)(?P<after>[ \t]{0,3})"
    r"(?:b(?=[\"']))?(?P<opening>(?:\\{0,4}[\"'])?)"
)
_NAME_BACKWARDS = re.compile(r"[\w.-]{0,64}")
_BARE_VALUE = re.compile(r"[^\s\"'`,;&()\[\]{}<>\\]+")
_TO_CLOSING_QUOTE = {quote: re.compile(rf"[^{quote}\\]*(?:\\.[^{quote}\\]*)*", re.DOTALL) for quote in "\"'"}
_HEADER_VALUE = re.compile(r"[^\r\n\"'\\]+")
_BRACKETS = {"[": "]", "(": ")"}
# A refused value is scanned again from the next name in it. Deciding on its beginning keeps a long chain of names from
# being read once per name.
_BEGINNING = 128
_SCHEMES = frozenset({"basic", "bearer", "digest", "negotiate", "token", "apikey"})
_PART_OF_CREDENTIAL = re.compile(r"(?=.{6})[^\d=]*+[\d=]")
_LITERALS = frozenset({"none", "null", "true", "false", "undefined"})
_CREDENTIAL = re.compile(r"(?=.{6})[^\s\d\"',;]*+\d[^\s\"',;]*+")
_ONE_WORD = re.compile(r"\w\S*+")
_HEADERS = ("authorization", "cookie")
_CERTAIN = ("password", "passwd", "pwd", "passphrase", "secret", "credential", "credentials")


def lower_by_position(text: str) -> str:
    """Return lower-case `text` at unchanged positions, despite `İ`."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else "".join(map(_lower_one, text))


def _lower_one(character: str) -> str:
    lowered = character.lower()
    return lowered if len(lowered) == 1 else character


@functools.lru_cache(maxsize=64)
def _sites(endings: frozenset[Words]) -> dict[str, re.Pattern[str]]:
    """Return a pattern per last word, with qualifier and operator."""
    qualifiers: dict[str, set[str]] = {}
    for words in endings:
        qualifiers.setdefault(words[-1], set()).add(words[-2] if len(words) > 1 else "")
    return {last: _site(last, before) for last, before in qualifiers.items() if not _covered(last, qualifiers)}


def _covered(word: str, others: Iterable[str]) -> bool:
    """`apikey` is found as *key* behind *api*."""
    return any(word != other and word.endswith(other) for other in others)


def _site(last: str, qualifiers: set[str]) -> re.Pattern[str]:
    # The literal comes first and is checked backwards: the engine then searches for it at full speed.
    joined = (re.escape(qualifier) + joint for qualifier in sorted(qualifiers) for joint in ("", "[-_.]"))
    qualified = "|".join(f"(?<={before}{re.escape(last)})" for before in joined)
    return re.compile(re.escape(last) + ("" if "" in qualifiers else f"(?:{qualified})") + _AROUND_OPERATOR)


@attrs.frozen
class Assignments:
    """Find values of secret names in a text; `more` adds endings."""

    more: frozenset[Words] = frozenset()
    _sites: dict[str, re.Pattern[str]] = attrs.field(init=False)

    @_sites.default
    def _sites_of_all_endings(self) -> dict[str, re.Pattern[str]]:
        return _sites(SECRET_ENDINGS | self.more)

    def spans(self, text: str) -> Iterator[Span]:
        """Yield the positions of values of secret names in `text`."""
        if ":" not in text and "=" not in text:
            return
        lowered = lower_by_position(text)
        for last_word, site_pattern in self._sites.items():
            if last_word in lowered:
                yield from self._spans_at(site_pattern, text, lowered)

    def _spans_at(self, site_pattern: re.Pattern[str], text: str, lowered: str) -> Iterator[Span]:
        at = 0
        while site := site_pattern.search(lowered, at):
            at = site.end()
            if span := self._value_span(text, site):
                at = span[1]
                yield span

    def _value_span(self, text: str, site: re.Match[str]) -> Span | None:
        name = _name_before(text, site.start("closing"))
        if not is_secret_name(name, self.more):
            return None
        if not site["closing"] and site["operator"] == ":" and name.lower().endswith(_HEADERS):
            return _header_value(text, site.start("opening"))
        if site["opening"]:
            return _quoted_value(text, site, name)
        if site["closing"] and text[site.end() : site.end() + 1] in _BRACKETS:
            return _bracketed_value(text, site.end())
        return _bare_value(text, site, name)


def _name_before(text: str, end: int) -> str:
    backwards = _NAME_BACKWARDS.match(text[max(0, end - 64) : end][::-1])
    return backwards.group()[::-1] if backwards else ""


def _is_meant(name: str, site: re.Match[str], value: str) -> bool:
    """Return whether this is an assignment, not prose (rules 1 to 3)."""
    if site["closing"]:
        return True
    if site["operator"] == "=" and (site["opening"] or not (site["before"] or site["after"])):
        return True
    certain = site["opening"] and name.lower().endswith(_CERTAIN) and _ONE_WORD.fullmatch(value)
    return bool(certain) or (_CREDENTIAL.fullmatch(value) is not None and "://" not in value)


def _quoted_value(text: str, site: re.Match[str], name: str) -> Span | None:
    start = site.end()
    end = _closing_quote(text, start, site["opening"])
    return (start, end) if end > start and _is_meant(name, site, text[start:end]) else None


def _closing_quote(text: str, start: int, quote: str) -> int:
    """Return the value's end, or the text's without closing quote."""
    if found := quote in _TO_CLOSING_QUOTE and _TO_CLOSING_QUOTE[quote].match(text, start):
        return found.end()
    end = text.find(quote, start)
    return end if end >= 0 else len(text)


def _bracketed_value(text: str, start: int) -> Span:
    end = text.find(_BRACKETS[text[start]], start)
    return start + 1, end if end >= 0 else len(text)


def _bare_value(text: str, site: re.Match[str], name: str) -> Span | None:
    found = _BARE_VALUE.match(text, site.end(), site.end() + _BEGINNING)
    if found is None or not _is_value(found, name) or not _is_meant(name, site, found.group()):
        return None
    whole = _BARE_VALUE.match(text, site.end())
    return whole.span() if whole else None


def _is_value(found: re.Match[str], name: str) -> bool:
    value = found.group()
    # `token=parse(`, `key=environ[` and `password=self.password` are code that passes a value on, not the value.
    code = found.string[found.end() : found.end() + 1] in ("(", "[") or value.rpartition(".")[2] == name
    return len(value) >= 4 and value.lower() not in _LITERALS and not code


def _header_value(text: str, start: int) -> Span | None:
    found = _HEADER_VALUE.match(text, start, start + _BEGINNING)
    if found is None or not _begins_like_credential(found.group().split()):
        return None
    whole_line = _HEADER_VALUE.match(text, start)
    return whole_line.span() if whole_line else None


def _begins_like_credential(parts: list[str]) -> bool:
    with_scheme = len(parts) > 1 and parts[0].lower() in _SCHEMES and len(parts[1]) >= 6
    return with_scheme or any(map(_PART_OF_CREDENTIAL.match, parts))
