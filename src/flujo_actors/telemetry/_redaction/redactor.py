"""One redactor, before every sink and before stored feedback.

Rules:
1. Three things are hidden: values under secret-like names, values known to be secret, and texts in the
   shape of common credentials. Each is found in the text as it came; overlapping finds are hidden as one.
2. A hidden part is replaced by `REPLACEMENT`; nothing else changes. A text in which nothing is found comes
   back as the same object.
3. Redacting twice is redacting once: a find inside a replacement does not count, and a text is read again
   until nothing new is found.
4. The cost is linear in the length of the text. A replacement can uncover the next credential, so a hostile
   text could ask for a round per credential: after `_ROUNDS` rounds its rest is hidden as one.
5. The text of an error is cut to `LONGEST_ERROR_TEXT` before it is read, and never through a credential.

Sections:

- Conversion of any value to plain data for sinks: dicts, lists, texts and numbers.
- Secrets of a program: values of its environment and deps under secret-like names.
- Spellings of a secret in URLs, JSON, reprs, pages, drivers and HTTP headers.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import json
import os
import re
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import TypeAlias
from urllib.parse import quote, quote_plus, unquote, unquote_plus
from uuid import UUID

import attrs

from .credential_shapes import Assignments, Span, Words, is_secret_name, shape_spans, url_passwords, words_of

# --- Conversion of any value to plain data for sinks --------------------------------------------------------------
# No method of a foreign object is called (a `repr` may raise, block, or reveal hidden fields): an object without
# fields
# of its own is named by its type.


Plain: TypeAlias = object
"""Dicts, lists and scalars."""

_SCALARS = (bool, int, float, complex, Decimal, date, time, timedelta, UUID)
_DEEPEST = 64


def plain(value: object, *, text: Callable[[str], str], hides: Callable[[str], bool], hidden: str) -> Plain:
    """Return a copy of `value` with redacted texts and hidden fields.

    Texts are passed through `text`, and `hidden` replaces the fields whose name `hides`.
    """
    return _Copier(text, hides, hidden).copy(value, 0)


@attrs.define
class _Copier:
    _text: Callable[[str], str]
    _hides: Callable[[str], bool]
    _hidden: str
    _done: dict[int, tuple[object, Plain]] = attrs.field(factory=dict, init=False)

    def copy(self, value: object, depth: int) -> Plain:
        match value:
            case None:
                return None
            case Enum():
                return f"{type(value).__name__}.{value.name}"
            case str():
                return self._text(value)
            case bytes():
                return self._bytes(value)
            case _ if isinstance(value, _SCALARS):
                return value
            case _ if depth >= _DEEPEST:
                return "[too deep]"
            case _:
                return self._container(value, depth)

    def _bytes(self, value: bytes) -> bytes:
        text = value.decode("utf-8", "surrogateescape")
        clean = self._text(text)
        return value if clean is text else clean.encode("utf-8", "surrogateescape")

    def _container(self, value: object, depth: int) -> Plain:
        # Shared parts are copied once; a part that contains itself finds this mark. Holding the value keeps its id from
        # being reused meanwhile.
        if id(value) not in self._done:
            self._done[id(value)] = (value, "[contains itself]")
            self._done[id(value)] = (value, self._copied(value, depth + 1))
        return self._done[id(value)][1]

    def _copied(self, value: object, depth: int) -> Plain:
        if isinstance(value, dict | MappingProxyType):
            return {self._key(name): self._field(name, part, depth) for name, part in value.items()}
        fields = _fields(value)
        if fields is None and isinstance(value, list | tuple | set | frozenset):
            return [self.copy(part, depth) for part in value]
        if fields is None:
            return f"<{type(value).__qualname__}>"
        return {name: self._field(name, part, depth) for name, part in fields}

    def _key(self, name: object) -> Plain:
        if isinstance(name, str):
            return self._text(name)
        if isinstance(name, int | float) and not isinstance(name, Enum):
            return name
        return str(name) if isinstance(name, _SCALARS) else f"<{type(name).__qualname__}>"

    def _field(self, name: object, part: object, depth: int) -> Plain:
        says_nothing = part is None or isinstance(part, bool)
        if isinstance(name, str) and not says_nothing and self._hides(name):
            return self._hidden
        return self.copy(part, depth)


def _fields(value: object) -> Iterator[tuple[str, object]] | None:
    """Return a declared class's fields with values, except hidden ones."""
    names = _field_names(type(value))
    return None if names is None else ((name, getattr(value, name, None)) for name in names)


