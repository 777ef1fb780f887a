"""What a durable run consists of: typed, versioned records, and by lease and epoch (fencing) who may write them.

Rules:

1. A run is a sequence of records, numbered from 1 without gaps by the store; nothing is ever changed in place.
2. A record's body is a JSON object with its version under `v`; what cannot be read is an error that names run and
   sequence number, never a guess.
3. Only the holder of the run's lease writes. A lease is an owner and an epoch; every claim raises the epoch, and
   every write says which epoch it was made under.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from .outcomes import RunId
from .paths import StepPath

if TYPE_CHECKING:
    from .selection import Evidence
    from .shared_budgets import BudgetShare

RECORD_VERSION = 2
"""The version of record bodies that this code writes; it reads all versions up to this one."""

RecordKind: TypeAlias = Literal[
    "admitted",  # the run exists: input, context, fingerprint
    "started",  # a step began, and something else was written before it ended
    "intent",  # a unit (model turn, tool call) is about to be done
    "unit",  # a unit is done: its result and usage
    "settled",  # a step has its outcome, with the context it left and its usage
    "paused",  # a step waits for an answer
    "answered",  # the answer, as it was given
    "chosen",  # a selection has chosen an arm
    "rewarded",  # somebody told what a choice was worth
    "resumed",  # another part of the run begins
    "cancelled",  # the run goes no further: whoever has it next undoes what it did, and ends it
    "ended",  # the run's result
]

StoredStatus: TypeAlias = Literal["running", "paused", "completed", "failed", "aborted"]
"""How a stored run stands; a `running` one whose lease has expired was left by a process that died."""


ENDED: tuple[StoredStatus, ...] = ("completed", "failed", "aborted")
"""How a run stands for good."""


def has_ended(status: StoredStatus | None) -> bool:
    """Whether a run of this status is over."""
    return status in ENDED


@attrs.frozen(kw_only=True)
class Record:
    """One thing that happened in a run."""

    kind: RecordKind
    path: StepPath
    body: str
    """JSON text: an object with its version under `v`."""
    seq: int = 0
    """Its place in the run, given by the store."""
    at: float | None = attrs.field(default=None, eq=False)
    """When it was written, in seconds since the epoch, given by the store; `None` where nobody noted it."""
    gist: str | None = attrs.field(default=None, eq=False, repr=False)
    """What a listing shows of it (`light_records`); `None` if it is to be read from the body."""


@attrs.frozen(kw_only=True)
class Lease:
    """The right to write to a run, until somebody else claims it, which they may once it has expired."""

    run_id: RunId
    owner: str = attrs.field(hash=False)
    epoch: int = attrs.field(hash=False)


_WITHOUT_UNDOING = " (undo=False)"


def cancel_reason(reason: str, *, undo: bool) -> str:
    """The reason of a request as stores keep it, with whether the run is to be undone."""
    return reason if undo else f"{reason}{_WITHOUT_UNDOING}"


@attrs.frozen(kw_only=True)
class CancelRequest:
    """Somebody wants the run to end; its owner is told so with the answer to its next write, and when it asks."""

    reason: str

    @property
    def undoes(self) -> bool:
        """Whether what the run did is undone; who does not want that says so at the end of the reason."""
        return not self.reason.endswith(_WITHOUT_UNDOING)

    @property
    def told(self) -> str:
        """The reason as it was given."""
        return self.reason.removesuffix(_WITHOUT_UNDOING)


@attrs.frozen(kw_only=True)
class Admission:
    """A run that is about to exist."""

    run_id: RunId
    pipeline: str
    """What the runs of one pipeline have in common, for listing."""
    body: str
    """The body of the run's first record, of kind `admitted`."""
    queue: str | None = None
    """Where the run waits for a worker, if it is not begun where it was admitted."""
    parent: RunId | None = None
    """The run whose remote step this is; listings leave it out, and it is deleted with that run."""


@attrs.frozen(kw_only=True)
class OpenPause:
    """A step that waits, as the store keeps it for whoever wants to answer."""

    path: StepPath
    token: str
    message: str
    body: str
    """What else an answer needs: JSON text."""
    timeout_s: float | None = None
    """How long an answer is waited for, from the moment at which the store writes this; `None` is for ever."""
    due_at: float | None = None
    """Until when, in seconds since the epoch by the store's clock: said by the store."""


@attrs.frozen(kw_only=True)
class Append:
    """What one run wants to have written, all of it or nothing."""

    lease: Lease
    records: tuple[Record, ...]
    pauses: tuple[OpenPause, ...] = ()
    """What is asked from now on."""
    withdrawn: tuple[StepPath, ...] = ()
    """Where nobody waits for an answer any more."""
    status: StoredStatus | None = None
    """The run's new status, if it changes."""
    release: bool = False
    """Whether the lease ends with this write."""
    evidence: tuple[Evidence, ...] = ()
    """Outcomes of agents that were chosen, to be added to what is believed of them."""
    tokens: int | None = None
    """What the run has used by now, for listings."""
    cost_usd: float | None = None
    shares: tuple[BudgetShare, ...] = ()
    """What it has spent by now of budgets that other processes draw on, too."""


@attrs.frozen(kw_only=True)
class StoredRun:
    """A run as a listing shows it."""

    run_id: RunId
    pipeline: str
    status: StoredStatus
    created_at: float
    """Seconds since the epoch, by the store's clock; for people, never for decisions."""
    updated_at: float
    epoch: int
    leased: bool
    """Whether somebody holds an unexpired lease."""
    records: int
    """How many records it has."""
    pauses: tuple[OpenPause, ...] = ()
    """What waits for an answer, oldest first."""
    expired: bool = False
    """Whether a question ran out of time, and nobody has gone on with the run since."""
    owner: str | None = None
    """Who holds the lease, if it is leased."""
    left_s: float | None = None
    """How many seconds are left of the lease, if it is leased."""
    queue: str | None = None
    """Where the run waits for a worker when nobody works on it; `None` if it belongs to whoever started it."""
    parent: RunId | None = None
    """The run whose remote step this is."""
    last_owner: str | None = None
    """Who holds the lease, or let it run out; `None` once it was given up."""
    tokens: int = 0
    """What it had used when somebody last let it go."""
    cost_usd: float = 0.0
    cursor: str = attrs.field(default="", eq=False)
    """Where a listing goes on after this run; empty in a store that does not know how to."""

    @property
    def unclaimed(self) -> bool:
        """Whether nobody ever worked on it."""
        return self.epoch == 0


@attrs.frozen(kw_only=True, eq=False)
class TakenRun:
    """A run that was claimed when nobody had worked on it."""

    lease: Lease
    run: StoredRun
    """As it stood before."""
    records: tuple[Record, ...]


@attrs.frozen(kw_only=True)
class RunQuery:
    """Which runs to list."""

    status: StoredStatus | None = None
    pipeline: str | None = None
    updated_before: float | None = None
    """Only runs that have not changed since then, in seconds since the epoch."""
    updated_after: float | None = None
    abandoned: bool = False
    """Only runs that are `running`, that somebody worked on, and whose lease has expired."""
    limit: int | None = None
    cursor: str | None = None
    """Only what comes after the run that said this."""
    search: str | None = None
    """Only runs whose id begins with this text, or whose pipeline has it in its name, in either case of letters."""


@attrs.frozen(kw_only=True)
class WorkerNote:
    """What a worker says of itself, for whoever asks who is there."""

    name: str
    body: str
    """JSON text."""
    seen_at: float = 0.0
    """When it last said so, in seconds since the epoch, by the store's clock."""
