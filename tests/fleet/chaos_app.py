"""The application of the chaos test: four steps with effects in a log outside of the database."""

from __future__ import annotations

import os
import time
from typing import Any

import trio

from flujo_actors import Backoff, Flujo, Pipeline, Step

LOG = os.environ.get("FLEET_LOG", "")
STEPS = ("reserve", "charge", "ship", "bill")
AT_MOST = 50
"""More than all processes of a test: the first attempt in each of them fails, and such a run must not end by that."""


def begin(step: str, run: str) -> int:
    """Log an effect in one write; how often this process has logged it."""
    handle = os.open(LOG, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, f"{os.getpid()} {step} {run}\n".encode())
        os.lseek(handle, 0, os.SEEK_SET)
        return os.read(handle, 10_000_000).count(f"{os.getpid()} {step} {run}\n".encode())
    finally:
        os.close(handle)


async def reserve(run: str) -> str:
    begin("reserve", run)
    await trio.sleep(0.05)
    return run


def charge(run: str) -> str:
    begin("charge", run)
    time.sleep(0.05)
    return run


async def ship(run: str) -> str:
    """Fails the first time in each process: its next attempt comes after a wait, in which a process may be frozen."""
    if begin("ship", run) == 1:
        raise ConnectionError("the carrier is busy")
    return run


async def bill(run: str) -> str:
    begin("bill", run)
    return f"billed {run}"


def make(url: str) -> Flujo[Any, Any, Any]:
    retried = Step("ship", ship, max_retries=AT_MOST, backoff=Backoff(first=0.6, ceiling=0.6, jitter=0.0))
    return Flujo(
        Pipeline([Step("reserve", reserve), Step("charge", charge), retried, Step("bill", bill)], name="order"),
        store=url,
        engine="postgres",
        settings={
            "durability": {"lease_s": 1.5},
            "fleet": {"look_s": 0.3, "unclaimed_s": 1.0, "max_deliveries": AT_MOST},
        },
    )


if "FLEET_STORE" in os.environ:
    flujo = make(os.environ["FLEET_STORE"])
