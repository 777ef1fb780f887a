"""What makes a pipeline the same pipeline: its steps, their order, prompts, models and tools.

A fingerprint is a list of lines, one for each step, so that a difference can be named. Code is not compared: a function
is known by its qualified name.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Set
from typing import Any

import attrs

from ..core import paths
from ..core.paths import ROOT, StepPath
from .callplan import is_model_agent
from .kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, Parallel
from .pipeline import AnyStep, Pipeline
from .step import Step


@attrs.frozen
class Fingerprint:
    """The lines of a pipeline, and a name that its runs share."""

    lines: tuple[str, ...]
    name: str

    @classmethod
    def of(cls, pipeline: Pipeline) -> Fingerprint:
        """The fingerprint of a declaration."""
        name = pipeline.name or " >> ".join(pipeline.step_names())
        return cls(tuple(_lines(pipeline)), name if len(name) <= 200 else name[:199] + "…")


def compare(stored: Iterable[str], current: Fingerprint, done: Set[StepPath], *, mode: str) -> list[str]:
    """What stands in the way of resuming: differences, or of those only what concerns steps already done."""
    if mode == "force":
        return []
    before, after = list(stored), list(current.lines)
    changes = [
        f"{'removed' if line.startswith('-') else 'added'} {line[2:]}"
        for line in difflib.ndiff(before, after)
        if line[:2] in ("- ", "+ ")
    ]
    if mode == "strict":
        return changes
    kept = set(after)
    touched = {line for line in before if line not in kept and _was_done(line, done)}
    return [f"removed {line}" for line in before if line in touched]


def _was_done(line: str, done: Set[StepPath]) -> bool:
    path = json.loads(line.split(" ", 1)[0])
    return any(each == path or each.startswith(f"{path}/") for each in done)


def _lines(pipeline: Pipeline) -> Iterable[str]:
    pending: list[tuple[StepPath, AnyStep]] = [(ROOT, pipeline)]
    while pending:
        path, step = pending.pop()
        if path != ROOT:
            yield f"{json.dumps(path)} {_description(step)}"
        pending.extend(reversed(list(_children(path, step))))


def _children(path: StepPath, step: AnyStep) -> Iterable[tuple[StepPath, AnyStep]]:
    if isinstance(step, Pipeline):
        for name, child in zip(step.step_names(), step.steps, strict=True):
            yield paths.named(path, name), child
        return
    match step:
        case Parallel() | BranchOn():
            for key, child in step.branches.items():
                yield paths.named(path, str(key)), child
        case MapOver() | LoopUntil():
            yield StepPath(f"{path}/~i"), step.body
    if isinstance(step, BranchOn) and step.default is not None:
        yield StepPath(f"{path}/~default"), step.default
    if step.fallback is not None:
        yield paths.fallback(path), step.fallback


def _description(step: AnyStep) -> str:
    match step:
        case Pipeline():
            return "pipeline"
        case Step():
            return f"step {_agent(step.agent)}"
        case LoopUntil():
            return f"loop max_loops={step.max_loops}"
        case HumanInTheLoop():
            return f"human {_digest(step.message if isinstance(step.message, str) else _named(step.message))}"
        case _:
            return type(step).__name__.lower()


def _agent(agent: Any) -> str:
    if not is_model_agent(agent):
        return _named(agent)
    model = getattr(agent, "model", None)
    name = model if isinstance(model, str) else getattr(model, "model_name", None)
    return f"agent {agent.name or ''} model={name} prompt={_digest(_prompts(agent))} tools={_digest(_tools(agent))}"


def _named(target: Any) -> str:
    target = getattr(target, "func", target)
    if not hasattr(target, "__qualname__"):
        target = type(target)
    return f"{target.__module__}.{target.__qualname__}"


def _prompts(agent: Any) -> list[str]:
    texts = [*getattr(agent, "_system_prompts", ()), *getattr(agent, "_instructions", ())]
    return [text if isinstance(text, str) else _named(text) for text in texts]


def _tools(agent: Any) -> list[Any]:
    tools: list[Any] = []
    for toolset in agent.toolsets:
        for name, tool in sorted(getattr(toolset, "tools", {}).items()):
            schema = getattr(getattr(tool, "function_schema", None), "json_schema", None)
            tools.append([name, schema])
    return tools


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]
