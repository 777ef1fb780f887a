"""What several answers come to, which level a budget has, and what an answer to an approval means: pure rules."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors._core.policies.approval_policy import DEFAULT_OPTIONS, Decision, Option, as_options, checked_decision
from flujo_actors._core.policies.selection import Vote, Votes, confidence_in, field_of, majority
from flujo_actors._core.usage import level_of, share_left
from flujo_actors.errors import DeclarationError, InvalidAnswer


def test_the_most_frequent_answer_wins() -> None:
    """5.5: its share is the confidence, and a failed vote is a vote for nothing."""
    elected = majority([Vote(0, "tea"), Vote(2, "coffee"), Vote(3, "tea")], 5)
    assert elected is not None
    assert (elected.index, elected.votes, elected.share) == (0, 2, 0.4)


def test_a_tie_goes_to_the_first_vote_by_index() -> None:
    """Not to the one that came in first."""
    elected = majority([Vote(3, "b"), Vote(1, "a"), Vote(2, "b"), Vote(4, "a")], 4)
    assert elected is not None
    assert elected.index == 1


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
def test_nobody_has_more_votes_than_the_winner(answers: list[str]) -> None:
    """And among equals it is the one that was seen first."""
    elected = majority([Vote(place, answer) for place, answer in enumerate(answers)], len(answers))
    counted = Counter(answers)
    assert elected is not None
    assert elected.votes == max(counted.values())
    assert answers[elected.index] == next(each for each in answers if counted[each] == elected.votes)


def test_nobody_wins_if_all_failed() -> None:
    """There is no answer to elect."""
    assert majority([], 3) is None


def test_votes_are_at_least_two() -> None:
    """One vote has no share."""
    with pytest.raises(DeclarationError, match="Votes"):
        Votes(1)


@pytest.mark.parametrize("value", [None, True, "0.9", float("nan"), 1.01, -0.1])
def test_what_is_no_number_from_0_to_1_is_no_confidence(value: object) -> None:
    """5.4: and the reason says so."""
    number, reason = confidence_in(value)
    assert number is None
    assert "confidence" in reason


def test_a_confidence_is_read_from_dicts_and_objects() -> None:
    """A field that is not there is none."""
    assert field_of({"confidence": 0.5}, "confidence") == 0.5
    assert field_of(Vote(1, "x"), "index") == 1
    assert field_of("text", "confidence") is None


@pytest.mark.parametrize(
    ("spent", "level"),
    [(0, "abundant"), (29, "abundant"), (30, "normal"), (70, "scarce"), (90, "critical"), (120, "critical")],
)
def test_a_level_goes_by_what_is_left(spent: int, level: str) -> None:
    """B7."""
    assert level_of(share_left(spent, 100)) == level


def test_nothing_is_left_of_nothing() -> None:
    """A limit of 0 is critical from the start."""
    assert level_of(share_left(0, 0)) == "critical"


@pytest.mark.parametrize(
    ("answer", "decided"),
    [
        ("approve", Decision("approve")),
        (True, Decision("approve")),
        (False, Decision("reject")),
        (Decision("reject", by="ada"), Decision("reject", "ada")),
        ({"option": "approve", "comment": "fine"}, Decision("approve", None, "fine")),
    ],
)
def test_an_answer_says_which_option(answer: object, decided: Decision) -> None:
    """6.1: by name, as a bool, or as a decision."""
    assert checked_decision(answer, DEFAULT_OPTIONS, step_name="pay?", max_deferrals=3) == decided


@pytest.mark.parametrize("answer", ["perhaps", None, 1, {"option": "approve", "extra": 1}, Decision("maybe")])
def test_an_answer_that_is_no_option_is_refused_with_all_options(answer: object) -> None:
    """A4."""
    with pytest.raises(InvalidAnswer, match="'approve', 'reject', 'defer'"):
        checked_decision(answer, DEFAULT_OPTIONS, step_name="pay?")


def test_a_question_can_be_deferred_only_so_often() -> None:
    """6.6."""
    assert checked_decision("defer", DEFAULT_OPTIONS, step_name="pay?", deferrals=2, max_deferrals=3).option == "defer"
    with pytest.raises(InvalidAnswer, match="max_deferrals is 3"):
        checked_decision("defer", DEFAULT_OPTIONS, step_name="pay?", deferrals=3, max_deferrals=3)


def test_other_options_say_what_they_do() -> None:
    """6.2: an option whose name says nothing has a kind."""
    options = as_options({"edit": Option("edit", kind="approve"), "reject": "No"}, where="pay?")
    assert [option.kind for option in options] == ["approve", "reject"]
    assert checked_decision(True, options, step_name="pay?").option == "edit"
    with pytest.raises(DeclarationError, match=r"pay\?: option 'perhaps': kind"):
        as_options({"perhaps": "Perhaps"}, where="pay?")
    with pytest.raises(DeclarationError, match="one option must approve"):
        as_options({"reject": "No"}, where="pay?")
