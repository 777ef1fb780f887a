"""Runs that a caller's timeout has cut: free at once, visible, and either continued or deleted."""

from __future__ import annotations

import pytest
import trio

from flujo_actors import Flujo, RunClient, Step
from flujo_actors.stores import Store
from kit.durable_places import Place


async def quick(x: int) -> int:
    return x + 1


class Gate:
    """A step that waits until the gate is opened."""

    def __init__(self) -> None:
        self.is_open = False
        self.reached = trio.Event()

    async def __call__(self, x: int) -> int:
        self.reached.set()
        if not self.is_open:
            await trio.sleep_forever()
        return x * 10


def cut(flujo: Flujo[int, int], gate: Gate, run_id: str) -> None:
    """Cancel a run in its second step, as a timeout of its caller does."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: flujo.run_async(1, run_id=run_id))
            await gate.reached.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def store(place: Place) -> Store:
    return place.open()


def flujo_of(gate: Gate, store: Store) -> Flujo[int, int]:
    return Flujo(Step("quick", quick) >> Step("gate", gate), store=store)


def test_a_cut_run_is_free_at_once_and_has_a_state(gate: Gate, store: Store) -> None:
    """Its lease is released: it can be claimed, and is blocked while no worker can."""
    cut(flujo_of(gate, store), gate, "r")
    info = RunClient(store).get("r")
    assert (info.status, info.state) == ("running", "blocked")
    assert info.reason == "no live worker serves queue 'default'"
    assert [run.run_id for run in RunClient(store).list(state="blocked")] == ["r"]


def test_recovery_continues_a_cut_run(gate: Gate, store: Store) -> None:
    """The first recovery completes it without repeating its steps."""
    flujo = flujo_of(gate, store)
    cut(flujo, gate, "r")
    gate.is_open = True
    assert [(result.run_id, result.output) for result in flujo.recover()] == [("r", 20)]
    assert RunClient(store).list("running") == []


def test_cut_runs_are_deleted_by_their_age(gate: Gate, store: Store) -> None:
    """`forget` deletes them if it is given their status; runs with an owner stay."""
    flujo = flujo_of(gate, store)
    cut(flujo, gate, "r")
    client = RunClient(store)
    assert client.forget(older_than_s=0.0) == 0
    assert client.forget(older_than_s=3600, statuses=("running",)) == 0
    gate.reached = trio.Event()

    async def main() -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: flujo.run_async(1, run_id="owned"))
            await gate.reached.wait()
            forgotten = await trio.to_thread.run_sync(lambda: client.forget(older_than_s=0.0, statuses=("running",)))
            nursery.cancel_scope.cancel()
        return forgotten

    assert trio.run(main) == 1
    assert [run.run_id for run in client.list()] == ["owned"]
