"""Call of a pydantic-ai agent for a step: on asyncio, metered.

Sections:

- Telemetry of one tool call.
- Agents without tools: no tool calls to count, limit or report.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, cast

import attrs
from pydantic_ai import Agent, AgentRunResult, capture_run_messages
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    AgentStreamEvent,
    AudioUrl,
    BinaryContent,
    CachePoint,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    PartDeltaEvent,
    PartStartEvent,
    TextContent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    UploadedFile,
    UserContent,
    VideoUrl,
)
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import FunctionToolset
from pydantic_core import to_json

from .._core.telemetry_events import ToolEnded, ToolStarted
from .agent_cache import SomeAgent
from .agent_factory import StepAgent
from .metered_model import MeteredModel, RequestMeter, metered_model
from .request_meter import AgentCall, Emit, current_call, ending_of

# --- Telemetry of one tool call -----------------------------------------------------------------------------------


@attrs.define(eq=False)
class ToolSpan:
    """Tool call reported at its start and at every end."""

    _emit: Emit
    _tool_name: str
    _tool_call_id: str
    _arguments: object
    result: object = None

    def __enter__(self) -> ToolSpan:
        self._emit_tool(ToolStarted, arguments=self._arguments)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ending = {"result": self.result} if error is None else ending_of(error)
        self._emit_tool(ToolEnded, **ending)

    def _emit_tool(self, kind: object, **facts: object) -> None:
        self._emit(kind, tool_name=self._tool_name, tool_call_id=self._tool_call_id, **facts)


def no_telemetry(kind: type, **facts: object) -> None:
    """Emit nothing."""


# --- Agents without tools -----------------------------------------------------------------------------------------
# A capability given to one run makes pydantic-ai compose all capabilities of the agent anew for that run, which takes
# a
# fifth of its time. An agent whose tools cannot be determined counts as one with tools.


def has_no_tools(agent: SomeAgent) -> bool:
    """Return whether the agent has neither tools nor a tool source."""
    if not isinstance(agent, Agent) or type(agent).run is not Agent.run or type(agent).iter is not Agent.iter:
        return False
    own, *more = agent.toolsets
    if more or not isinstance(own, FunctionToolset) or own.tools or _may_be_overridden(agent):
        return False
    return all(type(each) in _of_every_agent() for each in agent.root_capability.capabilities)


def _may_be_overridden(agent: object) -> bool:
    """Return whether `Agent.override` may have set other capabilities."""
    override = getattr(agent, "_override_root_capability", None)
    return override is None or override.get() is not None


@functools.cache
def _of_every_agent() -> frozenset[type]:
    """Return pydantic-ai's default capabilities, which add no tools."""
    return frozenset(map(type, Agent().root_capability.capabilities))


# --- Call of a pydantic-ai agent for a step -----------------------------------------------------------------------


_CONTENT = (
    str,
    TextContent,  # and so is StructuredContent
    ImageUrl,
    AudioUrl,
    DocumentUrl,
    VideoUrl,
    BinaryContent,
    UploadedFile,
    CachePoint,
)


_BRINGING_TOOLS = frozenset(("capabilities", "toolsets"))
"""The arguments of `Agent.run` through which tools may come."""


class ChunkSink(Protocol):
    """Receiver of an answer's live text."""

    def accept(self, chunk: str) -> bool:
        """Accept a chunk; after False, await `wait_for_room` before the next one."""

    async def wait_for_room(self) -> None:
        """Wait until another chunk is accepted."""


@attrs.frozen(kw_only=True, eq=False)
class AgentRequest:
    """Request to an agent."""

    agent: SomeAgent
    prompt: str | Sequence[UserContent] | None
    call: AgentCall
    deps: object = None
    options: dict[str, Any] = attrs.field(factory=dict)
    """Further arguments for pydantic-ai's `run`."""
    heard: list[ModelMessage] = attrs.field(factory=list)
    """Messages of the run, also of a failed one; filled if `keeps_messages`."""
    keeps_messages: bool = False

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `Agent.run` for this request."""
        model = metered_model(self.agent, self.options)
        arguments: dict[str, Any] = {"model": model, "usage": self.call.run_usage, "infer_name": False}
        if self.deps is not None:
            arguments["deps"] = self.deps
        if self._timeout_s is not None:
            arguments["timeout"] = self._timeout_s
        capabilities = [*([] if isinstance(model, MeteredModel) else [RequestMeter()]), *self._tool_events()]
        if capabilities:
            arguments["capabilities"] = capabilities
        return with_options(arguments, {**self.options, "model": model}) if self.options else arguments

    @property
    def _timeout_s(self) -> float | None:
        return self.agent.timeout_s if isinstance(self.agent, StepAgent) else None

    def _tool_events(self) -> list[AbstractCapability[Any]]:
        unwatched = self.call.is_only_counted and self.call.fence is None
        if unwatched or (has_no_tools(self.agent) and not self.options.keys() & _BRINGING_TOOLS):
            return []
        return [ToolCallCounter(self.call)]

    async def run(self, intake: ChunkSink | None = None) -> AgentRunResult[object]:
        """Run the agent on asyncio and pass its text to the intake."""
        token = current_call.set(self.call)
        try:
            arguments = self.arguments()
            if intake is not None:
                arguments |= streaming_to(intake, self.call, handler_of(self.agent, arguments))
            with captured(self.heard if self.keeps_messages else None):
                result: AgentRunResult[object] = await self.agent.run(self.prompt, **arguments)
            return result
        finally:
            current_call.reset(token)


@contextlib.contextmanager
def captured(heard: list[ModelMessage] | None) -> Iterator[None]:
    """Copy the messages of an agent's run into `heard` at any end."""
    if heard is None:
        yield
        return
    with capture_run_messages() as messages:
        try:
            yield
        finally:
            heard[:] = messages


