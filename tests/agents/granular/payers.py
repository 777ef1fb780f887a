"""Agents that pay: two payments in parallel in every turn, counted in a book outside of the process."""

from __future__ import annotations

import asyncio
import collections
import math
from collections.abc import AsyncIterator
from typing import Any

import attrs
from mortal_journal import Fate, MortalJournal
from pydantic_ai import Agent, AgentRunResult, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.usage import RequestUsage

from flujo_actors._agents.granular.granular_request import GranularRequest
from flujo_actors._agents.granular.units import OnUncertain, current_unit
from flujo_actors._agents.prices import Pricing
from flujo_actors._agents.request_meter import AgentCall
from flujo_actors._core.settings_model import Price, UsageSettings
from flujo_actors._core.usage import Usage

PRICES = UsageSettings(prices={"payer": Price(input_usd=10.0, output_usd=20.0)})
SCOPE = "run-1:pay/all"


@attrs.define
class Bank:
    """What the world outside saw: it does not forget when a process dies."""

    requests: int = 0
    payments: collections.Counter[str] = attrs.field(factory=collections.Counter)
    """By `tool_call_id`."""
    keys: dict[str, str] = attrs.field(factory=dict)
    """Idempotency key by `tool_call_id`."""
    suspicions: list[bool] = attrs.field(factory=list)


def turn_of(messages: list[ModelMessage]) -> int:
    """How many responses there were."""
    return sum(isinstance(message, ModelResponse) for message in messages)


def payer(bank: Bank, fate: Fate, *, turns: int = 4, **config: Any) -> Agent[None, Any]:
    """An agent that makes two payments in each of its turns and then says so."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        bank.requests += 1
        fate.reach("inside the model")
        turn = turn_of(messages)
        if turn < turns:
            parts: Any = [TextPart(f"turn {turn}. "), *(ToolCallPart("pay", {"to": f"{turn}{x}"}) for x in "ab")]
        elif info.output_tools:
            parts = [ToolCallPart(info.output_tools[0].name, {"paid": turns * 2})]
        else:
            parts = [TextPart("all paid")]
        return ModelResponse(parts=parts, usage=RequestUsage(input_tokens=100, output_tokens=10), model_name="payer")

    async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        turn = turn_of(messages)
        bank.requests += 1
        for word in ("turn ", f"{turn}. ") if turn < turns else ("all ", "paid"):
            fate.reach("inside the model")
            yield word
        if turn < turns:
            for place, x in enumerate("ab"):
                arguments = f'{{"to": "{turn}{x}"}}'
                yield {place + 1: DeltaToolCall("pay", arguments, tool_call_id=f"call-{turn}{x}")}

    agent = Agent(FunctionModel(answer, stream_function=say, model_name="payer"), **config)

    @agent.tool
    async def pay(ctx: RunContext[None], to: str) -> str:
        assert ctx.tool_call_id is not None
        unit = current_unit()
        assert unit is not None
        assert bank.keys.setdefault(ctx.tool_call_id, unit.idempotency_key) == unit.idempotency_key
        fate.reach(f"inside the tool {to}")
        bank.payments[ctx.tool_call_id] += 1
        bank.suspicions.append(unit.may_have_run_before)
        await asyncio.sleep(0)
        fate.reach(f"at the tool's end {to}")
        return f"paid {to}"

    return agent


def request_of(
    agent: Agent[Any, Any],
    journal: MortalJournal,
    *,
    max_turns: int = 20,
    on_uncertain: OnUncertain = "rerun",
    call: AgentCall | None = None,
    **options: Any,
) -> GranularRequest:
    """A request as a step makes it."""
    return GranularRequest(
        agent=agent,
        prompt="pay everybody",
        call=call or AgentCall(caller="payer", pricing=Pricing(PRICES)),
        journal=journal,
        scope=SCOPE,
        max_turns=max_turns,
        on_uncertain=on_uncertain,
        options=options,
    )


async def streamed(request: GranularRequest) -> tuple[list[str], AgentRunResult[Any]]:
    """The pieces of a stream, and its result."""
    heard = Heard()
    return heard.pieces, await request.run(heard)


class Heard:
    """An intake that keeps what it takes; after so many pieces it has no room."""

    def __init__(self, room_for: float = math.inf) -> None:
        self.pieces: list[str] = []
        self.full = asyncio.Event()
        self._room_for = room_for

    def accept(self, piece: str) -> bool:
        self.pieces.append(piece)
        return len(self.pieces) < self._room_for

    async def wait_for_room(self) -> None:
        self.full.set()
        await asyncio.Event().wait()


def total_of(call: AgentCall) -> Usage:
    """Everything an attempt used: what was metered, and what tools used through nested agents."""
    return call.usage + call.nested()
