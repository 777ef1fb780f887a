"""What a store must do: log, leases, fencing. Every method blocks, and is called from several worker threads at once.

Nothing is known there of the run that writes: no trio token, no context variables.

How pauses come and go, in every store:

1. A pause is known by its run, its path and its token.
2. A pause that is asked again replaces the one that waits at its path, and the answered one of the same token.
3. An answer consumes a pause that waits; the pause is kept, so that a second answer can be told so.
4. An answer is taken whether somebody works on the run or not: whoever goes on with it finds it in its records.
5. A pause that is withdrawn waits no more, and when a run ends, nothing does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from .._core.light_records import LightRecord
from .._core.outcomes import RunId
from .._core.paths import StepPath
from .._core.records import (
    Admission,
    Append,
    CancelRequest,
    Lease,
    OpenPause,
    Record,
    RunQuery,
    StoredRun,
    StoredStatus,
    WorkerNote,
)
from .._core.selection import Belief, Evidence
from .._core.shared_budgets import BudgetClaim, BudgetTold
from ..errors import LeaseLost, RunExists

Verdict: TypeAlias = LeaseLost | CancelRequest | None
"""What became of an append: refused, written with a request for the owner, or written."""


class RunLog(Protocol):
    """Writing runs."""

    def admit(self, admission: Admission, *, owner: str, lease_s: float) -> Lease:
        """Make the run exist, durably, before returning; `RunExists` if its id is taken."""

    def admit_all(
        self, admissions: Sequence[Admission], *, owner: str | None, lease_s: float
    ) -> list[Lease | RunExists]:
        """As `admit`, for several runs in one transaction; the error of a taken id is in the answer at its place.

        Without an `owner` the runs belong to whoever claims them first; their leases, of epoch 0, allow nothing.
        """

    def claim(self, run_id: RunId, *, owner: str, lease_s: float) -> Lease:
        """Take over a run whose lease is free or expired; `RunLeased` if it is held, `RunNotFound` if it is not there.

        The epoch is raised, so whatever the former owner still tries to write is refused.
        """

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        """Make the batch durable, in one transaction, before returning.

        An append whose lease is not the run's current one is left out, and its error is in the answer at its place. One
        that was written is answered with the `CancelRequest` that waits for its run, or with `None`.
        """

    def renew(self, leases: Sequence[Lease], *, lease_s: float) -> list[LeaseLost | None]:
        """Extend leases, counted from now by the database's or a monotonic clock; lost ones as in `append`."""

    def answer(self, run_id: RunId, path: StepPath, *, token: str, record: Record) -> None:
        """Consume the pause at `path` with an answer, durably and at most once, whoever else tries at the same time.

        `NotPaused` if there is no such pause, `AlreadyAnswered` if somebody was faster. The record is appended. Needs
        no lease, and does not ask who has it: a question may be answered while the run is still at work.
        """


class RunControl(Protocol):
    """What others may do about a run that has an owner. A store without these methods can do all the rest."""

    def take_over(self, run_id: RunId, *, dead: str, owner: str, lease_s: float) -> Lease:
        """As `claim`, also while the lease lasts if it is held by `dead`, whom the caller knows to have died."""

    def request_cancel(self, run_id: RunId, *, reason: str) -> None:
        """Leave word, durably, that the run shall end; nothing happens to a run that has ended.

        The owner is told with the answer to its next append, which is written all the same, and by `cancel_requests`.
        The request stays until the run has ended, for whoever owns the run next. `RunNotFound` if there is none.
        """

    def cancel_requests(self, run_ids: Sequence[RunId]) -> dict[RunId, CancelRequest]:
        """The requests that wait for these runs; asked for every second, so it only reads."""


