"""The work that every contender is asked to do, and how its amount is read."""

from collections.abc import Callable
from typing import Literal

import attrs

from benchmarks.roster import YARDSTICK

Unit = Literal["µs", "ms", "KB", "bytes", "per second", "MB/s", "calls", "per 1,000", "of 8"]
Clock = Literal["wall", "cpu"]

_READ: dict[Unit, Callable[[float], float]] = {
    "µs": lambda each: each * 1e6,
    "ms": lambda each: each * 1e3,
    "KB": lambda each: each / 1024,
    "bytes": lambda each: each,
    "per second": lambda each: 1 / each,
    "MB/s": lambda each: 1e-6 / each,
    "calls": lambda each: each,
    "per 1,000": lambda each: each * 1e3,
    "of 8": lambda each: each,
}
_TIMES: tuple[Unit, ...] = ("µs", "ms", "per second", "MB/s")


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
    yardstick: str = YARDSTICK
    """The contender that ratios are taken to."""
    clock: Clock | None = None
    """The only clock that makes sense, where it does not matter what was asked for: waiting for a disk is not work."""
    difference: bool = False
    """Whether the amount is a difference of two, whose least value says nothing: noise can make it negative."""
    goal: str = ""
    """What this library is meant to reach."""

    @property
    def timed(self) -> bool:
        """Whether the amount is a time."""
        return self.unit in _TIMES

    def each(self, amount: float) -> float:
        """The amount of one unit of work: one step, one branch, one run, one chunk."""
        return amount / (self.size * self.rounds)

    def read(self, each: float) -> float:
        """The same in the unit that is shown."""
        return _READ[self.unit](each)

    def shown(self, each: float) -> str:
        """The same as text."""
        value, unit = self.read(each), "/s" if self.unit == "per second" else f" {self.unit}"
        return f"{value:,.0f}{unit}" if value >= 100 or value == int(value) else f"{value:,.3g}{unit}"

    def scaled(self, share: float) -> "Work":
        """The same work, smaller."""
        return attrs.evolve(
            self,
            size=max(1, int(self.size * share)),
            rounds=max(1, int(self.rounds * share)),
            repetitions=max(1, int(self.repetitions * share)),
        )


RUNTIME = (
    Work(
        name="chain",
        title="chain of 100 steps, per step",
        unit="µs",
        size=100,
        rounds=5,
        repetitions=21,
        goal="≤ 1.35 × raw trio, ahead of all",
    ),
    Work(
        name="fan_out",
        title="1,000 parallel branches, per branch",
        unit="µs",
        size=1_000,
        repetitions=9,
        goal="≤ 1.4 × raw trio",
    ),
    Work(
        name="fan_out",
        title="10,000 parallel branches, per branch",
        unit="µs",
        size=10_000,
        repetitions=2,
        goal="≤ 1.4 × raw trio, growth no larger than its own",
    ),
    Work(
        name="memory",
        title="memory at 10,000 branches, per branch",
        unit="KB",
        size=10_000,
        repetitions=1,
        goal="≤ 4 KB",
    ),
    Work(
        name="runs",
        title="1,000 concurrent runs of 3 steps, runs",
        unit="per second",
        size=1_000,
        repetitions=6,
        goal="≥ 7,000/s where raw trio does 11,000",
    ),
    Work(
        name="chunks",
        title="100,000 chunks through one step, chunks",
        unit="per second",
        size=100_000,
        repetitions=3,
        divisible=True,
        goal="≥ 400,000/s",
    ),
    Work(name="agent_call", title="one call of an agent that takes `context`", unit="µs", size=20_000, repetitions=5),
    Work(
        name="injection",
        title="injection check on a warm step",
        unit="µs",
        size=5_000,
        repetitions=5,
        difference=True,
        clock="cpu",
        goal="≤ 1 µs",
    ),
    Work(
        name="unused_compensations",
        title="a compensation declared and never used, per step",
        unit="µs",
        size=100,
        rounds=5,
        repetitions=3,
        difference=True,
        clock="cpu",
        goal="≤ 5 % of a plain step",
    ),
    Work(
        name="undone",
        title="1,000 compensations in one failed run, per compensation",
        unit="µs",
        size=1_000,
        repetitions=3,
        clock="cpu",
        goal="linear",
    ),
    Work(
        name="selections",
        title="one selection by Thompson sampling beside a branch",
        unit="µs",
        size=100,
        repetitions=3,
        difference=True,
        clock="cpu",
        goal="≤ 60 µs",
    ),
    Work(
        name="guard",
        title="one turn of the loop guard",
        unit="µs",
        size=2_000,
        repetitions=3,
        clock="cpu",
        goal="≤ 20 µs",
    ),
    Work(
        name="inspections",
        title="signatures read in a warm run of 100 steps",
        unit="calls",
        repetitions=1,
        goal="0",
    ),
    Work(name="import", title="import in a fresh interpreter", unit="ms", repetitions=7, goal="≤ 200 ms"),
)

