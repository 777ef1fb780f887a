"""An engine's library in a process of its own (a sidecar): for libraries that are one global per process.

Rules:

1. Some libraries can be had once per process, and end it when their server is away for long. So they live beside the
   program: it can use them by itself, have several workers, and outlives whatever becomes of them.
2. Both talk in lines of JSON, and of names only. What the sidecar needs to know, which may hold a password, is the
   first line that it is told, and not among its arguments, which all the world can read.
3. A sidecar whose program ended ends. A program whose sidecar ended is told so, and may start another one.
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

from .port import Play, Ticket

END_S = 5.0
"""How long a sidecar may take to end by itself."""


Hear: TypeAlias = Callable[[int, str, str], None]
"""Told of each ticket that a sidecar took: the number by which it wants to hear of it, its run, and its queue."""


class SidecarGone(ConnectionError):
    """The process has ended, or says that it cannot work."""


class Sidecar:
    """A process that was started; see the module's rules."""

    def __init__(self, module: str, config: Mapping[str, object], *, hear: Hear | None = None) -> None:
        self._hear = hear
        self._numbers = itertools.count()
        self._asked: dict[int, Future[None]] = {}
        self._lock = threading.Lock()
        self.why = "its process ended"
        """Why it ended, if it says so."""
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
        self.tell(**config)
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        weakref.finalize(self, _end, self._process)

    def tell(self, **message: object) -> None:
        """Say something; one that is gone hears nothing."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._to.write(json.dumps(message) + "\n")
            self._to.flush()

    def ask(self, do: str, what: Sequence[object], *, within_s: float) -> None:
        """Have something done; `SidecarGone` or `TimeoutError` if it was not."""
        self.ready.result(within_s)
        number, answer = next(self._numbers), Future[None]()
        self._asked[number] = answer
        if self.gone.is_set():
            self._fail_all()
        self.tell(ask=number, do=do, what=what)
        try:
            answer.result(within_s)
        finally:
            self._asked.pop(number, None)

    def close(self) -> None:
        """End it."""
        _end(self._process)

    def _listen(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self._heard(json.loads(line))
        self._process.wait()
        self.gone.set()
        self._fail_all()

    def _heard(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"ready": True}:
                self.ready.set_result(None)
            case {"play": key, "run": run, "queue": queue} if self._hear is not None:
                self._hear(key, run, queue)
            case {"answer": number, "error": error} if number in self._asked:
                _settle(self._asked[number], error)
            case {"failed": why}:
                self.why = why

    def _fail_all(self) -> None:
        for future in (self.ready, *list(self._asked.values())):
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


def serve_beside(
    module: str, config: Mapping[str, object], slots: int, play: Play, stopping: threading.Event, *, start_s: float
) -> list[Ticket]:
    """Play what a sidecar takes, until `stopping` is set or it ends; what it took and nobody played comes back."""
    left: list[Ticket] = []
    playing: set[int] = set()

    def begin(key: int, run: str, queue: str) -> None:
        playing.add(key)
        threads.submit(one, key, Ticket(run_id=json.loads(run), queue=queue))

    def one(key: int, ticket: Ticket) -> None:
        left.append(ticket) if stopping.is_set() else play(ticket.run_id)
        playing.discard(key)
        sidecar.tell(played=key)

    with ThreadPoolExecutor(slots, thread_name_prefix="flujo-play") as threads:
        sidecar = Sidecar(module, config, hear=begin)
        try:
            _serve(sidecar, stopping, start_s)
        finally:
            sidecar.tell(stop=True)
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
    """It ends by itself when all that it took was played."""
    late = time.monotonic() + END_S
    while not sidecar.gone.wait(0.05) and time.monotonic() < late:
        late = time.monotonic() + END_S if playing else late
    sidecar.close()
