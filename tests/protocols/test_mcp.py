"""A pipeline as tools of an MCP server, called by the official client."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import anyio
import anyio.to_thread
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.client.stdio import stdio_client
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ElicitResult, ErrorData, Request, Result
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from examples.served import served
from flujo_actors import DeclarationError, Flujo, Pipeline, RunClient, Step
from flujo_actors.protocols.mcp import mcp_server
from kit.npm_packages import npm_packages, run_script

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The loops that servers bring."""
    return str(request.param)


class Order(BaseModel):
    city: str
    pieces: int = 1


async def price(order: Order) -> float:
    return 2.5 * order.pieces


async def double(number: float) -> float:
    return 2 * number


ASKING = Step("double", double) >> Step.human_in_the_loop("approve", "Fine?", input_schema=bool)


def told(result: Any) -> dict[str, Any]:
    assert not result.is_error, result.content
    answer: dict[str, Any] = json.loads(result.content[0].text)
    return answer


async def test_a_pipeline_is_a_tool_that_says_what_it_takes():
    """Its input has the type of the first step."""
    server = mcp_server(Flujo(Step("price", price) >> Step("double", double)), name="shop")
    async with Client(server) as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "shop"
        assert "city" in json.dumps(tool.input_schema)
        done = told(await client.call_tool("shop", {"input": {"city": "Oslo", "pieces": 3}}))
    assert (done["status"], done["output"]) == ("completed", 15.0)


async def test_progress_is_told_step_by_step():
    """With the path of the step that is done."""
    heard: list[str | None] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    pipeline = Step("one", double) >> Step("two", double)
    async with Client(mcp_server(Flujo(pipeline), name="twice")) as client:
        await client.call_tool("twice", {"input": 1}, progress_callback=progress)
    assert heard == ["one", "two"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(("reply", "status"), [(True, "completed"), (None, "paused")])
async def test_a_question_is_asked_by_the_client(reply: bool | None, status: str, mode: Any):
    """In the client's default mode and in its older one; declined, it is returned with its token, and waits."""
    asked: list[str] = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        if reply is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"answer": reply})

    async with Client(mcp_server(Flujo(ASKING), name="ask"), elicitation_callback=ask, mode=mode) as client:
        done = told(await client.call_tool("ask", {"input": 1}))
    assert asked == ["Fine?"]
    assert done["status"] == status
    assert (done["output"] is True) if reply else done["questions"][0]["token"]


async def test_a_client_that_cannot_ask_is_told_the_question_and_a_link(tmp_path: Path):
    """With the schema of the answer; the run goes on when it is answered, and is awaited."""
    flujo = Flujo(ASKING, store=f"sqlite:///{tmp_path}/runs.db")
    async with Client(mcp_server(flujo, name="ask", page_url="https://shop.example/runs/")) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"ask", "ask_start", "ask_status", "ask_await", "ask_answer", "ask_cancel"}
        started = told(await client.call_tool("ask_start", {"input": 1}))
        waits = told(await client.call_tool("ask_await", {"run_id": started["run_id"]}))
        (question,) = waits["questions"]
        assert (waits["status"], question["message"], question["schema"]) == ("paused", "Fine?", {"type": "boolean"})
        assert question["link"] == f"https://shop.example/runs/#run={started['run_id']}"
        wrong = await client.call_tool("ask_answer", {"token": question["token"], "answer": "perhaps"})
        assert wrong.is_error
        assert 'value: "perhaps" is not of type "boolean"' in wrong.content[0].text
        told(await client.call_tool("ask_answer", {"token": question["token"], "answer": True}))
        done = told(await client.call_tool("ask_await", {"run_id": started["run_id"]}))
    assert (done["status"], done["output"]) == ("completed", True)


