"""The streaming contract: chunks and outcomes, in order, all of them."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from scripted import AT_ONCE, PLACES, Scripted, collected, failing, nested, read_into, same, told

from flujo_actors import Aborted, Chunk, Failure, Flujo, Paused, Pipeline, Step, StepResult, Success, step
from flujo_actors._api.handle import OUTCOME_BUFFER
from flujo_actors.errors import UsageLimitExceededError


def streaming(*pieces: Any, then: Any = None) -> Any:
    """An async generator function that yields the pieces; an exception at the end is raised."""

    async def stream(data: Any) -> Any:
        for piece in pieces:
            yield piece
        if isinstance(then, BaseException):
            raise then

    return stream


@pytest.mark.trio
async def test_a_step_that_does_not_stream_yields_one_outcome(autojump_clock: Any) -> None:
    """Exactly one terminal outcome per step, in order, from either method."""
    flujo = Flujo(Step("a", same) >> Step("b", same))
    for run in (flujo.run_async, flujo.run_outcomes_async):
        assert told(await collected(run(1))) == ["success a", "success b"]


@pytest.mark.trio
async def test_chunks_come_before_the_one_outcome_of_their_step(autojump_clock: Any) -> None:
    """Zero or more chunks, then the success with the complete output."""
    outcomes = await collected(Flujo(Step("s", streaming("a", "b", "b")) >> Step("t", same)).run_async(1))
    assert told(outcomes) == ["chunk s a", "chunk s b", "chunk s b", "success s", "success t"]
    assert outcomes[3].step_result.output == "abb"
    assert [(each.seq, each.attempt) for each in outcomes if isinstance(each, Chunk)] == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.trio
@pytest.mark.parametrize(
    ("pieces", "output"),
    [
        (("a", "b"), "ab"),
        ((b"a", b"b"), b"ab"),
        ((1, 2), [1, 2]),
        (("a", b"b"), ["a", b"b"]),
        (("a", None), ["a", None]),
        (([1], [2]), [[1], [2]]),
        ((), ""),
        (("",), ""),
        ((b"",), b""),
        ((None,), [None]),
    ],
)
@pytest.mark.parametrize("watched", [True, False])
async def test_what_becomes_of_a_stream(autojump_clock: Any, pieces: Any, output: Any, watched: bool) -> None:
    """Text is joined, bytes are joined, anything else is a list; nothing is an empty text. Watched or not."""
    flujo = Flujo(Step("s", streaming(*pieces)))
    if watched:
        outcomes = await collected(flujo.run_async(1))
        assert [each.data for each in outcomes[:-1]] == list(pieces)
        assert outcomes[-1].step_result.output == output
    else:
        assert (await flujo.run_async(1)).output == output


@pytest.mark.trio
async def test_chunks_arrive_while_the_step_works(autojump_clock: Any) -> None:
    """Each one when it is made, not all at the end."""

    async def slow(data: Any) -> Any:
        for n in range(3):
            await trio.sleep(1)
            yield n

    begun = trio.current_time()
    at = [trio.current_time() - begun async for _ in Flujo(Step("s", slow)).run_async(1)]
    assert at == pytest.approx([1, 2, 3, 3])


@pytest.mark.trio
async def test_ten_thousand_identical_chunks_all_arrive(autojump_clock: Any) -> None:
    """Nothing is lost, doubled or reordered."""
    outcomes = await collected(Flujo(Step("s", streaming(*["x"] * 10_000))).run_async(1))
    assert [each.seq for each in outcomes[:-1]] == list(range(10_000))
    assert outcomes[-1].step_result.output == "x" * 10_000


@pytest.mark.trio
async def test_a_slow_consumer_slows_the_producer(autojump_clock: Any) -> None:
    """The producer is never more than a small buffer ahead."""
    made = taken = furthest = 0

    async def eager(data: Any) -> Any:
        nonlocal made
        for n in range(1000):
            made += 1
            yield n

    async for _ in Flujo(Step("s", eager)).run_async(1):
        taken += 1
        furthest = max(furthest, made - taken)
        await trio.sleep(1)
    assert (made, taken) == (1000, 1001)
    assert furthest < 100


@pytest.mark.trio
async def test_a_stream_that_fails_keeps_what_it_delivered(autojump_clock: Any) -> None:
    """The chunks stay delivered, the partial text is in the failed result."""
    error = ValueError("cut")
    flujo = Flujo(Step("s", streaming("a", "b", then=error)))
    outcomes = await collected(flujo.run_async(1))
    assert told(outcomes) == ["chunk s a", "chunk s b", "failure s"]
    assert (outcomes[-1].step_result.output, outcomes[-1].error) == ("ab", error)
    assert (await flujo.run_async(1)).step_history[0].output == "ab"


@pytest.mark.trio
@pytest.mark.parametrize("how", ["timeout", "outcome", "result", "validator", "control"])
async def test_partial_text_survives_every_way_to_fail(autojump_clock: Any, how: str) -> None:
    """A timeout, a yielded failure, a refusing validator, a control error."""

    async def stream(data: Any) -> Any:
        yield "par"
        yield "tial"
        if how == "timeout":
            await trio.sleep(60)
        elif how == "outcome":
            yield Failure(feedback="I give up")
        elif how == "result":
            yield StepResult(name="s", success=False, feedback="I give up")
        elif how == "control":
            raise UsageLimitExceededError("too much")

    validators = [lambda output: False] if how == "validator" else []
    handle = Flujo(Step("s", stream, timeout_s=5, validators=validators)).run_async(1)
    outcomes: list[Any] = []
    if how == "control":
        with pytest.raises(UsageLimitExceededError) as caught:
            await read_into(outcomes, handle)
        assert caught.value.result.step_history[0].output == "partial"
    else:
        await read_into(outcomes, handle)
    assert told(outcomes) == ["chunk s par", "chunk s tial", "failure s"]
    assert outcomes[-1].step_result.output == "partial"


@pytest.mark.trio
async def test_a_retry_streams_again_from_the_start(autojump_clock: Any) -> None:
    """`attempt` says which, `seq` begins at nought, the output is the last attempt's."""
    calls = []

    async def flaky(data: Any) -> Any:
        calls.append(1)
        yield "a"
        if len(calls) == 1:
            raise ValueError("again")
        yield "b"

    outcomes = await collected(Flujo(Step("s", flaky, max_retries=1, backoff=AT_ONCE)).run_async(1))
    assert [(each.data, each.attempt, each.seq) for each in outcomes[:-1]] == [("a", 1, 0), ("a", 2, 0), ("b", 2, 1)]
    assert outcomes[-1].step_result.output == "ab"


