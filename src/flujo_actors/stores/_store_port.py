"""Store port: log, leases, fencing.

Every method blocks, and is called from several worker threads at once. No trio token and no context variables of the
run are available there.

Life of a pause, in every store:

1. A pause is identified by its run, its path and its token.
2. A repeated pause replaces the open one at its path, and the answered one of the same token.
3. An answer consumes an open pause; the pause is kept, so that a second answer is refused.
4. An answer is accepted with or without a lease owner: the next owner finds it in the run's records.
5. A withdrawn pause is closed, and the end of a run closes all its pauses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias, get_args

from .._core.attempt_results import CancelPending, ConversationMoved
from .._core.labels import Labels
from .._core.outcomes import RunId
from .._core.policies.rate_limits import Rates as Rates
from .._core.policies.schedule_rules import Schedules as Schedules
from .._core.policies.selection import Beliefs as Beliefs
from .._core.policies.shared_budgets import BudgetClaim, BudgetSnapshot, StoredBudget
from .._core.records.records import (
    Admission,
    Append,
    AskedPause,
    ClaimedRun,
    ClaimOrder,
    ItemRow,
    Lease,
    OpenPause,
    OutboxMessage,
    OutboxStatus,
    OwnerNotice,
    QuestionQuery,
    Record,
    RunCounts,
    RunFigures,
    RunQuery,
    StateGroup,
    StoredRun,
    StoredStatus,
    WorkerNote,
)
from .._core.records.sent_events import Accepts, EventInfo, EventStatus, OutgoingEvent, Sent
from .._core.records.sent_events import Steering as Steering
from .._core.step_paths import StepPath
from .._core.views.record_summaries import RecordSummary
from ..errors import DeclarationError, LeaseLost, RunExists

Verdict: TypeAlias = LeaseLost | ConversationMoved | CancelPending | OwnerNotice | None
"""Result of an append: refused, written, or written with a notice for the owner."""


class RunLog(Protocol):
    """Writing runs."""

    def admit(self, admission: Admission, *, owner: str, lease_s: float) -> Lease:
        """Create the run durably before returning; raise `RunExists` for a used id."""

    def admit_all(
        self, admissions: Sequence[Admission], *, owner: str | None, lease_s: float
    ) -> list[Lease | RunExists]:
        """Create several runs in one transaction; errors are returned by position.

        Without an `owner` the first claimant owns the run; its lease, of epoch 0, permits nothing.
        """

    def claim(self, run_id: RunId, *, owner: str, lease_s: float) -> Lease:
        """Claim a run whose lease is free or expired.

        Raise `RunLeased` if it is held and `RunNotFound` if it does not exist. The epoch is raised, so later writes of
        the former owner are refused.
        """

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        """Make the batch durable in one transaction before returning.

        An append under an outdated lease is skipped, and its error is returned at its position; so is one whose
        `conversation` has another revision, in a store with `conversation_rows`, and one with `unless_cancelled` whose
        run has a cancel request, in a store with `request_cancel`. A written one returns the pending `CancelRequest` of
        its run, else a `MessageNotice` of its messages, else `None`.
        """

    def renew(self, leases: Sequence[Lease], *, lease_s: float) -> list[LeaseLost | None]:
        """Extend leases by a monotonic clock; return errors like `append`."""

    def answer(self, run_id: RunId, path: StepPath, *, token: str, record: Record) -> None:
        """Consume the pause at `path` with an answer, once and durably.

        Raise `NotPaused` if there is no such pause, `AlreadyAnswered` if another caller was faster. The record is
        appended. No lease is needed: a pause may be answered while the run is still running.
        """


class RunControl(Protocol):
    """Optional: operations on a run that has an owner."""

    def take_over(self, run_id: RunId, *, dead: str, owner: str, lease_s: float) -> Lease:
        """Claim a run whose lease is held by the dead owner `dead`."""

    def request_cancel(self, run_id: RunId, *, reason: str) -> None:
        """Record a durable cancel request; no effect on an ended run.

        The owner receives it with the result of its next append, which is written all the same unless it has
        `unless_cancelled`, and by `cancel_requests`. The request stays until the run has ended, for the next owner.
        Raise `RunNotFound` if there is no such run.
        """

    def cancel_requests(self, run_ids: Sequence[RunId]) -> Mapping[RunId, OwnerNotice]:
        """Return the pending cancel requests of these runs; read-only, polled every second.

        A run without one that has messages to its steps is reported with a `MessageNotice`.
        """


class RunQueue(Protocol):
    """Optional: queues of runs, and workers."""

    def wanting(self, *, pipeline: str, queues: Sequence[str], host: str, limit: int) -> list[StoredRun]:
        """Return the claimable runs of a pipeline in these queues, oldest first.

        Those are the ready runs, by the time at which they became ready; and `running` runs with an expired owner, or
        with one whose name begins with `host` and may be known to be dead.
        """

    def orphans(self, *, pipeline: str, host: str, updated_before: float, limit: int) -> list[StoredRun]:
        """Return unqueued, unowned runs of a pipeline, unchanged since then, oldest first.

        Those are the ready runs, and `running` runs with an expired owner, or with one whose name begins with `host`.
        At most `limit` runs are returned.
        """

    def standing(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        """Return the existing runs among these, in any order."""

    def requeue(self, run_ids: Sequence[RunId]) -> None:
        """Make parked remote steps claimable again, and drop their cancel requests."""

    def park(self, run_ids: Sequence[RunId], *, reason: str) -> None:
        """Pause unowned remote steps without a waiting parent, unclaimable by workers.

        Owners of the others receive the reason, as by `request_cancel`.
        """

    def children(self, run_id: RunId) -> list[RunId]:
        """Return the remote steps of a run."""

    def sign_on(self, worker: WorkerNote) -> None:
        """Take note of a worker, from now on or again."""

    def sign_off(self, name: str) -> None:
        """Forget a worker."""

    def signed_on(self, *, within_s: float) -> list[WorkerNote]:
        """Return the workers seen within a time, by name."""


class ClaimQueue(Protocol):
    """Optional: claims of queued runs in order, several at once.

    A store that has it also accepts `per_key` in `claim` and `take_over`. They raise `RunLeased` if `per_key` other
    runs of the run's key have an unexpired lease in its queue.
    """

    def claim_next(self, order: ClaimOrder, *, owner: str, lease_s: float) -> list[ClaimedRun]:
        """Claim the next unowned `running` runs, in the order of `claim_order`.

        Runs with a cancel request are left out. Concurrent callers get different runs, and together they respect
        `per_key`: the leases are counted in the transaction of the claim.
        """

    def ready_keys(self) -> list[tuple[str, str, int]]:
        """Return queue, key and number of claimable runs, without remote steps."""


class RecoveryClaims(Protocol):
    """Optional: claims of left runs, many at once."""

    def claim_all(self, runs: Sequence[StoredRun], *, owner: str, lease_s: float) -> list[ClaimedRun]:
        """Claim unfinished runs with their records, in one transaction.

        The runs are as a listing showed them; one with an unexpired lease belongs to a dead owner. A run that was
        claimed or has ended since then is left out. Unreadable records are left out of their run.
        """


class Notices(Protocol):
    """Descriptor that becomes readable after commits of any process; lossy."""

    def fileno(self) -> int:
        """Return the descriptor."""

    def drain(self) -> None:
        """Forget the notices so far."""

    def close(self) -> None:
        """Close the descriptor."""


class CommitSignals(Protocol):
    """Optional: notices for workers without an engine. Without it, they poll."""

    def commit_notices(self) -> Notices | None:
        """Return notices of later commits, or `None` without support."""


class Deadlines(Protocol):
    """Optional: pauses with a timeout.

    A store that has them reads `timeout_s` from `Append.pauses`, counts from the time of the write by a wall clock, and
    reports it as `due_at`. From then on `answer` raises `Expired`, with or without a call of `expire`; an earlier
    answer stays `AlreadyAnswered`.
    """

    def expire(self, *, body: str) -> list[RunId]:
        """End every timed-out pause once, durably; return the runs.

        Each is consumed as by an answer: a record of kind `answered` with this body is appended to its run, whose
        `expired` is true until the run is resumed.
        """

    def next_due_s(self) -> float | None:
        """Return the seconds until the next pause timeout, or None."""

    def defer(self, run_id: RunId, path: StepPath, *, token: str, records: Sequence[Record], pause: OpenPause) -> None:
        """Consume a pause and open another in one transaction, with its `outbox`."""


class Wakes(Protocol):
    """Optional: runs that wait for a time, without a process.

    A store that has them keeps `wake_at` and `ready` of every unowned run, each changed in the transaction that causes
    it. Times are the store's wall clock, to which it adds `delay_s` and `timeout_s` itself. A claim ends the due waits
    of its run as `expire` does, with the body `TIMED_OUT`.
    """

    def now(self) -> float:
        """Return the store's wall clock, in seconds since the epoch."""

    def due(self) -> int:
        """Make at most 100 due runs ready; return their number."""

    def next_wake_s(self, queues: Sequence[str] = ()) -> float | None:
        """Return the seconds until the next wake, or None.

        One index lookup."""

    def wake(self, run_id: RunId, path: StepPath | None = None, *, body: str) -> bool:
        """End the timed waits or the delayed start of a run.

        Return whether there were any.

        Each is consumed as by `expire`, with this body. Waits for events stay. Raise `RunNotFound`.
        """


