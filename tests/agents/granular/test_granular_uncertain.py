"""Tool calls that may have run before: asked about, refused, or run again under the same key."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from mortal_journal import Died, Fate, MortalJournal
from payers import Bank, payer, request_of, turn_of
from pydantic_ai import Agent, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flujo_actors._agents.granular.tool_outcomes import Returned, outcome_to_json
from flujo_actors._agents.granular.units import RecordedUnit, UnitRecord, current_unit
from flujo_actors.errors import DeclarationError, StoreError, UncertainUnit


def _calling(*calls: ToolCallPart, **config: Any) -> Agent[None, str]:
    """An agent that makes these calls in its first turn and ends in its second."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("done")] if turn_of(messages) else list(calls))

    return Agent(FunctionModel(answer), **config)


def _killed_inside_the_first_tool() -> tuple[Bank, MortalJournal]:
    bank, journal = Bank(), MortalJournal()
    asyncio.run(request_of(payer(bank, journal.fate, turns=1), journal).run())
    point = next(place for place, name in enumerate(journal.fate.passed) if name.startswith("inside the tool"))
    bank, journal = Bank(), MortalJournal(Fate(deadly=point))
    with pytest.raises(Died):
        asyncio.run(request_of(payer(bank, journal.fate, turns=1), journal).run())
    return bank, journal.in_another_process()


@pytest.mark.parametrize("policy", ["pause", "fail"])
def test_a_tool_that_may_have_run_is_not_run_again_unasked(policy: Any) -> None:
    """The step ends with a signal that says which call it was; the call next to it is finished first."""
    bank, journal = _killed_inside_the_first_tool()
    request = request_of(payer(bank, journal.fate, turns=1), journal, on_uncertain=policy)
    with pytest.raises(UncertainUnit) as refused:
        asyncio.run(request.run())
    assert (refused.value.tool, refused.value.arguments, refused.value.policy) == ("pay", '{"to":"0a"}', policy)
    assert refused.value.idempotency_key == f"run-1:pay/all:{refused.value.key}"
    assert refused.value.idempotency_key in bank.keys.values()
    assert [use.ended for use in request.turns[0].tool_calls] in ([None, "returned"], [None, None])


def test_a_tool_that_may_have_run_is_told_so() -> None:
    """Run again by default, it knows that it may be the second time."""
    bank, journal = _killed_inside_the_first_tool()
    asyncio.run(request_of(payer(bank, journal.fate, turns=1), journal).run())
    assert True in bank.suspicions


def test_a_refusal_waits_for_the_calls_beside_it() -> None:
    """An agent cancels the other calls of a turn when one fails; those under way are let finish and be committed."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        begun.set()
        await go_on.wait()
        return "slow"

    async def suspect() -> str:
        raise AssertionError("must not run")

    agent = _calling(
        ToolCallPart("slow", {}, tool_call_id="s"), ToolCallPart("suspect", {}, tool_call_id="u"), tools=[slow, suspect]
    )
    journal = MortalJournal(intents={"1:u": "{}"})

    async def life() -> None:
        run = asyncio.create_task(request_of(agent, journal, on_uncertain="pause").run())
        await begun.wait()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(UncertainUnit):
            await run

    asyncio.run(life())
    assert "1:s" in journal.results


def test_a_tools_own_declaration_overrides_the_steps() -> None:
    """Metadata of the tool, in both directions."""

    async def harmless() -> str:
        return "again"

    calls = ToolCallPart("harmless", {}, tool_call_id="h")
    journal = MortalJournal(intents={"1:h": "{}"})
    tool = Tool(harmless, metadata={"on_uncertain": "rerun"})
    asyncio.run(request_of(_calling(calls, tools=[tool]), journal, on_uncertain="fail").run())
    journal = MortalJournal(intents={"1:h": "{}"})
    tool = Tool(harmless, metadata={"on_uncertain": "fail"})
    with pytest.raises(UncertainUnit):
        asyncio.run(request_of(_calling(calls, tools=[tool]), journal).run())


def test_a_wrong_declaration_says_which_tool_has_it() -> None:
    """A typo must not mean that the tool is run again."""

    async def pay() -> None: ...

    tool = Tool(pay, metadata={"on_uncertain": "ask"})
    agent = _calling(ToolCallPart("pay", {}, tool_call_id="p"), tools=[tool])
    with pytest.raises(DeclarationError, match="'pay' has on_uncertain='ask'"):
        asyncio.run(request_of(agent, MortalJournal()).run())


def test_a_result_that_somebody_found_out_is_taken_for_the_tools() -> None:
    """The answer to a pause is recorded as the unit's result; the tool is not run."""

    async def pay() -> str:
        raise AssertionError("must not run")

    agent = _calling(ToolCallPart("pay", {}, tool_call_id="p"), tools=[pay])
    found_out = RecordedUnit(result=outcome_to_json(Returned("it was paid"), tool="pay"))
    journal = MortalJournal(intents={"1:p": "{}"}, results={"1:p": found_out})
    result = asyncio.run(request_of(agent, journal, on_uncertain="pause").run())
    assert any(getattr(part, "content", None) == "it was paid" for m in result.all_messages() for part in m.parts)


