"""Tasks extension of MCP: a long tool call is a task.

`io.modelcontextprotocol/tasks`, protocol 2026-07-28.

Rules:

1. A task is a run of the store, and its id is the run id: it survives the server, and any server of the store has it.
2. A call becomes a task only for a client that declared the extension.
3. A question makes its task `input_required`; `tasks/update` answers it by the key of its request.
4. A run that failed is a completed task whose result is an error; an aborted run is a cancelled task.
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import attrs
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolRequestParams, CallToolResult, RequestParams
from pydantic import ConfigDict, Field

from ..errors import FlujoError

TASKS = "io.modelcontextprotocol/tasks"
TASK_META = "flujo_actors/task"
"""Key of the run id in the result of a task's tool."""
_MODERN = frozenset({"2026-07-28"})
_POLL_MS = 1_000

TaskStatus: TypeAlias = Literal["working", "input_required", "completed", "cancelled"]
Request: TypeAlias = ServerRequestContext[object, object]


class TaskParams(RequestParams):
    """Parameters of a request about a task."""

    task_id: str = Field(alias="taskId")


class UpdateParams(TaskParams):
    """Parameters of `tasks/update`."""

    model_config = ConfigDict(extra="allow")
    input_responses: dict[str, dict[str, object]] = Field(default_factory=dict, alias="inputResponses")


@attrs.frozen(kw_only=True)
class TaskState:
    """A run as a task."""

    run_id: str
    status: TaskStatus
    created_at: float
    updated_at: float
    message: str | None = None
    requests: Mapping[str, object] | None = None
    """Requests that the client must answer, by key."""
    result: CallToolResult | None = None

    def data(self) -> dict[str, object]:
        """Return the task as the extension writes it."""
        facts: dict[str, object] = {
            "taskId": self.run_id,
            "status": self.status,
            "createdAt": _moment(self.created_at),
            "lastUpdatedAt": _moment(self.updated_at),
            "ttlMs": None,
            "pollIntervalMs": _POLL_MS,
        }
        result = None if self.result is None else self.result.model_dump(mode="json", by_alias=True, exclude_none=True)
        more = {"statusMessage": self.message, "inputRequests": self.requests, "result": result}
        return {**facts, **{name: each for name, each in more.items() if each is not None}}


class TaskRuns(Protocol):
    """Runs behind the tasks of a server."""

    async def task(self, run_id: str) -> TaskState:
        """Return a task's state; raise `RunNotFound` for an unreachable run."""

    async def task_result(self, run_id: str) -> CallToolResult:
        """Wait for the end of a task and return its result."""

    async def update_task(self, run_id: str, responses: Mapping[str, Mapping[str, object]]) -> None:
        """Answer questions of a task."""

    async def cancel_task(self, run_id: str) -> None:
        """End a task as cancelled."""


class Tasks(Extension):
    """Tasks extension over the runs of a pipeline."""

    identifier = TASKS

    def __init__(self, runs: TaskRuns) -> None:
        self._runs = runs

    def methods(self) -> Sequence[MethodBinding]:
        """Return the methods of the extension."""
        return [
            MethodBinding("tasks/get", TaskParams, _refusing(self._get), _MODERN),
            MethodBinding("tasks/result", TaskParams, _refusing(self._result)),
            MethodBinding("tasks/update", UpdateParams, _refusing(self._update), _MODERN),
            MethodBinding("tasks/cancel", TaskParams, _refusing(self._cancel), _MODERN),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Request, call_next: CallNext
    ) -> HandlerResult:
        """Replace the result of a continuing call by its task."""
        result = await call_next(ctx)
        run_id = (result.meta or {}).get(TASK_META) if isinstance(result, CallToolResult) else None
        if not isinstance(run_id, str):
            return result
        task = attrs.evolve(await self._runs.task(run_id), requests=None, result=None)
        return {"resultType": "task", **task.data()}

    async def _get(self, _: Request, params: TaskParams) -> HandlerResult:
        return {"resultType": "complete", **(await self._runs.task(params.task_id)).data()}

    async def _result(self, _: Request, params: TaskParams) -> HandlerResult:
        return await self._runs.task_result(params.task_id)

    async def _update(self, _: Request, params: UpdateParams) -> HandlerResult:
        await self._runs.update_task(params.task_id, params.input_responses)
        return {"resultType": "complete"}

    async def _cancel(self, _: Request, params: TaskParams) -> HandlerResult:
        await self._runs.cancel_task(params.task_id)
        return {"resultType": "complete"}


def declares_tasks(extensions: Mapping[str, object] | None) -> bool:
    """Return whether a client declared the extension."""
    return extensions is not None and TASKS in extensions


def _refusing(handle: Callable[[Request, Any], Awaitable[HandlerResult]]) -> Callable[..., Awaitable[HandlerResult]]:
    async def handled(context: Request, params: TaskParams) -> HandlerResult:
        try:
            return await handle(context, params)
        except FlujoError as error:
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from error

    return handled


def _moment(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat()
