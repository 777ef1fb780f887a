"""Retrievers that come with the library: the port, how they are filled, and what each of them has of its own."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from pydantic_ai.embeddings import TestEmbeddingModel

from flujo_actors import (
    Collection,
    DeclarationError,
    InMemoryRetriever,
    PostgresRetriever,
    RetrievalError,
    RetrievalResult,
    Retrieved,
    SqliteRetriever,
)
from flujo_actors.testing import Delayed, HashingEmbedder, ScriptedRetriever, retriever_conformance
from kit.other_processes import in_another_process


class Papers(Collection, name="papers"):
    tenant: str
    year: int


@pytest.fixture
def postgres_url(postgres_server: Any) -> str:
    """An empty schema of a database that has pgvector."""
    with psycopg.connect(postgres_server.url, autocommit=True) as db:
        db.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
    url: str = postgres_server.fresh_url()
    return url


Make = Callable[[type[Collection]], Any]


@pytest.fixture(params=["memory", "sqlite", "sqlite with vectors", "postgres", "postgres with vectors"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes an empty retriever of each kind, in a new place every time."""
    kind, count = request.param, iter(range(100))
    embedder = HashingEmbedder(256) if "vectors" in kind else None
    if kind == "memory":
        return InMemoryRetriever
    if kind.startswith("sqlite"):
        return lambda collection: SqliteRetriever(tmp_path / f"{next(count)}.db", collection, embedder)
    server = request.getfixturevalue("postgres_server")
    request.getfixturevalue("postgres_url")
    return lambda collection: PostgresRetriever(server.fresh_url(), collection, embedder)


def test_a_retriever_keeps_the_port(make: Make) -> None:
    """All clauses of the conformance suite."""
    assert len(retriever_conformance(lambda collection, passages: make(collection).add_many(passages))) == 12


def test_a_passage_is_added_replaced_and_removed(make: Make) -> None:
    """By its id; `add` returns the retriever, to go on with."""
    papers = make(Papers)
    assert papers.add("green tea", id="p1", tenant="a", year=1).add("black tea", id="p2", tenant="a", year=2) is papers
    assert {each.source_id for each in papers.search("tea")} == {"p1", "p2"}
    papers.add("espresso", id="p1", tenant="b", year=3)
    assert [each.source_id for each in papers.search("tea", filters={"tenant": "a"})] == ["p2"]
    found = papers.search("espresso", filters={"tenant": "b", "year": 3})[0]
    assert (found.content, found.source_id, dict(found.metadata)) == ("espresso", "p1", {"tenant": "b", "year": 3})
    assert len(papers) == 2
    assert papers.remove("p1")
    assert not papers.remove("p1")
    assert len(papers) == 1
    assert [each.source_id for each in papers.search("espresso tea")] == ["p2"]


@pytest.mark.parametrize("odd", ["p1\0", "p1\ud800"])
def test_an_id_that_no_database_can_hold_is_not_found(make: Make, odd: str) -> None:
    """Removing it removes nothing, and raises nothing."""
    retriever = make(Papers)
    retriever.add("green tea", id="p1")
    assert not retriever.remove(odd)
    assert len(retriever.search("green tea")) == 1


def test_a_passage_without_an_id_is_known_by_its_text(make: Make) -> None:
    """Adding it twice adds it once."""
    papers = make(Papers)
    papers.add("green tea", tenant="a", year=1).add("green tea", tenant="a", year=1)
    assert len(papers) == 1
    assert papers.search("tea")[0].source_id


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tenant": "a", "yaer": 1}, "'yaer': did you mean 'year'?"),
        ({"tenant": "a", "year": None}, "field 'year' must be int, not None"),
        ({"tenant": "a", "year": "1"}, "field 'year' must be int, not '1'"),
        ({"tenant": "a", "year": True}, "field 'year' must be int, not True"),
    ],
)
def test_a_field_that_the_collection_has_not_is_refused(make: Make, fields: dict[str, Any], said: str) -> None:
    """With the nearest name; nothing is added, also of many."""
    papers = make(Papers)
    with pytest.raises(DeclarationError, match=said.replace("?", r"\?")):
        papers.add("text", **fields)
    with pytest.raises(DeclarationError):
        papers.add_many([("good", {"tenant": "a", "year": 1}), ("bad", fields)])
    assert len(papers) == 0


