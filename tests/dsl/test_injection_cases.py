"""The four test cases of FSD-11, run by `Flujo`; the model agent is looked at, not called."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from flujo_actors import Failure, Flujo, Step
from flujo_actors._dsl.call_plan import plan_agent


class MyContext(pydantic.BaseModel):
    seen: list[str] = []


def test_case_1_a_model_agent_gets_neither_context_nor_resources() -> None:
    """A bare pydantic-ai agent is called as a model agent, without keywords, although a context is configured."""
    plan = plan_agent(Agent(TestModel()), step_name="model")
    assert plan.shape == "model"
    assert plan.keywords == frozenset()
    flujo = Flujo(Step("model", Agent(TestModel())), context_model=MyContext)
    (step,) = flujo.pipeline.steps
    assert not step.shows_context  # type: ignore[union-attr]


def test_case_1_the_run_method_of_a_model_agent_gets_nothing_either() -> None:
    """Whoever hands over `agent.run` instead of the agent does not get a `TypeError` for it."""
    assert plan_agent(Agent(TestModel()).run, step_name="model").keywords == frozenset()


class Stateless:
    async def run(self, data: str) -> str:
        return data.upper()


def test_case_1_a_stateless_agent_runs_beside_a_context_model() -> None:
    """An agent that knows nothing of contexts completes, and the context is not passed to it."""
    result = Flujo(Step("plain", Stateless()), context_model=MyContext).run("text")
    assert (result.status, result.output, result.final_context) == ("completed", "TEXT", MyContext())


class Explicit:
    async def run(self, data: str, *, context: MyContext) -> str:
        context.seen.append(data)
        return f"{data}{len(context.seen)}"


def test_case_2_an_explicit_context_parameter_receives_the_context() -> None:
    """The agent gets the context model and what it changes is kept."""
    flujo = Flujo(Step("a", Explicit()) >> Step("b", Explicit()), context_model=MyContext)
    result = flujo.run("x")
    assert (result.success, result.output) == (True, "x12")
    assert result.final_context == MyContext(seen=["x", "x1"])


class Sweeping:
    def __init__(self) -> None:
        self.got: dict[str, Any] = {}

    async def run(self, data: str, **kwargs: Any) -> str:
        self.got = dict(kwargs)
        return data


def test_case_3_kwargs_receive_the_context() -> None:
    """An agent with `**kwargs` finds the context there, and the resources if there are any."""
    agent = Sweeping()
    assert Flujo(Step("a", agent), context_model=MyContext).run("x").success
    assert agent.got == {"context": MyContext()}
    assert Flujo(Step("a", agent), context_model=MyContext, resources="pool").run("x").success
    assert agent.got == {"context": MyContext(), "resources": "pool"}


class Failing:
    async def run(self, data: str) -> str:
        raise ValueError("Internal error")


def test_case_4_the_original_error_is_in_the_feedback() -> None:
    """Type and message of the exception reach the step's feedback and the run's."""
    result = Flujo(Step("a", Failing()), context_model=MyContext).run("x")
    assert result.status == "failed"
    (step,) = result.step_history
    assert step.feedback == "Agent execution failed with ValueError: Internal error"
    assert "ValueError: Internal error" in (result.feedback or "")


@pytest.mark.trio
async def test_case_4_the_original_exception_is_in_the_failure() -> None:
    """In its own process the failure holds the exception itself, with its traceback."""
    outcomes = [outcome async for outcome in Flujo(Step("a", Failing())).run_async("x")]
    (failure,) = outcomes
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, ValueError)
    assert failure.error.__traceback__ is not None


def test_the_call_plan_is_made_once() -> None:
    """Signatures are read when a step is declared, not when it runs."""

    class Watched:
        reads = 0

        @property
        def run(self) -> Any:
            Watched.reads += 1
            return Explicit().run

    flujo = Flujo(Step("a", Watched()), context_model=MyContext)
    declared = Watched.reads
    for _ in range(3):
        assert flujo.run("x").success
    assert Watched.reads == declared
