"""Pipeline as MCP server tools: `mcp_server(flujo).run("stdio")` (extra `mcp`).

Rules:

1. The tool named after the pipeline runs it to its end and reports its steps as progress. With a store there are tools
   to start, inspect, await, answer and cancel a run, from any client and at any time.
2. A question is asked by the client: as an input-required result since protocol 2026-07-28, by elicitation before. A
   client that can do neither gets the question as text, with its token, run id and page link.
3. The tools reach runs of their own pipeline only and, on an authenticated transport, runs of the same principal only.
4. Every refusal is a tool error with its reason; so is a run that failed.
5. The run's context and labels come from the server (`context=`, `labels=`), never from the client.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import logging
import re
import threading
import typing
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias

import anyio.to_thread
import attrs

from .._api.client import RunClient
from .._api.flujo import Flujo
from .._api.version import __version__
from .._core.lazy_exports import missing_extra
from .._core.outcomes import PipelineResult, RunId, Started, Success
from .._core.records.pause_tokens import parse_token
from .._dsl.pipeline import Pipeline
from .._dsl.step_declaration import Step
from .._runtime.run.json_text import to_json
from ..errors import DeclarationError, FlujoError, InvalidAnswer, NotPaused, RunLeased, RunNotFound
from ..stores._record_rows import not_found
from ._questions import ElicitedAnswer, OpenQuestion, answer_in, asked_at, form_of, refuse_foreign

try:
    from mcp.server.auth.middleware.auth_context import get_access_token
    from mcp.server.auth.provider import principal_components
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.request_state import RequestStateSecurity
    from mcp.shared.exceptions import MCPError
    from mcp.types import (
        CallToolResult,
        ElicitRequest,
        ElicitRequestFormParams,
        ElicitResult,
        InputRequiredResult,
        TextContent,
    )

    from ._mcp_tasks import TASK_META, Tasks, TaskState, TaskStatus, declares_tasks
except ModuleNotFoundError as _missing:
    raise missing_extra(_missing, extra="mcp", needed_by="flujo_actors.protocols.mcp") from _missing

_LONGEST_WAIT_S = 600.0
_STATE_S = 7 * 24 * 3600.0
"""Lifetime of an input-required result."""
_MOST_REFUSALS = 3
_MODERN = "2026-07-28"
"""First protocol version with input-required results."""
_ANSWER = "answer"
_ADVICE = " that this tool can reach; use the run_id that it returned"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,48}")

_logger = logging.getLogger("flujo_actors")

McpContext: TypeAlias = Context[object, object]
"""Request of an MCP client, whatever its transport."""
Form: TypeAlias = dict[str, object]
"""Schema of an elicitation form."""
Execute: TypeAlias = Literal["here", "workers"]
ServerContext: TypeAlias = Callable[[McpContext], "Mapping[str, object] | Awaitable[Mapping[str, object]]"]
"""Run context from a request: its authenticated user, its headers."""
ServerLabels: TypeAlias = Callable[[McpContext], "Mapping[str, str] | Awaitable[Mapping[str, str] | None] | None"]
ToolReply: TypeAlias = CallToolResult | InputRequiredResult


def mcp_server(
    flujo: Flujo,
    *,
    name: str | None = None,
    description: str | None = None,
    page_url: str | None = None,
    context: ServerContext | None = None,
    labels: ServerLabels | None = None,
    execute: Execute = "here",
    task_after_s: float = 10.0,
    **options: Any,
) -> MCPServer[Any]:
    """Return an MCP server whose tools run a pipeline.

    Args:
        flujo: pipeline that runs.
        name: name of the tool.
        description: description of the tool.
        page_url: address of the store's run page, for questions that a client cannot ask.
        context: function of the request that returns the run's context.
        labels: function that returns the run's labels.
        execute: `"here"`, or `"workers"` to submit runs to the store's workers.
        task_after_s: time after which a call becomes a task, with a store and a client with the tasks extension.
        **options: options of `MCPServer`: `auth`, `token_verifier`, `request_state_security`.

    Raises:
        DeclarationError: an argument is not valid.

    Example:
        ```python
        from flujo_actors.protocols.mcp import mcp_server

        server = mcp_server(Flujo(Step("greet", str.upper), store="sqlite:///runs.db"), name="greet")
        ```
    """
    called = _tool_name(_checked(flujo, context, labels, execute, task_after_s), name)
    defaults = {"version": __version__, "log_level": "WARNING"}
    security = {"request_state_security": RequestStateSecurity.ephemeral(ttl=_STATE_S)}
    tools = _Tools(flujo, page_url, context, labels, execute, task_after_s)
    extensions = [*options.pop("extensions", ()), *([] if tools.client is None else [Tasks(tools)])]
    server: MCPServer[Any] = MCPServer(called, **{**defaults, **security, **options}, extensions=extensions)
    about = description or f"Run the pipeline {flujo.pipeline.title!r} and wait for its end."
    server.add_tool(_with_input(tools.run, flujo), name=called, description=about, structured_output=False)
    if tools.client is not None:
        for suffix, (tool, description) in tools.durable().items():
            fn = _with_input(tool, flujo) if suffix == "start" else _refusing(tool)
            server.add_tool(fn, name=f"{called}_{suffix}", description=description, structured_output=False)
    return server


def _checked(flujo: object, context: object, labels: object, execute: object, task_after_s: object) -> Flujo:
    if not isinstance(flujo, Flujo):
        raise DeclarationError(f"mcp_server needs a Flujo: pass mcp_server(Flujo(pipeline)), not {flujo!r:.100}")
    for name, given in (("context", context), ("labels", labels)):
        if given is not None and not callable(given):
            raise DeclarationError(f"{name} must be a function of the MCP request's context, not {given!r:.100}")
    if execute not in ("here", "workers"):
        raise DeclarationError(f"execute must be 'here' or 'workers', not {execute!r:.100}")
    if execute == "workers" and flujo.store is None:
        raise DeclarationError("execute='workers' needs a store that workers share: pass Flujo(pipeline, store=…)")
    if isinstance(task_after_s, bool) or not isinstance(task_after_s, int | float) or not task_after_s >= 0:
        raise DeclarationError(f"task_after_s must be a number of seconds, not {task_after_s!r:.100}")
    return flujo


def _tool_name(flujo: Flujo, name: str | None) -> str:
    if name is not None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise DeclarationError(
                f"no tool can be called {name!r:.100}: give mcp_server a name of at most 48 letters, digits, _ and -"
            )
        return name
    title = flujo.pipeline.name or flujo.pipeline.title
    slug = re.sub(r"[^A-Za-z0-9_-]+", "_", title).strip("_")[:48]
    if not slug:
        raise DeclarationError(f"no tool can be called {title!r}: give mcp_server a name of letters and digits")
    return slug


def _with_input(tool: Callable[..., Any], flujo: Flujo) -> Callable[..., object]:
    """Return the tool with the first step's input type for clients."""

    async def typed(input: Any, context: McpContext) -> Any:
        return await _or_refusal(tool(input, context))

    typed.__annotations__ = {"input": _input_type(flujo), "context": McpContext, "return": Any}
    return typed


