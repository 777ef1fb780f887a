"""A proxy before Postgres that cuts the connection at a commit, before or after the server has done it.

It can also fall silent: connections stay open, and nothing passes until it speaks again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

When = Literal["before", "unnoticed", "after"]
"""Before the server has seen the commit (and it may not notice the loss either), or after it has done it."""

SOCKET = ".s.PGSQL.5432"


class CuttingProxy:
    """Passes bytes between clients and the server; the next commit after `cut()` loses its connection."""

    def __init__(self, url: str, directory: Path) -> None:
        server = parse_qs(urlsplit(url).query)["host"][0]
        self._server = str(Path(server) / SOCKET)
        self.url = url.replace(f"host={server}", f"host={directory}")
        self.cuts = 0
        self._cut: When | None = None
        self.speaks = threading.Event()
        self.speaks.set()
        self._links: list[_Link] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / SOCKET))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, when: When) -> None:
        self._cut = when

    def take_cut(self) -> When | None:
        """What to do with the commit that has just come."""
        when, self._cut = self._cut, None
        self.cuts += when is not None
        return when

    def close(self) -> None:
        self.speaks.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links:
            link.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._links.append(_Link(self, client, server))


class _Link:
    """One connection through the proxy, with a thread for each direction."""

    def __init__(self, proxy: CuttingProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._muted, self._answered = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._requests, self._replies)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for end in (self._client, self._server):
            _hang_up(end)
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._server.close()

    def _requests(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(65536):
                self._proxy.speaks.wait()
                when = self._proxy.take_cut() if b"COMMIT" in data else None
                if when is not None:
                    self._lose(when, data)
                    return
                self._server.sendall(data)
            _hang_up(self._server)

    def _replies(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(65536):
                self._proxy.speaks.wait()
                if not self._muted.is_set():
                    self._client.sendall(data)
                elif b"COMMIT\0" in data:
                    self._answered.set()
            _hang_up(self._client)

    def _lose(self, when: When, data: bytes) -> None:
        self._muted.set()
        if when == "after":
            self._server.sendall(data)
            self._pass_on_until_answered()
        if when != "unnoticed":
            _hang_up(self._server)
        _hang_up(self._client)

    def _pass_on_until_answered(self) -> None:
        """The commit may come in several pieces."""
        self._client.settimeout(0.01)
        while not self._answered.is_set():
            with contextlib.suppress(TimeoutError):
                self._server.sendall(self._client.recv(65536))


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
