"""The ledger: which steps of a run started, and which settled. It alone says when a run may end.

Rules:

1. A path starts at most once in the life of a ledger.
2. A path starts only while its parent is open; the root's parent is nobody.
3. A path settles exactly once, and only after it started.
4. A path settles only when none of its children is open.
5. The ledger closes only when nothing is open and at least one path has settled.
6. A closed ledger accepts nothing.

Whatever breaks a rule raises `ProtocolError` and changes nothing.
"""

from __future__ import annotations

from ..errors import ProtocolError, UnsettledSteps
from .paths import StepPath


class Ledger:
    """Books of one run; see the module's rules."""

    __slots__ = ("_children", "_closed", "_open", "_settled")

    def __init__(self) -> None:
        self._open: dict[StepPath, StepPath | None] = {}
        """Every open path with its parent."""
        self._children: dict[StepPath, int] = {}
        """How many children of an open path are open, if there were any: most paths have none."""
        self._settled: set[StepPath] = set()
        self._closed = False

    @property
    def open(self) -> tuple[StepPath, ...]:
        """What started and has not settled, in the order of starting."""
        return tuple(self._open)

    @property
    def settled(self) -> frozenset[StepPath]:
        """What started and settled."""
        return frozenset(self._settled)

    @property
    def closed(self) -> bool:
        """Whether the books are balanced for good."""
        return self._closed

    def __contains__(self, path: StepPath) -> bool:
        """Whether the span of `path` is open."""
        return path in self._open

    def only_around(self, path: StepPath | None) -> bool:
        """Whether nothing is open but `path` and what it stands in; `None` stands for nothing at all."""
        around = 0
        while path is not None:
            around, path = around + 1, self._open[path]
        return around == len(self._open)

    def start(self, path: StepPath, parent: StepPath | None = None) -> None:
        """Open the span of `path` below `parent`."""
        if self._closed:
            raise ProtocolError(f"step {path!r} started, but the run has ended")
        if path in self._open or path in self._settled:
            raise ProtocolError(f"step {path!r} started twice")
        if parent is not None:
            if parent not in self._open:
                raise ProtocolError(f"step {path!r} started, but its parent {parent!r} is not open")
            self._children[parent] = self._children.get(parent, 0) + 1
        self._open[path] = parent

    def settle(self, path: StepPath) -> None:
        """Close the span of `path`: it has its terminal outcome."""
        if path not in self._open:
            why = "it settled before" if path in self._settled else "it never started"
            raise ProtocolError(f"step {path!r} settled, but it is not open: {why}")
        children = self._children.pop(path, 0)
        if children:
            self._children[path] = children
            raise ProtocolError(f"step {path!r} settled, but {children} step(s) below it are still open")
        parent = self._open.pop(path)
        self._settled.add(path)
        if parent is not None:
            self._children[parent] -= 1

    def close(self) -> None:
        """End the run, if its books balance."""
        if self._closed:
            raise ProtocolError("run cannot finish: it finished before")
        if self._open:
            raise UnsettledSteps(tuple(self._open))
        if not self._settled:
            raise ProtocolError("run cannot finish: nothing ever started")
        self._closed = True
