"""`agent_options`: arguments of `Agent.run` that a step passes on, in atomic and granular steps."""

from __future__ import annotations

from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext, ToolDefinition
from pydantic_ai import UsageLimits as RequestLimits
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset

from flujo_actors import Chunk, DeclarationError, Flujo, Step, UsageLimits
from flujo_actors.testing import CallTool, scripted_model

each_mode = pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])


class Bill(BaseModel):
    total: int


class Choose(AbstractCapability[Any]):
    def get_model(self) -> TestModel:
        return TestModel(custom_output_text="chosen")


@each_mode
def test_a_model_of_the_step_replaces_the_agents_and_is_counted(make: Any) -> None:
    """As a model, and as made by a function of the step's data."""
    agent = Agent(scripted_model("own", forever=True))
    other = scripted_model("other", forever=True, name="other")
    for options in ({"model": other}, lambda data: {"model": other if data == "x" else None}):
        result = Flujo(make("ask", agent, agent_options=options)).run("x")
        assert result.output == "other"
        assert result.step_history[0].metadata["model"] == "other"
        assert result.step_history[0].usage.requests == 1
    assert Flujo(make("ask", agent, agent_options=options)).run("y").output == "own"


@each_mode
def test_settings_instructions_and_metadata_reach_the_request(make: Any) -> None:
    """What the model gets is what `Agent.run` would give it."""
    model = scripted_model("done")
    options = {"model_settings": {"temperature": 0.5}, "instructions": "Be kind.", "metadata": {"tenant": "a"}}
    assert Flujo(make("ask", Agent(model), agent_options=options)).run("x").output == "done"
    assert model.asked[0].settings["temperature"] == 0.5
    assert "Be kind." in str(model.asked[0].messages)


@each_mode
def test_an_output_type_of_the_step_makes_it_a_structured_one(make: Any, tmp_path: Path) -> None:
    """Mended, validated and stored as the agent's own would be."""
    agent = Agent(scripted_model("{'total': '7',}"))
    flujo = Flujo(make("ask", agent, agent_options={"output_type": Bill}), store=f"sqlite:///{tmp_path}/runs.db")
    assert flujo.run("x").output == Bill(total=7)


@each_mode
def test_toolsets_and_limits_on_tool_calls(make: Any) -> None:
    """Tools of the step are called; pydantic-ai's limits of the run end it as a failure."""
    tools = FunctionToolset([_ping])
    agent = Agent(scripted_model(CallTool("_ping", {}), CallTool("_ping", {}), "done", forever=True))
    assert Flujo(make("ask", agent, agent_options={"toolsets": [tools]})).run("x").output == "done"
    agent = Agent(scripted_model(CallTool("_ping", {}), forever=True))
    for limits in (RequestLimits(tool_calls_limit=1), RequestLimits(request_limit=1)):
        result = Flujo(make("ask", agent, agent_options={"toolsets": [tools], "usage_limits": limits})).run("x")
        assert isinstance(result.error, UsageLimitExceeded)


def _ping() -> str:
    return "pong"


@each_mode
def test_capabilities_of_the_step_may_choose_the_model(make: Any) -> None:
    """A capability of the run has the same say as the agent's own."""
    agent = Agent(scripted_model("own"))
    assert Flujo(make("ask", agent, agent_options={"capabilities": [Choose()]})).run("x").output == "chosen"


@each_mode
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.anyio
async def test_an_event_handler_of_the_step_sees_the_events(make: Any, watched: bool) -> None:
    """Also while the run is watched, which needs the events for its chunks."""
    seen: list[object] = []

    async def handle(ctx: RunContext[Any], events: AsyncIterable[object]) -> None:
        async for event in events:
            seen.append(event)

    flujo = Flujo(make("ask", Agent(scripted_model("one two")), agent_options={"event_stream_handler": handle}))
    handle_ = flujo.run_async("x")
    if watched:
        chunks = [each async for each in handle_ if isinstance(each, Chunk)]
        assert "".join(chunk.data for chunk in chunks) == "one two"
    assert (await handle_).output == "one two"
    assert seen


@each_mode
@pytest.mark.parametrize("declared", [True, False], ids=["of the agent", "of the step"])
def test_an_external_tool_pauses_the_run_and_its_answer_is_the_result(
    make: Any, declared: bool, tmp_path: Path
) -> None:
    """Answered in another process; the model goes on in the same conversation."""
    outside = ExternalToolset([ToolDefinition(name="scan", parameters_json_schema={"type": "object"})])
    model = scripted_model([CallTool("scan", {"page": 1}), CallTool("scan", {"page": 2})], "done")
    own = {"toolsets": [outside], "output_type": [str, DeferredToolRequests]} if declared else {}
    step = make("read", Agent(model, **own), agent_options=None if declared else {"toolsets": [outside]})
    flujo = Flujo(step, store=f"sqlite:///{tmp_path}/runs.db")
    first = flujo.run("x")
    assert first.status == "paused"
    assert "Tool 'scan' runs outside of this run" in str(first.feedback)
    second = flujo.resume(str(first.state_token), {"text": "page one"})
    assert second.status == "paused"
    result = flujo.resume(str(second.state_token), "page two")
    assert result.output == "done"
    returned = [part.content for part in model.asked[-1].messages[-1].parts]
    assert returned == [{"text": "page one"}, "page two"]


WRONG = {
    "unknown": ({"model_setings": {}}, "did you mean 'model_settings'"),
    "deps": ({"deps": 1}, "give the step `deps=`"),
    "history": ({"message_history": []}, "give the step `message_history=`"),
    "flujo's limits": ({"usage_limits": UsageLimits(total_tokens_limit=1)}, "pydantic_ai.UsageLimits"),
    "toolsets": ({"toolsets": "search"}, "'toolsets' must be a list"),
    "no mapping": (["model"], "must be a mapping"),
}


@each_mode
@pytest.mark.parametrize(("options", "told"), WRONG.values(), ids=list(WRONG))
def test_wrong_options_are_refused_at_declaration(make: Any, options: Any, told: str) -> None:
    """The error names the step, the argument and what to do; made by a function, they fail the step."""
    agent = Agent(scripted_model("done"))
    with pytest.raises(DeclarationError, match=r"step 'ask': agent_options") as caught:
        make("ask", agent, agent_options=options)
    assert told in str(caught.value)
    failed = Flujo(make("ask", agent, agent_options=lambda data: options)).run("x")
    assert isinstance(failed.error, DeclarationError)
    assert told in str(failed.feedback)


def test_options_for_a_function_are_refused() -> None:
    """They are arguments of a model agent's run."""
    with pytest.raises(DeclarationError, match="arguments of a pydantic-ai agent's run"):
        Step("ask", lambda data: data, agent_options={"retries": 2})


def test_an_output_type_beside_validators_is_refused() -> None:
    """The agent's validators judge the agent's own output type."""
    agent = Agent(scripted_model("done"))
    agent.output_validator(lambda text: text)
    with pytest.raises(DeclarationError, match="output validators"):
        Step("ask", agent, agent_options={"output_type": Bill})
