"""What the retrievers of databases share: passages are checked and embedded before they are written, and queries before
they are searched. How they are written and found is each one's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Self, TypeVar

from .._core.assembled import RetrievalResult, Retrieved
from .._dsl.collections import Collection, checked_collection, collection_name
from .embedding import checked_embedder, embedded_documents, embedded_query, usage_of, vector_of
from .passages import Passage, checked_passage, listed_passages

_BATCH = 100
"""How many passages are embedded in one call."""

V = TypeVar("V")
"""A vector as the database takes it."""


class EmbeddingRetriever(Generic[V]):
    """The passages of one collection in a database, with an embedder or without."""

    def __init__(self, collection: type[Collection], embedder: object) -> None:
        self.collection: type[Collection] = checked_collection(collection, what=f"{type(self).__name__}: collection")
        self.embedder: Any = checked_embedder(embedder)

    # --- filling ---

    def add(self, text: str, *, id: str | None = None, **fields: Any) -> Self:
        """Add a passage, in place of the one with this id; the same retriever, to go on with."""
        self._put([checked_passage(self.collection, text, id, fields)])
        return self

    def add_many(self, passages: Iterable[tuple[str, Mapping[str, object]]]) -> Self:
        """Add pairs of a text and its `{"id": …, field: …}`: all of them, or none if one is wrong."""
        self._put(listed_passages(self.collection, passages))
        return self

    def _vectors(self, texts: list[str]) -> list[list[float]]:
        """What the embedder makes of the texts."""
        batches = (texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH))
        return [vector for batch in batches for vector in embedded_documents(self.embedder, batch)]

    # --- searching ---

    def search(
        self, query: str, *, top_k: int = 5, min_relevance: float = 0.0, filters: Mapping[str, Any] | None = None
    ) -> list[RetrievalResult] | Retrieved:
        """The most relevant passages that every filter lets through."""
        if self.embedder is None or not query.strip():
            return self._found(query, None, top_k, min_relevance, filters or {})
        embedded = embedded_query(self.embedder, query)
        return self.search_embedded(query, embedded, top_k=top_k, min_relevance=min_relevance, filters=filters or {})

    def search_embedded(
        self, query: str, embedded: Any, *, top_k: int, min_relevance: float, filters: Mapping[str, Any]
    ) -> Retrieved:
        """The same, for a query that is embedded already; what that used is told with the passages."""
        found = self._found(query, self._written(vector_of(embedded)), top_k, min_relevance, filters)
        return Retrieved(results=found, usage=usage_of(embedded))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({collection_name(self.collection)!r})"

    # --- each one's own ---

    @abstractmethod
    def _put(self, passages: list[Passage]) -> None:
        """Write passages, all or none."""

    @abstractmethod
    def _written(self, vector: list[float]) -> V:
        """A vector as the database takes it."""

    @abstractmethod
    def _found(
        self, query: str, vector: V | None, top_k: int, min_relevance: float, filters: Mapping[str, Any]
    ) -> list[RetrievalResult]:
        """What is found by the words of a query, and by its vector if there is one."""
