"""Projection of a run at any record, from its log alone.

Rules:

1. A step is open from its start until it settles.
2. A step with failed attempts that continues is not settled; its usage is counted.
3. Usage of a settled step includes its nested steps: these are not counted again. A compensation belongs to the
   compensating step, which may enclose the compensated one: it is counted by the record after it.
4. The turns of a loop with `keep_history` are counted by its `compacted` records: older turns have no other record.
5. The context of an unfinished run is that of its innermost open sequence or loop. Branches and map items have
   contexts of their own until all of them have ended.
6. A message to a granular step that no request lists is undelivered, also if it was accepted while the step settled.

Sections:

- Turns of a loop with `keep_history`, as its `compacted` records hold them.
- Records of a retried run: which of them still count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import attrs

from ...errors import Compacted
from ..outcomes import ErrorInfo, Failure, RunId, StepResult, Success, TerminalOutcome
from ..step_paths import (
    ROOT,
    Handler,
    Item,
    Retry,
    StepPath,
    above_of,
    at_or_below,
    attempt_of,
    below,
    compensated_by,
    is_top_level,
    is_tried,
    is_undoing,
    item,
    known_segment,
    number_of,
    parent_of,
    step_around,
    step_of,
    tried,
    whose,
    within_of,
)
from ..usage import NO_USAGE, Usage, less
from . import record_bodies
from .context_patches import StoredContexts, has_context, self_contained
from .records import Compaction, Record

# --- Turns of a loop with `keep_history` --------------------------------------------------------------------------
# Rules:
#
# 1. Every successful turn is committed with a `compacted` record at its path. The record is complete: the loop
#    continues from it without any earlier record.
# 2. With turn `k`, the records of the turns up to `k - N` are deleted, except the `compacted` record of turn `k - N`:
#    it comes before the oldest kept turn. So the state at every kept record can be computed.
# 3. Results of the last turns are read from their own records; the result of the turn itself is part of the record.


@attrs.frozen(kw_only=True, eq=False)
class LoopTurns:
    """State of a loop between a turn and its condition."""

    loop: StepPath
    """Parent path of the turns."""
    keep: int
    turn: int = 0
    """Number of the last turn; 0 before the first."""
    context: Any = None
    usage: Usage = NO_USAGE
    """Usage of all turns."""
    guard: Any = None
    """History of the loop's guard without this turn, as JSON data."""
    results: tuple[StepResult, ...] = ()
    """Results of the last turns, at most `keep`, oldest first."""

    @property
    def path(self) -> StepPath:
        """Return the path of the last turn."""
        return item(self.loop, self.turn)

    def after(self, result: StepResult, context: object, guard: object) -> LoopTurns:
        """Return the state after one more turn."""
        results = (*self.results, result)[-self.keep :]
        usage = self.usage + result.usage
        turn = self.turn + 1
        return attrs.evolve(self, turn=turn, context=context, usage=usage, guard=guard, results=results)

    @property
    def compaction(self) -> Compaction | None:
        """Return the deletion that belongs to the last turn, if any."""
        if self.turn <= self.keep:
            return None
        return Compaction(loop=self.loop, base=item(self.loop, self.turn - self.keep))


def turns_body(turns: LoopTurns) -> str:
    """Return the body of a `compacted` record, without its context."""
    facts: dict[str, object] = {"turn": turns.turn, "keep": turns.keep}
    facts["result"] = record_bodies.result_part(turns.results[-1])
    if turns.usage is not NO_USAGE:
        facts["usage"] = record_bodies.usage_data(turns.usage)
    if turns.guard is not None:
        facts["guard"] = turns.guard
    return record_bodies.make_body(**facts)


def read_turns(
    path: StepPath, body: dict[str, Any], context: object, outcome_at: record_bodies.OutcomeAt, *, where: str
) -> LoopTurns:
    """Return the state that a `compacted` record holds."""
    loop, turn, keep = parent_of(path), body["turn"], body["keep"]
    last = last_result(path, body, outcome_at, where=where)
    before = (_result_at(outcome_at(item(loop, each))) for each in range(max(1, turn - keep + 1), turn))
    return LoopTurns(
        loop=loop,
        keep=keep,
        turn=turn,
        context=context,
        usage=record_bodies.read_usage(body.get("usage"), where=where),
        guard=body.get("guard"),
        results=(*(result for result in before if result is not None), last),
    )


