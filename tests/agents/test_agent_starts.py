"""Many agents at once: those under way go on before further ones begin, and nothing bounds how many wait."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from agent_hosts import AgentHost, two_hosts
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from flujo_actors import Flujo, SqliteStore, Step
from flujo_actors._bridge.starts import MOST, Starts

MANY = 120
TURNS_OF_AN_AGENT = 40
"""More turns of the loop than a question takes that is answered at once: it is about 25."""


class Counted(Agent[None, str]):
    """An agent that counts how many of its calls are under way."""

    begun = under_way = most = 0

    async def run(self, *asked: Any, **more: Any) -> Any:
        self.begun += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await super().run(*asked, **more)
        finally:
            self.under_way -= 1


def mapped(agent: Agent[None, str], **options: Any) -> Flujo:
    return Flujo(Step.map_over("all", Step("ask", agent)), **options)


@two_hosts
def test_agents_that_need_not_wait_are_not_all_under_way_at_once(host: AgentHost) -> None:
    """Some begin in each turn of the loop, and are through before the last ones begin."""
    agent = Counted(TestModel(custom_output_text="ok"))
    result = host.result(mapped(agent), list(map(str, range(MANY))))
    assert result.output == ["ok"] * MANY
    assert agent.begun == MANY
    assert agent.most <= MOST * TURNS_OF_AN_AGENT < MANY


@two_hosts
def test_agents_that_wait_for_one_another_all_begin(host: AgentHost) -> None:
    """There is no bound that could keep the one from beginning for which all others wait."""
    waiting, everybody = 0, asyncio.Event()

    async def meet(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal waiting
        waiting += 1
        if waiting == MANY:
            everybody.set()
        await everybody.wait()
        return ModelResponse(parts=[TextPart("met")])

    agent = Counted(FunctionModel(meet))
    result = host.result(mapped(agent), list(map(str, range(MANY))))
    assert (result.output, agent.most) == (["met"] * MANY, MANY)


@two_hosts
def test_what_has_not_begun_when_its_run_is_cancelled_never_begins(host: AgentHost) -> None:
    """The others are cancelled, and waited for; nobody waits for those that were not there yet."""

    async def long(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(3600)
        raise AssertionError("nobody waits for an hour")

    agent = Counted(FunctionModel(long))

    async def cancelled() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            while not agent.begun:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

    async def run() -> None:
        await mapped(agent).run_async(list(map(str, range(MANY))))

    host.drive(cancelled)
    assert agent.begun < MANY
    assert agent.under_way == 0


# --- turns of a loop ----------------------------------------------------------------------------------------


class Loop:
    """A loop whose turns are taken by hand."""

    def __init__(self) -> None:
        self.soon: list[Any] = []

    def call_soon(self, do: Any) -> None:
        self.soon.append(do)

    def turn(self) -> None:
        due, self.soon = self.soon, []
        for do in due:
            do()


def test_no_turn_begins_more_than_a_few_calls() -> None:
    """However little time each of them takes."""
    loop, begun = Loop(), []
    starts = Starts(loop)  # type: ignore[arg-type]
    for number in range(5 * MOST):
        starts.add(lambda number=number: begun.append(number))
    sizes = [len(begun)]
    while loop.soon:
        loop.turn()
        sizes.append(len(begun))
    assert all(after - before <= MOST for before, after in zip([0, *sizes], sizes, strict=False))
    assert begun == list(range(5 * MOST))


def test_a_call_that_comes_alone_begins_at_once() -> None:
    """And so does the next one, when the turn is over."""
    loop, begun = Loop(), []
    starts = Starts(loop)  # type: ignore[arg-type]
    for number in range(3):
        starts.add(lambda number=number: begun.append(number))
        assert begun[-1] == number
        loop.turn()
        assert not loop.soon


def test_time_that_is_up_leaves_the_rest_to_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one begins in every turn, however long it takes."""
    now = iter(range(1000))
    monkeypatch.setattr("flujo_actors._bridge.starts.monotonic", lambda: float(next(now)))
    loop, begun = Loop(), []
    starts = Starts(loop)  # type: ignore[arg-type]
    for number in range(3):
        starts.add(lambda number=number: begun.append(number))
    assert begun == [0]
    loop.turn()
    assert begun == [0, 1]
    loop.turn()
    assert begun == [0, 1, 2]


# --- memory -------------------------------------------------------------------------------------------------


def peak_of(path: Path, many: int) -> int:
    """The bytes that so many durable agent steps take at their peak, beyond what was there before."""
    store = SqliteStore(path, synchronous="OFF")
    flujo = mapped(Agent(TestModel(custom_output_text="ok")), store=store)
    try:
        assert flujo.run(["warm"], backend="asyncio").success
        gc.collect()
        tracemalloc.start()
        assert flujo.run(list(map(str, range(many))), backend="asyncio").success
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        store.close()


@pytest.mark.slow
def test_a_durable_agent_step_among_many_takes_little_memory(tmp_path: Path) -> None:
    """pydantic-ai takes 80 KB for each agent that is under way; of ten thousand steps most are not."""
    few, many = 60, 160
    each = (peak_of(tmp_path / "many.db", many) - peak_of(tmp_path / "few.db", few)) / (many - few)
    assert each < 25_000
