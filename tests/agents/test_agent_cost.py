"""What a step does again with every call of its agent, and what it does once."""

import asyncio
import contextvars
import gc
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio
from genai_prices.data_snapshot import DataSnapshot, set_custom_snapshot
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from flujo_actors import Flujo, Pipeline, Settings, Step, UsageLimitExceededError, UsageLimits
from flujo_actors._agents import metered_model, output_schema
from flujo_actors._agents.agent_cache import PerAgent
from flujo_actors._bridge.to_asyncio import ThreadCall, helper_loop
from flujo_actors._core.outcomes import PipelineResult
from flujo_actors._core.settings_model import TelemetrySettings
from flujo_actors.telemetry._sinks import MemorySink

CALLS = 10


class CountedPrices(DataSnapshot):
    """A list of prices that has none, and counts how often it is searched."""

    def __init__(self) -> None:
        super().__init__(providers=[], from_auto_update=False)
        self.searches = 0

    def calc(self, *asked: Any, **more: Any) -> Any:
        self.searches += 1
        return super().calc(*asked, **more)


@pytest.fixture
def prices() -> Iterator[CountedPrices]:
    counted = CountedPrices()
    set_custom_snapshot(counted)
    yield counted
    set_custom_snapshot(None)


async def called(flujo: Flujo, times: int = CALLS) -> list[PipelineResult]:
    results = [await flujo.run_async("Hello") for _ in range(times)]
    assert all(result.success for result in results)
    return results


@pytest.mark.trio
async def test_the_schema_of_an_agent_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an agent's output type promises does not change between its calls."""
    asked: list[object] = []
    read = output_schema.schema_of
    monkeypatch.setattr(output_schema, "schema_of", lambda output: (asked.append(output), read(output))[1])
    await called(Flujo(Step("count", Agent(TestModel(), output_type=int))))
    assert asked == [int]


@pytest.mark.trio
async def test_the_model_of_an_agent_is_wrapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of one agent share the metered model, which knows its call by a context variable."""
    made: list[object] = []
    begin = metered_model.MeteredModel.__init__
    monkeypatch.setattr(
        metered_model.MeteredModel, "__init__", lambda self, model: (made.append(model), begin(self, model))[1]
    )
    model = TestModel()
    await called(Flujo(Step("greet", Agent(model))))
    assert made == [model]


@pytest.mark.trio
async def test_an_agent_that_got_another_model_calls_that_one() -> None:
    """What is kept for an agent holds as long as the agent is the same."""
    agent = Agent(TestModel(custom_output_text="old"))
    flujo = Flujo(Step("greet", agent))
    await called(flujo, 2)
    agent.model = TestModel(custom_output_text="new")
    (result,) = await called(flujo, 1)
    assert result.output == "new"


@pytest.mark.trio
async def test_a_price_that_is_not_listed_is_looked_for_once(prices: CountedPrices) -> None:
    """The list is searched under both names of a model, and not again with every response."""
    flujo = Flujo(Step("greet", Agent(TestModel())))
    await called(flujo, 1)
    first, prices.searches = prices.searches, 0
    await called(flujo)
    assert first - prices.searches / CALLS == 2


@pytest.mark.trio
async def test_a_new_list_of_prices_is_searched_again(prices: CountedPrices) -> None:
    """Prices that are loaded while a program runs may have what was missing before."""
    flujo = Flujo(Step("greet", Agent(TestModel())))
    await called(flujo, 2)
    newer = CountedPrices()
    set_custom_snapshot(newer)
    await called(flujo, 2)
    assert newer.searches == prices.searches


def test_what_is_kept_for_an_agent_is_forgotten_with_it() -> None:
    """An agent that nobody uses any more takes what was worked out for it along."""
    kept: PerAgent[str] = PerAgent()
    agent, other = Agent(TestModel()), Agent(TestModel())
    kept.keep(agent, "first")
    kept.keep(other, "second")
    assert (kept.get(agent), kept.get(other)) == ("first", "second")
    del agent
    gc.collect()
    assert len(kept) == 1


# --- ways there and back ------------------------------------------------------------------------------------


def talker() -> Agent[None, str]:
    """An agent of four turns, with a tool call in each but the last."""

    async def converse(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(parts=[ToolCallPart("look", {"number": turn}) if turn < 3 else TextPart("done")])

    agent = Agent(FunctionModel(converse))
    agent.tool_plain(look)
    return agent


async def look(number: int) -> int:
    await asyncio.sleep(0)
    return number


@pytest.mark.trio
async def test_a_call_from_trio_crosses_threads_once_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many turns and tools an agent needs: all of its work is done on asyncio's side."""
    bridge, crossings = helper_loop(), []
    there, back = bridge.loop.call_soon_threadsafe, ThreadCall._arrive
    loop_thread = lambda *args, **more: (crossings.append("there"), there(*args, **more))[1]  # noqa: E731
    monkeypatch.setattr(bridge.loop, "call_soon_threadsafe", loop_thread)
    monkeypatch.setattr(ThreadCall, "_arrive", lambda call, result: (crossings.append("back"), back(call, result))[1])
    await called(Flujo(Step("talk", talker())), 1)
    assert crossings == ["there", "back"]