def _refusing(tool: Callable[..., Awaitable[ToolReply]]) -> Callable[..., object]:
    @functools.wraps(tool)
    async def refusing(**arguments: Any) -> ToolReply:
        return await _or_refusal(tool(**arguments))

    return refusing


async def _or_refusal(call: Awaitable[ToolReply]) -> ToolReply:
    """Return a tool's result; refusals reach the model with reasons."""
    try:
        return await call
    except FlujoError as error:
        raise ToolError(str(error)) from error


def _input_type(flujo: Flujo) -> object:
    first: Any = flujo.pipeline
    while isinstance(first, Pipeline):
        first = first.steps[0]
    if not isinstance(first, Step) or first.plan.shape == "model":
        return str if isinstance(first, Step) else Any
    hints = typing.get_type_hints(first.agent) if callable(first.agent) else {}
    hints.pop("return", None)
    return next(iter(hints.values()), Any)


def _resume(flujo: Flujo, run_id: str) -> None:
    try:
        flujo.resume(run_id, wait=False)
    except RunLeased:
        _logger.debug("run %r is executed by another process or thread", run_id)
    except FlujoError as error:
        _logger.warning("run %r was not resumed: %s", run_id, error)


def _owner() -> str | None:
    """Return the principal's run id prefix; `None` without authentication."""
    token = get_access_token()
    if token is None:
        return None
    return hashlib.sha256(json.dumps(principal_components(token)).encode()).hexdigest()[:16]


def _new_run_id() -> str:
    owner, number = _owner(), uuid.uuid4().hex
    return number if owner is None else f"{owner}-{number}"


def _is_own(run_id: str) -> bool:
    owner = _owner()
    return owner is None or run_id.startswith(f"{owner}-")


