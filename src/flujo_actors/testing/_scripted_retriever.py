"""A retriever that is not there: what is found, search by search."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

from .._core.assembled import RetrievalResult, Retrieved
from .._core.found import is_relevance
from ._scripted import settled

Found: TypeAlias = tuple[str, float] | RetrievalResult
"""A passage of a script: a text and its score, or all of a result."""


@attrs.frozen(kw_only=True)
class Searched:
    """What a scripted retriever was asked for."""

    query: str
    top_k: int
    min_relevance: float
    filters: Mapping[str, Any]


class ScriptedRetriever:
    """Finds what its script says, whatever is asked, and keeps what it was asked for.

    `(text, score)` pairs and results are what every search finds: those above the floor, the best first, `top_k` of
    them; they are called `s1`, `s2`, …. Anything else is played before that, one for each search: a list of such pairs;
    an exception, which is raised; `Retrieved(…)`; `Delayed(seconds, …)`; or a callable on the query that returns one of
    these. Without pairs the last of these is played again and again. Scores are not checked: the runtime does that.
    """

    def __init__(self, *script: object) -> None:
        self.searches: list[Searched] = []
        """The searches, in order."""
        self._found = [each for each in script if _is_found(each)]
        self._replies = [each for each in script if not _is_found(each)]
        self._lock = threading.Lock()

    async def search(self, query: str, *, top_k: int, min_relevance: float, filters: Mapping[str, Any]) -> Any:
        """Play the next part of the script."""
        reply: Any = self._next(Searched(query=query, top_k=top_k, min_relevance=min_relevance, filters=dict(filters)))
        reply = await settled(reply, query)
        if isinstance(reply, Retrieved):
            return reply
        listed = [reply] if _is_found(reply) else reply
        return _best([_result(each, number) for number, each in enumerate(listed, 1)], top_k, min_relevance)

    def _next(self, searched: Searched) -> object:
        with self._lock:
            self.searches.append(searched)
            number = len(self.searches)
        if number <= len(self._replies):
            return self._replies[number - 1]
        return self._found if self._found or not self._replies else self._replies[-1]


def _is_found(each: object) -> bool:
    return isinstance(each, RetrievalResult) or (
        isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) and not isinstance(each[1], tuple)
    )


def _result(each: Found, number: int) -> RetrievalResult:
    if isinstance(each, RetrievalResult):
        return each
    return RetrievalResult(content=each[0], score=each[1], source_id=f"s{number}")


def _best(results: list[RetrievalResult], top_k: int, min_relevance: float) -> list[RetrievalResult]:
    kept = [each for each in results if not is_relevance(each.score) or each.score >= min_relevance]
    return sorted(kept, key=lambda each: -each.score if is_relevance(each.score) else -2.0)[:top_k]
