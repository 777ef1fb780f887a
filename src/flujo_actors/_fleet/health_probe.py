"""Status reports of a worker, for its store and for probes.

`/health` answers 200 while the worker's loop is running. `/ready` answers 200 while it claims runs and its store
answers, and 503 otherwise. A file is the alternative: it exists while the worker lives, and its age shows whether the
loop is running.

Sections:

- Status reports of a worker to the store and to health probes.
- Gauges of a store.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio
from outcome import Error

from .._bridge.user_code_guard import guarded
from .._core.error_info import message_of
from .._core.records.records import WorkerNote
from .._durable.leases import this_process
from .._durable.run_states import StoreGauges, measure
from .._durable.store_executor import call_store
from ..errors import DeclarationError
from ..stores._store_port import Store

if TYPE_CHECKING:
    from .worker_loop import Post, Worker

logger = logging.getLogger("flujo_actors")

FILE_EVERY_S = 1.0
_REQUEST_BYTES = 8_192
_REQUEST_S = 5.0


@attrs.frozen
class HealthPort:
    """HTTP address of the probes."""

    host: str
    port: int

    def address(self, port: int | None) -> str:
        """Return the address that a worker listens on, for its start line."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        here = self.host in ("127.0.0.1", "localhost", "::1")
        outside = f" (this machine only; 0.0.0.0:{port or self.port} for probes from outside)" if here else ""
        return f"health: http://{shown}:{port or self.port}{outside}"


def health_place(given: str | os.PathLike[str] | None) -> HealthPort | Path | None:
    """Return a port (`8080`, `127.0.0.1:8080`) or file path; loopback by default."""
    if given is None:
        return None
    text = os.fspath(given)
    host, _, port = text.rpartition(":")
    if port.isdecimal():
        if len(port) > 5 or int(port) > 65_535:
            raise DeclarationError(f"health must be a port or the path of a file, and there is no port {port}")
        named = "0.0.0.0" if host == "*" else host.strip("[]") or "127.0.0.1"
        return HealthPort(named, int(port))
    if not text:
        raise DeclarationError("health must be a port, as in ':8080', or the path of a file, not an empty text")
    _refuse_other_file(Path(text))
    return Path(text)


def _refuse_other_file(path: Path) -> None:
    """Refuse a file of no worker, which would be deleted."""
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        return
    try:
        written = json.loads(path.read_bytes()[:_REQUEST_BYTES]) if path.is_file() else None
    except (OSError, ValueError):
        written = None
    if not isinstance(written, dict) or not {"state", "ready", "busy", "name"} <= set(written):
        raise DeclarationError(f"health: {path} exists and is no health file of a worker; name a file of its own")


