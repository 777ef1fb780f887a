"""States of stored runs as operators see them.

The stored status is the progress of a run; the state is its next action. The first rule that holds decides:

1. An ended run has its status as state.
2. `cancelling`: a cancel request is stored.
3. `running`: a live lease.
4. `waiting`: no lease, an open question.
5. `sleeping`: no lease, and the run waits for a time, an event, a rate or a budget.
6. `abandoned`: a lease expired without release.
7. `queued` if a live worker can claim the run, else `blocked`.

A live worker can claim a run if it serves its queue, executes its pipeline, has its version or a mode other than
`strict`, and has not refused it.

Sections:

- Number of runs by state.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import attrs

from .._core.labels import LabelFilter
from .._core.records.records import OpenFact, RunQuery, StoredRun, StoredStatus, WorkerNote, has_ended
from ..stores._store_port import Store

RunStateName: TypeAlias = Literal[
    "completed",
    "failed",
    "aborted",
    "cancelling",
    "running",
    "waiting",
    "sleeping",
    "abandoned",
    "blocked",
    "queued",
]

RUN_STATES: tuple[RunStateName, ...] = get_args(RunStateName)
"""States of a run, in the order of their decision."""

Blocked: TypeAlias = Literal["no_worker", "other_version", "unreadable"]

DEFAULT_QUEUE = "default"
"""Queue of runs that were started without one."""

_CLAIMING = ("starting", "ready")

_OPEN: tuple[StoredStatus, ...] = ("running", "paused", "sleeping")

_OTHER_VERSION = " was started with another pipeline: "
"""Part of the text of a `FingerprintMismatch`, before the differences."""


@attrs.frozen(kw_only=True)
class LiveWorker:
    """A worker with a recent sign of life, as states need it."""

    name: str
    state: str
    queues: frozenset[str]
    pipeline: str
    fingerprint: str
    mode: str
    slots: int
    refused: dict[str, str]

    @classmethod
    def of(cls, note: WorkerNote) -> LiveWorker:
        """Return the worker of a note in the store."""
        facts: dict[str, Any] = json.loads(note.body)
        return cls(
            name=note.name,
            state=facts.get("state", "ready"),
            queues=frozenset(facts.get("queues", ())),
            pipeline=facts.get("pipeline", ""),
            fingerprint=facts.get("fingerprint", ""),
            mode=facts.get("mode", "strict"),
            slots=facts.get("slots", 0),
            refused=facts.get("refused", {}),
        )


def live_workers(store: Store, *, within_s: float) -> list[LiveWorker]:
    """Return the workers that take runs, if there are queues. Blocks."""
    if not hasattr(store, "signed_on"):
        return []
    found = (LiveWorker.of(note) for note in store.signed_on(within_s=within_s))
    return [worker for worker in found if worker.state in _CLAIMING]


@attrs.frozen
class StateInfo:
    """State of a run, with the reason in one sentence."""

    state: RunStateName
    reason: str | None = None
    blocked: Blocked | None = None


def queue_of(run: StoredRun) -> str:
    """Return the queue whose workers can claim the run."""
    return run.queue or DEFAULT_QUEUE


def states_of(store: Store, runs: Sequence[StoredRun], *, within_s: float) -> list[tuple[StoredRun, StateInfo]]:
    """Return runs with their states, reading live workers once. Blocks."""
    unknown = any(_known_state(run) is None for run in runs)
    workers = live_workers(store, within_s=within_s) if unknown else []
    return [(run, state_info(run, workers)) for run in runs]


def state_info(run: StoredRun, workers: Sequence[LiveWorker]) -> StateInfo:
    """Return the state of a run; see the module's rules."""
    return _known_state(run) or _claimable(run, workers)


def _known_state(run: StoredRun) -> StateInfo | None:
    match run.status:
        case "completed" | "failed" | "aborted" as ended:
            return StateInfo(ended)
        case "running" | "paused" | "sleeping":
            pass
    if run.cancel is not None:
        return StateInfo("cancelling", run.cancel.removesuffix(" (undo=False)"))
    if run.leased:
        return StateInfo("running")
    if run.pauses and not run.expired:
        return StateInfo("waiting")
    if run.is_asleep:
        return StateInfo("sleeping", _sleep_reason(run))
    if run.is_unreleased:
        return StateInfo("abandoned", "the lease of its owner expired without release")
    return None


def _sleep_reason(run: StoredRun) -> str | None:
    """Return the awaited events of a sleeping run, in one sentence."""
    events = [f"event {wait.event!r} with key {wait.key!r}" for wait in run.waits if wait.event is not None]
    return f"it waits for {' and '.join(events[:3])}" if events else None


def _claimable(run: StoredRun, workers: Sequence[LiveWorker]) -> StateInfo:
    queue = queue_of(run)
    serving = [worker for worker in workers if queue in worker.queues]
    if not serving:
        return StateInfo("blocked", f"no live worker serves queue {queue!r}", "no_worker")
    fitting = [worker for worker in serving if worker.pipeline == run.pipeline]
    if not fitting:
        text = f"{_count(serving)} queue {queue!r}, none executes pipeline {run.pipeline!r}"
        return StateInfo("blocked", text, "no_worker")
    same = [worker for worker in fitting if worker.mode != "strict" or run.fingerprint in (None, worker.fingerprint)]
    if any(run.run_id not in worker.refused for worker in same):
        return StateInfo("queued")
    if not same or _OTHER_VERSION in same[0].refused[run.run_id]:
        return StateInfo("blocked", _other_version(run, queue, fitting), "other_version")
    return StateInfo("blocked", same[0].refused[run.run_id], "unreadable")


