"""Models that cannot stream, in runs that somebody watches."""

from __future__ import annotations

import pytest
from agent_hosts import HOSTS, each_host, two_hosts
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.usage import RequestUsage

from flujo_actors import Flujo, Step
from flujo_actors.testing import scripted_model


class City(BaseModel):
    name: str


def answered(messages, info):
    """A tool is called first, if there is one; then the answer comes, by the output tool if there is one."""
    usage = RequestUsage(input_tokens=10, output_tokens=5)
    if info.function_tools and len(messages) == 1:
        return ModelResponse(parts=[TextPart("Let me see. "), ToolCallPart("look", {})], usage=usage)
    if info.output_tools:
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, '{"name": "Lima"}')], usage=usage)
    return ModelResponse(parts=[TextPart("hello")], usage=usage)


class Plain(Model):
    """A model of a user's own, with nothing but what pydantic-ai demands."""

    model_name, system = "plain", "mine"

    async def request(self, messages, model_settings, model_request_parameters):
        return answered(messages, model_request_parameters)


class Shy(Plain):
    """It has a stream, which says that it has none."""

    def request_stream(self, *asked):
        raise NotImplementedError("not yet")


class Refusing(Plain):
    async def request(self, messages, model_settings, model_request_parameters):
        raise ModelAPIError("plain", "out of order")


DOWN = ModelAPIError("x", "down")
MODELS = {
    "own": Plain,
    "own with a stub": Shy,
    "function": lambda: FunctionModel(answered),
    "wrapped": lambda: WrapperModel(Plain()),
    "fallback": lambda: FallbackModel(Refusing(), Plain()),
    "fallback of a streaming one": lambda: FallbackModel(scripted_model(DOWN, forever=True), Plain()),
}
each_model = pytest.mark.parametrize("make_model", MODELS.values(), ids=list(MODELS))
each_mode = pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])


@each_host
def test_a_model_without_streams_answers_in_a_watched_run(host):
    """Its answer is the step's output, and nothing was streamed that could be shown before; on every host."""
    recorder = host.recorded(Flujo(Step("ask", Agent(Plain()))), "?")
    assert (recorder.result.output, recorder.chunks()) == ("hello", [])


@each_model
@each_mode
@two_hosts
def test_a_watched_run_is_the_same_as_an_unwatched_one(host, make, make_model):
    """Tools are called in between, and everything is counted once."""
    agent = Agent(make_model())

    @agent.tool_plain
    async def look() -> str:
        return "x"

    flujo = Flujo(make("ask", agent))
    quiet, recorder = host.result(flujo, "?"), host.recorded(flujo, "?")
    assert quiet.output == recorder.result.output == "hello"
    assert quiet.step_history[0].usage == recorder.result.step_history[0].usage
    assert recorder.result.step_history[0].usage.tool_calls == 1


@each_mode
def test_a_model_without_streams_gives_typed_answers_in_a_watched_run(make):
    """The arguments of its output tool are read as always."""
    recorder = HOSTS[0].recorded(Flujo(make("ask", Agent(Plain(), output_type=City))), "?")
    assert recorder.result.output == City(name="Lima")
