"""Long streams, wide stages and deep pipelines: what is promised for a few holds for many."""

import gc
import socket
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from fault_watch import Main, both_hosts, run_to_result, watched

from flujo_actors import Chunk, Context, Flujo, Paused, Pipeline, Step, Success
from flujo_actors._api.handle import OUTCOME_BUFFER

pytestmark = pytest.mark.slow

Host = Callable[[Main], Any]

# --- streams ------------------------------------------------------------------------------------------------

CHUNKS = 100_000


async def _many(x: Any) -> AsyncIterator[str]:
    for n in range(CHUNKS):
        yield f"{n % 10}"


@both_hosts
def test_a_hundred_thousand_chunks_keep_their_order_and_all_of_them_come(run_main: Host) -> None:
    """Identical chunks too: the joined output is exactly what was streamed."""

    async def main() -> Any:
        seqs, text, last = [], [], None
        async for outcome in Flujo(Step("many", _many)).run_async(1):
            if isinstance(outcome, Chunk):
                seqs.append(outcome.seq)
                text.append(outcome.data)
            else:
                last = outcome
        return seqs, "".join(text), last

    seqs, text, last = run_main(main)
    assert seqs == list(range(CHUNKS))
    assert text == "0123456789" * (CHUNKS // 10)
    assert isinstance(last, Success)
    assert last.step_result.output == text


@both_hosts
def test_a_long_stream_needs_no_more_memory_than_its_output(run_main: Host) -> None:
    """Chunks that were read are gone: what stays is a reference to each piece of the output to be joined."""
    pieces, sizes = 20_000, []

    async def stream(x: Any) -> AsyncIterator[str]:
        for _ in range(pieces):
            yield "the same piece"

    async def main() -> None:
        async for outcome in Flujo(Step("stream", stream)).run_async(1):
            if isinstance(outcome, Chunk) and outcome.seq in (pieces // 4, pieces * 3 // 4):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        run_main(main)
    finally:
        tracemalloc.stop()
    grown_per_piece = (sizes[-1] - sizes[0]) / (pieces / 2)
    assert grown_per_piece < 16


@both_hosts
def test_a_consumer_that_stops_reading_stops_the_producer(run_main: Host) -> None:
    """No more is made than fits between the two; leaving the loop closes the stream."""
    made = 0
    closed = False

    async def eager(x: Any) -> AsyncIterator[int]:
        nonlocal made, closed
        try:
            while True:
                made += 1
                yield made
        finally:
            closed = True

    async def main() -> None:
        async with Flujo(Step("eager", eager)).run_async(1) as run:
            async for outcome in run:
                assert isinstance(outcome, Chunk)
                if outcome.data == 3:
                    await _quiet(lambda: made)
                    assert made <= 3 + OUTCOME_BUFFER + 2
                    assert not closed
                    break
        assert closed

    run_main(main)


async def _quiet(value: Callable[[], int]) -> None:
    """Wait until the value does not change any more."""
    before = -1
    while before != value():
        before = value()
        for _ in range(20):
            await anyio.sleep(0)
        await anyio.sleep(0.005)


# --- width --------------------------------------------------------------------------------------------------

BRANCHES = 10_000


async def _increment(x: int) -> int:
    await anyio.sleep(0)
    return x + 1


@both_hosts
def test_ten_thousand_branches_run_at_once(run_main: Host) -> None:
    """Every branch settles and the output has them all, in order."""
    increment = Step("increment", _increment)
    flujo = Flujo(Step.parallel("wide", dict.fromkeys(range(BRANCHES), increment)))
    result = run_to_result(run_main, flujo, 41)
    assert result.status == "completed"
    assert list(result.output) == list(range(BRANCHES))
    assert set(result.output.values()) == {42}
    assert len(result.step_history[0].step_history) == BRANCHES


@pytest.mark.trio
async def test_ten_thousand_branches_are_cancelled_at_once() -> None:
    """One cancellation ends them all, and no task is left of them."""
    flujo, before = Flujo(Step.map_over("wide", Step("sleep", trio.sleep), items=[60] * BRANCHES)), _tasks()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_awaited, flujo)
            await trio.testing.wait_all_tasks_blocked()
            assert _tasks() > before + BRANCHES
            scope.cancel()
    assert scope.cancelled_caught
    assert _tasks() == before


def _tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def _awaited(flujo: Flujo) -> None:
    await flujo.run_async(1)


# --- depth --------------------------------------------------------------------------------------------------

DEPTH = 1_000


def _nested(step: Any) -> Any:
    for level in range(DEPTH):
        step = Pipeline((step,), name=f"level {level}")
    return step


@both_hosts
def test_a_thousand_nested_pipelines_run(run_main: Host) -> None:
    """Depth costs no recursion: the output comes up from the bottom."""
    result = run_to_result(run_main, Flujo(_nested(Step("increment", _increment))), 1)
    assert result.output == 2
    assert sum(1 for _ in result.walk()) == DEPTH


def test_a_thousand_nested_pipelines_fail_from_the_bottom() -> None:
    """The original exception arrives at the top."""

    async def fail(x: Any) -> None:
        raise ValueError("from the deep")

    result = Flujo(_nested(Step("fail", fail))).run(1)
    assert result.status == "failed"
    assert "Agent execution failed with ValueError: from the deep" in result.feedback


@both_hosts
def test_a_control_exception_comes_up_a_thousand_levels(run_main: Host) -> None:
    """Bare, as from any depth."""

    async def stop(x: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_to_result(run_main, Flujo(_nested(Step("stop", stop))), 1)


@both_hosts
def test_a_thousand_nested_pipelines_are_cancelled(run_main: Host) -> None:
    """Every level settles."""
    watch = watched(_nested(Step("sleep", anyio.sleep)))

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(_sleeping, watch.flujo)
                while len(watch.sink.of("attempt.started")) < 1:
                    await anyio.sleep(0.001)
                scope.cancel()

    run_main(main)
    watch.assert_settled()
    assert len(watch.statuses()) == DEPTH


async def _sleeping(flujo: Flujo) -> None:
    await flujo.run_async(60)


@both_hosts
def test_a_pause_a_thousand_levels_down_is_resumed(run_main: Host) -> None:
    """The answer finds its way to the bottom, and the output back to the top."""
    flujo = Flujo(_nested(Step.human_in_the_loop("ask", "how many?", input_schema=int)))
    paused = run_to_result(run_main, flujo, 1)
    assert paused.status == "paused"

    async def main() -> Any:
        return await flujo.resume_async(paused.state_token, 7)

    assert run_main(main).output == 7


# --- what cannot be copied ----------------------------------------------------------------------------------


def _generator() -> Iterator[int]:
    yield 1


@pytest.fixture(params=["lock", "generator", "socket"])
def uncopyable(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Something that `copy.deepcopy` refuses."""
    if request.param == "socket":
        with socket.socket() as open_socket:
            yield open_socket
    else:
        yield threading.Lock() if request.param == "lock" else _generator()


@both_hosts
def test_an_output_that_cannot_be_copied_is_handed_on(run_main: Host, uncopyable: Any) -> None:
    """Through steps, branches and streams it stays the same object."""

    async def make(x: Any) -> Any:
        return uncopyable

    async def same(x: Any, context: Context) -> bool:
        return x is uncopyable

    both = Step.parallel("both", {"a": Step("a", same), "b": Step("b", same)})
    result = run_to_result(run_main, Flujo(Step("make", make) >> both))
    assert result.output == {"a": True, "b": True}


@both_hosts
def test_a_context_that_cannot_be_copied_is_a_failure_that_names_the_key(run_main: Host, uncopyable: Any) -> None:
    """The step that needs a copy fails and says why; the one that put the value there does not."""

    async def put(x: Any) -> Any:
        return {"handle": uncopyable}

    async def use(x: Any, context: Context) -> Any:
        return context

    watch = watched(Step("put", put, updates_context=True) >> Step("use", use))
    result = run_to_result(run_main, watch.flujo)
    watch.assert_settled()
    assert result.status == "failed"
    assert "'handle'" in result.feedback
    assert watch.statuses() == {"put": "success", "use": "failure"}


def test_nothing_of_a_run_is_kept_when_it_is_over() -> None:
    """Many runs of one `Flujo` leave no more behind than their ids."""
    flujo = Flujo(Step("big", _big))
    flujo.run(1)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(50):
            flujo.run(1)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 50 * 5_000


async def _big(x: Any) -> bytes:
    return bytes(100_000)


def test_a_paused_iteration_ends_with_the_pause() -> None:
    """After a pause at the top nothing follows, also a thousand levels up."""

    async def main() -> Any:
        flujo = Flujo(_nested(Step.human_in_the_loop("ask", "well?")))
        return [outcome async for outcome in flujo.run_async(1)]

    outcomes = trio.run(main)
    assert all(isinstance(outcome, Paused) for outcome in outcomes)
    assert len({outcome.state_token for outcome in outcomes}) == 1