@pytest.mark.parametrize("agent", [talker(), Agent(TestModel()), Agent(TestModel(custom_output_text="x"), retries=0)])
@pytest.mark.parametrize("output", [str, int])
def test_a_question_comes_to_the_same_with_and_without_listeners(agent: Agent[None, Any], output: Any) -> None:
    """A listener changes nothing about how a step ends."""
    step = Step("ask", agent, processing={"schema": output} if output is int else {})
    ways = [Flujo(step), Flujo(step, settings=Settings(telemetry=TelemetrySettings(sinks=(MemorySink(),))))]
    quiet, told = (attrs.evolve(flujo.run("Hello").step_history[0], latency_s=0.0) for flujo in ways)
    assert quiet == told
    assert quiet.attempts == 1


class Spawned(trio.abc.Instrument):
    """Counts the tasks that trio is given, and the rounds of its scheduler."""

    def __init__(self) -> None:
        self.tasks = self.rounds = 0

    def task_spawned(self, task: object) -> None:
        self.tasks += 1

    def before_io_wait(self, timeout: float) -> None:
        self.rounds += 1


def test_a_step_that_asks_an_agent_is_one_task() -> None:
    """Four more steps are four more tasks."""
    agent = Agent(TestModel())

    def spawned(size: int) -> int:
        seen, flujo = Spawned(), Flujo(Pipeline(Step(f"ask {number}", agent) for number in range(size)))
        result = trio.run(flujo.run_async, "Hello", instruments=[seen])
        assert result.success
        return seen.tasks

    assert spawned(6) - spawned(2) == 4


color: contextvars.ContextVar[str] = contextvars.ContextVar("color", default="none")


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_what_an_agent_leaves_in_context_variables_is_seen_by_no_other_step(backend: Any) -> None:
    """Each step has a context of its own."""

    async def paint(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        before = color.get()
        color.set("red")
        return ModelResponse(parts=[TextPart(before)])

    async def look(data: str) -> str:
        return f"{data}, {color.get()}"

    agent = Agent(FunctionModel(paint))
    flujo = Flujo(Step("first", agent) >> Step("second", agent) >> Step("look", look))
    assert flujo.run("x", backend=backend).output == "none, none"


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_an_error_that_ends_the_run_leaves_a_question_at_once(backend: Any) -> None:
    """What the steps before it used is counted, and no later step begins."""
    begun: list[str] = []
    agent = Agent(TestModel())
    steps = Step("first", agent) >> Step("second", agent) >> Step("third", lambda data: begun.append(data))
    flujo = Flujo(steps, usage_limits=UsageLimits(request_limit=1))
    with pytest.raises(UsageLimitExceededError) as caught:
        flujo.run("x", backend=backend)
    assert (begun, caught.value.result.total_tokens > 0) == ([], True)
