"""Secrets that a text announces by name: `api_key=…`, `"password": "…"`, `Authorization: …`.

Rules, for a name that `is_secret_name`:
1. The name stands in quotes, as in JSON or a dict: whatever value follows is hidden.
2. `name=value` without spaces, or with a quoted value, is hidden.
3. Anything looser is also how prose is written (*password: field required*, *unexpected token: '}'*):
   there the value is hidden only if it looks like a credential, or is quoted behind a name that leaves no
   doubt.
4. The value of an `Authorization` or `Cookie` header goes to the end of its line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

import attrs

from .credential_shapes import Span
from .secret_names import SECRET_ENDINGS, Words, is_secret_name

_AROUND_OPERATOR = (
    r"(?P<closing>(?:\\{0,4}[\"'])?)(?P<before>[ \t]{0,3})(?P<operator>=>|[:=])(?!=)(?P<after>[ \t]{0,3})"
    r"(?:b(?=[\"']))?(?P<opening>(?:\\{0,4}[\"'])?)"
)
_NAME_BACKWARDS = re.compile(r"[\w.-]{0,64}")
_BARE_VALUE = re.compile(r"[^\s\"'`,;&()\[\]{}<>\\]+")
_TO_CLOSING_QUOTE = {quote: re.compile(rf"[^{quote}\\]*(?:\\.[^{quote}\\]*)*", re.DOTALL) for quote in "\"'"}
_HEADER_VALUE = re.compile(r"[^\r\n\"'\\]+")
_BRACKETS = {"[": "]", "(": ")"}
# A value that is refused is looked at again from the next name in it. Deciding on its beginning keeps a long
# chain of names from being read once a name.
_BEGINNING = 128
_SCHEMES = frozenset({"basic", "bearer", "digest", "negotiate", "token", "apikey"})
_PART_OF_CREDENTIAL = re.compile(r"(?=.{6})[^\d=]*+[\d=]")
_LITERALS = frozenset({"none", "null", "true", "false", "undefined"})
_CREDENTIAL = re.compile(r"(?=.{6})[^\s\d\"',;]*+\d[^\s\"',;]*+")
_ONE_WORD = re.compile(r"\w\S*+")
_HEADERS = ("authorization", "cookie")
_CERTAIN = ("password", "passwd", "pwd", "passphrase", "secret", "credential", "credentials")


def lower_in_place(text: str) -> str:
    """`text` in lower case with every character where it was: `İ` would otherwise become two."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else "".join(map(_lower_one, text))


def _lower_one(character: str) -> str:
    lowered = character.lower()
    return lowered if len(lowered) == 1 else character


@functools.lru_cache(maxsize=64)
def _sites(endings: frozenset[Words]) -> dict[str, re.Pattern[str]]:
    """For each last word of the endings, what finds it with its qualifier before and an operator after it."""
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
    """Finds the values of secret names in a text; `more` are endings of names to count as well."""

    more: frozenset[Words] = frozenset()
    _sites: dict[str, re.Pattern[str]] = attrs.field(init=False)

    @_sites.default
    def _sites_of_all_endings(self) -> dict[str, re.Pattern[str]]:
        return _sites(SECRET_ENDINGS | self.more)

    def spans(self, text: str) -> Iterator[Span]:
        """Where the values of secret names stand in `text`."""
        if ":" not in text and "=" not in text:
            return
        lowered = lower_in_place(text)
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
    """Whether this is an assignment and not a sentence (rules 1 to 3)."""
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
    """Where the value ends; without a closing quote (messages cut long values off) at the end of the text."""
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