class _Tools:
    """Tools of one pipeline."""

    def __init__(
        self,
        flujo: Flujo,
        page_url: str | None,
        context: ServerContext | None,
        labels: ServerLabels | None,
        execute: Execute,
        task_after_s: float,
    ) -> None:
        self._flujo, self._page, self._execute = flujo, page_url, execute
        self._options = {"context": context, "labels": labels}
        self._task_after_s = task_after_s
        self.client = None if flujo.store is None else RunClient(flujo.store)

    # --- run to the end ---

    async def run(self, data: object, context: McpContext) -> ToolReply:
        """Run the pipeline, or continue an earlier round with its answer."""
        token = context.request_state
        if token is not None:
            await self._refuse_foreign(str(parse_token(token)[0]))
            return await self._continued(token, context)
        if self.client is not None and _can_poll(context):
            return await self._run_as_task(data, context)
        return await self._with_answers(await self._start(data, context), context)

    async def _run_as_task(self, data: object, context: McpContext) -> ToolReply:
        """Run in the background; a long run continues as a task."""
        given = await self._server_options(context)
        run_id = await self._flujo.submit(data, run_id=_new_run_id(), **given)
        self._execute_detached(run_id)
        try:
            result = await self._waited(run_id, self._task_after_s)
        except TimeoutError:
            return CallToolResult(content=[], _meta={TASK_META: run_id})
        return await self._with_answers(result, context)

    async def _start(self, data: object, context: McpContext) -> PipelineResult:
        given, run_id = await self._server_options(context), _new_run_id()
        if self._execute == "workers":
            return await self._waited(await self._flujo.submit(data, run_id=run_id, **given))
        return await self._watched(
            self._flujo.run_async(data, run_id=run_id, started=True, chunks=False, **given), context
        )

    async def _resumed(self, token: str, answer: ElicitedAnswer, context: McpContext) -> PipelineResult:
        if self._execute == "workers":
            await anyio.to_thread.run_sync(self._client().answer, token, answer.value)
            return await self._waited(str(parse_token(token)[0]))
        return await self._watched(self._flujo.resume_async(token, answer.value, started=True, chunks=False), context)

    async def _continued(self, token: str, context: McpContext) -> ToolReply:
        """Next round of an input-required result."""
        asked, run_id = await asked_at(self._flujo, token), str(parse_token(token)[0])
        form, (round_, reply) = form_of(asked), _reply(context)
        if form is None:
            return self._text(run_id, asked)
        if reply is None:
            return _input_required(asked, form)
        answer = answer_in(reply.action, reply.content, form)
        if answer is None:
            return self._text(run_id, asked)
        try:
            result = await self._resumed(token, answer, context)
        except InvalidAnswer as error:
            last = round_ >= _MOST_REFUSALS
            why = str(error)
            return self._text(run_id, asked, why=why) if last else _input_required(asked, form, round_ + 1, why=why)
        return await self._with_answers(result, context)

    async def _with_answers(self, result: PipelineResult, context: McpContext) -> ToolReply:
        """Return a run's result, after asking the client if possible."""
        why, refusals = "", 0
        while result.status == "paused" and result.state_token is not None:
            asked = await asked_at(self._flujo, result.state_token)
            form = form_of(asked) if _supports_forms(context) else None
            if form is None or refusals == _MOST_REFUSALS:
                return self._text(result.run_id, asked, why=why)
            if _is_modern(context):
                return _input_required(asked, form)
            answer = await _elicited(asked, form, why, context)
            if answer is None:
                return self._text(result.run_id, asked)
            try:
                result, why = await self._resumed(asked.token, answer, context), ""
            except InvalidAnswer as error:
                why, refusals = str(error), refusals + 1
        return self._tool_result(result)

    async def _watched(self, run: Any, context: McpContext) -> PipelineResult:
        done = begun = 0
        async with run as running:
            async for outcome in running:
                begun += isinstance(outcome, Started)
                if isinstance(outcome, Success) and outcome.path:
                    done += 1
                    await context.report_progress(done, max(begun, done), outcome.path)
            result: PipelineResult = await running
        return result

    async def _waited(self, run_id: str, timeout_s: float | None = None) -> PipelineResult:
        wait = functools.partial(self._client().wait, run_id, timeout=timeout_s)
        return await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)

    async def _server_options(self, context: McpContext) -> dict[str, Any]:
        """Return context and labels of a run, from its request."""
        found = {name: ask(context) for name, ask in self._options.items() if ask is not None}
        return {name: await given if inspect.isawaitable(given) else given for name, given in found.items()}

    # --- at any time ---

    def durable(self) -> dict[str, tuple[Callable[..., Awaitable[ToolReply]], str]]:
        """Tools of a pipeline with a store."""
        return {
            "start": (self.start, "Start a run and return its id at once; it continues in the background."),
            "status": (self.status, "Return the status of a run and its open questions."),
            "await": (self.wait, "Wait until a run has ended or asks a question, at most timeout_s seconds."),
            "answer": (self.answer, "Answer a question of a run by its token; the run continues in the background."),
            "cancel": (self.cancel, "End a run as aborted."),
        }

    async def start(self, data: object, context: McpContext) -> ToolReply:
        """Start a run; it is durable before its id is returned."""
        given = await self._server_options(context)
        run_id = await self._flujo.submit(data, run_id=_new_run_id(), **given)
        self._execute_detached(run_id)
        return _text({"run_id": run_id, "status": "running"})

    async def status(self, run_id: str) -> ToolReply:
        """Return the status of a run."""
        await self._refuse_foreign(run_id)
        assert self._flujo.store is not None
        run = await anyio.to_thread.run_sync(self._flujo.store.get, RunId(run_id))
        abandoned = run.status == "running" and not run.leased and not run.unclaimed
        document: dict[str, object] = {"run_id": run_id, "status": "abandoned" if abandoned else run.status}
        asked = [await asked_at(self._flujo, pause.token) for pause in run.pauses]
        return _text({**document, "questions": [self._question(run_id, each) for each in asked]} if asked else document)

    async def wait(self, run_id: str, timeout_s: float = 60.0) -> ToolReply:
        """Wait for a run."""
        await self._refuse_foreign(run_id)
        bounded = min(timeout_s, _LONGEST_WAIT_S) if timeout_s > 0 else 0.0
        try:
            result = await self._waited(run_id, bounded)
        except TimeoutError:
            return await self.status(run_id)
        return await self.status(run_id) if result.status == "paused" else self._tool_result(result)

    async def answer(self, token: str, answer: Any) -> ToolReply:
        """Answer a question."""
        run_id = str(parse_token(token)[0])
        await self._refuse_foreign(run_id)
        await anyio.to_thread.run_sync(self._client().answer, token, answer)
        self._execute_detached(run_id)
        return _text({"run_id": run_id, "status": "running"})

    async def cancel(self, run_id: str, reason: str = "cancelled by an MCP client") -> ToolReply:
        """End a run."""
        await self._refuse_foreign(run_id)
        await anyio.to_thread.run_sync(self._client().cancel, run_id, reason)
        return _text({"run_id": run_id, "status": "aborted"})

    async def _refuse_foreign(self, run_id: str) -> None:
        """Raise `RunNotFound` for a run of another pipeline or principal."""
        try:
            await refuse_foreign(self._flujo, run_id)
        except RunNotFound as error:
            raise RunNotFound(f"{error}{_ADVICE}") from None
        if not _is_own(run_id):
            raise RunNotFound(f"{not_found(RunId(run_id))}{_ADVICE}")

    def _client(self) -> RunClient:
        assert self.client is not None  # these tools are there only with a store
        return self.client

    def _execute_detached(self, run_id: str) -> None:
        """Execute the run in its own loop, outliving its client."""
        if self._execute == "here":
            name = f"flujo_actors run {run_id}"
            threading.Thread(target=_resume, args=(self._flujo, run_id), name=name, daemon=True).start()

    # --- tasks ---

    async def task(self, run_id: str) -> TaskState:
        """Return a run as a task, continuing an abandoned one."""
        await self._refuse_foreign(run_id)
        assert self._flujo.store is not None
        run = await anyio.to_thread.run_sync(self._flujo.store.get, RunId(run_id))
        if run.status == "running" and not run.leased:
            self._execute_detached(run_id)
        document = TaskState(run_id=run_id, status="working", created_at=run.created_at, updated_at=run.updated_at)
        if run.status in ("completed", "failed"):
            return attrs.evolve(document, status="completed", result=await self.task_result(run_id))
        if run.status == "aborted":
            return attrs.evolve(document, status="cancelled")
        asked = [await asked_at(self._flujo, pause.token) for pause in run.pauses]
        requests = {each.token: _elicitation(each, form) for each in asked if (form := form_of(each))}
        status: TaskStatus = "input_required" if requests else "working"
        return attrs.evolve(document, status=status, requests=requests or None, message=_waiting_for(asked))

    async def task_result(self, run_id: str) -> CallToolResult:
        """Wait for the end of a run and return its result."""
        await self._refuse_foreign(run_id)
        result = self._tool_result(await self._waited(run_id, _LONGEST_WAIT_S))
        assert isinstance(result, CallToolResult)
        return result

    async def update_task(self, run_id: str, responses: Mapping[str, Mapping[str, object]]) -> None:
        """Answer questions of a run; the keys are their tokens."""
        await self._refuse_foreign(run_id)
        for token, reply in responses.items():
            if parse_token(token)[0] != run_id:
                raise NotPaused(f"{token!r} is no request of task {run_id!r}")
            asked = await asked_at(self._flujo, token)
            content = reply.get("content")
            given = content if isinstance(content, Mapping) else None
            answer = answer_in(str(reply.get("action")), given, form_of(asked) or {})
            if answer is not None:
                await anyio.to_thread.run_sync(self._client().answer, token, answer.value)
        self._execute_detached(run_id)

    async def cancel_task(self, run_id: str) -> None:
        """End a run as aborted."""
        await self.cancel(run_id)

    # --- results ---

    def _tool_result(self, result: PipelineResult) -> ToolReply:
        document: dict[str, object] = {"run_id": result.run_id, "status": result.status}
        if result.status == "completed":
            return _text({**document, "output": json.loads(to_json(result.output, plain=True))})
        return _text({**document, "feedback": result.feedback}, is_error=result.status != "sleeping")

    def _text(self, run_id: str, asked: OpenQuestion, *, why: str = "") -> ToolReply:
        """Return a question for a client that cannot ask it."""
        document = {"run_id": run_id, "status": "paused", "questions": [self._question(run_id, asked)]}
        return _text({**document, "refused": why} if why else document)

    def _question(self, run_id: str, asked: OpenQuestion) -> dict[str, object]:
        facts: dict[str, object] = {
            "token": asked.token,
            "message": asked.message,
            "kind": asked.kind,
            "schema": asked.schema,
        }
        document = facts if asked.tool is None else {**facts, "tool": dict(asked.tool)}
        return document if self._page is None else {**document, "link": f"{self._page.rstrip('/')}/#run={run_id}"}


