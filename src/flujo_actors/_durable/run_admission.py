"""Admission of durable runs: stored before any work, checked again on resume.

Sections:

- Models of a pipeline's values, registered for reading stored runs.
- Projection of a stored run from its records.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Iterator, Mapping, Sequence

from .. import _agents
from .._core.error_info import message_of
from .._core.failure_info import CompensatedToolCall, Recovered, StepFailure, Undo
from .._core.labels import NO_LABELS, Labels
from .._core.outcomes import RunId
from .._core.records import record_bodies
from .._core.records.context_patches import StoredContexts, is_patch, with_full_context
from .._core.records.data_models import register_annotation, unstorable_type
from .._core.records.record_bodies import plain_text
from .._core.records.records import RECORD_VERSION, Admission, Record
from .._core.records.run_state import Projector, RunState, project, refuse_compacted, retries_in
from .._core.step_paths import Doubt, StepPath, known_segment
from .._core.type_registry import read_by
from .._core.usage import Usage
from .._dsl.call_plan import is_model_agent
from .._dsl.compensation_options import ANSWERS
from .._dsl.declaration_tree import find_step, walk_steps
from .._dsl.kinds import HumanInTheLoop
from .._dsl.pipeline import AnyStep, Pipeline
from .._dsl.step_declaration import Step
from .._runtime.context.freeform import Context
from ..errors import (
    CorruptRecord,
    DeclarationError,
    FingerprintMismatch,
    NotSerializable,
    RunNotFound,
    StoreVersionError,
)
from ..stores._store_port import Store
from .fingerprint import Fingerprint, form_of, read_fingerprint
from .pipeline_diff import ResumeMode as ResumeMode
from .pipeline_diff import changes_between, steps_done
from .remote_result_refs import read_resolved, resolved
from .run_registry import NOTHING_CARRIED


class Admissions:
    """Admission of runs of one pipeline; common data is encoded once."""

    __slots__ = ("_digest", "_empty", "_fingerprint", "_pipeline")

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._fingerprint: str | None = None
        self._empty: str | None = None
        self._digest: tuple[str, str] = ("", "")
        """The last fingerprint that was written, and its digest."""

    def of(
        self,
        run_id: RunId,
        data: object,
        context: object,
        queue: str | None,
        carried: Mapping[str, object] = NOTHING_CARRIED,
        labels: Labels = NO_LABELS,
    ) -> Admission:
        """Return the admission of a run; raise `NotSerializable` for unstorable data."""
        given = plain_text(data)
        given = record_bodies.as_text(_stored(data, "input")) if given is None else given
        parts = {"input": given, "context": self._context(context)}
        parts["fingerprint"] = self._fingerprint or self._new_fingerprint()
        if carried:
            parts["carried"] = record_bodies.as_text(dict(carried))
        return Admission(
            run_id=run_id,
            pipeline=self._pipeline.title,
            body=record_bodies.of_texts(parts),
            queue=queue,
            fingerprint=self._digest[1],
            labels=labels,
        )

    @property
    def known(self) -> str | None:
        """Return the fingerprint as it is stored, if the pipeline's cannot change."""
        if self._fingerprint is None and not _has_model_agents(self._pipeline):
            self._new_fingerprint()
        return self._fingerprint

    def _context(self, context: object) -> str:
        if type(context) is not Context or vars(context):
            return record_bodies.as_text(_stored(context, "context"))
        if self._empty is None:  # as most contexts are in the beginning
            self._empty = record_bodies.as_text(_stored(context, "context"))
        return self._empty

    def _new_fingerprint(self) -> str:
        fingerprint = Fingerprint.of(self._pipeline)
        text = record_bodies.as_text(fingerprint.data())
        if text != self._digest[0]:
            self._digest = (text, fingerprint.digest())
        if not _has_model_agents(self._pipeline):  # which can be given tools and instructions between two runs
            self._fingerprint = text
        return text


