"""Answers of agents in a store: every class that an `output_type` names can be written and read."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, PromptedOutput, TextOutput, ToolOutput

from flujo_actors import DeclarationError, Flujo, Step
from flujo_actors.testing import scripted_model

T = TypeVar("T")
each_mode = pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])


def local_types() -> dict[str, Any]:
    """Output types of classes that no module holds, new ones at each call."""

    class Bill(BaseModel):
        total: int

    class Note(BaseModel):
        text: str

    class Box(BaseModel, Generic[T]):
        item: T

    @dataclasses.dataclass
    class Pair(Generic[T]):
        first: T

    def billed(total: int) -> Any:
        return Bill(total=total)

    async def later(total: int) -> Any:
        return Bill(total=total)

    def read(text: str) -> Any:
        return Bill(total=7)

    for function in (billed, later, read):
        function.__annotations__["return"] = Bill
    return {
        "ToolOutput": (ToolOutput(Bill), {"total": 7}),
        "PromptedOutput": (PromptedOutput(Bill), '{"total": 7}'),
        "list of types": ([Bill, Note], {"total": 7}),
        "list of markers": ([ToolOutput(Bill), ToolOutput(Note)], {"total": 7}),
        "function": (billed, {"total": 7}),
        "coroutine function": (ToolOutput(later), {"total": 7}),
        "TextOutput": (TextOutput(read), "seven"),
        "list of generics": (list[Box[Bill]], {"response": [{"item": {"total": 7}}]}),
        "generic dataclass": (Pair[Bill], {"first": {"total": 7}}),
    }


@each_mode
@pytest.mark.parametrize("name", local_types())
def test_an_answer_of_a_local_class_is_stored_and_read(make: Any, name: str, tmp_path: Path) -> None:
    """A later process that declares the same pipeline reads the same value."""
    store = f"sqlite:///{tmp_path}/runs.db"
    output_type, reply = local_types()[name]
    step = make("pay", Agent(scripted_model(reply), output_type=output_type))
    flujo = Flujo(step >> Step.human_in_the_loop("fine", "Fine?") >> Step("answer", lambda _: "done"), store=store)
    paused = flujo.run("go", run_id="run")
    assert paused.status == "paused", paused.feedback
    resumed = Flujo(flujo.pipeline, store=store).resume(paused.state_token, "yes")
    assert resumed.step_history[0].output == paused.step_history[0].output


def compiled(text: str) -> re.Pattern[str]:
    return re.compile(text)


OPAQUE: dict[str, Any] = {
    "function": compiled,
    "TextOutput": TextOutput(compiled),
    "list": [ToolOutput(compiled), ToolOutput(int)],
}


@each_mode
@pytest.mark.parametrize("output_type", OPAQUE.values(), ids=list(OPAQUE))
def test_an_answer_that_no_store_can_hold_is_refused_at_declaration(
    make: Any, output_type: Any, tmp_path: Path
) -> None:
    """The error names step and class before a model is paid; without a store, the step runs."""
    reply = "a+" if isinstance(output_type, TextOutput) else {"text": "a+"}
    step = make("find", Agent(scripted_model(reply), output_type=output_type))
    with pytest.raises(DeclarationError, match="step 'find': its agent may answer with a Pattern"):
        Flujo(step, store=f"sqlite:///{tmp_path}/runs.db")
    assert Flujo(step).run("go").status == "completed"