def _text(document: Mapping[str, object], *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=json.dumps(document))], is_error=is_error)


def _is_modern(context: McpContext) -> bool:
    return context.protocol_version is not None and context.protocol_version >= _MODERN


def _supports_forms(context: McpContext) -> bool:
    """Return whether client and transport support forms."""
    offered = context.client_capabilities
    elicitation = None if offered is None else offered.elicitation
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        return False
    return _is_modern(context) or context.session.can_send_request


def _reply(context: McpContext) -> tuple[int, ElicitResult | None]:
    """Return the client's reply and its round, from the request key."""
    for key, reply in (context.input_responses or {}).items():
        name, _, number = key.partition("-")
        if name == _ANSWER and isinstance(reply, ElicitResult):
            return int(number) if number.isdecimal() and len(number) < 4 else 1, reply
    return 1, None


def _can_poll(context: McpContext) -> bool:
    offered = context.client_capabilities
    return _is_modern(context) and offered is not None and declares_tasks(offered.extensions)


def _waiting_for(asked: list[OpenQuestion]) -> str | None:
    return "; ".join(each.message for each in asked) or None


def _elicitation(asked: OpenQuestion, form: Form) -> dict[str, object]:
    params = ElicitRequestFormParams(message=asked.message, requested_schema=form)
    return ElicitRequest(params=params).model_dump(mode="json", by_alias=True, exclude_none=True)


def _input_required(asked: OpenQuestion, form: Form, round_: int = 1, *, why: str = "") -> InputRequiredResult:
    params = ElicitRequestFormParams(message=_message(asked, why), requested_schema=form)
    named = {"flujo_actors/run_id": str(parse_token(asked.token)[0]), "flujo_actors/token": asked.token}
    return InputRequiredResult(
        input_requests={f"{_ANSWER}-{round_}": ElicitRequest(params=params)}, request_state=asked.token, _meta=named
    )


async def _elicited(asked: OpenQuestion, form: Form, why: str, context: McpContext) -> ElicitedAnswer | None:
    """Return the person's answer; `None` if declined or failed."""
    try:
        reply = await context.session.elicit_form(_message(asked, why), form, context.request_id)
    except MCPError as error:
        _logger.warning("the MCP client could not ask %r: %s", asked.message, error)
        return None
    return answer_in(reply.action, reply.content, form)


def _message(asked: OpenQuestion, why: str) -> str:
    return f"{asked.message}\n\n{why}" if why else asked.message