async def test_a_run_is_looked_at_and_cancelled(tmp_path: Path):
    """By its id; there is no such run otherwise."""
    flujo = Flujo(ASKING, store=f"sqlite:///{tmp_path}/runs.db")
    async with Client(mcp_server(flujo, name="ask")) as client:
        run_id = told(await client.call_tool("ask_start", {"input": 1}))["run_id"]
        told(await client.call_tool("ask_await", {"run_id": run_id}))
        assert told(await client.call_tool("ask_status", {"run_id": run_id}))["status"] == "paused"
        told(await client.call_tool("ask_cancel", {"run_id": run_id}))
        assert told(await client.call_tool("ask_status", {"run_id": run_id}))["status"] == "aborted"
        unknown = await client.call_tool("ask_status", {"run_id": "none"})
        assert unknown.is_error
        assert "there is no run 'none'" in unknown.content[0].text
        wrong = await client.call_tool("ask_answer", {"token": "none", "answer": True})
        assert wrong.is_error
        assert "is not the state_token of a pause" in wrong.content[0].text


async def test_a_failed_run_is_a_tool_error_that_says_why():
    """Its text is the same data that other runs return."""

    async def fail(data: Any) -> Any:
        raise ValueError("no tea")

    async with Client(mcp_server(Flujo(Step("fail", fail)))) as client:
        failed = await client.call_tool("fail", {"input": 1})
    assert failed.is_error
    done = json.loads(failed.content[0].text)
    assert done["status"] == "failed"
    assert "no tea" in done["feedback"]


async def test_the_server_has_the_version_of_the_library():
    """Clients show it."""
    async with Client(mcp_server(Flujo(Step("double", double)))) as client:
        assert client.server_info.version == version("flujo-actors")


def test_a_tool_needs_a_name_of_letters():
    """It is refused when the server is made."""
    with pytest.raises(DeclarationError, match="give mcp_server a name"):
        mcp_server(Flujo(Step("双", double)))
    for wrong in ("two words", "", "x" * 60, "tea/cup", 5):
        with pytest.raises(DeclarationError, match="give mcp_server a name of at most 48 letters"):
            mcp_server(Flujo(Step("double", double)), name=wrong)  # type: ignore[arg-type]


def test_what_is_no_flujo_is_refused():
    """Each refusal says what to pass."""
    step = Step("double", double)
    with pytest.raises(DeclarationError, match=r"pass mcp_server\(Flujo\(pipeline\)\)"):
        mcp_server(step)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="context must be a function"):
        mcp_server(Flujo(step), context={"tenant": "acme"})  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="execute must be 'here' or 'workers'"):
        mcp_server(Flujo(step), execute="there")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="pass Flujo\\(pipeline, store="):
        mcp_server(Flujo(step), execute="workers")


class Shipment(BaseModel):
    approved: bool
    count: int = 1


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_wrong_answer_is_asked_again_with_its_reason(mode: Any):
    """The client is asked three times at most; then the question is returned, with its token."""
    messages: list[str] = []
    flujo = Flujo(Step.human_in_the_loop("ask", "Ship?", input_schema=Shipment))

    async def ask(context: Any, params: Any) -> ElicitResult:
        messages.append(params.message)
        count: Any = 2 if len(messages) == 2 else "many"
        return ElicitResult(action="accept", content={"approved": True, "count": count})

    async with Client(mcp_server(flujo, name="ship"), elicitation_callback=ask, mode=mode) as client:
        done = told(await client.call_tool("ship", {"input": 1}))
        assert done["output"] == {"approved": True, "count": 2}
        assert messages[0] == "Ship?"
        assert "count" in messages[1]
        messages[:] = ["", ""]
        left = told(await client.call_tool("ship", {"input": 1}))
    assert left["status"] == "paused"
    assert left["questions"][0]["token"]
    assert "count" in left["refused"]
    assert len(messages) == 5


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_fails_to_ask_gets_the_question(mode: Any, tmp_path: Path):
    """No run stays paused without a name that the client knows."""
    flujo = Flujo(ASKING, store=f"sqlite:///{tmp_path}/runs.db")

    async def fail(context: Any, params: Any) -> Any:
        return ErrorData(code=-32000, message="nobody is here")

    async with Client(mcp_server(flujo, name="ask"), elicitation_callback=fail, mode=mode) as client:
        if mode == "legacy":
            done = told(await client.call_tool("ask", {"input": 1}))
            assert done["questions"][0]["token"].startswith(done["run_id"])
        else:
            first = await client.session.call_tool("ask", {"input": 1}, allow_input_required=True)
            run_id = first.meta["flujo_actors/run_id"]
            assert told(await client.call_tool("ask_status", {"run_id": run_id}))["status"] == "paused"


