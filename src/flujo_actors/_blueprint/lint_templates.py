"""Rules about templates: what they refer to, and whether it is there (V-T1 to V-T6)."""

from __future__ import annotations

import re

from .._core.near_names import nearest
from .analysis import Analysis
from .findings import Change, Edit, Fix
from .flow import Visit
from .places import SEES_EVERYTHING, Place
from .shapes import NoField, follow, is_object
from .source import Source
from .template_parsing import INSIDE, Fault, Reference

_OUTPUT = re.compile(r"\bprevious_step\s*(?:\.\s*output\b|\[\s*(?P<quote>['\"])output(?P=quote)\s*\])")


def look(analysis: Analysis) -> None:
    """Put down what is found."""
    for visit in analysis.visits:
        for place in visit.places:
            before = len(analysis.told.findings)
            for fault in place.parsed.faults:
                _fault(analysis, place, fault)
            if not place.parsed.faults:
                _references(analysis, visit, place)
            if any(each.severity == "error" for each in analysis.told.findings[before:]):
                analysis.troubled.add(id(visit.step))


def _fault(analysis: Analysis, place: Place, fault: Fault) -> None:
    fix = None
    if fault.wrong and fault.right:
        pattern = re.compile(rf"(\|\s*){re.escape(fault.wrong)}\b")
        fix = in_templates(analysis.told.source, place, pattern, rf"\g<1>{fault.right}")
    at = place.at(analysis.told.source, fault.line)
    analysis.told.tell(fault.rule, at, fault.message, fix=fix)


def _references(analysis: Analysis, visit: Visit, place: Place) -> None:
    told: set[str] = set()
    for reference in place.parsed.references:
        found = _problem(analysis, visit, place, reference)
        if found is None or str(found) in told:
            continue
        told.add(str(found))
        rule, message = found
        fix = in_templates(analysis.told.source, place, _OUTPUT, "previous_step") if rule == "V-T1" else None
        analysis.told.tell(rule, place.at(analysis.told.source, reference.line), message, fix=fix)


def _problem(analysis: Analysis, visit: Visit, place: Place, reference: Reference) -> tuple[str, str] | None:
    root = reference.root
    if root not in SEES_EVERYTHING:
        near = nearest(root, sorted(SEES_EVERYTHING))
        hint = f"did you mean `{near}`?" if near else f"there are {', '.join(sorted(SEES_EVERYTHING))}"
        return "V-T4", f"there is no variable {root[:60]!r}: {hint}"
    if root not in place.sees:
        return "V-T4", f"`{root}` cannot be seen in `{place.key}`, only {' and '.join(sorted(place.sees))}"
    if root == "this" and not visit.sight.in_map:
        return "V-T2", "`this` is the item of a map, and there is no map around this step"
    if root == "steps":
        problem = _step(visit, reference)
        if problem is not None:
            return "V-T4", problem
    shape, path = visit.rooted(reference, place, analysis.context)
    if root == "previous_step" and path[:1] == ("output",) and isinstance(follow(shape, ["output"]), NoField | None):
        has_it = is_object(shape) and not isinstance(follow(shape, ["output"]), NoField)
        if not has_it or shape is None:
            return "V-T1", "`previous_step` is the output itself: write it without `.output`"
    if reference.guarded:
        return None
    found = follow(shape, path)
    if not isinstance(found, NoField):
        return None
    near = nearest(found.name, list(found.known))
    has = f"it has {', '.join(found.known)}" if found.known else "it has no fields"
    hint = f"did you mean `{near}`?" if near else has
    return "V-T5", f"`{reference}`: the schema has no {found.name[:60]!r}; {hint}"


def _step(visit: Visit, reference: Reference) -> str | None:
    if not reference.path:
        return "`steps` is not a value: write `steps.<name>.output`"
    name = str(reference.path[0])
    if name not in visit.sight.steps:
        known = sorted(visit.sight.steps.names())
        if name == visit.step.name:
            return f"step {name!r} cannot see its own output"
        if visit.sight.steps.comes_later(name):
            return f"step {name!r} comes later: a step sees those before it and around it"
        near = nearest(name, known)
        hint = f"did you mean `steps.{near}.output`?" if near else _visible(known)
        return f"there is no step {name[:60]!r} in sight (nobody sees into a body or a branch): {hint}"
    if len(reference.path) < 2 or reference.path[1] != "output":
        return f"write `steps.{name}.output`: a step has nothing else to refer to"
    return None


def _visible(known: list[str]) -> str:
    return f"there are {', '.join(known)}" if known else "none comes before this one"


# --- fixes inside a text ----------------------------------------------------------------------------------------


def in_templates(source: Source, place: Place, pattern: re.Pattern[str], new: str) -> Fix | None:
    """Other words for what matches inside the braces of a text; in an expression, anywhere."""
    node = place.node
    if node.shared or not isinstance(node.value, str):
        return None
    written = source.text[node.start : node.end]
    spans = _matches(written, pattern)
    if not spans or len(spans) != len(_matches(node.value, pattern)):
        return None
    edits = tuple(
        Edit(start=node.start + start, end=node.start + end, text=pattern.sub(new, written[start:end], count=1))
        for start, end in spans
    )
    value = _replaced(node.value, pattern, new)
    return Fix(safe=True, edits=edits, changes=(Change(kind="value", node=node, value=value),))


def _tags(text: str) -> list[tuple[int, int]]:
    found = [match.span() for match in INSIDE.finditer(text)]
    return found or [(0, len(text))]


def _matches(text: str, pattern: re.Pattern[str]) -> list[tuple[int, int]]:
    return [match.span() for start, end in _tags(text) for match in pattern.finditer(text, start, end)]


def _replaced(text: str, pattern: re.Pattern[str], new: str) -> str:
    for start, end in reversed(_matches(text, pattern)):
        text = text[:start] + pattern.sub(new, text[start:end], count=1) + text[end:]
    return text
