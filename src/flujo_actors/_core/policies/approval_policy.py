"""Options, answers, deferrals and escalation of approvals; questions of all kinds.

Rules:

1. An option has a kind: it approves, rejects or defers. `approve`, `reject` and `defer` imply their kind by name.
2. An answer is an option's name, a bool (the first option that approves, or rejects), or a `Decision`; as data, a dict
   of a decision's fields.
3. A pause may be deferred `max_deferrals` times. Each deferral opens a new pause with the full timeout.

Sections:

- Specification of a question: kind of answer, its schema, deadline and addressee.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

import attrs

from ...errors import DeclarationError, InvalidAnswer
from ..step_paths import Doubt, StepPath, known_segment, unit_name
from ..usage import UsageLimits
from ..validators import suggests_options

if TYPE_CHECKING:
    from ..validators import AttrsField, V

OptionKind: TypeAlias = Literal["approve", "reject", "defer"]
"""Effect of an option."""


def _checked_text(instance: object, attribute: AttrsField, value: V) -> None:
    if not isinstance(value, str) or (attribute.name == "name" and not value):
        raise DeclarationError(f"Option: {attribute.name} must be a text, not {value!r}")


@suggests_options
@attrs.frozen
class Option:
    """One way to answer an approval."""

    name: str = attrs.field(validator=_checked_text)
    """Name of the choice."""
    label: str = attrs.field(default="", validator=_checked_text)
    """Display text; the name by default."""
    kind: OptionKind = attrs.field(kw_only=True)
    """Effect of the choice."""
    description: str = attrs.field(default="", kw_only=True, validator=_checked_text)
    """Explanation for the person."""

    @kind.default
    def _by_name(self) -> object:
        return self.name if self.name in get_args(OptionKind) else None

    def __attrs_post_init__(self) -> None:
        if self.kind not in get_args(OptionKind):
            allowed = ", ".join(map(repr, get_args(OptionKind)))
            raise DeclarationError(f"option {self.name!r}: kind must be one of {allowed}, not {self.kind!r}")


@suggests_options
@attrs.frozen
class Decision:
    """Decision of an approver.

    The approver's identity is recorded, not verified; authorization belongs to the application.
    """

    option: str
    """Name of the chosen option."""
    by: str | None = None
    """Name of the person."""
    comment: str | None = None
    """Text of the person."""


DEFAULT_OPTIONS = (Option("approve", "Approve"), Option("reject", "Reject"), Option("defer", "Later"))


def as_options(given: Mapping[str, str | Option] | Iterable[Option | str], *, where: str) -> tuple[Option, ...]:
    """Return the options of an approval, or raise `DeclarationError`."""
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
    """Return the option of that name."""
    return next((option for option in options if option.name == name), None)


def option_of_kind(kind: OptionKind, options: Iterable[Option]) -> Option | None:
    """Return the first option of a kind."""
    return next((option for option in options if option.kind == kind), None)


def checked_decision(
    answer: object,
    options: tuple[Option, ...],
    *,
    step_name: str,
    deferrals: int = 0,
    max_deferrals: int = 0,
    comment_required: bool = False,
) -> Decision:
    """Return the decision of an answer; raise `InvalidAnswer` naming the options."""
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
    if comment_required and option.kind == "reject" and not (decision.comment or "").strip():
        raise InvalidAnswer(f"the answer to {step_name!r}: {option.name!r} needs a comment; the question is still open")
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
"""JSON Schema of a tool answer: approve, deny or edit arguments."""


def checked_tool_answer(answer: object, *, step_name: str) -> dict[str, Any]:
    """Return `approved`, `reason`, `arguments` and `by` of an answer; raise `InvalidAnswer`."""
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


# --- Specification of a question ----------------------------------------------------------------------------------
# Rules:
#
# 1. A question has one kind and one answer schema. Every schema but that of `input` is an object with `option`.
# 2. A schema follows from stored facts alone: every process, also one without the pipeline, computes the same.
# 3. A step reads the plain form of an answer, the one without the object around its option.


WaitSpecKind: TypeAlias = Literal["sleep", "event", "rate", "budget"]
"""Stored kind of a pause that needs no person."""

SpecKind: TypeAlias = Literal["limits", "approval", "tool", "external", "loop"] | WaitSpecKind
"""Stored kind of pause: a kind of question, or of a wait."""

QuestionKind: TypeAlias = Literal["input", "approval", "tool", "limit", "loop", "uncertain"]
"""Kind of question, by the form of its answer."""

JsonSchema: TypeAlias = dict[str, Any]

JsonObject: TypeAlias = Mapping[str, Any]
"""JSON object that is not changed."""


@attrs.frozen(kw_only=True)
class QuestionSpec:
    """Specification of a pause that has more than a message."""

    kind: SpecKind
    schema: Any = None
    """JSON Schema of the answer in plain form."""
    timeout_s: float | None = None
    """Timeout of the answer, from the start of the pause."""
    facts: JsonObject = attrs.field(factory=dict)
    """Further facts as JSON data."""

    @property
    def wait(self) -> WaitSpecKind | None:
        """Return the kind of a wait; None for a question."""
        return self.kind if self.kind in ("sleep", "event", "rate", "budget") else None

    def data(self) -> JsonSchema:
        """Return the specification as JSON data."""
        return {"kind": self.kind, "schema": self.schema, "timeout_s": self.timeout_s, "facts": dict(self.facts)}


def read_question(data: Any) -> QuestionSpec | None:
    """Return the specification from its JSON data, or None."""
    if data is None:
        return None
    return QuestionSpec(
        kind=data["kind"], schema=data.get("schema"), timeout_s=data.get("timeout_s"), facts=data.get("facts") or {}
    )


def asked_in(body: JsonObject) -> QuestionSpec | None:
    """Return the specification in the body of a pause, or None."""
    return read_question(body.get("question") or body.get("wait"))


_KINDS: Mapping[SpecKind, QuestionKind] = {
    "limits": "limit",
    "approval": "approval",
    "tool": "tool",
    "external": "input",  # the answer is the result of the tool
    "loop": "loop",
}


def kind_of(spec: QuestionSpec | None, path: StepPath) -> QuestionKind:
    """Return the kind of the question at a path."""
    if spec is not None:
        return _KINDS.get(spec.kind, "input")
    return "uncertain" if unit_name(path) or _is_doubt(path) else "input"


class Addressed(TypedDict):
    """Facts of a pause that a store filters by."""

    kind: QuestionKind | None
    to: str | None
    wait: WaitSpecKind | None
    event: str | None
    key: str | None


def addressed(spec: QuestionSpec | None, path: StepPath) -> Addressed:
    """Return the facts of the pause at a path."""
    wait = None if spec is None else spec.wait
    named = {} if spec is None else spec.facts
    return {
        "kind": kind_of(spec, path) if wait is None else None,
        "to": named.get("to"),
        "wait": wait,
        "event": named.get("event") if wait == "event" else None,
        "key": named.get("key") if wait == "event" else None,
    }


def _is_doubt(path: StepPath) -> bool:
    """Return whether a question is about a failed compensation."""
    return isinstance(known_segment(path.rpartition("/")[2]), Doubt)


# --- limits -------------------------------------------------------------------------------------------------

_NUMBER = {"type": ["number", "null"], "minimum": 0}
_COUNT = {"type": ["integer", "null"], "minimum": 0}

_NEW_LIMITS: JsonSchema = {
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
}

_LIMITS_SCHEMA: JsonSchema = {"anyOf": [{"const": False}, _NEW_LIMITS]}


def about_limits(owner: str, limits: tuple[str, ...]) -> QuestionSpec:
    """Return the pause that requests new limits of an owner."""
    return QuestionSpec(kind="limits", schema=_LIMITS_SCHEMA, facts={"owner": owner, "limits": list(limits)})


def until_window_ends(owner: str, limits: tuple[str, ...], ends_at: float) -> QuestionSpec:
    """Return the wait for the next window of a budget."""
    return QuestionSpec(kind="budget", facts={"owner": owner, "limits": list(limits), "due_at": ends_at})


def raised_by(answer: object) -> dict[str, object]:
    """Return the limits that an answer sets; none for a refusal."""
    if isinstance(answer, UsageLimits):
        return answer.data()
    return dict(answer) if isinstance(answer, Mapping) else {}


# --- answer schemas -----------------------------------------------------------------------------------------

KIND_KEY = "x-flujo-kind"
"""Key of the question's kind in its answer schema."""

