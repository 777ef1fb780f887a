"""An application under a real uvicorn on a free port of this machine, for the length of a `with` block."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def served(app: Any, *, loop: str = "asyncio") -> Iterator[str]:
    """The address of the application; leaving the block stops the server and waits for its thread."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, log_level="warning", ws="none", loop=loop, timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="uvicorn")
        thread.start()
        try:
            _wait_until_started(server, thread)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=120)
        assert not thread.is_alive(), "the server did not stop"


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + 120
    while not server.started:
        assert thread.is_alive(), "the server died while starting"
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.005)
