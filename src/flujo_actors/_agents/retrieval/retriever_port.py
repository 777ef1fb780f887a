"""`Retriever`: the port that every collection of passages answers by."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from ..._core.records.assembled import RetrievalResult, Retrieved


class Retriever(Protocol):
    """Retriever port: relevance in 0..1, best first, filtered strictly.

    `search` is called in a thread if it is synchronous, else awaited on the library of the run's host. A function with
    these parameters is a retriever, too; it gets those of them that it takes.
    """

    def search(
        self, query: str, *, top_k: int, min_relevance: float, filters: Mapping[str, Any]
    ) -> Sequence[RetrievalResult] | Retrieved | Awaitable[Sequence[RetrievalResult] | Retrieved]:
        """Return at most `top_k` passages of at least that relevance.

        A filter is a value, or a list of alternatives.
        """


class SearchesByVector(Protocol):
    """Retriever with an embedder, which embeds queries on asyncio first."""

    @property
    def embedder(self) -> object:
        """Return a pydantic-ai `Embedder`, or None for search by words only."""

    def search_embedded(
        self, query: str, embedded: object, *, top_k: int, min_relevance: float, filters: Mapping[str, Any]
    ) -> Retrieved:
        """Return the same as `search`, with pydantic-ai's result of embedding the query."""
