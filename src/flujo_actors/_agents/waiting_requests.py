"""The requests that wait for room in a quota, on whatever loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class WaitingRequests:
    """Those who wait; each settlement wakes them all."""

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()
        self._lock = threading.Lock()

    def join(self) -> asyncio.Future[None]:
        """Wait with the others; the future is done at the next settlement."""
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            self._futures.add(future)
        return future

    def wake(self) -> None:
        """Let everybody look again."""
        with self._lock:
            futures, self._futures = self._futures, set()
        for future in futures:
            with contextlib.suppress(RuntimeError):  # its loop was closed, and nobody waits there any more
                future.get_loop().call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


waiting = WaitingRequests()
"""All that wait in this process."""
