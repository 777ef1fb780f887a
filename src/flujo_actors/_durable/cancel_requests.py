"""Cancellation from other processes: immediate without an owner, else a request.

Rules:

1. A run that is free, or held by a dead process, is claimed and ended.
2. For a running run a request is stored. Its owner receives it with the result of its next write, and also polls twice
   a second; then the run's steps are cancelled, and the run ends as aborted.
3. A request outlives its reader: the next owner ends the run before doing any of its work.
4. A request that is stored before the end of the run always counts: the store refuses every other end than `aborted`,
   and the owner compensates the run and ends it.
5. An owner that releases the run ends it itself if a request came too late for its steps: no other process may look.
6. An unowned run whose pipeline has compensations is not ended here without the pipeline: it is marked as not
   continuing, and `recover()`, `cancel()` or any worker compensates and ends it. `undo=False` ends it at once.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import trio
from outcome import Outcome, Value

from .. import _durable
from .._core.outcomes import RunId
from .._core.records import record_bodies
from .._core.records.records import (
    Append,
    CancelRequest,
    Lease,
    MessageNotice,
    OutboxMessage,
    OwnerNotice,
    Record,
    StoredRun,
    cancel_reason,
)
from .._core.step_paths import ROOT, compensated_by, is_undoing
from ..errors import LeaseLost, NotPaused, RunLeased, StoreError
from ..stores._store_port import Store
from .claims import claim_now, held_by, refuse_if_ended, release_run
from .fingerprint import read_fingerprint
from .store_executor import post, start_thread
from .timer_thread import alarms

LOOK_EVERY_S = 0.5
"""Poll interval of the owner for cancel requests."""

_CLAIM_S = 30.0
"""Lease for ending a run, in case this process dies."""

Requests: TypeAlias = Mapping[RunId, OwnerNotice]


def cancel(store: Store, run_id: RunId, reason: str, *, undo: bool = True) -> None:
    """End a run as aborted, or request it from its owner; blocks.

    Raise `NotPaused` if it has ended.
    """
    request = CancelRequest(reason=cancel_reason(reason, undo=undo))
    try:
        end_as_aborted(store, run_id, request)
    except RunLeased as held:
        _request(store, run_id, request.reason, held)
        _end_unless_owned(store, run_id, request)
    children = store.children(run_id) if hasattr(store, "children") else ()
    if children:  # the waiting process may be dead, and would not end them
        store.park(children, reason=reason)


def end_as_aborted(store: Store, run_id: RunId, request: CancelRequest) -> None:
    """End an unowned run, or leave it for compensation (rule 6); blocks.

    Raise `RunLeased` if it has an owner, `NotPaused` if it has ended.
    """
    begun = not store.get(run_id).unclaimed
    lease = claim_now(store, run_id, lease_s=_CLAIM_S)
    try:
        run = store.get(run_id)
        refuse_if_ended(run)  # it may have ended before the claim
        records = store.read(run_id) if begun and request.undoes else []
        messages = _messages(store, run, records)
    except (NotPaused, StoreError):
        release_run(store, lease)
        raise
    if _compensates_steps(records):
        _append(store, _compensation_append(lease, run, request.given_reason, records))
        if hasattr(store, "request_cancel"):  # shown as `cancelling` until a process with the pipeline has undone it
            store.request_cancel(run_id, reason=_first_reason(records) or request.reason)
    else:
        ended = record_bodies.make_body(status="aborted", feedback=request.given_reason)
        note = Record(kind="ended", path=ROOT, body=ended)
        _append(store, Append(lease=lease, records=(note,), status="aborted", release=True, outbox=messages))


def webhook_admission(store: Store, run: StoredRun, records: Sequence[Record] = ()) -> dict[str, object] | None:
    """Return the body of an admission that names webhooks, or None. Blocks."""
    if not hasattr(store, "claim_messages") or run.parent is not None:
        return None
    first = records[0] if records else store.record(run.run_id, 1)
    named = '"webhooks":' in first.body  # not in nearly all runs
    return record_bodies.read_body(first.body, where="its first record") if named else None


def _messages(store: Store, run: StoredRun, records: Sequence[Record]) -> tuple[OutboxMessage, ...]:
    """Return the messages to the webhooks of a run's admission."""
    admitted = webhook_admission(store, run, records)
    return _durable.aborted_messages(run, admitted) if admitted else ()


def _append(store: Store, append: Append) -> None:
    [verdict] = store.append([append])
    if isinstance(verdict, LeaseLost):
        raise verdict


def _compensates_steps(records: Sequence[Record]) -> bool:
    """Return whether the pipeline that a run was started with has compensations."""
    if not records or records[0].kind != "admitted":
        return False
    body = record_bodies.read_body(records[0].body, where="its first record")
    return any(compensated_by(path) is not None for path in read_fingerprint(body.get("fingerprint", [])))


def _first_reason(records: Sequence[Record]) -> str | None:
    """Return the reason of the first cancellation in the records."""
    for record in records:
        if record.kind == "cancelled":
            return record_bodies.text_in(record_bodies.read_body(record.body, where="its cancellation"), "reason")
    return None


