"""A proxy before Postgres that cuts the connection at a commit, before or after the server has seen it."""

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
        self._ends: list[socket.socket] = []
        self._cut: When | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / SOCKET))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, when: When) -> None:
        self._cut = when

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for end in (self._listener, *self._ends):
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._ends += [client, server]
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=_replies, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        while data := _receive(client):
            if self._cut is not None and b"COMMIT" in data:
                when, self._cut = self._cut, None
                self.cuts += 1
                # Nothing more reaches the client, whatever the server says.
                client.shutdown(socket.SHUT_RDWR)
                if when == "unnoticed":
                    return
                if when == "after":
                    server.sendall(data)
                    server.recv(1)
                break
            server.sendall(data)
        server.shutdown(socket.SHUT_RDWR)


def _replies(client: socket.socket, server: socket.socket) -> None:
    while data := _receive(server):
        try:
            client.sendall(data)
        except OSError:
            return
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(65536)
    except OSError:
        return b""
