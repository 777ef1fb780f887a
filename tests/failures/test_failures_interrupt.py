"""Ctrl-C: a real SIGINT to a real process. What a run without a store did is undone before `KeyboardInterrupt`."""

import os
import signal
import sys
import textwrap

import pytest

from kit import preloaded

pytestmark = pytest.mark.slow

SCRIPT = """
import asyncio, logging, signal, sys
import anyio, trio
from flujo_actors import Flujo, Step

signal.signal(signal.SIGINT, signal.default_int_handler)
logging.disable(logging.CRITICAL)

async def book(x):
    return x

async def slow(x):
    await anyio.sleep(0)
    print("begun", flush=True)
    await anyio.sleep(60)

async def undo(undo):
    await anyio.sleep(0.01)
    print("undo", undo.step_name, undo.completed, flush=True)

flujo = Flujo(Step("a", book, compensate=undo) >> Step("slow", slow, compensate=undo))

async def main():
    await flujo.run_async(1)

WAYS = {
    "run": lambda: flujo.run(1),
    "run on asyncio": lambda: flujo.run(1, backend="asyncio"),
    "trio": lambda: trio.run(main),
    "asyncio": lambda: asyncio.run(main()),
}

try:
    WAYS[sys.argv[1]]()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("way", ["run", "run on asyncio", "trio", "asyncio"])
def test_ctrl_c_undoes_what_was_done_and_then_interrupts(way: str) -> None:
    """The call in flight first, told that nobody knows what it did."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(SCRIPT), way]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with preloaded.Popen(command, stdout=preloaded.PIPE, stderr=preloaded.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(timeout=120)
    assert said.split("\n") == ["undo slow False", "undo a True", "interrupted", ""], complained
    assert (process.returncode, complained) == (0, "")
