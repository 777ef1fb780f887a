"""A run and its ticket in one transaction: whoever dies while handing in leaves both, or nothing."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from fleet_waiting import until

from flujo_actors import Flujo, RunClient, RunNotFound, Step
from flujo_actors._fleet.procrastinate_engine import ProcrastinateEngine
from kit import preloaded
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent

DYING = """
import os, signal, sys
from test_joined_submit import make
from flujo_actors._fleet.procrastinate_engine import ProcrastinateEngine
from flujo_actors.stores import PostgresStore

def dies_after(owner, name):
    original = getattr(owner, name)
    def dying(*args, **options):
        original(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, dying)

if sys.argv[2] == "before the commit":
    dies_after(ProcrastinateEngine, "submit")
else:
    dies_after(PostgresStore, "admit_and_notify")
make(sys.argv[1]).submit_sync(20, run_id="r")
"""


async def double(number: int) -> int:
    return 2 * number


def make(url: str) -> Flujo[Any, Any, Any]:
    """Nobody looks at the store in the time of a test: only tickets tell."""
    settings = {"durability": {"lease_s": 60}, "fleet": {"look_s": 600.0, "unclaimed_s": 600.0}}
    return Flujo(Step("double", double, runs_on="gpu"), store=url, engine="postgres", settings=settings)


def rows(url: str, statement: Any) -> list[Any]:
    with psycopg.connect(url) as db:
        return db.execute(statement).fetchall()


def die(url: str, when: str) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parent)))}
    ended = preloaded.run([sys.executable, "-c", DYING, url, when], env=environ, cwd=HERE, timeout=240, check=False)
    assert ended.returncode == -signal.SIGKILL


def test_who_dies_before_the_commit_leaves_nothing() -> None:
    """Neither the run nor its ticket; it can be handed in again."""
    url = session_server().fresh_url()
    die(url, "before the commit")
    with pytest.raises(RunNotFound):
        RunClient(url).get("r")
    assert rows(url, "SELECT id FROM procrastinate_jobs") == []
    assert make(url).submit_sync(20, run_id="r") == "r"


def test_who_dies_after_the_commit_leaves_a_run_that_is_played_at_once() -> None:
    """By its ticket: nobody looks at the store. The same holds for its remote steps."""
    url = session_server().fresh_url()
    die(url, "after the commit")
    assert len(rows(url, "SELECT id FROM procrastinate_jobs")) == 1

    async def main() -> None:
        async with make(url).worker(queues=["default", "gpu"], grace_s=0):
            client = RunClient(url)
            with trio.fail_after(120):
                await trio.to_thread.run_sync(lambda: until(lambda: client.get("r").status == "completed"))

    trio.run(main)
    assert RunClient(url).wait("r").output == 40


def test_an_engine_that_fails_in_the_transaction_keeps_no_run_from_existing(monkeypatch: Any) -> None:
    """It is told after it, and if that fails, too, a worker that looks finds the run."""
    url = session_server().fresh_url()
    flujo = make(url)
    flujo.submit_sync(1, run_id="first")
    tried: list[bool] = []

    def fail(self: Any, tickets: Any, connection: Any = None) -> None:
        tried.append(connection is not None)
        raise psycopg.OperationalError("no")

    monkeypatch.setattr(ProcrastinateEngine, "submit", fail)
    flujo.submit_sync(2, run_id="second")
    assert tried == [True, False]
    assert RunClient(url).get("second").status == "running"


def test_a_submission_is_made_again_when_its_connection_is_lost(monkeypatch: Any) -> None:
    """The transaction wrote nothing, so the run and its ticket are there once."""
    url = session_server().fresh_url()
    flujo, submit, lost = make(url), ProcrastinateEngine.submit, [1, 2]

    def losing(engine: Any, tickets: Any, connection: Any = None) -> None:
        submit(engine, tickets, connection)
        if lost:
            lost.pop()
            with psycopg.connect(url, autocommit=True) as db:
                db.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
            connection.execute("SELECT 1")

    monkeypatch.setattr(ProcrastinateEngine, "submit", losing)
    flujo.submit_sync(20, run_id="r")
    assert not lost
    assert (
        rows(url, "SELECT count(*) FROM flujo_runs") == rows(url, "SELECT count(*) FROM procrastinate_jobs") == [(1,)]
    )


def test_an_engine_is_prepared_once_for_many_submissions(monkeypatch: Any) -> None:
    """Preparing costs a connection, so only the first submission of a `Flujo` does it."""
    prepared: list[None] = []
    prepare = ProcrastinateEngine.prepare
    monkeypatch.setattr(ProcrastinateEngine, "prepare", lambda engine: (prepared.append(None), prepare(engine)))
    flujo = make(session_server().fresh_url())
    for number in range(3):
        flujo.submit_sync(number, queue="q")
    assert len(prepared) == 1
