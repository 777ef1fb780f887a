"""As much HTTP/1.1 as a provider's client needs: keep-alive, lengths, and bodies in chunks.

A connection belongs to one task. When the client closes its side, the task is cancelled, wherever it is:
between two requests, or in the middle of an answer that nobody will read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

import attrs

from ._sending import Sending

Serve: TypeAlias = Callable[["Connection", asyncio.StreamReader], Coroutine[object, object, None]]
"""Serves one connection until it is done or cancelled."""

Ended: TypeAlias = Callable[["Connection", asyncio.Task[None]], None]
"""Hears of a connection whose task is over."""


@attrs.frozen(kw_only=True)
class Received:
    """A request as it came over the socket; header names are lower-case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Connection(asyncio.StreamReaderProtocol):
    """One accepted connection and the task that serves it; `ended` is told when the task is over."""

    task: asyncio.Task[None] | None = None
    writer: asyncio.StreamWriter

    def __init__(self, serve: Serve, ended: Ended, loop: asyncio.AbstractEventLoop) -> None:
        def opened(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writer = writer
            # Without this, small writes wait for the client's delayed acknowledgment: 40 ms per answer.
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.task = loop.create_task(serve(self, reader))
            self.task.add_done_callback(partial(ended, self))

        super().__init__(asyncio.StreamReader(loop=loop), opened, loop=loop)

    def end(self) -> None:
        """Close the connection at once and end its task, if it has one yet."""
        if self.task is not None:
            self.writer.transport.abort()
            self._leave()

    def eof_received(self) -> bool:
        """End the task: the client has hung up."""
        self._leave()
        return bool(super().eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        """End the task: the connection broke."""
        self._leave()
        super().connection_lost(exc)

    def _leave(self) -> None:
        if self.task is not None:
            self.task.cancel()


async def receive(reader: asyncio.StreamReader) -> Received | None:
    """The next request, or None when the client has closed the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, headers = _head(head)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except asyncio.IncompleteReadError:
        return None
    return Received(method=method, path=path, headers=headers, body=body)


def _head(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    method, target, _version = first.split(" ")
    fields = (line.partition(":") for line in lines)
    return method, target.partition("?")[0], {name.lower(): value.strip() for name, _, value in fields}


async def send(sending: Sending, writer: asyncio.StreamWriter) -> None:
    """Write the response. With the last bytes written, not waited for, the answer is complete."""
    writer.write(_response_head(sending))
    for number, part in enumerate(_framed(sending)):
        if number:
            await writer.drain()
            await asyncio.sleep(sending.pause_s)
        writer.write(part)


def _framed(sending: Sending) -> tuple[bytes, ...]:
    if sending.length is not None:
        return sending.pieces
    chunks = tuple(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in sending.pieces)
    if sending.cut_off:
        return chunks
    # In one write with the last event: a client may leave as soon as it has seen that.
    return (*chunks[:-1], b"".join(chunks[-1:]) + b"0\r\n\r\n")


def _response_head(sending: Sending) -> bytes:
    framing = ("transfer-encoding", "chunked") if sending.length is None else ("content-length", str(sending.length))
    lines = [f"{name}: {value}" for name, value in (*sending.headers, framing)]
    status = f"HTTP/1.1 {sending.status} {_reason(sending.status)}"
    return "\r\n".join([status, *lines, "", ""]).encode("latin-1")


def _reason(status: int) -> str:
    known = {entry.value: entry.phrase for entry in HTTPStatus}
    return known.get(status, "Unknown")
