"""A pydantic-ai model that plays a script. Importing this imports pydantic-ai; `scripted_model` does so when called."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import attrs
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_json

from .._agents.shown_context import context_in
from .._core.usage import NO_USAGE, Usage
from ._model_script import DEFAULT_USAGE, Billed, CallTool
from ._scripted import Script, Streamed, settled

_WORDS = re.compile(r"\s*\S+\s*")
_PROFILE = ModelProfile(
    supports_json_schema_output=True,
    supports_json_object_output=True,
    supports_inline_system_prompts=True,  # otherwise pydantic-ai adds a note of its own to the system prompt
)


@attrs.frozen(kw_only=True)
class ModelAsked:
    """One request to a scripted model."""

    messages: list[ModelMessage]
    tools: tuple[str, ...] = ()
    settings: ModelSettings | None = None
    streamed: bool = False

    @property
    def prompt(self) -> str:
        """The last text of the user's."""
        prompts = [part for each in self.messages if isinstance(each, ModelRequest) for part in each.parts]
        texts = [_text_of(part) for part in prompts if isinstance(part, UserPromptPart)]
        return texts[-1] if texts else ""

    @property
    def context(self) -> str | None:
        """What the step's agent was shown besides its prompt, as the model got it; `None` if there was nothing."""
        return next((text for each in reversed(self.messages) if (text := context_in(each)) is not None), None)

    @property
    def instructions(self) -> str | None:
        """The agent's instructions, as they were resolved for this request."""
        last = self.messages[-1]
        return last.instructions if isinstance(last, ModelRequest) else None


def _text_of(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    return "\n".join(piece for piece in part.content if isinstance(piece, str))


@attrs.frozen
class _Turn:
    """A reply as the model gives it: parts, and where a stream cuts the text, or breaks."""

    parts: list[ModelResponsePart]
    usage: Usage
    pieces: tuple[str, ...] | None = None
    error: BaseException | None = None


class ScriptedModel(Model):
    """Plays one reply per request; see `flujo_actors.testing.scripted_model`."""

    def __init__(
        self, *replies: object, name: str = "scripted", usage: Usage = DEFAULT_USAGE, forever: bool = False
    ) -> None:
        super().__init__(profile=_PROFILE)
        self.asked: list[ModelAsked] = []
        """The requests, in order."""
        self.billed: Usage = NO_USAGE
        """What all replies so far were billed at, also those that nobody waited for."""
        self._name, self._usual = name, usage
        self._script = Script(replies, forever=forever, whose=f"model {name!r}")

    @property
    def model_name(self) -> str:
        """The name given to it."""
        return self._name

    @property
    def system(self) -> str:
        """The provider: none."""
        return "scripted"

    @property
    def prompts(self) -> list[str]:
        """The last text of the user's in each request."""
        return [asked.prompt for asked in self.asked]

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        turn = await self._turn(messages, settings, parameters, streamed=False)
        if turn.error is not None:
            raise turn.error
        return ModelResponse(parts=turn.parts, usage=_request_usage(turn.usage), model_name=self._name)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        turn = await self._turn(messages, settings, parameters, streamed=True)
        yield _ScriptedStream(model_request_parameters=parameters, turn=turn, name=self._name)

    async def _turn(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
        *,
        streamed: bool,
    ) -> _Turn:
        tools = tuple(tool.name for tool in parameters.function_tools)
        self.asked.append(ModelAsked(messages=list(messages), tools=tools, settings=settings, streamed=streamed))
        turn = await self._played(messages, parameters)
        self.billed += attrs.evolve(turn.usage, requests=1)
        return turn

    async def _played(self, messages: list[ModelMessage], parameters: ModelRequestParameters) -> _Turn:
        usage = self._usual
        reply = await settled(self._script.next(), messages)
        if isinstance(reply, Billed):
            usage = _usage(reply)
            reply = await settled(reply.reply, messages)
        match reply:
            case ModelResponse():
                return _Turn(list(reply.parts), usage)
            case Streamed(pieces=pieces, error=error):
                return _Turn([TextPart("".join(pieces))], usage, pieces, error)
            case list() if any(isinstance(part, CallTool) for part in reply):
                return _Turn(_parts(reply), usage)
            case str() | CallTool():
                return _Turn(_parts([reply]), usage)
            case _:
                return _Turn([_structured(reply, parameters)], usage)


def _parts(reply: Iterable[Any]) -> list[ModelResponsePart]:
    return [
        ToolCallPart(part.name, dict(part.arguments)) if isinstance(part, CallTool) else TextPart(part)
        for part in reply
    ]


def _structured(value: Any, parameters: ModelRequestParameters) -> ModelResponsePart:
    text = to_json(attrs.asdict(value) if attrs.has(type(value)) else value).decode()
    if not parameters.output_tools:
        return TextPart(text)
    tool = parameters.output_tools[0]
    wrapped = tool.outer_typed_dict_key
    return ToolCallPart(tool.name, text if wrapped is None else f'{{"{wrapped}": {text}}}')


def _usage(billed: Billed) -> Usage:
    return Usage(
        input_tokens=billed.input_tokens, output_tokens=billed.output_tokens, cached_tokens=billed.cached_tokens
    )


def _request_usage(usage: Usage) -> RequestUsage:
    return RequestUsage(
        input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cache_read_tokens=usage.cached_tokens
    )


@dataclass
class _ScriptedStream(StreamedResponse):
    """A turn, piece by piece."""

    turn: _Turn
    name: str
    began: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        self._usage = _request_usage(self.turn.usage)

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for index, part in enumerate(self.turn.parts):
            if isinstance(part, TextPart):
                pieces = _WORDS.findall(part.content) if self.turn.pieces is None else self.turn.pieces
                for piece in pieces:
                    for event in self._parts_manager.handle_text_delta(vendor_part_id=index, content=piece):
                        yield event
            else:
                yield self._parts_manager.handle_part(vendor_part_id=index, part=part)
        if self.turn.error is not None:
            raise self.turn.error

    async def close_stream(self) -> None:
        """There is no connection."""

    @property
    def model_name(self) -> str:
        return self.name

    @property
    def provider_name(self) -> str:
        return "scripted"

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self.began
