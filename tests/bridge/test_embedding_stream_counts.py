"""What a stream whose pieces come one by one costs an asyncio host: rounds of trio and tasks of either library."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import attrs
import trio

from flujo_actors import Chunk, Flujo, Step

PIECES = 200


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
        yield "x"


def test_a_piece_that_comes_alone_takes_one_step_of_a_trio_task_and_no_task() -> None:
    """The pump wakes the step, the step hands the chunk to the reader's loop: nobody waits in anybody's place."""
    loop, counts = CountingLoop(), Counts()

    def count_from_here(payload: Any) -> None:
        if payload.kind == "pre_run":
            trio.lowlevel.add_instrument(counts)

    flujo = Flujo(Step("stream", one_by_one), hooks=[count_from_here])

    async def main() -> int:
        return sum([isinstance(outcome, Chunk) async for outcome in flujo.run_async(1)])

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(main()) == PIECES
        assert loop.tasks < 20
    assert counts.spawned < 20
    assert PIECES <= counts.steps < 1.5 * PIECES + 50
