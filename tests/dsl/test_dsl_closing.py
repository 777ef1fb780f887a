"""Which steps can be written down together with what is around them, read off a declaration."""

from __future__ import annotations

import pytest

from flujo_actors import Pipeline, Step


async def agent(data: object) -> object:
    return data


def step(name: str, **options: object) -> Step:
    return Step(name, agent, **options)


def fine(output: object) -> bool:
    return True


CASES = {
    "one step": (step("a"), {"a"}),
    "a chain": (step("a") >> step("b"), {"b"}),
    "a pipeline in the middle": (step("a") >> Pipeline([step("b"), step("c")], name="p") >> step("d"), {"p/c", "d"}),
    "a pipeline at the end": (step("a") >> Pipeline([step("b"), step("c")], name="p"), {"p", "p/c"}),
    "a choice": (
        Step.branch_on("which", lambda data, context: "x", {"x": step("a") >> step("b"), "y": step("c")}) >> step("d"),
        {"which/x", "which/x/b", "which/y", "d"},
    ),
    "branches": (Step.parallel("both", {"x": step("a"), "y": step("b")}) >> step("c"), {"both/x", "both/y", "c"}),
    "branches that take turns": (
        Step.parallel("both", {"x": step("a"), "y": step("b")}, max_concurrency=1) >> step("c"),
        {"c"},
    ),
    "branches with a reducer": (
        Step.parallel("both", {"x": step("a"), "y": step("b")}, merge={"n": lambda base, one, other: one}) >> step("c"),
        {"c"},
    ),
    "branches that are judged": (
        Step.parallel("both", {"x": step("a"), "y": step("b")}, validators=[fine]) >> step("c"),
        {"c"},
    ),
    "items": (Step.map_over("each", step("a") >> step("b"), items=range(3)) >> step("c"), {"c"}),
    "turns": (Step.loop_until("again", step("a") >> step("b"), lambda output, context: True) >> step("c"), {"c"}),
    "a name with a slash": (Pipeline([step("a/b")], name="p~") >> step("c"), {"p~0/a~1b", "c"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_closes_what_is_around_it_if_nothing_is_done_after_it(case: str) -> None:
    """The last of a row, any branch of a choice or of a parallel step; not where a user's code comes after it."""
    declared, expected = CASES[case]
    assert Pipeline.from_step(declared).coalesced_steps == expected
