"""The five ways to run a pipeline of model agents."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import attrs
import pytest
import trio
import uvloop

from flujo_actors import Flujo, PipelineResult
from flujo_actors.testing import Recorder

Main = Callable[[], Awaitable[Any]]


@attrs.frozen
class AgentHost:
    """A way to run an async main function."""

    name: str
    drive: Callable[[Main], Any]
    sync: bool = False

    def result(self, flujo: Flujo, data: Any = None) -> PipelineResult:
        """The result of a run in this host."""
        return flujo.run(data) if self.sync else self.drive(lambda: _awaited(flujo, data))

    def recorded(self, flujo: Flujo, data: Any = None) -> Recorder:
        """A run in this host, watched to its end."""
        recorder = Recorder()
        self.drive(lambda: recorder.record(flujo.run_async(data)))
        return recorder


async def _awaited(flujo: Flujo, data: Any) -> PipelineResult:
    return await flujo.run_async(data)


HOSTS = (
    AgentHost("trio", trio.run),
    AgentHost("anyio-trio", lambda main: anyio.run(main, backend="trio")),
    AgentHost("asyncio", lambda main: asyncio.run(main())),
    AgentHost("uvloop", lambda main: uvloop.run(main())),
    AgentHost("run()", trio.run, sync=True),
)

each_host = pytest.mark.parametrize("host", HOSTS, ids=[host.name for host in HOSTS])
two_hosts = pytest.mark.parametrize("host", [HOSTS[0], HOSTS[2]], ids=["trio", "asyncio"])
"""One host of each library, where the way into it makes no difference."""