def _field_names(kind: type[object]) -> list[str] | None:
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind) if field.repr]
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.repr]
    if hasattr(kind, "__pydantic_fields__"):
        return [name for name, field in kind.__pydantic_fields__.items() if field.repr]
    if issubclass(kind, tuple):
        return list(kind._fields) if hasattr(kind, "_fields") else None
    return None


# --- Secrets of a program -----------------------------------------------------------------------------------------
# Only data is read: dicts, sequences and the stored attributes of objects. No property is read and no method called,
# so
# gathering has no effects; it is bounded in depth and number of objects.


SHORTEST_SECRET = 8
"""A shorter value would be found by chance inside ordinary words."""
_DEEPEST_DEPS = 6
MOST_OBJECTS = 10_000
"""Maximum number of scanned objects."""
# The working directory, not a password.
_NOT_SECRET_VARIABLES = frozenset({"PWD", "OLDPWD"})
# Placeholders that occur in so many texts that hiding them would reveal more than it hides.
_PLACEHOLDERS = frozenset(
    {"password", "postgres", "changeme", "disabled", "required", "undefined", "username", "localhost"}
)
_NOT_DATA = (type, FunctionType, MethodType, ModuleType)
# `sort_key` and `first_pass` are fields, but a variable that ends so (`STRIPE_KEY`, `DB_PASS`) is set for a service.
_SERVICE_ENDINGS = ("key", "pass")
_RUN_TOGETHER = ("password", "passwd", "apikey", "secret")
_assignments = Assignments()


def environment_secrets(environ: Mapping[str, str], more: frozenset[Words] = frozenset()) -> Iterator[str]:
    """Yield the values of secret-like variables, and the passwords in addresses."""
    for name, value in environ.items():
        if _is_secret_variable(name, more):
            yield value
        yield from _passwords(value)


def _is_secret_variable(name: str, more: frozenset[Words]) -> bool:
    if name in _NOT_SECRET_VARIABLES:
        return False
    last = "".join(words_of(name)[-1:])
    return last in _SERVICE_ENDINGS or last.endswith(_RUN_TOGETHER) or is_secret_name(name, more)


def _passwords(text: str) -> Iterator[str]:
    """Yield passwords of URLs and of `password=…`, also decoded."""
    announced = (text[start:end] for start, end in _assignments.spans(text))
    for written in (*url_passwords(text), *announced):
        yield from (written, unquote(written), unquote_plus(written))


def deps_secrets(deps: object, more: frozenset[Words] = frozenset(), *, most: int = MOST_OBJECTS) -> Iterator[str]:
    """Yield the secrets of `deps`, nearest first, with URL passwords."""
    waiting: deque[tuple[object, bool, int]] = deque([(deps, False, 0)])
    seen: set[int] = set()
    while waiting and len(seen) < most:
        value, secret, depth = waiting.popleft()
        if isinstance(value, str | bytes):
            yield from _secret_texts(value, secret)
        elif id(value) not in seen and depth < _DEEPEST_DEPS:
            seen.add(id(value))
            waiting += ((part, secret or is_secret_name(name, more), depth + 1) for name, part in _parts(value))


