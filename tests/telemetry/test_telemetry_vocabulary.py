"""No field of the vocabulary is an empty promise: runs fill every one of them."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import attrs
import pytest
from told_runs import ALL

from flujo_actors._core import telemetry_events as ev
from flujo_actors.telemetry import MemorySink

TOLD_BY_FEATURES: set[type[Any]] = {*get_args(ev.ScheduleEvent), *get_args(ev.LimitEvent)}
"""Events that only runs of their feature emit; the tests of the feature look at them."""

EVENTS: tuple[type[Any], ...] = tuple(kind for kind in get_args(ev.Event) if kind not in TOLD_BY_FEATURES)


@cache
def told() -> list[ev.Event]:
    """What all runs tell together, with everything switched on."""
    sink = MemorySink()
    settings = {"telemetry": {"sinks": [sink], "content": True}, "aros": {"telemetry": {"verbose": True}}}
    for drive in ALL:
        drive(settings)
    return sink.events


def fields(kind: type[Any]) -> list[str]:
    """The fields of an event that say more than where and when it was."""
    return sorted(attrs.fields_dict(kind).keys() - {"run_id", "at"})


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in EVENTS for name in fields(kind)])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_run_fills_every_field_of_every_event(kind: type[Any], name: str) -> None:
    """A field that nobody ever fills would be documented, and wrong."""
    if (kind, name) in ABOUT_THE_RUN:
        pytest.skip("it is about the run, which has no path")
    default = attrs.fields_dict(kind)[name].default
    said = {repr(getattr(event, name)) for event in told() if isinstance(event, kind)}
    assert said - {repr(None), repr(default), repr("")}


ABOUT_THE_RUN = {
    (kind, "path")
    for kind in (
        ev.RunTaken,
        ev.RunStarted,
        ev.RunEndedEvent,
        ev.RunResumed,
        ev.RunRetried,
        ev.RetentionDeleted,
        ev.EventSent,
    )
}
