"""A scheduled job that runs exactly once per night, with two workers: `python examples/nightly_job.py`."""

import datetime as dt

import trio

from flujo_actors import AsyncRunClient, Flujo, MemoryStore, Pipeline, Step

now = [dt.datetime(2026, 11, 17, 1, 59, 59, tzinfo=dt.UTC).timestamp()]
store = MemoryStore(wall=lambda: now[0])  # a clock for this example; "postgresql://…" in production


async def report(night: str) -> str:
    return f"report of {night}"


flujo = Flujo(Pipeline([Step("report", report)], name="nightly"), store=store)


async def main() -> None:
    flujo.schedule("nightly", cron="0 2 * * *", zone="UTC", input=lambda at: at.date().isoformat())
    now[0] += 1
    async with AsyncRunClient(store) as client:
        for night in range(3):
            async with flujo.worker(), flujo.worker():
                while len(await client.list(status="completed")) <= night:  # noqa: ASYNC110
                    await trio.sleep(0.02)
            now[0] += 24 * 3600
        for run in reversed(await client.list(order="created")):
            print(run.run_id, "->", (await client.wait(run.run_id)).output)


if __name__ == "__main__":
    trio.run(main)
