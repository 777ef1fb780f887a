"""Cost of one call in a store of many runs: SQLite and Postgres, with the curves.

    python -m benchmarks.stored [--sizes 1000 10000 100000 1000000] [--databases sqlite postgres]

The runs are made by SQL: half of them paused with an open question, the others ended. Each figure is the minimum of
several calls. Calls of a page, a worker or a caller must be flat; counts and deletions may grow with their runs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from benchmarks.charts import Line, line_chart
from flujo_actors import Flujo, Pipeline, RunClient, Step, UsageLimits
from flujo_actors._core.records.records import Admission, ClaimOrder
from flujo_actors.stores import PostgresStore, RunQuery, SqliteStore, Store

IMAGES = Path(__file__).parents[1] / "docs" / "images"
EPOCH = 1_700_000_000.0
SIZES = (1_000, 10_000, 100_000, 1_000_000)

_COLUMNS = "run_id, pipeline, status, created_at, updated_at, epoch, lease_until, queue, ended_at"
_ROW = f"""
    'run-' || i, 'p' || (i % 20),
    CASE WHEN i % 100 = 0 THEN 'failed' WHEN i % 2 = 1 THEN 'paused' ELSE 'completed' END,
    {EPOCH} + i, {EPOCH} + i + 5, 1, 0, CASE WHEN i % 10 = 1 THEN 'gpu' END,
    CASE WHEN i % 2 = 0 THEN {EPOCH} + i + 5 END"""
_PAUSES = """
    INSERT INTO flujo_pauses (run, path, token, message, body)
    SELECT id, 'ask', 'token', 'May I?', '{"v":2,"step_name":"ask","message":"May I?"}' FROM flujo_runs
    WHERE status = 'paused'"""


def fill_sqlite(path: Path, runs: int) -> Store:
    """Return a store with that many runs in a file."""
    store = SqliteStore(path)
    store.find(RunQuery(limit=1))
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(
            f"""WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {runs})
                INSERT INTO flujo_runs ({_COLUMNS}, lease_boot, lease_from, records) SELECT {_ROW}, '', 0, 1 FROM n"""
        )
        db.execute(_PAUSES)
    return store


def fill_postgres(url: str, runs: int) -> Store:
    """Return a store with that many runs in a database."""
    import psycopg

    store = PostgresStore(url)
    store.find(RunQuery(limit=1))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            f"""INSERT INTO flujo_runs ({_COLUMNS}, run_hash, next_seq)
                SELECT {_ROW}, sha256(('run-' || i)::bytea), 2 FROM generate_series(1, {runs}) i""".encode()
        )
        db.execute(_PAUSES)
        db.execute("ANALYZE")
    return store


# --- measures -----------------------------------------------------------------------------------------------------


async def _add(number: int) -> int:
    return number + 1


@attrs.frozen
class FilledStore:
    """Store under measurement, with a pipeline that runs in it."""

    store: Store
    flujo: Flujo = attrs.field(init=False)
    client: RunClient = attrs.field(init=False)
    numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    @flujo.default
    def _new_flujo(self) -> Flujo:
        return Flujo(Pipeline((Step("one", _add), Step("two", _add)), name="measured"), store=self.store)

    @client.default
    def _new_client(self) -> RunClient:
        return RunClient(self.store)

    def poll(self) -> None:
        """Look for work, as an idle worker does."""
        self.store.claim_next(ClaimOrder(pipeline="p1", queues=("default",), limit=8), owner="poller", lease_s=30.0)
        self.store.orphans(pipeline="p1", host="nowhere", updated_before=time.time(), limit=8)


CALLS: dict[str, Callable[[FilledStore], object]] = {
    "list 50, created order": lambda at: at.client.list(order="created", limit=50),
    "list 50 failed": lambda at: at.client.list("failed", order="created", limit=50),
    "list 50 of a pipeline": lambda at: at.client.list(pipeline="p2", order="created", limit=50),
    "list 50 waiting": lambda at: at.client.list(state="waiting", order="created", limit=50),
    "search by prefix": lambda at: at.client.list(search="run-9", order="created", limit=50),
    "50 open questions": lambda at: at.client.prompts(limit=50),
    "get one run": lambda at: at.client.get("run-7"),
    "submit": lambda at: at.flujo.submit_sync(1, run_id=f"s{next(at.numbers)}", queue="measured"),
    "run two steps": lambda at: at.flujo.run(1, run_id=f"r{next(at.numbers)}"),
    "poll of an idle worker": FilledStore.poll,
    "recover, nothing to do": lambda at: at.flujo.recover(),
    "expire, nothing due": lambda at: at.client.expire(),
}
"""Calls whose cost must not depend on the number of stored runs."""

SCANS: dict[str, Callable[[FilledStore], object]] = {
    "counts of all states": lambda at: at.store.groups(),
    "queues": lambda at: at.client.queues(),
}
"""Calls that read an index of all open runs."""


def milliseconds(call: Callable[[], object], *, times: int, clock: Callable[[], float]) -> float:
    """Return the least time of a call."""
    found = []
    for _ in range(times):
        began = clock()
        call()
        found.append(clock() - began)
    return min(found) * 1e3


def measured(store: Store, *, times: int = 7, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return the milliseconds of each call in a filled store."""
    at = FilledStore(store)
    at.flujo.run(1, run_id="warm")
    found = {}
    for name, call in {**CALLS, **SCANS}.items():
        call(at)
        found[name] = milliseconds(lambda call=call: call(at), times=times, clock=clock)
    return found


