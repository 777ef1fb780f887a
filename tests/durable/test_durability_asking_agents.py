"""An agent that asks by itself: what it wrote into the context before it asked counts when its answer is taken."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from flujo_actors import Flujo, Paused, Step
from kit import preloaded

PROGRAM = """
import os, signal, sys
from flujo_actors import Flujo, Paused, Step

async def ask(data, *, context):
    context.seen = f"{data}, noted before asking"
    return Paused(message="Fine?")

async def tell(answer, *, context):
    return f"{answer}: {context.seen}"

flujo = Flujo(Step("ask", ask) >> Step("tell", tell), store=sys.argv[1])
if sys.argv[2] == "begin":
    print(flujo.run("tea", run_id="r").state_token, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
print(flujo.resume(sys.argv[2], "yes").unwrap(), flush=True)
"""


class Notes(BaseModel):
    seen: str = ""
    asked: int = 0


async def ask(data: str, *, context: Any) -> Paused:
    context.seen, context.asked = data, context.asked + 1
    return Paused(message="Fine?")


async def tell(answer: str, *, context: Notes) -> str:
    return f"{answer}: {context.seen}, asked {context.asked}"


def place(tmp_path: Path, kind: str) -> dict[str, Any]:
    return {"store": f"sqlite:///{tmp_path}/runs.db"} if kind == "sqlite" else {}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_what_an_agent_wrote_before_it_asked_counts_with_the_answer(tmp_path: Path, kind: str) -> None:
    """The next step sees it, and so does the result; while the run waits it does not count yet."""
    flujo = Flujo(Step("ask", ask) >> Step("tell", tell), context_model=Notes, **place(tmp_path, kind))
    paused = flujo.run("tea")
    assert paused.final_context == Notes()
    done = flujo.resume(paused.state_token, "yes")
    assert done.output == "yes: tea, asked 1"
    assert done.final_context == Notes(seen="tea", asked=1)


def test_of_an_answer_that_is_refused_nothing_stays(tmp_path: Path) -> None:
    """The agent is asked again, on the context that the step was given."""

    def only_yes(output: str) -> bool:
        return output == "yes"

    step = Step("ask", ask, validators=[only_yes], max_retries=1)
    flujo = Flujo(step >> Step("tell", tell), context_model=Notes, **place(tmp_path, "sqlite"))
    again = flujo.resume(flujo.run("tea", run_id="r").state_token, "no")
    assert again.status == "paused"
    assert flujo.resume(again.state_token, "yes").output == "yes: tea, asked 1"


def test_a_branch_that_asked_brings_what_it_wrote_to_the_others(tmp_path: Path) -> None:
    """Branches are merged when all have settled, also the one that waited."""

    async def note(data: str, *, context: Any) -> str:
        context.other = data
        return data

    stage = Step.parallel("both", {"asks": Step("ask", _ask_once), "notes": Step("note", note)})
    flujo = Flujo(stage, **place(tmp_path, "sqlite"))
    done = flujo.resume(flujo.run("tea").state_token, "yes")
    assert done.output == {"asks": "yes", "notes": "tea"}
    assert (done.final_context.seen, done.final_context.other) == ("tea", "tea")


async def _ask_once(data: str, *, context: Any) -> Paused:
    context.seen = data
    return Paused(message="Fine?")


def test_an_agent_whose_context_cannot_be_stored_fails_instead_of_asking(tmp_path: Path) -> None:
    """Nobody is asked what nobody could go on with."""

    async def hold(data: str, *, context: Any) -> Paused:
        context.held = lambda: data
        return Paused(message="Fine?")

    failed = Flujo(Step("hold", hold), **place(tmp_path, "sqlite")).run("tea")
    assert failed.status == "failed"
    assert "The step paused, but its context cannot be stored" in str(failed.step_history[0].feedback)


@pytest.mark.slow
def test_another_process_goes_on_with_what_was_written_before_the_question(tmp_path: Path) -> None:
    """The process that asked is killed; the one that has the answer knows what the agent wrote."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, str(program), f"sqlite:///{tmp_path}/runs.db"]
    begun = preloaded.run([*command, "begin"], capture_output=True, text=True, timeout=240)
    assert begun.returncode == -signal.SIGKILL
    done = preloaded.run([*command, begun.stdout.strip()], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "yes: tea, noted before asking", done.stderr
