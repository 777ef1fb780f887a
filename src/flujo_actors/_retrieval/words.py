"""Relevance by words: BM25, divided by the most that a query could reach, so that it is 0 to 1 and can be compared.

Rules:

1. A word is a run of letters and digits, without case and accents; plurals count as singulars, and words that every
   question has (`what`, `the`) do not count.
2. 1 would be a passage that is made of nothing but the query's words; a word that no passage has still counts in what
   could be reached, so a passage that has one word of many is not very relevant.
3. A query without any word finds nothing.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable

import attrs

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
    """The words of a text that count, as often as they stand in it (rule 1)."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(letter for letter in plain if not unicodedata.combining(letter)) if not text.isascii() else plain
    return [_singular(word) for word in _WORD.findall(bare) if word not in _COMMON]


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    return f"{word[:-3]}y" if word.endswith("ies") and len(word) > 4 else word[:-1]


@attrs.frozen(kw_only=True)
class Corpus:
    """What relevance depends on besides the passage: how many passages there are, how long, how rare their words."""

    passages: int
    mean_length: float
    holding: Callable[[str], int]
    """How many passages hold a word."""

    def relevance_to(self, query: Iterable[str]) -> Relevance:
        """How relevant passages are to these words."""
        weights = {word: self._rarity(word) for word in set(query)}
        return Relevance(weights=weights, most=sum(weights.values()) * (_K1 + 1), mean_length=self.mean_length or 1.0)

    def _rarity(self, word: str) -> float:
        holding = self.holding(word)
        return math.log(1 + (self.passages - holding + 0.5) / (holding + 0.5))


@attrs.frozen(kw_only=True)
class Relevance:
    """How relevant passages are to a query."""

    weights: dict[str, float]
    most: float
    mean_length: float

    def of(self, counts: Counter[str], length: int) -> float:
        """The relevance of a passage with these words."""
        if not self.most:
            return 0.0
        norm = _K1 * (1 - _B + _B * length / self.mean_length)
        reached = sum(
            weight * times * (_K1 + 1) / (times + norm)
            for word, weight in self.weights.items()
            if (times := counts.get(word, 0))
        )
        return min(1.0, reached / self.most)
