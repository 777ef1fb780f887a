"""A pipeline as an AG-UI agent: its stream, its interrupts, and the answers to them."""

from __future__ import annotations

import json
import shutil
import subprocess
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.served import served
from flujo_actors import Flujo, Step, make_agent_async
from flujo_actors.protocols.ag_ui import ag_ui_app
from flujo_actors.testing import CallTool, scripted_model

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The loops that servers bring."""
    return str(request.param)


async def words(topic: str) -> AsyncIterator[str]:
    for word in ("All ", "about ", topic):
        yield word


def request(run_id: str = "r1", text: str = "tea", **more: Any) -> dict[str, Any]:
    said = [{"id": "m1", "role": "user", "content": text}]
    given = {
        "threadId": "t",
        "runId": run_id,
        "messages": said,
        "state": {},
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }
    return {**given, **more}


async def told(flujo: Flujo[Any, Any, Any], body: dict[str, Any]) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(ag_ui_app(flujo)), base_url="http://agent") as http:
        answer = await http.post("/", json=body)
    assert answer.status_code == 200, answer.text
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


async def test_a_run_is_a_stream_of_steps_and_text():
    """Started, the text piece by piece, finished."""
    events = await told(Flujo(Step("write", words)), request())
    assert kinds(events) == [
        "RUN_STARTED",
        "STEP_STARTED",
        "TEXT_MESSAGE_START",
        *["TEXT_MESSAGE_CONTENT"] * 3,
        "TEXT_MESSAGE_END",
        "STEP_FINISHED",
        "STATE_SNAPSHOT",
        "RUN_FINISHED",
    ]
    assert "".join(event.get("delta", "") for event in events) == "All about tea"
    assert events[-1]["result"] == "All about tea"
    assert events[-1]["outcome"] == {"type": "success"}


async def test_an_output_that_was_not_streamed_is_a_message_of_its_own():
    """What the run gives is told, whoever made it."""

    async def count(text: str) -> dict[str, int]:
        return {"letters": len(text)}

    events = await told(Flujo(Step("count", count)), request())
    assert [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"] == ['{"letters":3}']


async def test_a_hundred_steps_of_one_name_are_a_hundred_steps():
    """A step is named by its path, so that clients can tell them apart."""
    branches = Step.map_over("each", Step("same", words))
    events = await told(Flujo(Step("list", lambda text: [text] * 100) >> branches), request())
    begun = [event["stepName"] for event in events if event["type"] == "STEP_STARTED"]
    assert len(begun) == len(set(begun)) == 102
    messages = [event["messageId"] for event in events if event["type"] == "TEXT_MESSAGE_START"]
    assert len(set(messages)) >= 100


async def test_a_tool_call_is_told_with_its_arguments_and_its_result():
    """Start, arguments, end, result."""

    def book(city: str) -> str:
        return f"booked {city}"

    model = scripted_model(CallTool("book", {"city": "Oslo"}), "Done.")
    events = await told(Flujo(Step("travel", make_agent_async(model, "Travel.", tools=[book]))), request())
    calls = [event for event in events if event["type"].startswith("TOOL_CALL")]
    assert kinds(calls) == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"]
    assert (calls[0]["toolCallName"], json.loads(calls[1]["delta"])) == ("book", {"city": "Oslo"})
    assert calls[3]["content"] == "booked Oslo"


@pytest.mark.parametrize("durable", [False, True])
async def test_a_pause_is_an_interrupt_and_its_answer_resumes(durable: bool, tmp_path: Path):
    """With the schema of the answer; the token is checked where the run is kept."""
    store = f"sqlite:///{tmp_path}/runs.db" if durable else None
    pipeline = Step("write", words) >> Step.human_in_the_loop("approve", "Publish it?", input_schema=bool)
    flujo = Flujo(pipeline, store=store)
    events = await told(flujo, request())
    outcome = events[-1]["outcome"]
    assert (outcome["type"], len(outcome["interrupts"])) == ("interrupt", 1)
    interrupt = outcome["interrupts"][0]
    assert (interrupt["message"], interrupt["responseSchema"]["type"]) == ("Publish it?", "boolean")
    refused = [{"interruptId": interrupt["id"], "status": "resolved", "payload": "perhaps"}]
    assert kinds(await told(flujo, request("r2", resume=refused)))[-1] == "RUN_ERROR"
    answered = [{"interruptId": interrupt["id"], "status": "resolved", "payload": True}]
    assert (await told(flujo, request("r3", resume=answered)))[-1]["result"] is True
    assert kinds(await told(flujo, request("r4", resume=answered)))[-1] == "RUN_ERROR"


async def test_the_id_of_a_client_may_only_start_a_run(tmp_path: Path):
    """A run that exists is not touched by whoever guesses its id."""
    flujo = Flujo(Step("write", words), store=f"sqlite:///{tmp_path}/runs.db")
    await told(flujo, request("mine"))
    last = (await told(flujo, request("mine")))[-1]
    assert (last["type"], last["code"]) == ("RUN_ERROR", "RunExists")


async def test_a_failed_run_is_an_error_and_an_aborted_one_is_cancelled():
    """Neither is told as a success."""
    from flujo_actors import Aborted

    async def fail(text: str) -> str:
        raise ValueError("no tea")

    async def abort(text: str) -> Aborted:
        return Aborted(reason="enough")

    failed = (await told(Flujo(Step("fail", fail)), request()))[-1]
    assert failed["type"] == "RUN_ERROR"
    assert "no tea" in failed["message"]
    assert (await told(Flujo(Step("abort", abort)), request()))[-1]["outcome"] == {"type": "cancelled"}


async def test_the_state_of_a_client_sets_the_context():
    """And comes back as it was left."""

    async def greet(text: str, *, context: Any) -> str:
        context.greeted = context.user
        return f"Hello {context.user}"

    events = await told(Flujo(Step("greet", greet), initial_context_data={"user": ""}), request(state={"user": "Ada"}))
    assert events[-1]["result"] == "Hello Ada"
    snapshot = next(event["snapshot"] for event in events if event["type"] == "STATE_SNAPSHOT")
    assert snapshot == {"user": "Ada", "greeted": "Ada"}


async def test_what_is_no_request_is_refused():
    """With a sentence."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(ag_ui_app(Flujo(Step("w", words)))), base_url="http://a"
    ) as http:
        assert (await http.post("/", json={"threadId": 1})).status_code == 422


