"""A pipeline of model agents, with tools, a limit and a price. Run it: `python examples/agent_pipeline.py`.

Without a key the models are scripted; give a model's name to call a real one:
`python examples/agent_pipeline.py openai:gpt-4o-mini "What to wear in Lima?"`
"""

import sys
from collections.abc import Sequence
from typing import Any

import trio
from pydantic import BaseModel
from pydantic_ai import RunContext

from flujo_actors import Chunk, Flujo, Step, UsageLimits, make_agent_async
from flujo_actors.testing import CallTool, JumpingClock, scripted_model

WEATHER = {"Lima": "18 degrees and misty", "Oslo": "minus 4 degrees and clear"}
PRICES = {"scripted": {"input_usd": 0.15, "output_usd": 0.60}}


class Plan(BaseModel):
    city: str
    question: str


async def weather(ctx: RunContext[dict[str, str]], city: str) -> str:
    """The weather in a city; the step's deps are the service that knows it."""
    return ctx.deps.get(city, "unknown")


def short_enough(answer: str) -> str | None:
    """The reason is what the model reads with its next attempt."""
    return None if len(answer) <= 60 else "use at most sixty letters"


def pipeline(planner: Any, writer: Any) -> Any:
    plan = Step("plan", make_agent_async(planner, "Name the city and what is asked about it.", Plan))
    agent = make_agent_async(writer, "Look the weather up, then answer.", tools=[weather], deps_type=dict)
    return plan >> Step("answer", agent, deps=WEATHER, validators=short_enough, max_retries=2)


def scripts() -> tuple[Any, Any]:
    """Models that play a good day: one that plans, one that looks up, says too much, and mends it."""
    wordy = "In Lima it is 18 degrees and misty, so what you want to take along is a light coat."
    look = CallTool("weather", {"city": "Lima"})
    return scripted_model(Plan(city="Lima", question="What to wear?")), scripted_model(
        look, wordy, look, "A light coat."
    )


async def main(models: tuple[Any, Any], question: str) -> None:
    limits = UsageLimits(total_cost_usd_limit=0.05)
    flujo = Flujo(pipeline(*models), usage_limits=limits, settings={"usage": {"prices": PRICES}})
    async with flujo.run_async(question) as run:
        async for outcome in run:
            if isinstance(outcome, Chunk) and outcome.step_name == "answer":
                print(outcome.data, end="" if outcome.data[-1] in " ," else "\n", flush=True)
        result = await run
    print(f"=> {result.output if result.success else result.feedback}")
    for step in result.step_history:
        used = step.usage
        print(f"{step.name}: {step.attempts} attempts, {used.requests} requests, {used.tool_calls} tool calls")
    print(f"{result.total_tokens} tokens, ${result.total_cost_usd:.6f}")


def models(arguments: Sequence[str]) -> tuple[Any, Any]:
    return (arguments[0], arguments[0]) if arguments else scripts()


if __name__ == "__main__":
    given = sys.argv[1:]
    clock = None if given else JumpingClock()
    trio.run(main, models(given), " ".join(given[1:]) or "What to wear in Lima?", clock=clock)
