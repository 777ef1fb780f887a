"""Rules about outputs and the context: structure, merging, writes and reads."""

from __future__ import annotations

import re
from typing import Any

from ..parser.analysis import Analysis, writes_of
from ..parser.blueprint_model import StepModel
from ..parser.findings import Fix
from ..parser.nodes import Mapping, Scalar, Sequence, quoted, walk, written
from ..parser.project import look_up
from .edits import inserting, removing, setting
from .flow import StepVisit, TemplateSlot
from .lint_flow import reference_to
from .lint_names import in_templates
from .value_schemas import in_words, is_no_object, is_object, type_of

LONGEST_LITERAL = 50_000
_PREVIOUS = re.compile(r"\bprevious_step\b")


def add_findings(analysis: Analysis, *, copy_schema: bool = False) -> None:
    """Add the findings."""
    for visit in analysis.visits:
        if visit.step.broken:
            continue
        _says_structured(analysis, visit, copy_schema=copy_schema)
        _merges(analysis, visit)
        _degrades(analysis, visit)
    _unwritten(analysis)
    _long_literals(analysis)


# --- V-A8 -------------------------------------------------------------------------------------------------------


def _says_structured(analysis: Analysis, visit: StepVisit, *, copy_schema: bool) -> None:
    step = visit.step
    if step.uses is None or step.uses.kind != "agent":
        return
    agent = analysis.model.agents[step.uses.name]
    schema = agent.value("output_schema")
    if schema is None or type_of(schema) == "string":
        return
    if any(step.option("processing", key) is not None for key in ("structured_output", "schema")):
        return
    if step.option("processing", "enforcement") == "off":
        return
    message = (
        f"agent {agent.name!r} has an `output_schema`, and step {step.name!r} does not mention it: add "
        "`processing: {structured_output: openai_json}`, or `off` to opt out"
    )
    analysis.collector.report("V-A8", step.at, message, fix=_structured(analysis, step, copy_schema=copy_schema))


def _structured(analysis: Analysis, step: StepModel, *, copy_schema: bool) -> Fix | None:
    assert step.uses is not None
    switches: dict[str, Any] = {"structured_output": "openai_json"}
    if copy_schema:
        switches["schema"] = f"agents.{step.uses.name}"
    lines = [f"{key}: {written(value)}" for key, value in switches.items()]
    source, given = analysis.collector.source, step.node.get("processing")
    if given is None:
        after = "uses" if step.node.key("uses") is not None else "agent"
        return setting(
            source, step.node, after, "processing", switches, ["processing:", *(f"  {line}" for line in lines)]
        )
    if not isinstance(given, Mapping) or not given.pairs or copy_schema:
        return None
    return setting(source, given, str(given.pairs[-1][0].value), "structured_output", "openai_json", lines)


# --- V-C1 -------------------------------------------------------------------------------------------------------


def _merges(analysis: Analysis, visit: StepVisit) -> None:
    step = visit.step
    if not step.value("updates_context") or (step.uses is not None and step.uses.kind == "import"):
        return
    if is_object(visit.output) or (not is_no_object(visit.output) and step.value("mergeable_output")):
        return
    source = analysis.collector.source
    if is_no_object(visit.output):
        message = (
            f"step {step.name!r} gives {in_words(visit.output)}, and only an object can be merged into the context: "
            f"`sink_to: <key>` puts it under a key"
        )
        analysis.collector.report("V-C1", step.at, message, fix=_wrapped(analysis, visit))
        return
    message = (
        f"it is not known whether the output of step {step.name!r} can be merged into the context: say "
        "`mergeable_output: true` if it can"
    )
    fix = setting(source, step.node, "updates_context", "mergeable_output", True, ["mergeable_output: true"])
    safe = _is_of_a_class(analysis, step)
    kept = None if fix is None else Fix(safe=safe, edits=fix.edits, changes=fix.changes)
    analysis.collector.report("V-C1", step.at, message, severity="warning", fix=kept)


def _is_of_a_class(analysis: Analysis, step: StepModel) -> bool:
    used = step.uses
    if used is None or used.kind != "python":
        return False
    return look_up(analysis.project, used.module, used.attribute).returns_class


def _wrapped(analysis: Analysis, visit: StepVisit) -> Fix | None:
    """Return a fix that moves `updates_context` to a wrapping step."""
    step, source = visit.step, analysis.collector.source
    steps = _list_of(analysis, visit)
    if steps is None or step.fallback is not None:
        return None
    name = _free_name(visit, f"{step.name}_to_context")
    item = {"name": name, "uses": "builtins.wrap_dict", "params": {"key": step.name}, "updates_context": True}
    lines = (
        f"- name: {written(name)}",
        "  uses: builtins.wrap_dict",
        f"  params: {{key: {_in_flow(step.name)}}}",
        "  updates_context: true",
    )
    parts = [removing(source, step.node, "updates_context"), inserting(source, steps, step.node, item, lines)]
    following = visit.sequence[visit.index + 1 :][:1]
    parts.extend(_handed_on(analysis, step, each) for each in following)
    return _together(parts)


