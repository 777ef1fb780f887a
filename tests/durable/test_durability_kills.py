"""A process that dies at any point loses nothing and repeats no committed step: another one comes to the same end."""

from __future__ import annotations

import itertools

import pytest
from tour import Tour, gone_on_to

from flujo_actors import NotPaused, RunClient
from flujo_actors.errors import RunNotFound
from kit.durable_places import AN_HOUR_LATER, Place, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, PointedStore, WorldChanges, ended, forked

pytestmark = pytest.mark.slow

MOST_POINTS = 400


def test_the_tour_takes_its_way(place: Place, effects: Effects) -> None:
    """Uninterrupted, the pipeline of these tests runs every kind of step once, and pauses once."""
    result = Tour(effects).complete(place.open(), "run")
    assert (result.status, result.output) == ("completed", 105)
    assert set(effects.counted("run:").values()) == {1}
    assert len(effects.counted()) == 14


def test_a_kill_at_any_point_loses_nothing_and_repeats_nothing(place: Place, effects: Effects) -> None:
    """After every store call and around every effect: the same end, and only what was in flight is done twice.

    At a server, which takes longer, at every third of these points.
    """
    stride = 1 if isinstance(place, SqlitePlace) else 3
    expected = gone_on_to(Tour(effects).complete(place.open(), "whole"))
    all_effects = effects.counted("whole:")
    late = place.open(AN_HOUR_LATER)
    following = _begin_to_die(1, place, effects)
    for number in itertools.count(1, stride):
        assert number < MOST_POINTS, "the pipeline never gets to its end"
        run_id, code = f"run {number}", ended(following)
        if code == 0:
            break
        assert code == KILLED
        following = _begin_to_die(number + stride, place, effects)  # the next one dies while this one goes on
        before, committed = effects.counted(f"{run_id}:"), _committed(late, run_id)
        _go_on(late, effects, run_id, expected)
        after = effects.counted(f"{run_id}:")
        assert after.keys() == all_effects.keys(), number
        assert {path for path in committed if after[path] != before[path]} == set(), number
        assert set(after.values()) <= {1, 2}, number
    assert number > 40
    place.check()


def _begin_to_die(number: int, place: Place, effects: Effects) -> int:
    """A process that is killed at a point of its run."""
    points = WorldChanges(number)
    return forked(lambda: Tour(effects, points).complete(PointedStore(place.open(), points), f"run {number}"))


def _committed(store, run_id: str) -> set[str]:
    """The steps that had settled, or failed for good, when the process died."""
    try:
        state = RunClient(store).state(run_id)
    except RunNotFound:
        return set()
    return {*state.outcomes, *state.failed_attempts}


def _go_on(store, effects: Effects, run_id: str, expected: dict[str, object]) -> None:
    client = RunClient(store)
    if _status(client, run_id) == "completed":
        state = client.state(run_id)
        assert (state.output, state.usage.tokens) == (expected["output"], expected["tokens"])
        assert vars(state.context) == expected["context"]
        return
    assert gone_on_to(Tour(effects).complete(store, run_id)) == expected
    assert client.get(run_id).status == "completed"


def _status(client: RunClient, run_id: str) -> str:
    try:
        return client.get(run_id).status
    except RunNotFound:
        return "not begun"


@pytest.mark.parametrize("mode", ["strict", "compat", "force"])
def test_a_resumed_run_that_has_ended_does_not_end_again(place: Place, effects: Effects, mode: str) -> None:
    """Whatever the mode: there is nothing left to do, and that is not a completion."""
    store, tour = place.open(), Tour(effects)
    tour.complete(store, "run")
    records = len(store.read("run"))
    with pytest.raises(NotPaused, match="has ended as completed"):
        tour.flujo(store).resume("run", mode=mode)
    assert len(store.read("run")) == records
