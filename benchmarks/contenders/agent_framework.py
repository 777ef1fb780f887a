"""Microsoft's agent framework: a workflow of executors; it does not let one workflow run twice at a time."""

import asyncio
from typing import Never

from agent_framework import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler

from benchmarks.protocol import Job, importing, on_asyncio, peak_on_asyncio, serve


class Agent(Executor):
    """Hands on what it gets."""

    @handler
    async def handle(self, data: int, context: WorkflowContext[int]) -> None:
        await context.send_message(data)


class Last(Executor):
    """Gives the output."""

    @handler
    async def handle(self, data: int, context: WorkflowContext[Never, int]) -> None:
        await context.yield_output(data)


class Gather(Executor):
    """Gives the number of outputs."""

    @handler
    async def handle(self, data: list[int], context: WorkflowContext[Never, int]) -> None:
        await context.yield_output(len(data))


def steps(size: int) -> Workflow:
    executors: list[Executor] = [Agent(id=f"s{number}") for number in range(size - 1)]
    executors.append(Last(id="last"))
    builder = WorkflowBuilder(max_iterations=size + 10, start_executor=executors[0])
    return (builder.add_chain(executors) if size > 1 else builder).build()


def chain(size: int) -> Job:
    workflow = steps(size)
    return lambda: workflow.run(1)


def fan_out(size: int) -> Job:
    begin, gather = Agent(id="begin"), Gather(id="gather")
    branches = [Agent(id=f"b{number}") for number in range(size)]
    builder = WorkflowBuilder(start_executor=begin)
    workflow = builder.add_fan_out_edges(begin, branches).add_fan_in_edges(branches, gather).build()

    async def job() -> None:
        assert (await workflow.run(1)).get_outputs() == [size]

    return job


def runs(size: int) -> Job:
    workflows = [steps(3) for _ in range(size)]

    async def job() -> None:
        await asyncio.gather(*(workflow.run(1) for workflow in workflows))

    return job


if __name__ == "__main__":
    serve(
        {
            **on_asyncio(chain=chain, fan_out=fan_out, runs=runs),
            "memory": peak_on_asyncio(fan_out),
            "import": importing("agent_framework; agent_framework.WorkflowBuilder"),
        },
        packages=["agent-framework-core"],
    )
