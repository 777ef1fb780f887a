"""What the reader of a run is told besides outcomes: where steps stand, that they begin, which tools are called."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from flujo_actors import (
    Chunk,
    Failure,
    Flujo,
    Paused,
    Pipeline,
    Started,
    Step,
    Success,
    ToldOutcome,
    ToolCalled,
    from_json,
    to_json,
)


async def double(x: int) -> int:
    return x * 2


async def for_ever(_: object) -> None:
    await trio.sleep_forever()


async def letters(text: str) -> Any:
    for letter in text:
        yield letter


async def told(flujo: Flujo, data: Any, **wishes: bool) -> list[Any]:
    return [outcome async for outcome in flujo.run_async(data, **wishes)]


@pytest.mark.trio
async def test_every_outcome_says_where_its_step_stands() -> None:
    """At any depth, also where a step hands on what one inside it said; `index` says which item it belongs to."""
    body = Pipeline.from_step(Step("a", double) >> Step("b", double))
    outcomes = await told(Flujo(Step.map_over("each", body)), [1, 2])
    assert {(outcome.path, outcome.index) for outcome in outcomes} == {
        *((f"each/~i{item}/{name}", item) for item in (0, 1) for name in "ab"),
        *((f"each/~i{item}", item) for item in (0, 1)),
        ("each", None),
    }


@pytest.mark.trio
async def test_chunks_of_equal_names_are_told_apart() -> None:
    """By their path, and by the index of their item."""
    outcomes = await told(Flujo(Step.map_over("each", Step("spell", letters))), ["ab", "cd"])
    chunks = [outcome for outcome in outcomes if isinstance(outcome, Chunk)]
    texts = {index: "".join(chunk.data for chunk in chunks if chunk.index == index) for index in (0, 1)}
    assert texts == {0: "ab", 1: "cd"}
    assert {chunk.path for chunk in chunks} == {"each/~i0", "each/~i1"}


@pytest.mark.trio
async def test_a_pause_is_told_of_each_step_around_it_at_its_own_place() -> None:
    """The same token, and the path of who says it."""
    flujo = Flujo(Pipeline((Step.human_in_the_loop("ask", "Well?"),), name="inner") >> Step("double", double))
    outcomes = await told(flujo, 1)
    assert [(type(outcome), outcome.path) for outcome in outcomes] == [(Paused, "inner/ask"), (Paused, "inner")]


@pytest.mark.trio
async def test_starts_are_told_to_those_who_ask() -> None:
    """Before anything else of the step, with the number of its siblings; nobody else hears of them."""
    flujo = Flujo(Step.map_over("each", Step("double", double)))
    outcomes = await told(flujo, [1, 2, 3], started=True)
    starts = [outcome for outcome in outcomes if isinstance(outcome, Started)]
    assert sorted((start.step_name, start.path, start.of) for start in starts) == [
        *(("double", f"each/~i{item}", 3) for item in range(3)),
        ("each", "each", 0),
    ]
    for start in starts:
        [end] = [place for place, each in enumerate(outcomes) if isinstance(each, Success) and each.path == start.path]
        assert outcomes.index(start) < end
    assert not any(isinstance(outcome, Started) for outcome in await told(flujo, [1]))


@pytest.mark.trio
async def test_a_step_that_never_ends_is_known_to_have_begun(autojump_clock: trio.testing.MockClock) -> None:
    """That is what starts are for."""
    handle = Flujo(Step("sleep", for_ever)).run_async(started=True)
    async for outcome in handle:
        assert isinstance(outcome, Started)
        assert outcome.step_name == "sleep"
        break


def agent_with_tools(*calls: str) -> Agent:
    agent = Agent(TestModel(call_tools=list(calls)), retries=0)

    @agent.tool_plain
    def city(name: str) -> str:
        return f"the city of {name}"

    @agent.tool_plain
    def broken() -> str:
        raise LookupError("no such thing")

    return agent


@pytest.mark.parametrize("granular", [False, True])
def test_tool_calls_are_told_to_those_who_ask(granular: bool) -> None:
    """When they begin, with their arguments, and how they ended, with the step that they belong to."""
    make = Step.granular if granular else Step

    async def calls_of(tool: str) -> list[ToolCalled]:
        run = Flujo(make("travel", agent_with_tools(tool))).run_async("go", tools=True)
        return [outcome async for outcome in run if isinstance(outcome, ToolCalled)]

    [begun, returned] = trio.run(calls_of, "city")
    [_, failed] = trio.run(calls_of, "broken")
    assert all((call.step_name, call.path) == ("travel", "travel") for call in (begun, returned, failed))
    assert (begun.status, begun.arguments) == ("started", {"name": "a"})
    assert (returned.status, returned.result) == ("returned", "the city of a")
    assert begun.tool_call_id == returned.tool_call_id
    assert failed.status == "failed"
    assert "no such thing" in str(failed.feedback)


def test_what_is_told_goes_to_json_and_back() -> None:
    """As every outcome does, with its place."""
    messages: list[ToldOutcome] = [
        Started(step_name="a", path="each/~i3/a", of=7),
        ToolCalled(tool_name="t", tool_call_id="1", status="returned", result={1, 2}, path="a"),
        Chunk(data=b"x", path="each/~i3"),
    ]
    for message in messages:
        back = from_json(to_json(message), ToldOutcome)
        assert (back, back.path, back.index) == (message, message.path, message.index)


def test_plain_json_is_for_browsers() -> None:
    """No tags, no names of classes or modules; what JSON cannot say is written as people write it."""
    import datetime
    from decimal import Decimal

    import attrs

    @attrs.frozen
    class Point:
        x: int
        when: datetime.date

    value = {
        "point": Point(x=1, when=datetime.date(2026, 1, 2)),
        "set": {3},
        "tuple": (1, b"ab"),
        "large": 2**60,
        "amount": Decimal("0.10"),
        "nan": float("nan"),
        "$": "mine",
        7: "seven",
        "wait": datetime.timedelta(seconds=90),
    }
    assert json.loads(to_json(value, plain=True)) == {
        "point": {"x": 1, "when": "2026-01-02"},
        "set": [3],
        "tuple": [1, "YWI="],
        "large": str(2**60),
        "amount": "0.10",
        "nan": "nan",
        "$": "mine",
        "7": "seven",
        "wait": 90.0,
    }


@pytest.mark.trio
async def test_a_plain_outcome_says_its_kind_place_and_error() -> None:
    """And nothing of what its error quotes is a secret."""

    async def leak(_: object) -> None:
        raise ConnectionError("Authorization: Bearer sk-abcdefghijklmnopqrstuvwx")

    flujo = Flujo(Step.map_over("each", Step("leak", leak)))
    [outcome] = [each for each in await told(flujo, [1]) if isinstance(each, Failure) and each.index == 0]
    text = to_json(outcome, plain=True)
    data = json.loads(text)
    assert (data["kind"], data["path"], data["index"]) == ("failure", "each/~i0", 0)
    assert data["error"]["type_name"] == "ConnectionError"
    assert "sk-abc" not in text
    assert "$" not in text
    assert "module" not in text
