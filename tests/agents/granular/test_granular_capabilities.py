"""Agents that come with capabilities, models and servers of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mortal_journal import Died, MortalJournal
from payers import PRICES, Bank, payer, request_of, streamed, total_of, turn_of
from pydantic_ai import Agent, RunContext, capabilities
from pydantic_ai.capabilities import AbstractCapability, durable_operation
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from flujo_actors._agents.agent_factory import make_agent_async
from flujo_actors._agents.prices import Pricing
from flujo_actors._agents.request_meter import AgentCall


def _counting(calls: list[str], *, text: str = "hello") -> Model:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls.append(text)
        return ModelResponse(parts=[TextPart(text)], usage=RequestUsage(input_tokens=7, output_tokens=1))

    return FunctionModel(answer, model_name="payer")


class Swapping(AbstractCapability[Any]):
    """Puts another model in place of the agent's."""

    def __init__(self, model: Model) -> None:
        self.model = model

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        request_context.model = self.model
        return request_context


def test_a_model_that_a_capability_puts_in_is_metered_and_recorded() -> None:
    """Whoever chooses the model, its request is a unit."""
    calls: list[str] = []
    agent: Agent[None, str] = Agent(TestModel(), capabilities=[Swapping(_counting(calls, text="other"))])
    journal, call = MortalJournal(), AgentCall(caller="x", pricing=Pricing(PRICES))
    assert asyncio.run(request_of(agent, journal, call=call).run()).output == "other"
    assert total_of(call).tokens == 8
    assert asyncio.run(request_of(agent, journal.in_another_process()).run()).output == "other"
    assert calls == ["other"]


def test_a_model_that_overrides_the_agents_is_metered_and_recorded() -> None:
    """As in tests, where a model of a script stands in."""
    calls: list[str] = []
    agent = make_agent_async("openai:gpt-5")
    journal, call = MortalJournal(), AgentCall(caller="x", pricing=Pricing(PRICES))
    with agent.override(model=_counting(calls)):
        assert asyncio.run(request_of(agent, journal, call=call).run()).output == "hello"
        assert asyncio.run(request_of(agent, journal.in_another_process()).run()).output == "hello"
    assert (calls, total_of(call).tokens) == (["hello"], 8)


def test_an_agent_without_a_model_takes_the_one_of_the_run() -> None:
    """Given among the options, it is metered and recorded, too."""
    calls: list[str] = []
    agent: Agent[None, str] = Agent()
    journal, call = MortalJournal(), AgentCall(caller="x", pricing=Pricing(PRICES))
    request = request_of(agent, journal, call=call, model=_counting(calls))
    assert asyncio.run(request.run()).output == "hello"
    assert total_of(call).tokens == 8


class Remembering(AbstractCapability[Any]):
    """Looks something up before each request, which it declares durable."""

    id = "memory"

    def __init__(self) -> None:
        self.lookups = 0

    @durable_operation(name="look_up")
    async def look_up(self, ctx: RunContext[Any], question: str) -> str:
        self.lookups += 1
        return f"{question}: {self.lookups}"

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        await self.look_up(ctx, "what did I say?")
        return request_context


def test_what_a_capability_declares_durable_is_a_unit() -> None:
    """It is done once, and recalled when the run goes on."""
    memory = Remembering()
    agent: Agent[None, str] = Agent(TestModel(), capabilities=[memory], name="forgetful")
    journal = MortalJournal()
    asyncio.run(request_of(agent, journal).run())
    assert any("look_up" in key for key in journal.results)
    asyncio.run(request_of(agent, journal.in_another_process()).run())
    assert memory.lookups == 1


def test_what_a_capability_declares_durable_finds_a_model_that_was_chosen_for_the_run() -> None:
    """An agent may have none of its own, and its capabilities have one in their context all the same."""
    agent: Agent[None, str] = Agent(capabilities=[Remembering()], name="forgetful")
    journal = MortalJournal()
    asyncio.run(request_of(agent, journal, model=TestModel()).run())
    assert any("look_up" in key for key in journal.results)


def _down(requests: list[str]) -> Model:
    def fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        requests.append("down")
        raise ModelHTTPError(503, "payer")

    return FunctionModel(fail, model_name="payer")


def _falling_back(requests: list[str]) -> Agent[None, str]:
    """An agent whose first model is down."""
    fallback = getattr(capabilities, "ModelFallback", None) or pytest.skip("pydantic-ai has ModelFallback as from 2.66")
    return Agent(_down(requests), capabilities=[fallback(_counting(requests, text="instead"))])


