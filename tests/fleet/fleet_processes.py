"""Workers as processes of their own, started by the command that users start them by."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

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
            "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parent))),
        }
        self.process = subprocess.Popen(
            self.command or command, env={**os.environ, **named, **environ}, stderr=subprocess.PIPE, text=True, cwd=HERE
        )
        self.said: list[str] = []

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

    def ended(self, seconds: float = 30) -> int:
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


class Caller(Worker):
    """A process that runs a map whose items are performed elsewhere."""

    command = (sys.executable, str(HERE / "fleet_app.py"))


def start(url: str, log: Path, *options: str, **environ: Any) -> Worker:
    return Worker(url, log, *options, **environ)
