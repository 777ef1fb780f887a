"""Values that are hard to write down: what tools and models hand over is the same in both modes, and after a crash."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, BinaryContent, ToolReturn
from pydantic_ai.messages import ModelMessage, ToolReturnPart

from flujo_actors import Flujo, Step
from flujo_actors.testing import CallTool, scripted_model
from kit.durable_places import AN_HOUR_LATER, Place
from kit.other_processes import KILLED, Points, in_another_process

HALF = "half of a pair: \ud83d"
"""A text that UTF-8 cannot write."""


class Aliased(BaseModel):
    """What a model is shown under another name."""

    size: int = Field(default=3, serialization_alias="groesse")


def told(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    """What tools have returned so far, as the model gets it."""
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def reader(returned: Any, answer: Any) -> Agent[None, str]:
    """An agent that calls its tool once and answers with what `answer` makes of the messages."""
    agent: Agent[None, str] = Agent(scripted_model(CallTool("read"), answer))
    agent.tool_plain(lambda: returned, name="read")
    return agent


def in_both_modes(returned: Any) -> list[str]:
    """What the model is told of a value, atomic and granular."""

    def answer(messages: list[ModelMessage]) -> str:
        return told(messages)[0].model_response_str()

    results = [Flujo(make("a", reader(returned, answer))).run("?") for make in (Step, Step.granular)]
    assert [result.status for result in results] == ["completed", "completed"]
    return [result.output for result in results]


@pytest.mark.parametrize(
    "returned",
    [
        b"bytes",
        b"\xff\xfe",
        {"a": [b"\xff"]},
        bytearray(b"\x00\xff"),
        ToolReturn(return_value=b"\xff", metadata={"raw": b"\xff"}),
        Aliased(),
        [Aliased()],
        [1.5, math.nan],
        {"far": -math.inf},
        ToolReturn(return_value=math.inf),
        HALF,
        [BinaryContent(b"\xff\x00", media_type="image/png"), b"\xff"],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_is_told_the_same_of_a_tools_value_in_both_modes(returned: Any) -> None:
    """Bytes as base64, whatever they hold; numbers without a JSON form; names; texts that are no UTF-8."""
    atomic, granular = in_both_modes(returned)
    assert atomic == granular


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": {"b": x}}], ids=["it", "list", "dict"])
def test_a_number_without_a_json_form_stays_what_it_is(number: float, wrap: Any) -> None:
    """Nothing becomes null without a word."""
    agent = reader(wrap(number), lambda messages: repr(told(messages)[0].content))
    assert Flujo(Step.granular("a", agent)).run("?").output == repr(wrap(number))


def test_values_that_are_hard_to_write_survive_a_crash(place: Place) -> None:
    """What was recorded of a model's text and of a tool's value is read again as it was."""

    def flujo(store: Any, passing: Any = lambda point: None) -> Flujo:
        def answer(messages: list[ModelMessage]) -> str:
            passing("the tool has returned")
            return f"{told(messages)[0].content} {messages[1].parts[0].content}"  # type: ignore[union-attr]

        agent: Agent[None, str] = Agent(scripted_model([HALF, CallTool("read")], answer))
        agent.tool_plain(lambda: [math.nan, HALF], name="read")
        return Flujo(Step.granular("a", agent), store=store)

    dying = flujo(place.open(), Points(name="the tool has returned"))
    assert in_another_process(lambda: dying.run("?", run_id="run")) == KILLED
    asked = flujo(place.open(AN_HOUR_LATER)).resume("run")
    assert asked.output == f"{[math.nan, HALF]} {HALF}"