class Events(Protocol):
    """Optional: events that are sent to waiting runs.

    A send and the opening of a wait with the same name and key are serialized. A wait that opens, in the transaction
    of its append, consumes the oldest buffered event that fits its schema; one that does not fit is `refused`.
    """

    def send(self, event: OutgoingEvent, accepts: Accepts) -> Sent:
        """Deliver or buffer an event, once for its name and id.

        It ends the oldest open wait of its name and key, or all of them, each with a record of the event's body. Call
        `accepts` for each in the transaction: its exception leaves everything as it was.
        """

    def waits(self, *, event: str | None = None, key: str | None = None) -> list[tuple[RunId, OpenPause]]:
        """Return the open waits for events, oldest first."""

    def events(
        self, *, event: str | None = None, key: str | None = None, status: EventStatus | None = None, limit: int = 100
    ) -> list[EventInfo]:
        """Return stored events, latest first."""

    def purge(self, *, limit: int = 1000) -> int:
        """Delete events whose time is over; return their number."""


class Budgets(Protocol):
    """Optional: budgets shared by the processes of one run.

    A store that has it writes the `shares` of an append in the transaction that writes it, each unless a later one
    exists, and deletes budgets with their run.
    """

    def draw(self, lease: Lease, claims: Sequence[BudgetClaim]) -> list[BudgetSnapshot]:
        """Add the claims if every budget has room; write all shares.

        One transaction, also under concurrent draws. Raise `LeaseLost` and write nothing if the lease is outdated.
        """

    def window_budgets(self) -> list[StoredBudget]:
        """Return the budgets of windows with the sums of their shares.

        Their claims have an end, and a key with the prefix `WINDOW_PREFIX` in the place of the run.
        """

    def purge_budgets(self, *, limit: int = 1000) -> int:
        """Delete windows that ended 400 days ago; return their number."""


