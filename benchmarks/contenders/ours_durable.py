"""This library with a SQLite store, as it is by default: WAL, and an fsync at every commit."""

import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trio

from benchmarks.protocol import Measure, added_bytes, now, scratch, seconds, serve
from flujo_actors import Flujo, Pipeline, RunClient, SqliteStore, Step
from flujo_actors._core.settings_model import DurabilitySettings
from flujo_actors._durable.group_commit import JournalWriter, writer_for


async def agent(data: int) -> int:
    return data


def steps(size: int) -> Pipeline:
    return Pipeline(Step(f"s{number}", agent) for number in range(size))


@contextmanager
def stored(pipeline: Callable[[], Pipeline]) -> Iterator[tuple[Flujo, SqliteStore]]:
    """A pipeline with a new database, whose tables are there: the others make theirs before the clock starts, too."""
    with scratch() as directory:
        store = SqliteStore(directory / "runs.db")
        RunClient(store).list(limit=1)
        try:
            yield Flujo(pipeline(), store=store), store
        finally:
            store.close()


async def run_once(flujo: Flujo, data: object = 1) -> None:
    result = await flujo.run_async(data)
    assert result.success, result.feedback


async def run_many(flujo: Flujo, size: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(size):
            nursery.start_soon(run_once, flujo)


def writer_of(store: SqliteStore) -> JournalWriter:
    """The journal actor that the runs of the current trio run share."""
    return writer_for(store, lease_s=DurabilitySettings().lease_s)


# --- works ------------------------------------------------------------------------------------------------------


def durable_chain(size: int, rounds: int) -> float:
    with stored(partial(steps, size)) as (flujo, _):
        return seconds(trio.run, partial(run_once, flujo), rounds)


def durable_runs(size: int, rounds: int) -> float:
    with stored(partial(steps, 3)) as (flujo, _):
        return seconds(trio.run, partial(run_many, flujo, size), rounds)


def commits(size: int, rounds: int) -> float:
    """Commits for each record, while so many runs are under way; the driver divides by their number."""

    async def main() -> float:
        await run_many(flujo, size)
        writer = writer_of(store)
        return writer.commits / (writer.written + size)  # an admission is a record too

    with stored(partial(steps, 3)) as (flujo, store):
        return size * rounds * trio.run(main)


def write(path: Path, size: int) -> None:
    store = SqliteStore(path)
    Flujo(steps(size), store=store).run(1)
    store.close()


def payload(size: int, rounds: int) -> float:
    """A text of so many bytes through ten durable steps."""
    with stored(partial(steps, 10)) as (flujo, _):
        return seconds(trio.run, partial(run_once, flujo, "x" * size), rounds)


# --- history ----------------------------------------------------------------------------------------------------


def interrupted(size: int) -> Pipeline:
    """A pipeline that writes so many records and then asks."""
    body = Step("each", agent)
    many = Step.map_over("many", body, items=range(max(1, size - 7)), max_concurrency=100)
    return many >> Step("forget", lambda _: 0) >> Step.human_in_the_loop("ask", "Go on?")


HISTORIES = tempfile.TemporaryDirectory(prefix="flujo-bench-")


@functools.cache
def history(size: int) -> tuple[Path, str, int]:
    """A database with a paused run of so many records, where to send the answer, and how many there are."""
    path = Path(HISTORIES.name) / f"{size}.db"
    store = SqliteStore(path, synchronous="OFF")  # how it comes about is not measured
    Flujo(interrupted(size), store=store).run(0, run_id="long")
    info = RunClient(store).get("long")
    records = store.get("long").records  # type: ignore[arg-type]
    store.close()
    assert info.state_token is not None
    return path, info.state_token, records


def per_record(measure: Callable[[SqliteStore, str, int], float]) -> Measure:
    """A measure of a long run, as if it had exactly as many records as were asked for."""

    def measured(size: int, rounds: int) -> float:
        original, token, records = history(size)
        total = 0.0
        for _ in range(rounds):
            with scratch() as directory:
                store = SqliteStore(shutil.copy(original, directory / "runs.db"))
                total += measure(store, token, size)
                store.close()
        return total * size / records

    return measured


def resume(store: SqliteStore, token: str, size: int) -> float:
    flujo = Flujo(interrupted(size), store=store)
    begun = now()
    result = flujo.resume(token, "yes")
    taken = now() - begun
    assert result.success, result.feedback
    return taken


def read(store: SqliteStore, token: str, size: int) -> float:
    client = RunClient(store)
    begun = now()
    client.state("long")
    return now() - begun


if __name__ == "__main__":
    serve(
        {
            "durable_chain": durable_chain,
            "durable_runs": durable_runs,
            "commits": commits,
            "database": added_bytes(write),
            "durable_payload": payload,
            "resume": per_record(resume),
            "read": per_record(read),
        },
        packages=["flujo-actors", "trio"],
    )
