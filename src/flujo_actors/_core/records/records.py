"""Typed, versioned records of a durable run, and leases with epochs (fencing).

Rules:

1. A run is a sequence of records, numbered from 1 by the store; nothing is ever changed in place. Gaps exist only
   below a `compacted` record: its loop deletes the records of old turns.
2. A record's body is a JSON object with its version under `v`; an unreadable body is an error that names run and
   sequence number, never a guess.
3. Only the lease owner writes to a run. A lease is an owner and an epoch; every claim raises the epoch, and
   every write carries its epoch.

Sections:

- Delivery count of a run, for poison message detection.
- Report of `recover()`: results of recovered runs, and runs left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import attrs

from ..labels import NO_LABELS, LabelFilter, Labels
from ..outcomes import PipelineResult, RunId
from ..step_paths import ROOT, StepPath, above_of

if TYPE_CHECKING:
    from ..policies.approval_policy import QuestionKind
    from ..policies.selection import Evidence
    from ..policies.shared_budgets import BudgetShare


RECORD_VERSION = 3
"""Newest version of record bodies; all earlier ones are readable."""

PLAIN_VERSION = 2
"""Version of a body without a context patch; earlier releases read it."""

RecordKind: TypeAlias = Literal[
    "admitted",  # the run exists: input, context, fingerprint
    "started",  # a step began, and something else was written before it ended
    "intent",  # a unit (model turn, tool call) is about to be done
    "unit",  # a unit is done: its result and usage
    "settled",  # a step has its outcome, with its context and its usage
    "paused",  # a step waits for an answer
    "answered",  # the answer, as it was given
    "chosen",  # a selection has chosen an arm
    "rewarded",  # a reward of a choice was reported
    "retried",  # a failed or aborted run continues: number, reason, mode
    "steered",  # a message to a granular step, accepted from outside
    "compacted",  # a loop with `keep_history` finished a turn: its state, instead of older records
    "resumed",  # another session of the run starts
    "cancelled",  # the run does not continue: its next owner compensates it and ends it
    "ended",  # the run's result
]

StoredStatus: TypeAlias = Literal["running", "paused", "sleeping", "completed", "failed", "aborted"]
"""Status of a stored run; `running` with an expired lease is abandoned."""

WaitKind: TypeAlias = Literal["sleep", "event", "start", "rate", "budget"]
"""Kind of a wait that needs no person; `start` is a delayed start."""

TIMED_OUT = f'{{"v":{PLAIN_VERSION},"timeout":true}}'
"""Body of the record that ends a pause by its deadline."""

WOKEN = f'{{"v":{PLAIN_VERSION},"woken":true}}'
"""Body of the record that ends a wait before its time."""

AT_ONCE = 100
"""Maximum number of waits that one transaction ends."""

ListOrder: TypeAlias = Literal["updated", "created"]
"""Order of a listing: latest change first, or newest run first."""

ENDED: tuple[StoredStatus, ...] = ("completed", "failed", "aborted")
"""Final statuses of a run."""


RETRYABLE: tuple[StoredStatus, ...] = ("failed", "aborted")
"""Statuses of ended runs that a retry continues."""


def has_ended(status: StoredStatus | None) -> bool:
    """Return whether a run of this status is over."""
    return status in ENDED


@attrs.frozen(kw_only=True)
class Record:
    """One thing that happened in a run."""

    kind: RecordKind
    """Kind of the record."""
    path: StepPath
    """Path of the step; empty for the run itself."""
    body: str
    """JSON text: an object with its version under `v`."""
    seq: int = 0
    """Its place in the run, given by the store."""
    at: float | None = attrs.field(default=None, eq=False)
    """Store time of the write in epoch seconds; `None` if unknown."""
    gist: str | None = attrs.field(default=None, eq=False, repr=False)
    """Summary for listings (`light_records`); `None` if it is read from the body."""


ItemRow: TypeAlias = tuple[int, str, StepPath, str, float | None]
"""Number, kind, path, body and time of a record inside an item.

