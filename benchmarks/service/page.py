"""Section of docs/benchmarks/service.md between two markers, and its chart. Pure but for `write`."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.charts import Bar, bar_panels
from benchmarks.roster import OURS
from benchmarks.service.match import STORES, Match
from benchmarks.service.verdict import CPU, MEASURES, Figure, figures, first_of, verdicts

BEGIN = "<!-- Written by `make bench-service`: run that instead of changing this. -->"
END = "<!-- Here ends what `make bench-service` wrote. -->"
CHART = "service.svg"
TITLES = [measure.title for measure in MEASURES]
NOTE = (
    "Processor time of the desk's process for one ticket, 25 at a time, best round; the scale is logarithmic; "
    "shorter is better."
)


def section(match: Match, *, how: str, place: str) -> str:
    """Everything between the markers."""
    found = figures(match.samples)
    parts = (
        f"{how}\n\n{place}\n\nVersions: {versions(match)}.",
        f"![CPU per ticket](../images/{CHART})",
        table(found),
        *(f"**{who}** did not take part: {reason}" for who, reason in match.absent.items()),
        pieces(match),
        f"First place, and how much more the next one needs:\n\n{firsts(found)}",
        f"The goals, by CPU per ticket of the best rounds:\n\n{goals(found)}",
    )
    return "\n\n".join(part for part in parts if part)


def table(found: Sequence[Figure]) -> str:
    """A row for each desk on each store, awaited and watched; a column for each measure."""
    shown = {(each.store, each.way, each.desk, each.measure.title): each.shown for each in found}
    rows = sorted({key[:3] for key in shown}, key=lambda row: (STORES.index(row[0]), row[1], row[2] != OURS, row[2]))
    return _table(["store", "", "desk"], [(row, [shown.get((*row, title), "") for title in TITLES]) for row in rows])


def firsts(found: Sequence[Figure]) -> str:
    """Who needs least of what, on each store, awaited and watched."""
    groups: dict[tuple[str, str], dict[str, list[Figure]]] = {}
    for each in found:
        groups.setdefault((each.store, each.way), {}).setdefault(each.measure.title, []).append(each)
    places = sorted(groups, key=lambda place: STORES.index(place[0]))
    rows = [(place, [_first(groups[place].get(title, ())) for title in TITLES]) for place in places]
    return _table(["store", ""], rows)


def _first(group: Iterable[Figure]) -> str:
    found = first_of(group)
    return found.said if found else ""


def _table(head: Sequence[str], rows: Iterable[tuple[Sequence[str], Sequence[str]]]) -> str:
    lines = [(*head, *TITLES), ("---",) * len(head) + ("--:",) * len(TITLES)]
    lines += [(*names, *cells) for names, cells in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pieces(match: Match) -> str:
    """How much of what the models said a watcher saw of one ticket, so that nobody is fast by showing less."""
    seen = {each.desk: each.pieces / each.case.tickets for each in match.samples if each.case.watched}
    told = ", ".join(f"{desk} {count:.0f}" for desk, count in seen.items())
    return f"Pieces of answers that a watcher saw of one ticket: {told}." if seen else ""


def goals(found: Iterable[Figure]) -> str:
    """The goals beside what was seen."""
    lines = ["| goal | seen | |", "|---|--:|---|"]
    for each in verdicts(found):
        seen = "" if each.ratio is None else f"{each.ratio:.2f} × {each.goal.beside}"
        lines.append(f"| {each.goal.title} | {seen} | {each.said} |")
    return "\n".join(lines)


def versions(match: Match) -> str:
    """What was measured in which release, in one line."""
    packages: dict[str, str] = {}
    for of_one in match.versions.values():
        packages |= of_one
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))


def chart(found: Iterable[Figure]) -> str:
    """CPU per ticket, a panel for each store and way."""
    shown = [each for each in found if each.measure == CPU]
    ordered = sorted(shown, key=lambda each: (each.store, each.way, each.best))
    panels = {
        f"{'in memory' if store == 'memory' else f'on {store}'}, {way}": [_bar(each) for each in group]
        for (store, way), group in groupby(ordered, key=lambda each: (each.store, each.way))
    }
    return bar_panels("A support desk: CPU per ticket", panels, NOTE)


def _bar(figure: Figure) -> Bar:
    return Bar(figure.desk, figure.best, figure.measure.show(figure.best), ours=figure.desk == OURS)


def replaced(page: str, text: str) -> str:
    """The page with this between its markers."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the page has no place for it: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def write(match: Match, docs: Path, *, how: str, place: str) -> Iterator[Path]:
    """Write the section and the chart; where, as it is done."""
    page, image = docs / "benchmarks" / "service.md", docs / "images" / CHART
    image.write_text(chart(figures(match.samples)), encoding="utf-8")
    yield image
    page.write_text(replaced(page.read_text(encoding="utf-8"), section(match, how=how, place=place)), encoding="utf-8")
    yield page
