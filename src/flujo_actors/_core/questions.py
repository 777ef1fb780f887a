"""What a run asks besides the words: what kind of answer it takes, until when, and who is to give it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import attrs

from .paths import StepPath
from .usage import UsageLimits

QuestionKind: TypeAlias = Literal["limits", "approval", "tool", "loop"]
"""What is asked: for new limits, for a decision, about a tool call, or what to do about a loop."""


@attrs.frozen(kw_only=True)
class Question:
    """What stands behind a pause that is more than a message."""

    kind: QuestionKind
    schema: Any = None
    """What an answer must fit: a JSON Schema."""
    timeout_s: float | None = None
    """How long an answer is waited for, from the moment at which it is asked."""
    facts: Mapping[str, Any] = attrs.field(factory=dict)
    """What else there is to know of it, as JSON data."""

    def data(self) -> dict[str, Any]:
        """The question as JSON data."""
        return {"kind": self.kind, "schema": self.schema, "timeout_s": self.timeout_s, "facts": dict(self.facts)}


def read_question(data: Any) -> Question | None:
    """The question that `data` wrote; `None` if there was none."""
    if data is None:
        return None
    return Question(
        kind=data["kind"], schema=data.get("schema"), timeout_s=data.get("timeout_s"), facts=data.get("facts") or {}
    )


# --- limits -------------------------------------------------------------------------------------------------

_NUMBER = {"type": ["number", "null"], "minimum": 0}
_COUNT = {"type": ["integer", "null"], "minimum": 0}

_LIMITS_SCHEMA: dict[str, object] = {
    "anyOf": [
        {"const": False},
        {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {
                "total_cost_usd_limit": _NUMBER,
                "total_tokens_limit": _NUMBER,
                "request_limit": _COUNT,
                "tool_calls_limit": _COUNT,
                "step_limit": _COUNT,
                "time_limit_s": _NUMBER,
                "when_reached": {"enum": ["fail", "pause"]},
            },
        },
    ]
}


def about_limits(owner: StepPath, limits: tuple[str, ...]) -> Question:
    """The question what a run or a step may spend from now on."""
    return Question(kind="limits", schema=_LIMITS_SCHEMA, facts={"owner": owner, "limits": list(limits)})


def raised_by(answer: object) -> dict[str, object]:
    """The limits that an answer sets; none if it was a refusal."""
    if isinstance(answer, UsageLimits):
        return attrs.asdict(answer)
    return dict(answer) if isinstance(answer, Mapping) else {}