Pauses and answers alone have a time. Rows are made by the million.
"""


@attrs.frozen(kw_only=True)
class Lease:
    """Right to write to a run until another owner claims it."""

    run_id: RunId
    """Id of the run."""
    owner: str = attrs.field(hash=False)
    """Name of the owner."""
    epoch: int = attrs.field(hash=False)
    """Fencing token: the number of the claim."""
    watched: bool = attrs.field(default=False, eq=False)
    """Whether another process watched the run when it was claimed."""
    replaced: RunId | None = attrs.field(default=None, eq=False)
    """Run that lost its singleton key to this one."""


_WITHOUT_UNDOING = " (undo=False)"


def cancel_reason(reason: str, *, undo: bool) -> str:
    """Return a cancel reason in stored form, with its compensation flag."""
    return reason if undo else f"{reason}{_WITHOUT_UNDOING}"


@attrs.frozen(kw_only=True)
class CancelRequest:
    """Cancel request, delivered to the owner with its next store access."""

    reason: str
    """Reason of the request."""

    @property
    def undoes(self) -> bool:
        """Return whether the run is compensated; a reason's suffix declines it."""
        return not self.reason.endswith(_WITHOUT_UNDOING)

    @property
    def given_reason(self) -> str:
        """Return the reason as it was given."""
        return self.reason.removesuffix(_WITHOUT_UNDOING)


@attrs.frozen(kw_only=True)
class MessageNotice:
    """Messages to granular steps, delivered with the owner's next store access."""

    seq: int
    """Number of the newest one."""


OwnerNotice: TypeAlias = CancelRequest | MessageNotice
"""News about a run for its owner."""


@attrs.frozen(kw_only=True)
class Admission:
    """A run that is about to exist."""

    run_id: RunId
    """Id of the new run."""
    pipeline: str
    """Pipeline name shared by its runs, for listings."""
    body: str
    """The body of the run's first record, of kind `admitted`."""
    queue: str | None = None
    """Queue of the run, if a worker executes it."""
    fingerprint: str | None = None
    """Digest of the pipeline version, to name workers of others."""
    parent: RunId | None = None
    """Parent run of a remote step: unlisted, deleted with its parent."""
    labels: Labels = NO_LABELS
    """Labels of the new run."""
    key: str = ""
    """Key in its queue; a remote step has its parent's."""
    priority: int = 0
    """Priority in its queue; a remote step has its parent's."""
    start_at: float | None = None
    """Earliest start in epoch seconds, for a run without an owner."""
    delay_s: float | None = None
    """Delay of the start by the store's clock, instead of `start_at`."""
    singleton: str | None = None
    """Key that at most one open run of the store has."""
    replaces: bool = False
    """Whether an open run with that key loses it, and is asked to end."""


@attrs.frozen(kw_only=True)
class OpenPause:
    """Open pause of a step, as the store keeps it for answers."""

    path: StepPath
    """Path of the paused step."""
    token: str
    """Token for the answer."""
    message: str
    """Question to the person."""
    body: str
    """Further data for validating an answer, as JSON text."""
    timeout_s: float | None = None
    """Answer timeout from the time of the write; `None` for none."""
    due_at: float | None = None
    """Deadline in epoch seconds by the store's clock."""
    kind: QuestionKind | None = None
    """Kind of question, for filters; None if written by an earlier release."""
    to: str | None = None
    """Addressee, for filters."""
    asked_at: float | None = attrs.field(default=None, eq=False)
    """Time of the write in epoch seconds by the store, which sets it."""
    wait: WaitKind | None = None
    """Kind of a wait that needs no person; `None` for a question."""
    event: str | None = None
    """Name of the awaited event."""
    key: str | None = None
    """Key of the awaited event."""
    outbox: tuple[OutboxMessage, ...] = attrs.field(default=(), eq=False)
    """Messages to webhooks about a deferral."""


@attrs.frozen(kw_only=True)
class Compaction:
    """Deletion of old turns of a loop, part of a write."""

    loop: StepPath
    """Parent path of the turns."""
    base: StepPath
    """Turn whose `compacted` record becomes the loop's oldest record."""

    @property
    def prefixes(self) -> tuple[str, str]:
        """Return the prefixes of all paths of the loop's turns and pauses."""
        return f"{self.loop}/~i", f"{self.loop}/~u"

    @property
    def around(self) -> tuple[StepPath, ...]:
        """Return the paths of the loop, its ancestors and the run."""
        return (self.loop, *above_of(self.loop), ROOT)

    def drops(self, record: Record) -> bool:
        """Return whether a record before the base is deleted."""
        if record.path.startswith(self.prefixes):
            return True
        return record.kind in SESSION_KINDS and record.path in self.around


SESSION_KINDS: tuple[RecordKind, ...] = ("started", "resumed", "ended")
"""Records of sessions, which a compaction deletes around its loop."""