def _has_model_agents(pipeline: Pipeline) -> bool:
    return any(is_model_agent(step.agent) for step in walk_steps(pipeline) if isinstance(step, Step))


def start_values(
    pipeline: Pipeline, run_id: RunId, records: list[Record], mode: ResumeMode, *, known: str | None = None
) -> tuple[object, object]:
    """Return input and context of a run's start; raise `FingerprintMismatch`.

    `known` is the stored form of the pipeline's fingerprint: a run with the same text is not compared.
    """
    where = f"record 1 of run {run_id!r}"
    if not records or records[0].kind != "admitted":
        raise CorruptRecord(f"{where}: it is not the run's admission")
    body = record_bodies.read_body(records[0].body, where=where)
    if known is not None and f'"fingerprint":{known}' in records[0].body:
        return _given(body, where=where)
    with record_bodies.reading(f"{where}: its fingerprint"):
        before, form = read_fingerprint(body.get("fingerprint")), form_of(body.get("fingerprint"))
    after = Fingerprint.of(pipeline, form=form).steps
    changes = changes_between(before, after, steps_done(records), mode=mode)
    if changes:
        raise _mismatch(run_id, changes, mode)
    return _given(body, where=where)


def is_same_pipeline(pipeline: Pipeline, run_id: RunId, records: list[Record], *, known: str | None) -> bool:
    """Return whether a run was admitted with this very pipeline."""
    where = f"record 1 of run {run_id!r}"
    body = record_bodies.read_body(records[0].body, where=where)
    if known is not None and f'"fingerprint":{known}' in records[0].body:
        return True
    with record_bodies.reading(f"{where}: its fingerprint"):
        before, form = read_fingerprint(body.get("fingerprint")), form_of(body.get("fingerprint"))
    return Fingerprint.of(pipeline, form=form).steps == before


def carried_to(run_id: RunId, records: list[Record]) -> Mapping[str, object]:
    """Return the context variables stored by the submitting process."""
    if not records or '"carried":' not in records[0].body:  # as in most runs: the body is not parsed again
        return NOTHING_CARRIED
    carried = record_bodies.read_body(records[0].body, where=f"record 1 of run {run_id!r}").get("carried")
    return carried if isinstance(carried, dict) else NOTHING_CARRIED


def widest_mode(mode: ResumeMode, records: list[Record]) -> ResumeMode:
    """Return a resume's mode: the caller's, or a retry's wider one."""
    known: list[ResumeMode] = ["strict", "compat", "force"]
    stored = [each for each in known if each in {retry.mode for retry in retries_in(records)[-1:]}]
    return max([mode, *stored], key=known.index)


def step_at(pipeline: Pipeline, path: StepPath) -> AnyStep | None:
    """Return the step of a record's path, or None."""
    return find_step(pipeline, path)


def answer_schema_at(pipeline: Pipeline, path: StepPath) -> object:
    """Return the answer schema at a path; `None` for any answer."""
    if isinstance(known_segment(path.rpartition("/")[2]), Doubt):
        return dict(ANSWERS)
    step = step_at(pipeline, path)
    return step.input_schema if isinstance(step, HumanInTheLoop) else None


@read_by("a fresh process")
def _given(body: dict[str, object], *, where: str) -> tuple[object, object]:
    data, context = body.get("input"), body.get("context")
    return record_bodies.read_value(data, where=where), record_bodies.read_value(context, where=where)


def _stored(value: object, subject: str) -> object:
    try:
        return record_bodies.stored_value(value)
    except NotSerializable as error:
        raise NotSerializable(
            f"the run was not started: its {subject} cannot be stored; {message_of(error)}"
        ) from error


def _mismatch(run_id: RunId, changes: list[str], mode: ResumeMode) -> FingerprintMismatch:
    wider = 'mode="compat" or "force"' if mode == "strict" else 'mode="force"'
    return FingerprintMismatch(
        f"run {run_id!r} was started with another pipeline: {'; '.join(changes)}. Resume it with the pipeline it was "
        f"started with, or with {wider} if its completed work is still valid"
    )