def _in_flow(text: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_][\w-]*", text, re.ASCII) is not None and written(text) == text
    return text if plain else quoted(text)


def _list_of(analysis: Analysis, visit: StepVisit) -> Sequence | None:
    """Return the YAML list that contains the step."""
    for node in walk(analysis.model.root):
        if isinstance(node, Sequence) and any(each is visit.step.node for each in node.items):
            return node
    return None


def _free_name(visit: StepVisit, name: str) -> str:
    taken = {step.name for step in visit.sequence}
    return next(each for each in (name, *(f"{name}_{n}" for n in range(2, len(taken) + 3))) if each not in taken)


def _handed_on(analysis: Analysis, step: StepModel, following: StepModel) -> Fix | None:
    """Return a fix that keeps the next input, by `input` or template."""
    source, named = analysis.collector.source, reference_to(step.name)
    if following.node.get("input") is None and following.node.key("input") is None:
        text = f"{{{{ {named} }}}}"
        first = "name" if following.node.key("name") is not None else "step"
        return setting(
            source, following.node, _before_input(following, first), "input", text, [f"input: {quoted(text)}"]
        )
    visits = {id(visit.step): visit for visit in analysis.visits}
    places = [each for each in visits[id(following)].places if each.key == "input" and each.refers_to("previous_step")]
    fixes = [in_templates(source, place, _PREVIOUS, _fitting(step.name, place)) for place in places]
    return _together(fixes) if fixes else Fix(safe=True, edits=(), changes=())


def _fitting(name: str, place: TemplateSlot) -> str:
    """Return an output's name in quotes unused by the surrounding text."""
    return reference_to(name, "'" if place.node.style == '"' else '"').replace("\\", "\\\\")


def _before_input(following: StepModel, first: str) -> str:
    return "uses" if following.node.key("uses") is not None else first


def _together(parts: list[Fix | None]) -> Fix | None:
    whole = [part for part in parts if part is not None]
    if len(whole) != len(parts):
        return None
    edits = tuple(edit for part in whole for edit in part.edits)
    return Fix(safe=True, edits=edits, changes=tuple(change for part in whole for change in part.changes or ()))


# --- V-F1, V-C2, V-C3 ---------------------------------------------------------------------------------------------


def _degrades(analysis: Analysis, visit: StepVisit) -> None:
    step, following = visit.step, visit.sequence[visit.index + 1 :][:1]
    if step.fallback is not None or step.uses is None or step.uses.kind != "agent" or not following:
        return
    agent = analysis.model.agents[step.uses.name]
    own = step.option("processing", "schema") is not None and agent.value("output_schema") is None
    degrade = step.option("processing", "degrade")
    if not (degrade is True or (own and degrade is None)) or not is_object(analysis.flow.schema_of(step)):
        return
    nexts = [visit for visit in analysis.visits if visit.step is following[0]]
    needs = any(
        reference.root == "previous_step" and reference.path
        for place in nexts[0].places
        for reference in place.parsed.references
    )
    if needs:
        message = f"step {step.name!r} may end in a text where the next step needs an object: say `degrade: false`"
        analysis.collector.report("V-F1", step.at, message)


def _unwritten(analysis: Analysis) -> None:
    writes = writes_of(analysis, analysis.model.steps)
    properties = (analysis.context or {}).get("properties")
    if analysis.is_child or not writes.complete or properties:
        return  # V-T5 checks schemas
    known = {path.partition(".")[0] for path in writes.paths} | _declared_keys(analysis)
    for visit in analysis.visits:
        for place in visit.places:
            seen: set[str] = set()
            for reference in place.parsed.references:
                key = str(reference.path[0]) if reference.root == "context" and reference.path else None
                if key is not None and key not in known and key not in seen and not reference.guarded:
                    seen.add(key)
                    text = (
                        f"nothing writes `context.{key[:60]}`: declare it under `context`, or write it with `sink_to`"
                    )
                    analysis.collector.report("V-C2", place.at(analysis.collector.source, reference.line), text)


def _declared_keys(analysis: Analysis) -> set[str]:
    declared = analysis.model.value("context")
    entries = declared if isinstance(declared, dict) else {}
    initial = set(entries["initial"].value) if "initial" in entries else set()
    properties = (analysis.context or {}).get("properties")
    return initial | (set(properties) if isinstance(properties, dict) else set())


def _long_literals(analysis: Analysis) -> None:
    for node in walk(analysis.model.root):
        if isinstance(node, Mapping):
            for key, value in node.pairs:
                if isinstance(value, Scalar) and isinstance(value.value, str) and len(value.value) > LONGEST_LITERAL:
                    message = f"this text has {len(value.value):,} characters: put it into a file"
                    analysis.collector.report("V-C3", key, message)