class CacheRows(Protocol):
    """Optional: outputs of steps for later runs.

    A store that has them writes the `cached` entries of an append in its transaction.
    """

    def cached(self, key: str) -> str | None:
        """Return the output of an unexpired entry, or None."""

    def clear_cache(self, pipeline: str | None = None, step: str | None = None) -> int:
        """Delete entries; return their number."""


class RunArchive(Protocol):
    """Reading runs, and forgetting them."""

    def get(self, run_id: RunId) -> StoredRun:
        """Return the run as listed; raise `RunNotFound` if it does not exist."""

    def read(self, run_id: RunId, *, after: int = 0) -> list[Record]:
        """Return the run's records after a sequence number, in order.

        `CorruptRecord` names an unreadable one.
        """

    def find(self, query: RunQuery) -> list[StoredRun]:
        """Return the matching runs, latest change first, without remote steps."""

    def delete(self, run_ids: Sequence[RunId]) -> int:
        """Delete unleased runs with all their records; return their number.

        Their remote steps and budgets are deleted with them, leased or not.
        """


class RunScan(Protocol):
    """Optional: observation of running runs, and forks."""

    def scan(self, run_id: RunId, after: int = 0, limit: int | None = None) -> list[RecordSummary]:
        """Return at most `limit` record summaries after a number; raise `RunNotFound`."""

    def record(self, run_id: RunId, seq: int) -> Record:
        """Return one record with its body; raise `RunNotFound` if there is none."""

    def look(self, run_ids: Sequence[RunId]) -> dict[RunId, StoredRun]:
        """Return the existing runs of these ids in one query."""

    def admit_fork(
        self,
        admission: Admission,
        records: Sequence[Record],
        *,
        pauses: Sequence[OpenPause] = (),
        status: StoredStatus = "running",
    ) -> None:
        """Create an unowned run that begins with these records, in one transaction.

        Raise `RunExists` if its id is used.
        """


