"""Rows of a live view: pure function of tree and time.

Rules:

1. Every top-level step has a row. Nested steps are shown while their parent is open.
2. A step with more than eight children is one row with counts. Below it are the three longest-running children and the
   last failed one.
3. A streaming step shows its last words.
4. There are never more rows than requested: finished steps are dropped first, then details, from the deepest.
5. Text of a step, an error or a model is one line without control characters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import attrs

from ..step_paths import StepPath
from .result_tree import shown_cost, shown_time
from .run_tree import Node, NodeStatus, RunTree, last_words, one_line

OLDEST_SHOWN = 3
_DEEPEST = 6
_WORDS = 300
_BAR_WIDTH = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"

Tone: TypeAlias = Literal["good", "bad", "running", "waiting", "dim"]
"""Visual style of a row."""

_TONES: dict[NodeStatus, Tone] = {
    "success": "good",
    "failure": "bad",
    "running": "running",
    "waiting": "waiting",
    "aborted": "dim",
}
_MARKS: dict[NodeStatus, str] = {"success": "✓", "failure": "✗", "running": "▸", "waiting": "?", "aborted": "–"}
NAP = "☾"
"""Mark of a step that waits for time, an event or a rate, and for no person."""
_RUN_TONES: dict[str, Tone] = {
    "completed": "good",
    "failed": "bad",
    "paused": "waiting",
    "sleeping": "dim",
    "aborted": "bad",
}


@attrs.frozen(kw_only=True)
class Row:
    """One line of the view."""

    depth: int
    mark: str
    tone: Tone
    name: str
    facts: str = ""
    """Counts, times, amounts."""
    note: str = ""
    """Failure, prompt or streamed text."""
    weight: int = 0
    """Rank of the row; rows of the lowest rank are dropped first."""

    @property
    def text(self) -> str:
        """Return the line without colors."""
        parts = (f"{'  ' * self.depth}{self.mark} {self.name}".rstrip(), self.facts, self.note)
        return "  ".join(part for part in parts if part)


def live_rows(
    outline: RunTree, *, now: float, height: int, tails: Mapping[StepPath, str] | None = None, title: str = ""
) -> list[Row]:
    """Return the view at epoch time `now`, at most `height` rows."""
    view = _View(outline=outline, now=now, tails=tails or {})
    rows = [row for node in outline.children(outline.root) for row in view.of(node, 0)]
    return [*_fitting(rows, height - 1), view.footer(title)]


def all_rows(outline: RunTree, *, now: float) -> list[Row]:
    """Return every step of a run; many siblings as counts."""
    view = _View(outline=outline, now=now, tails={}, closed=True)
    return [*(row for node in outline.children(outline.root) for row in view.of(node, 0)), view.footer("")]


@attrs.frozen(kw_only=True)
class _View:
    """Traversal of a run tree at one moment."""

    outline: RunTree
    now: float
    tails: Mapping[StepPath, str]
    closed: bool = False
    """Whether children of finished steps are shown, too."""

    def of(self, node: Node, depth: int) -> Iterator[Row]:
        """Yield the rows of a step and its children, while open."""
        yield self._row(node, depth)
        if not self.closed and node.status not in ("running", "waiting"):
            return
        yield from self._words(node, depth + 1)
        if node.is_collapsed:
            yield from self._collapsed(node, depth + 1)
        elif depth < _DEEPEST:
            for child in self.outline.children(node):
                yield from self.of(child, depth + 1)

    def _row(self, node: Node, depth: int) -> Row:
        facts = self._counts(node) if node.is_collapsed else []
        note = node.note if node.status in ("failure", "waiting") else ""
        retries = [f"attempt {node.attempts}"] if node.attempts > 1 and node.status == "running" else []
        return Row(
            depth=depth,
            mark=NAP if self._is_sleeping(node) else _MARKS[node.status],
            tone="dim" if self._is_sleeping(node) else _TONES[node.status],
            name=one_line(node.name),
            facts="  ".join([*facts, *retries, *self._amounts(node)]),
            note=one_line(note or (node.note if node.status == "success" else "")),
            weight=_weight(node, depth),
        )

    def _is_sleeping(self, node: Node) -> bool:
        """Return whether a step sleeps.

        In a sleeping run, every open step without a question does.
        """
        if node.status == "waiting":
            return node.naps
        return node.status == "running" and self.outline.status == "sleeping"

    def _counts(self, node: Node) -> list[str]:
        known = max(node.of, len(node.children))
        ended = node.done + node.failed
        counts = [
            f"✓ {node.done:,}",
            f"✗ {node.failed:,}" if node.failed else "",
            f"? {node.waiting:,}" if node.waiting else "",
            f"… {len(node.running):,} running" if node.running else "",
            f"{node.to_go:,} to go" if node.to_go else "",
            _bar(ended / known) if node.status == "running" and known else "",
            self._rate(node, ended),
        ]
        return [count for count in counts if count]

    def _rate(self, node: Node, ended: int) -> str:
        elapsed = self._elapsed(node)
        if node.status != "running" or elapsed < 1 or not ended:
            return ""
        rate = ended / elapsed
        return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"

    def _amounts(self, node: Node) -> list[str]:
        elapsed = self._elapsed(node)
        tokens = max(node.tokens, node.counted_tokens)
        cost = max(node.cost_usd, node.counted_usd)
        amounts = [
            shown_time(elapsed) if elapsed or node.status == "success" else "",
            f"{tokens:,} tok" if tokens else "",
            shown_cost(cost) if cost else "",
        ]
        return [amount for amount in amounts if amount]

    def _elapsed(self, node: Node) -> float:
        if node.status != "running":
            return node.latency_s
        return max(0.0, self.now - node.began_at) if node.began_at is not None else 0.0

    def _collapsed(self, node: Node, depth: int) -> Iterator[Row]:
        for path in itertools.islice(node.running, OLDEST_SHOWN):
            yield self._running(self.outline.nodes[path], depth)
            yield from self._words_below(path, depth + 1)
        if node.last_failure is not None:
            yield self._row(self.outline.nodes[node.last_failure], depth)

    def _running(self, node: Node, depth: int) -> Row:
        """Return the row of one child of a crowd."""
        names, each = [one_line(node.name)], node
        while len(each.running) == 1 and not each.is_collapsed and len(names) < _DEEPEST:
            each = self.outline.nodes[next(iter(each.running))]
            names.append(one_line(each.name))
        elapsed = self._elapsed(node)
        facts = shown_time(elapsed) if elapsed else ""
        return Row(depth=depth, mark="▸", tone="running", name=" › ".join(names), facts=facts, weight=10 - depth)

    def _words(self, node: Node, depth: int) -> Iterator[Row]:
        words = last_words(self.tails.get(node.path, ""), _WORDS)
        if words:
            yield Row(depth=depth, mark="…", tone="dim", name="", note=words, weight=20 - depth)

    def _words_below(self, path: StepPath, depth: int) -> Iterator[Row]:
        for place, text in self.tails.items():
            if text and (place == path or place.startswith(f"{path}/")):
                yield Row(depth=depth, mark="…", tone="dim", name="", note=last_words(text, _WORDS), weight=5 - depth)
                return

    def footer(self, title: str) -> Row:
        """Return the last line: status, start and usage of the run."""
        outline = self.outline
        began = outline.began_at if outline.began_at is not None else self.now
        until = self.now if outline.status == "running" else outline.changed_at or self.now
        facts = [
            shown_time(max(0.0, until - began)),
            f"{outline.tokens:,} tok" if outline.tokens else "",
            shown_cost(outline.cost_usd) if outline.cost_usd else "",
        ]
        return Row(
            depth=0,
            mark="■" if outline.status != "running" else "●",
            tone=_RUN_TONES.get(outline.status, "dim"),
            name="waiting" if outline.status == "paused" else outline.status,
            facts="  ".join(fact for fact in facts if fact),
            note=one_line(title),
        )


def _weight(node: Node, depth: int) -> int:
    if node.status in ("running", "waiting"):
        return 100 - depth
    if node.status == "failure":
        return 50 - depth
    return 0 - depth


def _bar(share: float) -> str:
    eighths = min(_BAR_WIDTH * 8, int(share * _BAR_WIDTH * 8))
    filled = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8].strip() if eighths % 8 else "")
    return f"▕{filled.ljust(_BAR_WIDTH)}▏"


def _fitting(rows: Sequence[Row], height: int) -> list[Row]:
    """Return the rows of highest rank and a count of others."""
    if len(rows) <= height:
        return list(rows)
    if height <= 0:
        return []
    ranked = sorted(range(len(rows)), key=lambda place: (-rows[place].weight, -place))
    kept = sorted(ranked[: height - 1])
    left = len(rows) - len(kept)
    more = Row(depth=0, mark="⋮", tone="dim", name=f"{left:,} more {'line' if left == 1 else 'lines'}")
    return [more, *(rows[place] for place in kept)]
