"""What the workers of the tests play: an application as users write one, configured by its environment."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import trio

from flujo_actors import Flujo, Pipeline, Step

LOG = os.environ.get("FLEET_LOG", "")
LEASE_S = float(os.environ.get("FLEET_LEASE_S", "60"))
"""Longer than a slow machine takes for anything. Dead owners of this machine are found without it."""


def log(*words: object) -> None:
    with open(LOG, "a") as file:
        file.write(" ".join((str(os.getpid()), *map(str, words))) + "\n")


def history() -> list[list[str]]:
    with open(LOG) as file:
        return [line.split() for line in file.read().splitlines()]


async def first(data: Any) -> Any:
    log("first", data["name"])
    return data


async def second(data: Any) -> Any:
    """Waits, dies or blocks until a file exists, as its data says, the first so many times."""
    log("second", data["name"])
    times = sum(words[1:] == ["second", data["name"]] for words in history())
    if times <= data.get("times", 1):
        match data.get("does"):
            case "wait":
                await trio.sleep(data.get("seconds", 1e9))
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "block":
                while not os.path.exists(data["gate"]):
                    time.sleep(0.01)
            case "gate":
                while not os.path.exists(data["gate"]):
                    await trio.sleep(0.01)
    log("done", data["name"])
    return data["name"]


def make_flujo(url: str, engine: str | None = None, **settings: Any) -> Flujo[Any, Any, Any]:
    pipeline = Pipeline([Step("first", first), Step("second", second)], name="two steps")
    look = {"look_s": 0.2, "poll_s": 0.1, "unclaimed_s": 2.0}
    return Flujo(
        pipeline, store=url, engine=engine, settings={"durability": {"lease_s": LEASE_S}, "fleet": {**look, **settings}}
    )


# --- remote items -------------------------------------------------------------------------------------------

WORK_S = float(os.environ.get("FLEET_WORK_S", "0.02"))


def crunch(item: int, context: Any = None) -> int:
    """Some work in a thread; the item that is called poison kills its worker."""
    log("begin", item)
    if item == POISON:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(WORK_S)
    while "FLEET_GATE" in os.environ and not os.path.exists(os.environ["FLEET_GATE"]):
        time.sleep(0.01)
    log("worked", item)
    return item * item


POISON = -1


def total(items: list[int]) -> int:
    return sum(items)


def make_map(url: str, batch: int = 1, look_s: float = 0.3, **options: Any) -> Flujo[Any, Any, Any]:
    items = Step.map_over("items", Step("crunch", crunch, runs_on="cores"), batch=batch)
    more = [Step("more", total)] if "FLEET_OTHER" in os.environ else []
    pipeline = Pipeline([items, Step("total", total), *more], name="map")
    fleet = {"look_s": look_s, "unclaimed_s": 2.0}
    return Flujo(
        pipeline,
        store=url,
        settings={"durability": {"lease_s": LEASE_S}, "fleet": fleet},
        **{"engine": os.environ.get("FLEET_ENGINE") or "postgres", **options},
    )


# --- agents under a limit -----------------------------------------------------------------------------------


def make_limited(url: str, items: int) -> Flujo[Any, Any, Any]:
    """As many calls of ten tokens as there are items, and not one more; a worker dies inside its third call."""
    from pydantic_ai import Agent, ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import RequestUsage

    from flujo_actors import UsageLimits

    async def reply(messages: Any, info: Any) -> ModelResponse:
        log("asked", messages[-1].parts[-1].content)
        if "FLEET_DIES" in os.environ and sum(words[1] == "asked" for words in history()) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return ModelResponse(parts=[TextPart("ok")], usage=RequestUsage(input_tokens=6, output_tokens=4))

    body = Step("ask", Agent(FunctionModel(reply)), runs_on="cores")
    pipeline = Pipeline([Step.map_over("all", body)], name="limited")
    return Flujo(
        pipeline,
        store=url,
        engine="postgres",
        usage_limits=UsageLimits(total_tokens_limit=10 * items, request_limit=items),
        settings={"durability": {"lease_s": LEASE_S}, "fleet": {"look_s": 0.3, "unclaimed_s": 2.0}},
    )


if "FLEET_LIMITED" in os.environ:
    limited = make_limited(os.environ["FLEET_STORE"], int(os.environ["FLEET_LIMITED"]))

if "FLEET_STORE" in os.environ:
    flujo = make_flujo(os.environ["FLEET_STORE"], os.environ.get("FLEET_ENGINE") or None)
    if os.environ["FLEET_STORE"].startswith("postgresql"):
        remote = make_map(os.environ["FLEET_STORE"], int(os.environ.get("FLEET_BATCH", "1")))

if __name__ == "__main__":
    log("caller")
    remote.run(list(range(int(os.environ["FLEET_ITEMS"]))), run_id=os.environ["FLEET_RUN"])
