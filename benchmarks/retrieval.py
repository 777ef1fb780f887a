"""Retrieval: how relevant what is found is, how fast it is found, and what assembling a context costs.

`python -m benchmarks --retrieval [--passages 100000]`. Everything is made here: the questions are those of
`benchmarks.questions`, the many passages are random words with clustered vectors. sqlite-vec and LanceDB are measured
where they are installed; they are never installed for it.
"""

import asyncio
import importlib.util
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
from pydantic_ai.embeddings import EmbeddingModel, EmbeddingResult
from pydantic_ai.usage import RequestUsage

from benchmarks.questions import OFF_TOPIC, PASSAGES, QUESTIONS
from flujo_actors import (
    AssembledContext,
    Collection,
    Flujo,
    InMemoryRetriever,
    SqliteRetriever,
    Step,
    from_literal,
    from_state,
)
from flujo_actors.testing import HashingEmbedder

DIMENSIONS, TOP, ASKED = 384, 5, 30
Search = Callable[[int], Sequence[str]]
"""The ids that the question of this number finds."""


class Pages(Collection, name="pages"):
    """What is searched."""


# --- relevance ----------------------------------------------------------------------------------------------


def relevance(folder: Path) -> list[str]:
    """Recall at 1 and at 5, and what questions about nothing find, by each way to find."""
    pairs = [(text, {"id": name}) for name, text in PASSAGES.items()]
    words = InMemoryRetriever(Pages).add_many(pairs)
    both = SqliteRetriever(folder / "both.db", Pages, HashingEmbedder(DIMENSIONS)).add_many(pairs)
    hashed = _by_vectors_alone(pairs)
    ways = {"words (BM25)": words.search, "hashing embedder": hashed, "hybrid, half and half": both.search}
    return [_recall(name, search) for name, search in ways.items()]


def _by_vectors_alone(pairs: list[tuple[str, dict[str, str]]]) -> Callable[..., list[Any]]:
    embedder = HashingEmbedder(DIMENSIONS)
    vectors = numpy.array(asyncio.run(embedder.embed_documents([text for text, _ in pairs])).embeddings)

    def search(query: str, *, top_k: int) -> list[Any]:
        cosines = vectors @ numpy.array(asyncio.run(embedder.embed_query(query)).embeddings[0])
        return [_Found(pairs[place][1]["id"], float(cosines[place])) for place in numpy.argsort(-cosines)[:top_k]]

    return search


class _Found:
    def __init__(self, source_id: str, score: float) -> None:
        self.source_id, self.score = source_id, score


def _recall(name: str, search: Callable[..., Any]) -> str:
    ranks = [[each.source_id for each in search(question, top_k=TOP)] for question in QUESTIONS]
    first = sum(found[:1] == [right] for found, right in zip(ranks, QUESTIONS.values(), strict=True))
    among = sum(right in found for found, right in zip(ranks, QUESTIONS.values(), strict=True))
    off = max((each.score for question in OFF_TOPIC for each in search(question, top_k=1)), default=0.0)
    count = len(QUESTIONS)
    return f"| {name} | {first / count:.2f} | {among / count:.2f} | {off:.2f} |"


# --- speed --------------------------------------------------------------------------------------------------


class Clustered(EmbeddingModel):
    """Vectors that were made before, by the number that a text begins with."""

    def __init__(self, vectors: Any) -> None:
        super().__init__()
        self._vectors = vectors

    @property
    def model_name(self) -> str:
        return "clustered"

    @property
    def system(self) -> str:
        return "none"

    async def embed(self, inputs: Any, *, input_type: Any, settings: Any = None) -> EmbeddingResult:
        texts, _ = self.prepare_embed(inputs, settings)
        made = [self._vectors[int(text.partition(" ")[0])] for text in texts]
        return EmbeddingResult(
            embeddings=made,
            inputs=texts,
            input_type=input_type,
            model_name=self.model_name,
            provider_name=self.system,
            usage=RequestUsage(),
        )


