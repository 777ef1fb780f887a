"""Scripted pydantic-ai model. Importing this imports pydantic-ai; `scripted_model` defers it."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
import attrs
from pydantic_ai.embeddings import Embedder, EmbeddingModel, EmbeddingResult, EmbeddingSettings
from pydantic_ai.embeddings.result import EmbedInputType
from pydantic_ai.exceptions import ModelHTTPError
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

from .._agents.compaction import context_in
from .._agents.request_meter import current_call
from .._core.usage import NO_USAGE, Usage
from ..errors import DeclarationError
from ._scripted_agent import DEFAULT_USAGE, Billed, CallTool, Delayed, Script, Streamed, settled

if TYPE_CHECKING:
    from ._simulated_world import InjectedFault, World

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
        """Return the last text of the user's."""
        prompts = [part for each in self.messages if isinstance(each, ModelRequest) for part in each.parts]
        texts = [_text_of(part) for part in prompts if isinstance(part, UserPromptPart)]
        return texts[-1] if texts else ""

    @property
    def context(self) -> str | None:
        """Return the assembled context as the model received it, or None."""
        return next((text for each in reversed(self.messages) if (text := context_in(each)) is not None), None)

    @property
    def instructions(self) -> str | None:
        """Return the agent's instructions, as they were resolved for this request."""
        last = self.messages[-1]
        return last.instructions if isinstance(last, ModelRequest) else None


def _text_of(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    return "\n".join(piece for piece in part.content if isinstance(piece, str))


@attrs.frozen
class ScriptedTurn:
    """Reply of the model: parts, and position of a cut."""

    parts: list[ModelResponsePart]
    usage: Usage
    pieces: tuple[str, ...] | None = None
    error: BaseException | None = None


class ScriptedModel(Model):
    """Model with one scripted reply per request; see `flujo_actors.testing.scripted_model`."""

    def __init__(
        self, *replies: object, name: str = "scripted", usage: Usage = DEFAULT_USAGE, forever: bool = False
    ) -> None:
        super().__init__(profile=_PROFILE)
        self.asked: list[ModelAsked] = []
        """The requests, in order."""
        self.billed: Usage = NO_USAGE
        """Total usage of all replies so far, including abandoned ones."""
        self._name, self._usual = name, usage
        self._script = Script(replies, forever=forever, whose=f"model {name!r}")

    @property
    def model_name(self) -> str:
        """Return the name given to it."""
        return self._name

    @property
    def system(self) -> str:
        """Return the provider: none."""
        return "scripted"

    @property
    def prompts(self) -> list[str]:
        """Return the last text of the user's in each request."""
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
    ) -> ScriptedTurn:
        tools = tuple(tool.name for tool in parameters.function_tools)
        self.asked.append(ModelAsked(messages=list(messages), tools=tools, settings=settings, streamed=streamed))
        turn = await self._played(messages, parameters)
        self.billed += attrs.evolve(turn.usage, requests=1)
        return turn

    async def _played(self, messages: list[ModelMessage], parameters: ModelRequestParameters) -> ScriptedTurn:
        usage = self._usual
        reply = await settled(self._script.next(), messages)
        if isinstance(reply, Billed):
            usage = _usage(reply)
            reply = await settled(reply.reply, messages)
        match reply:
            case ModelResponse():
                return ScriptedTurn(list(reply.parts), usage)
            case Streamed(pieces=pieces, error=error):
                return ScriptedTurn([TextPart("".join(pieces))], usage, pieces, error)
            case list() if any(isinstance(part, CallTool) for part in reply):
                return ScriptedTurn(_parts(reply), usage)
            case str() | CallTool():
                return ScriptedTurn(_parts([reply]), usage)
            case _:
                return ScriptedTurn([_structured(reply, parameters)], usage)


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
    """Streamed reply, chunk by chunk."""

    turn: ScriptedTurn
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
        """Do nothing: there is no connection."""

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


_WORD = re.compile(r"\w+")
_PIECE = 4


class HashingEmbedder(Embedder):
    """pydantic-ai `Embedder` that hashes words and parts of words into vectors.

    Texts that share words are near each other, and nothing else is. Every text counts a token for each word, so that
    usage can be tested; `model.asked` records the embedded texts.

    Args:
        dimensions: length of a vector.
    """

    def __init__(self, dimensions: int = 384) -> None:
        self.hashing: HashingModel = HashingModel(dimensions)
        """Model behind the embedder."""
        super().__init__(self.hashing)


