"""Connections to providers: one pool per runtime and provider, not per call."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest
import trio
from wired import agent_of, each_protocol
from wired import connected as connected

from flujo_actors import Flujo, Step
from flujo_actors._agents.metered_model import Environment
from flujo_actors.testing.wire import ProviderStub, Text


def echo(request):
    return Text(request.prompt)


@each_protocol
def test_steps_and_runs_one_after_the_other_share_a_connection_under_trio(connected, model):
    """The helper loop keeps the pool from step to step and from run to run, also between two trio runs."""
    with ProviderStub(echo) as stub:
        connected(stub)
        flujo = Flujo(Step("one", agent_of(model)) >> Step("two", agent_of(model)))

        async def twice():
            return [(await flujo.run_async(text)).output for text in "ab"]

        assert trio.run(twice) == ["a", "b"]
        assert flujo.run("c").output == "c"
        assert (len(stub.requests), stub.connections) == (6, 1)


@each_protocol
def test_steps_and_runs_share_a_connection_in_one_asyncio_program(connected, model):
    """The pool lives as long as the loop, and is closed with it: no warning is left behind."""
    with ProviderStub(echo) as stub:
        connected(stub)
        flujo = Flujo(Step("one", agent_of(model)) >> Step("two", agent_of(model)))

        async def twice():
            return [(await flujo.run_async(text)).output for text in "ab"]

        assert asyncio.run(twice()) == ["a", "b"]
        assert (len(stub.requests), stub.connections) == (4, 1)
        assert asyncio.run(twice()) == ["a", "b"]
        assert stub.connections == 2
        stub.wait_until(lambda stub: stub.open_requests == 0)
    gc.collect()


def test_agents_that_name_different_models_of_a_provider_share_its_pool(connected):
    """There are three agents and two models, and one connection."""
    with ProviderStub(echo) as stub:
        connected(stub)
        names = ("openai-chat:gpt-4o", "openai-chat:gpt-4o-mini", "openai-chat:gpt-4o")
        first, second, third = (Step(f"s{number}", agent_of(name)) for number, name in enumerate(names))
        assert Flujo(first >> second >> third).run("x").success
        assert [request.model for request in stub.requests] == ["gpt-4o", "gpt-4o-mini", "gpt-4o"]
        assert stub.connections == 1


def test_a_changed_environment_is_a_new_provider(connected):
    """A key or an address that was changed counts from then on."""
    agent = agent_of("openai-chat:gpt-4o")
    for _ in range(2):
        with ProviderStub(echo) as stub:
            connected(stub)
            assert Flujo(Step("ask", agent)).run("x").success
            assert len(stub.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("many", [50])
def test_calls_at_once_open_connections_at_once_and_keep_them(connected, many):
    """The second wave uses the connections of the first."""
    with ProviderStub(echo) as stub:
        connected(stub)
        flujo = Flujo(Step.map_over("all", Step("ask", agent_of("openai-chat:gpt-4o"))))
        for _ in range(2):
            assert flujo.run([str(number) for number in range(many)]).success
        assert len(stub.requests) == 2 * many
        assert stub.connections <= many


def test_an_environment_that_did_not_change_is_not_read_again(monkeypatch):
    """Every call by name asks whether it did: that is one comparison, without a look at any variable."""
    environment, read = Environment(), []
    before = environment.mark()
    decode = os.environ.decodevalue
    monkeypatch.setattr(os.environ, "decodevalue", lambda value: (read.append(value), decode(value))[1])
    assert [environment.mark() for _ in range(3)] == [before] * 3
    assert read == []
    monkeypatch.setenv("FLUJO_TEST_KEY", "new")
    changed = environment.mark()
    monkeypatch.delenv("FLUJO_TEST_KEY")
    assert (changed != before, environment.mark() == before) == (True, True)


def test_an_environment_that_a_test_replaced_counts_as_well(monkeypatch):
    """Whatever stands in for `os.environ` is compared as it is."""
    environment = Environment()
    before = environment.mark()
    monkeypatch.setattr(os, "environ", {"OPENAI_API_KEY": "other"})
    assert environment.mark() != before
