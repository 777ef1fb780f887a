"""What a durable run is started with: stored before any work is done, and read again if this code may go on with it."""

from __future__ import annotations

from typing import Any

from .._core import record_bodies
from .._core.error_info import message_of
from .._core.outcomes import RunId
from .._core.paths import Doubt, StepPath, known_segment
from .._core.records import Admission, Record
from .._dsl.compensation import ANSWERS
from .._dsl.kinds import HumanInTheLoop
from .._dsl.pipeline import AnyStep, Pipeline
from .._dsl.tree import find_step
from .._type_registry import read_by
from ..errors import CorruptRecord, FingerprintMismatch, NotSerializable
from .changes import ResumeMode as ResumeMode
from .changes import changes_between, steps_done
from .fingerprint import Fingerprint, form_of, read_fingerprint


def admission_of(pipeline: Pipeline, run_id: RunId, data: object, context: object, queue: str | None) -> Admission:
    """What makes a run exist; `NotSerializable` if what it is given cannot be stored."""
    fingerprint = Fingerprint.of(pipeline)
    given = {"input": _stored(data, "input"), "context": _stored(context, "context")}
    body = record_bodies.make_body(**given, fingerprint=fingerprint.data())
    return Admission(run_id=run_id, pipeline=fingerprint.name, body=body, queue=queue)


def given_to(pipeline: Pipeline, run_id: RunId, records: list[Record], mode: ResumeMode) -> tuple[object, object]:
    """The input and the context that a run was started with; `FingerprintMismatch` if that was another pipeline."""
    where = f"record 1 of run {run_id!r}"
    if not records or records[0].kind != "admitted":
        raise CorruptRecord(f"{where}: it is not the run's admission")
    body = record_bodies.read_body(records[0].body, where=where)
    with record_bodies.reading(f"{where}: its fingerprint"):
        before, form = read_fingerprint(body.get("fingerprint")), form_of(body.get("fingerprint"))
    after = Fingerprint.of(pipeline, form=form).steps
    changes = changes_between(before, after, steps_done(records), mode=mode)
    if changes:
        raise _mismatch(run_id, changes, mode)
    return _given(body, where=where)


def step_at(pipeline: Pipeline, path: StepPath) -> AnyStep | None:
    """The step whose records stand at a path, if the pipeline still has one there."""
    return find_step(pipeline, path)


def answer_schema_at(pipeline: Pipeline, path: StepPath) -> object:
    """What an answer to the question at a path must fit; `None` if anything does."""
    if isinstance(known_segment(path.rpartition("/")[2]), Doubt):
        return dict(ANSWERS)
    step = step_at(pipeline, path)
    return step.input_schema if isinstance(step, HumanInTheLoop) else None


@read_by("a fresh process")
def _given(body: dict[str, object], *, where: str) -> tuple[object, object]:
    data, context = body.get("input"), body.get("context")
    return record_bodies.read_value(data, where=where), record_bodies.read_value(context, where=where)


def _stored(value: Any, what: str) -> object:
    try:
        return record_bodies.stored_value(value)
    except NotSerializable as error:
        raise NotSerializable(f"the run was not started: its {what} cannot be stored; {message_of(error)}") from error


def _mismatch(run_id: RunId, changes: list[str], mode: ResumeMode) -> FingerprintMismatch:
    wider = 'mode="compat" or "force"' if mode == "strict" else 'mode="force"'
    return FingerprintMismatch(
        f"run {run_id!r} was started with another pipeline: {'; '.join(changes)}. Resume it with the pipeline it was "
        f"started with, or with {wider} if you know that what it has done still holds"
    )