class RunInbox(Protocol):
    """Optional: counts of runs, and pages of open pauses."""

    def counts(self) -> RunCounts:
        """Return the numbers of runs and of open pauses, in one query."""

    def groups(self, *, ended: bool = True) -> list[StateGroup]:
        """Return all runs grouped by status and state, in one query."""

    def asked(self, query: QuestionQuery) -> list[AskedPause]:
        """Return a page of open questions, without those of remote steps."""


class RunLabels(Protocol):
    """Optional: labels and singleton keys of runs.

    A store that has it writes the `labels` of an admission in its transaction, returns them with the run, lists by
    them, and deletes them with the run. It returns a `SingletonBusy` for an admission whose `singleton` an open run
    has; with `replaces`, it moves the key, stores a cancel request of the old run and names it in the lease, in one
    transaction. The end of a run frees its key, and `retry` of a run whose key is taken raises `SingletonBusy`.
    """

    def set_labels(self, run_id: RunId, labels: Mapping[str, str], *, remove: Sequence[str] = ()) -> Labels:
        """Add or change labels and remove names, atomically; return all labels.

        No lease is needed, and the run's records are unchanged. Raise `RunNotFound` if there is no such run, and
        `DeclarationError` if it would have more than 16 labels.
        """

    def labels_of(self, run_ids: Sequence[RunId]) -> dict[RunId, Labels]:
        """Return the labels of those of these runs that have any."""

    def holder_of(self, singleton: str) -> RunId | None:
        """Return the open run that has a singleton key, or None."""


class RunTotals(Protocol):
    """Optional: numbers of runs, for totals."""

    def figures(
        self,
        query: RunQuery,
        *,
        labels: Sequence[str],
        period: tuple[float, float],
        ended: bool,
        after: RunFigures | None,
        limit: int,
    ) -> list[RunFigures]:
        """Return a page of the numbers of matching runs, without remote steps.

        Runs that ended within the period, in order of their end, or open runs that were created in it, oldest first.
        `labels` are the names whose values are returned. The page begins after the run `after`.
        """


class RunOutbox(Protocol):
    """Optional: messages to webhooks, in the transactions of their appends.

    A store that has them writes the `outbox` of an append with it, and deletes the messages of a deleted run.
    """

    def claim_messages(self, hooks: Sequence[str], *, owner: str, for_s: float, limit: int) -> list[OutboxMessage]:
        """Claim due messages to these webhooks, oldest first.

        They are due again after `for_s` seconds of the store's clock.
        """

    def settle_message(self, message_id: str, *, owner: str, error: str | None, after_s: float | None) -> None:
        """Record a delivery of the message's claimant.

        Without an error it is delivered. Otherwise it is due again after `after_s` seconds; `None` ends it as failed.
        """

    def messages(
        self, *, status: OutboxStatus | None = None, run_id: RunId | None = None, limit: int | None = None
    ) -> list[OutboxMessage]:
        """Return the messages, newest first."""

    def retry_messages(self, message_ids: Sequence[str] | None = None) -> int:
        """Make failed messages due now, all by default; return their number."""


class RunRetry(Protocol):
    """Retry of ended runs; optional for a store."""

    def retry(self, run_id: RunId, *, number: int, record: Record, queue: str | None) -> None:
        """Make an ended run claimable and append the record, atomically.

        `number` is the count of retries including this one. `NotRetryable` if the run's status or its count is another,
        so of several callers one wins. A run without a queue is put into `queue`. A remote step is also retried if it
        completed: its run completes with the failure of its step.
        """


class RunTransfer(Protocol):
    """Optional: export and import of runs, and reading in parts."""

    def read_outside(self, run_id: RunId) -> list[Record]:
        """Return the records outside items and turns, in order."""

    def repeated(self, run_id: RunId) -> list[StepPath]:
        """Return the outermost maps and loops with records inside their items."""

    def read_inside(self, run_id: RunId, *, before: int, limit: int) -> list[ItemRow]:
        """Return at most `limit` records inside items before a number, last first."""

    def read_page(self, run_id: RunId, *, after: int, limit: int) -> list[Record]:
        """Return at most `limit` records after a number, in order."""

    def put(self, runs: Iterable[tuple[StoredRun, Iterable[Record]]]) -> None:
        """Create runs without owners as they were exported, in one transaction.

        Times, epochs, open pauses and cancel requests are kept; leases are not. The records of a run are numbered from
        1 and consumed before the next run is. Raise `RunExists` and write nothing if an id is used.
        """