def test_a_field_that_is_left_away_is_let_through_by_no_filter(make: Make) -> None:
    """A passage that belongs to nobody is found by those who do not ask for whom."""
    papers = make(Papers).add("green tea", id="p1").add("black tea", id="p2", tenant="a", year=1)
    assert {each.source_id for each in papers.search("tea")} == {"p1", "p2"}
    assert [each.source_id for each in papers.search("tea", filters={"tenant": ["a", ""]})] == ["p2"]
    found = {each.source_id: dict(each.metadata) for each in papers.search("tea")}
    assert found == {"p1": {}, "p2": {"tenant": "a", "year": 1}}


@pytest.mark.parametrize("text", ["", " ", None, b"x"])
def test_a_passage_without_a_text_is_refused(text: Any) -> None:
    """There is nothing to find."""
    with pytest.raises(DeclarationError, match="must have a text"):
        InMemoryRetriever(Papers).add(text, tenant="a", year=1)


@pytest.mark.parametrize("items", [["text"], [("text",)], [("text", "id")]])
def test_many_passages_are_pairs(items: Any) -> None:
    """Of a text and its fields."""
    with pytest.raises(DeclarationError, match="add_many takes pairs"):
        InMemoryRetriever(Papers).add_many(items)


def test_odd_texts_are_kept_as_they_are(make: Make) -> None:
    """Quotes, braces, other alphabets, and what looks like a statement."""
    papers = make(Papers)
    texts = ["Größe 🫖 tea", "'; DROP TABLE papers_passage; -- tea", "{tea} %s %(x)s \\", 'a "quoted" tea']
    papers.add_many([(text, {"id": f"t{n}", "tenant": "a'b", "year": n}) for n, text in enumerate(texts)])
    found = papers.search("tea", filters={"tenant": "a'b"})
    assert {each.content for each in found} == set(texts)


def test_a_search_is_safe_from_threads(make: Make) -> None:
    """Several at a time, while somebody adds."""
    papers = make(Papers)
    papers.add("green tea", id="p0", tenant="a", year=1)
    failed: list[BaseException] = []

    def search() -> None:
        try:
            for _ in range(5):
                assert papers.search("tea")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 6):
        papers.add(f"tea number {number}", id=f"p{number}", tenant="a", year=1)
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(papers) == 6


def test_words_without_vectors_score_the_same_in_memory_and_in_a_file(tmp_path: Path) -> None:
    """One relevance, wherever passages are kept."""
    texts = ["Green tea wants 80 degrees.", "Error E-1042: bleed the pump.", "Tea and coffee, tea above all."]
    passages = [(text, {"id": str(n), "tenant": "a", "year": 1}) for n, text in enumerate(texts)]
    memory = InMemoryRetriever(Papers).add_many(passages)
    file = SqliteRetriever(tmp_path / "p.db", Papers).add_many(passages)
    for query in ("tea", "green teas", "how many degrees for tea?", "pump E-1042", "nothing of it"):
        assert memory.search(query) == list(file.search(query))


# --- SQLite -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["E-1042", "error E-1042!", "what is E-1042?", '"E-1042"', "E-1042 NEAR("])
def test_a_code_is_found_first_in_sqlite(tmp_path: Path, query: str) -> None:
    """A question is not a query of FTS5."""
    papers = SqliteRetriever(tmp_path / "p.db", Papers)
    papers.add("Error code E-1042 means that the pump lost prime.", id="pump", tenant="a", year=1)
    papers.add("Error code E-2000 means that the door is open.", id="door", tenant="a", year=1)
    papers.add("What is tea?", id="tea", tenant="a", year=1)
    assert papers.search(query, top_k=5, min_relevance=0.0, filters={})[0].source_id == "pump"


@pytest.mark.parametrize(
    "query", ['"', "*", "NEAR(", "", "()", "a AND", "^x", "col:x", "-", "x" * 100_000, "w " * 5000]
)
def test_no_question_is_an_error_in_sqlite(tmp_path: Path, query: str) -> None:
    """However odd, long or empty."""
    papers = SqliteRetriever(tmp_path / "p.db", Papers).add("tea", id="t", tenant="a", year=1)
    assert list(papers.search(query, top_k=5, min_relevance=0.0, filters={})) == []


