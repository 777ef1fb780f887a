"""What a worker says of itself: to the store, for whoever asks who is there, and to whoever watches its health."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from .._core.records import WorkerNote
from .._durable.processes import this_process
from .._durable.store_wait import call_store
from ..stores._port import Store

if TYPE_CHECKING:
    from .worker import Post, Worker

SIGN_EVERY_S = 3.0
"""How often a worker says that it is there."""

KNOWN_FOR_S = 5 * SIGN_EVERY_S
"""How long a worker is taken for alive that says nothing."""

_SHOWN = 10
"""How many of a worker's runs are told by name."""


class Signs:
    """The signs of life of one worker."""

    def __init__(self, store: Store, post: Post) -> None:
        self._store, self._post = store, post
        self._since = time.time()
        self.every_s = SIGN_EVERY_S
        self.written_at = float("-inf")
        """When the store last took one, on the monotonic clock."""
        self.refused: dict[str, str] = {}
        """The runs that were left to others, and why."""

    async def write(self, worker: Worker) -> None:
        """Tell the store."""
        note = WorkerNote(name=worker.name, body=json.dumps(self.facts(worker)))
        await call_store(lambda: self._store.sign_on(note))
        self.written_at = time.monotonic()

    async def erase(self, name: str) -> None:
        """Tell the store that the worker is gone."""
        await call_store(lambda: self._store.sign_off(name))

    def facts(self, worker: Worker) -> dict[str, object]:
        """The worker at a glance, as JSON data."""
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
            "played": worker.played,
            "pipeline": self._post.pipeline,
            "fingerprint": self._post.fingerprint,
            "refused": dict(list(self.refused.items())[-_SHOWN:]),
        }

    @property
    def fresh(self) -> bool:
        """Whether the store has answered lately."""
        return time.monotonic() - self.written_at < KNOWN_FOR_S