def clustered(count: int) -> Any:
    """Unit vectors around some centers; the last ones are the questions."""
    rng = numpy.random.default_rng(7)
    centers = rng.normal(size=(max(50, count // 200), DIMENSIONS))
    points = centers[rng.integers(len(centers), size=count + ASKED)]
    points = points + rng.normal(size=points.shape) * 0.7
    return (points / numpy.linalg.norm(points, axis=1, keepdims=True)).astype(numpy.float32)


def texts_of(count: int) -> list[str]:
    """Random passages of twenty words, each beginning with its number."""
    rng = random.Random(3)
    vocabulary = [f"w{int(rng.paretovariate(0.6)) % 20_000}" for _ in range(50_000)]
    return [f"{number} {' '.join(rng.choices(vocabulary, k=20))}" for number in range(count)]


def speed(count: int, folder: Path) -> list[str]:
    """Build time, latency, recall and memory of the ways to find the nearest of many."""
    vectors = clustered(count)
    points, questions = vectors[:count], vectors[count:]
    exact = [[str(place) for place in _nearest(points, question)] for question in questions]
    brute: Search = lambda number: [str(place) for place in _nearest(points, questions[number])]  # noqa: E731
    rows = [_row("numpy, in memory", 0.0, 0.0, brute, exact)]
    ways = {"SqliteRetriever, by meaning and words": _ours, "sqlite-vec": _sqlite_vec, "LanceDB": _lancedb}
    for name, way in ways.items():
        before, begun = _memory_mb(), time.perf_counter()
        search = way(vectors, count, folder)
        if search is not None:
            search(0)
            rows.append(_row(name, time.perf_counter() - begun, _memory_mb() - before, search, exact))
    return rows


def _nearest(points: Any, question: Any) -> Any:
    scores = points @ question
    best = numpy.argpartition(-scores, TOP)[:TOP]
    return best[numpy.argsort(-scores[best])]


def _row(name: str, built_s: float, memory_mb: float, search: Search, exact: list[list[str]]) -> str:
    took, right = [], []
    for number, wanted in enumerate(exact):
        begun = time.perf_counter()
        found = search(number)
        took.append(time.perf_counter() - begun)
        right.append(len(set(found) & set(wanted)) / TOP)
    latency = statistics.median(took) * 1000
    return (
        f"| {name} | {built_s:.1f} s | {latency:.2f} ms | {statistics.mean(right):.3f} | {max(0.0, memory_mb):.0f} MB |"
    )


def _ours(vectors: Any, count: int, folder: Path) -> Search:
    pages = SqliteRetriever(folder / f"{count}.db", Pages, Clustered(vectors))
    pages.add_many([(text, {"id": str(number)}) for number, text in enumerate(texts_of(count))])
    # The question is a number that no passage holds as a word of its own, so that only meaning ranks.
    return lambda number: [each.source_id or "" for each in pages.search(f"{count + number} ?", top_k=TOP)]


def _sqlite_vec(vectors: Any, count: int, folder: Path) -> Search | None:
    if not importlib.util.find_spec("sqlite_vec") or not importlib.util.find_spec("apsw"):
        return None
    import apsw
    import sqlite_vec

    db = apsw.Connection(str(folder / f"{count}v.db"))
    db.enable_load_extension(True)
    db.load_extension(sqlite_vec.loadable_path())
    db.execute(f"CREATE VIRTUAL TABLE piece USING vec0(vector float[{DIMENSIONS}] distance_metric=cosine)")
    with db:
        rows = ((number, vectors[number].tobytes()) for number in range(count))
        db.executemany("INSERT INTO piece(rowid, vector) VALUES (?, ?)", rows)
    sql = f"SELECT rowid FROM piece WHERE vector MATCH ? AND k = {TOP} ORDER BY distance"
    return lambda number: [str(row[0]) for row in db.execute(sql, (vectors[count + number].tobytes(),))]


def _lancedb(vectors: Any, count: int, folder: Path) -> Search | None:
    if not importlib.util.find_spec("lancedb"):
        return None
    import lancedb

    rows = [{"id": str(number), "vector": vectors[number]} for number in range(count)]
    piece = lancedb.connect(folder / "lance").create_table("piece", rows)
    return lambda number: [
        row["id"] for row in piece.search(vectors[count + number]).distance_type("cosine").limit(TOP).to_list()
    ]


def _memory_mb() -> float:
    """The memory that this process has now; the most it has had, where nobody says."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


# --- assembling ---------------------------------------------------------------------------------------------


def assembling(rounds: int) -> float:
    """What three sources without a search add to a step, in microseconds."""

    async def bare(data: str) -> str:
        return data

    async def shown(data: str, *, assembled: AssembledContext) -> str:
        return data

    sources = [from_literal("Be brief."), from_state("summary"), from_state(lambda data, context: context.summary)]
    state = {"summary": "a short text"}
    plain = Flujo(Step("bare", bare, max_retries=1), initial_context_data=state)
    with_sources = Flujo(Step("shown", shown, max_retries=1, context_sources=sources), initial_context_data=state)
    added = []
    for _ in range(5):
        times = [_per_run(flujo, rounds) for flujo in (plain, with_sources)]
        added.append(times[1] - times[0])
    return statistics.median(added) * 1e6


def _per_run(flujo: Flujo, rounds: int) -> float:
    import trio

    async def play() -> float:
        begun = time.process_time()
        for _ in range(rounds):
            await flujo.run_async("x")
        return (time.process_time() - begun) / rounds

    return trio.run(play)


# --- the page -----------------------------------------------------------------------------------------------


def report(passages: int, *, share: float = 1.0) -> Iterator[str]:
    """The tables, line by line."""
    with tempfile.TemporaryDirectory() as folder:
        yield f"{len(QUESTIONS)} questions on {len(PASSAGES)} passages:"
        yield "\n| found by | recall@1 | recall@5 | off topic at most |\n|---|---|---|---|"
        yield from relevance(Path(folder))
        count = max(100, int(passages * share))
        yield f"\nTop {TOP} of {count:,} passages, {DIMENSIONS} dimensions, median of {ASKED}:"
        yield "\n| | build | query | recall@5 | memory |\n|---|---|---|---|---|"
        yield from speed(count, Path(folder))
        added = assembling(max(5, int(200 * share)))
        yield f"\nAssembling three sources without a search adds {added:.0f} µs to a step."
