"""Sleeping runs: put away without a process, and resumed when they are due."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from flujo_actors import DeclarationError, Flujo, Outline, RunClient, Step
from flujo_actors._core.step_paths import StepPath
from flujo_actors.stores import MemoryStore, PostgresStore, SqliteStore, Store
from flujo_actors.testing import run_on_mock_clock
from kit import preloaded

HOUR = 3600.0


class Wall:
    """Clock of a store that a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, wall: Wall, tmp_path: Path) -> Iterator[Store]:
    """Each kind of store, with a clock of the test."""
    match request.param:
        case "memory":
            made: Store = MemoryStore(wall=wall)
        case "sqlite":
            made = SqliteStore(tmp_path / "runs.db", wall=wall, synchronous="OFF")
        case _:
            made = PostgresStore(request.getfixturevalue("postgres_server").fresh_url(), wall=wall)
    yield made
    made.close()


class Calls(list[str]):
    """Steps in the order of their execution."""

    def step(self, name: str) -> Step:
        async def note(data: Any) -> Any:
            self.append(name)
            return data

        return Step(name, note)


def client(store: Store) -> RunClient:
    return RunClient(store, allow_blocking=True)


def test_a_run_without_a_store_sleeps_in_process() -> None:
    """Its clock is that of the event loop, which a test can jump over."""
    began = time.monotonic()
    result = run_on_mock_clock(Flujo(Step.sleep("nap", HOUR)), "data")
    assert (result.output, result.status) == ("data", "completed")
    assert result.step_history[0].latency_s >= HOUR
    assert time.monotonic() - began < 60


def test_a_stored_run_is_put_away_until_it_is_due(store: Store, wall: Wall) -> None:
    """It has no owner, and steps before the sleep are executed once."""
    calls = Calls()
    flujo = Flujo(calls.step("a") >> Step.sleep("nap", HOUR) >> calls.step("b"), store=store)
    result = flujo.run(7, run_id="run")
    assert (result.status, result.wakes_at, result.state_token) == ("sleeping", wall.now + HOUR, None)
    info = client(store).get("run")
    assert (info.status, info.state, info.worker, info.wakes_at) == ("sleeping", "sleeping", None, wall.now + HOUR)
    assert [(wait.kind, wait.path, wait.since) for wait in info.waits] == [("sleep", "nap", wall.now)]
    wall.now += HOUR - 1
    assert (list(flujo.recover()), flujo.resume("run").status, calls) == ([], "sleeping", ["a"])
    wall.now += 2
    assert [(each.status, each.output) for each in flujo.recover()] == [("completed", 7)]
    assert calls == ["a", "b"]


def test_a_sleeping_run_asks_nobody(store: Store) -> None:
    """It has no question, no token and no notice to hooks about a pause."""
    told: list[str] = []
    flujo = Flujo(Step.sleep("nap", HOUR), store=store, hooks=lambda payload: told.append(payload.kind))
    flujo.run(1, run_id="run")
    info = client(store).get("run")
    assert (info.state_token, info.questions, list(client(store).prompts())) == (None, 0, [])
    assert "on_pause" not in told
    assert client(store).list(state="sleeping")[0].run_id == "run"
    assert list(client(store).list(state="waiting")) == []


def test_a_question_beside_a_sleep_makes_the_run_paused(store: Store, wall: Wall) -> None:
    """Its token is that of the question; after the answer the run sleeps."""
    branches = {"nap": Step.sleep("nap", HOUR), "ask": Step.human_in_the_loop("ask", "Go?")}
    flujo = Flujo(Step.parallel("both", branches), store=store)
    result = flujo.run(1, run_id="run")
    assert (result.status, result.feedback) == ("paused", "Go?")
    assert len(list(client(store).prompts())) == 1
    assert result.state_token is not None
    assert flujo.resume(result.state_token, "yes").status == "sleeping"
    wall.now += HOUR + 1
    assert [each.output for each in flujo.recover()] == [{"nap": 1, "ask": "yes"}]


def test_a_short_wait_passes_in_process(store: Store) -> None:
    """Its record is there before, for the case that the process dies."""
    assert Flujo(Step.sleep("nap", 0.05), store=store).run(1, run_id="run").status == "completed"
    assert [each.kind for each in client(store).records("run")].count("paused") == 1


