"""What can be decided about a question, and what a decision means: options, answers, deferrals, escalation.

Rules:

1. An option has a kind: it approves, rejects or defers. `approve`, `reject` and `defer` say theirs by their names.
2. An answer is an option's name, a bool (the first option that approves, or rejects), or a `Decision`; as data, a dict
   of a decision's fields.
3. A question may be deferred `max_deferrals` times. Each time it is asked anew, with its full time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import attrs

from ..errors import DeclarationError, InvalidAnswer

if TYPE_CHECKING:
    from .fields import Field, V

OptionKind: TypeAlias = Literal["approve", "reject", "defer"]
"""What choosing an option does."""


def _checked_text(instance: object, attribute: Field, value: V) -> None:
    if not isinstance(value, str) or (attribute.name == "name" and not value):
        raise DeclarationError(f"Option: {attribute.name} must be a text, not {value!r}")


@attrs.frozen
class Option:
    """One way to answer an approval."""

    name: str = attrs.field(validator=_checked_text)
    label: str = attrs.field(default="", validator=_checked_text)
    """What people are shown; the name, if nothing is said."""
    kind: OptionKind = attrs.field(kw_only=True)
    description: str = attrs.field(default="", kw_only=True, validator=_checked_text)

    @kind.default
    def _by_name(self) -> object:
        return self.name if self.name in get_args(OptionKind) else None

    def __attrs_post_init__(self) -> None:
        if self.kind not in get_args(OptionKind):
            allowed = ", ".join(map(repr, get_args(OptionKind)))
            raise DeclarationError(f"option {self.name!r}: kind must be one of {allowed}, not {self.kind!r}")


@attrs.frozen
class Decision:
    """What somebody decided. Who it was is recorded, not verified: who may answer is the application's matter."""

    option: str
    by: str | None = None
    comment: str | None = None


DEFAULT_OPTIONS = (Option("approve", "Approve"), Option("reject", "Reject"), Option("defer", "Later"))


def as_options(given: Mapping[str, str | Option] | Iterable[Option | str], *, where: str) -> tuple[Option, ...]:
    """The options of an approval; `DeclarationError` says what is wrong with them."""
    try:
        options = tuple(_listed(given))
    except DeclarationError as error:
        raise DeclarationError(f"{where}: {error}") from None
    names = [option.name for option in options]
    if len(set(names)) < len(names):
        raise DeclarationError(f"{where}: two options have the same name: {', '.join(map(repr, names))}")
    if not any(option.kind == "approve" for option in options):
        raise DeclarationError(f"{where}: one option must approve; give it kind='approve', or the name 'approve'")
    return options


def _listed(given: object) -> Iterable[Option]:
    if isinstance(given, Mapping):
        return [_named(name, each) for name, each in given.items()]
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise DeclarationError(f"options must be a dict of labels by name, or a list of Option(…), not {given!r}")
    return [each if isinstance(each, Option) else Option(each) for each in given]


def _named(name: str, given: str | Option) -> Option:
    if not isinstance(given, Option):
        return Option(name, given)
    return given if given.name == name else attrs.evolve(given, name=name)


def option_named(name: str, options: Iterable[Option]) -> Option | None:
    """The option of that name."""
    return next((option for option in options if option.name == name), None)


def option_of_kind(kind: OptionKind, options: Iterable[Option]) -> Option | None:
    """The first option of a kind."""
    return next((option for option in options if option.kind == kind), None)


def checked_decision(
    answer: object, options: tuple[Option, ...], *, step_name: str, deferrals: int = 0, max_deferrals: int = 0
) -> Decision:
    """What an answer decides; `InvalidAnswer` names the options if it is none of them."""
    decision = _decision_of(answer, options)
    option = None if decision is None else option_named(decision.option, options)
    if decision is None or option is None:
        known = ", ".join(repr(each.name) for each in options)
        raise InvalidAnswer(
            f"the answer to {step_name!r} must be one of {known}, True, False or Decision(option, by, comment), "
            f"not {answer!r:.100}; the run is still paused, answer again"
        )
    if option.kind == "defer" and deferrals >= max_deferrals:
        raise InvalidAnswer(
            f"{step_name!r} was deferred {deferrals} times, and max_deferrals is {max_deferrals}; the run is still "
            "paused, answer with another option"
        )
    return decision


def _decision_of(answer: Any, options: tuple[Option, ...]) -> Decision | None:
    match answer:
        case Decision():
            return answer
        case bool():
            meant = option_of_kind("approve" if answer else "reject", options)
            return None if meant is None else Decision(meant.name)
        case str():
            return Decision(answer)
        case {"option": str() as option} if set(answer) <= {"option", "by", "comment"}:
            return Decision(option, answer.get("by"), answer.get("comment"))
        case _:
            return None


# --- tools --------------------------------------------------------------------------------------------------

TOOL_ANSWERS: dict[str, object] = {
    "anyOf": [
        {"type": "boolean"},
        {"enum": ["approve", "deny", "reject"]},
        {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {
                "option": {"enum": ["approve", "deny", "reject"]},
                "approved": {"type": "boolean"},
                "by": {"type": ["string", "null"]},
                "comment": {"type": ["string", "null"]},
                "reason": {"type": ["string", "null"]},
                "arguments": {"type": ["object", "null"]},
            },
        },
    ]
}
"""What can be answered about a tool call, as a JSON Schema: yes, no with a reason, or other arguments."""


def checked_tool_answer(answer: object, *, step_name: str) -> dict[str, Any]:
    """What an answer says about a tool call: `approved`, `reason`, `arguments`, `by`; `InvalidAnswer` if nothing."""
    match answer:
        case bool():
            return {"approved": answer}
        case "approve" | "deny" | "reject":
            return {"approved": answer == "approve"}
        case Decision(option="approve" | "deny" | "reject"):
            return {"approved": answer.option == "approve", "reason": answer.comment, "by": answer.by}
        case {} if answer and set(answer) <= {"option", "approved", "by", "comment", "reason", "arguments"}:
            return _tool_answer(answer)
        case _ if getattr(answer, "kind", None) == "tool-approved":
            return {"approved": True, "arguments": getattr(answer, "override_args", None)}
        case _ if getattr(answer, "kind", None) == "tool-denied":
            return {"approved": False, "reason": getattr(answer, "message", None)}
        case _:
            raise InvalidAnswer(
                f"the answer to {step_name!r} must be True, False, 'approve', 'deny', Decision(option, by, comment) or "
                f"a dict with option, reason or arguments, not {answer!r:.100}; the run is still paused, answer again"
            )


def _tool_answer(answer: Mapping[str, object]) -> dict[str, object]:
    approved = answer.get("approved", answer.get("option", "approve") == "approve")
    reason = answer.get("reason") or answer.get("comment")
    return {
        "approved": bool(approved),
        "reason": reason,
        "arguments": answer.get("arguments"),
        "by": answer.get("by"),
    }
