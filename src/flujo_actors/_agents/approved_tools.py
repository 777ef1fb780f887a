"""Tool approvals: prompt, and meaning of the answer.

Rules:

1. An answer approves, denies with a reason, or approves other arguments. It is bound to the shown call: tool
   and arguments are hashed, and a different call opens another pause.
2. An approved call runs with the approved arguments, and a denial is passed to the model with its reason.
"""

from __future__ import annotations

import hashlib
import json

import attrs
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolApproved, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import AbstractToolset, ApprovalRequiredToolset, ExternalToolset

from .._core.policies.approval_policy import TOOL_ANSWERS, JsonSchema, QuestionSpec
from ..errors import FlujoError
from .agent_cache import PerAgent, SomeAgent

_DENIED = "The tool call was denied."


@attrs.frozen(kw_only=True)
class CallToApprove:
    """A tool call that waits for approval."""

    tool: str
    tool_call_id: str
    arguments: JsonSchema
    parameters: JsonSchema | None = None
    """JSON Schema of the arguments, if it is known."""
    description: str | None = None
    external: bool = False
    """Whether the tool runs outside the run; its answer is the result."""

    @classmethod
    def of(cls, call: ToolCallPart, tool: ToolDefinition | None = None, *, external: bool = False) -> CallToApprove:
        """Return the call as the model requested it."""
        asked = call.args_as_dict()
        return cls(
            tool=call.tool_name,
            tool_call_id=call.tool_call_id,
            arguments=asked,
            parameters=None if tool is None else tool.parameters_json_schema,
            description=None if tool is None else tool.description,
            external=external,
        )

    @property
    def hash(self) -> str:
        """Return the hash that binds an approval."""
        said = json.dumps([self.tool, self.arguments], sort_keys=True, default=str)
        return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def data(self) -> JsonSchema:
        """Return the call as JSON data, which earlier releases can read."""
        return attrs.asdict(self, filter=attrs.filters.exclude("description"))

    @property
    def question(self) -> str:
        """Return the prompt for the approver."""
        arguments = json.dumps(self.arguments, ensure_ascii=False, default=str)
        if self.external:
            return f"Tool {self.tool!r} runs outside of this run, with {arguments}. Answer with its result."
        asked = f"Tool {self.tool!r} wants to run with {arguments}."
        return f"{asked} Approve it, deny it with a reason, or change its arguments."

    @property
    def facts(self) -> JsonSchema:
        """Return the facts stored with the pause."""
        shown = {"tool": self.tool, "tool_call_id": self.tool_call_id, "arguments": self.arguments}
        known = {"parameters": self.parameters, "description": self.description}
        return {"metadata": shown, "hash": self.hash, **{name: each for name, each in known.items() if each}}


def question_about(call: CallToApprove) -> QuestionSpec:
    """Return the specification of the pause that a deferred tool call needs."""
    if call.external:
        return QuestionSpec(kind="external", facts=call.facts)
    return QuestionSpec(kind="tool", schema=TOOL_ANSWERS, facts=call.facts)


class ApprovalNeeded(FlujoError):
    """A tool call of a granular step waits for an answer."""

    def __init__(self, call: CallToApprove, key: str) -> None:
        self.call, self.key = call, key
        super().__init__(call.question)


def verdict_of(answer: JsonSchema) -> ToolApproved | ToolDenied:
    """Return a checked answer, as pydantic-ai takes it."""
    if answer["approved"]:
        return ToolApproved(override_args=answer.get("arguments"))
    return ToolDenied(answer.get("reason") or _DENIED)


_asks: PerAgent[bool] = PerAgent()


def asks_for_approval(agent: SomeAgent) -> bool:
    """Return whether a tool of the agent needs approval; cached."""
    known = _asks.get(agent)
    return _asks.keep(agent, any(map(defers_calls, agent.toolsets))) if known is None else known


def defers_calls(toolset: object) -> bool:
    """Return whether a toolset has deferred tools; toolset functions are not called."""
    if not isinstance(toolset, AbstractToolset):
        return False
    found: list[bool] = []
    toolset.apply(lambda each: found.append(isinstance(each, ExternalToolset) or _has_unapproved(each)))
    return any(found) or _is_wrapped(toolset)


def _has_unapproved(toolset: object) -> bool:
    return any(map(_is_unapproved, getattr(toolset, "tools", {}).values()))


def _is_wrapped(toolset: object) -> bool:
    while toolset is not None:
        if isinstance(toolset, ApprovalRequiredToolset):
            return True
        toolset = getattr(toolset, "wrapped", None)
    return False


def _is_unapproved(tool: object) -> bool:
    return bool(getattr(tool, "requires_approval", False))
