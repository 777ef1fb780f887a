"""The work that every contender is asked to do, and how its amount is read."""

from collections.abc import Callable
from typing import Literal

import attrs

Unit = Literal["µs", "ms", "KB", "per second", "calls"]

_READ: dict[Unit, Callable[[float], float]] = {
    "µs": lambda each: each * 1e6,
    "ms": lambda each: each * 1e3,
    "KB": lambda each: each / 1024,
    "per second": lambda each: 1 / each,
    "calls": lambda each: each,
}


@attrs.frozen(kw_only=True)
class Work:
    """One row group of the table."""

    name: str
    """What contenders know it by."""
    title: str
    unit: Unit
    size: int = 1
    rounds: int = 1
    repetitions: int = 7
    divisible: bool = False
    """Whether less of it costs proportionally less, so that a slow contender may do less."""

    @property
    def timed(self) -> bool:
        """Whether the amount is a time."""
        return self.unit not in ("KB", "calls")

    def each(self, amount: float) -> float:
        """The amount of one unit of work: one step, one branch, one run, one chunk."""
        return amount / (self.size * self.rounds)

    def read(self, each: float) -> float:
        """The same in the unit that is shown."""
        return _READ[self.unit](each)

    def scaled(self, share: float) -> "Work":
        """The same work, smaller."""
        return attrs.evolve(
            self,
            size=max(1, int(self.size * share)),
            rounds=max(1, int(self.rounds * share)),
            repetitions=max(1, int(self.repetitions * share)),
        )


WORKS = (
    Work(name="chain", title="chain of 100 steps, per step", unit="µs", size=100, rounds=10, repetitions=11),
    Work(name="fan_out", title="1,000 parallel branches, per branch", unit="µs", size=1_000, rounds=2),
    Work(name="fan_out", title="10,000 parallel branches, per branch", unit="µs", size=10_000, repetitions=5),
    Work(name="memory", title="memory at 10,000 branches, per branch", unit="KB", size=10_000, repetitions=2),
    Work(name="runs", title="1,000 concurrent runs of 3 steps, runs", unit="per second", size=1_000),
    Work(
        name="chunks",
        title="100,000 chunks through one step, chunks",
        unit="per second",
        size=100_000,
        repetitions=5,
        divisible=True,
    ),
    Work(name="agent_call", title="one call of an agent that takes `context`", unit="µs", size=20_000),
    Work(name="inspections", title="signatures read in a warm run of 100 steps", unit="calls", repetitions=1),
    Work(name="import", title="import in a fresh interpreter", unit="ms", repetitions=7),
)
