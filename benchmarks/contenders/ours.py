"""This library in a trio program. Declarations are made once and outside the measurement, as users make them."""

import functools
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import trio

from benchmarks.protocol import importing, peak_bytes, seconds, serve
from flujo_actors import Chunk, Context, Flujo, LoopGuard, Pipeline, Step, ThompsonSampling
from flujo_actors._bridge.host_loop import TRIO
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.policies.loop_detection import LoopStep, entry_of, find_loop
from flujo_actors._core.step_paths import ROOT
from flujo_actors._dsl import call_plan
from flujo_actors._durable.run_registry import MemoryJournal
from flujo_actors._runtime.calls.agent_call import call_agent
from flujo_actors._runtime.run.messages import AttemptInput, StepRequest, StepState
from flujo_actors._runtime.run.run_environment import Run
from flujo_actors.telemetry import SILENT


async def agent(data: int) -> int:
    return data


async def agent_with_context(data: int, *, context: object) -> int:
    return data


async def talk(size: int) -> AsyncIterator[str]:
    for _ in range(size):
        yield "word "


@functools.cache
def chain(size: int) -> Flujo:
    return Flujo(Pipeline(Step(f"s{number}", agent) for number in range(size)))


@functools.cache
def fan_out(size: int) -> Flujo:
    return Flujo(Step.parallel("fan", {f"b{number}": Step(f"b{number}", agent) for number in range(size)}))


@functools.cache
def nested(depth: int) -> Flujo:
    """A step inside so many pipelines."""
    inside: Pipeline | Step = Step("innermost", agent)
    for level in range(depth):
        inside = Pipeline([inside], name=f"level {level}")
    return Flujo(inside)


TALKING = Flujo(Step("talk", talk))


async def run_once(flujo: Flujo, data: object = 1) -> None:
    result = await flujo.run_async(data)
    assert result.success, result.feedback


async def runs(size: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(size):
            nursery.start_soon(run_once, chain(3))


async def chunks(size: int) -> None:
    seen = 0
    async for outcome in TALKING.run_async(size):
        seen += isinstance(outcome, Chunk)
    assert seen == size


# --- undoing ----------------------------------------------------------------------------------------------------


async def undo(_: object) -> None:
    """What a step with a compensation has, in the runs that never use it and in those that do."""


async def fails(data: int) -> int:
    raise ValueError("undo everything")


@functools.cache
def compensated(size: int, *, failing: bool = False) -> Flujo:
    steps = [Step(f"s{number}", agent, compensate=undo) for number in range(size)]
    return Flujo(Pipeline([*steps, Step("fails", fails)] if failing else steps))


async def undone(size: int) -> None:
    result = await compensated(size, failing=True).run_async(1)
    assert (len(result.undone), result.fully_undone) == (size, True)


def unused_compensations(size: int, rounds: int) -> float:
    """What steps with a compensation take longer that nobody calls, best of some turns."""
    turns = [[_chained(chain(size), rounds), _chained(compensated(size), rounds)] for _ in range(7)]
    without, declared = (min(side) for side in zip(*turns, strict=True))
    return declared - without


def _chained(flujo: Flujo, rounds: int) -> float:
    return seconds(trio.run, partial(run_once, flujo), rounds)


# --- governance -------------------------------------------------------------------------------------------------


@functools.cache
def selecting(size: int) -> Flujo:
    arms = {"one": agent, "other": agent}
    by = ThompsonSampling(seed=1)
    return Flujo(Pipeline(Step.select_agent(f"s{number}", arms, by=by) for number in range(size)))


@functools.cache
def branching(size: int) -> Flujo:
    arms = {"one": agent, "other": agent}
    return Flujo(Pipeline(Step.branch_on(f"s{number}", lambda data, context: "one", arms) for number in range(size)))


def selections(size: int, rounds: int) -> float:
    """What it takes longer to choose an arm by what is believed of it than by a function, best of some turns."""
    turns = [[_chained(branching(size), rounds), _chained(selecting(size), rounds)] for _ in range(5)]
    by_function, by_belief = (min(side) for side in zip(*turns, strict=True))
    return by_belief - by_function


async def guarded_turns(size: int) -> None:
    """Turns of a conversation, each looked at for a loop."""
    history = [_turn(number) for number in range(20)]
    guard = LoopGuard()
    for number in range(size):
        history[-1] = _turn(number)
        assert find_loop(history, guard) is None


def _turn(number: int) -> LoopStep:
    entry = entry_of([("search", {"words": f"tea {number}", "limit": 10}, {"found": [number] * 5}, False)])
    assert entry is not None
    return entry


# --- injection --------------------------------------------------------------------------------------------------


async def planned_calls(agent: Callable[..., Any], size: int) -> None:
    """Calls of an agent as the step actor makes them: keywords by plan, errors caught, the answer read."""
    step = Step("s", agent)
    run = Run(
        run_id=RunId("bench"),
        host=TRIO,
        journal=MemoryJournal(),
        telemetry=SILENT,
    )
    asked = StepRequest(step=Step("s", agent), name="s", path=ROOT, parent=None, data=1, context=Context())
    work = AttemptInput(name="s", span=ROOT, path=ROOT, data=1, context=asked.context, state=StepState(asked))
    for _ in range(size):
        await call_agent(run, step, work)


def injection(size: int, rounds: int) -> float:
    """What it takes longer to call an agent that asks for the context, best of some turns."""
    turns = [[_calls(agent, size), _calls(agent_with_context, size)] for _ in range(5)]
    without, injected = (min(side) for side in zip(*turns, strict=True))
    return rounds * (injected - without)


def _calls(agent: Callable[..., Any], size: int) -> float:
    return seconds(trio.run, partial(planned_calls, agent, size), 1)


def inspections(size: int, rounds: int) -> float:
    """How often a signature is read while a pipeline that has run before runs again."""
    flujo = Flujo(Pipeline(Step(f"s{number}", agent_with_context) for number in range(100)))
    flujo.run(1)
    calls, real = [], call_plan.accepts
    call_plan.accepts = lambda *args: calls.append(args) or real(*args)  # type: ignore[func-returns-value]
    try:
        flujo.run(1)
    finally:
        call_plan.accepts = real
    return float(len(calls))


if __name__ == "__main__":
    serve(
        {
            "chain": lambda size, rounds: seconds(trio.run, partial(run_once, chain(size)), rounds),
            "fan_out": lambda size, rounds: seconds(trio.run, partial(run_once, fan_out(size)), rounds),
            "memory": lambda size, rounds: peak_bytes(trio.run, partial(run_once, fan_out(size))),
            "runs": lambda size, rounds: seconds(trio.run, partial(runs, size), rounds),
            "chunks": lambda size, rounds: seconds(trio.run, partial(chunks, size), rounds),
            "nesting": lambda size, rounds: seconds(trio.run, partial(run_once, nested(size)), rounds),
            "payload": lambda size, rounds: seconds(trio.run, partial(run_once, chain(10), "x" * size), rounds),
            "agent_call": lambda size, rounds: seconds(
                trio.run, partial(planned_calls, agent_with_context, size), rounds
            ),
            "unused_compensations": unused_compensations,
            "undone": lambda size, rounds: seconds(trio.run, partial(undone, size), rounds),
            "selections": selections,
            "guard": lambda size, rounds: seconds(trio.run, partial(guarded_turns, size), rounds),
            "injection": injection,
            "inspections": inspections,
            "import": importing("flujo_actors"),
        },
        packages=["flujo-actors", "trio", "attrs"],
    )
