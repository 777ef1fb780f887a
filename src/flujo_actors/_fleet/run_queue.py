"""Submission of a run: durable before any worker is notified.

Rules of a submission that may find a run (`SubmitOnce`):

1. A used id is an error, the id itself, or a retry of the run if it failed or was aborted. The input is not compared.
   A run of another pipeline is always an error.
2. At most one open run of the store has a singleton key. Otherwise its id is returned or named by the error, or it
   loses the key to the new run and is cancelled. Key and cancel request are part of the admission's transaction.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import attrs
from outcome import Error, Value, capture

from .._core.outcomes import RunId
from .._core.records.records import RETRYABLE, Admission, Lease
from .._durable.cancel_requests import cancel
from .._durable.forks import retry
from ..errors import (
    DeclarationError,
    NotPaused,
    NotRetryable,
    RunExists,
    RunNotFound,
    SingletonBusy,
    StoreError,
    TransactionLost,
)
from ..stores._record_rows import replaced_by
from ..stores._store_port import Store
from .engine_port import DEFAULT_QUEUE, Engine, Ticket

logger = logging.getLogger("flujo_actors")

LOST_AT_MOST = 5
"""Attempts of a submission whose transaction the store lost."""


IfExists: TypeAlias = Literal["raise", "return", "retry_failed"]
WhenBusy: TypeAlias = Literal["return", "raise", "replace"]

_LONGEST_KEY = 256


@attrs.frozen(kw_only=True)
class SubmitOnce:
    """Handling of an id or a key that a run has already."""

    if_exists: IfExists = "raise"
    singleton: str | None = None
    when_busy: WhenBusy = "return"

    def check(self, run_id: str | None) -> None:
        """Raise `DeclarationError` for options that do not fit together."""
        _check_choice("if_exists", self.if_exists, get_args(IfExists))
        _check_choice("when_busy", self.when_busy, get_args(WhenBusy))
        if self.if_exists != "raise" and run_id is None:
            raise DeclarationError(f"if_exists={self.if_exists!r} needs a run_id: a new id is never used already")
        if self.when_busy != "return" and self.singleton is None:
            raise DeclarationError(f"when_busy={self.when_busy!r} needs a singleton key")
        key = self.singleton
        if key is not None and (not isinstance(key, str) or not 1 <= len(key) <= _LONGEST_KEY):
            raise DeclarationError(f"singleton must be a text of 1 to {_LONGEST_KEY} characters, not {key!r:.100}")


def _check_choice(name: str, given: object, known: Sequence[str]) -> None:
    if given not in known:
        raise DeclarationError(f"{name} must be {' or '.join(map(repr, known))}, not {given!r:.100}")


def found_run(store: Store, admission: Admission, error: RunExists, once: SubmitOnce) -> RunId:
    """Return the run that a submission found, or raise the error. Blocks."""
    if isinstance(error, SingletonBusy):
        if once.when_busy == "raise":
            raise error
        return RunId(error.run_id)
    run = store.get(admission.run_id)
    if run.pipeline != admission.pipeline:
        raise RunExists(f"run {run.run_id!r} exists and belongs to pipeline {run.pipeline!r}")
    if once.if_exists == "raise":
        raise error
    if once.if_exists == "retry_failed" and run.status in RETRYABLE:
        _retry_once(store, admission)
    return run.run_id


def _retry_once(store: Store, admission: Admission) -> None:
    """Retry a failed run, unless another caller was faster."""
    try:
        retry(store, admission.run_id, queue=admission.queue)
    except NotRetryable:
        if store.get(admission.run_id).status in RETRYABLE:
            raise


@attrs.define(eq=False)
class Counter:
    """Submission of runs and tickets."""

    store: Store
    engine: Engine | None
    _prepared: bool = False
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def submit(
        self, admission: Admission, *, fingerprint: str, priority: int = 0, once: SubmitOnce | None = None
    ) -> RunId:
        """Create the run, notify workers, return its id; `RunExists`. Blocks.

        From the admission on the run will be executed, with or without its ticket: workers poll the store, too.
        """
        ticket = Ticket(
            run_id=admission.run_id,
            queue=admission.queue or DEFAULT_QUEUE,
            pipeline=admission.pipeline[:100],
            fingerprint=fingerprint,
            priority=priority,
        )
        if admission.start_at is None and admission.delay_s is None:
            [answer] = self.admit([admission], [ticket])
        else:  # no ticket: a worker finds the run when it is due
            [answer] = self.store.admit_all([admission], owner=None, lease_s=0.0)
        if isinstance(answer, RunExists):
            return found_run(self.store, admission, answer, once or SubmitOnce())
        if answer.replaced is not None:
            with contextlib.suppress(NotPaused, RunNotFound):  # it has ended meanwhile
                cancel(self.store, answer.replaced, replaced_by(admission.run_id))
        return admission.run_id

    def admit(self, admissions: Sequence[Admission], tickets: Sequence[Ticket]) -> list[Lease | RunExists]:
        """Create runs, and submit the tickets of new ones.

        In one transaction, if the engine lives in the store's database: a crash in between leaves no run without its
        ticket. A failing engine does not keep the runs from being created.
        """
        if self._is_joined():
            got = self._admitted_and_notified(admissions, tickets)
            if isinstance(got, Value):
                return got.value
            if isinstance(got.error, StoreError) or not isinstance(got.error, Exception):
                raise got.error
            self._prepared = False  # its tables may be gone
            logger.warning(
                "the engine accepted no ticket in the transaction (%s); it is sent afterwards", type(got.error).__name__
            )
        answers = self.store.admit_all(admissions, owner=None, lease_s=0.0)
        pairs = zip(tickets, answers, strict=True)
        self.notify([ticket for ticket, answer in pairs if isinstance(answer, Lease)])
        return answers

    def _admitted_and_notified(
        self, admissions: Sequence[Admission], tickets: Sequence[Ticket]
    ) -> Value[list[Lease | RunExists]] | Error:
        """Return the result of the joined transaction; a lost one is repeated."""
        for _ in range(LOST_AT_MOST):
            got = capture(self._admit_and_notify, admissions, tickets)
            if not isinstance(got, Error) or not isinstance(got.error, TransactionLost):
                break
        return got

    def _is_joined(self) -> bool:
        lives_in = getattr(self.engine, "lives_in", None)
        return (
            lives_in is not None
            and lives_in(getattr(self.store, "url", None))
            and hasattr(self.store, "admit_and_notify")
        )

    def _admit_and_notify(self, admissions: Sequence[Admission], tickets: Sequence[Ticket]) -> list[Lease | RunExists]:
        engine, store = self.engine, self.store
        assert engine is not None
        self.prepare()
        named = {ticket.run_id: ticket for ticket in tickets}

        def notify(connection: Any, new: Sequence[RunId]) -> None:
            if new:
                engine.submit([named[run_id] for run_id in new], connection=connection)

        answers: list[Lease | RunExists] = getattr(store, "admit_and_notify")(admissions, notify)  # noqa: B009 (few stores have it)
        return answers

    def notify(self, tickets: list[Ticket]) -> None:
        """Submit tickets; an engine that is down only delays them."""
        if self.engine is not None:
            got = capture(self._submit_tickets, self.engine, tickets)
            if isinstance(got, Error):
                logger.warning(
                    "the engine accepted no ticket (%s); %d runs begin when a worker polls the store",
                    type(got.error).__name__,
                    len(tickets),
                )

    def again(self, tickets: list[Ticket]) -> None:
        """Deliver the tickets of abandoned runs."""
        if self.engine is not None:
            got = capture(self.engine.again, tickets)
            if isinstance(got, Error):
                logger.warning("the engine failed again (%s)", type(got.error).__name__)

    def withdraw(self, run_ids: Sequence[str]) -> None:
        """Drop the tickets of these runs; best effort."""
        if self.engine is not None:
            capture(self.engine.withdraw, run_ids)

    def _submit_tickets(self, engine: Engine, tickets: list[Ticket]) -> None:
        self.prepare()
        engine.submit(tickets)

    def prepare(self) -> None:
        """Create the engine's resources, once."""
        with self._lock:
            if self.engine is not None and not self._prepared:
                self.engine.prepare()
                self._prepared = True
