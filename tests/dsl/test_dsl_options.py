"""What type checkers know of the options of steps is what the steps have."""

from __future__ import annotations

import attrs
import pytest

from flujo_actors import Step
from flujo_actors._dsl import step_declaration
from flujo_actors._dsl.kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, Parallel, SequenceOf

OF_THE_KIND = {
    Parallel: {"branches"},
    MapOver: {"body", "items", "max_concurrency"},
    BranchOn: {"select", "branches", "default"},
    LoopUntil: {"body", "until", "max_loops"},
    SequenceOf: {"body"},
    HumanInTheLoop: {"message", "input_schema"},
}


def _options(kind: type) -> set[str]:
    return {field.name for field in attrs.fields(kind) if field.init} - {"name"}


def _told(typed: type) -> set[str]:
    return set(typed.__annotations__)


def test_every_option_of_an_agents_step_is_spelled_for_type_checkers():
    """An option that a step takes, and its editor does not know, would be called a mistake."""
    assert _told(step_declaration.AllOptions) == _options(Step) - {"agent", "resumable"}


@pytest.mark.parametrize("kind", OF_THE_KIND, ids=lambda kind: kind.__name__)
def test_every_option_of_every_kind_is_spelled_for_type_checkers(kind: type):
    """… and so it is with the kinds that contain others."""
    kinds = {
        Parallel: step_declaration.ParallelOptions,
        MapOver: step_declaration.MapOptions,
        LoopUntil: step_declaration.LoopOptions,
    }
    told = kinds.get(kind, step_declaration.KindOptions)
    assert _told(told) == _options(kind) - OF_THE_KIND[kind]
