"""Python commands as processes of their own that start in a hundredth of a second.

`Popen` and `run` are those of `subprocess` for commands that begin with `sys.executable`. The process is a fork of an
interpreter that has imported the slow packages: pydantic-ai alone takes a second of CPU time. What a test asserts
about imports, flags of the interpreter or variables such as PYTHONHASHSEED needs `subprocess` itself.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, CalledProcessError, CompletedProcess, TimeoutExpired
from types import TracebackType
from typing import IO, Any

Stream = int | IO[Any] | None
FORWARDED = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONIOENCODING"}
"""Variables of the interpreter that a fork can still obey."""


@cache
def _interpreter(owner: int) -> socket.socket:
    """The socket of the interpreter that a process forks from; it ends when the socket closes."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, str(Path(__file__).with_name("preloaded_interpreter.py")), str(other.fileno())]
    with other:
        process = subprocess.Popen(command, env=environ, pass_fds=[other.fileno()])
    atexit.register(_end, own, process, owner)
    return own


def _end(requests: socket.socket, process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        requests.close()
        process.wait()


class Popen:
    """A process that runs `python ARGUMENTS`, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(
        self,
        args: Sequence[str | Path],
        *,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        text: bool = False,
        encoding: str | None = None,
        start_new_session: bool = False,
    ) -> None:
        executable, *arguments = self.args = [os.fspath(each) for each in args]
        assert executable == sys.executable, f"{executable} is not the interpreter of the tests"
        environ = dict(os.environ if env is None else env)
        strange = {name for name in environ if re.match("PYTHON[A-Z]", name)} - FORWARDED
        assert not strange, f"{strange} need subprocess.Popen"
        self.returncode: int | None = None
        self._reads: dict[str, threading.Thread] = {}
        self._texts: dict[str, Any] = {}
        self._text = text or encoding is not None
        files = _Files(self._text)
        self.stdin = files.write(stdin)
        self.stdout = files.read(stdout, 1)
        self.stderr = files.read(stderr, 2)
        own, status = os.pipe()
        self._status = os.fdopen(own, "rb", buffering=0)
        request = {"arguments": arguments, "cwd": os.fspath(cwd or Path.cwd()), "env": environ}
        request["session"] = start_new_session
        socket.send_fds(_interpreter(os.getpid()), [json.dumps(request).encode()], [*files.theirs, status])
        files.close()
        os.close(status)
        self._lines = b""
        self._receive(1, None)
        self.pid = int(self._lines.split()[0])

    def _receive(self, lines: int, timeout: float | None) -> bool:
        """Read until so many lines have arrived; whether they have."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._lines.count(b"\n") < lines:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._status], [], [], left)[0]:
                return False
            read = self._status.read(64)
            assert read, f"the interpreter of {self.args} ended"
            self._lines += read
        return True

    def poll(self) -> int | None:
        if self.returncode is None and self._receive(2, 0):
            self.returncode = int(self._lines.split()[1])
            self._status.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not self._receive(2, timeout):
            raise TimeoutExpired(self.args, timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Send the input, read both streams to their ends and wait."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for name, stream in (("stdout", self.stdout), ("stderr", self.stderr)):
            if stream is not None and name not in self._reads:
                self._reads[name] = threading.Thread(target=self._read_all, args=(name, stream), daemon=True)
                self._reads[name].start()
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input or ("" if self._text else b""))
        for thread in self._reads.values():
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return self._texts.get("stdout"), self._texts.get("stderr")

    def _read_all(self, name: str, stream: IO[Any]) -> None:
        with stream:
            self._texts[name] = stream.read()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop the process, and return when it is stopped."""
        self.send_signal(signal.SIGSTOP)
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Popen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


class _Files:
    """The three files that a process inherits, and the ends that its caller keeps."""

    def __init__(self, text: bool) -> None:
        self.theirs: list[int] = []
        self._opened: list[int] = []
        self._text = text

    def write(self, wanted: Stream) -> IO[Any] | None:
        if wanted == PIPE:
            theirs, own = os.pipe()
            self._give(theirs)
            return os.fdopen(own, "w" if self._text else "wb")
        self._inherit(wanted, 0)
        return None

    def read(self, wanted: Stream, number: int) -> IO[Any] | None:
        if wanted == PIPE:
            own, theirs = os.pipe()
            self._give(theirs)
            return os.fdopen(own, "r" if self._text else "rb")
        if wanted == STDOUT:
            self.theirs.append(self.theirs[1])
        else:
            self._inherit(wanted, number)
        return None

    def _inherit(self, wanted: Stream, number: int) -> None:
        if wanted == DEVNULL:
            self._give(os.open(os.devnull, os.O_RDWR))
        elif wanted is None:
            self.theirs.append(number)
        else:
            self.theirs.append(wanted if isinstance(wanted, int) else wanted.fileno())

    def _give(self, file: int) -> None:
        self.theirs.append(file)
        self._opened.append(file)

    def close(self) -> None:
        for file in self._opened:
            os.close(file)


def run(
    args: Sequence[str | Path],
    *,
    input: Any = None,
    capture_output: bool = False,
    stdout: Stream = None,
    stderr: Stream = None,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> CompletedProcess[Any]:
    """`subprocess.run` of a Python command."""
    if capture_output:
        stdout = stderr = PIPE
    process = Popen(args, stdin=None if input is None else PIPE, stdout=stdout, stderr=stderr, **options)
    try:
        out, err = process.communicate(input, timeout)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    code = process.wait()
    if check and code:
        raise CalledProcessError(code, process.args, out, err)
    return CompletedProcess(process.args, code, out, err)
