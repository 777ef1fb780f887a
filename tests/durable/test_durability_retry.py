"""Retry of failed and aborted runs: successes stay, failures are executed again, on every store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio

from flujo_actors import (
    Failure,
    Flujo,
    MemoryStore,
    NotPaused,
    NotRetryable,
    Outline,
    Pipeline,
    Recovered,
    RunClient,
    RunEnded,
    RunNotFound,
    Step,
    Success,
    Undo,
    UsageLimits,
    make_agent_async,
)
from flujo_actors._api.cli.entry import main
from flujo_actors._core.step_paths import StepPath
from flujo_actors.errors import FingerprintMismatch
from flujo_actors.telemetry import MemorySink, RunRetried
from flujo_actors.testing import scripted_model


class World:
    """Steps that count their calls, and fail until the world is repaired."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.keys: list[str] = []
        self.broken = True

    def step(self, name: str, *, fails: bool = False, **options: Any) -> Step:
        async def agent(data: Any, *, idempotency_key: str) -> str:
            self.calls.append(name)
            self.keys.append(idempotency_key)
            if fails and self.broken:
                raise ConnectionError("down")
            return f"{name}!"

        return Step(name, agent, **options)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        yield request.getfixturevalue(f"{request.param}_place").open()


def test_a_retry_executes_the_failed_step_and_not_the_one_before(store: Any) -> None:
    """The run keeps its id, records and keys."""
    world, client = World(), RunClient(store)
    flujo = Flujo(world.step("a") >> world.step("b", fails=True), store=store)
    assert flujo.run("x", run_id="r").status == "failed"
    world.broken = False
    client.retry("r", reason="the outage is over", by="ada")
    assert (client.get("r").status, client.get("r").retries, client.get("r").queue) == ("running", 1, "default")
    result = flujo.resume("r")
    assert (result.status, result.output, world.calls) == ("completed", "b!", ["a", "b", "b"])
    assert world.keys == ["r:a", "r:b", "r:b"]
    [retried] = [record for record in client.records("r") if record.kind == "retried"]
    assert retried.note == "the outage is over"
    assert (client.state("r").retries, client.state("r").status, client.get("r").retries) == (1, "completed", 1)
    assert json.loads(client.record("r", retried.seq).body)["by"] == "ada"


def test_both_attempts_of_a_retried_step_are_shown(store: Any) -> None:
    """In the state before the retry, in the tree, and as an event that is emitted once."""
    world, client, sink = World(), RunClient(store), MemorySink()
    steps = world.step("a") >> world.step("b", fails=True) >> Step.human_in_the_loop("ok", "Go?")
    flujo = Flujo(steps, store=store, settings={"telemetry": {"sinks": [sink]}})
    flujo.run("x", run_id="r")
    world.broken = False
    assert flujo.retry("r", reason="mended").status == "paused"
    flujo.resume(str(client.get("r").state_token), "yes")
    [retried] = [record for record in client.records("r") if record.kind == "retried"]
    before, after = client.state_at("r", retried.seq - 1), client.state("r")
    assert (before.retries, type(before.outcomes[StepPath("b")])) == (0, Failure)
    assert (after.retries, type(after.outcomes[StepPath("b")])) == (1, Success)
    tree = Outline(client.records("r"))
    assert (tree.retries, tree.nodes[StepPath("b")].attempts, tree.nodes[StepPath("a")].attempts) == (1, 2, 1)
    [event] = [each for each in sink.events if isinstance(each, RunRetried)]
    assert (event.number, event.reason, event.mode) == (1, "mended", "strict")


def test_a_worker_executes_a_retried_run(store: Any) -> None:
    """Without any call of `resume`."""
    world, client = World(), RunClient(store)
    flujo = Flujo(world.step("a") >> world.step("b", fails=True), store=store)
    flujo.run("x", run_id="r")
    world.broken = False

    async def main() -> None:
        async with flujo.worker():
            await trio.to_thread.run_sync(client.retry, "r")
            result = await trio.to_thread.run_sync(client.wait, "r", 60)
        assert (result.status, world.calls) == ("completed", ["a", "b", "b"])

    trio.run(main)


