"""Tutorial 7, web and workers: submit in one process, execute in another. Save it as `app.py`."""

from fastapi import FastAPI, Request, Response

from flujo_actors import AsyncRunClient, Flujo, Step, make_agent_async
from flujo_actors.protocols.sse import sse_response
from flujo_actors.testing import scripted_model

STORE = "sqlite:///desk.db"  # "postgresql://…" for more than one machine

model = scripted_model("We received your message.", forever=True)
# model = "openai:gpt-5"     # a real model: needs OPENAI_API_KEY and the extra `openai`

flujo = Flujo(Step("answer", make_agent_async(model, "You answer customers.")), store=STORE)
runs = AsyncRunClient(STORE)
app = FastAPI()


@app.post("/tickets", status_code=202)
async def submit(message: str) -> dict[str, str]:
    return {"run_id": await flujo.submit(message)}


@app.get("/tickets/{run_id}")
async def show(run_id: str) -> dict[str, object]:
    info, result = await runs.get(run_id), await runs.state(run_id)
    return {"state": info.state, "output": result.output}


@app.get("/tickets/{run_id}/events", response_class=Response)
async def events(request: Request, run_id: str) -> Response:
    return sse_response(request, runs, run_id)
