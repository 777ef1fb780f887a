"""Sidecar: an engine's library with global state in its process.

Rules:

1. Some libraries can be initialized once per process, and end it when their server is away for long. So they run in a
   sidecar: the program can use them itself, have several workers, and outlives their failures.
2. Both exchange lines of JSON with names only. The configuration, which may hold a password, is the
   first line of input, and not an argument, which other users can read.
3. A sidecar whose program ended ends. A program whose sidecar ended gets an error, and may start another one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, TypeAlias

from outcome import Error, capture

from .engine_port import ExecuteTicket, Ticket, run_named

END_S = 5.0
"""Timeout of a sidecar's own end."""


Hear: TypeAlias = Callable[[int, str, str], None]
"""Callback per claimed ticket: reply number, run and queue."""


class SidecarGone(ConnectionError):
    """The process has ended, or reports that it cannot work."""


class Sidecar:
    """A process that was started; see the module's rules."""

    def __init__(self, module: str, config: Mapping[str, object], *, hear: Hear | None = None) -> None:
        self._on_execute = hear
        self._numbers = itertools.count()
        self._requests: dict[int, Future[None]] = {}
        self._lock = threading.Lock()
        self.why = "its process ended"
        """Reason of its end, if it reports one."""
        self.ready: Future[None] = Future()
        """Whether it can work."""
        self.gone = threading.Event()
        """Set when the process has ended."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # a Ctrl-C is for the program, which may have something to finish
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: IO[str] = self._process.stdin
        self.send(**config)
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        weakref.finalize(self, _end, self._process)

    def send(self, **message: object) -> None:
        """Send a message; ignored if the process is gone."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._to.write(json.dumps(message) + "\n")
            self._to.flush()

    def request(self, do: str, arguments: Sequence[object], *, within_s: float) -> None:
        """Have something done; `SidecarGone` or `TimeoutError` if it was not."""
        self.ready.result(within_s)
        number, answer = next(self._numbers), Future[None]()
        self._requests[number] = answer
        if self.gone.is_set():
            self._fail_all()
        self.send(ask=number, do=do, what=arguments)
        try:
            answer.result(within_s)
        finally:
            self._requests.pop(number, None)

    def close(self) -> None:
        """End it."""
        _end(self._process)

    def _listen(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self._on_message(json.loads(line))
        self._process.wait()
        self.gone.set()
        self._fail_all()

    def _on_message(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"ready": True}:
                self.ready.set_result(None)
            case {"play": key, "run": run, "queue": queue} if self._on_execute is not None:
                self._on_execute(key, run, queue)
            case {"answer": number, "error": error} if number in self._requests:
                _settle(self._requests[number], error)
            case {"failed": why}:
                self.why = why

    def _fail_all(self) -> None:
        for future in (self.ready, *list(self._requests.values())):
            _settle(future, self.why)


def _settle(future: Future[None], error: str | None) -> None:
    if not future.done():
        future.set_result(None) if error is None else future.set_exception(SidecarGone(error))


def _end(process: subprocess.Popen[str]) -> None:
    """Its input ends, and so does it."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve_in_sidecar(
    module: str,
    config: Mapping[str, object],
    slots: int,
    play: ExecuteTicket,
    stopping: threading.Event,
    *,
    start_s: float,
) -> list[Ticket]:
    """Execute the sidecar's tickets until `stopping` or its end; return unexecuted ones."""
    left: list[Ticket] = []
    playing: set[int] = set()

    def begin(key: int, run: str, queue: str) -> None:
        named = run_named(run)
        if named is None:
            sidecar.send(delivered=key)
            return
        playing.add(key)
        threads.submit(one, key, Ticket(run_id=named, queue=queue))

    def one(key: int, ticket: Ticket) -> None:
        left.append(ticket) if stopping.is_set() else play(ticket.run_id)
        playing.discard(key)
        sidecar.send(delivered=key)

    with ThreadPoolExecutor(slots, thread_name_prefix="flujo-play") as threads:
        sidecar = Sidecar(module, config, hear=begin)
        try:
            _serve(sidecar, stopping, start_s)
        finally:
            sidecar.send(stop=True)
            _wait_for_end(sidecar, playing)
    return left


def _serve(sidecar: Sidecar, stopping: threading.Event, start_s: float) -> None:
    late = time.monotonic() + start_s
    while not stopping.wait(0.1):
        if not sidecar.ready.done() and time.monotonic() > late:
            sidecar.close()
        if sidecar.gone.is_set():
            raise SidecarGone(sidecar.why)


def _wait_for_end(sidecar: Sidecar, playing: set[int]) -> None:
    """Wait for its end after all claimed tickets were executed."""
    late = time.monotonic() + END_S
    while not sidecar.gone.wait(0.05) and time.monotonic() < late:
        late = time.monotonic() + END_S if playing else late
    sidecar.close()


class SidecarHost:
    """The program, at the other end of two pipes."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a library prints is not for the program
        self.config: dict[str, Any] = json.loads(sys.stdin.readline())
        self.stopping = threading.Event()
        """Set when nothing new is to be taken."""
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._playing: dict[int, Callable[[], None]] = {}
        self._do: Callable[[str, Sequence[object]], None] | None = None

    def begin(self, do: Callable[[str, Sequence[object]], None] | None = None) -> None:
        """Report readiness and process messages; `do` handles requests in threads."""
        self._do = do
        threading.Thread(target=self._listen, daemon=True).start()
        self._send(ready=True)

    def play(self, run: str, queue: str, then: Callable[[], None]) -> None:
        """Request the execution of a run; `then` is called at its end."""
        number = next(self._numbers)
        self._playing[number] = then
        self._send(play=number, run=run, queue=queue)

    def playing(self) -> int:
        """Return the number of running executions."""
        return len(self._playing)

    def failed(self, error: BaseException) -> None:
        """Report the error and end this process, regardless of its library."""
        self._send(failed=_described_error(error))
        os._exit(1)

    def _send(self, **message: object) -> None:
        with self._lock:
            self._out.write(json.dumps(message) + "\n")
            self._out.flush()

    def _listen(self) -> None:
        for line in sys.stdin:
            match json.loads(line):
                case {"delivered": number}:
                    self._playing.pop(number)()
                case {"stop": True}:
                    self.stopping.set()
                case {"ask": number, "do": do, "what": arguments}:
                    threading.Thread(target=self._answer, args=(number, do, arguments), daemon=True).start()
        os._exit(0)  # the program has ended, or wants nothing more

    def _answer(self, number: int, do: str, arguments: Sequence[object]) -> None:
        assert self._do is not None
        got = capture(self._do, do, arguments)
        self._send(answer=number, error=_described_error(got.error) if isinstance(got, Error) else None)


def _described_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:1000]
