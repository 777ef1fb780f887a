"""Results with records of their own: parents only refer to them.

Sections:

- Turns of loops with `keep_history`: a turn, its `compacted` record and the deletion of older turns are one write
  (`_core.records.run_state`).
- Messages to granular steps: accepted without a lease, read before each request to a model.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, get_args

import attrs

from .._core import seams, step_paths
from .._core.outcomes import Paused, RunId, StepResult, Success, TerminalOutcome
from .._core.records import record_bodies
from .._core.records.context_patches import ContextWriter
from .._core.records.record_bodies import Place
from .._core.records.records import TIMED_OUT, Append, Lease, Record, has_ended
from .._core.records.run_state import LoopTurns, kept_records, project, read_turns, turn_at, turns_body
from .._core.records.sent_events import EventInfo, Steered, SteeringMessage, SteerWhen
from .._core.step_paths import StepPath, item, parent_of
from .._core.type_registry import read_by
from ..errors import AmbiguousStep, DeclarationError, NotSteerable, StoreError, TooLate
from ..stores._store_port import Store
from .fingerprint import read_fingerprint
from .journal import Pause, PauseAnswer, Recorded
from .remote_result_refs import read_resolved
from .run_admission import refuse_former_format
from .store_executor import call_store

if TYPE_CHECKING:
    from .group_commit import JournalWriter

# --- Results with records of their own ----------------------------------------------------------------------------


class RecordedResults:
    """Results by identity: parents pass on their children's objects."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[int, tuple[StepPath, StepResult]] = {}
        """Paths by `id`, with results so that ids stay valid."""

    def note(self, path: StepPath, outcome: TerminalOutcome) -> None:
        """The record of the step at `path` holds its result."""
        result = getattr(outcome, "step_result", None)
        if result is not None and not step_paths.is_tried(path):  # where the next failure replaces it
            self._places[id(result)] = (path, result)

    def forget(self, loop: StepPath, *, up_to: int) -> None:
        """Forget old turns of a loop, which are the newest entries."""
        found = itertools.takewhile(lambda each: each[1][0].startswith(f"{loop}/"), reversed(self._places.items()))
        for key, (path, _) in list(found):
            if (turn_at(loop, path) or up_to + 1) <= up_to:
                del self._places[key]

    def drop(self, result: StepResult) -> None:
        """Forget one result."""
        self._places.pop(id(result), None)

    def path_of(self, result: StepResult) -> StepPath | None:
        """Return the step whose record holds a result, or None."""
        found = self._places.get(id(result))
        return None if found is None else found[0]


def places_below(path: StepPath, recorded: RecordedResults | None) -> Place:
    """Return a lookup of nested recorded results, relative to `path`."""

    def place(result: StepResult) -> str | None:
        found = None if recorded is None else recorded.path_of(result)
        return None if found is None else step_paths.below(path, found)

    return place


@read_by("anybody")
def nested_results(store: Store, run_id: RunId, path: StepPath) -> Sequence[StepResult]:
    """Return the nested results of a settled step from its record; blocks."""
    outcome = project(run_id, read_resolved(store, run_id)).outcomes.get(path)
    result = getattr(outcome, "step_result", None)
    return () if result is None else tuple(result.step_history)


# --- Turns of loops with `keep_history` ------------------------------------------------------------------------------


class TurnJournal:
    """Compacted turns of one run: those stored, and those to be written."""

    __slots__ = ("_compacts", "_expected", "_stored")

    def __init__(self, *, compacts: bool = True) -> None:
        self._compacts = compacts
        """Whether readers of the store's record format know compacted turns."""
        self._stored: dict[StepPath, Record] = {}
        """Last `compacted` record by loop."""
        self._expected: dict[StepPath, tuple[LoopTurns, object]] = {}
        """State of a loop before the turn at a path, and its guard's history then."""

    def add(self, record: Record) -> None:
        """Take a record of an earlier session."""
        self._stored[parent_of(record.path)] = record

    def turns(self, loop: StepPath, outcome_at: record_bodies.OutcomeAt, *, where: str) -> LoopTurns | None:
        """Return a loop's state after its last stored turn, or None."""
        record = self._stored.get(loop)
        if record is None:
            return None
        with record_bodies.reading(where):
            body = record_bodies.read_body(record.body, where=where)
            context = record_bodies.read_value(body["context"], where=where)
            return read_turns(record.path, body, context, outcome_at, where=where)

    def expect(self, turns: LoopTurns, next_guard: object) -> None:
        """Add a `compacted` record to the next turn's success."""
        self._expected.pop(turns.path, None)
        if self._compacts:
            self._expected[item(turns.loop, turns.turn + 1)] = turns, next_guard

    def added(self, append: Append, path: StepPath, record: Recorded, contexts: ContextWriter) -> Append:
        """Return a settled turn's append with its compaction."""
        expected = self._expected.get(path)
        if expected is None or not isinstance(record.outcome, Success):
            return append
        turns = expected[0].after(record.outcome.step_result, record.context, expected[1])
        body = contexts.full(path, record.context).added_to(turns_body(turns))
        compacted = Record(kind="compacted", path=path, body=body)
        return attrs.evolve(append, records=(*append.records, compacted), compaction=turns.compaction)