OFFICIAL = """
import { HttpAgent } from "@ag-ui/client";
const url = process.argv[2];
const agent = new HttpAgent({ url, initialMessages: [{ id: "1", role: "user", content: "tea" }] });
const first = [];
await agent.runAgent({ runId: "r1" }, { onEvent: ({ event }) => { first.push(event); } });
const finished = first.at(-1);
const interrupt = finished.outcome.interrupts[0];
const second = [];
await agent.runAgent(
  { runId: "r2", resume: [{ interruptId: interrupt.id, status: "resolved", payload: true }] },
  { onEvent: ({ event }) => { second.push(event); } },
);
console.log(JSON.stringify({ text: agent.messages.at(-1)?.content, asks: interrupt, end: second.at(-1) }));
"""


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_the_official_client_streams_is_interrupted_and_resumes(anyio_backend: str, tmp_path: Path):
    """`@ag-ui/client` from npm, against a real server and a durable run."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("NO NODE: the official AG-UI client was not tried; install node and npm")
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--silent", "@ag-ui/client@1.0.0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    if installed.returncode:
        pytest.skip(f"NO CLIENT: @ag-ui/client could not be installed: {installed.stderr[-300:]}")
    script = tmp_path / "client.mjs"
    script.write_text(textwrap.dedent(OFFICIAL))
    pipeline = Step("write", words) >> Step.human_in_the_loop("approve", "Publish it?", input_schema=bool)
    flujo = Flujo(pipeline, store=f"sqlite:///{tmp_path}/runs.db")
    with served(ag_ui_app(flujo)) as base:
        done = subprocess.run(["node", str(script), base], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["asks"]["message"] == "Publish it?"
    assert (said["end"]["type"], said["end"]["result"]) == ("RUN_FINISHED", True)
