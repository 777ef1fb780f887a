"""A FastAPI application with an inbox: refunds of several tenants, answered by the people of each.

    uvicorn fastapi_inbox:app --app-dir examples
    curl -X POST localhost:8000/refunds -H 'x-tenant: 7' -H 'content-type: application/json' -d '{"amount": 900}'
    curl localhost:8000/inbox -H 'x-tenant: 7'
    curl -X POST localhost:8000/answers -H 'x-tenant: 7' -H 'content-type: application/json' \
        -d '{"token": "…", "answer": {"option": "approve", "comment": "has a receipt"}}'
    curl -N localhost:8000/runs/RUN/events -H 'x-tenant: 7'

Requests only submit runs, read them and answer questions; a worker executes them. It is part of this process here, and
`flujo-actors worker` on other machines. Labels keep the tenants apart: a run of another tenant is 404.
"""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import Response
from pydantic import BaseModel

from flujo_actors import AlreadyAnswered, AsyncRunClient, Flujo, InvalidAnswer, NotPaused, RunNotFound, Step
from flujo_actors.protocols.sse import sse_response

# --- the pipeline -----------------------------------------------------------------------------------------------


def question(amount: int, context: Any) -> str:
    return f"Refund {amount} dollars?"


async def pay(amount: int, *, labels: Mapping[str, str]) -> str:
    return f"refunded {amount} dollars of tenant {labels['tenant']}"


REFUND = Step.approval("approve", question, to="accounting", comment_required=True) >> Step("pay", pay)


# --- requests of one tenant -------------------------------------------------------------------------------------


class Refund(BaseModel):
    amount: int


class Answer(BaseModel):
    token: str
    answer: Any


def tenant_of(x_tenant: Annotated[str, Header()]) -> str:
    """The tenant of a request: a real server reads it from the session of the user."""
    return x_tenant


Tenant = Annotated[str, Depends(tenant_of)]


class Inbox:
    """The runs of one tenant, as its people see them."""

    def __init__(self, client: AsyncRunClient) -> None:
        self._client = client

    async def questions(self, tenant: str) -> list[dict[str, Any]]:
        """Its open questions, the nearest deadline first, each with the schema of its answer."""
        found = await self._client.questions(labels={"tenant": tenant}, order="due", limit=50)
        return [
            {"run": each.run_id, "token": each.state_token, "message": each.message, "schema": each.schema}
            for each in found
        ]

    async def answer(self, tenant: str, answer: Answer) -> None:
        """Give an answer; refusals are HTTP errors with the reason."""
        waiting = await self._client.questions(labels={"tenant": tenant})
        if answer.token not in {each.state_token for each in waiting}:
            raise HTTPException(404, "there is no such question")
        try:
            await self._client.answer(answer.token, answer.answer, by=f"accounting of {tenant}")
        except InvalidAnswer as error:
            raise HTTPException(422, str(error)) from error
        except (AlreadyAnswered, NotPaused) as error:
            raise HTTPException(409, str(error)) from error

    async def check(self, tenant: str, run_id: str) -> None:
        """A run of another tenant is one that does not exist."""
        try:
            info = await self._client.get(run_id)
        except RunNotFound as error:
            raise HTTPException(404, "there is no such run") from error
        if info.labels.get("tenant") != tenant:
            raise HTTPException(404, "there is no such run")


# --- the application --------------------------------------------------------------------------------------------


def make_app(store: str) -> FastAPI:
    """The application on a store: a file here, a database that its workers share elsewhere."""
    flujo = Flujo(REFUND, store=store)
    client = AsyncRunClient(store)
    inbox = Inbox(client)

    @asynccontextmanager
    async def working(_: FastAPI) -> AsyncIterator[None]:
        async with client, flujo.worker():
            yield

    app = FastAPI(lifespan=working)

    @app.post("/refunds", status_code=202)
    async def submit(refund: Refund, tenant: Tenant) -> dict[str, str]:
        return {"run": await flujo.submit(refund.amount, labels={"tenant": tenant})}

    @app.get("/inbox")
    async def questions(tenant: Tenant) -> list[dict[str, Any]]:
        return await inbox.questions(tenant)

    @app.post("/answers", status_code=204)
    async def answers(answer: Answer, tenant: Tenant) -> None:
        await inbox.answer(tenant, answer)

    @app.get("/runs/{run_id}/events", response_model=None)
    async def events(request: Request, run_id: str, tenant: Tenant) -> Response:
        await inbox.check(tenant, run_id)
        return sse_response(request, client, run_id)

    return app


app = make_app(f"sqlite:///{Path(tempfile.gettempdir()) / 'refunds.db'}")
