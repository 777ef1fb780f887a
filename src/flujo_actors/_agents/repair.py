"""The model that repairs, and the agent's own judgment of what was repaired.

1. The repairing model is the one that answered, with nothing of the agent but the model.
2. A repaired value is an answer like any other: an agent with validators judges it, as if its model had said it.
"""

from __future__ import annotations

from typing import Any

import attrs
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json

from .per_agent import SomeAgent


def repairer(model: Model | str) -> Agent[None, str]:
    """An agent without prompt, tools, deps or history."""
    return Agent(model, output_type=str, name="repair", retries=0)


@attrs.frozen(kw_only=True, eq=False)
class Replay:
    """A value that an agent shall judge as if its model had answered with it."""

    agent: SomeAgent
    prompt: Any
    deps: object
    value: object

    async def judged(self) -> object:
        """What the agent makes of the value; raises what it raises if it refuses."""
        given: dict[str, Any] = {} if self.deps is None else {"deps": self.deps}
        result = await self.agent.run(
            self.prompt, model=FunctionModel(self._answer), retries={"output": 0}, infer_name=False, **given
        )
        return result.output

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        tool = self._tool(info.output_tools)
        if tool is None:
            wanted = info.model_request_parameters.output_object
            return ModelResponse(parts=[TextPart(self._json(wanted.json_schema if wanted else {}))])
        return ModelResponse(parts=[ToolCallPart(tool.name, self._json(tool.parameters_json_schema))])

    def _tool(self, tools: list[ToolDefinition]) -> ToolDefinition | None:
        kind = type(self.value).__name__
        named = [tool for tool in tools if tool.name.endswith(f"_{kind}")]
        return next(iter(named or tools), None)

    def _json(self, schema: dict[str, Any]) -> str:
        """The value as pydantic-ai asks for it: what is no object stands under a key of its own."""
        enveloped = list(schema.get("properties", ())) == ["response"]
        return to_json({"response": self.value} if enveloped else self.value).decode()
