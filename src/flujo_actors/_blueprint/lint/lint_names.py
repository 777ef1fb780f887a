"""Rules about names: targets of steps, allowed and unused names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..._core.validators import nearest
from ..parser.analysis import Analysis
from ..parser.blueprint_model import StepModel, Used
from ..parser.findings import Change, Edit, Fix
from ..parser.nodes import Source
from ..parser.project import is_allowed, look_up
from ..templates.template_parser import INSIDE, Fault, Reference
from .flow import SEES_EVERYTHING, StepVisit, TemplateSlot
from .step_references import refused_builtin
from .value_schemas import NoField, follow, is_object

BUILTINS: dict[str, tuple[str, ...]] = {
    "passthrough": (),
    "stringify": (),
    "wrap_dict": ("key",),
    "ensure_object": ("key",),
    "extract_from_text": (),
}
"""The functions that come with the library, and the parameters they take."""

_SINK = re.compile(r"[A-Za-z]\w*(?:\.[A-Za-z]\w*)*\Z", re.ASCII)


def add_findings(analysis: Analysis) -> None:
    """Add the findings."""
    for step in analysis.model.all_steps():
        if step.uses is not None:
            _used(analysis, step, step.uses)
        _referred_schema(analysis, step)
        _sink(analysis, step)
        _decides_once(analysis, step)
    _models(analysis)
    _python(analysis)
    _unused(analysis)


PROVIDERS = (
    *("alibaba", "anthropic", "azure", "bedrock", "bedrock-mantle", "cerebras", "cohere", "crusoe", "deepseek"),
    *("fireworks", "gateway", "github", "google", "google-cloud", "google-gla", "google-vertex", "grok", "groq"),
    *("heroku", "huggingface", "litellm", "meta", "mistral", "moonshotai", "nebius", "ollama", "openai", "openai-chat"),
    *("openai-decisions", "openai-responses", "openrouter", "ovhcloud", "sambanova", "snowflake", "test", "together"),
    *("typesafe", "vercel", "xai", "zai"),
)
"""Providers of pydantic-ai, known without importing it."""


def _models(analysis: Analysis) -> None:
    """Report models that pydantic-ai could not resolve in the first run."""
    for agent in analysis.model.agents.values():
        entry = agent.entries.get("model")
        if entry is None or not isinstance(entry.value, str) or entry.value == "test":
            continue
        provider, colon, name = entry.value.partition(":")
        if provider.partition("/")[0] in PROVIDERS and colon and name:
            continue
        near = nearest(provider, PROVIDERS) if colon else None
        hint = f"did you mean `{near}:{name}`?" if near and name else "write `provider:name`, such as `openai:gpt-4o`"
        message = f"agent {agent.name!r}: the model {entry.value[:60]!r} has no known provider: {hint}"
        analysis.collector.report("V-A6", entry.key, message, severity="warning")


def _used(analysis: Analysis, step: StepModel, used: Used) -> None:
    model, key = analysis.model, step.entries["uses"].key
    match used.kind:
        case "agent":
            known: Iterable[str] = model.agents
            if used.name in model.agents:
                model.agents[used.name].used = True
                step.broken = step.broken or model.agents[used.name].broken
        case "import":
            known = model.imports
            if used.name in model.imports:
                model.imports[used.name].used = True
                step.broken = step.broken or model.imports[used.name].child is None
        case "builtin":
            known = BUILTINS
            refused = refused_builtin(used.name)
            if refused is not None:
                analysis.collector.report("V-K3", key, f"`builtins.{used.name}` is not of this language: {refused}")
                step.broken = True
                return
        case "python":
            known = (used.name,)
    if used.name not in known:
        _report_unknown(analysis, step, used, sorted(known))
    _fitting(analysis, step, used)


def _report_unknown(analysis: Analysis, step: StepModel, used: Used, known: list[str]) -> None:
    step.broken = True
    near = nearest(used.name, known)
    if near and used.kind == "agent":
        analysis.model.agents[near].used = True  # it was probably meant
    if near and used.kind == "import":
        analysis.model.imports[near].used = True
    table = f"{used.kind}s"
    has = f"there are {', '.join(known)}" if known else f"there are no {table}"
    hint = f"did you mean `{table}.{near}`?" if near else has
    what = "built-in" if used.kind == "builtin" else used.kind
    analysis.collector.report("V-A6", step.entries["uses"].key, f"there is no {what} {used.name[:60]!r}: {hint}")


def _fitting(analysis: Analysis, step: StepModel, used: Used) -> None:
    """Report options that do not apply to the step's target."""
    params = step.entries.get("params")
    taken = BUILTINS.get(used.name, ()) if used.kind == "builtin" else ()
    if params is not None and any(key not in taken for key in params.value):
        what = (
            f"`builtins.{used.name}` takes no such parameter" if used.kind == "builtin" else "only built-ins take them"
        )
        analysis.collector.report("V-K2", params.key, f"`params`: {what}; Python is configured in Python")
    if used.kind in ("builtin", "import") and step.value("granular"):
        message = "`granular` is for agents: nothing else has model turns to commit"
        analysis.collector.report("V-K2", step.entries["granular"].key, message)
    if used.kind == "import" and "processing" in step.entries:
        message = "`processing` belongs to the steps of the import, or to a step behind it"
        analysis.collector.report("V-K2", step.entries["processing"].key, message)