GO_ON = "go on"
"""Plain answer that lets a loop continue; any other text is a hint."""

STOP_LOOP = {"option": "stop"}
"""Plain answer that ends a loop as failed."""

RERUN = "rerun"
"""Plain answer that runs an uncertain tool call again; others are its result."""

_TEXT = {"type": "string"}


def answer_schema(spec: QuestionSpec | None, path: StepPath, input_schema: JsonObject | None) -> JsonSchema:
    """Return the JSON Schema of the answers to a question."""
    match kind_of(spec, path):
        case "approval":
            assert spec is not None
            return _approval_schema(spec.facts)
        case "tool":
            assert spec is not None
            return _tool_schema(spec.facts.get("parameters"))
        case "limit":
            options = {"raise": "Raise the limits", "stop": "End the run"}
            return _choice("limit", options, limits=_NEW_LIMITS)
        case "loop":
            options = {"continue": "Continue", "hint": "Give a hint", "stop": "Stop"}
            return _choice("loop", options, hint=_TEXT)
        case "uncertain":
            return _uncertain_schema(path)
        case "input":
            return {} if input_schema is None else dict(input_schema)


def _approval_schema(facts: JsonObject) -> JsonSchema:
    options = {each["name"]: each.get("label") or each["name"] for each in facts["options"]}
    schema = _choice("approval", options, comment=_TEXT)
    if not facts.get("comment_required"):
        return schema
    rejecting = [each["name"] for each in facts["options"] if each["kind"] == "reject"]
    with_reason = {"required": ["option", "comment"], "properties": {"comment": {"minLength": 1}}}
    return {**schema, "if": {"properties": {"option": {"enum": rejecting}}}, "then": with_reason}


