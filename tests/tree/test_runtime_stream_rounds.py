"""What a piece of a stream costs in scheduling rounds, and what it must not save: turns for others, cancellation."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from scripted import collected

from flujo_actors import Chunk, Flujo, Step
from flujo_actors._api.handle import OUTCOME_BUFFER
from flujo_actors._bridge.host_loop import CHUNKS_IN_A_ROW

PIECES = 10_000


class TaskSteps(trio.abc.Instrument):
    """Counts how often trio ran a task."""

    def __init__(self) -> None:
        self.count = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


@pytest.fixture
async def steps() -> AsyncIterator[TaskSteps]:
    counter = TaskSteps()
    trio.lowlevel.add_instrument(counter)
    yield counter
    trio.lowlevel.remove_instrument(counter)


async def never_waiting(data: Any) -> AsyncIterator[str]:
    for _ in range(PIECES):
        yield "x"


@pytest.mark.trio
async def test_a_stream_and_its_reader_change_places_once_per_buffer(steps: TaskSteps) -> None:
    """Neither a piece nor a chunk costs a round of its own: two task steps hand over a whole buffer."""
    outcomes = await collected(Flujo(Step("s", never_waiting)).run_async(1))
    assert len(outcomes) == PIECES + 1
    assert steps.count <= 2 * PIECES / OUTCOME_BUFFER + 50


@pytest.mark.trio
async def test_an_aggregated_stream_takes_one_round_per_batch(steps: TaskSteps) -> None:
    """Source, aggregator and reader hand over a whole buffer: three task steps for each."""

    async def text(data: Any) -> AsyncIterator[str]:
        yield "["
        for _ in range(PIECES - 2):
            yield "1,"
        yield "1]"

    structured = Step("s", text, processing={"schema": {"type": "array"}})
    outcomes = await collected(Flujo(structured).run_async(1))
    assert len(outcomes) == PIECES + 1
    assert steps.count <= 3 * PIECES / OUTCOME_BUFFER + 50


@pytest.mark.trio
async def test_an_unwatched_stream_gives_way_now_and_then_and_no_more(steps: TaskSteps) -> None:
    """As often as fairness asks for."""
    await Flujo(Step("s", never_waiting)).run_async(1)
    assert PIECES / CHUNKS_IN_A_ROW - 2 <= steps.count <= PIECES / CHUNKS_IN_A_ROW + 50


@pytest.mark.trio
@pytest.mark.parametrize("watched", [True, False])
async def test_others_get_their_turns_while_neither_side_waits(watched: bool) -> None:
    """A bystander that is always ready never waits for more than a bounded number of pieces."""
    made, turns = 0, list[int]()

    async def eager(data: Any) -> AsyncIterator[str]:
        nonlocal made
        for _ in range(PIECES):
            made += 1
            yield "x"

    async def bystander() -> None:
        while True:
            turns.append(made)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bystander)
        run = Flujo(Step("s", eager)).run_async(1)
        await (collected(run) if watched else run)
        nursery.cancel_scope.cancel()
    longest = max(later - sooner for sooner, later in itertools.pairwise(turns))
    assert longest <= 2 * (CHUNKS_IN_A_ROW + 1)  # it may be the first of one round and the last of the next


@pytest.mark.trio
@pytest.mark.parametrize("watched", [True, False])
async def test_a_stream_that_goes_on_after_its_cancellation_is_asked_for_nothing_more(
    autojump_clock: Any, watched: bool
) -> None:
    """Also late in a stream that had not waited for a while, and whether somebody reads it or not."""
    made = 0

    async def deaf(data: Any) -> AsyncIterator[int]:
        nonlocal made
        while True:
            made += 1
            if made % 1000 == 0:
                try:
                    await trio.sleep(60)
                except trio.Cancelled:
                    made = -1
            yield made

    with trio.move_on_after(150) as scope:
        run = Flujo(Step("s", deaf)).run_async(1)
        await (collected(run) if watched else run)
    assert scope.cancelled_caught
    assert made == -1


@pytest.mark.trio
async def test_a_stream_that_cancels_its_own_reader_is_left_within_a_row_of_pieces() -> None:
    """Without a round in between nobody else could have done it; the next round ends it."""
    made = 0

    async def suicidal(data: Any) -> AsyncIterator[int]:
        nonlocal made
        scope.cancel()
        while True:
            made += 1
            yield made

    with trio.CancelScope() as scope:
        await Flujo(Step("s", suicidal)).run_async(1)
    assert scope.cancelled_caught
    assert made <= CHUNKS_IN_A_ROW + 1


@pytest.mark.trio
async def test_a_stream_within_a_stream_hides_no_round_from_it(autojump_clock: Any) -> None:
    """The inner one waits, is cancelled and swallows it; the outer one is left at its next piece all the same."""
    made = 0

    async def deaf(data: Any) -> AsyncIterator[int]:
        try:
            await trio.sleep(60)
        except trio.Cancelled:
            yield 1

    async def outer(data: Any) -> AsyncIterator[int]:
        nonlocal made
        while True:
            made += 1
            yield made
            try:
                await Flujo(Step("inner", deaf)).run_async(1)
            except trio.Cancelled:
                continue

    with trio.move_on_after(5) as scope:
        await Flujo(Step("s", outer)).run_async(1)
    assert scope.cancelled_caught
    assert made == 2


@pytest.mark.trio
async def test_the_last_pieces_are_read_before_the_result() -> None:
    """Whatever the number of pieces is to the size of the buffer."""
    for size in range(OUTCOME_BUFFER - 2, OUTCOME_BUFFER + 4):

        async def counted(data: Any, size: int = size) -> AsyncIterator[int]:
            for number in range(size):
                yield number

        outcomes: list[Any] = await collected(Flujo(Step("s", counted)).run_async(1))
        assert [each.data for each in outcomes[:-1] if isinstance(each, Chunk)] == list(range(size))
        assert outcomes[-1].step_result.output == list(range(size))
