"""Handing runs in, and workers inside an application, on every store and both hosts."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from fleet_waiting import ended, until

from flujo_actors import (
    DeclarationError,
    Flujo,
    LoopAlreadyRunning,
    MemoryStore,
    NotSerializable,
    Pipeline,
    RunClient,
    RunExists,
    SqliteStore,
    Step,
    UsageLimitExceededError,
)
from flujo_actors._durable.durable_run_registry import DurableRunRegistry
from flujo_actors._fleet import worker_loop
from flujo_actors.errors import StoreError
from flujo_actors.testing import MemorySink
from kit.postgres_server import session_server

Main = Callable[[], Awaitable[Any]]
HOSTS: dict[str, Callable[[Main], Any]] = {"trio": trio.run, "asyncio": lambda main: asyncio.run(main())}


async def double(number: int) -> int:
    return 2 * number


def shouted(text: str) -> str:
    return text.upper()


@pytest.fixture(params=HOSTS)
def run(request: pytest.FixtureRequest) -> Callable[[Main], Any]:
    return HOSTS[request.param]


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    match request.param:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return f"sqlite:///{tmp_path}/runs.db"
        case _:
            return session_server().fresh_url()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


async def in_thread(fn: Callable[..., Any], *args: Any) -> Any:
    """The same on either host."""
    if trio.lowlevel.in_trio_task():
        return await trio.to_thread.run_sync(lambda: fn(*args))
    return await asyncio.to_thread(fn, *args)


def test_a_worker_plays_what_was_submitted(store: Any, run: Callable[[Main], Any]) -> None:
    """On every store, in trio and asyncio programs; the result is where every stored run's is."""
    flujo = Flujo(Step("double", double), store=store)
    client = RunClient(store, allow_blocking=True)

    async def main() -> None:
        run_id = await flujo.submit(21)
        assert client.get(run_id).status == "running"
        async with flujo.worker(queues="default", slots=2):
            info = await in_thread(ended, client, run_id)
        assert info.status == "completed"
        assert client.state(run_id).output == 42

    run(main)


def test_a_run_is_there_when_submit_returns(url: str) -> None:
    """It waits for a worker: its listing names the queue, and since when; nobody abandoned it."""
    run_id = Flujo(Step("double", double), store=url).submit_sync(21, run_id="mine", queue="gpu")
    info = RunClient(url, allow_blocking=True).get(run_id)
    assert (info.run_id, info.status, info.queue, info.abandoned) == ("mine", "running", "gpu", False)
    assert info.waiting_since == info.created_at
    assert [each.run_id for each in RunClient(url, allow_blocking=True).list()] == ["mine"]


def test_a_taken_id_is_refused(url: str) -> None:
    """As it is for runs that begin here."""
    flujo = Flujo(Step("double", double), store=url)
    flujo.submit_sync(1, run_id="one")
    with pytest.raises(RunExists):
        flujo.submit_sync(2, run_id="one")


def test_submit_needs_a_store_that_others_can_read() -> None:
    """And says so; likewise for a worker."""
    flujo = Flujo(Step("double", double))
    with pytest.raises(DeclarationError, match="store"):
        flujo.submit_sync(1)
    with pytest.raises(DeclarationError, match="store"):
        flujo.worker()


@pytest.mark.parametrize(
    "wrong",
    [{"queues": ()}, {"queues": ""}, {"queues": "a,b"}, {"slots": 0}, {"slots": True}, {"grace_s": -1}, {"health": ""}],
)
def test_a_worker_that_makes_no_sense_is_refused(url: str, wrong: dict[str, Any]) -> None:
    """When it is made."""
    with pytest.raises(DeclarationError):
        Flujo(Step("double", double), store=url).worker(**wrong)


@pytest.mark.parametrize("queue", ["", "x" * 101, "two\nlines", 3, "a,b", " a"])
def test_a_queue_without_a_proper_name_is_refused(url: str, queue: Any) -> None:
    """Before anything is written."""
    with pytest.raises(DeclarationError, match="queue"):
        Flujo(Step("double", double), store=url).submit_sync(1, queue=queue)
    assert RunClient(url, allow_blocking=True).list() == []


