"""Long waits for a rate: runs that are put away, several processes on one bucket, and slots of a killed process."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from flujo_actors import (
    Flujo,
    MemoryStore,
    Pipeline,
    PostgresStore,
    RateLimit,
    RunClient,
    SqliteStore,
    Step,
    make_agent_async,
)
from flujo_actors._core.policies.rate_limits import RateReservation
from flujo_actors._core.telemetry_events import RunWaiting, RunWoken
from flujo_actors.telemetry import MemorySink
from flujo_actors.testing import JumpingClock
from kit import preloaded
from kit.postgres_server import session_server

ONE_A_MINUTE = RateLimit("r", requests_per_min=1, burst_s=0)


class Wall:
    """A wall clock that a test moves."""

    seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def wall() -> Wall:
    return Wall()


def opened(kind: str, wall: Callable[[], float], tmp_path: Path) -> Any:
    """A store of this kind, on a clock of the test."""
    if kind == "memory":
        return MemoryStore(wall=wall)
    if kind == "sqlite":
        return SqliteStore(tmp_path / "runs.db", wall=wall)
    return PostgresStore(session_server().fresh_url(), wall=wall)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, wall: Wall, tmp_path: Path) -> Iterator[Any]:
    made = opened(request.param, wall, tmp_path)
    yield made
    made.close()


def conversation(asked: list[int]) -> FunctionModel:
    """A model that calls a tool first and answers then."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(len(messages))
        returned = any(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
        part = TextPart("done") if returned else ToolCallPart("look", {"city": "Oslo"})
        return ModelResponse(parts=[part], usage=RequestUsage(input_tokens=60, output_tokens=40))

    return FunctionModel(answer, model_name="m")


def travel(asked: list[int], called: list[str], **options: Any) -> Step[Any, Any]:
    """A granular step with a tool, at one request a minute."""

    async def look(city: str) -> str:
        called.append(city)
        return "sunny"

    agent = make_agent_async(conversation(asked), tools=[look], rate_limit=ONE_A_MINUTE)
    return Step.granular("travel", agent, **options)


def test_a_granular_step_is_put_away_while_it_waits(store: Any, wall: Wall) -> None:
    """It wakes at the granted time with its reservation, and nothing is repeated."""
    asked: list[int] = []
    called: list[str] = []
    flujo = Flujo(travel(asked, called), store=store)
    result = flujo.run("go", run_id="r")
    assert (result.status, result.wakes_at) == ("sleeping", wall.seconds + 60)
    info = RunClient(store).get("r")
    assert (info.state, [each.kind for each in info.waits]) == ("sleeping", ["rate"])
    assert (RunClient(store).prompts(), store.get("r").owner) == ([], None)
    wall.seconds += 59
    flujo.recover()
    assert RunClient(store).get("r").state == "sleeping"
    wall.seconds += 1
    flujo.recover()
    result = RunClient(store).wait("r", timeout=120)
    assert (result.output, result.total_tokens, result.step_history[0].attempts) == ("done", 200, 1)
    assert (len(asked), called) == (2, ["Oslo"])
    assert [each.free_at for each in store.rates("r")] == [1_000_000.0 + 120]


def test_a_resumed_run_that_is_not_due_keeps_its_reservation(store: Any) -> None:
    """No second pause is recorded, and the virtual clock does not move."""
    flujo = Flujo(travel([], []), store=store)
    first = flujo.run("go", run_id="r")
    before = store.rates("r")
    again = flujo.resume("r")
    assert (again.status, again.wakes_at, store.rates("r")) == ("sleeping", first.wakes_at, before)
    assert [record.kind for record in store.read("r")].count("paused") == 1


def test_a_run_that_wakes_late_reserves_again(store: Any, wall: Wall) -> None:
    """Its own time has passed; together with others it would exceed the rate."""
    flujo = Flujo(travel([], []), store=store)
    flujo.run("go", run_id="r")
    wall.seconds += 3600
    flujo.recover()
    assert RunClient(store).wait("r", timeout=120).status == "completed"
    assert [each.free_at for each in store.rates("r")] == [wall.seconds + 60]


def test_a_cancelled_wait_for_a_rate_ends_the_run(store: Any) -> None:
    """No worker is needed."""
    asked: list[int] = []
    Flujo(travel(asked, []), store=store).run("go", run_id="r")
    RunClient(store).cancel("r")
    assert RunClient(store).wait("r", timeout=120).status == "aborted"
    assert len(asked) == 1


def jumping(run: Callable[[Callable[[], float]], Any]) -> Any:
    """Run an async function on a clock that skips every wait."""
    clock = JumpingClock()

    async def main() -> Any:
        began = trio.current_time()
        return await run(lambda: clock.current_time() - began)

    return trio.run(main, clock=clock)


@pytest.mark.parametrize("granular", [True, False])
def test_a_step_waits_in_process_while_another_one_executes(granular: bool) -> None:
    """So do steps that are not granular, in any case."""
    times: list[float] = []

    async def main(now: Callable[[], float]) -> Any:
        async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            times.append(now())
            return ModelResponse(parts=[TextPart("ok")], usage=RequestUsage(input_tokens=1, output_tokens=1))

        async def busy(data: Any) -> Any:
            await trio.sleep(300 if granular else 0)
            return data

        agent = make_agent_async(FunctionModel(answer, model_name="m"), rate_limit=ONE_A_MINUTE)
        make: Any = Step.granular if granular else Step
        pair = make("a", agent) >> make("b", agent)
        flujo = Flujo(
            Step.parallel("both", {"x": pair, "y": Step("busy", busy)}), store=MemoryStore(wall=lambda: 1e6 + now())
        )
        return await flujo.run_async("go")

    assert jumping(main).status == "completed"
    assert [round(each) for each in times] == [0, 60]


def test_the_waits_of_a_run_are_reported(wall: Wall) -> None:
    """With their kind, when they begin and when they end."""
    store, sink = MemoryStore(wall=wall), MemorySink()
    flujo = Flujo(travel([], []), store=store, settings={"telemetry": {"sinks": [sink]}})
    flujo.run("go", run_id="r")
    wall.seconds += 60
    flujo.recover()
    told = [event for event in sink.events if isinstance(event, RunWaiting | RunWoken)]
    assert [(event.kind, event.wait_kind) for event in told] == [("run.waiting", "rate"), ("run.woken", "rate")]


# --- several processes ----------------------------------------------------------------------------------------


def test_a_refusal_to_one_worker_stops_the_other_one() -> None:
    """No request of either for two seconds, and no attempt is lost."""
    times: list[float] = []
    refusals = [ModelHTTPError(429, "m", retry_after=2.0)]
    results: list[Any] = []

    async def main(now: Callable[[], float]) -> None:
        async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            times.append(now())
            if len(times) == 3:
                raise refusals.pop()
            return ModelResponse(parts=[TextPart("ok")], usage=RequestUsage(input_tokens=1, output_tokens=1))

        store = MemoryStore(wall=lambda: 1e6 + now())
        limit = RateLimit("r", requests_per_min=120, burst_s=0)

        async def work(name: str) -> None:
            agent = make_agent_async(FunctionModel(answer, model_name="m"), rate_limit=limit)
            steps = [Step(f"{name}{number}", agent) for number in range(4)]
            results.append(await Flujo(Pipeline(steps), store=store).run_async("go"))

        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(work, name)

    jumping(main)
    assert [each.attempts for result in results for each in result.step_history] == [1] * 8
    assert [round(each, 1) for each in times[:3]] == [0.0, 0.5, 1.0]
    assert min(times[3:]) >= 3.0
    assert len(times) == 9


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "burst_s"), [("memory", 1.0), ("memory", 5.0), ("sqlite", 5.0), ("postgres", 5.0)])
def test_processes_share_a_token_rate_and_use_it_up(kind: str, burst_s: float, tmp_path: Path) -> None:
    """At least 95 % of it, and at most 105 % in any six seconds, the first ones included."""
    rate, sent, seconds = 200_000 / 60, [], 30.0
    rng = random.Random(7)

    async def main(now: Callable[[], float]) -> None:
        store = opened(kind, lambda: 1e6 + now(), tmp_path)
        limit = RateLimit("r", tokens_per_min=200_000, burst_s=burst_s)

        async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            used = rng.randint(200, 600)
            sent.append((now(), used))
            return ModelResponse(parts=[TextPart("ok")], usage=RequestUsage(input_tokens=used - 50, output_tokens=50))

        async def work(number: int) -> None:
            agent = make_agent_async(FunctionModel(answer, model_name="m"), rate_limit=limit)
            many = Step.map_over("m", Step("s", agent), items=lambda data, context: range(70), max_concurrency=4)
            await Flujo(many, store=store, settings={"usage": {"first_call_tokens": 500}}).run_async("go")

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(work, number)
        store.close()

    jumping(main)
    total = sum(used for at, used in sent if at < seconds)
    assert 0.95 * rate * seconds <= total <= 1.05 * rate * seconds
    for begin, _ in sent:
        within = sum(used for at, used in sent if begin <= at < begin + 6)
        assert within <= 1.05 * rate * 6


