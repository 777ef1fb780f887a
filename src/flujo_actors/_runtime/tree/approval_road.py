"""Approval steps: pause, and continuation after the decision.

Rules:

1. Approved: the input passes on, and the decision is in the metadata.
2. Rejected: `on_rejection` gets the input, and its output is the step's; without it the step fails.
3. `on_timeout` decides without an answer. A step there has the path `~e`; an approval is the escalation, a level up.
4. A deferral is no decision: its handler has opened the pause again.
"""

from __future__ import annotations

from typing import Any, assert_never

from outcome import Error

from ..._core import step_paths
from ..._core.attempt_results import Attempt, AttemptFailed, AttemptStopped, AttemptSucceeded
from ..._core.outcomes import Paused, Success
from ..._core.policies.approval_policy import Decision, Option, QuestionSpec, option_named, option_of_kind
from ..._core.step_paths import Mark, StepPath
from ..._dsl.pipeline import AnyStep
from ..._dsl.wait_steps import Approval
from ..._durable.journal import PauseAnswer
from ...errors import ApprovalTimeout, Rejected
from ..run.messages import AttemptInput, StepState, work_of
from ..run.run_environment import Run
from ..run.step_results import budget_for
from ..run.user_functions import call, failure_of, given, with_context_copy
from .step_supervisor import KINDS, WRAPPERS, Supervises, ended_by, of_one_child, output_of


@KINDS.entry("approval")
async def ask_for_approval(spawner: Supervises, step: Approval, work: AttemptInput) -> Attempt:
    """Return a pause; the decision continues the step."""
    run = spawner.run
    text = step.message
    if not isinstance(text, str):
        budget = budget_for(step, "message", work.quotas)
        asked = await with_context_copy(run, text, work.data, work.context, work.scope, **budget)
        asked = asked if isinstance(asked, Error) else await call(run, str, asked.value)
        if isinstance(asked, Error):
            return failure_of(run, asked.error, subject=f"The message of step {step.name!r}")
        text = asked.value
    return AttemptStopped(outcome=Paused(message=text), question=_question(run, step, work.span))


def _question(run: Run, step: Approval, path: StepPath) -> QuestionSpec:
    facts = {
        "to": None if step.to is None else run.redact(step.to),
        "options": [_option_data(option) for option in step.options],
        "level": sum(each is Mark.ESCALATION for each in step_paths.parse(path)),
        "deferrals": 0,
        "max_deferrals": step.max_deferrals,
        "metadata": dict(step.metadata),
        **({"comment_required": True} if step.comment_required else {}),
    }
    return QuestionSpec(kind="approval", timeout_s=step.deadline_s, facts=facts)


def _option_data(option: Option) -> dict[str, str]:
    return {"name": option.name, "label": option.label, "kind": option.kind, "description": option.description}


@WRAPPERS.entry("approval")
async def decided(spawner: Supervises, state: StepState, step: Approval, answered: PauseAnswer) -> Attempt:
    """Continue the step after a decision or a timeout."""
    data = state.data
    if step.input is not None:
        resolved = await given(spawner.run, step.input, data, state.context, state.scope)
        if isinstance(resolved, Error):
            return failure_of(spawner.run, resolved.error, subject=f"The input of step {step.name!r}")
        data = resolved.value
    if answered.expired:
        return await _timed_out(spawner, state, step, data)
    return await _chosen(spawner, state, step, data, read_decision(answered.answer))


def read_decision(answer: Any) -> Decision:
    """Return a decision as it was stored."""
    return answer if isinstance(answer, Decision) else Decision(**answer)


async def _chosen(spawner: Supervises, state: StepState, step: Approval, data: object, decision: Decision) -> Attempt:
    option = option_named(decision.option, step.options)
    kind = "approve" if option is None else option.kind  # its name was checked when it was given
    match kind:
        case "approve":
            return AttemptSucceeded(output=data, context=state.context, metadata={"decision": decision})
        case "reject":
            return await _rejected(spawner, state, step, data, decision)
        case "defer":
            raise AssertionError("a deferral asks again, it decides nothing")
        case _:
            assert_never(kind)


async def _rejected(spawner: Supervises, state: StepState, step: Approval, data: object, decision: Decision) -> Attempt:
    if step.on_rejection is not None:
        return await _instead(
            spawner, state, step.on_rejection, step_paths.child(state.path, step_paths.REJECTION), data, decision
        )
    who = "" if decision.by is None else f" by {decision.by}"
    why = "" if decision.comment is None else f": {decision.comment}"
    error = Rejected(f"step {step.name!r} was rejected{who}{why}", decision)
    return AttemptFailed(error=error, feedback=str(error), metadata={"decision": decision})


async def _timed_out(spawner: Supervises, state: StepState, step: Approval, data: object) -> Attempt:
    if not isinstance(step.on_timeout, str):
        return await _instead(spawner, state, step.on_timeout, step_paths.escalation(state.path), data, None)
    if step.on_timeout == "fail":
        error = ApprovalTimeout(f"no decision about step {step.name!r} within timeout_s={step.deadline_s:g}")
        return AttemptFailed(error=error, feedback=str(error))
    option = option_of_kind(step.on_timeout, step.options)
    assert option is not None
    return await _chosen(spawner, state, step, data, Decision(option.name, comment="decided by timeout"))


async def _instead(
    spawner: Supervises, state: StepState, way: AnyStep, path: StepPath, data: object, decision: Decision | None
) -> Attempt:
    """Run the step that replaces the wanted decision."""
    work = work_of(state, data)
    child = work.child(way, way.name or path.rpartition("/")[2], path, data, state.context)
    child = child if decision is None else child.with_keywords(decision=decision)
    settled = await of_one_child(spawner, state, child)
    if not isinstance(settled.verdict, Success):
        return ended_by(work, child.name, settled, state.context)
    inner = settled.verdict.step_result.metadata.get("decision")
    noted = {} if (decision or inner) is None else {"decision": decision or inner}
    return AttemptSucceeded(output=output_of(settled), context=settled.context, metadata=noted)
