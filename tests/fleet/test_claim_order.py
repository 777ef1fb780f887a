"""Order of claims: priorities, keys in turn and limits per key, on every store, with and without an engine."""

from __future__ import annotations

import collections
import importlib.util
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from fleet_processes import Worker
from fleet_waiting import until, until_while_it_moves

from flujo_actors import DeclarationError, Flujo, MemoryStore, Pipeline, RunClient, Step
from flujo_actors._fleet.engine_port import Engine, ExecuteTicket, Ticket
from kit.postgres_server import session_server


class Fifo:
    """An engine that delivers tickets in the order of their submission, whatever their priority."""

    def __init__(self) -> None:
        self._tickets: collections.deque[str] = collections.deque()

    def prepare(self) -> None:
        pass

    def submit(self, tickets: Sequence[Ticket], connection: Any = None) -> None:
        self._tickets.extend(ticket.run_id for ticket in tickets)

    again = submit

    def withdraw(self, run_ids: Sequence[str]) -> None:
        pass

    def serve(self, queues: Sequence[str], slots: int, play: ExecuteTicket, stopping: threading.Event) -> None:
        with ThreadPoolExecutor(slots) as threads:
            for _ in range(slots):
                threads.submit(self._serve, play, stopping)

    def _serve(self, play: ExecuteTicket, stopping: threading.Event) -> None:
        while not stopping.wait(0.005):
            if self._tickets:
                play(self._tickets.popleft())


STORES = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)]
PLACES = [*STORES, "fifo", pytest.param("procrastinate", marks=pytest.mark.slow)]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Engine | str | None]:
    """A store, and an engine or none."""
    match request.param:
        case "memory":
            return MemoryStore(), None
        case "sqlite":
            return f"sqlite:///{tmp_path}/runs.db", None
        case "fifo":
            return MemoryStore(), Fifo()
        case name:
            return session_server().fresh_url(), "postgres" if name == "procrastinate" else None


class Log:
    """Names of runs in the order of their start, and the largest number at once by key."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.most: collections.Counter[str] = collections.Counter()
        self._now: collections.Counter[str] = collections.Counter()

    async def work(self, name: str) -> str:
        self.names.append(name)
        self._now[name[0]] += 1
        self.most[name[0]] = max(self.most[name[0]], self._now[name[0]])
        await trio.sleep(0.01)
        self._now[name[0]] -= 1
        return name

    def flujo(self, place: tuple[Any, Engine | str | None]) -> Flujo[Any, Any, Any]:
        return Flujo(Pipeline([Step("work", self.work)], name="ordered"), store=place[0], engine=place[1])


def execute(flujo: Flujo[Any, Any, Any], log: Log, count: int, *, workers: int = 1, **options: Any) -> list[str]:
    """Start workers, and return the names in the order of their start when there are so many."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(workers):
                nursery.start_soon(serve)
            with trio.fail_after(120):
                while len(log.names) < count:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    async def serve() -> None:
        async with flujo.worker(**options) as worker:
            await worker.stopped()

    trio.run(main)
    return log.names


def test_a_higher_priority_is_claimed_next(place: tuple[Any, Engine | str | None]) -> None:
    """A run of priority 5 that comes after many others begins before them, with every engine and without one."""
    log = Log()
    flujo = log.flujo(place)
    for number in range(20):
        flujo.submit_sync(f"low-{number:02}")
    flujo.submit_sync("high", priority=5)
    flujo.submit_sync("last", priority=-5)
    names = execute(flujo, log, 22, slots=1)
    assert names == ["high", *(f"low-{number:02}" for number in range(20)), "last"]


@pytest.mark.engines
@pytest.mark.parametrize(
    "engine",
    [("test_engine_dbos", "DbosPlace"), ("test_engine_ray", "RayPlace"), ("test_engines", "TemporalPlace")],
    ids=lambda engine: engine[1],
)
def test_a_higher_priority_is_claimed_next_with_other_engines(engine: tuple[str, str], tmp_path: Path) -> None:
    """A ticket wakes a worker, and the store selects the run, so the order of tickets does not matter."""
    module, name = engine
    if name == "DbosPlace" and importlib.util.find_spec("dbos") is None:
        pytest.skip("dbos is not installed: the DBOS engine is NOT tested here")
    place = getattr(importlib.import_module(module), name)()
    log = Log()
    flujo = log.flujo((f"sqlite:///{tmp_path}/runs.db", place.open()))
    for number in range(5):
        flujo.submit_sync(f"low-{number}")
    flujo.submit_sync("high", priority=5)
    assert execute(flujo, log, 6, slots=1) == ["high", *(f"low-{number}" for number in range(5))]


def test_a_key_with_one_run_does_not_wait_for_a_key_with_many(place: tuple[Any, Engine | str | None]) -> None:
    """Keys take turns: with 2 slots, the run of the second key begins with the first claims."""
    log = Log()
    flujo = log.flujo(place)
    for number in range(40):
        flujo.submit_sync(f"a{number:02}", key="a")
    flujo.submit_sync("b", key="b")
    names = execute(flujo, log, 41, slots=2)
    assert names.index("b") <= 3  # both slots claim at most twice before
    assert sorted(names) == [*(f"a{number:02}" for number in range(40)), "b"]


