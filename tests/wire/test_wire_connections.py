"""Sockets: many at once, kept alive, shared by one pool."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent

from flujo_actors.testing.wire import ProviderStub, Text

MANY = 200

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def echo(request):
    return Text(request.prompt)


async def test_requests_one_after_the_other_share_a_connection(connect):
    """A pool keeps its connection between plain and streamed answers."""
    with ProviderStub(echo) as stub:
        async with connect(stub) as model:
            for number in range(3):
                assert (await Agent(model).run(f"number {number}")).output == f"number {number}"
                async with Agent(model).run_stream(f"again {number}") as streamed:
                    assert await streamed.get_output() == f"again {number}"
    assert stub.connections == 1


async def test_two_hundred_requests_at_once_are_answered_each_with_its_own(connect):
    """Concurrent requests neither wait for one another nor mix."""
    with ProviderStub(echo) as stub:
        async with connect(stub) as model:
            agent = Agent(model)
            results = await asyncio.gather(*(agent.run(f"number {number}") for number in range(MANY)))
    assert [result.output for result in results] == [f"number {number}" for number in range(MANY)]
    assert len(stub.requests) == MANY
    assert stub.connections <= MANY


async def test_a_limited_pool_shows_in_the_count_of_connections():
    """`connections` tells one pool from a client per call."""
    http = httpx.AsyncClient(limits=httpx.Limits(max_connections=4))
    with ProviderStub(echo) as stub:
        async with http:
            posts = (post(http, stub, f"number {number}") for number in range(MANY))
            texts = await asyncio.gather(*posts)
    assert texts == [f"number {number}" for number in range(MANY)]
    assert stub.connections == 4


async def test_a_client_per_call_opens_a_connection_per_call():
    """The other side of the count."""
    with ProviderStub(echo) as stub:
        for _ in range(3):
            async with AsyncOpenAI(base_url=stub.openai_url, api_key="test") as client:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert stub.connections == 3


def test_threads_may_share_a_script_that_keeps_state():
    """A script is asked by one request at a time, so it can count without a lock."""
    seen: list[int] = []

    def count(request):
        seen.append(request.index)
        return Text(str(len(seen)))

    with ProviderStub(count) as stub, httpx.Client() as http, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: post_from_thread(http, stub), range(MANY)))
    assert seen == list(range(MANY))
    assert sorted(map(int, answers)) == list(range(1, MANY + 1))


def test_a_path_that_nobody_serves_is_not_found():
    """Anything but the three endpoints is a 404, and no request of the script's."""
    with ProviderStub([]) as stub, httpx.Client(base_url=stub.anthropic_url) as http:
        assert http.get("/v1/models").status_code == 404
        assert http.get("/v1/messages").status_code == 404
    assert stub.requests == ()


def test_connection_close_is_honored():
    """A client that wants the connection closed gets it closed."""
    with ProviderStub(echo) as stub, httpx.Client(headers={"connection": "close"}) as http:
        for _ in range(2):
            post_from_thread(http, stub)
    assert stub.connections == 2


def test_clients_that_connect_and_leave_do_no_harm():
    """A connection without a request, or with half of one, is neither a request nor a hangup."""
    with ProviderStub(echo) as stub:
        address = ("127.0.0.1", int(stub.anthropic_url.rpartition(":")[2]))
        socket.create_connection(address).close()
        with socket.create_connection(address) as half:
            half.sendall(b"POST /v1/messages HTTP/1.1\r\ncontent-le")
        with httpx.Client() as http:
            assert post_from_thread(http, stub) == "x"
    assert len(stub.requests) == 1
    assert stub.hangups == ()


async def post(http, stub, text):
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    answer = await http.post(f"{stub.openai_url}/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"]


def post_from_thread(http, stub):
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    answer = http.post(f"{stub.openai_url}/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"]
