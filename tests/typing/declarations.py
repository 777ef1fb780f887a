"""Checked by mypy, never run: what users write has the types they expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never, assert_type

import attrs

from flujo_actors import (
    Aborted,
    Backoff,
    Chunk,
    Compensate,
    Context,
    ErrorInfo,
    Failure,
    Flujo,
    Paused,
    Pipeline,
    PipelineResult,
    Step,
    StepOutcome,
    StepResult,
    Success,
    UsageLimits,
    from_json,
    step,
    to_json,
)
from flujo_actors.errors import ControlError, MergeConflict, UnsettledSteps


@attrs.define
class Notes:
    lines: list[str]


async def double(x: int) -> int:
    return 2 * x


async def show(x: int) -> str:
    return str(x)


def select(data: Any, context: Notes) -> str:
    return "a"


@step
async def shout(text: str, *, context: Notes) -> str:
    return text.upper()


@step(name="loud", max_retries=2, backoff=Backoff.none())
async def louder(text: str) -> str:
    return text


# --- declaring ---

plain = Step(
    "double",
    double,
    input="Write the report",
    max_retries=1,
    timeout_s=2.5,
    fallback=shout,
    validators=[lambda output: True],
    updates_context=True,
    usage_limits=UsageLimits(total_cost_usd_limit=1.0, total_tokens_limit=1000),
    on_failure=[shout, louder],
    compensate=Compensate(louder, when="completed", if_it_fails="stop"),
    meta={"owner": "me"},
)
Pipeline([plain], "named", on_failure=louder, compensate=louder)
plain.name = "other"  # type: ignore[misc]
UsageLimits(1.0)

# --- running ---

flujo = Flujo(plain >> show >> shout, context_model=Notes, initial_context_data={"lines": []}, resources=object())
result = flujo.run("text", run_id="mine")
assert_type(result, PipelineResult[str, Notes])
assert_type(result.success, bool)
assert_type(result.step_history, tuple[StepResult, ...])
assert_type(result.total_tokens, int)
assert_type(result.total_cost_usd, float)
assert_type(result.step_history[0].metadata, Mapping[str, Any])
assert_type(flujo.resume("token", "answer"), PipelineResult[str, Notes])


async def run_in_every_way() -> None:
    assert_type(await flujo.run_async("text"), PipelineResult[str, Notes])
    async for outcome in flujo.run_async("text"):
        assert_type(outcome, StepOutcome)
    async for outcome in flujo.run_outcomes_async("text"):
        assert_type(said(outcome), str)
    async with flujo.run_async("text") as run:
        assert_type(await run, PipelineResult[str, Notes])
    assert_type(await flujo.resume_async("token", 5), PipelineResult[str, Notes])


def said(outcome: StepOutcome) -> str:
    """The union is closed: without one of these cases mypy would object."""
    match outcome:
        case Success(step_result=done):
            return done.name
        case Failure(error=error, feedback=feedback):
            assert_type(error, BaseException | ErrorInfo | None)
            return feedback or ""
        case Paused(message=message):
            return message
        case Aborted(reason=reason):
            return reason
        case Chunk(step_name=name):
            return name
        case _:
            assert_never(outcome)


# --- storing ---

assert_type(to_json(result), str)


def read_back(text: str) -> None:
    again: PipelineResult = from_json(text, PipelineResult)
    outcome: StepOutcome = from_json(text, StepOutcome)
    assert said(outcome) == again.run_id


# --- contexts and errors ---

context = Context(lines=[])
assert_type(context.lines, Any)
assert_type(context.get("lines"), Any)


def facts(error: Exception) -> str:
    if isinstance(error, MergeConflict):
        return assert_type(error.key, str)
    if isinstance(error, UnsettledSteps):
        return ", ".join(assert_type(error.paths, tuple[str, ...]))
    return str(error.result) if isinstance(error, ControlError) else ""
