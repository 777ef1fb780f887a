"""The messages of a run: frozen, slotted, keyword-only, closed."""

from __future__ import annotations

import typing
from typing import Any

import attrs
import pytest

from flujo_actors import (
    Aborted,
    Chunk,
    ErrorInfo,
    Failure,
    Paused,
    PipelineResult,
    StepOutcome,
    StepResult,
    Success,
    UsageLimits,
)
from flujo_actors._core.usage import NO_USAGE, Usage
from flujo_actors.errors import DeclarationError

RESULT = StepResult(name="a")
MESSAGES = [
    RESULT,
    Success(step_result=RESULT),
    Failure(),
    Paused(message="?"),
    Aborted(reason="late"),
    Chunk(data="x"),
    PipelineResult(run_id="1", status="completed"),
    ErrorInfo(type_name="ValueError", message="x"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_are_frozen_slotted_and_keyword_only(message: Any) -> None:
    """No field can be set, none can be added, and none is given by position."""
    fields = attrs.fields(type(message))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(message, fields[0].name, None)
    with pytest.raises((AttributeError, TypeError)):
        message.unheard_of = 1
    assert not hasattr(message, "__dict__")
    assert all(field.kw_only for field in fields)


def test_the_outcomes_are_closed() -> None:
    """A step says one of five things."""
    assert set(typing.get_args(StepOutcome)) == {Success, Failure, Paused, Aborted, Chunk}


@pytest.mark.parametrize(
    ("status", "success"), [("completed", True), ("failed", False), ("paused", False), ("aborted", False)]
)
def test_only_a_completed_run_is_a_success(status: Any, success: bool) -> None:
    """`success` follows from `status`."""
    assert PipelineResult(run_id="1", status=status).success is success


def test_a_history_given_as_a_list_is_kept_as_a_tuple() -> None:
    """Results cannot be changed through the list they were made from."""
    history = [RESULT]
    result = PipelineResult(run_id="1", status="completed", step_history=history)
    history.clear()
    assert result.step_history == (RESULT,)


def test_walking_visits_parents_before_children() -> None:
    """Every result comes with its depth, in the order of the tree, however deep that is."""
    inner = StepResult(name="b", step_history=(StepResult(name="c"),))
    run = PipelineResult(run_id="1", status="completed", step_history=(RESULT, inner, StepResult(name="d")))
    assert [(depth, result.name) for depth, result in run.walk()] == [(0, "a"), (0, "b"), (1, "c"), (0, "d")]
    deep = RESULT
    for _ in range(2000):
        deep = StepResult(name="n", step_history=(deep,))
    assert sum(1 for _ in PipelineResult(run_id="1", status="failed", step_history=(deep,)).walk()) == 2001


def test_usage_adds_up() -> None:
    """Usage is a sum with a neutral element."""
    one = Usage(input_tokens=1, output_tokens=2, cached_tokens=1, requests=1, tool_calls=3, cost_usd=0.5)
    assert one + NO_USAGE == one == NO_USAGE + one
    assert one + one == Usage(input_tokens=2, output_tokens=4, cached_tokens=2, requests=2, tool_calls=6, cost_usd=1.0)
    assert (one + one).tokens == 6


@pytest.mark.parametrize("wrong", [-1, float("nan"), True, "5"])
def test_a_limit_is_a_number_that_is_not_negative(wrong: Any) -> None:
    """A wrong limit fails where it is declared, by its name."""
    with pytest.raises(DeclarationError, match="total_cost_usd_limit"):
        UsageLimits(total_cost_usd_limit=wrong)
    with pytest.raises(DeclarationError, match="total_tokens_limit"):
        UsageLimits(total_tokens_limit=wrong)