def _other_version(run: StoredRun, queue: str, workers: Sequence[LiveWorker]) -> str:
    refusal = next((worker.refused[run.run_id] for worker in workers if run.run_id in worker.refused), "")
    _, _, rest = refusal.partition(_OTHER_VERSION)
    difference, _, _ = rest.partition(". Resume it with")
    known = f": {difference}" if difference else ""
    version = "its version" if run.fingerprint is None else f"version {run.fingerprint[:6]}"
    return f"{_count(workers)} queue {queue!r}, none has {version} of {run.pipeline!r}{known}"


def _count(workers: Sequence[LiveWorker]) -> str:
    return f"{len(workers)} live worker{' serves' if len(workers) == 1 else 's serve'}"


def since_of(run: StoredRun) -> float:
    """Return the start of a run's state in epoch seconds."""
    if has_ended(run.status):
        return run.updated_at if run.ended_at is None else run.ended_at
    return run.created_at if run.unclaimed else run.updated_at


def stored_statuses(states: Iterable[RunStateName]) -> list[StoredStatus]:
    """Return the stored statuses that runs of these states can have."""
    found: dict[StoredStatus, None] = {}
    for state in states:
        match state:
            case "completed" | "failed" | "aborted" | "sleeping":
                found[state] = None
            case "waiting":
                found["paused"] = None
            case _:
                found |= dict.fromkeys(_OPEN)
    return list(found)


_FACTS: dict[RunStateName, tuple[OpenFact, ...]] = {
    "cancelling": ("cancelling",),
    "running": ("leased",),
    "waiting": ("asking",),
    "sleeping": ("asleep",),
    "abandoned": ("unreleased",),
    "blocked": ("unowned",),
    "queued": ("unowned",),
}


def facts_of(states: Iterable[RunStateName]) -> tuple[OpenFact, ...]:
    """Return the facts of open runs in these states, if any."""
    listed = list(states)
    if not all(state in _FACTS for state in listed):
        return ()
    return tuple(dict.fromkeys(fact for state in listed for fact in _FACTS[state]))


# --- Number of runs by state ----------------------------------------------------------------------------------------


COUNT_S = 5.0
"""Least time between two counts of a store in one process: at a million runs a count reads for a tenth of a second."""


MOST_COUNTED = 1_000
"""Number of runs per status up to which runs with labels are counted."""

_MOST_FILTERS = 100
"""Number of label filters whose counts are kept."""


class StateCounts:
    """Number of runs by state, counted every few seconds."""

    def __init__(self, store: Store, *, within_s: float) -> None:
        self._store, self._within_s = store, within_s
        self._lock = threading.Lock()
        self._counted: dict[LabelFilter, tuple[float, Counter[RunStateName], int]] = {}

    def now(self, labels: LabelFilter = ()) -> tuple[Counter[RunStateName], int]:
        """Return recent numbers by state and of open questions. Blocks."""
        with self._lock:
            at, counts, questions = self._counted.get(labels, (-COUNT_S, Counter(), 0))
            if time.monotonic() >= at + COUNT_S:
                counts, questions = self._count(labels)
                self._counted.pop(labels, None)
                self._counted[labels] = time.monotonic(), counts, questions
                for oldest in list(self._counted)[:-_MOST_FILTERS]:
                    del self._counted[oldest]
            return counts, questions

    def _count(self, labels: LabelFilter) -> tuple[Counter[RunStateName], int]:
        if labels or not hasattr(self._store, "groups"):
            return _count_runs(self._store, labels, within_s=self._within_s)
        counts = count_states(self._store, within_s=self._within_s)
        return counts, self._store.counts().questions if counts["waiting"] else 0


def _count_runs(store: Store, labels: LabelFilter, *, within_s: float) -> tuple[Counter[RunStateName], int]:
    """Return the number of labeled runs by status, bounded. Blocks."""
    queries = [RunQuery(status=each, labels=labels, limit=MOST_COUNTED) for each in get_args(StoredStatus)]
    found = [run for query in queries for run in store.find(query)]
    counts = Counter(now.state for _, now in states_of(store, found, within_s=within_s))
    return counts, sum(len(run.pauses) for run in found)


def count_states(store: Store, *, within_s: float) -> Counter[RunStateName]:
    """Return the number of runs by state. Blocks."""
    counts: Counter[RunStateName] = Counter()
    groups = store.groups()
    found = states_of(store, [group.run for group in groups], within_s=within_s)
    for group, (_, now) in zip(groups, found, strict=True):
        counts[now.state] += group.count
    return counts


@attrs.frozen(kw_only=True)
class StoreGauges:
    """Numbers of a store at one moment, for metrics."""

    depth: Mapping[str, int]
    """Queued and blocked runs by queue."""
    oldest_s: Mapping[str, float]
    """Waiting time of the oldest of them, by queue."""
    runs: Mapping[str, int]
    """Runs by state."""
    workers: Mapping[str, int]
    """Live workers by queue."""


def measure(store: Store, *, within_s: float) -> StoreGauges:
    """Return the numbers of a store now. Blocks."""
    workers, now = live_workers(store, within_s=within_s), time.time()
    serving = Counter(queue for worker in workers for queue in worker.queues)
    depth, runs = Counter(dict.fromkeys(serving, 0)), Counter[str](dict.fromkeys(RUN_STATES, 0))
    oldest_s = dict.fromkeys(serving, 0.0)
    for group in store.groups():
        state, queue = state_info(group.run, workers).state, queue_of(group.run)
        runs[state] += group.count
        if state in ("queued", "blocked"):
            depth[queue] += group.count
            oldest_s[queue] = max(oldest_s.get(queue, 0.0), now - since_of(group.run))
    return StoreGauges(depth=depth, oldest_s=oldest_s, runs=runs, workers=serving)
