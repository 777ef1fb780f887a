"""Schedules: instants, missed ones, overlap, requests of clients, and one run for each instant."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import trio

from flujo_actors import (
    DeclarationError,
    Flujo,
    MemoryStore,
    RunClient,
    ScheduleExists,
    Step,
    StoreError,
    dump_blueprint,
    lint,
    load_blueprint,
)
from flujo_actors._api.cli.entry import main
from flujo_actors._core.cron import cron_instants
from flujo_actors._core.policies.schedule_rules import utc_text
from flujo_actors._core.telemetry_events import ScheduleFired, ScheduleSkipped
from flujo_actors.telemetry import MemorySink
from kit.other_processes import ended, forked

NEW_YEAR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp()
HOUR = 3600.0
DAY = 24 * HOUR
Now = list[float]


async def answer(data: Any) -> Any:
    return data


@pytest.fixture
def now() -> Now:
    """The store's clock."""
    return [NEW_YEAR]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, now: Now) -> Iterator[Any]:
    """A store of each kind on that clock."""
    if request.param == "memory":
        yield MemoryStore(wall=lambda: now[0])
    else:
        yield request.getfixturevalue(f"{request.param}_place").open(wall=lambda: now[0])


@pytest.fixture
def memory(now: Now) -> MemoryStore:
    """A store in memory on that clock."""
    return MemoryStore(wall=lambda: now[0])


def work(*flujos: Flujo[Any, Any, Any]) -> None:
    """Let a worker of each do what is due now."""

    async def serve(flujo: Flujo[Any, Any, Any]) -> None:
        async with flujo.worker(once=True, look_s=0.005) as worker:
            await worker.stopped()

    async def all_of_them() -> None:
        async with trio.open_nursery() as nursery:
            for flujo in flujos:
                nursery.start_soon(serve, flujo)

    trio.run(all_of_them)


def ids(store: Any) -> list[str]:
    return sorted(run.run_id for run in RunClient(store, allow_blocking=True).list())


def test_a_schedule_runs_at_its_instants(store: Any, now: Now) -> None:
    """Each instant has one run, named after it, of four workers that look at once."""
    flujos = [Flujo(Step("s", answer), store=store) for _ in range(4)]
    info = flujos[0].schedule("hourly", cron="0 * * * *", input=7)
    assert info.next[0] == dt.datetime(2026, 1, 1, 1, tzinfo=dt.UTC)
    work(*flujos)
    assert ids(store) == []
    for _ in range(3):
        now[0] += HOUR
        work(*flujos)
    assert ids(store) == [f"hourly@2026-01-01T0{hour}:00:00Z" for hour in (1, 2, 3)]
    client = RunClient(store)
    assert {client.get(run_id).status for run_id in ids(store)} == {"completed"}
    info = client.schedule("hourly")
    assert (info.fired, info.missed, info.last_run_id) == (3, 0, "hourly@2026-01-01T03:00:00Z")
    assert info.last_status == "completed"
    assert client.wait(ids(store)[0]).output == 7


@pytest.mark.parametrize(("missed", "runs"), [("one", 1), ("skip", 0), ("all", 3)])
def test_missed_instants_follow_the_policy(store: Any, now: Now, missed: Any, runs: int) -> None:
    """After three hours without a worker, the policy decides how many of three instants run."""
    flujo = Flujo(Step("s", answer), store=store)
    flujo.schedule("hourly", cron="0 * * * *", missed=missed, overlap="allow")
    now[0] += 3 * HOUR + 600
    work(flujo)
    assert len(ids(store)) == runs
    info = RunClient(store).schedule("hourly")
    assert (info.fired, info.missed) == (runs, 3 - runs)
    assert ids(store)[-1:] == (["hourly@2026-01-01T03:00:00Z"] if runs else [])


def test_a_year_without_a_worker_costs_no_walk_over_its_instants(memory: MemoryStore, now: Now) -> None:
    """An instant every second for a year: the newest missed one runs, and the look is quick."""
    flujo = Flujo(Step("s", answer), store=memory)
    flujo.schedule("often", every_s=1)
    now[0] += 365 * DAY + 0.5
    work(flujo)
    newest = utc_text(now[0] - 0.5 - 60)
    assert f"often@{newest}" in ids(memory)