@attrs.frozen(kw_only=True)
class OutboxMessage:
    """Message to a webhook, written with the change that it reports."""

    id: str
    hook: str
    """Key of the webhook."""
    url: str
    """URL without credentials and query, for listings."""
    event: str
    body: str
    """JSON text that is sent."""
    run_id: str = ""
    """Run of the message, set by the store."""
    attempts: int = 0
    """Number of failed deliveries."""
    status: OutboxStatus = "pending"
    created_at: float = 0.0
    next_at: float | None = None
    """Time of the next delivery in epoch seconds; None after the last."""
    error: str | None = None
    """Reason of the last failure."""


OutboxStatus: TypeAlias = Literal["pending", "delivered", "failed"]
"""Status of a message to a webhook."""


@attrs.frozen(kw_only=True)
class CacheEntry:
    """Output of a step for later runs."""

    key: str
    pipeline: str
    step: str
    ttl_s: float
    body: str
    """Stored form of the output as JSON text."""


@attrs.frozen(kw_only=True)
class ConversationRow:
    """Record of a conversation as a row."""

    id: str
    scope: str | None
    revision: str
    updated_at: float
    head: str | None
    tips: tuple[str, ...]
    """Last entries of left branches."""
    body: str
    """The whole record, as JSON text."""


@attrs.frozen(kw_only=True)
class EntryRow:
    """Entry of a conversation as a row."""

    id: str
    parent: str | None
    body: str


@attrs.frozen(kw_only=True)
class ConversationWrite:
    """New messages of a conversation, if its revision is the expected one."""

    row: ConversationRow
    entries: tuple[EntryRow, ...]
    expected: str | None
    """Revision of the conversation; `None` if there is none."""


@attrs.frozen(kw_only=True)
class Append:
    """Atomic write of one run."""

    lease: Lease
    """Lease of the writer."""
    records: tuple[Record, ...]
    """Records to write."""
    pauses: tuple[OpenPause, ...] = ()
    """Pauses opened by this write."""
    withdrawn: tuple[StepPath, ...] = ()
    """Paths whose pauses are withdrawn."""
    status: StoredStatus | None = None
    """The run's new status, if it changes."""
    release: bool = False
    """Whether the lease ends with this write."""
    evidence: tuple[Evidence, ...] = ()
    """Outcomes of selected agents to add to the selection statistics."""
    tokens: int | None = None
    """Cumulative tokens of the run, for listings."""
    cost_usd: float | None = None
    """Cumulative cost of the run, for listings."""
    shares: tuple[BudgetShare, ...] = ()
    """Cumulative spending from budgets shared with other processes."""
    outbox: tuple[OutboxMessage, ...] = ()
    """Messages to webhooks about this write."""
    compaction: Compaction | None = None
    """Old turns of a loop to delete with this write."""
    cached: tuple[CacheEntry, ...] = ()
    """Outputs of steps for later runs."""
    conversation: ConversationWrite | None = None
    """New messages of a conversation; the append is refused if another writer was faster."""
    unless_cancelled: bool = False
    """Whether the append is refused if the run has a cancel request."""


