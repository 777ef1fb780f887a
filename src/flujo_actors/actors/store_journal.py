"""The journal of a run that survives its process: every record goes to the store before the run goes on.

Rules:

1. What an earlier part of the run has written is read once, when the run is opened: what cannot be read is found before
   anything is done. Steps inside a settled step are left alone, nobody will ask for them.
2. `started` records wait for company: they are written together with the next record that somebody waits for.
3. A pause can be answered once the run has come to rest: its open pauses are written with its status.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import attrs
import trio

from ..core import bodies
from ..core.outcomes import Failure, Paused, PipelineResult, TerminalOutcome
from ..core.paths import ROOT, StepPath, above_of
from ..core.records import Append, Lease, OpenPause, Record, RecordKind, StoredStatus
from ..core.usage import Usage
from ..core.wire import encode
from ..errors import CorruptRecord, InvalidAnswer
from ..stores.port import Store, Transaction
from .journal import Answered, CountedUnits, KeptUnit, Pause, Recorded
from .journal_writer import JournalWriter

MakeAppend = Callable[[StepPath, Recorded], Append]
"""What is written when a step has settled."""

SchemaOf = Callable[[StepPath], Any]
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
        redact: bodies.Redact,
        schema_of: SchemaOf,
        cold: bool = False,
    ) -> None:
        self._store, self._writer, self.lease = store, writer, lease
        self._redact, self._schema_of, self._cold = redact, schema_of, cold
        self._settled: dict[StepPath, Record] = {}
        self._read: dict[StepPath, Recorded] = {}
        self._pauses: dict[StepPath, Pause] = {}
        self._answers: dict[StepPath, Answered] = {}
        self._told: Counter[StepPath] = Counter()
        self._notes: list[Record] = []
        self._intents: set[StepPath] = set()
        self._units: dict[StepPath, Record | KeptUnit] = {}
        self._counted = CountedUnits()

    # --- what was ---

    def load(self, records: Iterable[Record]) -> None:
        """Take in what earlier parts of the run have written."""
        for record in records:
            match record.kind:
                case "settled":
                    self._settled[record.path] = record
                    self._counted.settled(record.path)
                case "paused":
                    self._pauses[record.path] = self._pause_from(record)
                    self._answers.pop(record.path, None)
                case "answered":
                    self._take_answer(record)
                case "intent":
                    self._intents.add(record.path)
                    self._answers.pop(record.path, None)
                case "unit":
                    self._units[record.path] = record
                    self._counted.done(record.path)
        for path, record in self._settled.items():
            if not any(above in self._settled for above in above_of(path)):
                self._read[path] = self._recorded(record)

    def recall(self, path: StepPath) -> Recorded | None:
        record = self._settled.get(path)
        if record is None:
            return None
        return self._read.get(path) or self._recorded(record)

    def _recorded(self, record: Record) -> Recorded:
        where = self._where(record)
        body = bodies.read_body(record.body, where=where)
        outcome = bodies.read_outcome(body.get("outcome"), where=where)
        same = bool(body.get("same_context"))
        context = None if same else bodies.read_value(body.get("context"), where=where)
        return Recorded(outcome=outcome, context=context, same_context=same)

    def answered(self, path: StepPath) -> Answered | None:
        return self._answers.get(path)

    def times_answered(self, path: StepPath) -> int:
        return self._told[path]

    def waiting(self, path: StepPath) -> Pause | None:
        return self._pauses.get(path)

    def _pause_from(self, record: Record) -> Pause:
        where = self._where(record)
        body = bodies.read_body(record.body, where=where)
        try:
            return Pause(
                path=record.path,
                step_name=body["step_name"],
                paused=Paused(message=body["message"], state_token=body["token"]),
                input_schema=self._schema_of(record.path),
                attempts=body["attempts"],
                usage=bodies.read_usage(body["usage"], where=where),
            )
        except (KeyError, TypeError) as error:
            raise CorruptRecord(f"{where}: the pause cannot be read ({error!r})") from error

    def _take_answer(self, record: Record) -> None:
        where = self._where(record)
        pause = self._pauses.pop(record.path, None)
        if pause is None:
            raise CorruptRecord(f"{where}: an answer without a pause")
        body = bodies.read_body(record.body, where=where)
        given = Answered(pause=pause, answer=bodies.read_value(body.get("answer"), where=where))
        self._answers[record.path] = _as_asked(given) if body.get("as_given") else given
        self._told[record.path] += 1

    def _where(self, record: Record) -> str:
        return f"record {record.seq} of run {self.lease.run_id!r}"

    # --- what is ---

    def started(self, path: StepPath, name: str) -> None:
        self._notes.append(Record(kind="started", path=path, body=bodies.make_body(name=name)))

    async def settled(self, path: StepPath, record: Recorded) -> Recorded:
        await self._write("settled", path, self._settled_body(record))
        return await self._read_back(path, record) if self._cold else record

    def _settled_body(self, record: Recorded) -> str:
        parts: dict[str, Any] = {"outcome": bodies.outcome_data(record.outcome, self._redact)}
        if record.same_context:
            parts["same_context"] = True
        else:
            parts["context"] = encode(record.context)
        return bodies.make_body(**parts)

    def unit(self, path: StepPath) -> KeptUnit | None:
        kept = self._units.get(path)
        if isinstance(kept, Record):
            where = self._where(kept)
            body = bodies.read_body(kept.body, where=where)
            usage = bodies.read_usage(body["usage"], where=where)
            kept = KeptUnit(result=body["result"], usage=usage, counted=path in self._counted)
        return kept

    async def intend(self, path: StepPath, intent: str) -> bool:
        before = path in self._intents
        self._intents.add(path)
        self._answers.pop(path, None)
        await self._write("intent", path, bodies.make_body(intent=intent))
        return before

    async def commit_unit(self, path: StepPath, result: str, usage: Usage) -> None:
        await self._write("unit", path, bodies.make_body(result=result, usage=bodies.usage_data(usage)))
        self._units[path] = KeptUnit(result=result, usage=usage, counted=True)

    async def begin(self, step_name: str) -> StoreTransaction:
        return await StoreTransaction.begin(self._store, self._settled_append)

    def _settled_append(self, path: StepPath, record: Recorded) -> Append:
        settled = Record(kind="settled", path=path, body=self._settled_body(record))
        notes, self._notes = self._notes, []
        return Append(lease=self.lease, records=(*notes, settled))

    async def _read_back(self, path: StepPath, record: Recorded) -> Recorded:
        """What the store says the step came to, instead of what is in memory; all of the run is read for it.

        An exception stays the original: this is the process where it happened.
        """
        with trio.CancelScope(shield=True):
            records = await trio.to_thread.run_sync(self._store.read, self.lease.run_id)
        self.load(each for each in records if each.kind == "settled")
        stored = self._read.pop(path)
        context = record.context if stored.same_context else stored.context
        return attrs.evolve(stored, outcome=_with_original(stored.outcome, record.outcome), context=context)

    async def paused(self, pause: Pause) -> None:
        self._pauses[pause.path] = pause
        await self._write("paused", pause.path, _pause_body(pause))

    async def ended(self, result: PipelineResult) -> None:
        status: StoredStatus = result.status
        pauses = tuple(map(_open_pause, self._pauses.values())) if status == "paused" else ()
        kind: RecordKind = "ended"
        body = bodies.make_body(**bodies.result_data(result))
        await self._write(kind, ROOT, body, pauses=pauses, status=status, release=True)

    async def _write(
        self,
        kind: RecordKind,
        path: StepPath,
        body: str,
        *,
        pauses: tuple[OpenPause, ...] = (),
        status: StoredStatus | None = None,
        release: bool = False,
    ) -> None:
        notes, self._notes = self._notes, []
        records = (*notes, Record(kind=kind, path=path, body=body))
        append = Append(lease=self.lease, records=records, pauses=pauses, status=status, release=release)
        # What happened must not be forgotten because somebody stopped waiting for it.
        with trio.CancelScope(shield=True):
            await self._writer.write(append)


class StoreTransaction:
    """An open transaction of a store. Its calls block, so they are made in worker threads, and are not cut short."""

    def __init__(self, block: AbstractContextManager[Transaction], opened: Transaction, append: MakeAppend) -> None:
        self._block, self._opened, self._append = block, opened, append

    @classmethod
    async def begin(cls, store: Store, append: MakeAppend) -> StoreTransaction:
        """Open a transaction."""
        block = store.transaction()
        with trio.CancelScope(shield=True):
            opened = await trio.to_thread.run_sync(block.__enter__)
        return cls(block, opened, append)

    @property
    def connection(self) -> Any:
        """The driver's own connection."""
        return self._opened.connection

    async def commit(self, path: StepPath, record: Recorded) -> None:
        """Make the step's outcome and what it wrote durable, together."""
        append = self._append(path, record)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._finish, append)

    def _finish(self, append: Append) -> None:
        try:
            self._opened.append(append)
        except BaseException as error:
            if not self._block.__exit__(type(error), error, error.__traceback__):
                raise
        else:
            self._block.__exit__(None, None, None)

    async def rollback(self) -> None:
        """Undo what the step wrote."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._undo)

    def _undo(self) -> None:
        undone = _Undone()
        with contextlib.suppress(_Undone):
            self._block.__exit__(_Undone, undone, None)


class _Undone(Exception):
    """Leaves a transaction's block so that it rolls back."""


