"""The desk on pydantic-ai and asyncio alone: nothing is supervised, recorded or resumed, so there is only memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai import Agent, AgentRunResultEvent, PartDeltaEvent, PartStartEvent
from pydantic_ai.models.openai import OpenAIChatModel

from benchmarks.service.serving import serve
from benchmarks.service.support import (
    MODEL,
    TO_DRAFT,
    TO_FEEL,
    TO_TRIAGE,
    Ticket,
    Triage,
    articles_on,
    mail,
    order_status,
    question,
)

CLIENT = OpenAIChatModel(MODEL)
classify = Agent(CLIENT, system_prompt=TO_TRIAGE, output_type=Triage)
feel = Agent(CLIENT, system_prompt=TO_FEEL)
draft = Agent(CLIENT, system_prompt=TO_DRAFT, tools=[order_status])


async def approved(ticket: Ticket, triage: Triage) -> bool:
    """A program that keeps nothing has nobody to ask."""
    return triage.risk == "low"


class Desk:
    """A function with the three agents."""

    async def awaited(self, number: int) -> str:
        ticket = Ticket.number(number)
        triage = (await classify.run(ticket.model_dump_json())).output
        articles, felt = await asyncio.gather(articles_on(triage), feel.run(ticket.text))
        drafted = (await draft.run(question(ticket, articles, felt.output))).output
        return await mail(drafted) if await approved(ticket, triage) else "not sent"

    async def watched(self, number: int) -> tuple[str, int]:
        ticket, seen = Ticket.number(number), Watcher()
        triage = await seen.run(classify, ticket.model_dump_json())
        articles, felt = await asyncio.gather(articles_on(triage), seen.run(feel, ticket.text))
        drafted = await seen.run(draft, question(ticket, articles, felt))
        return (await mail(drafted) if await approved(ticket, triage) else "not sent"), seen.pieces


class Watcher:
    """Sees every event of every agent."""

    def __init__(self) -> None:
        self.pieces = 0

    async def run(self, agent: Agent[None, Any], asked: str) -> Any:
        async with agent.run_stream_events(asked) as events:
            async for event in events:
                if isinstance(event, AgentRunResultEvent):
                    return event.result.output
                self.pieces += isinstance(event, PartStartEvent | PartDeltaEvent)
        raise AssertionError("a run ends with its result")


@asynccontextmanager
async def opened(store: str) -> AsyncIterator[Desk]:
    """Nothing to open."""
    yield Desk()


if __name__ == "__main__":
    serve({"memory": opened}, ["pydantic-ai-slim", "openai"])
