"""A support desk: search in help pages, an agent whose refunds a person approves, a web application and a run page.

Web processes serve `desk:app`, workers execute `desk:flujo`. All of them share the database in `FLUJO_STORE`.
`start.py` starts them on this machine, `compose.yaml` in containers.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from flujo_actors import AsyncRunClient, Collection, Flujo, InMemoryRetriever, Pipeline, Step, from_retrieval
from flujo_actors.page import run_page
from flujo_actors.protocols.sse import sse_response
from flujo_actors.testing import CallTool, scripted_model

STORE = os.environ.get("FLUJO_STORE", "sqlite:///desk.db")


def reply(messages: list[ModelMessage]) -> CallTool | str:
    """Answer by the messages alone: any worker can continue the run, and each has a script of its own."""
    return CallTool("refund", {"amount": 900}) if len(messages) == 1 else "Your refund is on its way."


# A real model: MODEL=openai:gpt-5 and OPENAI_API_KEY, with the extra `openai`.
model = os.environ.get("MODEL") or scripted_model(reply, forever=True)


class Help(Collection, name="help"):
    """Pages of the help center."""


pages = InMemoryRetriever(Help)
pages.add("Broken goods are refunded within 30 days.", id="refunds")

clerk = Agent(model, system_prompt="You answer customers from the help pages, and refund broken goods.")


@clerk.tool_plain(requires_approval=True)
async def refund(amount: int) -> str:
    """Refund an amount to the customer."""
    return f"refunded {amount}"


answer = Step.granular("answer", clerk, context_sources=[from_retrieval(Help, top_k=3)])
engine = "postgres" if STORE.startswith("postgresql") else None
flujo = Flujo(Pipeline([answer], name="desk"), store=STORE, engine=engine, retrievers={Help: pages})
runs = AsyncRunClient(STORE)


class Ticket(BaseModel):
    id: str
    message: str


class Answer(BaseModel):
    token: str
    answer: Any
    by: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with runs:
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/runs", run_page(STORE, auth=os.environ.get("PAGE_TOKEN"), flujos=[flujo]))  # no token: this machine only


@app.post("/tickets", status_code=202)
async def submit(ticket: Ticket) -> dict[str, str]:
    """Accept a ticket; the same id again is the same run."""
    return {"run_id": await flujo.submit(ticket.message, run_id=ticket.id, if_exists="return")}


@app.get("/tickets/{run_id}")
async def show(run_id: str) -> dict[str, object]:
    info, result = await runs.get(run_id), await runs.state(run_id)
    return {"state": info.state, "output": result.output}


@app.get("/tickets/{run_id}/events", response_class=Response)
async def events(request: Request, run_id: str) -> Response:
    return sse_response(request, runs, run_id)


@app.get("/questions")
async def questions() -> list[dict[str, object]]:
    """The refunds that wait for a person."""
    waiting = await runs.questions()
    return [
        {"run_id": each.run_id, "token": each.state_token, "tool": each.tool.name, "arguments": each.tool.arguments}
        for each in waiting
        if each.tool
    ]


@app.post("/answers", status_code=204)
async def approve(answer: Answer) -> None:
    """Store the answer of a person: a worker continues the run. A real desk checks who asks, and may."""
    await runs.answer(answer.token, answer.answer, by=answer.by)
