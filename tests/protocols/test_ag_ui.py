"""A pipeline as an AG-UI agent: its stream, its interrupts, and the answers to them."""

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from examples.served import served
from flujo_actors import (
    AssembledContext,
    Collection,
    DeclarationError,
    Flujo,
    InMemoryRetriever,
    MemoryStore,
    Pipeline,
    Step,
    from_retrieval,
    from_state,
    make_agent_async,
)
from flujo_actors.protocols.ag_ui import ag_ui_app
from flujo_actors.testing import CallTool, scripted_model
from kit.npm_packages import npm_packages, run_script

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


async def told(
    flujo: Flujo[Any, Any, Any], body: dict[str, Any], headers: dict[str, str] | None = None, **options: Any
) -> list[dict[str, Any]]:
    transport = httpx.ASGITransport(ag_ui_app(flujo, **options))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as http:
        answer = await http.post("/", json=body, headers=headers)
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


async def test_listed_fields_of_a_clients_state_set_the_context():
    """Others do not, and the server's own context wins; the state comes back as it was left."""

    async def greet(text: str, *, context: Any) -> str:
        context.greeted = context.user
        return f"Hello {context.user} of {context.tenant}"

    flujo = Flujo(Step("greet", greet), initial_context_data={"user": "", "tenant": "acme", "admin": False})
    state = {"user": "Ada", "tenant": "rival", "admin": True}
    events = await told(flujo, request(state=state), state_fields=["user"])
    assert events[-1]["result"] == "Hello Ada of acme"
    snapshot = next(event["snapshot"] for event in events if event["type"] == "STATE_SNAPSHOT")
    assert snapshot == {"user": "Ada", "greeted": "Ada", "tenant": "acme", "admin": False}
    assert (await told(flujo, request("r2", state=state)))[-1]["result"] == "Hello  of acme"

    async def by_header(request: Any) -> dict[str, str]:
        return {"tenant": request.headers["x-tenant"]}

    options = {"context": by_header, "state_fields": ("user", "tenant")}
    events = await told(flujo, request("r3", state=state), {"x-tenant": "globex"}, **options)
    assert events[-1]["result"] == "Hello Ada of globex"


class Manuals(Collection, name="manuals"):
    tenant: str


def own_tenant(data: Any, context: Any) -> Any:
    return context.tenant


@pytest.mark.parametrize("tenant", [from_state("tenant"), from_state(own_tenant), own_tenant])
async def test_a_client_cannot_set_what_a_retrieval_filters_by(tenant: Any):
    """Neither by its state, nor by a declaration that would allow it."""
    manuals = InMemoryRetriever(Manuals)
    manuals.add("tea at 80 degrees", id="a", tenant="acme")
    manuals.add("secret tea at 60 degrees", id="b", tenant="rival")

    async def write(text: str, *, assembled: AssembledContext) -> str:
        return assembled.to_prompt_string()

    source = from_retrieval(Manuals, filters={"tenant": tenant})
    step = Step("write", write, context_sources=[source])
    flujo = Flujo(step, retrievers={Manuals: manuals}, initial_context_data={"tenant": "acme", "draft": ""})
    result = (await told(flujo, request(state={"tenant": "rival"}), state_fields=["draft"]))[-1]["result"]
    assert "80 degrees" in result
    assert "secret" not in result
    with pytest.raises(DeclarationError, match=r"a client may not set 'tenant', because step 'write' filters 'tenant'"):
        ag_ui_app(flujo, state_fields=["draft", "tenant"])


def test_what_is_no_flujo_is_refused():
    """Each refusal says what to pass."""
    step = Step("write", words)
    for wrong, why in [
        ({}, r"pass ag_ui_app\(Flujo\(pipeline\)\)"),
        ({"context": {"tenant": "acme"}}, "context must be a function of the request"),
        ({"state_fields": "draft"}, "state_fields must be a list of field names"),
        ({"execute": "there"}, "execute must be 'here' or 'workers'"),
        ({"execute": "workers"}, r"pass Flujo\(pipeline, store="),
        ({"chunks": ["nothing"]}, "nothing"),
        ({"secret": "short"}, "secret must be a text of at least 32 characters"),
    ]:
        with pytest.raises(DeclarationError, match=why):
            ag_ui_app(Flujo(step) if wrong else step, **wrong)


