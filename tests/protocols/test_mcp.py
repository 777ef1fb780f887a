"""A pipeline as tools of an MCP server, called by the official client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult
from pydantic import BaseModel

from flujo_actors import DeclarationError, Flujo, Step
from flujo_actors.protocols.mcp import mcp_server

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


@pytest.mark.parametrize(("reply", "status"), [(True, "completed"), (None, "paused")])
async def test_a_question_is_asked_by_elicitation(reply: bool | None, status: str):
    """Declined, it is told with its token, and waits."""
    asked: list[str] = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        if reply is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"answer": reply})

    async with Client(mcp_server(Flujo(ASKING), name="ask"), elicitation_callback=ask, mode="legacy") as client:
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
        assert (await client.call_tool("ask_status", {"run_id": "none"})).is_error


async def test_a_failed_run_says_why():
    """As data, not as an error of the tool: the run is what failed."""

    async def fail(data: Any) -> Any:
        raise ValueError("no tea")

    async with Client(mcp_server(Flujo(Step("fail", fail)))) as client:
        done = told(await client.call_tool("fail", {"input": 1}))
    assert done["status"] == "failed"
    assert "no tea" in done["feedback"]


def test_a_tool_needs_a_name_of_letters():
    """It is refused when the server is made."""
    with pytest.raises(DeclarationError, match="give mcp_server a name"):
        mcp_server(Flujo(Step("双", double)))
