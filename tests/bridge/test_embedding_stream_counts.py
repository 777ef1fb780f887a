"""What a stream costs, by count: rounds of trio, tasks of either library, crossings; and what that must not cost."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import pytest
import trio
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flujo_actors import Chunk, Flujo, Step, Success, make_agent_async
from flujo_actors._api.handle import OUTCOME_BUFFER
from flujo_actors._bridge.to_asyncio import CROSSING_S, STREAM_BUFFER
from flujo_actors._runtime.calls.aggregator import INBOX

PIECES = 1_000


@attrs.define(eq=False)
class Counts(trio.abc.Instrument):
    """Counts what trio does while it is installed."""

    steps: int = 0
    spawned: int = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.spawned += 1

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1


class CountingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that counts its tasks."""

    tasks = 0

    def create_task(self, *args: Any, **keywords: Any) -> Any:
        self.tasks += 1
        return super().create_task(*args, **keywords)


async def one_by_one(data: Any) -> AsyncIterator[str]:
    for _ in range(PIECES):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        yield "1"


def model_of(pieces: Callable[[], AsyncIterator[str]]) -> FunctionModel:
    """A model that says these pieces."""

    async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        async for piece in pieces():
            yield piece

    return FunctionModel(stream_function=say)


def agent_of(pieces: Callable[[], AsyncIterator[str]]) -> Any:
    return make_agent_async(model_of(pieces), "Be brief.")


KINDS: dict[str, Step[Any, Any]] = {
    "generator": Step("say", one_by_one),
    "agent": Step("say", agent_of(lambda: one_by_one(None))),
    "structured": Step("say", agent_of(lambda: one_by_one(None)), processing={"schema": {"type": "integer"}}),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def counted(step: Step[Any, Any], counts: Counts, *, slowly: bool = False) -> tuple[list[Any], int]:
    """The outcomes of a run in an asyncio program, and how many tasks its loop had."""
    loop = CountingLoop()

    def count_from_here(payload: Any) -> None:
        if payload.kind == "pre_run":
            trio.lowlevel.add_instrument(counts)

    async def main() -> list[Any]:
        told: list[Any] = []
        async for outcome in Flujo(step, hooks=[count_from_here]).run_async("x"):
            told.append(outcome)
            if slowly:
                await asyncio.sleep(0)
        return told

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main()), loop.tasks


@each_kind
@pytest.mark.parametrize("slowly", [False, True], ids=["quick", "slow"])
def test_a_thousand_pieces_take_no_round_of_trio_in_an_asyncio_program(kind: str, slowly: bool) -> None:
    """The step is woken when its stream has ended; each piece goes from the task that reads it to its reader.

    Only the aggregator of a structured step is a task of trio: it is woken for each piece that comes alone.
    """
    counts = Counts()
    outcomes, tasks = counted(KINDS[kind], counts, slowly=slowly)
    assert [each.seq for each in outcomes if isinstance(each, Chunk)] == list(range(PIECES))
    assert isinstance(outcomes[-1], Success)
    assert counts.steps < 60 + (PIECES if kind == "structured" else 0)
    assert counts.spawned < 20
    assert tasks < 30


def test_pieces_of_a_structured_stream_that_come_together_take_one_round_per_batch() -> None:
    """The inbox of the aggregator holds 64 pieces; a batch of them wakes it once."""

    async def at_once(data: Any) -> AsyncIterator[str]:
        for _ in range(PIECES):
            yield "1"

    counts = Counts()
    outcomes, _ = counted(Step("say", at_once, processing={"schema": {"type": "integer"}}), counts)
    assert [each.seq for each in outcomes if isinstance(each, Chunk)] == list(range(PIECES))
    assert counts.steps <= 3 * PIECES / INBOX + 60


@pytest.mark.trio
async def test_pieces_cross_from_another_thread_in_batches() -> None:
    """In a trio program the pieces of an agent cross together that come within a millisecond, and no more of them."""
    counts = Counts()

    async def at_once() -> AsyncIterator[str]:
        for number in range(PIECES):
            yield f"{number} "

    flujo = Flujo(Step("say", agent_of(at_once)))
    assert [each async for each in flujo.run_async("x")]  # what is done once is done
    trio.lowlevel.add_instrument(counts)
    began = time.perf_counter()
    told = [each async for each in flujo.run_async("x")]
    took_s = time.perf_counter() - began
    trio.lowlevel.remove_instrument(counts)
    assert [each.data for each in told if isinstance(each, Chunk)] == [f"{number} " for number in range(PIECES)]
    fetched = took_s / CROSSING_S + PIECES / STREAM_BUFFER + 1
    assert counts.steps <= 4 * fetched + 60


# --- what it must not cost --------------------------------------------------------------------------------------

LIBRARIES: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "trio": trio.run,
    "asyncio": lambda main: asyncio.run(main()),
}
each_library = pytest.mark.parametrize("library", LIBRARIES)


