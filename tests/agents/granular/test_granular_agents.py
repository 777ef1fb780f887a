"""What agents can do in granular steps: turns, tools of every kind, structured answers, streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from mortal_journal import MortalJournal
from payers import Bank, Heard, payer, request_of, streamed, turn_of
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, FunctionToolset, ModelRetry, RunContext, ToolReturn
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from flujo_actors._agents.approved_tools import ApprovalNeeded
from flujo_actors._agents.granular.tool_outcomes import Returned, outcome_from_json
from flujo_actors.errors import MaxTurnsReached


def _asking(tool: str, args: dict[str, Any] | None = None, *, times: int = 1, **config: Any) -> Agent[Any, Any]:
    """An agent that calls one tool a number of times and then repeats what it was told last."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if turn_of(messages) < times:
            return ModelResponse(parts=[TextPart("hm "), ToolCallPart(tool, args or {})])
        told = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        return ModelResponse(parts=[TextPart(f"{told[0].outcome}: {told[0].content}")])

    return Agent(FunctionModel(answer), **config)


def _twice(agent: Agent[Any, Any], **options: Any) -> tuple[Any, Any]:
    """The output of a run, and that of its replay, in which nothing may be called."""
    journal = MortalJournal()
    first = asyncio.run(request_of(agent, journal, **options).run())
    begun = dict(journal.intents)
    again = journal.in_another_process()
    second = asyncio.run(request_of(agent, again, **options).run())
    assert again.intents == begun
    return first.output, second.output


def test_turns_are_counted_and_the_last_one_allowed_is_the_last() -> None:
    """Model turns, not tool calls; the error has what there is."""
    bank, journal = Bank(), MortalJournal()
    request = request_of(payer(bank, journal.fate), journal, max_turns=3)
    with pytest.raises(MaxTurnsReached, match="after 3 model turns") as reached:
        asyncio.run(request.run())
    assert (bank.requests, bank.payments.total()) == (3, 6)
    assert reached.value.last_text == "turn 2. "
    assert turn_of(list(reached.value.messages)) == 3
    assert len(request.turns) == 3


def test_as_many_turns_as_needed_are_enough() -> None:
    """The limit itself is allowed, also beyond pydantic-ai's own default of fifty."""
    bank, journal = Bank(), MortalJournal()
    result = asyncio.run(request_of(payer(bank, journal.fate, turns=55), journal, max_turns=56).run())
    assert result.output == "all paid"


def test_every_turn_is_told() -> None:
    """Number, text, tool calls and usage; a replay says that it is one."""
    bank, journal = Bank(), MortalJournal()
    request = request_of(payer(bank, journal.fate, turns=1), journal)
    asyncio.run(request.run())
    first, last = request.turns
    assert (first.number, first.text, last.number, last.text) == (1, "turn 0. ", 2, "all paid")
    assert [(use.name, use.arguments, use.ended) for use in first.tool_calls] == [
        ("pay", '{"to":"0a"}', "returned"),
        ("pay", '{"to":"0b"}', "returned"),
    ]
    assert (first.usage.tokens, first.usage.requests, first.usage.tool_calls) == (110, 1, 2)
    again = request_of(payer(bank, journal.fate, turns=1), journal)
    asyncio.run(again.run())
    assert [turn.recalled for turn in again.turns] == [True, True]
    assert [turn.usage for turn in again.turns] == [turn.usage for turn in request.turns]


# --- how tools end ---


async def _retry() -> str:
    raise ModelRetry("not so")


async def _fail() -> str:
    raise ToolFailed("no way")


async def _return_more() -> ToolReturn[Any]:
    return ToolReturn(return_value={"n": 1}, content="look", metadata={"secret": 1})


async def _return_lookalike() -> dict[str, Any]:
    return {"kind": "tool-return", "return_value": 3}


class Point(BaseModel):
    """A tool's structured value."""

    x: int


async def _return_model() -> Point:
    return Point(x=3)


