"""Provider stub on loopback: real sockets and formats, scripted answers.

1. The stub's event loop runs in its own thread, so clients on any loop, or on none, can use it.
2. The script is called on that thread, one request at a time, in order of arrival: it needs no lock, and must
   not block.
3. A request is open from its arrival until the last byte of its answer is written. If the client leaves in
   between, that is a hangup, and the answer ends there.
4. Leaving the `with` block ends every connection and the thread. Errors of the script are raised there,
   unless the block failed by itself: then they are notes on that failure.

Sections:

- Minimal HTTP/1.1 server for a provider's client: keep-alive, lengths, chunked bodies.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Self, TypeAlias

import attrs

from ._openai_chat import error
from ._reply_types import HttpRequest, Reply, ServerError
from ._responses import FORMATS, Format, NoResponse, Plan, ResponsePlan, plan, refuse

# --- Minimal HTTP/1.1 server for a provider's client --------------------------------------------------------------
# A connection belongs to one task. When the client closes its side, the task is cancelled, wherever it is: between
# two
# requests, or in the middle of an abandoned response.


Serve: TypeAlias = Callable[["HttpConnection", asyncio.StreamReader], Coroutine[object, object, None]]
"""Serves one connection until it is done or cancelled."""

Ended: TypeAlias = Callable[["HttpConnection", asyncio.Task[None]], None]
"""Callback for a connection whose task has ended."""


@attrs.frozen(kw_only=True)
class Received:
    """A request as it came over the socket; header names are lower-case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class HttpConnection(asyncio.StreamReaderProtocol):
    """Accepted connection and its task; `ended` is called finally."""

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
        """Close the connection at once and cancel its task, if any."""
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
    """Return the next request, or None after a close."""
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


async def send(sending: ResponsePlan, writer: asyncio.StreamWriter) -> None:
    """Write the response; it is complete once its last bytes are written."""
    writer.write(_response_head(sending))
    for number, part in enumerate(_framed(sending)):
        if number:
            await writer.drain()
            await asyncio.sleep(sending.pause_s)
        writer.write(part)


def _framed(sending: ResponsePlan) -> tuple[bytes, ...]:
    if sending.length is not None:
        return sending.pieces
    chunks = tuple(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in sending.pieces)
    if sending.cut_off:
        return chunks
    # In one write with the last event: a client may leave as soon as it has seen that.
    return (*chunks[:-1], b"".join(chunks[-1:]) + b"0\r\n\r\n")


def _response_head(sending: ResponsePlan) -> bytes:
    framing = ("transfer-encoding", "chunked") if sending.length is None else ("content-length", str(sending.length))
    lines = [f"{name}: {value}" for name, value in (*sending.headers, framing)]
    status = f"HTTP/1.1 {sending.status} {_reason(sending.status)}"
    return "\r\n".join([status, *lines, "", ""]).encode("latin-1")


def _reason(status: int) -> str:
    known = {entry.value: entry.phrase for entry in HTTPStatus}
    return known.get(status, "Unknown")


# --- Provider stub on the loopback interface ----------------------------------------------------------------------


Script: TypeAlias = Sequence[Reply] | Callable[[HttpRequest], Reply]
"""Replies in request order, or a function that answers each request."""

_BACKLOG = 512


@attrs.frozen
class _InOrder:
    replies: tuple[Reply, ...]

    def __call__(self, request: HttpRequest) -> Reply:
        if request.index < len(self.replies):
            return self.replies[request.index]
        have = len(self.replies)
        return ServerError(400, message=f"the script has {have} replies, this is request {request.index + 1}")


