"""An atomic call of an agent whose tools need approval: it pauses, and goes on in the same conversation.

What was said so far is stored with the question. The calls of one response are asked about one after the other; when
all are answered, the agent goes on from there. A retry of the step is another conversation, and asks again.
"""

from __future__ import annotations

from typing import Any

import attrs
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults

from .._agents.approved_tools import CallToApprove, asks_for_approval, verdict_of
from .._agents.per_agent import SomeAgent
from .._core import paths
from .._core.approvals import TOOL_ANSWERS
from .._core.attempts import Stopped
from .._core.outcomes import Paused
from .._core.paths import StepPath
from .._core.questions import Question
from .._core.usage import NO_USAGE, Usage
from .._locks import QUOTA_LOCK
from .._run.messages import Work
from .._run.run import Run


@attrs.define(eq=False)
class ToolApprovals:
    """The approvals of one attempt."""

    run: Run
    work: Work
    agent: SomeAgent
    _asked: int = 0
    """How many questions were answered so far."""

    def options(self, options: dict[str, object]) -> tuple[dict[str, Any], bool, Stopped | None]:
        """The options for the agent's run; whether it goes on with what was said; the next question, if one is left."""
        output = options.get("output_type", getattr(self.agent, "output_type", str))
        options = {**options, "output_type": [output, DeferredToolRequests]}
        batch, verdicts = self._answers()
        if batch is None:
            return options, False, None
        left = [call for call in batch["calls"] if call["tool_call_id"] not in verdicts]
        if left:
            return options, True, self._question(CallToApprove(**left[0]), {})
        said = ModelMessagesTypeAdapter.validate_json(batch["messages"])
        told: dict[str, Any] = {name: verdict_of(verdict) for name, verdict in verdicts.items()}
        goes_on = {"message_history": said, "deferred_tool_results": DeferredToolResults(approvals=told)}
        return {**options, **goes_on}, True, None

    def asks(self, requests: DeferredToolRequests, messages: bytes) -> Stopped:
        """The first question about the tools that a model wants to use."""
        calls = [CallToApprove.of(call) for call in requests.approvals]
        batch = {"messages": messages.decode(), "calls": [attrs.asdict(call) for call in calls]}
        return self._question(calls[0], batch)

    def _answers(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The last batch of calls that was asked about, and what was answered; what it used is counted."""
        batch: dict[str, Any] | None = None
        verdicts: dict[str, Any] = {}
        used = NO_USAGE
        while (answered := self.run.journal.answered(self._place(self._asked + 1))) is not None:
            self._asked += 1
            question = answered.pause.question
            assert question is not None
            if question.facts.get("batch"):
                batch, verdicts = question.facts["batch"], {}
            verdicts[question.facts["metadata"]["tool_call_id"]] = answered.answer
            used = answered.pause.usage
        self._count(used)
        return batch, verdicts

    def _count(self, used: Usage) -> None:
        if used is NO_USAGE or self.work.tally.usage is not NO_USAGE:
            return
        self.work.tally.spend(used)
        with QUOTA_LOCK:
            for quota in self.work.quotas:
                quota.spend(used)

    def _question(self, call: CallToApprove, batch: dict[str, Any]) -> Stopped:
        question = Question(kind="tool", schema=TOOL_ANSWERS, facts={**call.facts, "batch": batch})
        text = self.run.redact(call.question)
        return Stopped(outcome=Paused(message=text), place=self._place(self._asked + 1), question=question)

    def _place(self, number: int) -> StepPath:
        return paths.unit(self.work.path, f"approval {number}")


def approvals_for(run: Run, work: Work, agent: SomeAgent) -> ToolApprovals | None:
    """The approvals of an attempt, if a tool of its agent needs any."""
    return ToolApprovals(run, work, agent) if may_ask_for_approval(agent) else None


def may_ask_for_approval(agent: SomeAgent) -> bool:
    """Whether a tool of the agent needs approval, or the agent says that one might."""
    declared = getattr(agent, "output_type", None)
    asked = isinstance(declared, list | tuple) and DeferredToolRequests in declared
    return asked or asks_for_approval(agent)