async def _validate() -> Any:
    return Point.model_validate({"x": "far"})


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (_retry, "retried: not so"),
        (_fail, "failed: no way"),
        (_return_more, "success: {'n': 1}"),
        (_return_lookalike, "success: {'kind': 'tool-return', 'return_value': 3}"),
        (_return_model, "success: {'x': 3}"),
        (_validate, "retried: [{"),
    ],
)
def test_what_a_tool_says_is_said_again_on_replay(tool: Any, said: str) -> None:
    """Values and signals alike: the model gets the same words, the tool is not called."""
    first, second = _twice(_asking(tool.__name__, tools=[tool]))
    assert first.startswith(said)
    assert second == first


def test_a_call_that_needs_approval_stops_with_its_question() -> None:
    """And so does its replay: nobody has answered."""

    async def delete() -> str:
        raise ApprovalRequired(metadata={"why": "danger"})

    journal = MortalJournal()
    agent = _asking("delete", tools=[delete], output_type=[str, DeferredToolRequests])
    for _ in range(2):
        with pytest.raises(ApprovalNeeded, match="Tool 'delete' wants to run"):
            asyncio.run(request_of(agent, journal).run())
    assert len(journal.results) == 2


def test_an_error_of_a_tool_is_not_a_result() -> None:
    """The step fails with it; the next attempt runs the tool again, and nothing before it."""
    tries: list[str] = []

    async def flaky() -> str:
        tries.append("try")
        if len(tries) == 1:
            raise ConnectionError("gone")
        return "here"

    journal = MortalJournal()
    agent = _asking("flaky", tools=[flaky])
    with pytest.raises(ConnectionError, match="gone"):
        asyncio.run(request_of(agent, journal).run())
    result = asyncio.run(request_of(agent, journal).run())
    assert result.output == "success: here"
    assert len(tries) == 2
    assert journal.recalled == ["1"]


def test_a_tool_enqueues_messages_that_a_replay_repeats() -> None:
    """They are recorded with the call, and follow its result in the next request."""
    calls: list[str] = []

    async def whisper(ctx: RunContext[None]) -> str:
        ctx.enqueue("psst")
        calls.append("called")
        return "ok"

    journal = MortalJournal()
    first = asyncio.run(request_of(_asking("whisper", tools=[whisper]), journal).run())
    again = asyncio.run(request_of(_asking("whisper", tools=[whisper]), journal).run())
    for result in (first, again):
        parts = [part for message in result.all_messages() for part in message.parts]
        texts = [part.content for part in parts if isinstance(part, ToolReturnPart | UserPromptPart)]
        assert texts[-2:] == ["ok", "psst"]
    assert calls == ["called"]


def test_a_message_after_the_end_of_its_call_is_refused() -> None:
    """The record of the call could not contain it."""
    contexts: list[RunContext[None]] = []

    async def whisper(ctx: RunContext[None]) -> str:
        contexts.append(ctx)
        return "ok"

    asyncio.run(request_of(_asking("whisper", tools=[whisper]), MortalJournal()).run())
    with pytest.raises(UserError, match="after the tool's call had ended"):
        contexts[0].enqueue("psst")


# --- where tools come from ---