DURABLE = (
    Work(
        name="durable_chain",
        title="durable chain of 100 steps on SQLite, per step",
        unit="µs",
        size=100,
        repetitions=25,
        clock="wall",
        goal="≤ 1.3 × raw trio with SQLite in a thread",
    ),
    Work(
        name="durable_runs",
        title="1,000 concurrent durable runs of 3 steps, runs",
        unit="per second",
        size=1_000,
        repetitions=3,
        clock="wall",
        divisible=True,
        goal="≥ 3,000/s where a commit takes 0.5 ms",
    ),
    Work(
        name="commits",
        title="commits for 1,000 records of 1,000 concurrent durable runs",
        unit="per 1,000",
        size=1_000,
        repetitions=1,
        goal="far fewer than records",
    ),
    Work(
        name="database",
        title="database size of a durable chain of 200 steps, per step",
        unit="bytes",
        size=200,
        repetitions=1,
        goal="ahead of LangGraph and DBOS",
    ),
    Work(
        name="resume",
        title="resume of a run with 10,000 records, per record",
        unit="µs",
        size=10_000,
        repetitions=3,
        clock="wall",
        goal="linear",
    ),
)

AGENTS = (
    Work(
        name="agent_run",
        title="pydantic-ai with its test model, per call",
        unit="µs",
        size=20,
        repetitions=5,
        yardstick="agent.run",
    ),
    Work(
        name="added",
        title="added by a step to `agent.run`, per step of a run of 10",
        unit="µs",
        size=30,
        repetitions=5,
        difference=True,
        goal="≤ 150 µs",
    ),
    Work(
        name="added_by_run",
        title="added to `agent.run` by a whole run of one step",
        unit="µs",
        size=50,
        repetitions=5,
        difference=True,
    ),
    Work(
        name="agents_at_once",
        title="1,000 durable agent steps at once on SQLite, per step",
        unit="µs",
        size=1_000,
        repetitions=2,
        yardstick="flujo-actors, atomic step",
    ),
    Work(
        name="memory_of_agents",
        title="memory of 1,000 durable agent steps at once, per step",
        unit="KB",
        size=1_000,
        repetitions=1,
        yardstick="flujo-actors, atomic step",
        goal="≤ 20 KB",
    ),
    Work(
        name="conversation",
        title="agent of 4 turns and 3 tool calls on SQLite, per run",
        unit="ms",
        size=10,
        repetitions=5,
        yardstick="flujo-actors, atomic step",
        clock="wall",
    ),
)

STRUCTURED = (
    Work(
        name="read_valid",
        title="reading valid JSON of 10 kB",
        unit="MB/s",
        size=10_000,
        rounds=20,
        yardstick="json_repair",
        goal="≥ 80 MB/s",
    ),
    Work(
        name="read_broken",
        title="reading broken JSON of 10 kB, 8 kinds of damage",
        unit="MB/s",
        size=10_000,
        yardstick="json_repair",
        goal="≥ 2 MB/s",
    ),
    Work(
        name="misread",
        title="kinds of damage that are not read as meant",
        unit="of 8",
        repetitions=1,
        yardstick="json_repair",
        goal="0",
    ),
)

BLUEPRINTS = (
    Work(name="help", title="`flujo-actors --help`", unit="ms", clock="wall", repetitions=7, goal="≤ 150 ms"),
    Work(
        name="validate",
        title="`flujo-actors validate` of one file",
        unit="ms",
        clock="wall",
        repetitions=7,
        goal="≤ 200 ms",
    ),
    Work(
        name="validate_many",
        title="`flujo-actors validate` of 100 files",
        unit="ms",
        clock="wall",
        repetitions=5,
        goal="≤ 500 ms",
    ),
    Work(
        name="validate_large",
        title="`flujo-actors validate` of 1 MiB",
        unit="ms",
        clock="wall",
        repetitions=3,
        goal="≤ 2,000 ms",
    ),
    Work(name="render", title="render of a template", unit="µs", size=2_000, repetitions=7, goal="≤ 15 µs"),
    Work(name="declare", title="a pipeline of 20 steps, made", unit="ms", rounds=10, yardstick="Python"),
    Work(
        name="twin",
        title="chain of 100 steps of functions, per step",
        unit="µs",
        size=100,
        rounds=10,
        yardstick="Python",
        goal="≤ 1.05 times Python",
    ),
)
"""Pipelines in YAML: the command that reads them, and the same pipeline in Python beside them."""

WORKS = RUNTIME + DURABLE + AGENTS + STRUCTURED + BLUEPRINTS
