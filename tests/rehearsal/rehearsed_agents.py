"""Agents with counted model requests and tool executions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

Turn = str | Sequence[tuple[str, Mapping[str, Any]]]
"""Text of a turn, or its tool calls."""


def untyped(value: Any) -> Any:
    """Return a value whose type is not checked."""
    return value


@attrs.define
class Counted:
    """Effects of all agents of one test."""

    requests: int = 0
    paid: list[int] = attrs.field(factory=list)
    """Arguments of each execution of the tool `pay`."""

    def model(self, turns: Sequence[Turn], ids: str = "c") -> FunctionModel:
        """Return a model that answers by a script."""

        def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            self.requests += 1
            number = sum(isinstance(message, ModelResponse) for message in messages)
            turn = turns[number]
            if isinstance(turn, str):
                return ModelResponse(parts=[TextPart(turn)])
            calls = [
                ToolCallPart(tool, dict(arguments), tool_call_id=f"{ids}{number}.{index}")
                for index, (tool, arguments) in enumerate(turn)
            ]
            return ModelResponse(parts=calls)

        return FunctionModel(respond)

    def agent(
        self,
        turns: Sequence[Turn],
        *,
        prompt: str = "Pay.",
        ids: str = "c",
        rehearse: str | None = None,
        approval: bool = False,
    ) -> Agent[None, str]:
        """Return an agent with the tool `pay`, whose executions are counted."""
        made: Agent[None, str] = Agent(self.model(turns, ids), name="payer", instructions=prompt)
        metadata = None if rehearse is None else {"rehearse": rehearse}

        @made.tool_plain(metadata=metadata, requires_approval=approval)
        def pay(n: int) -> str:
            """Pay an amount; 7 is refused, 8 fails, 9 breaks."""
            self.paid.append(n)
            match n:
                case 7:
                    raise ModelRetry("seven is refused")
                case 8:
                    raise ToolFailed("eight fails")
                case 9:
                    raise RuntimeError("nine breaks")
            return f"paid {n}"

        return made

    @property
    def effects(self) -> tuple[int, int]:
        """Return the number of requests and of executions."""
        return self.requests, len(self.paid)


@attrs.define
class Effects:
    """Function steps with counted executions."""

    calls: list[Any] = attrs.field(factory=list)

    async def add(self, n: int) -> int:
        """Add one."""
        self.calls.append(n)
        return n + 1

    async def double(self, n: int) -> int:
        """Double."""
        self.calls.append(n)
        return n * 2
