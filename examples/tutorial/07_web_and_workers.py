"""Tutorial 7, web and workers: submit in one process, execute in another. Save it as `app.py`."""

from fastapi import FastAPI

from flujo_actors import AsyncRunClient, Flujo, Step

STORE = "sqlite:///desk.db"  # "postgresql://…" for more than one machine


async def answer(message: str) -> str:
    return f"We received: {message}"


flujo = Flujo(Step("answer", answer), store=STORE)
app = FastAPI()


@app.post("/tickets", status_code=202)
async def submit(message: str) -> dict[str, str]:
    return {"run_id": await flujo.submit(message)}


@app.get("/tickets/{run_id}")
async def show(run_id: str) -> dict[str, object]:
    async with AsyncRunClient(STORE) as client:
        info = await client.get(run_id)
        result = await client.state(run_id)
    return {"state": info.state, "output": result.output}
