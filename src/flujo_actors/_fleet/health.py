"""The health of a worker, for whoever restarts it and sends it work (liveness and readiness probes).

`/health` answers 200 for as long as the worker's loop goes round. `/ready` answers 200 while it takes runs and its
store answers, and 503 otherwise. A file says the same: it is there while the worker lives, and its age says whether the
loop goes round.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from ..errors import DeclarationError

if TYPE_CHECKING:
    from .worker import Worker

FILE_EVERY_S = 1.0
_REQUEST_BYTES = 8_192
_REQUEST_S = 5.0


@attrs.frozen
class HealthPort:
    """Where health is asked for over HTTP."""

    host: str
    port: int


def health_place(given: str | os.PathLike[str] | None) -> HealthPort | Path | None:
    """A port (`8080`, `:8080`, `127.0.0.1:8080`), or the path of a file; only this machine is told by default."""
    if given is None:
        return None
    text = os.fspath(given)
    host, _, port = text.rpartition(":")
    if port.isdecimal():
        if int(port) > 65_535:
            raise DeclarationError(f"health must be a port or the path of a file, and there is no port {port}")
        return HealthPort(host.strip("[]") or "127.0.0.1", int(port))
    if not text:
        raise DeclarationError("health must be a port, as in ':8080', or the path of a file, not an empty text")
    return Path(text)


async def show_health(
    worker: Worker, place: HealthPort | Path, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Tell of the worker's health until cancelled."""
    if isinstance(place, Path):
        await _write_file(worker, place, task_status)
    else:
        await _serve_http(worker, place, task_status)


# --- a file -------------------------------------------------------------------------------------------------


async def _write_file(worker: Worker, path: Path, task_status: trio.TaskStatus[None]) -> None:
    try:
        _replace(path, _told(worker))
        task_status.started()
        while True:
            await trio.sleep(FILE_EVERY_S)
            _replace(path, _told(worker))
    finally:
        _remove(path)


def _replace(path: Path, text: str) -> None:
    """Nobody reads half of it."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _told(worker: Worker) -> str:
    return json.dumps({"state": worker.state, "ready": worker.is_ready, "busy": len(worker.busy), "name": worker.name})


# --- a port -------------------------------------------------------------------------------------------------


async def _serve_http(worker: Worker, place: HealthPort, task_status: trio.TaskStatus[None]) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            with trio.move_on_after(_REQUEST_S), contextlib.suppress(trio.BrokenResourceError):  # who asked may leave
                await stream.send_all(_response(worker, await _requested(stream)))

    listeners = await trio.open_tcp_listeners(place.port, host=place.host)
    worker.health_port = listeners[0].socket.getsockname()[1]
    task_status.started()
    await trio.serve_listeners(answer, listeners)


async def _requested(stream: trio.SocketStream) -> str:
    """The path that is asked for."""
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
    body = _told(worker).encode()
    said = (f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
    return "\r\n".join((*said, "", "")).encode() + body
