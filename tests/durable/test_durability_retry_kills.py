"""A process that dies at any point of a retry repeats no committed step: another one continues the retry."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from flujo_actors import Flujo, Pipeline, PipelineResult, RunClient, Step
from kit.durable_places import AN_HOUR_LATER, Place, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, PointedStore, Points, WorldChanges, ended, forked

pytestmark = pytest.mark.slow

MOST_POINTS = 200


class Trip:
    """A pipeline whose map item 1 fails until the cause is mended."""

    def __init__(self, effects: Effects, *, mended: bool, points: Points | None = None) -> None:
        self._effects, self._mended = effects, mended
        self._passing = points or Points()

    def flujo(self, store: Any) -> Flujo:
        each = Step.map_over("each", self._step("item", fails_at=1), items=lambda data, _: [0, 1, 2], max_concurrency=1)
        turns = Step.loop_until("turns", self._step("turn"), lambda output, _: output >= 3, max_loops=9)
        return Flujo(
            Pipeline([self._step("first"), each, Step("total", lambda all_: 0), turns, self._step("last")]),
            store=store,
        )

    def _step(self, name: str, fails_at: int | None = None) -> Step:
        async def work(data: int, *, idempotency_key: str) -> int:
            self._passing(f"{name} begins")
            self._effects.add(idempotency_key)
            self._passing(f"{name} has done it")
            if data == fails_at and not self._mended:
                raise ConnectionError("down")
            return data + 1

        return Step(name, work)

    def continued(self, store: Any, run_id: str) -> PipelineResult:
        """Retry the run, or continue a retry that another process began."""
        flujo = self.flujo(store)
        failed = RunClient(store).get(run_id).status == "failed"
        return flujo.retry(run_id) if failed else flujo.resume(run_id)


def test_a_kill_at_any_point_of_a_retry_repeats_no_committed_step(place: Place, effects: Effects) -> None:
    """After every store call and around every effect: only the step in flight is executed twice."""
    late = place.open(AN_HOUR_LATER)
    for number in itertools.count(1, 1 if isinstance(place, SqlitePlace) else 7):  # a few points of the slower one
        assert number < MOST_POINTS, "the retry never ends"
        run_id = f"run {number}"
        assert Trip(effects, mended=False).flujo(place.open()).run(0, run_id=run_id).status == "failed"
        code = ended(_killed_in_its_retry(number, place, effects, run_id))
        before, committed = effects.counted(f"{run_id}:"), _successes(late, run_id)
        if code == 0:
            break
        assert code == KILLED
        _continue(late, effects, run_id)
        after = effects.counted(f"{run_id}:")
        assert {path for path in committed if after[path] != before[path]} == set(), number
        assert after.pop("each/~i1") in (2, 3)
        assert set(after.values()) <= {1, 2}, number
    assert number > 20


def _killed_in_its_retry(number: int, place: Place, effects: Effects, run_id: str) -> int:
    points = WorldChanges(number)
    trip = Trip(effects, mended=True, points=points)
    return forked(lambda: trip.continued(PointedStore(place.open(), points), run_id))


def _successes(store: Any, run_id: str) -> set[str]:
    outcomes = RunClient(store).state(run_id).outcomes
    return {path for path, outcome in outcomes.items() if outcome.step_result.success}


def _continue(store: Any, effects: Effects, run_id: str) -> None:
    if RunClient(store).get(run_id).status != "completed":
        result = Trip(effects, mended=True).continued(store, run_id)
        assert (result.status, result.output) == ("completed", 4), result.feedback
    assert (RunClient(store).get(run_id).status, RunClient(store).get(run_id).retries) == ("completed", 1)
