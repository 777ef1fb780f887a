"""A saga: a booking of a trip fails, and the earlier bookings are undone. Run it: `python examples/saga.py`.

Flight and hotel are booked in parallel, then a car. There is no car, so a handler notifies the clerk, and all bookings
are cancelled in reverse order. The second run is interrupted while it cancels. It is resumed with the same idempotency
keys, and books nothing again.
"""

import logging
import sys
import tempfile
from pathlib import Path

from flujo_actors import Compensate, Flujo, Pipeline, PipelineResult, Step, StepFailure, Undo

LEDGER: list[str] = []
"""Calls of the airline, the hotel, the car rental and the clerk, in order."""

INTERRUPTS = [False, True]
"""Whether the process is interrupted while it cancels the hotel, for each call."""


def book(what: str) -> Step:
    """Booking step with a compensation that cancels it."""

    async def booking(trip: object) -> str:
        return f"{what} for {trip}"

    async def cancel(undo: Undo, *, idempotency_key: str) -> None:
        LEDGER.append(f"cancelled {what:6} under the key {idempotency_key}")
        if what == "hotel" and INTERRUPTS.pop(0):
            raise KeyboardInterrupt("interrupted")

    return Step(what, booking, compensate=Step(f"cancel {what}", cancel, max_retries=2))


async def rent_car(booked: dict[str, str]) -> str:
    """Fail: there is no car."""
    LEDGER.append(f"booked    {', '.join(booked)}")
    raise LookupError("no cars left")


async def give_back_car(undo: Undo) -> None:
    """Cancel a rental that may exist: the outcome of a failed call is uncertain."""
    LEDGER.append(f"cancelled car    {'that was rented' if undo.completed else 'in case it was rented'}")


async def notify_clerk(failure: StepFailure) -> None:
    """Handler that reports the failure and does not change it."""
    LEDGER.append(f"notified  clerk: {failure.step_name}: {failure.message}")


TRIP = Pipeline(
    [
        Step.parallel("travel", {"flight": book("flight"), "hotel": book("hotel")}),
        Step("car", rent_car, compensate=Compensate(give_back_car, when="started"), on_failure=notify_clerk),
    ],
    name="trip",
)


def show(result: PipelineResult) -> None:
    """Print the result of a trip and the calls of its run."""
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
            INTERRUPTS.append(False)
            LEDGER.append("          the run is interrupted, then resumed")
        show(flujo.resume("trip-2"))


if __name__ == "__main__":
    sys.exit(main())
