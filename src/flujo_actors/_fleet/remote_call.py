"""Remote call: one awaited remote step, and the blocking store operations.

Sections:

- Batched reads of remote results: those that end together are read together.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import trio
from outcome import Outcome, Value, capture

from .. import errors
from .._bridge.user_code_guard import guarded
from .._core.outcomes import RunId
from .._core.records import record_bodies
from .._core.records.records import Admission, Lease, OpenPause, Record, StoredRun, StoredStatus, has_ended
from .._core.records.run_state import kept_records
from .._core.step_paths import StepPath
from .._core.usage import NO_USAGE, Usage
from .._durable.durable_run_registry import DurableRunRegistry
from .._durable.group_commit import writer_for
from .._durable.journal import KeptUnit, Pause, PauseAnswer, Recorded
from .._durable.run_admission import answer_schema_at, step_at
from .._durable.store_executor import call_store
from .._durable.store_journal import StoreJournal
from ..stores import _record_rows as record_rows
from ..stores._store_port import Store
from .engine_port import Ticket
from .remote_stream import StreamReader
from .run_queue import Counter


class ReplayedJournal(StoreJournal):
    """Journal of a remote step; writes are kept in memory."""

    def started(self, path: StepPath, name: str, of: int = 0) -> None:
        """Do nothing: the step does not start here."""

    async def settled(self, path: StepPath, record: Recorded) -> Recorded:
        return record

    async def paused(self, pause: Pause) -> None:
        """Ignore the pause: no answer is expected."""

    async def choose(self, path: StepPath, choice: Callable[[], str]) -> None:
        self._chosen[path] = choice()

    async def intend(self, path: StepPath, intent: str) -> bool:
        self._intents[path] = Record(kind="intent", path=path, body=record_bodies.make_body(intent=intent))
        return False

    async def commit_unit(self, path: StepPath, result: str, usage: Usage) -> None:
        self._units[path] = KeptUnit(result=result, usage=usage)


def replayed_journal(runs: DurableRunRegistry, child: RunId) -> ReplayedJournal:
    """Return a journal to read a remote step with."""
    return ReplayedJournal(
        runs.store,
        writer_for(runs.store, lease_s=runs.settings.lease_s),
        Lease(run_id=child, owner="", epoch=0),
        redact=runs.redact,
        schema_of=partial(answer_schema_at, runs.pipeline),
        step_at=partial(step_at, runs.pipeline),
    )


PARKED = "no caller waits for this remote step any more; it continues with its run"
"""Reason for parking a remote step, which does not end it."""

_TOGETHER = 200
"""Number of remote steps admitted in one transaction."""


@attrs.frozen(kw_only=True)
class Answer:
    """Answer to a remote step's pause."""

    path: StepPath
    token: str
    record: Record


@attrs.frozen(kw_only=True)
class End:
    """End of a remote step outside its own record."""

    status: StoredStatus
    feedback: str = ""
    error: BaseException | None = None
    """Control error that ends the whole run, if any."""
    usage: Usage = NO_USAGE
    """Usage until then."""


@attrs.define(kw_only=True, eq=False)
class RemoteCall:
    """Remote call of one or more steps, and its waiters."""

    child: RunId
    ticket: Ticket
    admission: Admission | None = None
    """`None` until it is submitted."""
    answers: list[Answer] = attrs.field(factory=list)
    notices: int = 0
    """Number of times that there was something to read."""
    notified: trio.Event = attrs.field(factory=trio.Event)
    """Set at the next notice. Each notice has its own event: many readers wait, and each reads at its own pace."""
    readers: int = 0
    error: BaseException | None = None
    sure: bool = False
    """Whether it was submitted, so the store must know it soon."""
    due: float = 0.0
    """Earliest monotonic time of a repeated request."""
    stopped: trio.Event | None = None
    reading: trio.Lock = attrs.field(factory=trio.Lock)
    begun: bool = False
    """Whether a worker had started it when stopped."""
    journal: ReplayedJournal | None = None
    end: End | None = None

    reader: StreamReader | None = None
    """Receiver of the step's events, if the run has a reader."""

    def notify(self) -> None:
        """Wake all readers; a later one reads at once."""
        self.notices += 1
        self.notified.set()
        self.notified = trio.Event()

    async def next_notice(self, seen: int) -> int:
        """Wait for a notice after the `seen` ones; return their number."""
        while self.notices == seen:
            await self.notified.wait()
        return self.notices

    def on_signal(self, kind: str, rest: Any) -> None:
        """Handle a signal of the worker."""
        if kind == ENDED:
            self.notify()
        if self.reader is not None:
            self.reader.end() if kind == ENDED else self.reader.receive(rest)


ENDED = "ended"


# --- blocking calls -----------------------------------------------------------------------------------------


def submitted(store: Store, counter: Counter, calls: Sequence[RemoteCall], reply: str | None) -> list[RemoteCall]:
    """Admit and submit remote steps; return those already completed."""
    done: list[RemoteCall] = []
    for start in range(0, len(calls), _TOGETHER):
        part = calls[start : start + _TOGETHER]
        answers = counter.admit([_admission(call) for call in part], [call.ticket for call in part])
        new = [call for call, answer in zip(part, answers, strict=True) if isinstance(answer, Lease)]
        known = [call for call in part if call not in new]
        if known and reply is not None and hasattr(store, "readdress"):  # another process has requested them
            store.readdress([call.child for call in known], reply)
        done.extend(_resumed(store, counter, known))
    for call in calls:
        call.sure = True
    return done


def _admission(call: RemoteCall) -> Admission:
    assert call.admission is not None
    return call.admission