@pytest.mark.parametrize("step", [Step.sleep("nap", 0), Step.sleep("nap", until=1.0)], ids=["none", "past"])
def test_no_time_is_no_wait(store: Store, step: Any) -> None:
    """Neither 0 seconds nor a past time is recorded."""
    assert Flujo(step, store=store).run(1, run_id="run").output == 1
    assert "paused" not in [each.kind for each in client(store).records("run")]


def test_a_computed_time_is_computed_once(store: Store, wall: Wall) -> None:
    """A resumed run recalls it."""
    computed: list[int] = []

    def end(data: Any, context: Any, *, run_input: Any) -> datetime.datetime:
        computed.append(run_input)
        return datetime.datetime.fromtimestamp(wall.now + HOUR, datetime.UTC)

    flujo = Flujo(Step.sleep("nap", until=end), store=store)
    assert flujo.run(5, run_id="run").wakes_at == wall.now + HOUR
    wall.now += HOUR + 1
    assert [each.output for each in flujo.recover()] == [5]
    assert computed == [5]


def test_a_sleeping_step_is_drawn_as_waiting(store: Store) -> None:
    """It was not cut short."""
    Flujo(Step.sleep("nap", HOUR), store=store).run(1, run_id="run")
    outline = Outline()
    for record in client(store).records("run"):
        outline.apply(record)
    assert (outline.status, outline.nodes[StepPath("nap")].status) == ("sleeping", "waiting")


def test_wake_ends_a_sleep_now(store: Store) -> None:
    """Once; after that nothing waits."""
    flujo = Flujo(Step.sleep("nap", HOUR), store=store)
    flujo.run(3, run_id="run")
    assert client(store).wake("run", "other") is False
    assert client(store).wake("run", "nap") is True
    assert [each.output for each in flujo.recover()] == [3]
    assert client(store).wake("run") is False


def test_a_sleeping_run_is_cancelled_without_a_worker(store: Store) -> None:
    """No step is executed after that."""
    calls = Calls()
    flujo = Flujo(Step.sleep("nap", HOUR) >> calls.step("after"), store=store)
    flujo.run(1, run_id="run")
    client(store).cancel("run")
    assert (client(store).get("run").status, list(flujo.recover()), calls) == ("aborted", [], [])


def test_a_retry_sleeps_again(store: Store, wall: Wall) -> None:
    """Each attempt of the enclosing step has a wait of its own."""
    tries: list[int] = []

    async def fail_once(data: int) -> int:
        tries.append(data)
        if len(tries) == 1:
            raise ValueError("again")
        return data

    body = Step.sleep("nap", HOUR) >> Step("work", fail_once)
    flujo = Flujo(Step.sequence("body", body, max_retries=1), store=store)
    assert flujo.run(1, run_id="run").status == "sleeping"
    wall.now += HOUR + 1
    assert [each.status for each in flujo.recover()] == ["sleeping"]
    wall.now += HOUR + 1
    assert [each.status for each in flujo.recover()] == ["completed"]
    assert tries == [1, 1]


def test_a_branch_waits_in_process_while_another_works(store: Store) -> None:
    """It continues when it is due, before the other one has ended."""
    order: list[str] = []

    async def slow(data: int) -> int:
        while "after" not in order:
            await trio.sleep(0.01)
        order.append("slow")
        return data

    async def after(data: int) -> int:
        order.append("after")
        return data

    short = {"durability": {"inline_wait_s": 0}}
    branches = {"nap": Step.sleep("nap", 0.1) >> Step("after", after), "slow": Step("slow", slow)}
    result = Flujo(Step.parallel("both", branches), store=store, settings=short).run(1)
    assert (result.status, order) == ("completed", ["after", "slow"])


def test_items_of_a_map_that_did_not_start_wait_for_the_sleeping_ones(store: Store, wall: Wall) -> None:
    """A run that is put away starts nothing: a pause between items stays one."""
    calls: list[int] = []

    async def work(data: int) -> int:
        calls.append(data)
        return data

    body = Step("work", work) >> Step.sleep("nap", HOUR)
    flujo = Flujo(Step.map_over("all", body, max_concurrency=1), store=store)
    flujo.run([1, 2, 3], run_id="run")
    assert calls == [1]
    for count in (2, 3):
        wall.now += HOUR + 1
        flujo.recover()
        assert calls == [1, 2, 3][:count]
    wall.now += HOUR + 1
    assert [each.output for each in flujo.recover()] == [[1, 2, 3]]


