"""Maps of many items that run elsewhere: in full batches, with few of them under way, whatever their number."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
import trio
from fleet_waiting import while_it_moves

from flujo_actors import Flujo, Step, Ticket
from flujo_actors._fleet.map_batches import BATCHES_AT_ONCE
from flujo_actors._fleet.procrastinate_engine import ProcrastinateEngine
from flujo_actors._fleet.remote_call import RemoteCall
from flujo_actors._runtime.run.messages import StepRequest
from flujo_actors.stores import PostgresStore
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow

BATCH, BATCHES = 200, 16


async def double(number: int) -> int:
    return 2 * number


def living(monkeypatch: pytest.MonkeyPatch, kind: type) -> weakref.WeakSet[object]:
    """The instances of a class that are still referenced.

    `gc.get_objects` would reference objects of other threads that are being built: a tuple then cannot be resized.
    """
    found: weakref.WeakSet[object] = weakref.WeakSet()
    made = kind.__init__

    def made_and_noted(me: object, *args: object, **options: object) -> None:
        made(me, *args, **options)
        found.add(me)

    monkeypatch.setattr(kind, "__init__", made_and_noted)
    return found


class Counting(ProcrastinateEngine):
    """Counts calls, requests and running steps whenever tickets are submitted."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(url)
        self.tickets: list[str] = []
        self.calls, self.requests = living(monkeypatch, RemoteCall), living(monkeypatch, StepRequest)
        self.running = self.most_calls = self.most_requests = 0

    def submit(self, tickets: Sequence[Ticket], connection: Any = None) -> None:
        super().submit(tickets, connection)
        self.tickets.extend(ticket.run_id for ticket in tickets)
        self.most_calls = max(self.most_calls, len(self.calls))
        self.most_requests = max(self.most_requests, len(self.requests))
        self.running = max(self.running, running_children(self._url))


def running_children(url: str) -> int:
    return counted(url, "flujo_runs WHERE parent IS NOT NULL AND status = 'running'")


def records(url: str) -> int:
    """How much was done so far."""
    return counted(url, "flujo_records")


def counted(url: str, rows: str) -> int:
    with psycopg.connect(url) as db:
        if db.execute("SELECT to_regclass('flujo_records')").fetchall() == [(None,)]:
            return 0  # the store has not been used yet
        [(count,)] = db.execute(f"SELECT count(*) FROM {rows}".encode()).fetchall()
        return int(count)


def test_a_large_map_goes_in_full_batches_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is at once does not grow with the items: tickets, remote runs, rows of a look, objects."""
    looks: list[int] = []
    standing = PostgresStore.standing
    monkeypatch.setattr(PostgresStore, "standing", lambda me, ids: (looks.append(len(ids)), standing(me, ids))[1])
    url = session_server().fresh_url()
    engine = Counting(url, monkeypatch)
    flujo = Flujo(Step.map_over("items", Step("double", double, runs_on="gpu"), batch=BATCH), store=url, engine=engine)

    async def main() -> Any:
        async with flujo.worker("gpu", slots=4, grace_s=0), while_it_moves(lambda: records(url)):
            return await flujo.run_async(list(range(BATCH * BATCHES)))

    assert trio.run(main).output == [2 * number for number in range(BATCH * BATCHES)]
    assert len(engine.tickets) == len(set(engine.tickets)) == BATCHES
    assert engine.running <= BATCHES_AT_ONCE
    assert max(looks, default=0) <= 2 * BATCHES_AT_ONCE, "some of these have ended, and their items are being taken in"
    assert engine.most_calls <= 2 * BATCHES_AT_ONCE
    assert engine.most_requests < 2.5 * BATCHES_AT_ONCE * BATCH, "of the caller and of the worker"


def test_a_failed_commit_of_a_worker_delays_its_batches_and_stalls_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller is notified of batches without a result; each of their items waits for the next notice."""
    append, failed = PostgresStore.append, []

    def fails_once(me: PostgresStore, appends: Any, *args: Any, **options: Any) -> Any:
        if not failed and "~b1" in repr(appends):
            failed.append(1)
            raise OSError("disk full")
        return append(me, appends, *args, **options)

    monkeypatch.setattr(PostgresStore, "append", fails_once)
    url = session_server().fresh_url()
    items = Step.map_over("items", Step("double", double, runs_on="gpu"), batch=50)
    flujo = Flujo(items, store=url, engine="postgres")

    async def main() -> Any:
        async with flujo.worker("gpu", slots=4, grace_s=0), while_it_moves(lambda: records(url)):
            return await flujo.run_async(list(range(200)))

    with caplog.at_level(logging.WARNING):
        assert trio.run(main).output == [2 * number for number in range(200)]
    assert failed
    assert "was not finished here: the store raised OSError: disk full" in caplog.text
    assert "ExceptionGroup" not in caplog.text


def test_a_batch_that_went_without_some_items_is_done_without_them() -> None:
    """As when a deploy changed the size of batches: the others are asked for alone, and nothing waits for ever."""
    url = session_server().fresh_url()

    def make(batch: int) -> Flujo[Any, Any, Any]:
        items = Step.map_over("items", Step("double", double, runs_on="gpu"), batch=batch)
        return Flujo(items, store=url, engine="postgres", settings={"fleet": {"look_s": 0.2, "unclaimed_s": 1.0}})

    async def submitted() -> None:
        await make(2).run_async([1, 2, 3, 4], run_id="run")

    async def main() -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submitted)
            while await trio.to_thread.run_sync(running_children, url) < 2:
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        after = make(4)
        async with after.worker("gpu", slots=4, grace_s=0):
            with trio.fail_after(120):
                return await after.resume_async("run")

    assert trio.run(main).output == [2, 4, 6, 8]