@pytest.mark.trio
async def test_a_fallback_may_stream_under_its_own_name(autojump_clock: Any) -> None:
    """Its chunks and its outcome come before the step's."""
    pipeline = Step("s", streaming("x", then=ValueError("cut")), fallback=Step("f", streaming("y", "z")))
    outcomes = await collected(Flujo(pipeline).run_async(1))
    assert told(outcomes) == ["chunk s x", "chunk f y", "chunk f z", "success f", "success s"]
    assert outcomes[-1].step_result.output == "yz"


@pytest.mark.trio
async def test_an_agent_streams_when_watched_and_runs_when_not(autojump_clock: Any) -> None:
    """An object with `run` and `stream`; either way the same output."""
    used: list[str] = []

    class Agent:
        async def run(self, data: Any, **kw: Any) -> str:
            used.append("run")
            return "ab"

        async def stream(self, data: Any, **kw: Any) -> Any:
            used.append("stream")
            yield "a"
            yield "b"

    flujo = Flujo(Step("s", Agent()))
    assert (await flujo.run_async(1)).output == "ab"
    assert told(await collected(flujo.run_async(1))) == ["chunk s a", "chunk s b", "success s"]
    assert used == ["run", "stream"]


@pytest.mark.trio
async def test_other_shapes_of_streams(autojump_clock: Any) -> None:
    """A `stream` alone, one that is awaited first, a decorated generator, and keywords by signature."""

    class OnlyStream:
        async def stream(self, data: Any, *, context: Any, resources: Any) -> Any:
            yield f"{data}{context.a}{resources}"

    class Awaited:
        async def run(self, data: Any) -> Any:
            return "not this one"

        async def stream(self, data: Any) -> Any:
            return streaming("p", "q")(data)

    @step
    async def letters(data: str) -> Any:
        for letter in data:
            yield letter

    flujo = Flujo(
        Step("one", OnlyStream()) >> Step("two", Awaited()) >> letters,
        initial_context_data={"a": "A"},
        resources="R",
    )
    assert told(await collected(flujo.run_async("x"))) == [
        "chunk one xAR",
        "success one",
        "chunk two p",
        "chunk two q",
        "success two",
        "chunk letters p",
        "chunk letters q",
        "success letters",
    ]