class City(BaseModel):
    name: str


async def test_the_json_of_a_structured_step_is_no_chat_message():
    """Neither of a step inside the run nor of the last one; `chunks` can ask for it."""
    city = make_agent_async(scripted_model({"name": "Lima"}, forever=True), "Extract.", City)
    say = make_agent_async(scripted_model("Hello.", forever=True), "Greet.")

    async def typed(pipeline: Any, **options: Any) -> str:
        events = await told(Flujo(pipeline), request(), **options)
        return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")

    assert await typed(Step("extract", city) >> Step("say", say, input="x")) == "Hello."
    assert await typed(Step("extract", city)) == ""
    assert "Lima" in await typed(Step("extract", city), chunks=True)
    assert await typed(Step("say", say) >> Step("again", say, input="x"), chunks="last") == "Hello."


@pytest.mark.parametrize("durable", [False, True])
async def test_a_dismissed_interrupt_ends_its_run(durable: bool, tmp_path: Path):
    """As cancelled; the question is gone, and a token of another kind ends nothing."""
    flujo = Flujo(Step.human_in_the_loop("ask", "Publish?"), store=f"sqlite:///{tmp_path}/runs.db" if durable else None)
    token = (await told(flujo, request()))[-1]["outcome"]["interrupts"][0]["id"]
    wrong = [{"interruptId": "r1:0000:ask", "status": "cancelled"}]
    assert kinds(await told(flujo, request("r2", resume=wrong)))[-1] == "RUN_ERROR"
    dismissed = [{"interruptId": token, "status": "cancelled"}]
    assert (await told(flujo, request("r3", resume=dismissed)))[-1]["outcome"] == {"type": "cancelled"}
    answered = [{"interruptId": token, "status": "resolved", "payload": "yes"}]
    assert kinds(await told(flujo, request("r4", resume=answered)))[-1] == "RUN_ERROR"


async def test_the_question_of_another_pipeline_is_not_answered(tmp_path: Path):
    """A token of the same store is refused as unknown, and stays open."""
    store = f"sqlite:///{tmp_path}/runs.db"
    other = Flujo(Pipeline([Step.human_in_the_loop("pay", "Pay?")], name="payroll"), store=store)
    token = (await other.run_async("x", run_id="p")).state_token
    for status in ("resolved", "cancelled"):
        entry = {"interruptId": token, "status": status, "payload": "yes"}
        last = (await told(Flujo(Step("write", words), store=store), request(resume=[entry])))[-1]
        assert (last["type"], last["code"]) == ("RUN_ERROR", "RunNotFound")
    assert (await other.resume_async(str(token), "yes")).status == "completed"


async def test_an_approval_is_an_interrupt_with_a_schema():
    """The answer is an option and a comment."""
    flujo = Flujo(Step.approval("pay", "Pay?"))
    (interrupt,) = (await told(flujo, request()))[-1]["outcome"]["interrupts"]
    assert interrupt["responseSchema"]["properties"]["option"]["oneOf"][0]["const"] == "approve"
    assert interrupt["metadata"]["kind"] == "approval"
    answered = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"option": "approve"}}]
    assert (await told(flujo, request("r2", resume=answered)))[-1]["outcome"] == {"type": "success"}