class Trip(BaseModel):
    city: Literal["Oslo", "Lima"]
    day: date | None = None
    nights: int = Field(2, ge=1)
    guests: list[str] = []


NULLABLE = {"type": "object", "properties": {"note": {"type": ["string", "null"]}, "tags": {"type": ["array"]}}}


@pytest.mark.parametrize(
    ("schema", "asked"),
    [
        (Trip, {"city": "string", "day": "string", "nights": "integer"}),
        (NULLABLE, {"note": "string"}),
        (Literal["a", "b"], {"answer": "string"}),
        (None, {"answer": "string"}),
        (list[int], None),
        ({"anyOf": [{"$ref": "#"}]}, None),
    ],
)
async def test_a_form_asks_for_single_values_and_leaves_out_the_rest(schema: Any, asked: dict[str, str] | None):
    """What no form can ask for is returned as text."""
    forms: list[Any] = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        forms.append(params.requested_schema)
        return ElicitResult(action="decline")

    flujo = Flujo(Step.human_in_the_loop("ask", "Where?", input_schema=schema))
    async with Client(mcp_server(flujo, name="ask"), elicitation_callback=ask) as client:
        assert told(await client.call_tool("ask", {"input": 1}))["questions"][0]["message"] == "Where?"
    types = [{name: each["type"] for name, each in form["properties"].items()} for form in forms]
    assert types == ([] if asked is None else [asked])


async def test_an_approval_is_asked_with_its_options():
    """The answer is an option and a comment; the tool's text has the same schema."""
    forms: list[Any] = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        forms.append(params.requested_schema)
        return ElicitResult(action="accept", content={"option": "approve", "comment": "fine"})

    server = mcp_server(Flujo(Step.approval("pay", "Pay?")), name="pay")
    async with Client(server, elicitation_callback=ask) as client:
        assert told(await client.call_tool("pay", {"input": 1}))["status"] == "completed"
    assert forms[0]["properties"]["option"]["enum"] == ["approve", "reject", "defer"]
    assert forms[0]["required"] == ["option"]
    async with Client(server) as client:
        (question,) = told(await client.call_tool("pay", {"input": 1}))["questions"]
    assert question["kind"] == "approval"
    assert question["schema"]["properties"]["option"]["oneOf"][0] == {"const": "approve", "title": "Approve"}


async def test_a_tool_call_is_approved_with_its_arguments_in_sight():
    """A form has fields for single values, filled in; arguments that are no single values are left out."""
    agent, nested = Agent(TestModel()), Agent(TestModel())

    @agent.tool_plain(requires_approval=True)
    def refund(amount: int) -> str:
        return f"refunded {amount}"

    @nested.tool_plain(requires_approval=True)
    def pay(amounts: list[int]) -> str:
        return "paid"

    async def ask(context: Any, params: Any) -> ElicitResult:
        fields = params.requested_schema["properties"]
        if "arguments.amount" not in fields:
            assert list(fields) == ["option", "reason"]
            return ElicitResult(action="accept", content={"option": "approve"})
        assert fields["arguments.amount"]["default"] == 0
        return ElicitResult(action="accept", content={"option": "approve", "arguments.amount": 3})

    server = mcp_server(Flujo(Step("help", agent)), name="help")
    async with Client(server) as client:
        (question,) = told(await client.call_tool("help", {"input": "x"}))["questions"]
    assert (question["kind"], question["tool"]["tool"]) == ("tool", "refund")
    assert question["schema"]["properties"]["arguments"] == question["tool"]["schema"]
    async with Client(server, elicitation_callback=ask) as client:
        assert "refunded 3" in told(await client.call_tool("help", {"input": "x"}))["output"]
    async with Client(mcp_server(Flujo(Step("pay", nested)), name="pay"), elicitation_callback=ask) as client:
        assert "paid" in told(await client.call_tool("pay", {"input": "x"}))["output"]