def recovery_ms(store: Store, orphans: int) -> float:
    """Return the CPU milliseconds that each orphan of a dead process takes."""
    at = FilledStore(store)
    at.flujo.run(1, run_id="seed")
    body = store.read("seed")[0].body
    for first in range(0, orphans, 500):
        ids = [f"o{number}" for number in range(first, min(orphans, first + 500))]
        lost = [Admission(run_id=each, pipeline="measured", body=body) for each in ids]  # type: ignore[arg-type]
        store.admit_all(lost, owner="dead", lease_s=0.001)
    began = time.process_time()
    recovered = at.flujo.recover()
    assert len(recovered) == orphans
    return (time.process_time() - began) * 1e3 / orphans


def turn_ms(store: Store, turns: int) -> tuple[float, float]:
    """Return the CPU milliseconds of early and of late turns of a loop with `keep_history`."""
    times: list[float] = []

    async def add(number: int) -> int:
        times.append(time.process_time())
        return number + 1

    loop = Step.loop_until("loop", Step("add", add), lambda n, _: n >= turns, max_loops=None, keep_history=5)
    Flujo(loop, store=store, usage_limits=UsageLimits()).run(0)
    each = [(after - before) * 1e3 for before, after in itertools.pairwise(times)]
    part = max(10, turns // 10)
    return _median(each[10 : 10 + part]), _median(each[-part:])


def deletion_ms(store: Store, runs: int) -> float:
    """Return the milliseconds that the deletion of each run takes, in batches."""
    client, began = RunClient(store), time.perf_counter()
    deleted = client.forget(older_than_s=0, statuses=("completed",))
    assert deleted >= runs // 3
    return (time.perf_counter() - began) * 1e3 / deleted


def floors(directory: Path) -> dict[str, float]:
    """Return the milliseconds of one synced write, and of one checkpoint of a loop."""
    import os

    import trio

    with open(directory / "floor", "wb", buffering=0) as file:

        def sync() -> None:
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())

        synced = milliseconds(sync, times=20, clock=time.perf_counter)

    async def checkpoints() -> float:
        began = time.perf_counter()
        for _ in range(10_000):
            await trio.lowlevel.checkpoint()
        return (time.perf_counter() - began) * 1e3 / 10_000

    return {"one synced write": synced, "one checkpoint of trio": trio.run(checkpoints)}


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


# --- growth -------------------------------------------------------------------------------------------------------


def exponent(points: list[tuple[float, float]]) -> float:
    """Return the power of the size that the cost follows between the last two points."""
    (x0, y0), (x1, y1) = points[-2:]
    return math.log(max(y1, 1e-6) / max(y0, 1e-6)) / math.log(x1 / x0)


def report(name: str, found: dict[int, dict[str, float]]) -> str:
    """Return the table of one database."""
    sizes = sorted(found)
    rows = [
        f"| {name} | {' | '.join(f'{size:,} runs' for size in sizes)} | exponent |",
        "|---|" + "--:|" * (len(sizes) + 1),
    ]
    for measure in found[sizes[0]]:
        points = [(float(size), found[size][measure]) for size in sizes]
        cells = " | ".join(f"{cost:.3g}" for _, cost in points)
        rows.append(f"| {measure} | {cells} | {exponent(points):.2f} |")
    return "\n".join(rows)


def draw(name: str, found: dict[int, dict[str, float]], images: Path) -> None:
    """Write the curves of one database."""
    measures = list(next(iter(found.values())))
    lines = [Line(each, tuple((size, found[size][each]) for size in sorted(found)), ours=True) for each in measures]
    svg = line_chart(f"Calls in a store of many runs ({name})", "stored runs", "milliseconds", lines)
    (images / f"growth-store-{name}.svg").write_text(svg, encoding="utf-8")


def _places(database: str, directory: Path) -> Iterator[Callable[[int], Store]]:
    if database == "sqlite":
        yield from itertools.repeat(lambda runs: fill_sqlite(directory / f"{runs}.db", runs))
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from kit.postgres_server import session_server

    server = session_server()
    yield from itertools.repeat(lambda runs: fill_postgres(server.fresh_url(), runs))


def main() -> int:
    """Measure, print the tables, and write curves and data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgres"], choices=["sqlite", "postgres"])
    parser.add_argument("--images", type=Path, default=IMAGES)
    asked = parser.parse_args()
    data: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        data["floors"] = floors(Path(directory))
        print(json.dumps(data["floors"]))
        for database in asked.databases:
            place, found = next(_places(database, Path(directory))), {}
            for size in asked.sizes:
                store = place(size)
                found[size] = measured(store)
                found[size]["recovery of an orphan, CPU"] = recovery_ms(store, 500)
                found[size]["deletion of a run"] = deletion_ms(store, size)
                store.close()
                print(f"{database} {size:,} done", flush=True)
            early, late = turn_ms(place(1), 2_000)
            data[database] = {"calls": found, "turns": {"early": early, "late": late}}
            print(report(database, found), f"\nturn with keep_history, CPU: {early:.3f} ms early, {late:.3f} ms late\n")
            draw(database, found, asked.images)
    (asked.images / "growth-store.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
