"""The page under a server of its own (uvicorn)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from ..errors import DeclarationError


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens; `DeclarationError` if the port is taken or the host is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        opened = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise DeclarationError(f"cannot listen on {host}:{port}: {error}") from error
    with opened:
        yield opened


def serve(app: Starlette, listener: socket.socket) -> int:
    """Serve until a signal says stop, then let open streams end."""
    config = uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])
    return 0
