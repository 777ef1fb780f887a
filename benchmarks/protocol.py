"""A contender's side of the conversation with the driver. Standard library only: peers import it too.

1. A contender is a process that talks in JSON lines. It first says what it is:
   `{"versions": {"trio": "0.30"}, "works": ["chain", …]}`
2. Then it answers requests, one at a time, until its input ends:
   `{"work": "chain", "size": 100, "rounds": 20, "clock": "wall"}` -> `{"amount": 0.0512}`, or `{"error": "…"}`
3. The amount is what all rounds took together: seconds, bytes or calls, as the work says. The clock is `wall`,
   or `cpu` where other programs keep the machine busy.
4. Whatever libraries print goes to standard error, so that the conversation stays clean.
"""

import gc
import importlib.metadata
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterable, Mapping
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
    answers, sys.stdout = sys.stdout, sys.stderr
    _say(answers, {"versions": _versions(packages), "works": sorted(works)})
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


def _versions(packages: Iterable[str]) -> dict[str, str]:
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, **{name: importlib.metadata.version(name) for name in packages}}


# --- measuring --------------------------------------------------------------------------------------------------


class _Stopwatch:
    """The clock that the current request asked for."""

    read = staticmethod(time.perf_counter)


_stopwatch = _Stopwatch()


def seconds(run: Run, job: Job, rounds: int) -> float:
    """How long the rounds take, inside a loop that runs already."""

    async def main() -> float:
        begun = _stopwatch.read()
        for _ in range(rounds):
            await job()
        return _stopwatch.read() - begun

    return run(main)


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
    """How long an import takes in a fresh interpreter."""

    def measure(size: int, rounds: int) -> float:
        clock = _stopwatch.read.__name__
        code = f"from time import {clock} as now; begun = now(); import {module}; print(now() - begun)"
        command = [sys.executable, "-c", code]
        return sum(float(subprocess.check_output(command, text=True)) for _ in range(rounds))

    return measure