def test_an_unended_run_skips_the_next_instant(store: Any, now: Now) -> None:
    """A paused run counts as one that has not ended; events tell of both instants."""
    sink = MemorySink()
    flujo = Flujo(Step.human_in_the_loop("ask", "?"), store=store, settings={"telemetry": {"sinks": [sink]}})
    flujo.schedule("hourly", cron="0 * * * *")
    for _ in range(2):
        now[0] += HOUR
        work(flujo)
    info = RunClient(store).schedule("hourly")
    assert (ids(store), info.skipped) == (["hourly@2026-01-01T01:00:00Z"], 1)
    told = [(event.kind, event.schedule) for event in sink.events if isinstance(event, ScheduleFired | ScheduleSkipped)]
    assert told == [("schedule.fired", "hourly"), ("schedule.skipped", "hourly")]


@pytest.mark.parametrize("overlap", ["queue", "cancel"])
def test_a_queued_instant_starts_when_the_earlier_run_has_ended(store: Any, now: Now, overlap: Any) -> None:
    """One instant waits, further ones are skipped; `cancel` ends the earlier run."""
    flujo, client = Flujo(Step.human_in_the_loop("ask", "?"), store=store), RunClient(store)
    flujo.schedule("hourly", cron="0 * * * *", overlap=overlap)
    for _ in range(3 if overlap == "queue" else 2):
        now[0] += HOUR
        work(flujo)
    first, second = (f"hourly@2026-01-01T0{hour}:00:00Z" for hour in (1, 2))
    if overlap == "queue":
        assert (client.schedule("hourly").skipped, client.get(first).status) == (1, "paused")
        assert client.get(second).status == "sleeping"
        client.cancel(first)
    work(flujo)
    assert (client.get(first).status, client.get(second).status) == ("aborted", "paused")


def test_paused_time_is_never_missed(store: Any, now: Now) -> None:
    """`resume_schedule` begins at its own time."""
    flujo, client = Flujo(Step("s", answer), store=store), RunClient(store)
    flujo.schedule("hourly", cron="0 * * * *", missed="all")
    client.pause_schedule("hourly")
    now[0] += 2 * HOUR
    work(flujo)
    assert client.schedule("hourly").paused
    client.resume_schedule("hourly")
    work(flujo)
    assert ids(store) == []
    now[0] += HOUR
    work(flujo)
    assert len(ids(store)) == 1


def test_a_backfill_adds_the_instants_without_a_run(store: Any, now: Now) -> None:
    """Of a week with two runs, five are missing."""
    flujo, client = Flujo(Step("s", answer), store=store), RunClient(store)
    flujo.schedule("daily", cron="0 9 * * *")
    for _ in range(2):
        now[0] += DAY
        work(flujo)
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    added = client.backfill("daily", start, start + dt.timedelta(days=7))
    assert [each.removeprefix("daily@2026-01-0")[0] for each in added] == list("34567")
    assert client.backfill("daily", start, start + dt.timedelta(days=7)) == []
    work(flujo)
    assert len(ids(store)) == 7
    with pytest.raises(ValueError, match="more than 10"):
        client.backfill("daily", start, start + dt.timedelta(days=30), limit=10)
    assert len(ids(store)) == 7


def test_a_trigger_returns_the_id_of_its_run_at_once(store: Any, now: Now) -> None:
    """The next worker creates the run, also of a paused schedule."""
    flujo, client = Flujo(Step("s", _scheduled), store=store), RunClient(store)
    flujo.schedule("daily", cron="0 9 * * *", zone="Europe/Madrid", paused=True)
    run_id = client.trigger("daily")
    assert run_id.startswith("daily!")
    work(flujo)
    assert client.wait(run_id).output == "2026-01-01T01:00:00+01:00"


async def _scheduled(data: object, *, scheduled_at: dt.datetime | None) -> str:
    return "" if scheduled_at is None else scheduled_at.isoformat()


def test_a_function_makes_the_input_of_an_instant(memory: MemoryStore, now: Now) -> None:
    """It gets the aware time; its error is counted, and the next instant runs."""

    def made(at: dt.datetime) -> str:
        if at.hour == 2:
            raise LookupError("no data")
        return at.isoformat()

    flujo = Flujo(Step("s", answer), store=memory)
    flujo.schedule("hourly", cron="0 * * * *", zone="Europe/Madrid", input=made)
    now[0] += HOUR
    work(flujo)
    info = RunClient(memory).schedule("hourly")
    assert (info.error, ids(memory)) == ("LookupError: no data", [])
    now[0] += HOUR
    work(flujo)
    assert RunClient(memory).wait(ids(memory)[0]).output == "2026-01-01T03:00:00+01:00"
    assert RunClient(memory).schedule("hourly").error is None


