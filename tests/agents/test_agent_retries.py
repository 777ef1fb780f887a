"""Refused answers: pydantic-ai's own retries come first, in the same conversation, and no tool runs twice."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage, ToolReturnPart

from flujo_actors import Flujo, Step
from flujo_actors.testing import CallTool, scripted_model

each_mode = pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
NO_LLM = {"aros": {"repair": {"enable_llm": False}, "fallback": {"degrade_to_string": False}}}


class Trip(BaseModel):
    city: str
    nights: int


class Traveller:
    """An agent that books and then answers with these; `booked` counts the bookings."""

    def __init__(self, *answers: Any, **config: Any) -> None:
        self.left, self.booked, self.retries = list(answers), 0, []  # type: ignore[var-annotated]
        self.model = scripted_model(self._answer, forever=True)
        self.agent: Agent[None, Trip] = Agent(self.model, output_type=Trip, **config)
        self.agent.tool_plain(self.book)
        self.agent.output_validator(self.judge)

    def _answer(self, messages: list[ModelMessage]) -> Any:
        parts = [part for message in messages for part in message.parts]
        if not any(isinstance(part, ToolReturnPart) and part.tool_name == "book" for part in parts):
            return CallTool("book", {})
        answer = self.left.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def book(self) -> str:
        """Book a room."""
        self.booked += 1
        return "booked"

    def judge(self, ctx: RunContext[None], trip: Trip) -> Trip:
        self.retries.append((ctx.retry, ctx.max_retries))
        if trip.nights < 2:
            raise ModelRetry("at least two nights")
        return trip


ONE, TWO = {"city": "Oslo", "nights": 1}, {"city": "Oslo", "nights": 2}
DONE = Trip(city="Oslo", nights=2)


@each_mode
@pytest.mark.parametrize("refused", [1, 4])
def test_an_agents_own_retries_come_first_and_in_its_conversation(make: Any, refused: int) -> None:
    """As often as the agent allows; validators see the same numbers of retries as without a step."""
    bare, stepped = (Traveller(*[ONE] * refused, TWO, retries=5) for _ in range(2))
    result = Flujo(make("trip", stepped.agent)).run("Oslo")
    assert result.output == bare.agent.run_sync("Oslo").output == DONE
    assert (stepped.booked, stepped.retries) == (bare.booked, bare.retries)
    assert result.step_history[0].usage.requests == refused + 2


@each_mode
@pytest.mark.parametrize("refused", [ONE, "I cannot say."], ids=["by the validator", "as no value"])
def test_a_strict_retry_continues_the_conversation(make: Any, refused: Any) -> None:
    """After the agent's own retries, the model is asked once more about the same booking."""
    trip = Traveller(refused, refused, TWO)
    result = Flujo(make("trip", trip.agent), settings=NO_LLM).run("Oslo")
    assert result.output == DONE
    assert trip.booked == 1
    assert result.step_history[0].metadata["structured"]["stage"] == "strict_retry"
    assert "Return only JSON" in str(trip.model.asked[-1].messages)


@each_mode
def test_a_broken_connection_after_a_tool_call_does_not_repeat_the_tool(make: Any) -> None:
    """The request that broke is made again; the tool has its result."""
    trip = Traveller(ModelAPIError("scripted", "hung up"), TWO)
    result = Flujo(make("trip", trip.agent), settings=NO_LLM).run("Oslo")
    assert result.output == DONE
    assert trip.booked == 1


@each_mode
@pytest.mark.parametrize(
    "text", ["{'city': 'Oslo', 'nights': '2',}", 'Sure:\n```json\n{"city": "Oslo", "nights": 2,}\n```']
)
def test_an_answer_that_can_be_mended_is_not_asked_for_again(make: Any, text: str) -> None:
    """The deterministic reading comes before any retry, and the agent's validators judge what it read."""
    trip = Traveller(text)
    result = Flujo(make("trip", trip.agent)).run("Oslo")
    assert result.output == DONE
    assert len(trip.retries) == 1
    assert result.step_history[0].usage.requests == 2
    assert result.step_history[0].metadata["structured"]["stage"] == "deterministic"


@each_mode
def test_a_mended_answer_that_is_refused_is_retried(make: Any) -> None:
    """What the validator said reaches the model, and the result tells nothing of the first mending."""
    trip = Traveller("{'city': 'Oslo', 'nights': 1}", TWO)
    result = Flujo(make("trip", trip.agent)).run("Oslo")
    assert result.output == DONE
    assert "structured" not in result.step_history[0].metadata
    assert "at least two nights" in str(trip.model.asked[-1].messages)