class StoredWaits:
    """Waits and messages of one run's journal in a store."""

    _store: Store
    _writer: JournalWriter
    lease: Lease
    _pauses: dict[StepPath, Pause]
    _answers: dict[StepPath, PauseAnswer]

    @abstractmethod
    def _restore_answer(self, record: Record) -> None: ...

    puts_away = True

    @property
    def store(self) -> Store:
        return self._store

    _steering: SteeringInbox | None = None

    @property
    def steering(self) -> SteeringInbox | None:
        if self._steering is None and hasattr(self._store, "steer"):
            newest = partial(self._writer.newest_message, self.lease)
            self._steering = SteeringInbox(self._store, self.lease.run_id, newest)
        return self._steering

    def is_wait(self, paused: Paused) -> bool:
        return any(each.paused.state_token == paused.state_token and is_wait(each) for each in self._pauses.values())

    def question(self, paused: Paused) -> Paused | None:
        if not self.is_wait(paused):
            return paused
        return next((each.paused for each in self._pauses.values() if not is_wait(each)), None)

    async def now(self) -> float:
        return await call_store(self._store.now)

    async def deadline(self, path: StepPath) -> tuple[float, float] | None:
        run, now = await call_store(lambda: (self._store.get(self.lease.run_id), self._store.now()))
        due = [wait.due_at for wait in run.waits if wait.path == path and wait.due_at is not None]
        return (due[0], due[0] - now) if due else None

    async def wakes_at(self) -> float | None:
        run = await call_store(lambda: self._store.get(self.lease.run_id))
        return min((wait.due_at for wait in (*run.waits, *run.pauses) if wait.due_at is not None), default=None)

    _refused: frozenset[str] = frozenset()
    """Ids of refused events that were reported."""

    async def refused_events(self, event: str, key: str) -> list[EventInfo]:
        found = await call_store(lambda: self._store.events(event=event, key=key, status="refused"))
        mine = [each for each in found if each.refused_by == self.lease.run_id and each.id not in self._refused]
        self._refused |= {each.id for each in mine}
        return mine[::-1]

    async def ended_wait(self, path: StepPath, *, due: bool) -> PauseAnswer | None:
        found = await call_store(lambda: ended_wait(self._store, self.lease.run_id, path, due=due))
        if found is not None:
            self._restore_answer(found)
        return None if found is None else self._answers[path]


def is_wait(pause: Pause) -> bool:
    """Return whether a pause needs no person."""
    return pause.question is not None and pause.question.wait is not None


def ended_wait(store: Store, run_id: RunId, path: StepPath, *, due: bool) -> Record | None:
    """Return the record that ended a wait, or None. Blocks.

    `due` lets time end it.
    """
    if due:
        store.expire(body=TIMED_OUT)
    if any(wait.path == path for wait in store.get(run_id).waits):
        return None
    found: Record | None = None
    for record in store.read(run_id):
        if record.path == path and record.kind in ("paused", "answered"):
            found = record if record.kind == "answered" else None
    return found


# --- Messages to granular steps -----------------------------------------------------------------------------------


class SteeringInbox:
    """Messages to the granular steps of one run, by number."""

    __slots__ = ("_messages", "_newest", "_run_id", "_seen", "_store")

    def __init__(self, store: Store, run_id: RunId, newest: Callable[[], int]) -> None:
        self._store, self._run_id, self._newest, self._seen = store, run_id, newest, 0
        self._messages: dict[str, SteeringMessage] = {}

    def add(self, record: Record) -> None:
        """Add a stored message."""
        message = _message_in(record, where=f"record {record.seq} of run {self._run_id!r}")
        self._messages.setdefault(message.id, message)
        self._seen = max(self._seen, record.seq)

    async def read_reported(self) -> None:
        """Read messages that the store has reported since the last look.

        Without a report nothing is read. A failed read is repeated with the next look.
        """
        if self._newest() <= self._seen:
            return
        with contextlib.suppress(StoreError):
            for record in await call_store(lambda: self._store.read(self._run_id, after=self._seen)):
                if record.kind == "steered":
                    self.add(record)

    def of(self, step: StepPath) -> list[SteeringMessage]:
        """Return the messages to a step, in order."""
        return [message for message in self._messages.values() if message.path == step]


