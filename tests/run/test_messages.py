"""Messages between step actors: frozen, and without the state of a step."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import attrs
import pytest

import flujo_actors
from flujo_actors import Aborted, Step
from flujo_actors._core.step_paths import ROOT
from flujo_actors._runtime.run import messages
from flujo_actors._runtime.run.messages import AttemptInput, StepRequest, StepSettled, StepState, work_of

PACKAGE = Path(flujo_actors.__file__).parent


async def agent(data: int) -> int:
    return data


def request() -> StepRequest:
    return StepRequest(step=Step("s", agent), name="s", path=ROOT, parent=None, data=1, context=None)


def work() -> AttemptInput:
    return work_of(StepState(request()), 1)


def settled() -> StepSettled:
    return StepSettled(index=0, outcome=Aborted(reason="no"), context=None)


@pytest.mark.parametrize("make", [request, work, settled])
def test_messages_and_inputs_are_frozen_at_run_time(make: Any) -> None:
    """No actor can change what it was sent, also where no type checker looks."""
    message = make()
    for field in attrs.fields(type(message)):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(message, field.name, None)
    with pytest.raises((attrs.exceptions.FrozenInstanceError, AttributeError)):
        message.other = 1


@pytest.mark.parametrize("kind", [StepRequest, StepSettled])
def test_no_message_holds_the_state_of_a_step(kind: Any) -> None:
    """Attempts, usage, history and batches belong to actors and dispatchers."""
    names = {field.name for field in attrs.fields(kind)}
    assert not names & {"state", "tally", "batch", "attempts", "usage", "history", "pieces", "transaction"}
    assert all("StepState" not in str(field.type) and "list" not in str(field.type) for field in attrs.fields(kind))


def calls_of(name: str) -> list[str]:
    """Return the modules of the package that call a function or class of this name, once per call."""
    return [
        source.relative_to(PACKAGE).as_posix()
        for source in sorted(PACKAGE.rglob("*.py"))
        if name.rpartition(".")[2] in (text := source.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(name)
    ]


@pytest.mark.parametrize("name", ["StepSettled", ".ledger.start", ".ledger.settle"])
def test_reports_and_spans_are_made_at_one_place_each(name: str) -> None:
    """A second place could report twice, or open a span that no gate closes."""
    assert calls_of(name) == ["_runtime/tree/step_actor.py"]


def test_every_attrs_class_next_to_the_messages_is_frozen() -> None:
    """What a message refers to is as frozen as the message."""
    kinds = [each for each in vars(messages).values() if attrs.has(each) and each.__module__ == messages.__name__]
    assert StepRequest in kinds
    assert [each for each in kinds if each.__setattr__ is object.__setattr__] == []
