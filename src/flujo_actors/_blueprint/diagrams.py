"""Diagrams as text: tree, Mermaid, DOT, JSON, safe for any step name.

Sections:

- SVG diagrams.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape

import attrs

from .._core.step_paths import DEFAULT, FALLBACK, Named
from .._dsl.call_plan import name_of
from .._dsl.kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, SequenceOf
from .._dsl.pipeline import AnyStep, Pipeline
from .._dsl.step_declaration import Step
from .._dsl.wait_steps import Sleep, WaitFor
from .lint.flow import Flow
from .parser.blueprint_model import BlueprintModel, StepModel

_LONGEST_LABEL = 60


@attrs.frozen(kw_only=True)
class Lane:
    """Vertical sequence inside a node: a branch, a body, a fallback."""

    label: str
    boxes: tuple[DiagramNode, ...]


@attrs.frozen(kw_only=True)
class DiagramNode:
    """One step."""

    kind: str
    name: str
    detail: str = ""
    processing: Mapping[str, object] | None = None
    """Structured output options after promotion, if they were requested."""
    lanes: tuple[Lane, ...] = ()

    @property
    def label(self) -> str:
        """Return name and function on one line."""
        what = " ".join(each for each in ("" if self.kind == "step" else self.kind, self.detail, self._note) if each)
        return f"{self.name}: {what}" if what else self.name

    @property
    def _note(self) -> str:
        said = self.processing
        return "" if said is None else f"[{said['structured_output']}: {_short(said['schema'])}]"


@attrs.frozen(kw_only=True)
class DiagramLayout:
    """A whole pipeline."""

    name: str
    boxes: tuple[DiagramNode, ...]


def _short(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST_LABEL else f"{line[: _LONGEST_LABEL - 1]}…"


# --- of a blueprint ---------------------------------------------------------------------------------------------


def drawing_of(model: BlueprintModel, flow: Flow | None = None) -> DiagramLayout:
    """Return a blueprint's diagram; with its flow, steps show promotion."""
    return DiagramLayout(name=model.name or model.source.file, boxes=_boxes(model, model.steps, flow))


def _boxes(model: BlueprintModel, steps: list[StepModel], flow: Flow | None) -> tuple[DiagramNode, ...]:
    return tuple(_node(model, step, flow) for step in steps)


def _node(model: BlueprintModel, step: StepModel, flow: Flow | None) -> DiagramNode:
    lanes = [Lane(label=branch.name, boxes=_boxes(model, branch.steps, flow)) for branch in step.branches]
    if step.default is not None:
        lanes.append(Lane(label="otherwise", boxes=_boxes(model, step.default, flow)))
    if step.body:
        lanes.append(Lane(label="", boxes=_boxes(model, step.body, flow)))
    child = model.imports[step.uses.name].child if step.uses and step.uses.name in model.imports else None
    if step.uses is not None and step.uses.kind == "import" and child is not None:
        lanes.append(Lane(label="", boxes=_boxes(child, child.steps, flow)))
    if step.fallback is not None:
        lanes.append(Lane(label="fallback", boxes=(_node(model, step.fallback, flow),)))
    lanes += [Lane(label=key, boxes=_boxes(model, steps, flow)) for key, steps in step.ways.items()]
    promoted = None if flow is None else _promoted(step, flow)
    return DiagramNode(kind=step.kind, name=step.name, detail=_detail(step), processing=promoted, lanes=tuple(lanes))


def _promoted(step: StepModel, flow: Flow) -> Mapping[str, object] | None:
    schema = flow.schema_of(step) if step.uses is not None else None
    said = step.value("processing")
    own = {key: entry.value for key, entry in said.items()} if isinstance(said, dict) else {}
    return None if schema is None else {"structured_output": "auto", **own, "schema": dict(schema)}


_SAID = (
    *("condition_expression", "condition", "iterable_input", "message", "exit_expression", "exit_condition"),
    *("seconds", "until", "event"),
)
_BEFORE = {
    "exit_expression": "until ",
    "exit_condition": "until ",
    "iterable_input": "over ",
    "message": "",
    "seconds": "⏲ ",
    "until": "⏲ ",
    "event": "✉ ",
}


def _detail(step: StepModel) -> str:
    if step.uses is not None:
        return step.uses.name if step.uses.kind == "python" else f"{step.uses.kind}s.{step.uses.name}"
    key = next((key for key in _SAID if key in step.entries), None)
    return "" if key is None else _BEFORE.get(key, "on ") + _short(str(step.value(key)))


# --- of a pipeline of Python ------------------------------------------------------------------------------------


def drawing_of_pipeline(pipeline: Pipeline) -> DiagramLayout:
    """Return the drawing of a pipeline made in Python."""
    return DiagramLayout(name=pipeline.title, boxes=tuple(_box_of(step, name) for step, name in pipeline.named_steps))


