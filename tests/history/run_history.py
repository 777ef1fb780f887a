"""History of client operations on stored runs, and its checker.

An operation without an end is unknown: it may have happened or not. Times are monotonic, and shared by all processes
of one machine. `violations` returns one sentence per broken rule; `smallest` removes operations that do not matter.

Rules:

1. H1: an acknowledged submit or fork is there at the end; `RunExists` needs an earlier one of that id. A fork begins
   with the records of its origin.
2. H2: of the answers to a question at most one succeeds, and the used value is that one, or an unknown one.
3. H3: a run with an acknowledged cancel is aborted, or had ended before the end of that call.
4. H4: a watch is a piece of the final records without a gap, from the first one after `after`.
5. H5: for one client, the status and the number of records never go back, and an ended run never changes.
6. H6: all waits of a run agree.
7. H7: a repeated call has the effect of one.
8. H8: epochs never decrease.
9. H9: a step has at most one effect per life, and none after its commit.
10. H10: submits, answers and cancels of a run are linearizable.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import attrs

ENDED = ("completed", "failed", "aborted")
RANKS = {"running": 0, "paused": 0, "sleeping": 0, "completed": 1, "failed": 1, "aborted": 1}
NOT_COPIED = ("ended", "resumed", "retried")
"""Kinds of records that a fork leaves out."""

READS = ("look", "watch", "wait")
"""Verbs without an effect: a failed one shows nothing."""

SEARCHED = 12
"""Most operations of one linearizability search; more are split by question."""


@attrs.frozen(kw_only=True)
class Operation:
    """One call of a client, with its result; without an end it is unknown."""

    process: str
    verb: str
    run: str
    begin: float
    end: float | None = None
    result: str = "ok"
    """`ok`, or the name of the error."""
    question: str = ""
    value: object = None
    """Value of an answer, status of a wait or a look."""
    records: int = 0
    """Number of records that a look saw."""
    seqs: tuple[int, ...] = ()
    """Numbers of the records of a watch."""
    after: int = 0
    """Last record before a watch, or last record of a fork."""
    repeats: bool = False
    """Whether it is the same call again after an unknown end."""

    @property
    def is_unknown(self) -> bool:
        return self.end is None

    @property
    def latest(self) -> float:
        return math.inf if self.end is None else self.end


@attrs.frozen(kw_only=True)
class FinalRun:
    """A run after the end of the history."""

    status: str
    epochs: tuple[int, ...] = (1,)
    """Epoch of each record, in order."""
    admitted: int = 1
    """Number of `admitted` records."""
    answers: dict[str, tuple[object, ...]] = attrs.field(factory=dict)
    """Recorded answers by question."""
    ended_at: float = math.inf
    effects: tuple[tuple[str, int, float], ...] = ()
    """Step, life and time of each effect."""
    commits: dict[str, float] = attrs.field(factory=dict)
    """Time of the commit by step."""
    records: tuple[str, ...] = ()
    """Kind and path of each record."""
    origin: tuple[str, int] | None = None
    """Run and record that it was forked from."""


@attrs.frozen(kw_only=True)
class RunHistory:
    """Operations of all processes, and the runs that they left."""

    operations: tuple[Operation, ...]
    runs: dict[str, FinalRun]

    def of(self, *verbs: str) -> dict[str, list[Operation]]:
        """Return the operations with these verbs by run, in the order of their begin."""
        found: dict[str, list[Operation]] = defaultdict(list)
        for each in sorted(self.operations, key=lambda operation: operation.begin):
            if each.verb in verbs and (each.verb not in READS or (each.result == "ok" and not each.is_unknown)):
                found[each.run].append(each)
        return found


def violations(history: RunHistory) -> list[str]:
    """Return a sentence for every broken rule."""
    return [sentence for rule in RULES for sentence in rule(history)]


def smallest(history: RunHistory) -> RunHistory:
    """Return a smaller history that breaks the same rule."""
    rule = violations(history)[0].partition(":")[0]
    kept = list(history.operations)
    for each in history.operations:
        fewer = attrs.evolve(history, operations=tuple(other for other in kept if other is not each))
        if any(sentence.startswith(f"{rule}:") for sentence in violations(fewer)):
            kept.remove(each)
    return attrs.evolve(history, operations=tuple(kept))


def submits_stay(history: RunHistory) -> Iterator[str]:
    for run, submits in history.of("submit", "fork").items():
        for submit in submits:
            if submit.result == "ok" and not submit.is_unknown and run not in history.runs:
                yield f"H1: {run!r} was acknowledged and is lost"
            others = [other for other in submits if other is not submit and other.begin < submit.latest]
            if submit.result == "RunExists" and not others:
                yield f"H1: run {run!r} existed before its first submit"


def forks_copy_their_origin(history: RunHistory) -> Iterator[str]:
    for run, final in history.runs.items():
        if final.origin is not None and final.origin[0] in history.runs:
            origin, seq = final.origin
            copied = [each for each in history.runs[origin].records[:seq] if each.partition(" ")[0] not in NOT_COPIED]
            if list(final.records[: len(copied)]) != copied:
                yield f"H1: fork {run!r} does not begin with the {seq} records of {origin!r}"


def one_answer_wins(history: RunHistory) -> Iterator[str]:
    for run, answers in history.of("answer").items():
        by_question: dict[str, list[Operation]] = defaultdict(list)
        for answer in answers:
            by_question[answer.question].append(answer)
        used = history.runs[run].answers if run in history.runs else {}
        for question, given in by_question.items():
            won = [each for each in given if each.result == "ok" and not each.is_unknown]
            if len(won) > 1:
                yield f"H2: question {question!r} of {run!r} has {len(won)} winners"
            possible = won or [each for each in given if each.is_unknown]
            for value in used.get(question, ()):
                if value not in [each.value for each in possible]:
                    yield f"H2: question {question!r} of {run!r} used {value!r}, which no winner gave"
            if won and not used.get(question) and run in history.runs:
                yield f"H2: the answer to {question!r} of {run!r} was acknowledged and is lost"


def cancels_hold(history: RunHistory) -> Iterator[str]:
    for run, cancels in history.of("cancel").items():
        final = history.runs.get(run)
        ended = [each.end for each in cancels if each.result == "ok" and each.end is not None]
        if final is not None and final.status != "aborted" and any(final.ended_at > end for end in ended):
            yield f"H3: run {run!r} was cancelled and ended as {final.status}"


def watches_have_no_gap(history: RunHistory) -> Iterator[str]:
    for run, watches in history.of("watch").items():
        count = len(history.runs[run].epochs) if run in history.runs else 0
        for watch in watches:
            expected = tuple(range(watch.after + 1, watch.after + 1 + len(watch.seqs)))
            if watch.seqs != expected:
                yield f"H4: a watch of {run!r} after {watch.after} saw {watch.seqs}"
            elif watch.seqs and watch.seqs[-1] > count:
                yield f"H4: a watch of {run!r} saw record {watch.seqs[-1]} of {count}"


def looks_go_forward(history: RunHistory) -> Iterator[str]:
    for run, looks in history.of("look").items():
        seen: dict[str, Operation] = {}
        for look in looks:
            before = seen.get(look.process)
            if before is not None and look.records < before.records:
                yield f"H5: {look.process} saw {before.records} records of {run!r}, then {look.records}"
            if before is not None and RANKS[str(look.value)] < RANKS[str(before.value)]:
                yield f"H5: {look.process} saw run {run!r} as {before.value}, then as {look.value}"
            if before is not None and before.value in ENDED and look.value in ENDED and look.value != before.value:
                yield f"H5: ended run {run!r} changed from {before.value} to {look.value}"
            seen[look.process] = look


def waits_agree(history: RunHistory) -> Iterator[str]:
    for run, waits in history.of("wait").items():
        statuses = {each.value for each in waits if not each.is_unknown and each.value in ENDED}
        if len(statuses) > 1:
            yield f"H6: waits for run {run!r} returned {sorted(map(str, statuses))}"


def repeats_count_once(history: RunHistory) -> Iterator[str]:
    for run, final in history.runs.items():
        if final.admitted != 1:
            yield f"H7: run {run!r} was admitted {final.admitted} times"
        for question, values in final.answers.items():
            if len(values) > 1:
                yield f"H7: question {question!r} of {run!r} was answered {len(values)} times"


def epochs_grow(history: RunHistory) -> Iterator[str]:
    for run, final in history.runs.items():
        if list(final.epochs) != sorted(final.epochs):
            yield f"H8: the epochs of {run!r} are {final.epochs}"


def effects_happen_once(history: RunHistory) -> Iterator[str]:
    for run, final in history.runs.items():
        for (step, life), count in Counter((step, life) for step, life, _ in final.effects).items():
            if count > 1:
                yield f"H9: step {step!r} of {run!r} had {count} effects in life {life}"
        for step, life, at in final.effects:
            if at > final.commits.get(step, math.inf):
                yield f"H9: step {step!r} of {run!r} had an effect in life {life}, after its commit"
        for step in final.commits:
            if all(step != other for other, _, _ in final.effects):
                yield f"H9: step {step!r} of {run!r} is committed without its effect"


def operations_are_linearizable(history: RunHistory) -> Iterator[str]:
    for run, operations in history.of("submit", "fork", "answer", "cancel").items():
        for part in parts_of(operations):
            if not is_linearizable(part):
                yield f"H10: the operations of {run!r} have no order: {', '.join(map(shown, part))}"


def parts_of(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Split a long search by question; other operations belong to each part."""
    if len(operations) <= SEARCHED:
        return [list(operations)]
    questions = sorted({each.question for each in operations if each.verb == "answer"}) or [""]
    return [[each for each in operations if each.verb != "answer" or each.question == name] for name in questions]


