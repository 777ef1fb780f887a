"""Handing in a run for some worker to play: it exists, durably, before anybody is told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import attrs
from outcome import Error, capture

from .._core.records import Admission
from ..errors import RunExists
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
        [answer] = self.store.admit_all([admission], owner=None, lease_s=0.0)
        if isinstance(answer, RunExists):
            raise answer
        self.tell([ticket])

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