class RunQueue(Protocol):
    """Runs that wait for a worker, and who is there to work. A store without these methods can do all the rest."""

    def wanting(self, *, pipeline: str, queues: Sequence[str], host: str, limit: int) -> list[StoredRun]:
        """Runs of a pipeline in these queues that want a worker, oldest first.

        That are those which are `running` and that nobody holds, or an owner whose name begins with `host`, who may be
        known to have died; and those which are `paused`, have no parent, and wait for no answer any more.
        """

    def orphans(self, *, pipeline: str, host: str, updated_before: float, limit: int) -> list[StoredRun]:
        """Runs of a pipeline that are in no queue, belong to nobody, and did not change since then, oldest first.

        That are those which are `running` and that nobody holds, or an owner whose name begins with `host`; and those
        which are `paused` and wait for no answer any more. No more than `limit` of them, however many there are.
        """

    def standing(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        """Those of these runs that are there, in any order."""

    def requeue(self, run_ids: Sequence[RunId]) -> None:
        """Let remote steps that were put to rest want a worker again, and drop requests to cancel them."""

    def park(self, run_ids: Sequence[RunId], *, reason: str) -> None:
        """Put remote steps to rest that nobody waits for: those that nobody holds are `paused`, and want no worker.

        The owners of the others are told the reason, as by `request_cancel`.
        """

    def children(self, run_id: RunId) -> list[RunId]:
        """The remote steps of a run."""

    def sign_on(self, worker: WorkerNote) -> None:
        """Take note of a worker, from now on or again."""

    def sign_off(self, name: str) -> None:
        """Forget a worker."""

    def signed_on(self, *, within_s: float) -> list[WorkerNote]:
        """The workers that were seen in so many seconds, by name; those that were not seen for a day are forgotten."""


class Deadlines(Protocol):
    """Questions that wait only so long. A store without these methods can do all the rest.

    Who has them takes from `Append.pauses` how long a question waits (`timeout_s`), counts from the moment at which it
    writes it, by a wall clock, and shows it as `due_at`. From then on `answer` refuses it with `Expired`, whether
    somebody has called `expire` or not; what was answered before stays `AlreadyAnswered`.
    """

    def expire(self, *, body: str) -> list[RunId]:
        """End every question whose time is over, durably and at most once, whoever answers at the same moment.

        Each is consumed as by an answer: a record of kind `answered` with this body is appended to its run, whose
        `expired` is true until somebody goes on with it. Returned are the runs, each once.
        """

    def next_due_s(self) -> float | None:
        """In how many seconds the next question runs out of time; `None` if none does."""

    def defer(self, run_id: RunId, path: StepPath, *, token: str, records: Sequence[Record], pause: OpenPause) -> None:
        """Consume a question as `answer` does, and ask another one in its place, in one transaction."""


class Beliefs(Protocol):
    """What is learned of agents that selections choose from. A store without these methods can do all the rest.

    Who has them adds the `evidence` of an append in the transaction that writes it, one statement for each, so that no
    outcome is lost between processes and none counts twice.
    """

    def beliefs(self, name: str, category: str) -> dict[str, Belief]:
        """What is believed of every arm that has an outcome, with how long ago the last one was (`idle_s`)."""

    def reward(self, run_id: RunId, path: StepPath, *, record: Record, evidence: Evidence) -> None:
        """Append a record of kind `rewarded` and add the evidence, once for each path: `NoRewardDue` after that.

        Needs no lease, as `answer`; `RunNotFound` if there is no such run.
        """


class Budgets(Protocol):
    """Budgets that the processes of one run share. A store without this method can do all the rest.

    Who has it writes the `shares` of an append in the transaction that writes it, each unless a later one is there, and
    forgets budgets together with the run that they belong to.
    """

    def draw(self, lease: Lease, claims: Sequence[BudgetClaim]) -> list[BudgetTold]:
        """Add what the claims want to their shares, if every budget has room (`grants`), and write all of the shares.

        In one transaction, whoever else draws at the same time. `LeaseLost`, and nothing is written, if the lease is
        not the current one.
        """


class RunArchive(Protocol):
    """Reading runs, and forgetting them."""

    def get(self, run_id: RunId) -> StoredRun:
        """The run as a listing shows it; `RunNotFound` if it is not there."""

    def read(self, run_id: RunId, *, after: int = 0) -> list[Record]:
        """The run's records after a sequence number, in order; `CorruptRecord` names the one that cannot be read."""

    def find(self, query: RunQuery) -> list[StoredRun]:
        """The runs that fit, latest change first; not those that are remote steps of others."""

    def delete(self, run_ids: Sequence[RunId]) -> int:
        """Forget runs with everything they wrote, unless they are leased; how many there were.

        Their remote steps and their budgets are forgotten with them, whoever works on these.
        """


class RunScan(Protocol):
    """Looking at runs while they run, and beginning new ones from them. A store without these does all the rest."""

    def scan(self, run_id: RunId, after: int = 0, limit: int | None = None) -> list[LightRecord]:
        """The run's records after a sequence number, in order and without their bodies; at most so many.

        `RunNotFound` if it is not there.
        """

    def record(self, run_id: RunId, seq: int) -> Record:
        """One record with its body; `RunNotFound` if there is no such one."""

    def look(self, run_ids: Sequence[RunId]) -> dict[RunId, StoredRun]:
        """How these runs stand, those that are there; asked several times a second, so it is one question."""

    def admit_fork(
        self,
        admission: Admission,
        records: Sequence[Record],
        *,
        pauses: Sequence[OpenPause] = (),
        status: StoredStatus = "running",
    ) -> None:
        """Make a run exist that begins with these records after its first, owned by nobody, in one transaction.

        `RunExists` if its id is taken.
        """


class RunTexts(Protocol):
    """Passing on what steps are writing, between processes. Lossy: nothing of it survives, and no store needs it."""

    def swap_texts(self, said: Mapping[RunId, Mapping[StepPath, str]]) -> set[RunId]:
        """From the owner of these runs: what their open steps have written last, kept for those that are watched; which
        those are."""

    def watch_texts(self, run_ids: Sequence[RunId], *, for_s: float) -> dict[RunId, dict[StepPath, str]]:
        """What the owners of these runs left; and leave word that somebody watches them, for so many seconds."""


class Transaction(Protocol):
    """An open transaction of the store's database."""

    connection: Any
    """The driver's own connection; what is written through it commits with the append, or not at all."""

    def append(self, append: Append) -> None:
        """Add records to the transaction; `LeaseLost` if the lease is not current."""


class Store(RunLog, RunControl, RunQueue, Deadlines, Beliefs, Budgets, RunArchive, RunScan, Protocol):
    """A place where runs survive their process.

    A store may say with a text `place` which database it stands for: steps that write through stores of one place take
    turns, those of a store without it take turns among themselves. One whose transactions keep everybody else from
    writing says so with `one_writer = True`: a run that is started inside such a transaction is refused.
    """

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction that commits at the end of the block, and rolls back if it is left by an exception.

        `TransactionLost` instead of that exception if the database itself gave the transaction up: nothing of it was
        written, and it may go well another time. `TransactionRefused` if what was written breaks a rule of the database
        at its commit.
        """

    def close(self) -> None:
        """Give up connections and threads; nothing that was durable is lost."""
