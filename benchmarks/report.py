"""A benchmark as a Markdown table, and as JSON."""

import json
import os
import platform
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.driver import Outcome
from benchmarks.figures import Figure

HEADER = "| work | contender | best | median | spread | ratio |\n|---|---|--:|--:|--:|--:|"


def table(outcome: Outcome) -> str:
    """Every figure with its noise and its ratio to the yardstick; below it, who could not take part."""
    lines = [HEADER]
    for title, group in groupby(outcome.figures, key=lambda figure: figure.work.title):
        lines += _rows(title, list(group))
    for name, reason in outcome.absent.items():
        lines.append(f"\n**{name}** did not take part: {reason}")
    return "\n".join(lines)


def _rows(title: str, figures: list[Figure]) -> Iterator[str]:
    yardstick = next((figure for figure in figures if figure.contender == figure.work.yardstick), None)
    for place, figure in enumerate(figures):
        name = f"{figure.contender} (with {figure.work.size:,})" if figure.divided else figure.contender
        cells = (title if place == 0 else "", name, *_cells(figure, yardstick))
        yield f"| {' | '.join(cells)} |"


def _cells(figure: Figure, yardstick: Figure | None) -> tuple[str, str, str, str]:
    if figure.error is not None or not figure.each:
        return figure.error or "no sample", "", "", ""
    ratio = figure.ratio_to(yardstick)
    return (
        figure.work.shown(figure.best),
        figure.work.shown(figure.median),
        f"{figure.spread:.0%}" if len(figure.each) > 1 else "one sample",
        "" if ratio is None else f"{ratio:.2f}",
    )


def versions(outcome: Outcome) -> str:
    """Who was measured in which version, in one line."""
    packages: dict[str, str] = {}
    for of_one in outcome.versions.values():
        packages |= of_one
    return ", ".join(
        f"{name} {version}" for name, version in sorted(packages.items(), key=lambda each: each[0].lower())
    )


def legend(clock: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """How to read the table, and where its figures come from."""
    return (
        f"\nBest and median of interleaved repetitions by the {clock} clock (durable works always by the wall clock); "
        "spread is (max - min) / median; the ratio compares best with best, and more than 1 costs more than the "
        f"contender with ratio 1.00.\n\n{place(before, after)}"
    )


def place(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The machine, and how busy it was."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    load = f"load {before['load'][0]:.1f} before and {after['load'][0]:.1f} after" if before["load"] else "load unknown"
    return f"{before['cores']} cores ({before['processor']}), {before['system']}, {python}, {load}."


# --- JSON -------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Where the figures come from, and how busy it was there."""
    return {
        "system": platform.system(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
    }


def as_json(outcome: Outcome, *, clock: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """Everything that was measured, sample by sample."""
    document = {
        "taken": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "clock": clock,
        "machine": before,
        "load_after": after["load"],
        "versions": outcome.versions,
        "absent": outcome.absent,
        "figures": [_record(figure) for figure in outcome.figures],
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def _record(figure: Figure) -> dict[str, Any]:
    work = figure.work
    record: dict[str, Any] = {
        "work": work.name,
        "title": work.title,
        "unit": work.unit,
        "size": work.size,
        "rounds": work.rounds,
        "contender": figure.contender,
        "each": figure.each,
        "error": figure.error,
    }
    if figure.each:
        record |= {"best": figure.best, "median": figure.median, "spread": figure.spread}
    return record


def save(document: str, directory: Path) -> Path:
    """Write the results under the time they were taken, and as the latest."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    for target in (path, directory / "latest.json"):
        target.write_text(document, encoding="utf-8")
    return path


def publish(document: str, directory: Path) -> Path:
    """Keep the results in the repository: the figures of README are those of the newest file."""
    path = directory / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(document, encoding="utf-8")
    return path
