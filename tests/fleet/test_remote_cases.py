"""Remote steps in processes that die: a granular agent inside a tool, bookings in a transaction; and a trace."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import cases_app
import fleet_app
import psycopg
import pytest
import trio
from fleet_processes import Worker
from fleet_waiting import until
from test_remote_steps import fleet, make

from flujo_actors import Flujo, Pipeline, RunClient, Step
from flujo_actors.stores import PostgresStore
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow


@pytest.fixture
def url() -> str:
    return session_server().fresh_url()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: Any) -> Path:
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setattr(fleet_app, "LOG", str(log))
    return log


def rows(url: str, statement: Any) -> list[Any]:
    with psycopg.connect(url) as db:
        return db.execute(statement).fetchall()


def said(word: str) -> list[list[str]]:
    return [words[2:] for words in fleet_app.history() if words[1] == word]


@contextmanager
def one_alive(url: str, log: Path, target: str, **environ: str) -> Iterator[list[Worker]]:
    """A worker, and another one whenever it has died."""
    over, workers = threading.Event(), ExitStack()
    started: list[Worker] = []

    def start() -> None:
        options = ("--queue", "cores", "--slots", "4")
        started.append(
            workers.enter_context(Worker(url, log, *options, target=f"cases_app:{target}", CASES=target, **environ))
        )

    def keep() -> None:
        while not over.wait(0.05):
            if started[-1].process.poll() is not None:
                start()

    start()
    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield started
    finally:
        over.set()
        thread.join()
        workers.close()


def test_an_agent_that_is_killed_inside_its_third_tool_repeats_no_other(url: str, log: Path) -> None:
    """Nor a turn that was finished; its keys are those of the same run at home."""
    with one_alive(url, log, "agent", CASES_DIE="1") as workers:
        result = cases_app.make_agent(url, engine="postgres").run("go", run_id="r")
    assert (result.status, result.output) == ("completed", "first done, second done, third done")
    assert len(workers) == 2
    away = said("tool")
    assert [name for name, _ in away] == ["first", "second", "third", "third"]
    assert Counter(turn for (turn,) in said("turn")) == {"0": 1, "1": 1, "2": 1, "3": 1}
    log.write_text("")
    cases_app.make_agent(session_server().fresh_url()).run("go", run_id="r")
    home = dict(said("tool"))
    assert {(name, key) for name, key in away} == set(home.items())


def test_a_transaction_writes_once_however_often_workers_are_killed(url: str, log: Path) -> None:
    """Killed after the insert and before the commit, twice over."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE orders (item int)")
    with one_alive(url, log, "orders", CASES_DIE="1") as workers:
        result = cases_app.make_orders(url, engine="postgres").run(list(range(10)))
    assert (result.status, result.output) == ("completed", list(range(10)))
    assert len(workers) > 1
    assert sorted(item for (item,) in rows(url, "SELECT item FROM orders")) == list(range(10))
    assert len(said("book")) > 10


def test_caller_and_worker_tell_one_trace(url: str, log: Path) -> None:
    """Each process by its own provider: the spans of steps inside a remote step belong to the caller's trace."""
    exporter = cases_app.told_exporter()
    with one_alive(url, log, "trace"):
        result = cases_app.make_traced(url, exporter, engine="postgres").run(1)
    assert result.output == 4
    here = {f"{span.context.trace_id:032x}" for span in exporter.get_finished_spans()}
    processes = {words[0] for words in fleet_app.history() if words[1] == "span"}
    assert len(processes) == 2
    assert {trace for trace, _ in said("span")} == here
    assert len(here) == 1


def test_a_worker_that_stops_leaves_the_rest_of_a_paused_step_to_others(url: str) -> None:
    """One branch of it asks, another one is at work at that moment: it is done elsewhere, and then the run waits."""
    begun: list[str] = []

    async def long(data: str) -> str:
        begun.append(data)
        if len(begun) == 1:
            await trio.sleep_forever()
        return data

    inner = Step.parallel("inner", {"asks": Step.human_in_the_loop("asks", "May I?"), "works": Step("works", long)})
    remote = Step.loop_until("remote", inner, lambda output, context: True, runs_on="gpu")
    flujo = make(remote, url)
    client = RunClient(url, allow_blocking=True)

    async def main() -> Any:
        results: list[Any] = []

        async def call() -> None:
            results.append(await flujo.run_async("x", run_id="r"))
            nursery.cancel_scope.cancel()

        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                async with fleet(flujo):
                    while not begun or not asked(url):
                        await trio.sleep(0.02)
                async with fleet(flujo):
                    await trio.sleep_forever()
            [result] = results
            assert (result.status, begun) == ("paused", ["x", "x"])
            client.answer(client.prompts()[0].state_token, "yes")
            async with fleet(flujo):
                return await flujo.resume_async("r")

    assert trio.run(main).output == {"asks": "yes", "works": "x"}
    assert begun == ["x", "x"]


