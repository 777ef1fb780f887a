"""The Postgres store behind PgBouncer in transaction mode; skipped where `pgbouncer` is not installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psycopg
import pytest
import trio

from flujo_actors import DeclarationError, Flujo, PostgresStore, RunClient, Step, StoreError, StoreVersionError
from flujo_actors._api.cli.entry import main
from flujo_actors.stores.postgres._schema import MIGRATIONS

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

needs_pgbouncer = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed: make pooler")


@pytest.fixture(scope="module")
def pooled_url(postgres_server: Any) -> Iterator[str]:
    """An empty database behind a pooler with two server connections."""
    assert PGBOUNCER is not None
    sockets = Path(unquote(postgres_server.url.partition("host=")[2].partition("&")[0]))
    name, port = f"pooled_{uuid.uuid4().hex}", _free_port()
    with psycopg.connect(postgres_server.url, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")
        [(user,)] = db.execute("SELECT current_user").fetchall()
    modes = {each: each.stat().st_mode for each in (sockets, *sockets.parents[:-1])}
    if os.geteuid() == 0:  # the pooler refuses to be root, and must reach the socket
        for each, mode in modes.items():
            each.chmod(mode | 0o011)
    folder = Path(tempfile.mkdtemp(prefix="flujo-pooler-"))
    folder.chmod(0o755)
    (folder / "pooler.ini").write_text(_config(sockets, name, user, port), encoding="utf-8")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [PGBOUNCER, str(folder / "pooler.ini")], user="nobody" if os.geteuid() == 0 else None, stderr=log
        )
    try:
        url = f"postgresql://{user}@127.0.0.1:{port}/{name}"
        _wait_for(url)
        yield url
    finally:
        process.terminate()
        process.wait()
        sys.stderr.write((folder / "log").read_text())  # shown with a failed test
        shutil.rmtree(folder, ignore_errors=True)
        for each, mode in modes.items():  # Postgres refuses to start on data that others may read
            each.chmod(mode)


def _config(sockets: Path, name: str, user: str, port: int) -> str:
    return f"""[databases]
{name} = host={sockets} dbname={name} user={user}
[pgbouncer]
listen_addr=127.0.0.1
listen_port={port}
unix_socket_dir=
auth_type=any
pool_mode=transaction
default_pool_size=2
"""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            psycopg.connect(url, connect_timeout=30).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


async def echo(data: Any) -> Any:
    return data


def steps() -> Any:
    return Step("a", echo) >> Step("b", echo)


@needs_pgbouncer
@pytest.mark.slow
def test_a_schema_is_used_behind_a_pooler(pooled_url: str) -> None:
    """Server connections are shared with clients of other schemas."""
    options = "flujo.pooler=transaction&flujo.pool_size=2"
    flujos = [Flujo(steps(), store=f"{pooled_url}?{options}&flujo.schema=runs_{name}") for name in "ab"]
    for number in range(6):
        assert flujos[number % 2].run(number, run_id=f"r{number}").output == number
    with psycopg.connect(pooled_url, autocommit=True, prepare_threshold=None) as db:
        for name, expected in (("a", ["r0", "r2", "r4"]), ("b", ["r1", "r3", "r5"])):
            rows = db.execute(f"SELECT run_id FROM runs_{name}.flujo_runs ORDER BY run_id").fetchall()
            assert [run_id for (run_id,) in rows] == expected
        for _ in range(8):
            assert db.execute("SHOW search_path").fetchone() == ('"$user", public',)
    store = flujos[0].store
    assert list(store.check()) == []


@needs_pgbouncer
@pytest.mark.slow
def test_a_schema_is_migrated_and_vacuumed_behind_a_pooler(pooled_url: str) -> None:
    """Statements outside of transactions name the schema; no lock and no search path is left in a shared session."""
    options = "flujo.pooler=transaction&flujo.pool_size=2&flujo.schema=moved"
    Flujo(steps(), store=f"{pooled_url}?{options}").run(1, run_id="r")
    needed = len(MIGRATIONS)
    with psycopg.connect(pooled_url, autocommit=True, prepare_threshold=None) as db:
        db.execute("DROP INDEX moved.flujo_runs_claimable")
        db.execute(f"UPDATE moved.flujo_schema SET version = {needed - 1}")
        with pytest.raises(StoreVersionError, match=f"the store has schema {needed - 1}, this process needs {needed}"):
            RunClient(f"{pooled_url}?{options}&flujo.migrate=never").list()
        assert main(["store", "migrate", "--store", f"{pooled_url}?{options}"]) == 0
        assert main(["store", "migrate", "--store", f"{pooled_url}?{options}"]) == 0
        assert main(["store", "vacuum", "--store", f"{pooled_url}?{options}"]) == 0
        assert db.execute("SELECT version FROM moved.flujo_schema").fetchall() == [(needed,)]
        valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'moved.flujo_runs_claimable'::regclass"
        assert db.execute(valid).fetchall() == [(True,)]
        counted = "SELECT reltuples FROM pg_class WHERE oid = 'moved.flujo_runs'::regclass"
        assert db.execute(counted).fetchall() == [(1.0,)]
        assert db.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").fetchall() == []
        for _ in range(8):
            assert db.execute("SHOW search_path").fetchone() == ('"$user", public',)
    assert RunClient(f"{pooled_url}?{options}").get("r").status == "completed"


@needs_pgbouncer
@pytest.mark.slow
def test_runs_questions_and_retries_work_behind_a_pooler(pooled_url: str) -> None:
    """From many threads, over two server connections."""
    url = f"{pooled_url}?flujo.pooler=transaction&flujo.pool_size=4"
    flujo = Flujo(steps(), store=url)

    def run(number: int) -> str:
        return flujo.run(number, run_id=f"many-{number}").status

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(run, range(40))) == {"completed"}
    asking = Flujo(Step("a", echo) >> Step.human_in_the_loop("ok", "Go?", input_schema=bool), store=url)
    token = asking.run(1, run_id="asks").state_token
    client = RunClient(url)
    client.answer(token, True)
    assert asking.resume("asks").status == "completed"
    client.cancel(asking.run(1, run_id="ends").run_id)
    client.retry("ends")
    assert client.get("ends").retries == 1
    assert client.delete("many-0")


@needs_pgbouncer
@pytest.mark.slow
def test_a_worker_looks_into_a_pooled_store(pooled_url: str) -> None:
    """Without LISTEN; the settings of its sessions do not stay with others."""
    flujo = Flujo(steps(), store=PostgresStore(pooled_url, pooler="transaction"))
    flujo.submit_sync(7, run_id="queued")

    async def main() -> None:
        async with flujo.worker(slots=2):
            client = RunClient(flujo._store)  # type: ignore[arg-type]
            result = await trio.to_thread.run_sync(client.wait, "queued", 60)
            assert (result.status, result.output) == ("completed", 7)

    trio.run(main)
    with psycopg.connect(pooled_url, autocommit=True) as db:
        found = {db.execute("SHOW lock_timeout").fetchone() for _ in range(8)}
    assert found == {("0",)}


@needs_pgbouncer
@pytest.mark.slow
def test_without_the_option_the_error_names_it(pooled_url: str) -> None:
    """Prepared statements are refused by the next session."""
    flujo = Flujo(steps(), store=pooled_url)

    def run(number: int) -> str:
        try:
            return flujo.run(number).status
        except StoreError as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(run, range(60)))
    refused = found - {"completed"}
    assert refused
    assert any(
        text.endswith("needs PostgresStore(url, pooler='transaction') or ?flujo.pooler=transaction") for text in refused
    )


@pytest.mark.parametrize("engine", ["postgres", "dbos"])
def test_an_engine_in_the_database_needs_a_direct_connection(engine: str) -> None:
    """It listens, which no pooler in transaction mode passes on."""
    with pytest.raises(DeclarationError, match=r"needs LISTEN and sessions.*give the engine a direct URL"):
        Flujo(steps(), store="postgresql://db/runs?flujo.pooler=transaction", engine=engine)


def test_options_of_the_url_are_ours_alone() -> None:
    """The driver sees none of them; an unknown one is refused with the nearest name."""
    store = PostgresStore(
        "postgresql://u@db/runs?flujo.pooler=transaction&sslmode=require&options=-csearch_path%3Dx%20"
    )
    assert (store.url, store.pooler) == (
        "postgresql://u@db/runs?sslmode=require&options=-csearch_path%3Dx%20",
        "transaction",
    )
    assert PostgresStore("postgresql://u@db/runs?flujo.pool_size=3").url == "postgresql://u@db/runs"
    with pytest.raises(DeclarationError, match=r"no option 'flujo\.poler': did you mean 'flujo\.pooler'\?"):
        PostgresStore("postgresql://db/runs?flujo.poler=transaction")
    with pytest.raises(DeclarationError, match="pooler must be 'transaction' or None, not 'session'"):
        PostgresStore("postgresql://db/runs", pooler="session")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=r"flujo\.pool_size must be a whole number"):
        PostgresStore("postgresql://db/runs?flujo.pool_size=many")
    with pytest.raises(DeclarationError, match="PostgresStore: pool_size must be a whole number of at least 1, not 0"):
        PostgresStore("postgresql://db/runs", pool_size=0)