def _secret_texts(value: str | bytes, secret: bool) -> Iterator[str]:
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    if secret:
        yield text
    yield from _passwords(text)


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield a container's or object's parts with names, if any."""
    if isinstance(value, dict):
        yield from ((name if isinstance(name, str) else "", part) for name, part in tuple(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (("", part) for part in value)
    elif not isinstance(value, _NOT_DATA):
        yield from _attributes(value)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    yield from tuple(getattr(value, "__dict__", {}).items())
    for owner in type(value).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                yield slot, getattr(value, slot)


def secret_values(values: Iterable[str]) -> frozenset[str]:
    """Return the values long and rare enough to hide."""
    stripped = (value.strip() for value in values)
    return frozenset(
        value for value in stripped if len(value) >= SHORTEST_SECRET and value.lower() not in _PLACEHOLDERS
    )


# --- Spellings of a secret in URLs --------------------------------------------------------------------------------


# Characters that clients leave unescaped, other than letters and digits: none, a path's slash, those of a password or a
# query.
_LEFT_ALONE = ("", "/", "!$&'()*+,;=:", "!$&'()*+,;=:@/?")
_PERCENT = re.compile("%[0-9A-F]{2}")
_BOTH_QUOTES = "'\""


def spellings(secret: str) -> frozenset[str]:
    """Return the secret's spellings: plain, percent-encoded, JSON, repr and HTML."""
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
    """Yield the spellings in reprs and connection strings, with either quote escaped."""
    data = secret.encode("utf-8", "replace")
    yield from (repr(secret)[1:-1], repr(secret + _BOTH_QUOTES)[1:-4])
    yield from (repr(data)[2:-1], repr(data + _BOTH_QUOTES.encode())[2:-4])
    yield secret.replace("\\", "\\\\").replace("'", "\\'")


def base64_spellings(secret: str) -> frozenset[str]:
    """Return the common part of every base64 text that contains the secret.

    `Authorization: Basic …` has a user's name before the password.
    """
    data = secret.encode("utf-8", "replace")
    found = (_core(data, shift) for shift in range(3))
    return frozenset(spelled for core in found for spelled in (core, core.replace("+", "-").replace("/", "_")))