async def test_a_tool_call_that_needs_approval_is_announced_before_its_interrupt():
    """Once: the interrupt names it, and after the answer only its result is sent."""
    agent = Agent(scripted_model(CallTool("refund", {"amount": 5}), "Done.", forever=True))

    @agent.tool_plain(requires_approval=True)
    def refund(amount: int) -> str:
        return f"refunded {amount}"

    flujo = Flujo(Step("help", agent))
    events = await told(flujo, request())
    calls = [event for event in events if event["type"].startswith("TOOL_CALL")]
    assert kinds(calls) == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
    assert json.loads(calls[1]["delta"]) == {"amount": 5}
    (interrupt,) = events[-1]["outcome"]["interrupts"]
    assert interrupt["toolCallId"] == calls[0]["toolCallId"]
    assert interrupt["metadata"] == {"kind": "tool", "tool": "refund", "arguments": {"amount": 5}}
    assert interrupt["responseSchema"]["required"] == ["option"]
    assert interrupt["responseSchema"]["properties"]["arguments"]["properties"]["amount"]["type"] == "integer"
    answered = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"option": "approve"}}]
    rest = await told(flujo, request("r2", resume=answered))
    results = [event for event in rest if event["type"].startswith("TOOL_CALL")]
    assert [(event["type"], event["toolCallId"]) for event in results] == [
        ("TOOL_CALL_RESULT", interrupt["toolCallId"])
    ]


async def test_front_end_tools_and_context_are_reported_as_ignored():
    """Unless `data` reads the whole request."""
    tools = [{"name": "paint", "description": "Paint.", "parameters": {}}]
    body = request(tools=tools, context=[{"description": "page", "value": "home"}])
    events = await told(Flujo(Step("write", words)), body)
    (ignored,) = [event["value"] for event in events if event["type"] == "CUSTOM"]
    assert (ignored["tools"], ignored["context"]) == (["paint"], 1)
    events = await told(Flujo(Step("write", words)), body, data=lambda asked: asked.context[0].value)
    assert "CUSTOM" not in kinds(events)
    assert events[-1]["result"] == "All about home"


