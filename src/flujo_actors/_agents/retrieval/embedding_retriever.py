"""Common part of database retrievers: checks and embeddings of passages and queries.

Writing and searching belong to each database.

Sections:

- pydantic-ai embedders for retrievers: checked, callable from sync code, and metered.
"""

from __future__ import annotations

import asyncio
import os
import threading
from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ..._core.records.assembled import RetrievalResult, Retrieved
from ..._core.usage import Usage, sanitized
from ..._dsl.retrieval_collections import Collection, checked_collection, collection_name
from ...errors import DeclarationError
from .passages import Passage, checked_passage, listed_passages

if TYPE_CHECKING:
    from pydantic_ai.embeddings import Embedder, EmbeddingResult


# --- pydantic-ai embedders for retrievers -------------------------------------------------------------------------
# Code that adds passages has no loop, and a provider's connections belong to their loop. So all calls from
# synchronous
# code use one loop in its own thread; a run embeds its queries on the loop of its host.


T = TypeVar("T")


def checked_embedder(given: object) -> Embedder | None:
    """Return a pydantic-ai embedder, made from a model or name if needed."""
    if given is None:
        return None
    from pydantic_ai.embeddings import Embedder, EmbeddingModel  # only for semantic search

    if isinstance(given, Embedder):
        return given
    if isinstance(given, EmbeddingModel | str):
        return Embedder(given)
    raise DeclarationError(f"embedder must be a pydantic-ai Embedder, or a model's name, not {given!r}")


def embedded_documents(embedder: Embedder, texts: Sequence[str]) -> list[list[float]]:
    """Return the vectors of some texts, from synchronous code."""
    if not texts:
        return []
    return [list(map(float, vector)) for vector in in_loop(embedder.embed_documents(list(texts))).embeddings]


def embedded_query(embedder: Embedder, query: str) -> EmbeddingResult:
    """Return the vector of a query, from synchronous code."""
    return in_loop(embedder.embed_query(query))


def vector_of(embedded: EmbeddingResult) -> list[float]:
    """Return the one vector of an embedded query."""
    return list(map(float, embedded.embeddings[0]))


def usage_of(embedded: EmbeddingResult) -> Usage:
    """Return the usage of an embedding; an unknown price is zero."""
    try:
        cost = float(embedded.cost().total_price)
    except LookupError:
        cost = 0.0
    return sanitized(Usage(input_tokens=embedded.usage.input_tokens, requests=1, cost_usd=cost))


# --- a loop for synchronous code ----------------------------------------------------------------------------


class _Loop:
    """asyncio loop in a daemon thread, started on demand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="flujo_actors embedding", daemon=True).start()
            return self._loop


_loops = [_Loop()]


def _forget() -> None:
    """Drop the loop after a fork, which has no thread for it."""
    _loops[0] = _Loop()


os.register_at_fork(after_in_child=_forget)


def in_loop(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine on the loop; return its result in this thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loops[0].running()).result()


# --- Common part of database retrievers ---------------------------------------------------------------------------


_BATCH = 100
"""Number of passages embedded in one call."""

V = TypeVar("V")
"""A vector as the database takes it."""


class EmbeddingRetriever(Generic[V]):
    """Passages of one collection in a database, with or without an embedder."""

    def __init__(self, collection: type[Collection], embedder: object) -> None:
        self.collection: type[Collection] = checked_collection(collection, subject=f"{type(self).__name__}: collection")
        self.embedder: Any = checked_embedder(embedder)

    # --- filling ---

    def add(self, text: str, *, id: str | None = None, **fields: Any) -> Self:
        """Add a passage, replacing one of the same id; return the retriever.

        Args:
            text: passage.
            id: identity of the passage; by default its text.
            fields: values of the collection's fields.
        """
        self._put([checked_passage(self.collection, text, id, fields)])
        return self

    def add_many(self, passages: Iterable[tuple[str, Mapping[str, object]]]) -> Self:
        """Add pairs of text and `{"id": …, field: …}`, all or none.

        Args:
            passages: pairs of a text and its fields; the key `id` is the identity.
        """
        self._put(listed_passages(self.collection, passages))
        return self

    def _vectors(self, texts: list[str]) -> list[list[float]]:
        """Return the embeddings of the texts."""
        batches = (texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH))
        return [vector for batch in batches for vector in embedded_documents(self.embedder, batch)]

    # --- searching ---

    def search(
        self, query: str, *, top_k: int = 5, min_relevance: float = 0.0, filters: Mapping[str, Any] | None = None
    ) -> list[RetrievalResult] | Retrieved:
        """Return the most relevant passages that every filter lets through.

        Args:
            query: text to search for.
            top_k: most results.
            min_relevance: lowest score of a result, 0 to 1.
            filters: required values of fields.
        """
        if self.embedder is None or not query.strip():
            return self._found(query, None, top_k, min_relevance, filters or {})
        embedded = embedded_query(self.embedder, query)
        return self.search_embedded(query, embedded, top_k=top_k, min_relevance=min_relevance, filters=filters or {})

    def search_embedded(
        self, query: str, embedded: Any, *, top_k: int, min_relevance: float, filters: Mapping[str, Any]
    ) -> Retrieved:
        """Search for an embedded query; its usage is returned with the passages."""
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
        """Return a vector as the database takes it."""

    @abstractmethod
    def _found(
        self, query: str, vector: V | None, top_k: int, min_relevance: float, filters: Mapping[str, Any]
    ) -> list[RetrievalResult]:
        """Return the results by a query's words, and vector if any."""
