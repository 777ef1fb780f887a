"""Models that play a script, shapes to ask for, and short ways to run one structured step."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from enum import Enum
from typing import Any, TypedDict

import attrs
import typing_extensions
from pydantic import BaseModel, Field
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.usage import RequestUsage

from flujo_actors import Chunk, Flujo, PipelineResult, Step


class City(BaseModel):
    name: str
    people: int = Field(ge=0)


@dataclasses.dataclass
class CityData:
    name: str
    people: int


@attrs.frozen(kw_only=True)
class CityAttrs:
    name: str
    people: int


class CityDict(TypedDict):
    name: str
    people: int


class CityDictForAgents(typing_extensions.TypedDict):
    name: str
    people: int


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


CITY_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer", "minimum": 0}},
    "required": ["name", "people"],
    "additionalProperties": False,
}
LIMA = {"name": "Lima", "people": 10}
LIMA_JSON = '{"name": "Lima", "people": 10}'
NOISY = "Sure! Here it is:\n```json\n{'name': 'Lima', 'people': '10',}\n```\nAnything else?"
PROSE = "I would rather talk about the weather."


@attrs.frozen
class Call:
    """A call of the output tool with arguments as they stand."""

    arguments: str
    name: str | None = None


class Played:
    """A model that says one thing per request, the last one for ever; `asked` holds what it was sent."""

    def __init__(self, *said: Any, tokens: int = 10) -> None:
        self.said, self.tokens = said, tokens
        self.asked: list[list[ModelMessage]] = []
        self.infos: list[AgentInfo] = []
        self.model = FunctionModel(self._answer, stream_function=self._stream, model_name="played")

    @property
    def prompts(self) -> list[str]:
        """The user's side of each request, in the words the model got."""
        return ["\n".join(_words(message) for message in messages) for messages in self.asked]

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> Any:
        self.asked.append(messages)
        self.infos.append(info)
        said = self.said[min(len(self.asked), len(self.said)) - 1]
        if isinstance(said, BaseException):
            raise said
        return said

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = self._next(messages, info)
        usage = RequestUsage(input_tokens=self.tokens, output_tokens=self.tokens)
        part = TextPart(said) if isinstance(said, str) else ToolCallPart(_tool(said, info), said.arguments)
        return ModelResponse(parts=[part], usage=usage)

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        said = self._next(messages, info)
        if isinstance(said, str):
            for at in range(0, len(said), 5):
                yield said[at : at + 5]
            return
        yield {0: DeltaToolCall(name=_tool(said, info), json_args="", tool_call_id="c")}
        for at in range(0, len(said.arguments), 5):
            yield {0: DeltaToolCall(json_args=said.arguments[at : at + 5], tool_call_id="c")}


def _tool(said: Call, info: AgentInfo) -> str:
    return said.name or info.output_tools[0].name


def _words(message: ModelMessage) -> str:
    return "\n".join(str(getattr(part, "content", "")) for part in message.parts)


async def run(step: Any, data: Any = "Go on.", **config: Any) -> PipelineResult:
    """The result of a run nobody watches."""
    return await Flujo(step, **config).run_async(data)


async def watch(step: Any, data: Any = "Go on.", **config: Any) -> tuple[list[Chunk], PipelineResult]:
    """The chunks of a run that is watched, and its result."""
    handle = Flujo(step, **config).run_async(data)
    chunks = [outcome async for outcome in handle if isinstance(outcome, Chunk)]
    return chunks, await handle


async def both(step: Any, **config: Any) -> list[PipelineResult]:
    """The results without and with somebody watching."""
    return [await run(step, **config), (await watch(step, **config))[1]]


def says(*answers: Any, **switches: Any) -> Step:
    """A step whose agent is a function that gives one answer per call, and takes no feedback."""
    given = list(answers)

    async def say(data: object) -> Any:
        answer = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    config = {key: switches.pop(key) for key in ("max_retries", "backoff", "fallback") if key in switches}
    return Step("say", say, processing={"schema": City, **switches}, **config)


class Heard:
    """A sink that keeps the `aros.*` events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        self.events.append(event)

    @property
    def stages(self) -> list[tuple[str, str]]:
        """Each repair and fallback event: its kind and its stage."""
        return [(event.kind, event.stage) for event in self.events if event.kind.startswith("aros.")]


def noted(result: PipelineResult) -> dict[str, Any]:
    """The metadata of the last step."""
    return dict(result.step_history[-1].metadata)
