"""Server-sent events of a run: over real HTTP, with reconnects, on FastAPI and Starlette."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.applications import Starlette
from starlette.routing import Route

from examples.served import served
from flujo_actors import AsyncRunClient, Flujo, MemoryStore, Pipeline, RunClient, RunNotFound, Step
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import StoredRun
from flujo_actors.protocols.sse import sse_events, sse_response


async def echo(data: Any) -> Any:
    return data


def asking(store: Any) -> Flujo[Any, Any, Any]:
    return Flujo(Pipeline([Step("a", echo), Step.approval("boss", "Pay?"), Step("b", echo)], name="p"), store=store)


@pytest.fixture
def url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.fixture(params=["fastapi", "starlette"])
def address(request: pytest.FixtureRequest, url: str) -> Iterator[str]:
    """A server with one route, on the store."""
    client = AsyncRunClient(url)

    async def events(request: Request) -> Any:
        return sse_response(request, client, request.path_params["run_id"], heartbeat_s=0.05)

    if request.param == "fastapi":
        app: Any = FastAPI()
        app.get("/runs/{run_id}/events", response_model=None)(events)
    else:
        app = Starlette(routes=[Route("/runs/{run_id}/events", events)])
    with served(app) as address:
        yield address


def read(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of a response, as a browser reads them."""
    event: dict[str, Any] = {}
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if line.startswith(":"):
            yield {"event": "comment"}
        elif line:
            event[name] = value
        elif event:
            yield {**event, "data": json.loads(event["data"])}
            event = {}


def told(address: str, run_id: str, **options: Any) -> list[dict[str, Any]]:
    with httpx.stream("GET", f"{address}/runs/{run_id}/events", timeout=120, **options) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return [each for each in read(response) if each["event"] != "comment"]


def test_the_events_of_a_run_continue_after_a_reconnect(address: str, url: str) -> None:
    """A reader that comes back with the id of its last record misses nothing and gets nothing twice."""
    flujo = asking(url)
    flujo.run(1, run_id="r")
    first: list[dict[str, Any]] = []
    with httpx.stream("GET", f"{address}/runs/r/events", timeout=120) as response:
        for event in read(response):
            first.append(event)
            if any(each["event"] == "paused" for each in first) and first[-1]["event"] == "comment":
                break
    first = [each for each in first if each["event"] != "comment"]
    assert [each["event"] for each in first][-2:] == ["question", "paused"]
    question = first[-2]["data"]
    assert (question["kind"], question["schema"]["required"]) == ("approval", ["option"])
    RunClient(url).answer(question["state_token"], {"option": "approve"})
    flujo.resume("r")
    rest = told(address, "r", headers={"Last-Event-ID": first[-1]["id"]})
    assert rest[-1]["event"] == "ended"
    assert rest[-1]["data"] == {"status": "completed", "state": "completed", "output": 1}
    numbers = [int(each["id"]) for each in (*first, *rest) if "id" in each]
    assert numbers == list(range(1, len(RunClient(url).records("r")) + 1))
    assert rest[0]["data"]["kind"] == "answered"


def test_the_last_seen_record_may_be_a_parameter(address: str, url: str) -> None:
    """An ended run sends the records after it, then `ended`; an unknown run is 404."""
    Flujo(Step("a", echo), store=url).run(1, run_id="r")
    last = len(RunClient(url).records("r"))
    assert [each["event"] for each in told(address, "r", params={"after": 1})] == ["record"] * (last - 2) + ["ended"]
    assert [each["event"] for each in told(address, "r", params={"after": last})] == ["ended"]
    assert told(address, "r", params={"after": "x"})[0]["id"] == "1"
    response = httpx.get(f"{address}/runs/gone/events")
    assert (response.status_code, "gone" in response.json()["detail"]) == (404, True)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_events_are_dicts_for_other_servers(backend: str, url: str) -> None:
    """From a client of either kind, a store or its URL; without content there are no texts of users."""
    asking(url).run({"secret": "data"}, run_id="r")
    RunClient(url).cancel("r", "a private reason")

    async def events(client: Any, **options: Any) -> list[dict[str, Any]]:
        return [each async for each in sse_events(None, client, "r", **options)]

    async def main() -> None:
        whole = await events(url)
        assert [each["event"] for each in whole].count("record") > 2
        assert whole[-1]["data"] == {"status": "aborted", "state": "aborted"}
        assert await events(RunClient(url)) == await events(AsyncRunClient(url)) == whole
        bare = json.dumps(await events(url, content=False))
        assert "Pay?" not in bare
        assert "private reason" not in bare
        with pytest.raises(RunNotFound):
            [each async for each in sse_events(None, url, "gone")]

    anyio.run(main, backend=backend)


class ChangesWhileRead(MemoryStore):
    """A store whose run makes progress between the query of its state and that of its records."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[Callable[[], object]] = []

    def look(self, run_ids: Sequence[RunId]) -> Mapping[RunId, StoredRun]:
        found = super().look(run_ids)
        while self.work:
            self.work.pop()()
        return found


def test_a_question_comes_before_the_pause_that_it_causes() -> None:
    """Also where the run pauses while the stream begins: readers may leave at `paused`."""
    store = ChangesWhileRead()
    flujo = Flujo(Step.approval("boss", "Pay?") >> Step.approval("owner", "Really?"), store=store)
    first = flujo.run(1, run_id="r")
    RunClient(store).answer(first.state_token or "", {"option": "approve"})
    store.work.append(lambda: flujo.resume("r"))
    seen, got = RunClient(store).records("r")[-1].seq, list[str]()

    async def main() -> None:
        async for event in sse_events(None, store, "r", after=seen):
            got.append(event["event"])
            if event["event"] == "paused":
                break

    anyio.run(main)
    assert got[-2:] == ["question", "paused"]


def test_text_of_a_model_is_sent_while_it_is_written() -> None:
    """With the path of its step, without an id, and as the text so far: a reader replaces what it shows."""
    store, heard = MemoryStore(), (anyio.Event(), anyio.Event())

    async def write(data: str) -> AsyncIterator[str]:
        yield "a long answer"
        await heard[0].wait()
        yield " and more"
        await heard[1].wait()
        yield " and its end"

    flujo = Flujo(Step("write", write), store=store)
    got: list[dict[str, Any]] = []

    async def read_events() -> None:
        async for event in sse_events(None, store, "r"):
            got.append(event)
            if event["event"] == "text":
                heard["more" in event["data"]["text"]].set()

    async def main() -> None:
        with anyio.fail_after(120):
            async with anyio.create_task_group() as group:
                await flujo.submit("x", run_id="r")
                group.start_soon(read_events)
                async with flujo.worker(once=True) as worker:
                    await worker.stopped()

    anyio.run(main, backend="trio")
    texts = [each for each in got if each["event"] == "text"]
    assert all("id" not in each and each["data"]["path"] == "write" for each in texts)
    assert texts[0]["data"]["text"] == "a long answer"
    assert next(each["data"]["text"] for each in texts if "more" in each["data"]["text"]) == "a long answer and more"
