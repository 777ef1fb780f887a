"""Asks contenders to work, in turns.

1. Every contender is one process for the whole benchmark; only one of them works at a time.
2. A repetition is one sample of each contender, and the order rotates: what disturbs the machine for a while
   disturbs all of them.
3. First, smaller samples warm a contender up and are thrown away. They also tell what the work will take: whoever
   is slow gets fewer repetitions, and a work that can be divided gets smaller for them. The table says so.
4. A contender that cannot be installed, does not start, dies or takes too long is listed with its error. One that
   died over a work is started again for the next one.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs

from benchmarks.environments import NotInstalled, python_of
from benchmarks.figures import Figure
from benchmarks.roster import Contender
from benchmarks.works import Work

ROOT = Path(__file__).parents[1]
LONGEST_SAMPLE_S = 2.0
LONGEST_FIGURE_S = 4.0
"""How long one contender may take for all repetitions of one work."""
PATIENCE_S = 60.0
"""How long one contender may take for one sample."""
WARM_UP = 0.1


class ContenderFailed(Exception):
    """A contender could not do its work; the message says why."""


def shortened(text: str, most: int = 160) -> str:
    """The text in one line of a table."""
    line = " ".join(text.replace("|", "/").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


class Process:
    """One contender at work."""

    def __init__(
        self,
        contender: Contender,
        *,
        clock: str = "wall",
        python: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.contender = contender
        self._environ = {**os.environ, **(environ or {})}
        self._command = (python or sys.executable, *contender.arguments)
        self.versions: dict[str, str] = {}
        self.works: frozenset[str] = frozenset()
        self._clock = clock

    def __enter__(self) -> Self:
        self._complaints = tempfile.TemporaryFile("w+")
        self._start()
        return self

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self._end()
        self._complaints.close()

    def _end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def introduce(self) -> None:
        """Wait until the contender has said what it is."""
        said = self._listen()
        self.versions, self.works = said["versions"], frozenset(said["works"])

    def revive(self) -> None:
        """Start again, if it has died."""
        if self._process.poll() is not None:
            self._end()
            self._start()
            self.introduce()

    def measure(self, work: Work) -> float:
        """One sample: the amount per unit of work."""
        clock = work.clock or self._clock
        answer = self.ask({"work": work.name, "size": work.size, "rounds": work.rounds, "clock": clock})
        return work.each(answer["amount"])

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the contender answers to one request."""
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise ContenderFailed(self._last_words()) from None
        answer = self._listen()
        if "error" in answer:
            raise ContenderFailed(shortened(answer["error"]))
        return answer

    def _listen(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        alarm = threading.Timer(PATIENCE_S, self._process.kill)
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        if not line:
            raise ContenderFailed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        self._complaints.seek(0)
        lines = self._complaints.read().strip().splitlines()
        return shortened(lines[-1]) if lines else f"it ended with code {code}, or took longer than {PATIENCE_S:g} s"


@attrs.define
class Entry:
    """One contender on its way through one work."""

    process: Process
    work: Work
    each: list[float] = attrs.field(factory=list)
    error: str | None = None
    divided: bool = False

    def warm_up(self) -> None:
        """Throw small samples away and fit the work to what the last of them took."""
        self._try(self.process.revive)
        if self.error is None:
            self._try(lambda: self._fit(self._small_sample()))

    def _small_sample(self) -> float:
        small = self.work.scaled(WARM_UP)
        each = self.process.measure(small)
        first_was_long = not small.timed or each * small.size * small.rounds > LONGEST_SAMPLE_S
        return each if first_was_long else self.process.measure(small)

    def _fit(self, each: float) -> None:
        asked, self.work = self.work, fitted(self.work, each)
        self.divided = self.work.size != asked.size
        expected = each * self.work.size * self.work.rounds
        if self.work.timed and expected > PATIENCE_S:
            raise ContenderFailed(f"would take about {expected:,.0f} s by what a tenth of it took")

    def sample(self) -> None:
        """Take one sample more, if there is one left to take."""
        if self.error is None and len(self.each) < self.work.repetitions:
            self._try(lambda: self.each.append(self.process.measure(self.work)))

    def _try(self, attempt: Callable[[], object]) -> None:
        try:
            attempt()
        except ContenderFailed as failure:
            self.error = str(failure)

    def figure(self) -> Figure:
        """What came of it."""
        name = self.process.contender.name
        return Figure(work=self.work, contender=name, divided=self.divided, each=tuple(self.each), error=self.error)


def fitted(work: Work, each: float) -> Work:
    """The work as it can be asked of a contender that needs this much for each unit."""
    if not work.timed or each <= 0:
        return work
    size = min(work.size, max(1, int(LONGEST_SAMPLE_S / each))) if work.divisible else work.size
    expected = each * size * work.rounds
    repetitions = min(work.repetitions, max(1, int(LONGEST_FIGURE_S / expected)))
    return attrs.evolve(work, size=size, repetitions=repetitions)


def compete(processes: Sequence[Process], work: Work) -> list[Figure]:
    """The figures of all contenders that know this work."""
    entries = [Entry(process, work) for process in processes if work.name in process.works]
    for entry in entries:
        entry.warm_up()
    for repetition in range(work.repetitions):
        turn = repetition % len(entries) if entries else 0
        for entry in entries[turn:] + entries[:turn]:
            entry.sample()
    return [entry.figure() for entry in entries]


@attrs.frozen(kw_only=True)
class Outcome:
    """A whole benchmark."""

    figures: tuple[Figure, ...]
    versions: dict[str, dict[str, str]]
    absent: dict[str, str]
    """Contenders that did not start, with the reason."""


def benchmark(
    contenders: Iterable[Contender],
    works: Iterable[Work],
    *,
    clock: str = "wall",
    tell: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Let the contenders do the works."""
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        present = [
            process for contender in contenders if (process := _started(stack, contender, clock, absent)) is not None
        ]
        figures: list[Figure] = []
        for work in works:
            tell(work.title)
            figures += compete(present, work)
    versions: dict[str, dict[str, str]] = {}
    for process in present:
        versions.setdefault(process.contender.name, {}).update(process.versions)
    return Outcome(figures=tuple(figures), versions=versions, absent=absent)


def _started(stack: ExitStack, contender: Contender, clock: str, absent: dict[str, str]) -> Process | None:
    try:
        process = stack.enter_context(Process(contender, clock=clock, python=python_of(contender)))
        process.introduce()
    except (NotInstalled, ContenderFailed, OSError) as failure:
        absent[contender.name] = str(failure)
        return None
    return process
