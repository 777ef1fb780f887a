"""The chart for the front page: a few works, everybody who did them."""

from pathlib import Path

from benchmarks.charts import Bar, bar_panels
from benchmarks.driver import Outcome
from benchmarks.figures import Figure
from benchmarks.roster import OURS

TITLES = (
    "chain of 100 steps, per step",
    "1,000 parallel branches, per branch",
    "1,000 concurrent runs of 3 steps, runs",
    "durable chain of 100 steps on SQLite, per step",
)
LEFT_OUT = ("raw trio, awaited send", "raw asyncio", "raw anyio on asyncio", f"{OURS} in asyncio, steps that wait")
NOTE = "Best of interleaved repetitions on one machine; the scale is logarithmic; shorter is better."


def panels(figures: tuple[Figure, ...]) -> dict[str, list[Bar]]:
    """The bars of each chosen work, best first."""
    found: dict[str, list[Bar]] = {}
    for title in TITLES:
        bars = [_bar(figure) for figure in figures if figure.work.title == title and _belongs(figure)]
        if bars:
            found[title] = sorted(bars, key=lambda bar: bar.length)
    return found


def _belongs(figure: Figure) -> bool:
    return bool(figure.each) and figure.contender not in LEFT_OUT


def _bar(figure: Figure) -> Bar:
    ours = figure.contender.startswith(OURS)
    return Bar(figure.contender, figure.best, figure.work.shown(figure.best), ours=ours)


def draw(outcome: Outcome, images: Path) -> Path:
    """Write the chart."""
    images.mkdir(parents=True, exist_ok=True)
    path = images / "benchmarks.svg"
    path.write_text(bar_panels("What it costs", panels(outcome.figures), NOTE), encoding="utf-8")
    return path