async def test_the_tools_of_a_pipeline_reach_its_own_runs_only(tmp_path: Path):
    """A run of another pipeline is refused as one that does not exist, and stays as it is."""
    store = f"sqlite:///{tmp_path}/runs.db"
    await Flujo(Pipeline([Step("double", double)], name="payroll"), store=store).run_async(2121, run_id="paid")
    asking = await Flujo(Pipeline([ASKING], name="hr"), store=store).run_async(1, run_id="asks")
    async with Client(mcp_server(Flujo(Step("greet", double), store=store), name="greet")) as client:
        calls = {
            "greet_await": {"run_id": "paid", "timeout_s": 1},
            "greet_status": {"run_id": "asks"},
            "greet_answer": {"token": asking.state_token, "answer": True},
            "greet_cancel": {"run_id": "asks"},
        }
        for tool, arguments in calls.items():
            refused = await client.call_tool(tool, arguments)
            assert refused.is_error, tool
            assert "there is no run" in refused.content[0].text
    runs = RunClient(store)
    assert await anyio.to_thread.run_sync(lambda: runs.get("asks").status) == "paused"
    assert len(await anyio.to_thread.run_sync(runs.prompts)) == 1


async def test_an_authenticated_client_reaches_its_own_runs_only(tmp_path: Path):
    """The runs of another principal do not exist for it."""
    server = mcp_server(Flujo(ASKING, store=f"sqlite:///{tmp_path}/runs.db"), name="ask")

    async def called_by(subject: str, tool: str, **arguments: Any) -> Any:
        token = AccessToken(token=subject, client_id="app", scopes=[], subject=subject)
        reset = auth_context_var.set(AuthenticatedUser(token))
        try:
            return await server.call_tool(tool, arguments)
        finally:
            auth_context_var.reset(reset)

    run_id = told(await called_by("ada", "ask_start", input=1))["run_id"]
    (question,) = told(await called_by("ada", "ask_await", run_id=run_id))["questions"]
    for tool, arguments in {
        "ask_status": {"run_id": run_id},
        "ask_await": {"run_id": run_id},
        "ask_cancel": {"run_id": run_id},
        "ask_answer": {"token": question["token"], "answer": True},
    }.items():
        with pytest.raises(ToolError, match="there is no run"):
            await called_by("eve", tool, **arguments)
    told(await called_by("ada", "ask_answer", token=question["token"], answer=True))
    assert told(await called_by("ada", "ask_await", run_id=run_id))["status"] == "completed"


class Tenant(BaseModel):
    tenant: str = "none"


async def test_the_server_sets_the_context_of_a_run(tmp_path: Path):
    """From the request, for runs that are awaited and for those that are started."""

    async def whose(number: float, *, context: Tenant) -> str:
        return context.tenant

    async def of_request(request: Any) -> dict[str, str]:
        return {"tenant": f"tenant of {request.request_id and 'a request'}"}

    flujo = Flujo(Step("whose", whose), context_model=Tenant, store=f"sqlite:///{tmp_path}/runs.db")
    async with Client(mcp_server(flujo, name="whose", context=of_request)) as client:
        done = told(await client.call_tool("whose", {"input": 1}))
        run_id = told(await client.call_tool("whose_start", {"input": 1}))["run_id"]
        started = told(await client.call_tool("whose_await", {"run_id": run_id}))
    assert done["output"] == started["output"] == "tenant of a request"


async def test_the_server_sets_the_labels_of_a_run(tmp_path: Path):
    """Of runs that are awaited and of those that are started; a client sets none."""

    async def of_request(request: Any) -> dict[str, str]:
        return {"tenant": "7"}

    async def whose(number: float, *, labels: Any) -> str:
        return str(labels["tenant"])

    flujo = Flujo(Step("whose", whose), store=f"sqlite:///{tmp_path}/runs.db")
    async with Client(mcp_server(flujo, name="whose", labels=of_request)) as client:
        done = told(await client.call_tool("whose", {"input": 1}))
        run_id = told(await client.call_tool("whose_start", {"input": 1}))["run_id"]
        started = told(await client.call_tool("whose_await", {"run_id": run_id}))
    assert done["output"] == started["output"] == "7"
    with pytest.raises(DeclarationError, match="labels must be a function"):
        mcp_server(flujo, labels={"tenant": "7"})  # type: ignore[arg-type]


