"""A pipeline as nested boxes: what every drawing is made of. From a blueprint without importing anything."""

from __future__ import annotations

from typing import Any

import attrs

from .._core.paths import DEFAULT, FALLBACK, Named
from .._dsl.call_plan import name_of
from .._dsl.kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, SequenceOf
from .._dsl.pipeline import AnyStep, Pipeline
from .._dsl.step import Step
from .flow import Flow
from .model import BlueprintModel, StepModel

_LONGEST = 60


@attrs.frozen(kw_only=True)
class Lane:
    """Boxes one below the other, in a box: a branch, a body, a fallback."""

    label: str
    boxes: tuple[Box, ...]


@attrs.frozen(kw_only=True)
class Box:
    """One step."""

    kind: str
    name: str
    detail: str = ""
    lanes: tuple[Lane, ...] = ()

    @property
    def label(self) -> str:
        """Its name and what it does, on one line."""
        what = " ".join(each for each in ("" if self.kind == "step" else self.kind, self.detail) if each)
        return f"{self.name}: {what}" if what else self.name


@attrs.frozen(kw_only=True)
class Drawing:
    """A whole pipeline."""

    name: str
    boxes: tuple[Box, ...]


def _short(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


# --- of a blueprint ---------------------------------------------------------------------------------------------


def drawing_of(model: BlueprintModel, flow: Flow | None = None) -> Drawing:
    """The drawing of a blueprint; with its flow, steps show what they were promoted to."""
    return Drawing(name=model.name or model.source.file, boxes=_boxes(model, model.steps, flow))


def _boxes(model: BlueprintModel, steps: list[StepModel], flow: Flow | None) -> tuple[Box, ...]:
    return tuple(_box(model, step, flow) for step in steps)


def _box(model: BlueprintModel, step: StepModel, flow: Flow | None) -> Box:
    lanes = [Lane(label=branch.name, boxes=_boxes(model, branch.steps, flow)) for branch in step.branches]
    if step.default is not None:
        lanes.append(Lane(label="otherwise", boxes=_boxes(model, step.default, flow)))
    if step.body:
        lanes.append(Lane(label="", boxes=_boxes(model, step.body, flow)))
    child = model.imports[step.uses.name].child if step.uses and step.uses.name in model.imports else None
    if step.uses is not None and step.uses.kind == "import" and child is not None:
        lanes.append(Lane(label="", boxes=_boxes(child, child.steps, flow)))
    if step.fallback is not None:
        lanes.append(Lane(label="fallback", boxes=(_box(model, step.fallback, flow),)))
    return Box(kind=step.kind, name=step.name, detail=_detail(step, flow), lanes=tuple(lanes))


_SAID = ("condition_expression", "condition", "iterable_input", "message", "exit_expression", "exit_condition")
_BEFORE = {"exit_expression": "until ", "exit_condition": "until ", "iterable_input": "over ", "message": ""}


def _detail(step: StepModel, flow: Flow | None) -> str:
    if step.uses is not None:
        used = step.uses.name if step.uses.kind == "python" else f"{step.uses.kind}s.{step.uses.name}"
        schema = None if flow is None else flow.schema_of(step)
        mode = step.option("processing", "structured_output") or "auto"
        return used if schema is None else f"{used} [{mode}: {_short(dict(schema))}]"
    key = next((key for key in _SAID if key in step.entries), None)
    return "" if key is None else _BEFORE.get(key, "on ") + _short(step.value(key))


# --- of a pipeline of Python ------------------------------------------------------------------------------------


def drawing_of_pipeline(pipeline: Pipeline) -> Drawing:
    """The drawing of a pipeline made in Python."""
    return Drawing(name=pipeline.title, boxes=tuple(_box_of(step, name) for step, name in pipeline.named_steps))


def _box_of(step: AnyStep, name: str) -> Box:
    if isinstance(step, Pipeline):
        lane = Lane(label="", boxes=tuple(_box_of(each, called) for each, called in step.named_steps))
        return Box(kind="pipeline", name=name, lanes=(lane,))
    return Box(kind=step.kind, name=name, detail=_short(_said(step)), lanes=tuple(_lanes(step)))


def _said(step: object) -> str:
    match step:
        case Step():
            return _agent(step.agent)
        case BranchOn():
            return f"on {_text(step.select)}"
        case LoopUntil():
            return f"until {_text(step.until)}"
        case MapOver() if step.items is not None:
            return f"over {_text(step.items)}"
        case HumanInTheLoop():
            return _text(step.message)
    return ""


def _agent(agent: Any) -> str:
    model = getattr(agent, "model", None)
    named = model if isinstance(model, str) else getattr(model, "model_name", None)
    return f"agent {named}" if named else name_of(agent)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(getattr(value, "text", None) or (name_of(value) if callable(value) else value))


def _lanes(step: Any) -> list[Lane]:
    if isinstance(step, SequenceOf):
        return [Lane(label="", boxes=tuple(_box_of(each, name) for each, name in step.body.named_steps))]
    named = [(_label(segment), child) for segment, child in step.children()]
    return [Lane(label=label, boxes=_flat(child)) for label, child in named]


def _label(segment: Any) -> str:
    if isinstance(segment, Named):
        return segment.name
    return {FALLBACK: "fallback", DEFAULT: "otherwise"}.get(segment, "")


def _flat(step: AnyStep) -> tuple[Box, ...]:
    if isinstance(step, Pipeline) and step.name is None:
        return tuple(_box_of(each, name) for each, name in step.named_steps)
    return (_box_of(step, step.name or "pipeline"),)
