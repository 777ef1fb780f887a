"""Forking a run: a new one that begins with what another had done by some point.

Rules:

1. The new run holds the records of the old one up to that point, so its steps are not done again. That the old one was
   put away or taken up again is not part of it.
2. It says where it comes from, in its first record.
3. It belongs to nobody: whoever resumes or recovers it goes on with it. If a question was open at that point, it is
   asked again, under a token of the new run.
4. What was under way at that point, a tool call that was begun and not recorded as done, may have had its effect: in
   the new run it is as uncertain as after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import attrs

from .._core import record_bodies
from .._core.outcomes import RunId
from .._core.paths import StepPath, at_or_below
from .._core.pause_tokens import make_token
from .._core.questions import read_question
from .._core.records import Admission, OpenPause, Record
from ..errors import CorruptRecord, DeclarationError
from ..stores._port import Store
from .child_results import read_whole
from .watching import required

SAME_INPUT: object = object()
"""Stands for the input that the run was started with."""


def fork(store: Store, run_id: RunId, seq: int, *, input: object = SAME_INPUT, new_id: RunId | None = None) -> RunId:
    """Make a new run of another one's records up to `seq`; its id comes back. Blocks."""
    required(store, "admit_fork", what="forking a run")
    kept = _records_up_to(store, run_id, seq)
    forked = new_id or RunId(os.urandom(16).hex())
    body = _first_body(run_id, kept[0], seq, input)
    origin = store.get(run_id)
    admission = Admission(run_id=forked, pipeline=origin.pipeline, body=body, queue=origin.queue)
    records = [_of_fork(record, forked) for record in kept[1:] if record.kind not in ("ended", "resumed")]
    pauses = _open_questions(records)
    store.admit_fork(admission, records, pauses=pauses, status="paused" if pauses else "running")
    return forked


def _records_up_to(store: Store, run_id: RunId, seq: int) -> list[Record]:
    records = read_whole(store, run_id)
    if not isinstance(seq, int) or not 1 <= seq <= len(records):
        raise DeclarationError(
            f"run {run_id!r} cannot be forked at record {seq!r}: it has the records 1 to {len(records)}"
        )
    if records[0].kind != "admitted":
        raise CorruptRecord(f"record 1 of run {run_id!r}: it is not the run's admission")
    return records[:seq]


def _first_body(run_id: RunId, first: Record, seq: int, input: object) -> str:
    parts = record_bodies.read_body(first.body, where=f"record 1 of run {run_id!r}")
    del parts["v"]
    given = {} if input is SAME_INPUT else {"input": record_bodies.stored_value(input)}
    return record_bodies.make_body(**{**parts, **given, "origin": {"run_id": run_id, "seq": seq}})


def _of_fork(record: Record, forked: RunId) -> Record:
    """The record in the new run: a question has a token of that run."""
    if record.kind != "paused":
        return record
    parts = record_bodies.read_body(record.body, where=f"the question at {record.path!r}")
    del parts["v"]
    asked = str(parts.get("token", "")).split(":", 2)
    token = make_token(forked, record.path, asked=asked[1] if len(asked) == 3 else "")
    return attrs.evolve(record, body=record_bodies.make_body(**{**parts, "token": token}))


def _open_questions(records: Iterable[Record]) -> Sequence[OpenPause]:
    """What waits for an answer after these records."""
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
    question = read_question(parts.get("question"))
    return OpenPause(
        path=record.path,
        token=str(parts.get("token")),
        message=str(parts.get("message", "")),
        body=record.body,
        timeout_s=None if question is None else question.timeout_s,
    )
