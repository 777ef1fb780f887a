"""Whether somebody goes in circles: pure rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors._core.policies.loop_detection import LoopGuard, LoopStep, canonical, entry_of, find_loop
from flujo_actors.errors import DeclarationError


def turns(text: str, *, failed: bool = False) -> list[LoopStep]:
    """One turn per letter: the tool of that name, called with nothing, returning nothing."""
    return [entry for each in text if (entry := entry_of([(each, {}, None, failed)]))]


def found_at(history: list[LoopStep], guard: LoopGuard | None = None) -> int | None:
    """After which turn a loop is found first."""
    guard = guard or LoopGuard()
    return next((n for n in range(1, len(history) + 1) if find_loop(history[:n], guard)), None)


def test_the_same_call_with_the_same_result_is_found_at_the_fourth() -> None:
    """L1."""
    assert found_at(turns("AAAAAA")) == 4
    found = find_loop(turns("AAAA"))
    assert found is not None
    assert (found.kind, found.cycle, found.times) == ("repetition", ("A",), 4)


def test_the_same_error_is_found_at_the_third() -> None:
    """L2."""
    assert found_at(turns("AAAA", failed=True)) == 3
    found = find_loop(turns("AAA", failed=True))
    assert found is not None
    assert found.kind == "error"


def test_two_that_alternate_are_found_at_the_third_time() -> None:
    """L3: ABABAB, and not a turn earlier."""
    assert found_at(turns("ABABAB")) == 6
    assert find_loop(turns("ABABA")) is None
    found = find_loop(turns("ABABAB"))
    assert found is not None
    assert (found.kind, found.cycle) == ("cycle", ("A", "B"))


def test_three_in_a_row_are_found_at_the_third_time() -> None:
    """L4."""
    assert found_at(turns("ABCABCABC")) == 9


@pytest.mark.parametrize(("history", "at"), [("ABAB", 4), ("ABCDABCD", 8)])
def test_two_repeats_are_enough_for_who_says_so(history: str, at: int) -> None:
    """L5: the figures of the original."""
    assert found_at(turns(history), LoopGuard(repeats=2)) == at


def test_a_poll_whose_result_changes_is_no_loop() -> None:
    """L6: the same call with another result, ten times."""
    history = [entry for n in range(10) if (entry := entry_of([("poll", {"id": 1}, {"progress": n}, False)]))]
    assert found_at(history) is None


def test_the_same_tool_with_other_arguments_is_no_loop() -> None:
    """Batch work calls one tool again and again."""
    history = [entry for n in range(20) if (entry := entry_of([("edit", {"file": n}, "ok", False)]))]
    assert found_at(history) is None


def test_two_parallel_calls_in_another_order_are_the_same_turn() -> None:
    """L11."""
    one, other = ("A", {}, 1, False), ("B", {}, 2, False)
    history = [entry_of([one, other]), entry_of([other, one]), entry_of([one, other]), entry_of([other, one])]
    assert found_at([entry for entry in history if entry]) == 4


@pytest.mark.parametrize("values", [(1, 1.0), (1, True), (0, False), (1.0, True), ("1", 1), (None, False)])
def test_values_of_different_types_are_different(values: tuple[object, object]) -> None:
    """One and true are equal in Python, and not the same result."""
    assert canonical(values[0]) != canonical(values[1])


def test_what_has_no_json_form_is_never_equal() -> None:
    """3.1: an object, a NaN, a set."""
    for value in (object(), float("nan"), {1, 2}):
        history = [entry for _ in range(6) if (entry := entry_of([("A", {}, value, False)]))]
        assert found_at(history) is None


def test_a_turn_without_calls_is_no_entry() -> None:
    """Whoever only talks does nothing twice."""
    assert entry_of([]) is None


@given(st.lists(st.sampled_from("ABC"), max_size=30), st.integers(2, 4), st.integers(2, 4), st.integers(2, 5))
def test_what_is_found_is_really_there(letters: list[str], same: int, repeats: int, period: int) -> None:
    """Against a plain reading of the rule: the text ends with so many copies of a block."""
    text = "".join(letters)
    found = find_loop(turns(text), LoopGuard(same=same, same_error=same, repeats=repeats, max_period=period))
    repetition = any(text.endswith(each * same) for each in "ABC")
    blocks = {text[-size:] for size in range(2, period + 1) if len(text) >= size}
    cycle = any(len(set(block)) > 1 and text.endswith(block * repeats) for block in blocks)
    assert (found is not None) == (repetition or cycle)


def test_the_last_reaction_is_repeated() -> None:
    """3.4: the first detection hints, all others fail."""
    guard = LoopGuard(then=("hint", "pause", "fail"))
    assert [guard.reaction(n) for n in (1, 2, 3, 4)] == ["hint", "pause", "fail", "fail"]


@pytest.mark.parametrize(
    "options", [{"same": 1}, {"repeats": True}, {"then": ()}, {"then": ("stop",)}, {"similar": 3}, {"similar_at": 0}]
)
def test_a_guard_that_cannot_work_is_refused(options: dict[str, object]) -> None:
    """A wrong figure is found when it is written."""
    with pytest.raises(DeclarationError, match="LoopGuard"):
        LoopGuard(**options)  # type: ignore[arg-type]