@pytest.mark.trio
async def test_a_stream_may_end_with_an_outcome(autojump_clock: Any) -> None:
    """A yielded outcome is the step's outcome and closes the generator."""
    closed = []

    def ending(last: Any) -> Any:
        async def stream(data: Any) -> Any:
            try:
                yield "a"
                yield last
                yield "never"
            finally:
                closed.append(last)

        return stream

    done = Success(step_result=StepResult(name="x", output="all", token_counts=5))
    outcomes = await collected(Flujo(Step("s", ending(done))).run_async(1))
    assert told(outcomes) == ["chunk s a", "success s"]
    assert (outcomes[-1].step_result.output, outcomes[-1].step_result.token_counts) == ("all", 5)
    assert told(await collected(Flujo(Step("s", ending(Paused(message="?")))).run_async(1))) == [
        "chunk s a",
        "paused ?",
    ]
    assert told(await collected(Flujo(Step("s", ending(Aborted(reason="!")))).run_async(1))) == [
        "chunk s a",
        "aborted !",
    ]
    assert len(closed) == 3


@pytest.mark.trio
@pytest.mark.parametrize("place", PLACES, ids="-".join)
async def test_streams_at_any_place(autojump_clock: Any, place: tuple[str, str]) -> None:
    """All chunks in order before the leaf's outcome, parents after children, one terminal outcome per step."""
    outcomes = await collected(Flujo(nested(place, Step("leaf", streaming("a", "b")))).run_async("x"))
    lines = [line for line in told(outcomes) if "leaf" in line]
    assert lines == ["chunk leaf a", "chunk leaf b", "success leaf"]
    assert all(isinstance(each, Chunk | Success) for each in outcomes)
    if place[0] not in ("pipeline", "middle"):
        assert told(outcomes)[-1] == "success outer"


@pytest.mark.trio
async def test_streams_of_parallel_branches_interleave_and_stay_in_order(autojump_clock: Any) -> None:
    """Each branch's chunks are in its order."""

    def ticking(seconds: float) -> Any:
        async def tick(data: Any) -> Any:
            for n in range(3):
                await trio.sleep(seconds)
                yield n

        return tick

    branches = {"q": Step("quick", ticking(1)), "s": Step("slow", ticking(1.6))}
    outcomes = await collected(Flujo(Step.parallel("p", branches)).run_async(1))
    assert told(outcomes) == [
        "chunk quick 0",
        "chunk slow 0",
        "chunk quick 1",
        "chunk quick 2",
        "success quick",
        "chunk slow 1",
        "chunk slow 2",
        "success slow",
        "success p",
    ]


