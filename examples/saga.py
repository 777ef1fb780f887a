"""A saga: a trip is booked, a booking fails, and what was booked is undone. Run it: `python examples/saga.py`.

Flight and hotel are booked at the same time, then a car. There is no car, so the clerk is told, and everything that was
booked is cancelled, the last started first. The second trip is cut off while it cancels: the run goes on where it
was, with the same idempotency keys, and books nothing again.
"""

import logging
import sys
import tempfile
from pathlib import Path

from flujo_actors import Compensate, Flujo, Pipeline, PipelineResult, Step, StepFailure, Undo

LEDGER: list[str] = []
"""What the airline, the hotel and the clerk saw."""

POWER_CUTS = [False, True]
"""Whether the power goes while the hotel is cancelled, for each trip once."""


def book(what: str) -> Step:
    """A booking, and how to cancel it."""

    async def booking(trip: object) -> str:
        LEDGER.append(f"booked    {what}")
        return f"{what} for {trip}"

    async def cancel(undo: Undo, *, idempotency_key: str) -> None:
        LEDGER.append(f"cancelled {what:6} under the key {idempotency_key}")
        if what == "hotel" and POWER_CUTS.pop(0):
            raise KeyboardInterrupt("the power is gone")

    return Step(what, booking, compensate=Step(f"cancel {what}", cancel, max_retries=2))


async def rent_car(booked: dict[str, str]) -> str:
    """There is none."""
    raise LookupError("no cars left")


async def give_back_car(undo: Undo) -> None:
    """Called although there was no car: nobody knows what a call did that failed."""
    LEDGER.append(f"asked for the car that was {'rented' if undo.completed else 'perhaps rented'}")


async def tell_the_clerk(failure: StepFailure) -> None:
    """A handler: it hears of the failure, and does not change it."""
    LEDGER.append(f"told      {failure.step_name}: {failure.message}")


TRIP = Pipeline(
    [
        Step.parallel("travel", {"flight": book("flight"), "hotel": book("hotel")}),
        Step("car", rent_car, compensate=Compensate(give_back_car, when="started"), on_failure=tell_the_clerk),
    ],
    name="trip",
)


def show(result: PipelineResult) -> None:
    """What became of the trip."""
    print(f"{result.run_id} {result.status}: {result.error}")
    for line in LEDGER:
        print(f"  {line}")
    undone = ", ".join(each.step_name for each in result.undone)
    print(f"  undone: {undone}; everything: {'yes' if result.fully_undone else 'no'}\n")
    LEDGER.clear()


def main() -> None:
    logging.getLogger("flujo_actors").setLevel(logging.ERROR)
    show(Flujo(TRIP).run("Lima", run_id="trip-1"))
    with tempfile.TemporaryDirectory() as folder:
        flujo = Flujo(TRIP, store=f"sqlite:///{Path(folder) / 'trips.db'}")
        try:
            flujo.run("Oslo", run_id="trip-2")
        except KeyboardInterrupt:
            POWER_CUTS.append(False)
            LEDGER.append("          the power is gone, and back: another process goes on")
        show(flujo.resume("trip-2"))


if __name__ == "__main__":
    sys.exit(main())
