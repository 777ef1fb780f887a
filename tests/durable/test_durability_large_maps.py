"""Maps and loops of any length: results by reference, and items from a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from flujo_actors import Flujo, MemoryStore, Pipeline, RunClient, Step, StepResult, Success, UsageLimits
from flujo_actors._core.outcomes import StoredResults
from flujo_actors._durable import long_runs
from flujo_actors._runtime.tree import composites
from flujo_actors.errors import FingerprintMismatch
from kit.durable_places import Place, SqlitePlace


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> int:
    """Results in memory: five of each map and loop."""
    monkeypatch.setattr(composites, "HELD", 5)
    return 5


async def add(number: int) -> Success:
    if number == 77:
        raise ValueError("no 77")
    return Success(step_result=StepResult(name="", output=number + 1, token_counts=2))


def mapped(name: str = "all", **options: Any) -> Step:
    return Step.map_over(name, Step("add", add) >> Step("same", lambda n: n), max_concurrency=4, **options)


def looped(limit: int) -> Step:
    return Step.loop_until("again", Step("add", add), lambda n, _: n >= limit, max_loops=99)


@pytest.fixture
def long(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of any length are read in parts, in pages of seven records."""
    monkeypatch.setattr(long_runs, "LONG_RUN", 0)
    monkeypatch.setattr(long_runs, "_PAGE", 7)


def asked_at(number: int, each: Step | Pipeline) -> Step:
    """Return a map that asks a person at one item."""
    ask = Step.human_in_the_loop("ask", "ok?")
    return Step.map_over(
        "all", Step.branch_on("which", lambda n, _: n == number, {True: ask}, default=each), max_concurrency=4
    )


BODIES = {
    "a step": lambda: Step("same", lambda n: n),
    "a step with usage": lambda: Step("add", add),
    "a pipeline": lambda: Step("add", add) >> Step("text", lambda n: f'"{n}", "latency_s":1'),
    "floats and texts": lambda: Step("mixed", lambda n: [0.1 * n, None, {"n": "\x1a\udc00"}]),
    "a map": lambda: Step("list", lambda n: [n, n + 1]) >> Step.map_over("inner", Step("add", add)),
    "a loop": lambda: Step.loop_until("twice", Step("add", add), lambda n, _: n % 3 == 0, max_loops=9),
}