def _box_of(step: AnyStep, name: str) -> DiagramNode:
    if isinstance(step, Pipeline):
        lane = Lane(label="", boxes=tuple(_box_of(each, called) for each, called in step.named_steps))
        return DiagramNode(kind="pipeline", name=name, lanes=(lane,))
    return DiagramNode(kind=step.kind, name=name, detail=_short(_caption(step)), lanes=tuple(_lanes(step)))


def _caption(step: object) -> str:
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
        case Sleep():
            return f"⏲ {_text(step.seconds if step.until is None else step.until)}"
        case WaitFor():
            return f"✉ {step.event}"
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


def _flat(step: AnyStep) -> tuple[DiagramNode, ...]:
    if isinstance(step, Pipeline) and step.name is None:
        return tuple(_box_of(each, name) for each, name in step.named_steps)
    return (_box_of(step, step.name or "pipeline"),)


SCHEMA_VERSION = 1


def as_tree(drawing: DiagramLayout) -> str:
    """Lines, each step below its parent."""
    return "\n".join([drawing.name, *_branches(drawing.boxes, "")]) + "\n"


def _branches(boxes: tuple[DiagramNode, ...], indent: str) -> Iterator[str]:
    for number, box in enumerate(boxes, 1):
        last = number == len(boxes)
        yield f"{indent}{'└─' if last else '├─'} {box.label}"
        yield from _inside(box, indent + ("   " if last else "│  "))


def _inside(box: DiagramNode, indent: str) -> Iterator[str]:
    for number, lane in enumerate(box.lanes, 1):
        if not lane.label:
            yield from _branches(lane.boxes, indent)
            continue
        last = number == len(box.lanes)
        yield f"{indent}{'└─' if last else '├─'} [{lane.label}]"
        yield from _branches(lane.boxes, indent + ("   " if last else "│  "))


# --- Mermaid ----------------------------------------------------------------------------------------------------


class _Mermaid:
    def __init__(self) -> None:
        self._count = 0
        self.lines: list[str] = []

    def _new_id(self) -> str:
        self._count += 1
        return f"n{self._count}"

    def sequence(self, boxes: tuple[DiagramNode, ...], indent: str) -> None:
        before: str | None = None
        for box in boxes:
            mine = self._box(box, indent)
            if before is not None:
                self.lines.append(f"{indent}{before} --> {mine}")
            before = mine

    def _box(self, box: DiagramNode, indent: str) -> str:
        mine = self._new_id()
        if not box.lanes:
            opening, closing = ("{{", "}}") if box.kind in ("hitl", "question", "approval") else ("[", "]")
            self.lines.append(f"{indent}{mine}{opening}{_in_mermaid(box.label)}{closing}")
            return mine
        self.lines.append(f"{indent}subgraph {mine}[{_in_mermaid(box.label)}]")
        for lane in box.lanes:
            self._lane(lane, indent + "  ")
        self.lines.append(f"{indent}end")
        return mine

    def _lane(self, lane: Lane, indent: str) -> None:
        if not lane.label:
            self.sequence(lane.boxes, indent)
            return
        self.lines.append(f"{indent}subgraph {self._new_id()}[{_in_mermaid(lane.label)}]")
        self.sequence(lane.boxes, indent + "  ")
        self.lines.append(f"{indent}end")


def _in_mermaid(text: str) -> str:
    """Return a quoted label with Mermaid and HTML characters as entities."""
    kept = (each if each.isalnum() or each in " .,:_-/+=" else f"#{ord(each)};" for each in " ".join(text.split()))
    return f'"{"".join(kept)}"'


def as_mermaid(drawing: DiagramLayout) -> str:
    """Return a flowchart with a subgraph for each composite."""
    made = _Mermaid()
    made.sequence(drawing.boxes, "  ")
    return "\n".join(["flowchart TD", *made.lines]) + "\n"


# --- DOT --------------------------------------------------------------------------------------------------------


class _Dot:
    def __init__(self) -> None:
        self._count = 0
        self.lines: list[str] = []

    def _new_id(self) -> str:
        self._count += 1
        return f"n{self._count}"

    def sequence(self, boxes: tuple[DiagramNode, ...], indent: str) -> None:
        before: str | None = None
        for box in boxes:
            first, last = self._box(box, indent)
            if before is not None:
                self.lines.append(f"{indent}{before} -> {first};")
            before = last

    def _box(self, box: DiagramNode, indent: str) -> tuple[str, str]:
        """Return the entry and exit nodes of edges."""
        mine = self._new_id()
        if not box.lanes:
            self.lines.append(f"{indent}{mine} [label={_in_dot(box.label)}];")
            return mine, mine
        self.lines.append(f"{indent}subgraph cluster_{mine} {{")
        self.lines.append(f"{indent}  label={_in_dot(box.label)};")
        self.lines.append(f"{indent}  {mine} [shape=point];")
        for lane in box.lanes:
            inner = self._new_id()
            self.lines.append(f"{indent}  subgraph cluster_{inner} {{")
            self.lines.append(f"{indent}    label={_in_dot(lane.label)};")
            self.sequence(lane.boxes, indent + "    ")
            self.lines.append(f"{indent}  }}")
        self.lines.append(f"{indent}}}")
        return mine, mine


