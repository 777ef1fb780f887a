"""Remote items while workers are killed and frozen, callers die, Postgres crashes, and tickets are lost or doubled.

Each time: nothing is lost, nothing that was committed is begun again, and nothing is left behind.
"""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from fleet_processes import Caller, Worker
from fleet_waiting import until

from flujo_actors import Flujo, RunClient, Ticket
from flujo_actors._fleet.procrastinate_engine import ProcrastinateEngine
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow

ITEMS = 40


class Scene:
    """A Postgres, a log, and a map of items whose workers are processes of their own."""

    def __init__(self, log: Path) -> None:
        import fleet_app

        self.url, self.log, self.app = session_server().fresh_url(), log, fleet_app
        log.touch()
        fleet_app.LOG = str(log)
        self.client = RunClient(self.url)

    def flujo(self, **options: Any) -> Flujo[Any, Any, Any]:
        return self.app.make_map(self.url, **options)

    def worker(self, **environ: str) -> Worker:
        options = ("--queue", "cores", "--slots", "4")
        return Worker(self.url, self.log, *options, target="fleet_app:remote", **environ)

    def said(self, word: str) -> list[list[str]]:
        return [words for words in self.app.history() if words[1] == word]

    def once(self, worked: int, then: Callable[[], Any]) -> threading.Thread:
        """Do something when so many items are done."""

        def watch() -> None:
            until(lambda: len(self.said("worked")) >= worked, 120)
            then()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        return thread

    def checked(self, result: Any, *, twice: int) -> None:
        """All items, each committed once; at most so many were begun twice."""
        assert (result.status, result.output) == ("completed", sum(each * each for each in range(ITEMS))), result
        begun = Counter(words[2] for words in self.said("begin"))
        assert set(begun) == set(map(str, range(ITEMS)))
        assert sum(count > 1 for count in begun.values()) <= twice, begun
        assert rows(self.url, "SELECT run_id FROM flujo_runs WHERE status = 'running'") == []
        until(lambda: rows(self.url, "SELECT id FROM procrastinate_jobs WHERE status = 'todo'") == [], 120)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "log")


def rows(url: str, statement: Any) -> list[Any]:
    with psycopg.connect(url) as db:
        return db.execute(statement).fetchall()


