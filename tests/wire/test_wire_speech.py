"""What a model says arrives through the real clients, in every format, streamed and not."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import FunctionToolCallEvent, ModelRequest

from flujo_actors.testing.wire import Json, ProviderStub, Refusal, Text, ToolCall, ToolCalls, Usage

pytestmark = pytest.mark.anyio


class City(BaseModel):
    name: str
    people: int


LIMA = {"name": "Lima", "people": 10}
OUTPUTS = [ToolOutput(City), NativeOutput(City), PromptedOutput(City)]


async def test_text_arrives_with_the_words_counted_as_tokens(connect):
    """A plain answer is the scripted text, and its usage counts words in and out."""
    with ProviderStub([Text("Hello there, world")]) as stub:
        async with connect(stub) as model:
            result = await Agent(model, system_prompt="Be nice").run("Say hello")
    assert result.output == "Hello there, world"
    [request] = stub.requests
    assert (result.usage.input_tokens, result.usage.output_tokens) == (len(request.text.split()), 3)
    assert request.text.startswith("Be nice")
    assert request.text.endswith("Say hello")
    assert not request.stream


async def test_a_stream_keeps_the_cuts_of_the_script(connect):
    """Each chunk of the script is one delta at the client, characters of all scripts intact."""
    chunks = ("नम", "स्ते ", "世", "界 ", "\n", "مرحبا", "🎉")
    with ProviderStub([Text("".join(chunks), chunks)]) as stub:
        async with connect(stub) as model, Agent(model).run_stream("Say hello") as streamed:
            seen = [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)]
    assert tuple(seen) == chunks
    assert (streamed.usage.input_tokens, streamed.usage.output_tokens) == (2, 3)
    assert stub.requests[0].stream


async def test_usage_can_be_said_and_tells_cached_tokens_apart(connect):
    """A reply's own usage is reported as it stands, streamed or not."""
    reply = Text("Hi", usage=Usage(100, 7, cached_tokens=60))
    with ProviderStub([reply, reply]) as stub:
        async with connect(stub) as model:
            plain = (await Agent(model).run("x")).usage
            async with Agent(model).run_stream("x") as streamed:
                await streamed.get_output()
    for usage in (plain, streamed.usage):
        assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (100, 7, 60)


async def test_a_tool_loop_sends_the_results_back(connect):
    """Two tool calls in one reply are both made, and the next request carries both results."""
    both = ToolCalls([ToolCall("add", {"a": 1, "b": 2}), ToolCall("add", {"a": 3, "b": 4})], text="Let me see.")
    with ProviderStub([both, Text("3 and 7")]) as stub:
        async with connect(stub) as model:
            result = await adder(model).run("Add")
    assert result.output == "3 and 7"
    assert stub.requests[0].tools[0].name == "add"
    results = [message for message in stub.requests[1].messages if message.role == "tool"]
    calls = [call for message in stub.requests[1].messages for call in message.calls]
    assert [message.text for message in results] == ["3", "7"]
    assert [call.id for call in calls] == [message.call_id for message in results]
    assert [json.loads(call.arguments) for call in calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


async def test_a_streamed_tool_loop_makes_the_same_calls(connect):
    """Tool calls whose arguments arrive in pieces are made once each."""
    both = ToolCalls([ToolCall("add", {"a": 1, "b": 2}), ToolCall("add", {"a": 3, "b": 4})])
    with ProviderStub([both, Text("3 and 7")]) as stub:
        async with connect(stub) as model, adder(model).run_stream_events("Add") as events:
            calls = [event.part.args_as_dict() async for event in events if isinstance(event, FunctionToolCallEvent)]
    assert calls == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert [request.stream for request in stub.requests] == [True, True]
    assert [message.text for message in stub.requests[1].messages if message.role == "tool"] == ["3", "7"]


@pytest.mark.parametrize("output", OUTPUTS, ids=["tool", "native", "prompted"])
async def test_a_structured_value_fits_every_way_of_asking_for_it(connect, output):
    """`Json` answers an output tool with its arguments and a JSON mode with text, streamed or not."""
    with ProviderStub([Json(LIMA), Json(LIMA)]) as stub:
        async with connect(stub) as model:
            agent = Agent(model, output_type=output)
            assert (await agent.run("Where?")).output == City(**LIMA)
            async with agent.run_stream("Where?") as streamed:
                assert await streamed.get_output() == City(**LIMA)
    assert [request.stream for request in stub.requests] == [False, True]


async def test_arguments_that_are_no_json_are_sent_as_they_are(connect):
    """Bad arguments reach the client, which asks again and says why."""
    with ProviderStub([ToolCall("final_result", '{"name": "Lima", "peo'), Json(LIMA)]) as stub:
        async with connect(stub) as model:
            result = await Agent(model, output_type=ToolOutput(City)).run("Where?")
    assert result.output == City(**LIMA)
    assert "Invalid JSON" in stub.requests[1].text or "Input should be" in stub.requests[1].text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_arrives_as_one(connect, stream):
    """The client sees that the model declined, and the words it used."""
    with ProviderStub([Refusal("I will not.")]) as stub:
        async with connect(stub) as model:
            response = await respond(model, stream=stream)
    assert response.finish_reason == "content_filter"
    assert response.provider_details["refusal"] == "I will not."


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_cut_at_the_token_limit_says_so(connect, stream):
    """`finish="length"` is the finish reason the client reports."""
    with ProviderStub([Text("and then", finish="length")]) as stub:
        async with connect(stub) as model:
            response = await respond(model, stream=stream)
    assert response.finish_reason == "length"
    assert response.parts[0].content == "and then"


def test_chunks_that_do_not_join_to_the_text_are_refused():
    """A script that contradicts itself fails where it is written."""
    with pytest.raises(ValueError, match="chunks join to 'ab'"):
        Text("abc", ["a", "b"])


def adder(model):
    agent = Agent(model)

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        return a + b

    return agent


async def respond(model, *, stream):
    messages = [ModelRequest.user_text_prompt("x")]
    if not stream:
        return await model_request(model, messages)
    async with model_request_stream(model, messages) as streamed:
        async for _ in streamed:
            pass
    return streamed.get()
