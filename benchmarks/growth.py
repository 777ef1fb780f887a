"""How cost grows with size: one plot each, linear or better."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from benchmarks.charts import Line, line_chart
from benchmarks.driver import Outcome, benchmark
from benchmarks.figures import Figure
from benchmarks.roster import OURS, YARDSTICK, Contender
from benchmarks.works import Clock, Work


@attrs.frozen(kw_only=True)
class Growth:
    """One plot: the same works at growing sizes."""

    name: str
    title: str
    axis: str
    """What grows."""
    works: dict[str, str]
    """The works by name, and what each is called in the plot."""
    sizes: tuple[int, ...]
    clock: Clock | None = None
    repetitions: int = 3

    def points(self, share: float = 1.0) -> list[Work]:
        """Every work at every size, smallest first."""
        sizes = sorted({max(1, int(size * share)) for size in self.sizes})
        return [
            Work(
                name=name,
                title=f"{self.title}: {size:,} {self.axis}",
                unit="ms",
                size=size,
                rounds=max(1, min(20, 2_000 // size)) if share == 1.0 else 1,
                repetitions=self.repetitions if share == 1.0 else 1,
                clock=self.clock,
            )
            for size in sizes
            for name in self.works
        ]


GROWTHS = (
    Growth(
        name="chain",
        title="A chain of steps",
        axis="steps",
        works={"chain": ""},
        sizes=(10, 30, 100, 300, 1_000, 3_000, 10_000),
    ),
    Growth(
        name="nesting", title="Pipelines in pipelines", axis="levels", works={"nesting": ""}, sizes=(1, 3, 10, 30, 100)
    ),
    Growth(
        name="undoing",
        title="Compensations in one failed run",
        axis="compensations",
        works={"undone": ""},
        sizes=(10, 30, 100, 300, 1_000, 3_000),
        clock="cpu",
    ),
    Growth(
        name="payload",
        title="A text through ten steps",
        axis="bytes",
        works={"payload": "in memory", "durable_payload": "durable"},
        sizes=(1_000, 10_000, 100_000, 1_000_000, 10_000_000),
        clock="wall",
    ),
    Growth(
        name="history",
        title="Going on with a stored run",
        axis="records",
        works={"resume": "resume", "read": "read the state"},
        sizes=(10, 100, 1_000, 10_000, 100_000),
        clock="wall",
    ),
    Growth(
        name="text",
        title="Reading broken JSON",
        axis="characters",
        works={"read_broken": ""},
        sizes=(1_000, 10_000, 100_000),
    ),
)
SHOWN = (YARDSTICK, OURS, "json_repair")


def measure(
    growth: Growth, contenders: tuple[Contender, ...], *, clock: str, share: float, tell: Callable[[str], None]
) -> Outcome:
    """All points of one plot, asked of whoever is shown in it."""
    shown = [contender for contender in contenders if contender.name in SHOWN]
    return benchmark(shown, growth.points(share), clock=clock, tell=tell)


def lines(growth: Growth, figures: tuple[Figure, ...]) -> list[Line]:
    """What is drawn: for each contender and work, milliseconds over size."""
    found: dict[str, list[tuple[float, float]]] = {}
    for figure in figures:
        if figure.each:
            label = ", ".join(filter(None, (figure.contender, growth.works[figure.work.name])))
            found.setdefault(label, []).append((figure.work.size, figure.best * figure.work.size * 1e3))
    return [Line(label, tuple(points), ours=label.startswith(OURS)) for label, points in found.items()]


def exponent(points: tuple[tuple[float, float], ...]) -> float | None:
    """The power of the size that the cost follows over its upper half: 1 is linear."""
    upper = points[-2:] if len(points) < 4 else points[-3:]
    (x0, y0), (x1, y1) = upper[0], upper[-1]
    return math.log(y1 / y0) / math.log(x1 / x0) if x1 > x0 and min(y0, y1) > 0 else None


def draw(growth: Growth, outcome: Outcome, images: Path) -> dict[str, Any]:
    """Write the plot, and return the data behind it."""
    drawn = lines(growth, outcome.figures)
    images.mkdir(parents=True, exist_ok=True)
    svg = line_chart(growth.title, growth.axis, "milliseconds", drawn)
    (images / f"growth-{growth.name}.svg").write_text(svg, encoding="utf-8")
    errors = {f"{figure.contender}, {figure.work.title}": figure.error for figure in outcome.figures if figure.error}
    return {
        "title": growth.title,
        "axis": growth.axis,
        "lines": {line.label: {"points": line.points, "exponent": exponent(line.points)} for line in drawn},
        "errors": errors | outcome.absent,
    }


def table(data: dict[str, Any]) -> str:
    """The plots in words: smallest, largest, and how the cost grows."""
    rows = ["| growth | of | smallest | largest | cost follows size to the power of |", "|---|---|--:|--:|--:|"]
    for growth in data["plots"].values():
        for label, line in growth["lines"].items():
            ends = [f"{_shown(y)} ms at {x:,} {growth['axis']}" for x, y in (line["points"][0], line["points"][-1])]
            power = "" if line["exponent"] is None else f"{line['exponent']:.2f}"
            rows.append(f"| {growth['title']} | {label} | {' | '.join(ends)} | {power} |")
        rows += [f"| {growth['title']} | {name} | {error} | | |" for name, error in growth["errors"].items()]
    return "\n".join(rows)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def save(data: dict[str, Any], images: Path) -> Path:
    """Write the data behind the plots beside them."""
    path = images / "growth.json"
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8")
    return path
