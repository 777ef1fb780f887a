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
    "a lost fork": ("H1", RunHistory(operations=(op("fork", 0, 1),), runs={})),
    "a fork with other records": (
        "H1",
        RunHistory(
            operations=(),
            runs={
                RUN: FinalRun(status="completed", records=("admitted ", "settled a", "ended ")),
                "f": FinalRun(status="completed", records=("admitted ", "settled b"), origin=(RUN, 2)),
            },
        ),
    ),
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
    "a fork of a used id": ("H10", history(SUBMIT, op("fork", 2, 3, process="c2"))),
    "a second winner among many operations": (
        "H10",
        history(
            SUBMIT,
            *(op("submit", 2 + place, 3 + place, result="RunExists") for place in range(12)),
            op("answer", 20, 21, question="q", value=1),
            op("answer", 22, 23, question="q", value=2),
            op("answer", 22, 23, question="p", value=2),
            answers={"q": (1,), "p": (2,)},
        ),
    ),
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


class WorkingStore:
    """Store with one run, as it should be: each call takes effect at one time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.exists = self.cancelled = False
        self.answers: dict[str, tuple[object, ...]] = {}
        self.epochs: list[int] = []
        self.effects: list[tuple[str, int, float]] = []

    @property
    def status(self) -> str:
        done = self.cancelled or len(self.answers) == len(QUESTIONS)
        return "aborted" if self.cancelled else "completed" if done else "paused"

    def grow(self, at: float) -> None:
        """Let a worker write; a claim raises the epoch, and a killed worker repeats the effect of an open step."""
        last = self.epochs[-1] if self.epochs else 0
        self.epochs.append(last + self._rng.randint(0, 1))
        if not self.effects or self._rng.random() < 0.1:
            self.effects.append(("pay", len(self.effects) + 1, at))

    def call(self, verb: str, place: int, question: str, *, happens: bool) -> dict[str, object]:
        """Return the facts of a call, after its effect if it happens."""
        at = float(place * 10 + 10)
        match verb:
            case "submit" | "fork":
                existed, self.exists = self.exists, self.exists or happens
                if self.exists and not existed:
                    self.grow(at)
                return {"result": "RunExists" if existed else "ok"}
            case "look" | "wait" | "watch" if not self.exists:
                return {"result": "RunNotFound"}
            case "look" | "wait":
                return {"value": self.status, "records": len(self.epochs)}
            case "watch":
                after = self._rng.randint(0, len(self.epochs))
                return {"after": after, "seqs": tuple(range(after + 1, len(self.epochs) + 1))}
            case "answer":
                return self._answer(question, place, at, happens=happens)
            case _:
                return self._cancel(happens=happens)

    def _answer(self, question: str, value: int, at: float, *, happens: bool) -> dict[str, object]:
        if not self.exists or self.cancelled or question in self.answers:
            return {"result": "NotPaused", "value": value, "question": question}
        if happens:
            self.answers[question] = (value,)
            self.grow(at)
        return {"value": value, "question": question}

    def _cancel(self, *, happens: bool) -> dict[str, object]:
        if not self.exists or self.status == "completed":
            return {"result": "RunEnded" if self.exists else "RunNotFound"}
        self.cancelled = self.cancelled or happens
        return {}


VERBS = ("submit", "fork", "answer", "answer", "cancel", "look", "look", "watch", "wait")


def right_history(seed: int) -> RunHistory:
    """Return a history of a store that works, by the time at which each operation takes effect."""
    rng = random.Random(seed)
    store, busy, made = WorkingStore(rng), dict[str, float](), list[Operation]()
    for place in range(rng.randint(1, 24)):
        at, process = float(place * 10 + 10), f"c{rng.randint(1, 3)}"
        begin = min(at, max(at - rng.uniform(0, 25), busy.get(process, 0.0)))
        verb = "submit" if not store.exists and rng.random() < 0.8 else rng.choice(VERBS)
        is_unknown = rng.random() < 0.15
        facts = store.call(verb, place, rng.choice(QUESTIONS), happens=not is_unknown or rng.random() < 0.5)
        name, end = (f"dead {place}", None) if is_unknown else (process, max(at, begin) + rng.uniform(0, 9))
        busy[process] = at if end is None else end
        made.append(op(verb, begin, end, process=name, **facts))
    final = FinalRun(
        status="aborted" if store.cancelled else "completed",
        answers=store.answers,
        epochs=tuple(store.epochs),
        effects=tuple(store.effects),
        commits={"pay": store.effects[-1][2] + 1} if store.effects else {},
        ended_at=1_000.0,
    )
    return RunHistory(operations=tuple(made), runs={RUN: final} if store.exists else {})


def test_right_histories_are_accepted() -> None:
    """A thousand generated histories of a working store break no rule."""
    refused = {seed: found for seed in range(1_000) if (found := violations(right_history(seed)))}
    assert refused == {}
