"""Tree of a run: times, counts and usage, from record summaries.

Live views draw it. It consumes summaries in order and can be read at any moment; a fold of forty thousand records takes
a fraction of a second. Rules:

1. A step is running from its start until it settles; a step that settled without a `started` record was fast.
2. Steps inside a settled or retried step are not running any more: a cancelled step has no record.
3. Usage of a step includes its nested steps: the total counts everything once, as soon as it is known.
4. A step with too many children to list is a crowd: it is shown by its counts.

Sections:

- Untrusted text for terminals: no cursor movement, color or reordering.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import attrs

from ..step_paths import ROOT, StepPath, index_of, is_tried, last_name, step_around, step_of, whose
from .record_summaries import RecordSummary

CROWD = 8
"""Maximum number of children shown one by one."""

NodeStatus: TypeAlias = Literal["running", "success", "failure", "waiting", "aborted"]
"""Status of a step."""


_NO_CHILDREN: list[StepPath] = []
_NONE_RUNNING: dict[StepPath, None] = {}
"""Shared empty mapping of steps without running children; never changed."""


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
    """Number of attempts, of all retries of the run together."""
    before: int = 0
    """Attempts before the last retry of the run."""
    note: str = ""
    """Failure, prompt or current activity."""
    of: int = 0
    """Expected number of children of a map or a parallel stage."""
    children: list[StepPath] = _NO_CHILDREN
    running: dict[StepPath, None] = _NONE_RUNNING
    """Its children that are running, the oldest first."""
    done: int = 0
    failed: int = 0
    waiting: int = 0
    naps: bool = False
    """Whether its wait asks no person."""
    last_failure: StepPath | None = None
    counted_tokens: int = 0
    counted_usd: float = 0.0

    @property
    def is_collapsed(self) -> bool:
        """Return whether its children are shown by their counts alone."""
        return max(len(self.children), self.of) > CROWD

    @property
    def to_go(self) -> int:
        """Return the number of unstarted children, if the total is known."""
        return max(0, self.of - self.done - self.failed - self.waiting - len(self.running))


class RunTree:
    """Folds light records, one at a time; see the module's rules.

    Args:
        records: records to fold, in order.
    """

    def __init__(self, records: Iterable[RecordSummary] = ()) -> None:
        self.nodes: dict[StepPath, Node] = {ROOT: Node(path=ROOT)}
        """Nodes by path; the root is the run."""
        self.seq: int = 0
        """The last record that was taken into account."""
        self.status: str = "running"
        """Status of the run."""
        self.retries: int = 0
        """Number of retries of the run."""
        self.began_at: float | None = None
        """Time of the first record in epoch seconds."""
        self.changed_at: float | None = None
        """Time of the last record."""
        self.feedback: str = ""
        """Text of the failure."""
        self.origin: str = ""
        """Id of the run that this one was forked from."""
        self.origin_seq: int = 0
        """Last record of that run."""
        self.questions: dict[StepPath, str] = {}
        """Prompts of open pauses, by path."""
        self.units: dict[StepPath, RecordSummary] = {}
        """Model turns and tool calls in flight: started, without a recorded end."""
        for record in records:
            self.apply(record)

    @property
    def root(self) -> Node:
        """Return the run itself; its children are the top-level steps."""
        return self.nodes[ROOT]

    @property
    def tokens(self) -> int:
        """Return the tokens used by all steps so far."""
        return self.root.counted_tokens

    @property
    def cost_usd(self) -> float:
        """Return the cost of all steps so far."""
        return self.root.counted_usd

    def steps(self) -> Iterator[Node]:
        """Return every step, in the order in which they became known."""
        return (node for path, node in self.nodes.items() if path != ROOT)

    def children(self, node: Node) -> Iterator[Node]:
        """Return the steps inside a step.

        Args:
            node: parent node.
        """
        return (self.nodes[path] for path in node.children)

    def apply(self, record: RecordSummary) -> None:
        """Take the next record into account.

        Args:
            record: next record of the run.
        """
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
            case "compacted":
                self._compact(record)
            case "resumed":
                self.status = "running"
            case "retried":
                self._retry()
            case "ended":
                self._end(record)

    def _retry(self) -> None:
        """Keep the attempts of failed steps for the retry's total."""
        self.status, self.retries = "running", self.retries + 1
        for node in self.nodes.values():
            if node.status == "failure":
                node.before = node.attempts

    def _node(self, path: StepPath) -> Node:
        node = self.nodes.get(path)
        return node if node is not None else self._new_node(path)

    def _new_node(self, path: StepPath) -> Node:
        """Add an unknown step and its unknown ancestors."""
        unknown = [path]
        while (around := step_around(unknown[-1])) not in self.nodes:
            unknown.append(around)
        parent = self.nodes[around]
        for each in reversed(unknown):
            parent = self.nodes[each] = _child_of(parent, each)
        return parent

    def _start(self, record: RecordSummary) -> None:
        node = self._node(record.path)
        self._restate(node, "running")
        self._update(node, record)

    def _update(self, node: Node, record: RecordSummary) -> None:
        node.name = record.name or node.name
        if record.at is not None:
            node.began_at = record.at - record.latency_s
        if record.of and node.parent is not None:
            node.parent.of = max(node.parent.of, record.of)

    def _settle(self, record: RecordSummary) -> None:
        if is_tried(record.path):
            self._try_again(record)
            return
        node = self._node(record.path)
        self._update(node, record)
        node.latency_s, node.attempts, node.note = record.latency_s, node.before + record.attempts, record.note
        node.tokens, node.cost_usd = record.tokens, record.cost_usd
        self._count(node, record)
        self._cut_short(node)
        self._restate(node, _SETTLED.get(record.status or "", "failure"))

    def _try_again(self, record: RecordSummary) -> None:
        """Close the children of failed attempts; the step itself continues."""
        node = self._node(whose(record.path))
        node.attempts, node.note = node.before + record.attempts + 1, record.note
        self._count(node, record)
        self._cut_short(node)

    def _cut_short(self, node: Node) -> None:
        """Close all open steps inside a step, at any depth (rule 2)."""
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
        """Change the status of a step and the counts of its parent."""
        parent = node.parent
        if parent is not None and node.status != status:
            _count_in(parent, node.path, node.status, -1)
            _count_in(parent, node.path, status, 1)
        node.status = status

    def _pause(self, record: RecordSummary) -> None:
        node = self._node(step_of(record.path))
        self._update(node, record)
        self.units.pop(record.path, None)
        self.questions[node.path] = node.note = record.note
        node.naps = record.status == "sleeping"
        self._count(node, record)
        self._restate(node, "waiting")

    def _compact(self, record: RecordSummary) -> None:
        """Count the turns of a loop whose records were deleted."""
        loop, turn = self._node(step_around(record.path)), index_of(record.path) or 0
        loop.note = record.note
        loop.done = max(loop.done, turn)

    def _answer(self, record: RecordSummary) -> None:
        node = self._node(step_of(record.path))
        self.questions.pop(node.path, None)
        self._restate(node, "running")

    def _end(self, record: RecordSummary) -> None:
        if record.path != ROOT:
            return
        self.status, self.feedback = record.status or "aborted", record.note
        if self.status not in ("paused", "sleeping"):
            self._cut_short(self.root)
            self.questions.clear()
            self.units.clear()

    def _count(self, node: Node, record: RecordSummary) -> None:
        """Add the new part of a step's cumulative usage to the total."""
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
    """Return a new running step; its children mapping is created on demand."""
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