def _referred_schema(analysis: Analysis, step: StepModel) -> None:
    inside = step.value("processing")
    entry = inside.get("schema") if isinstance(inside, dict) else None
    if entry is None or not isinstance(entry.value, str):
        return
    name = entry.value.removeprefix("agents.")
    agent = analysis.model.agents.get(name)
    if agent is None:
        near = nearest(name, list(analysis.model.agents))
        hint = f": did you mean `agents.{near}`?" if near else ""
        analysis.collector.report("V-A6", entry.key, f"there is no agent {name[:60]!r}{hint}")
    elif agent.value("output_schema") is None:
        analysis.collector.report("V-A6", entry.key, f"agent {name!r} has no `output_schema` that could be meant")


def _sink(analysis: Analysis, step: StepModel) -> None:
    entry = step.entries.get("sink_to")
    if entry is not None and not _SINK.match(entry.value):
        analysis.collector.report(
            "V-K2", entry.key, "`sink_to` must be names with dots between them, such as `report.title`"
        )


def _decides_once(analysis: Analysis, step: StepModel) -> None:
    for kind, one, other in (
        ("conditional", "condition", "condition_expression"),
        ("loop", "exit_condition", "exit_expression"),
    ):
        if step.kind != kind:
            continue
        given = [key for key in (one, other) if step.node.key(key) is not None]
        if len(given) == 2:
            analysis.collector.report(
                "V-K2", step.at, f"step {step.name!r} has `{one}` and `{other}`: one of them decides"
            )
        if not given and kind == "conditional":
            message = f"step {step.name!r} needs `condition_expression`, or a `condition`, that names the branch"
            analysis.collector.report("V-K2", step.at, message)
            step.broken = True


def _python(analysis: Analysis) -> None:
    project = analysis.project
    for target, key in analysis.python_references():
        module, _, name = target.partition(":")
        if not is_allowed(project.allow, target):
            how = f'[blueprints] allow = ["{module}"] in flujo.toml, or --allow {module}'
            analysis.collector.report("V-X1", key, f"`{target}` is not allowed; allow it: {how}")
        elif project.resolve:
            found = look_up(project, module, name)
            if not found.is_module_there:
                analysis.collector.report("V-A6", key, f"there is no module {module!r} to be found")
            elif not found.is_there:
                analysis.collector.report("V-A6", key, f"module {module!r} defines no {name!r}")


def _unused(analysis: Analysis) -> None:
    model = analysis.model
    for step in model.all_steps():
        schema = step.option("processing", "schema")
        if isinstance(schema, str) and (named := model.agents.get(schema.removeprefix("agents."))) is not None:
            named.used = True
    for agent in model.agents.values():
        if not agent.used:
            analysis.collector.report(
                "V-U1", agent.key, f"agent {agent.name!r} is never used; remove it, or use it in a step"
            )
    for each in model.imports.values():
        if not each.used:
            analysis.collector.report(
                "V-U1", each.key, f"import {each.name!r} is never used; remove it, or use it in a step"
            )


_OUTPUT = re.compile(r"\bprevious_step\s*(?:\.\s*output\b|\[\s*(?P<quote>['\"])output(?P=quote)\s*\])")