@attrs.frozen(kw_only=True)
class StoredRun:
    """A run as a listing shows it."""

    run_id: RunId
    """Id of the run."""
    pipeline: str
    """Name of the pipeline."""
    status: StoredStatus
    """Stored status."""
    created_at: float
    """Epoch seconds by the store's clock; for display, never for decisions."""
    updated_at: float
    """Time of the last change in epoch seconds."""
    epoch: int
    """Number of claims."""
    leased: bool
    """Whether an unexpired lease exists."""
    records: int
    """Number of records."""
    pauses: tuple[OpenPause, ...] = ()
    """Open questions, oldest first."""
    waits: tuple[OpenPause, ...] = ()
    """Open waits that need no person, oldest first."""
    wake_at: float | None = attrs.field(default=None, eq=False)
    """Time at which an unowned run becomes ready, or became it."""
    ready: bool = attrs.field(default=False, eq=False)
    """Whether a worker may claim the run now."""
    expired: bool = False
    """Whether a pause ended by itself without a later resume."""
    owner: str | None = None
    """Owner of the lease, if leased."""
    left_s: float | None = None
    """Remaining seconds of the lease, if leased."""
    queue: str | None = None
    """Queue of the run; `None` for the starting process's own."""
    parent: RunId | None = None
    """Parent run of a remote step."""
    last_owner: str | None = None
    """Current or expired lease owner; `None` after a release."""
    tokens: int = 0
    """Tokens used at the last release."""
    cost_usd: float = 0.0
    """Cost of the run so far."""
    cancel: str | None = None
    """Reason of a cancel request, until the run has ended."""
    fingerprint: str | None = None
    """Digest of the admitted pipeline version; None in older stores."""
    started_at: float | None = None
    """Time of the first claim, in seconds since the epoch."""
    ended_at: float | None = None
    """Time of the end in epoch seconds, if it has ended."""
    worked_s: float = 0.0
    """Seconds under leases that were released; without questions and queues."""
    retries: int = 0
    """Number of retries."""
    labels: Labels = NO_LABELS
    """Labels of the run."""
    key: str = ""
    """Key of the run in its queue."""
    priority: int = 0
    """Priority of the run in its queue, higher first."""
    cursor: str = attrs.field(default="", eq=False)
    """Cursor of the next listing page; empty if the store has none."""

    @property
    def unclaimed(self) -> bool:
        """Return whether the run was never claimed."""
        return self.epoch == 0

    @property
    def is_asleep(self) -> bool:
        """Return whether the run sleeps and cannot be claimed."""
        released = self.last_owner is None  # an owner that died after its claim has left no time to wake
        return self.status == "sleeping" and released and not self.leased and not self.ready and not self.expired

    @property
    def is_unreleased(self) -> bool:
        """Return whether its last lease expired without release, at any status."""
        return self.last_owner is not None and not self.leased and not has_ended(self.status)


@attrs.frozen(kw_only=True, eq=False)
class ClaimedRun:
    """Run claimed while it had no owner."""

    lease: Lease
    run: StoredRun
    """Run before the claim."""
    records: tuple[Record, ...] = ()
    """Records of a run that was never claimed before; else none."""


@attrs.frozen(kw_only=True)
class ClaimOrder:
    """Selection of the next runs of some queues."""

    pipeline: str
    queues: tuple[str, ...]
    limit: int
    """Maximum number of claimed runs."""
    fingerprint: str | None = None
    """Version of runs to claim, or without a version; `None` for all."""
    after: Mapping[str, str] = attrs.field(factory=dict)
    """Last claimed key by queue: the round robin continues behind it."""
    per_key: int | None = None
    """Maximum number of unexpired leases of a key in its queue."""
    without: tuple[RunId, ...] = ()
    """Runs to leave to other workers."""
    waiting_s: float = 0.0
    """Age from which a run that was never claimed is selected."""
    tickets: tuple[RunId, ...] = ()
    """Runs to select first, where neither key nor priority decides."""


OpenFact: TypeAlias = Literal["cancelling", "leased", "asking", "asleep", "unreleased", "unowned"]
"""Fact of an open run; of several the first one counts."""


@attrs.frozen(kw_only=True)
class RunQuery:
    """Filter and order of listed runs."""

    status: StoredStatus | None = None
    """Only runs with this status."""
    pipeline: str | None = None
    """Only runs of this pipeline."""
    queue: str | None = None
    """Only runs of this queue."""
    created_before: float | None = None
    """Only runs created before then, in seconds since the epoch."""
    created_after: float | None = None
    """Only runs created later, in epoch seconds."""
    updated_before: float | None = None
    """Only runs not changed since then; ended runs count by end."""
    updated_after: float | None = None
    """Only runs changed later, in epoch seconds."""
    ended_before: float | None = None
    """Only runs that ended before then."""
    is_open: bool = False
    """Only runs that have not ended."""
    abandoned: bool = False
    """Only `running` runs that were claimed and whose lease has expired."""
    answered: bool = False
    """Only put-away runs that can be resumed: answered, timed out or due."""
    facts: tuple[OpenFact, ...] = ()
    """Only open runs with one of these facts; empty for all runs."""
    order: ListOrder = "updated"
    """Time to sort by, latest first."""
    limit: int | None = None
    """Most runs of a page."""
    cursor: str | None = None
    """Only runs after the run with this cursor."""
    search: str | None = None
    """Only runs by prefix of the id, else part of the pipeline."""
    labels: LabelFilter = ()
    """Only runs with all these labels; `None` matches any value."""


