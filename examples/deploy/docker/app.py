"""The application of this directory: web processes serve `app`, workers execute `flujo`.

A step of it runs on the workers of the queue `gpu`.
"""

import os

from fastapi import FastAPI

from flujo_actors import AsyncRunClient, Flujo, Pipeline, Step
from flujo_actors.page import run_page

STORE = os.environ["FLUJO_STORE"]


async def draft(topic: str) -> str:
    return f"A letter about {topic}."


def illustrate(letter: str) -> str:
    return f"{letter} (with a picture)"


flujo = Flujo(
    Pipeline([Step("draft", draft), Step("illustrate", illustrate, runs_on="gpu")], name="letters"),
    store=STORE,
    engine="postgres",
)
runs = AsyncRunClient(STORE)
app = FastAPI()
app.mount("/runs", run_page(STORE, auth=os.environ.get("PAGE_TOKEN"), flujos=[flujo]))  # no token: this machine only


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/letters", status_code=202)
async def submit(topic: str) -> dict[str, str]:
    return {"run_id": await flujo.submit(topic)}


@app.get("/letters/{run_id}")
async def show(run_id: str) -> dict[str, object]:
    info, result = await runs.get(run_id), await runs.state(run_id)
    return {"state": info.state, "output": result.output}
