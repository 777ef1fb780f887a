"""A FastAPI application that streams a run as server-sent events.

    uvicorn fastapi_app:app --app-dir examples
    curl -N -X POST localhost:8000/drafts -H 'content-type: application/json' -d '{"topic": "tea"}'
    curl -N -X POST localhost:8000/answers -H 'content-type: application/json' -d '{"token": "…", "answer": true}'
    # and open http://localhost:8000/runs/ to see the runs, and to answer them

Every outcome is one event: its name is the kind of outcome, its data the outcome's JSON. The run pauses until
an editor answers; the token is in the `paused` event, and is no secret: a real server checks who answers. A client that
hangs up ends the run: the step that was at work is cancelled, and its cleanup is over before the request is.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Send

from flujo_actors import Flujo, InvalidAnswer, MemoryStore, NotPaused, RunHandle, Step, StepOutcome, run_page, to_json

# --- the pipeline: steps of an asyncio application are asyncio coroutines ---------------------------------------


async def write(topic: str) -> AsyncIterator[str]:
    for word in f"All you need to know about {topic} fits into one sentence.".split(" "):
        await asyncio.sleep(0.01)
        yield word + " "


async def publish(approved: bool) -> str:
    return "published" if approved else "binned"


PIPELINE = (
    Step("write", write)
    >> Step.human_in_the_loop("editor", "Shall this be published?", input_schema=bool)
    >> Step("publish", publish)
)


# --- outcomes as server-sent events -----------------------------------------------------------------------------


class OutcomeStream(StreamingResponse):
    """A response that lasts as long as its run, and a run that lasts no longer than its response."""

    def __init__(self, outcomes: Any, first: StepOutcome) -> None:
        super().__init__(_events(outcomes, first), media_type="text/event-stream")
        self._outcomes = outcomes

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            await self._outcomes.aclose()


async def _events(outcomes: Any, first: StepOutcome) -> AsyncIterator[str]:
    yield _event(first)
    async for outcome in outcomes:
        yield _event(outcome)


def _event(outcome: StepOutcome) -> str:
    return f"event: {type(outcome).__name__.lower()}\ndata: {to_json(outcome)}\n\n"


async def streamed(run: RunHandle) -> OutcomeStream:
    """The response to a run that has begun; an answer that cannot be taken is an HTTP error instead."""
    outcomes = aiter(run)
    try:
        return OutcomeStream(outcomes, await anext(outcomes))
    except InvalidAnswer as error:
        raise HTTPException(422, str(error)) from error
    except NotPaused as error:
        raise HTTPException(409, str(error)) from error


# --- the application --------------------------------------------------------------------------------------------


class Order(BaseModel):
    topic: str


class Answer(BaseModel):
    token: str
    answer: Any


def make_app(pipeline: Any = PIPELINE) -> FastAPI:
    """The application around any pipeline that starts with a topic."""
    store = MemoryStore()  # a server of yours has a database: "postgresql://…"
    app, flujo = FastAPI(), Flujo(pipeline, store=store)
    app.mount("/runs", run_page(store, flujos=[flujo]))

    @app.post("/drafts")
    async def start(order: Order) -> StreamingResponse:
        return await streamed(flujo.run_async(order.topic))

    @app.post("/answers")
    async def resume(answer: Answer) -> StreamingResponse:
        return await streamed(flujo.resume_async(answer.token, answer.answer))

    return app


app = make_app()
