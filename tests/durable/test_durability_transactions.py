"""Steps that write through the store's own transaction: exactly once, however often the process dies."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio

from flujo_actors import Backoff, DeclarationError, Flujo, LeaseLost, Pipeline, RunClient, Step
from flujo_actors.stores._memory_store import MemoryStore
from kit.durable_places import AN_HOUR_LATER, Place
from kit.effects import Effects
from kit.other_processes import KILLED, PointedStore, Points, ended, forked

pytestmark = pytest.mark.slow

TABLE = "CREATE TABLE transfers (run_id text, amount int)"
INSERT = "INSERT INTO transfers (run_id, amount) VALUES (%s, %s)"


def transferring(place: Place, run_id: str, passing: Any = lambda name: None) -> Pipeline:
    """A step before, one that writes a row, one after."""

    async def transfer(data: int, *, transaction: Any) -> int:
        passing("before the row")
        await trio.to_thread.run_sync(lambda: place.write_through(transaction, INSERT, run_id, data))
        passing("after the row")
        return data + 1

    return Step("before", lambda data: data + 1) >> Step("transfer", transfer) >> Step("after", lambda data: data + 1)


def rows(place: Place, run_id: str) -> list[tuple[int]]:
    return place.query("SELECT amount FROM transfers WHERE run_id = %s", run_id)


def test_a_kill_at_any_point_around_a_transaction_writes_its_row_once(place: Place) -> None:
    """Before and after the row, the append and the commit: the row and the step's outcome are there together."""
    place.query(TABLE)
    late = place.open(AN_HOUR_LATER)
    for number in itertools.count(1):
        run_id, points = f"run {number}", Points(number)
        dying = Flujo(transferring(place, run_id, points), store=PointedStore(place.open(), points))
        code = ended(forked(lambda: dying.run(0, run_id=run_id)))  # noqa: B023 - called at once
        if code == 0:
            break
        assert code == KILLED
        if run_id in {run.run_id for run in RunClient(late).list()}:
            settled = "transfer" in RunClient(late).outcomes(run_id)
            assert rows(place, run_id) == ([(1,)] if settled else [])
            _finished(late, transferring(place, run_id), run_id)
            assert rows(place, run_id) == [(1,)], number
    assert number > 12
    place.check()


def _finished(store: Any, pipeline: Pipeline, run_id: str) -> None:
    if RunClient(store).get(run_id).status != "completed":
        result = Flujo(pipeline, store=store).resume(run_id)
        assert (result.status, result.output) == ("completed", 3)


def test_a_step_that_fails_takes_its_rows_back(place: Place, effects: Effects) -> None:
    """Also the attempts that are tried again: what is left is of the one that succeeded."""
    place.query(TABLE)

    async def transfer(data: int, *, transaction: Any) -> int:
        effects.add("attempt")
        place.write_through(transaction, INSERT, "run", effects.counted()["attempt"])
        if effects.counted()["attempt"] < 3:
            raise ValueError("not yet")
        return data

    flujo = Flujo(Step("transfer", transfer, max_retries=2, backoff=Backoff.none()), store=place.open())
    assert flujo.run(0).status == "completed"
    assert rows(place, "run") == [(3,)]


def test_an_outcome_that_cannot_be_stored_takes_its_rows_back(place: Place) -> None:
    """The outcome and the row commit together or not at all."""
    place.query(TABLE)

    async def transfer(data: int, *, transaction: Any) -> Any:
        place.write_through(transaction, INSERT, "run", 1)
        return object()

    result = Flujo(Step("transfer", transfer), store=place.open()).run(0, run_id="run")
    assert (result.status, rows(place, "run")) == ("failed", [])


@pytest.mark.parametrize("swallows", [False, True])
def test_a_cancelled_transaction_is_rolled_back_and_its_locks_are_gone(place: Place, swallows: bool) -> None:
    """Also if the step ignores the cancellation and returns: nobody asked for its result any more."""
    place.query(TABLE)

    async def cancelled() -> None:
        with trio.CancelScope() as scope:

            async def transfer(data: int, *, transaction: Any) -> int:
                place.write_through(transaction, INSERT, "run", 1)
                scope.cancel()
                if not swallows:
                    await trio.sleep_forever()
                return data

            await Flujo(Step("transfer", transfer), store=place.open()).run_async(0, run_id="run")

    trio.run(cancelled)
    assert rows(place, "run") == []
    place.query(INSERT, "someone else", 2)  # nothing holds the table or the file any more
    assert RunClient(place.open()).get("run").abandoned


def test_a_thief_makes_the_owner_take_its_rows_back(place: Place) -> None:
    """The lease is checked in the transaction itself."""
    place.query(TABLE)
    store, late = place.open(), place.open(AN_HOUR_LATER)

    async def transfer(data: int, *, transaction: Any) -> int:
        late.claim("run", owner="thief", lease_s=7200)
        place.write_through(transaction, INSERT, "run", 1)
        return data

    with pytest.raises(LeaseLost):
        Flujo(Step("transfer", transfer), store=store).run(0, run_id="run")
    assert rows(place, "run") == []


def test_a_transaction_needs_a_store() -> None:
    """Without one the step is refused when the Flujo is made; a store in memory has no connection to give."""

    async def transfer(data: int, *, transaction: Any) -> bool:
        return transaction is None

    with pytest.raises(DeclarationError, match="transaction"):
        Flujo(Step("transfer", transfer))
    assert Flujo(Step("transfer", transfer), store=MemoryStore()).run(0).output is True
