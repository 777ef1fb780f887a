"""Walks of one value through the files of the package: how many a reader opens to follow it."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import attrs
import pytest
from pydantic import BaseModel
from pydantic_ai.models.test import TestModel

import flujo_actors
from flujo_actors import Flujo, Pipeline, Step, make_agent_async

PACKAGE = str(Path(flujo_actors.__file__).parent) + os.sep

PLAIN, ROOMS_OF_A_STEP, RETRY, DURABLE_AGENT = 16, 18, 35, 90
"""Files of a plain run; changes of room for one more step of a chain; files of a step that fails with retries and a
context; files of a structured agent in a branch of a durable run."""


@attrs.define
class Notes:
    """A context of one field."""

    count: int = 0


class Answer(BaseModel):
    """Output of the agent."""

    number: int


async def double(number: int) -> int:
    return 2 * number


async def broken(number: int, context: Notes | None = None) -> int:
    raise ValueError(f"{number} is refused")


def walked(run: Callable[[], object]) -> list[str]:
    """Return the file of every call inside the package, in order, from all new threads."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls.append(frame.f_code.co_filename.removeprefix(PACKAGE))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return calls


def changes_of_room(calls: list[str]) -> int:
    """Return how often the walk enters another top-level folder."""
    rooms = [call.split(os.sep)[0] for call in calls]
    return sum(before != after for before, after in itertools.pairwise(rooms))


def chain(length: int) -> Flujo:
    return Flujo(Pipeline([Step(f"step {number}", double) for number in range(length)]))


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_plain_run_enters_few_files(earlier: int) -> None:
    """A reader follows a value from `run` to its result through a handful of files."""
    flujo = chain(3)
    for _ in range(earlier):
        flujo.run(1)
    assert len(set(walked(lambda: flujo.run(1)))) <= PLAIN


def test_one_more_step_of_a_chain_changes_the_room_few_times() -> None:
    """The walk of a step does not jump between layers."""
    short, long = chain(3), chain(4)
    one_more = changes_of_room(walked(lambda: long.run(1))) - changes_of_room(walked(lambda: short.run(1)))
    assert 0 < one_more <= ROOMS_OF_A_STEP


def test_a_step_that_fails_with_retries_and_a_context_enters_few_files() -> None:
    """Retries, a context copy and the text of an error add few files to a plain run."""
    flujo = Flujo(Step("broken", broken, max_retries=1), context_model=Notes)
    assert flujo.run(1).status == "failed"
    assert len(set(walked(lambda: flujo.run(1)))) <= RETRY


def test_a_durable_structured_agent_in_a_branch_enters_few_files() -> None:
    """The longest usual walk stays below a bound: store, branch, agent, structured output."""
    agent = make_agent_async(TestModel(), output_type=Answer)
    branches = {"only": Step("think", agent, processing={"schema": Answer})}
    flujo = Flujo(Step.parallel("all", branches), store="sqlite:///:memory:")
    assert flujo.run("prompt", backend="asyncio").status == "completed"
    assert len(set(walked(lambda: flujo.run("prompt", backend="asyncio")))) <= DURABLE_AGENT
