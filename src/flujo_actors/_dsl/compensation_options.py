"""Failure handlers (`on_failure`) and compensations (`compensate`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast, get_args

import attrs

from .. import _dsl
from .._core.failure_info import IfItFails, When
from .._core.step_paths import COMPENSATION, Compensation, Handler, Segment
from .._core.validators import nearest, suggests_options
from ..errors import DeclarationError

if TYPE_CHECKING:
    from .._core.validators import AttrsField, V
    from .declared_step import Declared
    from .kinds import HumanInTheLoop
    from .pipeline import AnyStep, StepLike


def _as_compensation(value: Any) -> AnyStep:
    return _dsl.step_of(value)


def _checked_choice(choices: tuple[str, ...]) -> Any:
    def check(_: object, attribute: AttrsField, value: V) -> None:
        if value not in choices:
            known = ", ".join(map(repr, choices))
            raise DeclarationError(f"Compensate: {attribute.name} must be one of {known}, not {value!r}")

    return check


@suggests_options
@attrs.frozen(eq=False)
class Compensate:
    """Compensation of a step, and the action if it fails for good.

    Args:
        by: function, step or pipeline that gets an `Undo`.
        when: `"started"`, or `"completed"` to leave failed calls alone.
        if_it_fails: `"continue"` with the next compensation, `"stop"`, or `"pause"` for a person.

    Raises:
        DeclarationError: an argument is not valid.

    Example:
        ```python
        undone = []
        book = Step("book", str.upper, compensate=Compensate(lambda undo: undone.append(undo.output), when="completed"))
        Flujo(book >> Step("pay", ScriptedAgent(OSError("declined")))).run("seat")
        assert undone == ["SEAT"]
        ```
    """

    by: AnyStep = attrs.field(converter=_as_compensation)
    """Function, step or pipeline that receives the `Undo`."""
    when: When = attrs.field(default="started", kw_only=True, validator=_checked_choice(get_args(When)))
    if_it_fails: IfItFails = attrs.field(
        default="continue", kw_only=True, validator=_checked_choice(get_args(IfItFails))
    )

    def __attrs_post_init__(self) -> None:
        _refuse_compensated(_checked_step(self.by, "a compensation (compensate, or `by` of Compensate)"))


def as_compensate(value: object) -> Compensate | Mapping[str, Compensate] | None:
    """Return the declared compensation, or a dict of them by tool."""
    if value is None or isinstance(value, Compensate):
        return value
    if isinstance(value, Mapping):
        return MappingProxyType({tool: _of_one(each) for tool, each in value.items()})
    return Compensate(value)


def _of_one(value: object) -> Compensate:
    return value if isinstance(value, Compensate) else Compensate(value)


def handlers_of(value: StepLike | Iterable[StepLike] | None) -> tuple[AnyStep, ...]:
    """Return the handlers that were declared, one after the other."""
    if value is None:
        return ()
    listed = value if isinstance(value, list | tuple) else (value,)
    return tuple(_checked_step(_as_compensation(each), "on_failure") for each in listed)


def _checked_step(value: object, where: str) -> AnyStep:
    return _dsl.as_step(value, where=where)


def _refuse_compensated(root: AnyStep) -> None:
    for step in _dsl.walk_steps(root):
        if step.compensate is not None:
            raise DeclarationError(
                f"{step!r} is part of a compensation and has a `compensate` itself: what undoes is not undone. Give it "
                "retries, a fallback or `if_it_fails`, or undo its parts in the compensation"
            )


def check_tools(step: Declared) -> None:
    """Refuse compensations by tool unless tool calls are committed one by one."""
    name, value = step.name, cast("Mapping[Any, Compensate]", step.compensate)
    if getattr(step, "resumable", None) is None:
        raise DeclarationError(
            f"step {name!r}: `compensate` by tool is for Step.granular(…), whose tool calls are known one by one; give "
            "this step one compensation"
        )
    wrong = next((tool for tool in value if not isinstance(tool, str) or not tool), None)
    if wrong is not None or not value:
        raise DeclarationError(f"step {name!r}: `compensate` must name at least one tool, by its name, not {wrong!r}")
    _refuse_unknown_tools(step, value)


def _refuse_unknown_tools(step: Any, by_tool: Mapping[str, Compensate]) -> None:
    """Refuse a misspelled tool, if all tools are known early."""
    known = None if _brings_tools(step) else _known_tools(getattr(step.agent, "toolsets", None))
    unknown = [tool for tool in by_tool if known is not None and tool not in known]
    if not unknown or known is None:
        return
    near = nearest(unknown[0], sorted(known), cutoff=0.5)
    has = f"it has {', '.join(sorted(known))}" if known else "it has no tools"
    hint = f"did you mean {near!r}?" if near else f"{has}; register a tool before the step is declared"
    raise DeclarationError(f"step {step.name!r}: `compensate` names {unknown[0]!r}, no tool of its agent: {hint}")


def _brings_tools(step: Any) -> bool:
    """Return whether options of the step may add tools in a run."""
    options = getattr(step, "agent_options", None)
    return options is not None and (callable(options) or bool({"toolsets", "capabilities"} & set(options)))


def _known_tools(toolsets: Any) -> set[str] | None:
    """Return all tool names; `None` if known only in a run."""
    if not isinstance(toolsets, Iterable):
        return None
    names = [_names_in(each) for each in toolsets]
    return None if None in names else {name for each in names for name in each or ()}


def _names_in(toolset: Any) -> set[str] | None:
    listing = getattr(type(toolset), "get_tools", None)
    if not str(getattr(listing, "__module__", "")).startswith("pydantic_ai.") or hasattr(toolset, "name_map"):
        return None
    if isinstance(getattr(toolset, "tools", None), Mapping):
        return set(toolset.tools)
    if hasattr(toolset, "toolsets"):
        return _known_tools(toolset.toolsets)
    inner = _names_in(toolset.wrapped) if hasattr(toolset, "wrapped") else None
    prefix = getattr(toolset, "prefix", None)
    return inner if inner is None or prefix is None else {f"{prefix}_{name}" for name in inner}


ANSWERS = MappingProxyType({"enum": ["retry", "skip"]})
"""Possible answers to a failed compensation."""


def doubt(name: str, feedback: str) -> HumanInTheLoop:
    """Return the pause step of a failed compensation."""
    message = f'Step {name!r} could not be undone: {feedback}. Answer "retry" to try it again, "skip" to leave it'
    return _dsl.HumanInTheLoop(f"undo {name}", message, input_schema=dict(ANSWERS))


def attached_steps(step: AnyStep) -> Iterator[tuple[Segment, AnyStep]]:
    """Yield a step's failure handlers and compensation with path segments."""
    for number, handler in enumerate(step.on_failure, start=1):
        yield Handler(number), handler
    match step.compensate:
        case Compensate(by=by):
            yield COMPENSATION, by
        case Mapping() as by_tool:
            for tool, each in by_tool.items():
                yield Compensation(tool), each.by
