"""Messages of failures name the step, its callable and the cause."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pydantic_ai import Agent

from flujo_actors import Flujo, Step
from flujo_actors.testing import scripted_model


async def load_user(data: Any) -> Any:
    """A function that fails."""
    raise KeyError("id")


def test_the_runs_feedback_and_the_log_name_step_and_callable(caplog: pytest.LogCaptureFixture) -> None:
    """The step's own feedback has the cause alone."""
    with caplog.at_level(logging.WARNING, "flujo_actors"):
        result = Flujo(Step("fetch", load_user)).run(1)
    own = "Agent execution failed with KeyError: 'id'"
    assert result.step_history[0].feedback == own
    assert result.feedback == f"step 'fetch' failed: {own} (agent: load_user)"
    assert "step 'fetch' failed at" in caplog.text
    assert "in load_user" in caplog.text
    assert own in caplog.text


def test_a_nested_failure_names_the_callable_once() -> None:
    """The innermost step is the one that called it."""
    nested = Step.sequence("outer", Step("fetch", load_user))
    text = str(Flujo(nested).run(1).feedback)
    assert text.count("load_user") == 1
    assert "step 'fetch' of 'outer' failed" in text


def test_a_model_agent_is_named_by_its_own_name() -> None:
    """Where it has one that is not the step's."""
    agent = Agent(scripted_model(ValueError("no")), name="clerk")
    assert "(agent: clerk)" in str(Flujo(Step("ask", agent)).run("x").feedback)
    assert "(agent:" not in str(Flujo(Step("clerk", agent)).run("x").feedback)