def test_a_step_without_a_schedule_has_no_scheduled_time() -> None:
    """The keyword is None then."""
    assert Flujo(Step("s", _scheduled)).run(1).output == ""


def test_a_clock_that_is_set_back_repeats_nothing(store: Any, now: Now) -> None:
    """The watermark moves forward only."""
    flujo = Flujo(Step("s", answer), store=store)
    flujo.schedule("hourly", cron="0 * * * *")
    now[0] += 2 * HOUR
    work(flujo)
    before = ids(store)
    now[0] -= HOUR
    work(flujo)
    now[0] += HOUR
    work(flujo)
    assert ids(store) == before


def test_a_declaration_is_updated_and_keeps_its_progress(store: Any, now: Now) -> None:
    """A new rhythm begins now; a schedule that a client paused stays paused."""
    flujo, client = Flujo(Step("s", answer, meta={}), store=store), RunClient(store)
    flujo.schedule("often", cron="0 * * * *")
    client.pause_schedule("often")
    now[0] += 5 * HOUR
    info = flujo.schedule("often", every_s=600)
    assert (info.paused, info.every_s) == (True, 600)
    client.resume_schedule("often")
    work(flujo)
    assert ids(store) == []
    other = Flujo(Step("other", answer), store=store)
    with pytest.raises(ScheduleExists, match="'often' belongs to pipeline 's', not 'other'"):
        other.schedule("often", cron="0 * * * *")


def test_a_deleted_schedule_keeps_its_runs(store: Any, now: Now) -> None:
    """Its name is free again, and unknown names are errors."""
    flujo, client = Flujo(Step("s", answer), store=store), RunClient(store)
    flujo.schedule("hourly", cron="0 * * * *")
    now[0] += HOUR
    work(flujo)
    client.delete_schedule("hourly")
    assert (client.schedules(), len(ids(store))) == ([], 1)
    with pytest.raises(StoreError, match="no schedule 'hourly'"):
        client.schedule("hourly")


def test_jitter_delays_an_instant_alike_in_every_process(memory: MemoryStore, now: Now) -> None:
    """The id keeps the instant."""
    flujo = Flujo(Step("s", answer), store=memory)
    flujo.schedule("hourly", cron="0 * * * *", jitter_s=600)
    row = memory.get_all(name="hourly")[0]
    assert row.due_at is not None
    assert NEW_YEAR + HOUR <= row.due_at < NEW_YEAR + HOUR + 600
    now[0] = row.due_at - 1
    work(flujo)
    assert ids(memory) == []
    now[0] = row.due_at
    work(flujo)
    assert ids(memory) == ["hourly@2026-01-01T01:00:00Z"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cron": "61 * * * *"}, r"schedule 'daily': cron '61 \* \* \* \*' is not valid \(Bad minute\); five fields: "),
        ({"cron": "0 0 * * * *"}, "Wrong number of fields"),
        ({"cron": "@reboot"}, "is not valid"),
        ({"cron": "0 0 30 2 *"}, "is not valid"),
        ({"cron": "0 9 * * *", "zone": "Europe/Madird"}, "no zone 'Europe/Madird'; did you mean 'Europe/Madrid'"),
        ({"cron": "0 9 * * *", "every_s": 5}, "schedule 'daily': give either cron or every_s"),
        ({}, "schedule 'daily': give either cron or every_s"),
        ({"every_s": 0.5}, "every_s must be a finite number >= 1, not 0.5"),
        ({"every_s": 60, "jitter_s": 60}, "jitter_s must be less than the shortest interval, 60 s, not 60"),
        ({"every_s": 60, "overlap": "both"}, "overlap must be one of 'skip', 'queue', 'cancel', 'allow'"),
        ({"every_s": 60, "starts_at": dt.datetime(2026, 1, 1)}, "starts_at has no time zone"),
    ],
)
def test_an_impossible_schedule_is_refused(options: dict[str, Any], text: str) -> None:
    """The message names the schedule, the option and the reason."""
    with pytest.raises(DeclarationError, match=text):
        Flujo(Step("s", answer), store=MemoryStore()).schedule("daily", **options)


