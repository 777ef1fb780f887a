"""What a step costs, in numbers that do not depend on the machine: tasks, scheduling rounds, calls, objects.

The yardstick is the same work written by hand with trio: a task for every step and one message back.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import trio
import trio.testing

from flujo_actors import Flujo, Pipeline, Step

Program = Callable[[], Awaitable[Any]]

STEPS = 100


async def agent(data: int) -> int:
    return data + 1


def chain(size: int) -> Flujo:
    return Flujo(Pipeline(Step(f"s{number}", agent) for number in range(size)))


async def by_hand(size: int) -> None:
    async def actor(data: int) -> None:
        await reply.send(await agent(data))

    value = 0
    reply, replies = trio.open_memory_channel[int](1)
    async with trio.open_nursery() as nursery:
        for _ in range(size):
            nursery.start_soon(actor, value)
            value = await replies.receive()


def fan_out(size: int) -> Flujo:
    return Flujo(Step.parallel("fan", {f"b{number}": Step(f"b{number}", agent) for number in range(size)}))


async def fan_out_by_hand(size: int) -> None:
    async def actor(data: int) -> None:
        await reply.send(await agent(data))

    reply, replies = trio.open_memory_channel[int](math.inf)
    async with trio.open_nursery() as nursery:
        for number in range(size):
            nursery.start_soon(actor, number)
        for _ in range(size):
            await replies.receive()


class Rounds(trio.abc.Instrument):
    """Counts what trio's scheduler does."""

    def __init__(self) -> None:
        self.spawned = self.stepped = 0

    def task_spawned(self, task: object) -> None:
        self.spawned += 1

    def before_task_step(self, task: object) -> None:
        self.stepped += 1


def rounds_of(program: Program) -> Rounds:
    rounds = Rounds()
    trio.run(program, instruments=[rounds])
    return rounds


def calls_of(program: Program) -> int:
    """How many Python functions are entered, or go on after having waited."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    async def counted() -> None:
        sys.setprofile(count)
        try:
            await program()
        finally:
            sys.setprofile(None)

    trio.run(counted)
    return calls


def objects_of_runs_that_wait(begin: Callable[[trio.Event], Awaitable[Any]], count: int) -> float:
    """How many objects the garbage collector has to look at for every program that waits."""

    async def main() -> float:
        event = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin, event)
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            before = len(gc.get_objects())
            for _ in range(count):
                nursery.start_soon(begin, event)
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            after = len(gc.get_objects())
            event.set()
        return (after - before) / count

    return trio.run(main)


def test_a_step_of_a_chain_is_one_task_and_no_more_rounds_than_by_hand() -> None:
    """As many tasks as steps; each is scheduled as seldom as one that only sends a message."""
    flujo = chain(STEPS)
    ours = rounds_of(lambda: flujo.run_async(0))
    hand = rounds_of(lambda: by_hand(STEPS))
    assert ours.spawned == hand.spawned
    assert ours.stepped <= hand.stepped


def test_a_step_that_waits_is_scheduled_no_more_often_than_it_waits() -> None:
    """Its task begins, continues after its wait, and wakes its parent."""

    async def waits(data: int) -> int:
        await trio.lowlevel.checkpoint()
        return data

    def steps(size: int) -> Rounds:
        flujo = Flujo(Pipeline(Step(f"s{number}", waits) for number in range(size)))
        return rounds_of(lambda: flujo.run_async(0))

    assert steps(2 * STEPS).stepped - steps(STEPS).stepped == 3 * STEPS


def test_a_branch_is_one_task_and_no_more_rounds_than_by_hand() -> None:
    """One task for each branch; it is scheduled as seldom as one that only sends a message."""
    flujo = fan_out(STEPS)
    ours = rounds_of(lambda: flujo.run_async(0))
    hand = rounds_of(lambda: fan_out_by_hand(STEPS))
    assert ours.spawned == hand.spawned + 1  # the parallel step itself
    assert ours.stepped <= hand.stepped


def test_a_step_makes_at_most_two_fifths_more_calls_than_by_hand() -> None:
    """A request and a report are added to a task and a message, and ledger, journal, result and outcome."""
    short, long = chain(STEPS), chain(2 * STEPS)
    for flujo in (short, long):
        flujo.run(0)
    ours = calls_of(lambda: long.run_async(0)) - calls_of(lambda: short.run_async(0))
    hand = calls_of(lambda: by_hand(2 * STEPS)) - calls_of(lambda: by_hand(STEPS))
    assert ours <= 1.4 * hand


def test_a_branch_makes_at_most_half_as_many_calls_again_as_by_hand() -> None:
    """What is added to a task and a message: ledger, journal, result, outcome, and the report put to the others."""
    short, long = fan_out(STEPS), fan_out(2 * STEPS)
    for flujo in (short, long):
        flujo.run(0)
    ours = calls_of(lambda: long.run_async(0)) - calls_of(lambda: short.run_async(0))
    hand = calls_of(lambda: fan_out_by_hand(2 * STEPS)) - calls_of(lambda: fan_out_by_hand(STEPS))
    assert ours <= 1.5 * hand


def unreachable_after(program: Program) -> list[str]:
    """The types of this library's objects that only the garbage collector could remove."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        trio.run(program)
        gc.collect()
        return [type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("flujo_actors")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_a_run_leaves_nothing_to_the_garbage_collector() -> None:
    """Runs make no reference cycles: with thousands of them, collecting would cost more than the steps."""
    flujo = chain(3)

    async def many() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(flujo.run_async, 0)

    assert unreachable_after(many) == []


def test_a_run_that_waits_holds_at_most_twice_the_objects_that_it_holds_by_hand() -> None:
    """A program may have thousands of runs that wait for their models at the same time."""

    async def waits(event: trio.Event) -> None:
        await event.wait()

    flujo = Flujo(Pipeline([Step("waits", waits), Step("adds", agent)]))

    async def ours(event: trio.Event) -> None:
        await flujo.run_async(event)

    async def hand(event: trio.Event) -> None:
        async def actor() -> None:
            await event.wait()
            await reply.send(None)

        reply, replies = trio.open_memory_channel[None](1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(actor)
            await replies.receive()

    assert objects_of_runs_that_wait(ours, 50) <= 2 * objects_of_runs_that_wait(hand, 50)