def _core(data: bytes, shift: int) -> str:
    """Return the characters for `data` alone, with `shift` bytes before it."""
    written = base64.b64encode(bytes(shift) + data).decode("ascii")
    return written[-(-shift * 8 // 6) : (shift + len(data)) * 8 // 6]


# --- One redactor -------------------------------------------------------------------------------------------------


REPLACEMENT = "[redacted]"

# Base64 characters on either side of a secret.
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*")
_LONGEST_BEFORE = 256
# Two rounds are enough for any text that was not made for this.
_ROUNDS = 8

LONGEST_ERROR_TEXT = 1_200_000
"""Characters kept of an error text, about 40 ms of work."""
_KEPT_AT_END = 100_000
# Characters read on both sides of the cut and then dropped: half a credential would not be recognized.
_MARGIN = 8_192


def _texts(given: str | Iterable[str]) -> frozenset[str]:
    return frozenset({given} if isinstance(given, str) else given) - {""}


def _compiled(patterns: Iterable[str | re.Pattern[str]]) -> tuple[re.Pattern[str], ...]:
    return tuple(map(re.compile, patterns))


def _endings(names: Iterable[str]) -> frozenset[Words]:
    return frozenset(words for words in map(words_of, names) if words)


@attrs.frozen(kw_only=True)
class Redactor:
    """Hides secrets in texts and values.

    `secrets` are values to hide wherever they occur, `patterns` expressions whose matches to hide, `names`
    field names (or their last words) that hold secrets in addition to the usual ones.
    """

    _secrets: frozenset[str] = attrs.field(default=(), converter=_texts, repr=False)
    _patterns: tuple[re.Pattern[str], ...] = attrs.field(default=(), converter=_compiled)
    _names: frozenset[str] = attrs.field(default=(), converter=_texts)
    _spelled: tuple[str, ...] = attrs.field(init=False, repr=False, eq=False)
    _in_base64: tuple[str, ...] = attrs.field(init=False, repr=False, eq=False)
    _more: frozenset[Words] = attrs.field(init=False, repr=False, eq=False)
    _assignments: Assignments = attrs.field(init=False, repr=False, eq=False)

    @_spelled.default
    def _all_spellings(self) -> tuple[str, ...]:
        return tuple(sorted(spelling for secret in self._secrets for spelling in spellings(secret)))

    @_in_base64.default
    def _all_in_base64(self) -> tuple[str, ...]:
        long = (secret for secret in self._secrets if len(secret) >= SHORTEST_SECRET)
        return tuple(sorted(spelling for secret in long for spelling in base64_spellings(secret)))

    @_more.default
    def _endings_of_names(self) -> frozenset[Words]:
        return _endings(self._names)

    @_assignments.default
    def _assignments_of_names(self) -> Assignments:
        return Assignments(self._more)

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str],
        *,
        deps: object = None,
        secrets: Iterable[str] = (),
        patterns: Iterable[str | re.Pattern[str]] = (),
        names: Iterable[str] = (),
    ) -> Redactor:
        """Return a redactor that also hides secrets of `environ` and `deps`.

        Args:
            environ: environment variables; values of names such as `API_KEY` are hidden.
            deps: dependencies of the agents, whose secrets are hidden.
            secrets: further values to hide.
            patterns: regular expressions of further secrets.
            names: further names whose values are hidden.
        """
        names = _texts(names)
        found = secret_values(environment_secrets(environ, _endings(names)))
        return cls(secrets=_texts(secrets) | found, patterns=patterns, names=names).with_deps(deps)

    def with_deps(self, deps: object, *, most: int = MOST_OBJECTS) -> Redactor:
        """Return a redactor that also hides secrets of `deps`."""
        return self.hiding(secret_values(deps_secrets(deps, self._more, most=most)))

    def hiding(self, secrets: frozenset[str]) -> Redactor:
        """This redactor, also hiding these values; itself if it does so already."""
        return self if secrets <= self._secrets else attrs.evolve(self, secrets=self._secrets | secrets)

    def current(self) -> Redactor:
        """Return itself: its secrets do not change."""
        return self

    @property
    def known(self) -> frozenset[str]:
        """Return the values that are hidden wherever they occur."""
        return self._secrets

    def text(self, text: str) -> str:
        """`text` without its secrets: the same object if there are none.

        Args:
            text: text to redact.
        """
        for _ in range(_ROUNDS):
            if not (spans := self._spans(text)):
                return text
            text = _hide(text, spans)
        return self._without_rest(text)

    def error_text(self, text: str) -> str:
        """Return an error's text without secrets, shortened in the middle.

        Args:
            text: text of an exception.
        """
        left_out = len(text) - LONGEST_ERROR_TEXT
        if left_out <= 0:
            return self.text(text)
        begins = LONGEST_ERROR_TEXT - _KEPT_AT_END
        beginning = self.text(text[: begins + _MARGIN])[:-_MARGIN]
        end = self.text(text[-_KEPT_AT_END - _MARGIN :])[_MARGIN:]
        return f"{beginning} … {left_out:,} characters left out … {end}"

    def _without_rest(self, text: str) -> str:
        """`text` up to the first secret that is still in it."""
        for _ in range(_ROUNDS):
            if not (spans := self._spans(text)):
                return text
            hidden = set(_occurrences(text, REPLACEMENT))
            start = next(span[0] for span in spans if span not in hidden)
            text = text[:start] + REPLACEMENT
        return REPLACEMENT

    def value(self, value: object) -> Plain:
        """Return a copy of `value` as plain data without secrets.

        Args:
            value: value to redact.
        """
        return plain(value, text=self.text, hides=self._hides, hidden=REPLACEMENT)

    def _hides(self, name: str) -> bool:
        return is_secret_name(name, self._more)

    def _spans(self, text: str) -> list[Span]:
        """Return the merged new spans to hide, in order."""
        found = list(self._found(text))
        if not found:
            return []
        hidden = list(_occurrences(text, REPLACEMENT))
        fresh = [span for span in found if not _within(span, hidden)]
        return _merged(fresh + hidden) if fresh else []

    def _found(self, text: str) -> Iterator[Span]:
        for secret in self._spelled:
            if secret in text:
                yield from _occurrences(text, secret)
        for secret in self._in_base64:
            if secret in text:
                yield from _whole_words(text, secret)
        yield from shape_spans(text)
        yield from self._assignments.spans(text)
        for pattern in self._patterns:
            yield from (match.span() for match in pattern.finditer(text) if match.group())


def _occurrences(text: str, part: str) -> Iterator[Span]:
    start = text.find(part)
    while start >= 0:
        yield start, start + len(part)
        start = text.find(part, start + len(part))


def _whole_words(text: str, part: str) -> Iterator[Span]:
    """Yield the base64 words that contain `part`."""
    start = text.find(part)
    while start >= 0:
        head, tail = text[max(0, start - _LONGEST_BEFORE) : start], start + len(part)
        end = tail + _run_of_base64(text, tail)
        yield start - _run_of_base64(head[::-1]), end
        start = text.find(part, end)


