"""Every engine that is shipped, and deliberately bad ones, against the same clauses."""

from __future__ import annotations

import collections
import queue
import random
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from temporal_server import temporal_server

from flujo_actors._fleet.engine_port import Engine, ExecuteTicket, Ticket
from flujo_actors._fleet.procrastinate_engine import ProcrastinateEngine
from flujo_actors.testing.engine_conformance import EngineConformance, EnginePlace
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow


_LOSE = """
    UPDATE procrastinate_jobs SET status = 'doing', worker_id = (
        SELECT worker_id FROM procrastinate_jobs WHERE status = 'doing'
    ) WHERE status = 'todo'"""
"""Takes what waits for the worker that executes something now."""


class PostgresPlace(EnginePlace):
    def __init__(self) -> None:
        self.url = session_server().fresh_url()

    def open(self) -> Engine:
        return ProcrastinateEngine(self.url, retry_s=0.2, polling_s=0.5)

    def restart(self) -> None:
        session_server().restart()

    def connection(self) -> Any:
        return psycopg.connect(self.url)


class TestProcrastinate(EngineConformance):
    """A job queue in the store's own Postgres."""

    @pytest.fixture
    def place(self) -> EnginePlace:
        return PostgresPlace()

    def test_a_run_waits_in_the_queue_at_most_once(self, place: PostgresPlace) -> None:
        """Whoever asks again for what waits already adds nothing."""
        engine = place.open()
        engine.prepare()
        engine.submit([Ticket(run_id="one")])
        engine.again([Ticket(run_id="one"), Ticket(run_id="two")])
        engine.submit([Ticket(run_id="two"), Ticket(run_id="three")])
        assert waiting(place) == 3
        engine.withdraw(["one", "two", "three"])
        assert waiting(place) == 0

    def test_what_was_played_leaves_nothing_behind(self, place: PostgresPlace) -> None:
        """No job, whatever became of the run: the store says that."""
        engine, deliveries = place.open(), threading.Event()
        engine.prepare()
        engine.submit([Ticket(run_id="one")])
        stopping = threading.Event()

        def play(run_id: str) -> None:
            deliveries.set()
            stopping.set()

        engine.serve(("default",), 1, play, stopping)
        assert deliveries.is_set()
        assert waiting(place, status="%") == 0

    def test_a_job_that_its_worker_has_lost_is_delivered_again(self, place: PostgresPlace) -> None:
        """Its connection broke at the fetch: the worker lives, so no other one would put the job back."""
        engine = ProcrastinateEngine(place.url, retry_s=0.2, polling_s=0.5, stalled_s=1.0)
        engine.prepare()
        engine.submit([Ticket(run_id="one")])
        stopping, deliveries = threading.Event(), queue.Queue[str]()

        def play(run_id: str) -> None:
            if run_id == "one":
                engine.submit([Ticket(run_id="lost")])
                with psycopg.connect(place.url) as db:
                    db.execute(_LOSE)
            deliveries.put(run_id)

        thread = threading.Thread(target=engine.serve, args=(("default",), 1, play, stopping))
        thread.start()
        assert [deliveries.get(timeout=120), deliveries.get(timeout=120)] == ["one", "lost"]
        stopping.set()
        thread.join()
        assert waiting(place, status="%") == 0

    def test_no_notice_is_missed(self, place: PostgresPlace) -> None:
        """Neither one that comes before the worker listens, nor one that comes while it looks at the queue."""
        engine = ProcrastinateEngine(place.url, polling_s=3600)
        engine.prepare()
        deliveries, stopping = queue.SimpleQueue[str](), threading.Event()
        with ThreadPoolExecutor(1) as threads:
            serving = threads.submit(engine.serve, ("default",), 2, deliveries.put, stopping)
            try:
                for number in range(200):
                    engine.submit([Ticket(run_id=f"run-{number}")])
                    assert deliveries.get(timeout=120) == f"run-{number}"
            finally:
                stopping.set()
            serving.result(timeout=120)


