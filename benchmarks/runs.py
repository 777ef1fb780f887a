"""Cost of one run as it grows, latency of a caller, and throughput of a fleet: SQLite and Postgres.

    python -m benchmarks.runs [--databases sqlite postgres] [--items 10000 100000] [--workers 1 2 4] [--quick]

A context grows by 1 KB a turn; a map of many items is interrupted before its last item and resumed; a caller submits
one run at a time to an idle worker and waits for it; workers execute tiny runs while another process submits them.
CPU is that of the processes named. Times of a busy machine are high, and its ratios hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from benchmarks.charts import Line, line_chart
from benchmarks.fleet import alone, cpu_of, workers
from flujo_actors import Flujo, RunClient, Step

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
TURNS = (30, 100, 300, 1_000)
ITEMS = (10_000, 30_000, 100_000)

Points = dict[int, dict[str, float]]
"""Measures by size."""


class Log(BaseModel):
    """Context that grows."""

    lines: list[str] = []


async def _append(number: int, *, context: Log) -> int:
    context.lines.append("y" * 1000)
    return number + 1


async def _read(number: int, *, context: Log) -> int:
    return number + len(context.lines)


def context_growth(url: str, size: Callable[[], int], turns: int) -> dict[str, float]:
    """Return bytes, CPU and time of the state of a run whose context grows by 1 KB a turn."""
    loop = Step.loop_until("turns", Step("add", _append), lambda n, _: n >= turns, max_loops=turns)
    flujo, before, began = Flujo(loop, context_model=Log, store=url), size(), time.process_time()
    flujo.run(0, run_id=f"turns {turns}")
    cpu = time.process_time() - began
    stored, began = size() - before, time.process_time()
    RunClient(url).state(f"turns {turns}")
    return {"stored KB": stored / 1e3, "CPU ms": cpu * 1e3, "state ms, CPU": (time.process_time() - began) * 1e3}


def context_reads(url: str, size: Callable[[], int]) -> float:
    """Return the bytes that 100 steps store that only read a context of 1 MB."""
    chain = _chain([Step(f"read {number}", _read) for number in range(100)])
    flujo, before = Flujo(chain, context_model=Log, store=url), size()
    flujo.run(0, context={"lines": ["y" * 1000] * 1000}, run_id="reads")
    return size() - before


def _chain(steps: Sequence[Step]) -> Any:
    chain: Any = steps[0]
    for step in steps[1:]:
        chain = chain >> step
    return chain


# --- maps -----------------------------------------------------------------------------------------------------------


async def work(item: int) -> int:
    if item == _LAST:
        os._exit(9)
    return item


_LAST = int(os.environ.get("BENCH_LAST", -1))


def mapped(url: str) -> Flujo[Any, Any, Any]:
    """Return a map whose process dies in its last item, where the environment names one."""
    return Flujo(Step.map_over("all", Step("work", work), max_concurrency=100), store=url)


def map_growth(url: str, items: int) -> dict[str, float]:
    """Return memory and CPU of a map that dies in its last item, and of its resume, each in its own process."""
    died = _in_process(f"mapped({url!r}).run(list(range({items})), run_id='map {items}')", last=items - 1)
    assert died is None
    resumed = _in_process(f"mapped({url!r}).resume('map {items}')", last=-1)
    assert resumed is not None
    return {"resume CPU ms": resumed[0] * 1e3, "resume memory MB": resumed[1]}


def _in_process(statement: str, *, last: int) -> tuple[float, float] | None:
    """Return CPU seconds and MB of a statement in a new process; None if it died."""
    code = (
        "import resource, time; from benchmarks.runs import *; began = time.process_time(); "
        f"{statement}; print(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    environ = {**os.environ, "BENCH_LAST": str(last)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return None
    cpu, memory = done.stdout.split()
    return float(cpu), float(memory)


# --- callers and fleets ---------------------------------------------------------------------------------------------


def wait_latency(url: str, engine: str | None, *, times: int) -> tuple[float, float]:
    """Return the median and the largest milliseconds from a submission to the return of `wait`."""
    with workers(1, url, engine or "", "runs"):
        flujo, client, took = alone(url, engine), RunClient(url), []
        client.wait(flujo.submit_sync(0), timeout=60)
        for number in range(times):
            began = time.perf_counter()
            client.wait(flujo.submit_sync(number), timeout=60)
            took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took), max(took)


SUBMIT = """
import os, time
from benchmarks.fleet import runs
runs.submit_sync(0, queue="none")
input()
began = time.perf_counter()
for number in range({count}):
    runs.submit_sync(number)
