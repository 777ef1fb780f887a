"""A desk's side of the conversation with the driver: JSON lines, one request at a time, all in one event loop.

1. A desk first says what it is: `{"versions": {"openai": "3.49.0"}, "works": ["memory", "sqlite"]}`; its works are the
   stores that it has.
2. Then it answers: `{"store": "sqlite", "watched": true, "at_once": 25, "tickets": 50}` ->
   `{"cpu": 1.2, "wall": 1.3, "latencies": […], "pieces": 6100}`, or `{"error": "…"}`. Seconds, and for all tickets.
3. CPU is that of this process with all its threads; a database server is not in it.
4. A store is opened when it is first asked for, and stays open: a service does not open its database for each ticket.
5. A ticket that was not answered with the reply, or watched without seeing it grow, is an error, not a sample.

Only the standard library and `benchmarks.service.support`: every environment has those.
"""

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import IO, Any, Protocol

from benchmarks.protocol import package_versions
from benchmarks.service.support import REPLY


class Desk(Protocol):
    """A support desk on some store."""

    async def awaited(self, number: int) -> str:
        """Answer this ticket; what was sent comes back."""

    async def watched(self, number: int) -> tuple[str, int]:
        """The same with somebody watching; also, how many pieces of what models said were seen on the way."""


Open = Callable[[str], AbstractAsyncContextManager[Desk]]
"""Opens a desk on the store of this URL or path (empty for memory)."""


def serve(desks: Mapping[str, Open], packages: Iterable[str]) -> None:
    """Answer the driver's requests until it hangs up; the command line says where stores are: `sqlite=… postgres=…`."""
    places = dict(argument.split("=", 1) for argument in sys.argv[1:])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print stays out of the conversation
    works = [store for store in desks if store == "memory" or store in places]
    print(json.dumps({"versions": package_versions(packages), "works": works}), file=answers, flush=True)
    asyncio.run(_serve(desks, places, answers))


async def _serve(desks: Mapping[str, Open], places: Mapping[str, str], answers: IO[str]) -> None:
    opened: dict[str, Desk] = {}
    async with AsyncExitStack() as stack:
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            store = request.pop("store")
            try:
                if store not in opened:
                    opened[store] = await stack.enter_async_context(desks[store](places.get(store, "")))
                said = await play(opened[store], **request)
            except Exception as error:  # whatever a desk dies of belongs in the table, not in a traceback
                said = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(said), file=answers, flush=True)


async def play(desk: Desk, *, watched: bool, at_once: int, tickets: int) -> dict[str, Any]:
    """Answer so many tickets, so many at a time."""
    latencies: list[float] = []
    limit, pieces = asyncio.Semaphore(at_once), 0

    async def one(number: int) -> None:
        nonlocal pieces
        async with limit:
            begun = time.perf_counter()
            seen = await _answered(desk, number, watched)
            pieces += seen
            latencies.append(time.perf_counter() - begun)

    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(tickets)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu": cpu, "wall": wall, "latencies": latencies, "pieces": pieces}


async def _answered(desk: Desk, number: int, watched: bool) -> int:
    sent, pieces = await desk.watched(number) if watched else (await desk.awaited(number), 0)
    if sent != REPLY or (watched and pieces < len(REPLY.split())):
        raise RuntimeError(f"ticket {number} was answered with {sent!r} in {pieces} pieces")
    return pieces
