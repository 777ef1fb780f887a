"""Workers in processes of their own: killed, frozen, told to stop, and replaced; with and without an engine."""

from __future__ import annotations

import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fleet_processes import Worker
from fleet_waiting import PATIENCE_S, ended, until

from flujo_actors import Flujo, Pipeline, RunClient, Step
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow


class Scene:
    """A store, an engine or none, and what workers have logged."""

    def __init__(self, url: str, engine: str | None, log: Path) -> None:
        self.url, self.engine, self.log = url, engine, log
        log.touch()
        import fleet_app

        fleet_app.LOG = str(log)
        self.app = fleet_app
        self.flujo: Flujo[Any, Any, Any] = fleet_app.make_flujo(url, engine)
        self.client = RunClient(url)

    def worker(self, *options: str, **environ: str) -> Worker:
        return Worker(self.url, self.log, *options, FLEET_ENGINE=self.engine or "", **environ)

    def submit(self, name: str, **data: Any) -> str:
        return self.flujo.submit_sync({"name": name, **data}, run_id=name)

    def said(self, *words: str) -> int:
        return sum(each[1:] == list(words) for each in self.app.history())

    def completed(self, run_id: str, seconds: float = PATIENCE_S) -> None:
        assert ended(self.client, run_id, seconds).status == "completed"