class RunFigures(NamedTuple):
    """Numbers of one run, for totals."""

    key: int
    """Key of the run in its store, for pages."""
    created_at: float
    started_at: float | None
    ended_at: float | None
    worked_s: float
    status: StoredStatus
    pipeline: str
    queue: str | None
    tokens: int
    cost_usd: float
    labels: tuple[str | None, ...] = ()
    """Values of the requested labels."""


@attrs.frozen(kw_only=True)
class AskedPause:
    """Open pause of a run, as a page of questions shows it."""

    run_id: RunId
    pause: OpenPause
    pipeline: str = ""
    labels: Labels = NO_LABELS
    cursor: str = attrs.field(default="", eq=False)
    """Cursor of the next page."""


QuestionOrder: TypeAlias = Literal["newest", "oldest", "due"]
"""Order of questions: by their start, or by deadline, those without one last."""


@attrs.frozen(kw_only=True)
class QuestionQuery:
    """Filter and order of open questions."""

    to: str | None = None
    labels: LabelFilter = ()
    """Labels of the run, all of them; None matches any value."""
    run_id: RunId | None = None
    pipeline: str | None = None
    kind: QuestionKind | None = None
    due_before: float | None = None
    """Only questions with a deadline before then, in epoch seconds."""
    order: QuestionOrder = "newest"
    limit: int | None = None
    cursor: str | None = None
    """Only questions after the question with this cursor."""


@attrs.frozen(kw_only=True)
class StateGroup:
    """Runs that are in the same state, without remote steps."""

    run: StoredRun
    """Run with the facts that decide the state of all, and no id; its times are those of the oldest."""
    count: int


@attrs.frozen(kw_only=True)
class RunCounts:
    """Number of runs in a store, without remote steps."""

    by_status: Mapping[StoredStatus, int]
    """Number of runs by status; statuses without a run are missing."""
    abandoned: int
    """Number of `running` runs whose lease has expired."""
    questions: int
    """Number of open pauses."""


@attrs.frozen(kw_only=True)
class WorkerNote:
    """Status report of a worker."""

    name: str
    body: str
    """JSON text."""
    seen_at: float = 0.0
    """Time of the last report in epoch seconds, by the store."""


# --- Delivery count of a run --------------------------------------------------------------------------------------
# Rules:
#
# 1. A delivery counts if the previous worker died: its lease expired without a release.
# 2. A commit by the run is progress and resets the count. Resume records, step starts and unit intents are not
#    progress.


_NO_PROGRESS: frozenset[RecordKind] = frozenset({"resumed", "started", "intent"})

AFTER_DEATH = "after_death"
"""Body key of a `resumed` record after a dead worker's run."""


def deaths_without_progress(records: Iterable[Record]) -> int:
    """Return the number of consecutive worker deaths since the last commit."""
    deaths = 0
    for record in records:
        if record.kind not in _NO_PROGRESS:
            deaths = 0
        elif record.kind == "resumed" and json.loads(record.body).get(AFTER_DEATH):
            deaths += 1
    return deaths


def poisonous(deaths: int, *, max_deliveries: int) -> str | None:
    """Return the reason to refuse another delivery, or None.

    The first delivery and each worker death count as one.
    """
    if deaths < max_deliveries:
        return None
    return (
        f"given up after {deaths} deliveries without progress: every worker that began it died over it (killed, out of "
        "memory, or a crash of the interpreter). See the logs of these workers; the setting fleet.max_deliveries "
        "limits the deliveries"
    )


# --- Report of `recover()`: results of recovered runs -------------------------------------------------------------


@attrs.frozen(kw_only=True)
class AbandonedRun:
    """Run that was not claimed or not finished."""

    run_id: RunId
    """Id of the run."""
    reason: str
    """Reason in one redacted sentence."""
    error: Exception | None = attrs.field(default=None, eq=False, repr=False)
    """Obstacle: `RunLeased` carries the time left, `FingerprintMismatch` the change."""


class RecoveryReport(list[PipelineResult]):
    """Results of recovered runs, latest change first; `left` holds the others.

    Args:
        results: results of the recovered runs.
        left: runs that were not recovered.
    """

    def __init__(self, results: Iterable[PipelineResult] = (), *, left: Iterable[AbandonedRun] = ()) -> None:
        super().__init__(results)
        self.left: tuple[AbandonedRun, ...] = tuple(left)
        """Runs that were not recovered, with the reason."""

    def __repr__(self) -> str:
        return f"RecoveryReport({super().__repr__()}, left={self.left!r})"
