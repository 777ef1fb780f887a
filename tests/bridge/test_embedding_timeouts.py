"""A step with a timeout ends the same way in every kind of program."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest
from embedding_hosts import HostCase, each_host

from flujo_actors import Flujo, Pipeline, Step, StepTimeout


async def blocks(data: Any) -> Any:
    time.sleep(0.15)
    return data


async def blocks_and_waits(data: Any) -> Any:
    time.sleep(0.15)
    await anyio.sleep(0)
    return data


async def waits(data: Any) -> Any:
    await anyio.sleep(60)


async def swallows(data: Any) -> Any:
    try:
        await anyio.sleep(60)
    except BaseException:
        return data


async def streams_and_blocks(data: Any) -> Any:
    yield "piece"
    time.sleep(0.15)


async def in_time(data: Any) -> Any:
    await anyio.sleep(0)
    return data


LATE = [blocks, blocks_and_waits, waits, swallows, streams_and_blocks]


@pytest.mark.parametrize("agent", LATE)
@each_host
def test_an_attempt_past_its_time_is_a_timeout_on_every_host(host: HostCase, agent: Any) -> None:
    """Also if its code blocked the loop, so that nobody could stop it."""

    async def main() -> Any:
        return await Flujo(Step("s", agent, timeout_s=0.05)).run_async(1)

    result = host.run(main)
    assert result.status == "failed"
    assert isinstance(result.error, StepTimeout)


@pytest.mark.parametrize("agent", LATE)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_run_says_the_same_on_either_backend(backend: Any, agent: Any) -> None:
    """And so do steps that hold others."""
    step = Step("s", agent, timeout_s=0.05)
    held = Step.map_over("m", Pipeline([Step("inner", agent)], name="p"), items=[1], timeout_s=0.05)
    for flujo in (Flujo(step), Flujo(held)):
        assert isinstance(flujo.run(1, backend=backend).error, StepTimeout)


@each_host
def test_an_attempt_in_its_time_is_none(host: HostCase) -> None:
    """Nothing is refused that came in time."""

    async def main() -> Any:
        return await Flujo(Step("s", in_time, timeout_s=60)).run_async(1)

    assert host.run(main).output == 1
