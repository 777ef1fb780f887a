"""Answers to questions that are more than a text: what they mean, and how a question is asked again."""

from __future__ import annotations

import attrs

from .._core.approvals import Decision, Option, checked_decision, option_named
from .._core.outcomes import RunId
from .._core.paths import StepPath
from .._core.pause_tokens import approval_hash, make_token
from .._core.questions import Question


def options_of(question: Question) -> tuple[Option, ...]:
    """The options of an approval, as they were asked."""
    return tuple(Option(**each) for each in question.facts["options"])


def decision_on(question: Question, answer: object, *, step_name: str) -> Decision:
    """What an answer decides; `InvalidAnswer` if it is no option."""
    return checked_decision(
        answer,
        options_of(question),
        step_name=step_name,
        deferrals=question.facts["deferrals"],
        max_deferrals=question.facts["max_deferrals"],
    )


def defers(question: Question | None, decision: object) -> bool:
    """Whether a checked answer puts the decision off."""
    if question is None or question.kind != "approval" or not isinstance(decision, Decision):
        return False
    option = option_named(decision.option, options_of(question))
    return option is not None and option.kind == "defer"


def asked_again(question: Question) -> Question:
    """The same question, put off once more."""
    return attrs.evolve(question, facts={**question.facts, "deferrals": question.facts["deferrals"] + 1})


def next_token(run_id: RunId, path: StepPath, question: Question, token: str) -> str:
    """The token of a question that was put off: the one before it is used up."""
    return make_token(run_id, path, asked=approval_hash(token, question.facts["deferrals"]))
