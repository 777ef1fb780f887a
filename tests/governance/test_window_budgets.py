"""Budgets of a window and a scope: shared by all runs of a name, through the front door and in every store."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import (
    BudgetInfo,
    DeclarationError,
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
    make_agent_async,
)
from flujo_actors._api.cli.entry import main
from flujo_actors.testing import scripted_model
from kit.postgres_server import session_server

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


def asking(*replies: Any, steps: int = 1) -> Pipeline:
    """Steps that ask a model for 100 tokens each."""
    model = scripted_model(*(replies or ("ok",)), usage=Usage(input_tokens=60, output_tokens=40), forever=True)
    agent = make_agent_async(model)
    return Pipeline([Step(f"s{number}", agent) for number in range(steps)], name="mail")


def succeeded(flujo: Flujo[Any, Any, Any], times: int, **options: Any) -> int:
    """Return how many of so many runs were completed."""
    done = 0
    for _ in range(times):
        try:
            done += flujo.run("go", **options).status == "completed"
        except UsageLimitExceededError:
            continue
    return done


def budgets(store: Any, **chosen: Any) -> list[BudgetInfo]:
    return list(RunClient(store).budgets(**chosen))


def test_runs_of_a_day_share_one_budget_until_the_next_day(store: Any, wall: Wall) -> None:
    """Three runs fit into a day, and three more into the next one."""
    flujo = Flujo(asking(), store=store, usage_limits=UsageLimits(total_tokens_limit=300, window="day"))
    assert succeeded(flujo, 5) == 3
    [first] = budgets(store)
    assert (first.name, first.scope, first.window, first.spent.tokens, first.reserved.tokens) == (
        "mail",
        "",
        "day",
        300,
        0,
    )
    assert first.ends_at - first.starts_at == DAY_S
    wall.seconds += DAY_S
    assert succeeded(flujo, 5) == 3
    assert [each.spent.tokens for each in budgets(store, name="mail")] == [300, 300]
    assert budgets(store, name="other") == []


def test_runs_that_race_spend_a_budget_exactly(store: Any) -> None:
    """Twelve runs of four threads, and three may ask."""
    limits = [UsageLimits(request_limit=9), UsageLimits(request_limit=3, window="month", name="team")]
    done: list[int] = []

    def some() -> None:
        done.append(succeeded(Flujo(asking(), store=store, usage_limits=limits), 3))

    threads = [threading.Thread(target=some) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sum(done) == 3
    assert [(each.name, each.spent.requests) for each in budgets(store)] == [("team", 3)]


def test_each_value_of_a_label_has_its_own_budget(store: Any) -> None:
    """Two tenants, and runs without one."""
    limits = UsageLimits(request_limit=1, window="hour", scope="label:tenant")
    flujo = Flujo(asking(), store=store, usage_limits=limits)
    assert succeeded(flujo, 2, labels={"tenant": "a"}) == 1
    assert succeeded(flujo, 2, labels={"tenant": "b"}) == 1
    assert succeeded(flujo, 2) == 1
    assert [each.scope for each in budgets(store)] == ["", "a", "b"]
    assert [each.spent.requests for each in budgets(store, scope="b")] == [1]


def test_a_retried_run_counts_its_requests_once(store: Any) -> None:
    """The recorded request is not repeated and not counted again."""
    failing = [True]

    async def last(data: Any) -> Any:
        if failing[0]:
            raise ValueError("not yet")
        return data

    pipeline = Pipeline([*asking().steps, Step("last", last)], name="mail")
    flujo = Flujo(pipeline, store=store, usage_limits=UsageLimits(request_limit=1, window="week"))
    assert flujo.run("go", run_id="r").status == "failed"
    failing[0] = False
    assert flujo.retry("r").status == "completed"
    assert [each.spent.requests for each in budgets(store)] == [1]


def test_a_fork_counts_only_its_own_requests(store: Any) -> None:
    """The copied request of the first step is not counted again."""
    flujo = Flujo(asking(steps=2), store=store, usage_limits=UsageLimits(request_limit=9, window="week"))
    flujo.run("go", run_id="r")
    client = RunClient(store)
    first = next(each.seq for each in client.records("r") if each.kind == "settled")
    forked = client.fork("r", first)
    assert flujo.resume(forked).status == "completed"
    assert [each.spent.requests for each in budgets(store)] == [3]


def test_a_request_counts_in_the_window_of_its_reservation(store: Any, wall: Wall) -> None:
    """Midnight passes during the first request: the second one counts for the new day."""

    def next_day(messages: Any) -> str:
        wall.seconds += DAY_S
        return "ok"

    flujo = Flujo(asking(next_day, steps=2), store=store, usage_limits=UsageLimits(request_limit=1, window="day"))
    assert flujo.run("go").status == "completed"
    assert [each.spent.requests for each in budgets(store)] == [1, 1]


def test_a_day_with_a_clock_change_has_its_real_length(wall: Wall) -> None:
    """Summer time begins in Madrid on 29 March 2026."""
    wall.seconds += DAY_S
    store = MemoryStore(wall=wall)
    limits = UsageLimits(request_limit=1, window="day", zone="Europe/Madrid")
    assert succeeded(Flujo(asking(), store=store, usage_limits=limits), 1) == 1
    [found] = budgets(store)
    assert found.starts_at == dt.datetime(2026, 3, 28, 23, tzinfo=dt.UTC).timestamp()
    assert found.ends_at - found.starts_at == 23 * 3600


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"time_limit_s": 1, "window": "day"}, "UsageLimits: time_limit_s has no meaning with window='day'"),
        ({"step_limit": 1, "window": "hour"}, "UsageLimits: step_limit has no meaning with window='hour'"),
        ({"window": "year"}, "UsageLimits.window must be one of"),
        ({"window": "day", "zone": "Mars/North"}, "UsageLimits.zone must be a zone like"),
        ({"window": "day", "scope": "label:"}, "UsageLimits.scope must be"),
        ({"window": "day", "name": ""}, "UsageLimits.name must be"),
        ({"scope": "key"}, "UsageLimits: scope has no meaning without window"),
        ({"zone": "Europe/Madrid"}, "UsageLimits: zone has no meaning without window"),
        ({"when_reached": "wait"}, "UsageLimits: when_reached='wait' has no meaning without window"),
        ({"window": "day", "when_reached": "stop"}, "must be 'fail', 'pause' or 'wait', not 'stop'"),
        ({"warn_at": 0.8}, "UsageLimits: warn_at has no meaning without window"),
        ({"window": "day", "warn_at": 0}, "UsageLimits.warn_at must be a number > 0 and <= 1, not 0"),
        ({"window": "day", "warn_at": 80}, "UsageLimits.warn_at must be a number > 0 and <= 1, not 80"),
        ({"window": "day", "warn_at": True}, "UsageLimits.warn_at must be a number > 0 and <= 1, not True"),
        ({"window": "day", "warn_at": float("nan")}, "UsageLimits.warn_at must be a number > 0 and <= 1, not nan"),
        ({"window": "day", "request_limit": float("inf")}, "UsageLimits.request_limit must be a whole number"),
        ({"window": "day", "total_tokens_limit": float("nan")}, "UsageLimits.total_tokens_limit must be a finite"),
        ({"window": ["day"]}, "UsageLimits.window must be one of"),
    ],
)
def test_options_that_contradict_a_window_are_refused(options: dict[str, Any], text: str) -> None:
    """The error names the option."""
    with pytest.raises(DeclarationError) as caught:
        UsageLimits(**options)
    assert text in str(caught.value)


def test_limits_that_no_pipeline_can_keep_are_refused() -> None:
    """Two limits of a run, two of one budget, a step's window, and a missing store."""
    day, store = UsageLimits(request_limit=1, window="day"), MemoryStore()
    with pytest.raises(DeclarationError, match="at most one"):
        Flujo(asking(), store=store, usage_limits=[UsageLimits(), UsageLimits(request_limit=1)])
    with pytest.raises(DeclarationError, match="the same name, scope and window"):
        Flujo(asking(), store=store, usage_limits=[day, day])
    with pytest.raises(DeclarationError, match="need a store"):
        Flujo(asking(), usage_limits=day)
    with pytest.raises(DeclarationError, match=r"'inner'.*pass them to Flujo"):
        Flujo(Step("inner", make_agent_async("test"), usage_limits=day), store=store)


def test_the_command_lists_budgets_of_current_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With amounts and limits, and as JSON."""
    url = f"sqlite:///{tmp_path}/runs.db"
    limits = UsageLimits(request_limit=4, window="month", scope="label:tenant")
    Flujo(asking(), store=url, usage_limits=limits).run("go", labels={"tenant": "ada"})
    assert main(["limits", "--store", url]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:6] == ["BUDGET", "SCOPE", "WINDOW", "RESOURCE", "SPENT", "RESERVED"]
    assert row.split()[:7] == ["mail", "ada", "month", "requests", "1", "0", "4"]
    assert main(["limits", "--json", "--store", url]) == 0
    [found] = json.loads(capsys.readouterr().out)["budgets"]
    assert (found["name"], found["spent"]["requests"], found["limits"]["window"]) == ("mail", 1, "month")
