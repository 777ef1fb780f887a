"""Runs that fail, handle and undo, cut off at every point of it and resumed: nothing forward runs again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from flujo_actors import Flujo, MemoryStore, Pipeline, Recovered, Step, Undo


@attrs.define
class Trip:
    """A trip whose steps write down what they do; at one point, the process goes away."""

    cut_at: str | None = None
    log: list[str] = attrs.field(factory=list)
    keys: dict[str, set[str]] = attrs.field(factory=dict)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    other: Callable[[], Any] | None = None
    """Another pipeline than the usual one."""

    async def passes(self, point: str) -> None:
        """Write down a point, and go no further if it is the one."""
        self.log.append(point)
        if point == self.cut_at:
            self.cut_at = None
            self.scope.cancel()
            await trio.sleep_forever()

    def agent(self, name: str, *, raises: bool = False) -> Any:
        async def agent(data: Any) -> str:
            await self.passes(name)
            if raises:
                raise ValueError(f"{name} broke")
            return f"{name}!"

        return agent

    def undo(self, name: str) -> Any:
        async def undo(undo: Undo, *, idempotency_key: str) -> str:
            self.keys.setdefault(name, set()).add(idempotency_key)
            mark = "" if undo.completed else "?"
            await self.passes(f"undo {name}{mark} {undo.input}->{undo.output}")
            return "undone"

        return undo

    def handler(self, name: str, returns: Any = None) -> Any:
        async def handler(failure: Any) -> Any:
            await self.passes(f"{name}: {failure.step_name} {failure.message} {failure.attempts} {failure.input}")
            return returns

        return handler

    def step(self, name: str, **config: Any) -> Step:
        raises = config.pop("raises", False)
        return Step(name, self.agent(name, raises=raises), **{"compensate": self.undo(name), **config})

    def pipeline(self) -> Any:
        """Everything: a composite that completed, one that is tried twice, handlers, branches, a fallback."""
        if self.other is not None:
            return self.other()
        hotel = Pipeline([self.step("room"), self.step("meal")], name="hotel")
        tour = Step.loop_until(
            "tour",
            self.step("bus") >> self.step("boat", raises=True, on_failure=self.handler("guide")),
            lambda output, context: True,
            max_retries=1,
            fallback=Step("walk", self.agent("walk", raises=True), compensate=self.undo("walk")),
            on_failure=[self.handler("office"), self.handler("mail")],
        )
        both = Step.parallel("both", {"a": self.step("a"), "b": self.step("b")})
        return Pipeline([self.step("flight"), hotel, both, tour], on_failure=self.handler("customer"))


def _played(trip: Trip, store: Any, run_id: str = "r") -> Any:
    """The result of the trip, resumed as often as it is cut off."""

    async def main() -> Any:
        result: Any = None
        flujo = Flujo(trip.pipeline(), store=store)
        with trip.scope:
            result = await flujo.run_async("go", run_id=run_id)
        while result is None:
            trip.scope = trio.CancelScope()
            with trip.scope:
                result = await Flujo(trip.pipeline(), store=store).resume_async(run_id)
        return result

    return trio.run(main)


WHOLE = [
    "flight",
    "room",
    "meal",
    "a",
    "b",
    "bus",
    "boat",
    "guide: boat boat broke 1 bus!",
    "undo boat? bus!->None",
    "undo bus {'a': 'a!', 'b': 'b!'}->bus!",
    "bus",
    "boat",
    "guide: boat boat broke 1 bus!",
    "undo boat? bus!->None",
    "undo bus {'a': 'a!', 'b': 'b!'}->bus!",
    "walk",
    "undo walk? {'a': 'a!', 'b': 'b!'}->None",
    "office: tour boat broke 3 {'a': 'a!', 'b': 'b!'}",
    "mail: tour boat broke 3 {'a': 'a!', 'b': 'b!'}",
    "undo b meal!->b!",
    "undo a meal!->a!",
    "undo meal room!->meal!",
    "undo room flight!->room!",
    "undo flight go->flight!",
    "customer: tour boat broke 3 {'a': 'a!', 'b': 'b!'}",
]


def _sorted_branches(log: list[str]) -> list[str]:
    return [*log[:3], *sorted(log[3:5]), *log[5:]]


def test_a_trip_that_fails_is_handled_and_undone_from_the_inside_out() -> None:
    """Without any interruption: the order that the others are held against."""
    trip = Trip()
    result = _played(trip, MemoryStore())
    assert result.status == "failed"
    assert _sorted_branches(trip.log) == WHOLE
    assert [each.step_name for each in result.undone] == [
        "boat", "bus", "boat", "bus", "walk", "b", "a", "meal", "room", "flight",
    ]  # fmt: skip
    assert result.fully_undone


@pytest.mark.slow
@pytest.mark.parametrize("point", sorted(set(WHOLE)))
def test_a_trip_that_is_cut_off_anywhere_goes_on_where_it_was(point: str, tmp_path: Path) -> None:
    """What was in flight is done again, with the same key, and nothing else is."""
    trip = Trip(cut_at=point)
    result = _played(trip, f"sqlite:///{tmp_path / 'runs.db'}")
    assert result.status == "failed"
    place = trip.log.index(point)
    once = [*trip.log[:place], *trip.log[place + 1 :]]
    if point in ("a", "b"):  # its sibling may be in flight, too
        assert sorted(set(trip.log)) == sorted(set(WHOLE))
        assert trip.log[-len(WHOLE) + 5 :] == WHOLE[5:]
    else:
        assert _sorted_branches(once) == WHOLE
    assert all(len(keys) <= 2 for keys in trip.keys.values())  # bus and boat have two attempts, each with its own key
    assert len(trip.keys["flight"]) == len(trip.keys["walk"]) == 1
    assert [each.step_name for each in result.undone] == [
        "boat", "bus", "boat", "bus", "walk", "b", "a", "meal", "room", "flight",
    ]  # fmt: skip
    assert result.fully_undone


def test_a_run_that_recovered_does_so_again_when_it_is_resumed(tmp_path: Path) -> None:
    """The handler's answer is on record: it is not asked twice."""
    trip = Trip(cut_at="ship")
    desk = trip.handler("desk", returns=Recovered({"paid": "cash"}))

    def pipeline() -> Any:
        return Step("pay", trip.agent("pay", raises=True), on_failure=desk) >> Step("ship", trip.agent("ship"))

    trip.other = pipeline
    result = _played(trip, f"sqlite:///{tmp_path / 'runs.db'}")
    assert (result.status, result.output) == ("completed", "ship!")
    assert trip.log == ["pay", "desk: pay pay broke 1 go", "ship", "ship"]
    assert result.step_history[0].output == {"paid": "cash"}