def last_result(path: StepPath, body: dict[str, Any], outcome_at: record_bodies.OutcomeAt, *, where: str) -> StepResult:
    """Return the result of the turn, with kept nested results."""
    return _result_at(outcome_at(path)) or record_bodies.read_result_part(body["result"], where=where)


def _result_at(outcome: TerminalOutcome | None) -> StepResult | None:
    return outcome.step_result if isinstance(outcome, Success) else None


def turn_at(loop: StepPath, path: StepPath) -> int | None:
    """Return the loop turn that contains a path, or None."""
    start = f"{loop}/~i"
    number = path[len(start) :].partition("/")[0] if path.startswith(start) else ""
    return number_of(number)


def forget_turns(known: Sequence[dict[StepPath, Any]], loop: StepPath, *, up_to: int) -> None:
    """Remove the entries of old turns of a loop."""
    start = f"{loop}/"
    for each in known:
        found = []
        for path in reversed(each):
            if not path.startswith(start):
                break
            number = turn_at(loop, path)
            if number is not None and number <= up_to:
                found.append(path)
        for path in found:
            del each[path]


def refuse_compacted(run_id: RunId, seq: int, kept: Iterable[int]) -> None:
    """Raise `Compacted` if the record was deleted by a loop's compaction."""
    following = next((each for each in kept if each >= seq), seq)
    if following != seq and seq > 0:
        raise Compacted(run_id, seq, following)


# --- Records of a retried run -------------------------------------------------------------------------------------
# Rules:
#
# 1. A retry keeps every success. It drops the failures that are part of no success, and their attempts.
# 2. With a failure go the answers at its path and its handlers: they are asked and executed again.
# 3. The units of a granular step are kept, unless its last one is an answer of the model: that answer was refused.
# 4. A retry from the start keeps the admission alone.
# 5. The usage of dropped records still counts (`run_state`).


@attrs.frozen(kw_only=True)
class RetryRecord:
    """One retry of a run, as it is recorded."""

    number: int
    mode: str = "strict"
    from_start: bool = False
    reason: str | None = None
    by: str | None = None
    """Caller of the retry, if it gave a name."""


def retry_in(record: Record) -> RetryRecord:
    """Return the retry that a `retried` record holds."""
    body = record_bodies.read_body(record.body, where=f"record {record.seq}")
    reason, by = body.get("reason"), body.get("by")
    return RetryRecord(
        number=int(body.get("number", 0)),
        mode=str(body.get("mode", "strict")),
        from_start=bool(body.get("from_start")),
        reason=None if reason is None else str(reason),
        by=None if by is None else str(by),
    )


def new_retry(records: Sequence[Record]) -> RetryRecord | None:
    """Return the retry that no session has continued yet, or None."""
    last = next((record for record in reversed(records) if record.kind in ("retried", "resumed")), None)
    return None if last is None or last.kind == "resumed" else retry_in(last)


def retries_in(records: Iterable[Record]) -> list[RetryRecord]:
    """Return the retries of a run, in order."""
    return [retry_in(record) for record in records if record.kind == "retried"]


def kept_records(records: Sequence[Record]) -> list[Record]:
    """Return the records that count after all retries; see the module's rules."""
    kept: list[Record] = []
    for record in records:
        if record.kind == "retried":
            kept = kept[:1] if retry_in(record).from_start else _without_failures(kept)
        kept.append(record)
    return self_contained(kept, records)


def compensated_steps(records: Iterable[Record]) -> list[StepPath]:
    """Return the steps that the run has compensated, in that order."""
    found: dict[StepPath, None] = {}
    for record in records:
        step = compensated_by(record.path) if record.kind == "settled" else None
        if step is not None and not is_failure(record):
            found[step] = None
    return list(found)


