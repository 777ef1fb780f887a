"""The model of a step's agent: the one that the agent itself would call."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability, SelectModel
from pydantic_ai.models.test import TestModel

from flujo_actors import Flujo, Step, UsageLimits

each_mode = pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])


class Choose(AbstractCapability[Any]):
    """Puts a model of its own in place of the agent's."""

    def get_model(self) -> TestModel:
        return TestModel(custom_output_text="chosen")


class Resolve(AbstractCapability[Any]):
    """Knows a name that no provider has."""

    async def resolve_model_id(self, ctx: Any, *, model_id: str) -> TestModel | None:
        return TestModel(custom_output_text="resolved") if model_id == "house-model" else None


def choose_in_run(ctx: Any) -> Choose:
    """A capability that is made for each run."""
    return Choose()


AGENTS: dict[str, Any] = {
    "get_model": lambda: Agent(TestModel(custom_output_text="own"), capabilities=[Choose()]),
    "selector": lambda: Agent(
        TestModel(custom_output_text="own"), capabilities=[SelectModel(lambda ctx: TestModel(custom_output_text="sel"))]
    ),
    "in the run": lambda: Agent(TestModel(custom_output_text="own"), capabilities=[choose_in_run]),
    "resolve_model_id": lambda: Agent("house-model", capabilities=[Resolve()]),
    "no capability": lambda: Agent(TestModel(custom_output_text="own")),
}


@each_mode
@pytest.mark.parametrize("made", AGENTS.values(), ids=list(AGENTS))
def test_a_step_calls_the_model_that_its_agent_would_call(make: Any, made: Any) -> None:
    """Capabilities that choose or resolve the model decide in steps as they do without them; requests are counted."""
    result = Flujo(make("ask", made())).run("x")
    assert result.output == made().run_sync("x").output
    assert result.step_history[0].usage.requests == 1


@each_mode
def test_a_model_that_a_capability_chose_is_metered_under_a_limit(make: Any) -> None:
    """Tokens of a chosen model count against the run's limit."""
    result = Flujo(make("ask", AGENTS["get_model"]()), usage_limits=UsageLimits(total_tokens_limit=1_000)).run("x")
    assert result.output == "chosen"
    assert result.total_tokens > 0
