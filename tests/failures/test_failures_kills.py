"""A process that dies at any point of a run that fails, handles and undoes: another one comes to the same end."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from flujo_actors import (
    Backoff,
    Flujo,
    Pipeline,
    PipelineResult,
    RunClient,
    Step,
    StepFailure,
    StepResult,
    Success,
    Undo,
)
from flujo_actors.errors import RunNotFound
from kit.durable_places import AN_HOUR_LATER, Place, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, PointedStore, WorldChanges, ended, forked

pytestmark = pytest.mark.slow

MOST_POINTS = 300


@attrs.frozen
class Trip:
    """A trip that fails, with everything that can be undone and told, one after the other."""

    effects: Effects
    passing: Callable[[str], None] = lambda name: None

    def complete(self, store: Any, run_id: str) -> PipelineResult:
        """Start the run, or go on with it; the result."""
        flujo = Flujo(self.pipeline(), store=store)
        try:
            RunClient(store).get(run_id)
        except RunNotFound:
            return flujo.run("go", run_id=run_id)
        return flujo.resume(run_id)

    def pipeline(self) -> Pipeline:
        tour = Step.loop_until(
            "tour",
            self._step("bus") >> self._step("boat", raises=True, on_failure=Step("guide", self._handler())),
            lambda output, context: True,
            max_retries=1,
            backoff=Backoff.none(),
            fallback=Step("walk", self._agent(raises=True), compensate=self._undo()),
            on_failure=Step("office", self._handler()),
        )
        hotel = Pipeline([self._step("room")], name="hotel")
        return Pipeline([self._step("flight"), hotel, tour], on_failure=Step("customer", self._handler()))

    def _did(self, key: str) -> Success:
        self.passing(f"{key} begins")
        self.effects.add(key)
        self.passing(f"{key} has done it")
        return Success(step_result=StepResult(name="", output=key.rpartition(":")[2], token_counts=1))

    def _step(self, name: str, *, raises: bool = False, **config: Any) -> Step:
        return Step(name, self._agent(raises=raises), compensate=self._undo(), **config)

    def _agent(self, *, raises: bool) -> Any:
        async def agent(data: Any, *, idempotency_key: str) -> Any:
            did = self._did(idempotency_key)
            if raises:
                raise ValueError("broke")
            return did

        return agent

    def _undo(self) -> Any:
        async def undo(undo: Undo, *, idempotency_key: str) -> Success:
            assert undo.failure is not None
            return self._did(f"{idempotency_key} undoes {undo.input}->{undo.output} for {undo.failure.step_name}")

        return undo

    def _handler(self) -> Any:
        async def handler(failure: StepFailure, *, idempotency_key: str) -> Success:
            return self._did(f"{idempotency_key} hears of {failure.path} {failure.message} {failure.attempts}")

        return handler


def _undone(result: PipelineResult) -> list[str]:
    return [f"{each.path}: {each.success}" for each in result.undone]


def test_a_kill_at_any_point_loses_no_compensation_and_runs_nothing_forward_again(
    place: Place, effects: Effects
) -> None:
    """After every store call and around every effect: only what was in flight is done twice, with the same key.

    At a server, which takes longer, at every third of these points.
    """
    stride = 1 if isinstance(place, SqlitePlace) else 3
    whole = Trip(effects).complete(place.open(), "whole")
    in_order = _lines(effects, "whole")
    assert len(in_order) == len(set(in_order)) == 18
    late = place.open(AN_HOUR_LATER)
    following = _begin_to_die(1, place, effects)
    for number in itertools.count(1, stride):
        assert number < MOST_POINTS, "the trip never gets to its end"
        run_id, code = f"run {number}", ended(following)
        if code == 0:
            break
        assert code == KILLED
        following = _begin_to_die(number + stride, place, effects)  # the next one dies while this one goes on
        _go_on(late, effects, run_id, whole)
        lines = _lines(effects, run_id)
        again = [line for line, other in itertools.pairwise(lines) if line == other]
        assert len(again) <= 1, number
        assert [line for line, _ in itertools.groupby(lines)] == in_order, number
    assert number > 30
    place.check()


def _begin_to_die(number: int, place: Place, effects: Effects) -> int:
    points = WorldChanges(number)
    return forked(lambda: Trip(effects, points).complete(PointedStore(place.open(), points), f"run {number}"))


def _go_on(store: Any, effects: Effects, run_id: str, whole: PipelineResult) -> None:
    client = RunClient(store)
    if _status(client, run_id) != "failed":
        result = Trip(effects).complete(store, run_id)
        assert (result.status, result.feedback) == ("failed", whole.feedback), run_id
        assert _undone(result) == _undone(whole), run_id
        assert result.total_tokens == whole.total_tokens, run_id
    state = client.state(run_id)
    assert (state.status, state.usage.tokens) == ("failed", whole.total_tokens), run_id


def _status(client: RunClient, run_id: str) -> str:
    try:
        return client.get(run_id).status
    except RunNotFound:
        return "not begun"


def _lines(effects: Effects, run_id: str) -> list[str]:
    lines = effects.file.read_text().splitlines()
    return [line.removeprefix(f"{run_id}:") for line in lines if line.startswith(f"{run_id}:")]