def with_options(arguments: dict[str, Any], more: dict[str, Any]) -> dict[str, object]:
    """Return merged arguments; capabilities are joined, the second wins a conflict."""
    capabilities = [*arguments.get("capabilities", ()), *more.get("capabilities", ())]
    return arguments | more | ({"capabilities": capabilities} if capabilities else {})


def handler_of(agent: object, arguments: dict[str, Any]) -> EventStreamHandler[Any] | None:
    """Return the event handler given to the run, or the agent's own."""
    return arguments.get("event_stream_handler") or getattr(agent, "event_stream_handler", None)


def streaming_to(intake: ChunkSink | None, call: AgentCall, own: EventStreamHandler[Any] | None) -> dict[str, Any]:
    """Return the `Agent.run` argument that streams to an intake and a handler.

    The agent calls its handler where it reads the model's answer: `run_stream_events` would add a task and an
    unbuffered channel, which takes two turns of the loop for each event.
    """
    if intake is None:
        return {}
    handler = functools.partial(_give_text, intake, call)
    return {"event_stream_handler": handler if own is None else functools.partial(_give_both, own, intake, call)}


async def _give_text(intake: ChunkSink, call: AgentCall, _: object, events: AsyncIterable[AgentStreamEvent]) -> None:
    answer = AnswerText(call)
    async for event in events:
        if (chunk := answer.chunk(event)) and not intake.accept(chunk):
            await intake.wait_for_room()


async def _give_both(
    own: EventStreamHandler[Any],
    intake: ChunkSink,
    call: AgentCall,
    ctx: RunContext[Any],
    events: AsyncIterable[AgentStreamEvent],
) -> None:
    """Pass events on as the agent's handler reads them, then the rest."""
    overheard = RemoteChunks(intake, call, events)
    await own(ctx, overheard)
    async for _ in overheard:
        pass


class RemoteChunks:
    """Agent events that pass their text to an intake when read."""

    def __init__(self, intake: ChunkSink, call: AgentCall, events: AsyncIterable[AgentStreamEvent]) -> None:
        self._intake, self._events, self._answer = intake, aiter(events), AnswerText(call)

    def __aiter__(self) -> RemoteChunks:
        return self

    async def __anext__(self) -> AgentStreamEvent:
        event = await anext(self._events)
        if (chunk := self._answer.chunk(event)) and not self._intake.accept(chunk):
            await self._intake.wait_for_room()
        return event


class AnswerText:
    """Streamed text of one response: model text and output tool arguments."""

    def __init__(self, call: AgentCall) -> None:
        self._call = call
        self._output_part: int | None = None

    def chunk(self, event: AgentStreamEvent) -> str:
        """Return the text that an event adds to the answer."""
        match event:
            case PartStartEvent(index=index, part=part):
                return self._begun(index, part)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=chunk)):
                return chunk
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=str() as chunk)):
                return chunk if index == self._output_part else ""
            case _:
                return ""

    def _begun(self, index: int, part: object) -> str:
        if isinstance(part, TextPart):
            return part.content
        if not isinstance(part, ToolCallPart) or part.tool_name in self._call.function_tools:
            return ""
        self._output_part = index
        return part.args if isinstance(part.args, str) else part.args_as_json_str() if part.args else ""


def prompt_of(data: object, *notes: str | None) -> str | Sequence[UserContent] | None:
    """Return a step's data as a prompt, then the notes.

    Text and pydantic-ai content are unchanged, any other value is JSON.
    """
    prompt: str | Sequence[UserContent] | None
    if data is None or isinstance(data, str):
        prompt = data
    elif isinstance(data, list | tuple) and data and all(isinstance(part, _CONTENT) for part in data):
        prompt = cast("Sequence[UserContent]", list(data))
    elif isinstance(data, _CONTENT):
        prompt = [data]
    else:
        prompt = to_json(data, fallback=str, indent=2).decode()
    for note in notes:
        prompt = prompt if note is None else _with_note(prompt, note)
    return prompt


def _with_note(prompt: str | Sequence[UserContent] | None, note: str) -> str | Sequence[UserContent]:
    if prompt is None:
        return note
    return f"{prompt}\n\n{note}" if isinstance(prompt, str) else [*prompt, note]


def refusal_note(reason: str | None) -> str | None:
    """Return the note for a model about its refused answer, or None."""
    return None if reason is None else f"Your previous answer was not accepted: {reason}"


class ToolCallCounter(AbstractCapability[Any]):
    """Count, report and limit tool calls; refuse a former lease owner."""

    def __init__(self, call: AgentCall) -> None:
        self._call = call

    async def wrap_tool_execute(
        self, ctx: RunContext[object], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> object:
        await self._call.begin_tool_call()
        returned = False
        try:
            tool_span = ToolSpan(self._call.emit or no_telemetry, call.tool_name, call.tool_call_id, args)
            with tool_span as span, self._call.tools.inside():
                span.result = await handler(args)
            returned = True
        finally:
            self._call.end_tool_call(returned=returned)
        return span.result
