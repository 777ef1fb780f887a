"""Handing in a run for some worker to play: it exists, durably, before anybody is told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import attrs
from outcome import Error, Value, capture

from .._core.outcomes import RunId
from .._core.records import Admission, Lease
from ..errors import RunExists, StoreError
from ..stores._port import Store
from .port import DEFAULT_QUEUE, Engine, Ticket

logger = logging.getLogger("flujo_actors")


@attrs.define(eq=False)
class Counter:
    """Where runs are handed in."""

    store: Store
    engine: Engine | None
    _prepared: bool = False
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def submit(self, admission: Admission, *, fingerprint: str, priority: int = 0) -> None:
        """Make the run exist, and tell workers of it; blocks. `RunExists` if its id is taken.

        From the admission on the run is played, whatever becomes of its ticket: workers look at the store, too.
        """
        ticket = Ticket(
            run_id=admission.run_id,
            queue=admission.queue or DEFAULT_QUEUE,
            pipeline=admission.pipeline[:100],
            fingerprint=fingerprint,
            priority=priority,
        )
        [answer] = self.admit([admission], [ticket])
        if isinstance(answer, RunExists):
            raise answer

    def admit(self, admissions: Sequence[Admission], tickets: Sequence[Ticket]) -> list[Lease | RunExists]:
        """Make runs exist, and hand in the tickets of those that are new.

        In one transaction, if the engine lives in the store's database: nobody who dies in between leaves a run without
        its ticket. An engine that fails does not keep the runs from existing.
        """
        if self._is_joined():
            got = capture(self._admit_told, admissions, tickets)
            if isinstance(got, Value):
                return got.value
            if isinstance(got.error, StoreError) or not isinstance(got.error, Exception):
                raise got.error
            logger.warning("the engine took no ticket with its run (%s); it is told after it", type(got.error).__name__)
        answers = self.store.admit_all(admissions, owner=None, lease_s=0.0)
        pairs = zip(tickets, answers, strict=True)
        self.tell([ticket for ticket, answer in pairs if isinstance(answer, Lease)])
        return answers

    def _is_joined(self) -> bool:
        lives_in = getattr(self.engine, "lives_in", None)
        return lives_in is not None and lives_in(getattr(self.store, "url", None)) and hasattr(self.store, "admit_told")

    def _admit_told(self, admissions: Sequence[Admission], tickets: Sequence[Ticket]) -> list[Lease | RunExists]:
        engine, store = self.engine, self.store
        assert engine is not None
        self.prepare()
        named = {ticket.run_id: ticket for ticket in tickets}

        def tell(connection: Any, new: Sequence[RunId]) -> None:
            if new:
                engine.submit([named[run_id] for run_id in new], connection=connection)

        answers: list[Lease | RunExists] = getattr(store, "admit_told")(admissions, tell)  # noqa: B009 (few stores have it)
        return answers

    def tell(self, tickets: list[Ticket]) -> None:
        """Hand in tickets; an engine that is down only delays them."""
        if self.engine is not None:
            got = capture(self._tell, self.engine, tickets)
            if isinstance(got, Error):
                logger.warning(
                    "the engine took no ticket (%s); %d runs begin when a worker looks at the store",
                    type(got.error).__name__,
                    len(tickets),
                )

    def again(self, tickets: list[Ticket]) -> None:
        """Nobody works on these: have them delivered."""
        if self.engine is not None:
            got = capture(self.engine.again, tickets)
            if isinstance(got, Error):
                logger.warning("the engine was asked again in vain (%s)", type(got.error).__name__)

    def withdraw(self, run_ids: Sequence[str]) -> None:
        """Drop the tickets of these runs; best effort."""
        if self.engine is not None:
            capture(self.engine.withdraw, run_ids)

    def _tell(self, engine: Engine, tickets: list[Ticket]) -> None:
        self.prepare()
        engine.submit(tickets)

    def prepare(self) -> None:
        """Make what the engine needs, once."""
        with self._lock:
            if self.engine is not None and not self._prepared:
                self.engine.prepare()
                self._prepared = True
