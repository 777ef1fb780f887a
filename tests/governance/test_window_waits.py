"""Reached budgets of windows: runs that sleep until the next window, runs that ask, and warnings."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import (
    Flujo,
    MemoryStore,
    Pipeline,
    PostgresStore,
    RunClient,
    SqliteStore,
    Step,
    Usage,
    UsageLimitExceededError,
    UsageLimits,
    dump_blueprint,
    load_blueprint,
    make_agent_async,
)
from flujo_actors._core.policies.shared_budgets import window_at
from flujo_actors._core.telemetry_events import BudgetLevelChanged, BudgetWarned, RunWaiting, RunWoken
from flujo_actors.telemetry import MemorySink
from flujo_actors.testing import CallTool, scripted_model
from kit.postgres_server import session_server

MADRID = zoneinfo.ZoneInfo("Europe/Madrid")
DAY_S = 86_400.0


class Wall:
    """A wall clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = dt.datetime(2026, 3, 28, 12, tzinfo=dt.UTC).timestamp()

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, wall: Wall, tmp_path: Path) -> Iterator[Any]:
    made: Any
    match request.param:
        case "memory":
            made = MemoryStore(wall=wall)
        case "sqlite":
            made = SqliteStore(tmp_path / "runs.db", wall=wall)
        case _:
            made = PostgresStore(session_server().fresh_url(), wall=wall)
    yield made
    made.close()


def asking(steps: int = 1) -> Pipeline:
    """Steps that ask a model for 100 tokens each."""
    model = scripted_model("ok", usage=Usage(input_tokens=60, output_tokens=40), forever=True)
    return Pipeline([Step(f"s{number}", make_agent_async(model)) for number in range(steps)], name="mail")


def limited(store: Any, pipeline: Pipeline | None = None, *, sink: MemorySink | None = None, **limits: Any) -> Any:
    """A pipeline with a budget of a day, on a store."""
    day = UsageLimits(**{"window": "day", **limits})
    settings: Any = {} if sink is None else {"telemetry": {"sinks": [sink]}}
    return Flujo(pipeline or asking(), store=store, usage_limits=day, settings=settings)


def spent(store: Any) -> list[tuple[Any, Any]]:
    """Return requests spent and allowed, by window."""
    return [(each.spent.requests, each.limits.request_limit) for each in RunClient(store).budgets()]


# --- wait -----------------------------------------------------------------------------------------------------


def test_a_waiting_run_sleeps_until_midnight_and_completes(store: Any, wall: Wall) -> None:
    """The step before is not repeated, and its request is counted once."""
    flujo = limited(store, asking(2), request_limit=1, zone="Europe/Madrid", when_reached="wait")
    result = flujo.run("go", run_id="r")
    midnight = dt.datetime(2026, 3, 29, tzinfo=MADRID).timestamp()
    assert (result.status, result.wakes_at, result.state_token) == ("sleeping", midnight, None)
    info = RunClient(store).get("r")
    assert (info.state, info.wakes_at, [each.kind for each in info.waits]) == ("sleeping", midnight, ["budget"])
    assert (RunClient(store).prompts(), store.get("r").owner) == ([], None)
    wall.seconds = midnight - 1
    flujo.recover()
    assert RunClient(store).get("r").state == "sleeping"
    wall.seconds = midnight + 1
    flujo.recover()
    result = RunClient(store).wait("r", timeout=120)
    assert (result.status, result.output, result.total_tokens) == ("completed", "ok", 200)
    assert [each.attempts for each in result.step_history] == [1, 1]
    assert spent(store) == [(1, 1), (1, 1)]


def test_a_resumed_run_that_is_not_due_sleeps_on(store: Any) -> None:
    """The wait is not begun again: its end stays."""
    flujo = limited(store, asking(2), request_limit=1, when_reached="wait")
    first = flujo.run("go", run_id="r")
    again = flujo.resume("r")
    assert (again.status, again.wakes_at) == ("sleeping", first.wakes_at)
    assert [record.kind for record in store.read("r")].count("paused") == 1