def test_time_put_away_is_no_time_of_the_step(store: Store, wall: Wall) -> None:
    """Neither `timeout_s` nor `time_limit_s` counts it."""
    flujo = Flujo(Step.sequence("body", Step.sleep("nap", HOUR), timeout_s=30), store=store)
    assert flujo.run(1, run_id="run").status == "sleeping"
    wall.now += HOUR + 1
    assert [each.status for each in flujo.recover()] == ["completed"]


def work_once(flujo: Flujo[Any, Any, Any]) -> None:
    """Execute what can be claimed now."""

    async def work() -> None:
        async with flujo.worker(once=True) as worker:
            await worker.stopped()

    trio.run(work)


def test_a_worker_wakes_what_is_due_and_no_more(store: Store, wall: Wall) -> None:
    """`once` does not wait for later wakes."""
    flujo = Flujo(Step.sleep("nap", HOUR), store=store)
    for name in ("early", "late"):
        flujo.submit_sync(1, run_id=name)
        work_once(flujo)
        wall.now += 60
    wall.now += HOUR - 119
    work_once(flujo)
    assert [client(store).get(name).status for name in ("early", "late")] == ["completed", "sleeping"]


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "both": (lambda: Step.sleep("nap", 1, until=2.0), "step 'nap': give either seconds or until"),
    "none": (lambda: Step.sleep("nap"), "step 'nap': give either seconds or until"),
    "negative": (lambda: Step.sleep("nap", -1), "step 'nap': seconds must be a finite number >= 0, not -1"),
    "nan": (lambda: Step.sleep("nap", float("nan")), "step 'nap': seconds must be a finite number >= 0, not nan"),
    "bool": (lambda: Step.sleep("nap", True), "step 'nap': seconds must be a finite number >= 0, not True"),
    "naive": (
        lambda: Step.sleep("nap", until=datetime.datetime(2026, 1, 1)),
        "step 'nap': until has no time zone; use datetime(..., tzinfo=ZoneInfo(\"...\"))",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_impossible_time_is_refused_when_it_is_declared(name: str) -> None:
    """The message says what to write."""
    declare, text = REFUSED[name]
    with pytest.raises(DeclarationError) as refused:
        declare()
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Step.sleep("nap", lambda data, context: -1), "step 'nap': seconds must be a finite number >= 0, not -1"),
        (Step.sleep("nap", until=lambda data, context: datetime.datetime(2026, 1, 1)), REFUSED["naive"][1]),
    ],
    ids=["seconds", "until"],
)
def test_an_impossible_time_of_a_callable_fails_the_step(step: Any, text: str) -> None:
    """Retries and the fallback apply."""
    result = Flujo(step).run(1)
    assert (result.status, result.step_history[0].feedback) == ("failed", text)


SLEEPER = """
import os, sys
from flujo_actors import Flujo, Step

async def first(data):
    with open(sys.argv[2], "a") as file:
        file.write("first\\n")
    return data

async def last(data):
    return data + 1

flujo = Flujo(Step("first", first) >> Step.sleep("nap", float(sys.argv[3])) >> Step("last", last), store=sys.argv[1])
if sys.argv[4] == "run":
    print(flujo.run(1, run_id="run").status, flush=True)
    os.kill(os.getpid(), 9)
print([result.output for result in flujo.recover()])
"""


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_killed_process_does_not_end_a_sleep(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Another process resumes the run; steps before the sleep are executed once."""
    script, log = tmp_path / "sleeper.py", tmp_path / "log"
    script.write_text(SLEEPER)
    in_file = database == "sqlite"
    url = f"sqlite:///{tmp_path}/runs.db" if in_file else request.getfixturevalue("postgres_place").url
    command = [sys.executable, str(script), url, str(log), "1.5"]
    asleep = preloaded.run([*command, "run"], capture_output=True, text=True, timeout=240, check=False)
    assert asleep.stdout.split() == ["sleeping"]
    deadline, output = time.monotonic() + 200, "[]"
    while output == "[]" and time.monotonic() < deadline:
        output = preloaded.run([*command, "recover"], capture_output=True, text=True, timeout=240, check=True).stdout
        output = output.strip()
    assert (output, log.read_text()) == ("[2]", "first\n")
