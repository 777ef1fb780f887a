"""Paths tell every two places of a run apart, and tokens lead back to them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flujo_actors._core import paths
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.paths import ROOT, StepPath
from flujo_actors._core.pause_tokens import approval_hash, idempotency_key, make_token, parse_token
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
                path = paths.named(path, what)
            case "item":
                path = paths.item(path, what)
            case "attempt":
                path = paths.attempt(path, what)
            case _:
                path = paths.fallback(path)
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
        st.builds(paths.Named, names),
        st.builds(paths.Item, st.none() | st.integers(0, 12)),
        st.builds(paths.Retry, st.integers(2, 12)),
        st.builds(paths.Handler, st.integers(1, 12)),
        st.builds(paths.Compensation, st.none() | names),
        st.builds(paths.Again, st.integers(2, 12)),
        st.builds(paths.Doubt, st.integers(1, 12)),
        st.builds(paths.Conversation, st.integers(0, 3), st.integers(1, 3), st.none() | st.integers(1, 3)),
        st.sampled_from(paths.Mark),
    ),
    max_size=5,
)


@settings(max_examples=300, deadline=None)
@given(ways, st.none() | st.text(st.sampled_from("ab~/u:%")))
@example([paths.Named("~u1"), paths.Compensation("a/~c")], "0:/~u1")
def test_a_path_is_its_segments(way: list[paths.Segment], unit: str | None) -> None:
    """What is formatted can be parsed, whatever users call their steps and models their calls."""
    if unit is not None:
        way = [paths.Named("agent"), *way, paths.Unit(unit)]
    assert list(paths.parse(paths.formatted(way))) == way


@pytest.mark.parametrize("text", ["~", "~x", "~a", "~ione", "~h", "~g1", "~g1.x", "~defaults"])
def test_what_is_no_segment_is_refused(text: str) -> None:
    """A letter that stands for nothing, or a number that is none."""
    with pytest.raises(ValueError, match="is no segment of a path"):
        paths.parse(f"a/{text}")
    assert paths.known_segment(text) is None
    assert paths.in_declaration(StepPath(f"a/{text}")) is None


def test_handlers_compensations_and_escalations_have_places_of_their_own() -> None:
    """They stand beside all attempts of their step."""
    step = paths.named(ROOT, "pay")
    found = [
        paths.handler(step, 1),
        paths.compensation(step),
        paths.compensation(step, "0:a/b"),
        paths.escalation(step),
    ]
    assert found == ["pay/~h1", "pay/~c", "pay/~c0:a~1b", "pay/~e"]
    assert [paths.attempt_of(str(paths.below(step, each))) for each in found] == [None] * 4
    assert [paths.attempt_of(way) for way in ("~f", "~a3/x", "~i1", "x")] == [None, 3, 1, 1]


def test_an_empty_branch_key_has_a_path_of_its_own() -> None:
    """Below a step, which always has a name, the empty text is a name like any other."""
    step = paths.named(ROOT, "choose")
    found = {paths.named(step, key) for key in ("", "a", "/", "~")} | {step, paths.named(paths.named(step, ""), "a")}
    assert len(found) == 6


def test_the_first_attempt_stands_where_its_step_stands() -> None:
    """A step that worked at once looks as if there were no attempts."""
    assert paths.attempt(StepPath("a"), 1) == "a"
    assert paths.attempt(StepPath("a"), 2) == "a/~a2"


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
    step = paths.named(paths.named(ROOT, "trip"), "hotel")
    undoing = paths.compensation(step)
    again = paths.again(undoing, 2)
    assert (undoing, again) == ("trip/hotel/~c", "trip/hotel/~c/~r2")
    assert paths.undone_by(undoing) == paths.undone_by(again) == step
    assert paths.undone_by(step) is None
    assert paths.known_outside(paths.named(again, "refund")) == paths.named(undoing, "refund")
    assert list(paths.within_of(paths.named(undoing, "refund"))) == [undoing]
    assert list(paths.within_of(undoing)) == []
    assert paths.is_undoing(paths.doubt(undoing, 1))
    assert not paths.is_undoing(paths.named(ROOT, "~c"))


def test_what_undoes_a_tool_call_leads_back_to_the_call() -> None:
    """Whatever the model has called it."""
    step = paths.named(ROOT, "book")
    call = paths.unit(paths.conversation(step, 1, 1), "2:call/~x")
    undoing = paths.compensation(step, paths.below(step, call))
    assert paths.undone_by(undoing) == call
    assert paths.parse(undoing)[0] == paths.Named("book")


def test_the_run_itself_may_be_what_stands_around() -> None:
    """What it undoes and asks is seen from there, too."""
    tried = paths.tried(ROOT)
    assert paths.whose(tried) == ROOT
    assert paths.below(tried, StepPath("a/b")) == "a/b"
    assert paths.inside(tried, "a/b") == "a/b"
    assert paths.withdrawn_by(tried, [StepPath("a/ask"), StepPath("b/~c/sure")]) == ["a/ask"]
    assert paths.is_top_level(StepPath("a"))
    assert not paths.is_top_level(paths.handler(ROOT, 1))
