"""States of stored runs: what an operator sees, and why, on every store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from flujo_actors import (
    RUN_STATES,
    Flujo,
    MemoryStore,
    Pipeline,
    RunClient,
    Step,
    Undo,
    UsageLimitExceededError,
    UsageLimits,
)
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Append
from flujo_actors._durable.run_states import StateCounts

ASK = Step.human_in_the_loop("ok", "Go?", input_schema=bool)


async def echo(data: Any) -> Any:
    return data


async def fail(data: Any) -> Any:
    raise ValueError("no")


def lookup(word: str) -> str:
    return word


async def undo(undo: Undo) -> None:
    pass


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        yield request.getfixturevalue(f"{request.param}_place").open()


def pipeline(*names: str) -> Pipeline:
    return Pipeline([Step("a", echo), ASK, *(Step(name, echo) for name in names)], name="p")


async def until(client: RunClient, run_id: str, state: str) -> Any:
    """The run once it is in that state."""
    while True:
        info = await trio.to_thread.run_sync(client.get, run_id)
        if info.state == state:
            return info
        await trio.sleep(0.05)


def test_the_states_are_one_list_in_the_order_of_their_decision() -> None:
    """Python, command and page use these words."""
    assert RUN_STATES[:4] == ("completed", "failed", "aborted", "cancelling")
    assert RUN_STATES[4:] == ("running", "waiting", "sleeping", "abandoned", "blocked", "queued")


def test_a_submitted_run_without_a_worker_is_blocked(store: Any) -> None:
    """The reason names its queue; the stored status stays as it was."""
    Flujo(Step("a", echo), store=store).submit_sync(1, run_id="r", queue="gpu")
    info = RunClient(store).get("r")
    assert (info.status, info.state, info.blocked) == ("running", "blocked", "no_worker")
    assert info.reason == "no live worker serves queue 'gpu'"
    assert info.waiting_since == info.since == info.created_at
    assert (info.started_at, info.ended_at, info.questions, info.worker) == (None, None, 0, None)


def test_a_question_and_the_end_are_states(store: Any) -> None:
    """With their times."""
    flujo, client = Flujo(pipeline(), store=store), RunClient(store)
    token = flujo.run(1, run_id="r").state_token
    info = client.get("r")
    assert (info.status, info.state, info.questions, info.reason) == ("paused", "waiting", 1, None)
    assert flujo.resume(token, True).status == "completed"
    info = client.get("r")
    assert (info.status, info.state) == ("completed", "completed")
    assert info.started_at is not None
    assert info.ended_at is not None
    assert 0 <= info.worked_s <= info.duration_s + 1


def test_an_answered_run_that_no_worker_may_execute_says_why(store: Any) -> None:
    """It is of another version, and the reason names the difference."""
    old, new = Flujo(pipeline("b"), store=store), Flujo(pipeline("archive", "b"), store=store)
    client = RunClient(store)
    old.submit_sync(1, run_id="r")

    async def main() -> None:
        async with old.worker():
            await until(client, "r", "waiting")
        token = await trio.to_thread.run_sync(client_token, client)
        await trio.to_thread.run_sync(client.answer, token, True)
        info = await until(client, "r", "blocked")
        assert info.blocked == "no_worker"
        async with new.worker():
            while info.blocked != "other_version" or "archive" not in info.reason:
                info = await until(client, "r", "blocked")
            version = info.fingerprint[:6]
            assert info.reason == (
                f"1 live worker serves queue 'default', none has version {version} of 'p': step 'archive' was added"
            )

    trio.run(main)


def client_token(client: RunClient) -> str:
    [prompt] = client.prompts()
    return prompt.state_token


def test_a_run_is_queued_while_all_slots_are_taken(store: Any) -> None:
    """The worker that could claim it is busy."""
    begun, done = trio.Event(), trio.Event()

    async def hold(data: Any) -> Any:
        begun.set()
        await done.wait()

    flujo, client = Flujo(Step("a", hold), store=store), RunClient(store)
    flujo.submit_sync(1, run_id="first")

    async def main() -> None:
        async with flujo.worker(slots=1):
            await begun.wait()
            await flujo.submit(2, run_id="second")
            second = await until(client, "second", "queued")
            assert (second.blocked, second.reason) == (None, None)
            first = await until(client, "first", "running")
            assert first.worker is not None
            [queue] = await trio.to_thread.run_sync(client.queues)
            assert (queue.name, queue.depth, queue.running, queue.workers, queue.slots) == ("default", 1, 1, 1, 1)
            listed = await trio.to_thread.run_sync(lambda: client.list(state=("queued", "running")))
            assert sorted(info.run_id for info in listed) == ["first", "second"]
            done.set()

    trio.run(main)


def test_a_cancelled_run_that_must_be_undone_is_cancelling(store: Any) -> None:
    """Until a process with its pipeline has undone it."""
    steps = Step("pay", echo, compensate=undo) >> ASK
    flujo, client = Flujo(steps, store=store), RunClient(store)
    flujo.run(1, run_id="r")
    client.cancel("r", "enough")
    info = client.get("r")
    assert (info.state, info.reason, info.status) == ("cancelling", "enough", "running")
    [result] = flujo.recover()
    assert (result.status, client.get("r").state) == ("aborted", "aborted")


def test_a_lease_that_ran_out_is_abandoned(store: Any) -> None:
    """It was not released."""
    client = RunClient(store)
    Flujo(Step("a", echo), store=store).submit_sync(1, run_id="r")
    client._store.claim(RunId("r"), owner="elsewhere:1:x", lease_s=0.0)
    assert client.get("r").state == "abandoned"
    lease = client._store.claim(RunId("r"), owner="elsewhere:1:x", lease_s=60.0)
    assert client.get("r").state == "running"
    client._store.append([Append(lease=lease, records=(), release=True)])
    assert client.get("r").state == "blocked"


def test_runs_are_listed_by_state(store: Any) -> None:
    """One state or several; a state that does not exist is refused."""
    client = RunClient(store)
    Flujo(Step("a", fail), store=store).run(1, run_id="f")
    Flujo(Step("a", echo), store=store).run(1, run_id="c")
    Flujo(Step("a", echo), store=store).submit_sync(1, run_id="b")
    assert [info.run_id for info in client.list(state="failed")] == ["f"]
    assert [info.run_id for info in client.list(state=["failed", "blocked"], limit=5)] == ["b", "f"]
    assert [info.run_id for info in client.list(state=["failed", "blocked"], limit=1)] == ["b"]
    assert client.list("completed", state="failed") == []
    with pytest.raises(ValueError, match="there is no state 'broken'"):
        client.list(state="broken")  # type: ignore[arg-type]


def test_a_wait_that_ends_in_time_says_in_which_state_the_run_is(store: Any) -> None:
    """The error has the run."""
    Flujo(Step("a", echo), store=store).submit_sync(1, run_id="x", queue="gpu")
    with pytest.raises(TimeoutError, match=r"run 'x' has not ended within 0 s: it is blocked since \d+ s") as raised:
        RunClient(store).wait("x", timeout=0)
    assert str(raised.value).endswith("(no live worker serves queue 'gpu')")
    assert raised.value.info.state == "blocked"  # type: ignore[attr-defined]


def test_a_list_of_a_state_reads_pages_of_runs_with_its_facts(store: Any) -> None:
    """Not all open runs: a page of the few that may be in the state."""

    asking = Flujo(Step.human_in_the_loop("ask", "ok?"), store=store)
    for number in range(150):
        asking.run(1, run_id=f"asks {number}")
    flujo = Flujo(Pipeline((Step("one", lambda n: n),), name="one"), store=store)
    for number in range(3):
        flujo.submit_sync(1, run_id=f"queued {number}", queue="gpu")
    read: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def find(self, query: Any) -> Any:
            found = store.find(query)
            read.append(len(found))
            return found

    client = RunClient(Counting())  # type: ignore[arg-type]
    blocked = client.list(state="blocked", limit=2, order="created")
    assert [run.run_id for run in blocked] == ["queued 2", "queued 1"]
    assert sum(read) <= 3
    waiting = client.list(state="waiting", limit=120, order="created")
    assert [run.run_id for run in waiting] == [f"asks {number}" for number in range(149, 29, -1)]
    assert len(client.list(state=("waiting", "blocked"))) == 153
    [gpu] = [queue for queue in client.queues() if queue.name == "gpu"]
    assert (gpu.depth, gpu.blocked) == (3, 3)


def test_states_are_counted_by_one_query_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers in between get the numbers of the last count."""
    store = MemoryStore()
    Flujo(Step("one", lambda n: n), store=store).run(1)
    counts = StateCounts(store, within_s=30)
    assert counts.now() == ({"completed": 1}, 0)
    monkeypatch.setattr(store, "groups", lambda: 1 / 0)
    assert counts.now() == ({"completed": 1}, 0)