class ProviderStub:
    """Local server for OpenAI and Anthropic clients; a context manager.

    Args:
        script: replies in order, or a function of the request that returns one.

    Example:
        ```python
        with ProviderStub([TextReply("Hello")]) as stub:
            assert stub.openai_url.startswith("http://127.0.0.1:")
        ```
    """

    def __init__(self, script: Script) -> None:
        self._script = script if callable(script) else _InOrder(tuple(script))
        self._changed = threading.Condition()
        self._requests: list[HttpRequest] = []
        self._hangups: list[HttpRequest] = []
        self._failures: list[BaseException] = []
        self._accepted = 0
        self._open = 0
        self._connections: set[HttpConnection] = set()
        self._closing = False

    def __enter__(self) -> Self:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._port = int(self._socket.getsockname()[1])
        # Not the host's policy: the stub behaves the same next to uvloop or trio.
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._loop = self._runner.get_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"provider-stub-{self._port}", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        for raised in self._failures:
            if failure is None:
                raise raised
            failure.add_note(f"the stub's script raised {type(raised).__name__}: {raised}")

    @property
    def openai_url(self) -> str:
        """Return the `base_url` for an OpenAI client."""
        return f"{self.anthropic_url}/v1"

    @property
    def anthropic_url(self) -> str:
        """Return the `base_url` for an Anthropic client."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def requests(self) -> tuple[HttpRequest, ...]:
        """Return all requests so far, in order of arrival."""
        return tuple(self._requests)

    @property
    def hangups(self) -> tuple[HttpRequest, ...]:
        """Return the requests whose client left before the answer was complete."""
        return tuple(self._hangups)

    @property
    def connections(self) -> int:
        """Return the number of connections clients have opened, over all."""
        return self._accepted

    @property
    def open_requests(self) -> int:
        """Return the number of requests are being answered now."""
        return self._open

    def wait_until(self, condition: Callable[[ProviderStub], object], timeout_s: float = 5.0) -> None:
        """Block until the condition holds, like `lambda stub: stub.hangups`.

        Async code calls it in a thread.

        Args:
            condition: function of the stub.
            timeout_s: longest wait.

        Raises:
            TimeoutError: the condition did not hold in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: bool(condition(self)), timeout_s):
                raise TimeoutError(f"not so after {timeout_s} s; {self!r}")

    def __repr__(self) -> str:
        seen = f"{len(self._requests)} requests, {self._open} open, {len(self._hangups)} hung up"
        return f"<ProviderStub {seen}, {self._accepted} connections>"

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._listen())

    async def _listen(self) -> None:
        server = await self._loop.create_server(self._accept, sock=self._socket, backlog=_BACKLOG)
        await self._stop.wait()
        self._closing = True
        # A server closed while it accepts loses the connection, so it stays open until all have ended.
        self._loop.remove_reader(self._socket)
        await self._end_connections()
        server.close()

    async def _end_connections(self) -> None:
        # In rounds of the loop: a connection accepted a moment ago is unknown, or has no task, until the next.
        await asyncio.sleep(0)
        while self._connections:
            for connection in tuple(self._connections):
                connection.end()
            await asyncio.sleep(0)
        # And one more round, in which the sockets of aborted connections are really closed.
        await asyncio.sleep(0)

    def _accept(self) -> HttpConnection:
        connection = HttpConnection(self._serve, self._ended, self._loop)
        self._connections.add(connection)
        return connection

    def _ended(self, connection: HttpConnection, task: asyncio.Task[None]) -> None:
        connection.writer.close()
        self._connections.discard(connection)
        if not task.cancelled() and (raised := task.exception()) is not None:
            self._failures.append(raised)

    async def _serve(self, connection: HttpConnection, reader: asyncio.StreamReader) -> None:
        self._accepted += 1
        with suppress(ConnectionError):
            while (received := await receive(reader)) is not None:
                if not await self._answer(received, connection.writer):
                    return

    async def _answer(self, received: Received, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; True if the connection stays open."""
        spoken = FORMATS.get(received.path)
        if spoken is None or received.method != "POST":
            await send(refuse(error(404, f"no {received.method} {received.path} here", None), 404), writer)
            return True
        request = self._record(received, spoken)
        return await self._settle(request, plan(self._script(request), request, spoken), writer)

    def _record(self, received: Received, spoken: Format) -> HttpRequest:
        with self._changed:
            request = _read(received, spoken, index=len(self._requests))
            self._requests.append(request)
            self._changed.notify_all()
        return request

    async def _settle(self, request: HttpRequest, decided: Plan, writer: asyncio.StreamWriter) -> bool:
        self._open_request()
        complete = False
        try:
            keep_open = await _carry_out(decided, request, writer)
            complete = True
        finally:
            self._close_request(request, hung_up=not complete and not self._closing)
        return keep_open

    def _open_request(self) -> None:
        with self._changed:
            self._open += 1
            self._changed.notify_all()

    def _close_request(self, request: HttpRequest, *, hung_up: bool) -> None:
        with self._changed:
            self._open -= 1
            if hung_up:
                self._hangups.append(request)
            self._changed.notify_all()


async def _carry_out(decided: Plan, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
    if isinstance(decided, NoResponse):
        await asyncio.Event().wait()
        return False
    await send(decided, writer)
    return not decided.cut_off and request.headers.get("connection") != "close"


def _read(received: Received, spoken: Format, *, index: int) -> HttpRequest:
    body = json.loads(received.body)
    asked = spoken.read(body)
    return HttpRequest(
        index=index,
        dialect=spoken.dialect,
        model=body["model"],
        messages=asked.messages,
        tools=asked.tools,
        stream=bool(body.get("stream")),
        response_format=asked.response_format,
        body=body,
        headers=received.headers,
    )
