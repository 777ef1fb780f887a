"""A provider on the loopback interface: real sockets, real wire formats, scripted answers.

1. The stub's event loop runs in a thread of its own, so that clients on any loop, or on none, can talk to it.
2. The script is asked on that thread, one request at a time, in order of arrival: it needs no lock, and must
   not block.
3. A request is open from its arrival until the last byte of its answer is written. If the client leaves in
   between, that is a hangup, and the answer ends there.
4. Leaving the `with` block ends every connection and the thread. What the script raised is raised there,
   unless the block failed by itself: then it is a note on that failure.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeAlias

import attrs

from ._http import Connection, Received, receive, send
from ._openai_chat import error
from ._replies import Reply, ServerError
from ._requests import Request
from ._sending import FORMATS, Format, Plan, Silence, plan, refuse

Script: TypeAlias = Sequence[Reply] | Callable[[Request], Reply]
"""Replies in the order of the requests, or a function that answers each request."""

_BACKLOG = 512


@attrs.frozen
class _InOrder:
    replies: tuple[Reply, ...]

    def __call__(self, request: Request) -> Reply:
        if request.index < len(self.replies):
            return self.replies[request.index]
        have = len(self.replies)
        return ServerError(400, message=f"the script has {have} replies, this is request {request.index + 1}")


class ProviderStub:
    """A server for OpenAI and Anthropic clients: `with ProviderStub([Text("Hello")]) as stub: ...`."""

    def __init__(self, script: Script) -> None:
        self._script = script if callable(script) else _InOrder(tuple(script))
        self._changed = threading.Condition()
        self._requests: list[Request] = []
        self._hangups: list[Request] = []
        self._failures: list[BaseException] = []
        self._accepted = 0
        self._open = 0
        self._connections: set[Connection] = set()
        self._closing = False

    def __enter__(self) -> Self:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._port = int(self._socket.getsockname()[1])
        # Not the host's policy: the stub behaves the same beside uvloop or trio.
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
        """The `base_url` for an OpenAI client."""
        return f"{self.anthropic_url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The `base_url` for an Anthropic client."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def requests(self) -> tuple[Request, ...]:
        """All requests so far, in order of arrival."""
        return tuple(self._requests)

    @property
    def hangups(self) -> tuple[Request, ...]:
        """The requests whose client left before the answer was complete."""
        return tuple(self._hangups)

    @property
    def connections(self) -> int:
        """How many connections clients have opened, over all."""
        return self._accepted

    @property
    def open_requests(self) -> int:
        """How many requests are being answered now."""
        return self._open

    def wait_until(self, condition: Callable[[ProviderStub], object], timeout_s: float = 5.0) -> None:
        """Block until the condition holds, like `lambda stub: stub.hangups`; async code asks in a thread."""
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
        # A server closed while it accepts loses the connection, so it is left in peace until all have ended.
        self._loop.remove_reader(self._socket)
        await self._end_connections()
        server.close()

    async def _end_connections(self) -> None:
        # In rounds of the loop: a connection accepted a moment ago is not known, or has no task, until the next.
        await asyncio.sleep(0)
        while self._connections:
            for connection in tuple(self._connections):
                connection.end()
            await asyncio.sleep(0)
        # And one more, in which the sockets of aborted connections are really closed.
        await asyncio.sleep(0)

    def _accept(self) -> Connection:
        connection = Connection(self._serve, self._ended, self._loop)
        self._connections.add(connection)
        return connection

    def _ended(self, connection: Connection, task: asyncio.Task[None]) -> None:
        connection.writer.close()
        self._connections.discard(connection)
        if not task.cancelled() and (raised := task.exception()) is not None:
            self._failures.append(raised)

    async def _serve(self, connection: Connection, reader: asyncio.StreamReader) -> None:
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

    def _record(self, received: Received, spoken: Format) -> Request:
        with self._changed:
            request = _read(received, spoken, index=len(self._requests))
            self._requests.append(request)
            self._changed.notify_all()
        return request

    async def _settle(self, request: Request, decided: Plan, writer: asyncio.StreamWriter) -> bool:
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

    def _close_request(self, request: Request, *, hung_up: bool) -> None:
        with self._changed:
            self._open -= 1
            if hung_up:
                self._hangups.append(request)
            self._changed.notify_all()


async def _carry_out(decided: Plan, request: Request, writer: asyncio.StreamWriter) -> bool:
    if isinstance(decided, Silence):
        await asyncio.Event().wait()
        return False
    await send(decided, writer)
    return not decided.cut_off and request.headers.get("connection") != "close"


def _read(received: Received, spoken: Format, *, index: int) -> Request:
    body = json.loads(received.body)
    asked = spoken.read(body)
    return Request(
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