def steering_messages(run_id: RunId, records: Iterable[Record]) -> Iterator[SteeringMessage]:
    """Yield the messages among the records of a run."""
    for record in records:
        if record.kind == "steered":
            yield _message_in(record, where=f"record {record.seq} of run {run_id!r}")


def _message_in(record: Record, *, where: str) -> SteeringMessage:
    with record_bodies.reading(where):
        body = record_bodies.read_body(record.body, where=where)
        content = record_bodies.read_value(body["message"], where=where)
        return SteeringMessage(id=body["id"], seq=record.seq, path=record.path, content=content, when=body["when"])


def steer(
    store: Store,
    run_id: RunId,
    message: object,
    *,
    path: StepPath | None,
    when: SteerWhen,
    id: str | None,
    by: str | None,
) -> Steered:
    """Store a message to a granular step, once by its id. Blocks."""
    if not hasattr(store, "steer"):
        raise DeclarationError(f"store {type(store).__name__} has no 'steer': steering an agent needs it")
    refuse_former_format(store, subject="steering an agent")
    content, chosen = _checked(message, when, id)
    body = record_bodies.newest_body(message=record_bodies.stored_value(content), id=chosen, when=when, by=by)
    seq: int | None = 0
    while seq == 0:  # another message was faster, perhaps with the same id
        run, records = store.get(run_id), read_resolved(store, run_id)
        known = list(steering_messages(run_id, records))
        if (same := next((each for each in known if each.id == chosen), None)) is not None:
            return Steered(chosen, same.seq, "duplicate")
        if has_ended(run.status):
            raise _too_late(run_id, run.status)
        record = Record(kind="steered", path=_target(run_id, kept_records(records), path), body=body)
        seq = store.steer(run_id, record=record, after=known[-1].seq if known else 0)
    if seq is None:
        raise _too_late(run_id, store.get(run_id).status)
    return Steered(chosen, seq, "queued")


def _checked(message: object, when: str, id: str | None) -> tuple[object, str]:
    if when not in get_args(SteerWhen):
        raise DeclarationError(f"steer: when must be 'next_turn' or 'when_done', not {when!r}")
    if not message or not isinstance(message, str | Sequence) or isinstance(message, bytes):
        raise DeclarationError(f"steer: message must be a text or a list of contents, not {message!r}")
    if id is not None and not (isinstance(id, str) and id):
        raise DeclarationError(f"steer: id must be a text, not {id!r}")
    return message if isinstance(message, str) else list(message), id or seams.random_bytes(16).hex()


def _too_late(run_id: RunId, status: str) -> TooLate:
    return TooLate(f"run {run_id!r} has ended ({status}); the message was not stored")


def _target(run_id: RunId, records: Sequence[Record], path: StepPath | None) -> StepPath:
    """Return the target of a message, or raise a refusal."""
    settled = {record.path for record in records if record.kind == "settled"}
    if path in settled:
        raise TooLate(f"step {path!r} of run {run_id!r} has settled; the message was not stored")
    begun = dict.fromkeys(record.path for record in records if record.kind == "started")
    units = dict.fromkeys(step_paths.step_of(record.path) for record in records if record.kind == "intent")
    granular = [each for each in units if each not in settled]
    atomic = [each for each in begun if each not in settled and not any(step_paths.at_or_below(each, granular))]
    if path is not None and path not in atomic:
        return _known_step(run_id, records[0], path)
    if path is not None or not granular:
        opened = ", ".join(f"{each!r} (atomic)" for each in atomic) or "none"
        raise NotSteerable(f"run {run_id!r} has no open granular step; open: {opened}")
    if len(granular) > 1:
        names = ", ".join(map(repr, granular))
        raise AmbiguousStep(f"run {run_id!r} has {len(granular)} open granular steps ({names}); give path=")
    return granular[0]


def _known_step(run_id: RunId, first: Record, path: StepPath) -> StepPath:
    where = f"record 1 of run {run_id!r}"
    with record_bodies.reading(where):
        steps = read_fingerprint(record_bodies.read_body(first.body, where=where).get("fingerprint", []))
    declared = step_paths.in_declaration(path)
    if steps and (declared is None or step_paths.formatted(declared) not in steps):
        raise NotSteerable(f"run {run_id!r} has no step {path!r}")
    return path
