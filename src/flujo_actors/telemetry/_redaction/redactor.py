"""One redactor, before every sink and before stored feedback.

Rules:
1. Three things are hidden: values under secret-like names, values known to be secret, and texts in the
   shape of common credentials. Each is found in the text as it came; overlapping finds are hidden as one.
2. What is hidden is replaced by `REPLACEMENT`; nothing else changes. A text in which nothing is found comes
   back as the same object.
3. Redacting twice is redacting once: a find inside a replacement does not count, and every round hides at
   least one character more, so the rounds come to an end.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

import attrs

from .assignments import Assignments
from .credential_shapes import Span, shape_spans
from .plain_data import Plain, plain
from .secret_names import Words, is_secret_name, words_of
from .secret_values import MOST_OBJECTS, SHORTEST_SECRET, deps_secrets, environment_secrets, worth_hiding
from .spellings import base64_spellings, spellings

REPLACEMENT = "[redacted]"

# What a text in base64 may go on with on either side of a secret in it.
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*")
_LONGEST_BEFORE = 256


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
        """A redactor that also knows what `environ` and `deps` hold under secret-like names."""
        names = _texts(names)
        found = worth_hiding(environment_secrets(environ, _endings(names)))
        return cls(secrets=_texts(secrets) | found, patterns=patterns, names=names).knowing(deps)

    def knowing(self, deps: object, *, most: int = MOST_OBJECTS) -> Redactor:
        """This redactor, also knowing what `deps` hold under secret-like names; itself if nothing is new."""
        return self.hiding(worth_hiding(deps_secrets(deps, self._more, most=most)))

    def hiding(self, secrets: frozenset[str]) -> Redactor:
        """This redactor, also hiding these values; itself if it does so already."""
        return self if secrets <= self._secrets else attrs.evolve(self, secrets=self._secrets | secrets)

    def current(self) -> Redactor:
        """Itself: what it knows does not change."""
        return self

    @property
    def known(self) -> frozenset[str]:
        """The values that are hidden wherever they occur."""
        return self._secrets

    def text(self, text: str) -> str:
        """`text` without its secrets: the same object if there are none."""
        while spans := self._spans(text):
            text = _hide(text, spans)
        return text

    def value(self, value: object) -> Plain:
        """A copy of `value` as plain data (dicts, lists, scalars) without its secrets."""
        return plain(value, text=self.text, hides=self._hides, hidden=REPLACEMENT)

    def _hides(self, name: str) -> bool:
        return is_secret_name(name, self._more)

    def _spans(self, text: str) -> list[Span]:
        """What is to be hidden, merged and in order; empty if that is nothing new."""
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
    """Where `part` stands in base64, with the rest of that base64 around it."""
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
