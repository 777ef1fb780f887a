"""A pydantic-ai agent, called for a step: on asyncio, with its requests metered."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Sequence
from typing import Any, Protocol, cast

import attrs
from pydantic_ai import AgentRunResult
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    AgentStreamEvent,
    AudioUrl,
    BinaryContent,
    CachePoint,
    DocumentUrl,
    ImageUrl,
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
from pydantic_core import to_json

from .factory import StepAgent
from .metered_model import Metering, metered_model
from .metering import AgentCall, current_call
from .per_agent import SomeAgent
from .tool_span import ToolSpan, no_telemetry
from .toolless import has_no_tools

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


class Intake(Protocol):
    """Where the text of an answer goes while it is made."""

    def take(self, piece: str) -> bool:
        """Take a piece; if this is false, `room` is waited for before the next one."""

    async def room(self) -> None:
        """Wait until another piece may come."""


@attrs.frozen(kw_only=True, eq=False)
class AgentRequest:
    """What is asked of an agent."""

    agent: SomeAgent
    prompt: str | Sequence[UserContent] | None
    call: AgentCall
    deps: object = None
    options: dict[str, Any] = attrs.field(factory=dict)
    """Further arguments for pydantic-ai's `run`."""

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `Agent.run` for this request."""
        model = metered_model(self.agent)
        arguments: dict[str, Any] = {"model": model, "usage": self.call.run_usage, "infer_name": False}
        if self.deps is not None:
            arguments["deps"] = self.deps
        if self._timeout_s is not None:
            arguments["timeout"] = self._timeout_s
        capabilities = [*([Metering()] if model is None else []), *self._tool_events()]
        if capabilities:
            arguments["capabilities"] = capabilities
        return with_options(arguments, self.options) if self.options else arguments

    @property
    def _timeout_s(self) -> float | None:
        return self.agent.timeout_s if isinstance(self.agent, StepAgent) else None

    def _tool_events(self) -> list[AbstractCapability[Any]]:
        if self.call.is_only_counted or (has_no_tools(self.agent) and not self.options.keys() & _BRINGING_TOOLS):
            return []
        return [ToolCalls(self.call)]

    async def run(self, intake: Intake | None = None) -> AgentRunResult[object]:
        """The agent's result, on the running asyncio loop; its text as it comes is given to the intake.

        That is the text of all its turns, with tool calls in between.
        """
        token = current_call.set(self.call)
        try:
            arguments = self.arguments()
            if intake is not None:
                arguments |= streaming_to(intake, self.call, self.agent)
            result: AgentRunResult[object] = await self.agent.run(self.prompt, **arguments)
            return result
        finally:
            current_call.reset(token)


def with_options(arguments: dict[str, Any], more: dict[str, Any]) -> dict[str, object]:
    """Both, with the capabilities of both; what is said twice is as the second says."""
    capabilities = [*arguments.get("capabilities", ()), *more.get("capabilities", ())]
    return arguments | more | ({"capabilities": capabilities} if capabilities else {})


def streaming_to(intake: Intake | None, call: AgentCall, agent: object) -> dict[str, Any]:
    """The argument of `Agent.run` that makes it stream to an intake, if there is one, and to the agent's own handler.

    The agent calls its handler where it reads the model's answer: `run_stream_events` would put a task of its own and a
    channel without a buffer between the two, which takes two turns of the loop for each event.
    """
    if intake is None:
        return {}
    own = getattr(agent, "event_stream_handler", None)
    handler = functools.partial(_give_text, intake, call)
    return {"event_stream_handler": handler if own is None else functools.partial(_give_both, own, intake, call)}


async def _give_text(intake: Intake, call: AgentCall, _: object, events: AsyncIterable[AgentStreamEvent]) -> None:
    answer = AnswerText(call)
    async for event in events:
        if (piece := answer.piece(event)) and not intake.take(piece):
            await intake.room()


async def _give_both(
    own: EventStreamHandler[Any],
    intake: Intake,
    call: AgentCall,
    ctx: RunContext[Any],
    events: AsyncIterable[AgentStreamEvent],
) -> None:
    """What the agent's own handler reads is given on as it reads, and afterwards what it left."""
    overheard = Overheard(intake, call, events)
    await own(ctx, overheard)
    async for _ in overheard:
        pass


class Overheard:
    """Events of an agent whose text is given to an intake when they are read; nobody but their owner closes them."""

    def __init__(self, intake: Intake, call: AgentCall, events: AsyncIterable[AgentStreamEvent]) -> None:
        self._intake, self._events, self._answer = intake, aiter(events), AnswerText(call)

    def __aiter__(self) -> Overheard:
        return self

    async def __anext__(self) -> AgentStreamEvent:
        event = await anext(self._events)
        if (piece := self._answer.piece(event)) and not self._intake.take(piece):
            await self._intake.room()
        return event


class AnswerText:
    """The text of one response as it comes: what the model says, and the arguments of its output tool."""

    def __init__(self, call: AgentCall) -> None:
        self._call = call
        self._output_part: int | None = None

    def piece(self, event: AgentStreamEvent) -> str:
        """What an event adds to the answer."""
        match event:
            case PartStartEvent(index=index, part=part):
                return self._begun(index, part)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=piece)):
                return piece
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=str() as piece)):
                return piece if index == self._output_part else ""
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
    """A step's data as a prompt, text and pydantic-ai content as they are, anything else as JSON; then the notes."""
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
    """What a model is told of why its last answer was refused."""
    return None if reason is None else f"Your previous answer was not accepted: {reason}"


class ToolCalls(AbstractCapability[Any]):
    """Counts an agent's tool calls against limits, and tells telemetry of them."""

    def __init__(self, call: AgentCall) -> None:
        self._call = call

    async def wrap_tool_execute(
        self, ctx: RunContext[object], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> object:
        await self._call.begin_tool_call()
        returned = False
        try:
            with ToolSpan(self._call.emit or no_telemetry, call.tool_name, call.tool_call_id, args) as span:
                span.result = await handler(args)
            returned = True
        finally:
            self._call.end_tool_call(returned=returned)
        return span.result
