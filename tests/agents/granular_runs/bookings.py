"""An agent that books: two rooms in parallel in each of its turns, written down outside of the process."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import attrs
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart

from flujo_actors import Flujo, PipelineResult, Step, current_unit
from flujo_actors.testing import CallTool, scripted_model
from kit.effects import Effects

TURNS = 4
SETTINGS = {"usage": {"prices": {"booker": {"input_usd": 10.0, "output_usd": 20.0}}}}
Pass = Callable[[str], None]
"""What is told of every point that the agent passes."""


@attrs.frozen(kw_only=True)
class Booking:
    """One room, as the hotel saw it."""

    run_id: str
    room: str
    call: str
    """The `tool_call_id`."""
    key: str
    """The idempotency key."""
    before: bool
    """Whether the tool was told that it may have run before."""
    process: int


def bookings(effects: Effects, run_id: str) -> list[Booking]:
    """What the hotel saw of a run, in order; what was booked twice is there twice."""
    lines = effects.file.read_text().splitlines() if effects.file.exists() else []
    return [each for line in lines if (each := Booking(**json.loads(line))).run_id == run_id]


def calls_of(paths: tuple[str, ...], run_id: str) -> set[str]:
    """The idempotency keys of the tool calls among the units at these paths."""
    units = (path.partition("/~u") for path in paths)
    return {f"{run_id}:{step}:{unit}" for step, _, unit in units if ":" in unit}


def booker(
    effects: Effects,
    passing: Pass = lambda name: None,
    *,
    turns: int = TURNS,
    sides: str = "ab",
    together: bool = False,
    metadata: dict[str, Any] | None = None,
    **config: Any,
) -> Agent[Any, Any]:
    """An agent that books two rooms, or one, in each of its turns and then says what it was told."""

    def answer(messages: list[ModelMessage]) -> Any:
        require_acceptable(messages)
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        passing(f"turn {turn + 1} is asked for")
        if turn >= turns:
            return "; ".join(returned(messages))
        return [f"turn {turn + 1}. ", *(CallTool("book", {"room": f"{turn + 1}{side}"}) for side in sides)]

    agent: Agent[Any, Any] = Agent(scripted_model(answer, name="booker", forever=True), **config)

    meetings: dict[str, asyncio.Barrier] = {}

    async def meet(room: str) -> None:
        """Wait for the other call of the turn, so that both are under way."""
        if together:
            await meetings.setdefault(room[0], asyncio.Barrier(len(sides))).wait()

    @agent.tool(metadata=metadata)
    async def book(ctx: RunContext[Any], room: str) -> str:
        await meet(room)
        passing(f"{room} is to be booked")
        await asyncio.sleep(0)
        note_booking(effects, ctx, room)
        passing(f"{room} is booked")
        await meet(room)
        return f"room {room}"

    return agent


def note_booking(effects: Effects, ctx: RunContext[Any], room: str) -> None:
    """The effect of a tool."""
    unit = current_unit()
    assert unit is not None
    assert ctx.tool_call_id is not None
    run_id = unit.idempotency_key.partition(":")[0]
    effects.add(
        json.dumps(
            attrs.asdict(
                Booking(
                    run_id=run_id,
                    room=room,
                    call=ctx.tool_call_id,
                    key=unit.idempotency_key,
                    before=unit.may_have_run_before,
                    process=os.getpid(),
                )
            )
        )
    )


def booking_run(agent: Agent[Any, Any], store: Any, options: Any = (), /, **config: Any) -> Flujo:
    """The agent as a granular step between two others."""
    step = Step.granular("book", agent, input="book everything", **config)
    pipeline = Step("before", _handed_on) >> step >> Step("after", _handed_on)
    return Flujo(pipeline, store=store, settings=SETTINGS, **dict(options))


async def _handed_on(data: Any) -> Any:
    return data


def returned(messages: list[ModelMessage]) -> list[str]:
    """What the tools have told the model."""
    requests = [message for message in messages if isinstance(message, ModelRequest)]
    return [str(part.content) for each in requests for part in each.parts if isinstance(part, ToolReturnPart)]


def require_acceptable(messages: list[ModelMessage]) -> None:
    """Refuse what a provider refuses: calls without answer, answers without call, two of one id, two of one role."""
    waiting: list[str] = []
    for message, following in zip(messages, [*messages[1:], None], strict=True):
        assert following is None or isinstance(message, ModelRequest) != isinstance(following, ModelRequest)
        if isinstance(message, ModelResponse):
            waiting = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
            assert len(waiting) == len(set(waiting)), "an id is used twice"
        else:
            answered = [part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart)]
            assert sorted(answered) == sorted(waiting), "calls and their answers do not fit"
            waiting = []
    assert isinstance(messages[-1], ModelRequest)


def come_to(result: PipelineResult) -> dict[str, Any]:
    """What must be the same however often a run was interrupted."""
    step = next((step for step in result.step_history if step.name == "book"), None)
    assert step is not None
    return {
        "status": result.status,
        "output": result.output,
        "tokens": result.total_tokens,
        "cost": round(result.total_cost_usd, 9),
        "usage": attrs.asdict(step.usage),
        "turns": [_turn(turn) for turn in step.step_history],
    }


def _turn(turn: Any) -> list[Any]:
    calls = [(call["name"], call["ended"]) for call in turn.metadata["tool_calls"]]
    return [turn.name, turn.output, turn.token_counts, calls]
