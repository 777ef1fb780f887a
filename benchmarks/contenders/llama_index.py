"""LlamaIndex workflows: a step that sends itself the next event; branches are events that are collected."""

import asyncio
import functools

from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from benchmarks.protocol import Job, importing, on_asyncio, peak_on_asyncio, serve


class Next(Event):
    data: int
    left: int


class Chain(Workflow):
    """One step execution after the other."""

    @step
    async def begin(self, event: StartEvent) -> Next | StopEvent:
        return StopEvent(result=1) if event.size == 1 else Next(data=1, left=event.size - 1)

    @step
    async def agent(self, event: Next) -> Next | StopEvent:
        return StopEvent(result=event.data) if event.left == 1 else Next(data=event.data, left=event.left - 1)


@functools.cache
def chain_of() -> Chain:
    return Chain(timeout=None)


def chain(size: int) -> Job:
    workflow = chain_of()

    async def job() -> None:
        await workflow.run(size=size)

    return job


# --- branches ---------------------------------------------------------------------------------------------------


class Ask(Event):
    number: int


class Answer(Event):
    number: int


@functools.cache
def branches(size: int) -> Workflow:
    class Branches(Workflow):
        """The agent once for each number."""

        @step
        async def begin(self, context: Context, event: StartEvent) -> Ask | None:
            for number in range(size):
                context.send_event(Ask(number=number))
            return None

        @step(num_workers=size)
        async def branch(self, event: Ask) -> Answer:
            return Answer(number=event.number)

        @step
        async def gather(self, context: Context, event: Answer) -> StopEvent | None:
            answers = context.collect_events(event, [Answer] * size)
            return None if answers is None else StopEvent(result=len(answers))

    return Branches(timeout=None)


def fan_out(size: int) -> Job:
    workflow = branches(size)

    async def job() -> None:
        assert await workflow.run() == size

    return job


# --- runs and chunks --------------------------------------------------------------------------------------------


def runs(size: int) -> Job:
    workflow = chain_of()

    async def job() -> None:
        await asyncio.gather(*(workflow.run(size=3) for _ in range(size)))

    return job


class Piece(Event):
    text: str


class Talk(Workflow):
    """Streams pieces."""

    @step
    async def talk(self, context: Context, event: StartEvent) -> StopEvent:
        for _ in range(event.size):
            context.write_event_to_stream(Piece(text="word "))
        return StopEvent(result="end")


def chunks(size: int) -> Job:
    workflow = Talk(timeout=None)

    async def job() -> None:
        handler = workflow.run(size=size)
        seen = [event async for event in handler.stream_events() if isinstance(event, Piece)]
        assert len(seen) == size
        await handler

    return job


if __name__ == "__main__":
    serve(
        {
            **on_asyncio(chain=chain, fan_out=fan_out, runs=runs, chunks=chunks),
            "memory": peak_on_asyncio(fan_out),
            "import": importing("workflows"),
        },
        packages=["llama-index-workflows"],
    )