@pytest.mark.trio
async def test_outcomes_come_in_the_order_in_which_steps_end(autojump_clock: Any) -> None:
    """Not in the order of declaration; parents after their children."""

    def lasting(seconds: float) -> Any:
        async def last(data: Any) -> Any:
            await trio.sleep(seconds)

        return last

    branches = {"a": Step("three", lasting(3)), "b": Step("one", lasting(1)) >> Step("one more", lasting(1))}
    outcomes = await collected(Flujo(Step.parallel("p", branches) >> Step("last", same)).run_async(1))
    assert told(outcomes) == [
        "success one",
        "success one more",
        "success b",
        "success three",
        "success p",
        "success last",
    ]


@pytest.mark.trio
@pytest.mark.parametrize("agent", [failing(), Scripted(Paused(message="?")), Scripted(Aborted(reason="!"))])
async def test_nothing_follows_a_step_that_ends_the_run(autojump_clock: Any, agent: Any) -> None:
    """After a top-level failure, pause or abort the iteration is over."""
    outcomes = await collected(Flujo(Step("a", same) >> Step("b", agent) >> Step("c", same)).run_async(1))
    assert len(outcomes) == 2
    assert isinstance(outcomes[-1], Failure | Paused | Aborted)


@pytest.mark.trio
@pytest.mark.parametrize("how", ["sibling", "timeout"])
async def test_a_step_that_is_cut_short_yields_aborted(autojump_clock: Any, how: str) -> None:
    """Every step that began yields exactly one terminal outcome, before that of its parent."""

    async def slow(data: Any) -> Any:
        yield "begun"
        await trio.sleep(60)

    inner = Pipeline((Step("slow", slow),), name="inner")
    if how == "sibling":

        async def bad(data: Any) -> None:
            await trio.sleep(1)
            raise ValueError("no")

        outer = Step.parallel("p", {"i": inner, "b": Step("bad", bad)})
    else:
        outer = Step.parallel("p", {"i": inner}, timeout_s=1)
    outcomes = await collected(Flujo(outer).run_async(1))
    lines = told(outcomes)
    assert lines[0] == "chunk slow begun"
    assert lines[-1] == "failure p"
    assert sum(isinstance(each, Aborted) for each in outcomes) == 2
    assert lines.index("aborted step 'slow' was cancelled") < lines.index("aborted step 'inner' was cancelled")
    assert len(lines) == (5 if how == "sibling" else 4)


@pytest.mark.trio
async def test_a_branch_that_ended_is_told_even_if_its_sibling_fails_meanwhile(autojump_clock: Any) -> None:
    """A success that waits for a slow reader is not lost, nor turned into something else."""

    async def bad(data: Any) -> Any:
        for _ in range(200):
            yield "x"
        raise ValueError("no")

    branches = {n: Step(f"good {n}", same) for n in range(40)} | {"bad": Step("bad", bad)}
    outcomes = []
    async for outcome in Flujo(Step.parallel("p", branches)).run_async(1):
        outcomes.append(outcome)
        await trio.sleep(1)
    ends = [line for line in told(outcomes) if not line.startswith("chunk")]
    assert len(ends) == 42
    assert sorted(ends[:-2]) == sorted(f"success good {n}" for n in range(40))
    assert ends[-2:] == ["failure bad", "failure p"]


@pytest.mark.trio
async def test_what_ended_before_the_time_was_over_is_told_as_it_ended(autojump_clock: Any) -> None:
    """Also if the reader was too slow to hear of it in time."""
    count = OUTCOME_BUFFER + 20
    branches: Any = {n: Step(f"good {n}", same) for n in range(count)}
    handle = Flujo(Step.parallel("p", branches, timeout_s=5)).run_async(1)
    outcomes = []
    async for outcome in handle:
        outcomes.append(outcome)
        await trio.sleep(1)
    ends = told(outcomes)
    assert sorted(ends[:-1]) == sorted(f"success good {n}" for n in range(count))
    assert ends[-1] == "failure p"
    assert all(each.success for each in (await handle).step_history[0].step_history)
