"""Fork of a run: a new run with copied records.

Rules:

1. The new run holds the records of the old one up to that point, so its steps do not run again. Releases and resumes
   of the old run are not copied.
2. Its first record names its origin. It has the labels of the old run.
3. It has no owner until it is resumed or recovered. A pause that was open at that point is opened again, under a token
   of the new run.
4. Work in flight at that point, a tool call that was started and not recorded as done, may have had its effect: in
   the new run it is as uncertain as after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from .._core import seams
from .._core.outcomes import RunId
from .._core.policies.approval_policy import addressed, asked_in
from .._core.records import record_bodies
from .._core.records.pause_tokens import make_token
from .._core.records.records import RETRYABLE, Admission, OpenPause, Record, StoredRun, StoredStatus
from .._core.records.run_state import compensated_steps, is_failure, kept_records, refuse_compacted
from .._core.step_paths import ROOT, StepPath, at_or_below, last_name
from ..errors import CorruptRecord, DeclarationError, NotRetryable, RunEnded
from ..stores._store_port import Store
from .pipeline_diff import ResumeMode as ResumeMode
from .pipeline_diff import checked_mode
from .remote_result_refs import read_resolved
from .run_admission import refuse_former_format
from .watch_poller import required

REHEARSED = "rehearsal of "
"""Beginning of the pipeline name of a kept fork."""

RECORDED = "/recorded"
"""Ending of the id of a kept recorded run, after its fork's."""

SAME_INPUT: object = object()
"""Marker of the original input."""


def fork(store: Store, run_id: RunId, seq: int, *, input: object = SAME_INPUT, new_id: RunId | None = None) -> RunId:
    """Create a run from another's records up to `seq`. Blocks."""
    required(store, "admit_fork", subject="forking a run")
    kept = _records_up_to(store, run_id, seq)
    forked = new_id or RunId(seams.random_bytes(16).hex())
    body = _first_body(run_id, kept[0], seq, input)
    origin = store.get(run_id)
    admission = Admission(
        run_id=forked,
        pipeline=origin.pipeline,
        body=body,
        queue=origin.queue,
        fingerprint=origin.fingerprint,
        labels=origin.labels,
    )
    records = [
        record_of_fork(record, forked) for record in kept[1:] if record.kind not in ("ended", "resumed", "retried")
    ]
    pauses = _open_questions(records)
    store.admit_fork(admission, records, pauses=pauses, status=_status_of(pauses))
    return forked


def _status_of(pauses: Sequence[OpenPause]) -> StoredStatus:
    if not pauses:
        return "running"
    return "paused" if any(pause.wait is None for pause in pauses) else "sleeping"


def _records_up_to(store: Store, run_id: RunId, seq: int) -> list[Record]:
    records = read_resolved(store, run_id)
    last = records[-1].seq if records else 0
    if not isinstance(seq, int) or not 1 <= seq <= last:
        raise DeclarationError(f"run {run_id!r} cannot be forked at record {seq!r}: it has the records 1 to {last}")
    refuse_compacted(run_id, seq, (record.seq for record in records))
    if records[0].kind != "admitted":
        raise CorruptRecord(f"record 1 of run {run_id!r}: it is not the run's admission")
    return kept_records([record for record in records if record.seq <= seq])


def _first_body(run_id: RunId, first: Record, seq: int, input: object) -> str:
    parts = record_bodies.read_body(first.body, where=f"record 1 of run {run_id!r}")
    del parts["v"]
    given = {} if input is SAME_INPUT else {"input": record_bodies.stored_value(input)}
    return record_bodies.make_body(**{**parts, **given, "origin": {"run_id": run_id, "seq": seq}})


def pause_of_fork(pause: OpenPause, forked: RunId) -> OpenPause:
    """Return the new run's open pause, with its token."""
    record = record_of_fork(Record(kind="paused", path=pause.path, body=pause.body), forked)
    parts = record_bodies.read_body(record.body, where=f"the question at {pause.path!r}")
    return attrs.evolve(pause, token=str(parts["token"]), body=record.body)


