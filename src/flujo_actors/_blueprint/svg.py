"""A pipeline as an SVG picture: boxes below one another, lanes beside one another, boxes inside boxes."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

import attrs

from .boxes import Box, Drawing, Lane

_LETTER = 7.2
_LINE = 34
_GAP = 14
_PAD = 12
_LONGEST = 70


@attrs.frozen
class _Placed:
    """A box or a lane with its size, and what is inside it."""

    label: str
    width: float
    height: float
    parts: tuple[tuple[float, float, _Placed], ...] = ()
    is_lane: bool = False


def _width(text: str) -> float:
    return len(_cut(text)) * _LETTER + 2 * _PAD


def _cut(text: str) -> str:
    line = "".join(each if each.isprintable() else "�" for each in " ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _box(box: Box) -> _Placed:
    if not box.lanes:
        return _Placed(box.label, _width(box.label), _LINE)
    lanes = [_lane(lane) for lane in box.lanes]
    parts: list[tuple[float, float, _Placed]] = []
    at = float(_PAD)
    for lane in lanes:
        parts.append((at, _LINE, lane))
        at += lane.width + _GAP
    height = _LINE + max(lane.height for lane in lanes) + _PAD
    return _Placed(box.label, max(at - _GAP + _PAD, _width(box.label)), height, tuple(parts))


def _lane(lane: Lane) -> _Placed:
    inner = [_box(box) for box in lane.boxes]
    at = float(_LINE if lane.label else 0)
    parts: list[tuple[float, float, _Placed]] = []
    for box in inner:
        parts.append((0.0, at, box))
        at += box.height + _GAP
    width = max([*(box.width for box in inner), _width(lane.label) if lane.label else 0])
    centered = tuple(((width - box.width) / 2, y, box) for _, y, box in parts)
    return _Placed(lane.label, width, max(0.0, at - _GAP), centered, is_lane=True)


def _drawn(placed: _Placed, x: float, y: float) -> Iterator[str]:
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
        yield from _drawn(part, x + dx, y + dy)
        before = (x + dx + part.width / 2, y + dy + part.height)


def _arrow(x: float, start: float, end: float) -> Iterator[str]:
    yield f'<line x1="{x:.1f}" y1="{start:.1f}" x2="{x:.1f}" y2="{end:.1f}" stroke="#57606a"/>'


def as_svg(drawing: Drawing) -> str:
    """The picture; it needs no program to be laid out."""
    placed = _lane(Lane(label=drawing.name, boxes=drawing.boxes))
    width, height = placed.width + 2 * _PAD, placed.height + 2 * _PAD
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="12">'
    )
    return "\n".join([head, *_drawn(placed, _PAD, _PAD), "</svg>"]) + "\n"