def test_schedules_need_a_store() -> None:
    """A run in memory has no workers."""
    with pytest.raises(DeclarationError, match="schedule 'daily': schedules need a store"):
        Flujo(Step("s", answer)).schedule("daily", every_s=60)


def _between(cron: str, zone: str, start: float, end: float) -> list[float]:
    found = cron_instants(cron, ZoneInfo(zone))(start)
    return list(itertools.takewhile(lambda each: each < end, found))


def test_a_year_has_each_local_time_once() -> None:
    """The gap of spring runs after it, the repeated hour of autumn once; hours are all distinct."""
    year = _between("30 2 * * *", "Europe/Madrid", NEW_YEAR - 1, NEW_YEAR + 365 * DAY)
    assert len(year) == 365
    texts = [utc_text(each) for each in year]
    assert [each for each in texts if each.startswith(("2026-03-29", "2026-10-25"))] == [
        "2026-03-29T01:00:00Z",
        "2026-10-25T00:30:00Z",
    ]
    hours = _between("0 * * * *", "Europe/Madrid", NEW_YEAR, NEW_YEAR + 365 * DAY)
    assert len(hours) == len(set(hours)) == 8759


def test_a_start_in_the_repeated_hour_goes_forward() -> None:
    """The local time of the second pass is not taken for that of the first."""
    second_pass = dt.datetime(2026, 10, 25, 1, 15, tzinfo=dt.UTC).timestamp()
    found = next(cron_instants("30 2 * * *", ZoneInfo("Europe/Madrid"))(second_pass))
    assert utc_text(found) == "2026-10-26T01:30:00Z"


@pytest.mark.slow
def test_four_workers_run_a_year_exactly_once(memory: MemoryStore, now: Now) -> None:
    """On a jumped clock, workers look at random moments: 365 runs, none twice."""
    flujos = [Flujo(Step("s", answer), store=memory) for _ in range(4)]
    flujos[0].schedule("nightly", cron="30 2 * * *", zone="Europe/Madrid")
    chance = random.Random(5)
    while now[0] < NEW_YEAR + 365 * DAY:
        now[0] += chance.uniform(12 * HOUR, 22 * HOUR)
        work(*chance.sample(flujos, chance.choice([1, 1, 1, 1, 1, 4])))
    found = [run_id for run_id in ids(memory) if run_id < "nightly@2027"]
    assert len(found) == 365
    assert RunClient(memory).schedule("nightly").missed == 0


@pytest.mark.slow
def test_killed_workers_run_a_year_exactly_once(place: Any) -> None:
    """Four processes are killed at random over both changes of the clocks: 365 runs, none twice."""
    clock = multiprocessing.get_context("fork").Value("d", NEW_YEAR)

    def flujo() -> Flujo[Any, Any, Any]:
        return Flujo(Step("s", answer), store=place.open(wall=lambda: clock.value))

    flujo().schedule(
        "nightly", cron="30 2 * * *", zone="Europe/Madrid", overlap="allow", missed="all", missed_within_s=30 * DAY
    )
    client, chance = RunClient(place.open(wall=lambda: clock.value)), random.Random(5)
    children = [forked(lambda: _serve(flujo(), look_s=0.02)) for _ in range(4)]
    try:
        while clock.value < NEW_YEAR + 365 * DAY:
            clock.value += chance.uniform(1, 14) * DAY
            if chance.random() < 0.5:
                _replace(children, chance.randrange(4), lambda: _serve(flujo(), look_s=0.02))
            _until(lambda: client.schedule("nightly").late_s == 0)
    finally:
        _kill(children)
    found = [run_id for run_id in ids(place.open()) if run_id < "nightly@2027"]
    assert found == [
        f"nightly@{utc_text(each)}"
        for each in _between("30 2 * * *", "Europe/Madrid", NEW_YEAR - 1, NEW_YEAR + 365 * DAY)
    ]


