"""Steps that write down what they do and what is undone, and the hosts they are run in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio
import trio.testing

from flujo_actors import Flujo, Step, Undo
from flujo_actors.testing import JumpingLoop

Main = Callable[[], Awaitable[Any]]


def _on_trio(main: Main) -> Any:
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def _on_asyncio(main: Main) -> Any:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main())  # type: ignore[arg-type]


both_hosts = pytest.mark.parametrize("host", [_on_trio, _on_asyncio], ids=["trio", "asyncio"])
"""Each library that the caller of a run may be written for, on a clock that jumps."""


def run_in(host: Callable[[Main], Any], flujo: Any, data: Any = "", **options: Any) -> Any:
    """The result of a run, awaited in a host."""
    flujo = flujo if isinstance(flujo, Flujo) else Flujo(flujo)

    async def main() -> Any:
        return await flujo.run_async(data, **options)

    return host(main)


class Saga:
    """What was done and undone, in order: `a` for a call, `undo a` for a compensation, `undo a?` if it never ended."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.told: list[Any] = []
        """What handlers and compensations got."""

    def call(self, name: str, *, raises: str | None = None, times: int | None = None, takes: float = 0.0) -> Any:
        """An agent that answers `name!`; it raises, always or so many times."""
        left = [0 if raises is None else 10**9 if times is None else times]

        async def agent(data: Any) -> str:
            self.log.append(name)
            await anyio.sleep(takes)
            if left[0]:
                left[0] -= 1
                raise ValueError(raises)
            return f"{name}!"

        return agent

    def undo(self, name: str, *, raises: str | None = None) -> Any:
        """The compensation of that agent."""

        async def undo(undo: Undo) -> None:
            self.log.append(f"undo {name}" + ("" if undo.completed else "?"))
            self.told.append(undo)
            if raises is not None:
                raise ValueError(raises)

        return undo

    def step(self, name: str, **config: Any) -> Step:
        """A step with a compensation, unless it is given another one or `None`."""
        behaving = {key: config.pop(key) for key in ("raises", "times", "takes") if key in config}
        config = {"compensate": self.undo(name), **config}
        return Step(name, self.call(name, **behaving), **config)

    def handler(self, name: str, *, returns: Any = None, raises: str | None = None) -> Any:
        """A function that is told of a failure."""

        async def handler(failure: Any) -> Any:
            self.log.append(name)
            self.told.append(failure)
            if raises is not None:
                raise RuntimeError(raises)
            return returns

        return handler
