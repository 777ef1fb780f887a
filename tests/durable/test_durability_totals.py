"""Totals of runs: counts, exact percentiles, tokens and cost, on every store."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from flujo_actors import DeclarationError, Flujo, MemoryStore, Pipeline, RunClient, RunFilter, Step
from flujo_actors._durable.operations import run_totals
from flujo_actors._durable.operations.run_totals import nearest_rank

NOON = dt.datetime(2026, 3, 28, 12, tzinfo=dt.UTC).timestamp()
HOUR, DAY = 3600.0, 86400.0


async def echo(data: Any) -> Any:
    return data


@attrs.frozen
class History:
    """A store whose runs are given their numbers."""

    store: Any
    change: Callable[[str, dict[str, Any]], None]

    def run(self, run_id: str, *, labels: Any = None, pipeline: str = "p", queue: str = "q", **facts: Any) -> None:
        """Add a run with these columns."""
        flujo = Flujo(Pipeline([Step("a", echo)], name=pipeline), store=self.store)
        flujo.submit_sync(1, run_id=run_id, labels=labels, queue=queue)
        self.change(run_id, facts)

    def totals(self, by: Any, **options: Any) -> dict[Any, Any]:
        """Return the rows by the values of their keys."""
        return {tuple(row.key.values()): row for row in RunClient(self.store).totals(by, **options)}


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def history(request: pytest.FixtureRequest) -> Iterator[History]:
    """An empty store of each kind."""
    if request.param == "memory":
        store = MemoryStore()
        yield History(store, lambda run_id, facts: [setattr(store._runs[run_id], *each) for each in facts.items()])
        return
    place = request.getfixturevalue(f"{request.param}_place")

    def change(run_id: str, facts: dict[str, Any]) -> None:
        columns = ", ".join(f"{name} = %s" for name in facts)
        place.query(f"UPDATE flujo_runs SET {columns} WHERE run_id = %s", *facts.values(), run_id)

    yield History(place.open(), change)


def test_totals_count_by_pipeline_day_and_label(history: History) -> None:
    """Ended runs by the day of their end, open ones by that of their creation."""
    ended = {"started_at": NOON + 5, "worked_s": 20.0, "tokens": 10, "cost_usd": 0.5}
    done = {**ended, "status": "completed", "created_at": NOON, "ended_at": NOON + 100}
    history.run("late", labels={"tenant": "a"}, **{**done, "ended_at": NOON + DAY})
    history.run("one", labels={"tenant": "a"}, **done)
    history.run("two", labels={"tenant": "a"}, **{**done, "status": "failed"})
    history.run("three", labels={"tenant": "b"}, pipeline="other", **done)
    history.run("open", created_at=NOON, started_at=None)
    found = history.totals(("pipeline", "day", "label:tenant"))
    assert list(found) == [
        ("other", "2026-03-28", "b"),
        ("p", "2026-03-28", "a"),
        ("p", "2026-03-28", None),
        ("p", "2026-03-29", "a"),
    ]
    row = found["p", "2026-03-28", "a"]
    assert dict(row.key) == {"pipeline": "p", "day": "2026-03-28", "label:tenant": "a"}
    assert (row.runs, row.completed, row.failed, row.aborted, row.open) == (2, 1, 1, 0, 0)
    assert (row.p50_s, row.p95_s, row.worked_p50_s, row.worked_p95_s) == (100.0, 100.0, 20.0, 20.0)
    assert (row.queued_p95_s, row.tokens, row.cost_usd) == (5.0, 20, 1.0)
    waiting = found["p", "2026-03-28", None]
    assert (waiting.runs, waiting.open, waiting.p50_s, waiting.queued_p95_s) == (1, 1, None, None)


def test_totals_are_of_a_period_and_a_filter(history: History) -> None:
    """The beginning is part of the period, its end is not."""
    for number in range(6):
        at = NOON + number * HOUR
        status = "completed" if number % 2 else "failed"
        labels = {"tenant": str(number % 3)}
        history.run(f"r{number}", labels=labels, status=status, created_at=at - 60, ended_at=at, started_at=at - 30)
    whole = history.totals((), since=NOON + HOUR, until=dt.datetime.fromtimestamp(NOON + 4 * HOUR, dt.UTC))
    assert whole[()].runs == 3
    assert history.totals(("status",), where=RunFilter(labels={"tenant": "1"}))[("failed",)].runs == 1
    assert history.totals((), where=RunFilter(status="failed", queue="q", pipeline="p"))[()].runs == 3
    assert history.totals((), where=RunFilter(labels={"tenant": "9"})) == {}
    assert history.totals((), where=RunFilter(search="r3"))[()].runs == 1
    assert history.totals((), where=RunFilter(search="zzz")) == {}
    assert history.totals((), since="1d", until="1h") == {}
    RunClient(history.store).delete("r0")
    assert history.totals(())[()].runs == 5


def test_days_and_hours_begin_by_the_clock_of_a_zone(history: History) -> None:
    """Also in the night in which clocks change; both hours of that name are kept apart."""
    times = [dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC), dt.datetime(2026, 10, 25, 1, 30, tzinfo=dt.UTC)]
    times += [dt.datetime(2026, 10, 24, 22, 30, tzinfo=dt.UTC)]
    for number, when in enumerate(times):
        history.run(f"r{number}", status="completed", created_at=when.timestamp(), ended_at=when.timestamp())
    days = {key: row.runs for key, row in history.totals(("day",), zone="Europe/Madrid").items()}
    assert days == {("2026-10-25",): 3}
    assert {key: row.runs for key, row in history.totals("day").items()} == {("2026-10-24",): 1, ("2026-10-25",): 2}
    hours = [hour for (hour,) in history.totals(("hour",), zone="Europe/Madrid")]
    assert hours == ["2026-10-25T00:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:00+02:00"]


def test_percentiles_are_exact_over_pages(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """By nearest rank, also of runs that end at the same time."""
    monkeypatch.setattr(run_totals, "PAGE", 7)
    lengths = random.Random(7).sample(range(1, 1000), 40)
    for number, length in enumerate(lengths):
        ended = NOON + number // 4
        history.run(f"r{number}", status="completed", created_at=ended - length, ended_at=ended)
    for number in range(15):
        history.run(f"o{number}", created_at=NOON)
    row = history.totals(())[()]
    assert (row.runs, row.open) == (55, 15)
    assert (row.p50_s, row.p95_s) == (sorted(lengths)[19], sorted(lengths)[37])


@pytest.mark.parametrize(
    ("count", "percent", "rank"), [(1, 50, 1), (2, 50, 1), (3, 50, 2), (20, 95, 19), (100, 95, 95), (101, 95, 96)]
)
def test_the_nearest_rank_is_the_least_value_that_is_enough(count: int, percent: int, rank: int) -> None:
    """The definition, without interpolation."""
    assert nearest_rank([float(number) for number in range(1, count + 1)], percent) == rank
    assert nearest_rank([], percent) is None


@pytest.mark.parametrize(
    ("by", "options", "told"),
    [
        (("week",), {}, "there is no group 'week'"),
        (("day", "hour", "status", "queue"), {}, "by has 4 groups, at most 3"),
        (("label:a b",), {}, "'a b' is no name"),
        (("day",), {"zone": "Europe/Nowhere"}, "there is no time zone 'Europe/Nowhere'"),
        (("day",), {"since": "7"}, "'7' has no unit"),
        (("day",), {"where": RunFilter(state="queued")}, "a filter by state or run_ids has no totals"),
        (("day",), {"where": {"labels": {}}}, "where must be a RunFilter"),
    ],
)
def test_invalid_totals_are_refused(by: Any, options: Any, told: str) -> None:
    """With the reason."""
    with pytest.raises(DeclarationError, match=told):
        RunClient(MemoryStore()).totals(by, **options)


def test_names_and_labels_of_any_text_are_groups(history: History) -> None:
    """NUL and lone surrogates come back as they were."""
    history.run("r", labels={"tenant": "a\0\ud800"}, pipeline="p\0", status="completed", created_at=1.0, ended_at=2.0)
    assert list(history.totals(("pipeline", "label:tenant"))) == [("p\0", "a\0\ud800")]
