"""A process dies at any point of a granular run: another one comes to the same end, and repeats nothing committed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from bookings import TURNS, Booking, booker, booking_run, bookings, calls_of, come_to

from flujo_actors import RunClient, RunNotFound
from flujo_actors._core.records.run_state import RunState
from kit.durable_places import AN_HOUR_LATER, Place, PostgresPlace, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, PointedStore, WorldChanges, ended, forked

pytestmark = pytest.mark.slow

MOST_POINTS = 200
LEAST_POINTS = 40
LANES = 4


class Killing:
    """Processes that book in one place, die at their n-th point, and are followed by others that finish."""

    def __init__(self, place: Place, effects: Effects, notes: Path) -> None:
        self.place, self.effects, self._notes = place, effects, notes
        self._client = RunClient(place.open())

    def begin_to_die(self, number: int) -> int:
        """A process that is killed at the `number`-th point of its run; its id."""
        points = WorldChanges(number)
        return forked(lambda: self._run(f"run-{number}", points, PointedStore(self.place.open(), points)))

    def _run(self, run_id: str, points: WorldChanges, store: Any) -> None:
        booking_run(booker(self.effects, points, together=True), store).run("data", run_id=run_id)

    def go_on(self, run_id: str) -> int:
        """A fresh process that brings the run to its end; its id."""
        return forked(lambda: self.note(run_id, self._finished(run_id)))

    def _finished(self, run_id: str) -> dict[str, Any]:
        store = self.place.open(AN_HOUR_LATER)
        flujo, client = booking_run(booker(self.effects), store), RunClient(store)
        try:
            status = client.get(run_id).status
        except RunNotFound:
            return come_to(flujo.run("data", run_id=run_id))
        return {} if status == "completed" else come_to(flujo.resume(run_id))

    def note(self, name: str, facts: Any) -> None:
        """Leave word for another process."""
        (self._notes / name).write_text(json.dumps(facts))

    def noted(self, name: str) -> Any:
        return json.loads((self._notes / name).read_text())

    def whole(self) -> Any:
        """What an uninterrupted run comes to; in this process, so that its forks have everything imported."""
        self.note("whole", self._finished("whole"))
        return self.noted("whole")

    def state(self, run_id: str) -> RunState | None:
        try:
            return self._client.state(run_id)
        except RunNotFound:
            return None


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_kill_at_any_point_loses_nothing_and_repeats_no_committed_call(
    kind: str, effects: Effects, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """After every store call, in the model, and in every tool before and after its effect.

    At a server, which takes longer, at every third of these points.
    """
    place: SqlitePlace | PostgresPlace = request.getfixturevalue(f"{kind}_place")
    killing = Killing(place, effects, tmp_path)
    expected = killing.whole()
    assert (expected["status"], len(expected["turns"])) == ("completed", TURNS + 1)
    stride = 1 if kind == "sqlite" else 3
    lanes = [forked(lambda lane=lane: _die_and_go_on(killing, lane, stride, expected)) for lane in range(LANES)]
    assert [ended(lane) for lane in lanes] == [0] * LANES
    assert sum(killing.noted(f"lane-{lane}") for lane in range(LANES)) > LEAST_POINTS / stride
    place.check()


def _die_and_go_on(killing: Killing, lane: int, stride: int, expected: Any) -> None:
    """Every `LANES`-th of the points, until the run has no more of them."""
    for number in itertools.count(1 + lane * stride, LANES * stride):
        assert number < MOST_POINTS, "the run never gets to its end"
        code = ended(killing.begin_to_die(number))
        if code == 0:
            killing.note(f"lane-{lane}", number // (LANES * stride))
            return
        assert code == KILLED
        _require_a_good_end(killing, f"run-{number}", expected)


def _require_a_good_end(killing: Killing, run_id: str, expected: Any) -> None:
    before, state = bookings(killing.effects, run_id), killing.state(run_id)
    assert ended(killing.go_on(run_id)) == 0
    later = bookings(killing.effects, run_id)[len(before) :]
    committed = calls_of(state.units, run_id) if state else set()
    in_flight = calls_of(state.uncertain, run_id) if state else set()
    assert killing.noted(run_id) == (expected if state is None or state.status != "completed" else {})
    assert committed.isdisjoint(each.key for each in later)
    assert not any(each.before for each in before)
    assert {each.key for each in later if each.before} == in_flight
    _require_each_room([*before, *later], run_id)
    final = killing.state(run_id)
    assert final is not None
    assert (final.status, final.output, final.uncertain) == ("completed", expected["output"], ())


def _require_each_room(found: list[Booking], run_id: str) -> None:
    """Every room is booked, at most twice; the second time under the same id and key."""
    assert {each.room for each in found} == {f"{turn + 1}{side}" for turn in range(TURNS) for side in "ab"}
    for _, same in itertools.groupby(sorted(found, key=lambda each: each.room), key=lambda each: each.room):
        attempts = list(same)
        assert len(attempts) <= 2
        assert len({(each.call, each.key) for each in attempts}) == 1
    assert all(each.key == f"{run_id}:book:{each.room[0]}:{each.call}" for each in found)
