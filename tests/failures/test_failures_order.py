"""What is left to undo, and in which order: the pure decisions, against a model that is written another way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors._core.failure_info import (
    HALT,
    State,
    ToUndo,
    Undoable,
    When,
    compensation_entries_of,
    could_not,
    in_order,
)
from flujo_actors._core.outcomes import Undone
from flujo_actors._core.step_paths import StepPath


@attrs.frozen
class Node:
    """A step of a run that has ended: a call, or a composite with what is inside it in the order of starting."""

    number: int
    state: State
    compensated: bool
    when: When
    is_call: bool
    inside: tuple[Node, ...] = ()


def _numbered(shape: object, numbers: Iterator[int]) -> Node:
    state, compensated, when, inside = shape  # type: ignore[misc]
    number = next(numbers)
    children = tuple(_numbered(each, numbers) for each in inside or ())
    return Node(number, state, compensated, when, inside is None, children)


_facts = (st.sampled_from(get_args(State)), st.booleans(), st.sampled_from(get_args(When)))
_calls = st.tuples(*_facts, st.none())
_shapes = st.recursive(_calls, lambda inner: st.tuples(*_facts, st.lists(inner, max_size=4)), max_leaves=20)


def _trees() -> st.SearchStrategy[Node]:
    return _shapes.map(lambda shape: _numbered(shape, iter(range(10**6))))


def _folded(node: Node) -> tuple[int, ...]:
    """What a tree leaves, by the decisions of the core from the inside out."""
    inside = [number for child in node.inside for number in _folded(child)]
    own = node.number if node.compensated else None
    return compensation_entries_of(node.state, own=own, inside=inside, is_call=node.is_call, when=node.when)


def _is_undone(node: Node, around: list[Node]) -> bool:
    """The model: whether one node's own compensation is called, by looking at it and at what stands around it."""
    if not node.compensated or any(above.state == "completed" and above.compensated for above in around):
        return False
    return node.state == "completed" or (node.is_call and node.when == "started")


def _expected(node: Node, around: list[Node]) -> Iterator[int]:
    if _is_undone(node, around):
        yield node.number
    for child in node.inside:
        yield from _expected(child, [*around, node])


@pytest.mark.slow
@given(_trees())
def test_what_a_tree_leaves_is_what_the_model_says_of_each_of_its_steps(tree: Node) -> None:
    """Completed ones by their own or by those inside, calls by their own, others by what is inside them."""
    assert list(_folded(tree)) == list(_expected(tree, []))


@pytest.mark.slow
@given(_trees())
def test_what_is_left_stands_in_the_order_of_starting(tree: Node) -> None:
    """Which is what undoing goes backwards through, and each step is in it once."""
    left = _folded(tree)
    assert list(left) == sorted(set(left))


def _undoable(name: str) -> Undoable:
    return Undoable(step=None, name=name, path=StepPath(name))


@pytest.mark.slow
@given(st.lists(st.sampled_from(["a", "b", "c", "halt"])))
def test_nothing_that_started_before_a_halt_is_undone(names: list[str]) -> None:
    """Backwards, and no further than where undoing stopped."""
    started: list[ToUndo] = [HALT if name == "halt" else _undoable(name) for name in names]
    last_halt = max((place for place, name in enumerate(names) if name == "halt"), default=-1)
    assert [each.name for each in in_order(started)] == names[last_halt + 1 :][::-1]


def test_what_could_not_be_undone_is_counted_and_named() -> None:
    """And nothing is said where everything was undone."""
    fine = Undone(step_name="car", path=StepPath("car"), success=True)
    closed = Undone(step_name="hotel", path=StepPath("hotel"), success=False, feedback="closed")
    assert could_not([]) is None
    assert could_not([fine]) is None
    assert could_not([fine, closed, fine]) == "1 of 3 could not be undone: 'hotel': closed"
