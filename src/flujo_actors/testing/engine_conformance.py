"""Conformance suite for engines that deliver tickets.

```python
import pytest
from flujo_actors.testing.engine_conformance import EngineConformance, EnginePlace

class MyPlace(EnginePlace):
    def open(self): return MyEngine(self.address)

class TestMyEngine(EngineConformance):
    @pytest.fixture
    def place(self):
        return MyPlace()
```

An engine may be late, deliver twice, and lose a ticket: the suite does the same as the library, and submits missing
tickets `again`. An engine may not lose a resubmitted ticket forever.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from outcome import Error, Outcome, capture

from .._core.lazy_exports import missing_extra
from .._fleet.engine_port import Engine, Ticket

try:
    import pytest
except ModuleNotFoundError as _missing:
    raise missing_extra(_missing, extra=None, needed_by="flujo_actors.testing.engine_conformance") from _missing

ODD_IDS = ("with space", "quotes \" ' `", "new\nline", "nul \0", "emoji 🦜", "a/b@c#d%20", "{}[]", "ünïcode")


class EnginePlace:
    """Location shared by engines of one kind; empty for each test."""

    patience_s: float = 30.0
    """Timeout of the next ticket, on a slow machine."""
    ask_again_s: float = 1.0
    """Seconds after which the suite resubmits missing tickets."""

    def open(self) -> Engine:
        """Return an engine on this location; each call represents another process."""
        raise NotImplementedError

    def restart(self) -> None:
        """Stop and restart the engine's server, if there is one."""
        pytest.skip("this engine has no server to restart")

    def connection(self) -> Any:
        """Return an open connection whose transactions can include tickets, or None."""
        pytest.skip("this engine shares no transactions")


class Deliveries:
    """Executed tickets, and their waiters."""

    def __init__(self, place: EnginePlace, engine: Engine) -> None:
        self._place, self._engine = place, engine
        self.runs: Counter[str] = Counter()
        self.at_once: int = 0
        self.most_at_once: int = 0
        self.changed: threading.Condition = threading.Condition()
        self.gate: threading.Event = threading.Event()
        """Gate of executing tickets; open unless a test closes it."""
        self.gate.set()

    def play(self, run_id: str) -> None:
        with self.changed:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.changed.notify_all()
        self.gate.wait(self._place.patience_s)
        with self.changed:
            self.runs[run_id] += 1
            self.at_once -= 1
            self.changed.notify_all()

    def wait(self, tickets: Sequence[Ticket]) -> None:
        """Wait until all tickets were executed, resubmitting missing ones."""
        wanted = {ticket.run_id: ticket for ticket in tickets}

        def missing() -> list[Ticket]:
            return [ticket for run_id, ticket in wanted.items() if not self.runs[run_id]]

        left, deadline = len(wanted), time.monotonic() + self._place.patience_s
        while time.monotonic() < deadline:
            if self.until(lambda: not missing(), self._place.ask_again_s):
                return
            if len(missing()) < left:
                left, deadline = len(missing()), time.monotonic() + self._place.patience_s
            else:
                self._engine.again(missing())
        pytest.fail(f"not delivered, though asked for again and again: {[ticket.run_id for ticket in missing()]}")

    def until(self, holds: Callable[[], bool], seconds: float | None = None) -> bool:
        with self.changed:
            return self.changed.wait_for(holds, self._place.patience_s if seconds is None else seconds)


