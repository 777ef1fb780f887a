"""What is declared about failures: `on_failure`, who is told, and `compensate`, how a step is undone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast, get_args

import attrs

from .._core.paths import COMPENSATION, Compensation, Handler, Segment
from .._core.undoing import IfItFails, When
from ..errors import DeclarationError

if TYPE_CHECKING:
    from .._core.fields import Field, V
    from .declared import Declared
    from .kinds import HumanInTheLoop
    from .pipeline import AnyStep, StepLike


def _as_compensation(value: Any) -> AnyStep:
    from .pipeline import step_of  # a cycle: a step has compensations, which are steps

    return step_of(value)


def _checked_choice(choices: tuple[str, ...]) -> Any:
    def check(_: object, attribute: Field, value: V) -> None:
        if value not in choices:
            known = ", ".join(map(repr, choices))
            raise DeclarationError(f"Compensate: {attribute.name} must be one of {known}, not {value!r}")

    return check


@attrs.frozen(eq=False)
class Compensate:
    """How to undo a step, and what to do about a compensation that fails for good."""

    by: AnyStep = attrs.field(converter=_as_compensation)
    """A function, step or pipeline that gets the `Undo`."""
    when: When = attrs.field(default="started", kw_only=True, validator=_checked_choice(get_args(When)))
    if_it_fails: IfItFails = attrs.field(
        default="continue", kw_only=True, validator=_checked_choice(get_args(IfItFails))
    )

    def __attrs_post_init__(self) -> None:
        _refuse_compensated(_checked_step(self.by, "what Compensate undoes by"))


def as_compensate(value: object) -> Compensate | Mapping[str, Compensate] | None:
    """The compensation that was declared; for each tool, if it is a dict of them."""
    if value is None or isinstance(value, Compensate):
        return value
    if isinstance(value, Mapping):
        return MappingProxyType({tool: _of_one(each) for tool, each in value.items()})
    return Compensate(value)


def _of_one(value: object) -> Compensate:
    return value if isinstance(value, Compensate) else Compensate(value)


def as_handlers(value: StepLike | Iterable[StepLike] | None) -> tuple[AnyStep, ...]:
    """The handlers that were declared, one after the other."""
    if value is None:
        return ()
    listed = value if isinstance(value, list | tuple) else (value,)
    return tuple(_checked_step(_as_compensation(each), "on_failure") for each in listed)


def _checked_step(value: object, where: str) -> AnyStep:
    from .pipeline import as_step  # the same cycle

    return as_step(value, where=where)


def _refuse_compensated(root: AnyStep) -> None:
    from .tree import walk_steps  # the same cycle

    for step in walk_steps(root):
        if step.compensate is not None:
            raise DeclarationError(
                f"{step!r} is part of a compensation and has a `compensate` itself: what undoes is not undone. Give it "
                "retries, a fallback or `if_it_fails`, or undo its parts in the compensation"
            )


def check_tools(step: Declared) -> None:
    """Compensations by tool are for steps whose tool calls are committed one by one."""
    name, value = step.name, cast("Mapping[Any, Compensate]", step.compensate)
    if getattr(step, "resumable", None) is None:
        raise DeclarationError(
            f"step {name!r}: `compensate` by tool is for Step.granular(…), whose tool calls are known one by one; give "
            "this step one compensation"
        )
    wrong = next((tool for tool in value if not isinstance(tool, str) or not tool), None)
    if wrong is not None or not value:
        raise DeclarationError(f"step {name!r}: `compensate` must name at least one tool, by its name, not {wrong!r}")


ANSWERS = MappingProxyType({"enum": ["retry", "skip"]})
"""What a person may answer about a compensation that failed."""


def doubt(name: str, feedback: str) -> HumanInTheLoop:
    """The question what to do about a step that could not be undone."""
    from .kinds import HumanInTheLoop  # the same cycle

    message = f'Step {name!r} could not be undone: {feedback}. Answer "retry" to try it again, "skip" to leave it'
    return HumanInTheLoop(f"undo {name}", message, input_schema=dict(ANSWERS))


def beside(step: AnyStep) -> Iterator[tuple[Segment, AnyStep]]:
    """Who is told of a step's failure, and what undoes it, each with its segment of the path."""
    for number, handler in enumerate(step.on_failure, start=1):
        yield Handler(number), handler
    match step.compensate:
        case Compensate(by=by):
            yield COMPENSATION, by
        case Mapping() as by_tool:
            for tool, each in by_tool.items():
                yield Compensation(tool), each.by