def _run_of_base64(text: str, start: int = 0) -> int:
    found = _BASE64.match(text, start)
    return found.end() - start if found else 0


def _within(span: Span, hidden: list[Span]) -> bool:
    before = bisect_right(hidden, (span[0], len(REPLACEMENT) + span[0])) - 1
    return before >= 0 and span[1] <= hidden[before][1]


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _hide(text: str, spans: list[Span]) -> str:
    kept = []
    at = 0
    for start, end in spans:
        kept.append(text[at:start])
        at = end
    return REPLACEMENT.join([*kept, text[at:]])


_LATEST = 100
"""Number of remembered per-attempt deps, new for each request."""
_NEAREST = 200
"""Number of deps objects that are scanned again."""
_MOST_LEARNED = 1_000
"""Maximum number of remembered deps secrets per process."""


class LiveRedactor:
    """Hide past and present secrets of the environment and of `deps`."""

    def __init__(
        self, environ: Mapping[str, str], deps: Sequence[object] = (), *, began: Mapping[str, str] | None = None
    ) -> None:
        self._environ, self._deps = environ, tuple(deps)
        self._made: deque[frozenset[str]] = deque(maxlen=_LATEST)
        self._with_made: Redactor | None = None
        self._seen: object = None
        self._lock = threading.Lock()
        self._redactor = Redactor.from_environment(environ if began is None else began)
        for each in self._deps:
            self._redactor = self._redactor.with_deps(each)
        _learned.add(self._redactor.known)

    def learn(self, deps: object) -> None:
        """Add the secrets of deps made for an attempt."""
        with self._lock:
            secrets = self._redactor.with_deps(deps, most=_NEAREST).known - self._redactor.known
            if secrets and secrets not in self._made:
                self._made.append(secrets)
                self._with_made = None
                _learned.add(secrets)

    def current(self) -> Redactor:
        """Return a redactor for the present secrets."""
        # The mapping below `os.environ` is compared in a microsecond; decoding all of it takes fifty times as long.
        held = getattr(self._environ, "_data", self._environ)
        if held != self._seen:
            with self._lock:
                self._seen = dict(held)
                self._hide(secret_values(environment_secrets(dict(self._environ))))
        return self._all()

    def _all(self) -> Redactor:
        if not self._made:
            return self._redactor
        if self._with_made is None:
            self._with_made = self._redactor.hiding(frozenset().union(*self._made))
        return self._with_made

    def text(self, text: str) -> str:
        """Return an error text without its current secrets."""
        self.current()
        for each in self._deps:
            with self._lock:
                self._hide(self._redactor.with_deps(each, most=_NEAREST).known)
        return self._all().error_text(text)

    def _hide(self, secrets: frozenset[str]) -> None:
        known = self._redactor
        self._redactor = known.hiding(secrets)
        if self._redactor is not known:
            self._with_made = None
            _learned.add(self._redactor.known)


class _Learned:
    """Latest secrets learned by the redactors of this process."""

    def __init__(self) -> None:
        self._secrets: dict[str, None] = {}
        self._lock = threading.Lock()

    def add(self, secrets: frozenset[str]) -> None:
        with self._lock:
            self._secrets |= dict.fromkeys(secrets)
            for oldest in list(self._secrets)[:-_MOST_LEARNED]:
                del self._secrets[oldest]

    def all(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._secrets)


_learned = _Learned()


class _Process:
    """Redactor of text that leaves the process outside of a run."""

    def __init__(self) -> None:
        self._environment: LiveRedactor | None = None
        self._redactor = Redactor()

    def text(self, text: str) -> str:
        return self._current().error_text(text)

    def value(self, value: object) -> object:
        return self._current().value(value)

    def _current(self) -> Redactor:
        if self._environment is None:
            self._environment = LiveRedactor(os.environ)
        known = self._environment.current().known | _learned.all()
        if known != self._redactor.known:
            self._redactor = Redactor(secrets=known)
        return self._redactor


_process = _Process()

redacted = _process.text
"""Redact a text that leaves the process outside of a run."""

redacted_value = _process.value
"""Redact plain data that leaves the process outside of a run."""
