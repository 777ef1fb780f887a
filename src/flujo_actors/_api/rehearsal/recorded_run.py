"""Recorded run: a stored run as the source of recorded results. Pure.

Rules:

1. Only the records that count after the run's retries are used.
2. The input of a step is not stored. It is derived: the previous output, the item, or the input of the enclosing step.
   It is unknown inside a step that computes its own input.
3. Values are compared in their stored form. A recorded run from a redacted file is compared after the same redactor.
4. The records of a remote step stand before the record of its outcome in the run, and have its number.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from ..._agents.granular.units import ASKED
from ..._core.outcomes import Failure, Success, TerminalOutcome
from ..._core.records import record_bodies
from ..._core.records.context_patches import StoredContexts, has_context
from ..._core.records.records import ENDED, Record, StoredRun
from ..._core.records.run_state import kept_records
from ..._core.step_paths import (
    FALLBACK,
    ROOT,
    Item,
    Named,
    StepPath,
    above_of,
    index_of,
    is_top_level,
    is_tried,
    known_segment,
    parent_of,
    step_around,
    step_of,
    unit_name,
    whose,
)
from ..._durable.fingerprint import Facts, read_fingerprint
from ..._durable.journal import KeptUnit
from ..._durable.pipeline_diff import declared_at
from ...errors import CorruptRecord, NotSerializable
from ...telemetry._redaction.redactor import redacted_value

UNKNOWN: object = object()
"""Marker of an input that cannot be derived."""


@attrs.frozen(kw_only=True)
class RecordedToolCall:
    """A recorded tool call."""

    tool: str
    arguments: str
    """JSON text with sorted keys."""
    seq: int
    path: StepPath


@attrs.frozen(kw_only=True)
class RecordedQuestion:
    """A recorded question, with the record of its answer."""

    asked: Record
    answered: Record | None = None


class RecordedRun:
    """Records of one run by path; see the module's rules."""

    def __init__(
        self,
        run: StoredRun,
        records: Iterable[Record],
        *,
        remote: Iterable[Sequence[Record]] = (),
        redacted: bool = False,
    ) -> None:
        self.run, self.redacted = run, redacted
        self.whole = list(records)
        if not self.whole or self.whole[0].kind != "admitted":
            raise CorruptRecord(f"record 1 of run {run.run_id!r}: it is not the run's admission")
        self.records = _with_remote_steps(kept_records(self.whole), map(kept_records, remote))
        self.settled: dict[StepPath, Record] = {}
        self.begun: set[StepPath] = {ROOT}
        """Paths of steps that have a record, and those around them."""
        self.intents: dict[StepPath, Record] = {}
        self.units: dict[StepPath, Record] = {}
        self.chosen: dict[StepPath, Record] = {}
        self.questions: dict[StepPath, list[RecordedQuestion]] = {}
        self._tried: dict[StepPath, Record] = {}
        """Failed attempts by step."""
        self._outcomes: dict[StepPath, TerminalOutcome] = {}
        self._items: Counter[StepPath] = Counter()
        self._settlements = 0
        self._positions: dict[StepPath, int] = {}
        """Order of the settled steps: those of a remote step have one number."""
        self._siblings: dict[StepPath, list[StepPath]] = {}
        """Settled named steps by parent path, in order."""
        for record in self.records:
            self._take(record)

    def _take(self, record: Record) -> None:
        path = record.path
        match record.kind:
            case "settled" if is_tried(path):
                self._tried[whose(path)] = record
            case "settled":
                self._settle(record)
            case "intent":
                self.intents[path] = record
            case "unit":
                self.units[path] = record
            case "chosen":
                self.chosen[path] = record
            case "paused":
                self._ask(record)
            case "answered":
                self._answer(record)
            case _:
                pass
        if path:
            self._begin(whose(step_of(path)))

    def _settle(self, record: Record) -> None:
        self.settled[record.path] = record
        self._positions[record.path] = self._settlements = self._settlements + 1
        if isinstance(last_segment(record.path), Named):
            self._siblings.setdefault(parent_of(record.path), []).append(record.path)

    def _begin(self, step: StepPath) -> None:
        for path in (step, *above_of(step)):
            if path in self.begun:
                return
            self.begun.add(path)
            if isinstance(last_segment(path), Item):
                self._items[step_around(path)] += 1

    def _ask(self, record: Record) -> None:
        """Take a question; one that was put off continues the last."""
        asked = self.questions.setdefault(record.path, [])
        if not asked or asked[-1].answered is not None:
            asked.append(RecordedQuestion(asked=record))

    def _answer(self, record: Record) -> None:
        asked = self.questions.get(record.path)
        if asked:
            asked[-1] = attrs.evolve(asked[-1], answered=record)

    # --- the run as a whole ---

    @property
    def status(self) -> str:
        """Return the status of the run, as it is stored."""
        return self.run.status

    @property
    def has_ended(self) -> bool:
        """Return whether the run has its result."""
        return self.run.status in ENDED

    @functools.cached_property
    def feedback(self) -> str | None:
        """Return the feedback of the run's end, if any."""
        end = self.end
        return None if end is None else self.body(end).get("feedback")

    @functools.cached_property
    def end(self) -> Record | None:
        """Return the last record of the run's end."""
        ends = (each for each in reversed(self.records) if each.kind == "ended" and each.path == ROOT)
        return next(ends, None)

    @functools.cached_property
    def last(self) -> Record | None:
        """Return the record of the last settled top-level step."""
        found = (path for path in reversed(self.settled) if is_top_level(path))
        return next((self.settled[path] for path in found), None)

    def output(self) -> Any:
        """Return the output of the run; that of its last step."""
        outcome = None if self.last is None else self.outcome(self.last.path)
        return outcome.step_result.output if isinstance(outcome, Success) else None

    def input(self) -> Any:
        """Return the input of the run."""
        first = self.records[0]
        return record_bodies.read_value(self.body(first).get("input"), where=self.where(first))

    @functools.cached_property
    def steps(self) -> Mapping[StepPath, Facts]:
        """Return the facts of the pipeline that the run was started with."""
        admission = self.body(self.records[0])
        with record_bodies.reading(f"record 1 of run {self.run.run_id!r}: its fingerprint"):
            return read_fingerprint(admission.get("fingerprint"))

    # --- steps ---

    def body(self, record: Record) -> dict[str, Any]:
        """Return the parts of a record."""
        return record_bodies.read_body(record.body, where=self.where(record))

    def where(self, record: Record) -> str:
        """Return the place of a record, for messages."""
        return f"record {record.seq} of run {self.run.run_id!r}"

    def seq(self, path: StepPath) -> int:
        """Return the number of a step's record, or of the run's end."""
        record = self.settled.get(path) or self.end
        return self.records[-1].seq if record is None else record.seq

    def outcome(self, path: StepPath) -> TerminalOutcome | None:
        """Return the recorded outcome of a step, or None."""
        record = self.settled.get(path)
        if record is None:
            return None
        if path not in self._outcomes:
            body = self.body(record)
            self._outcomes[path] = record_bodies.read_settled(path, body, self.outcome, where=self.where(record))
        return self._outcomes[path]

    def tried(self, path: StepPath) -> str:
        """Return the feedback of a step's failed attempts; empty without one."""
        record = self._tried.get(path)
        failure = None if record is None else self.body(record).get("failure")
        return str(failure.get("feedback") or "it failed") if isinstance(failure, dict) else ""

    def output_data(self, path: StepPath) -> object:
        """Return the stored form of a step's output; `UNKNOWN` unless it succeeded."""
        record = self.settled.get(path)
        done = None if record is None else self.body(record).get("success")
        return done.get("output") if isinstance(done, dict) else UNKNOWN

    @functools.cached_property
    def _contexts(self) -> StoredContexts:
        return StoredContexts(self.records)

    def context_data(self, path: StepPath) -> object:
        """Return the stored context after a step; `UNKNOWN` if unchanged."""
        body = self.body(self.settled[path])
        with record_bodies.reading(self.where(self.settled[path])):
            return self._contexts.data(body) if has_context(body) else UNKNOWN

    def context(self, path: StepPath) -> Any:
        """Return the context after a step that changed it."""
        return record_bodies.read_value(self.context_data(path), where=self.where(self.settled[path]))

    def unit(self, path: StepPath) -> KeptUnit | None:
        """Return a recorded model turn, tool call or assembled context."""
        record = self.units.get(path)
        if record is None:
            return None
        where = self.where(record)
        with record_bodies.reading(where):
            body = self.body(record)
            usage = record_bodies.read_usage(body.get("usage"), where=where)
            return KeptUnit(result=record_bodies.text_in(body, "result"), usage=usage)

    def intent(self, path: StepPath) -> str:
        """Return the recorded intent of a unit as JSON text."""
        record = self.intents.get(path)
        return "{}" if record is None else record_bodies.text_in(self.body(record), "intent")

    def asked(self, path: StepPath) -> str | None:
        """Return the hash of a recorded model request, if it is known."""
        if path not in self.intents or self._steered:
            return None
        with record_bodies.reading(self.where(self.intents[path])):
            found = json.loads(self.intent(path))
        return found.get(ASKED) if isinstance(found, dict) else None

    @functools.cached_property
    def _steered(self) -> bool:
        return any(record.kind == "steered" for record in self.records)

    @functools.cached_property
    def calls(self) -> tuple[RecordedToolCall, ...]:
        """Return the tool calls that were begun, in order."""
        found = (self._call(path, record) for path, record in self.intents.items())
        return tuple(sorted((each for each in found if each is not None), key=lambda each: each.seq))

    def _call(self, path: StepPath, record: Record) -> RecordedToolCall | None:
        with record_bodies.reading(self.where(record)):
            intent = json.loads(record_bodies.text_in(self.body(record), "intent"))
        if not isinstance(intent, dict) or "tool" not in intent:
            return None
        return RecordedToolCall(
            tool=str(intent["tool"]), arguments=sorted_json(intent.get("arguments")), seq=record.seq, path=path
        )

    def turns(self) -> int:
        """Return the number of recorded model turns."""
        return len(model_turns(self.units))

    def units_until(self, seq: int) -> set[StepPath]:
        """Return the units of the run up to a record."""
        return {path for path, record in self.units.items() if record.seq <= seq}

    def items(self, path: StepPath) -> int:
        """Return the number of recorded turns or items of a step."""
        return self._items[path]

    # --- inputs ---

    def input_of(self, path: StepPath) -> object:
        """Return the stored form of a step's data, derived (rule 2)."""
        around, segment = step_around(path), last_segment(path)
        kind = "pipeline" if around == ROOT else str(self._facts(around).get("kind"))
        match segment:
            case Named() if kind in ("pipeline", "sequence"):
                before = self._before(path)
                return self._given_to(around) if before is None else self.output_data(before)
            case Named() if kind in ("branch", "parallel", "selection"):
                return self._given_to(around)
            case Item(index) if kind == "loop" and index is not None:
                return self._given_to(around) if index <= 1 else self.output_data(_turn_before(path, index))
            case Item() if kind == "map" and self._facts(around).get("items") is None:
                return self._item(around, index_of(path))
            case _ if segment is FALLBACK:
                return self._given_to(around)
            case _:
                return UNKNOWN

    def _item(self, around: StepPath, index: int | None) -> object:
        items = self._given_to(around)
        return items[index] if isinstance(items, list) and index is not None and index < len(items) else UNKNOWN

    def _given_to(self, path: StepPath) -> object:
        """Return the input of a step for its children."""
        if path == ROOT:
            return self.body(self.records[0]).get("input")
        return UNKNOWN if self._facts(path).get("input") is not None else self.input_of(path)

    def _facts(self, path: StepPath) -> Facts:
        place = declared_at(path, self.steps)
        return {} if place is None else self.steps[place]

    def _before(self, path: StepPath) -> StepPath | None:
        """Return the settled step before this one in its sequence, or None."""
        position = self._positions.get(path, len(self.records))
        around = reversed(self._siblings.get(parent_of(path), ()))
        return next((each for each in around if each != path and self._positions[each] < position), None)

    # --- comparisons ---

    def is_same(self, recorded: object, now: object) -> bool:
        """Return whether a value has the recorded stored form (rule 3)."""
        form = stored_form(now)
        return recorded == (redacted_value(form) if self.redacted else form)

    def text(self, text: str) -> str:
        """Return a text as the recording has it."""
        return str(redacted_value(text)) if self.redacted else text

    def arguments(self, given: object) -> str:
        """Return the arguments of a call as a recorded one has them."""
        return sorted_json(redacted_value(given) if self.redacted else given)