def test_an_input_that_cannot_be_stored_is_refused(url: str) -> None:
    """Whoever hands it in is told, not whoever would play it."""
    with pytest.raises(NotSerializable):
        Flujo(Step("double", double), store=url).submit_sync(object())


def test_the_synchronous_way_is_not_for_loops(url: str) -> None:
    """It would block them."""

    async def main() -> None:
        Flujo(Step("double", double), store=url).submit_sync(1)

    with pytest.raises(LoopAlreadyRunning, match=r"await flujo\.submit"):
        trio.run(main)


def test_an_engine_needs_a_store_it_can_live_in(url: str) -> None:
    """What to do is said."""
    with pytest.raises(DeclarationError, match="postgresql://"):
        Flujo(Step("double", double), store=url, engine="postgres")
    with pytest.raises(DeclarationError, match="store"):
        Flujo(Step("double", double), engine="postgres")
    with pytest.raises(DeclarationError, match="postgres"):
        Flujo(Step("double", double), store=url, engine="rabbit")
    with pytest.raises(DeclarationError, match="again"):
        Flujo(Step("double", double), store=url, engine=object())


def test_a_worker_plays_its_queues_and_no_more_at_once_than_it_has_slots(url: str) -> None:
    """The rest waits for others."""
    at_once: list[int] = []
    open_now = 0

    async def slow(number: int) -> int:
        nonlocal open_now
        open_now += 1
        at_once.append(open_now)
        await trio.sleep(0.05)
        open_now -= 1
        return number

    flujo = Flujo(Step("slow", slow), store=url)
    client = RunClient(url, allow_blocking=True)

    async def main() -> None:
        mine = [await flujo.submit(number, queue=queue) for number in range(3) for queue in ("a", "b")]
        theirs = await flujo.submit(9, queue="c")
        async with flujo.worker(queues=["a", "b"], slots=2):
            for run_id in mine:
                await in_thread(ended, client, run_id)
        assert client.get(theirs).status == "running"

    trio.run(main)
    assert max(at_once) == 2


def test_a_paused_run_goes_on_when_it_was_answered(url: str) -> None:
    """By whoever answers, from anywhere; a worker takes it up again."""
    flujo = Flujo(Step.human_in_the_loop("ask", "May I?") >> Step("say", shouted), store=url)
    client = RunClient(url, allow_blocking=True)

    async def main() -> None:
        run_id = await flujo.submit("x")
        async with flujo.worker():
            info = await in_thread(ended, client, run_id)
            assert (info.status, info.message) == ("paused", "May I?")
            await in_thread(client.answer, info.state_token, "yes")
            await in_thread(until, lambda: client.get(run_id).status == "completed")
        assert client.state(run_id).output == "YES"

    trio.run(main)