class HashingModel(EmbeddingModel):
    """The model behind a `HashingEmbedder`."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        if isinstance(dimensions, bool) or not isinstance(dimensions, int) or dimensions < 1:
            raise DeclarationError(f"HashingEmbedder: dimensions must be at least 1, not {dimensions!r}")
        self._dimensions = dimensions
        self.asked: list[list[str]] = []
        """The texts of every call."""

    @property
    def model_name(self) -> str:
        """Return the model name for results."""
        return f"hashing-{self._dimensions}"

    @property
    def system(self) -> str:
        """Return the provider: none."""
        return "hashing"

    async def embed(
        self, inputs: str | Sequence[str], *, input_type: EmbedInputType, settings: EmbeddingSettings | None = None
    ) -> EmbeddingResult:
        texts, _ = self.prepare_embed(inputs, settings)
        self.asked.append(texts)
        return EmbeddingResult(
            embeddings=[self._vector(text) for text in texts],
            inputs=texts,
            input_type=input_type,
            model_name=self.model_name,
            provider_name=self.system,
            usage=RequestUsage(input_tokens=sum(len(_WORD.findall(text)) for text in texts)),
        )

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self._dimensions
        for piece in _pieces(text):
            number = int.from_bytes(hashlib.blake2b(piece.encode("utf-8", "replace"), digest_size=8).digest(), "big")
            vector[(number >> 1) % self._dimensions] += 1.0 if number & 1 else -1.0
        length = math.sqrt(sum(each * each for each in vector))
        return [each / length for each in vector] if length else vector


def _pieces(text: str) -> Iterator[str]:
    for word in _WORD.findall(text.casefold()):
        yield f"={word}"
        yield from (word[start : start + _PIECE] for start in range(len(word) - _PIECE + 1))


# --- Model of a simulated world -----------------------------------------------------------------------------------


class SimulatedRateLimit(ModelHTTPError):
    """Refused model request with the provider's wait time."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(429, "simulated", {"retry_after": retry_after})
        self.retry_after = retry_after


class _OneReply:
    """Script of the current request."""

    def __init__(self, reply: object) -> None:
        self._reply = reply

    def next(self) -> object:
        return self._reply


class WorldModel(ScriptedModel):
    """Model whose nth reply answers the nth turn of a conversation."""

    def __init__(self, world: World, replies: tuple[object, ...]) -> None:
        super().__init__(*replies, name="simulated")
        self._world, self._replies = world, replies

    async def _turn(
        self, messages: list[ModelMessage], settings: Any, parameters: Any, *, streamed: bool
    ) -> ScriptedTurn:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        fault = self._world.request(number)
        await anyio.sleep(self._world.model_delay_s())
        self._world.require_life()
        _raise_if_refused(fault)
        self._script = _OneReply(self._reply(number, messages))  # type: ignore[assignment]
        turn = await super()._turn(messages, settings, parameters, streamed=streamed)
        if current_call.get() is not None:  # an agent that a function calls is not counted by the library, either
            self._world.asked(turn.usage.tokens)
        self._world.answered(fault)
        return _truncated(turn) if fault is not None and fault.name == "truncated_answer" else turn

    def _reply(self, number: int, messages: list[ModelMessage]) -> object:
        reply = self._replies[min(number, len(self._replies) - 1)]
        while callable(reply) and not isinstance(reply, type | Delayed):
            reply = reply(messages, self._world.rng)
        return reply


def _raise_if_refused(fault: InjectedFault | None) -> None:
    if fault is not None and fault.name == "model_fails":
        raise ModelHTTPError(503, "simulated", "the model fails, as simulated")
    if fault is not None and fault.name == "rate_limited":
        raise SimulatedRateLimit(fault.seconds)


def _truncated(turn: ScriptedTurn) -> ScriptedTurn:
    """Return the turn with half of its last text."""
    parts = list(turn.parts)
    if parts and isinstance(parts[-1], TextPart):
        parts[-1] = TextPart(parts[-1].content[: len(parts[-1].content) // 2])
    return attrs.evolve(turn, parts=parts)