async def show_health(
    worker: Worker, place: HealthPort | Path, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve the worker's health until cancelled."""
    if isinstance(place, Path):
        await _write_file(worker, place, task_status)
    else:
        await _serve_http(worker, place, task_status)


# --- a file -------------------------------------------------------------------------------------------------


async def _write_file(worker: Worker, path: Path, task_status: trio.TaskStatus[None]) -> None:
    try:
        _replace(path, _state_json(worker))
        task_status.started()
        while True:
            await trio.sleep(FILE_EVERY_S)
            _replace(path, _state_json(worker))
    finally:
        _remove(path)


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _state_json(worker: Worker) -> str:
    return json.dumps({"state": worker.state, "ready": worker.is_ready, "busy": len(worker.busy), "name": worker.name})


# --- a port -------------------------------------------------------------------------------------------------


async def _serve_http(worker: Worker, place: HealthPort, task_status: trio.TaskStatus[None]) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            with trio.move_on_after(_REQUEST_S), contextlib.suppress(trio.BrokenResourceError):  # the client may leave
                await stream.send_all(_response(worker, await _requested(stream)))

    listeners = await trio.open_tcp_listeners(place.port, host=place.host)
    worker.health_port = listeners[0].socket.getsockname()[1]
    task_status.started()
    await trio.serve_listeners(answer, listeners)


async def _requested(stream: trio.SocketStream) -> str:
    """Return the requested path."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _REQUEST_BYTES:
        more = await stream.receive_some(_REQUEST_BYTES)
        if not more:
            break
        head += more
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    return words[1].partition("?")[0] if len(words) > 1 and words[0] in ("GET", "HEAD") else ""


def _response(worker: Worker, path: str) -> bytes:
    match path:
        case "/" | "/health" | "/healthz" | "/livez":
            status = "200 OK"
        case "/ready" | "/readyz":
            status = "200 OK" if worker.is_ready else "503 Service Unavailable"
        case _:
            status = "404 Not Found"
    body = _state_json(worker).encode()
    said = (f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
    return "\r\n".join((*said, "", "")).encode() + body


# --- Status reports of a worker to the store and to health probes -------------------------------------------------


SIGN_EVERY_S = 3.0
"""Interval of status reports."""

KNOWN_FOR_S = 5 * SIGN_EVERY_S
"""Time without a report after which a worker counts as gone."""

_SHOWN = 10
"""Number of runs listed per worker."""


class Heartbeat:
    """The signs of life of one worker."""

    def __init__(self, store: Store, post: Post) -> None:
        self._store, self._post = store, post
        self._since = time.time()
        self.every_s = SIGN_EVERY_S
        self.written_at = float("-inf")
        """Monotonic time of the last stored report."""
        self.refused: dict[str, str] = {}
        """Runs left to other workers, with the reason."""

    async def write(self, worker: Worker) -> None:
        """Report to the store."""
        note = WorkerNote(name=worker.name, body=json.dumps(self.facts(worker)))
        await call_store(lambda: self._store.sign_on(note))
        self.written_at = time.monotonic()

    async def erase(self, name: str) -> None:
        """Report the worker's end to the store."""
        await call_store(lambda: self._store.sign_off(name))

    def facts(self, worker: Worker) -> dict[str, object]:
        """Return the worker at a glance, as JSON data."""
        process = this_process()
        return {
            "host": process.host,
            "pid": process.pid,
            "since": self._since,
            "state": worker.state,
            "queues": list(self._post.queues),
            "slots": self._post.slots,
            "busy": len(worker.busy),
            "runs": list(worker.busy[:_SHOWN]),
            "executed": worker.executed,
            "pipeline": self._post.pipeline,
            "fingerprint": self._post.fingerprint,
            "mode": self._post.mode,
            "backend": worker.backend,
            "refused": dict(list(self.refused.items())[-_SHOWN:]),
        }

    @property
    def fresh(self) -> bool:
        """Return whether the store has answered lately."""
        return time.monotonic() - self.written_at < KNOWN_FOR_S


# --- Gauges of a store --------------------------------------------------------------------------------------------


MEASURE_S = 15.0
"""Interval of gauges."""

MEASURING = "metrics"
"""Name of that duty in the store."""


@attrs.frozen(eq=False)
class StoreMeter:
    """Reports the numbers of a store, one worker at a time."""

    store: Store
    report: Callable[[StoreGauges], None]
    owner: str
    redact: Callable[[str], str]

    async def run(self, stop: Callable[[], bool]) -> None:
        """Report at an interval until the worker stops."""
        while not stop():
            got = await guarded(self._measured)
            if isinstance(got, Error):
                logger.debug("the store was not measured: %s", self.redact(message_of(got.error)))
            await trio.sleep(MEASURE_S)

    async def _measured(self) -> None:
        if await call_store(self._has_duty):
            self.report(await call_store(lambda: measure(self.store, within_s=KNOWN_FOR_S)))

    def _has_duty(self) -> bool:
        if not hasattr(self.store, "take_duty"):
            return True
        return self.store.take_duty(MEASURING, owner=self.owner, for_s=1.5 * MEASURE_S)
