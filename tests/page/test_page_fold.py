"""The fold of the page is the fold of the library: both are given the same journals, and say the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
from playwright.sync_api import Page

from flujo_actors._core.step_paths import StepPath
from flujo_actors._core.views.record_summaries import RecordSummary
from flujo_actors._core.views.run_tree import RunTree
from flujo_actors.page import run_page
from flujo_actors.page._record_view import rows_of
from flujo_actors.stores import MemoryStore
from page.conftest import shown

pytestmark = pytest.mark.slow

FOLD = """
async (rows) => {
  const { folded } = await import('./static/fold.js');
  const outline = folded(rows);
  const nodes = [...outline.nodes.values()].map((node) => [
    node.path, node.name, node.status, node.attempts, node.note, node.of, node.children, [...node.running].sort(),
    node.done, node.failed, node.waiting, node.countedTokens, Math.round(node.countedCost * 1e6),
  ]);
  for (const group of outline.groups.values()) {
    const own = [...outline.nodes.values()].filter((node) => node.path && node.group === group);
    const counted = (status) => own.filter((node) => node.status === status).length;
    for (const status of ['running', 'success', 'failure', 'waiting', 'aborted'])
      if (group[status] !== counted(status)) throw new Error(`${group.path}: ${group[status]} ${status}`);
    if (group.seen !== own.length) throw new Error(`${group.path}: ${group.seen} seen, not ${own.length}`);
  }
  return [outline.status, outline.seq, outline.tokens, [...outline.questions.keys()], [...outline.units.keys()], nodes];
}
"""

KINDS = ["started", "settled", "settled", "settled", "intent", "unit", "paused", "answered", "resumed", "ended"]
NAMES = [
    "a",
    "b/~i0",
    "b/~i1/x",
    "b",
    "c/~f",
    "c/~a2/d",
    "c/~t",
    "c",
    "g/~g1.1/~u0",
    "g/~u1",
    "g",
    "h/~h0",
    "h/~c",
    "h",
    "~0odd~1name",
    "s/~e",
]


def journal(seed: int) -> list[RecordSummary]:
    """Records in an order that may make no sense: nothing of them may confuse one fold and not the other."""
    chance = random.Random(seed)
    return [RecordSummary(1, "admitted", StepPath(""), 1.0), *(_record(seq, chance) for seq in range(2, 60))]


def _record(seq: int, chance: random.Random) -> RecordSummary:
    kind: Any = chance.choice(KINDS)
    path = "" if kind in ("ended", "resumed") else chance.choice(NAMES)
    status = {
        "settled": chance.choice(["success", "failure"]),
        "ended": chance.choice(["completed", "paused", "sleeping"]),
    }.get(kind)
    return RecordSummary(
        seq,
        kind,
        StepPath(path),
        float(seq),
        name=chance.choice(["", "named"]),
        status=status,
        latency_s=chance.random(),
        tokens=chance.randrange(50),
        cost_usd=chance.randrange(100) / 1000,
        attempts=chance.randrange(1, 4),
        note=chance.choice(["", "why"]),
        of=chance.choice([0, 0, 12]),
    )


def told(outline: RunTree) -> list[Any]:
    """What the page says, of the library's fold."""
    nodes = [
        [
            *(
                node.path,
                node.name,
                node.status,
                node.attempts,
                node.note,
                node.of,
                node.children,
                sorted(node.running),
            ),
            *(node.done, node.failed, node.waiting, node.counted_tokens, round(node.counted_usd * 1e6)),
        ]
        for node in outline.nodes.values()
    ]
    return [outline.status, outline.seq, outline.tokens, list(outline.questions), list(outline.units), nodes]


def test_the_page_folds_every_journal_as_the_library_does(tab: Page):
    """Forty journals of any kind of record, in any order."""
    with shown(tab, run_page(MemoryStore())) as base:
        tab.goto(base)
        for seed in range(40):
            records = journal(seed)
            assert tab.evaluate(FOLD, rows_of(records, lambda text: text)) == told(RunTree(records)), seed