def _tool_schema(parameters: object) -> JsonSchema:
    known = parameters if isinstance(parameters, Mapping) else {"type": "object"}
    arguments = {name: _moved(each) for name, each in known.items() if name != "$defs"}
    schema = _choice("tool", {"approve": "Approve", "deny": "Deny"}, reason=_TEXT, arguments=arguments)
    return {**schema, "$defs": _moved(known["$defs"])} if "$defs" in known else schema


def _moved(part: object) -> object:
    """Return a moved part of a schema, with its references adapted."""
    if isinstance(part, Mapping):
        itself = part.get("$ref") == "#"
        return {
            name: "#/properties/arguments" if itself and name == "$ref" else _moved(each) for name, each in part.items()
        }
    return [_moved(each) for each in part] if isinstance(part, list) else part


def _uncertain_schema(path: StepPath) -> JsonSchema:
    if _is_doubt(path):
        return _choice("uncertain", {"retry": "Try it again", "skip": "Leave it"})
    return _choice("uncertain", {RERUN: "Run it again", "result": "Give its result"}, result={})


def _choice(kind: QuestionKind, options: Mapping[str, str], **others: object) -> JsonSchema:
    """Return the schema of an answer that chooses an option."""
    return {
        "type": "object",
        "properties": {
            "option": {"oneOf": [{"const": name, "title": text} for name, text in options.items()]},
            **others,
        },
        "required": ["option"],
        "additionalProperties": False,
        KIND_KEY: kind,
    }


def chooses_option(answer: object) -> bool:
    """Return whether an answer is an object with an option."""
    return isinstance(answer, Mapping) and isinstance(answer.get("option"), str)


def plain_answer(kind: QuestionKind, answer: JsonObject) -> object:
    """Return the plain form of a valid choice; see rule 3."""
    match kind, answer:
        case "limit", {"option": "raise"}:
            return answer.get("limits")
        case "limit", _:
            return False
        case "loop", {"option": "continue"}:
            return GO_ON
        case "loop", {"option": "hint"}:
            return answer.get("hint")
        case "loop", _:
            return STOP_LOOP
        case "uncertain", {"option": "result"}:
            return answer.get("result")
        case _:
            return answer["option"]


NEEDED = {"raise": "limits", "hint": "hint"}
"""Property that an option needs."""
