"""An agent whose author listens to its events is heard in a watched run, too, and whoever watches sees its text."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Callable
from typing import Any

import pytest
from agent_hosts import AgentHost, two_hosts
from pydantic_ai import Agent, RunContext
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.models.test import TestModel

from flujo_actors import Flujo, Step, make_agent_async
from flujo_actors.testing import CallTool, scripted_model

TEXT = "one two three four"
Events = AsyncIterable[AgentStreamEvent]


class Listening(WrapperAgent[Any, Any]):
    """An agent with a handler of its author's."""

    def __init__(self, wrapped: Any, hears: Callable[[Events], Any]) -> None:
        super().__init__(wrapped)
        self._hears = hears

    @property
    def event_stream_handler(self) -> Any:
        """As its author wants it."""

        async def handle(_: RunContext[Any], events: Events) -> None:
            await self._hears(events)

        return handle


def agent() -> Agent[Any, Any]:
    return Agent(TestModel(custom_output_text=TEXT), name="writer")


@two_hosts
@pytest.mark.parametrize("watched", [True, False])
def test_both_hear_all_of_it(host: AgentHost, watched: bool) -> None:
    """The author's handler gets the same events whether somebody watches or not."""
    heard: list[str] = []

    async def hears(events: Events) -> None:
        heard.extend([type(event).__name__ async for event in events])

    flujo = Flujo(Step("write", Listening(agent(), hears)))
    if watched:
        assert "".join(host.recorded(flujo, "Go").chunks("write")) == TEXT
    else:
        assert host.result(flujo, "Go").output == TEXT
    assert heard[0] == "PartStartEvent"
    assert heard.count("PartDeltaEvent") >= 3


async def reads_one(events: Events) -> None:
    async for _ in events:
        break


async def reads_nothing(events: Events) -> None:
    pass


async def closes(events: Any) -> None:
    if hasattr(events, "aclose"):
        async with contextlib.aclosing(events):
            await reads_one(events)


@two_hosts
@pytest.mark.parametrize("hears", [reads_one, reads_nothing, closes])
def test_whoever_watches_sees_the_rest_that_the_author_leaves(host: AgentHost, hears: Any) -> None:
    """A handler that ends early ends for itself only."""
    recorder = host.recorded(Flujo(Step("write", Listening(agent(), hears))), "Go")
    assert "".join(recorder.chunks("write")) == TEXT
    assert recorder.result.output == TEXT


@two_hosts
@pytest.mark.parametrize("watched", [True, False])
def test_a_handler_that_fails_fails_the_step(host: AgentHost, watched: bool) -> None:
    """Watched or not, with its own error."""

    async def fails(events: Events) -> None:
        await reads_one(events)
        raise ValueError("on purpose")

    flujo = Flujo(Step("write", Listening(agent(), fails)))
    result = host.recorded(flujo, "Go").result if watched else host.result(flujo, "Go")
    assert (result.status, str(result.error)) == ("failed", "on purpose")


@two_hosts
def test_a_granular_step_tells_both(host: AgentHost, tmp_path: Any) -> None:
    """Turn by turn, with the tool call between."""
    heard: list[str] = []

    async def hears(events: Events) -> None:
        heard.extend([type(event).__name__ async for event in events])

    def look(order: str) -> str:
        return f"{order} is on its way"

    made = make_agent_async(scripted_model(CallTool("look", {"order": "A"}), "It comes."), tools=[look])
    flujo = Flujo(Step.granular("write", Listening(made, hears)), store=f"sqlite:///{tmp_path}/runs.db")
    recorder = host.recorded(flujo, "Go")
    assert "".join(recorder.chunks("write")) == "It comes."
    assert "FunctionToolCallEvent" in heard