def _resumed(store: Store, counter: Counter, calls: Sequence[RemoteCall]) -> list[RemoteCall]:
    """Resume existing remote steps; return those at rest."""
    for call in calls:
        for answer in call.answers:
            with contextlib.suppress(errors.NotPaused):  # it was passed on before
                store.answer(call.child, answer.path, token=answer.token, record=answer.record)
    found = {run.run_id: run for run in store.standing([call.child for call in calls])}
    resting = [call for call in calls if _rests(found[call.child])]
    if resting:
        requested_again(store, counter, resting)
    return [call for call in calls if _is_settled(found[call.child]) and call not in resting]


def _rests(run: StoredRun) -> bool:
    """Return whether it resumes on request; limit pauses try again."""
    return run.status == "paused" and all(_is_about_limits(pause) for pause in run.pauses)


def _is_about_limits(pause: OpenPause) -> bool:
    question = json.loads(pause.body).get("question")
    return question is not None and question["kind"] == "limits"


def _is_settled(run: StoredRun) -> bool:
    return has_ended(run.status) or (run.status == "paused" and bool(run.pauses))


def requested_again(store: Store, counter: Counter, calls: Sequence[RemoteCall]) -> None:
    """Request workers for abandoned remote steps."""
    store.requeue([call.child for call in calls])
    counter.again([call.ticket for call in calls])


def parked(store: Store, counter: Counter, children: Sequence[RunId]) -> None:
    """Park remote steps without a waiter."""
    store.park(children, reason=PARKED)
    counter.withdraw(children)


def end_in(records: Sequence[Record], *, where: str) -> End | None:
    """Return the end of a remote step from its records, if any."""
    last = next((record for record in reversed(records) if record.kind in ("ended", "resumed", "answered")), None)
    if last is None or last.kind != "ended":
        return None
    body = record_bodies.read_body(last.body, where=where)
    return End(
        status=body["status"],
        feedback=str(body.get("feedback") or ""),
        error=_control_error(body.get("control")),
        usage=record_bodies.read_usage(body.get("usage"), where=where),
    )


def control_data(error: BaseException) -> dict[str, object] | None:
    """Return a well-known control error as JSON data, or None."""
    name = type(error).__name__
    if _control_type(name) is None:
        return None
    return {"type": name, "message": str(error), "limits": list(getattr(error, "limits", ()))}


def _control_error(data: Any) -> BaseException | None:
    kind = _control_type(data["type"]) if isinstance(data, dict) else None
    if kind is None:
        return None
    error = kind(data["message"])
    if isinstance(error, errors.UsageLimitExceededError):
        error.limits = tuple(data.get("limits", ()))
    return error


def _control_type(name: str) -> type[errors.ControlError] | None:
    """Return a control error class of the library, never another."""
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, errors.ControlError) else None


def answer_of(answered: PauseAnswer) -> Answer:
    """Return an answer to the caller's run for the pausing remote step."""
    body = record_bodies.make_body(answer=record_bodies.stored_value(answered.answer))
    path = answered.pause.path
    token = answered.pause.paused.state_token or ""
    return Answer(path=path, token=token, record=Record(kind="answered", path=path, body=body))


# --- Batched reads of remote results ------------------------------------------------------------------------------


_READ_TOGETHER = 50
"""Number of concurrent reads: each may hold megabytes."""


@attrs.define(eq=False)
class _PendingRead:
    """Pending read of a remote step, and its result."""

    journal: ReplayedJournal
    got: Outcome[End | None] | None = None
    done: trio.Event = attrs.field(factory=trio.Event)

    @property
    def child(self) -> RunId:
        return self.journal.lease.run_id


@attrs.define(eq=False)
class ResultBatchReader:
    """Batch reader of remote steps for one trio run."""

    runs: DurableRunRegistry
    _wanted: list[_PendingRead] = attrs.field(factory=list, init=False)
    _reads: bool = attrs.field(default=False, init=False)

    async def read(self, child: RunId) -> tuple[ReplayedJournal, End | None]:
        """Return a remote step's journal, and its end if it has one."""
        wanted = _PendingRead(replayed_journal(self.runs, child))
        self._wanted.append(wanted)
        if not self._reads:
            self._reads = True
            trio.lowlevel.spawn_system_task(self._read_all)
        await wanted.done.wait()
        assert wanted.got is not None
        return wanted.journal, wanted.got.unwrap()

    async def _read_all(self) -> None:
        await trio.lowlevel.checkpoint()  # for company: signals come together
        while self._wanted:
            part, self._wanted = self._wanted[:_READ_TOGETHER], self._wanted[_READ_TOGETHER:]
            got = await guarded(call_store, lambda part=part: _load_all(self.runs.store, part))
            for wanted in part:
                wanted.got = wanted.got if isinstance(got, Value) else got
                wanted.done.set()
        self._reads = False


def _load_all(store: Store, wanted: Sequence[_PendingRead]) -> None:
    """Read them all, and let each have its own; blocks."""
    found = _records_of(store, [each.child for each in wanted])
    for each in wanted:
        each.got = capture(_load, each.journal, found.get(each.child))


def _records_of(store: Store, children: Sequence[RunId]) -> Mapping[RunId, Sequence[Record]]:
    if len(children) == 1 or not hasattr(store, "read_all"):  # few stores have it
        return {child: store.read(child) for child in children}
    found: Mapping[RunId, Sequence[Record]] = store.read_all(children)
    return found


def _load(journal: ReplayedJournal, records: Sequence[Record] | None) -> End | None:
    child = journal.lease.run_id
    if records is None:
        raise record_rows.not_found(child)
    kept = kept_records(records)
    journal.load(kept)
    return end_in(kept, where=f"the remote step {child!r}")
