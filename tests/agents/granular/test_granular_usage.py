"""What granular steps cost: every unit counted once, recalled ones not billed again."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import pytest
from mortal_journal import Died, Fate, MortalJournal
from payers import PRICES, Bank, payer, request_of, streamed, total_of, turn_of
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from flujo_actors._agents.prices import Pricing
from flujo_actors._agents.request_meter import AgentCall
from flujo_actors._core.quota import Amount, Quota
from flujo_actors._core.telemetry_events import ModelStarted, ToolStarted
from flujo_actors._core.usage import NO_USAGE, Usage, UsageLimits
from flujo_actors.errors import UsageLimitExceededError

WHOLE = Usage(input_tokens=300, output_tokens=30, requests=3, tool_calls=4, cost_usd=0.0036)
"""Of a run with two turns of payments and the last word."""


def _call(**facts: Any) -> AgentCall:
    return AgentCall(caller="payer", pricing=Pricing(PRICES), **facts)


def _quota(tokens: int) -> Quota:
    return Quota(UsageLimits(total_tokens_limit=tokens), owner="the run", guess=Amount(tokens=1))


def _rounded(usage: Usage) -> Usage:
    return attrs.evolve(usage, cost_usd=round(usage.cost_usd, 9))


async def _life(bank: Bank, journal: MortalJournal, call: AgentCall, *, stream: bool = False) -> None:
    request = request_of(payer(bank, journal.fate, turns=2), journal, call=call)
    await (streamed(request) if stream else request.run())


@pytest.mark.parametrize("point", range(0, 46, 3))
def test_a_resumed_run_counts_every_committed_unit_once(point: int) -> None:
    """Wherever the first process died, the second one's total is that of a whole run."""
    bank, journal = Bank(), MortalJournal(Fate(deadly=point))
    with pytest.raises(Died):
        asyncio.run(_life(bank, journal, _call()))
    call = _call()
    asyncio.run(_life(bank, journal.in_another_process(), call))
    assert _rounded(total_of(call)) == WHOLE


def test_a_streamed_run_costs_what_a_plain_one_costs() -> None:
    """Also when it is replayed; the function model estimates what it streams."""
    bank, journal, live, again = Bank(), MortalJournal(), _call(), _call()
    asyncio.run(_life(bank, journal, live, stream=True))
    asyncio.run(_life(bank, journal.in_another_process(), again, stream=True))
    assert total_of(live).requests == 3
    assert _rounded(total_of(again)) == _rounded(total_of(live))


def test_what_this_process_has_counted_is_not_counted_again() -> None:
    """A retry in the same process goes on from the units of the attempt before, which has paid for them."""
    bank, journal, quota = Bank(), MortalJournal(), _quota(10_000)
    asyncio.run(_life(bank, journal, _call(quotas=(quota,))))
    spent = quota.spent
    for key, unit in journal.results.items():
        journal.results[key] = attrs.evolve(unit, counted=True)
    call = _call(quotas=(quota,))
    asyncio.run(_life(bank, journal.in_another_process(), call))
    assert (call.finish(), quota.spent) == (NO_USAGE, spent)


def test_limits_hold_over_a_death() -> None:
    """What the first process spent leaves less for the second; the turn that does not fit is not made."""
    bank, journal = Bank(), MortalJournal()
    asyncio.run(_life(bank, journal, _call()))
    last = journal.results.pop("3")
    assert last.usage.tokens == 110
    quota = _quota(250)
    with pytest.raises(UsageLimitExceededError, match="220 of 250 tokens"):
        asyncio.run(_life(bank, journal.in_another_process(), _call(quotas=(quota,))))
    assert bank.requests == 3


def test_telemetry_is_told_of_what_is_done_now() -> None:
    """A recalled request is no request, and a recalled tool call is no call."""
    told: list[Any] = []
    bank, journal = Bank(), MortalJournal()

    def emit(kind: Any, **facts: Any) -> None:
        told.append(kind)

    asyncio.run(_life(bank, journal, _call(emit=emit)))
    assert (told.count(ModelStarted), told.count(ToolStarted)) == (3, 4)
    told.clear()
    asyncio.run(_life(bank, journal.in_another_process(), _call(emit=emit)))
    assert told == []


# --- agents inside tools ---


def _speaker(tokens: int) -> Agent[None, str]:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("word")], usage=RequestUsage(input_tokens=tokens, output_tokens=1))

    return Agent(FunctionModel(answer))


def _delegating() -> Agent[None, str]:
    """An agent whose two tools, called in parallel, ask agents of their own."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        usage = RequestUsage(input_tokens=100, output_tokens=10)
        calls = [ToolCallPart("ask", {"tokens": 1000}), ToolCallPart("ask", {"tokens": 5000})]
        return ModelResponse(parts=[TextPart("done")] if turn_of(messages) else calls, usage=usage, model_name="payer")

    agent: Agent[None, str] = Agent(FunctionModel(answer))

    @agent.tool
    async def ask(ctx: RunContext[None], tokens: int) -> str:
        await asyncio.sleep(0)
        return (await _speaker(tokens).run("speak", usage=ctx.usage)).output

    return agent


def test_what_agents_inside_of_parallel_tools_use_is_theirs() -> None:
    """Each unit has its own part of it, the run's count has all of it, and so has a replay."""
    journal, call = MortalJournal(), _call()
    result = asyncio.run(request_of(_delegating(), journal, call=call).run())
    of_tools = sorted(unit.usage.input_tokens for key, unit in journal.results.items() if ":" in key)
    assert of_tools == [1000, 5000]
    assert result.usage.input_tokens == total_of(call).input_tokens == 6200
    assert (total_of(call).requests, total_of(call).tool_calls) == (4, 2)
    again = _call()
    replayed = asyncio.run(request_of(_delegating(), journal.in_another_process(), call=again).run())
    assert replayed.usage.input_tokens == 6200
    assert _rounded(total_of(again)) == _rounded(total_of(call))


class Swap(AbstractCapability[Any]):
    """Puts another model in the place of the agent's, at the last moment."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="innermost")

    def get_wrapper_model(self, model: Model) -> Model:
        return self._model


def test_a_model_that_is_put_in_at_the_last_moment_is_metered_once() -> None:
    """Also for an agent whose own model is not known before it runs, as under `override`."""
    bank, call = Bank(), _call()
    agent = payer(bank, Fate(), turns=0)
    assert isinstance(agent.model, Model)
    agent = payer(bank, Fate(), turns=0, capabilities=[Swap(agent.model)])

    async def asked() -> None:
        with agent.override(model=TestModel()):
            await request_of(agent, MortalJournal(), call=call).run()

    asyncio.run(asked())
    assert (bank.requests, call.usage.requests, call.usage.input_tokens) == (1, 1, 100)
