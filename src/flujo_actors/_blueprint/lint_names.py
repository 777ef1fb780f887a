"""Rules about names: what a step runs, what is allowed, what is never used."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .._core.near_names import nearest
from .allowing import is_allowed
from .analysis import Analysis
from .model import StepModel, Used
from .python_names import look_up
from .used import refused_builtin

BUILTINS: dict[str, tuple[str, ...]] = {
    "passthrough": (),
    "stringify": (),
    "wrap_dict": ("key",),
    "ensure_object": ("key",),
    "extract_from_text": (),
}
"""The functions that come with the library, and the parameters they take."""

_SINK = re.compile(r"[A-Za-z]\w*(?:\.[A-Za-z]\w*)*\Z", re.ASCII)


def look(analysis: Analysis) -> None:
    """Put down what is found."""
    for step in analysis.model.all_steps():
        if step.uses is not None:
            _used(analysis, step, step.uses)
        _referred_schema(analysis, step)
        _sink(analysis, step)
        _decides_once(analysis, step)
    _python(analysis)
    _unused(analysis)


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
                analysis.told.tell("V-K3", key, f"`builtins.{used.name}` is not of this language: {refused}")
                step.broken = True
                return
        case "python":
            known = (used.name,)
    if used.name not in known:
        _tell_unknown(analysis, step, used, sorted(known))
    _fitting(analysis, step, used)


def _tell_unknown(analysis: Analysis, step: StepModel, used: Used, known: list[str]) -> None:
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
    analysis.told.tell("V-A6", step.entries["uses"].key, f"there is no {what} {used.name[:60]!r}: {hint}")


def _fitting(analysis: Analysis, step: StepModel, used: Used) -> None:
    """Options that make no sense with what the step runs."""
    params = step.entries.get("params")
    taken = BUILTINS.get(used.name, ()) if used.kind == "builtin" else ()
    if params is not None and any(key not in taken for key in params.value):
        what = (
            f"`builtins.{used.name}` takes no such parameter" if used.kind == "builtin" else "only built-ins take them"
        )
        analysis.told.tell("V-K2", params.key, f"`params`: {what}; Python is configured in Python")
    if used.kind in ("builtin", "import") and step.value("granular"):
        told = "`granular` is for agents: nothing else has model turns to commit"
        analysis.told.tell("V-K2", step.entries["granular"].key, told)
    if used.kind == "import" and "processing" in step.entries:
        told = "`processing` belongs to the steps of the import, or to a step behind it"
        analysis.told.tell("V-K2", step.entries["processing"].key, told)


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
        analysis.told.tell("V-A6", entry.key, f"there is no agent {name[:60]!r}{hint}")
    elif agent.value("output_schema") is None:
        analysis.told.tell("V-A6", entry.key, f"agent {name!r} has no `output_schema` that could be meant")


def _sink(analysis: Analysis, step: StepModel) -> None:
    entry = step.entries.get("sink_to")
    if entry is not None and not _SINK.match(entry.value):
        analysis.told.tell("V-K2", entry.key, "`sink_to` must be names with dots between them, such as `report.title`")


def _decides_once(analysis: Analysis, step: StepModel) -> None:
    for kind, one, other in (
        ("conditional", "condition", "condition_expression"),
        ("loop", "exit_condition", "exit_expression"),
    ):
        if step.kind != kind:
            continue
        given = [key for key in (one, other) if step.node.key(key) is not None]
        if len(given) == 2:
            analysis.told.tell("V-K2", step.at, f"step {step.name!r} has `{one}` and `{other}`: one of them decides")
        if not given and kind == "conditional":
            told = f"step {step.name!r} needs `condition_expression`, or a `condition`, that names the branch"
            analysis.told.tell("V-K2", step.at, told)
            step.broken = True


def _python(analysis: Analysis) -> None:
    project = analysis.project
    for target, key in analysis.python_references():
        module, _, name = target.partition(":")
        if not is_allowed(project.allow, target):
            how = f'[blueprints] allow = ["{module}"] in flujo.toml, or --allow {module}'
            analysis.told.tell("V-X1", key, f"`{target}` is not allowed; whoever runs this may allow it: {how}")
        elif project.resolve:
            found = look_up(project, module, name)
            if not found.is_module_there:
                analysis.told.tell("V-A6", key, f"there is no module {module!r} to be found")
            elif not found.is_there:
                analysis.told.tell("V-A6", key, f"module {module!r} defines no {name!r}")


def _unused(analysis: Analysis) -> None:
    model = analysis.model
    for step in model.all_steps():
        schema = step.option("processing", "schema")
        if isinstance(schema, str) and (named := model.agents.get(schema.removeprefix("agents."))) is not None:
            named.used = True
    for agent in model.agents.values():
        if not agent.used:
            analysis.told.tell("V-U1", agent.key, f"agent {agent.name!r} is never used; remove it, or use it in a step")
    for each in model.imports.values():
        if not each.used:
            analysis.told.tell("V-U1", each.key, f"import {each.name!r} is never used; remove it, or use it in a step")
