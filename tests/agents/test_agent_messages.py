"""`StepResult.messages`: the conversation of a step's agent, in memory and from the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

from flujo_actors import Flujo, Step
from flujo_actors.testing import CallTool, scripted_model

each_mode = pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])


class Bill(BaseModel):
    total: int


def clerk(*replies: Any, **config: Any) -> Agent[Any, Any]:
    """An agent with a tool."""
    agent: Agent[Any, Any] = Agent(scripted_model(*replies), system_prompt="Be kind.", **config)

    @agent.tool_plain
    def look() -> str:
        return "four bags"

    return agent


def parts_of(result: Any) -> list[type]:
    return [type(part) for message in result.step_history[0].messages for part in message.parts]


WHOLE = [UserPromptPart, ToolCallPart, ToolReturnPart, TextPart]


@each_mode
def test_a_result_has_the_messages_of_its_agent(make: Any) -> None:
    """Prompt, tool calls and answers, without the system prompt, as pydantic-ai's messages."""
    result = Flujo(make("ask", clerk(CallTool("look", {}), "Four."))).run("How much tea?")
    assert parts_of(result) == WHOLE
    assert result.step_history[0].messages[0].parts[0].content == "How much tea?"
    assert "transcript" not in repr(result)


@each_mode
def test_messages_are_read_from_the_journal(make: Any, tmp_path: Path) -> None:
    """A process that resumes the run reads what another one was told."""
    store = f"sqlite:///{tmp_path}/runs.db"
    steps = make("ask", clerk(CallTool("look", {}), "Four.")) >> Step.human_in_the_loop("fine", "Fine?")
    paused = Flujo(steps, store=store).run("How much tea?")
    resumed = Flujo(steps, store=store).resume(str(paused.state_token), "yes")
    assert parts_of(resumed) == WHOLE
    assert resumed.step_history[0].messages == paused.step_history[0].messages


def test_messages_can_be_the_history_of_the_next_agent() -> None:
    """Given history is not repeated: each step has what was said in it."""
    first = Flujo(Step("ask", Agent(scripted_model("Four.")))).run("How much tea?")
    history = first.step_history[0].messages
    model = scripted_model("Five.")
    second = Flujo(Step("ask", Agent(model), message_history=list(history))).run("And coffee?")
    assert [type(message) for message in model.asked[0].messages] == [ModelRequest, ModelResponse, ModelRequest]
    assert [type(message) for message in second.step_history[0].messages] == [ModelRequest, ModelResponse]


@each_mode
def test_a_failed_structured_step_has_its_messages(make: Any) -> None:
    """Those of the refused conversation."""
    settings = {"aros": {"repair": {"enable_llm": False}, "fallback": {"max_stages": 0}}}
    result = Flujo(make("ask", clerk("no", "no", output_type=Bill)), settings=settings).run("How much tea?")
    assert result.status == "failed"
    assert [type(message) for message in result.step_history[0].messages][:2] == [ModelRequest, ModelResponse]


def test_other_steps_have_no_messages() -> None:
    """A function is no agent."""
    assert Flujo(Step("same", lambda data: data)).run("x").step_history[0].messages == ()