def test_another_process_sees_what_was_added(tmp_path: Path) -> None:
    """It is durable when the call returns, and a fork opens the file anew."""
    papers = SqliteRetriever(tmp_path / "p.db", Papers, HashingEmbedder(64)).add("tea", id="t", tenant="a", year=1)

    def add() -> None:
        papers.add("coffee", id="c", tenant="a", year=1)

    assert in_another_process(add) == 0
    assert papers.search("coffee")[0].source_id == "c"
    assert SqliteRetriever(tmp_path / "p.db", Papers).search("tea")[0].source_id == "t"


def test_no_connection_is_left_to_the_collector(tmp_path: Path) -> None:
    """Closed by `close`, again after each opening, and by an opening that is refused."""

    class Other(Collection, name="papers"):
        tenant: str

    def opened() -> int:
        links = [os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if _is_open(each)]
        return sum(link == str(tmp_path / "p.db") for link in links)

    papers, other = SqliteRetriever(tmp_path / "p.db", Papers), SqliteRetriever(tmp_path / "p.db", Other)
    for number in range(3):
        papers.add("tea", id=f"t{number}", tenant="a", year=1)
        assert opened() == 1
        papers.close()
        assert opened() == 0
    with pytest.raises(RetrievalError):
        other.search("tea")
    assert opened() == 0
    assert in_another_process(lambda: papers.close() or len(papers)) == 0


