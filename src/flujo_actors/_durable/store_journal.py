"""Journal of a durable run, with records stored before it continues.

Rules:

1. Records of earlier sessions are read once, when the run is opened: an unreadable one is found before any work.
   Steps inside a settled step are read as far as they are parts of its result.
2. `started` records are batched: they are written with the next awaited record, and not at all if their step has
   settled by then. After a quarter of a second they are written by themselves: other processes see the progress of a
   run.
3. A step whose commit is coalesced is held, and written with its parent in one commit: nothing is done or reported
   between the two. Held steps are written when the run is released.
4. A pause is written with its record, and can be answered from then on. When its parent settles or retries, it is
   withdrawn.

Sections:

- Stored form of pauses.
- Started steps in a journal, and their records.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from .. import _durable, structured
from .._core import seams
from .._core.attempt_results import CancelPending
from .._core.failure_info import Undoable
from .._core.outcomes import Failure, Paused, PipelineResult, StepResult, TerminalOutcome
from .._core.policies.approval_policy import QuestionSpec, addressed, asked_in
from .._core.records import record_bodies
from .._core.records.context_patches import ContextPart, ContextWriter, StoredContexts, has_context
from .._core.records.record_bodies import plain_body, plain_end
from .._core.records.records import RECORD_VERSION, Append, Lease, OpenPause, Record, RecordKind
from .._core.records.run_state import LoopTurns, forget_turns
from .._core.step_paths import (
    ROOT,
    StepPath,
    at_or_below,
    compensated_by,
    is_top_level,
    is_undoing,
    withdrawn_by,
    within_of,
)
from .._core.type_registry import read_by
from .._core.views.record_summaries import SHORT_BODY, settled_gist
from ..errors import CorruptRecord, InvalidAnswer, ProtocolError
from ..stores._store_port import Store
from . import compensation_records
from .group_commit import CommitWaiter, JournalWriter
from .journal import CountedUnits, ElapsedTime, KeptUnit, LeaseHolder, Pause, PauseAnswer, RaisedLimits, Recorded
from .long_runs import StoredItems
from .recorded_results import RecordedResults, StoredWaits, TurnJournal, is_wait, nested_results, places_below
from .remote_result_refs import RemoteResultRef, read_resolved, referring, resolved
from .run_admission import format_of
from .store_executor import call_store
from .store_transaction import StoreTransaction, written_once

if TYPE_CHECKING:
    from .._core.usage import Usage
    from .operations.webhooks import RunMessages


# --- Stored form of pauses ----------------------------------------------------------------------------------------


def pause_body(pause: Pause, contexts: ContextWriter) -> str:
    """Return the record body of a pause; raise `NotSerializable` for its context."""
    kept = None if pause.context is None else contexts.part(pause.path, pause.context)
    body = record_bodies.make_body(**_pause_data(pause))
    return body if kept is None else kept.added_to(body)


def open_pause(pause: Pause) -> OpenPause:
    """Return the store entry of a pause."""
    return OpenPause(
        path=pause.path,
        token=pause.paused.state_token or "",
        message=pause.paused.message,
        body=record_bodies.make_body(**_pause_data(pause)),
        timeout_s=None if pause.question is None else pause.question.timeout_s,
        due_at=None if pause.question is None else pause.question.facts.get("due_at"),
        **addressed(pause.question, pause.path),
    )


def _pause_data(pause: Pause) -> dict[str, Any]:
    return {
        "step_name": pause.step_name,
        "message": pause.paused.message,
        "token": pause.paused.state_token,
        "attempts": pause.attempts,
        "usage": record_bodies.usage_data(pause.usage),
        "schema": _json_schema(pause.input_schema),
        **({} if pause.question is None else {_spec_name(pause.question): pause.question.data()}),
    }


def _spec_name(spec: QuestionSpec) -> str:
    return "question" if spec.wait is None else "wait"


def _json_schema(schema: object) -> object:
    """Return the JSON Schema of an answer, for processes without the pipeline."""
    if schema is None or isinstance(schema, dict):
        return schema
    return dict(structured.compile_schema(schema).json_schema)


def read_pause(record: Record, declared_schema: object, contexts: StoredContexts, *, where: str) -> Pause:
    """Return a pause from its record, with its declared schema."""
    body = record_bodies.read_body(record.body, where=where)
    question = asked_in(body)
    return Pause(
        path=record.path,
        step_name=record_bodies.text_in(body, "step_name"),
        paused=Paused(message=record_bodies.text_in(body, "message"), state_token=record_bodies.text_in(body, "token")),
        input_schema=declared_schema if question is None else question.schema,
        attempts=record_bodies.number_in(body, "attempts"),
        usage=record_bodies.read_usage(body["usage"], where=where),
        question=question,
        context=record_bodies.read_value(contexts.data(body), where=where) if has_context(body) else None,
        due_at=_due_at(question, record.at),
    )


def _due_at(spec: QuestionSpec | None, at: float | None) -> float | None:
    """Return the deadline of a pause that was written at a time."""
    if spec is None or spec.timeout_s is None or at is None:
        return None if spec is None else spec.facts.get("due_at")
    return at + spec.timeout_s


def in_pause_type(answered: PauseAnswer) -> PauseAnswer:
    """Return an answer validated by JSON Schema alone in the pipeline's `input_schema`."""
    if answered.pause.input_schema is None:
        return answered
    pause = answered.pause
    try:
        answer = _durable.checked_answer(answered.answer, pause.input_schema, step_name=pause.step_name, todo="")
    except InvalidAnswer as error:
        return attrs.evolve(answered, refused=error)
    return attrs.evolve(answered, answer=answer)


