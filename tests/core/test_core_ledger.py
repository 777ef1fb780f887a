"""The ledger: its rules one by one, and no way around them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flujo_actors._core.ledger import Ledger
from flujo_actors._core.step_paths import ROOT, StepPath
from flujo_actors.errors import ProtocolError, UnsettledSteps

A, B, AB = StepPath("a"), StepPath("b"), StepPath("a/b")


def ledger(*opened: StepPath) -> Ledger:
    """A ledger with these paths open, each below the one before."""
    books, parent = Ledger(), None
    for path in opened:
        books.start(path, parent)
        parent = path
    return books


def test_rule_1_a_path_starts_at_most_once() -> None:
    """Neither an open path nor one that settled starts again."""
    books = ledger(A)
    with pytest.raises(ProtocolError, match="step 'a' started twice"):
        books.start(A)
    books.settle(A)
    with pytest.raises(ProtocolError, match="step 'a' started twice"):
        books.start(A)


def test_rule_2_a_step_starts_only_below_an_open_parent() -> None:
    """A parent that never started, or has settled, has no new children."""
    books = ledger(ROOT, A)
    with pytest.raises(ProtocolError, match="its parent 'b' is not open"):
        books.start(AB, B)
    books.settle(A)
    with pytest.raises(ProtocolError, match="step 'a/b' started, but its parent 'a' is not open"):
        books.start(AB, A)
    assert books.open == (ROOT,)


def test_rule_2_a_step_is_not_its_own_parent() -> None:
    """A path that is not open yet cannot carry itself."""
    with pytest.raises(ProtocolError, match="is not open"):
        Ledger().start(A, A)


def test_rule_3_a_duplicate_settlement_is_refused() -> None:
    """The second terminal outcome of a step is an error that says so, and changes nothing."""
    books = ledger(ROOT, A)
    books.settle(A)
    with pytest.raises(ProtocolError, match="step 'a' settled, but it is not open: it settled before"):
        books.settle(A)
    assert books.open == (ROOT,)


def test_rule_3_a_step_that_never_started_cannot_settle() -> None:
    """A settlement out of nowhere is an error."""
    with pytest.raises(ProtocolError, match="it never started"):
        ledger(ROOT).settle(A)


def test_rule_4_a_branch_does_not_outlive_its_parent() -> None:
    """A parent cannot settle over the head of an open child; it can when the child has settled."""
    books = ledger(ROOT, A, AB)
    with pytest.raises(ProtocolError, match=r"step 'a' settled, but 1 step\(s\) below it are still open"):
        books.settle(A)
    assert A in books
    for path in (AB, A, ROOT):
        books.settle(path)
    assert books.open == ()


def test_rule_5_a_run_with_an_open_span_does_not_close() -> None:
    """The error names every step that started and did not settle."""
    books = ledger(ROOT, A, AB)
    with pytest.raises(UnsettledSteps, match="run cannot finish: '', 'a', 'a/b' started but did not settle") as caught:
        books.close()
    assert caught.value.paths == (ROOT, A, AB)
    assert not books.closed


def test_rule_5_a_run_in_which_nothing_started_does_not_close() -> None:
    """Nothing done is not completed."""
    with pytest.raises(ProtocolError, match="nothing ever started"):
        Ledger().close()


def test_rule_6_a_closed_ledger_accepts_nothing() -> None:
    """After the end there is no start, no settlement and no second end."""
    books = ledger(ROOT)
    books.settle(ROOT)
    books.close()
    assert books.closed
    for late in (lambda: books.start(A), lambda: books.settle(ROOT), lambda: books.settle(A), books.close):
        with pytest.raises(ProtocolError):
            late()
    assert books.settled == {ROOT}


PATHS = st.sampled_from([StepPath(name) for name in ("", "a", "b", "a/b", "a/c", "a/b/d")])


class LedgerMachine(RuleBasedStateMachine):
    """A ledger beside the plainest model of its rules, under any sequence of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Ledger()
        self.parents: dict[StepPath, StepPath | None] = {}
        self.settled: list[StepPath] = []
        self.closed = False

    def _open(self) -> list[StepPath]:
        return [path for path in self.parents if path not in self.settled]

    @rule(path=PATHS, parent=st.none() | PATHS)
    def start(self, path: StepPath, parent: StepPath | None) -> None:
        """Start any path below any other."""
        allowed = not self.closed and path not in self.parents and (parent is None or parent in self._open())
        assert self._accepted(lambda: self.books.start(path, parent)) is allowed
        if allowed:
            self.parents[path] = parent

    @rule(path=PATHS)
    def settle(self, path: StepPath) -> None:
        """Settle any path."""
        open_now = self._open()
        allowed = path in open_now and not any(self.parents[each] == path for each in open_now)
        assert self._accepted(lambda: self.books.settle(path)) is allowed
        if allowed:
            self.settled.append(path)

    @rule()
    def close(self) -> None:
        """Try to end the run."""
        allowed = not self.closed and not self._open() and bool(self.settled)
        assert self._accepted(self.books.close) is allowed
        self.closed = self.closed or allowed

    @staticmethod
    def _accepted(message: object) -> bool:
        with suppress(ProtocolError):
            message()  # type: ignore[operator]
            return True
        return False

    @invariant()
    def the_books_agree_with_the_model(self) -> None:
        """What is open and what settled is exactly what was accepted."""
        assert list(self.books.open) == self._open()
        assert self.books.settled == set(self.settled)
        assert self.books.closed is self.closed

    @invariant()
    def no_run_completes_with_an_open_span(self) -> None:
        """The gate itself."""
        assert not (self.books.closed and self.books.open)


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
