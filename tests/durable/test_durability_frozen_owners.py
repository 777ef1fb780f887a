"""Owners that were stopped past their lease: whatever would have begun next does not begin."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flujo_actors import Backoff, Flujo, LeaseLost, Pipeline, Redirect, Step, StepFailure, Undo
from flujo_actors._durable import leases
from kit.durable_places import AN_HOUR_LATER, SqlitePlace
from kit.effects import Effects
from kit.other_processes import ended, forked

pytestmark = pytest.mark.slow

LOST = 4


@attrs.frozen
class Process:
    """One process that works on the run: the owner is stopped where the pipeline says so."""

    effects: Effects
    owns: bool

    def stop(self) -> None:
        """Stop the owner until somebody continues it; before this returns, so it is sent to the calling thread."""
        if self.owns:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def stop_soon(self) -> None:
        """Stop the owner while it waits for something."""
        if self.owns:
            threading.Timer(0.1, self.stop).start()

    def act(self, data: object = None) -> str:
        """Do something that cannot be undone."""
        self.effects.add("owner" if self.owns else "thief")
        return "done"

    async def acts(self, data: object) -> str:
        return self.act()


def a_retry(process: Process) -> Pipeline:
    """Stopped while it waits for its next attempt."""
    tried: list[object] = []

    async def twice(data: object) -> str:
        if process.owns and not tried:
            tried.append(data)
            process.stop_soon()
            raise ConnectionError("try again")
        return process.act()

    return Pipeline([Step("twice", twice, max_retries=1, backoff=Backoff(first=3.0, jitter=0.0))])


def a_branch(process: Process) -> Pipeline:
    """Stopped by the branch that happened to begin before it."""
    begun: list[object] = []

    async def second_acts(data: object) -> str:
        begun.append(data)
        if len(begun) > 1:
            return process.act()
        process.stop()
        return "stopped"

    return Pipeline([Step.parallel("both", {"a": Step("a", second_acts), "b": Step("b", second_acts)})])


def a_call_after_a_processor(process: Process) -> Pipeline:
    """Stopped in what prepares its input."""

    def prepare(data: object) -> object:
        process.stop()
        return data

    return Pipeline([Step("acts", process.acts, processors={"before": [prepare]})])


def a_call_that_waited_for_a_thread(process: Process) -> Pipeline:
    """Stopped by the step in the only thread."""

    begun: list[object] = []

    def second_acts(data: object) -> str:
        begun.append(data)
        if len(begun) > 1:
            return process.act()
        process.stop()
        return "stopped"

    return Pipeline([Step.parallel("both", {"a": Step("a", second_acts), "b": Step("b", second_acts)})])


def another_agent(process: Process) -> Pipeline:
    """Stopped in the validator that gives the work to another agent."""

    async def first(data: object) -> str:
        return "first"

    def validate(output: object) -> object:
        process.stop()
        return Redirect(to=process.acts, feedback="ask somebody else") if output == "first" else None

    return Pipeline([Step("first", first, validators=[validate])])


def a_tool(process: Process) -> Pipeline:
    """Stopped while the model chooses it."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse([TextPart("done")])
        process.stop()
        return ModelResponse([ToolCallPart("act", {})])

    agent: Agent[None, str] = Agent(FunctionModel(model))
    agent.tool_plain(name="act")(lambda: process.act())
    return Pipeline([Step("agent", agent)])


