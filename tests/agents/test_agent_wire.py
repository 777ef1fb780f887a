"""From socket to outcome: OpenAI's and Anthropic's protocols through a Flujo, with all that goes wrong on the way."""

from __future__ import annotations

import anyio
import pytest
from agent_hosts import HOSTS, two_hosts
from pydantic import BaseModel
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from wired import agent_of, each_protocol
from wired import connected as connected

from flujo_actors import Backoff, Failure, Flujo, Step, UsageLimitExceededError, UsageLimits, make_agent_async
from flujo_actors.testing.wire import (
    Hang,
    Json,
    Malformed,
    ProviderStub,
    RateLimited,
    ServerError,
    SlowBytes,
    Text,
    ToolCall,
    TruncatedStream,
    Usage,
)

pytestmark = pytest.mark.slow

HELLO = Text("Hello dear world", usage=Usage(100, 10, 40))


def step(model, tools=(), output_type=str, **config):
    return Step("ask", agent_of(model, output_type=output_type, tools=tools), backoff=Backoff.none(), **config)


def look(city: str) -> str:
    return f"{city} is sunny"


class City(BaseModel):
    name: str
    people: int


@each_protocol
@two_hosts
def test_an_answer_comes_with_its_usage_and_its_price(connected, model, host):
    """Tokens, cached tokens and the listed price of the model that was asked."""
    with ProviderStub([HELLO]) as stub:
        connected(stub)
        result = host.result(Flujo(step(model), settings={"usage": {"strict_pricing": True}}), "hi")
    used = result.step_history[0].usage
    assert result.output == "Hello dear world"
    assert (used.input_tokens, used.output_tokens, used.cached_tokens, used.requests) == (100, 10, 40, 1)
    assert 0 < result.total_cost_usd < 0.01
    assert result.step_history[0].metadata["model"] == model.partition(":")[2]


@each_protocol
@two_hosts
def test_a_stream_arrives_piece_by_piece_through_tool_calls(connected, model, host):
    """The text is live, the tool is called, and both requests are counted."""
    script = [ToolCall("look", {"city": "Lima"}, usage=Usage(50, 5)), HELLO]
    with ProviderStub(script) as stub:
        connected(stub)
        recorder = host.recorded(Flujo(step(model, tools=[look])), "hi")
    assert recorder.chunks("ask") == ["Hello ", "dear ", "world"]
    assert recorder.output("ask") == "Hello dear world"
    assert all(request.stream for request in stub.requests)
    assert "Lima is sunny" in str(stub.requests[1].body)
    used = recorder.results("ask")[0].usage
    assert (used.input_tokens, used.output_tokens, used.requests, used.tool_calls) == (150, 15, 2, 1)


@each_protocol
def test_a_structured_answer_is_a_value(connected, model):
    """Whatever way the provider has for it."""
    with ProviderStub([Json({"name": "Lima", "people": 10})]) as stub:
        connected(stub)
        result = Flujo(step(model, output_type=City)).run("hi")
    assert result.output == City(name="Lima", people=10)


@each_protocol
@pytest.mark.parametrize("watched", [False, True], ids=["awaited", "watched"])
def test_a_rate_limit_is_waited_out_by_the_client(connected, model, watched):
    """The SDK tries again after the time it was told; only the answer is counted."""
    with ProviderStub([RateLimited(0.01), HELLO]) as stub:
        connected(stub)
        result = answered(Flujo(step(model)), watched)
    assert (result.output, len(stub.requests), result.total_tokens) == ("Hello dear world", 2, 110)


@each_protocol
@pytest.mark.parametrize("watched", [False, True], ids=["awaited", "watched"])
@pytest.mark.parametrize(("reply", "status"), [(RateLimited(0.01), 429), (ServerError(400), 400)], ids=["429", "400"])
def test_an_error_status_that_stays_is_a_failure(connected, model, reply, status, watched):
    """The provider's error is the outcome's error, and a retry of the step asks again."""
    with ProviderStub(lambda request: reply) as stub:
        connected(stub)
        failure, result = failed(Flujo(step(model)), watched)
    assert f"status_code: {status}" in result.feedback
    if failure is not None:
        assert isinstance(failure.error, ModelHTTPError)
    assert result.total_tokens == 0


