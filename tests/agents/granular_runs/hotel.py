"""A short run, one or two bookings in one turn, in a process that dies in the middle of it and in others that go on."""

from __future__ import annotations

from typing import Any

from bookings import booker, booking_run, bookings

from flujo_actors import Flujo, PipelineResult, RunClient, Store
from kit.durable_places import LateClock, Place
from kit.effects import Effects
from kit.other_processes import KILLED, PointedStore, Points, in_another_process


class Hotel:
    """The run and its processes. Each of them lives an hour after the one before, whose lease is over by then."""

    def __init__(self, place: Place, effects: Effects, *, sides: str = "a", agent: Any = booker, **config: Any) -> None:
        self._place, self._effects = place, effects
        self._sides, self._agent, self._config = sides, agent, config
        self._hours = 0

    def flujo(self, points: Points | None = None, *, together: bool = False, **options: Any) -> Flujo:
        """As a new process has it."""
        self._hours += 1
        passing = points or Points()
        agent = self._agent(self._effects, passing, turns=1, sides=self._sides, together=together)
        return booking_run(agent, PointedStore(self._store(), passing), options, **self._config)

    def _store(self) -> Store:
        return self._place.open(LateClock(3600.0 * self._hours))

    def die(self, point: str, *, together: bool = False) -> None:
        """Begin the run in another process, which is killed at that point."""
        flujo = self.flujo(Points(name=point), together=together)
        assert in_another_process(lambda: flujo.run("data", run_id="run")) == KILLED

    def die_again(self, point: str, *answer: Any) -> None:
        """Go on in another process, which is killed at that point."""
        token = self.token if answer else "run"
        flujo = self.flujo(Points(name=point))
        assert in_another_process(lambda: flujo.resume(token, *answer)) == KILLED

    def resume(self, *answer: Any) -> PipelineResult:
        """Go on, with an answer to the question if one is given."""
        token = self.token if answer else "run"
        return self.flujo().resume(token, *answer)

    @property
    def client(self) -> RunClient:
        return RunClient(self._store())

    @property
    def token(self) -> str:
        """Where an answer goes."""
        token = self.client.get("run").state_token
        assert token is not None
        return token

    @property
    def booked(self) -> list[tuple[str, bool]]:
        """Which rooms, in order, and whether the tool was told that it may be the second time."""
        return [(each.room, each.before) for each in bookings(self._effects, "run")]