@pytest.fixture(params=["sqlite", "engine"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    url = f"sqlite:///{tmp_path}/runs.db" if request.param == "sqlite" else session_server().fresh_url()
    return Scene(url, "postgres" if request.param == "engine" else None, tmp_path / "log")


def test_several_workers_share_what_was_submitted(scene: Scene) -> None:
    """Each run is played once, by one of them; they leave nothing behind."""
    names = [f"run-{number}" for number in range(20)]
    with scene.worker().ready() as one, scene.worker().ready() as other:
        for name in names:
            scene.submit(name)
        for name in names:
            scene.completed(name)
        assert len(until(lambda: len(scene.client.workers()) == 2 and scene.client.workers())) == 2
        for each in (one, other):
            each.send(signal.SIGTERM)
            assert each.ended() == 0
    assert Counter(words[2] for words in scene.app.history() if words[1] == "done") == dict.fromkeys(names, 1)
    assert scene.client.workers() == []
    assert jobs(scene) == 0


def test_what_a_killed_worker_left_is_taken_over(scene: Scene) -> None:
    """What it had committed is not repeated."""
    with scene.worker().ready() as doomed, scene.worker().ready():
        scene.submit("a", does="wait")
        scene.submit("b", does="wait")
        until(lambda: scene.said("second", "a") and scene.said("second", "b"))
        scene.submit("c")
        doomed.process.kill()
        scene.completed("c")
        victims = {words[2] for words in scene.app.history() if words[0] == str(doomed.process.pid)} & {"a", "b"}
        for name in victims:
            scene.completed(name)
    assert scene.said("first", "a") == scene.said("first", "b") == 1
    assert all(scene.said("second", name) == 2 for name in victims)


def test_postgres_does_without_an_engine(tmp_path: Path) -> None:
    """Workers look at the store then, a few times a second."""
    scene = Scene(session_server().fresh_url(), None, tmp_path / "log")
    with scene.worker().ready() as doomed:
        scene.submit("a", does="wait")
        until(lambda: scene.said("second", "a"))
        doomed.process.kill()
        with scene.worker().ready():
            scene.completed("a")


def test_when_all_workers_die_a_new_one_goes_on(scene: Scene) -> None:
    """Whenever it comes."""
    with scene.worker().ready() as doomed:
        scene.submit("a", does="wait")
        until(lambda: scene.said("second", "a"))
        doomed.process.kill()
        doomed.process.wait()
    scene.submit("b")
    with scene.worker().ready():
        scene.completed("a")
        scene.completed("b")
    assert (scene.said("first", "a"), scene.said("second", "a")) == (1, 2)


def test_a_worker_told_to_stop_gives_up_what_it_cannot_finish(scene: Scene) -> None:
    """After its grace, at once: another one has it, although the lease would last for an hour."""
    with (
        scene.worker("--grace", "0.2", FLEET_LEASE_S="3600").ready() as leaving,
        scene.worker("--queue", "other", FLEET_LEASE_S="3600").ready(),
    ):
        scene.submit("a", does="wait")
        until(lambda: scene.said("second", "a"))
        with scene.worker(FLEET_LEASE_S="3600").ready():
            leaving.send(signal.SIGTERM)
            assert leaving.ended() == 0
            scene.completed("a")
    assert (scene.said("first", "a"), scene.said("second", "a")) == (1, 2)


def test_a_worker_told_to_stop_finishes_what_it_can(scene: Scene) -> None:
    """And takes nothing new."""
    with scene.worker().ready() as leaving:
        scene.submit("a", does="wait", seconds=1.0)
        until(lambda: scene.said("second", "a"))
        until(lambda: [each for each in scene.client.workers() if each.state == "ready"])
        leaving.send(signal.SIGTERM)
        until(lambda: not [each for each in scene.client.workers() if each.state == "ready"] or None)
        scene.submit("b")
        assert leaving.ended() == 0
    assert (scene.client.get("a").status, scene.client.get("b").status) == ("completed", "running")
    assert scene.said("second", "a") == 1


def test_a_worker_told_twice_stops_at_once(scene: Scene) -> None:
    """Whatever its grace; the run can be had by others then."""
    with scene.worker("--grace", "1000").ready() as leaving:
        scene.submit("a", does="wait")
        until(lambda: scene.said("second", "a"))
        leaving.send(signal.SIGTERM)
        until(lambda: any(each.state == "draining" for each in scene.client.workers()))
        leaving.send(signal.SIGTERM)
        assert leaving.ended() == 0
    info = scene.client.get("a")
    assert (info.status, info.abandoned, info.waiting_since is not None) == ("running", True, True)


def test_a_worker_that_was_frozen_past_its_lease_is_refused(scene: Scene, tmp_path: Path) -> None:
    """Its run is taken over; when it comes back, its write is refused, and it serves on."""
    with scene.worker().ready() as frozen:
        scene.submit("a", does="gate", gate=str(tmp_path / "gate"))
        until(lambda: scene.said("second", "a"))
        frozen.freeze()
        with scene.worker().ready() as heir:
            scene.completed("a")
            assert pid_of(scene, "done", "a") == [str(heir.process.pid)]
            heir.send(signal.SIGTERM)
            heir.ended()
        frozen.send(signal.SIGCONT)
        (tmp_path / "gate").touch()
        scene.submit("b")
        scene.completed("b")
    assert scene.client.state("a").output == "a"
    assert scene.said("first", "a") == 1


def test_a_step_that_blocks_its_loop_is_begun_once(scene: Scene, tmp_path: Path) -> None:
    """Leases are renewed from a thread; another worker waits in vain."""
    gate = tmp_path / "gate"
    with scene.worker(FLEET_LEASE_S="10").ready(), scene.worker(FLEET_LEASE_S="10").ready():
        scene.submit("a", does="block", gate=str(gate))
        until(lambda: scene.said("second", "a"))
        first = lease_until(scene)
        until(lambda: lease_until(scene) > first)
        gate.touch()
        scene.completed("a")
    assert scene.said("second", "a") == 1


def test_a_run_that_kills_its_workers_fails_in_the_end(scene: Scene) -> None:
    """After as many deliveries as are allowed; it says so, and the fleet lives on."""
    scene.submit("poison", does="die", times=100)
    for _ in range(6):
        with scene.worker().ready() as worker:
            until(lambda: worker.process.poll() is not None or scene.client.get("poison").status != "running")
            if scene.client.get("poison").status != "running":
                scene.submit("fine")
                scene.completed("fine")
                break
    info = ended(scene.client, "poison")
    assert info.status == "failed"
    assert "5 deliveries without progress" in (scene.client.state("poison").feedback or "")
    assert (scene.said("first", "poison"), scene.said("second", "poison")) == (1, 5)


def test_postgres_may_be_restarted(tmp_path: Path) -> None:
    """As in a crash, twice, while runs are handed in and played: nothing is lost, nothing committed repeated."""
    scene = Scene(session_server().fresh_url(), "postgres", tmp_path / "log")
    names = [f"run-{number}" for number in range(12)]
    with scene.worker().ready(), scene.worker().ready():
        for place, name in enumerate(names):
            scene.submit(name, does="wait", seconds=0.1)
            if place in (3, 8):
                session_server().restart()
        for name in names:
            scene.completed(name, 120)
    assert Counter(words[2] for words in scene.app.history() if words[1] == "first").keys() == set(names)
    assert all(scene.client.state(name).output == name for name in names)


def test_a_worker_may_play_what_waits_and_end(scene: Scene) -> None:
    """For whoever starts it by the clock."""
    scene.submit("a")
    with scene.worker("--once") as worker:
        assert worker.ended() == 0
    assert scene.client.get("a").status == "completed"


@pytest.mark.parametrize("target", ["nothing", "fleet_app:nobody", "no_such_module:flujo", "missing.py:flujo"])
def test_a_target_that_is_not_there_is_refused(tmp_path: Path, target: str) -> None:
    """In one line, with the code for what could not start."""
    with Worker(f"sqlite:///{tmp_path}/runs.db", tmp_path / "log", target=target) as worker:
        assert worker.ended() == 2
    assert worker.said[-1].startswith("flujo-actors: ")
    assert len(worker.said[-1].splitlines()) == 1


def lease_until(scene: Scene) -> float:
    """The end of the lease of run `a`, by the clock of the store."""
    statement = "SELECT lease_until FROM flujo_runs WHERE run_id = 'a'"
    if scene.engine is None:
        with closing(sqlite3.connect(scene.url.removeprefix("sqlite:///"))) as file:
            return float(file.execute(statement).fetchone()[0])
    with psycopg.connect(scene.url) as db:
        return float(db.execute(statement).fetchall()[0][0])


def pid_of(scene: Scene, *words: str) -> list[str]:
    return [each[0] for each in scene.app.history() if each[1:] == list(words)]


def jobs(scene: Scene) -> int:
    """How many tickets are left."""
    if scene.engine is None:
        return 0
    with psycopg.connect(scene.url) as db:
        [(count,)] = db.execute("SELECT count(*) FROM procrastinate_jobs").fetchall()
        return int(count)


# --- what a worker survives ---------------------------------------------------------------------------------


def test_a_malformed_ticket_is_dropped(tmp_path: Path) -> None:
    """Whatever stands in the queue, the worker lives on and plays the next run."""
    scene = Scene(session_server().fresh_url(), "postgres", tmp_path / "log")
    with scene.worker().ready() as worker, psycopg.connect(scene.url, autocommit=True) as db:
        for given in ('{"run": "[1]"}', '{"run": "{"}', '{"run": 7}', "{}", '{"run": "\\"ghost\\""}'):
            db.execute(
                "INSERT INTO procrastinate_jobs (queue_name, task_name, priority, args, status)"
                " VALUES ('default', 'flujo.play', 1, %s, 'todo')",
                (given,),
            )
        scene.submit("a")
        scene.completed("a")
        until(lambda: jobs(scene) == 0)
        assert worker.process.poll() is None


def test_a_worker_that_starts_while_postgres_restarts_waits_for_it(tmp_path: Path) -> None:
    """It says that it cannot start yet, and is ready when the server is back."""
    scene = Scene(session_server().fresh_url(), "postgres", tmp_path / "log")
    session_server().stop()
    try:
        worker = scene.worker()
        assert worker.process.stderr is not None
        assert "the worker cannot start yet" in worker.process.stderr.readline()
    finally:
        session_server().start()
    with worker.ready():
        scene.submit("a")
        scene.completed("a")


BROKEN = {
    "relative": ("from . import sibling", "ImportError: attempted relative import", "package.module:name"),
    "syntax": ("flujo = = 1", "SyntaxError: invalid syntax", "syntax.py"),
    "raises": ("{}['url']", "KeyError: 'url'", "raises.py, line 1"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_error_of_the_users_module_is_named_as_such(tmp_path: Path, name: str) -> None:
    """What its code raised and where, in one line; it is no defect of the library."""
    text, *said = BROKEN[name]
    (tmp_path / f"{name}.py").write_text(text)
    target = f"{tmp_path / name}.py:flujo"
    with Worker(f"sqlite:///{tmp_path}/runs.db", tmp_path / "log", target=target) as worker:
        assert worker.ended() == 2
    assert all(each in worker.said[-1] for each in said)
    assert "defect" not in worker.said[-1]
    assert len(worker.said[-1].splitlines()) == 1


def test_a_target_that_is_no_pipeline_is_refused(tmp_path: Path) -> None:
    """A number is not called a pipeline."""
    (tmp_path / "numbers_app.py").write_text("three = 3")
    target = f"{tmp_path}/numbers_app.py:three"
    with Worker(f"sqlite:///{tmp_path}/runs.db", tmp_path / "log", target=target) as worker:
        assert worker.ended() == 2
    assert f"{target} is an int; name a Flujo, a pipeline or a step" in worker.said[-1]


def test_a_fork_is_taken_before_long(tmp_path: Path) -> None:
    """Also that of a run which no worker has begun: a worker of the queue `default` adopts it."""
    scene = Scene(f"sqlite:///{tmp_path}/runs.db", None, tmp_path / "log")
    scene.flujo.run({"name": "a"}, run_id="a")
    with scene.worker().ready():
        scene.completed(scene.client.fork("a", 2))


# --- the loop of a worker -----------------------------------------------------------------------------------

ASYNCIO_APP = """
import asyncio, os
from flujo_actors import Flujo, Pipeline, Step

async def wait(data):
    await asyncio.sleep(0.01)
    return data

def made(name, **settings):
    return Flujo(Pipeline([Step("wait", wait)], name=name), store=os.environ["FLEET_STORE"], settings=settings)

flujo, configured = made("plain"), made("configured", run={"backend": "asyncio"})
"""


def once(tmp_path: Path, *options: str, **environ: str) -> Worker:
    """A worker on what waits for the application above."""
    (tmp_path / "asyncio_app.py").write_text(ASYNCIO_APP)
    path = f"{tmp_path / 'asyncio_app.py'}:"
    targets = [path + each for each in options if not each.startswith("-")]
    flags = [each for each in options if each.startswith("-")]
    url, log = f"sqlite:///{tmp_path}/runs.db", tmp_path / "log"
    return Worker(url, log, "--once", *targets[1:], *flags, target=targets[0], **environ)


def submit_to(tmp_path: Path, name: str) -> RunClient:
    async def wait(data: str) -> str:
        return data

    url = f"sqlite:///{tmp_path}/runs.db"
    Flujo(Pipeline([Step("wait", wait)], name=name), store=url).submit_sync("x", run_id="run")
    return RunClient(url)


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        (["flujo", "--backend=asyncio"], {}),
        (["flujo"], {"FLUJO_RUN__BACKEND": "asyncio"}),
        (["configured"], {}),
    ],
)
def test_a_worker_runs_on_the_loop_that_it_is_told_of(
    tmp_path: Path, options: list[str], environ: dict[str, str]
) -> None:
    """By an option, by the environment, or by the settings of its target: steps of asyncio libraries work there."""
    client = submit_to(tmp_path, "configured" if options == ["configured"] else "plain")
    with once(tmp_path, *options, "--mode=force", **environ) as worker:
        assert worker.ended() == 0, worker.said
    assert client.get("run").status == "completed"


def test_a_step_on_the_wrong_loop_of_a_worker_says_how_to_start_it(tmp_path: Path) -> None:
    """The advice is one that whoever starts workers can follow."""
    client = submit_to(tmp_path, "plain")
    with once(tmp_path, "flujo", "--mode=force") as worker:
        assert worker.ended() == 0
    assert "`flujo-actors worker … --backend asyncio`" in (client.state("run").feedback or "")


def test_targets_of_different_loops_are_refused(tmp_path: Path) -> None:
    """One process has one loop; an option decides."""
    with once(tmp_path, "flujo", "configured") as worker:
        assert worker.ended() == 2
    assert "'configured' has run.backend=asyncio" in worker.said[-1]
    with once(tmp_path, "flujo", "configured", "--backend=asyncio") as worker:
        assert worker.ended() == 0
