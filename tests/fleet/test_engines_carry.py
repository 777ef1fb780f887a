"""Every engine as the carrier of a real fleet: what it is told, dead workers, and a server that is away."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from fleet_processes import Worker
from fleet_waiting import until
from ray_cluster import ray_head
from temporal_server import temporal_server

from flujo_actors import Flujo, RunClient, Step
from flujo_actors.errors import DeclarationError
from kit.postgres_server import session_server

engines = pytest.mark.engines

CANARY = "canary-3f9a"


def dbos() -> str:
    if importlib.util.find_spec("dbos") is None:
        pytest.skip("dbos is not installed: the DBOS engine is NOT tested here")
    return "dbos"


def ray() -> str:
    return f"ray://{ray_head().address}"


def temporal() -> str:
    return f"temporal://{temporal_server().address}"


# --- what it is told ----------------------------------------------------------------------------------------


async def echo(text: str) -> str:
    return text + "!"


@engines
@pytest.mark.parametrize("engine", [dbos, ray, temporal], ids=["dbos", "ray", "temporal"])
def test_nothing_but_names_is_told_to_an_engine(engine: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A big value goes in and out; what the engine was told of it is less than 1 kB, without a word of the input."""
    told: list[str] = []
    from flujo_actors._fleet import sidecar_process

    tell = sidecar_process.Sidecar.send
    monkeypatch.setattr(sidecar_process.Sidecar, "send", lambda me, **it: (told.append(json.dumps(it)), tell(me, **it)))
    queue, named, url = f"gpu-{uuid.uuid4().hex[:6]}", engine(), session_server().fresh_url()
    flujo = Flujo(Step("echo", echo, runs_on=queue), store=url, engine=named)
    given = CANARY * 200_000

    async def main() -> Any:
        async with flujo.worker(queue, slots=4, grace_s=0):
            with trio.fail_after(120):
                return await flujo.run_async(given)

    assert trio.run(main).output == given + "!"
    kept = [*told, *tables(url), *(history(queue) if named.startswith("temporal") else [])]
    assert kept
    assert not [words for words in kept if CANARY in words or len(words) > 2000]


def tables(url: str) -> list[str]:
    """Every row of every table of DBOS in the store's database, as text, if it is there."""
    with psycopg.connect(url) as db:
        found = db.execute(
            "SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables"
            " WHERE table_type = 'BASE TABLE' AND table_schema = current_schema() || '_dbos'"
        ).fetchall()
        return [repr(row) for (table,) in found for row in db.execute(f"SELECT * FROM {table}").fetchall()]


def history(queue: str) -> list[str]:
    """All that Temporal knows of the tickets of a queue."""
    from temporalio.client import Client

    async def read() -> list[str]:
        client = await Client.connect(temporal_server().address)
        found = client.list_activities(f"TaskQueue = 'flujo-{queue}'")
        return [repr(await client.get_activity_handle(each.activity_id).describe()) async for each in found]

    return until(lambda: asyncio.run(read()))


# --- what breaks --------------------------------------------------------------------------------------------


