"""`python -m benchmarks.operate`: listings, labels, questions and totals of stores with many runs.

Each query is measured in a small and in a large store, in milliseconds, as the median of several calls. A listing
that costs the same in both is one that uses an index.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flujo_actors import RunClient, RunFilter
from flujo_actors.stores import SqliteStore, Store, open_store

SMALL = 10_000
DAYS = 30

COLUMNS = "run_id, pipeline, status, created_at, updated_at, epoch, lease_until, queue, started_at, ended_at, worked_s"
ROW = """
    'run-' || i, 'p' || (i % 20),
    CASE WHEN i % 200 = 1 THEN 'paused' WHEN i % 200 = 2 THEN 'running'
         WHEN i % 100 = 0 THEN 'failed' ELSE 'completed' END,
    {first} + i * {gap}, {first} + i * {gap} + 5, CASE WHEN i % 200 = 2 THEN 0 ELSE 1 END, 0,
    CASE WHEN i % 10 = 1 OR i % 200 = 2 THEN 'gpu' END, {first} + i * {gap} + 1,
    CASE WHEN i % 200 IN (1, 2) THEN NULL ELSE {first} + i * {gap} + 5 END, i % 7"""

PAUSES = """
    INSERT INTO flujo_pauses (run, path, token, message, body)
    SELECT id, 'ask', 'token', 'May I?', '{{"v": 1}}' FROM flujo_runs WHERE status = 'paused'"""

LABELS = """
    INSERT INTO flujo_labels (name, value, run)
    SELECT 'tenant', CASE WHEN id % 2 = 0 THEN 'big' ELSE 't' || (id % 1000) END, id FROM flujo_runs
    UNION ALL SELECT 'env', 'prod', id FROM flujo_runs"""
"""Half of the runs belong to one tenant."""

QUERIES: dict[str, Callable[[RunClient], object]] = {
    "list, created order": lambda client: client.list(order="created", limit=50),
    "list, updated order": lambda client: client.list(limit=50),
    "list by status": lambda client: client.list("failed", order="created", limit=50),
    "list by pipeline": lambda client: client.list(pipeline="p2", order="created", limit=50),
    "list by id prefix": lambda client: client.list(search="run-123", order="created", limit=50),
    "label of half the runs": lambda client: client.list(labels={"tenant": "big"}, order="created", limit=50),
    "label of few runs": lambda client: client.list(labels={"tenant": "t7"}, order="created", limit=50),
    "label of no run": lambda client: client.list(labels={"tenant": "none"}, order="created", limit=50),
    "label and status": lambda client: client.list("failed", labels={"tenant": "big"}, order="created", limit=50),
    "two labels": lambda client: client.list(labels={"tenant": "big", "env": "prod"}, order="created", limit=50),
    "label, updated order": lambda client: client.list(labels={"tenant": "big"}, limit=50),
    "page of questions": lambda client: client.questions(limit=50),
    "queues": lambda client: client.queues(),
    "totals of a day": lambda client: client.totals(("pipeline", "day"), since="1d"),
    "totals of a tenant": lambda client: client.totals(("day",), where=RunFilter(labels={"tenant": "t7"})),
    "totals of 30 days": lambda client: client.totals(("pipeline", "day")),
}


def fill_sqlite(path: str, runs: int) -> None:
    """Write runs, questions and labels into a new SQLite store."""
    RunClient(SqliteStore(path)).list(limit=1)
    gap = DAYS * 86_400 / runs
    with sqlite3.connect(path) as db:
        row = ROW.format(first=time.time() - DAYS * 86_400, gap=gap)
        db.execute(
            f"""WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {runs})
                INSERT INTO flujo_runs ({COLUMNS}, lease_boot, lease_from, records) SELECT {row}, '', 0, 1 FROM n"""
        )
        db.execute(PAUSES.format())
        db.execute(LABELS)
    db.close()


def fill_postgres(url: str, runs: int) -> None:
    """Write the same into an empty Postgres database."""
    import psycopg

    store = open_store(url)
    store.admit_all([], owner=None, lease_s=0.0)
    RunClient(store).list(limit=1)
    gap = DAYS * 86_400 / runs
    with psycopg.connect(url, autocommit=True) as db:
        row = ROW.format(first=time.time() - DAYS * 86_400, gap=gap)
        db.execute(
            f"""INSERT INTO flujo_runs ({COLUMNS}, run_hash, next_seq)
                SELECT {row}, sha256(i::text::bytea), 2 FROM generate_series(1, {runs}) i""".encode()
        )
        db.execute(PAUSES.format().encode())
        db.execute(LABELS.encode())
        db.execute("ANALYZE")


def measured(client: RunClient, calls: int = 5) -> Iterator[tuple[str, float]]:
    """Yield the median of each query in milliseconds."""
    for name, query in QUERIES.items():
        spans = []
        for _ in range(calls):
            began = time.perf_counter()
            query(client)
            spans.append((time.perf_counter() - began) * 1000)
            if spans[-1] > 1000:
                break
        yield name, statistics.median(spans)


@contextmanager
def stores(asked: argparse.Namespace) -> Iterator[list[Store]]:
    """Yield a small and a large store."""
    sizes = (SMALL, asked.runs)
    if asked.postgres:
        for url, size in zip(asked.postgres, sizes, strict=True):
            fill_postgres(url, size)
        yield [open_store(url) for url in asked.postgres]
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{size}.db") for size in sizes]
        for path, size in zip(paths, sizes, strict=True):
            fill_sqlite(path, size)
        yield [SqliteStore(path) for path in paths]


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operate", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000, help="number of runs in the large store")
    parser.add_argument("--postgres", nargs=2, metavar="URL", help="two empty databases, instead of SQLite files")
    asked = parser.parse_args(argv)
    with stores(asked) as opened:
        small, large = (dict(measured(RunClient(store))) for store in opened)
    print(f"| query | {SMALL:,} runs | {asked.runs:,} runs |\n|---|---|---|")
    for name in QUERIES:
        print(f"| {name} | {small[name]:.1f} ms | {large[name]:.1f} ms |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
