"""Ending runs from outside their process: at once where nobody is at work, by a request to the owner otherwise.

Rules:

1. What is free, or held by a dead process, is claimed and ended.
2. For a run at work a request is left in its store. Its owner is told with the answer to its next write, and looks for
   requests twice a second besides; then the run's steps are cancelled, and the run ends as aborted.
3. A request outlives its reader: whoever has the run next ends it, before doing any of its work.
4. An owner that gives the run up ends it itself if a request came too late for its steps: nobody else may look.
5. A run whose pipeline has compensations, and that nobody works on, is not ended here, where nobody has the pipeline:
   it is noted that it goes no further, and `recover()`, `cancel()` or any worker undoes what it did and ends it. Who
   does not want that (`undo=False`) ends it at once.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TypeAlias

import trio
from outcome import Outcome, Value

from .._core import record_bodies
from .._core.outcomes import RunId
from .._core.paths import ROOT, is_undoing, undone_by
from .._core.records import Append, CancelRequest, Lease, Record, StoredRun, cancel_reason
from ..errors import LeaseLost, NotPaused, RunLeased, StoreError
from ..stores._port import Store
from .alarms import alarms
from .claiming import claim_now, give_up, held_by, refuse_if_ended
from .store_wait import post, start_thread

LOOK_EVERY_S = 0.5
"""How often the owner of a run looks for a request."""

_CLAIM_S = 30.0
"""How long the claim lasts under which a run is ended, should this process die over it."""

Requests: TypeAlias = dict[RunId, CancelRequest]


def cancel(store: Store, run_id: RunId, reason: str, *, undo: bool = True) -> None:
    """End a run as aborted, or see to it that its owner does; blocks. `NotPaused` if it has ended."""
    request = CancelRequest(reason=cancel_reason(reason, undo=undo))
    try:
        end_as_aborted(store, run_id, request)
    except RunLeased as held:
        _request(store, run_id, request.reason, held)
        _end_unless_at_work(store, run_id, request)
    children = store.children(run_id) if hasattr(store, "children") else ()
    if children:  # whoever waits for them may be dead, and would not end them
        store.park(children, reason=reason)


def end_as_aborted(store: Store, run_id: RunId, request: CancelRequest) -> None:
    """End a run that nobody works on, or leave it to whoever can undo what it did (rule 5); blocks.

    `RunLeased` if somebody works on it, `NotPaused` if it has ended.
    """
    begun = not store.get(run_id).unclaimed
    lease = claim_now(store, run_id, lease_s=_CLAIM_S)
    try:
        run = store.get(run_id)
        refuse_if_ended(run)  # it may have ended before the claim
        records = store.read(run_id) if begun and request.undoes else []
    except (NotPaused, StoreError):
        give_up(store, lease)
        raise
    if _undoes_steps(records):
        _append(store, _left_to_undo(lease, run, request.told, records))
    else:
        ended = record_bodies.make_body(status="aborted", feedback=request.told)
        note = Record(kind="ended", path=ROOT, body=ended)
        _append(store, Append(lease=lease, records=(note,), status="aborted", release=True))


def _append(store: Store, append: Append) -> None:
    [verdict] = store.append([append])
    if isinstance(verdict, LeaseLost):
        raise verdict


def _undoes_steps(records: Sequence[Record]) -> bool:
    """Whether the pipeline that a run was started with has compensations."""
    if not records or records[0].kind != "admitted":
        return False
    from .fingerprint import read_fingerprint  # what only those need who cancel runs that nobody works on

    body = record_bodies.read_body(records[0].body, where="its first record")
    return any(undone_by(path) is not None for path in read_fingerprint(body.get("fingerprint", [])))


def _left_to_undo(lease: Lease, run: StoredRun, reason: str, records: Sequence[Record]) -> Append:
    """What ends the forward work of a run for good: nobody waits for its answers, but for those about undoing."""
    waiting = [pause.path for pause in run.pauses]
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


def _end_unless_at_work(store: Store, run_id: RunId, request: CancelRequest) -> None:
    """End a run that was given up before its owner could read the request."""
    with contextlib.suppress(RunLeased):
        try:
            end_as_aborted(store, run_id, request)
        except NotPaused:
            if store.get(run_id).status != "aborted":
                raise


Tell: TypeAlias = Callable[[CancelRequest], None]


class CancelWatch:
    """Looks for requests to cancel the runs that a trio run works on in one store; see the module's rules.

    What concerns runs is done in the loop's thread. The looking is not: a clock of the run's own must not rush it.
    """

    def __init__(self, held: Callable[[], Sequence[Lease]], ask: Callable[[Sequence[RunId]], Requests] | None) -> None:
        self._held, self._ask = held, ask
        self._token = trio.lowlevel.current_trio_token()
        self._tell: dict[Lease, Tell] = {}
        self._untold: dict[Lease, CancelRequest] = {}
        """What came before a run was begun, or after it was let go."""
        self._looking = False
        self._lock = threading.Lock()
        """Guards `_looking`."""

    def watch(self, lease: Lease, tell: Tell) -> None:
        """Tell of a request for the run, until it is left."""
        self._tell[lease] = tell
        request = self.taken(lease)
        if request is not None:
            tell(request)
        with self._lock:
            if self._ask is not None and not self._looking:
                self._look_later()

    def leave(self, lease: Lease) -> None:
        """Tell of nothing more."""
        self._tell.pop(lease, None)
        self._untold.pop(lease, None)

    def taken(self, lease: Lease) -> CancelRequest | None:
        """A request that nobody was told of."""
        return self._untold.pop(lease, None)

    def heard(self, lease: Lease, request: CancelRequest) -> None:
        """The store has told of a request."""
        tell = self._tell.get(lease)
        if tell is None:
            self._untold[lease] = request
        else:
            tell(request)

    def _look_later(self) -> None:
        me = weakref.ref(self)
        self._looking = False
        with contextlib.suppress(StoreError):  # without a thread to look, the owner is told when it writes
            alarms.set(LOOK_EVERY_S, lambda: _look(me()))
            self._looking = True

    def look(self) -> None:
        """Ask the store, if there is a run to ask for; called by the thread of alarms."""
        with self._lock:
            leases = list(self._held())
            self._looking = bool(leases)
        if leases:
            run_ids = [lease.run_id for lease in leases]
            try:
                start_thread(functools.partial(self._asked, run_ids), functools.partial(self._found, leases))
            except StoreError:
                self._again()

    def _asked(self, run_ids: Sequence[RunId]) -> Requests:
        assert self._ask is not None
        return self._ask(run_ids)

    def _found(self, leases: Sequence[Lease], got: Outcome[Requests]) -> None:
        """In the store's thread: what it said; one that failed is asked again."""
        requests = got.value if isinstance(got, Value) else {}
        for lease in leases:
            if lease.run_id in requests:
                post(self._token, self._tell_if_watched, lease, requests[lease.run_id])
        self._again()

    def _again(self) -> None:
        with self._lock:
            self._look_later()

    def _tell_if_watched(self, lease: Lease, request: CancelRequest) -> None:
        if lease in self._tell:
            self._tell[lease](request)


def _look(watch: CancelWatch | None) -> None:
    if watch is not None:  # its loop may be gone
        watch.look()
