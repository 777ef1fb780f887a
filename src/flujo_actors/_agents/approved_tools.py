"""Tools that need somebody's approval before they run: what is asked, and what an answer means.

Rules:

1. An answer approves, denies with a reason, or approves other arguments. It counts for the call that was shown: tool
   and arguments are hashed, and a call that reads otherwise is asked about again.
2. What was approved is run with the approved arguments, and what was denied is told to the model with the reason.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import attrs
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolApproved, ToolDenied
from pydantic_ai.toolsets import AbstractToolset, ApprovalRequiredToolset

from ..errors import FlujoError
from .per_agent import PerAgent, SomeAgent

_DENIED = "The tool call was denied."


@attrs.frozen(kw_only=True)
class CallToApprove:
    """A tool call that waits for approval."""

    tool: str
    tool_call_id: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, call: ToolCallPart) -> CallToApprove:
        """The call as a model asked for it."""
        return cls(tool=call.tool_name, tool_call_id=call.tool_call_id, arguments=call.args_as_dict())

    @property
    def hash(self) -> str:
        """What an approval is bound to."""
        said = json.dumps([self.tool, self.arguments], sort_keys=True, default=str)
        return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def question(self) -> str:
        """What a person is asked."""
        arguments = json.dumps(self.arguments, ensure_ascii=False, default=str)
        asked = f"Tool {self.tool!r} wants to run with {arguments}."
        return f"{asked} Approve it, deny it with a reason, or change what it gets."

    @property
    def facts(self) -> dict[str, Any]:
        """What is stored with the question."""
        shown = {"tool": self.tool, "tool_call_id": self.tool_call_id, "arguments": self.arguments}
        return {"metadata": shown, "hash": self.hash}


class ApprovalNeeded(FlujoError):
    """A tool call of a granular step waits for approval, at the key of its conversation."""

    def __init__(self, call: CallToApprove, key: str) -> None:
        self.call, self.key = call, key
        super().__init__(call.question)


def verdict_of(answer: dict[str, Any]) -> ToolApproved | ToolDenied:
    """A checked answer, as pydantic-ai takes it."""
    if answer["approved"]:
        return ToolApproved(override_args=answer.get("arguments"))
    return ToolDenied(answer.get("reason") or _DENIED)


_asks: PerAgent[bool] = PerAgent()


def asks_for_approval(agent: SomeAgent) -> bool:
    """Whether a tool of the agent says that it needs approval; looked up once."""
    known = _asks.get(agent)
    return _asks.keep(agent, any(map(_needs_approval, agent.toolsets))) if known is None else known


def _needs_approval(toolset: AbstractToolset[Any]) -> bool:
    found: list[bool] = []
    toolset.apply(lambda each: found.append(any(map(_is_unapproved, getattr(each, "tools", {}).values()))))
    return any(found) or _is_wrapped(toolset)


def _is_wrapped(toolset: object) -> bool:
    while toolset is not None:
        if isinstance(toolset, ApprovalRequiredToolset):
            return True
        toolset = getattr(toolset, "wrapped", None)
    return False


def _is_unapproved(tool: object) -> bool:
    return bool(getattr(tool, "requires_approval", False))
