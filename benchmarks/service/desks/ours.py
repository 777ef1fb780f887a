"""The desk on this library."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import BaseModel

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
from flujo_actors import Chunk, Flujo, Pipeline, Step, make_agent_async

NAME = f"openai-chat:{MODEL}"


class Notes(BaseModel):
    """What the run knows."""

    ticket: Ticket | None = None
    triage: Triage | None = None
    draft: str = ""
    approved: bool = True

    @property
    def the_ticket(self) -> Ticket:
        assert self.ticket is not None
        return self.ticket


async def receive(ticket: Ticket) -> dict[str, Ticket]:
    return {"ticket": ticket}


def keep_triage(triage: Triage, *, context: Notes) -> Triage:
    context.triage = triage
    return triage


def keep_draft(draft: str, *, context: Notes) -> str:
    context.draft = draft
    return draft


def decide(approved: bool, *, context: Notes) -> str:
    context.approved = approved
    return context.draft


async def send(draft: str, *, context: Notes, idempotency_key: str) -> str:
    return await mail(context.draft) if context.approved else "not sent"


def risk(draft: str, context: Notes) -> str:
    return context.triage.risk if context.triage else "high"


approve = Step.human_in_the_loop(
    "approve", lambda draft, context: f"Send this to {context.the_ticket.customer}?\n{draft}", input_schema=bool
)
classify = make_agent_async(NAME, TO_TRIAGE, output_type=Triage)
feel = make_agent_async(NAME, TO_FEEL)
draft = make_agent_async(NAME, TO_DRAFT, tools=[order_status])

DESK = Pipeline(
    [
        Step("receive", receive, updates_context=True),
        Step("classify", classify, input=lambda previous, context: context.ticket, max_retries=1, timeout_s=30),
        Step("keep triage", keep_triage),
        Step.parallel(
            "look around",
            {
                "articles": Step("articles", articles_on),
                "sentiment": Step("sentiment", feel, input=lambda previous, context: context.the_ticket.text),
            },
        ),
        Step(
            "draft",
            draft,
            input=lambda found, context: question(context.the_ticket, found["articles"], found["sentiment"]),
            timeout_s=60,
        ),
        Step("keep draft", keep_draft),
        Step.branch_on("risk", risk, {"high": approve >> Step("decide", decide), "low": Step("at once", keep_draft)}),
        Step("send", send),
    ],
    name="support desk",
)


class Desk:
    """The pipeline on a store."""

    def __init__(self, flujo: Flujo[Ticket, str, Notes]) -> None:
        self._flujo = flujo

    async def awaited(self, number: int) -> str:
        result = await self._flujo.run_async(Ticket.number(number))
        return str(result.output)

    async def watched(self, number: int) -> tuple[str, int]:
        pieces = 0
        async with self._flujo.run_async(Ticket.number(number)) as run:
            async for outcome in run:
                pieces += isinstance(outcome, Chunk)
            return str((await run).output), pieces


@asynccontextmanager
async def opened(store: str) -> AsyncIterator[Desk]:
    """A desk on this store."""
    yield Desk(Flujo(DESK, context_model=Notes, store=store or None))


if __name__ == "__main__":
    serve(
        {"memory": opened, "sqlite": lambda path: opened(f"sqlite:///{path}"), "postgres": opened},
        ["flujo-actors", "pydantic-ai-slim", "openai", "trio", "psycopg"],
    )