# --- Models of a pipeline's values --------------------------------------------------------------------------------


def register_types_of(pipeline: Pipeline, context_model: type | None) -> None:
    """Register every model in the annotations of the pipeline and its context."""
    register_annotation(context_model)
    _register_library_types()
    for step in walk_steps(pipeline):
        match step:
            case Step():
                for annotation in _annotations(step):
                    register_annotation(annotation)
            case HumanInTheLoop():
                register_annotation(step.input_schema)


@functools.cache
def _register_library_types() -> None:
    """Register the library's own types of stored values, once."""
    for stored_type in (Recovered, StepFailure, CompensatedToolCall, Undo):
        register_annotation(stored_type)


def _annotations(step: Step) -> Iterator[object]:
    yield step.processing.schema
    if is_model_agent(step.agent):
        yield from _answer_types(step)
        return
    for plan in (step.plan, step.plan.stream):
        if plan is not None:
            yield from _hints(plan.target)


def _answer_types(step: Step) -> list[object]:
    """Return the types of a model agent's answers; raise `DeclarationError` if unstorable."""
    given = step.agent_options.get("output_type") if isinstance(step.agent_options, Mapping) else None
    answers = list(_agents.output_types(step.agent.output_type if given is None else given))
    refused = next(filter(None, map(unstorable_type, answers)), None)
    if refused is not None and step.processing.wanted is None and not step.processors.after:
        raise DeclarationError(
            f"step {step.name!r}: its agent may answer with a {refused.__qualname__}, which cannot be stored; "
            "let it return plain data, a dataclass, an attrs class or a pydantic model, or leave out `store`"
        )
    return answers


def _hints(target: object) -> list[object]:
    target = getattr(target, "func", target)
    if not inspect.isroutine(target) and not inspect.isclass(target):
        target = type(target).__call__
    try:
        return list(typing.get_type_hints(target).values())
    except (NameError, TypeError, AttributeError):  # a forward reference that only a type checker can follow
        return []


# --- Projection of a stored run from its records ------------------------------------------------------------------


@read_by("anybody")
def projected(store: Store, run_id: RunId, *, up_to: int | None = None) -> RunState:
    """Return a run's state now or at a record; blocks."""
    records = read_resolved(store, run_id)
    if up_to is not None:
        refuse_compacted(run_id, up_to, (record.seq for record in records))
    return project(run_id, (record for record in records if up_to is None or record.seq <= up_to))


@read_by("anybody")
def dropped_usage(run_id: RunId, records: Sequence[Record]) -> Usage:
    """Return the usage of attempts that retries have dropped."""
    projector = Projector(run_id)
    for record in records:
        projector.apply(record)
    return projector.dropped_usage


def whole_record(store: Store, run_id: RunId, seq: int) -> Record:
    """One record with its result; blocks."""
    try:
        [record] = resolved(store, [store.record(run_id, seq)])
    except RunNotFound:
        refuse_compacted(run_id, seq, (each.seq for each in store.scan(run_id, after=seq, limit=1)))
        raise
    if not is_patch(record):
        return record
    return with_full_context(record, StoredContexts(each for each in store.read(run_id) if each.seq <= seq))


def format_of(store: Store) -> int:
    """Return the record format that writers of a store write."""
    return getattr(store, "record_format", RECORD_VERSION)


def refuse_former_format(store: Store, *, subject: str) -> None:
    """Raise `StoreVersionError` unless the store has the newest format."""
    found = format_of(store)
    if found < RECORD_VERSION:
        raise StoreVersionError(
            f"{subject} needs record format {RECORD_VERSION}, and the store has {found}: when no process of the former "
            "release uses it, run `flujo-actors store migrate --finalize --store …`"
        )
