"""Ctrl-C: a real SIGINT to a real process. It ends promptly, with `KeyboardInterrupt`, after the cleanup."""

import os
import signal
import sys
import textwrap
import time

import pytest

from kit import preloaded

pytestmark = pytest.mark.slow

SCRIPT = """
import asyncio, signal, sys
import anyio, trio, uvloop
from flujo_actors import Flujo, Step

# A background job of a shell ignores Ctrl-C; this one is to be in the foreground.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def sleep(x):
    await anyio.sleep(0)  # anyio loads its backend here, and not while the interrupt arrives
    try:
        print("begun", flush=True)  # the interrupt may arrive before the next line does
        await anyio.sleep(60)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.01)
        print("cleaned up", flush=True)

async def stream(x):
    yield x
    await sleep(x)

flujo = Flujo(Step.parallel("both", {"a": Step("sleep", sleep)}))
streaming = Flujo(Step("stream", stream))

async def main():
    await flujo.run_async(1)

async def iterate():
    async for _ in streaming.run_async(1):
        pass

def in_a_plain_loop():
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()

WAYS = {
    "run": lambda: flujo.run(1),
    "trio": lambda: trio.run(main),
    "trio iterated": lambda: trio.run(iterate),
    "asyncio": lambda: asyncio.run(main()),
    "asyncio iterated": lambda: asyncio.run(iterate()),
    "anyio": lambda: anyio.run(main),
    "uvloop": lambda: uvloop.run(main()),
    "a loop without a runner": in_a_plain_loop,
}

try:
    WAYS[sys.argv[1]]()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""

WAYS = ("run", "trio", "trio iterated", "asyncio", "asyncio iterated", "anyio", "uvloop", "a loop without a runner")


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_ends_the_run_and_its_cleanup_is_seen(way: str) -> None:
    """The process says that it cleaned up, gets its `KeyboardInterrupt`, and is gone in no time."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(SCRIPT), way]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with preloaded.Popen(command, stdout=preloaded.PIPE, stderr=preloaded.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(timeout=120)
    assert said.split("\n") == ["cleaned up", "interrupted", ""], complained
    assert process.returncode == 0
    assert complained == ""
