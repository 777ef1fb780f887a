"""Asking for a decision, and going on with what was decided.

Rules:

1. Approved: what came in passes on, and the decision is in the metadata.
2. Rejected: `on_rejection` works on what came in, and its output is the step's; without it the step fails.
3. No answer in time is decided by `on_timeout`. A step there stands at `~e`; an approval is the escalation, a level up.
4. A deferral is no decision: whoever took it has asked again.
"""

from __future__ import annotations

from typing import Any, assert_never

from outcome import Error

from .._core import paths
from .._core.approvals import Decision, Option, option_named, option_of_kind
from .._core.attempts import Attempt, Done, Failed, Stopped
from .._core.outcomes import Paused, Success
from .._core.paths import Mark, StepPath
from .._core.questions import Question
from .._dsl.approvals import Approval
from .._dsl.pipeline import AnyStep
from .._durable.journal import Answered
from .._run.limits import budget_for
from .._run.messages import Request, Work, work_of
from .._run.run import Run
from .._run.user_calls import ask, failure_of, given, with_context_copy
from ..errors import ApprovalTimeout, Rejected
from .children import Spawner, ended_by, of_one_child, output_of


async def ask_for_approval(run: Run, step: Approval, work: Work) -> Attempt:
    """A pause: whoever decides goes on with the step."""
    text = step.message
    if not isinstance(text, str):
        budget = budget_for(step, "message", work.quotas)
        asked = await with_context_copy(run, text, work.data, work.context, work.scope, **budget)
        asked = asked if isinstance(asked, Error) else await ask(run, str, asked.value)
        if isinstance(asked, Error):
            return failure_of(run, asked.error, what=f"The message of step {step.name!r}")
        text = asked.value
    return Stopped(outcome=Paused(message=text), question=_question(step, work.span))


def _question(step: Approval, path: StepPath) -> Question:
    facts = {
        "to": step.to,
        "options": [_option_data(option) for option in step.options],
        "level": sum(each is Mark.ESCALATION for each in paths.parse(path)),
        "deferrals": 0,
        "max_deferrals": step.max_deferrals,
        "metadata": dict(step.metadata),
    }
    return Question(kind="approval", timeout_s=step.deadline_s, facts=facts)


def _option_data(option: Option) -> dict[str, str]:
    return {"name": option.name, "label": option.label, "kind": option.kind, "description": option.description}


async def decided(spawner: Spawner, request: Request, step: Approval, answered: Answered) -> Attempt:
    """How the step goes on after a decision, or after none came in time."""
    data = request.data
    if step.input is not None:
        resolved = await given(spawner.run, step.input, data, request.context, request.scope)
        if isinstance(resolved, Error):
            return failure_of(spawner.run, resolved.error, what=f"The input of step {step.name!r}")
        data = resolved.value
    if answered.expired:
        return await _timed_out(spawner, request, step, data)
    return await _chosen(spawner, request, step, data, read_decision(answered.answer))


def read_decision(answer: Any) -> Decision:
    """A decision as it was stored."""
    return answer if isinstance(answer, Decision) else Decision(**answer)


async def _chosen(spawner: Spawner, request: Request, step: Approval, data: object, decision: Decision) -> Attempt:
    option = option_named(decision.option, step.options)
    kind = "approve" if option is None else option.kind  # its name was checked when it was given
    match kind:
        case "approve":
            return Done(output=data, context=request.context, metadata={"decision": decision})
        case "reject":
            return await _rejected(spawner, request, step, data, decision)
        case "defer":
            raise AssertionError("a deferral asks again, it decides nothing")
        case _:
            assert_never(kind)


async def _rejected(spawner: Spawner, request: Request, step: Approval, data: object, decision: Decision) -> Attempt:
    if step.on_rejection is not None:
        return await _instead(
            spawner, request, step.on_rejection, paths.child(request.path, paths.REJECTION), data, decision
        )
    who = "" if decision.by is None else f" by {decision.by}"
    why = "" if decision.comment is None else f": {decision.comment}"
    error = Rejected(f"step {step.name!r} was rejected{who}{why}", decision)
    return Failed(error=error, feedback=str(error), metadata={"decision": decision})


async def _timed_out(spawner: Spawner, request: Request, step: Approval, data: object) -> Attempt:
    if not isinstance(step.on_timeout, str):
        return await _instead(spawner, request, step.on_timeout, paths.escalation(request.path), data, None)
    if step.on_timeout == "fail":
        error = ApprovalTimeout(f"nobody decided about step {step.name!r} within timeout_s={step.deadline_s:g}")
        return Failed(error=error, feedback=str(error))
    option = option_of_kind(step.on_timeout, step.options)
    assert option is not None
    return await _chosen(spawner, request, step, data, Decision(option.name, comment="decided by timeout"))


async def _instead(
    spawner: Spawner, request: Request, way: AnyStep, path: StepPath, data: object, decision: Decision | None
) -> Attempt:
    """How the step ends that stands for the decision that was wanted."""
    work = work_of(request, data)
    child = work.child(way, way.name or path.rpartition("/")[2], path, data, request.context)
    child = child if decision is None else child.telling(decision=decision)
    settled = await of_one_child(spawner, request.tally, child)
    if not isinstance(settled.verdict, Success):
        return ended_by(work, child.name, settled, request.context)
    inner = settled.verdict.step_result.metadata.get("decision")
    noted = {} if (decision or inner) is None else {"decision": decision or inner}
    return Done(output=output_of(settled), context=settled.context, metadata=noted)
