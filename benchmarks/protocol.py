"""A contender's side of the conversation with the driver. Standard library only: peers import it too.

1. A contender is a process that talks in JSON lines. It first says what it is:
   `{"versions": {"trio": "0.30"}, "works": ["chain", …]}`
2. Then it answers requests, one at a time, until its input ends:
   `{"work": "chain", "size": 100, "rounds": 20, "clock": "wall"}` -> `{"amount": 0.0512}`, or `{"error": "…"}`
3. The amount is what all rounds took together: seconds, bytes or calls, as the work says. The clock is `wall`,
   or `cpu` where other programs keep the machine busy.
4. Whatever libraries print goes to standard error, so that the conversation stays clean.
"""

import asyncio
import gc
import importlib.metadata
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

Measure = Callable[[int, int], float]
"""Does the work of a size, some rounds of it, and returns the amount."""

Job = Callable[[], Coroutine[Any, Any, object]]
"""One round of a work."""

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

Run = Callable[[Callable[[], Coroutine[Any, Any, float]]], float]
"""Runs an async function to its end: `trio.run`, or `asyncio.run` behind a lambda."""


def serve(works: Mapping[str, Measure], packages: Iterable[str] = ()) -> None:
    """Answer the driver's requests until it hangs up."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # also for those who took hold of standard output before
    _say(answers, {"versions": package_versions(packages), "works": sorted(works)})
    for line in sys.stdin:
        request = json.loads(line)
        _stopwatch.read = CLOCKS[request["clock"]]
        gc.collect()
        _say(answers, _answer(works[request["work"]], request["size"], request["rounds"]))


def _answer(measure: Measure, size: int, rounds: int) -> dict[str, Any]:
    try:
        return {"amount": measure(size, rounds)}
    except Exception as error:  # whatever a contender dies of belongs in the table, not in a traceback
        return {"error": f"{type(error).__name__}: {error}"}


def _say(out: IO[str], message: dict[str, Any]) -> None:
    print(json.dumps(message), file=out, flush=True)


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """The releases of these packages, and of Python."""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, **{name: importlib.metadata.version(name) for name in packages}}


# --- measuring --------------------------------------------------------------------------------------------------


class _Stopwatch:
    """The clock that the current request asked for."""

    read = staticmethod(time.perf_counter)


_stopwatch = _Stopwatch()


def now() -> float:
    """Seconds by the clock of the current request."""
    return _stopwatch.read()


def in_asyncio(main: Callable[[], Coroutine[Any, Any, float]]) -> float:
    """Runs an async function on asyncio, as a `Run`."""
    return asyncio.run(main())


def seconds(run: Run, job: Job, rounds: int) -> float:
    """How long the rounds take, inside a loop that runs already."""

    async def main() -> float:
        begun = _stopwatch.read()
        for _ in range(rounds):
            await job()
        return _stopwatch.read() - begun

    return run(main)


def on_asyncio(**prepare: Callable[[int], Job]) -> dict[str, Measure]:
    """Works of an asyncio library; what makes a job of a size ready for it is not measured."""

    def measure(prepared: Callable[[int], Job]) -> Measure:
        return lambda size, rounds: seconds(in_asyncio, prepared(size), rounds)

    return {name: measure(prepared) for name, prepared in prepare.items()}


def peak_on_asyncio(prepared: Callable[[int], Job]) -> Measure:
    """How much memory a job of an asyncio library needs at its peak."""
    return lambda size, rounds: peak_bytes(in_asyncio, prepared(size))


def peak_bytes(run: Run, job: Job) -> float:
    """How much memory one round needs at its peak, beyond what was there before."""

    async def main() -> float:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        await job()
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        return run(main)
    finally:
        tracemalloc.stop()


def importing(module: str) -> Measure:
    """How long an import takes in a fresh interpreter that finds everything compiled, as after an installation."""

    def measure(size: int, rounds: int) -> float:
        clock = _stopwatch.read.__name__
        code = f"from time import {clock} as now; begun = now(); import {module}; print(now() - begun)"
        command, environment = [sys.executable, "-c", code], _keeping_bytecode()
        subprocess.check_call([sys.executable, "-c", f"import {module}"], env=environment)
        return sum(float(subprocess.check_output(command, env=environment, text=True)) for _ in range(rounds))

    return measure


def _keeping_bytecode() -> dict[str, str]:
    """The environment of interpreters that share what they compile; some machines are told not to keep it."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(SCRATCH / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


# --- databases --------------------------------------------------------------------------------------------------

SCRATCH = Path(__file__).parent / "results"
"""Beside the project's files, since a directory for temporary ones is often not on a disk."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory on the disk for one sample."""
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH, prefix="scratch-") as directory:
        yield Path(directory)


def safest(db: sqlite3.Connection) -> sqlite3.Connection:
    """The connection with the setting that everybody is measured with: WAL, and an fsync at every commit."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    return db


def added_bytes(write: Callable[[Path, int], object]) -> Measure:
    """How much larger the database of a run of so many steps is than that of a run of one step, without its log."""

    def measure(size: int, rounds: int) -> float:
        with scratch() as directory:
            write(directory / "one.db", 1)
            write(directory / "many.db", size)
            return rounds * (_database_bytes(directory / "many.db") - _database_bytes(directory / "one.db"))

    return measure


def _database_bytes(path: Path) -> float:
    db = sqlite3.connect(path)
    try:
        (pages,), (page,) = db.execute("PRAGMA page_count").fetchone(), db.execute("PRAGMA page_size").fetchone()
    finally:
        db.close()
    return float(pages * page)
