"""The outline of a run: its steps as a tree with times, counts and what they used, folded from light records.

This is what live views draw. It is fed record by record, in order, and answers at any moment; a fold of forty thousand
records takes a fraction of a second. Rules:

1. A step is running from its start until it settles; a step that settled without a `started` record was fast.
2. What is inside a step that settled, or that tries again, is not running any more: what was cut short has no record.
3. What a step used includes the steps inside it: the total counts everything once, at the moment it is known.
4. A step with more children than can be looked at one by one is a crowd: it is shown by its counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import attrs

from .light_records import LightRecord
from .path_names import last_name, step_around
from .paths import ROOT, StepPath, is_tried, step_of, whose

CROWD = 8
"""How many children are shown one by one."""

NodeStatus: TypeAlias = Literal["running", "success", "failure", "waiting", "aborted"]
"""How a step stands."""


_NO_CHILDREN: list[StepPath] = []
_NONE_RUNNING: dict[StepPath, None] = {}
"""What most steps have; never changed."""


@attrs.define(kw_only=True, eq=False)
class Node:
    """One step of a run, as far as it is known."""

    path: StepPath
    parent: Node | None = attrs.field(default=None, repr=False)
    """The step around it."""
    name: str = ""
    status: NodeStatus = "running"
    began_at: float | None = None
    """In seconds since the epoch."""
    latency_s: float = 0.0
    tokens: int = 0
    cost_usd: float = 0.0
    attempts: int = 1
    note: str = ""
    """Why it failed, what it asks, or what it does."""
    of: int = 0
    """How many children it is known to get, if it is a map or a parallel stage."""
    children: list[StepPath] = _NO_CHILDREN
    running: dict[StepPath, None] = _NONE_RUNNING
    """Its children that are running, the oldest first."""
    done: int = 0
    failed: int = 0
    waiting: int = 0
    last_failure: StepPath | None = None
    counted_tokens: int = 0
    counted_usd: float = 0.0

    @property
    def is_crowd(self) -> bool:
        """Whether its children are shown by their counts alone."""
        return max(len(self.children), self.of) > CROWD

    @property
    def to_go(self) -> int:
        """How many of its children have not begun, as far as their number is known."""
        return max(0, self.of - self.done - self.failed - self.waiting - len(self.running))


class Outline:
    """Folds light records, one at a time; see the module's rules."""

    def __init__(self, records: Iterable[LightRecord] = ()) -> None:
        self.nodes: dict[StepPath, Node] = {ROOT: Node(path=ROOT)}
        self.seq: int = 0
        """The last record that was taken into account."""
        self.status: str = "running"
        self.began_at: float | None = None
        self.changed_at: float | None = None
        """When the last record was written."""
        self.feedback: str = ""
        self.origin: str = ""
        self.origin_seq: int = 0
        self.questions: dict[StepPath, str] = {}
        """What waits for an answer, by path."""
        self.units: dict[StepPath, LightRecord] = {}
        """The model turns and tool calls under way: begun, and not recorded as done."""
        for record in records:
            self.take(record)

    @property
    def root(self) -> Node:
        """The run itself; its children are the top-level steps."""
        return self.nodes[ROOT]

    @property
    def tokens(self) -> int:
        """What all steps have used so far."""
        return self.root.counted_tokens

    @property
    def cost_usd(self) -> float:
        """What all steps have cost so far."""
        return self.root.counted_usd

    def steps(self) -> Iterator[Node]:
        """Every step, in the order in which they became known."""
        return (node for path, node in self.nodes.items() if path != ROOT)

    def children(self, node: Node) -> Iterator[Node]:
        """The steps inside a step."""
        return (self.nodes[path] for path in node.children)

    def take(self, record: LightRecord) -> None:
        """Take the next record into account."""
        self.seq = max(self.seq, record.seq)
        self.changed_at = record.at if record.at is not None else self.changed_at
        match record.kind:
            case "admitted":
                self.began_at, self.origin, self.origin_seq = record.at, record.origin, record.origin_seq
            case "started":
                self._start(record)
            case "settled":
                self._settle(record)
            case "intent":
                self.units[record.path] = record
            case "unit":
                self.units.pop(record.path, None)
                self._spend(self._node(step_of(record.path)), record.tokens, record.cost_usd)
            case "paused":
                self._pause(record)
            case "answered":
                self._answer(record)
            case "resumed":
                self.status = "running"
            case "ended":
                self._end(record)

    def _node(self, path: StepPath) -> Node:
        node = self.nodes.get(path)
        return node if node is not None else self._new_node(path)

    def _new_node(self, path: StepPath) -> Node:
        """A step that was not known, and those around it that were not."""
        unknown = [path]
        while (around := step_around(unknown[-1])) not in self.nodes:
            unknown.append(around)
        parent = self.nodes[around]
        for each in reversed(unknown):
            parent = self.nodes[each] = _child_of(parent, each)
        return parent

    def _start(self, record: LightRecord) -> None:
        node = self._node(record.path)
        self._restate(node, "running")
        self._tell(node, record)

    def _tell(self, node: Node, record: LightRecord) -> None:
        node.name = record.name or node.name
        if record.at is not None:
            node.began_at = record.at - record.latency_s
        if record.of and node.parent is not None:
            node.parent.of = max(node.parent.of, record.of)

    def _settle(self, record: LightRecord) -> None:
        if is_tried(record.path):
            self._try_again(record)
            return
        node = self._node(record.path)
        self._tell(node, record)
        node.latency_s, node.attempts, node.note = record.latency_s, record.attempts, record.note
        node.tokens, node.cost_usd = record.tokens, record.cost_usd
        self._count(node, record)
        self._cut_short(node)
        self._restate(node, _SETTLED.get(record.status or "", "failure"))

    def _try_again(self, record: LightRecord) -> None:
        """The attempts so far have failed: what was inside them is over, and the step goes on."""
        node = self._node(whose(record.path))
        node.attempts, node.note = record.attempts + 1, record.note
        self._count(node, record)
        self._cut_short(node)

    def _cut_short(self, node: Node) -> None:
        """Rule 2: whatever is open inside the step is over, at any depth."""
        over = [node]
        while over:
            each = over.pop()
            self.questions.pop(each.path, None)
            for child in self._open_in(each):
                self._restate(child, "aborted")
                over.append(child)

    def _open_in(self, node: Node) -> list[Node]:
        waiting = (path for path in node.children if self.nodes[path].status == "waiting") if node.waiting else ()
        return [self.nodes[path] for path in (*node.running, *waiting)]

    def _restate(self, node: Node, status: NodeStatus) -> None:
        """Give a step another status, and its parent other counts."""
        parent = node.parent
        if parent is not None and node.status != status:
            _count_in(parent, node.path, node.status, -1)
            _count_in(parent, node.path, status, 1)
        node.status = status

    def _pause(self, record: LightRecord) -> None:
        node = self._node(step_of(record.path))
        self._tell(node, record)
        self.units.pop(record.path, None)
        self.questions[node.path] = node.note = record.note
        self._count(node, record)
        self._restate(node, "waiting")

    def _answer(self, record: LightRecord) -> None:
        node = self._node(step_of(record.path))
        self.questions.pop(node.path, None)
        self._restate(node, "running")

    def _end(self, record: LightRecord) -> None:
        if record.path != ROOT:
            return
        self.status, self.feedback = record.status or "aborted", record.note
        if self.status != "paused":
            self._cut_short(self.root)
            self.questions.clear()
            self.units.clear()

    def _count(self, node: Node, record: LightRecord) -> None:
        """What a step has used by now, all in all: what is new of it is counted."""
        self._spend(node, record.tokens - node.counted_tokens, record.cost_usd - node.counted_usd)

    def _spend(self, node: Node, tokens: int, cost_usd: float) -> None:
        if not tokens and not cost_usd:
            return
        each: Node | None = node
        while each is not None:
            each.counted_tokens += tokens
            each.counted_usd += cost_usd
            each = each.parent


_SETTLED: dict[str, NodeStatus] = {"success": "success", "aborted": "aborted"}


def _child_of(parent: Node, path: StepPath) -> Node:
    """A new step, running; what few steps have, children, is made for those who have some."""
    if parent.children is _NO_CHILDREN:
        parent.children, parent.running = [], {}
    parent.children.append(path)
    _count_in(parent, path, "running", 1)
    return Node(path=path, parent=parent, name=last_name(path))


def _count_in(parent: Node, path: StepPath, status: NodeStatus, by: int) -> None:
    match status:
        case "running" if by > 0:
            parent.running[path] = None
        case "running":
            del parent.running[path]
        case "success":
            parent.done += by
        case "failure":
            parent.failed += by
            parent.last_failure = path if by > 0 else parent.last_failure
        case "waiting":
            parent.waiting += by
        case "aborted":
            pass
