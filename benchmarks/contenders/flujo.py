"""The original flujo, from the package index; tracing off, and its state backends in memory or SQLite."""

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from flujo import Flujo, Pipeline, Step
from flujo.state.backends.memory import InMemoryBackend
from flujo.state.backends.sqlite import SQLiteBackend

from benchmarks.protocol import (
    Job,
    added_bytes,
    importing,
    in_asyncio,
    on_asyncio,
    peak_on_asyncio,
    scratch,
    seconds,
    serve,
)


async def agent(data: int) -> int:
    return data


class Talker:
    """Streams as many words as it is told."""

    async def stream(self, data: int, **_: Any) -> AsyncIterator[str]:
        for _ in range(data):
            yield "word "


@functools.cache
def steps(size: int) -> Pipeline:
    first = Step.from_callable(agent, name="s0")
    rest = (Step.from_callable(agent, name=f"s{number}") for number in range(1, size))
    return functools.reduce(lambda pipeline, step: pipeline >> step, rest, Pipeline.from_step(first))


def runner(pipeline: Any, backend: Any = None) -> Flujo:
    return Flujo(pipeline, state_backend=backend or InMemoryBackend(), enable_tracing=False)


async def run_once(flujo: Flujo, data: int = 1) -> Any:
    results = [result async for result in flujo.run_async(data)]
    assert all(step.success for step in results[-1].step_history), results
    return results[-1]


def chain(size: int) -> Job:
    flujo = runner(steps(size))
    return lambda: run_once(flujo)


def fan_out(size: int) -> Job:
    branches = {f"b{number}": Step.from_callable(agent, name=f"b{number}") for number in range(size)}
    flujo = runner(Step.parallel("fan", branches))
    return lambda: run_once(flujo)


def runs(size: int) -> Job:
    flujo = runner(steps(3))

    async def job() -> None:
        await asyncio.gather(*(run_once(flujo) for _ in range(size)))

    return job


def chunks(size: int) -> Job:
    flujo = runner(Step(name="talk", agent=Talker()))

    async def job() -> None:
        seen = [item async for item in flujo.stream_async(size) if isinstance(item, str)]
        assert len(seen) == size, len(seen)

    return job


async def run_durably(path: Path, size: int, rounds: int) -> None:
    flujo = runner(steps(size), SQLiteBackend(path))
    for _ in range(rounds):
        await run_once(flujo)


def durable_chain(size: int, rounds: int) -> float:
    with scratch() as directory:
        return seconds(in_asyncio, lambda: run_durably(directory / "runs.db", size, rounds), 1)


def write(path: Path, size: int) -> None:
    asyncio.run(run_durably(path, size, 1))


if __name__ == "__main__":
    serve(
        {
            **on_asyncio(chain=chain, fan_out=fan_out, runs=runs, chunks=chunks),
            "memory": peak_on_asyncio(fan_out),
            "durable_chain": durable_chain,
            "database": added_bytes(write),
            "import": importing("flujo"),
        },
        packages=["flujo"],
    )
