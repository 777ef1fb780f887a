"""What can be decided about a question, and what a decision means: options, answers, deferrals, escalation.

Rules:

1. An option has a kind: it approves, rejects or defers. `approve`, `reject` and `defer` say theirs by their names.
2. An answer is an option's name, a bool (the first option that approves, or rejects), or a `Decision`; as data, a dict
   of a decision's fields.
3. A question may be deferred `max_deferrals` times. Each time it is asked anew, with its full time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_args

import attrs

from ..errors import DeclarationError, InvalidAnswer

OptionKind: TypeAlias = Literal["approve", "reject", "defer"]
"""What choosing an option does."""


def _checked_text(instance: Any, attribute: attrs.Attribute[Any], value: object) -> None:
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
    def _by_name(self) -> Any:
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


def _listed(given: Any) -> Iterable[Option]:
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
    answer: Any, options: tuple[Option, ...], *, step_name: str, deferrals: int = 0, max_deferrals: int = 0
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
            option = option_of_kind("approve" if answer else "reject", options)
            return None if option is None else Decision(option.name)
        case str():
            return Decision(answer)
        case {"option": str() as option} if set(answer) <= {"option", "by", "comment"}:
            return Decision(option, answer.get("by"), answer.get("comment"))
        case _:
            return None


def asked_again(token_parts: str, deferrals: int) -> str:
    """What tells a question apart from the same one before it was deferred."""
    return token_parts if not deferrals else f"{token_parts}\0deferred {deferrals}"
