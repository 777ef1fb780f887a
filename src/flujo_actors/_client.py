"""`RunClient`: stored runs, seen and handled from outside: listed, answered, cancelled, forgotten."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import attrs

from ._core import record_bodies
from ._core.light_records import LightRecord
from ._core.outcomes import PipelineResult, RunId, TerminalOutcome
from ._core.paths import StepPath
from ._core.records import ENDED, Record, RunQuery, StoredRun, StoredStatus, WorkerNote, has_ended
from ._core.run_state import RunState
from ._core.selection import DEFAULT_CATEGORY, Belief, Choice
from ._durable.cancelling import cancel
from ._durable.forks import SAME_INPUT, fork
from ._durable.pauses import expire, give_answer, waiting_pause
from ._durable.projecting import projected, whole_record
from ._durable.prompts import Prompt as Prompt
from ._durable.prompts import prompt_of
from ._durable.rewards import choices_in, reward
from ._durable.watches import RunWatch, wait_until
from ._durable.watching import required
from ._fleet.signing import KNOWN_FOR_S
from .errors import DeclarationError
from .stores._opening import open_store
from .stores._port import Store
from .telemetry._silence import Silence


@attrs.frozen(kw_only=True)
class RunInfo:
    """A stored run at a glance."""

    run_id: str
    status: StoredStatus
    pipeline: str
    created_at: float
    updated_at: float
    state_token: str | None = None
    """Where to send an answer, if the run waits for one."""
    message: str | None = None
    """What it asks."""
    abandoned: bool = False
    """Whether a process left it running and gave no sign of life since."""
    queue: str | None = None
    """Which workers play it, if it was handed in for some to play."""
    waiting_since: float | None = None
    """Since when it waits for one of them, if it does; in seconds since the epoch."""
    tokens: int = 0
    """What it had used when it last came to rest."""
    cost_usd: float = 0.0
    records: int = 0
    """How many records it has."""
    cursor: str = attrs.field(default="", eq=False)
    """Pass this to `list` to be given what comes after this run."""


@attrs.frozen(kw_only=True)
class WorkerInfo:
    """A worker that is there."""

    name: str
    host: str
    pid: int
    state: str
    """`starting`, `ready`, `draining` or `stopped`."""
    queues: tuple[str, ...]
    slots: int
    busy: int
    """How many runs it plays now."""
    played: int
    """How many it has played."""
    pipeline: str
    fingerprint: str
    """Which version of the pipeline it plays."""
    since: float
    seen_at: float
    refused: Mapping[str, str] = attrs.field(factory=dict)
    """The runs that it left to others, and why: they are of another version, or cannot be read."""


class RunClient:
    """The runs of a store. Every method blocks; call it from a thread in an asynchronous program."""

    def __init__(self, store: Store | str) -> None:
        self._store = open_store(store)

    # --- looking ---

    def list(
        self,
        status: StoredStatus | None = None,
        *,
        pipeline: str | None = None,
        updated_after: float | None = None,
        updated_before: float | None = None,
        abandoned: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
        search: str | None = None,
    ) -> Sequence[RunInfo]:
        """The runs that fit, latest change first; times are seconds since the epoch.

        `search` finds runs whose id begins with a text, or whose pipeline has it in its name. `cursor`, that of the
        last run of one page, asks for the next page: what began meanwhile does not shift it.
        """
        if cursor is not None or search is not None:
            required(self._store, "scan", what="a listing with `cursor` or `search`")
        query = RunQuery(
            status=None if status is None else _checked_status(status),
            pipeline=pipeline,
            updated_after=updated_after,
            updated_before=updated_before,
            abandoned=abandoned,
            limit=limit,
            cursor=cursor,
            search=search,
        )
        return [_info(run) for run in self._store.find(query)]

    def get(self, run_id: str) -> RunInfo:
        """One run; `RunNotFound` if it is not there."""
        return _info(self._store.get(RunId(run_id)))

    def outcomes(self, run_id: str) -> dict[StepPath, TerminalOutcome]:
        """How the run's steps ended, by path, in the order in which they ended."""
        found = self.state(run_id).outcomes
        return {path: attrs.evolve(outcome, path=path) for path, outcome in found.items()}

    def state(self, run_id: str) -> RunState:
        """What is known of the run now.

        A value whose class this process does not know is given as plain data: its name under `type`, and its fields
        under `value`, beside the tag `$` that such data has in the store.
        """
        return projected(self._store, RunId(run_id))

    def state_at(self, run_id: str, seq: int) -> RunState:
        """What was known of the run when its record number `seq` was written."""
        return projected(self._store, RunId(run_id), up_to=seq)

    def records(self, run_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[LightRecord]:
        """What happened in the run, without bodies; after a record, and at most so many, if asked for."""
        required(self._store, "scan", what="reading records without their bodies")
        return self._store.scan(RunId(run_id), after, limit)

    def record(self, run_id: str, seq: int) -> Record:
        """One record with its body; `RunNotFound` if there is no such one."""
        required(self._store, "record", what="reading one record")
        return whole_record(self._store, RunId(run_id), seq)

    def watch(self, run_id: str, *, after: int = 0, texts: bool = False) -> RunWatch:
        """What happens in the run, whichever process works on it: `async for record in client.watch(run_id)`.

        It begins after a record, the first by default, and goes on as more are written, half a second behind at most,
        until the run has ended. On trio and asyncio; however many watch, the store is asked once. With `texts`, its
        `new_texts()` is what open steps have written since, as far as they stream, in this process or another.
        """
        return RunWatch(self._store, RunId(run_id), after=after, texts=texts)

    def wait(self, run_id: str, timeout: float | None = None) -> PipelineResult:
        """The result of a run, once it has ended or waits for an answer; blocks until then, whoever works on it.

        `TimeoutError` after so many seconds, `RunNotFound` if there is no such run.
        """
        run = wait_until(self._store, RunId(run_id), _is_at_rest, timeout=timeout)
        return _result(run, self.state(run_id))

    def prompts(self) -> Sequence[Prompt]:
        """Every question that waits for an answer, latest run first; also of runs that are still at work."""
        found = [*self._store.find(RunQuery(status="paused")), *self._store.find(RunQuery(status="running"))]
        return [
            prompt_of(run.run_id, pause)
            for run in sorted(found, key=lambda run: run.updated_at, reverse=True)
            for pause in run.pauses
        ]

    def workers(self) -> Sequence[WorkerInfo]:
        """The workers that are there, by name: those that gave a sign of life in the last seconds."""
        return [_worker_info(note) for note in self._store.signed_on(within_s=KNOWN_FOR_S)]

    def schema_of(self, token: str) -> Any:
        """The JSON Schema that an answer to a question must fit; `None` if anything does."""
        pause = waiting_pause(self._store, token)
        return record_bodies.read_body(pause.body, where=f"the pause at {token!r}").get("schema")

    # --- handling ---

    def answer(self, token: str, answer: Any, *, by: str | None = None) -> None:
        """Answer a pause, once: it is checked, stored, and used when the run is resumed.

        `by` is kept beside the answer, for those who ask who gave it; who may give it is the application's matter.
        `InvalidAnswer` if it does not fit, `AlreadyAnswered` if somebody was faster, `NotPaused` if nothing waits.
        """
        give_answer(self._store, token, answer, by=by)

    def reward(self, run_id: str, path: str, value: float) -> None:
        """Tell what a selection with `reward="later"` chose was worth, from 0 to 1, once; `path` is its step's.

        `NoRewardDue` if it was told already, if the selection has not ended, or if there is none.
        """
        reward(self._store, RunId(run_id), StepPath(path), value)

    def choices(self, run_id: str) -> dict[StepPath, Choice]:
        """What the selections of a run chose and what was believed then, for evaluating other policies on it."""
        return choices_in(self._store.read(RunId(run_id)))

    def beliefs(self, name: str, category: str = DEFAULT_CATEGORY) -> dict[str, Belief]:
        """What is believed of each arm: evidence, without a prior. `name` is that of the beliefs, or a step's path."""
        return self._store.beliefs(name, category)

    def expire(self) -> Sequence[str]:
        """End every question whose time is over; the ids of the runs that asked them.

        What that means is decided by their pipelines, when somebody goes on with the runs: call `flujo.recover()`.
        """
        return list(expire(self._store)) if hasattr(self._store, "expire") else []

    def cancel(self, run_id: str, reason: str = "cancelled from outside", *, undo: bool = True) -> None:
        """End a run as aborted, for good, whoever works on it.

        If its pipeline has compensations, what it did is undone: by its owner if it is at work, else by whoever has the
        pipeline (`recover()`, `flujo.cancel(run_id)`, a worker), and until then it can be neither answered nor resumed
        to go on. With `undo=False` it ends at once, and nothing is undone.

        A run at work ends within a second: a request is left in the store, its owner reads it and cancels the run's
        steps. `NotPaused` if the run has ended, `RunNotFound` if it is not there, `RunLeased` if somebody works on it
        and the store cannot pass on requests.
        """
        cancel(self._store, RunId(run_id), Silence(os.environ).redact(reason), undo=undo)

    def fork(self, run_id: str, seq: int, *, input: object = SAME_INPUT, new_id: str | None = None) -> str:
        """Begin a new run with what another had done when its record number `seq` was written; its id.

        The new run belongs to nobody: `flujo.resume(new_id)` or `recover()` goes on with it, and does not repeat what
        was done. With `input`, it is as if the run had been started with another one: steps that were done stay done.
        """
        return fork(self._store, RunId(run_id), seq, input=input, new_id=None if new_id is None else RunId(new_id))

    def delete(self, run_id: str) -> bool:
        """Forget a run with everything it wrote; whether there was one that nobody works on."""
        return self._store.delete([RunId(run_id)]) > 0

    def forget(self, *, older_than_s: float, statuses: tuple[StoredStatus, ...] = ENDED) -> int:
        """Delete runs that have not changed for so long; how many there were."""
        if not 0 <= older_than_s < math.inf:
            raise DeclarationError(f"forget: older_than_s must be a finite number of seconds, not {older_than_s!r}")
        before = time.time() - older_than_s
        queries = [RunQuery(status=_checked_status(status), updated_before=before) for status in statuses]
        found = [run for query in queries for run in self._store.find(query)]
        return self._store.delete([run.run_id for run in found])


def _checked_status(status: StoredStatus) -> StoredStatus:
    """The status, if there is such a one: no run has any other, and an empty answer would say so of the runs."""
    if status not in get_args(StoredStatus):
        raise ValueError(f"there is no status {status!r}; a run is {', '.join(get_args(StoredStatus))}")
    return status


def _info(run: StoredRun) -> RunInfo:
    first = run.pauses[0] if run.pauses else None
    return RunInfo(
        run_id=run.run_id,
        status=run.status,
        pipeline=run.pipeline,
        created_at=run.created_at,
        updated_at=run.updated_at,
        state_token=None if first is None else first.token,
        message=None if first is None else first.message,
        abandoned=run.status == "running" and not run.leased and not run.unclaimed,
        queue=run.queue,
        waiting_since=_waiting_since(run),
        tokens=run.tokens,
        cost_usd=run.cost_usd,
        records=run.records,
        cursor=run.cursor,
    )


def _is_at_rest(run: StoredRun) -> bool:
    """Whether nothing will happen before somebody does something."""
    return has_ended(run.status) or (run.status == "paused" and bool(run.pauses))


def _result(run: StoredRun, state: RunState) -> PipelineResult:
    """What a run came to, from what it has stored."""
    assert run.status != "running"
    question = run.pauses[0] if run.pauses else None
    return PipelineResult(
        run_id=run.run_id,
        status=run.status,
        output=state.output if run.status == "completed" else None,
        step_history=state.results,
        total_cost_usd=state.usage.cost_usd,
        total_tokens=state.usage.tokens,
        final_context=state.context,
        feedback=state.feedback,
        state_token=None if question is None else question.token,
        error=state.error if run.status == "failed" else None,
    )


def _waiting_since(run: StoredRun) -> float | None:
    """Since when nobody works on a run that waits for a worker."""
    if run.queue is None or run.status != "running" or run.leased:
        return None
    return run.created_at if run.unclaimed else run.updated_at


def _worker_info(note: WorkerNote) -> WorkerInfo:
    facts = json.loads(note.body)
    known = {name: facts[name] for name in attrs.fields_dict(WorkerInfo) if name in facts}
    return WorkerInfo(**{**known, "name": note.name, "seen_at": note.seen_at, "queues": tuple(facts["queues"])})