@each_protocol
def test_a_server_error_is_tried_again_by_the_step(connected, model):
    """A 500 that the client does not survive, and an answer for the second attempt."""
    replies = [ServerError()] * 3 + [HELLO]
    with ProviderStub(replies) as stub:
        connected(stub)
        result = Flujo(step(model, max_retries=1)).run("hi")
    assert (result.output, result.step_history[0].attempts, len(stub.requests)) == ("Hello dear world", 2, 4)


@each_protocol
def test_a_truncated_stream_keeps_what_it_delivered(connected, model):
    """The step fails, its chunks stay delivered, and the partial text is in the failed result."""
    with ProviderStub([TruncatedStream("Hello there, world", 12)]) as stub:
        connected(stub)
        recorder = HOSTS[0].recorded(Flujo(step(model)), "hi")
    failure = recorder.outcomes[-1]
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, ModelAPIError)
    assert "".join(recorder.chunks()) == "Hello there,"
    assert failure.step_result.output == "Hello there,"


@each_protocol
@pytest.mark.parametrize("watched", [False, True], ids=["awaited", "watched"])
def test_a_body_that_is_not_json_is_a_failure(connected, model, watched):
    """Garbage is no answer."""
    with ProviderStub(lambda request: Malformed()) as stub:
        connected(stub)
        failure, result = failed(Flujo(step(model)), watched)
    assert not result.success
    if failure is not None:
        assert isinstance(failure.error, ModelAPIError)


@each_protocol
@two_hosts
@pytest.mark.parametrize("reply", [SlowBytes("Hello", 30), Hang()], ids=["slow", "hanging"])
@pytest.mark.parametrize("watched", [False, True], ids=["awaited", "watched"])
def test_a_slow_answer_is_hung_up_on_when_the_run_is_cancelled(connected, model, host, reply, watched):
    """The provider sees the connection close, so nobody goes on writing for nobody."""
    with ProviderStub([reply]) as stub:
        connected(stub)
        flujo = Flujo(step(model))
        host.drive(lambda: (left if watched else cancelled)(flujo, stub))
        stub.wait_until(lambda stub: stub.hangups)
        assert stub.open_requests == 0


async def left(flujo, stub):
    async with flujo.run_async("hi"):
        await answering(stub)


async def cancelled(flujo, stub):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(awaited, flujo)
        await answering(stub)
        tasks.cancel_scope.cancel()


async def awaited(flujo):
    await flujo.run_async("hi")


async def answering(stub):
    """Wait until the provider has the request."""
    while not stub.open_requests:
        await anyio.sleep(0.005)


@two_hosts
@pytest.mark.parametrize("watched", [False, True], ids=["awaited", "watched"])
def test_a_slow_answer_is_hung_up_on_at_the_deadline(connected, host, watched):
    """A step's `timeout_s` reaches the socket."""
    with ProviderStub([HELLO, SlowBytes("Hello", 30)]) as stub:
        connected(stub)
        host.result(Flujo(step("openai-chat:gpt-4o")), "hi")  # what a first call loads must not count as time
        flujo = Flujo(step("openai-chat:gpt-4o", timeout_s=3))
        result = host.recorded(flujo, "hi").result if watched else host.result(flujo, "hi")
        stub.wait_until(lambda stub: stub.hangups)
    assert "took longer than timeout_s=3" in result.feedback


def test_a_limit_holds_over_the_wire(connected):
    """The third request is not sent."""
    with ProviderStub(lambda request: HELLO) as stub:
        connected(stub)
        ask = Step("ask", make_agent_async("openai-chat:gpt-4o", "Be brief."))
        loop = Step.loop_until("loop", ask, lambda *_: False, max_loops=9)
        with pytest.raises(UsageLimitExceededError, match="220 of 250"):
            Flujo(loop, usage_limits=UsageLimits(total_tokens_limit=250)).run("hi")
        assert len(stub.requests) == 2


def answered(flujo, watched):
    return HOSTS[0].recorded(flujo, "hi").result if watched else flujo.run("hi")


def failed(flujo, watched):
    if not watched:
        return None, flujo.run("hi")
    recorder = HOSTS[0].recorded(flujo, "hi")
    return recorder.outcomes[-1], recorder.result
