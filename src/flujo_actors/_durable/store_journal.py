"""The journal of a run that survives its process: every record goes to the store before the run goes on.

Rules:

1. What an earlier part of the run has written is read once, when the run is opened: what cannot be read is found before
   anything is done. Steps inside a settled step are read as far as they are parts of its result.
2. `started` records wait for company: they are written together with the next record that somebody waits for, and not
   at all if their step has settled by then, whose record says so. Those that have waited for a quarter of a second are
   written by themselves: other processes see what a run is doing while it does it.
3. A step that closes what is around it is held, and written with that in one commit: nothing is done or told between
   the two. What is still held when the run is given up is written then.
4. A pause is written with its record, and can be answered from then on. When what is around it settles, or tries
   again, it is withdrawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from .._core import record_bodies
from .._core.light_records import SHORT_BODY, settled_gist
from .._core.outcomes import Failure, PipelineResult, TerminalOutcome
from .._core.paths import ROOT, StepPath, at_or_below, is_top_level, is_undoing, undone_by, withdrawn_by, within_of
from .._core.plain_bodies import plain_body, plain_end
from .._core.records import Append, Lease, OpenPause, Record, RecordKind
from .._core.undoing import Undoable
from .._type_registry import read_by
from ..errors import CorruptRecord
from ..stores._port import Store
from . import undo_records
from .child_results import Child, read_whole, referring, whole
from .group_commit import JournalWriter
from .journal import Answered, CountedUnits, KeptUnit, Pause, RaisedLimits, Recorded
from .pause_records import as_asked, open_pause, pause_body, read_pause
from .recorded_results import RecordedResults, places_below
from .started_steps import Start, started_record
from .store_transaction import StoreTransaction
from .store_wait import call_store
from .undo_records import StepAt
from .worked_time import WorkedTime

if TYPE_CHECKING:
    from .._core.usage import Usage

NOTHING_WORKED: Mapping[str, float] = {}

SchemaOf = Callable[[StepPath], object]
"""What the pipeline declares as `input_schema` of the step at a path."""


class StoreJournal:
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
        step_at: StepAt,
        cold: bool = False,
    ) -> None:
        self._store, self._writer, self.lease = store, writer, lease
        self.at_rest = False
        """Whether the run has been put away with its result, and may belong to somebody else."""
        self._redact, self._schema_of, self._step_at, self._cold = redact, schema_of, step_at, cold
        self.cancelled: str | None = None
        self._undoable: set[StepPath] | None = None
        """The steps whose own records say how to undo them."""
        self._settled: dict[StepPath, Record] = {}
        self._read: dict[StepPath, Recorded] = {}
        self._pauses: dict[StepPath, Pause] = {}
        self._answers: dict[StepPath, Answered] = {}
        self._told: dict[StepPath, int] = {}
        """How often the questions at a path were answered."""
        self._started: dict[StepPath, Start] = {}
        """What has begun and has not been written down, the oldest first."""
        self.holds = not cold
        self._held: tuple[Record, ...] = ()
        """Steps that have settled, and are written with what is around them."""
        self.is_expected = False
        """Whether the writer knows that there is something of the kind."""
        self.children: dict[StepPath, Child] = {}
        """Steps that other runs have performed, whose records hold their results."""
        self._intents: dict[StepPath, Record] = {}
        self._units: dict[StepPath, Record | KeptUnit] = {}
        self._chosen: dict[StepPath, str] = {}
        # Few runs need these, and a program has thousands of runs that wait.
        self._results: RecordedResults | None = None
        self._counted: CountedUnits | None = None
        self._raised: RaisedLimits | None = None
        self._times: WorkedTime | None = None

    # --- what was ---

    @read_by("a fresh process")
    def load(self, records: Iterable[Record]) -> None:
        """Take in what earlier parts of the run have written."""
        for record in whole(self._store, list(records)):
            with record_bodies.reading(self._where(record)):
                self._take_in(record)
        self._read_settled()
        for path, recorded in self._read.items():
            self._note(path, recorded.outcome)
            if recorded.undo and self._own_at(path) is not None:
                self._note_undoable([path])

    def _take_in(self, record: Record) -> None:
        worked = record_bodies.worked_in(record.body)
        if worked:
            self.times.take_in(worked)
        match record.kind:
            case "settled":
                self._take_settled(record)
                self._withdraw(record.path)
            case "paused":
                self._pauses[record.path] = self._pause_from(record)
                self._answers.pop(record.path, None)
            case "answered":
                self._take_answer(record)
            case "chosen":
                self._chosen[record.path] = record_bodies.read_body(record.body, where=self._where(record))["choice"]
            case "intent":
                self._intents.setdefault(record.path, record)
                self._answers.pop(record.path, None)
            case "cancelled":
                self._take_cancelled(record)
            case "unit":
                self._units[record.path] = record
                self._counted = self._counted or CountedUnits()
                self._counted.done(record.path)

    def _take_cancelled(self, record: Record) -> None:
        self.cancelled = record_bodies.text_in(
            record_bodies.read_body(record.body, where=self._where(record)), "reason"
        )
        self._pauses = {path: each for path, each in self._pauses.items() if is_undoing(path)}

    def _take_settled(self, record: Record) -> None:
        self._settled[record.path] = record
        if self._counted is not None:
            self._counted.settled(record.path)

    @read_by("a fresh process")
    def _read_settled(self) -> None:
        found = self._bodies_to_read()
        for path in sorted(found, key=lambda path: self._settled[path].seq):  # what is inside a step settles before it
            self._read[path] = self._recorded(path, found[path])

    def _bodies_to_read(self) -> dict[StepPath, dict[str, object]]:
        """What settled steps wrote, with the steps that their results refer to."""
        found: dict[StepPath, dict[str, Any]] = {}
        wanted = [path for path in self._settled if not any(above in self._settled for above in within_of(path))]
        while wanted:
            path = wanted.pop()
            record = self._settled[path]
            found[path] = record_bodies.read_body(record.body, where=self._where(record))
            inside = record_bodies.steps_inside(path, found[path])
            if "undo" in found[path]:
                inside += undo_records.steps_to_undo(path, found[path])
            wanted.extend(each for each in inside if each in self._settled and each not in found)
        return found

    def _recorded(self, path: StepPath, body: dict[str, object]) -> Recorded:
        where = self._where(self._settled[path])
        outcome = record_bodies.read_settled(path, body, self._outcome_at, where=where)
        same = "context" not in body
        context = None if same else record_bodies.read_value(body["context"], where=where)
        recorded = Recorded(outcome=outcome, context=context, same_context=same)
        return self._with_what_is_left(path, body, recorded) if "undo" in body or "cause" in body else recorded

    def _with_what_is_left(self, path: StepPath, body: dict[str, Any], recorded: Recorded) -> Recorded:
        where = self._where(self._settled[path])
        result = getattr(recorded.outcome, "step_result", None)
        with record_bodies.reading(where):
            undo = undo_records.read_undo(
                path, body, result, own_at=self._own_at, step_at=self._step_at, where=where, context=recorded.context
            )
            cause = undo_records.read_cause(body["cause"], where=where) if "cause" in body else None
            return attrs.evolve(recorded, undo=tuple(undo), cause=cause)

    def _own_at(self, path: StepPath) -> Undoable | None:
        """What the step at `path` leaves to undo by its own record."""
        recorded = self._read.get(path)
        own = (each for each in (() if recorded is None else recorded.undo) if isinstance(each, Undoable))
        return next((each for each in own if each.path == path), None)

    def _outcome_at(self, path: StepPath) -> TerminalOutcome | None:
        recorded = self._read.get(path)
        return None if recorded is None else recorded.outcome

    def recall(self, path: StepPath) -> Recorded | None:
        return self._read.get(path)

    def compensations(self) -> Iterable[tuple[StepPath, TerminalOutcome]]:
        return [(path, self._read[path].outcome) for path in self._settled if undone_by(path) and path in self._read]

    def answered(self, path: StepPath) -> Answered | None:
        return self._answers.get(path)

    def times_answered(self, path: StepPath) -> int:
        return self._told.get(path, 0)

    def waiting(self, path: StepPath) -> Pause | None:
        return self._pauses.get(path)

    def _pause_from(self, record: Record) -> Pause:
        return read_pause(record, self._schema_of(record.path), where=self._where(record))

    def _take_answer(self, record: Record) -> None:
        where = self._where(record)
        pause = self._pauses.pop(record.path, None)
        if pause is None:
            raise CorruptRecord(f"{where}: an answer without a pause")
        body = record_bodies.read_body(record.body, where=where)
        answer = record_bodies.read_value(body.get("answer"), where=where)
        given = Answered(pause=pause, answer=answer, expired=bool(body.get("timeout")))
        self._answers[record.path] = as_asked(given) if body.get("as_given") else given
        self._raised = self._raised or RaisedLimits()
        self._raised.take(self._answers[record.path])
        self._told[record.path] = self._told.get(record.path, 0) + 1

    def chosen(self, path: StepPath) -> str | None:
        return self._chosen.get(path)

    async def choose(self, path: StepPath, choice: Callable[[], str]) -> None:
        written = choice()
        await self._write("chosen", path, record_bodies.make_body(choice=written))
        self._chosen[path] = written

    def raised(self, path: StepPath) -> Mapping[str, Any]:
        return {} if self._raised is None else self._raised.of(path)

    @property
    def times(self) -> WorkedTime:
        """How long was worked, where that is limited."""
        self._times = self._times or WorkedTime()
        return self._times

    def _worked(self) -> Mapping[str, float]:
        return NOTHING_WORKED if self._times is None else self._times.now()

    def _where(self, record: Record) -> str:
        return f"record {record.seq} of run {self.lease.run_id!r}"

    # --- what is ---

    def started(self, path: StepPath, name: str, of: int = 0) -> None:
        self._started[path] = Start(name, of, time.monotonic())
        if not self.is_expected:
            self._writer.expect(self)

    def oldest_start(self) -> float | None:
        """Since when, on the monotonic clock, a step has been at work that nobody else knows of."""
        return next(iter(self._started.values())).at if self._started else None

    def take_started(self) -> list[Record]:
        """A record for each step that has begun and not settled, and that none was written for."""
        if not self._started:
            return []
        started, self._started = self._started, {}
        now = time.monotonic()
        return [started_record(path, start, now) for path, start in started.items()]

    def take_held(self) -> tuple[Record, ...]:
        """The steps that have settled and wait for what is around them."""
        held, self._held = self._held, ()
        return held

    def take_notes(self) -> Sequence[Record]:
        """What is written before the next record: steps that are held, and steps that have begun."""
        return [*self.take_held(), *self.take_started()] if self._held else self.take_started()

    def hold(self, path: StepPath, record: Recorded) -> Recorded:
        self._held = (*self._held, self._settled_record(path, record))
        self._note(path, record.outcome)
        return record

    def settled(self, path: StepPath, record: Recorded) -> Coroutine[Any, Any, Recorded]:
        settled = self._settled_record(path, record)
        append = Append(lease=self.lease, records=(settled,), withdrawn=self._withdraw(path), evidence=record.evidence)
        if self._cold:
            return self._written_and_read(append, path, record)
        self._note(path, record.outcome)
        return self._writer.write(append, self, record)

    async def _written_and_read(self, append: Append, path: StepPath, record: Recorded) -> Recorded:
        await self._writer.write(append, self, None)
        kept = await self._read_back(path, record)
        self._note(path, kept.outcome)
        return kept

    def _settled_record(self, path: StepPath, record: Recorded) -> Record:
        start = self._started.get(path)
        of = 0 if start is None else start.of
        body = record_bodies.with_worked(self._settled_body(path, record, of), self._worked())
        self._started.pop(path, None)
        told = settled_gist(record.outcome, of=of) if len(body) > SHORT_BODY else None
        return Record(kind="settled", path=path, body=body, gist=told)

    def _settled_body(self, path: StepPath, record: Recorded, of: int) -> str:
        alone = record.same_context and not (record.undo or of) and record.cause is None
        plain = plain_body(record.outcome) if alone else None
        return self._whole_body(path, record, of) if plain is None else plain

    def _whole_body(self, path: StepPath, record: Recorded, of: int) -> str:
        inside = places_below(path, self._results)
        parts = record_bodies.settled_data(record.outcome, self._redact, inside)
        if not record.same_context:
            parts["context"] = record_bodies.stored_value(record.context)
        if record.undo:
            parts["undo"] = undo_records.undo_data(path, record.undo, self._undoable or ())
            self._note_undoable(each.path for each in record.undo if isinstance(each, Undoable) and each.path == path)
        if record.cause is not None:
            parts["cause"] = undo_records.cause_data(record.cause, self._redact)
        if of:
            parts["of"] = of
        child = self.children.pop(path, None) if self.children else None
        if child is None:
            return record_bodies.make_body(**parts)
        return referring(parts, child, record.outcome, record.context)

    def _note(self, path: StepPath, outcome: TerminalOutcome) -> None:
        """The record of a step holds its result: what is around it need not store it again."""
        if not is_top_level(path):
            self._results = self._results or RecordedResults()
            self._results.note(path, outcome)

    def _note_undoable(self, paths: Iterable[StepPath]) -> None:
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
        self._intents.setdefault(path, Record(kind="intent", path=path, body=body))
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
        await self._write("unit", path, record_bodies.make_body(result=result, usage=record_bodies.usage_data(usage)))
        self._units[path] = KeptUnit(result=result, usage=usage, counted=True)

    async def begin(self, step_name: str) -> StoreTransaction:
        return await StoreTransaction.begin(self._store, step_name, self._settled_append)

    def _settled_append(self, path: StepPath, record: Recorded) -> Append:
        settled = self._settled_record(path, record)
        return Append(lease=self.lease, records=(*self.take_notes(), settled))

    async def _read_back(self, path: StepPath, record: Recorded) -> Recorded:
        """What the store says the step came to, instead of what is in memory; all of the run is read for it.

        An exception stays the original: this is the process where it happened.
        """
        for each in await call_store(lambda: read_whole(self._store, self.lease.run_id)):
            if each.kind == "settled":
                self._take_settled(each)
        self._read_settled()
        stored = self._read.pop(path)
        context = record.context if stored.same_context else stored.context
        return attrs.evolve(stored, outcome=_with_original(stored.outcome, record.outcome), context=context)

    def _withdraw(self, path: StepPath) -> tuple[StepPath, ...]:
        """The questions inside a step that has settled, or whose attempt has failed: nobody waits for them."""
        withdrawn = tuple(withdrawn_by(path, self._pauses)) if self._pauses else ()
        for place in withdrawn:
            del self._pauses[place]
        return withdrawn

    async def paused(self, pause: Pause) -> None:
        await self._write("paused", pause.path, pause_body(pause), pauses=(open_pause(pause),))
        self._pauses[pause.path] = pause
        self._answers.pop(pause.path, None)

    async def cancel(self, reason: str) -> None:
        if self.cancelled is None:
            withdrawn = tuple(path for path in self._pauses if not is_undoing(path))
            await self._write("cancelled", ROOT, record_bodies.make_body(reason=reason), withdrawn=withdrawn)
            self.cancelled = reason
            self._pauses = {path: each for path, each in self._pauses.items() if is_undoing(path)}

    def unasked(self, asked: Iterable[OpenPause]) -> tuple[OpenPause, ...]:
        """What waits by the records, but is not among what the store says was asked: it wrote this down later once."""
        tokens = {pause.token for pause in asked}
        return tuple(pause for each in self._pauses.values() if (pause := open_pause(each)).token not in tokens)

    async def ended(self, result: PipelineResult) -> None:
        """Remember what the run came to, and give up its lease."""
        body = plain_end(result) or record_bodies.make_body(**record_bodies.result_data(result))
        await self._write(
            "ended",
            ROOT,
            body,
            status=result.status,
            release=True,
            tokens=result.total_tokens,
            cost_usd=result.total_cost_usd,
        )
        self.at_rest = True

    @property
    def asks(self) -> bool:
        """Whether the run waits for an answer."""
        return bool(self._pauses)

    async def _write(self, kind: RecordKind, path: StepPath, body: str, **changes: Any) -> None:
        record = Record(kind=kind, path=path, body=record_bodies.with_worked(body, self._worked()))
        append = Append(lease=self.lease, records=(record,), **changes)
        await self._writer.write(append, self, None)


def _with_original(stored: TerminalOutcome, outcome: TerminalOutcome) -> TerminalOutcome:
    if isinstance(stored, Failure) and isinstance(outcome, Failure):
        return attrs.evolve(stored, error=outcome.error)
    return stored