def is_failure(record: Record) -> bool:
    """Return whether a `settled` record holds a failure."""
    return "failure" in record_bodies.read_body(record.body, where=f"record {record.seq}")


def dropped_failures(failed: Iterable[StepPath], succeeded: Set[StepPath]) -> set[StepPath]:
    """Return failures outside successes; attempts' paths count for their step."""
    return {path for path in failed if whose(path) not in succeeded and not _is_part(path, succeeded)}


def _is_part(path: StepPath, succeeded: Set[StepPath]) -> bool:
    return any(above in succeeded for above in within_of(path))


def _without_failures(records: Sequence[Record]) -> list[Record]:
    outcomes = {record.path: is_failure(record) for record in records if record.kind == "settled"}
    succeeded = {path for path, failed in outcomes.items() if not failed and not is_tried(path)}
    dropped = dropped_failures((path for path, failed in outcomes.items() if failed), succeeded)
    steps = {whose(path) for path in dropped} | {ROOT}
    refused = {step for step in steps if _ends_with_an_answer(records, step)}
    return [record for record in records if not _is_dropped(record, steps, refused)]


def _is_dropped(record: Record, steps: Set[StepPath], refused: Set[StepPath]) -> bool:
    match record.kind:
        case "settled":
            return (whose(record.path) in steps and is_failure(record)) or _is_handling(record.path, steps)
        case "paused" | "answered":
            return record.path in steps - {ROOT} or _is_handling(record.path, steps)
        case "unit" | "intent":
            return step_of(record.path) in refused
        case "cancelled" | "ended":
            return True
        case _:
            return False


def _is_handling(path: StepPath, steps: Set[StepPath]) -> bool:
    """Return whether the path is in a step's failure handler."""
    if "~h" not in path:
        return False
    segments = path.split("/")
    owners = ("/".join(segments[:at]) for at, each in enumerate(segments) if isinstance(known_segment(each), Handler))
    return any(owner in steps for owner in owners)


def _ends_with_an_answer(records: Sequence[Record], step: StepPath) -> bool:
    """Return whether a granular step's last unit is a model turn."""
    units = [record for record in records if record.kind in ("unit", "intent") and step_of(record.path) == step]
    return bool(units) and units[-1].kind == "unit" and ":" not in units[-1].path.rpartition("~u")[2]


# --- Projection of a run from its log at any record ---------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Origin:
    """Source run of a fork, and its last copied record."""

    run_id: str
    seq: int


@attrs.frozen(kw_only=True)
class RunState:
    """A run as its records describe it."""

    run_id: str
    seq: int
    """The last record that was taken into account."""
    status: str
    input: object = None
    context: Any = None
    """Context after the last settled step in sequence; of an ended run, the last top-level one."""
    outcomes: dict[StepPath, TerminalOutcome] = attrs.field(factory=dict)
    """Settled steps in order of settling."""
    failed_attempts: dict[StepPath, TerminalOutcome] = attrs.field(factory=dict)
    """Last failure of each step in retry or fallback."""
    open_steps: tuple[StepPath, ...] = ()
    """Started, unsettled steps."""
    pauses: dict[StepPath, str] = attrs.field(factory=dict)
    """Unanswered prompts by path."""
    answers: dict[StepPath, object] = attrs.field(factory=dict)
    units: tuple[StepPath, ...] = ()
    """The model turns and tool calls that are done."""
    uncertain: tuple[StepPath, ...] = ()
    """Those that were begun and not recorded as done."""
    usage: Usage = NO_USAGE
    """Usage of all steps at any depth."""
    retries: int = 0
    """Number of retries of the run."""
    feedback: str | None = None
    origin: Origin | None = None
    """Source run of a fork."""

    @property
    def results(self) -> tuple[StepResult, ...]:
        """Return the results of the top-level steps."""
        found = (outcome for path, outcome in self.outcomes.items() if is_top_level(path))
        return tuple(result for each in found if (result := getattr(each, "step_result", None)) is not None)

    @property
    def error(self) -> BaseException | ErrorInfo | None:
        """Return the error of the last settled top-level step, or None."""
        last = next((each for path, each in reversed(self.outcomes.items()) if is_top_level(path)), None)
        return last.error if isinstance(last, Failure) else None

    @property
    def output(self) -> object:
        """Return the output of the last settled top-level step."""
        return self.results[-1].output if self.results else None