@pytest.mark.slow
async def test_workers_execute_the_runs_of_a_server(tmp_path: Path):
    """The server submits them, asks their questions, and returns their results."""
    flujo = Flujo(ASKING, store=f"sqlite:///{tmp_path}/runs.db")

    async def ask(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": True})

    server = mcp_server(flujo, name="ask", execute="workers")
    async with flujo.worker(look_s=0.1), Client(server, elicitation_callback=ask) as client:
        done = told(await client.call_tool("ask", {"input": 1}))
    assert (done["status"], done["output"]) == ("completed", True)


class TaskHandle(Result):
    """A call that continues as a task."""

    result_type: Literal["task"] = "task"
    task_id: str = Field(alias="taskId")
    status: str


class TaskRequest(Request[Any, str]):
    """A request about a task."""

    params: dict[str, Any]


class TaskAnswer(Result):
    """Whatever a request about a task returns."""

    model_config = ConfigDict(extra="allow")


class Polling(ClientExtension):
    """Client of the tasks extension that polls, and answers questions."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, *, cancels: bool = False) -> None:
        self.seen: list[str] = []
        self.ids: list[str] = []
        self._cancels = cancels

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskHandle, resolve=self.finish)]

    async def finish(self, handle: TaskHandle, context: Any) -> CallToolResult:
        self.ids.append(handle.task_id)
        while True:
            task = await self.asked(context.session, "tasks/get", handle.task_id)
            self.seen.append(task["status"])
            if task["status"] == "completed":
                return CallToolResult.model_validate(task["result"])
            if task["status"] == "cancelled":
                return CallToolResult(content=[])
            if task["status"] == "input_required" and self._cancels:
                await self.asked(context.session, "tasks/cancel", handle.task_id)
            elif task["status"] == "input_required":
                (key,) = task["inputRequests"]
                replies = {key: {"action": "accept", "content": {"answer": True}}}
                await self.asked(context.session, "tasks/update", handle.task_id, inputResponses=replies)
            await anyio.sleep(0.01)

    async def asked(self, session: Any, method: str, task_id: str, **more: Any) -> dict[str, Any]:
        request = TaskRequest(method=method, params={"taskId": task_id, **more})
        answer = await session.send_request(request, TaskAnswer)
        return answer.model_dump(by_alias=True)


async def test_a_long_call_is_a_task_that_is_polled_answered_and_cancelled(tmp_path: Path):
    """Its id is the run id; a client without the extension waits for the same result."""
    flujo = Flujo(ASKING, store=f"sqlite:///{tmp_path}/runs.db")
    polling = Polling()
    async with Client(mcp_server(flujo, name="ask", task_after_s=0), extensions=[polling]) as client:
        done = told(await client.call_tool("ask", {"input": 1}))
    assert (done["status"], done["output"], polling.ids) == ("completed", True, [done["run_id"]])
    assert polling.seen[-1] == "completed"
    assert "input_required" in polling.seen
    cancelling = Polling(cancels=True)
    async with Client(mcp_server(flujo, name="ask", task_after_s=0), extensions=[cancelling]) as client:
        await client.call_tool("ask", {"input": 1})
    assert cancelling.seen[-1] == "cancelled"


async def test_a_task_outlives_its_server(tmp_path: Path):
    """A run that no process executes any more is continued by the next server that is asked for it."""
    flujo = Flujo(Step("double", double), store=f"sqlite:///{tmp_path}/runs.db")
    run_id = await flujo.submit(2)
    polling = Polling()
    async with Client(mcp_server(flujo, name="double"), extensions=[polling]) as client:
        result = await polling.finish(
            TaskHandle(taskId=run_id, status="working"), SimpleNamespace(session=client.session)
        )
        assert told(result)["output"] == 4
        with pytest.raises(MCPError, match="there is no run 'none'"):
            await polling.asked(client.session, "tasks/get", "none")


SERVER = """
from flujo_actors import Flujo, Step
from flujo_actors.protocols.mcp import mcp_server
asking = Step("double", lambda x: 2 * x) >> Step.human_in_the_loop("approve", "Fine?", input_schema=bool)
mcp_server(Flujo(asking), name="ask").run("stdio")
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_question_is_asked_over_stdio(mode: Any):
    """The server is another process."""

    async def ask(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": True})

    there = StdioServerParameters(command=sys.executable, args=["-c", SERVER], env={"PYTHONPATH": ":".join(sys.path)})
    async with Client(stdio_client(there), elicitation_callback=ask, mode=mode) as client:
        assert told(await client.call_tool("ask", {"input": 1}))["output"] is True


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_question_is_asked_over_http(mode: Any):
    """By the official client for Python."""

    async def ask(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": True})

    async def main(base: str) -> dict[str, Any]:
        async with Client(f"{base}/mcp", elicitation_callback=ask, mode=mode) as client:
            return told(await client.call_tool("ask", {"input": 1}))

    with served(mcp_server(Flujo(ASKING), name="ask").streamable_http_app()) as base:
        assert anyio.run(main, base)["output"] is True


SCRIPT = """
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
const client = new Client({ name: 'test', version: '1' }, { capabilities: { elicitation: { form: {} } } });
client.setRequestHandler('elicitation/create', async () => ({ action: 'accept', content: { answer: true } }));
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
console.log(JSON.stringify(await client.callTool({ name: 'ask', arguments: { input: 1 } })));
await client.close();
"""


@pytest.mark.slow
def test_a_question_is_asked_by_the_official_client_for_typescript(pytestconfig: pytest.Config):
    """In its default mode, over HTTP."""
    assert pytestconfig.cache is not None
    folder = npm_packages(pytestconfig.cache, "@modelcontextprotocol/client")
    with served(mcp_server(Flujo(ASKING), name="ask").streamable_http_app()) as base:
        result = json.loads(run_script(folder, SCRIPT, f"{base}/mcp"))
    assert not result["isError"]
    assert json.loads(result["content"][0]["text"])["output"] is True


CONFORMANCE = "@modelcontextprotocol/conformance@0.1.13"
"""The last version for Node 20."""

APPLICABLE = {
    *("server-initialize", "ping", "tools-list", "tools-call-simple-text", "tools-call-error"),
    *("resources-list", "prompts-list", "server-sse-multiple-streams", "dns-rebinding-protection"),
}
"""Scenarios that need no tool, resource or prompt of the suite's own example server."""


@pytest.mark.slow
def test_the_official_conformance_suite_passes(pytestconfig: pytest.Config):
    """In its default mode: a 2025-11-25 client over HTTP."""
    assert pytestconfig.cache is not None
    folder = npm_packages(pytestconfig.cache, CONFORMANCE)
    suite = folder / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    with served(mcp_server(Flujo(ASKING), name="ask").streamable_http_app()) as base:
        command = ["node", str(suite), "server", "--url", f"{base}/mcp", "--suite", "all"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    passed = {line.split()[1].rstrip(":") for line in done.stdout.splitlines() if line.startswith("✓ ")}
    assert APPLICABLE - passed == set(), done.stdout[-3000:]


@pytest.mark.slow
def test_the_official_inspector_lists_and_calls_a_tool(pytestconfig: pytest.Config):
    """As its quickstart starts it: `mcp-inspector --cli URL`."""
    assert pytestconfig.cache is not None
    folder = npm_packages(pytestconfig.cache, "@modelcontextprotocol/inspector")
    inspector = folder / "node_modules/.bin/mcp-inspector"
    with served(mcp_server(Flujo(Step("double", double)), name="twice").streamable_http_app()) as base:
        start = [str(inspector), "--cli", f"{base}/mcp", "--transport", "http"]

        def asked(*arguments: str) -> Any:
            done = subprocess.run([*start, *arguments], cwd=folder, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stdout + done.stderr
            return json.loads(done.stdout)

        assert "twice" in [each["name"] for each in asked("--method", "tools/list")["tools"]]
        result = asked("--method", "tools/call", "--tool-name", "twice", "--tool-arg", "input=21")
    assert json.loads(result["content"][0]["text"])["output"] == 42
