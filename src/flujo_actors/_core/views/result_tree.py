"""Finished run as a tree with timings, in plain text or HTML.

More than eight siblings of one name are one line with counts, with the failed ones below it.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs

from .record_summaries import success_note
from .run_tree import CROWD, one_line

if TYPE_CHECKING:
    from ..outcomes import PipelineResult, StepResult

BAR_WIDTH = 24
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FAILURES_SHOWN = 3
_NOTE_CHARS = 200

Paint: TypeAlias = Callable[[str, str], str]
"""`paint(style, text)` returns styled text; styles are `good`, `bad`, `ask` and `dim`."""

_ANSI = {"good": "\x1b[32m", "bad": "\x1b[31m", "ask": "\x1b[33m", "dim": "\x1b[2m"}


def _unpainted(style: str, text: str) -> str:
    return text


def in_color(style: str, text: str) -> str:
    """Return the text in a terminal's colors."""
    return f"{_ANSI[style]}{text}\x1b[0m" if text else text


@attrs.frozen(kw_only=True)
class _Row:
    """One line of the picture."""

    lead: str
    """Text before the mark."""
    good: bool
    name: str
    latency_s: float
    note: str

    @property
    def width(self) -> int:
        return len(self.lead) + 2 + len(self.name)


def drawn(result: PipelineResult, *, paint: Paint = _unpainted) -> str:
    """Return the run, one line per step with outcome, latency and notes."""
    total = sum(step.latency_s for step in result.step_history)
    rows = list(_rows(result.step_history, ""))
    width = max((row.width for row in rows), default=0)
    head = f"{result.status} in {shown_time(total)}{_spent(result)}"
    return "\n".join([head, *(_line(row, width, total, paint) for row in rows)])


def as_html(result: PipelineResult) -> str:
    """Return the tree for a notebook, with all texts escaped."""
    return f'<pre style="line-height:1.2">{html.escape(drawn(result))}</pre>'


def _spent(result: PipelineResult) -> str:
    tokens = f", {result.total_tokens:,} tokens" if result.total_tokens else ""
    return f"{tokens}, {shown_cost(result.total_cost_usd)}" if result.total_cost_usd else tokens


def _rows(steps: Sequence[StepResult], indent: str) -> Iterator[_Row]:
    groups = list(_groups(steps))
    for place, group in enumerate(groups):
        last = place == len(groups) - 1
        lead, below = indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  ")
        if len(group) > CROWD:
            yield from _collapsed(group, lead, below)
        else:
            yield _row(group[0], lead)
            yield from _rows(group[0].step_history, below)


def _groups(steps: Sequence[StepResult]) -> Iterator[list[StepResult]]:
    """Yield single steps, and many items of a map together."""
    sizes: dict[str, list[StepResult]] = {}
    for step in steps:
        sizes.setdefault(_kind_of(step), []).append(step)
    for step in steps:
        alike = sizes[_kind_of(step)]
        if len(alike) <= CROWD:
            yield [step]
        elif step is alike[0]:
            yield alike


def _kind_of(step: StepResult) -> str:
    """Return the common name of equal siblings: `each[3]` and `each[4]` share one."""
    name, bracket, number = step.name.rpartition("[")
    return name if bracket and number[:-1].isdigit() else step.name


def _collapsed(group: list[StepResult], lead: str, below: str) -> Iterator[_Row]:
    failed = [step for step in group if not step.success]
    counts = f"✓ {len(group) - len(failed):,}" + (f"  ✗ {len(failed):,}" if failed else "")
    longest = max(step.latency_s for step in group)
    name = f"{one_line(_kind_of(group[0]))} × {len(group):,}"
    yield _Row(lead=lead, good=not failed, name=name, latency_s=longest, note=counts)
    for step in failed[:_FAILURES_SHOWN]:
        yield _row(step, f"{below}└─ " if step is failed[:_FAILURES_SHOWN][-1] else f"{below}├─ ")


def _row(step: StepResult, lead: str) -> _Row:
    note = (step.feedback or "") if not step.success else success_note(dict(step.metadata), step.attempts)
    return _Row(
        lead=lead,
        good=step.success,
        name=one_line(step.name),
        latency_s=step.latency_s,
        note=one_line(note)[:_NOTE_CHARS],
    )


def _line(row: _Row, width: int, total: float, paint: Paint) -> str:
    mark = paint("good", "✓") if row.good else paint("bad", "✗")
    bar = _bar(row.latency_s / total if total else 0.0)
    pad = " " * (width - row.width)
    line = f"{row.lead}{mark} {row.name}{pad}  {shown_time(row.latency_s):>7}  {bar}  {paint('dim', row.note)}"
    return line.rstrip()


def _bar(share: float) -> str:
    eighths = max(1, round(min(share, 1.0) * BAR_WIDTH * 8))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()).ljust(BAR_WIDTH)


def shown_time(seconds: float) -> str:
    """Return a duration for display."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)}:{int(seconds // 60) % 60:02}:{int(seconds) % 60:02}"
    if seconds >= 60:
        return f"{int(seconds // 60)}:{int(seconds) % 60:02}"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "< 1 ms"


def shown_cost(dollars: float) -> str:
    """Return a dollar amount for display."""
    return f"{dollars:.2f} $" if dollars >= 0.01 else f"{dollars:.4f} $"
