"""Repair of an agent's answers in its own conversation.

1. An answer that the deterministic reading can use is never requested again; pydantic-ai gets it as a value.
2. Other refused answers are retried by pydantic-ai, in the same conversation, as often as the agent allows.
3. The repairing model is the one that answered, with nothing of the agent but the model.
4. A repaired value is an answer like any other: the agent's validators judge it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import attrs
from pydantic import ValidationError
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.output import OutputContext
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_core import to_json

from ..errors import StructuredOutputError
from ..structured._compiled_schema import Schema
from ..structured._read_result import ReadResult
from ..structured._reader import read_structured
from .agent_cache import SomeAgent
from .request_meter import current_call

_READ_AT_ONCE = 500
"""Longer texts are read in a thread, as in `_calls.structured`."""
_CALL_ID = "flujo-output"
"""Id of a synthetic output tool call, equal in each replay."""


class OutputRepair(AbstractCapability[Any]):
    """Lets pydantic-ai use answers that the deterministic reading can repair (rule 1)."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.mended: tuple[str, ReadResult] | None = None
        """The last text that was read, with its reading."""

    async def on_output_validate_error(
        self,
        ctx: RunContext[Any],
        *,
        output_context: OutputContext,
        output: str | dict[str, Any],
        error: ValidationError | ModelRetry,
    ) -> object:
        if output_context.has_function or (output_context.tool_call is None and output_context.output_type is None):
            raise error  # the value is not the answer, or pydantic-ai must know which of several types it has
        reading = await self._read(output if isinstance(output, str) else to_json(output).decode())
        if reading is None:
            raise error
        return reading.value

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        self.mended = None
        parameters, text = request_context.model_request_parameters, response.text
        if not text or response.tool_calls or parameters.allow_text_output or not parameters.output_tools:
            return response
        reading = await self._read(text)
        if reading is None:
            return response
        call = _output_call(reading.value, parameters.output_tools)
        parts = [part for part in response.parts if not isinstance(part, TextPart)]
        return dataclasses.replace(response, parts=[*parts, call])

    async def _read(self, text: str) -> ReadResult | None:
        asked = current_call.get()
        if asked is not None and asked.cut_short:
            return None
        if len(text) <= _READ_AT_ONCE:
            reading = _readable(text, self._schema)
        else:
            reading = await asyncio.to_thread(_readable, text, self._schema)
        if reading is not None:
            self.mended = text, reading
        return reading


def _readable(text: str, schema: Schema) -> ReadResult | None:
    """Return the parsed whole text; a truncated value is requested again."""
    try:
        reading = read_structured(text, schema)
    except StructuredOutputError:
        return None
    return None if reading.truncated else reading


def continued(messages: Sequence[ModelMessage], refusal: str, function_tools: Collection[str]) -> list[ModelMessage]:
    """Return a continuable conversation: every last tool call has a return."""
    last = messages[-1]
    if not isinstance(last, ModelResponse) or not last.tool_calls:
        return list(messages)
    answers = [_answer_to(call, refusal, function_tools) for call in last.tool_calls]
    return [*messages, ModelRequest(parts=answers, run_id=last.run_id)]


def _answer_to(call: ToolCallPart, refusal: str, function_tools: Collection[str]) -> ModelRequestPart:
    unused = call.tool_name in function_tools
    content = "The tool was not executed: the answer was refused." if unused else refusal
    return ToolReturnPart(call.tool_name, content, call.tool_call_id)


def repairer(model: Model | str) -> Agent[None, str]:
    """Return an agent without prompt, tools, deps or history."""
    return Agent(model, output_type=str, name="repair", retries=0)


@attrs.frozen(kw_only=True, eq=False)
class RepairedOutput:
    """Value for an agent to validate like a model answer."""

    agent: SomeAgent
    prompt: Any
    deps: object
    value: object

    async def judged(self) -> object:
        """Return the agent's validated output, or raise its refusal."""
        given: dict[str, Any] = {} if self.deps is None else {"deps": self.deps}
        result = await self.agent.run(
            self.prompt, model=FunctionModel(self._answer), retries={"output": 0}, infer_name=False, **given
        )
        return result.output

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not info.output_tools:
            wanted = info.model_request_parameters.output_object
            return ModelResponse(parts=[TextPart(_output_json(self.value, wanted.json_schema if wanted else {}))])
        return ModelResponse(parts=[_output_call(self.value, info.output_tools)])


def _output_call(value: object, tools: Sequence[ToolDefinition]) -> ToolCallPart:
    """Return the call of an output tool that answers with the value."""
    kind = type(value).__name__
    tool = next((tool for tool in tools if tool.name.endswith(f"_{kind}")), tools[0])
    return ToolCallPart(tool.name, _output_json(value, tool.parameters_json_schema), tool_call_id=_CALL_ID)


def _output_json(value: object, schema: dict[str, Any]) -> str:
    """Return the value in pydantic-ai's output form: non-objects have a key."""
    enveloped = list(schema.get("properties", ())) == ["response"]
    return to_json({"response": value} if enveloped else value).decode()
