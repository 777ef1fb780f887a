"""`InMemoryRetriever`: passages in memory, ranked by words. No dependencies."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Self

from ..._core.records.assembled import RetrievalResult, lets_through
from ..._dsl.retrieval_collections import Collection, checked_collection, collection_name
from .passages import Corpus, Passage, checked_passage, listed_passages, words_of


class InMemoryRetriever:
    """Passages of one collection for the life of the process; thread-safe.

    Args:
        collection: collection whose fields the passages have.

    Example:
        ```python
        class Notes(Collection):
            topic: str

        notes = InMemoryRetriever(Notes).add("Sencha brews at 75 degrees.", id="n1", topic="tea")
        agent = make_agent_async(scripted_model("75 degrees [n1]."))
        answer = Step("answer", agent, context_sources=[from_retrieval(Notes)])
        assert Flujo(answer, retrievers={Notes: notes}).run("How hot is sencha?").output == "75 degrees [n1]."
        ```
    """

    def __init__(self, collection: type[Collection]) -> None:
        self.collection: type[Collection] = checked_collection(collection, subject="InMemoryRetriever: collection")
        self._lock = threading.Lock()
        self._passages: dict[str, Passage] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._holding: Counter[str] = Counter()
        self._words = 0

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

    def remove(self, id: str) -> bool:
        """Drop a passage; whether there was one.

        Args:
            id: identity of the passage.
        """
        with self._lock:
            return self._drop(id)

    def search(
        self, query: str, *, top_k: int = 5, min_relevance: float = 0.0, filters: Mapping[str, Any] | None = None
    ) -> list[RetrievalResult]:
        """Return the most relevant passages that every filter lets through.

        Args:
            query: text to search for.
            top_k: most results.
            min_relevance: lowest score of a result, 0 to 1.
            filters: required values of fields.
        """
        with self._lock:
            corpus = Corpus(
                passages=len(self._passages),
                mean_length=self._words / max(1, len(self._passages)),
                holding=self._holding.__getitem__,
            )
            relevance = corpus.relevance_to(words_of(query))
            scored = [
                (score, passage)
                for passage, counts in zip(self._passages.values(), self._counts.values(), strict=True)
                if (score := relevance.of(counts, counts.total())) > 0
                and score >= min_relevance
                and _admits(filters or {}, passage)
            ]
        best = sorted(scored, key=lambda each: -each[0])[:top_k]
        return [passage.found(score) for score, passage in best]

    def __len__(self) -> int:
        return len(self._passages)

    def __repr__(self) -> str:
        return f"InMemoryRetriever({collection_name(self.collection)!r}, {len(self)} passages)"

    def _put(self, passages: list[Passage]) -> None:
        counted = [(passage, Counter(words_of(passage.text))) for passage in passages]
        with self._lock:
            for passage, counts in counted:
                self._drop(passage.id)
                self._passages[passage.id], self._counts[passage.id] = passage, counts
                self._holding.update(counts.keys())
                self._words += counts.total()

    def _drop(self, id: str) -> bool:
        if self._passages.pop(id, None) is None:
            return False
        counts = self._counts.pop(id)
        self._holding.subtract(counts.keys())
        self._words -= counts.total()
        return True


def _admits(filters: Mapping[str, Any], passage: Passage) -> bool:
    return all(lets_through(wanted, passage.fields.get(field)) for field, wanted in filters.items())