def test_a_run_that_cannot_be_played_is_not_tried_without_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its store is away, say: again after a while, and not as fast as the machine can."""
    tried: list[str] = []
    read = DurableRunRegistry._read

    async def fail_twice(runs: DurableRunRegistry, lease: Any, *args: Any, **named: Any) -> Any:
        tried.append(lease.run_id)
        if len(tried) < 3:
            raise StoreError("it is away")
        return await read(runs, lease, *args, **named)

    monkeypatch.setattr(DurableRunRegistry, "_read", fail_twice)
    monkeypatch.setattr(worker_loop, "TRY_AGAIN_S", 0.3)
    flujo = Flujo(Step("double", double), store=url)

    async def main() -> float:
        run_id = await flujo.submit(21)
        began = trio.current_time()
        async with flujo.worker(queues="default"):
            await trio.to_thread.run_sync(
                until, lambda: RunClient(url, allow_blocking=True).get(run_id).status == "completed"
            )
            return trio.current_time() - began

    assert trio.run(main) >= 0.6
    assert len(tried) == 3


def test_a_run_that_is_played_can_be_cancelled(url: str) -> None:
    """From any process, within a second or so; its cleanup runs, and the worker goes on."""
    begun, cleaned = trio.Event(), trio.Event()

    async def endless(number: int) -> int:
        begun.set()
        try:
            await trio.sleep(0 if number else 1e9)
        finally:
            if not number:
                cleaned.set()
        return number

    flujo = Flujo(Step("endless", endless), store=url)
    client = RunClient(url, allow_blocking=True)

    async def main() -> None:
        run_id = await flujo.submit(0)
        async with flujo.worker(slots=1):
            await begun.wait()
            await in_thread(client.cancel, run_id, "enough")
            info = await in_thread(ended, client, run_id)
            assert (info.status, cleaned.is_set()) == ("aborted", True)
            assert (await in_thread(ended, client, await flujo.submit(1))).status == "completed"

    trio.run(main)


def test_a_run_that_waits_can_be_cancelled(url: str) -> None:
    """Nobody plays it then."""
    flujo = Flujo(Step("double", double), store=url)
    run_id = flujo.submit_sync(1)
    RunClient(url, allow_blocking=True).cancel(run_id)
    assert RunClient(url, allow_blocking=True).get(run_id).status == "aborted"


def test_whatever_a_run_raises_its_worker_goes_on(url: str) -> None:
    """A failure is a result, a control error ends the run, and even one that wants to exit takes nobody with it."""

    def trouble(kind: str) -> str:
        match kind:
            case "error":
                raise ValueError("no")
            case "limit":
                raise UsageLimitExceededError("too much")
            case "exit":
                raise SystemExit(3)
        return kind

    flujo = Flujo(Step("trouble", trouble), store=url)
    client = RunClient(url, allow_blocking=True)

    async def main() -> None:
        ids = {kind: await flujo.submit(kind) for kind in ("error", "limit", "exit", "fine")}
        async with flujo.worker(slots=1):
            assert (await in_thread(ended, client, ids["fine"])).status == "completed"
            assert (await in_thread(ended, client, ids["error"])).status == "failed"
            assert (await in_thread(ended, client, ids["limit"])).status == "failed"
        assert client.get(ids["exit"]).status == "running"

    trio.run(main)


def test_what_a_worker_cannot_finish_in_its_grace_is_given_up(url: str) -> None:
    """Whole and at once: others may have it, and nothing that was committed is repeated."""
    begun: list[str] = []

    async def first(data: str) -> str:
        begun.append("first")
        return data

    async def second(data: str) -> str:
        begun.append("second")
        if begun.count("second") == 1:
            await trio.sleep_forever()
        return data

    flujo = Flujo(Step("first", first) >> Step("second", second), store=url)
    client = RunClient(url, allow_blocking=True)

    async def main() -> None:
        run_id = await flujo.submit("x")
        async with flujo.worker(grace_s=0.05):
            await in_thread(until, lambda: "second" in begun)
        assert not client.get(run_id).abandoned or client.get(run_id).status == "running"
        async with flujo.worker():
            await in_thread(until, lambda: client.get(run_id).status == "completed")

    trio.run(main)
    assert begun == ["first", "second", "second"]


def test_a_worker_finishes_what_it_can(url: str) -> None:
    """Leaving the block waits for what is being played, within its grace."""

    async def slow(number: int) -> int:
        await trio.sleep(0.3)
        return number

    flujo = Flujo(Step("slow", slow), store=url)

    async def main() -> str:
        run_id = await flujo.submit(1)
        async with flujo.worker(grace_s=20) as worker:
            await in_thread(until, lambda: worker.busy)
        return run_id

    assert RunClient(url, allow_blocking=True).get(trio.run(main)).status == "completed"


class LateStore(SqliteStore):
    """Answers a claim of the run `late` when it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.has_claimed, self.may_answer, self.claims = threading.Event(), threading.Event(), 0

    def claim_next(self, order: Any, *, owner: str, lease_s: float) -> Any:
        claimed = super().claim_next(order, owner=owner, lease_s=lease_s)
        self.claims += 1
        if [each for each in claimed if each.run.run_id == "late"]:
            self.has_claimed.set()
            assert self.may_answer.wait(120)
        return claimed