def a_request(process: Process) -> Pipeline:
    """Stopped in the tool whose result the model would be told."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("stop", {})])
        return ModelResponse([TextPart(process.act())])

    async def stop() -> str:
        process.stop()
        return "stopped"

    agent: Agent[None, str] = Agent(FunctionModel(model))
    agent.tool_plain(stop)
    return Pipeline([Step("agent", agent)])


def a_compensation(process: Process) -> Pipeline:
    """Stopped in the step whose failure is compensated."""

    async def pay(data: object) -> str:
        return "paid"

    async def recall(undo: Undo) -> None:
        process.act()

    async def fail(data: object) -> str:
        process.stop()
        raise ValueError("no")

    return Pipeline([Step("pay", pay, compensate=recall), Step("fail", fail)])


def the_next_compensation(process: Process) -> Pipeline:
    """Stopped in the compensation of a later step."""

    async def done(data: object) -> str:
        return "done"

    async def recall(undo: Undo) -> None:
        process.act()

    async def stop(undo: Undo) -> None:
        process.stop()

    async def fail(data: object) -> str:
        raise ValueError("no")

    return Pipeline([Step("pay", done, compensate=recall), Step("book", done, compensate=stop), Step("fail", fail)])


def a_failure_handler(process: Process) -> Pipeline:
    """Stopped in the step whose failure is handled."""

    async def notify(failure: StepFailure) -> None:
        process.act()

    async def fail(data: object) -> str:
        process.stop()
        raise ValueError("no")

    return Pipeline([Step("fail", fail, on_failure=[notify])])


def a_granular_tool(process: Process) -> Pipeline:
    """Stopped while the model of a granular step chooses it."""
    return _granular(a_tool(process))


def a_granular_request(process: Process) -> Pipeline:
    """Stopped in the tool of a granular step whose result the model reads."""
    return _granular(a_request(process))


def _granular(pipeline: Pipeline) -> Pipeline:
    step: Any = pipeline.steps[0]
    return Pipeline([Step.granular("agent", step.agent)])


def expire_with(late: Path) -> None:
    """Let leases of this process expire by its own clock when a file exists: no stop is too long or too short."""
    elapsed_s = leases.elapsed_s
    leases.elapsed_s = lambda: elapsed_s() + (3600.0 if late.exists() else 0.0)


@pytest.mark.parametrize(
    "next_effect",
    [
        a_retry,
        a_branch,
        a_call_after_a_processor,
        a_call_that_waited_for_a_thread,
        another_agent,
        a_tool,
        a_request,
        a_compensation,
        the_next_compensation,
        a_failure_handler,
        a_granular_tool,
        a_granular_request,
    ],
)
def test_an_owner_that_was_stopped_past_its_lease_begins_nothing(
    next_effect: Callable[[Process], Pipeline], sqlite_place: SqlitePlace, effects: Effects
) -> None:
    """Another process has finished the run meanwhile: what it committed is not done a second time."""
    late = effects.file.with_name("late")

    def own() -> None:
        expire_with(late)
        try:
            Flujo(
                next_effect(Process(effects, owns=True)), store=sqlite_place.open(), settings={"sync_step_threads": 1}
            ).run("x", run_id="run")
        except LeaseLost:
            os._exit(LOST)

    owner = forked(own)
    assert os.WIFSTOPPED(os.waitpid(owner, os.WUNTRACED)[1])
    thief = Flujo(next_effect(Process(effects, owns=False)), store=sqlite_place.open(AN_HOUR_LATER))
    assert thief.resume("run").status in ("completed", "failed")
    late.touch()
    os.kill(owner, signal.SIGCONT)
    assert ended(owner) == LOST
    assert effects.counted() == {"thief": 1}


def test_an_owner_that_was_stopped_goes_on_if_nobody_took_the_run(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """The store is asked before the next attempt, and renews a lease that expired and was not taken."""

    late = effects.file.with_name("late")

    def own() -> None:
        expire_with(late)
        flujo = Flujo(a_retry(Process(effects, owns=True)), store=sqlite_place.open())
        assert flujo.run("x", run_id="run").status == "completed"

    owner = forked(own)
    assert os.WIFSTOPPED(os.waitpid(owner, os.WUNTRACED)[1])
    late.touch()
    os.kill(owner, signal.SIGCONT)
    assert ended(owner) == 0
    assert effects.counted() == {"owner": 1}