def test_a_worker_is_killed_and_another_one_frozen(scene: Scene) -> None:
    """What was in flight is begun again by others; the frozen one's late writes are refused, and it serves on."""
    with scene.worker().ready() as killed, scene.worker().ready() as frozen, scene.worker().ready():
        scene.once(ITEMS // 4, killed.process.kill)
        scene.once(ITEMS // 3, frozen.freeze)
        result = scene.flujo().run(list(range(ITEMS)))
        frozen.send(signal.SIGCONT)
        scene.checked(result, twice=8)
        assert scene.flujo().run([1, 2, 3]).output == 14
        assert frozen.process.poll() is None


def test_all_workers_are_killed_and_a_new_one_comes(scene: Scene) -> None:
    """Whenever it comes."""
    heirs: list[Worker] = []

    def replace(workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
        heirs.append(scene.worker().ready())

    with scene.worker().ready() as one, scene.worker().ready() as other:
        scene.once(ITEMS // 3, lambda: replace([one, other]))
        result = scene.flujo().run(list(range(ITEMS)))
        with heirs[0]:
            scene.checked(result, twice=8)


def test_the_caller_is_killed_and_the_run_resumed_elsewhere(scene: Scene, tmp_path: Path) -> None:
    """Its items went on without it; none is begun twice."""
    gate = tmp_path / "gate"
    with scene.worker(FLEET_GATE=str(gate)).ready():
        with Caller(scene.url, scene.log, FLEET_ITEMS=str(ITEMS), FLEET_RUN="r") as caller:
            until(lambda: len(scene.said("begin")) >= 4)
            caller.process.kill()
            caller.process.wait()
            gate.touch()
            until(lambda: len(scene.said("worked")) >= 4)
        result = scene.flujo().resume("r")
    scene.checked(result, twice=0)


def test_whoever_goes_on_with_a_run_is_told_of_its_items(scene: Scene, tmp_path: Path) -> None:
    """At once, as who asked for them was: a worker that has begun an item before looks up whom to tell."""
    gate = tmp_path / "gate"
    with scene.worker(FLEET_GATE=str(gate)).ready(), ThreadPoolExecutor(1) as threads:
        with Caller(scene.url, scene.log, FLEET_ITEMS="1", FLEET_RUN="r") as caller:
            until(lambda: scene.said("begin") != [], 120)
            caller.process.kill()
            caller.process.wait()
        resumed = threads.submit(scene.flujo(look_s=600.0).resume, "r")
        until(lambda: rows(scene.url, "SELECT reply FROM flujo_runs WHERE reply IS NOT NULL") != [], 120)
        until(lambda: rows(scene.url, LISTENERS) != [], 120)
        gate.touch()
        assert resumed.result(120).output == 0
    assert len(scene.said("begin")) == 1


LISTENERS = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'flujo listener' AND query LIKE 'LISTEN%'"


def test_postgres_crashes_under_load(scene: Scene) -> None:
    """And comes back: nothing is lost."""
    with scene.worker().ready(), scene.worker().ready():
        crash = scene.once(ITEMS // 3, session_server().restart)
        result = scene.flujo().run(list(range(ITEMS)))
        crash.join()
        scene.checked(result, twice=8)


class Unreliable(ProcrastinateEngine):
    """Hands in every ticket three times, and loses one in ten."""

    rng = random.Random(7)

    def submit(self, tickets: Sequence[Ticket], connection: Any = None) -> None:
        kept = [ticket for ticket in tickets if self.rng.random() > 0.1]
        for ticket in kept:
            for _ in range(3):
                job = self._app_job(ticket)
                self._manager().batch_defer_jobs([job])

    def _app_job(self, ticket: Ticket) -> Any:
        import attr

        from flujo_actors._fleet.procrastinate_engine import _job

        return attr.evolve(_job(ticket), queueing_lock=None)


def test_tickets_come_three_times_or_not_at_all(scene: Scene) -> None:
    """Each item is begun once; the lost ones are asked for again."""
    with scene.worker().ready(), scene.worker().ready():
        result = scene.flujo(engine=Unreliable(scene.url)).run(list(range(ITEMS)))
    begun = Counter(words[2] for words in scene.said("begin"))
    assert (result.status, max(begun.values())) == ("completed", 1)


def test_items_that_go_together_survive_a_kill(scene: Scene) -> None:
    """Those of a batch that were committed are not begun again."""
    with scene.worker(FLEET_BATCH="10").ready() as killed, scene.worker(FLEET_BATCH="10").ready():
        scene.once(ITEMS // 3, killed.process.kill)
        result = scene.flujo(batch=10).run(list(range(ITEMS)))
        scene.checked(result, twice=40)


def test_an_item_that_kills_its_workers_fails(scene: Scene) -> None:
    """After as many deliveries as are allowed, with a feedback that says so; the others are not touched."""
    workers: list[Worker] = [scene.worker().ready()]
    over = threading.Event()

    def keep_one_alive() -> None:
        while not over.wait(0.05):
            if workers[-1].process.poll() is not None:
                workers.append(scene.worker().ready())

    thread = threading.Thread(target=keep_one_alive)
    thread.start()
    try:
        result = scene.flujo().run([1, scene.app.POISON])
    finally:
        over.set()
        thread.join()
        for worker in workers:
            worker.__exit__(None, None, None)
    assert result.status == "failed"
    assert "5 deliveries without progress" in (result.feedback or "")
    assert Counter(words[2] for words in scene.said("begin"))[str(scene.app.POISON)] == 5


def test_a_worker_of_another_version_leaves_items_to_others(scene: Scene, tmp_path: Path) -> None:
    """A rolling deploy: old and new workers at once; each plays what its version asked for."""
    with scene.worker().ready(), scene.worker(FLEET_OTHER="1").ready():
        result = scene.flujo().run(list(range(ITEMS)))
        scene.checked(result, twice=0)


def test_a_run_whose_caller_died_can_be_cancelled(scene: Scene, tmp_path: Path) -> None:
    """With its remote items, which nobody waits for."""
    gate = tmp_path / "gate"
    with scene.worker(FLEET_GATE=str(gate)).ready() as worker:
        with Caller(scene.url, scene.log, FLEET_ITEMS="400", FLEET_RUN="r") as caller:
            until(lambda: len(scene.said("begin")) >= 4)
            caller.process.kill()
            caller.process.wait()
        scene.client.cancel("r", "enough")
        assert scene.client.get("r").status == "aborted"
        gate.touch()
        until(lambda: rows(scene.url, "SELECT run_id FROM flujo_runs WHERE status = 'running'") == [])
        assert worker.process.poll() is None
    assert len(scene.said("worked")) < 400


def test_big_values_never_meet_the_engine(scene: Scene) -> None:
    """Fifty megabytes in and out; every ticket is small, and nothing of the input is in the engine's tables."""
    from test_remote_steps import fleet, make

    from flujo_actors import Step

    async def echo(text: str) -> str:
        return text + "!"

    flujo = make(Step("echo", echo, runs_on="gpu"), scene.url)
    canary = "canary-3f9a" * 4_600_000
    seen: list[int] = []

    async def main() -> Any:
        async with fleet(flujo):
            result = await flujo.run_async(canary)
            seen.extend(size for (size,) in rows(scene.url, "SELECT pg_column_size(args) FROM procrastinate_jobs"))
            return result

    assert trio.run(main).output == canary + "!"
    assert max(seen, default=0) < 1000
    dump = rows(scene.url, "SELECT args::text, queueing_lock FROM procrastinate_jobs")
    assert "canary" not in repr(dump)