@pytest.mark.parametrize("now", [False, True])
def test_a_run_of_a_claim_that_the_store_answers_late_is_not_kept(now: bool, tmp_path: Path) -> None:
    """A stopping worker releases it at once, for the next worker."""
    store = LateStore(tmp_path / "runs.db")
    flujo, client = Flujo(Step("double", double), store=store), RunClient(store, allow_blocking=True)

    async def main() -> None:
        async with flujo.worker(look_s=1000) as worker:
            await flujo.submit(1, run_id="late")
            await in_thread(store.has_claimed.wait, 120)
            worker.stop(now=now)
            await trio.testing.wait_all_tasks_blocked()
            store.may_answer.set()
            await worker.stopped()
        assert client.get("late").status == "running"
        async with flujo.worker(once=True) as worker:
            await worker.stopped()
        assert client.get("late").status == "completed"

    trio.run(main)


def test_a_worker_that_runs_once_waits_for_a_late_claim(tmp_path: Path) -> None:
    """A run that another run submits is due, too, also while the store has not answered its claim."""
    store = LateStore(tmp_path / "runs.db")

    async def submit(number: int) -> int:
        if number:
            await flujo.submit(0, run_id="late")
            await in_thread(store.has_claimed.wait, 120)
        return number

    flujo, client = Flujo(Step("submit", submit), store=store), RunClient(store, allow_blocking=True)

    async def main() -> None:
        await flujo.submit(1, run_id="first")
        async with flujo.worker(once=True, slots=2, look_s=0.01) as worker:
            await in_thread(until, lambda: client.get("first").status == "completed")
            before = store.claims
            await in_thread(until, lambda: store.claims > before + 2 or worker.state != "ready")
            store.may_answer.set()
            await worker.stopped()
        assert client.get("late").status == "completed"

    trio.run(main)


def test_whoever_is_cancelled_does_not_wait_for_the_grace(url: str, run: Callable[[Main], Any]) -> None:
    """The run is given up at once."""

    async def endless(number: int) -> int:
        if trio.lowlevel.in_trio_task():
            await trio.sleep_forever()
        await asyncio.sleep(1e9)
        return number

    flujo = Flujo(Step("endless", endless), store=url)

    async def serve(leaving: anyio.Event) -> None:
        async with flujo.worker(grace_s=1000) as worker:
            await in_thread(until, lambda: worker.busy)
            leaving.set()
            raise KeyError("leave")

    async def main() -> None:
        await flujo.submit(1)
        leaving = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve, leaving)
            await leaving.wait()
            tasks.cancel_scope.cancel()

    run(main)
    assert RunClient(url, allow_blocking=True).list()[0].status == "running"


def test_workers_say_who_they_are(url: str) -> None:
    """While they are there: where, on what, and how much."""
    flujo = Flujo(Step("double", double), store=url)
    client = RunClient(url, allow_blocking=True)

    async def main() -> None:
        async with flujo.worker(queues=["gpu", "default"], slots=3):
            [info] = await in_thread(client.workers)
            assert (info.queues, info.slots, info.busy, info.pipeline) == (("gpu", "default"), 3, 0, "double")
            assert info.state in ("starting", "ready")
            assert info.fingerprint
        assert await in_thread(client.workers) == []

    trio.run(main)


def test_telemetry_knows_how_long_runs_waited(url: str) -> None:
    """For whoever scales by it."""
    sink = MemorySink()
    flujo = Flujo(Step("double", double), store=url, settings={"telemetry": {"sinks": [sink]}})

    async def main() -> str:
        run_id = await flujo.submit(1, queue="gpu")
        async with flujo.worker("gpu"):
            await in_thread(ended, RunClient(url, allow_blocking=True), run_id)
        return run_id

    run_id = trio.run(main)
    [taken] = sink.of("run.taken")
    assert (taken.run_id, taken.queue, taken.pipeline_name) == (run_id, "gpu", "double")
    assert taken.waited_s >= 0


@pytest.mark.slow
def test_a_question_that_nobody_answers_in_time_is_ended_by_a_worker(url: str) -> None:
    """Its run goes on with what was declared for that."""
    ask = Step.approval("ask", "May I?", timeout_s=0.05, on_timeout="approve")
    flujo = Flujo(ask >> Step("say", shouted), store=url)
    client = RunClient(url, allow_blocking=True)

    async def main() -> None:
        run_id = await flujo.submit("x")
        async with flujo.worker():
            await in_thread(until, lambda: client.get(run_id).status == "completed")
        assert client.state(run_id).output == "X"

    trio.run(main)