def _pause_body(pause: Pause) -> str:
    return bodies.make_body(
        step_name=pause.step_name,
        message=pause.paused.message,
        token=pause.paused.state_token,
        attempts=pause.attempts,
        usage=bodies.usage_data(pause.usage),
        schema=_json_schema(pause.input_schema),
    )


def _json_schema(schema: Any) -> Any:
    """What an answer must fit, for those who answer without having the pipeline."""
    if schema is None or isinstance(schema, dict):
        return schema
    from ..structured.schema import compile_schema  # loads pydantic, which only pauses with a schema need

    return dict(compile_schema(schema).json_schema)


def _with_original(stored: TerminalOutcome, outcome: TerminalOutcome) -> TerminalOutcome:
    if isinstance(stored, Failure) and isinstance(outcome, Failure):
        return attrs.evolve(stored, error=outcome.error)
    return stored


def _as_asked(answered: Answered) -> Answered:
    """An answer from somebody who only had the JSON Schema, as the pipeline's own `input_schema` wants it."""
    if answered.pause.input_schema is None:
        return answered
    from .answers import checked_answer  # loads pydantic, as above

    try:
        answer = checked_answer(answered.answer, answered.pause.input_schema, step_name=answered.pause.step_name)
    except InvalidAnswer as error:
        return attrs.evolve(answered, refused=error)
    return attrs.evolve(answered, answer=answer)


def _open_pause(pause: Pause) -> OpenPause:
    return OpenPause(
        path=pause.path,
        token=pause.paused.state_token or "",
        message=pause.paused.message,
        body=_pause_body(pause),
    )
