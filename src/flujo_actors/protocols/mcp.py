"""A pipeline as tools of an MCP server: `mcp_server(flujo).run("stdio")`. Needs the extra `mcp`.

The tool named after the pipeline runs it to its end: its steps are told as progress, and what it asks a person is asked
by elicitation, where the client can do that. With a store there are tools to start a run, look at it, wait for it,
answer and cancel it, from any client and at any time; a question also says where it can be answered, if the run page
has an address.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import threading
import typing
from collections.abc import Callable
from typing import Any

import anyio.to_thread
from mcp.server.mcpserver import Context, MCPServer

from .._client import RunClient
from .._core.outcomes import PipelineResult, Started, Success
from .._core.pause_tokens import parse_token
from .._dsl.pipeline import Pipeline
from .._dsl.step import Step
from .._json_text import to_json
from .._runner import Flujo
from ..errors import DeclarationError, FlujoError
from ._elicitation import answer_in, asks_with
from ._questions import schema_of

_LONGEST_WAIT_S = 600.0

_logger = logging.getLogger("flujo_actors")


def mcp_server(
    flujo: Flujo, *, name: str | None = None, description: str | None = None, page_url: str | None = None
) -> MCPServer[Any]:
    """An MCP server whose tools run a pipeline; `name` is what the tools are called by, else the pipeline's own.

    `page_url` is where the run page of its store is: questions that a client cannot ask are told with a link to it.
    Who may call it is the matter of whoever serves it.
    """
    called = _slug(name or flujo.pipeline.name or flujo.pipeline.title)
    server: MCPServer[Any] = MCPServer(called)
    tools = _Tools(flujo, called, page_url)
    about = description or f"Run the pipeline {flujo.pipeline.title!r} and wait for its end."
    server.add_tool(_with_input(tools.run, flujo), name=called, description=about, structured_output=False)
    if tools.client is not None:
        for suffix, (tool, told) in tools.durable().items():
            fn = _with_input(tool, flujo) if suffix == "start" else tool
            server.add_tool(fn, name=f"{called}_{suffix}", description=told, structured_output=False)
    return server


def _slug(text: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:48]
    if not slug:
        raise DeclarationError(f"no tool can be called {text!r}: give mcp_server a name of letters and digits")
    return slug


def _with_input(tool: Callable[..., Any], flujo: Flujo) -> Callable[..., object]:
    """The tool with the type of what the first step takes, so that clients know what to send."""

    @functools.wraps(tool)
    async def typed(input: Any, context: Context[Any, Any]) -> str:
        told = await tool(input, context)
        return str(told)

    typed.__annotations__ = {"input": _input_type(flujo), "context": Context[Any, Any], "return": str}
    del typed.__wrapped__  # or its own signature would be looked at
    return typed


def _input_type(flujo: Flujo) -> object:
    first: Any = flujo.pipeline
    while isinstance(first, Pipeline):
        first = first.steps[0]
    if not isinstance(first, Step) or first.plan.shape == "model":
        return str if isinstance(first, Step) else Any
    hints = typing.get_type_hints(first.agent) if callable(first.agent) else {}
    hints.pop("return", None)
    return next(iter(hints.values()), Any)


def _play(flujo: Flujo, run_id: str) -> None:
    try:
        flujo.resume(run_id, wait=False)
    except FlujoError as error:
        _logger.warning("run %r did not go on: %s", run_id, error)


class _Tools:
    """What the tools of one pipeline do."""

    def __init__(self, flujo: Flujo, name: str, page_url: str | None) -> None:
        self._flujo, self._name, self._page = flujo, name, page_url
        self.client = None if flujo._store is None else RunClient(flujo._store)

    # --- to the end ---

    async def run(self, data: object, context: Context[Any, Any]) -> str:
        """Run the pipeline; questions are asked by elicitation."""
        result = await self._watched(self._flujo.run_async(data, started=True, chunks=False), context)
        while result.status == "paused" and result.state_token is not None:
            answer = await self._asked(result.state_token, result.feedback or "", context)
            if answer is None:
                break
            result = await self._watched(
                self._flujo.resume_async(result.state_token, answer.value, started=True, chunks=False), context
            )
        return self._told(result)

    async def _watched(self, run: Any, context: Context[Any, Any]) -> PipelineResult:
        done = begun = 0
        async with run as running:
            async for outcome in running:
                begun += isinstance(outcome, Started)
                if isinstance(outcome, Success) and outcome.path:
                    done += 1
                    await context.report_progress(done, max(begun, done), outcome.path)
            result: PipelineResult = await running
        return result

    async def _asked(self, token: str, message: str, context: Context[Any, Any]) -> Any:
        """What the person at the client answers; `None` if nobody there can or will."""
        asked = asks_with(schema_of(self._flujo.pipeline, token))
        offered = context.client_capabilities
        if asked is None or offered is None or offered.elicitation is None:
            return None
        reply = await context.session.elicit_form(message, asked, context.request_id)
        return answer_in(reply.action, reply.content, asked)

    # --- at any time ---

    def durable(self) -> dict[str, tuple[Callable[..., object], str]]:
        """The tools of a pipeline with a store."""
        return {
            "start": (self.start, "Start a run and return its id at once; it goes on by itself."),
            "status": (self.status, "How a run stands, and what it asks."),
            "await": (self.wait, "Wait until a run has ended or asks something, at most timeout_s seconds."),
            "answer": (self.answer, "Answer a question of a run by its token; the run goes on by itself."),
            "cancel": (self.cancel, "End a run as aborted, whoever works on it."),
        }

    async def start(self, data: object, context: Context[Any, Any]) -> str:
        """Start a run; it is durable before its id is told."""
        run_id = await self._flujo.submit(data)
        self._go_on(run_id)
        return json.dumps({"run_id": run_id, "status": "running"})

    async def status(self, run_id: str) -> str:
        """How a run stands."""
        return await anyio.to_thread.run_sync(self._status, run_id)

    def _status(self, run_id: str) -> str:
        client = self._client()
        info = client.get(run_id)
        asked = [prompt for prompt in client.prompts() if prompt.run_id == run_id]
        told: dict[str, Any] = {"run_id": run_id, "status": "abandoned" if info.abandoned else info.status}
        if asked:
            told["questions"] = [self._question(each.state_token, each.message, run_id) for each in asked]
        return json.dumps(told)

    async def wait(self, run_id: str, timeout_s: float = 60.0) -> str:
        """Wait for a run."""
        bounded = min(max(timeout_s, 0.0), _LONGEST_WAIT_S)
        try:
            wait = functools.partial(self._client().wait, run_id, timeout=bounded)
            result = await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)
        except TimeoutError:
            return await self.status(run_id)
        return self._told(result)

    async def answer(self, token: str, answer: Any) -> str:
        """Answer a question."""
        await anyio.to_thread.run_sync(self._client().answer, token, answer)
        run_id = str(parse_token(token)[0])
        self._go_on(run_id)
        return json.dumps({"run_id": run_id, "status": "running"})

    async def cancel(self, run_id: str, reason: str = "cancelled by an MCP client") -> str:
        """End a run."""
        await anyio.to_thread.run_sync(self._client().cancel, run_id, reason)
        return json.dumps({"run_id": run_id, "status": "aborted"})

    def _client(self) -> RunClient:
        assert self.client is not None  # these tools are there only with a store
        return self.client

    def _go_on(self, run_id: str) -> None:
        """Play the run beside the server, in a loop of its own: it outlives the client that asked for it."""
        name = f"flujo_actors run {run_id}"
        threading.Thread(target=_play, args=(self._flujo, run_id), name=name, daemon=True).start()

    # --- telling ---

    def _told(self, result: PipelineResult) -> str:
        told: dict[str, Any] = {"run_id": result.run_id, "status": result.status}
        if result.status == "completed":
            told["output"] = json.loads(to_json(result.output, plain=True))
        elif result.status == "paused" and result.state_token is not None:
            told["questions"] = [self._question(result.state_token, result.feedback or "", result.run_id)]
        else:
            told["feedback"] = result.feedback
        return json.dumps(told)

    def _question(self, token: str, message: str, run_id: str) -> dict[str, Any]:
        asked = {"token": token, "message": message, "schema": schema_of(self._flujo.pipeline, token)}
        return asked if self._page is None else {**asked, "link": f"{self._page.rstrip('/')}/#run={run_id}"}
