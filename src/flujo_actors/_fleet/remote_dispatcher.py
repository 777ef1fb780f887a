"""Dispatcher of remote steps: submit, wait, and return the results.

Rules:

1. A remote step is a run of its own, admitted without an owner before its ticket is sent. An existing one is not
   admitted again: a returning caller finds the work done without it.
2. All requests of one scheduling round are admitted in one transaction, and submitted together.
3. A waiter is woken by a signal, or by a poll every second over all its remote steps in one query. Abandoned ones are
   requested again.
4. A cancelled caller parks its remote steps, and waits for their cleanup. They continue when it is resumed.
5. A pause of a remote step becomes a pause of the caller's run, under the same token; its answer is passed on.
6. The budgets of a remote step are shared before it is submitted (`budget_ledger`).
7. Work of a cancelled remote step is left to its parent for compensation (`remote_result`).
8. Requests and parkings reach the store in their order: one requested while it is parked would run without a caller.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import attrs
import trio
from outcome import Error

from .._bridge.user_code_guard import guarded
from .._core.attempt_results import Attempt, AttemptFailed, AttemptStopped
from .._core.error_info import message_of
from .._core.outcomes import Aborted, RunId
from .._core.records.records import Admission, StoredRun, has_ended
from .._durable.claims import can_be_had
from .._durable.remote_result_refs import child_id
from .._durable.store_executor import call_store
from .._runtime.run.messages import StepRequest, StepState
from ..errors import NotSerializable, StoreError
from . import remote_call
from .engine_port import Ticket
from .map_batches import Batch, Batches, place_of, queue_of, spread, without_slot
from .remote_call import RemoteCall, ResultBatchReader
from .remote_request import carried_now, request_body, trace_headers
from .remote_result import ViewOptions, answers_for, attempt_in, is_undoable, share_budgets
from .remote_stream import Listener, StreamReader, passed_on, read_signal

if TYPE_CHECKING:
    from .._core.settings_model import FleetSettings
    from .._dsl.kinds import MapOver
    from .._durable.durable_run_registry import DurableRunRegistry
    from .._runtime.run.run_environment import Run
    from ..stores.postgres._session import Signals
    from .remote_call import ReplayedJournal
    from .run_queue import Counter

logger = logging.getLogger("flujo_actors")

GATHER_S = 0.02
"""Time for which a batch waits for its next item."""

STOP_S = 5.0
"""Timeout of a cancelled caller for the cleanup of its remote steps."""

MANY = "many"
"""Task name without a limit of one."""


@attrs.define(kw_only=True, eq=False)
class RemoteDispatcher:
    """Remote dispatcher of one `Flujo` and trio run; see the module's rules."""

    runs: DurableRunRegistry
    counter: Counter
    version: str
    settings: FleetSettings
    carry: tuple[ContextVar[object], ...] = ()
    signals: Signals | None = None
    _outbox: list[RemoteCall] = attrs.field(factory=list, init=False)
    _waiting: dict[RunId, RemoteCall] = attrs.field(factory=dict, init=False)
    _to_stop: list[RemoteCall] = attrs.field(factory=list, init=False)
    _batches: WeakKeyDictionary[Run, Batches] = attrs.field(factory=WeakKeyDictionary, init=False)
    """The batches of each run's maps; requests carry only the ids."""
    _busy: set[str] = attrs.field(factory=set, init=False)
    _in_order: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """Held while remote steps are requested or parked: rule 8."""
    _reading: ResultBatchReader = attrs.field(init=False)
    _listener: Listener | None = attrs.field(default=None, init=False)
    _listens: bool = attrs.field(default=False, init=False)
    _channel: str = attrs.field(factory=lambda: f"flujo_{os.urandom(12).hex()}", init=False)

    @_reading.default
    def _reads_the_store(self) -> ResultBatchReader:
        return ResultBatchReader(self.runs)

    # --- tree interface ---

    def takes(self, request: StepRequest) -> bool:
        """Return whether a step is remote; of a map, its items are."""
        return queue_of(request) is not None

    def spread(
        self, run: Run, step: MapOver, requests: Iterator[StepRequest]
    ) -> tuple[Iterator[StepRequest], int | None, int]:
        """Return a map's items with queue and batch, concurrency and batch size."""
        return spread(step, requests, self._batches.setdefault(run, {}))

    async def attempt(self, run: Run, state: StepState) -> Attempt:
        """Execute a step remotely and return its end."""
        if state.quotas:
            await share_budgets(self.runs.store, run, state)
        if run.stopping is not None and (state.aside is None or state.aside.undo is None):
            return await self._end_of_stopped(run, state, run.stopping)
        if run.journal.lapsed:
            await run.journal.confirm()
        call = self._call(run, state)
        async with without_slot():
            found = await self._ended(run, state, call)
            while found is None:  # its batch went without it, in an earlier session of the run
                found = await self._ended(run, state, self._sent(run, [state], child_id(run.run_id, state.path)))
            return found

    async def _ended(self, run: Run, state: StepState, call: RemoteCall) -> Attempt | None:
        """Return the step's end; `None` if the call ended without it."""
        call.readers += 1
        notices = 0
        try:
            while True:
                notices = await call.next_notice(notices)
                found = await self._found(run, state, call)
                if found is not None:
                    return found
                if call.end is not None and call.end.status == "completed":
                    return None
        except trio.Cancelled:
            await self._stop(call)
            await self._keep_compensable(run, state, call)
            raise
        finally:
            call.readers -= 1
            if not call.readers and self._waiting.get(call.child) is call:
                del self._waiting[call.child]

    # --- submit ---

    def _call(self, run: Run, state: StepState) -> RemoteCall:
        batch = self._batches.get(run, {}).get(state.batch_id)
        if batch is None or batch.sent:
            return self._sent(run, [state], child_id(run.run_id, state.path))
        batch.states.append(state)
        child = child_id(run.run_id, batch.path)
        call = self._waiting.get(child)
        if call is None:
            call = self._waiting[child] = self._call_for(state, child)
            self._spawn(MANY, self._send_late, run, batch, call)
        if len(batch.states) == batch.size:
            self._send_batch(run, batch, call)
        return call

    async def _send_late(self, run: Run, batch: Batch, call: RemoteCall) -> None:
        """Send an incomplete batch: some items were settled or refused.

        It is sent when no more have come for a moment: a large one, or a slow machine, takes longer than that in all.
        """
        come = 0
        while come < len(batch.states) and not batch.sent:
            come = len(batch.states)
            await trio.sleep(GATHER_S)
        if call.readers:  # else all of its items were cancelled
            self._send_batch(run, batch, call)

    def _send_batch(self, run: Run, batch: Batch, call: RemoteCall) -> None:
        if not batch.sent:
            batch.sent = True
            states, batch.states = batch.states, []
            self._prepare_submission(run, states, call)

    def _sent(self, run: Run, states: Sequence[StepState], child: RunId) -> RemoteCall:
        call = self._waiting[child] = self._call_for(states[0], child)
        self._prepare_submission(run, states, call)
        return call

    def _call_for(self, state: StepState, child: RunId) -> RemoteCall:
        return RemoteCall(child=child, ticket=self._ticket(child, state.request))

    def _ticket(self, child: RunId, request: StepRequest) -> Ticket:
        queue = queue_of(request)
        assert queue is not None
        pipeline = self.runs.pipeline.title[:100]
        return Ticket(run_id=child, queue=queue, pipeline=pipeline, fingerprint=self.version, trace=trace_headers())

    def _prepare_submission(self, run: Run, states: Sequence[StepState], call: RemoteCall) -> None:
        try:
            body = request_body(
                run.run_id,
                [state.request for state in states],
                version=self.version,
                reply=self._reply(),
                carried=carried_now(self.carry),
                trace=call.ticket.trace,
                event_stream=run.event_stream,
                labels=run.labels,
            )
        except NotSerializable as error:
            call.error = error
            call.notify()
            return
        call.admission = Admission(
            run_id=call.child,
            pipeline=self.runs.pipeline.title,
            body=body,
            queue=call.ticket.queue,
            parent=run.run_id,
        )
        call.answers = answers_for(run, states)
        if run.event_stream is not None and self.signals is not None:
            call.reader = StreamReader(call.child, run.event_stream, self.signals)
        self._outbox.append(call)
        self._spawn("outbox", self._flush)

    def _spawn(self, name: str, work: object, *args: object) -> None:
        """Start a task beyond its caller, one per name except `MANY`."""
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
            async with self._in_order:
                sent, self._outbox = self._outbox, []
                got = await guarded(call_store, lambda sent=sent: self._submitted(sent))
            if isinstance(got, Error):
                for call in sent:
                    call.error = _store_error(got.error)
                    call.notify()
            else:
                for call in got.value:
                    call.notify()
            self._spawn("looks", self._poll_all)

    def _submitted(self, sent: list[RemoteCall]) -> list[RemoteCall]:
        reply = None if self._listener is None else self._channel
        return remote_call.submitted(self.runs.store, self.counter, sent, reply)

    # --- waiting ---

    async def _poll_all(self) -> None:
        while self._waiting:
            await trio.sleep(self.settings.look_s)
            got = await guarded(self._poll)
            if isinstance(got, Error):
                logger.warning("remote steps cannot be polled: %s", self.runs.redact(message_of(got.error)))

    async def _poll(self) -> None:
        waiting = [each for each in self._waiting.values() if each.admission is not None and each.stopped is None]
        for start in range(0, len(waiting), 500):
            part = waiting[start : start + 500]
            ids = [call.child for call in part]
            runs = await call_store(functools.partial(self.runs.store.standing, ids))
            found = {run.run_id: run for run in runs}
            await self._apply([(call, found.get(call.child)) for call in part])

    async def _apply(self, found: list[tuple[RemoteCall, StoredRun | None]]) -> None:
        left: list[RemoteCall] = []
        for call, run in found:
            if call.stopped is not None:
                continue  # it is parked, and must not be requested again
            if call.sure and (run is None or has_ended(run.status) or (run.status == "paused" and run.pauses)):
                call.notify()
            elif call.sure and run is not None and self._is_abandoned(call, run):
                left.append(call)
        async with self._in_order:
            left = [call for call in left if call.stopped is None]
            if left:
                await call_store(lambda: remote_call.requested_again(self.runs.store, self.counter, left))

    def _is_abandoned(self, call: RemoteCall, run: StoredRun) -> bool:
        """Return whether an abandoned request is due for repetition."""
        now = time.monotonic()
        if run.leased and not can_be_had(self.runs.store, run):
            return False
        if run.unclaimed and time.time() - run.created_at < self.settings.unclaimed_s and run.status == "running":
            return False
        due = now >= call.due
        if due:
            call.due = now + self.settings.unclaimed_s
        return due

    def _reply(self) -> str | None:
        """Return the signal channel of workers, if the store's database has one."""
        url = None if getattr(self.runs.store, "pooler", None) else getattr(self.runs.store, "url", None)
        if url is None:
            return None
        if self._listener is None:
            token = trio.lowlevel.current_trio_token()
            self._listener = Listener(url, self._channel, lambda message: passed_on(token, self._on_signal, message))
        return self._channel

    def _on_signal(self, message: str) -> None:
        if not message and not self._listens:
            self._listens = True
            self._spawn("first look", self._poll)  # events from before the subscription
        if message:
            kind, child, rest = read_signal(message)
            call = self._waiting.get(RunId(child))
            if call is not None:
                call.on_signal(kind, rest)

    # --- results ---

    async def _found(self, run: Run, state: StepState, call: RemoteCall) -> Attempt | None:
        """Return the step's end, if it has one."""
        if isinstance(call.error, NotSerializable):
            text = f"The step runs on {call.ticket.queue!r}, but its input cannot be stored: {call.error}"
            return AttemptFailed(error=call.error, feedback=run.redact(text))
        if call.error is not None:
            raise call.error
        async with call.reading:
            journal = await self._read(call)
            attempt = await attempt_in(run, state, journal, call.end)
            if attempt is None:
                call.journal = None
        if attempt is not None and run.handles_failures and is_undoable(state.step):
            await self._view(run, state, journal).after(attempt)
        if attempt is not None and call.reader is not None:
            await call.reader.rest()
        return attempt

    async def _read(self, call: RemoteCall) -> ReplayedJournal:
        """Return the remote step's journal, read once for all waiters."""
        if call.journal is None:
            call.journal, call.end = await self._reading.read(call.child)
        assert call.journal is not None
        return call.journal

    # --- compensation ---

    def _view(self, run: Run, state: StepState, journal: ReplayedJournal) -> ViewOptions:
        return ViewOptions(run=run, state=state, journal=journal, pipeline=self.runs.pipeline, remote=self)

    async def _end_of_stopped(self, run: Run, state: StepState, closing: str) -> Attempt:
        """Return a remote step's end and entries, for a stopped run."""
        call = self._call_for(state, child_id(run.run_id, place_of(state.request)))
        await guarded(call_store, lambda: remote_call.parked(self.runs.store, self.counter, [call.child]))
        with trio.move_on_after(STOP_S):
            await self._wait_until_released([call])
        if not call.begun:
            return AttemptStopped(outcome=Aborted(reason=closing))
        journal = await self._read(call)
        found = await attempt_in(run, state, journal, None)
        view = self._view(run, state, journal)
        await view.merge()
        if found is None:
            await view.leave_to_compensate(closing)
        return AttemptStopped(outcome=Aborted(reason=closing)) if found is None else found

    async def _keep_compensable(self, run: Run, state: StepState, call: RemoteCall) -> None:
        """Leave a cancelled remote step's entries for compensation, if readable."""
        if not call.begun or not run.handles_failures or not is_undoable(state.step):
            return
        with trio.move_on_after(STOP_S, shield=True):
            got = await guarded(self._merge_cancelled, run, state, call)
            if isinstance(got, Error):
                why = self.runs.redact(message_of(got.error))
                logger.error("the effects of the remote step %r are unknown and not compensated: %s", call.child, why)

    async def _merge_cancelled(self, run: Run, state: StepState, call: RemoteCall) -> None:
        async with call.reading:
            journal = await self._read(call)
        view = self._view(run, state, journal)
        await view.merge()
        await view.leave_to_compensate(f"step {state.name!r} was cancelled")

    # --- being cancelled ---

    async def _stop(self, call: RemoteCall) -> None:
        """Park a remote step with all others cancelled now."""
        if call.admission is None:
            return
        if call.stopped is None:  # the items of a batch are cancelled one by one
            call.stopped = trio.Event()
            self._to_stop.append(call)
            self._spawn("stops", self._stop_all)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_S + 1):
            await call.stopped.wait()

    async def _stop_all(self) -> None:
        await trio.lowlevel.checkpoint()
        while self._to_stop:
            async with self._in_order:
                stopping, self._to_stop = self._to_stop, []
                self._outbox = [call for call in self._outbox if call not in stopping]
                ids = [call.child for call in stopping]
                await guarded(call_store, lambda ids=ids: remote_call.parked(self.runs.store, self.counter, ids))
            self._spawn(MANY, self._stopped, stopping)  # not here: these may wait for others that are to be stopped

    async def _stopped(self, stopping: list[RemoteCall]) -> None:
        try:
            with trio.move_on_after(STOP_S):
                await self._wait_until_released(stopping)
        finally:
            for call in stopping:
                assert call.stopped is not None
                call.stopped.set()

    async def _wait_until_released(self, stopping: list[RemoteCall]) -> None:
        """Wait until these are unowned; learn whether one was started."""
        ids = [call.child for call in stopping]
        while True:
            found = {run.run_id: run for run in await call_store(lambda: self.runs.store.standing(ids))}
            for call in stopping:
                call.begun = call.child in found and not found[call.child].unclaimed
                call.journal = None  # the earlier read is incomplete
            if not any(run.leased for run in found.values()):
                return
            await trio.sleep(0.1)


def _store_error(error: BaseException) -> BaseException:
    return error if isinstance(error, Exception) else StoreError(f"the remote step was not asked for: {error!r}")
