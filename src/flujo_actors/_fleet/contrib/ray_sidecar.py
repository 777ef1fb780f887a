"""Sidecar process of Ray; run by `python -m`. See `sidecar_process`.

Tickets are queued in one named actor of the cluster, which outlives its creator. Ray restarts it empty if its node
dies; lost tickets are requested again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import itertools
import logging
import os
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported

import ray
from outcome import Error, capture

from flujo_actors._fleet.sidecar_process import SidecarHost

NAMESPACE = "flujo-actors"
POLL_S = 5.0
"""Poll timeout of a worker at the ticket queue."""

ANSWER_S = 10.0
"""Timeout of the ticket queue's answer."""


_LIGHT: Any = {"num_cpus": 0, "max_restarts": -1, "max_concurrency": 1000}
"""Actor options: no core, automatic restart, and room for many waiting workers."""


class TicketQueueActor:
    """Ticket queue of unique runs as a Ray actor, pickled by value."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[str]] = {}
        self._heaps: dict[str, list[tuple[int, int, str]]] = {}
        self._later: list[tuple[float, int, str, str, int]] = []
        self._numbers = itertools.count()
        self._changed = asyncio.Event()
        self._leaving: set[str] = set()

    async def put(self, tickets: Sequence[tuple[str, str, int, float | None]]) -> None:
        """Have these runs wait in their queues, unless they do."""
        for run, queue, priority, at in tickets:
            if run not in self._waiting.setdefault(queue, set()):
                self._waiting[queue].add(run)
                heapq.heappush(self._later, (at or 0.0, next(self._numbers), queue, run, priority))
        self._notify()

    async def drop(self, runs: Sequence[str]) -> None:
        """Forget these runs."""
        for waiting in self._waiting.values():
            waiting.difference_update(runs)

    async def take(self, worker: str, queues: Sequence[str], most: int, wait_s: float) -> list[tuple[str, str]]:
        """Return available runs with queues; nothing after the timeout."""
        late = time.monotonic() + wait_s
        while not (taken := self._due(queues, most)) and time.monotonic() < late and worker not in self._leaving:
            await self._change(late)
        self._leaving.discard(worker)
        return taken

    async def leave(self, worker: str) -> None:
        """Cancel the wait of a worker."""
        self._leaving.add(worker)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, late: float) -> None:
        seconds = late - time.monotonic()
        if self._later:
            seconds = min(seconds, self._later[0][0] - time.time())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), max(0.0, seconds))

    def _due(self, queues: Sequence[str], most: int) -> list[tuple[str, str]]:
        while self._later and self._later[0][0] <= time.time():
            _, number, queue, run, priority = heapq.heappop(self._later)
            heapq.heappush(self._heaps.setdefault(queue, []), (-priority, number, run))
        taken: list[tuple[str, str]] = []
        for queue in queues:
            heap, waiting = self._heaps.get(queue, []), self._waiting.get(queue, set())
            while heap and len(taken) < most:
                run = heapq.heappop(heap)[2]
                if run in waiting:
                    waiting.remove(run)
                    taken.append((run, queue))
        return taken


def main() -> None:
    host = SidecarHost()
    got = capture(_connected, host.config["address"])
    if isinstance(got, Error):
        host.failed(got.error)
    queue_actor = got.unwrap()
    host.begin(functools.partial(_call_actor, queue_actor))
    if "slots" in host.config:
        served = capture(_serve, host, queue_actor)
        if isinstance(served, Error):
            host.failed(served.error)
        os._exit(0)
    while True:
        time.sleep(LOOK_S)
        looked = capture(_call_actor, queue_actor, "put", [])
        if isinstance(looked, Error):
            host.failed(looked.error)  # the next request starts another one


LOOK_S = 10.0
"""Interval of queue checks; Ray itself retries a replaced head."""


def _connected(address: str) -> Any:
    """Return the queue actor of the cluster at that address."""
    ray.init(address=address, namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=False)
    queue_actor: Any = (
        ray.remote(TicketQueueActor).options(name="desk", lifetime="detached", get_if_exists=True, **_LIGHT).remote()
    )
    _call_actor(queue_actor, "put", [])
    return queue_actor


def _call_actor(queue_actor: Any, do: str, arguments: Sequence[Any]) -> None:
    ray.get(getattr(queue_actor, do).remote(arguments), timeout=ANSWER_S)


def _serve(host: SidecarHost, queue_actor: Any) -> None:
    """Claim tickets for free slots, repeatedly; execute all claimed ones."""
    queues, slots, me = host.config["queues"], host.config["slots"], uuid.uuid4().hex
    changed = threading.Semaphore(0)
    threading.Thread(target=_stop_waiting, args=(host, queue_actor, me, changed), daemon=True).start()
    while not host.stopping.is_set():
        free = slots - host.playing()
        if not free:
            changed.acquire()
            continue
        for run, queue in ray.get(queue_actor.take.remote(me, queues, free, POLL_S), timeout=POLL_S + ANSWER_S):
            host.play(run, queue, changed.release)
    while host.playing():
        changed.acquire()


def _stop_waiting(host: SidecarHost, queue_actor: Any, me: str, changed: threading.Semaphore) -> None:
    host.stopping.wait()
    changed.release()
    queue_actor.leave.remote(me)


if __name__ == "__main__":
    main()
