"""The checker of histories: it finds every kind of wrong history, and accepts right ones."""

from __future__ import annotations

import random

import attrs
import pytest
from run_history import FinalRun, Operation, RunHistory, smallest, violations

RUN = "r"
QUESTIONS = ("q1", "q2")


def op(verb: str, begin: float, end: float | None, **facts: object) -> Operation:
    facts.setdefault("process", "c1")
    return Operation(verb=verb, run=RUN, begin=begin, end=end, **facts)  # type: ignore[arg-type]


def history(*operations: Operation, **final: object) -> RunHistory:
    run = FinalRun(**{"status": "completed", "epochs": (1, 1, 2), "ended_at": 50.0, **final})  # type: ignore[arg-type]
    return RunHistory(operations=operations, runs={RUN: run})


SUBMIT = op("submit", 0, 1)

WRONG: dict[str, tuple[str, RunHistory]] = {
    "a lost submit": ("H1", RunHistory(operations=(SUBMIT,), runs={})),
    "a run before its submit": ("H1", history(op("submit", 0, 1, result="RunExists"))),
    "a second winner": (
        "H2",
        history(SUBMIT, op("answer", 2, 3, question="q", value=1), op("answer", 4, 5, question="q", value=2)),
    ),
    "a value of no winner": (
        "H2",
        history(SUBMIT, op("answer", 2, 3, question="q", value=1), answers={"q": (7,)}),
    ),
    "a lost answer": ("H2", history(SUBMIT, op("answer", 2, 3, question="q", value=1))),
    "a cancel without effect": ("H3", history(SUBMIT, op("cancel", 2, 3))),
    "a gap in a watch": ("H4", history(op("watch", 2, 3, seqs=(1, 3)))),
    "a repeated record in a watch": ("H4", history(op("watch", 2, 3, seqs=(1, 1, 2)))),
    "a watch that begins too late": ("H4", history(op("watch", 2, 3, after=1, seqs=(3,)))),
    "a watch of records that are gone": ("H4", history(op("watch", 2, 3, seqs=(1, 2, 3, 4)))),
    "fewer records": (
        "H5",
        history(op("look", 2, 3, value="running", records=3), op("look", 4, 5, value="running", records=2)),
    ),
    "a status that goes back": (
        "H5",
        history(op("look", 2, 3, value="failed", records=3), op("look", 4, 5, value="running", records=3)),
    ),
    "an ended run that changes": (
        "H5",
        history(op("look", 2, 3, value="failed", records=3), op("look", 4, 5, value="completed", records=3)),
    ),
    "waits that disagree": ("H6", history(op("wait", 2, 3, value="completed"), op("wait", 2, 3, value="failed"))),
    "a submit that counts twice": ("H7", history(SUBMIT, op("submit", 2, 3, repeats=True), admitted=2)),
    "an answer that counts twice": (
        "H7",
        history(SUBMIT, op("answer", 2, None, question="q", value=1), answers={"q": (1, 1)}),
    ),
    "an epoch that goes back": ("H8", history(SUBMIT, epochs=(1, 2, 1))),
    "two effects in one life": ("H9", history(effects=(("pay", 1, 2.0), ("pay", 1, 3.0)))),
    "an effect after its commit": ("H9", history(effects=(("pay", 1, 2.0), ("pay", 2, 9.0)), commits={"pay": 3.0})),
    "a commit without its effect": ("H9", history(commits={"pay": 3.0})),
    "two submits that both made the run": ("H10", history(SUBMIT, op("submit", 2, 3, process="c2"))),
    "an answer before its run": (
        "H10",
        history(op("answer", 0, 1, question="q", value=1), op("submit", 2, 3), answers={"q": (1,)}),
    ),
    "a refusal without a reason": (
        "H10",
        history(SUBMIT, op("answer", 2, 3, question="q", value=1, result="AlreadyAnswered")),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_history_is_found(name: str) -> None:
    """Each is wrong in one way, and the sentence names the rule."""
    rule, wrong = WRONG[name]
    assert any(sentence.startswith(f"{rule}:") for sentence in violations(wrong)), violations(wrong)


def test_a_failure_shows_the_smallest_part() -> None:
    """Operations that do not matter are removed."""
    noise = [op("look", 10 + place, 11 + place, value="running", records=1, process="c3") for place in range(20)]
    _, wrong = WRONG["a second winner"]
    small = smallest(attrs.evolve(wrong, operations=(*wrong.operations, *noise)))
    assert len(small.operations) <= 2


def right_history(seed: int) -> RunHistory:
    """Return a history of a store that works, by the time at which each operation takes effect."""
    rng = random.Random(seed)
    exists, cancelled, used = False, False, dict[str, tuple[object, ...]]()
    made: list[Operation] = []
    busy: dict[str, float] = {}
    for place in range(rng.randint(1, 12)):
        at, process = float(place * 10 + 10), f"c{rng.randint(1, 3)}"
        begin = max(at - rng.uniform(0, 25), busy.get(process, 0.0))
        end = at + rng.uniform(0, 25)
        verb = "submit" if not exists and rng.random() < 0.8 else rng.choice(("submit", "answer", "cancel", "answer"))
        question = rng.choice(QUESTIONS) if verb == "answer" else ""
        happens, is_unknown = True, rng.random() < 0.15
        if is_unknown:
            happens = rng.random() < 0.5
        result = "ok"
        if verb == "submit":
            result = "RunExists" if exists else "ok"
            exists = exists or happens
        elif verb == "answer":
            refused = not exists or cancelled or question in used
            result = "NotPaused" if refused else "ok"
            if not refused and happens:
                used[question] = (place,)
        else:
            refused = not exists
            result = "RunNotFound" if refused else "ok"
            cancelled = cancelled or (happens and not refused)
        busy[process] = end
        made.append(
            Operation(
                process=process if not is_unknown else f"dead {place}",
                verb=verb,
                run=RUN,
                begin=min(begin, at),
                end=None if is_unknown else end,
                result=result,
                question=question,
                value=place,
            )
        )
    final = FinalRun(status="aborted" if cancelled else "completed", answers=used, ended_at=1_000.0)
    return RunHistory(operations=tuple(made), runs={RUN: final} if exists else {})


def test_right_histories_are_accepted() -> None:
    """A thousand generated histories of a working store break no rule."""
    refused = {seed: found for seed in range(1_000) if (found := violations(right_history(seed)))}
    assert refused == {}
