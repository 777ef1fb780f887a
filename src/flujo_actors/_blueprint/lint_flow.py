"""Rules about the flow: outputs that nobody uses, branches that nobody takes, loops that never end."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from .analysis import Analysis, writes_of
from .flow import Visit
from .model import StepModel, steps_in
from .places import Place, places_in
from .possible_values import Values, possible
from .shapes import in_words, is_no_list
from .template_filters import as_key

MANY_TURNS = 100


def look(analysis: Analysis) -> None:
    """Put down what is found."""
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


def _unused_output(analysis: Analysis, visit: Visit) -> None:
    step, following = visit.step, visit.sequence[visit.index + 1 :]
    if not following or step.broken or _has_effects(step) or _looks(following[0]):
        return
    if any(id(each) in analysis.troubled for each in steps_in(following)):
        return
    if any(_names(each, step.name) for each in following):
        return
    told = (
        f"nobody uses the output of step {step.name!r}: name it in a later template, as `previous_step` in the next "
        f"step or `{reference_to(step.name)}` anywhere behind it, or remove the step"
    )
    analysis.told.tell("V-A5", step.at, told)


def reference_to(name: str, quote: str = '"') -> str:
    """How a template names the output of a step."""
    plain = name.isidentifier() and name.isascii()
    return f"steps.{name}.output" if plain else f"steps[{quote}{name}{quote}].output"


def _has_effects(step: StepModel) -> bool:
    """Whether the step may be there for something else than its output."""
    if step.value("updates_context") or "sink_to" in step.entries:
        return True
    if step.uses is not None and step.uses.kind in ("python", "import"):
        return True
    return any(_has_effects(each) for inner in step.inner() for each in inner)


def _looks(step: StepModel) -> bool:
    """Whether a step looks at what the step before it hands over."""
    if step.broken:
        return True
    if any(place.refers_to("previous_step") for place in places_in(step) if place.key not in _OF_THE_BODY):
        return True
    if step.value("input") is not None:
        return False
    return _looks_without_input(step)


_OF_THE_BODY = ("exit_expression", "output_template")


def _looks_without_input(step: StepModel) -> bool:
    match step.kind:
        case "step":
            return True
        case "map":
            return "iterable_input" not in step.entries
        case "hitl":
            return False
    if step.kind == "conditional" and "condition" in step.entries:
        return True
    return any(_looks(inner[0]) for inner in step.inner() if inner)


def _names(step: StepModel, name: str) -> bool:
    """Whether a template of the step, or of one inside it, refers to `steps.<name>`."""
    own = any(
        reference.root == "steps" and reference.path[:1] == (name,)
        for place in places_in(step)
        for reference in place.parsed.references
    )
    return own or any(_names(each, name) for inner in step.inner() for each in inner)


# --- maps, branches, loops ----------------------------------------------------------------------------------------


def _no_list(analysis: Analysis, visit: Visit) -> None:
    place = _place(visit, "iterable_input")
    shape = visit.data
    if place is not None:
        expression = place.parsed.expression
        if isinstance(expression, nodes.Const | nodes.Dict):
            analysis.told.tell("V-A2", visit.step.at, f"step {visit.step.name!r} maps over what is no list")
            return
        references = place.parsed.references
        plain = isinstance(expression, nodes.Name | nodes.Getattr | nodes.Getitem) and len(references) == 1
        shape = visit.shape_of(references[0], place, analysis.context) if plain else None
    if is_no_list(shape):
        told = f"step {visit.step.name!r} maps over {in_words(shape)}: give it `iterable_input`, or a list before it"
        analysis.told.tell("V-A2", visit.step.at, told)


def _place(visit: Visit, key: str) -> Place | None:
    found = next((place for place in visit.places if place.key == key), None)
    return None if found is None or found.parsed.faults else found


def _values(analysis: Analysis, visit: Visit, key: str) -> Values:
    place = _place(visit, key)
    expression = None if place is None else place.parsed.expression
    if place is None or expression is None:
        return None
    return possible(expression, lambda reference: visit.shape_of(reference, place, analysis.context))


def _branches(analysis: Analysis, visit: Visit) -> None:
    step = visit.step
    values = _values(analysis, visit, "condition_expression")
    if values is None:
        return
    given = {as_key(value) for value in values}
    for branch in step.branches:
        if branch.name not in given and branch.name != step.default_name:
            told = f"branch {branch.name!r} is never taken: the expression gives {_listed(given)}"
            analysis.told.tell("V-B1", branch.key, told)
    missing = given - {branch.name for branch in step.branches}
    if missing and step.default is None and step.default_name is None:
        told = f"step {step.name!r} has no branch for {_listed(missing)}: add it, or a `default_branch`"
        analysis.told.tell("V-B2", step.at, told)


def _listed(values: set[str]) -> str:
    return ", ".join(repr(value) for value in sorted(values)[:10])


def _exit(analysis: Analysis, visit: Visit) -> None:
    step = visit.step
    if step.node.key("exit_condition") is None and step.node.key("exit_expression") is None:
        told = f"loop {step.name!r} has no exit: give it `exit_expression`, or an `exit_condition`"
        analysis.told.tell("V-L1", step.at, told)
        return
    values = _values(analysis, visit, "exit_expression")
    if values is None:
        return
    if not any(values):
        analysis.told.tell(
            "V-L1", step.at, f"the exit of loop {step.name!r} is never true, so it fails after its turns"
        )
    elif all(values):
        told = f"the exit of loop {step.name!r} is always true, so there is one turn only"
        analysis.told.tell("V-L1", step.at, told, severity="warning")


def _turns(analysis: Analysis, visit: Visit) -> None:
    step = visit.step
    if "max_loops" not in step.entries:
        if step.node.key("max_loops") is None:
            analysis.told.tell(
                "V-L2", step.at, f"loop {step.name!r} leaves `max_loops` to 5: say how many there may be"
            )
    elif step.value("max_loops") > MANY_TURNS and not visit.limited:
        told = f"loop {step.name!r} may take {step.value('max_loops')} turns, and no `usage_limits` hold for it"
        analysis.told.tell("V-L2", step.at, told, severity="warning")


def _writers(analysis: Analysis, visit: Visit) -> None:
    step = visit.step
    strategy = step.value("merge_strategy", "context_update")
    if strategy not in ("context_update", "error_on_conflict"):
        return
    written = [(branch.name, writes_of(analysis, branch.steps).paths) for branch in step.branches]
    for one, other, key in _conflicts(written, whole=strategy == "error_on_conflict"):
        told = (
            f"branches {one!r} and {other!r} of {step.name!r} both write `context.{key}`, which "
            f"`merge_strategy: {strategy}` makes an error; choose `overwrite`, `keep_first` or `no_merge`"
        )
        analysis.told.tell("V-P1", step.at, told)


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
