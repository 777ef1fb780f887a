"""Every step of a declaration has one place, and is found there again."""

from __future__ import annotations

import pytest

from flujo_actors import Flujo, Pipeline, Step
from flujo_actors._core.step_paths import StepPath
from flujo_actors._dsl.declaration_tree import find_step, walk_places, walk_steps
from flujo_actors._dsl.kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, Parallel
from flujo_actors._durable.fingerprint import Fingerprint


async def same(data: object) -> object:
    return data


def everything() -> Pipeline:
    """One step of each kind, and one kind inside the other."""
    loop = Step.loop_until("loop", Step("turn", same) >> Step("check", same), until=lambda output, context: True)
    branches = Step.branch_on("choose", lambda data, context: "x", {"a/b": loop, 1: Step("one", same)}, default=same)
    return Pipeline(
        [
            Step("plain", same, fallback=Step("standby", same, fallback=same)),
            Step.parallel("all", {"left": branches, "right": Pipeline([same], name="inner")}),
            Step.map_over("each", Step("item", same), fallback=Step("instead", same)),
            Step.human_in_the_loop("ask", "Fine?"),
        ]
    )


def test_a_step_is_found_at_the_place_where_the_walk_meets_it() -> None:
    """Walking and finding are folds over the same children."""
    root = everything()
    places = dict(walk_places(root))
    assert [find_step(root, path) for path in places] == list(places.values())
    assert list(walk_steps(root)) == list(places.values())
    assert list(Fingerprint.of(root).steps) == list(places)[1:]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("plain/~f/~f", "same"),
        ("all/~a2/left/a~1b/~i3/turn", "turn"),
        ("all/left/x", "same"),
        ("all/left/~default", "same"),
        ("each/~i70", "item"),
        ("each/~a3/~f", "instead"),
    ],
)
def test_a_path_of_a_run_leads_to_the_declaration(path: str, name: str) -> None:
    """Attempts, items and whatever the default was taken for have one declaration."""
    found = find_step(everything(), StepPath(path))
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("path", ["gone", "plain/x", "plain/~u0", "all/~x", "each/item", "ask/~f"])
def test_a_path_that_leads_nowhere_finds_nothing(path: str) -> None:
    """Also one that this version does not write."""
    assert find_step(everything(), StepPath(path)) is None


@pytest.mark.parametrize("kind", [Parallel, MapOver, BranchOn, LoopUntil, HumanInTheLoop, Pipeline, Step])
def test_every_kind_has_a_name_of_its_own(kind: type) -> None:
    """Stored fingerprints tell them apart by it."""
    others = {Parallel, MapOver, BranchOn, LoopUntil, HumanInTheLoop, Pipeline, Step} - {kind}
    assert kind.kind not in {each.kind for each in others}  # type: ignore[attr-defined]


def test_a_declaration_of_every_kind_makes_a_flujo() -> None:
    """What was walked above is no fiction."""
    assert Flujo(everything()) is not None