class EngineConformance:
    """All clauses; subclasses provide a fixture `place` with an empty `EnginePlace`."""

    @pytest.fixture
    def engine(self, place: EnginePlace) -> Engine:
        """An engine that is ready."""
        engine = place.open()
        engine.prepare()
        return engine

    @pytest.fixture
    def deliveries(self, place: EnginePlace, engine: Engine) -> Deliveries:
        """Tickets executed by the workers of this test."""
        return Deliveries(place, engine)

    def test_it_can_be_prepared_again(self, place: EnginePlace, engine: Engine) -> None:
        """By anybody, at any time, as every worker does when it starts."""
        engine.prepare()
        place.open().prepare()

    def test_a_ticket_reaches_a_worker_that_was_there(
        self, place: EnginePlace, engine: Engine, deliveries: Deliveries
    ) -> None:
        """Also if another process submits it."""
        with serving(place, deliveries):
            tickets = [Ticket(run_id="one"), Ticket(run_id="two")]
            engine.submit(tickets)
            deliveries.wait(tickets)

    def test_a_ticket_waits_for_a_worker(self, place: EnginePlace, engine: Engine, deliveries: Deliveries) -> None:
        """A ticket submitted without workers is delivered to the next one."""
        tickets = [Ticket(run_id=f"run {number}") for number in range(3)]
        engine.submit(tickets)
        with serving(place, deliveries):
            deliveries.wait(tickets)

    def test_names_come_as_they_were(self, place: EnginePlace, engine: Engine, deliveries: Deliveries) -> None:
        """A run's id may be any text."""
        tickets = [Ticket(run_id=odd, pipeline=odd) for odd in ODD_IDS]
        with serving(place, deliveries):
            engine.submit(tickets)
            deliveries.wait(tickets)
        assert set(deliveries.runs) == set(ODD_IDS)

    def test_workers_get_what_is_in_their_queues(
        self, place: EnginePlace, engine: Engine, deliveries: Deliveries
    ) -> None:
        """One of several queues, and nothing of the others."""
        mine = [Ticket(run_id="mine", queue="gpu"), Ticket(run_id="mine, too", queue="large gpu")]
        with serving(place, deliveries, queues=("gpu", "large gpu")):
            engine.submit([*mine, Ticket(run_id="theirs", queue="cpu")])
            deliveries.wait(mine)
        assert "theirs" not in deliveries.runs

    def test_no_more_is_played_at_once_than_there_are_slots(
        self, place: EnginePlace, engine: Engine, deliveries: Deliveries
    ) -> None:
        """Whatever waits."""
        tickets = [Ticket(run_id=f"run {number}") for number in range(6)]
        deliveries.gate.clear()
        with serving(place, deliveries, slots=2):
            engine.submit(tickets)
            assert deliveries.until(lambda: deliveries.at_once == 2)
            deliveries.gate.set()
            deliveries.wait(tickets)
        assert deliveries.most_at_once == 2

    def test_what_was_played_can_be_asked_for_again(
        self, place: EnginePlace, engine: Engine, deliveries: Deliveries
    ) -> None:
        """Its worker may have died over it."""
        ticket = Ticket(run_id="again")
        with serving(place, deliveries):
            engine.submit([ticket])
            deliveries.wait([ticket])
            before = deliveries.runs["again"]
            deadline = time.monotonic() + place.patience_s
            while not deliveries.until(lambda: deliveries.runs["again"] > before, place.ask_again_s):
                assert time.monotonic() < deadline, "it was asked for again, and did not come"
                engine.again([ticket])
            assert deliveries.runs["again"] > before

    def test_what_nobody_handed_in_can_be_asked_for(
        self, place: EnginePlace, engine: Engine, deliveries: Deliveries
    ) -> None:
        """The submitter may have died after admitting the run."""
        ticket = Ticket(run_id="forgotten")
        with serving(place, deliveries):
            engine.again([ticket])
            deliveries.wait([ticket])

    def test_nothing_happens_if_nothing_is_handed_in(self, engine: Engine) -> None:
        """An empty list is a list."""
        engine.submit([])
        engine.again([])
        engine.withdraw([])

    def test_several_workers_share_the_work(self, place: EnginePlace, engine: Engine, deliveries: Deliveries) -> None:
        """Every ticket reaches one of them."""
        tickets = [Ticket(run_id=f"run {number}") for number in range(40)]
        with serving(place, deliveries), serving(place, deliveries):
            engine.submit(tickets)
            deliveries.wait(tickets)

    def test_a_worker_that_stops_takes_nothing_new(
        self, place: EnginePlace, engine: Engine, deliveries: Deliveries
    ) -> None:
        """It completes running tickets; the rest waits for other workers."""
        first, second = Ticket(run_id="first"), Ticket(run_id="second")
        deliveries.gate.clear()
        with serving(place, deliveries, slots=1) as stopping:
            engine.submit([first])
            while not deliveries.until(lambda: deliveries.at_once == 1, place.ask_again_s):
                engine.again([first])
            stopping.set()
            deliveries.gate.set()
        served = Deliveries(place, engine)
        engine.submit([second])
        with serving(place, served):
            served.wait([second])
        assert deliveries.runs["first"] == 1

    def test_what_was_withdrawn_may_come_all_the_same(
        self, place: EnginePlace, engine: Engine, deliveries: Deliveries
    ) -> None:
        """A withdrawal is a hint, and leaves other tickets alone."""
        tickets = [Ticket(run_id="kept"), Ticket(run_id="dropped")]
        engine.submit(tickets)
        engine.withdraw(["dropped", "never heard of"])
        with serving(place, deliveries):
            deliveries.wait(tickets[:1])

    def test_a_ticket_for_later_comes(self, place: EnginePlace, engine: Engine, deliveries: Deliveries) -> None:
        """The ticket arrives when due, or before."""
        ticket = Ticket(run_id="later", not_before=time.time() + 0.5, priority=3, trace={"traceparent": "00-ab-cd-01"})
        with serving(place, deliveries):
            engine.submit([ticket])
            deliveries.wait([ticket])

    def test_it_survives_a_restart_of_its_server(
        self, place: EnginePlace, engine: Engine, deliveries: Deliveries
    ) -> None:
        """Workers reconnect by themselves; earlier and later tickets are delivered."""
        before, after = Ticket(run_id="before"), Ticket(run_id="after")
        with serving(place, deliveries):
            engine.submit([before])
            deliveries.wait([before])
            place.restart()
            submitted(place, engine, [after])
            deliveries.wait([after])

    def test_tickets_are_part_of_a_transaction(
        self, place: EnginePlace, engine: Engine, deliveries: Deliveries
    ) -> None:
        """They are delivered if it commits, and not if it rolls back."""
        with place.connection() as connection:
            engine.submit([Ticket(run_id="rolled back")], connection)
            connection.rollback()
            engine.submit([Ticket(run_id="committed")], connection)
            connection.commit()
        with serving(place, deliveries):
            deliveries.wait([Ticket(run_id="committed")])
        assert "rolled back" not in deliveries.runs


def submitted(place: EnginePlace, engine: Engine, tickets: Sequence[Ticket]) -> None:
    """Submit tickets to a server that may be restarting."""
    deadline = time.monotonic() + place.patience_s
    while isinstance(got := capture(engine.submit, tickets), Error):  # each engine has errors of its own
        if time.monotonic() > deadline:
            raise got.error
        threading.Event().wait(0.2)


@contextlib.contextmanager
def serving(
    place: EnginePlace, deliveries: Deliveries, *, queues: Sequence[str] = ("default",), slots: int = 4
) -> Iterator[threading.Event]:
    """Run a worker in a thread until the block is left."""
    stopping = threading.Event()
    got: list[Outcome[None]] = []

    def serve() -> None:
        got.append(capture(place.open().serve, queues, slots, deliveries.play, stopping))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield stopping
    finally:
        deliveries.gate.set()
        stopping.set()
        thread.join(place.patience_s)
    assert not thread.is_alive(), "serve() did not return after `stopping` was set"
    for each in got:
        each.unwrap()


Played = Deliveries  # former name
