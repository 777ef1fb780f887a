"""Lets the desks answer the same tickets, in turns.

1. Each desk is one process for the whole match; the provider is another one. Only one desk works at a time.
2. A round asks every desk for every case once, and case by case: those who are compared work one after the other.
   Who begins rotates from round to round.
3. Before the rounds, a few tickets on every store, awaited and watched, open it, warm the desk up and do not count.
4. A match that has taken too long ends after a round, the second at the earliest.
5. A desk that cannot be installed, does not start or fails at a case is listed with the reason.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import attrs

from benchmarks.driver import ROOT, ContenderFailed, Process
from benchmarks.environments import NotInstalled, python_of
from benchmarks.roster import Contender

STORES = ("memory", "sqlite", "postgres")
WARM_UP = 3
"""How many tickets warm a desk up, at most."""
FEWEST_ROUNDS = 2
"""One alone has no noise to tell."""


@attrs.frozen(kw_only=True)
class Case:
    """Tickets that are answered on a store, so many at a time, with or without somebody who watches."""

    store: str
    watched: bool
    at_once: int
    tickets: int

    @property
    def way(self) -> str:
        return "watched" if self.watched else "awaited"


@attrs.frozen(kw_only=True)
class Sample:
    """What one desk needed for one case in one round; seconds."""

    desk: str
    case: Case
    cpu: float
    wall: float
    latencies: tuple[float, ...]
    pieces: int

    @property
    def cpu_of_a_ticket(self) -> float:
        return self.cpu / self.case.tickets


@attrs.frozen(kw_only=True)
class Match:
    """Everything that was seen."""

    samples: tuple[Sample, ...]
    versions: Mapping[str, Mapping[str, str]]
    absent: Mapping[str, str]
    """Desks that did not start, or cases that they failed at, with the reason."""

    @property
    def rounds(self) -> int:
        """How many rounds were played."""
        seen = Counter((sample.desk, sample.case) for sample in self.samples)
        return max(seen.values(), default=0)


def cases(sizes: Mapping[int, int], stores: Sequence[str] = STORES) -> list[Case]:
    """All cases: `sizes` says how many tickets there are for each number at a time."""
    return [
        Case(store=store, watched=watched, at_once=at_once, tickets=tickets)
        for store in stores
        for watched in (False, True)
        for at_once, tickets in sizes.items()
    ]


@contextmanager
def provider() -> Iterator[str]:
    """The URL of a provider that runs in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.service.stub"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=20)


def play(
    desks: Sequence[Contender],
    asked: Sequence[Case],
    *,
    rounds: int,
    longest_s: float = 420.0,
    places: Mapping[str, Mapping[str, str]],
    python: Callable[[Contender], str] = python_of,
    tell: Callable[[str], None] = lambda text: None,
) -> Match:
    """Let the desks play; `places` are the stores of each desk by its name, as paths or URLs."""
    absent: dict[str, str] = {}
    with provider() as url, ExitStack() as stack:
        present: list[Process] = []
        for each in desks:
            tell(f"{each.name} gets ready")
            process = _started(stack, _with_stores(each, places.get(each.name, {})), python, url, absent)
            present += [process] if process else []
        table = Table(present, asked, absent)
        tell("warming up")
        table.warm_up()
        samples = table.rounds(rounds, longest_s, tell)
    versions = {process.contender.name: process.versions for process in present}
    return Match(samples=tuple(samples), versions=versions, absent=absent)


def _with_stores(desk: Contender, places: Mapping[str, str]) -> Contender:
    told = (f"{store}={place}" for store, place in places.items())
    return attrs.evolve(desk, arguments=(*desk.arguments, *told))


def _started(
    stack: ExitStack, desk: Contender, python: Callable[[Contender], str], url: str, absent: dict[str, str]
) -> Process | None:
    environ = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "LANGSMITH_TRACING": "false"}
    try:
        process = stack.enter_context(Process(desk, python=python(desk), environ=environ))
        process.introduce()
    except (NotInstalled, ContenderFailed, OSError) as failure:
        absent[desk.name] = str(failure)
        return None
    return process


class Table:
    """Where those who came play."""

    def __init__(self, present: Sequence[Process], asked: Sequence[Case], absent: dict[str, str]) -> None:
        self._present, self._asked, self._absent = present, asked, absent

    def warm_up(self) -> None:
        """A few tickets on every store, awaited and watched."""
        few = min([WARM_UP, *(case.tickets for case in self._asked)])
        for case in dict.fromkeys(attrs.evolve(case, at_once=few, tickets=few) for case in self._asked):
            for process in self._present:
                self._sample(process, case)

    def rounds(self, most: int, longest_s: float, tell: Callable[[str], None]) -> list[Sample]:
        """The samples of so many rounds, or of those there is time for."""
        samples: list[Sample] = []
        begun = time.perf_counter()
        for number in range(most):
            took = time.perf_counter() - begun
            if number >= FEWEST_ROUNDS and took * (number + 1) / number > longest_s:
                tell(f"no time for round {number + 1}")
                break
            tell(f"round {number + 1} of {most}")
            samples += self._round(number)
        return samples

    def _round(self, number: int) -> Iterator[Sample]:
        turn = number % max(len(self._present), 1)
        for case in self._asked:
            for process in (*self._present[turn:], *self._present[:turn]):
                if sample := self._sample(process, case):
                    yield sample

    def _sample(self, process: Process, case: Case) -> Sample | None:
        name = process.contender.name
        here = f"{name}, {case.store}, {case.way}"
        if case.store not in process.works or here in self._absent:
            return None
        try:
            process.revive()
            answer = process.ask(attrs.asdict(case))
        except ContenderFailed as failure:
            self._absent[here] = str(failure)
            return None
        return Sample(desk=name, case=case, **{**answer, "latencies": tuple(answer["latencies"])})