class RunCompaction(Protocol):
    """Optional: loops that delete their old turns (`keep_history`).

    A store that has it applies the `compaction` of an append in the transaction that writes it. Of the records before
    the last `compacted` record at the path `base`, it deletes those that `drops` names, with their blobs and answered
    pauses. Numbers of later records do not change, and `read` accepts gaps below a `compacted` record.
    """

    def compacted(self, run_id: RunId) -> int | None:
        """Return the number of the oldest `compacted` record, or None."""


class StoreDuties(Protocol):
    """Optional: duties of one process at a time, such as retention."""

    def take_duty(self, name: str, *, owner: str, for_s: float) -> bool:
        """Lease a duty of the store, or extend its lease.

        0 seconds release it. False if another owner holds it. The store's wall clock counts.
        """

    def delete_sized(self, run_ids: Sequence[RunId]) -> tuple[int, int]:
        """Delete as by `delete`; return the number of runs and their bytes.

        Bytes are those of record bodies and of blobs that no other run uses.
        """


class Maintenance(Protocol):
    """Optional: disk space of deleted runs."""

    def trim(self) -> None:
        """Truncate the database's log, unless it is in use."""

    def vacuum(self) -> None:
        """Free the space of deleted runs; writers may wait meanwhile."""


class RunTexts(Protocol):
    """Optional: live text between processes. Lossy; nothing survives a crash."""

    def swap_texts(self, said: Mapping[RunId, Mapping[StepPath, str]]) -> set[RunId]:
        """Publish owned runs' latest text; return the watched runs."""

    def watch_texts(self, run_ids: Sequence[RunId], *, for_s: float) -> dict[RunId, dict[StepPath, str]]:
        """Return these runs' published texts; watch them for `for_s` seconds."""


class ChangeListener(Protocol):
    """Subscription to changes of runs, for one thread; lossy."""

    def wait(self, run_ids: Sequence[RunId], timeout_s: float) -> None:
        """Block until a run has changed, or `interrupt`, or the timeout.

        Raise `StoreError` if the subscription is lost.
        """

    def interrupt(self) -> None:
        """End a wait, the present or the next one; from any thread."""

    def release(self) -> None:
        """End the subscription; never fails."""


class RunChanges(Protocol):
    """Optional: notifications of commits of any process. Without it, watches poll."""

    def listen(self) -> ChangeListener | None:
        """Return a subscription to later changes, or `None` without support.

        Raise `StoreError` if the database cannot be reached.
        """


class Transaction(Protocol):
    """An open transaction of the store's database."""

    connection: Any
    """The driver's connection; its writes commit with the append."""

    def append(self, append: Append) -> None:
        """Add records to the transaction; `LeaseLost` if the lease is not current."""


def required(store: object, method: str, *, subject: str, port: str = "RunScan") -> None:
    """`DeclarationError` if the store lacks a part that not every store has."""
    if not hasattr(store, method):
        raise DeclarationError(
            f"{subject} needs a store with `{method}`, and {type(store).__name__} has none: see `{port}`, "
            "or use SqliteStore, PostgresStore or MemoryStore"
        )


Migrate: TypeAlias = Literal["auto", "never"]
"""Whether a store migrates its schema: before first use, or never."""


def migrates(migrate: Migrate) -> bool:
    """Return whether a store may migrate; `DeclarationError` for unknown words."""
    if migrate not in get_args(Migrate):
        raise DeclarationError(f"migrate must be 'auto' or 'never', not {migrate!r}")
    return migrate == "auto"


class Store(
    RunLog,
    RunControl,
    RunQueue,
    ClaimQueue,
    Deadlines,
    Wakes,
    Events,
    Beliefs,
    Budgets,
    Schedules,
    Rates,
    CacheRows,
    Steering,
    RunArchive,
    RunScan,
    RunInbox,
    RunLabels,
    RunTotals,
    RunOutbox,
    RunRetry,
    RunTransfer,
    RunCompaction,
    RecoveryClaims,
    StoreDuties,
    Protocol,
):
    """Durable storage of runs.

    A store may name its database with a text `place`: steps that write through stores of one place take turns; those of
    a store without it take turns among themselves. A store with a single writer has `one_writer = True`: a run started
    inside its transaction is refused.
    """

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Return a transaction that commits at the block's end or rolls back.

        Raise `TransactionLost` instead of that exception if the database gave up the transaction: nothing was written,
        and a retry may succeed. Raise `TransactionRefused` if the writes violate a database rule at commit.
        """

    def close(self) -> None:
        """Give up connections and threads; nothing that was durable is lost."""