def _is_open(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


def test_two_collections_share_a_file(tmp_path: Path) -> None:
    """Each has its own tables."""

    class Notes(Collection, name="notes"):
        pass

    papers = SqliteRetriever(tmp_path / "p.db", Papers).add("tea", id="t", tenant="a", year=1)
    notes = SqliteRetriever(tmp_path / "p.db", Notes).add("a note on tea", id="n")
    assert [each.source_id for each in papers.search("tea")] == ["t"]
    assert [each.source_id for each in notes.search("tea")] == ["n"]


def test_a_file_with_other_fields_is_refused(tmp_path: Path) -> None:
    """It says what is stored and what is asked for."""

    class Other(Collection, name="papers"):
        tenant: str

    SqliteRetriever(tmp_path / "p.db", Papers).add("tea", tenant="a", year=1)
    with pytest.raises(RetrievalError, match=r"with the fields \['tenant', 'year'\], and now it has \['tenant'\]"):
        SqliteRetriever(tmp_path / "p.db", Other).search("tea")


def test_vectors_of_another_length_are_refused(tmp_path: Path) -> None:
    """They were made by another embedder."""
    SqliteRetriever(tmp_path / "p.db", Papers, HashingEmbedder(64)).add("tea", tenant="a", year=1)
    with pytest.raises(RetrievalError, match="embedded with 64 dimensions, and the query with 32"):
        SqliteRetriever(tmp_path / "p.db", Papers, HashingEmbedder(32)).search("tea")


def test_meaning_and_words_are_weighted_half_and_half(tmp_path: Path) -> None:
    """All vectors of the test model are alike: what is left of the relevance are the words."""
    meant = SqliteRetriever(tmp_path / "m.db", Papers, TestEmbeddingModel())
    worded = SqliteRetriever(tmp_path / "w.db", Papers)
    for papers in (meant, worded):
        papers.add("green tea", id="t", tenant="a", year=1).add("espresso", id="e", tenant="a", year=1)
    scores = {each.source_id: each.score for each in meant.search("green tea")}
    words = worded.search("green tea")[0].score
    assert scores["t"] == pytest.approx((1 + words) / 2)
    assert scores["e"] == pytest.approx(0.5)


def test_a_vector_of_zeros_has_no_relevance(tmp_path: Path) -> None:
    """It is like nothing, and no NaN."""
    papers = SqliteRetriever(tmp_path / "p.db", Papers, HashingEmbedder(16)).add("!!!", id="z", tenant="a", year=1)
    assert list(papers.search("tea")) == []
    assert list(papers.search("???")) == []


def test_an_embedder_in_sqlite_needs_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install; without one nothing is needed."""
    monkeypatch.setitem(__import__("sys").modules, "numpy", None)
    with pytest.raises(DeclarationError, match=r"flujo-actors\[retrieval\]"):
        SqliteRetriever(tmp_path / "p.db", Papers, HashingEmbedder(16))
    assert SqliteRetriever(tmp_path / "q.db", Papers).add("tea", id="t", tenant="a", year=1).search("tea")


def test_what_embedding_a_query_used_is_told(tmp_path: Path) -> None:
    """With the passages, for whoever counts."""
    papers = SqliteRetriever(tmp_path / "p.db", Papers, HashingEmbedder(16)).add("tea", id="t", tenant="a", year=1)
    found = papers.search("three word query")
    assert isinstance(found, Retrieved)
    assert (found.usage.input_tokens, found.usage.requests, found.usage.cost_usd) == (3, 1, 0.0)
    assert len(found) == len(list(found))


def test_the_columns_of_fields_are_indexed(tmp_path: Path) -> None:
    """A filter is answered by an index."""
    SqliteRetriever(tmp_path / "p.db", Papers).add("tea", tenant="a", year=1)
    with sqlite3.connect(tmp_path / "p.db") as db:
        names = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert {"papers_by_tenant", "papers_by_year"} <= names


@pytest.mark.parametrize("embedder", [5, object()])
def test_what_is_no_embedder_is_refused(tmp_path: Path, embedder: Any) -> None:
    """pydantic-ai's, or the name of a model."""
    with pytest.raises(DeclarationError, match="embedder must be a pydantic-ai Embedder"):
        SqliteRetriever(tmp_path / "p.db", Papers, embedder)


# --- Postgres -----------------------------------------------------------------------------------------------


def test_a_search_path_of_another_schema_does_not_matter(postgres_url: str) -> None:
    """Type and operator of pgvector are written with their schema."""
    papers = PostgresRetriever(postgres_url, Papers, HashingEmbedder(64))
    papers.add("green tea", id="t", tenant="a", year=1).add("!!!", id="zeros", tenant="a", year=1)
    assert [each.source_id for each in papers.search("green tea")] == ["t"]


def test_an_extension_is_never_installed_from_here(postgres_server: Any) -> None:
    """It takes a superuser; the error says what to do."""
    with psycopg.connect(postgres_server.url, autocommit=True) as db:
        db.execute("DROP DATABASE IF EXISTS without_vectors")
        db.execute("CREATE DATABASE without_vectors")
    url = postgres_server.url.replace("/postgres?", "/without_vectors?")
    with pytest.raises(RetrievalError, match="let a superuser run CREATE EXTENSION vector"):
        PostgresRetriever(url, Papers, HashingEmbedder(16)).add("tea", tenant="a", year=1)
    assert PostgresRetriever(url, Papers).add("tea", id="t", tenant="a", year=1).search("tea")[0].source_id == "t"


def test_any_word_of_a_question_will_do(postgres_url: str) -> None:
    """Not all of them are wanted."""
    papers = PostgresRetriever(postgres_url, Papers)
    papers.add("Error code E-1042: bleed the intake line.", id="pump", tenant="a", year=1)
    assert papers.search("pump shows error E-1042, what to do")[0].source_id == "pump"


def test_a_search_before_anything_was_added_finds_nothing(postgres_url: str) -> None:
    """There is no table yet."""
    assert list(PostgresRetriever(postgres_url, Papers).search("tea")) == []
    assert not PostgresRetriever(postgres_url, Papers).remove("t")


def test_a_connection_that_broke_is_replaced(postgres_server: Any, postgres_url: str) -> None:
    """The server may have ended since the last search."""
    papers = PostgresRetriever(postgres_url, Papers).add("tea", id="t", tenant="a", year=1)
    with psycopg.connect(postgres_server.url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    assert papers.search("tea")[0].source_id == "t"


def test_other_fields_and_missing_vectors_are_refused(postgres_url: str) -> None:
    """What is stored must be what is asked for."""

    class Other(Collection, name="papers"):
        tenant: str

    PostgresRetriever(postgres_url, Papers).add("tea", tenant="a", year=1)
    with pytest.raises(RetrievalError, match="stored with other fields"):
        PostgresRetriever(postgres_url, Other).search("tea")
    with pytest.raises(RetrievalError, match="added without an embedder"):
        PostgresRetriever(postgres_url, Papers, HashingEmbedder(16)).search("tea")


def test_a_filter_finds_exactly_what_it_lets_through_also_with_an_index(postgres_url: str, monkeypatch: Any) -> None:
    """One in a hundred of many passages, with the graph of vectors in place."""
    import flujo_actors._agents.retrieval.postgres_tables as tables

    monkeypatch.setattr(tables, "MANY", 100)
    papers = PostgresRetriever(postgres_url, Papers, HashingEmbedder(32))
    papers.add_many([(f"tea number {n}", {"id": str(n), "tenant": f"t{n % 100}", "year": n}) for n in range(500)])
    found = papers.search("tea number", top_k=5, filters={"tenant": "t3"})
    assert {each.source_id for each in found} == {"3", "103", "203", "303", "403"}


def test_a_password_is_told_nowhere() -> None:
    """Not by a repr, and not by what is refused."""
    url = "postgresql://me:hunter2@localhost/x"
    assert "hunter2" not in repr(PostgresRetriever(url, Papers))
    with pytest.raises(DeclarationError) as refused:
        PostgresRetriever("mysql://me:hunter2@localhost/x", Papers)
    assert "hunter2" not in str(refused.value)


# --- for tests ----------------------------------------------------------------------------------------------


def played(retriever: ScriptedRetriever, query: str = "q", **options: Any) -> Any:
    async def search() -> Any:
        return await retriever.search(query, **{"top_k": 5, "min_relevance": 0.0, "filters": {}, **options})

    return anyio.run(search)


def test_a_scripted_retriever_finds_its_pairs_above_the_floor() -> None:
    """The best first, `top_k` of them, and keeps what it was asked."""
    retriever = ScriptedRetriever(("low", 0.2), ("high", 0.9), ("middle", 0.5))
    assert [each.content for each in played(retriever, min_relevance=0.3)] == ["high", "middle"]
    assert [each.content for each in played(retriever, top_k=1)] == ["high"]
    assert [(each.query, each.top_k, each.min_relevance) for each in retriever.searches] == [
        ("q", 5, 0.3),
        ("q", 1, 0.0),
    ]


def test_a_scripted_retriever_plays_other_replies_first() -> None:
    """Errors, delays, lists and functions, one for each search."""
    retriever = ScriptedRetriever(
        OSError("down"), Delayed(0.001, [("late", 0.5)]), lambda query: [(query, 1.0)], ("x", 0.1)
    )
    with pytest.raises(OSError, match="down"):
        played(retriever)
    assert [[each.content for each in played(retriever)] for _ in range(3)] == [["late"], ["q"], ["x"]]


def test_a_hashing_embedder_ranks_by_words() -> None:
    """Deterministic, of length 1, and with a count of tokens."""
    embedder = HashingEmbedder(64)
    result = anyio.run(embedder.embed_documents, ["green tea", "green tea leaves", "espresso", ""])
    tea, leaves, espresso, nothing = result.embeddings
    cosine = lambda one, other: sum(a * b for a, b in zip(one, other, strict=True))  # noqa: E731
    assert cosine(tea, tea) == pytest.approx(1)
    assert cosine(tea, leaves) > cosine(tea, espresso)
    assert set(nothing) == {0.0}
    assert result.usage.input_tokens == 6
    assert anyio.run(HashingEmbedder(64).embed_query, "green tea").embeddings[0] == tea


def test_the_suite_names_the_clause_that_a_retriever_breaks() -> None:
    """A filter that is ignored, for example."""

    class Careless(InMemoryRetriever):
        def search(self, query: str, **options: Any) -> list[RetrievalResult]:
            return super().search(query, **{**options, "filters": {}})

    with pytest.raises(AssertionError, match="a filter is a wall"):
        retriever_conformance(lambda collection, passages: Careless(collection).add_many(passages))