def project(run_id: str, records: Iterable[Record]) -> RunState:
    """Return the state after these records."""
    projector = Projector(run_id)
    for record in records:
        projector.apply(record)
    return projector.state()


class Projector:
    """Fold a run's records by `take`; `state()` returns the result.

    Args:
        run_id: id of the run.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._facts: dict[str, Any] = {"seq": 0, "status": "running"}
        self._contexts = StoredContexts()
        self._left: tuple[dict[str, object], str] | None = None
        """Body with a top-level step's last context, and its place."""
        self._outcomes: dict[StepPath, TerminalOutcome] = {}
        self._tried: dict[StepPath, TerminalOutcome] = {}
        self._written: dict[StepPath, int] = {}
        self._given_up: dict[StepPath, int] = {}
        """Log positions at which steps settled or their failed attempts were recorded."""
        self._waited: dict[StepPath, Usage] = {}
        self._open: dict[StepPath, bool] = {}
        """Unsettled steps; true for a branch or item, whose context is its own."""
        self._inner: dict[StepPath, dict[str, object]] = {}
        """Body with the latest context inside each unsettled composite."""
        self._pauses: dict[StepPath, str] = {}
        self._answers: dict[StepPath, Any] = {}
        self._intents: dict[StepPath, None] = {}
        self._units: dict[StepPath, None] = {}
        self._messages: dict[StepPath, dict[str, None]] = {}
        """Ids of messages to granular steps that no request contains (rule 6)."""
        self.dropped_usage: Usage = NO_USAGE
        """Usage of attempts that a retry has dropped."""
        self._turns: dict[StepPath, tuple[int, Usage]] = {}
        """Last compacted turn of loops by the parent path of turns, and the usage of all turns up to it."""
        self._since: dict[StepPath, Usage] = {}
        """Usage of granular units since their step's last recorded total."""

    def apply(self, record: Record) -> None:
        """Take the next record into account; `CorruptRecord` if it cannot be read.

        Args:
            record: next record of the run.
        """
        where = f"record {record.seq} of run {self._run_id!r}"
        with record_bodies.reading(where):
            self._apply(record, where)

    def _apply(self, record: Record, where: str) -> None:
        body = record_bodies.read_body(record.body, where=where)
        self._facts["seq"] = record.seq
        path = record.path
        match record.kind:
            case "admitted":
                self._facts["input"] = record_bodies.read_value(body.get("input"), where=where)
                self._facts["context"] = record_bodies.read_value(body.get("context"), where=where)
                self._facts["origin"] = _origin(body.get("origin"))
            case "started":
                self._open[path] = bool(body.get("of"))
            case "settled":
                self._settle(path, body, where)
            case "intent":
                self._intents[path] = None
                self._deliver(step_of(path), body)
            case "steered":
                self._messages.setdefault(path, {})[record_bodies.text_in(body, "id")] = None
            case "unit":
                self._intents.pop(path, None)
                self._units[path] = None
                self._use(step_of(path), record_bodies.read_usage(body.get("usage"), where=where))
            case "paused":
                self._contexts.take(body)
                self._pauses[path] = str(body.get("message", ""))
                self._waited[step_of(path)] = record_bodies.read_usage(body.get("usage"), where=where)
                self._since.pop(step_of(path), None)
            case "answered":
                self._pauses.pop(path, None)
                self._answers[path] = record_bodies.read_value(body.get("answer"), where=where)
            case "compacted":
                self._compact(path, body, where)
            case "resumed":
                self._facts["status"] = "running"
            case "retried":
                self._retry(retry_in(record))
            case "ended" if path == ROOT:
                self._facts["status"], self._facts["feedback"] = body.get("status"), body.get("feedback")
                self._pauses = self._pauses if body.get("status") in ("paused", "sleeping") else {}
                if body.get("status") in ("aborted", "failed"):
                    self._interrupt(body)

    def _interrupt(self, body: dict[str, Any]) -> None:
        """Count the usage of cancelled and limited attempts, which no record has."""
        known = self._used() + self.dropped_usage
        total = Usage(
            input_tokens=max(0, body.get("total_tokens", 0) - known.output_tokens),
            cost_usd=body.get("total_cost_usd", 0.0),
        )
        self.dropped_usage = self.dropped_usage + less(total, known)

    def _deliver(self, step: StepPath, body: dict[str, Any]) -> None:
        if step in self._messages:
            for each in json.loads(record_bodies.text_in(body, "intent")).get("messages", ()):
                self._messages[step].pop(each, None)

    def _name_undelivered(self) -> None:
        for path, ids in self._messages.items():
            result = getattr(self._outcomes.get(path), "step_result", None)
            if ids and result is not None:
                result.metadata["undelivered"] = list(ids)

    def _retry(self, retry: RetryRecord) -> None:
        """Drop the steps that a retry executes again; its usage still counts."""
        before = self._used()
        self._facts |= {"status": "running", "feedback": None, "retries": retry.number}
        if retry.from_start:
            for known in (self._outcomes, self._tried, self._written, self._given_up, self._waited, self._open):
                known.clear()
            for rest in (
                self._pauses,
                self._answers,
                self._intents,
                self._units,
                self._since,
                self._inner,
                self._turns,
            ):
                rest.clear()
        else:
            self._drop_failures()
        self.dropped_usage = self.dropped_usage + less(before, self._used())

    def _drop_failures(self) -> None:
        succeeded = {path for path, each in self._outcomes.items() if not isinstance(each, Failure)}
        failed = [path for path, each in self._outcomes.items() if isinstance(each, Failure)]
        for path in dropped_failures((*failed, *map(tried, self._tried)), succeeded):
            step = whose(path)
            for known in (self._outcomes, self._written, self._tried, self._given_up, self._open):
                known.pop(step, None)

    def _used(self) -> Usage:
        return sum(self._spent(), NO_USAGE)

    def _use(self, path: StepPath, used: Usage) -> None:
        self._since[path] = self._since.get(path, NO_USAGE) + used

    def _settle(self, path: StepPath, body: dict[str, object], where: str) -> None:
        self._contexts.take(body)
        outcome = record_bodies.read_settled(path, body, self._outcomes.get, where=where)
        if is_tried(path):
            self._try(whose(path), outcome)
            return
        self._open.pop(path, None)
        self._outcomes[path] = outcome
        self._written[path] = self._facts["seq"]
        if not isinstance(outcome, Failure):
            self._inner.pop(path, None)
        if has_context(body) and is_top_level(path):
            self._left = (body, where)
        elif has_context(body):
            self._inner[parent_of(path)] = body

    def _compact(self, path: StepPath, body: dict[str, Any], where: str) -> None:
        """Take the state of a loop after a turn (rule 4)."""
        self._contexts.take(body)
        loop = parent_of(path)
        self._turns[loop] = body["turn"], record_bodies.read_usage(body.get("usage"), where=where)
        self._inner[loop] = body
        for step in (*above_of(loop), loop):
            if not isinstance(known_segment(step.rpartition("/")[2]), Item | Retry):
                self._open.setdefault(step, False)
        if path not in self._outcomes:
            self._outcomes[path] = Success(step_result=last_result(path, body, self._outcomes.get, where=where))

    def _try(self, path: StepPath, failed: TerminalOutcome) -> None:
        self._tried[path] = failed
        self._given_up[path] = self._facts["seq"]
        self._waited.pop(path, None)  # its usage up to then is part of this
        self._since.pop(path, None)
        for inside in at_or_below(path, self._inner):
            del self._inner[inside]

    def state(self) -> RunState:
        """Return the state of the run after the records so far."""
        self._read_context()
        self._name_undelivered()
        return RunState(
            run_id=self._run_id,
            outcomes=dict(self._outcomes),
            failed_attempts={path: each for path, each in self._steps_tried() if path not in self._outcomes},
            open_steps=tuple(self._open),
            pauses=dict(self._pauses),
            answers=dict(self._answers),
            units=tuple(self._units),
            uncertain=tuple(self._intents),
            usage=self._used() + self.dropped_usage,
            **self._facts | self._inner_context(),
        )

    def _read_context(self) -> None:
        """Decode the last context; those before it are never decoded."""
        if self._left is not None:
            (body, where), self._left = self._left, None
            with record_bodies.reading(where):
                self._facts["context"] = record_bodies.read_value(self._contexts.data(body), where=where)

    def _inner_context(self) -> dict[str, object]:
        """Return the innermost open composite's own context, if any (rule 5)."""
        body = self._innermost() if self._facts["status"] in ("running", "paused", "sleeping") else None
        if body is None:
            return {}
        where = f"run {self._run_id!r}: its context"
        with record_bodies.reading(where):
            return {"context": record_bodies.read_value(self._contexts.data(body), where=where)}

    def _innermost(self) -> dict[str, object] | None:
        innermost = next(iter(self._pauses), None) or next(reversed(self._open), ROOT)
        found = None
        for path in (*reversed(list(above_of(innermost))), innermost):
            if self._open.get(path):
                break
            found = self._inner.get(parent_of(path), found)
        between = next((loop for loop in self._turns if step_around(item(loop, 0)) == innermost), None)
        return found if between is None else self._inner.get(between, found)

    def _spent(self) -> Iterator[Usage]:
        for path, outcome in self._outcomes.items():
            if not self._is_counted_above(path):
                yield _usage(outcome)
        for path, outcome in self._steps_tried():
            if path not in self._outcomes and path not in self._waited and not self._is_counted_above(path):
                yield _usage(outcome)
        for loop, (turn, usage) in self._turns.items():
            if not self._is_counted_by_step(item(loop, turn)):
                yield usage
        for path, usage in (*self._waited.items(), *self._since.items()):
            if path not in self._outcomes and not self._is_counted_above(path):
                yield usage

    def _steps_tried(self) -> Iterator[tuple[StepPath, TerminalOutcome]]:
        """Return the run itself is no step of it."""
        return ((path, each) for path, each in self._tried.items() if path != ROOT)

    def _is_counted_above(self, path: StepPath) -> bool:
        """Return whether an enclosing step has counted this one.

        It has, if it settled or gave up that attempt, or if the turn was compacted.
        """
        return self._is_counted_by_step(path) or (bool(self._turns) and self._is_compacted(path))

    def _is_compacted(self, path: StepPath) -> bool:
        turns = ((turn_at(loop, path), turn) for loop, (turn, _) in self._turns.items())
        return any(number is not None and number <= turn for number, turn in turns)

    def _is_counted_by_step(self, path: StepPath) -> bool:
        since = self._written.get(path, 0) if is_undoing(path) else 0
        return any(self._written.get(above, 0) > since or self._gave_up(above, path, since) for above in above_of(path))

    def _gave_up(self, above: StepPath, path: StepPath, since: int) -> bool:
        """Return whether an enclosing step gave up the path's attempt.

        A fallback belongs to no attempt.
        """
        if self._given_up.get(above, 0) <= since:
            return False
        number = attempt_of(below(above, path) or "")
        return number is not None and number <= _attempts(self._tried[above])


def _origin(data: Any) -> Origin | None:
    return None if data is None else Origin(run_id=str(data["run_id"]), seq=int(data["seq"]))


def _attempts(outcome: TerminalOutcome) -> int:
    result = getattr(outcome, "step_result", None)
    return 0 if result is None else result.attempts


def _usage(outcome: TerminalOutcome) -> Usage:
    result = getattr(outcome, "step_result", None)
    return NO_USAGE if result is None else result.usage