# --- Untrusted text for terminals ---------------------------------------------------------------------------------
# Control characters, lone surrogates and the marks that reorder text are shown as escapes, for example `\\x1b`.


_C0_AND_C1 = "\x00-\x1f\x7f-\x9f"
_REORDERING = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSEEN = "\u2028\u2029\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_UNSAFE = re.compile(f"[{_C0_AND_C1}{_REORDERING}{_UNSEEN}\ud800-\udfff]")
_UNSAFE_BUT_LINES = re.compile(f"(?![\t\n])[{_C0_AND_C1}{_REORDERING}{_UNSEEN}\ud800-\udfff]")
_SPACES = re.compile(r"[ \t\r\n\v\f]+")


def one_line(text: str) -> str:
    """Return the text in one line, with spaces for line breaks."""
    return _UNSAFE.sub(_escaped, _SPACES.sub(" ", text)).strip()


def in_lines(text: str) -> str:
    """Return the text with line breaks (also CRLF) and tabs unchanged."""
    return _UNSAFE_BUT_LINES.sub(_escaped, text.replace("\r\n", "\n"))


def last_words(text: str, chars: int) -> str:
    """Return a text's end in one line of `chars` characters."""
    words = one_line(text[-4 * chars :])
    return words if len(words) <= chars else f"…{words[1 - chars :]}" if chars > 1 else "…"


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
