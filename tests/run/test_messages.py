"""Messages between step actors: frozen, and without the state of a step."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from flujo_actors import Aborted, Step
from flujo_actors._core.step_paths import ROOT
from flujo_actors._runtime.run.messages import AttemptInput, StepRequest, StepSettled, StepState, work_of


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
