"""Conformance suite for retrievers.

```python
from flujo_actors.testing import retriever_conformance

def test_my_retriever_keeps_the_port():
    retriever_conformance(lambda collection, passages: MyRetriever(collection).filled_with(passages))
```

`make(collection, passages)` is called for every clause. It returns a new retriever of the collection (a class made from
`Collection`) that holds these passages: pairs of a text and its `{"id": …, field: …}`, as for `add_many`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import anyio

from .._core.records.assembled import RetrievalResult, is_relevance, read_found
from .._dsl.retrieval_collections import Collection

Passages: TypeAlias = Sequence[tuple[str, Mapping[str, object]]]
Make: TypeAlias = Callable[[type[Collection], Passages], object]


class Manuals(Collection, name="manuals"):
    """The collection of the suite: a field of every type."""

    tenant: str
    year: int
    weight: float
    draft: bool


def _passage(id: str, text: str, **fields: Any) -> tuple[str, dict[str, object]]:
    return text, {"id": id, "tenant": "acme", "year": 2025, "weight": 1.0, "draft": False, **fields}


PASSAGES: Passages = (
    _passage("pump", "Error code E-1042 means that the pump lost prime; bleed the intake line and restart it."),
    _passage("tea", "Green tea should be brewed with water of 80 degrees, otherwise it turns bitter.", year=2026),
    _passage("rival", "Green tea of the rival company is kept at 60 degrees.", tenant="rival"),
    _passage("draft", "Green tea may be served with ice, once the water has cooled.", draft=True, weight=0.5),
    _passage("kiln", "The kiln reaches its highest temperature after nine hours; do not open it before."),
)
HOSTILE = (
    '"',
    "*",
    "NEAR(",
    "",
    "   ",
    "a AND",
    "E-1042 OR",
    "'; DROP TABLE x; --",
    "%s {0} \\",
    "\0",
    "🫖" * 50,
    "-" * 9,
)


def retriever_conformance(make: Make) -> tuple[str, ...]:
    """Check all clauses on retrievers made by `make`; return their names.

    `AssertionError` names a failed clause.

    Args:
        make: function that returns an empty retriever.
    """
    for clause in CLAUSES:
        try:
            clause(_TestedRetriever(make(Manuals, PASSAGES)))
        except AssertionError as error:
            raise AssertionError(f"{clause.__name__[1:].replace('_', ' ')}: {error}") from error
    return tuple(clause.__name__[1:] for clause in CLAUSES)


class _TestedRetriever:
    """A retriever under test."""

    def __init__(self, retriever: Any) -> None:
        self._search = getattr(retriever, "search", retriever)

    def __call__(
        self, query: str, *, top_k: int = 5, min_relevance: float = 0.0, filters: Mapping[str, Any] | None = None
    ) -> Sequence[RetrievalResult]:
        found = self._search(query, top_k=top_k, min_relevance=min_relevance, filters=filters or {})
        if inspect.isawaitable(found):
            found = anyio.run(_awaited, found)
        return read_found(found, collection="manuals").results

    def ids(self, query: str, **options: Any) -> list[str | None]:
        return [result.source_id for result in self(query, **options)]


async def _awaited(found: Awaitable[Any]) -> object:
    return await found


# --- the clauses: each is a sentence ------------------------------------------------------------------------


def _relevance_is_from_0_to_1_and_the_best_comes_first(ask: _TestedRetriever) -> None:
    scores = [result.score for result in ask("green tea of which degrees")]
    assert scores, "nothing was found"
    assert all(map(is_relevance, scores)), f"the scores are {scores}"
    assert scores == sorted(scores, reverse=True), f"the scores are {scores}"


def _what_is_found_answers_the_question(ask: _TestedRetriever) -> None:
    assert ask.ids("the pump shows error E-1042")[:1] == ["pump"]
    assert ask.ids("which temperature does the kiln reach after nine hours")[:1] == ["kiln"]


def _results_carry_text_id_and_fields(ask: _TestedRetriever) -> None:
    found = ask("E-1042 pump")[0]
    assert found.content == PASSAGES[0][0]
    assert {"tenant": "acme", "year": 2025, "draft": False}.items() <= dict(found.metadata).items(), found.metadata


def _no_more_than_top_k_are_found(ask: _TestedRetriever) -> None:
    assert len(ask("green tea", top_k=1)) == 1


def _nothing_below_the_floor_is_found(ask: _TestedRetriever) -> None:
    scores = [result.score for result in ask("green tea water")]
    floor = max(scores)
    assert all(result.score >= floor for result in ask("green tea water", min_relevance=floor))
    assert ask("green tea water", min_relevance=1.0) == () or min(scores) == 1.0


def _a_filter_is_a_wall(ask: _TestedRetriever) -> None:
    assert "rival" not in ask.ids("green tea of the rival company", filters={"tenant": "acme"})
    assert ask.ids("green tea of the rival company", filters={"tenant": "rival"}) == ["rival"]
    assert ask.ids("green tea", filters={"tenant": "nobody"}) == []


def _a_filter_comes_before_top_k(ask: _TestedRetriever) -> None:
    assert ask.ids("green tea of the rival company kept at 60 degrees", top_k=1, filters={"year": 2026}) == ["tea"]


def _several_filters_must_all_let_it_through(ask: _TestedRetriever) -> None:
    assert ask.ids("green tea", filters={"tenant": "acme", "draft": True}) == ["draft"]
    assert ask.ids("green tea", filters={"tenant": "rival", "draft": True}) == []


def _a_list_lets_any_of_its_values_through(ask: _TestedRetriever) -> None:
    found = set(ask.ids("green tea", filters={"tenant": ["acme", "rival"], "draft": [False]}))
    assert {"tea", "rival"} <= found, found
    assert "draft" not in found, found
    assert ask.ids("green tea", filters={"tenant": []}) == []


def _a_filter_takes_any_text_as_it_is(ask: _TestedRetriever) -> None:
    for odd in ("acme\0", "acme\ud800", "\0acme", "ac\0me"):
        assert ask.ids("green tea", filters={"tenant": odd}) == [], repr(odd)
        assert "tea" in ask.ids("green tea", filters={"tenant": [odd, "acme"]}), repr(odd)


def _every_type_of_field_can_be_filtered_by(ask: _TestedRetriever) -> None:
    assert ask.ids("green tea", filters={"weight": 0.5}) == ["draft"]
    assert ask.ids("green tea", filters={"year": [2026]}) == ["tea"]


def _a_question_is_no_query_language(ask: _TestedRetriever) -> None:
    for query in HOSTILE:
        assert all(map(is_relevance, [result.score for result in ask(query)])), repr(query)


CLAUSES: Sequence[Callable[[_TestedRetriever], None]] = (
    _relevance_is_from_0_to_1_and_the_best_comes_first,
    _what_is_found_answers_the_question,
    _results_carry_text_id_and_fields,
    _no_more_than_top_k_are_found,
    _nothing_below_the_floor_is_found,
    _a_filter_is_a_wall,
    _a_filter_comes_before_top_k,
    _several_filters_must_all_let_it_through,
    _a_list_lets_any_of_its_values_through,
    _a_filter_takes_any_text_as_it_is,
    _every_type_of_field_can_be_filtered_by,
    _a_question_is_no_query_language,
)
"""Clauses in order."""
