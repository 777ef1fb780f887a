"""The vocabulary: closed, named once, and clear about what is content."""

from __future__ import annotations

from typing import get_args

import attrs
import pytest

from flujo_actors._core import telemetry_events as ev
from flujo_actors._core.usage import Usage

TYPES = get_args(ev.Event)


def test_every_event_has_a_kind_of_its_own() -> None:
    """No two classes speak of the same thing."""
    kinds = [event_type.kind for event_type in TYPES]
    assert len(set(kinds)) == len(kinds)


def test_the_vocabulary_holds_the_documented_kinds() -> None:
    """Sinks and dashboards are written against these names."""
    assert {event_type.kind for event_type in TYPES} == {
        "run.started", "run.ended", "run.paused", "run.resumed", "run.retried", "run.waiting", "run.woken",
        "event.sent", "event.delivered", "event.refused",
        "step.started", "step.ended", "step.retry", "step.fallback", "step.unstoppable",
        "attempt.started", "attempt.ended",
        "agent.system", "agent.input", "agent.response", "agent.usage",
        "model.started", "model.ended", "tool.started", "tool.ended",
        "retrieval.started", "retrieval.ended", "context.assembled",
        "aros.repair.started", "aros.repair.success", "aros.repair.failed", "aros.fallback.stage",
        "hook.failed",
        "retention.deleted",
        "run.taken",
        "budget.level",
        "selection.chosen",
        "confidence.low",
        "loop.detected",
        "loop.compacted",
        "step.recovered", "handler.failed", "undo.started", "undo.ended",
        "schedule.fired", "schedule.skipped", "schedule.failed",
        "rate.waited", "rate.blocked", "budget.warned", "step.cached", "agent.steered",
    }  # fmt: skip


@pytest.mark.parametrize("event_type", TYPES)
def test_every_event_says_which_run_where_and_when(event_type: type) -> None:
    """A sink can place any event without knowing its class."""
    assert {"run_id", "path", "at"} <= set(attrs.fields_dict(event_type))


@pytest.mark.parametrize("event_type", TYPES)
def test_events_are_frozen_and_slotted(event_type: type) -> None:
    """An event cannot change between one sink and the next."""
    assert not hasattr(event_type, "__dict__") or "__slots__" in vars(event_type)
    assert event_type.__setattr__ is not object.__setattr__


def test_everything_users_and_models_write_is_declared_as_content() -> None:
    """The one list of what stays out of sinks by default."""
    declared = {event_type.kind: ev.content_fields(event_type) for event_type in TYPES}
    assert {kind: names for kind, names in declared.items() if names} == {
        "run.started": ("input",),
        "run.ended": ("output",),
        "run.paused": ("message",),
        "run.resumed": ("answer",),
        "step.started": ("input",),
        "step.ended": ("output",),
        "agent.system": ("text",),
        "agent.input": ("data",),
        "agent.response": ("output",),
        "tool.started": ("arguments",),
        "tool.ended": ("result",),
        "retrieval.started": ("query",),
        "loop.detected": ("cycle",),
        "retrieval.ended": ("documents",),
        "context.assembled": ("text",),
        "aros.repair.started": ("raw_text",),
        "aros.repair.success": ("raw_text",),
        "aros.repair.failed": ("raw_text",),
        "aros.fallback.stage": ("raw_text",),
    }


def test_an_answer_that_counted_no_tokens_is_marked() -> None:
    """Zero tokens are a fact to report, found without the emitter's help."""
    where = {"run_id": "r", "path": "a", "step_name": "a", "at": 0.0}
    assert ev.AgentUsage(**where).zero_tokens
    assert not ev.AgentUsage(**where, input_tokens=3).zero_tokens


def test_facts_are_flat_and_leave_out_what_says_nothing() -> None:
    """One mapping serves logs and span events alike."""
    ended = ev.StepEnded(run_id="r", path="a", step_name="a", at=2.0, status="success", usage=Usage(input_tokens=3))
    assert ev.facts(ended) == {
        "kind": "step.ended",
        "run_id": "r",
        "at": 2.0,
        "path": "a",
        "step_name": "a",
        "status": "success",
        "attempts": 0,
        "input_tokens": 3,
    }
