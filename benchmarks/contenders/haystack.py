"""Haystack: a pipeline of asynchronous components; branches are components without connections."""

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

import asyncio
import functools
import itertools

from haystack import Pipeline, component

from benchmarks.protocol import Job, importing, on_asyncio, peak_on_asyncio, serve


@component
class Agent:
    """Hands on what it gets."""

    @component.output_types(data=int)
    def run(self, data: int) -> dict[str, int]:
        return {"data": data}

    @component.output_types(data=int)
    async def run_async(self, data: int) -> dict[str, int]:
        return {"data": data}


@functools.cache
def steps(size: int) -> Pipeline:
    pipeline = Pipeline(max_runs_per_component=10)
    names = [f"s{number}" for number in range(size)]
    for name in names:
        pipeline.add_component(name, Agent())
    for first, second in itertools.pairwise(names):
        pipeline.connect(f"{first}.data", f"{second}.data")
    return pipeline


def chain(size: int) -> Job:
    pipeline = steps(size)
    return lambda: pipeline.run_async({"s0": {"data": 1}})


@functools.cache
def branches(size: int) -> Pipeline:
    pipeline = Pipeline()
    for number in range(size):
        pipeline.add_component(f"b{number}", Agent())
    return pipeline


def fan_out(size: int) -> Job:
    pipeline, inputs = branches(size), {f"b{number}": {"data": number} for number in range(size)}

    async def job() -> None:
        assert len(await pipeline.run_async(inputs, concurrency_limit=size)) == size

    return job


def runs(size: int) -> Job:
    pipeline = steps(3)

    async def job() -> None:
        await asyncio.gather(*(pipeline.run_async({"s0": {"data": 1}}) for _ in range(size)))

    return job


if __name__ == "__main__":
    serve(
        {
            **on_asyncio(chain=chain, fan_out=fan_out, runs=runs),
            "memory": peak_on_asyncio(fan_out),
            "import": importing("haystack"),
        },
        packages=["haystack-ai"],
    )
