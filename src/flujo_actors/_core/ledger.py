"""Ledger of started and settled steps; decides the end of a run.

Rules:

1. A path starts at most once in the life of a ledger.
2. A path starts only while its parent is open; the root has no parent.
3. A path settles exactly once, and only after it started.
4. A path settles only when none of its children is open.
5. The ledger closes only when nothing is open and at least one path has settled.
6. A closed ledger accepts nothing.

A violation raises `ProtocolError` and changes nothing.
"""

from __future__ import annotations

import itertools

from ..errors import ProtocolError, UnsettledSteps
from .step_paths import StepPath


class Ledger:
    """Books of one run; see the module's rules."""

    __slots__ = ("_children", "_closed", "_open", "_settled", "leaves")

    def __init__(self) -> None:
        self._open: dict[StepPath, StepPath | None] = {}
        """Every open path with its parent."""
        self._children: dict[StepPath, int] = {}
        """Number of open children per open path; absent for paths without children."""
        self._settled: dict[StepPath, None] = {}
        self._closed = False
        self.leaves = 0
        """Number of open paths without an open child."""

    @property
    def open(self) -> tuple[StepPath, ...]:
        """Return the started, unsettled paths in start order."""
        return tuple(self._open)

    @property
    def settled(self) -> frozenset[StepPath]:
        """Return the settled paths."""
        return frozenset(self._settled)

    @property
    def closed(self) -> bool:
        """Return whether the books are balanced for good."""
        return self._closed

    def __contains__(self, path: StepPath) -> bool:
        """Return whether the span of `path` is open."""
        return path in self._open

    def only_around(self, path: StepPath | None) -> bool:
        """Return whether only `path`, if any, and its ancestors are open."""
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
            siblings = self._children.get(parent, 0)
            self._children[parent] = siblings + 1
            self.leaves -= not siblings
        self._open[path] = parent
        self.leaves += 1

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
        self._settled[path] = None
        self.leaves -= 1
        if parent is not None:
            left = self._children[parent] = self._children[parent] - 1
            self.leaves += not left

    def forget(self, path: StepPath) -> None:
        """Forget a settled step and its nested steps."""
        self._settled.pop(path, None)
        inside, newest = f"{path}/", itertools.islice(reversed(self._settled), 8 * len(self._open) + 16)
        for nested in [each for each in newest if each.startswith(inside)]:
            del self._settled[nested]

    def close(self) -> None:
        """End the run, if its books balance."""
        if self._closed:
            raise ProtocolError("run cannot finish: it finished before")
        if self._open:
            raise UnsettledSteps(tuple(self._open))
        if not self._settled:
            raise ProtocolError("run cannot finish: nothing ever started")
        self._closed = True