def _compensation_append(lease: Lease, run: StoredRun, reason: str, records: Sequence[Record]) -> Append:
    """Return the append that ends forward work, except compensation pauses."""
    waiting = [pause.path for pause in (*run.pauses, *run.waits)]
    withdrawn = tuple(path for path in waiting if not is_undoing(path))
    note = Record(kind="cancelled", path=ROOT, body=record_bodies.make_body(reason=reason))
    known = any(record.kind == "cancelled" for record in records)
    return Append(
        lease=lease,
        records=() if known else (note,),
        withdrawn=withdrawn,
        status="running" if len(withdrawn) == len(waiting) else "paused",
        release=True,
    )


def _request(store: Store, run_id: RunId, reason: str, held: RunLeased) -> None:
    if not hasattr(store, "request_cancel"):
        raise RunLeased(
            f"{held_by(run_id, held)}. {type(store).__name__} has no `request_cancel`, so the owner cannot be asked to "
            "end the run: cancel it where it runs"
        ) from held
    store.request_cancel(run_id, reason=reason)


def _end_unless_owned(store: Store, run_id: RunId, request: CancelRequest) -> None:
    """End a run released before its owner could read the request."""
    with contextlib.suppress(RunLeased):
        try:
            end_as_aborted(store, run_id, request)
        except NotPaused:
            if store.get(run_id).status != "aborted":
                raise


Tell: TypeAlias = Callable[[CancelRequest], None]


class CancelWatch:
    """Poll one store for cancel requests of a trio run's runs.

    Callbacks run in the loop's thread. Polling does not: a mock clock of the run must not accelerate it.
    """

    def __init__(self, held: Callable[[], Sequence[Lease]], ask: Callable[[Sequence[RunId]], Requests] | None) -> None:
        self._held, self._ask = held, ask
        self._token = trio.lowlevel.current_trio_token()
        self._tell: dict[Lease, Tell] = {}
        self._messages: dict[Lease, int] = {}
        """Numbers of the newest messages to steps of watched runs."""
        self._undelivered: dict[Lease, CancelRequest] = {}
        """Requests received before a run started or after it was released."""
        self._poll_scheduled = False
        self._lock = threading.Lock()
        """Guards `_poll_scheduled`."""

    def watch(self, lease: Lease, tell: Tell) -> None:
        """Pass a request for the run to the callback, until left."""
        self._tell[lease] = tell
        request = self.pop_undelivered(lease)
        if request is not None:
            tell(request)
        with self._lock:
            if self._ask is not None and not self._poll_scheduled:
                self._schedule_poll()

    def unwatch(self, lease: Lease) -> None:
        """Stop watching."""
        self._tell.pop(lease, None)
        self._undelivered.pop(lease, None)
        self._messages.pop(lease, None)

    def pop_undelivered(self, lease: Lease) -> CancelRequest | None:
        """Return an undelivered request, or None."""
        return self._undelivered.pop(lease, None)

    def newest_message(self, lease: Lease) -> int:
        """Return the number of the run's newest steering message, or 0."""
        return self._messages.get(lease, 0)

    def deliver(self, lease: Lease, request: OwnerNotice) -> None:
        """Deliver a request reported by the store, or note a message."""
        tell = self._tell.get(lease)
        if isinstance(request, MessageNotice):
            if tell is not None:
                self._messages[lease] = request.seq
        elif tell is None:
            self._undelivered[lease] = request
        else:
            tell(request)

    def _schedule_poll(self) -> None:
        me = weakref.ref(self)
        self._poll_scheduled = False
        with contextlib.suppress(StoreError):  # without a timer thread, the owner receives it with its next write
            alarms.set(LOOK_EVERY_S, lambda: _poll(me()))
            self._poll_scheduled = True

    def poll(self) -> None:
        """Query the store if a run is watched; on the timer thread."""
        with self._lock:
            leases = list(self._held())
            self._poll_scheduled = bool(leases)
        if leases:
            run_ids = [lease.run_id for lease in leases]
            try:
                start_thread(functools.partial(self._query, run_ids), functools.partial(self._on_reply, leases))
            except StoreError:
                self._again()

    def _query(self, run_ids: Sequence[RunId]) -> Requests:
        assert self._ask is not None
        return self._ask(run_ids)

    def _on_reply(self, leases: Sequence[Lease], got: Outcome[Requests]) -> None:
        """Handle the store's reply in its thread; a failed query is repeated."""
        requests = got.value if isinstance(got, Value) else {}
        for lease in leases:
            if lease.run_id in requests:
                post(self._token, self._notify_if_watched, lease, requests[lease.run_id])
        self._again()

    def _again(self) -> None:
        with self._lock:
            self._schedule_poll()

    def _notify_if_watched(self, lease: Lease, request: OwnerNotice) -> None:
        if lease in self._tell:
            self.deliver(lease, request)


def _poll(watch: CancelWatch | None) -> None:
    if watch is not None:  # its loop may be gone
        watch.poll()
