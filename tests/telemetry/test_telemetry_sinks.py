"""The fan-out and the plain sinks: policy once, sinks that cannot harm."""

from __future__ import annotations

import logging
from typing import Any, get_args

import attrs
import pytest
from told_runs import counting, falling_back, mending, report, same, with_a_broken_hook

from flujo_actors import Failure, Flujo, Step
from flujo_actors._core import telemetry_events as ev
from flujo_actors._core.event_kinds import EventKind
from flujo_actors._core.usage import Usage
from flujo_actors.telemetry import SILENT, LogSink, MemorySink, Redactor, Silence, Telemetry

CANARY = "sk-ant-api03-canarycanarycanary1"


class BrokenSink:
    """Raises at every event."""

    def __init__(self) -> None:
        self.calls = 0

    def emit(self, event: ev.Event) -> None:
        self.calls += 1
        raise RuntimeError(f"cannot write {CANARY}")


def heard_by(*sinks: Any, content: bool = False) -> dict[str, Any]:
    """Settings of a Flujo that tells these sinks."""
    return {"telemetry": {"sinks": list(sinks), "content": content}}


def _filled(event_type: type[Any]) -> Any:
    """An event with the canary in every field that can hold a text."""
    facts: dict[str, Any] = dict.fromkeys(attrs.fields_dict(event_type), f"has {CANARY}")
    fixed = {"run_id": "r", "at": 1.0, "status": "failure", "stage": "llm", "attempt": 1, "usage": Usage()}
    numbers = {
        name: 1 for name in facts if name.endswith(("tokens", "_s", "attempts", "requests", "calls", "cost_usd"))
    }
    return event_type(**{name: (facts | fixed | numbers)[name] for name in facts})


def test_telemetry_without_sinks_is_off() -> None:
    """Nobody listens, nothing is paid."""
    assert not SILENT.enabled
    assert not Telemetry().enabled
    SILENT.report("run.started", run_id="r", at=0.0)


def test_silence_hides_what_was_secret_when_it_began() -> None:
    """The redactor is made for the first error; a variable that was taken away by then is hidden all the same."""
    environ = {"SERVICE_API_KEY": "canary-9000"}
    silence = Silence(environ)
    environ.clear()
    assert silence.redact("the key canary-9000 was refused") == "the key [redacted] was refused"


def test_events_have_the_kinds_that_emitters_name() -> None:
    """Emitters name events by kind, and every kind leads to its class."""
    assert set(ev.EVENT_TYPES) == set(get_args(EventKind))
    memory = MemorySink()
    Telemetry([memory]).report("run.started", run_id="r", at=0.0)
    assert memory.events == [ev.RunStarted(run_id="r", at=0.0)]


def test_every_sink_gets_every_event_in_order() -> None:
    """Fan-out keeps the order for each sink."""
    first, second = MemorySink(), MemorySink()
    report(heard_by(first, second))
    assert first.events == second.events
    assert (first.kinds()[0], first.kinds()[-1]) == ("run.started", "run.ended")
    assert [event.at for event in first.events] == sorted(event.at for event in first.events)


@pytest.mark.parametrize("event_type", get_args(ev.Event))
def test_content_is_left_out_unless_switched_on(event_type: type[Any]) -> None:
    """By default no sink sees what users and models wrote."""
    off, on = MemorySink(), MemorySink()
    Telemetry([off]).emit(_filled(event_type))
    Telemetry([on], content=True).emit(_filled(event_type))
    for name in ev.content_fields(event_type):
        assert getattr(off.events[0], name) is None
        assert getattr(on.events[0], name) == "has [redacted]"


@pytest.mark.parametrize("event_type", get_args(ev.Event))
def test_no_field_of_any_event_carries_a_secret_to_a_sink(event_type: type[Any]) -> None:
    """The redactor stands before all fields, with all switches on."""
    memory = MemorySink()
    Telemetry([memory], content=True, verbose=True).emit(_filled(event_type))
    assert CANARY not in repr(memory.events)
    assert type(memory.events[0]) is event_type


def test_details_are_for_verbose_telemetry() -> None:
    """The short form says that it was repaired, the long form how."""
    short, long = MemorySink(), MemorySink()
    mending(heard_by(short))
    mending({**heard_by(long), "aros": {"telemetry": {"verbose": True}}})
    assert {event.passes for event in short.of(ev.ArosRepairSuccess)} == {None}
    assert any("trailing_comma" in (event.passes or ()) for event in long.of(ev.ArosRepairSuccess))


def test_an_event_without_content_or_secrets_is_passed_on_as_it_is() -> None:
    """Nothing to change, nothing to copy."""
    memory = MemorySink()
    event = ev.AttemptStarted(run_id="r", path="a", step_name="a", at=1.0, attempt=1)
    Telemetry([memory]).emit(event)
    assert memory.events[0] is event


def test_content_is_copied_so_that_later_changes_do_not_show() -> None:
    """An event tells what was, also of values that go on living."""
    memory, data = MemorySink(), {"step": 1}
    Flujo(Step("a", same), settings=heard_by(memory, content=True)).run(data)
    data["step"] = 2
    assert memory.of(ev.RunStarted)[0].input == memory.of(ev.StepStarted)[0].input == {"step": 1}


