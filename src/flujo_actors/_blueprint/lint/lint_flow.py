"""Rules about the flow: unused outputs, unreachable branches, endless loops.

Sections:

- Possible values of an expression, as far as known without running it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from jinja2 import nodes

from ..parser.analysis import Analysis, writes_of
from ..parser.blueprint_model import StepModel, steps_in
from ..templates.template_filters import as_key
from ..templates.template_parser import Reference, reference_of
from .flow import StepVisit, TemplateSlot, templates_of
from .value_schemas import Shape, in_words, is_no_list, values_of

# --- Possible values of an expression -----------------------------------------------------------------------------


Values: TypeAlias = list[object] | None
"""All there can be; `None` if that is not known."""

_MOST = 200


def possible(node: nodes.Expr, shape_of: Callable[[Reference], Shape]) -> Values:
    """Return the values that an expression can have."""
    match node:
        case nodes.Const():
            return [node.value]
        case nodes.Compare() | nodes.Not() | nodes.Test():
            return [True, False]
        case nodes.Name() | nodes.Getattr() | nodes.Getitem():
            reference = reference_of(node)
            return None if reference is None else values_of(shape_of(reference))
        case nodes.CondExpr():
            return _either(node, shape_of)
        case nodes.And() | nodes.Or():
            return _joined(node, shape_of)
        case nodes.Filter(name="lower" | "upper" | "trim" | "string") if node.node is not None:
            return _filtered(node, shape_of)
    return None


def _either(node: nodes.CondExpr, shape_of: Callable[[Reference], Shape]) -> Values:
    if node.expr2 is None:
        return None
    then, otherwise = possible(node.expr1, shape_of), possible(node.expr2, shape_of)
    return None if then is None or otherwise is None else _unique([*then, *otherwise])


def _joined(node: nodes.And | nodes.Or, shape_of: Callable[[Reference], Shape]) -> Values:
    left, right = possible(node.left, shape_of), possible(node.right, shape_of)
    if left is None or right is None:
        return None
    decided = [value for value in left if bool(value) is isinstance(node, nodes.Or)]
    goes_on = any(bool(value) is isinstance(node, nodes.And) for value in left)
    return _unique([*decided, *(right if goes_on else [])])


def _filtered(node: nodes.Filter, shape_of: Callable[[Reference], Shape]) -> Values:
    assert node.node is not None
    values = possible(node.node, shape_of)
    if values is None:
        return None
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        return None
    change: dict[str, Callable[[str], str]] = {"lower": str.lower, "upper": str.upper, "trim": str.strip}
    return _unique([change.get(node.name, str)(value) for value in texts])


def _unique(values: list[object]) -> Values:
    found: list[Any] = []
    for value in values[:_MOST]:
        if not any(type(value) is type(each) and value == each for each in found):
            found.append(value)
    return found


# --- Rules about the flow -----------------------------------------------------------------------------------------


MANY_TURNS = 100


def add_findings(analysis: Analysis) -> None:
    """Add the findings."""
    for visit in analysis.visits:
        _unused_output(analysis, visit)
        if visit.step.broken:
            continue
        match visit.step.kind:
            case "map":
                _no_list(analysis, visit)
            case "conditional":
                _branches(analysis, visit)
            case "loop":
                _exit(analysis, visit)
                _turns(analysis, visit)
            case "parallel":
                _writers(analysis, visit)


# --- V-A5 -------------------------------------------------------------------------------------------------------


def _unused_output(analysis: Analysis, visit: StepVisit) -> None:
    step, following = visit.step, visit.sequence[visit.index + 1 :]
    if not following or step.broken or _has_effects(step) or _looks(following[0]):
        return
    if any(id(each) in analysis.troubled for each in steps_in(following)):
        return
    if any(_names(each, step.name) for each in following):
        return
    message = (
        f"no step uses the output of step {step.name!r}: name it in a later template, as `previous_step` in the next "
        f"step or `{reference_to(step.name)}` anywhere behind it, or remove the step"
    )
    analysis.collector.report("V-A5", step.at, message)


def reference_to(name: str, quote: str = '"') -> str:
    """Return the template reference to the output of a step."""
    plain = name.isidentifier() and name.isascii()
    return f"steps.{name}.output" if plain else f"steps[{quote}{name}{quote}].output"


def _has_effects(step: StepModel) -> bool:
    """Return whether the step may have effects apart from its output."""
    if step.value("updates_context") or "sink_to" in step.entries:
        return True
    if step.uses is not None and step.uses.kind in ("python", "import"):
        return True
    return any(_has_effects(each) for inner in step.inner() for each in inner)


def _looks(step: StepModel) -> bool:
    """Return whether a step reads the previous output."""
    if step.broken:
        return True
    if any(place.refers_to("previous_step") for place in templates_of(step) if place.key not in _OF_THE_BODY):
        return True
    if step.value("input") is not None:
        return False
    return _reads_without_input(step)


_OF_THE_BODY = ("exit_expression", "output_template")


def _reads_without_input(step: StepModel) -> bool:
    match step.kind:
        case "step":
            return True
        case "map":
            return "iterable_input" not in step.entries
        case "hitl" | "approval" | "wait_for":
            return False
        case "sleep":
            return True
    if step.kind == "conditional" and "condition" in step.entries:
        return True
    return any(_looks(inner[0]) for inner in step.inner() if inner)


def _names(step: StepModel, name: str) -> bool:
    """Return whether a template of the step refers to `steps.<name>`."""
    own = any(
        reference.root == "steps" and reference.path[:1] == (name,)
        for place in templates_of(step)
        for reference in place.parsed.references
    )
    return own or any(_names(each, name) for inner in step.inner() for each in inner)


# --- maps, branches, loops ----------------------------------------------------------------------------------------


def _no_list(analysis: Analysis, visit: StepVisit) -> None:
    place = _place(visit, "iterable_input")
    shape = visit.data
    if place is not None:
        expression = place.parsed.expression
        if isinstance(expression, nodes.Const | nodes.Dict):
            analysis.collector.report(
                "V-A2", visit.step.at, f"step {visit.step.name!r} maps over a value that is not a list"
            )
            return
        references = place.parsed.references
        plain = isinstance(expression, nodes.Name | nodes.Getattr | nodes.Getitem) and len(references) == 1
        shape = visit.shape_of(references[0], place, analysis.context) if plain else None
    if is_no_list(shape):
        message = f"step {visit.step.name!r} maps over {in_words(shape)}: give it `iterable_input`, or a list before it"
        analysis.collector.report("V-A2", visit.step.at, message)


def _place(visit: StepVisit, key: str) -> TemplateSlot | None:
    found = next((place for place in visit.places if place.key == key), None)
    return None if found is None or found.parsed.faults else found


def _values(analysis: Analysis, visit: StepVisit, key: str) -> Values:
    place = _place(visit, key)
    expression = None if place is None else place.parsed.expression
    if place is None or expression is None:
        return None
    return possible(expression, lambda reference: visit.shape_of(reference, place, analysis.context))


def _branches(analysis: Analysis, visit: StepVisit) -> None:
    step = visit.step
    values = _values(analysis, visit, "condition_expression")
    if values is None:
        return
    given = {as_key(value) for value in values}
    for branch in step.branches:
        if branch.name not in given and branch.name != step.default_name:
            message = f"branch {branch.name!r} is never taken: the expression gives {_listed(given)}"
            analysis.collector.report("V-B1", branch.key, message)
    missing = given - {branch.name for branch in step.branches}
    if missing and step.default is None and step.default_name is None:
        message = f"step {step.name!r} has no branch for {_listed(missing)}: add it, or a `default_branch`"
        analysis.collector.report("V-B2", step.at, message)


def _listed(values: set[str]) -> str:
    return ", ".join(repr(value) for value in sorted(values)[:10])


def _exit(analysis: Analysis, visit: StepVisit) -> None:
    step = visit.step
    if step.node.key("exit_condition") is None and step.node.key("exit_expression") is None:
        message = f"loop {step.name!r} has no exit: give it `exit_expression`, or an `exit_condition`"
        analysis.collector.report("V-L1", step.at, message)
        return
    values = _values(analysis, visit, "exit_expression")
    if values is None:
        return
    if not any(values):
        analysis.collector.report(
            "V-L1", step.at, f"the exit of loop {step.name!r} is never true, so it fails after its turns"
        )
    elif all(values):
        message = f"the exit of loop {step.name!r} is always true, so there is one turn only"
        analysis.collector.report("V-L1", step.at, message, severity="warning")


def _turns(analysis: Analysis, visit: StepVisit) -> None:
    step = visit.step
    if "max_loops" not in step.entries:
        if step.node.key("max_loops") is None:
            analysis.collector.report(
                "V-L2", step.at, f"loop {step.name!r} leaves `max_loops` to 5: say how many there may be"
            )
    elif _are_many(turns := step.value("max_loops")) and not visit.limited:
        message = f"loop {step.name!r} may take {turns or 'any number of'} turns, and no `usage_limits` hold for it"
        analysis.collector.report("V-L2", step.at, message, severity="warning")


def _are_many(turns: int | None) -> bool:
    return turns is None or turns > MANY_TURNS


def _writers(analysis: Analysis, visit: StepVisit) -> None:
    step = visit.step
    strategy = step.value("merge_strategy", "context_update")
    if strategy not in ("context_update", "error_on_conflict"):
        return
    written = [(branch.name, writes_of(analysis, branch.steps).paths) for branch in step.branches]
    for one, other, key in _conflicts(written, whole=strategy == "error_on_conflict"):
        message = (
            f"branches {one!r} and {other!r} of {step.name!r} both write `context.{key}`, which "
            f"`merge_strategy: {strategy}` makes an error; choose `overwrite`, `keep_first` or `no_merge`"
        )
        analysis.collector.report("V-P1", step.at, message)


def _conflicts(written: list[tuple[str, frozenset[str]]], *, whole: bool) -> Iterator[tuple[str, str, str]]:
    for number, (one, keys) in enumerate(written):
        for other, more in written[number + 1 :]:
            found = next((key for key in sorted(keys) if any(_collide(key, each, whole=whole) for each in more)), None)
            if found is not None:
                yield one, other, found


def _collide(one: str, other: str, *, whole: bool) -> bool:
    if whole:
        return one.partition(".")[0] == other.partition(".")[0]
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
