"""What a durable run is started with: stored before any work is done, and read again if this code may go on with it."""

from __future__ import annotations

from .._context.freeform import Context
from .._core import record_bodies
from .._core.error_info import message_of
from .._core.outcomes import RunId
from .._core.paths import Doubt, StepPath, known_segment
from .._core.plain_bodies import plain_text
from .._core.records import Admission, Record
from .._dsl.call_plan import is_model_agent
from .._dsl.compensation import ANSWERS
from .._dsl.kinds import HumanInTheLoop
from .._dsl.pipeline import AnyStep, Pipeline
from .._dsl.step import Step
from .._dsl.tree import find_step, walk_steps
from .._type_registry import read_by
from ..errors import CorruptRecord, FingerprintMismatch, NotSerializable
from .changes import ResumeMode as ResumeMode
from .changes import changes_between, steps_done
from .fingerprint import Fingerprint, form_of, read_fingerprint


class Admissions:
    """Makes runs of one pipeline exist; what they have in common is written once."""

    __slots__ = ("_empty", "_fingerprint", "_pipeline")

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._fingerprint: str | None = None
        self._empty: str | None = None

    def of(self, run_id: RunId, data: object, context: object, queue: str | None) -> Admission:
        """What makes a run exist; `NotSerializable` if what it is given cannot be stored."""
        given = plain_text(data)
        given = record_bodies.as_text(_stored(data, "input")) if given is None else given
        parts = {"input": given, "context": self._context(context)}
        parts["fingerprint"] = self._fingerprint or self._new_fingerprint()
        return Admission(run_id=run_id, pipeline=self._pipeline.title, body=record_bodies.of_texts(parts), queue=queue)

    def _context(self, context: object) -> str:
        if type(context) is not Context or vars(context):
            return record_bodies.as_text(_stored(context, "context"))
        if self._empty is None:  # as most contexts are in the beginning
            self._empty = record_bodies.as_text(_stored(context, "context"))
        return self._empty

    def _new_fingerprint(self) -> str:
        text = record_bodies.as_text(Fingerprint.of(self._pipeline).data())
        if not _has_model_agents(self._pipeline):  # which can be given tools and instructions between two runs
            self._fingerprint = text
        return text


def _has_model_agents(pipeline: Pipeline) -> bool:
    return any(is_model_agent(step.agent) for step in walk_steps(pipeline) if isinstance(step, Step))


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


def _stored(value: object, what: str) -> object:
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
