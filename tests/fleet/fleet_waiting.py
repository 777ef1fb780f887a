"""Waiting for what workers do, for as long as a slow machine may take and no longer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import trio

from flujo_actors import RunClient, RunInfo

T = TypeVar("T")

PATIENCE_S = 120.0


def until(look: Callable[[], T], seconds: float = PATIENCE_S) -> T:
    """What `look` returns when it is true; looks again and again."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)
    return found


def until_while_it_moves(look: Callable[[], T], moved: Callable[[], object], seconds: float = PATIENCE_S) -> T:
    """The true result of `look`; waits for as long as what `moved` returns changes now and then."""
    seen, since = moved(), time.monotonic()
    while not (found := look()):
        now = moved()
        seen, since = now, since if now == seen else time.monotonic()
        assert time.monotonic() < since + seconds, f"nothing has moved for {seconds:g} s: {now}"
        time.sleep(0.05)
    return found


@contextlib.asynccontextmanager
async def while_it_moves(look: Callable[[], object], seconds: float = PATIENCE_S) -> AsyncIterator[None]:
    """Leaves the block its time, for as long as what `look` sees changes now and then."""

    async def watch() -> None:
        seen, since = await trio.to_thread.run_sync(look), time.monotonic()
        while time.monotonic() < since + seconds:
            await trio.sleep(1.0)
            now = await trio.to_thread.run_sync(look)
            seen, since = now, since if now == seen else time.monotonic()
        raise AssertionError(f"nothing has moved for {seconds:g} s")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield
        nursery.cancel_scope.cancel()


def ended(client: RunClient, run_id: str, seconds: float = PATIENCE_S) -> RunInfo:
    """The run, when it has come to rest."""

    def look() -> RunInfo | None:
        info = client.get(run_id)
        return info if info.status not in ("running",) else None

    return until(look, seconds)