@pytest.mark.parametrize("handles", ["step", "pipeline", "branch"])
def test_a_handler_that_is_repeated_hears_the_same_time(handles: str) -> None:
    """The time of a failure is stored with it, so a resumed run does not fail again."""
    heard: list[Any] = []
    trip = Trip(cut_at="told")

    async def handler(failure: Any) -> None:
        heard.append((failure.at, failure.step_name, failure.attempts))
        await trip.passes("told")

    def pipeline() -> Any:
        mine = [handler] if handles == "step" else ()
        pay = Step("pay", trip.agent("pay", raises=True), on_failure=mine)
        if handles == "branch":
            return Step.parallel("both", {"pay": pay, "mail": trip.step("mail")}, on_failure=handler)
        return Pipeline([trip.step("book"), pay], on_failure=handler if handles == "pipeline" else ())

    trip.other = pipeline
    _played(trip, MemoryStore())
    assert len(heard) == 2
    assert heard[0] == heard[1]


def test_a_compensation_that_is_repeated_hears_the_same_time() -> None:
    """What failed is part of what a compensation is given."""
    heard: list[Any] = []
    trip = Trip(cut_at="told")

    async def undo(undo: Undo) -> None:
        assert undo.failure is not None
        heard.append(undo.failure.at)
        await trip.passes("told")

    trip.other = lambda: (
        Step("book", trip.agent("book"), compensate=undo) >> Step("pay", trip.agent("pay", raises=True))
    )
    _played(trip, MemoryStore())
    assert len(heard) == 2
    assert heard[0] == heard[1]
