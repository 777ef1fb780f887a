"""Passages: a text, an id and the fields of their collection."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from ..._core.records.assembled import RetrievalResult
from ..._dsl.retrieval_collections import Collection, check_field, filterable, fits
from ...errors import DeclarationError


@attrs.frozen(kw_only=True)
class Passage:
    """One passage, checked."""

    id: str
    text: str
    fields: Mapping[str, object]

    def found(self, score: float) -> RetrievalResult:
        """Return the passage as a result of a search."""
        return RetrievalResult(content=self.text, score=score, source_id=self.id, metadata=dict(self.fields))


def checked_passage(collection: type[Collection], text: object, id: object, fields: Mapping[str, Any]) -> Passage:
    """Return the passage; raise `DeclarationError` for an unknown or mistyped field.

    An omitted field matches no filter. Without an id a passage is identified by its text, so adding it twice adds it
    once.
    """
    subject = f"a passage of {collection.__name__}"
    if not isinstance(text, str) or not text.strip():
        raise DeclarationError(f"{subject} must have a text that is not empty, not {text!r:.100}")
    for field in fields:
        check_field(collection, field, subject=f"{subject} has the field")
    for field, value in fields.items():
        kind = filterable(collection)[field]
        if not fits(kind, value):
            raise DeclarationError(f"{subject}: field {field!r} must be {kind.__name__}, not {value!r}")
    return Passage(id=_checked_id(id, text, subject), text=text, fields=dict(fields))


def _checked_id(id: object, text: str, subject: str) -> str:
    if id is None:
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    if not isinstance(id, str) or not id:
        raise DeclarationError(f"{subject}: id must be a text that is not empty, not {id!r}")
    return id


def listed_passages(collection: type[Collection], items: Iterable[tuple[str, Mapping[str, object]]]) -> list[Passage]:
    """Return the passages of `add_many`; the last one of an id counts."""
    passages: dict[str, Passage] = {}
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 2 or not isinstance(item[1], Mapping):
            raise DeclarationError(f'add_many takes pairs (text, {{"id": …, field: …}}), not {item!r:.100}')
        fields = dict(item[1])
        passage = checked_passage(collection, item[0], fields.pop("id", None), fields)
        passages[passage.id] = passage
    return list(passages.values())


def allowed_values(wanted: Any, *, nul: bool) -> list[Any]:
    """Return the filter values that a UTF-8 database can hold."""
    values = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
    return [value for value in values if not isinstance(value, str) or is_storable(value, nul=nul)]


def is_storable(text: str, *, nul: bool) -> bool:
    """Return whether a text has no lone surrogate and no forbidden NUL."""
    return (nul or "\0" not in text) and not any("\ud800" <= sign <= "\udfff" for sign in text)


_WORD = re.compile(r"[^\W_]+")
_COMMON = frozenset(
    _WORD.findall(
        "a about an and any are as at be been but by can could did do does for from had has have how i if in into is "
        "it its me my no nor of on or our should so some such than that the their them then there these they this to "
        "us was we were what when where which who whom whose why will with would you your s t ll re ve"
    )
)
_K1, _B = 1.2, 0.75


def words_of(text: str) -> list[str]:
    """Return the counted words of a text, with repetitions (rule 1)."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(letter for letter in plain if not unicodedata.combining(letter)) if not text.isascii() else plain
    return [_singular(word) for word in _WORD.findall(bare) if word not in _COMMON]


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    return f"{word[:-3]}y" if word.endswith("ies") and len(word) > 4 else word[:-1]


@attrs.frozen(kw_only=True)
class Corpus:
    """Corpus statistics for relevance: number and length of passages, frequency of words."""

    passages: int
    mean_length: float
    holding: Callable[[str], int]
    """Function that returns the number of passages with a word."""

    def relevance_to(self, query: Iterable[str]) -> Relevance:
        """Return the relevance of passages to these words."""
        weights = {word: self._rarity(word) for word in set(query)}
        return Relevance(weights=weights, most=sum(weights.values()) * (_K1 + 1), mean_length=self.mean_length or 1.0)

    def _rarity(self, word: str) -> float:
        holding = self.holding(word)
        return math.log(1 + (self.passages - holding + 0.5) / (holding + 0.5))


@attrs.frozen(kw_only=True)
class Relevance:
    """Relevance of passages to a query."""

    weights: dict[str, float]
    most: float
    mean_length: float

    def of(self, counts: Counter[str], length: int) -> float:
        """Return the relevance of a passage with these words."""
        if not self.most:
            return 0.0
        norm = _K1 * (1 - _B + _B * length / self.mean_length)
        reached = sum(
            weight * times * (_K1 + 1) / (times + norm)
            for word, weight in self.weights.items()
            if (times := counts.get(word, 0))
        )
        return min(1.0, reached / self.most)