def test_an_attempt_at_another_model_is_the_same_unit() -> None:
    """A request that failed leaves no turn: recalled, the answer of the other model is found in its place."""
    requests: list[str] = []
    journal, call = MortalJournal(), AgentCall(caller="x", pricing=Pricing(PRICES))
    request = request_of(_falling_back(requests), journal, call=call, max_turns=1)
    assert asyncio.run(request.run()).output == "instead"
    assert (requests, list(journal.results), len(request.turns)) == (["down", "instead"], ["1"], 1)
    assert (total_of(call).tokens, request.granular.broken) == (8, False)
    again = request_of(_falling_back(requests), journal.in_another_process(), max_turns=1)
    assert asyncio.run(again.run()).output == "instead"
    assert requests == ["down", "instead"]


def test_an_attempt_at_another_model_is_the_same_unit_in_a_stream() -> None:
    """Streamed, as when somebody watches the run."""
    requests: list[str] = []

    async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        requests.append("instead")
        yield "instead"

    async def fail(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        requests.append("down")
        raise ModelHTTPError(503, "payer")
        yield ""

    fallback = getattr(capabilities, "ModelFallback", None) or pytest.skip("pydantic-ai has ModelFallback as from 2.66")
    agent: Agent[None, str] = Agent(
        FunctionModel(stream_function=fail, model_name="payer"),
        capabilities=[fallback(FunctionModel(stream_function=say, model_name="payer"))],
    )
    journal = MortalJournal()
    assert asyncio.run(streamed(request_of(agent, journal)))[0] == ["instead"]
    assert asyncio.run(streamed(request_of(agent, journal.in_another_process())))[0] == ["instead"]
    assert (requests, list(journal.results)) == (["down", "instead"], ["1"])


def _suspending(requests: list[str]) -> Agent[None, str]:
    """An agent whose provider suspends its first turn once."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        requests.append("asked")
        if len(requests) == 1:
            return ModelResponse(parts=[TextPart("well, ")], state="suspended", provider_name="function")
        return ModelResponse(parts=[TextPart("yes")], provider_name="function")

    return Agent(FunctionModel(answer))


def test_a_suspended_turn_is_one_turn_of_two_units() -> None:
    """What continues it belongs to it, and each part is recorded."""
    requests: list[str] = []
    journal = MortalJournal()
    request = request_of(_suspending(requests), journal, max_turns=1)
    first = asyncio.run(request.run())
    assert (list(journal.results), len(request.turns)) == (["1", "1#2"], 1)
    again = request_of(_suspending(requests), journal.in_another_process(), max_turns=1)
    assert asyncio.run(again.run()).output == first.output
    assert len(requests) == 2


@pytest.mark.slow
def test_tools_of_an_mcp_server_are_units() -> None:
    """The server is called once; on replay it is only asked for its tools."""
    servers = pytest.importorskip("mcp.server.mcpserver")
    mcp = pytest.importorskip("pydantic_ai.mcp")
    served: list[int] = []
    server = servers.MCPServer("adder")

    @server.tool()
    def add(a: int, b: int) -> int:
        served.append(a + b)
        return a + b

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        done = turn_of(messages) > 0
        return ModelResponse(parts=[TextPart("done") if done else ToolCallPart("add", {"a": 1, "b": 2})])

    journal = MortalJournal()
    for _ in range(2):
        agent: Agent[None, str] = Agent(FunctionModel(answer), toolsets=[mcp.MCPToolset(server)])
        assert asyncio.run(request_of(agent, journal).run()).output == "done"
    assert served == [3]


def test_the_time_that_an_agent_may_take_holds_for_its_granular_runs() -> None:
    """`timeout_s` of `make_agent_async` ends a run that takes longer."""

    async def forever() -> None:
        await asyncio.Event().wait()

    agent = make_agent_async(TestModel(), tools=[forever], timeout_s=0.01)
    with pytest.raises(TimeoutError):
        asyncio.run(request_of(agent, MortalJournal()).run())


def test_a_death_in_a_nested_task_is_a_death() -> None:
    """The scaffold's own error is no `Exception`, so that nobody takes it for a tool's."""
    bank, journal = Bank(), MortalJournal()
    journal.fate.deadly = 11
    with pytest.raises(Died):
        asyncio.run(request_of(payer(bank, journal.fate), journal).run())