def _in_dot(text: str) -> str:
    escaped = " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def as_dot(drawing: DiagramLayout) -> str:
    """Return a digraph with a cluster for each composite."""
    made = _Dot()
    made.sequence(drawing.boxes, "  ")
    head = ["digraph pipeline {", f"  label={_in_dot(drawing.name)};", "  node [shape=box];"]
    return "\n".join([*head, *made.lines, "}"]) + "\n"


# --- JSON -------------------------------------------------------------------------------------------------------


def as_json(drawing: DiagramLayout) -> str:
    """One document."""
    steps = [_as_data(box) for box in drawing.boxes]
    document = {"schema_version": SCHEMA_VERSION, "name": drawing.name, "steps": steps}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _as_data(box: DiagramNode) -> dict[str, object]:
    data: dict[str, Any] = {"name": box.name, "kind": box.kind}
    if box.detail:
        data["detail"] = box.detail
    if box.processing is not None:
        data["processing"] = dict(box.processing)
    if box.lanes:
        data["inside"] = [{"label": lane.label, "steps": [_as_data(each) for each in lane.boxes]} for lane in box.lanes]
    return data


# --- SVG diagrams -------------------------------------------------------------------------------------------------


_LETTER = 7.2
_LINE = 34
_GAP = 14
_PAD = 12
_LONGEST = 70


@attrs.frozen
class _LaidOutNode:
    """Node or lane with its size and contents."""

    label: str
    width: float
    height: float
    parts: tuple[tuple[float, float, _LaidOutNode], ...] = ()
    is_lane: bool = False


def _width(text: str) -> float:
    return len(_cut(text)) * _LETTER + 2 * _PAD


def _cut(text: str) -> str:
    line = "".join(each if each.isprintable() else "�" for each in " ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _box(box: DiagramNode) -> _LaidOutNode:
    if not box.lanes:
        return _LaidOutNode(box.label, _width(box.label), _LINE)
    lanes = [_lane(lane) for lane in box.lanes]
    parts: list[tuple[float, float, _LaidOutNode]] = []
    at = float(_PAD)
    for lane in lanes:
        parts.append((at, _LINE, lane))
        at += lane.width + _GAP
    height = _LINE + max(lane.height for lane in lanes) + _PAD
    return _LaidOutNode(box.label, max(at - _GAP + _PAD, _width(box.label)), height, tuple(parts))


def _lane(lane: Lane) -> _LaidOutNode:
    inner = [_box(box) for box in lane.boxes]
    at = float(_LINE if lane.label else 0)
    parts: list[tuple[float, float, _LaidOutNode]] = []
    for box in inner:
        parts.append((0.0, at, box))
        at += box.height + _GAP
    width = max([*(box.width for box in inner), _width(lane.label) if lane.label else 0])
    centered = tuple(((width - box.width) / 2, y, box) for _, y, box in parts)
    return _LaidOutNode(lane.label, width, max(0.0, at - _GAP), centered, is_lane=True)


def _svg_boxes(placed: _LaidOutNode, x: float, y: float) -> Iterator[str]:
    if not placed.is_lane:
        fill = "#f6f8fa" if placed.parts else "#ffffff"
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{placed.width:.1f}" height="{placed.height:.1f}" rx="6" '
            f'fill="{fill}" stroke="#57606a"/>'
        )
    if placed.label:
        style = ' font-style="italic"' if placed.is_lane else ""
        yield f'<text x="{x + _PAD:.1f}" y="{y + 22:.1f}"{style}>{escape(_cut(placed.label))}</text>'
    before: tuple[float, float] | None = None
    for dx, dy, part in placed.parts:
        if placed.is_lane and before is not None:
            yield from _arrow(before[0], before[1], y + dy)
        yield from _svg_boxes(part, x + dx, y + dy)
        before = (x + dx + part.width / 2, y + dy + part.height)


def _arrow(x: float, start: float, end: float) -> Iterator[str]:
    yield f'<line x1="{x:.1f}" y1="{start:.1f}" x2="{x:.1f}" y2="{end:.1f}" stroke="#57606a"/>'


def as_svg(drawing: DiagramLayout) -> str:
    """Return the picture; it needs no program to be laid out."""
    placed = _lane(Lane(label=drawing.name, boxes=drawing.boxes))
    width, height = placed.width + 2 * _PAD, placed.height + 2 * _PAD
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="12">'
    )
    return "\n".join([head, *_svg_boxes(placed, _PAD, _PAD), "</svg>"]) + "\n"
