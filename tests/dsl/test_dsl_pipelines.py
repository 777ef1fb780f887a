"""Pipelines: sequences without duplicates, dissolving where they have no name."""

from __future__ import annotations

import time
from typing import Any

import pytest

from flujo_actors import Pipeline, Step
from flujo_actors.errors import DeclarationError


async def agent(data: Any) -> Any:
    return data


def steps(*names: str) -> list[Step]:
    return [Step(name, agent) for name in names]


def test_two_steps_of_one_name_are_refused_with_both_places() -> None:
    """The message names the name and both positions."""
    with pytest.raises(DeclarationError, match="named 'a': number 1 and number 3"):
        Pipeline(steps("a", "b", "a"))
    a, b, c = steps("a", "b", "a")
    with pytest.raises(DeclarationError, match="named 'a': number 1 and number 3"):
        a >> b >> c


def test_a_nested_pipeline_has_names_of_its_own() -> None:
    """The same name in two pipelines is no duplicate; a nested pipeline's own name counts outside."""
    a, b = steps("a", "b")
    assert len(Pipeline([a, Pipeline([a, b], name="inner")]).steps) == 2
    with pytest.raises(DeclarationError, match="named 'a': number 1 and number 2"):
        Pipeline([a, Pipeline([b], name="a")])


def test_a_nameless_nested_pipeline_is_called_by_its_place() -> None:
    """And a step that has taken that name is a duplicate."""
    a, b = steps("a", "b")
    assert list(Pipeline([a, Pipeline([b])]).step_names()) == ["a", "pipeline 2"]
    with pytest.raises(DeclarationError, match="named 'pipeline 2': number 1 and number 2"):
        Pipeline([Step("pipeline 2", agent), Pipeline([b])])


def test_nameless_pipelines_dissolve_and_named_ones_stay() -> None:
    """`>>` is associative for steps; a pipeline with a name is one step."""
    a, b, c, d = steps("a", "b", "c", "d")
    assert ((a >> b) >> (c >> d)).steps == (a, b, c, d) == (a >> (b >> (c >> d))).steps
    named = Pipeline([b, c], name="middle")
    assert (a >> named >> d).steps == (a, named, d)
    assert (named >> a).steps == (named, a)
    assert (named >> a).name is None


@pytest.mark.parametrize("other", [int, None, "step", [Step("z", agent)]])
def test_only_steps_can_be_chained(other: Any) -> None:
    """The right-hand side of `>>` is a step or a pipeline."""
    for left in (Step("a", agent), Pipeline(steps("a"))):
        with pytest.raises(DeclarationError, match="the right-hand side of >> must be a step or a pipeline"):
            left >> other


@pytest.mark.parametrize(
    ("made_of", "problem"),
    [
        ([], "a pipeline needs at least one step"),
        (5, "a pipeline is made of steps, not 5"),
        ([int], "step number 1 of a pipeline must be a step or a pipeline"),
        ([Step("a", agent), None], "step number 2 of a pipeline must be a step"),
    ],
)
def test_a_pipeline_is_made_of_steps(made_of: Any, problem: str) -> None:
    """What is no step is named by its place."""
    with pytest.raises(DeclarationError, match=problem):
        Pipeline(made_of)


@pytest.mark.parametrize("name", ["", 5])
def test_a_pipeline_name_is_a_text_or_nothing(name: Any) -> None:
    """An empty name would be neither a name nor none."""
    with pytest.raises(DeclarationError, match="a pipeline's name must be a non-empty text or None"):
        Pipeline(steps("a"), name=name)


def test_from_step_takes_steps_and_pipelines() -> None:
    """A pipeline stays what it is; a generator of steps is read once."""
    (a,) = steps("a")
    pipeline = Pipeline.from_step(a)
    assert pipeline.steps == (a,)
    assert Pipeline.from_step(pipeline) is pipeline
    assert Pipeline(a).steps == (a,)
    assert len(Pipeline(each for each in steps("a", "b")).steps) == 2


def test_a_thousand_nested_pipelines_are_cheap_to_declare_and_to_show() -> None:
    """Declaring, showing and chaining look at one level only."""
    begun = time.perf_counter()
    nested: Any = Step("core", agent)
    for level in range(1000):
        nested = Pipeline([nested], name=f"level {level}")
        nested = Step.loop_until(f"loop {level}", nested, lambda *_: True) if level % 3 == 0 else nested
    shown = repr(nested >> Step("after", agent))
    assert shown == "Pipeline(level 999 >> after)" or shown == "Pipeline(loop 999 >> after)"
    assert time.perf_counter() - begun < 60


def test_a_long_pipeline_is_shown_in_short() -> None:
    """The first and the last names are enough."""
    assert repr(Pipeline(steps(*"abcdefgh"), name="long")) == "Pipeline('long': a >> b >> c >> … >> g >> h)"
    assert repr(steps("a")[0]) == "Step('a')"