def test_a_key_has_at_most_so_many_runs_at_once(place: tuple[Any, Engine | str | None]) -> None:
    """Over all workers; other keys are not held up, and every run is executed once."""
    log = Log()
    flujo = log.flujo(place)
    for number in range(10):
        flujo.submit_sync(f"a{number:02}", key="a")
        flujo.submit_sync(f"b{number:02}", key="b")
    names = execute(flujo, log, 20, workers=3, slots=4, per_key=1)
    assert log.most == {"a": 1, "b": 1}
    assert len(names) == len(set(names)) == 20


@pytest.mark.parametrize("store", STORES)
def test_key_and_priority_are_shown(store: str, tmp_path: Path) -> None:
    """By the run, and by its queue: ready runs by key."""
    local: dict[str, Any] = {"memory": MemoryStore(), "sqlite": f"sqlite:///{tmp_path}/runs.db"}
    url: Any = local.get(store) or session_server().fresh_url()
    flujo = Log().flujo((url, None))
    run_id = flujo.submit_sync("x", key="tenant 7", priority=-100)
    flujo.submit_sync("y", key="tenant 7")
    flujo.submit_sync("z")
    client = RunClient(url)
    assert (client.get(run_id).key, client.get(run_id).priority) == ("tenant 7", -100)
    [queue] = client.queues()
    assert (queue.depth, queue.keys, queue.sleeping) == (3, {"tenant 7": 2, "": 1}, 0)


def test_a_scheduled_run_has_the_key_and_priority_of_its_schedule() -> None:
    """They order it among the other runs of its queue."""
    store, log = MemoryStore(), Log()
    flujo = log.flujo((store, None))
    flujo.schedule("daily", cron="0 3 * * *", input="x", key="tenant 7", priority=3)
    run_id = RunClient(store).trigger("daily")
    execute(flujo, log, 1, slots=1)
    info = RunClient(store).get(run_id)
    assert (info.key, info.priority) == ("tenant 7", 3)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"priority": 101}, "priority must be a whole number from -100 to 100, not 101"),
        ({"priority": True}, "priority must be a whole number"),
        ({"key": ""}, "key must be a text of 1 to 200 characters, not ''"),
        ({"key": "x" * 201}, "key must be a text of 1 to 200 characters"),
        ({"key": 7}, "key must be a text of 1 to 200 characters, not 7"),
    ],
)
def test_a_wrong_key_or_priority_is_refused(options: Any, why: str) -> None:
    """Before the run exists."""
    store = MemoryStore()
    with pytest.raises(DeclarationError, match=why):
        Log().flujo((store, None)).submit_sync("x", **options)
    assert RunClient(store).list() == []


def test_a_wrong_limit_per_key_is_refused() -> None:
    """As is a limit for a store that cannot count leases by key."""
    with pytest.raises(DeclarationError, match="per_key must be a whole number of at least 1, not 0"):
        Log().flujo((MemoryStore(), None)).worker(per_key=0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="files give notice of writes on Linux")
def test_a_worker_begins_a_run_before_its_next_poll(tmp_path: Path) -> None:
    """A commit to a SQLite file is noticed, also one of another process."""
    log, url = Log(), f"sqlite:///{tmp_path}/runs.db"
    slow = {"fleet": {"poll_s": 3600.0}}
    flujo = Flujo(Pipeline([Step("work", log.work)], name="ordered"), store=url, settings=slow)

    async def main() -> None:
        async with flujo.worker():
            await trio.testing.wait_all_tasks_blocked(0.2)  # the first poll is over
            await trio.to_thread.run_sync(log.flujo((url, None)).submit_sync, "x")
            with trio.fail_after(120):
                while not log.names:
                    await trio.sleep(0.01)

    trio.run(main)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "procrastinate"])
def test_a_limit_per_key_holds_while_workers_are_killed(kind: str, tmp_path: Path) -> None:
    """Never two runs of one key at once: a dead worker's run counts until its death is known."""
    import key_app

    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else session_server().fresh_url()
    engine, log = None if kind == "sqlite" else "postgres", tmp_path / "log"
    log.touch()
    flujo, client = key_app.make(url, engine), RunClient(url)
    names = [f"run-{number:02}" for number in range(16)]
    for name in names:
        flujo.submit_sync(name, run_id=name, key="one")
    options = ("--slots", "3", "--per-key", "1")
    started = [
        Worker(url, log, *options, target="key_app:flujo", **({} if engine is None else {"KEY_ENGINE": engine}))
        for _ in range(3)
    ]
    try:
        for worker in started:
            worker.ready()
        for victim in started[:2]:
            await_lines(log, 4, most=2 * len(names))
            victim.process.freeze()  # it writes nothing after the line that reports its death
            with log.open("a") as file:
                file.write(f"killed {victim.process.pid} -\n")
            victim.send(signal.SIGKILL)
        until_while_it_moves(
            lambda: {client.get(name).status for name in names} == {"completed"}, lambda: log.read_text()
        )
    finally:
        for worker in started:
            worker.__exit__(None, None, None)
    assert overlaps(log.read_text().splitlines()) == []


def await_lines(log: Path, count: int, *, most: int) -> None:
    """Wait for so many more lines, or for all that there can be."""
    wanted = min(len(log.read_text().splitlines()) + count, most)
    until(lambda: len(log.read_text().splitlines()) >= wanted)


def overlaps(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Runs that began while another one was being executed."""
    found, running = [], dict[str, str]()
    for event, pid, name in map(str.split, lines):
        if event == "begin":
            found += [(other, name) for owner, other in running.items() if owner != pid]
            running[pid] = name
        else:
            running.pop(pid, None)
    return found
