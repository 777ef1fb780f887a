"""Workers as processes of their own, started by the command that users start them by."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from fleet_waiting import PATIENCE_S, until

from kit import preloaded

HERE = Path(__file__).parent


class Worker:
    """One process of `flujo-actors worker`; killed, if it still lives, when its test has ended."""

    command: tuple[str, ...] = ()
    """What is started instead of the worker."""

    def __init__(self, url: str, log: Path, *options: str, target: str = "fleet_app:flujo", **environ: str) -> None:
        command = [sys.executable, "-m", "flujo_actors", "worker", target, "--color", "never", *options]
        named = {
            "FLEET_STORE": url,
            "FLEET_LOG": str(log),
            "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parent), *sys.path)),
        }
        self.process = preloaded.Popen(
            self.command or command, env={**os.environ, **named, **environ}, stderr=preloaded.PIPE, text=True, cwd=HERE
        )
        self.url, self.said = url, list[str]()

    def ready(self) -> Worker:
        """Wait until it plays."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if "ready:" in line:
                return self
        raise AssertionError("".join(self.said))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def freeze(self) -> None:
        """Stop it without its knowledge, and end its leases as if their time was over."""
        self.send(signal.SIGSTOP)
        self.expire()

    def expire(self) -> None:
        """End its leases as if their time was over."""
        until(lambda: _expired(self.url, self.process.pid))

    def ended(self, seconds: float = PATIENCE_S) -> int:
        """Its exit code."""
        _, said = self.process.communicate(timeout=seconds)
        self.said.append(said)
        return self.process.returncode

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.communicate()


def _expired(url: str, pid: int) -> bool:
    """Expire the leases of a process; whether all of them are: a row may be locked by the process itself."""
    owned, pattern = "owner LIKE %(owner)s AND lease_until > 0", {"owner": f"%:{pid}:%"}
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=PATIENCE_S)) as db, db:
            db.execute(f"UPDATE flujo_runs SET lease_until = 0 WHERE {owned.replace('%(owner)s', ':owner')}", pattern)
        return True
    with psycopg.connect(url, autocommit=True) as db:
        free = f"SELECT id FROM flujo_runs WHERE {owned} FOR UPDATE SKIP LOCKED"
        db.execute(f"UPDATE flujo_runs SET lease_until = 0 WHERE id IN ({free})".encode(), pattern)
        return db.execute(f"SELECT 1 FROM flujo_runs WHERE {owned}".encode(), pattern).fetchone() is None


class Caller(Worker):
    """A process that runs a map whose items are performed elsewhere."""

    command = (sys.executable, str(HERE / "fleet_app.py"))


def start(url: str, log: Path, *options: str, **environ: Any) -> Worker:
    return Worker(url, log, *options, **environ)
