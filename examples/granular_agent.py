"""An agent that survives a crash of its process. Run it: `python examples/granular_agent.py`.

The program starts a child process. It books a journey and is killed in the middle of its third booking.
The parent recovers the run. It repeats neither the model's turns nor the two committed bookings.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse

from flujo_actors import Flujo, Step, current_unit
from flujo_actors.testing import CallTool, scripted_model

LEASE_S = 0.5
"""Lease of a run in seconds; short, so that the example ends soon."""

JOURNEY = [["Oslo", "Bergen"], ["Lima"]]


def plan(messages: list[ModelMessage]) -> object:
    """Answer as a model would: two bookings in one turn, one more, then a summary."""
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    print(f"  the model is asked for turn {turn + 1}")
    if turn == len(JOURNEY):
        return "Your journey is booked."
    return [CallTool("book", {"city": city}) for city in JOURNEY[turn]]


def booker(*, crash: bool) -> Agent[None, str]:
    """Agent with a booking tool; with `crash` it kills its process in Lima."""
    agent = Agent(scripted_model(plan, forever=True), name="booker")

    @agent.tool_plain(sequential=True)  # in the order of the model; without it, calls of a turn run at once
    async def book(city: str) -> str:
        unit = current_unit()
        assert unit is not None
        again = ", possibly for the second time" if unit.may_have_run_before else ""
        print(f"  a room in {city}{again}", flush=True)
        if crash and city == "Lima":
            os.kill(os.getpid(), signal.SIGKILL)
        return f"booked under {unit.idempotency_key}"

    return agent


def travel(database: str, *, crash: bool = False) -> Flujo:
    """The pipeline: one granular step."""
    step = Step.granular("travel", booker(crash=crash), input="Norway and Peru")
    return Flujo(step, store=f"sqlite:///{database}", settings={"durability": {"lease_s": LEASE_S}})


def main(database: str) -> None:
    print("first process:", flush=True)
    killed = subprocess.run([sys.executable, __file__, database])
    print(f"it was killed: {killed.returncode == -signal.SIGKILL}")
    time.sleep(LEASE_S)
    print("second process recovers the run:")
    for result in travel(database).recover():
        print(f"=> {result.status}: {result.output} ({result.total_tokens} tokens)")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        travel(sys.argv[1], crash=True).run(run_id="trip")
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(str(Path(directory) / "runs.db"))
