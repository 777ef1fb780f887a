"""Context variables that steps set, on every host: no other step sees them, and neither does the caller."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from embedding_hosts import HostCase, each_host

from flujo_actors import Flujo, Step

color: contextvars.ContextVar[str] = contextvars.ContextVar("color", default="none")


async def at_once(data: object) -> list[str]:
    """Sets it without ever waiting."""
    before = color.get()
    color.set("red")
    return [before, color.get()]


async def after_a_wait(data: object) -> list[str]:
    """Sets it, and still sees it after others had their turn."""
    before = color.get()
    color.set("red")
    await anyio.sleep(0)
    return [before, color.get()]


async def piece_by_piece(data: object) -> AsyncIterator[list[str]]:
    """Sets it between two pieces."""
    yield [color.get()]
    color.set("red")
    await anyio.sleep(0)
    yield [color.get()]


def in_a_function(data: object) -> list[str]:
    """Sets it in a function that is not async."""
    before = color.get()
    color.set("red")
    return [before, color.get()]


async def around_a_run(data: object) -> list[str]:
    """Sets it, and has a run of its own whose steps set it, too."""
    color.set("red")
    inner = (await Flujo(Step("first", after_a_wait) >> Step("second", after_a_wait)).run_async(None)).output
    assert inner == ["red", "red"]
    return ["blue", color.get()]


async def look(data: list[Any]) -> list[Any]:
    """What comes after, and sees what came before."""
    return [*data, color.get()]


@each_host
@pytest.mark.parametrize("agent", [at_once, after_a_wait, piece_by_piece, in_a_function, around_a_run])
def test_what_a_step_sets_is_seen_by_no_other_step(host: HostCase, agent: Any) -> None:
    """The step itself sees it, before and after a wait; the next step and the caller see the caller's."""

    async def main() -> tuple[list[Any], str]:
        color.set("blue")
        result = await Flujo(Step("sets", agent) >> Step("look", look)).run_async(None)
        return result.output, color.get()

    seen, outside = host.run(main)
    flat = [each for one in seen for each in (one if isinstance(one, list) else [one])]
    assert (flat, outside) == (["blue", "red", "blue"], "blue")