def test_a_woken_run_asks_the_budget_again(store: Any) -> None:
    """Nothing is left, so it waits again; another limit lets it go on."""
    flujo = limited(store, asking(2), request_limit=1, when_reached="wait")
    flujo.run("go", run_id="r")
    assert RunClient(store).wake("r")
    flujo.recover()
    assert RunClient(store).get("r").state == "sleeping"
    assert spent(store) == [(1, 1)]
    more = limited(store, asking(2), request_limit=2, when_reached="wait")
    assert RunClient(store).wake("r")
    more.recover()
    assert RunClient(store).wait("r", timeout=120).status == "completed"


def test_a_cancelled_wait_ends_the_run(store: Any) -> None:
    """No worker is needed, and nothing is asked of the model."""
    flujo = limited(store, asking(2), request_limit=1, when_reached="wait")
    flujo.run("go", run_id="r")
    RunClient(store).cancel("r")
    assert RunClient(store).wait("r", timeout=120).status == "aborted"
    assert spent(store) == [(1, 1)]


def test_a_window_that_never_has_room_is_not_waited_for(store: Any) -> None:
    """No request of the day was made, and none fits into the next one."""
    with pytest.raises(UsageLimitExceededError):
        limited(store, request_limit=0, when_reached="wait").run("go")


def test_a_branch_waits_while_another_one_asks_a_person(store: Any, wall: Wall) -> None:
    """The run is paused with one prompt; both ends let it complete."""
    both = Step.parallel("both", {"a": asking(2), "b": Step.human_in_the_loop("ask", "Fine?", input_schema=bool)})
    flujo = limited(store, Pipeline([both], name="mail"), request_limit=1, when_reached="wait")
    result = flujo.run("go", run_id="r")
    assert (result.status, [each.step for each in RunClient(store).questions()]) == ("paused", ["ask"])
    wall.seconds += DAY_S
    assert flujo.resume(result.state_token, True).status == "completed"
    assert spent(store) == [(1, 1), (1, 1)]


def test_a_granular_conversation_continues_in_the_next_window(store: Any, wall: Wall) -> None:
    """Its tool was called once, in the session before."""
    called: list[str] = []

    async def look(city: str) -> str:
        called.append(city)
        return "sunny"

    model = scripted_model(CallTool("look", {"city": "Oslo"}), "done", usage=Usage(input_tokens=60, output_tokens=40))
    step = Step.granular("travel", make_agent_async(model, tools=[look]))
    flujo = limited(store, Pipeline([step], name="mail"), request_limit=1, when_reached="wait")
    assert flujo.run("go", run_id="r").status == "sleeping"
    wall.seconds += DAY_S
    flujo.recover()
    result = RunClient(store).wait("r", timeout=120)
    assert (result.output, result.total_tokens) == ("done", 200)
    assert called == ["Oslo"]
    assert spent(store) == [(1, 1), (1, 1)]


def test_a_wait_is_reported_with_its_kind(wall: Wall) -> None:
    """When it begins, and when it ends."""
    store, sink = MemoryStore(wall=wall), MemorySink()
    flujo = limited(store, asking(2), sink=sink, request_limit=1, when_reached="wait")
    flujo.run("go", run_id="r")
    [waiting] = [event for event in sink.events if isinstance(event, RunWaiting)]
    wall.seconds += DAY_S
    flujo.recover()
    [woken] = [event for event in sink.events if isinstance(event, RunWoken)]
    assert (waiting.wait_kind, waiting.due_at, woken.wait_kind) == (
        "budget",
        RunClient(store).budgets()[0].ends_at,
        "budget",
    )


# --- pause ----------------------------------------------------------------------------------------------------