@pytest.mark.parametrize("body", BODIES)
def test_a_long_run_is_resumed_as_a_short_one(
    place: Place, body: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output, usage and nested results are those of a resume that reads every record."""
    results = []
    for length in (0, 10**9):
        monkeypatch.setattr(long_runs, "LONG_RUN", length)
        flujo = Flujo(asked_at(11, BODIES[body]()) >> Step("end", lambda n: n), store=place.open())
        paused = flujo.run(list(range(20)), run_id=f"run {length}")
        results.append(flujo.resume(paused.state_token, 70))
    short, whole = results
    assert short.status == "completed"
    assert (short.output, short.total_tokens) == (whole.output, whole.total_tokens)
    assert outputs(short.step_history) == outputs(whole.step_history)


def outputs(results: Any) -> list[Any]:
    return [(each.name, each.output, outputs(each.step_history)) for each in results]


def test_a_resume_of_a_long_run_repeats_no_item(place: Place, long: None) -> None:
    """Settled items are neither executed nor loaded; the others are executed once."""
    done: list[int] = []

    async def work(number: int) -> int:
        done.append(number)
        return number

    flujo = Flujo(asked_at(25, Step("work", work)), store=place.open())
    paused = flujo.run(list(range(60)), run_id="run")
    result = flujo.resume(paused.state_token, 70)
    assert result.output == [70 if number == 25 else number for number in range(60)]
    assert sorted(done) == [number for number in range(60) if number != 25]
    assert len(result.step_history[0].step_history) == 60


def test_nothing_inside_a_settled_map_is_read_by_a_resume(place: Place, long: None, monkeypatch: Any) -> None:
    """The run after it continues with its output, and its results are read when they are used."""
    store = place.open()
    flujo = Flujo(mapped() >> Step.human_in_the_loop("ask", "ok?"), store=store)
    paused = flujo.run(list(range(20)), run_id="run")
    monkeypatch.setattr(type(store), "read_inside", None)
    result = flujo.resume(paused.state_token, "yes")
    history = result.step_history[0].step_history
    assert (result.status, isinstance(history, StoredResults), len(history)) == ("completed", True, 20)
    assert [each.output for each in history] == list(range(1, 21))


def test_items_with_contexts_and_compensations_are_kept_by_a_long_run(place: Place, long: None) -> None:
    """Their changes are merged, and a later failure undoes every item once."""
    undone: list[str] = []

    async def note(number: int) -> dict[str, int]:
        return {f"seen{number}": number}

    async def undo(undo: Any) -> None:
        undone.extend(undo.output)

    each = Step("note", note, updates_context=True) >> Step("pay", lambda seen: seen, compensate=undo)
    pipeline = asked_at(3, each) >> Step("fail", fail)
    flujo = Flujo(pipeline, store=place.open())
    paused = flujo.run(list(range(8)), run_id="run")
    result = flujo.resume(paused.state_token, 3)
    assert result.status == "failed"
    assert sorted(undone) == [f"seen{number}" for number in (0, 1, 2, 4, 5, 6, 7)]
    assert all(getattr(result.final_context, name) is not None for name in undone)


async def fail(_: object) -> None:
    raise ValueError("no")


def test_usage_of_left_out_items_counts_against_limits(place: Place, long: None) -> None:
    """A resume continues with the tokens that were spent before it."""
    limits = UsageLimits(total_tokens_limit=50)
    flujo = Flujo(asked_at(10, Step("add", add)), store=place.open(), usage_limits=limits)
    paused = flujo.run(list(range(20)), run_id="run")
    assert paused.status == "paused"
    result = flujo.resume(paused.state_token, 1)
    assert result.total_tokens == 38


def test_a_long_run_with_another_pipeline_is_refused(place: Place, long: None) -> None:
    """The comparison knows the items that are done."""
    store = place.open()
    paused = Flujo(asked_at(5, Step("work", lambda n: n)), store=store).run(list(range(9)), run_id="run")
    other = Flujo(asked_at(5, Step("work", lambda n: n) >> Step("more", lambda n: n)), store=store)
    with pytest.raises(FingerprintMismatch):
        other.resume(paused.state_token, 1)
    assert RunClient(store).get("run").status == "paused"


def test_a_retry_of_a_long_run_repeats_the_failed_item_alone(place: Place, long: None) -> None:
    """A run with a retry is read as a whole."""
    done: list[int] = []

    async def work(number: int) -> int:
        done.append(number)
        if number == 7 and done.count(7) == 1:
            raise ValueError("no")
        return number

    flujo = Flujo(Step.map_over("all", Step("work", work), max_concurrency=1), store=place.open())
    assert flujo.run(list(range(12)), run_id="run").status == "failed"
    assert flujo.retry("run").output == list(range(12))
    assert sorted(done) == sorted([*range(12), 7])


def test_results_of_a_large_map_are_read_from_the_store(place: Place, held: int) -> None:
    """Output, totals and order are those of all items; the results are read when they are used."""
    store = place.open()
    result = Flujo(mapped(), store=store).run(list(range(40)), run_id="run")
    plain = Flujo(mapped()).run(list(range(40)))
    history = result.step_history[0].step_history
    assert isinstance(history, StoredResults)
    assert (result.output, result.total_tokens, len(history)) == (plain.output, 80, 40)
    assert [each.output for each in history] == list(range(1, 41))
    assert [len(each.step_history) for each in history] == [2] * 40
    assert history[7].output == 8
    assert list(RunClient(store).state("run").results[0].step_history) == list(history)


def test_results_of_a_long_loop_are_read_from_the_store(place: Place, held: int) -> None:
    """The same of turns."""
    store = place.open()
    result = Flujo(looped(30), store=store).run(0, run_id="run")
    history = result.step_history[0].step_history
    assert isinstance(history, StoredResults)
    assert ([each.output for each in history], result.total_tokens) == (list(range(1, 31)), 60)
    assert RunClient(store).state("run").usage.tokens == 60


def test_a_large_map_is_resumed_after_a_pause(sqlite_place: SqlitePlace, held: int) -> None:
    """Its record refers to its items, and a later session reads them."""
    pipeline = mapped() >> Step.human_in_the_loop("ask", "ok?") >> mapped("again")
    flujo = Flujo(pipeline, store=sqlite_place.open())
    paused = flujo.run(list(range(20)), run_id="run")
    result = flujo.resume(paused.state_token, list(range(20)))
    assert (result.status, result.output) == ("completed", list(range(1, 21)))
    assert [len(each.step_history) for each in result.step_history] == [20, 0, 20]


def test_a_failed_item_ends_a_large_map(sqlite_place: SqlitePlace, held: int) -> None:
    """The items before it count, and a retry of the map counts them again."""
    flujo = Flujo(mapped(max_retries=1), store=sqlite_place.open())
    result = flujo.run(list(range(60, 80)), run_id="run")
    assert result.status == "failed"
    history = result.step_history[0].step_history
    assert len(history) >= 2 * 15
    assert sum(each.token_counts for each in history) == result.total_tokens


def test_without_a_store_all_results_are_kept(held: int) -> None:
    """There is nothing to read them from."""
    for flujo in (Flujo(mapped()), Flujo(mapped(), store=MemoryStore(), settings={"durability": {"cold": True}})):
        history = flujo.run(list(range(20))).step_history[0].step_history
        assert isinstance(history, tuple)


class Source:
    """An endless stream of numbers that counts its readers."""

    def __init__(self, end: int | None = None) -> None:
        self.read, self.closed, self.end = 0, False, end

    async def numbers(self) -> AsyncIterator[int]:
        try:
            while self.end is None or self.read < self.end:
                self.read += 1
                yield self.read - 1
        finally:
            self.closed = True


def test_a_map_over_a_stream_reads_ahead_as_far_as_there_is_room() -> None:
    """Back-pressure: an item is read when another has ended."""
    source, most = Source(500), [0]

    async def work(number: int) -> int:
        most[0] = max(most[0], source.read - number)
        await trio.sleep(0)
        return number * 2

    step = Step.map_over("all", Step("work", work), items=lambda *_: source.numbers(), max_concurrency=3)
    result = trio.run(lambda: Flujo(step).run_async(None))
    assert result.output == [number * 2 for number in range(500)]
    assert most[0] <= 4
    assert source.closed


def test_a_stream_may_be_the_input_on_asyncio() -> None:
    """Its code runs on the loop of its caller."""
    source = Source(10)

    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def main() -> Any:
        return await Flujo(Step.map_over("all", Step("work", work))).run_async(source.numbers())

    assert asyncio.run(main()).output == list(range(10))
    assert source.closed


def test_a_failed_item_stops_an_endless_stream() -> None:
    """No further item is read, and the iterator is closed."""
    source = Source()
    step = Step.map_over("all", Step("add", add), items=lambda *_: source.numbers(), max_concurrency=5)
    result = Flujo(step).run(None)
    assert (result.status, source.closed) == ("failed", True)
    assert 78 <= source.read <= 84


def test_a_stream_that_raises_fails_the_map() -> None:
    """The error names the items; those before it were executed."""

    async def broken(*_: object) -> AsyncIterator[int]:
        yield 1
        yield 2
        raise OSError("connection lost")

    done: list[int] = []
    step = Step.map_over("all", Step("work", done.append), items=broken)
    result = Flujo(Pipeline((step,))).run(None)
    assert (result.status, sorted(done)) == ("failed", [1, 2])
    assert "The items of 'all'" in (result.feedback or "")
    assert isinstance(result.error, OSError)


def test_a_stored_map_over_a_stream_does_not_repeat_items(place: Place) -> None:
    """The stream is read again after a pause; finished items are recalled by their number."""
    done: list[int] = []

    async def work(number: int) -> int:
        done.append(number)
        return number

    each = Step("work", work) >> Step.branch_on(
        "which", lambda n, _: n == 7, {True: Step.human_in_the_loop("ask", "ok?")}, default=Step("same", lambda n: n)
    )
    step = Step.map_over("all", each, items=lambda *_: Source(12).numbers(), max_concurrency=2)
    flujo = Flujo(step, store=place.open())
    paused = flujo.run(None)
    assert paused.status == "paused"
    result = flujo.resume(paused.state_token, 70)
    assert result.output == [0, 1, 2, 3, 4, 5, 6, 70, 8, 9, 10, 11]
    assert sorted(done) == list(range(12))
