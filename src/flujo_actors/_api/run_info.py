"""Descriptions of runs, queues and workers, as clients return them.

Sections:

- Changes of many runs.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import anyio
import anyio.to_thread
import attrs

from .._core.labels import NO_LABELS, PARENT, own_labels
from .._core.records.records import (
    ENDED,
    ListOrder,
    OpenPause,
    OutboxMessage,
    OutboxStatus,
    RunQuery,
    StateGroup,
    StoredRun,
    StoredStatus,
    WaitKind,
    WorkerNote,
    has_ended,
)
from .._durable.operations.bulk_actions import RunFilter, checked_states, matching_runs
from .._durable.run_states import (
    Blocked,
    LiveWorker,
    StateInfo,
    facts_of,
    live_workers,
    queue_of,
    since_of,
    state_info,
    states_of,
    stored_statuses,
)
from .._durable.run_states import RunStateName as RunStateName
from .._fleet.health_probe import KNOWN_FOR_S
from ..stores._run_lists import changed_at, in_order
from ..stores._store_port import Store

_KEYS_SHOWN = 100
"""Number of keys in the description of a queue."""


@attrs.frozen(kw_only=True)
class Wait:
    """Open wait of a run that needs no person."""

    path: str
    """Path of the waiting step; empty for a delayed start."""
    kind: WaitKind
    """Reason of the wait."""
    event: str | None = None
    """Name of the awaited event."""
    key: str | None = None
    """Key of the awaited event."""
    since: float | None = None
    """Start of the wait in seconds since the epoch, if known."""
    due_at: float | None = None
    """End of the wait in seconds since the epoch; `None` without one."""
    run_id: str = ""
    """Id of the run."""


@attrs.frozen(kw_only=True)
class RunInfo:
    """A stored run at a glance."""

    run_id: str
    """Id of the run."""
    status: StoredStatus
    """Stored status."""
    pipeline: str
    """Name of the pipeline."""
    created_at: float
    """Time of creation in epoch seconds."""
    updated_at: float
    """Time of the last change in epoch seconds."""
    state_token: str | None = None
    """Token for an answer, if the run is paused."""
    message: str | None = None
    """Prompt of its pause."""
    abandoned: bool = False
    """Whether its process left it running and its lease expired."""
    queue: str | None = None
    """Queue of a submitted run."""
    key: str = ""
    """Key of the run in its queue; empty without one."""
    priority: int = 0
    """Priority of the run in its queue."""
    state: RunStateName = "running"
    """State for operators, of `RUN_STATES`; `status` is the stored one."""
    reason: str | None = None
    """Reason of this state, in one sentence."""
    blocked: Blocked | None = None
    """Kind of obstacle: `no_worker`, `other_version` or `unreadable`."""
    since: float = 0.0
    """Start of this state in seconds since the epoch."""
    started_at: float | None = None
    """Time of the first claim."""
    ended_at: float | None = None
    """Time of the end in epoch seconds, if it has ended."""
    worked_s: float = 0.0
    """Seconds of execution, without questions and queues, as of the last release."""
    retries: int = 0
    """Number of retries."""
    questions: int = 0
    """Number of open questions."""
    worker: str | None = None
    """Owner of the lease, while there is one."""
    fingerprint: str | None = None
    """Digest of the pipeline version that it was started with."""
    waiting_since: float | None = None
    """Start of waiting for a worker, in seconds since the epoch."""
    tokens: int = 0
    """Tokens used at its last release."""
    cost_usd: float = 0.0
    """Cost of the run so far."""
    records: int = 0
    """Number of records."""
    labels: Mapping[str, str] = NO_LABELS
    """Labels of the run; read-only."""
    parent: str | None = None
    """Evaluation that the run is a case of."""
    duration_s: float = 0.0
    """Seconds from creation to the end, or to the last change."""
    wakes_at: float | None = None
    """End of its earliest wait in seconds since the epoch."""
    waits: tuple[Wait, ...] = ()
    """Open waits for a time, an event, a rate or a budget."""
    cursor: str = attrs.field(default="", eq=False)
    """Cursor for `list` that continues after this run."""


@attrs.frozen(kw_only=True)
class WorkerInfo:
    """Live worker of a store."""

    name: str
    """Name of the worker."""
    host: str
    """Name of its machine."""
    pid: int
    """Id of its process."""
    state: str
    """`starting`, `ready`, `draining` or `stopped`."""
    queues: tuple[str, ...]
    """Queues that it serves."""
    slots: int
    """Number of runs that it executes at once."""
    busy: int
    """Number of runs being executed."""
    executed: int = 0
    """Number of executed runs."""
    pipeline: str
    """Name of its pipeline."""
    fingerprint: str
    """Pipeline version of the worker."""
    since: float
    """Time of its start in epoch seconds."""
    seen_at: float
    """Time of its last heartbeat in epoch seconds."""
    mode: str = "strict"
    """Handling of runs of another version: `strict`, `compat` or `force`."""
    backend: str = ""
    """Library of its steps: `trio` or `asyncio`."""
    refused: Mapping[str, str] = attrs.field(factory=dict)
    """Runs left to other workers with the reason: another version, or unreadable."""


@attrs.frozen(kw_only=True)
class WebhookInfo:
    """Message to a webhook, and its delivery."""

    id: str
    """Id of the message, the header `webhook-id` of each delivery."""
    run_id: str
    """Id of the run."""
    event: str
    """`question` or `ended`."""
    url: str
    """URL without query."""
    status: OutboxStatus
    """`pending`, `delivered` or `failed`."""
    attempts: int
    """Number of failed deliveries."""
    created_at: float
    """Time of creation in epoch seconds."""
    next_at: float | None = None
    """Time of the next delivery in epoch seconds."""
    error: str | None = None
    """Reason of the last failure."""


def webhook_info(message: OutboxMessage) -> WebhookInfo:
    """Return the description of a message, without its body."""
    return WebhookInfo(**{name: getattr(message, name) for name in attrs.fields_dict(WebhookInfo)})


@attrs.frozen(kw_only=True)
class QueueInfo:
    """A queue with a live worker or a waiting run."""

    name: str
    """Name of the queue."""
    depth: int = 0
    """Number of queued and blocked runs, all of them ready."""
    oldest_s: float = 0.0
    """Waiting time of the oldest of them."""
    running: int = 0
    """Number of runs that a worker executes."""
    workers: int = 0
    """Number of workers that serve the queue."""
    slots: int = 0
    """Number of runs that these workers execute at once."""
    blocked: int = 0
    """Number of runs that no live worker can claim."""
    sleeping: int = 0
    """Number of runs that wait for a time, an event, a rate or a budget."""
    keys: Mapping[str, int] = attrs.field(factory=dict)
    """Number of ready runs by key, of the 100 largest keys."""


def run_infos(store: Store, runs: Sequence[StoredRun]) -> list[RunInfo]:
    """Return the descriptions of stored runs. Blocks."""
    return [info_of(run, standing) for run, standing in states_of(store, runs, within_s=KNOWN_FOR_S)]


def found_runs(
    store: Store, query: RunQuery, states: Sequence[RunStateName] | None = None
) -> list[tuple[StoredRun, StateInfo]]:
    """Return a query's runs with their states, in order. Blocks.

    The state of an open run is not stored: runs with its facts are read in pages until the limit is reached.
    """
    if states is None:
        return states_of(store, store.find(query), within_s=KNOWN_FOR_S)
    pages = (states_of(store, page, within_s=KNOWN_FOR_S) for page in _pages(store, query, states))
    fitting = (each for page in pages for each in page if each[1].state in states)
    return list(itertools.islice(fitting, query.limit))


_SMALLEST_PAGE = 100


def _pages(store: Store, query: RunQuery, states: Sequence[RunStateName]) -> Iterator[list[StoredRun]]:
    """Yield the runs that may have a state, in query order."""
    statuses = [each for each in stored_statuses(states) if query.status in (None, each)]
    facts = facts_of(states) if hasattr(store, "groups") else ()
    size = None if query.limit is None or not hasattr(store, "scan") else max(query.limit, _SMALLEST_PAGE)
    asked = attrs.evolve(query, facts=facts, limit=size)
    while True:
        found = [run for each in statuses for run in store.find(attrs.evolve(asked, status=each))]
        page = in_order(found, query.order, size)
        yield page
        if size is None or len(page) < size:
            return
        asked = attrs.evolve(asked, cursor=page[-1].cursor)


def filtered_runs(
    store: Store, where: RunFilter, order: ListOrder, limit: int | None, cursor: str | None
) -> list[tuple[StoredRun, StateInfo]]:
    """Return the runs of a filter with their states, in order. Blocks."""
    if where.run_ids is None:
        query = attrs.evolve(where.query(now=time.time()), order=order, limit=limit, cursor=cursor)
        states = None if where.state is None else checked_states(where.state)
        return found_runs(store, query, states)
    found = {run.run_id: (run, now) for page in matching_runs(store, where, within_s=KNOWN_FOR_S) for run, now in page}
    by_time = sorted(found.values(), key=lambda each: _moved_at(each[0], order), reverse=True)
    return by_time[:limit]


def _moved_at(run: StoredRun, order: ListOrder) -> float:
    return run.created_at if order == "created" else changed_at(run.updated_at, run.ended_at)


def queue_infos(store: Store) -> list[QueueInfo]:
    """Return the queues with live workers or waiting runs. Blocks."""
    workers = live_workers(store, within_s=KNOWN_FOR_S)
    found = [(queue_of(each.run), each, state_info(each.run, workers)) for each in _open_groups(store)]
    waiting = {name for name, _, standing in found if standing.state in ("queued", "blocked")}
    names = {name for worker in workers for name in worker.queues} | waiting
    keys = _ready_keys(store)
    return [attrs.evolve(_queue_info(name, found, workers), keys=keys.get(name, {})) for name in sorted(names)]


def _ready_keys(store: Store) -> dict[str, dict[str, int]]:
    """Return ready runs by queue and key, largest number first."""
    if not hasattr(store, "ready_keys"):
        return {}
    counts: dict[str, dict[str, int]] = {}
    for queue, key, count in sorted(store.ready_keys(), key=lambda each: -each[2]):
        counts.setdefault(queue, {})[key] = count
    return {queue: dict(itertools.islice(keys.items(), _KEYS_SHOWN)) for queue, keys in counts.items()}


def worker_infos(store: Store) -> list[WorkerInfo]:
    """Return the workers with a recent sign of life, by name. Blocks."""
    return [_worker_info(note) for note in store.signed_on(within_s=KNOWN_FOR_S)]


def _open_groups(store: Store) -> list[StateGroup]:
    if hasattr(store, "groups"):
        return store.groups(ended=False)
    runs = [*store.find(RunQuery(status="running")), *store.find(RunQuery(answered=True))]
    return [StateGroup(run=run, count=1) for run in runs]


def _queue_info(
    name: str, found: Sequence[tuple[str, StateGroup, StateInfo]], workers: Sequence[LiveWorker]
) -> QueueInfo:
    mine = [(group, standing) for queue, group, standing in found if queue == name]
    waiting = [group for group, standing in mine if standing.state in ("queued", "blocked")]
    serving = [worker for worker in workers if name in worker.queues]
    oldest = min((since_of(group.run) for group in waiting), default=None)
    return QueueInfo(
        name=name,
        depth=sum(group.count for group in waiting),
        oldest_s=0.0 if oldest is None else max(0.0, time.time() - oldest),
        running=sum(group.count for group, standing in mine if standing.state == "running"),
        workers=len(serving),
        slots=sum(worker.slots for worker in serving),
        blocked=sum(group.count for group, standing in mine if standing.state == "blocked"),
        sleeping=sum(group.count for group, standing in mine if standing.state == "sleeping"),
    )


def info_of(run: StoredRun, standing: StateInfo) -> RunInfo:
    first = run.pauses[0] if run.pauses else None
    ended_at = since_of(run) if has_ended(run.status) else None
    return RunInfo(
        run_id=run.run_id,
        status=run.status,
        pipeline=run.pipeline,
        created_at=run.created_at,
        updated_at=run.updated_at,
        state_token=None if first is None else first.token,
        message=None if first is None else first.message,
        abandoned=run.is_unreleased or (run.status == "running" and not run.leased and not run.unclaimed),
        queue=run.queue,
        key=run.key,
        priority=run.priority,
        state=standing.state,
        reason=standing.reason,
        blocked=standing.blocked,
        since=since_of(run),
        started_at=run.started_at,
        ended_at=ended_at,
        worked_s=run.worked_s,
        retries=run.retries,
        questions=len(run.pauses),
        worker=run.owner,
        fingerprint=run.fingerprint,
        waiting_since=_waiting_since(run, standing),
        duration_s=max(0.0, (ended_at or run.updated_at) - run.created_at),
        tokens=run.tokens,
        cost_usd=run.cost_usd,
        records=run.records,
        labels=own_labels(run.labels),
        parent=run.labels.get(PARENT),
        wakes_at=None if run.ready else run.wake_at,
        waits=_waits_of(run),
        cursor=run.cursor,
    )


def wait_of(run_id: str, wait: OpenPause) -> Wait:
    """Return the description of an open wait."""
    assert wait.wait is not None
    return Wait(
        path=wait.path,
        kind=wait.wait,
        event=wait.event,
        key=wait.key,
        since=wait.asked_at,
        due_at=wait.due_at,
        run_id=run_id,
    )


def _waits_of(run: StoredRun) -> tuple[Wait, ...]:
    if run.status == "sleeping" and run.unclaimed:
        return (Wait(path="", kind="start", since=run.created_at, due_at=run.wake_at, run_id=run.run_id),)
    return tuple(wait_of(run.run_id, wait) for wait in run.waits)


def _waiting_since(run: StoredRun, standing: StateInfo) -> float | None:
    """Since when the run waits for a worker."""
    waits = standing.state in ("queued", "blocked") or (standing.state == "abandoned" and run.queue is not None)
    return since_of(run) if waits else None


def _worker_info(note: WorkerNote) -> WorkerInfo:
    facts = json.loads(note.body)
    known = {name: facts[name] for name in attrs.fields_dict(WorkerInfo) if name in facts}
    return WorkerInfo(**{**known, "name": note.name, "seen_at": note.seen_at, "queues": tuple(facts["queues"])})


# --- Changes of many runs -----------------------------------------------------------------------------------------


_SLACK_S = 60.0
"""Tolerated difference between the clocks of this process and of the store."""


@attrs.define(eq=False)
class ChangedRuns:
    """Changes of the runs of a filter since the last look.

    The first look returns all open runs. Then a run is returned when its state, its number of questions or its number
    of retries has changed, also if it has ended or left the states of the filter.
    """

    store: Store
    where: RunFilter
    _open: dict[str, tuple[object, ...]] = attrs.field(factory=dict)
    _ended: dict[str, tuple[object, ...]] | None = None

    def look(self) -> list[RunInfo]:
        """Return the changed runs, oldest first. Blocks."""
        opened, ended = self._now()
        facts = {info.run_id: (info.state, info.questions, info.retries) for info in (*opened, *ended)}
        known = {**(self._ended or {}), **self._open}
        changed = [info for info in (*opened, *ended) if self._is_new(info, facts[info.run_id], known)]
        self._open = {info.run_id: facts[info.run_id] for info in opened}
        self._ended = {info.run_id: facts[info.run_id] for info in ended}
        return sorted(changed, key=lambda info: info.created_at)

    def _is_new(self, info: RunInfo, facts: tuple[object, ...], known: Mapping[str, tuple[object, ...]]) -> bool:
        if info.run_id in known:
            return known[info.run_id] != facts
        if self._ended is None and has_ended(info.status):
            return False  # it ended before the first look
        return self.where.state is None or info.state in checked_states(self.where.state)

    def _now(self) -> tuple[list[RunInfo], list[RunInfo]]:
        anywhere = attrs.evolve(self.where, state=None)
        if anywhere.run_ids is not None:
            found = [info_of(*each) for each in filtered_runs(self.store, anywhere, "created", None, None)]
            ended = [info for info in found if has_ended(info.status)]
            return [info for info in found if info not in ended], ended
        now = time.time()
        query = anywhere.query(now=now)
        statuses = [each for each in ENDED if query.status in (None, each)]
        late = [attrs.evolve(query, status=each, updated_after=now - _SLACK_S) for each in statuses]
        over = [run for each in late for run in self.store.find(each)]
        return run_infos(self.store, self.store.find(attrs.evolve(query, is_open=True))), run_infos(self.store, over)


class RunsWatch:
    """Changes of many runs: `async for info in …`."""

    def __init__(self, store: Store, where: RunFilter, every_s: float) -> None:
        self._changes, self._every_s = ChangedRuns(store, where), every_s
        self._given: deque[RunInfo] = deque()
        self._began = False

    def __aiter__(self) -> RunsWatch:
        return self

    async def __anext__(self) -> RunInfo:
        while not self._given:
            if self._began:
                await anyio.sleep(self._every_s)
            self._given.extend(await anyio.to_thread.run_sync(self._changes.look, abandon_on_cancel=True))
            self._began = True
        return self._given.popleft()