def test_a_sync_tool_knows_its_unit_in_its_thread() -> None:
    """The context goes with the call into the thread; outside there is no unit."""
    seen: list[tuple[UnitRecord | None, bool]] = []

    def blocking() -> str:
        seen.append((current_unit(), threading.current_thread() is threading.main_thread()))
        return "ok"

    agent = _calling(ToolCallPart("blocking", {}, tool_call_id="b"), tools=[blocking])
    asyncio.run(request_of(agent, MortalJournal()).run())
    assert seen == [(UnitRecord(idempotency_key="run-1:pay/all:1:b", may_have_run_before=False), False)]
    assert current_unit() is None


def test_an_id_that_a_provider_uses_in_every_turn_is_told_apart() -> None:
    """The turn is part of the key."""
    keys: list[str] = []

    async def note() -> str:
        unit = current_unit()
        assert unit is not None
        keys.append(unit.idempotency_key)
        return "ok"

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        again = ToolCallPart("note", {}, tool_call_id="same")
        return ModelResponse(parts=[again] if turn_of(messages) < 2 else [TextPart("done")])

    agent: Agent[None, str] = Agent(FunctionModel(answer), tools=[note])
    asyncio.run(request_of(agent, MortalJournal()).run())
    assert keys == ["run-1:pay/all:1:same", "run-1:pay/all:2:same"]


class Forgiving(AbstractCapability[None]):
    """A user's capability that turns every error of a tool into words for the model."""

    async def on_tool_execute_error(self, ctx: Any, *, error: Exception, **_: Any) -> Any:
        return f"sorry: {error}"


def test_a_refusal_is_not_talked_away_by_the_agents_own_hooks() -> None:
    """The model may go on and answer, but the step ends with the refusal, and nothing more is done."""

    async def pay() -> None: ...

    agent = _calling(ToolCallPart("pay", {}, tool_call_id="p"), tools=[pay], capabilities=[Forgiving()])
    journal = MortalJournal(intents={"1:p": "{}"})
    with pytest.raises(UncertainUnit):
        asyncio.run(request_of(agent, journal, on_uncertain="fail").run())
    assert "2" not in journal.intents


class Full(MortalJournal):
    """A journal whose store fails from some commit on."""

    async def commit(self, key: Any, result: str, usage: Any) -> None:
        if key.call:
            raise StoreError("disk full")
        await super().commit(key, result, usage)


@pytest.mark.parametrize("hooks", [[], [Forgiving()]])
def test_a_journal_that_cannot_write_ends_the_step(hooks: list[Any]) -> None:
    """A result that is not recorded is not given to the model."""

    async def pay() -> str:
        return "paid"

    agent = _calling(ToolCallPart("pay", {}, tool_call_id="p"), tools=[pay], capabilities=hooks)
    journal = Full()
    with pytest.raises(StoreError, match="disk full"):
        asyncio.run(request_of(agent, journal).run())
    assert "2" not in journal.intents