async def test_what_is_no_request_is_refused():
    """With a sentence."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(ag_ui_app(Flujo(Step("w", words)))), base_url="http://a"
    ) as http:
        assert (await http.post("/", json={"threadId": 1})).status_code == 422


async def posted(app: Any, body: dict[str, Any], last_event_id: str | None = None) -> tuple[list[str], list[Any]]:
    """Ids and events of a request."""
    headers = {} if last_event_id is None else {"last-event-id": last_event_id}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as http:
        lines = (await http.post("/", json=body, headers=headers)).text.splitlines()
    ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
    return ids, [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def test_a_client_that_lost_its_connection_gets_the_rest_of_its_run(tmp_path: Path):
    """By the id of an event that it has seen; a forged id, or that of another run, opens nothing."""
    flujo = Flujo(Step("write", words), store=f"sqlite:///{tmp_path}/runs.db")
    app = ag_ui_app(flujo)
    ids, _ = await posted(app, request("mine"))
    _, events = await posted(app, request("mine"), ids[-1])
    assert (events[0]["type"], events[-1]["type"], events[-1]["result"]) == (
        "RUN_STARTED",
        "RUN_FINISHED",
        "All about tea",
    )
    other, _ = await posted(app, request("other"))
    for forged in ("0", "0." + "0" * 32, other[-1], f"{ids[-1]}x"):
        named, events = await posted(app, request("mine"), forged)
        assert events[-1]["code"] == "RunExists"
        assert named == []


async def test_a_run_that_its_process_left_continues_when_its_client_is_back(tmp_path: Path):
    """Its finished steps are not repeated."""
    flujo = Flujo(Step("write", words), store=f"sqlite:///{tmp_path}/runs.db")
    app = ag_ui_app(flujo, secret="x" * 32)
    await flujo.submit("tea", run_id="left")
    signed = hmac.new(b"x" * 32, b"left", "sha256").hexdigest()[:32]
    _, events = await posted(app, request("left"), f"0.{signed}")
    assert "STEP_STARTED" in kinds(events)
    assert events[-1]["result"] == "All about tea"


@pytest.mark.slow
async def test_workers_execute_the_runs_of_an_app(tmp_path: Path):
    """Their steps are streamed from the store, their questions answered, their output is a message."""
    pipeline = Step("write", words) >> Step.human_in_the_loop("ask", "Publish?", input_schema=bool)
    flujo = Flujo(pipeline, store=f"sqlite:///{tmp_path}/runs.db")
    async with flujo.worker(look_s=0.1):
        events = await told(flujo, request(), execute="workers")
        (interrupt,) = events[-1]["outcome"]["interrupts"]
        assert next(event["stepName"] for event in events if event["type"] == "STEP_FINISHED") == "write"
        answered = [{"interruptId": interrupt["id"], "status": "resolved", "payload": True}]
        events = await told(flujo, request("r2", resume=answered), execute="workers")
    assert events[-1]["result"] is True


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
def test_the_official_client_streams_is_interrupted_and_resumes(
    anyio_backend: str, tmp_path: Path, pytestconfig: pytest.Config
):
    """`@ag-ui/client` from npm with its event verifier, against a real server and a durable run."""
    assert pytestconfig.cache is not None
    folder = npm_packages(pytestconfig.cache, "@ag-ui/client@1.0.0")
    pipeline = Step("write", words) >> Step.human_in_the_loop("approve", "Publish it?", input_schema=bool)
    flujo = Flujo(pipeline, store=f"sqlite:///{tmp_path}/runs.db")
    with served(ag_ui_app(flujo)) as base:
        said = json.loads(run_script(folder, OFFICIAL, base))
    assert said["asks"]["message"] == "Publish it?"
    assert (said["end"]["type"], said["end"]["result"]) == ("RUN_FINISHED", True)


TOOLS = """
import { HttpAgent } from "@ag-ui/client";
const agent = new HttpAgent({ url: process.argv[2], initialMessages: [{ id: "1", role: "user", content: "refund" }] });
const seen = async (input) => {
  const events = [];
  await agent.runAgent(input, { onEvent: ({ event }) => { events.push(event); } });
  return events;
};
const first = await seen({ runId: "r1" });
const interrupt = first.at(-1).outcome.interrupts[0];
const entry = { interruptId: interrupt.id, status: process.argv[3], payload: { option: "approve" } };
const second = await seen({ runId: "r2", resume: [entry] });
const calls = agent.messages.flatMap((message) => message.toolCalls ?? []);
const results = agent.messages.filter((message) => message.role === "tool");
console.log(JSON.stringify({ interrupt, calls, results, end: second.at(-1) }));
"""


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("status", "outcome"), [("resolved", "success"), ("cancelled", "cancelled")])
def test_the_official_client_approves_or_dismisses_a_tool_call(
    anyio_backend: str, status: str, outcome: str, tmp_path: Path, pytestconfig: pytest.Config
):
    """Its messages have the call once, and its result if it was approved."""
    agent = Agent(scripted_model(CallTool("refund", {"amount": 5}), "Done.", forever=True))

    @agent.tool_plain(requires_approval=True)
    def refund(amount: int) -> str:
        return f"refunded {amount}"

    assert pytestconfig.cache is not None
    folder = npm_packages(pytestconfig.cache, "@ag-ui/client@1.0.0")
    with served(ag_ui_app(Flujo(Step("help", agent), store=f"sqlite:///{tmp_path}/runs.db"))) as base:
        said = json.loads(run_script(folder, TOOLS, base, status))
    assert said["end"]["outcome"]["type"] == outcome
    assert [call["id"] for call in said["calls"]] == [said["interrupt"]["toolCallId"]]
    assert [each["content"] for each in said["results"]] == (["refunded 5"] if status == "resolved" else [])


async def test_the_server_sets_the_labels_of_a_run(tmp_path: Path):
    """From the request and its user; state, context and forwarded properties of the client set none."""
    seen: list[Any] = []

    async def whose(topic: str, *, labels: Any) -> str:
        seen.append(dict(labels))
        return topic

    async def of_request(http: Any, asked: Any) -> dict[str, str]:
        return {"tenant": http.headers["x-tenant"], "thread": asked.thread_id}

    flujo = Flujo(Step("whose", whose), store=f"sqlite:///{tmp_path}/runs.db")
    body = request(state={"labels": {"tenant": "other"}}, forwardedProps={"labels": {"tenant": "other"}})
    await told(flujo, body, {"x-tenant": "7"}, labels=of_request)
    assert seen == [{"tenant": "7", "thread": "t"}]
    await told(flujo, request("r2", labels={"tenant": "other"}))
    assert seen[1:] == [{}]
    with pytest.raises(DeclarationError, match="labels must be a function"):
        ag_ui_app(flujo, labels={"tenant": "7"})  # type: ignore[arg-type]


async def test_a_later_user_message_steers_the_open_run(tmp_path: Path):
    """It needs the id of an event; sent twice it is delivered once, and a known message delivers nothing."""
    prompts: list[list[str]] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        prompts.append([str(part.content) for part in parts if isinstance(part, UserPromptPart)])
        called = any(isinstance(part, ToolReturnPart) for part in parts)
        return ModelResponse([TextPart("done") if called else ToolCallPart("order", {}, tool_call_id="c1")])

    agent = Agent(FunctionModel(answer))

    @agent.tool_plain(requires_approval=True)
    def order() -> str:
        return "ordered"

    app = ag_ui_app(Flujo(Step.granular("write", agent), store=f"sqlite:///{tmp_path}/runs.db"))
    ids, events = await posted(app, request("open"))
    [interrupt] = events[-1]["outcome"]["interrupts"]
    later = [{"id": f"m{number}", "role": "user", "content": text} for number, text in ((1, "tea"), (2, "green tea"))]
    for messages in (later[:1], later, later):
        _, events = await posted(app, request("open", messages=messages), ids[-1])
        assert events[-1]["outcome"]["interrupts"] == [interrupt]
    _, events = await posted(app, request("open", messages=later), f"{ids[-1]}x")
    assert events[-1]["code"] == "RunExists"
    approved = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"option": "approve"}}]
    _, events = await posted(app, request("next", resume=approved))
    assert events[-1]["result"] == "done"
    assert prompts == [["tea"], ["tea", "green tea"]]
    _, events = await posted(app, request("open", messages=[*later, {**later[0], "id": "m3"}]), ids[-1])
    assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "TooLate")


async def test_a_sleeping_run_is_an_interrupt_and_continues_when_it_is_due():
    """It has not finished: the client resumes it by the token, or ends it."""
    now = [1000.0]
    flujo = Flujo(Step("write", words) >> Step.sleep("nap", 3600), store=MemoryStore(wall=lambda: now[0]))
    app = ag_ui_app(flujo)
    _, events = await posted(app, request("asleep"))
    [interrupt] = events[-1]["outcome"]["interrupts"]
    assert interrupt["reason"] == "sleeping"
    assert interrupt["metadata"]["wakes_at"] == 4600.0

    def resumed(status: str, token: str = interrupt["id"]) -> dict[str, Any]:
        return request("next", resume=[{"interruptId": token, "status": status, "payload": None}])

    _, events = await posted(app, resumed("resolved"))
    assert events[-1]["outcome"]["interrupts"] == [interrupt]
    _, events = await posted(app, resumed("resolved", interrupt["id"].replace("asleep", "awake")))
    assert events[-1]["type"] == "RUN_ERROR"
    now[0] += 3601
    _, events = await posted(app, resumed("resolved"))
    assert (events[-1]["type"], events[-1]["result"]) == ("RUN_FINISHED", "All about tea")
    _, events = await posted(app, request("other"))
    [interrupt] = events[-1]["outcome"]["interrupts"]
    _, events = await posted(app, resumed("cancelled", interrupt["id"]))
    assert events[-1]["outcome"]["type"] == "cancelled"