def test_an_answer_raises_the_limit_of_this_window_for_all_runs(store: Any, wall: Wall) -> None:
    """The next day and other scope values have the declared one."""
    flujo = limited(store, request_limit=1, scope="label:tenant", when_reached="pause")
    ada = {"labels": {"tenant": "ada"}}
    assert flujo.run("go", **ada).status == "completed"
    asked = flujo.run("go", run_id="r", **ada)
    assert asked.status == "paused"
    assert "budget 'mail' for 'ada' of this day" in str(asked.feedback)
    [question] = RunClient(store).questions()
    assert question.kind == "limit"
    assert flujo.resume(asked.state_token, {"request_limit": 3}).status == "completed"
    assert flujo.run("go", **ada).status == "completed"
    assert flujo.run("go", **ada).status == "paused"
    assert flujo.run("go", labels={"tenant": "bob"}).status == "completed"
    assert flujo.run("go", labels={"tenant": "bob"}).status == "paused"
    wall.seconds += DAY_S
    assert [flujo.run("go", **ada).status for _ in range(2)] == ["completed", "paused"]
    assert spent(store) == [(3, 3), (1, 1), (1, 1)]


def test_an_answer_after_the_window_raises_nothing(store: Any, wall: Wall) -> None:
    """The run continues in the new window with its declared limit."""
    flujo = limited(store, request_limit=1, when_reached="pause")
    flujo.run("go")
    asked = flujo.run("go", run_id="r")
    wall.seconds += DAY_S
    assert flujo.resume(asked.state_token, {"request_limit": 9}).status == "completed"
    assert spent(store) == [(1, 1), (1, 1)]


def test_false_ends_the_run_that_asks(store: Any) -> None:
    """As for the limits of a run."""
    flujo = limited(store, request_limit=1, when_reached="pause")
    flujo.run("go")
    asked = flujo.run("go", run_id="r")
    with pytest.raises(UsageLimitExceededError):
        flujo.resume(asked.state_token, False)
    assert spent(store) == [(1, 1)]


# --- warnings -------------------------------------------------------------------------------------------------


def test_a_warning_is_emitted_once_per_window_and_scope(store: Any, wall: Wall) -> None:
    """The eighth of ten requests warns, also if it is the last one of its run."""
    sink = MemorySink()
    flujos = [limited(store, sink=sink, request_limit=10, scope="label:t", warn_at=0.8) for _ in range(2)]

    def warned() -> list[tuple[Any, ...]]:
        found = [event for event in sink.events if isinstance(event, BudgetWarned)]
        return [(event.name, event.scope, event.window, round(event.fraction, 3)) for event in found]

    for number in range(7):
        flujos[number % 2].run("go", labels={"t": "a"})
    assert warned() == []
    for number in range(3):
        flujos[number % 2].run("go", labels={"t": "a"})
    assert warned() == [("mail", "a", "day", 0.8)]
    wall.seconds += DAY_S
    limited(store, asking(8), sink=sink, request_limit=10, scope="label:t", warn_at=0.8).run("go", labels={"t": "a"})
    assert warned() == [("mail", "a", "day", 0.8)] * 2


def test_the_budget_level_counts_the_scarcest_limit(wall: Wall) -> None:
    """The run's own limit is abundant, and the window's is not."""
    store, sink = MemoryStore(wall=wall), MemorySink()
    limits = [UsageLimits(request_limit=100), UsageLimits(request_limit=10, window="week")]
    flujo = Flujo(asking(), store=store, usage_limits=limits, settings={"telemetry": {"sinks": [sink]}})
    for _ in range(9):
        flujo.run("go")
    levels = [event.level for event in sink.events if isinstance(event, BudgetLevelChanged)]
    assert {"normal", "scarce", "critical"} <= set(levels)


# --- growth and cleanup ---------------------------------------------------------------------------------------


def test_windows_that_ended_long_ago_are_deleted(store: Any, wall: Wall) -> None:
    """After 400 days, by `forget` and by workers; younger ones stay."""
    flujo = limited(store, request_limit=1)
    flujo.run("go")
    wall.seconds += 200 * DAY_S
    flujo.run("go")
    wall.seconds += 199 * DAY_S
    RunClient(store).forget(older_than_s=10**9)
    assert len(spent(store)) == 2
    wall.seconds += 3 * DAY_S
    RunClient(store).forget(older_than_s=10**9)
    assert len(spent(store)) == 1