def test_the_health_of_a_worker_can_be_asked_for(url: str) -> None:
    """Over HTTP: alive is not ready, and what drains takes no more."""
    flujo = Flujo(Step("double", double), store=url)

    def asked(port: int | None, path: str) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    async def main() -> None:
        async with flujo.worker(health="127.0.0.1:0") as worker:
            assert await in_thread(asked, worker.health_port, "/health") == (200, told(worker, "ready"))
            assert (await in_thread(asked, worker.health_port, "/ready"))[0] == 200
            assert (await in_thread(asked, worker.health_port, "/secrets"))[0] == 404

    def told(worker: Any, state: str) -> dict[str, Any]:
        return {"state": state, "ready": True, "busy": 0, "name": worker.name}

    trio.run(main)


def test_the_health_of_a_worker_can_be_a_file(url: str, tmp_path: Path) -> None:
    """It is there as long as the worker is."""
    file = tmp_path / "health.json"
    flujo = Flujo(Step("double", double), store=url)

    async def main() -> None:
        async with flujo.worker(health=file):
            assert json.loads(file.read_text())["state"] in ("starting", "ready")
        assert not file.exists()

    trio.run(main)


@pytest.mark.slow
def test_another_version_of_the_pipeline_leaves_a_run_alone(url: str) -> None:
    """It is never played by guess, never fails, and its worker says why; the right version plays it."""
    client = RunClient(url, allow_blocking=True)

    async def main() -> None:
        run_id = await Flujo(named(Step("double", double)), store=url).submit(1)
        async with Flujo(named(Step("triple", double)), store=url).worker():
            info = await in_thread(until, lambda: next((w for w in client.workers() if w.refused), None))
            assert "double" in info.refused[run_id]
            assert client.get(run_id).status == "running"
            async with Flujo(named(Step("double", double)), store=url).worker():
                await in_thread(until, lambda: client.get(run_id).status == "completed")

    trio.run(main)


def named(step: Step) -> Any:
    """A pipeline whose name stays when its steps change."""
    return Pipeline([step], name="reports")


def test_a_submitted_run_carries_the_named_context_variables(store: Any, run: Callable[[Main], Any]) -> None:
    """The worker's own value of the variable does not count, and each run has its own."""
    tenant: ContextVar[str] = ContextVar("tenant")

    async def look(text: str) -> str:
        return f"{text} of {tenant.get('nobody')}"

    flujo = Flujo(Step("look", look), store=store, carry=[tenant])

    async def main() -> None:
        for name in ("ada", "bob"):
            tenant.set(name)
            await flujo.submit("desk", run_id=name)
        tenant.set("worker")
        async with flujo.worker(slots=2):
            for name in ("ada", "bob"):
                await in_thread(ended, RunClient(store, allow_blocking=True), name)

    run(main)
    assert [RunClient(store, allow_blocking=True).state(name).output for name in ("ada", "bob")] == [
        "desk of ada",
        "desk of bob",
    ]


def test_a_carried_value_without_json_is_refused_by_submit(url: str) -> None:
    """Before the run exists."""
    tenant: ContextVar[object] = ContextVar("tenant")
    flujo = Flujo(Step("double", double), store=url, carry=[tenant])

    def submit() -> None:
        tenant.set(object())
        with pytest.raises(DeclarationError, match="carry: the value of 'tenant' is no JSON data"):
            flujo.submit_sync(1)

    copy_context().run(submit)
    assert RunClient(url).list() == []


@pytest.mark.parametrize("content", ["steps: []\n", '{"mine": 1}', "[1]"])
def test_a_health_file_never_replaces_a_file_of_the_user(url: str, tmp_path: Path, content: str) -> None:
    """A worker would delete it at its end; what a dead worker left is replaced."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(content)
    flujo = Flujo(Step("double", double), store=url)
    with pytest.raises(DeclarationError, match="is no health file of a worker"):
        flujo.worker(health=file)
    assert file.read_text() == content
    file.write_text('{"state": "ready", "ready": true, "busy": 0, "name": "dead"}')
    flujo.worker(health=file)
