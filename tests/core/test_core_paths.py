"""Paths tell every two places of a run apart, and tokens lead back to them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flujo_actors._core import step_paths
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.pause_tokens import approval_hash, idempotency_key, make_token, parse_token
from flujo_actors._core.records.run_state import turn_at
from flujo_actors._core.step_paths import ROOT, StepPath
from flujo_actors.errors import NotPaused

names = st.text(st.sampled_from("ab~/i01f:%"), min_size=1, max_size=5)
segments = st.one_of(
    st.tuples(st.just("named"), names),
    st.tuples(st.just("item"), st.integers(0, 12)),
    st.tuples(st.just("attempt"), st.integers(2, 12)),
    st.tuples(st.just("fallback"), st.none()),
)
places = st.lists(segments, max_size=4)


def path_of(place: list[tuple[str, Any]]) -> StepPath:
    path = ROOT
    for kind, what in place:
        match kind:
            case "named":
                path = step_paths.named(path, what)
            case "item":
                path = step_paths.item(path, what)
            case "attempt":
                path = step_paths.attempt(path, what)
            case _:
                path = step_paths.fallback(path)
    return path


@settings(max_examples=300, deadline=None)
@given(places, places)
@example([("named", "a/b")], [("named", "a"), ("named", "b")])
@example([("named", "~i1")], [("item", 1)])
@example([("named", "a~1b")], [("named", "a/b")])
@example([("named", "a"), ("named", "~f")], [("named", "a"), ("fallback", None)])
def test_two_places_never_share_a_path(one: list[Any], other: list[Any]) -> None:
    """Whatever users call their steps, different places have different paths."""
    assert (path_of(one) == path_of(other)) is (one == other)


@settings(max_examples=300, deadline=None)
@given(names, names, places, places)
@example("a", "a:b", [("named", "b:c")], [("named", "c")])
@example("a%3A", "a:", [], [])
def test_two_steps_never_share_an_idempotency_key(one: str, other: str, here: list[Any], there: list[Any]) -> None:
    """Whatever runs and steps are called, and whatever a granular step adds behind its key."""
    first, second = idempotency_key(RunId(one), path_of(here)), idempotency_key(RunId(other), path_of(there))
    same = (one, here) == (other, there)
    assert (first == second) is same
    assert first.startswith(f"{second}:") is False


ways = st.lists(
    st.one_of(
        st.builds(step_paths.Named, names),
        st.builds(step_paths.Item, st.none() | st.integers(0, 12)),
        st.builds(step_paths.Retry, st.integers(2, 12)),
        st.builds(step_paths.Handler, st.integers(1, 12)),
        st.builds(step_paths.Compensation, st.none() | names),
        st.builds(step_paths.Again, st.integers(2, 12)),
        st.builds(step_paths.Doubt, st.integers(1, 12)),
        st.builds(step_paths.Conversation, st.integers(0, 3), st.integers(1, 3), st.none() | st.integers(1, 3)),
        st.sampled_from(step_paths.Mark),
    ),
    max_size=5,
)


@settings(max_examples=300, deadline=None)
@given(ways, st.none() | st.text(st.sampled_from("ab~/u:%")))
@example([step_paths.Named("~u1"), step_paths.Compensation("a/~c")], "0:/~u1")
def test_a_path_is_its_segments(way: list[step_paths.Segment], unit: str | None) -> None:
    """What is formatted can be parsed, whatever users call their steps and models their calls."""
    if unit is not None:
        way = [step_paths.Named("agent"), *way, step_paths.UnitSegment(unit)]
    assert list(step_paths.parse(step_paths.formatted(way))) == way


@pytest.mark.parametrize("text", ["~", "~x", "~a", "~ione", "~h", "~g1", "~g1.x", "~defaults"])
def test_what_is_no_segment_is_refused(text: str) -> None:
    """A letter that stands for nothing, or a number that is none."""
    with pytest.raises(ValueError, match="is no segment of a path"):
        step_paths.parse(f"a/{text}")
    assert step_paths.known_segment(text) is None
    assert step_paths.in_declaration(StepPath(f"a/{text}")) is None


def test_handlers_compensations_and_escalations_have_places_of_their_own() -> None:
    """They stand beside all attempts of their step."""
    step = step_paths.named(ROOT, "pay")
    found = [
        step_paths.handler(step, 1),
        step_paths.compensation(step),
        step_paths.compensation(step, "0:a/b"),
        step_paths.escalation(step),
    ]
    assert found == ["pay/~h1", "pay/~c", "pay/~c0:a~1b", "pay/~e"]
    assert [step_paths.attempt_of(str(step_paths.below(step, each))) for each in found] == [None] * 4
    assert [step_paths.attempt_of(way) for way in ("~f", "~a3/x", "~i1", "x")] == [None, 3, 1, 1]


def test_an_empty_branch_key_has_a_path_of_its_own() -> None:
    """Below a step, which always has a name, the empty text is a name like any other."""
    step = step_paths.named(ROOT, "choose")
    found = {step_paths.named(step, key) for key in ("", "a", "/", "~")} | {
        step,
        step_paths.named(step_paths.named(step, ""), "a"),
    }
    assert len(found) == 6


def test_the_first_attempt_stands_where_its_step_stands() -> None:
    """A step that worked at once looks as if there were no attempts."""
    assert step_paths.attempt(StepPath("a"), 1) == "a"
    assert step_paths.attempt(StepPath("a"), 2) == "a/~a2"


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(), min_size=1), st.text(st.characters()))
@example("run:1%3A/é", "a:b/c")
def test_tokens_round_trip(run_id: str, path: str) -> None:
    """A token gives back the run and the place, whatever characters they hold."""
    assert parse_token(make_token(RunId(run_id), StepPath(path), asked="0f")) == (run_id, path)


@settings(max_examples=100, deadline=None)
@given(*[st.text(st.sampled_from("a:%3A/"), min_size=1)] * 2, *[st.text(st.sampled_from("a:%3A/"))] * 2)
def test_tokens_of_two_pauses_differ(run: str, other_run: str, path: str, other_path: str) -> None:
    """No two pauses share a token."""
    first, second = (
        make_token(RunId(run), StepPath(path), asked="0f"),
        make_token(RunId(other_run), StepPath(other_path), asked="0f"),
    )
    assert (first == second) is ((run, path) == (other_run, other_path))


def test_an_answer_is_bound_to_the_question() -> None:
    """The same place asks with another token when it asks something else, or about something else."""
    asked = [approval_hash("ok?", {"a"}), approval_hash("ok?", {"b"}), approval_hash("sure?", {"a"})]
    assert len({make_token(RunId("r"), StepPath("a"), asked=each) for each in asked}) == 3
    assert approval_hash("ok?", set("abc")) == approval_hash("ok?", set("cba"))
    assert approval_hash("\ud800", object()) == approval_hash("\ud800", object())


@pytest.mark.parametrize("token", ["", "nonsense", "run:asked", None, 5])
def test_what_is_no_token_is_refused(token: Any) -> None:
    """A text that no pause gave out leads nowhere."""
    with pytest.raises(NotPaused, match="is not the state_token of a pause"):
        parse_token(token)


def test_what_undoes_a_step_stands_beside_it_and_is_known_by_one_key() -> None:
    """However often it is run; it is no part of the step, and leads back to it."""
    step = step_paths.named(step_paths.named(ROOT, "trip"), "hotel")
    undoing = step_paths.compensation(step)
    again = step_paths.again(undoing, 2)
    assert (undoing, again) == ("trip/hotel/~c", "trip/hotel/~c/~r2")
    assert step_paths.compensated_by(undoing) == step_paths.compensated_by(again) == step
    assert step_paths.compensated_by(step) is None
    assert step_paths.known_outside(step_paths.named(again, "refund")) == step_paths.named(undoing, "refund")
    assert list(step_paths.within_of(step_paths.named(undoing, "refund"))) == [undoing]
    assert list(step_paths.within_of(undoing)) == []
    assert step_paths.is_undoing(step_paths.doubt(undoing, 1))
    assert not step_paths.is_undoing(step_paths.named(ROOT, "~c"))


def test_what_undoes_a_tool_call_leads_back_to_the_call() -> None:
    """Whatever the model has called it."""
    step = step_paths.named(ROOT, "book")
    call = step_paths.unit(step_paths.conversation(step, 1, 1), "2:call/~x")
    undoing = step_paths.compensation(step, step_paths.below(step, call))
    assert step_paths.compensated_by(undoing) == call
    assert step_paths.parse(undoing)[0] == step_paths.Named("book")


def test_the_run_itself_may_be_what_stands_around() -> None:
    """What it undoes and asks is seen from there, too."""
    tried = step_paths.tried(ROOT)
    assert step_paths.whose(tried) == ROOT
    assert step_paths.below(tried, StepPath("a/b")) == "a/b"
    assert step_paths.inside(tried, "a/b") == "a/b"
    assert step_paths.withdrawn_by(tried, [StepPath("a/ask"), StepPath("b/~c/sure")]) == ["a/ask"]
    assert step_paths.is_top_level(StepPath("a"))
    assert not step_paths.is_top_level(step_paths.handler(ROOT, 1))


@pytest.mark.parametrize("key", ["", "²", "x", "-1", "1" * 5_000])
def test_a_key_that_is_no_number_of_an_item_has_none(key: str) -> None:
    """A damaged path raises no ValueError where it is read."""
    path = StepPath(f"loop/~i{key}/step")
    assert (step_paths.index_of(path), turn_at(StepPath("loop"), path)) == (None, None)


def test_the_key_of_an_item_is_its_number() -> None:
    """It is the index of results and the turn of a loop."""
    path = StepPath("loop/~i12/step")
    assert (step_paths.index_of(path), turn_at(StepPath("loop"), path)) == (12, 12)
