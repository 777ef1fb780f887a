"""What goes wrong at a provider goes wrong at the client, as the right error, and leaves nothing running."""

from __future__ import annotations

import asyncio
import threading

import pytest
from openai import AsyncOpenAI, BadRequestError
from openai import RateLimitError as OpenAIRateLimit
from pydantic_ai import Agent, ModelAPIError, ModelHTTPError

from flujo_actors.testing.wire import (
    Hang,
    Malformed,
    ProviderStub,
    RateLimited,
    ServerError,
    SlowBytes,
    Text,
    TruncatedStream,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reply", "status"), [(RateLimited(7), 429), (ServerError(), 500), (ServerError(529), 529)], ids=str
)
async def test_an_error_status_is_an_http_error(connect, reply, status, stream):
    """429 and 500 are errors with their status and the provider's message."""
    with ProviderStub([reply]) as stub:
        async with connect(stub) as model:
            with pytest.raises(ModelHTTPError, match=reply.message) as caught:
                await ask(model, stream=stream)
    assert caught.value.status_code == status


async def test_a_rate_limit_names_the_time_to_wait():
    """The `retry-after` header is there for whoever waits by it."""
    with ProviderStub([RateLimited(1.5)]) as stub:
        async with AsyncOpenAI(base_url=stub.openai_url, api_key="test", max_retries=0) as client:
            with pytest.raises(OpenAIRateLimit) as caught:
                await client.chat.completions.create(model="m", messages=[])
    assert caught.value.response.headers["retry-after"] == "1.5"


async def test_a_client_that_retries_by_itself_gets_the_next_reply():
    """After two rate limits the third request is answered, over the same connection."""
    with ProviderStub([RateLimited(0.001), RateLimited(0.001), Text("at last")]) as stub:
        async with AsyncOpenAI(base_url=stub.openai_url, api_key="test", max_retries=2) as client:
            answer = await client.chat.completions.create(model="m", messages=[])
    assert answer.choices[0].message.content == "at last"
    assert (len(stub.requests), stub.connections) == (3, 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 5, 1000])
async def test_a_truncated_answer_is_a_lost_connection(connect, stream, after):
    """The connection closes before the answer is complete, even where all of its text was sent."""
    seen: list[str] = []
    with ProviderStub([TruncatedStream("Hello there, world", after)]) as stub:
        async with connect(stub) as model:
            with pytest.raises(ModelAPIError):
                await ask(model, stream=stream, seen=seen)
    assert "".join(seen) == ("Hello there, world"[:after] if stream else "")
    assert stub.hangups == ()


@pytest.mark.parametrize("stream", [False, True])
async def test_truncated_tool_arguments_are_a_lost_connection(connect, stream):
    """A tool call may be cut as well as a text."""
    with ProviderStub([TruncatedStream('{"city": "Lima"}', 9, tool="weather")]) as stub:
        async with connect(stub) as model:
            with pytest.raises(ModelAPIError):
                await ask(model, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_malformed_body_is_an_api_error(connect, stream):
    """Neither a body nor an event that is not JSON passes for an answer."""
    with ProviderStub([Malformed()]) as stub:
        async with connect(stub) as model:
            with pytest.raises(ModelAPIError):
                await ask(model, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_slow_bytes_arrive_in_the_end(connect, stream):
    """A dribble is slow, and complete."""
    seen: list[str] = []
    with ProviderStub([SlowBytes("Hello", 0.001)]) as stub:
        async with connect(stub) as model:
            assert await ask(model, stream=stream, seen=seen) == "Hello"
    assert seen == (list("Hello") if stream else [])
    assert stub.hangups == ()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reply", [SlowBytes("Hello", 60), Hang()], ids=["slow", "hanging"])
async def test_a_cancelled_client_is_a_hangup_and_ends_the_answer(connect, reply, stream):
    """The stub notices that the client left and stops answering."""
    with ProviderStub([reply]) as stub:
        async with connect(stub) as model:
            with pytest.raises(TimeoutError):
                await ask_in_vain(model, stub, stream=stream)
            await asyncio.to_thread(stub.wait_until, lambda stub: stub.hangups)
        assert stub.hangups == stub.requests
        assert stub.open_requests == 0


async def test_closing_the_stub_ends_a_hanging_answer(connect):
    """Who still waits when the stub closes gets an error, no hangup is counted, and no thread is left."""
    async with asyncio.TaskGroup() as tasks:
        with ProviderStub([Hang()]) as stub:
            waiting = tasks.create_task(fails(stub, connect))
            await asyncio.to_thread(stub.wait_until, lambda stub: stub.open_requests)
        assert await waiting
    assert stub.hangups == ()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("provider-stub")]


async def test_a_script_that_is_used_up_says_so():
    """One request too many is an error that a client does not retry."""
    with ProviderStub([]) as stub:
        async with AsyncOpenAI(base_url=stub.openai_url, api_key="test") as client:
            with pytest.raises(BadRequestError, match="the script has 0 replies, this is request 1"):
                await client.chat.completions.create(model="m", messages=[])


async def test_what_a_script_raises_is_raised_where_the_stub_closes(connect):
    """A mistake in a test's script is not taken for a provider's failure."""

    def broken(request):
        raise KeyError(request.prompt)

    async def use():
        with ProviderStub(broken) as stub:
            assert await fails(stub, connect)

    with pytest.raises(KeyError, match="x"):
        await use()


async def test_what_a_script_raises_is_noted_on_a_failing_test(connect):
    """The failure of the block itself comes first."""

    def broken(request):
        raise KeyError(request.prompt)

    with pytest.raises(ModelAPIError) as caught, ProviderStub(broken) as stub:
        async with connect(stub) as model:
            await ask(model, stream=False)
    assert caught.value.__notes__ == ["the stub's script raised KeyError: 'x'"]


def test_waiting_for_what_does_not_come_ends():
    """A condition that never holds is a timeout that shows the stub's counts."""
    with ProviderStub([]) as stub, pytest.raises(TimeoutError, match="0 requests, 0 open, 0 hung up"):
        stub.wait_until(lambda stub: stub.requests, timeout_s=0.001)


async def ask(model, *, stream, seen=None):
    agent = Agent(model)
    if not stream:
        return (await agent.run("x")).output
    async with agent.run_stream("x") as streamed:
        async for piece in streamed.stream_text(delta=True, debounce_by=None):
            if seen is not None:
                seen.append(piece)
        return await streamed.get_output()


async def ask_in_vain(model, stub, *, stream):
    """Run out of time a moment after the request has arrived, however busy the machine is."""
    async with asyncio.timeout(None) as limit:
        asking = asyncio.create_task(ask(model, stream=stream))
        await asyncio.to_thread(stub.wait_until, lambda stub: stub.open_requests)
        limit.reschedule(asyncio.get_running_loop().time() + 0.01)
        await asking


async def fails(stub, connect):
    async with connect(stub) as model:
        with pytest.raises(ModelAPIError):
            await ask(model, stream=False)
    return True