def test_a_sink_that_raises_is_reported_once_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The other sinks go on, and the report tells no secret."""
    broken, memory = BrokenSink(), MemorySink()
    assert Flujo(Step("a", same), settings=heard_by(broken, memory)).run(1).success
    assert broken.calls == len(memory.events) == 6
    assert [record.getMessage() for record in caplog.records] == [
        "telemetry: BrokenSink failed with RuntimeError: cannot write [redacted]; it is not reported again"
    ]
    assert caplog.records[0].name == "flujo_actors"


def test_content_that_cannot_be_copied_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """A field that raises when it is read costs its content, not the event."""

    @attrs.define(slots=False)
    class Lazy:
        rows: int = 0

        def __getattribute__(self, name: str) -> Any:
            if name == "rows":
                raise ConnectionError("detached")
            return object.__getattribute__(self, name)

    memory = MemorySink()
    Flujo(Step("a", lambda data: 1), settings=heard_by(memory, content=True)).run(Lazy.__new__(Lazy))
    assert memory.of(ev.StepStarted)[0].input is None
    assert memory.of(ev.StepEnded)[0].output == 1
    assert "detached" in caplog.text


def test_memory_finds_events_by_name_and_by_class() -> None:
    """Two ways to ask, the same answer."""
    memory = MemorySink()
    report(heard_by(memory))
    assert memory.of("attempt.started") == memory.of(ev.AttemptStarted)
    assert len(memory.of("attempt.started")) == 2


# --- the log ---


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log with everything in it."""
    caplog.set_level(logging.DEBUG, "flujo_actors.events")
    return caplog


def test_an_event_is_one_line_of_keys_and_values(log: pytest.LogCaptureFixture) -> None:
    """Readable by people, and cut apart by machines."""
    said = 'said "no"\nforged line'
    Flujo(Step("a", lambda data: Failure(feedback=said)), settings={"telemetry": {"log": True}}).run(1, run_id="r1")
    [line] = [line for line in log.messages if line.startswith("attempt.ended")]
    assert line == (
        'attempt.ended run_id=r1 path=a step_name=a attempt=1 status=failure feedback="said \\"no\\"\\nforged line"'
    )


def test_a_record_carries_the_same_facts_as_a_dict(log: pytest.LogCaptureFixture) -> None:
    """A JSON formatter needs no parsing."""
    memory = MemorySink()
    Flujo(Step("a", same), settings=heard_by(memory, LogSink())).run(1)
    told = [record.flujo for record in log.records]  # type: ignore[attr-defined]
    assert told == [ev.facts(event) for event in memory.events]


def test_content_of_any_shape_is_written_on_one_line(log: pytest.LogCaptureFixture) -> None:
    """Nested data becomes JSON."""
    data = {"x": [1, None, b"raw"], 2: "y"}
    Flujo(Step("a", same), settings=heard_by(LogSink(), content=True)).run(data)
    assert log.messages[0].endswith('pipeline_name=a input={"x": [1, null, "b\'raw\'"], "2": "y"}')


def levels(log: pytest.LogCaptureFixture) -> dict[str, set[int]]:
    """How loud each kind of event was."""
    found: dict[str, set[int]] = {}
    for record in log.records:
        if record.name == "flujo_actors.events":
            found.setdefault(record.getMessage().split()[0], set()).add(record.levelno)
    return found


def test_trouble_is_louder_than_progress(log: pytest.LogCaptureFixture) -> None:
    """Warnings are what somebody should look at."""
    falling_back(heard_by(LogSink()))
    with_a_broken_hook(heard_by(LogSink()))
    loud = levels(log)
    assert loud["run.started"] == loud["run.ended"] == {logging.INFO}
    assert loud["step.retry"] == loud["step.fallback"] == loud["hook.failed"] == {logging.WARNING}
    assert loud["attempt.started"] == {logging.DEBUG}
    assert loud["attempt.ended"] == {logging.DEBUG, logging.WARNING}


def test_an_answer_that_counted_no_tokens_is_a_warning(log: pytest.LogCaptureFixture) -> None:
    """Zero tokens are reported, not hidden."""
    counting(heard_by(LogSink()))
    assert levels(log)["agent.usage"] == {logging.WARNING, logging.DEBUG}


def test_a_quiet_logger_costs_no_formatting(caplog: pytest.LogCaptureFixture) -> None:
    """What the level leaves out is not written."""
    caplog.set_level(logging.ERROR, "flujo_actors.events")
    Flujo(Step("a", same), settings=heard_by(LogSink())).run(1)
    assert not caplog.records


def test_secrets_of_the_redactor_reach_no_log(log: pytest.LogCaptureFixture) -> None:
    """The canary test of the log: feedback, names and content."""
    telemetry = Telemetry([LogSink()], Redactor(secrets=["canary-9000"]), content=True, verbose=True)
    for event_type in get_args(ev.Event):
        telemetry.emit(_filled(event_type))
    where = {"run_id": "r", "path": "a", "step_name": "a", "at": 1.0}
    telemetry.emit(ev.AgentInput(**where, data={"canary-9000": ["canary-9000"]}))
    written = log.text + repr([record.__dict__ for record in log.records])
    assert "canary-9000" not in written
    assert CANARY not in written