def asked(url: str) -> bool:
    return bool(rows(url, "SELECT 1 FROM flujo_pauses"))


def test_a_worker_undoes_a_run_that_was_cancelled(url: str) -> None:
    """Also what a worker did that has gone, here and elsewhere, the last first."""
    undone: list[str] = []
    begun = trio.Event()

    def undo(name: str) -> Any:
        async def take_back(data: Any) -> None:
            undone.append(name)

        return take_back

    async def done(data: Any) -> Any:
        return data

    async def waits(data: Any) -> Any:
        begun.set()
        await trio.sleep_forever()

    steps = [
        Step("a", done, compensate=undo("a")),
        Step("b", done, compensate=undo("b"), runs_on="gpu"),
        Step("c", waits, runs_on="gpu"),
    ]
    flujo = make(Pipeline(steps, name="undone"), url)
    client = RunClient(url, allow_blocking=True)

    async def main() -> None:
        await flujo.submit(1, run_id="r")
        with trio.fail_after(120):
            async with flujo.worker(queues=["default", "gpu"], grace_s=0):
                await begun.wait()
            client.cancel("r", "not wanted")
            async with flujo.worker(queues=["default", "gpu"], grace_s=0):
                while client.get("r").status in ("running", "paused"):
                    await trio.sleep(0.02)

    trio.run(main)
    assert (client.get("r").status, undone) == ("aborted", ["b", "a"])
    until(lambda: rows(url, "SELECT run_id FROM flujo_runs WHERE status = 'running'") == [])


def count_calls(patch: pytest.MonkeyPatch, calls: Counter[str], name: str) -> None:
    """Count how often the store is asked for something."""
    original = getattr(PostgresStore, name)

    def counting(self: Any, *args: Any, **options: Any) -> Any:
        calls[name] += 1
        return original(self, *args, **options)

    patch.setattr(PostgresStore, name, counting)


def test_the_items_of_a_map_are_handed_in_together(url: str) -> None:
    """By how often the store is asked, and how many are under way: whoever waits for them keeps no more than that."""
    flujo = make(Step.map_over("all", Step("item", echoed, runs_on="gpu"), max_concurrency=100), url)
    calls: Counter[str] = Counter()
    most = 0

    async def main() -> Any:
        nonlocal most
        async with fleet(flujo, slots=16), fleet(flujo, slots=16), trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            with trio.fail_after(120):
                result = await flujo.run_async(list(range(300)))
            nursery.cancel_scope.cancel()
            return result

    async def watch() -> None:
        nonlocal most
        while True:
            [(now,)] = await trio.to_thread.run_sync(
                rows, url, "SELECT count(*) FROM flujo_runs WHERE parent IS NOT NULL AND status = 'running'"
            )
            most = max(most, now)
            await trio.sleep(0.1)

    with pytest.MonkeyPatch.context() as patch:
        count_calls(patch, calls, "admit_and_notify")
        assert trio.run(main).output == list(range(300))
    assert calls["admit_and_notify"] < 150  # those that are asked for in one round go together
    assert most <= 100


def test_an_item_alone_asks_the_store_for_little(url: str) -> None:
    """A worker claims and reads it at once, and looks for nothing else; whoever waits reads those that end together."""
    items = Step.map_over("all", Step("item", echoed, runs_on="gpu"))
    flujo = Flujo(items, store=url, engine="postgres", settings={"fleet": {"unclaimed_s": 600.0}})
    calls: Counter[str] = Counter()

    async def main() -> Any:
        async with fleet(flujo, slots=16):
            with trio.fail_after(120):
                return await flujo.run_async(list(range(100)))

    with pytest.MonkeyPatch.context() as patch:
        for name in ("claim_next", "claim", "get", "read", "read_all"):
            count_calls(patch, calls, name)
        assert trio.run(main).output == list(range(100))
    assert calls["claim_next"] <= 100 + 100  # some are claimed together, and polls find nothing
    assert calls["claim"] + calls["get"] == 0
    assert calls["read"] + calls["read_all"] <= 100


async def echoed(data: Any) -> Any:
    return data
