"""A trio program: many runs in one nursery, and a deadline that reaches into the steps.

Run it: `python examples/trio_program.py`.
"""

from collections.abc import AsyncIterator

import trio

from flujo_actors import Flujo, Step, Success

DEGREES = {"Lima": 24, "Oslo": 3, "Pune": 31}


async def measure(city: str) -> int:
    await trio.sleep(0.05)
    return DEGREES[city]


async def describe(degrees: int) -> str:
    return "warm" if degrees > 20 else "cold"


async def forecast(city: str) -> AsyncIterator[str]:
    """Stream chunks without end; a generator is a step, too."""
    try:
        while True:
            await trio.sleep(0.02)
            yield f"{city}? "
    finally:
        print("the forecast was cancelled and has cleaned up")


WEATHER = Flujo(Step("measure", measure) >> Step("describe", describe))
FORECAST = Flujo(Step("forecast", forecast))


async def report(city: str, reports: dict[str, str]) -> None:
    result = await WEATHER.run_async(city)
    reports[city] = result.output


async def all_at_once() -> dict[str, str]:
    """The same `Flujo` in as many concurrent runs as you like."""
    reports: dict[str, str] = {}
    async with trio.open_nursery() as nursery:
        for city in DEGREES:
            nursery.start_soon(report, city, reports)
    return dict(sorted(reports.items()))


async def with_a_deadline() -> None:
    """A cancel scope around a run is all it takes; what was cancelled has ended when the scope does."""
    with trio.move_on_after(0.1) as scope:
        await FORECAST.run_async("Lima")
    print(f"the deadline passed: {scope.cancelled_caught}")


async def first_outcome() -> None:
    """Leaving the block ends the run."""
    async with WEATHER.run_async("Oslo") as run:
        async for outcome in run:
            if isinstance(outcome, Success):
                print(f"{outcome.step_result.name}: {outcome.step_result.output}")
                break


async def main() -> None:
    print(await all_at_once())
    await first_outcome()
    await with_a_deadline()


if __name__ == "__main__":
    trio.run(main)