@each_library
def test_a_piece_is_not_held_back_for_the_next_one(library: str) -> None:
    """Whoever says the second only after the first was read is not waited for."""

    async def main() -> list[str]:
        read = asyncio.Event()
        loop: list[asyncio.AbstractEventLoop] = []

        async def in_turns() -> AsyncIterator[str]:
            loop.append(asyncio.get_running_loop())
            yield "first "
            await read.wait()
            yield "second"

        told: list[str] = []
        async for each in Flujo(Step("say", agent_of(in_turns))).run_async("x"):
            if isinstance(each, Chunk):
                told.append(each.data)
                loop[0].call_soon_threadsafe(read.set)
        return told

    assert LIBRARIES[library](main) == ["first ", "second"]


@each_library
@pytest.mark.parametrize("how", ["generator", "agent", "structured"])
@pytest.mark.parametrize("at", [0, 1, 2, OUTCOME_BUFFER - 1, OUTCOME_BUFFER, OUTCOME_BUFFER + 1, 3 * OUTCOME_BUFFER])
def test_a_reader_may_leave_at_any_piece(library: str, how: str, at: int) -> None:
    """What it read is what was said, in order; the source is closed by then, and says nothing more."""
    said: list[int] = []
    closed: list[bool] = []

    async def forever(data: Any = None) -> AsyncIterator[str]:
        try:
            for number in itertools.count():
                if library == "asyncio" or how != "generator":
                    await asyncio.sleep(0)
                said.append(number)
                yield f"{number} "
        finally:
            closed.append(True)

    agent = forever if how == "generator" else agent_of(forever)
    step = Step("say", agent, **({"processing": {"schema": {"type": "array"}}} if how == "structured" else {}))

    async def main() -> list[str]:
        told: list[str] = []
        async with Flujo(step).run_async("x") as run:
            async for each in run:
                assert isinstance(each, Chunk)
                told.append(each.data)
                if len(told) > at:
                    break
        assert closed == [True]
        return told

    assert LIBRARIES[library](main) == [f"{number} " for number in range(at + 1)]
    assert len(said) <= at + OUTCOME_BUFFER + 2 * STREAM_BUFFER + 2


@pytest.mark.parametrize("watched", [True, False])
def test_a_source_that_goes_on_after_its_cancellation_is_left_at_its_next_piece(watched: bool) -> None:
    """In an asyncio program, too, whether somebody reads it or not."""
    made = 0

    async def deaf(data: Any) -> AsyncIterator[int]:
        nonlocal made
        while True:
            try:
                await asyncio.sleep(0 if made < 10 else 60)
            except asyncio.CancelledError:
                made = 1_000
            made += 1
            yield made

    async def main() -> None:
        run = Flujo(Step("say", deaf, timeout_s=0.5)).run_async("x")
        result = await run if not watched else [each async for each in run][-1].step_result
        assert not result.success

    asyncio.run(main())
    assert made == 1_001


def test_others_have_their_turns_while_a_source_never_waits() -> None:
    """In an asyncio program: a stream that nobody reads gives way now and then."""
    turns = 0

    async def at_once(data: Any) -> AsyncIterator[str]:
        for _ in range(PIECES):
            yield "x"

    async def bystander() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> int:
        task = asyncio.ensure_future(bystander())
        flujo = Flujo(Step("say", at_once))
        await flujo.run_async("x")
        before = turns
        await flujo.run_async("x")
        task.cancel()
        return turns - before

    assert asyncio.run(main()) >= PIECES / 100


def test_two_streams_share_a_slow_reader_and_keep_their_order() -> None:
    """Each branch's pieces arrive in order and all of them, though the reader is always behind."""

    async def count(data: Any) -> AsyncIterator[int]:
        for number in range(3 * OUTCOME_BUFFER):
            yield number

    async def main() -> dict[str, list[int]]:
        told: dict[str, list[int]] = {}
        flujo = Flujo(Step.parallel("both", {"a": Step("a", count), "b": Step("b", count)}))
        async for each in flujo.run_async("x"):
            if isinstance(each, Chunk):
                told.setdefault(each.path, []).append(each.data)
                await asyncio.sleep(0)
        return told

    whole = list(range(3 * OUTCOME_BUFFER))
    assert asyncio.run(main()) == {"both/a": whole, "both/b": whole}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_loop_that_was_closed_under_a_full_stream_holds_up_nobody() -> None:
    """Whoever waits there for room waits for ever; the next run of the thread ends what was left, and goes on."""
    made = 0

    async def forever(data: Any) -> AsyncIterator[int]:
        nonlocal made
        while True:
            made += 1
            yield made

    async def until_full() -> Any:
        outcomes = aiter(Flujo(Step("say", forever)).run_async("x"))
        await anext(outcomes)
        while made < OUTCOME_BUFFER + 2:
            await asyncio.sleep(0)
        return outcomes

    loop = asyncio.new_event_loop()
    left = loop.run_until_complete(until_full())
    loop.close()

    async def same(data: int) -> int:
        return data

    assert Flujo(Step("same", same)).run(3).output == 3
    assert made == OUTCOME_BUFFER + 2
    del left
