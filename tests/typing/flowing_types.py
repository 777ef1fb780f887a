"""Checked by mypy and pyright, never run: the types of data flow through steps, pipelines, runs and results.

A line with `type: ignore` is a mistake that both checkers must find: one that silences nothing is an error itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, assert_type

import attrs
from pydantic import BaseModel
from pydantic_ai import Agent

from flujo_actors import (
    AgentStep,
    Compensate,
    Context,
    Flujo,
    LoopGuard,
    Pipeline,
    PipelineResult,
    Processors,
    RunHandle,
    SqliteStore,
    Step,
    StepResult,
    Success,
    ThompsonSampling,
    Votes,
    make_agent_async,
    step,
)


class Triage(BaseModel):
    risk: str


@attrs.define
class Notes:
    lines: list[str]


async def double(x: int) -> int:
    return 2 * x


async def show(x: int, *, context: Notes) -> str:
    return f"{x} {context.lines}"


def length(text: str) -> int:
    return len(text)


async def words(text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield word


async def raw(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


async def numbers(text: str) -> AsyncIterator[int]:
    yield len(text)


async def now() -> float:
    return 0.0


async def either(x: int | str) -> int:
    return int(x)


class Clerk:
    async def run(self, data: str, *, context: Notes) -> Triage:
        return Triage(risk=data)


agent: Agent[None, Triage] = Agent("test", output_type=Triage)

# --- a step knows what it takes and gives (1 to 15) ---

assert_type(Step("a", double), Step[int, int])
assert_type(Step("a", show), Step[int, str])
assert_type(Step("a", length), Step[str, int])
assert_type(Step("a", words), Step[str, str])
assert_type(Step("a", raw), Step[str, bytes])
assert_type(Step("a", numbers), Step[str, list[int]])
assert_type(Step("a", now), Step[Any, float])
assert_type(Step("a", Clerk()), Step[str, Triage])
assert_type(Step("a", agent), Step[Any, Triage])
assert_type(Step("a", double, input=3), Step[Any, int])
assert_type(Step("a", words, input="text"), Step[Any, str])
assert_type(Step("a", agent, input="What is it?", max_retries=2), Step[Any, Triage])
assert_type(Step("a", double, processors=Processors(after=str)), Step[Any, Any])
assert_type(Step("a", agent, processing={"schema": Triage}), Step[Any, Any])
assert_type(Step.granular("a", agent, max_turns=3), Step[Any, Triage])

# --- functions become steps (16 to 22) ---

assert_type(Step.from_callable(double), Step[int, int])
assert_type(Step.from_callable(length, "named", max_retries=1), Step[str, int])
assert_type(Step.from_callable(words), Step[str, str])
assert_type(Step.from_callable(double, input=1), Step[Any, int])


@step
async def shout(text: str) -> str:
    return text.upper()


@step(name="loud", max_retries=2)
async def louder(text: str) -> str:
    return text


@step
def count(text: str) -> int:
    return len(text)


assert_type(shout, Step[str, str])
assert_type(louder, Step[str, str])
assert_type(count, Step[str, int])

# --- what follows must take what comes (23 to 34) ---

doubled, shown = Step("double", double), Step("show", show)
assert_type(doubled >> shown, Pipeline[int, str])
assert_type(doubled >> shown >> shout >> count, Pipeline[int, int])
assert_type(doubled >> (shown >> shout), Pipeline[int, str])
assert_type(doubled >> show, Pipeline[int, str])
assert_type(double >> shown, Pipeline[int, str])
assert_type(shout >> words, Pipeline[str, str])
assert_type(shout >> length, Pipeline[str, int])
assert_type(doubled >> Step("either", either), Pipeline[int, int])
assert_type(shown >> Step("fixed", double, input=1), Pipeline[int, int])
assert_type(Pipeline.from_step(shown), Pipeline[int, str])
assert_type(Pipeline([doubled, shown]), Pipeline[Any, Any])
_ = doubled >> shout  # type: ignore[operator]
_ = shown >> doubled  # type: ignore[operator]
_ = (doubled >> shown) >> double  # type: ignore[operator]
_ = doubled >> (shout >> count)  # type: ignore[operator]
_ = doubled >> 7  # type: ignore[operator]

# --- steps that contain others (35 to 46) ---

assert_type(Step.parallel("p", {"a": doubled, "b": Step("c", double)}).name, str)
together = Flujo(Step.parallel("p", {"a": doubled, "b": Step("c", double)})).run(1)
assert_type(together.output, dict[str, int])
each = Flujo(Step.map_over("m", doubled)).run([1, 2, 3])
assert_type(each.output, list[int])
given = Flujo(Step.map_over("m", shown, items=[1, 2])).run("whatever")
assert_type(given.output, list[str])
chosen = Flujo(Step.branch_on("b", lambda data, context: "a", {"a": doubled, "b": Step("c", double)})).run(1)
assert_type(chosen.output, int)
turned = Flujo(Step.loop_until("l", doubled, lambda output, context: output > 9)).run(1)
assert_type(turned.output, int)
asked = Flujo(Step.human_in_the_loop("h", "Sure?", input_schema=bool)).run(None)
assert_type(asked.output, bool)
free = Flujo(Step.human_in_the_loop("h", "Sure?")).run(None)
assert_type(free.output, Any)
in_threads = Flujo(Step.parallel("p", {"a": length})).run("text")
assert_type(in_threads.output, dict[str, Any])
Flujo(Step.map_over("m", doubled)).run(5)  # type: ignore[arg-type]
Step.loop_until("l", shown, lambda output, context: True)  # type: ignore[misc]
Step.parallel("p", {"a": 7})  # type: ignore[arg-type]
Step.parallel("p", {"a": doubled}, merge="guess")  # type: ignore[call-overload]

# --- running (47 to 62) ---

flujo = Flujo(doubled >> shown, context_model=Notes, initial_context_data={"lines": []})
assert_type(flujo, Flujo[int, str, Notes])
result = flujo.run(3)
assert_type(result, PipelineResult[str, Notes])
assert_type(result.output, str)
assert_type(result.unwrap(), str)
assert_type(result.final_context, Notes)
assert_type(Flujo(doubled).run(1).final_context, Context)
assert_type(Flujo(double).run(1).output, int)
assert_type(flujo.run_async(3), RunHandle[str, Notes])
assert_type(flujo.resume("token", True).output, str)
assert_type(flujo.run_async(3, chunks="last"), RunHandle[str, Notes])
flujo.run_async(3, chunks=False)
flujo.resume_async("token", chunks=["draft", "enrich/kb"])
flujo.run_async(3, chunks=3)  # type: ignore[arg-type]
flujo.run_async(3, chunks=[3])  # type: ignore[list-item]
flujo.run("three")  # type: ignore[arg-type]
flujo.run_async("three")  # type: ignore[arg-type]
result.output.missing  # type: ignore[attr-defined]
Flujo(doubled, store=SqliteStore("runs.db"))
Flujo(doubled, store="sqlite:///runs.db")
Flujo(doubled, store=42)  # type: ignore[call-overload]
Flujo(doubled, stoer="sqlite:///runs.db")  # type: ignore[call-overload]


async def in_a_loop() -> None:
    assert_type(await flujo.run_async(3), PipelineResult[str, Notes])
    async with flujo.run_async(3) as run:
        assert_type(await run, PipelineResult[str, Notes])
    assert_type((await flujo.resume_async("token", 5)).output, str)


# --- results, and options that are misspelt (63 to 72) ---

assert_type(StepResult(name="a", output=3), StepResult[int])
assert_type(Success(step_result=StepResult(name="a", output="b")), Success[str])


def told(success: Success[int]) -> int:
    return success.step_result.output


told(Success(step_result=StepResult(name="a", output="b")))  # type: ignore[arg-type]
Step("a", double, max_retrys=2)  # type: ignore[call-overload]
Step("a", double, timeout_s="soon")  # type: ignore[call-overload]
Step("a", 42)  # type: ignore[call-overload]
Step.map_over("m", doubled, max_concurency=3)  # type: ignore[call-overload]
Step.human_in_the_loop("h", "Sure?", retries=3)  # type: ignore[call-overload]
Step.granular("g", agent, max_turn=3)  # type: ignore[call-overload]
made = make_agent_async("test", "You know tea.", output_type=Triage)
assert_type(Flujo(Step("tea", made)).run("Which one?").output, Triage)


def takes_any_step(several: Iterable[Step]) -> Iterable[str]:
    """A bare `Step` is one of any types, also for the strictest checker."""
    return [each.name for each in several]


takes_any_step([doubled, shown, shout])


# --- what users write themselves may say more than the library knows (73) ---


class Desk(AgentStep):
    agent = agent

    def user_prompt(self, data: str, context: Notes) -> str:
        return data

    def apply(self, output: Triage) -> str:
        return output.risk


# --- what is turned into what a class keeps is taken as users write it (74 to 81) ---


def key_of(output: int) -> str:
    return str(output)


def alike(texts: list[str]) -> float:
    return 1.0


LoopGuard(polling="wait", then="hint", similar=alike)
LoopGuard(polling=["wait", "look"], then=["hint", "fail"])
ThompsonSampling(prior=[1, 1])
Votes(n=3, key=key_of)
Compensate(show)
Processors(before=double, after=[show, str])
Step("a", double, validators=[lambda output: output > 0], on_failure=[show], meta={"owner": "me"})
Flujo(doubled, resources={"db": 1}, initial_context_data={"lines": []}, settings={"telemetry": {"log": False}})