def test_only_the_failed_item_of_a_map_is_executed_again(store: Any) -> None:
    """And the map around it, and the steps that follow."""
    calls: list[int] = []
    broken = [37]

    async def item(data: int) -> int:
        calls.append(data)
        if data in broken:
            raise ValueError("no")
        return data

    steps = Step.map_over("all", Step("item", item)) >> World().step("end")
    flujo = Flujo(steps, store=store)
    assert flujo.run(list(range(100)), run_id="r").status == "failed"
    broken.clear()
    assert flujo.retry("r").status == "completed"
    assert {number: calls.count(number) for number in range(100) if calls.count(number) != 1} == {37: 2}


def test_branches_that_succeeded_are_not_executed_again(store: Any) -> None:
    """A composite that failed is executed again around its successes."""
    world = World()
    bad = world.step("good2") >> world.step("bad", fails=True)
    both = Step.parallel("both", {"good": world.step("good"), "bad": bad})
    flujo = Flujo(world.step("first") >> both >> world.step("last"), store=store)
    assert flujo.run("x", run_id="r").status == "failed"
    world.broken = False
    result = flujo.retry("r")
    assert result.status == "completed"
    assert world.calls.count("first") == world.calls.count("good2") == world.calls.count("last") == 1
    assert world.calls.count("bad") == 2


def test_attempts_count_from_zero_and_handlers_are_executed_again(store: Any) -> None:
    """A retry that fails again has all its attempts, and its handlers hear of it."""
    world = World()
    told: list[int] = []

    async def handler(failure: Any) -> None:
        told.append(failure.attempts)

    flujo = Flujo(world.step("b", fails=True, max_retries=1, on_failure=handler), store=store)
    assert flujo.run("x", run_id="r").status == "failed"
    assert flujo.retry("r").status == "failed"
    assert (world.calls, told) == (["b"] * 4, [2, 2])
    assert RunClient(store).get("r").retries == 1


def test_a_failure_that_a_handler_recovered_is_a_success(store: Any) -> None:
    """It is not executed again."""
    world = World()

    async def handler(failure: Any) -> Recovered:
        return Recovered("saved")

    flujo = Flujo(world.step("a", fails=True, on_failure=handler) >> world.step("b", fails=True), store=store)
    flujo.run("x", run_id="r")
    world.broken = False
    assert (flujo.retry("r").status, world.calls) == ("completed", ["a", "b", "b"])


def test_a_retry_needs_a_run_that_failed_or_was_aborted(store: Any) -> None:
    """Other runs are refused with their state."""
    world, client = World(), RunClient(store)
    flujo = Flujo(world.step("a") >> Step.human_in_the_loop("ask", "Go?"), store=store)
    token = flujo.run("x", run_id="r").state_token
    with pytest.raises(NotRetryable, match="run 'r' is waiting"):
        client.retry("r")
    flujo.resume(token, "yes")
    with pytest.raises(RunEnded, match="run 'r' has completed; there is nothing to retry") as raised:
        client.retry("r")
    assert isinstance(raised.value, NotPaused)
    with pytest.raises(RunNotFound):
        client.retry("gone")
    with pytest.raises(ValueError, match="there is no mode"):
        client.retry("r", mode="loose")  # type: ignore[arg-type]


def test_an_aborted_run_asks_its_question_again(store: Any) -> None:
    """Under the same token."""
    world, client = World(), RunClient(store)
    flujo = Flujo(world.step("a") >> Step.human_in_the_loop("ask", "Go?") >> world.step("b"), store=store)
    flujo.run("x", run_id="r")
    client.cancel("r", "wrong button")
    with pytest.raises(RunEnded, match=r"retry it with RunClient\.retry\('r'\)$"):
        flujo.resume("r")
    result = flujo.retry("r")
    assert (result.status, client.get("r").state) == ("paused", "waiting")
    assert flujo.resume(result.state_token, "yes").status == "completed"
    assert world.calls == ["a", "b"]