class Homemade(AbstractToolset[Any]):
    """A toolset of the user's own making, without an id."""

    def __init__(self) -> None:
        self.calls = 0

    @property
    def id(self) -> None:
        return None

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        anything = SchemaValidator(core_schema.any_schema())
        tool = ToolsetTool(toolset=self, tool_def=ToolDefinition(name="home"), max_retries=1, args_validator=anything)
        return {"home": tool}

    async def call_tool(self, name: str, tool_args: Any, ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
        self.calls += 1
        return "homemade"


def test_tools_of_a_toolset_of_ones_own_are_units() -> None:
    """Whatever calls the tool, it is called once."""
    homemade = Homemade()
    first, second = _twice(_asking("home", toolsets=[homemade]))
    assert (first, second, homemade.calls) == ("success: homemade", "success: homemade", 1)


def test_tools_of_toolsets_without_id_and_with_a_prefix_are_units() -> None:
    """No id is asked for; wrappers work as ever."""
    calls: list[str] = []
    tools: FunctionToolset[Any] = FunctionToolset()

    @tools.tool_plain
    async def add() -> int:
        calls.append("add")
        return 3

    first, second = _twice(_asking("my_add", toolsets=[tools.prefixed("my")]))
    assert (first, second, calls) == ("success: 3", "success: 3", ["add"])


def test_tools_of_a_dynamic_toolset_are_units() -> None:
    """Also when the toolset is made anew for every step."""
    calls: list[str] = []
    agent = _asking("late")

    @agent.toolset
    def late_tools(ctx: RunContext[Any]) -> AbstractToolset[Any]:
        tools: FunctionToolset[Any] = FunctionToolset()

        @tools.tool_plain
        async def late() -> str:
            calls.append("late")
            return "but here"

        return tools

    assert _twice(agent) == ("success: but here", "success: but here")
    assert calls == ["late"]


# --- what comes out ---


class Sum(BaseModel):
    """A structured answer."""

    total: int


def test_a_structured_answer_is_no_unit_of_its_own() -> None:
    """Its tool is pydantic-ai's own; the turn is recorded, and the answer is read from it again."""
    bank, journal = Bank(), MortalJournal()
    agent: Agent[None, Any] = Agent(TestModel(custom_output_args={"total": 7}), output_type=Sum)
    first = asyncio.run(request_of(agent, journal).run())
    second = asyncio.run(request_of(agent, journal.in_another_process()).run())
    assert first.output == second.output == Sum(total=7)
    assert (set(journal.results), bank.requests) == ({"1"}, 0)


def test_a_recalled_turn_is_streamed_as_one_piece() -> None:
    """A live turn comes word by word; both add up to the same text."""
    bank, journal = Bank(), MortalJournal()
    live, result = asyncio.run(streamed(request_of(payer(bank, journal.fate, turns=1), journal)))
    again, second = asyncio.run(streamed(request_of(payer(bank, journal.fate, turns=1), journal)))
    assert live == ["turn ", "0. ", "all ", "paid"]
    assert again == ["turn 0. ", "all paid"]
    assert result.output == second.output == "all paid"


def test_a_reader_that_leaves_early_commits_no_half_turn() -> None:
    """The turn it was in is asked again."""
    bank, journal = Bank(), MortalJournal()

    async def read_one() -> list[str]:
        heard = Heard(room_for=1)
        running = asyncio.ensure_future(request_of(payer(bank, journal.fate, turns=1), journal).run(heard))
        await heard.full.wait()
        running.cancel()
        await asyncio.wait([running])
        return heard.pieces

    assert asyncio.run(read_one()) == ["turn "]
    assert journal.results == {}


def test_the_agent_is_left_as_it_was() -> None:
    """Granular is the run, not the agent: the next plain run has no units."""
    bank, journal = Bank(), MortalJournal()
    agent = _asking("add_nothing", tools=[add_nothing])
    before = (agent.model, agent.name, list(agent.toolsets), agent.root_capability)
    asyncio.run(request_of(agent, journal).run())
    assert (agent.model, agent.name, list(agent.toolsets), agent.root_capability) == before
    units = len(journal.results)
    asyncio.run(agent.run("plain"))
    assert (len(journal.results), bank.requests) == (units, 0)


async def add_nothing() -> int:
    """A tool for the agent that is left alone."""
    return 0


def test_what_an_older_release_recorded_is_read_as_it_was() -> None:
    """A run goes on after an upgrade: pydantic-ai 2.66 writes down the digests of files, and wants them."""
    file = {"kind": "uploaded-file", "file_id": "f1", "provider_name": "openai", "media_type": "application/pdf"}
    recorded = {"kind": "tool_return", "value": {"kind": "tool-return", "return_value": [file], "content": None}}
    outcome = outcome_from_json(json.dumps(recorded))
    assert isinstance(outcome, Returned)
    assert [type(each) for each in outcome.value.return_value] == [UploadedFile]