class Scene:
    """A Postgres, an engine, a log, and a map of items whose workers are processes of their own."""

    def __init__(self, engine: str, log: Path) -> None:
        import fleet_app

        self.engine, self.url, self.log, self.app = engine, session_server().fresh_url(), log, fleet_app
        log.touch()
        fleet_app.LOG = str(log)

    def worker(self, **environ: str) -> Worker:
        given = {"FLEET_ENGINE": self.engine, "FLEET_WORK_S": "0.2", **environ}
        return Worker(self.url, self.log, "--queue", "cores", "--slots", "2", target="fleet_app:remote", **given)

    def worked(self) -> int:
        return sum(words[1] == "worked" for words in self.app.history())

    def run(self, items: int, then: Callable[[], Any]) -> Any:
        """The result of a map; something happens when a quarter of its items are done."""

        def watch() -> None:
            until(lambda: self.worked() >= items // 4, 120)
            then()

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        result = self.app.make_map(self.url, engine=self.engine).run(list(range(items)))
        watching.join(120)
        return result

    def committed(self) -> int:
        with psycopg.connect(self.url) as db:
            [(count,)] = db.execute("SELECT count(*) FROM flujo_runs WHERE status = 'completed'").fetchall()
            return int(count)


@engines
@pytest.mark.parametrize("engine", [dbos, ray], ids=["dbos", "ray"])
def test_a_worker_is_killed(engine: Callable[[], str], tmp_path: Path) -> None:
    """What it had in flight is begun again by the other one, and nothing else."""
    scene = Scene(engine(), tmp_path / "log")
    with scene.worker().ready() as killed, scene.worker().ready():
        result = scene.run(16, killed.process.kill)
    assert (result.status, result.output) == ("completed", sum(each * each for each in range(16)))
    begun = Counter(words[2] for words in scene.app.history() if words[1] == "begin")
    assert set(begun) == set(map(str, range(16)))
    assert sum(count - 1 for count in begun.values()) <= 2
    assert RunClient(scene.url).list()[0].status == "completed"


@engines
@pytest.mark.parametrize(("engine", "server"), [(ray, ray_head), (temporal, temporal_server)], ids=["ray", "temporal"])
def test_the_server_of_the_engine_is_away(engine: Callable[[], str], server: Callable[[], Any], tmp_path: Path) -> None:
    """What is played meanwhile is committed; all is done after its return, and the next run goes through it as ever."""
    scene = Scene(engine(), tmp_path / "log")

    def away() -> None:
        server().kill()
        before = scene.committed()
        until(lambda: scene.committed() > before)
        server().start()

    with scene.worker().ready():
        result = scene.run(12, away)
        assert (result.status, result.output) == ("completed", sum(each * each for each in range(12)))
        begun = Counter(words[2] for words in scene.app.history() if words[1] == "begin")
        assert max(begun.values()) == 1
        assert scene.app.make_map(scene.url, engine=scene.engine).run([1, 2]).output == 5


# --- what is said when it cannot be had ---------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "extra"), [("ray://head:6379", "ray"), ("dbos", "dbos")])
def test_what_is_missing_is_said(engine: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    import sys

    monkeypatch.setitem(sys.modules, f"flujo_actors._fleet.contrib.{extra}_engine", None)
    store = "postgresql://nobody@127.0.0.1:1/nothing"
    with pytest.raises(DeclarationError, match=rf"pip install 'flujo-actors\[{extra}\]'"):
        Flujo(Step("echo", echo), store=store, engine=engine)


def test_an_address_that_is_none_is_refused() -> None:
    """And the right forms are named."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: the Ray engine is NOT tested here")
    store = "postgresql://nobody@127.0.0.1:1/nothing"
    with pytest.raises(DeclarationError, match="ray://host:6379"):
        Flujo(Step("echo", echo), store=store, engine="ray://head")
    with pytest.raises(DeclarationError, match="'dbos'"):
        Flujo(Step("echo", echo), store=store, engine="raymond")


@pytest.mark.slow
def test_dbos_needs_a_store_in_postgres(tmp_path: Path) -> None:
    """Its tickets are in the store's own database."""
    with pytest.raises(DeclarationError, match="store's own Postgres"):
        Flujo(Step("echo", echo), store=f"sqlite:///{tmp_path}/runs.db", engine="dbos")


def test_a_cluster_that_is_not_there_is_named() -> None:
    """At once, and not after the minutes that Ray itself would wait."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: the Ray engine is NOT tested here")
    from flujo_actors._fleet.contrib.ray_engine import RayEngine

    with pytest.raises(ConnectionError, match=r"127.0.0.1:1 does not answer.*refused"):
        RayEngine("127.0.0.1:1").prepare()