print(time.perf_counter() - began)
"""


def throughput(url: str, engine: str, count: int, runs: int) -> dict[str, float]:
    """Return runs a second, and CPU of the workers per run, while another process submits."""
    environ = {**os.environ, "BENCH_STORE": url, "BENCH_ENGINE": engine}
    command = [sys.executable, "-c", SUBMIT.format(count=runs)]
    with workers(count, url, engine, "runs") as pids:
        submitter = subprocess.Popen(
            command, env=environ, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        client = RunClient(url)
        while not client.list(queue="none", limit=1):
            time.sleep(0.05)
        before, began = cpu_of(pids), time.perf_counter()
        submitter.communicate("\n")
        while any(queue.name == "default" and (queue.depth or queue.running) for queue in client.queues()):
            time.sleep(0.02)
        took = time.perf_counter() - began
        return {"runs a second": runs / took, "worker CPU ms per run": (cpu_of(pids) - before) * 1e3 / runs}


# --- report ---------------------------------------------------------------------------------------------------------


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the power of the size that a measure follows between the last two points."""
    (x0, y0), (x1, y1) = points[-2:]
    return math.log(max(y1, 1e-6) / max(y0, 1e-6)) / math.log(x1 / x0)


def report(name: str, unit: str, found: Points) -> str:
    """Return the table of one growth."""
    sizes = sorted(found)
    rows = [
        f"| {name} | {' | '.join(f'{size:,} {unit}' for size in sizes)} | exponent |",
        "|---|" + "--:|" * (len(sizes) + 1),
    ]
    for measure in found[sizes[0]]:
        points = [(float(size), found[size][measure]) for size in sizes]
        power = f"{exponent(points):.2f}" if len(points) > 1 else ""
        rows.append(f"| {measure} | {' | '.join(f'{cost:.3g}' for _, cost in points)} | {power} |")
    return "\n".join(rows)


def draw(name: str, title: str, axis: str, found: Points, images: Path) -> None:
    """Write the curves of one growth."""
    measures = list(next(iter(found.values())))
    lines = [Line(each, tuple((size, found[size][each]) for size in sorted(found)), ours=True) for each in measures]
    images.mkdir(parents=True, exist_ok=True)
    (images / f"growth-{name}.svg").write_text(line_chart(title, axis, "milliseconds, KB, MB", lines), encoding="utf-8")


def sqlite_bytes(path: Path) -> int:
    """Return the bytes of a SQLite file with its log."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def postgres_bytes(url: str) -> int:
    """Return the bytes of the tables of records and long bodies."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        tables = "'flujo_records', 'flujo_blobs'"
        [(size,)] = db.execute(
            f"SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relname IN ({tables})".encode()
        ).fetchall()
    return int(size)


def _places(database: str, directory: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield new stores as their address and their size."""
    if database == "sqlite":
        for number in itertools.count():
            path = directory / f"{number}.db"
            yield f"sqlite:///{path}", lambda path=path: sqlite_bytes(path)
    sys.path.insert(0, str(ROOT / "tests"))
    from kit.postgres_server import session_server

    while True:
        url = session_server().fresh_url()
        yield url, lambda url=url: postgres_bytes(url)


def measured(database: str, directory: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return all measures of one database, and print their tables."""
    places, data = _places(database, directory), {}
    contexts = {turns: context_growth(*next(places), turns) for turns in given.turns}
    print(report(f"A context that grows by 1 KB a turn, {database}", "turns", contexts), flush=True)
    maps = {items: map_growth(next(places)[0], items) for items in given.items}
    print(report(f"Resume of a map before its last item, {database}", "items", maps), flush=True)
    engine = "postgres" if database == "postgres" else None
    median, largest = wait_latency(next(places)[0], engine, times=given.times)
    print(f"submit and wait, {database}: median {median:.1f} ms, largest {largest:.1f} ms of {given.times}", flush=True)
    data |= {"contexts": contexts, "maps": maps, "wait": {"median ms": median, "largest ms": largest}}
    data["reads"] = context_reads(*next(places))
    print(f"100 steps that read a context of 1 MB, {database}: {data['reads'] / 1e6:.2f} MB stored", flush=True)
    if engine is not None:
        fleet = {count: throughput(next(places)[0], engine, count, given.runs) for count in given.workers}
        print(report("Tiny runs beside a submitting process", "workers", fleet), flush=True)
        data["fleet"] = fleet
    return data


def main() -> int:
    """Measure, print the tables, and write curves and data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgres"], choices=["sqlite", "postgres"])
    parser.add_argument("--turns", type=int, nargs="+", default=TURNS)
    parser.add_argument("--items", type=int, nargs="+", default=ITEMS)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--runs", type=int, default=500, help="tiny runs of a fleet")
    parser.add_argument("--times", type=int, default=40, help="submissions that are waited for")
    parser.add_argument("--images", type=Path, default=IMAGES)
    parser.add_argument("--quick", action="store_true", help="a look whether all goes well, in a minute or so")
    given = parser.parse_args()
    if given.quick:
        given.turns, given.items, given.workers, given.runs, given.times = [10, 30], [500, 1_000], [1], 50, 5
    data, directory = {}, Path(tempfile.mkdtemp())
    try:
        for database in given.databases:
            data[database] = measured(database, directory, given)
            draw(
                f"context-{database}",
                f"A context that grows ({database})",
                "turns",
                data[database]["contexts"],
                given.images,
            )
            draw(f"map-{database}", f"Resume of a map ({database})", "items", data[database]["maps"], given.images)
    finally:
        shutil.rmtree(directory)
    (given.images / "growth-runs.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