def record_of_fork(record: Record, forked: RunId) -> Record:
    """Return the new run's record; its pauses have its tokens."""
    if record.kind != "paused":
        return record
    parts = record_bodies.read_body(record.body, where=f"the question at {record.path!r}")
    del parts["v"]
    asked = str(parts.get("token", "")).split(":", 2)
    token = make_token(forked, record.path, asked=asked[1] if len(asked) == 3 else "")
    return attrs.evolve(record, body=record_bodies.make_body(**{**parts, "token": token}))


def _open_questions(records: Iterable[Record]) -> Sequence[OpenPause]:
    """Return the open pauses after these records."""
    waiting: dict[StepPath, OpenPause] = {}
    for record in records:
        match record.kind:
            case "paused":
                waiting[record.path] = _question(record)
            case "answered":
                waiting.pop(record.path, None)
            case "settled":
                for path in at_or_below(record.path, list(waiting)):
                    del waiting[path]
            case _:
                pass
    return list(waiting.values())


def _question(record: Record) -> OpenPause:
    parts = record_bodies.read_body(record.body, where=f"the question at {record.path!r}")
    question = asked_in(parts)
    return OpenPause(
        path=record.path,
        token=str(parts.get("token")),
        message=str(parts.get("message", "")),
        body=record.body,
        timeout_s=None if question is None else question.timeout_s,
        due_at=None if question is None else question.facts.get("due_at"),
        **addressed(question, record.path),
    )


def retry(
    store: Store,
    run_id: RunId,
    *,
    state: str | None = None,
    from_start: bool = False,
    mode: ResumeMode = "strict",
    queue: str | None = None,
    reason: str | None = None,
    by: str | None = None,
) -> None:
    """Make a failed or aborted run claimable; refusals name `state`. Blocks."""
    required(store, "retry", subject="retrying a run")
    refuse_former_format(store, subject="a retry")
    checked_mode(mode)
    run = store.get(run_id)
    _refuse_unless_retryable(run, state or run.status)
    if not from_start:
        _refuse_if_compensated(store, run)
    store.retry(run_id, number=run.retries + 1, record=_record(run, from_start, mode, reason, by), queue=queue)
    for child in store.standing(store.children(run_id)) if hasattr(store, "children") else ():
        _retry_child(store, child, from_start=from_start)


def _record(
    run: StoredRun, from_start: bool, mode: ResumeMode, reason: str | None = None, by: str | None = None
) -> Record:
    facts = {"number": run.retries + 1, "mode": mode, "from_start": from_start, "reason": reason, "by": by}
    return Record(kind="retried", path=ROOT, body=record_bodies.newest_body(**facts))


def _refuse_unless_retryable(run: StoredRun, state: str) -> None:
    if run.status == "completed":
        raise RunEnded(
            f"run {run.run_id!r} has completed; there is nothing to retry. fork(run_id, seq) starts a new run from any "
            "record"
        )
    if run.pipeline.startswith(REHEARSED) or run.run_id == f"{run.parent}{RECORDED}":
        raise NotRetryable(
            f"run {run.run_id!r} is kept by a rehearsal, without the effects of its steps: retry the rehearsed run"
        )
    if run.status not in RETRYABLE:
        raise NotRetryable(f"run {run.run_id!r} is {state}; only a run that failed or was aborted can be retried")


def _refuse_if_compensated(store: Store, run: StoredRun) -> None:
    undone = [last_name(path) for path in compensated_steps(store.read(run.run_id))]
    if undone:
        steps = f"{len(undone)} step{'' if len(undone) == 1 else 's'} ({', '.join(undone)})"
        raise NotRetryable(
            f"run {run.run_id!r} undid {steps}: retrying from the failed step would leave them out; from_start=True "
            "executes all steps again"
        )


def _retry_child(store: Store, child: StoredRun, *, from_start: bool) -> None:
    if from_start:
        store.delete([child.run_id])
    elif child.status in RETRYABLE or (child.status == "completed" and _has_failed(store, child)):
        store.retry(child.run_id, number=child.retries + 1, record=_record(child, False, "strict"), queue=None)


def _has_failed(store: Store, child: StoredRun) -> bool:
    return any(record.kind == "settled" and is_failure(record) for record in store.read(child.run_id))
