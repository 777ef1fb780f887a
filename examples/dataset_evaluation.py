"""An evaluation with a baseline, offline. Run it: `python examples/dataset_evaluation.py`; it needs the extra `evals`.

Two versions of a pipeline answer the cases of a dataset. Each case is a durable run; the second version is compared
with the first, and gates decide whether it may be released.
"""

from dataclasses import dataclass
from typing import Any

from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EqualsExpected, Evaluator, EvaluatorContext

from flujo_actors import Flujo, MemoryStore, Pipeline, Step

TICKETS = {"refund": "billing", "invoice": "billing", "password": "account", "login": "account", "crash": "support"}


def first(ticket: str) -> str:
    """Return the department of a ticket, by the word `invoice` only."""
    return "billing" if "invoice" in ticket else "support"


def second(ticket: str) -> str:
    """Return the department of a ticket, by all known words."""
    return next((department for word, department in TICKETS.items() if word in ticket), "support")


@dataclass
class Brief(Evaluator[str, str, None]):
    """Score of an answer: short names are better."""

    def evaluate(self, ctx: EvaluatorContext[str, str, None]) -> float:
        return 1.0 / len(ctx.output)


cases = [
    Case(name=f"{word} {number}", inputs=f"My {word} does not work ({number})", expected_output=department)
    for word, department in TICKETS.items()
    for number in range(3)
]
dataset: Dataset[str, str, Any] = Dataset(name="tickets", cases=cases, evaluators=[EqualsExpected(), Brief()])


def main() -> None:
    store = MemoryStore()
    old = Flujo(Pipeline([Step("route", first)], name="routing"), store=store)
    new = Flujo(Pipeline([Step("route", second)], name="routing"), store=store)
    before = old.evaluate(dataset, run_id="v1")
    print(f"v1: {before.pass_rate():.0%} of the cases pass")
    after = new.evaluate(dataset, run_id="v2", baseline="v1", gates=["pass>=0.9", "pass not worse", "cost<=1.1x"])
    print(f"v2: {after.pass_rate():.0%} of the cases pass")
    assert after.comparison is not None
    delta = after.comparison.delta("pass")
    assert delta is not None
    print(f"difference {delta.difference:+.2f}, 95 % interval {delta.low:+.2f} to {delta.high:+.2f}: {delta.verdict}")
    for gate in after.gates:
        print(gate)
    print("release it" if after.passed else "keep the old version")


if __name__ == "__main__":
    main()