_OF_REMOTE_STEPS = ("started", "intent", "unit", "settled", "chosen", "compacted")
"""Kinds of records that a run lacks if a worker executed the step."""


def _with_remote_steps(records: list[Record], remote: Iterable[Sequence[Record]]) -> list[Record]:
    """Return the records of a run and its remote steps (rule 4)."""
    ends = {record.path: record.seq for record in records if record.kind == "settled"}
    inside: dict[int, list[Record]] = {}
    for record in itertools.chain.from_iterable(remote):
        if record.kind in _OF_REMOTE_STEPS and record.path not in ends:
            step = whose(step_of(record.path))
            seq = next((ends[path] for path in (step, *above_of(step)) if path in ends), records[-1].seq)
            inside.setdefault(seq, []).append(attrs.evolve(record, seq=seq))
    return [each for record in records for each in (*inside.get(record.seq, ()), record)]


def stored_form(value: object) -> object:
    """Return a value as JSON data, else as its text."""
    try:
        return record_bodies.stored_value(value)
    except NotSerializable:
        return repr(value)


def sorted_json(value: object) -> str:
    """Return JSON text with sorted keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def model_turns(units: Iterable[StepPath]) -> list[StepPath]:
    """Return the units that are model turns."""
    return [path for path in units if is_model_turn(path)]


def is_model_turn(path: StepPath) -> bool:
    """Return whether a unit is a model turn."""
    return unit_name(path).partition("#")[0].isdigit()


def last_segment(path: StepPath) -> object:
    """Return the last segment of a path, or None."""
    return known_segment(path.rpartition("/")[2])


def _turn_before(path: StepPath, index: int) -> StepPath:
    return StepPath(f"{parent_of(path)}/~i{index - 1}")


def succeeded(outcome: object) -> bool:
    """Return whether an outcome is a success."""
    return isinstance(outcome, Success)


def failed(outcome: object) -> bool:
    """Return whether an outcome is a failure."""
    return isinstance(outcome, Failure)
