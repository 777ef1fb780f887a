"""The caller's side of remote steps: asks for them, waits, and brings back how they ended.

Rules:

1. A remote step is a run of its own, admitted without an owner before anybody is told. One that exists is not admitted
   again: a caller that comes back finds what was done without it.
2. All that is asked for in one scheduling round is admitted in one transaction, and told in one go.
3. Whoever waits is woken by a signal, or finds out by looking, every second, at all it waits for in one query. What
   nobody works on is asked for again.
4. A caller that is cancelled puts its remote steps to rest, and waits for their cleanup. They go on when it is resumed.
5. A question that a remote step asks is asked by the caller's run, under the same token; its answer is passed on.
6. The budgets of a step that goes elsewhere are shared, before it is asked for (`budget_book`).
7. What a remote step did that was cut short is left to whoever stands around it, to be undone (`looking`).
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import attrs
import trio
from outcome import Error

from .._bridge.guard import guarded
from .._core.attempts import Attempt, Failed, Stopped
from .._core.error_info import message_of
from .._core.outcomes import Aborted, RunId
from .._core.records import Admission, StoredRun, has_ended
from .._durable.claiming import can_be_had
from .._durable.store_wait import call_store
from .._run.messages import Batch, Request
from ..errors import NotSerializable, StoreError
from . import errands
from .asking import asked_body, child_id
from .carrying import carried_now, trace_headers
from .errands import Errand
from .looking import Look, is_undoable
from .port import Ticket
from .reading import Reading
from .returning import answers_for, attempt_in, share_budgets
from .seats import away_from_seat
from .signals import Listener, Signals, passed_on, read_signal
from .spreading import place_of, queue_of, spread
from .streaming import Reader

if TYPE_CHECKING:
    from .._core.settings import FleetSettings
    from .._dsl.kinds import MapOver
    from .._durable.stored_runs import StoredRuns
    from .._run.run import Run
    from .seen_journal import SeenJournal
    from .submitting import Counter

logger = logging.getLogger("flujo_actors")

GATHER_S = 0.02
"""How long a batch waits for the next of its items."""

STOP_S = 5.0
"""How long a caller that is cancelled waits for the cleanup of its remote steps."""

MANY = "many"
"""What there may be many of at once."""


@attrs.define(kw_only=True, eq=False)
class Office:
    """Has the steps of one `Flujo` performed elsewhere, for one trio run; see the module's rules."""

    runs: StoredRuns
    counter: Counter
    version: str
    settings: FleetSettings
    carry: tuple[ContextVar[object], ...] = ()
    signals: Signals | None = None
    _outbox: list[Errand] = attrs.field(factory=list, init=False)
    _waiting: dict[RunId, Errand] = attrs.field(factory=dict, init=False)
    _to_stop: list[Errand] = attrs.field(factory=list, init=False)
    _busy: set[str] = attrs.field(factory=set, init=False)
    _reading: Reading = attrs.field(init=False)
    _listener: Listener | None = attrs.field(default=None, init=False)
    _listens: bool = attrs.field(default=False, init=False)
    _channel: str = attrs.field(factory=lambda: f"flujo_{os.urandom(12).hex()}", init=False)

    @_reading.default
    def _reads_the_store(self) -> Reading:
        return Reading(self.runs)

    # --- what the tree asks ---

    def takes(self, request: Request) -> bool:
        """Whether a step goes elsewhere; a map stays, its items go."""
        return queue_of(request) is not None

    def spread(self, step: MapOver, requests: Iterator[Request]) -> tuple[Iterator[Request], int | None, int]:
        """The items of a map: those of one that runs elsewhere go there, together if it says so."""
        return spread(step, requests)

    async def attempt(self, run: Run, request: Request) -> Attempt:
        """How a step ended that was performed elsewhere."""
        if request.quotas:
            await share_budgets(self.runs.store, run, request)
        if run.closing is not None and (request.aside is None or request.aside.undo is None):
            return await self._left(run, request, run.closing)
        errand = self._errand(run, request)
        async with away_from_seat():
            found = await self._ended(run, request, errand)
            while found is None:  # its batch went without it, in an earlier part of the run
                found = await self._ended(run, request, self._sent(run, [request], child_id(run.run_id, request.path)))
            return found

    async def _ended(self, run: Run, request: Request, errand: Errand) -> Attempt | None:
        """How the step ended; `None` if all is done that was asked for there, and the step was not."""
        errand.readers += 1
        try:
            while True:
                await errand.told.wait()
                found = await self._found(run, request, errand)
                if found is not None:
                    return found
                if errand.end is not None and errand.end.status == "completed":
                    return None
                errand.told = trio.Event()
        except trio.Cancelled:
            await self._stop(errand)
            await self._leave_cut_short(run, request, errand)
            raise
        finally:
            errand.readers -= 1
            if not errand.readers and self._waiting.get(errand.child) is errand:
                del self._waiting[errand.child]

    # --- asking ---

    def _errand(self, run: Run, request: Request) -> Errand:
        batch = request.batch
        if batch is None or batch.sent:
            return self._sent(run, [request], child_id(run.run_id, request.path))
        batch.requests.append(request)
        child = child_id(run.run_id, batch.path)
        errand = self._waiting.get(child)
        if errand is None:
            errand = self._waiting[child] = self._errand_for(request, child)
            self._soon(MANY, self._send_late, run, batch, errand)
        if len(batch.requests) == batch.size:
            self._send_batch(run, batch, errand)
        return errand

    async def _send_late(self, run: Run, batch: Batch, errand: Errand) -> None:
        """Some items of a batch may never come: they are done already, or a hook was against them.

        It goes when no more have come for a moment: a large one, or a slow machine, takes longer than that in all.
        """
        come = 0
        while come < len(batch.requests) and not batch.sent:
            come = len(batch.requests)
            await trio.sleep(GATHER_S)
        self._send_batch(run, batch, errand)

    def _send_batch(self, run: Run, batch: Batch, errand: Errand) -> None:
        if not batch.sent:
            batch.sent = True
            requests, batch.requests = batch.requests, []  # they know their batch, and go when they are done
            self._hand_over(run, requests, errand)

    def _sent(self, run: Run, requests: Sequence[Request], child: RunId) -> Errand:
        errand = self._waiting[child] = self._errand_for(requests[0], child)
        self._hand_over(run, requests, errand)
        return errand

    def _errand_for(self, request: Request, child: RunId) -> Errand:
        return Errand(child=child, ticket=self._ticket(child, request))

    def _ticket(self, child: RunId, request: Request) -> Ticket:
        queue = queue_of(request)
        assert queue is not None
        pipeline = self.runs.pipeline.title[:100]
        return Ticket(run_id=child, queue=queue, pipeline=pipeline, fingerprint=self.version, trace=trace_headers())

    def _hand_over(self, run: Run, requests: Sequence[Request], errand: Errand) -> None:
        try:
            body = asked_body(
                run.run_id,
                requests,
                version=self.version,
                reply=self._reply(),
                carried=carried_now(self.carry),
                trace=errand.ticket.trace,
                outlet=run.outlet,
            )
        except NotSerializable as error:
            errand.error = error
            errand.told.set()
            return
        errand.admission = Admission(
            run_id=errand.child,
            pipeline=self.runs.pipeline.title,
            body=body,
            queue=errand.ticket.queue,
            parent=run.run_id,
        )
        errand.answers = answers_for(run, requests)
        if run.outlet is not None and self.signals is not None:
            errand.reader = Reader(errand.child, run.outlet, self.signals)
        self._outbox.append(errand)
        self._soon("outbox", self._flush)

    def _soon(self, name: str, work: object, *args: object) -> None:
        """Do something in a task that outlives whoever asked for it; one at a time for each name but `MANY`."""
        if name != MANY:
            if name in self._busy:
                return
            self._busy.add(name)
        trio.lowlevel.spawn_system_task(self._guarded, name, work, *args)

    async def _guarded(self, name: str, work: Any, *args: Any) -> None:
        got = await guarded(work, *args)
        self._busy.discard(name)
        if isinstance(got, Error):
            logger.error("remote steps: %s", self.runs.redact(message_of(got.error)), exc_info=got.error)

    async def _flush(self) -> None:
        await trio.lowlevel.checkpoint()  # for company: the items of a map come in one round
        while self._outbox:
            sent, self._outbox = self._outbox, []
            got = await guarded(call_store, lambda sent=sent: self._handed_in(sent))
            if isinstance(got, Error):
                for errand in sent:
                    errand.error = _store_error(got.error)
                    errand.told.set()
            else:
                for errand in got.value:
                    errand.told.set()
            self._soon("looks", self._look_after)

    def _handed_in(self, sent: list[Errand]) -> list[Errand]:
        reply = None if self._listener is None else self._channel
        return errands.handed_in(self.runs.store, self.counter, sent, reply)

    # --- waiting ---

    async def _look_after(self) -> None:
        while self._waiting:
            await trio.sleep(self.settings.look_s)
            got = await guarded(self._look)
            if isinstance(got, Error):
                logger.warning("remote steps cannot be looked at: %s", self.runs.redact(message_of(got.error)))

    async def _look(self) -> None:
        waiting = [each for each in self._waiting.values() if each.admission is not None and each.stopped is None]
        for start in range(0, len(waiting), 500):
            part = waiting[start : start + 500]
            ids = [errand.child for errand in part]
            found = await call_store(functools.partial(self.runs.store.standing, ids))
            stood = {run.run_id: run for run in found}
            await self._judge([(errand, stood.get(errand.child)) for errand in part])

    async def _judge(self, found: list[tuple[Errand, StoredRun | None]]) -> None:
        left: list[Errand] = []
        for errand, run in found:
            if errand.stopped is not None:
                continue  # it is put to rest, and must not be asked for again
            if errand.sure and (run is None or has_ended(run.status) or (run.status == "paused" and run.pauses)):
                errand.told.set()
            elif errand.sure and run is not None and self._is_left(errand, run):
                left.append(errand)
        if left:
            await call_store(lambda: errands.asked_again(self.runs.store, self.counter, left))

    def _is_left(self, errand: Errand, run: StoredRun) -> bool:
        """Whether nobody works on it, and it is time to ask again: not every second, a queue may be long."""
        now = time.monotonic()
        if run.leased and not can_be_had(self.runs.store, run):
            return False
        if run.unclaimed and time.time() - run.created_at < self.settings.unclaimed_s and run.status == "running":
            return False
        due = now >= errand.due
        if due:
            errand.due = now + self.settings.unclaimed_s
        return due

    def _reply(self) -> str | None:
        """The channel on which workers are heard, if the store's database has such."""
        url = getattr(self.runs.store, "url", None)
        if url is None:
            return None
        if self._listener is None:
            token = trio.lowlevel.current_trio_token()
            self._listener = Listener(url, self._channel, lambda message: passed_on(token, self._heard, message))
        return self._channel

    def _heard(self, message: str) -> None:
        if not message and not self._listens:
            self._listens = True
            self._soon("first look", self._look)  # what was said before anybody listened
        if message:
            kind, child, rest = read_signal(message)
            errand = self._waiting.get(RunId(child))
            if errand is not None:
                errand.heard(kind, rest)

    # --- what came of it ---

    async def _found(self, run: Run, request: Request, errand: Errand) -> Attempt | None:
        """How the step ended, if it has."""
        if isinstance(errand.error, NotSerializable):
            text = f"The step runs on {errand.ticket.queue!r}, but what it is given cannot be stored: {errand.error}"
            return Failed(error=errand.error, feedback=run.redact(text))
        if errand.error is not None:
            raise errand.error
        async with errand.reading:
            journal = await self._read(errand)
            attempt = await attempt_in(run, request, journal, errand.end)
            if attempt is None:
                errand.journal = None
        if attempt is not None and run.minds_failures and is_undoable(request.step):
            await self._look_at(run, request, journal).after(attempt)
        if attempt is not None and errand.reader is not None:
            await errand.reader.rest()
        return attempt

    async def _read(self, errand: Errand) -> SeenJournal:
        """What the remote step has written; read once for all who wait for it."""
        if errand.journal is None:
            errand.journal, errand.end = await self._reading.read(errand.child)
        assert errand.journal is not None
        return errand.journal

    # --- what is to be undone ---

    def _look_at(self, run: Run, request: Request, journal: SeenJournal) -> Look:
        return Look(run=run, request=request, journal=journal, pipeline=self.runs.pipeline, office=self)

    async def _left(self, run: Run, request: Request, closing: str) -> Attempt:
        """What a run that goes no further finds of a remote step: how it ended, if it has, and what it leaves."""
        errand = self._errand_for(request, child_id(run.run_id, place_of(request)))
        await guarded(call_store, lambda: errands.parked(self.runs.store, self.counter, [errand.child]))
        with trio.move_on_after(STOP_S):
            await self._at_rest([errand])
        if not errand.begun:
            return Stopped(outcome=Aborted(reason=closing))
        journal = await self._read(errand)
        found = await attempt_in(run, request, journal, None)
        look = self._look_at(run, request, journal)
        await look.take_in()
        if found is None:
            await look.leave_to_undo(closing)
        return Stopped(outcome=Aborted(reason=closing)) if found is None else found

    async def _leave_cut_short(self, run: Run, request: Request, errand: Errand) -> None:
        """Whoever cancelled this may want it undone; nobody, if they cannot be told what there is."""
        if not errand.begun or not run.minds_failures or not is_undoable(request.step):
            return
        with trio.move_on_after(STOP_S, shield=True):
            got = await guarded(self._look_into, run, request, errand)
            if isinstance(got, Error):
                told = self.runs.redact(message_of(got.error))
                logger.error("what the remote step %r did is not known, and not undone: %s", errand.child, told)

    async def _look_into(self, run: Run, request: Request, errand: Errand) -> None:
        async with errand.reading:
            journal = await self._read(errand)
        look = self._look_at(run, request, journal)
        await look.take_in()
        await look.leave_to_undo(f"step {request.name!r} was cancelled")

    # --- being cancelled ---

    async def _stop(self, errand: Errand) -> None:
        """Put a remote step to rest, together with all that are cancelled at the same time."""
        if errand.admission is None:
            return
        if errand.stopped is None:  # the items of a batch are cancelled one by one
            errand.stopped = trio.Event()
            self._to_stop.append(errand)
            self._soon("stops", self._stop_all)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_S + 1):
            await errand.stopped.wait()

    async def _stop_all(self) -> None:
        await trio.lowlevel.checkpoint()
        while self._to_stop:
            stopping, self._to_stop = self._to_stop, []
            self._outbox = [errand for errand in self._outbox if errand not in stopping]
            ids = [errand.child for errand in stopping]
            await guarded(call_store, lambda ids=ids: errands.parked(self.runs.store, self.counter, ids))
            self._soon(MANY, self._stopped, stopping)  # not here: these may wait for others that are to be stopped

    async def _stopped(self, stopping: list[Errand]) -> None:
        try:
            with trio.move_on_after(STOP_S):
                await self._at_rest(stopping)
        finally:
            for errand in stopping:
                assert errand.stopped is not None
                errand.stopped.set()

    async def _at_rest(self, stopping: list[Errand]) -> None:
        """Nobody works on these any more; whether somebody has is known then."""
        ids = [errand.child for errand in stopping]
        while True:
            stood = {run.run_id: run for run in await call_store(lambda: self.runs.store.standing(ids))}
            for errand in stopping:
                errand.begun = errand.child in stood and not stood[errand.child].unclaimed
                errand.journal = None  # what was read before is not all
            if not any(run.leased for run in stood.values()):
                return
            await trio.sleep(0.1)


def _store_error(error: BaseException) -> BaseException:
    return error if isinstance(error, Exception) else StoreError(f"the remote step was not asked for: {error!r}")