def test_the_shares_of_ended_runs_are_added_up(tmp_path: Path) -> None:
    """A draw does not sum a row for each run of the day."""
    store = SqliteStore(tmp_path / "runs.db")
    flujo = limited(store, request_limit=100)
    for _ in range(12):
        flujo.run("go")
    with store._connections.reading() as db:
        [(rows,)] = db.execute(
            "SELECT count(*) FROM flujo_shares WHERE budget IN (SELECT id FROM flujo_budgets WHERE ends_at IS NOT NULL)"
        )
    assert rows <= 2
    assert [used for used, _ in spent(store)] == [12]


# --- calendars ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", ["hour", "day", "week", "month"])
@pytest.mark.parametrize(
    "zone",
    [
        "UTC",
        "Europe/Madrid",
        "America/New_York",
        "Australia/Lord_Howe",
        "Africa/Cairo",
        "America/Havana",
        "Asia/Kathmandu",
    ],
)
def test_windows_follow_one_another_without_gaps(window: Any, zone: str) -> None:
    """Over a year with both clock changes, also of half an hour and at midnight."""
    limits = UsageLimits(window=window, zone=zone)
    now, end = (dt.datetime(year, 1, 1, tzinfo=dt.UTC).timestamp() for year in (2026, 2027))
    starts, ends = window_at(limits, now)
    step = 1747.0 if window == "hour" else 5237.0  # twice in the shortest window, and at other minutes each time
    while now < end:
        now += step
        found = window_at(limits, now)
        assert found[0] <= now < found[1]
        if found[0] != starts:
            assert found[0] == ends
            starts, ends = found
        assert found == (starts, ends)


def test_hours_of_an_autumn_night_are_three_windows() -> None:
    """02:00 to 03:00 happens twice in Madrid on 25 October 2026."""
    limits = UsageLimits(window="hour", zone="Europe/Madrid")
    midnight = dt.datetime(2026, 10, 25, 1, tzinfo=MADRID).timestamp()
    assert len({window_at(limits, midnight + minutes * 60) for minutes in range(0, 180, 10)}) == 3


# --- blueprints -----------------------------------------------------------------------------------------------


def test_a_blueprint_declares_a_budget_of_a_window(tmp_path: Path) -> None:
    """Its pipeline comes back from the text that describes it."""
    file = tmp_path / "mail.yaml"
    file.write_text(
        "version: '1'\nname: mail\nusage_limits: {request_limit: 3, window: day, zone: Europe/Madrid, "
        "scope: 'label:tenant', name: team, warn_at: 0.8, when_reached: wait}\n"
        "agents: {writer: {model: test}}\nsteps:\n- {name: s, uses: agents.writer}\n"
    )
    declared = UsageLimits(
        request_limit=3,
        window="day",
        zone="Europe/Madrid",
        scope="label:tenant",
        name="team",
        warn_at=0.8,
        when_reached="wait",
    )
    pipeline = load_blueprint(file)
    assert pipeline.usage_limits == declared
    file.write_text(dump_blueprint(pipeline))
    assert load_blueprint(file).usage_limits == declared
    store = MemoryStore()
    Flujo(pipeline, store=store).run("go", labels={"tenant": "ada"})
    assert [(each.name, each.scope, each.spent.requests) for each in RunClient(store).budgets()] == [("team", "ada", 1)]


def test_a_project_lowers_the_limits_of_a_window(tmp_path: Path) -> None:
    """`flujo.toml` bounds every run, so it bounds the window of a file, too."""
    (tmp_path / "flujo.toml").write_text("[blueprints]\ntotal_tokens_limit = 100\n")
    file = tmp_path / "mail.yaml"
    file.write_text(
        "version: '1'\nname: mail\nusage_limits: {total_tokens_limit: 900, window: day}\n"
        "agents: {writer: {model: test}}\nsteps:\n- {name: s, uses: agents.writer}\n"
    )
    assert load_blueprint(file).usage_limits == UsageLimits(total_tokens_limit=100, window="day")
