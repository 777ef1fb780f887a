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
from flujo_actors._bridge.loop_call import FREELY, MOST, StartQueue

MANY = 120
FEW = 8
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


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a few agents begin freely, so that a hundred are many."""
    monkeypatch.setattr("flujo_actors._bridge.loop_call.FREELY", FEW)


def mapped(agent: Agent[None, str], **options: Any) -> Flujo:
    return Flujo(Step.map_over("all", Step("ask", agent)), **options)


@two_hosts
@pytest.mark.usefixtures("few")
def test_agents_that_need_not_wait_are_not_all_under_way_at_once(host: AgentHost) -> None:
    """Some begin in each turn of the loop, and are through before the last ones begin."""
    agent = Counted(TestModel(custom_output_text="ok"))
    result = host.result(mapped(agent), list(map(str, range(MANY))))
    assert result.output == ["ok"] * MANY
    assert agent.begun == MANY
    assert agent.most <= FEW + MOST * TURNS_OF_AN_AGENT < MANY


@two_hosts
@pytest.mark.usefixtures("few")
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
@pytest.mark.usefixtures("few")
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


def test_few_calls_begin_at_once() -> None:
    """The loop is asked for nothing."""
    loop, begun = Loop(), []
    starts = StartQueue(loop)  # type: ignore[arg-type]
    for number in range(FREELY):
        starts.add(lambda number=number: begun.append(number))
    assert (begun, loop.soon) == (list(range(FREELY)), [])


def test_beyond_some_a_turn_begins_only_a_few_calls() -> None:
    """In the order in which they came, and without a turn in which none begins."""
    loop, begun = Loop(), []
    starts = StartQueue(loop)  # type: ignore[arg-type]
    starts.running = FREELY
    for number in range(5 * MOST):
        starts.add(lambda number=number: begun.append(number))
    sizes = [len(begun)]
    while loop.soon:
        loop.turn()
        sizes.append(len(begun))
    assert sizes == [0, *range(MOST, 5 * MOST + 1, MOST)]
    assert begun == list(range(5 * MOST))


def test_room_that_others_leave_is_used_in_the_next_turn() -> None:
    """Whoever waits begins when fewer are under way again, all in one turn."""
    loop, begun = Loop(), []
    starts = StartQueue(loop)  # type: ignore[arg-type]
    starts.running = FREELY
    for number in range(5 * MOST):
        starts.add(lambda number=number: begun.append(number))
    starts.running = 0
    loop.turn()
    assert (begun, loop.soon) == (list(range(5 * MOST)), [])


@two_hosts
def test_calls_that_ended_in_whatever_way_are_not_under_way(host: AgentHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else those that failed would slow down all that come after them."""
    seen: set[StartQueue] = set()
    add = StartQueue.add
    monkeypatch.setattr(StartQueue, "add", lambda starts, begin: (seen.add(starts), add(starts, begin))[1])

    async def fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ValueError("no")

    result = host.result(mapped(Agent(FunctionModel(fail))), ["a", "b", "c"])
    assert not result.success
    (starts,) = seen
    assert starts.running == 0


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
@pytest.mark.usefixtures("few")
def test_a_durable_agent_step_among_many_takes_little_memory(tmp_path: Path) -> None:
    """pydantic-ai takes 80 KB for each agent that is under way; of ten thousand steps most are not."""
    few, many = 60, 160
    each = (peak_of(tmp_path / "many.db", many) - peak_of(tmp_path / "few.db", few)) / (many - few)
    assert each < 25_000
