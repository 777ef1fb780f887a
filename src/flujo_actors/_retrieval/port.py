"""`Retriever`: the port that every collection of passages answers by."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from .._core.assembled import RetrievalResult, Retrieved


class Retriever(Protocol):
    """Finds passages: relevance in 0..1, best first, only those that every filter lets through.

    `search` is called in a thread if it is synchronous, else awaited on the library of the run's host. A function with
    these parameters is a retriever, too; it gets those of them that it takes.
    """

    def search(
        self, query: str, *, top_k: int, min_relevance: float, filters: Mapping[str, Any]
    ) -> Sequence[RetrievalResult] | Retrieved | Awaitable[Sequence[RetrievalResult] | Retrieved]:
        """At most `top_k` passages of at least that relevance; a filter is a value, or a list of which one must fit."""


class SearchesByVector(Protocol):
    """What a retriever with an embedder has besides: its query is embedded on asyncio, and then searched for."""

    @property
    def embedder(self) -> object:
        """A pydantic-ai `Embedder`; `None` if words are all there is."""

    def search_embedded(
        self, query: str, embedded: object, *, top_k: int, min_relevance: float, filters: Mapping[str, Any]
    ) -> Retrieved:
        """The same as `search`, with pydantic-ai's result of embedding the query."""
