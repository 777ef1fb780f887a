"""The application of the tests of keys: one step that logs its beginning and its end."""

from __future__ import annotations

import os
from typing import Any

import trio

from flujo_actors import Flujo, Pipeline, Step

LOG = os.environ.get("FLEET_LOG", "")


def log(event: str, name: str) -> None:
    with open(LOG, "a") as file:
        file.write(f"{event} {os.getpid()} {name}\n")


async def work(name: str) -> str:
    log("begin", name)
    await trio.sleep(0.05)
    log("end", name)
    return name


def make(url: str, engine: str | None) -> Flujo[Any, Any, Any]:
    settings = {"durability": {"lease_s": 60.0}, "fleet": {"look_s": 0.2, "poll_s": 0.1, "max_deliveries": 50}}
    return Flujo(Pipeline([Step("work", work)], name="keys"), store=url, engine=engine, settings=settings)


if "FLEET_STORE" in os.environ:
    flujo = make(os.environ["FLEET_STORE"], os.environ.get("KEY_ENGINE"))
