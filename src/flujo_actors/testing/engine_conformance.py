"""The conformance suite for engines: what everything that carries tickets must do, as tests that run on yours.

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

An engine may be late, deliver twice, and lose what was handed in: the suite does what the library does about it, and
asks `again` for what has not come. It may not lose what it was asked for again, for ever.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from outcome import Error, Outcome, capture

from .._fleet.port import Engine, Ticket

ODD_IDS = ("with space", "quotes \" ' `", "new\nline", "nul \0", "emoji 🦜", "a/b@c#d%20", "{}[]", "ünïcode")


class EnginePlace:
    """Where engines of one kind meet; the suite makes one for each test, and it is empty then."""

    patience_s: float = 30.0
    """How long it may take until the next ticket comes, on a slow machine."""
    ask_again_s: float = 1.0
    """After how many seconds the suite asks again for what has not come."""

    def open(self) -> Engine:
        """An engine on this place; each call stands for another process."""
        raise NotImplementedError

    def restart(self) -> None:
        """Take the engine's server away and bring it back, if there is one."""
        pytest.skip("this engine has no server to restart")

    def connection(self) -> Any:
        """An open connection to the database whose transactions tickets can be part of, if there is one."""
        pytest.skip("this engine shares no transactions")


class Played:
    """What was played, and who waits for it."""

    def __init__(self, place: EnginePlace, engine: Engine) -> None:
        self._place, self._engine = place, engine
        self.runs: Counter[str] = Counter()
        self.at_once: int = 0
        self.most_at_once: int = 0
        self.changed: threading.Condition = threading.Condition()
        self.gate: threading.Event = threading.Event()
        """Open unless a test closes it: what is played waits there."""
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
        """Until all of them were played, asking again, as the library does, when no more come."""
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
    """All clauses; subclass it with a fixture `place` that returns an empty `EnginePlace`."""

    @pytest.fixture
    def engine(self, place: EnginePlace) -> Engine:
        """An engine that is ready."""
        engine = place.open()
        engine.prepare()
        return engine

    @pytest.fixture
    def played(self, place: EnginePlace, engine: Engine) -> Played:
        """What the workers of this test have played."""
        return Played(place, engine)

    def test_it_can_be_prepared_again(self, place: EnginePlace, engine: Engine) -> None:
        """By anybody, at any time, as every worker does when it starts."""
        engine.prepare()
        place.open().prepare()

    def test_a_ticket_reaches_a_worker_that_was_there(self, place: EnginePlace, engine: Engine, played: Played) -> None:
        """Also if another process hands it in."""
        with serving(place, played):
            tickets = [Ticket(run_id="one"), Ticket(run_id="two")]
            engine.submit(tickets)
            played.wait(tickets)

    def test_a_ticket_waits_for_a_worker(self, place: EnginePlace, engine: Engine, played: Played) -> None:
        """What was handed in while nobody served is there for whoever comes."""
        tickets = [Ticket(run_id=f"run {number}") for number in range(3)]
        engine.submit(tickets)
        with serving(place, played):
            played.wait(tickets)

    def test_names_come_as_they_were(self, place: EnginePlace, engine: Engine, played: Played) -> None:
        """A run's id may be any text."""
        tickets = [Ticket(run_id=odd, pipeline=odd) for odd in ODD_IDS]
        with serving(place, played):
            engine.submit(tickets)
            played.wait(tickets)
        assert set(played.runs) == set(ODD_IDS)

    def test_workers_get_what_is_in_their_queues(self, place: EnginePlace, engine: Engine, played: Played) -> None:
        """One of several, and nothing of others'."""
        mine = [Ticket(run_id="mine", queue="gpu"), Ticket(run_id="mine, too", queue="large gpu")]
        with serving(place, played, queues=("gpu", "large gpu")):
            engine.submit([*mine, Ticket(run_id="theirs", queue="cpu")])
            played.wait(mine)
        assert "theirs" not in played.runs

    def test_no_more_is_played_at_once_than_there_are_slots(
        self, place: EnginePlace, engine: Engine, played: Played
    ) -> None:
        """Whatever waits."""
        tickets = [Ticket(run_id=f"run {number}") for number in range(6)]
        played.gate.clear()
        with serving(place, played, slots=2):
            engine.submit(tickets)
            assert played.until(lambda: played.at_once == 2)
            played.gate.set()
            played.wait(tickets)
        assert played.most_at_once == 2

    def test_what_was_played_can_be_asked_for_again(self, place: EnginePlace, engine: Engine, played: Played) -> None:
        """Its worker may have died over it."""
        ticket = Ticket(run_id="again")
        with serving(place, played):
            engine.submit([ticket])
            played.wait([ticket])
            before = played.runs["again"]
            deadline = time.monotonic() + place.patience_s
            while not played.until(lambda: played.runs["again"] > before, place.ask_again_s):
                assert time.monotonic() < deadline, "it was asked for again, and did not come"
                engine.again([ticket])
            assert played.runs["again"] > before

    def test_what_nobody_handed_in_can_be_asked_for(self, place: EnginePlace, engine: Engine, played: Played) -> None:
        """Whoever admitted the run may have died before it could."""
        ticket = Ticket(run_id="forgotten")
        with serving(place, played):
            engine.again([ticket])
            played.wait([ticket])

    def test_nothing_happens_if_nothing_is_handed_in(self, engine: Engine) -> None:
        """An empty list is a list."""
        engine.submit([])
        engine.again([])
        engine.withdraw([])

    def test_several_workers_share_the_work(self, place: EnginePlace, engine: Engine, played: Played) -> None:
        """Every ticket reaches one of them."""
        tickets = [Ticket(run_id=f"run {number}") for number in range(40)]
        with serving(place, played), serving(place, played):
            engine.submit(tickets)
            played.wait(tickets)

    def test_a_worker_that_stops_takes_nothing_new(self, place: EnginePlace, engine: Engine, played: Played) -> None:
        """What it plays it ends; the rest waits for others."""
        first, second = Ticket(run_id="first"), Ticket(run_id="second")
        played.gate.clear()
        with serving(place, played, slots=1) as stopping:
            engine.submit([first])
            while not played.until(lambda: played.at_once == 1, place.ask_again_s):
                engine.again([first])
            stopping.set()
            played.gate.set()
        served = Played(place, engine)
        engine.submit([second])
        with serving(place, served):
            served.wait([second])
        assert played.runs["first"] == 1

    def test_what_was_withdrawn_may_come_all_the_same(self, place: EnginePlace, engine: Engine, played: Played) -> None:
        """It is a hint; and the others are not touched by it."""
        tickets = [Ticket(run_id="kept"), Ticket(run_id="dropped")]
        engine.submit(tickets)
        engine.withdraw(["dropped", "never heard of"])
        with serving(place, played):
            played.wait(tickets[:1])

    def test_a_ticket_for_later_comes(self, place: EnginePlace, engine: Engine, played: Played) -> None:
        """When it is time, or before."""
        ticket = Ticket(run_id="later", not_before=time.time() + 0.5, priority=3, trace={"traceparent": "00-ab-cd-01"})
        with serving(place, played):
            engine.submit([ticket])
            played.wait([ticket])

    def test_it_survives_a_restart_of_its_server(self, place: EnginePlace, engine: Engine, played: Played) -> None:
        """Whoever serves goes on by itself; tickets of before and after are delivered."""
        before, after = Ticket(run_id="before"), Ticket(run_id="after")
        with serving(place, played):
            engine.submit([before])
            played.wait([before])
            place.restart()
            submitted(place, engine, [after])
            played.wait([after])

    def test_tickets_are_part_of_a_transaction(self, place: EnginePlace, engine: Engine, played: Played) -> None:
        """They come if it is committed, and not if it is rolled back."""
        with place.connection() as connection:
            engine.submit([Ticket(run_id="rolled back")], connection)
            connection.rollback()
            engine.submit([Ticket(run_id="committed")], connection)
            connection.commit()
        with serving(place, played):
            played.wait([Ticket(run_id="committed")])
        assert "rolled back" not in played.runs


def submitted(place: EnginePlace, engine: Engine, tickets: Sequence[Ticket]) -> None:
    """Hand in tickets to a server that may just be coming back."""
    deadline = time.monotonic() + place.patience_s
    while isinstance(got := capture(engine.submit, tickets), Error):  # each engine has errors of its own
        if time.monotonic() > deadline:
            raise got.error
        threading.Event().wait(0.2)


@contextlib.contextmanager
def serving(
    place: EnginePlace, played: Played, *, queues: Sequence[str] = ("default",), slots: int = 4
) -> Iterator[threading.Event]:
    """A worker in a thread, as if in another process; it has stopped when the block is left."""
    stopping = threading.Event()
    got: list[Outcome[None]] = []

    def serve() -> None:
        got.append(capture(place.open().serve, queues, slots, played.play, stopping))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield stopping
    finally:
        played.gate.set()
        stopping.set()
        thread.join(place.patience_s)
    assert not thread.is_alive(), "serve() did not return after `stopping` was set"
    for each in got:
        each.unwrap()
