"""Small SVG charts: lines on logarithmic axes, and panels of bars. Pure: text comes out."""

import math
from collections.abc import Iterable, Iterator
from html import escape

import attrs

OURS_COLOR, OTHERS = "#d9480f", ("#495057", "#1971c2", "#2f9e44", "#9c36b5")
FRAME, FAINT, INK = "#adb5bd", "#e9ecef", "#212529"
WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 78, 20, 44, 56


@attrs.frozen
class Line:
    """One line of a chart."""

    label: str
    points: tuple[tuple[float, float], ...]
    ours: bool = False


@attrs.frozen
class Bar:
    """One bar of a panel; a length that is smaller is better."""

    label: str
    length: float
    shown: str
    ours: bool = False


# --- elements ---------------------------------------------------------------------------------------------------


def _svg(width: float, height: float, parts: Iterable[str]) -> str:
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
    )
    ground = f'<rect width="{width:g}" height="{height:g}" fill="white"/>'
    return "\n".join((opening, ground, *parts, "</svg>")) + "\n"


def _text(x: float, y: float, text: str, *, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, color: str = FAINT) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'


# --- lines ------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Scale:
    """A logarithmic axis, from whole power of ten to whole power of ten."""

    low: int
    high: int
    begin: float
    end: float

    @classmethod
    def over(cls, values: Iterable[float], begin: float, end: float) -> "_Scale":
        logs = [math.log10(value) for value in values if value > 0] or [0.0]
        low, high = math.floor(min(logs) + 1e-9), math.ceil(max(logs) - 1e-9)
        return cls(low, max(high, low + 1), begin, end)

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> Iterator[tuple[float, str]]:
        for power in range(self.low, self.high + 1):
            yield self.at(10.0**power), f"{10.0**power:,.0f}" if power >= 0 else f"{10.0**power:g}"


def line_chart(title: str, x_axis: str, y_axis: str, lines: list[Line]) -> str:
    """Lines on two logarithmic axes, with a dotted one beside them that grows linearly."""
    points = [point for line in lines for point in line.points]
    across = _Scale.over((x for x, _ in points), LEFT, WIDTH - RIGHT)
    up = _Scale.over((y for _, y in points), HEIGHT - BOTTOM, TOP)
    parts = [_text(LEFT, 24, title, more='font-size="16" font-weight="600"')]
    parts += _grid(across, up, x_axis, y_axis)
    parts += _linear(across, up, lines)
    for place, (line, color) in enumerate(zip(lines, _colors(lines), strict=True)):
        parts += _drawn(line, color, across, up)
        parts.append(_text(LEFT + 12, TOP + 18 + 16 * place, f"● {line.label}", more=f'fill="{color}"'))
    parts.append(_text(LEFT + 12, TOP + 18 + 16 * len(lines), "⋯ linear growth", more='fill="#868e96"'))
    return _svg(WIDTH, HEIGHT, parts)


def _colors(lines: list[Line]) -> list[str]:
    """One for each line; the first of ours stands out."""
    first = next((place for place, line in enumerate(lines) if line.ours), None)
    return [OURS_COLOR if place == first else OTHERS[place % len(OTHERS)] for place in range(len(lines))]


def _grid(across: _Scale, up: _Scale, x_axis: str, y_axis: str) -> Iterator[str]:
    for x, label in across.ticks():
        yield _rule(x, up.begin, x, up.end)
        yield _text(x, up.begin + 18, label, anchor="middle")
    for y, label in up.ticks():
        yield _rule(across.begin, y, across.end, y)
        yield _text(across.begin - 8, y + 4, label, anchor="end")
    yield _rule(across.begin, up.begin, across.end, up.begin, FRAME)
    yield _text((across.begin + across.end) / 2, HEIGHT - 12, x_axis, anchor="middle")
    yield _text(
        14, (TOP + HEIGHT - BOTTOM) / 2, y_axis, anchor="middle", more=f'transform="rotate(-90 14 {HEIGHT / 2 - 6:g})"'
    )


def _linear(across: _Scale, up: _Scale, lines: list[Line]) -> Iterator[str]:
    """Where the last point of ours would come from, had the cost grown linearly."""
    for line in lines[-1:]:
        x, y = line.points[-1]
        least_x = max(line.points[0][0], x * 10.0**up.low / y)
        begin, end = (across.at(least_x), up.at(y * least_x / x)), (across.at(x), up.at(y))
        yield (
            f'<line x1="{begin[0]:.1f}" y1="{begin[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
            'stroke="#868e96" stroke-dasharray="2 4"/>'
        )


def _drawn(line: Line, color: str, across: _Scale, up: _Scale) -> Iterator[str]:
    places = [(across.at(x), up.at(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>'


# --- bars -------------------------------------------------------------------------------------------------------

PANEL_WIDTH, NAME_WIDTH, FIGURE_WIDTH, ROW = 480, 160, 90, 20


def bar_panels(title: str, panels: dict[str, list[Bar]], note: str) -> str:
    """Panels of horizontal bars in two columns; the lengths of each panel compare on a logarithmic scale."""
    parts = [_text(16, 28, title, more='font-size="17" font-weight="600"')]
    heights = [48.0, 48.0]
    for name, bars in panels.items():
        column = heights.index(min(heights))
        parts += _panel(name, bars, 16 + column * (PANEL_WIDTH + 16), heights[column])
        heights[column] += 44 + ROW * len(bars)
    bottom = max(heights)
    parts.append(_text(16, bottom + 4, note, more='fill="#868e96" font-size="11"'))
    return _svg(2 * PANEL_WIDTH + 48, bottom + 20, parts)


def _panel(name: str, bars: list[Bar], left: float, top: float) -> Iterator[str]:
    yield _text(left, top + 14, name, more='font-weight="600"')
    least = min((bar.length for bar in bars), default=1.0) / 2
    most = max((bar.length for bar in bars), default=2.0)
    room = PANEL_WIDTH - NAME_WIDTH - FIGURE_WIDTH
    for place, bar in enumerate(bars):
        y = top + 24 + ROW * place
        length = room * math.log(bar.length / least) / math.log(most / least)
        color = OURS_COLOR if bar.ours else OTHERS[0]
        yield _text(left + NAME_WIDTH - 8, y + 12, bar.label, anchor="end", more='font-size="11"')
        yield f'<rect x="{left + NAME_WIDTH:.1f}" y="{y:.1f}" width="{length:.1f}" height="14" rx="2" fill="{color}"/>'
        yield _text(left + NAME_WIDTH + length + 6, y + 12, bar.shown, more='font-size="11"')