# --- Started steps in a journal -----------------------------------------------------------------------------------


class Start(NamedTuple):
    """A step that has begun."""

    name: str
    of: int
    at: float
    """Monotonic time of the start."""


def started_record(path: StepPath, start: Start, now: float) -> Record:
    """Return the record of a started, unsettled step."""
    of = {"of": start.of} if start.of else {}
    body = record_bodies.make_body(name=start.name, latency_s=round(now - start.at, 6), **of)
    return Record(kind="started", path=path, body=body)


# --- Journal of a durable run -------------------------------------------------------------------------------------


NOTHING_WORKED: Mapping[str, float] = {}

SchemaOf = Callable[[StepPath], object]
"""Declared `input_schema` of the step at a path."""


class StoreJournal(StoredWaits, StoredItems, LeaseHolder):
    """One run's journal in a store; see the module's rules."""

    durable = True

    def __init__(
        self,
        store: Store,
        writer: JournalWriter,
        lease: Lease,
        *,
        redact: record_bodies.Redact,
        schema_of: SchemaOf,
        step_at: compensation_records.StepAt,
        cold: bool = False,
    ) -> None:
        self._store, self._writer, self.lease = store, writer, lease
        self.outbox: RunMessages | None = None
        """Messages to webhooks about this run, if any."""
        self.at_rest = False
        """Whether the run was released and may have another owner."""
        self._redact, self._schema_of, self._step_at, self._cold = redact, schema_of, step_at, cold
        self.cancelled: str | None = None
        self._undoable: set[StepPath] | None = None
        """Steps whose own records define their compensation."""
        self._contexts = ContextWriter(patches=format_of(store) >= RECORD_VERSION)
        self._settled: dict[StepPath, Record] = {}
        self._read: dict[StepPath, Recorded] = {}
        self._pauses: dict[StepPath, Pause] = {}
        self._answers: dict[StepPath, PauseAnswer] = {}
        self._told: dict[StepPath, int] = {}
        """Number of answered pauses by path."""
        self._started: dict[StepPath, Start] = {}
        """Unwritten step starts, oldest first."""
        self.holds = not cold
        self._held: tuple[Record, ...] = ()
        """Settled steps to be written with their parent."""
        self.is_expected = False
        """Whether the writer has scheduled a flush."""
        self.children: dict[StepPath, RemoteResultRef] = {}
        """Steps executed by other runs, whose records hold their results."""
        self._intents: dict[StepPath, Record] = {}
        self._units: dict[StepPath, Record | KeptUnit] = {}
        self._chosen: dict[StepPath, str] = {}
        # Few runs need these, and a program has thousands of waiting runs.
        self._results: RecordedResults | None = None
        self._counted: CountedUnits | None = None
        self._raised: RaisedLimits | None = None
        self._times: ElapsedTime | None = None
        self._turns: TurnJournal | None = None

    # --- earlier sessions ---

    @read_by("a fresh process")
    def load(self, records: Iterable[Record]) -> None:
        """Load the records of earlier sessions."""
        contexts = StoredContexts()
        for record in resolved(self._store, list(records)):
            with record_bodies.reading(self._where(record)):
                contexts.take_record(record)
                self._restore(record, contexts)
        self._read_settled(contexts)
        with record_bodies.reading(f"run {self.lease.run_id!r}"):
            self._contexts.resume(contexts.last())
        for path, recorded in self._read.items():
            self._note(path, recorded.outcome)
            if recorded.undo and self._own_at(path) is not None:
                self._note_compensable([path])

    def _restore(self, record: Record, contexts: StoredContexts) -> None:
        worked = record_bodies.worked_in(record.body)
        if worked:
            self.times.restore(worked)
        match record.kind:
            case "settled":
                self._restore_settled(record)
                self._withdraw(record.path)
            case "paused":
                self._pauses[record.path] = self._pause_from(record, contexts)
                self._answers.pop(record.path, None)
            case "answered":
                self._restore_answer(record)
            case "chosen":
                self._chosen[record.path] = record_bodies.read_body(record.body, where=self._where(record))["choice"]
            case "intent":
                self._intents[record.path] = record
                self._answers.pop(record.path, None)
            case "cancelled":
                self._restore_cancelled(record)
            case "compacted":
                self._turns = self._turns or TurnJournal()
                self._turns.add(record)
            case "steered" if self.steering is not None:
                self.steering.add(record)
            case "unit":
                self._units[record.path] = record
                self._counted = self._counted or CountedUnits()
                self._counted.done(record.path)

    def _restore_cancelled(self, record: Record) -> None:
        self.cancelled = record_bodies.text_in(
            record_bodies.read_body(record.body, where=self._where(record)), "reason"
        )
        self._pauses = {path: each for path, each in self._pauses.items() if is_undoing(path)}

    def _restore_settled(self, record: Record) -> None:
        self._settled[record.path] = record
        if self._counted is not None:
            self._counted.settled(record.path)

    @read_by("a fresh process")
    def _read_settled(self, contexts: StoredContexts) -> None:
        found = self._bodies_to_read()
        for path in sorted(found, key=lambda path: self._settled[path].seq):  # nested steps settle before their parent
            self._read[path] = self._recorded(path, found[path], contexts)

    def _bodies_to_read(self) -> dict[StepPath, dict[str, object]]:
        """Return the bodies of settled steps and of referenced steps."""
        found: dict[StepPath, dict[str, Any]] = {}
        wanted = [path for path in self._settled if not any(above in self._settled for above in within_of(path))]
        while wanted:
            path = wanted.pop()
            record = self._settled[path]
            found[path] = record_bodies.read_body(record.body, where=self._where(record))
            inside = record_bodies.steps_inside(path, found[path], items=self._long is None)
            if "undo" in found[path]:
                inside += compensation_records.steps_to_compensate(path, found[path])
            wanted.extend(each for each in inside if each in self._settled and each not in found)
        return found

    def _recorded(self, path: StepPath, body: dict[str, object], contexts: StoredContexts) -> Recorded:
        where = self._where(self._settled[path])
        stored = None if self._long is None else self.nested(path)
        outcome = record_bodies.read_settled(path, body, self._outcome_at, where=where, stored=stored)
        same = not has_context(body)
        with record_bodies.reading(where):
            context = None if same else record_bodies.read_value(contexts.data(body), where=where)
        recorded = Recorded(outcome=outcome, context=context, same_context=same)
        return self._with_remaining(path, body, recorded) if "undo" in body or "cause" in body else recorded

    def _with_remaining(self, path: StepPath, body: dict[str, Any], recorded: Recorded) -> Recorded:
        where = self._where(self._settled[path])
        result = getattr(recorded.outcome, "step_result", None)
        with record_bodies.reading(where):
            undo = compensation_records.read_compensations(
                path, body, result, own_at=self._own_at, step_at=self._step_at, where=where, context=recorded.context
            )
            cause = compensation_records.read_cause(body["cause"], where=where) if "cause" in body else None
            return attrs.evolve(recorded, undo=tuple(undo), cause=cause)

    def _own_at(self, path: StepPath) -> Undoable | None:
        """Return the compensation entry of the step's own record."""
        recorded = self._read.get(path)
        own = (each for each in (() if recorded is None else recorded.undo) if isinstance(each, Undoable))
        return next((each for each in own if each.path == path), None)

    def _outcome_at(self, path: StepPath) -> TerminalOutcome | None:
        recorded = self._read.get(path)
        return None if recorded is None else recorded.outcome

    def recall(self, path: StepPath) -> Recorded | None:
        return self._read.get(path)

    def turns(self, loop: StepPath) -> LoopTurns | None:
        where = f"the turns of {loop!r} in run {self.lease.run_id!r}"
        return None if self._turns is None else self._turns.turns(loop, self._outcome_at, where=where)

    def compact(self, turns: LoopTurns, next_guard: object) -> None:
        self._turns = self._turns or TurnJournal(compacts=format_of(self._store) >= RECORD_VERSION)
        self._turns.expect(turns, next_guard)
        known = (self._settled, self._read, self._answers, self._told, self._intents, self._units, self._chosen)
        forget_turns(known, turns.loop, up_to=turns.turn - turns.keep)
        if self._results is not None:
            self._results.forget(turns.loop, up_to=turns.turn - turns.keep)

    def compensations(self) -> Iterable[tuple[StepPath, TerminalOutcome]]:
        return [
            (path, self._read[path].outcome) for path in self._settled if compensated_by(path) and path in self._read
        ]

    def answered(self, path: StepPath) -> PauseAnswer | None:
        return self._answers.get(path)

    def times_answered(self, path: StepPath) -> int:
        return self._told.get(path, 0)

    def waiting(self, path: StepPath) -> Pause | None:
        return self._pauses.get(path)

    def _pause_from(self, record: Record, contexts: StoredContexts) -> Pause:
        return read_pause(record, self._schema_of(record.path), contexts, where=self._where(record))

    def _restore_answer(self, record: Record) -> None:
        where = self._where(record)
        pause = self._pauses.pop(record.path, None)
        if pause is None:
            raise CorruptRecord(f"{where}: an answer without a pause")
        body = record_bodies.read_body(record.body, where=where)
        answer = record_bodies.read_value(body.get("answer"), where=where)
        late_s = 0.0 if pause.due_at is None or record.at is None else max(0.0, record.at - pause.due_at)
        given = PauseAnswer(pause=pause, answer=answer, expired=bool(body.get("timeout")), late_s=late_s)
        self._answers[record.path] = in_pause_type(given) if body.get("as_given") else given
        self._raised = self._raised or RaisedLimits()
        self._raised.merge(self._answers[record.path])
        self._told[record.path] = self._told.get(record.path, 0) + 1

    def chosen(self, path: StepPath) -> str | None:
        return self._chosen.get(path)

    async def choose(self, path: StepPath, choice: Callable[[], str]) -> None:
        written = choice()
        await self._write("chosen", path, record_bodies.make_body(choice=written))
        self._chosen[path] = written

    def raised(self, owner: str) -> Mapping[str, Any]:
        return {} if self._raised is None else self._raised.of(owner)

    @property
    def times(self) -> ElapsedTime:
        """Return the work times, where time is limited."""
        self._times = self._times or ElapsedTime()
        return self._times

    def _elapsed(self) -> Mapping[str, float]:
        return NOTHING_WORKED if self._times is None else self._times.now()

    def _where(self, record: Record) -> str:
        return f"record {record.seq} of run {self.lease.run_id!r}"

    # --- present session ---

    def started(self, path: StepPath, name: str, of: int = 0) -> None:
        self._started[path] = Start(name, of, seams.clock.monotonic())
        if not self.is_expected:
            self._writer.expect(self)

    def oldest_start(self) -> float | None:
        """Return the monotonic time of the oldest unwritten start, or None."""
        return next(iter(self._started.values())).at if self._started else None

    def take_started(self) -> list[Record]:
        """Return and clear the records of unwritten starts."""
        if not self._started:
            return []
        started, self._started = self._started, {}
        now = seams.clock.monotonic()
        return [started_record(path, start, now) for path, start in started.items()]

    def take_held(self) -> tuple[Record, ...]:
        """Return and clear the held steps."""
        held, self._held = self._held, ()
        self._contexts.release()
        return held

    def take_notes(self) -> Sequence[Record]:
        """Return the records due before the next one."""
        return [*self.take_held(), *self.take_started()] if self._held else self.take_started()

    def keep(self, path: StepPath, outcome: TerminalOutcome, undo: Sequence[object] = ()) -> None:
        raise ProtocolError(f"step {path!r} settled in memory, but the run {self.lease.run_id!r} has a store")

    def hold(self, path: StepPath, record: Recorded) -> Recorded:
        self._held = (*self._held, self._settled_record(path, record))
        self._contexts.hold(path)
        self._note(path, record.outcome)
        return record

    def settled(self, path: StepPath, record: Recorded) -> Coroutine[Any, Any, Recorded]:
        if record.conversation is not None:
            return self._settled_alone(path, record)
        append = self._settling(path, record)
        if self._cold or self._contexts.is_pending(path):
            return self._written_and_read(append, path, record, self)
        self._note(path, record.outcome)
        return self._writer.write(append, self, record)

    def _settling(self, path: StepPath, record: Recorded) -> Append:
        append = Append(
            lease=self.lease,
            records=(self._settled_record(path, record),),
            withdrawn=self._withdraw(path),
            evidence=record.evidence,
            cached=record.cached,
            conversation=record.conversation,
        )
        return append if self._turns is None else self._turns.added(append, path, record, self._contexts)

    async def _settled_alone(self, path: StepPath, record: Recorded) -> Recorded:
        """Record a step whose append may be refused, without other records."""
        if self._held or self._started:
            await self._writer.write(Append(lease=self.lease, records=()), self, None)
        return await self._written_and_read(self._settling(path, record), path, record, None)

    async def _written_and_read(
        self, append: Append, path: StepPath, record: Recorded, notes: CommitWaiter | None
    ) -> Recorded:
        await self._writer.write(append, notes, None)
        self._contexts.confirm(path)
        kept = await self._read_back(path, record) if self._cold else record
        self._note(path, kept.outcome)
        return kept

    def _settled_record(self, path: StepPath, record: Recorded) -> Record:
        start = self._started.get(path)
        of = 0 if start is None else start.of
        self._contexts.discard(path)
        body = record_bodies.with_worked(self._settled_body(path, record, of), self._elapsed())
        self._started.pop(path, None)
        gist = settled_gist(record.outcome, of=of) if len(body) > SHORT_BODY else None
        return Record(kind="settled", path=path, body=body, gist=gist)

    def _settled_body(self, path: StepPath, record: Recorded, of: int) -> str:
        left = None if record.same_context else self._contexts.part(path, record.context, record.given)
        plain = plain_body(record.outcome) if not (record.undo or of) and record.cause is None else None
        if plain is None or (left is not None and path in self.children):
            return self._whole_body(path, record, of, left)
        return plain if left is None else left.added_to(plain)

    def _whole_body(self, path: StepPath, record: Recorded, of: int, left: ContextPart | None) -> str:
        inside = places_below(path, self._results)
        parts = record_bodies.settled_data(record.outcome, self._redact, inside)
        if record.undo:
            parts["undo"] = compensation_records.compensation_data(path, record.undo, self._undoable or ())
            self._note_compensable(
                each.path for each in record.undo if isinstance(each, Undoable) and each.path == path
            )
        if record.cause is not None:
            parts["cause"] = compensation_records.cause_data(record.cause, self._redact)
        if of:
            parts["of"] = of
        child = self.children.pop(path, None) if self.children else None
        if child is None:
            body = record_bodies.make_body(**parts)
            return body if left is None else left.added_to(body)
        self._contexts.discard(path)  # its context may be stored with the remote step
        if left is not None:
            parts["context"] = left.data
        return referring(parts, child, record.outcome, record.context)

    def _note(self, path: StepPath, outcome: TerminalOutcome) -> None:
        """Mark the step's result as recorded, for its parent."""
        if not is_top_level(path):
            self._results = self._results or RecordedResults()
            self._results.note(path, outcome)

    def _note_compensable(self, paths: Iterable[StepPath]) -> None:
        self._undoable = self._undoable or set()
        self._undoable.update(paths)

    def unit(self, path: StepPath) -> KeptUnit | None:
        kept = self._units.get(path)
        if isinstance(kept, Record):
            where = self._where(kept)
            with record_bodies.reading(where):
                body = record_bodies.read_body(kept.body, where=where)
                usage = record_bodies.read_usage(body.get("usage"), where=where)
                kept = KeptUnit(
                    result=record_bodies.text_in(body, "result"), usage=usage, counted=self._is_counted(path)
                )
        return kept

    def _is_counted(self, unit: StepPath) -> bool:
        return self._counted is not None and unit in self._counted

    async def intend(self, path: StepPath, intent: str) -> bool:
        before = path in self._intents
        body = record_bodies.make_body(intent=intent)
        self._intents[path] = Record(kind="intent", path=path, body=body)
        self._answers.pop(path, None)
        await self._write("intent", path, body)
        return before

    def intents(self, step: StepPath) -> list[tuple[StepPath, str]]:
        return [(path, self._intent_in(self._intents[path])) for path in at_or_below(step, self._intents)]

    def _intent_in(self, record: Record) -> str:
        where = self._where(record)
        with record_bodies.reading(where):
            return record_bodies.text_in(record_bodies.read_body(record.body, where=where), "intent")

    async def commit_unit(self, path: StepPath, result: str, usage: Usage) -> None:
        write = self._write("unit", path, record_bodies.make_body(result=result, usage=record_bodies.usage_data(usage)))
        await written_once(write, self._store, self.lease.run_id, path)
        self._units[path] = KeptUnit(result=result, usage=usage, counted=True)

    def nested(self, path: StepPath) -> Callable[[], Sequence[StepResult]] | None:
        return None if self._cold else partial(nested_results, self._store, self.lease.run_id, path)

    def forget(self, result: StepResult) -> None:
        if self._results is not None:
            self._results.drop(result)

    async def begin(self, step_name: str) -> StoreTransaction:
        return await StoreTransaction.begin(self._store, step_name, self._settled_append, self._contexts.confirm)

    def _settled_append(self, path: StepPath, record: Recorded) -> Append:
        settled = self._settled_record(path, record)
        append = Append(lease=self.lease, records=(*self.take_notes(), settled))
        return append if self._turns is None else self._turns.added(append, path, record, self._contexts)

    async def _read_back(self, path: StepPath, record: Recorded) -> Recorded:
        """Return the step's outcome as stored, reading the whole run.

        An exception stays the original: this is the process that raised it.
        """
        records = await call_store(lambda: read_resolved(self._store, self.lease.run_id))
        for each in records:
            if each.kind == "settled":
                self._restore_settled(each)
        self._read_settled(StoredContexts(records))
        stored = self._read.pop(path)
        context = record.context if stored.same_context else stored.context
        return attrs.evolve(stored, outcome=_with_original(stored.outcome, record.outcome), context=context)

    def _withdraw(self, path: StepPath) -> tuple[StepPath, ...]:
        """Return the pauses inside a step that settled or failed an attempt."""
        withdrawn = tuple(withdrawn_by(path, self._pauses)) if self._pauses else ()
        for place in withdrawn:
            del self._pauses[place]
        return withdrawn

    async def paused(self, pause: Pause) -> None:
        self._contexts.discard(pause.path)
        asked = (
            {}
            if self.outbox is None
            else {"outbox": self.outbox.pause_messages(pause, _json_schema(pause.input_schema))}
        )
        body = pause_body(pause, self._contexts)
        await self._write("paused", pause.path, body, pauses=(open_pause(pause),), **asked)
        self._contexts.confirm(pause.path)
        self._pauses[pause.path] = pause
        self._answers.pop(pause.path, None)

    async def cancel(self, reason: str) -> None:
        if self.cancelled is None:
            withdrawn = tuple(path for path in self._pauses if not is_undoing(path))
            await self._write("cancelled", ROOT, record_bodies.make_body(reason=reason), withdrawn=withdrawn)
            self.cancelled = reason
            self._pauses = {path: each for path, each in self._pauses.items() if is_undoing(path)}

    def unasked(self, asked: Iterable[OpenPause]) -> tuple[OpenPause, ...]:
        """Return pauses that older versions left out of the store."""
        tokens = {pause.token for pause in asked}
        return tuple(pause for each in self._pauses.values() if (pause := open_pause(each)).token not in tokens)

    async def ended(self, result: PipelineResult) -> None:
        """Record the result of the run, and release its lease.

        Raise `CancelPending` if the run was to be cancelled: it is still open then, and can end as aborted.
        """
        body = plain_end(result) or record_bodies.make_body(**record_bodies.result_data(result))
        notes = tuple(self.take_notes())
        append = Append(
            lease=self.lease,
            records=(*notes, self._record("ended", ROOT, body)),
            outbox=() if self.outbox is None else self.outbox.ended(result),
            status=result.status,
            release=True,
            tokens=result.total_tokens,
            cost_usd=result.total_cost_usd,
            unless_cancelled=result.status in ("completed", "failed"),
        )
        try:
            await self._writer.write(append, None, None)
        except CancelPending:
            await self._continue(notes)
            raise
        self.at_rest = True

    async def _continue(self, notes: tuple[Record, ...]) -> None:
        """Hold the lease again, and write the steps of a refused end."""
        if self.held is not None:
            self.held = self._writer.hold_again(self.held)
        if notes:
            await self._writer.write(Append(lease=self.lease, records=notes), None, None)

    @property
    def asks(self) -> bool:
        """Return whether the run waits for an answer of a person."""
        return any(not is_wait(each) for each in self._pauses.values())

    async def _write(self, kind: RecordKind, path: StepPath, body: str, **changes: Any) -> None:
        append = Append(lease=self.lease, records=(self._record(kind, path, body),), **changes)
        await self._writer.write(append, self, None)

    def _record(self, kind: RecordKind, path: StepPath, body: str) -> Record:
        return Record(kind=kind, path=path, body=record_bodies.with_worked(body, self._elapsed()))


def _with_original(stored: TerminalOutcome, outcome: TerminalOutcome) -> TerminalOutcome:
    if isinstance(stored, Failure) and isinstance(outcome, Failure):
        return attrs.evolve(stored, error=outcome.error)
    return stored
