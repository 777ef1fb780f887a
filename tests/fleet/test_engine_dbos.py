"""DBOS queues in the store's own Postgres, against the clauses of every engine, and as the carrier of a real fleet."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import psycopg
import pytest
from fleet_waiting import until

from flujo_actors import Ticket
from flujo_actors._fleet.engine_port import Engine
from flujo_actors.testing.engine_conformance import Deliveries, EngineConformance, EnginePlace, serving
from kit import preloaded
from kit.postgres_server import session_server

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        importlib.util.find_spec("dbos") is None, reason="dbos is not installed: the DBOS engine is NOT tested here"
    ),
]


class DbosPlace(EnginePlace):
    def __init__(self) -> None:
        self.url = session_server().fresh_url()

    def open(self) -> Engine:
        from flujo_actors._fleet.contrib.dbos_engine import DbosEngine

        return DbosEngine(self.url, retry_s=0.2)

    def restart(self) -> None:
        session_server().restart()

    def connection(self) -> Any:
        return psycopg.connect(self.url)


class TestDbos(EngineConformance):
    """Workflows without steps, in queues that are looked at ten times a second."""

    @pytest.fixture
    def place(self) -> EnginePlace:
        return DbosPlace()

    def test_a_run_waits_in_the_queue_at_most_once(self, place: DbosPlace) -> None:
        """Whoever asks again for what waits already adds nothing."""
        engine = place.open()
        engine.prepare()
        engine.submit([Ticket(run_id="one"), Ticket(run_id="one")])
        engine.again([Ticket(run_id="one"), Ticket(run_id="two")])
        engine.submit([Ticket(run_id="two"), Ticket(run_id="three")])
        assert len(workflows(place.url)) == 3
        engine.withdraw(["one", "two", "three"])
        assert workflows(place.url) == []

    def test_workers_that_start_together_make_the_tables_once(self, place: DbosPlace) -> None:
        """Who builds an index concurrently waits for every statement, and so for whoever would wait for a lock."""
        make = f"from flujo_actors._fleet.contrib.dbos_engine import DbosEngine; DbosEngine({place.url!r}).prepare()"
        started = [preloaded.Popen([sys.executable, "-c", make]) for _ in range(3)]
        try:
            assert [each.wait(timeout=120) for each in started] == [0, 0, 0]
        finally:
            for each in started:
                each.kill()
                each.wait()

    def test_what_was_played_leaves_nothing_behind(self, place: DbosPlace) -> None:
        """No workflow, whatever became of the run: the store says that."""
        engine = place.open()
        engine.prepare()
        deliveries = Deliveries(place, engine)
        with serving(place, deliveries):
            engine.submit([Ticket(run_id="one")])
            deliveries.wait([Ticket(run_id="one")])
            until(lambda: workflows(place.url) == [])


def workflows(url: str) -> list[Any]:
    with psycopg.connect(url) as db:
        [(schema,)] = db.execute("SELECT current_schema()").fetchall()
        return db.execute(f'SELECT * FROM "{schema}_dbos".workflow_status').fetchall()
