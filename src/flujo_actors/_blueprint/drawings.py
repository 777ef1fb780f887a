"""Drawings of nested boxes as text: a tree, Mermaid, DOT, JSON. Whatever a step is called, it breaks none of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .boxes import Box, Drawing, Lane

SCHEMA_VERSION = 1


def as_tree(drawing: Drawing) -> str:
    """Lines, each step below its parent."""
    return "\n".join([drawing.name, *_branches(drawing.boxes, "")]) + "\n"


def _branches(boxes: tuple[Box, ...], indent: str) -> Iterator[str]:
    for number, box in enumerate(boxes, 1):
        last = number == len(boxes)
        yield f"{indent}{'└─' if last else '├─'} {box.label}"
        yield from _inside(box, indent + ("   " if last else "│  "))


def _inside(box: Box, indent: str) -> Iterator[str]:
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

    def sequence(self, boxes: tuple[Box, ...], indent: str) -> None:
        before: str | None = None
        for box in boxes:
            mine = self._box(box, indent)
            if before is not None:
                self.lines.append(f"{indent}{before} --> {mine}")
            before = mine

    def _box(self, box: Box, indent: str) -> str:
        mine = self._new_id()
        if not box.lanes:
            opening, closing = ("{{", "}}") if box.kind in ("hitl", "question") else ("[", "]")
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
    """A label in quotes, with every character that Mermaid or a page could read as something else by its number."""
    kept = (each if each.isalnum() or each in " .,:_-/+=" else f"#{ord(each)};" for each in " ".join(text.split()))
    return f'"{"".join(kept)}"'


def as_mermaid(drawing: Drawing) -> str:
    """A flowchart with a subgraph for each composite."""
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

    def sequence(self, boxes: tuple[Box, ...], indent: str) -> None:
        before: str | None = None
        for box in boxes:
            first, last = self._box(box, indent)
            if before is not None:
                self.lines.append(f"{indent}{before} -> {first};")
            before = last

    def _box(self, box: Box, indent: str) -> tuple[str, str]:
        """What edges go to, and come from."""
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


def as_dot(drawing: Drawing) -> str:
    """A digraph with a cluster for each composite."""
    made = _Dot()
    made.sequence(drawing.boxes, "  ")
    head = ["digraph pipeline {", f"  label={_in_dot(drawing.name)};", "  node [shape=box];"]
    return "\n".join([*head, *made.lines, "}"]) + "\n"


# --- JSON -------------------------------------------------------------------------------------------------------


def as_json(drawing: Drawing) -> str:
    """One document."""
    steps = [_as_data(box) for box in drawing.boxes]
    document = {"schema_version": SCHEMA_VERSION, "name": drawing.name, "steps": steps}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _as_data(box: Box) -> dict[str, object]:
    data: dict[str, Any] = {"name": box.name, "kind": box.kind}
    if box.detail:
        data["detail"] = box.detail
    if box.lanes:
        data["inside"] = [{"label": lane.label, "steps": [_as_data(each) for each in lane.boxes]} for lane in box.lanes]
    return data