def lint_templates(analysis: Analysis) -> None:
    """Add the findings."""
    for visit in analysis.visits:
        for place in visit.places:
            before = len(analysis.collector.findings)
            for fault in place.parsed.faults:
                _fault(analysis, place, fault)
            if not place.parsed.faults:
                _references(analysis, visit, place)
            if any(each.severity == "error" for each in analysis.collector.findings[before:]):
                analysis.troubled.add(id(visit.step))


def _fault(analysis: Analysis, place: TemplateSlot, fault: Fault) -> None:
    fix = None
    if fault.wrong and fault.right:
        pattern = re.compile(rf"(\|\s*){re.escape(fault.wrong)}\b")
        fix = in_templates(analysis.collector.source, place, pattern, rf"\g<1>{fault.right}")
    at = place.at(analysis.collector.source, fault.line)
    analysis.collector.report(fault.rule, at, fault.message, fix=fix)


def _references(analysis: Analysis, visit: StepVisit, place: TemplateSlot) -> None:
    seen: set[str] = set()
    for reference in place.parsed.references:
        found = _problem(analysis, visit, place, reference)
        if found is None or str(found) in seen:
            continue
        seen.add(str(found))
        rule, message = found
        fix = in_templates(analysis.collector.source, place, _OUTPUT, "previous_step") if rule == "V-T1" else None
        analysis.collector.report(rule, place.at(analysis.collector.source, reference.line), message, fix=fix)


def _problem(analysis: Analysis, visit: StepVisit, place: TemplateSlot, reference: Reference) -> tuple[str, str] | None:
    root = reference.root
    if root not in SEES_EVERYTHING:
        near = nearest(root, sorted(SEES_EVERYTHING))
        hint = f"did you mean `{near}`?" if near else f"there are {', '.join(sorted(SEES_EVERYTHING))}"
        return "V-T4", f"there is no variable {root[:60]!r}: {hint}"
    if root not in place.sees:
        return "V-T4", f"`{root}` cannot be seen in `{place.key}`, only {' and '.join(sorted(place.sees))}"
    if root == "this" and not visit.visible.in_map:
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
    if root == "context" and shape is None:
        return _context_key(analysis, reference)
    found = follow(shape, path)
    if not isinstance(found, NoField):
        return None
    near = nearest(found.name, list(found.known))
    has = f"it has {', '.join(found.known)}" if found.known else "it has no fields"
    hint = f"did you mean `{near}`?" if near else has
    return "V-T5", f"`{reference}`: the schema has no {found.name[:60]!r}; {hint}"


def _context_key(analysis: Analysis, reference: Reference) -> tuple[str, str] | None:
    """Return the problem of a misspelled key of a schemaless context."""
    name = str(reference.path[0]) if reference.path else ""
    known = analysis.context_keys
    near = None if not name or name in known else nearest(name, sorted(known), cutoff=0.75)
    if near is None:
        return None
    return "V-T5", f"`{reference}`: neither `context.initial` nor a step sets {name[:60]!r}; did you mean `{near}`?"


def _step(visit: StepVisit, reference: Reference) -> str | None:
    if not reference.path:
        return "`steps` is not a value: write `steps.<name>.output`"
    name = str(reference.path[0])
    if name not in visit.visible.steps:
        known = sorted(visit.visible.steps.names())
        if name == visit.step.name:
            return f"step {name!r} cannot see its own output"
        if visit.visible.steps.follows(name):
            return f"step {name!r} comes later: a step sees those before it and around it"
        near = nearest(name, known)
        hint = f"did you mean `steps.{near}.output`?" if near else _visible(known)
        return f"there is no step {name[:60]!r} in scope (steps inside a body or a branch are not visible): {hint}"
    if len(reference.path) < 2 or reference.path[1] != "output":
        return f"write `steps.{name}.output`: a step has nothing else to refer to"
    return None


def _visible(known: list[str]) -> str:
    return f"there are {', '.join(known)}" if known else "none comes before this one"


# --- fixes inside a text ----------------------------------------------------------------------------------------


def in_templates(source: Source, place: TemplateSlot, pattern: re.Pattern[str], new: str) -> Fix | None:
    """Return a fix of matches inside braces, or anywhere in expressions."""
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