def test_runs_with_labels_are_counted_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each filter has numbers of its own, of all states."""
    store = MemoryStore()
    flujo = Flujo(Step("one", lambda n: n) >> Step.sleep("wait", 3600), store=store)
    for tenant in ("7", "7", "8"):
        flujo.submit_sync(1, labels={"tenant": tenant})
    Flujo(Step("one", lambda n: n), store=store).run(1, labels={"tenant": "7"})
    counts = StateCounts(store, within_s=30)
    seven, eight = (("tenant", "7"),), (("tenant", "8"),)
    assert (counts.now(seven), counts.now(eight)) == (({"completed": 1, "blocked": 2}, 0), ({"blocked": 1}, 0))
    monkeypatch.setattr(store, "find", lambda query: 1 / 0)
    assert (counts.now(seven), counts.now(eight)) == (({"completed": 1, "blocked": 2}, 0), ({"blocked": 1}, 0))


@pytest.mark.parametrize("kind", [Step, Step.granular], ids=["plain", "granular"])
def test_the_usage_of_an_attempt_that_a_limit_ended_is_in_the_state(store: Any, kind: Any) -> None:
    """No other record has it, and a retry adds to it."""

    def flujo(limit: int) -> Flujo:
        agent = Agent(TestModel(), tools=[lookup])
        return Flujo(kind("ask", agent), store=store, usage_limits=UsageLimits(total_tokens_limit=limit))

    with pytest.raises(UsageLimitExceededError) as error:
        flujo(60).run("q", run_id="r")
    stopped = error.value.result.total_tokens
    client = RunClient(store)
    assert client.state("r").usage.tokens == stopped > 0
    assert flujo(600).retry("r").total_tokens == client.state("r").usage.tokens > stopped