HOLDER = """
import asyncio, sys
from pydantic_ai.models.function import FunctionModel
from flujo_actors import Flujo, RateLimit, Step, make_agent_async

async def hang(messages, info):
    await asyncio.sleep(3600)

agent = make_agent_async(FunctionModel(hang, model_name="m"), rate_limit=RateLimit("r", at_once=5))
many = Step.map_over("m", Step("s", agent), items=lambda data, context: range(5))
Flujo(many, store=sys.argv[1], settings={"durability": {"lease_s": 3.0}}).run("go", run_id="held")
"""


@pytest.mark.slow
def test_the_slots_of_a_killed_process_return_with_its_lease(tmp_path: Path) -> None:
    """They are in use before, and another process gets all of them after."""
    url = f"sqlite:///{tmp_path}/runs.db"
    SqliteStore(tmp_path / "runs.db").reserve(
        RateReservation(name="other", resource="requests", seconds=0.0, burst_s=0, max_wait_s=0)
    )
    client = RunClient(url)

    def in_use() -> int:
        return sum(each.in_use for each in client.rates() if each.name == "r")

    def until(count: int) -> None:
        for _ in range(1200):
            if in_use() == count:
                return
            time.sleep(0.1)
        raise AssertionError(f"{in_use()} slots are in use, and not {count}")

    with preloaded.Popen([sys.executable, "-c", HOLDER, url]) as process:
        try:
            until(5)
        finally:
            os.kill(process.pid, signal.SIGKILL)
    until(0)
    agent = make_agent_async("test", rate_limit=RateLimit("r", at_once=5))
    many = Step.map_over("m", Step("s", agent), items=lambda data, context: range(5))
    assert Flujo(many, store=url).run("go").status == "completed"
