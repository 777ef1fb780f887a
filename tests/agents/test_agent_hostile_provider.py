"""A provider that reports impossible numbers, or breaks off, passes no limit and completes no step."""

from __future__ import annotations

import asyncio
import math
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage
from wired import agent_of, connected, each_protocol

from flujo_actors import Flujo, Pipeline, PipelineResult, Step, UsageLimitExceededError, UsageLimits
from flujo_actors.testing.wire import Malformed, ProviderStub, Text, ToolCall, TruncatedStream, Usage

__all__ = ["connected"]

PRICES = {"gpt-4o": {"input_usd": 2.5, "output_usd": 10.0, "cached_usd": 1.25}}
MANY = 30
"""Steps of a run: more than any limit below allows at an honest price."""
TOKENS = UsageLimits(total_tokens_limit=3_000)
DOLLARS = UsageLimits(total_cost_usd_limit=0.01)
HOSTILE: dict[str, dict[str, Any]] = {
    "nothing": {"details": {"of no meaning": 1}},
    "below 0": {"input_tokens": -400, "output_tokens": -50},
    "far below 0": {"input_tokens": -(10**15), "output_tokens": 400},
    "input below 0": {"input_tokens": -1, "output_tokens": 400},
    "cached above input": {"input_tokens": 300, "output_tokens": 50, "cache_read_tokens": 600},
    "cached far above input": {"input_tokens": 300, "output_tokens": 50, "cache_read_tokens": 10**12},
    "cached below 0": {"input_tokens": 300, "output_tokens": 50, "cache_read_tokens": -(10**9)},
    "written above input": {"input_tokens": 300, "output_tokens": 50, "cache_write_tokens": 10**9},
    "reasoning above output": {"input_tokens": 300, "output_tokens": 50, "output_reasoning_tokens": 10**9},
    "huge": {"input_tokens": 10**400, "output_tokens": 1},
    "no numbers": {"input_tokens": True, "output_tokens": math.nan},
    "a cost below 0": {"input_tokens": 300, "output_tokens": 50, "cost": Decimal(-1000)},
    "a cost that is no number": {"input_tokens": 300, "output_tokens": 50, "cost": Decimal("NaN")},
}


def run_of(
    answer: dict[str, Any], limits: UsageLimits, make: Any, name: str = "gpt-4o", many: int = MANY
) -> tuple[int, Any]:
    """The number of answers that a run of many steps got, and how it ended."""
    answers: list[int] = []

    def said(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        answers.append(1)
        return ModelResponse(parts=[TextPart("ok")], usage=RequestUsage(**answer), model_name=name)

    steps = [make(f"s{number}", Agent(FunctionModel(said, model_name="gpt-4o"))) for number in range(many)]
    flujo = Flujo(Pipeline(steps), usage_limits=limits, settings={"usage": {"prices": PRICES}})
    try:
        result = flujo.run("x")
    except UsageLimitExceededError as error:
        return len(answers), error
    return len(answers), result


@pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
@pytest.mark.parametrize("limits", [TOKENS, DOLLARS], ids=["tokens", "dollars"])
@pytest.mark.parametrize("reported", HOSTILE)
def test_no_report_of_a_provider_passes_a_limit(reported: str, limits: UsageLimits, make: Any) -> None:
    """Impossible counts are corrected, and missing ones are charged at the reservation: the limit ends the run."""
    answers, ended = run_of(HOSTILE[reported], limits, make)
    assert isinstance(ended, UsageLimitExceededError)
    assert answers < MANY


@pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
def test_an_answer_under_a_name_without_a_price_is_charged_under_a_cost_limit(make: Any) -> None:
    """The model that was asked has a price; what answers instead of it does not change the bill to nothing."""
    answers, ended = run_of({"input_tokens": 300, "output_tokens": 50}, DOLLARS, make, name="of-nobody-9")
    assert isinstance(ended, UsageLimitExceededError)
    assert answers < MANY


def test_no_usage_of_a_step_is_impossible() -> None:
    """Without limits, too: no count is below 0, and no part above its whole."""
    for reported in HOSTILE.values():
        _, result = run_of(reported, UsageLimits(), Step, many=2)
        assert isinstance(result, PipelineResult)
        for step in result.step_history:
            used = step.usage
            assert 0 <= used.cached_tokens <= used.input_tokens <= 10**12
            assert used.output_tokens >= 0
            assert 0 <= used.cost_usd < math.inf


@each_protocol
@pytest.mark.parametrize(
    "usage",
    [Usage(0, 0), Usage(-400, -50), Usage(300, 50, 600), Usage(300, 50, -600), Usage(300, 50, 10**12)],
    ids=["nothing", "below 0", "cached above input", "cached below 0", "cached far above input"],
)
def test_no_report_over_the_wire_passes_a_cost_limit(model: str, usage: Usage, connected: Any) -> None:
    """The same with real clients and the prices of `genai-prices`."""
    with ProviderStub([Text("ok", usage=usage)] * MANY) as stub:
        connected(stub)
        steps = [Step(f"s{number}", agent_of(model)) for number in range(MANY)]
        with pytest.raises(UsageLimitExceededError):
            Flujo(Pipeline(steps), usage_limits=DOLLARS).run("x")
        assert len(stub.requests) < MANY


async def _watched(flujo: Flujo[Any, Any]) -> PipelineResult[Any]:
    async with flujo.run_async("x") as run:
        async for _ in run:
            pass
        return await run


BROKEN = {
    "text": TruncatedStream("The dose is 100 mg", 13, in_order=True),
    "nothing": TruncatedStream("The dose is 100 mg", 0, in_order=True),
    "a tool call": TruncatedStream('{"city": "Lima", "days": 10}', 24, tool="weather", in_order=True),
    "no JSON": Malformed(),
    "huge arguments": ToolCall("weather", '{"city": "' + "x" * 10_000),
}


@each_protocol
@pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_stream_that_breaks_off_completes_no_step(model: str, broken: str, make: Any, connected: Any) -> None:
    """Half an answer is a failure, whether its connection was closed in order or not."""
    with ProviderStub([BROKEN[broken]] * 3) as stub:
        connected(stub)
        agent = agent_of(model, tools=[weather])
        result = asyncio.run(_watched(Flujo(make("s", agent))))
        assert result.status == "failed"
        assert result.output is None


def weather(city: str, days: int = 1) -> str:
    """A tool that must not be called with half of its arguments."""
    raise AssertionError(f"called with {city[:20]!r}")


@each_protocol
def test_a_stream_that_broke_off_is_asked_for_again(model: str, connected: Any) -> None:
    """A retry of the step gets the whole answer."""
    with ProviderStub([TruncatedStream("The dose is 100 mg", 13, in_order=True), Text("The dose is 100 mg")]) as stub:
        connected(stub)
        result = asyncio.run(_watched(Flujo(Step("s", agent_of(model), max_retries=1))))
        assert result.output == "The dose is 100 mg"
