"""A Ray cluster of one node on loopback, started by the command that users start theirs by."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fleet_waiting import until
from temporal_server import free_port, is_open

SMALL = ("--num-cpus", "1", "--object-store-memory", "80000000", "--include-dashboard", "false")


LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Without clusters of several machines Ray takes 127.0.0.1 for what it is, and not for the machine's own address."""


class Head:
    """The head of a cluster, which can be taken away and brought back."""

    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        # Ray's sockets need a short name, wherever the tests keep their files.
        self._directory = Path(tempfile.mkdtemp(prefix="flujo-ray-", dir="/tmp"))
        self._cluster = self._directory / "ray_current_cluster"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Head:
        """Start the head. Ray gives up if its node takes more than 30 s, as on a busy machine: then again."""
        for _ in range(5):
            process = self._launched()
            until(lambda process=process: self._is_ready() or process.poll() is not None, 300)
            if process.poll() is None:
                return self
            self.kill()
        raise AssertionError("the Ray head does not start")

    def _is_ready(self) -> bool:
        """Ray writes its address when its node is registered; its port is open long before."""
        return self._cluster.exists()

    def _launched(self) -> subprocess.Popen[bytes]:
        self._cluster.unlink(missing_ok=True)
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *SMALL]
        ports = ("--port", str(self.port), "--ray-client-server-port", str(free_port()))
        place = ("--node-ip-address", "127.0.0.1", *ports, "--temp-dir", str(self._directory))
        self._process = subprocess.Popen(
            [*command, *place],
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self._process

    def kill(self) -> None:
        """The head and all that belongs to it, at once."""
        if self._process is not None:
            for pid in _of_session(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            until(lambda: not is_open(self.port), 120)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


@functools.cache
def ray_head() -> Head:
    """A cluster, for as long as the tests run; skips loudly where there is no Ray."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: the Ray engine is NOT tested here")
    os.environ.update(LOOPBACK)
    head = Head()
    atexit.register(head.remove)
    return head.start()


def _of_session(leader: int) -> list[int]:
    """Every process of a session: Ray gives some of them groups of their own."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            if int(entry.read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(entry.parent.name))
    return found