def waiting(place: PostgresPlace, status: str = "todo") -> int:
    with psycopg.connect(place.url) as db:
        [(count,)] = db.execute(
            "SELECT count(*) FROM procrastinate_jobs WHERE status::text LIKE %s", (status,)
        ).fetchall()
        return int(count)


# --- Temporal -----------------------------------------------------------------------------------------------


class TemporalPlace(EnginePlace):
    ask_again_s = 4.0
    patience_s = 90.0

    def __init__(self) -> None:
        self.address, self.prefix = temporal_server().address, f"test-{uuid.uuid4().hex[:8]}-"

    def open(self) -> Engine:
        from flujo_actors._fleet.temporal_engine import TemporalEngine

        return TemporalEngine(self.address, prefix=self.prefix, heartbeat_s=2.0)

    def restart(self) -> None:
        temporal_server().kill()
        temporal_server().start()


@pytest.mark.engines
class TestTemporal(EngineConformance):
    """Standalone activities of a Temporal server."""

    @pytest.fixture
    def place(self) -> EnginePlace:
        return TemporalPlace()


# --- bad ones -----------------------------------------------------------------------------------------------


class Bad:
    """Loses every third ticket that is handed in, delivers others twice, late, and in any order."""

    def __init__(self, place: BadPlace) -> None:
        self._place = place

    def prepare(self) -> None:
        pass

    def submit(self, tickets: Sequence[Ticket], connection: Any = None) -> None:
        kept = [ticket for ticket in tickets if self._place.rng.random() > 1 / 3]
        self.again([*kept, *kept])

    def again(self, tickets: Sequence[Ticket]) -> None:
        with self._place.changed:
            for ticket in tickets:
                self._place.queues[ticket.queue].append(ticket.run_id)
            self._place.changed.notify_all()

    def withdraw(self, run_ids: Sequence[str]) -> None:
        pass

    def serve(self, queues: Sequence[str], slots: int, play: ExecuteTicket, stopping: threading.Event) -> None:
        with ThreadPoolExecutor(slots) as threads:
            for _ in range(slots):
                threads.submit(self._serve, queues, play, stopping)

    def _serve(self, queues: Sequence[str], play: ExecuteTicket, stopping: threading.Event) -> None:
        while not stopping.is_set():
            run_id = self._next(queues)
            if run_id is not None:
                play(run_id)

    def _next(self, queues: Sequence[str]) -> str | None:
        with self._place.changed:
            self._place.changed.wait(0.01)  # late
            waiting = [self._place.queues[queue] for queue in queues if self._place.queues[queue]]
            return waiting[0].pop(self._place.rng.randrange(len(waiting[0]))) if waiting else None


class WithoutAgain(Bad):
    """The same, and it cannot be asked again."""

    def submit(self, tickets: Sequence[Ticket], connection: Any = None) -> None:
        super().again([ticket for ticket in tickets if self._place.rng.random() > 1 / 3])

    def again(self, tickets: Sequence[Ticket]) -> None:
        pass


class BadPlace(EnginePlace):
    patience_s = 5.0
    ask_again_s = 0.1

    def __init__(self, kind: Callable[[BadPlace], Engine]) -> None:
        self._kind = kind
        self.rng = random.Random(1)
        self.changed = threading.Condition()
        self.queues: dict[str, list[str]] = collections.defaultdict(list)

    def open(self) -> Engine:
        return self._kind(self)


class TestBadEngine(EngineConformance):
    """What is late, twice or lost does not matter."""

    @pytest.fixture
    def place(self) -> EnginePlace:
        return BadPlace(Bad)


def test_an_engine_that_cannot_be_asked_again_is_none() -> None:
    """What it loses is lost, and the suite says so."""
    place = BadPlace(WithoutAgain)
    place.patience_s = 0.5
    engine = place.open()
    suite = EngineConformance()
    with pytest.raises(pytest.fail.Exception, match="not delivered"):
        suite.test_several_workers_share_the_work(place, engine, played_on(place, engine))


def played_on(place: EnginePlace, engine: Engine) -> Any:
    from flujo_actors.testing.engine_conformance import Deliveries

    return Deliveries(place, engine)