def test_a_run_that_undid_steps_is_retried_from_the_start_alone(store: Any) -> None:
    """All steps are executed again, under other keys."""
    world, client = World(), RunClient(store)

    async def undo(undo: Undo) -> None:
        world.calls.append(f"undo {undo.step_name}")

    pay = world.step("pay", compensate=undo)
    flujo = Flujo(pay >> world.step("ship", fails=True), store=store)
    flujo.run("x", run_id="r")
    with pytest.raises(NotRetryable, match=r"run 'r' undid 1 step \(pay\): retrying from the failed step would leave"):
        client.retry("r")
    world.broken = False
    assert flujo.retry("r", from_start=True).status == "completed"
    assert world.calls == ["pay", "ship", "undo pay", "pay", "ship"]
    assert world.keys[-2:] == ["r~r1:pay", "r~r1:ship"]


def test_of_many_callers_one_retries(store: Any) -> None:
    """The others are refused, and the step is executed once more."""
    world, client = World(), RunClient(store)
    flujo = Flujo(world.step("b", fails=True), store=store)
    flujo.run("x", run_id="r")

    def retry(_: int) -> bool:
        try:
            client.retry("r")
        except NotRetryable:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(retry, range(50))) == 1
    world.broken = False
    assert (flujo.resume("r").status, world.calls) == ("completed", ["b", "b"])


def test_a_stored_mode_lets_a_changed_pipeline_continue(store: Any) -> None:
    """The worker or the caller that claims it is strict."""
    world, client = World(), RunClient(store)
    Flujo(Pipeline([world.step("a"), world.step("b", fails=True)], name="p"), store=store).run("x", run_id="r")
    world.broken = False
    mended = Flujo(Pipeline([world.step("a"), world.step("b"), world.step("c")], name="p"), store=store)
    client.retry("r")
    with pytest.raises(FingerprintMismatch):
        mended.resume("r")
    client.cancel("r")
    client.retry("r", mode="compat")
    assert (mended.resume("r").status, world.calls) == ("completed", ["a", "b", "b", "c"])


def test_usage_and_limits_continue() -> None:
    """What a failed attempt has used counts in result, listing and limits."""
    store, broken = MemoryStore(), [True]

    async def check(data: Any) -> Any:
        if broken[0]:
            raise ConnectionError("down")
        return data

    def flujo(limit: int) -> Flujo:
        model = scripted_model("one", "two", "three")
        both = Step.parallel("both", {"ask": Step("ask", make_agent_async(model)), "check": Step("check", check)})
        return Flujo(both, store=store, usage_limits=UsageLimits(request_limit=limit))

    first = flujo(5).run("q", run_id="r")
    client = RunClient(store)
    used = client.state("r").usage.requests
    assert first.status == "failed"
    broken[0] = False
    assert flujo(5).retry("r").status == "completed"
    assert client.state("r").usage.requests >= used


def test_a_retry_survives_its_process(store: Any) -> None:
    """Once recorded, `recover` executes it."""
    world, client = World(), RunClient(store)
    flujo = Flujo(world.step("a") >> world.step("b", fails=True) >> world.step("c"), store=store)
    flujo.run("x", run_id="r")
    world.broken = False
    client.retry("r")
    [result] = Flujo(flujo.pipeline, store=store).recover()
    assert (result.status, world.calls) == ("completed", ["a", "b", "b", "c"])
    assert client.state_at("r", 3).retries == 0


def test_the_command_retries_a_run(sqlite_place: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It names what happens next; a run that completed is refused."""
    world, url = World(), f"sqlite:///{sqlite_place.path}"
    flujo = Flujo(world.step("b", fails=True), store=url)
    flujo.run("x", run_id="r")
    assert main(["runs", "retry", "r", "--store", url, "--reason", "again"]) == 0
    assert "run r is retried; a worker continues it" in capsys.readouterr().err
    assert RunClient(url).get("r").retries == 1
    world.broken = False
    flujo.resume("r")
    assert main(["runs", "retry", "r", "--store", url]) != 0
    assert "has completed" in capsys.readouterr().err


def test_a_fork_of_a_retried_run_has_its_successes(store: Any) -> None:
    """And nothing of its failures."""
    world, client = World(), RunClient(store)
    flujo = Flujo(world.step("a") >> world.step("b", fails=True), store=store)
    flujo.run("x", run_id="r")
    world.broken = False
    flujo.retry("r")
    fork = client.fork("r", 3)
    assert client.state(fork).retries == 0
    other = client.fork("r", client.get("r").records)
    assert (flujo.resume(other).status, world.calls) == ("completed", ["a", "b", "b"])