@pytest.mark.slow
def test_killed_workers_fire_each_second_once(place: Any) -> None:
    """Four processes are killed at random: the ids are exactly the instants."""

    def flujo() -> Flujo[Any, Any, Any]:
        return Flujo(Step("s", answer), store=place.open())

    flujo().schedule("often", every_s=1, overlap="allow")
    begun = time.time()
    children = [forked(lambda: _serve(flujo())) for _ in range(4)]
    chance = random.Random(3)
    client = RunClient(place.open())
    try:
        while time.time() < begun + 8:
            time.sleep(chance.uniform(0.2, 0.6))
            _replace(children, chance.randrange(4), lambda: _serve(flujo()))
        _until(lambda: client.schedule("often").late_s < 1)
    finally:
        _kill(children)
    found = ids(place.open())
    last = dt.datetime.fromisoformat(found[-1].partition("@")[2]).timestamp()
    first = dt.datetime.fromisoformat(found[0].partition("@")[2]).timestamp()
    assert found == [f"often@{utc_text(first + each)}" for each in range(int(last - first) + 1)]
    assert last - first >= 7


def _replace(children: list[int], victim: int, work: Callable[[], None]) -> None:
    """Kill a child and start another one."""
    _kill([children[victim]])
    children[victim] = forked(work)


def _kill(children: list[int]) -> None:
    for child in children:
        os.kill(child, signal.SIGKILL)
        ended(child)


def _serve(flujo: Flujo[Any, Any, Any], **options: Any) -> None:
    async def serve() -> None:
        async with flujo.worker(**options):
            await trio.sleep_forever()

    trio.run(serve)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_blueprint_declares_schedules(tmp_path: Path) -> None:
    """The command `worker` applies them; `dump_blueprint` writes them."""
    path = tmp_path / "p.yaml"
    path.write_text(BLUEPRINT)
    pipeline = load_blueprint(path)
    assert "daily" in dump_blueprint(pipeline)
    url = f"sqlite:///{tmp_path}/runs.db"
    assert main(["worker", str(path), "--once", "--store", url]) == 0
    client = RunClient(url)
    assert client.schedule("daily").zone == "Europe/Madrid"
    run_id = client.trigger("daily")
    assert main(["worker", str(path), "--once", "--store", url]) == 0
    at = client.schedule("daily").last_instant
    assert at is not None
    assert client.wait(run_id).output == f"{at.isoformat()} for 1"


BLUEPRINT = """
version: '1'
name: p
schedules:
  daily: {cron: "0 9 * * 1-5", zone: Europe/Madrid, input: {a: 1}, overlap: queue}
steps:
- {name: s, uses: builtins.passthrough, input: "{{ scheduled_at }} for {{ input.a }}"}
"""


@pytest.mark.parametrize(
    ("before", "after", "rule", "text"),
    [
        ("0 9 * * 1-5", "61 9 * * *", "V-D1", "is not valid (Bad minute); five fields: minute hour day month weekday"),
        ("0 9 * * 1-5", "0 0 9 * * *", "V-D1", "Wrong number of fields"),
        ("Europe/Madrid", "Europe/Madird", "V-D1", "did you mean 'Europe/Madrid'?"),
        ("0 9 * * 1-5", "30 2 * * *", "V-D2", "between 02:00 and 03:00"),
    ],
)
def test_a_linter_finds_a_wrong_schedule(tmp_path: Path, before: str, after: str, rule: str, text: str) -> None:
    """An impossible one is an error, an ambiguous hour a note."""
    path = tmp_path / "p.yaml"
    path.write_text(BLUEPRINT.replace(before, after))
    [found] = lint(path)
    assert found.rule == rule
    assert text in found.message


def test_the_command_handles_schedules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It lists, shows, pauses, resumes, triggers, backfills and deletes."""
    url = f"sqlite:///{tmp_path}/runs.db"
    Flujo(Step("s", answer), store=url).schedule("daily", cron="0 9 * * *")

    def said(*arguments: str) -> str:
        assert main(["schedules", *arguments, "--store", url]) == 0
        return capsys.readouterr().out

    assert "0 9 * * *" in said("list")
    said("pause", "daily")
    assert json.loads(said("show", "daily", "--json"))["schedule"]["paused"] is True
    said("resume", "daily")
    assert said("trigger", "daily").startswith("daily!")
    filled = said("backfill", "daily", "--from", "2026-01-01T00:00Z", "--to", "2026-01-03T00:00Z").split()
    assert filled == ["daily@2026-01-01T09:00:00Z", "daily@2026-01-02T09:00:00Z"]
    said("delete", "daily")
    assert main(["schedules", "show", "daily", "--store", url]) != 0