def shown(operation: Operation) -> str:
    result = "unknown" if operation.is_unknown else operation.result
    return f"{operation.verb} {operation.question} by {operation.process}: {result}".replace("  ", " ")


State = tuple[bool, frozenset[str], bool]
"""Whether the run exists, its answered questions, and whether it is cancelled."""


def is_linearizable(operations: Sequence[Operation]) -> bool:
    """Return whether an order exists that explains all results (Wing and Gong)."""
    seen: set[tuple[frozenset[int], State]] = set()
    pending: list[tuple[frozenset[int], State]] = [(frozenset(range(len(operations))), (False, frozenset(), False))]
    while pending:
        left, state = pending.pop()
        if (left, state) in seen:
            continue
        seen.add((left, state))
        if all(operations[place].is_unknown for place in left):
            return True
        first_end = min(operations[place].latest for place in left)
        for place in left:
            each = operations[place]
            if each.begin <= first_end:
                pending.extend((left - {place}, after) for after in outcomes(each, state))
    return False


def outcomes(operation: Operation, state: State) -> Iterator[State]:
    """Yield the states after an operation here; none if its result is impossible."""
    exists, answered, cancelled = state
    is_ok = operation.result == "ok" or operation.is_unknown
    if operation.is_unknown:
        yield state
    match operation.verb:
        case "submit" | "fork" if is_ok and not exists:
            yield True, answered, cancelled
        case "submit" | "fork" if not is_ok and exists:
            yield state
        case "fork" if operation.result in ("RunNotFound", "DeclarationError"):  # its origin is not there yet
            yield state
        case "answer" if is_ok and exists and operation.question not in answered:  # a cancel is a request
            yield exists, answered | {operation.question}, cancelled
        case "answer" if not is_ok and (not exists or cancelled or operation.question in answered):
            yield state
        case "cancel" if is_ok and exists:
            yield exists, answered, True
        case "cancel" if not is_ok and (not exists or cancelled or answered):
            yield state
        case _:
            return


RULES: tuple[Callable[[RunHistory], Iterator[str]], ...] = (
    submits_stay,
    forks_copy_their_origin,
    one_answer_wins,
    cancels_hold,
    watches_have_no_gap,
    looks_go_forward,
    waits_agree,
    repeats_count_once,
    epochs_grow,
    effects_happen_once,
    operations_are_linearizable,
)
