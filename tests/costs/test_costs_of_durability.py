"""What durability costs, in numbers that do not depend on the machine: commits, thread hops, rounds, records, bytes."""

from __future__ import annotations

import gc
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from flujo_actors import Flujo, MemoryStore, Pipeline, SqliteStore, Step
from flujo_actors._core.records.records import Append
from flujo_actors.stores.sqlite import _record_writes

STEPS = 50


async def agent(data: int) -> int:
    return data


def chain(size: int) -> Pipeline:
    return Pipeline(Step(f"s{number}", agent) for number in range(size))


class CountingStore(MemoryStore):
    """Counts its transactions, and how many appends each of them carried."""

    def __init__(self) -> None:
        super().__init__()
        self.admissions: list[int] = []
        self.appends: list[int] = []

    def admit_all(self, admissions: Any, **options: Any) -> Any:
        self.admissions.append(len(admissions))
        return super().admit_all(admissions, **options)

    def append(self, batch: Any) -> Any:
        self.appends.append(len(batch))
        return super().append(batch)


class Rounds(trio.abc.Instrument):
    """Counts the rounds of trio's scheduler, and the tasks it was given."""

    def __init__(self) -> None:
        self.rounds = self.spawned = 0

    def before_io_wait(self, timeout: float) -> None:
        self.rounds += 1

    def task_spawned(self, task: object) -> None:
        self.spawned += 1


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often something was sent to a thread, by whom."""
    counted: Counter[str] = Counter()
    start, to_thread = trio.lowlevel.start_thread_soon, trio.to_thread.run_sync

    def starting(*arguments: Any, **options: Any) -> None:
        counted["writer"] += 1
        start(*arguments, **options)

    async def running(*arguments: Any, **options: Any) -> Any:
        counted["others"] += 1
        return await to_thread(*arguments, **options)

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", starting)
    monkeypatch.setattr(trio.to_thread, "run_sync", running)
    return counted


def kinds(store: MemoryStore, run_id: str) -> Counter[str]:
    return Counter(record.kind for record in store.read(run_id))  # type: ignore[arg-type]


def test_a_durable_step_is_one_record_one_commit_and_one_hop(hops: Counter[str]) -> None:
    """Besides the steps of a chain only its beginning is written by itself; its end goes with the last step."""
    store = CountingStore()
    Flujo(chain(STEPS), store=store).run(1, run_id="run")
    assert store.admissions == [1]
    assert store.appends == [1] * STEPS
    assert hops == {"writer": STEPS + 1}
    assert kinds(store, "run") == {"admitted": 1, "settled": STEPS, "ended": 1}


def test_a_durable_step_takes_two_rounds_more_than_one_that_is_not() -> None:
    """One in which the thread's answer is heard, one in which the step goes on; and no task is added for it."""

    def counted(size: int, store: Any) -> Rounds:
        rounds, flujo = Rounds(), Flujo(chain(size), store=store)
        trio.run(flujo.run_async, 1, instruments=[rounds])
        return rounds

    def each(store: Any) -> tuple[float, float]:
        short, long = counted(STEPS, store), counted(3 * STEPS, store)
        return (long.rounds - short.rounds) / (2 * STEPS), (long.spawned - short.spawned) / (2 * STEPS)

    (rounds, tasks), (bare_rounds, bare_tasks) = each(MemoryStore()), each(None)
    assert rounds <= bare_rounds + 2.5  # now and then the thread is as fast as the loop, or takes it two looks
    assert tasks == bare_tasks


def test_a_run_with_choices_and_branches_has_no_commit_that_nothing_needs() -> None:
    """A desk of eight steps, two branches and a choice: its admission, and nine commits for eleven outcomes."""
    store = CountingStore()
    around = Step.parallel("look around", {"articles": Step("articles", agent), "mood": Step("mood", agent)})
    risk = Step.branch_on("risk", lambda data, context: "low", {"high": Step("ask", agent), "low": Step("keep", agent)})
    before = chain(3) >> around
    after = Step("draft", agent) >> Step("note", agent) >> risk >> Step("send", agent)
    assert Flujo(before >> after, store=store).run(1, run_id="run").success
    assert (store.admissions, store.appends) == ([1], [1] * 9)
    assert kinds(store, "run")["settled"] == 11


def test_runs_that_go_side_by_side_share_every_commit() -> None:
    """Fifty runs of three steps are four commits, as one run of three steps is."""
    store = CountingStore()
    flujo = Flujo(chain(3), store=store)

    async def all_of_them() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(flujo.run_async, number)

    trio.run(all_of_them)
    assert store.admissions == [50]
    assert store.appends == [50] * 3


def test_branches_that_settle_together_leave_no_record_of_having_started() -> None:
    """A start is written down for who has not settled when something else is written."""
    store = CountingStore()
    branches = Step.map_over("each", Step("item", agent), items=range(30))
    Flujo(branches, store=store).run(0, run_id="run")
    assert kinds(store, "run") == {"admitted": 1, "started": 1, "settled": 31, "ended": 1}


def test_a_step_that_outlives_another_has_a_record_of_its_start() -> None:
    """What was in flight when the process died can be seen."""
    store, begun = CountingStore(), trio.Event()

    async def slow(data: int) -> int:
        begun.set()
        while not store.appends:
            await trio.lowlevel.checkpoint()
        return data

    async def fast(data: int) -> int:
        await begun.wait()
        return data

    Flujo(Step.parallel("both", {"slow": Step("s", slow), "fast": Step("f", fast)}), store=store).run(0, run_id="run")
    assert [(record.kind, record.path) for record in store.read("run")] == [  # type: ignore[arg-type]
        ("admitted", ""),
        ("started", "both"),
        ("started", "both/slow"),
        ("settled", "both/fast"),
        ("settled", "both/slow"),
        ("settled", "both"),
        ("ended", ""),
    ]


def size_of(path: Path, steps: int) -> int:
    store = SqliteStore(path, synchronous="OFF")
    Flujo(chain(steps), store=store).run(1)
    store.close()
    with closing(sqlite3.connect(path)) as db:
        names = ("page_count", "freelist_count", "page_size")
        [pages, free, page] = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    return int((pages - free) * page)


def test_a_step_of_a_durable_chain_takes_little_more_room_than_what_it_says(tmp_path: Path) -> None:
    """Name, output, latency and fingerprint in 120 bytes of database."""
    many = 1000  # so that a page more or less does not count
    assert (size_of(tmp_path / "many.db", many) - size_of(tmp_path / "one.db", 1)) / many < 120


def test_a_result_inside_others_is_stored_once() -> None:
    """However deep it is: the records around it refer to its own."""

    def stored(depth: int) -> int:
        pipeline = Pipeline((Step("leaf", lambda _: "x" * 1000),))
        for level in range(depth):
            pipeline = Pipeline((pipeline,), name=f"level {level}")
        store = CountingStore()
        Flujo(pipeline, store=store).run(0, run_id="run")
        return sum(record.body.count("x" * 1000) for record in store.read("run"))  # type: ignore[arg-type]

    # Pipelines hand on what their last step returned: an output at each level, but no history with it again.
    assert stored(20) == 21


def test_appends_have_nothing_in_them_that_is_not_needed() -> None:
    """A settled step is one record, without a change of the run's status."""
    seen: list[Append] = []

    class Watching(MemoryStore):
        """Keeps what it is given."""

        def append(self, batch: Any) -> Any:
            seen.extend(batch)
            return super().append(batch)

    Flujo(chain(2), store=Watching()).run(1)
    first, last = seen
    assert [[record.kind for record in append.records] for append in seen] == [["settled"], ["settled", "ended"]]
    assert (first.status, last.status) == (None, "completed")
    assert first.records[0].body.startswith('{"v":2,"success":{"name":"s0","output":1,"latency_s":')


def test_a_durable_run_that_waits_holds_few_objects() -> None:
    """A program may have thousands of them, and the garbage collector looks at each object of each several times."""

    async def main() -> float:
        begun, event = 0, trio.Event()

        async def waits(data: int) -> int:
            nonlocal begun
            begun += 1
            await event.wait()
            return data

        async def objects_of(runs: int) -> int:
            for _ in range(runs):
                nursery.start_soon(flujo.run_async, 0)
            expected = begun + runs
            while begun < expected:
                await trio.lowlevel.checkpoint()
            gc.collect()
            return len(gc.get_objects())

        flujo = Flujo(Step("waits", waits), store=MemoryStore())
        async with trio.open_nursery() as nursery:
            before = await objects_of(1)
            after = await objects_of(50)
            event.set()
        return (after - before) / 50

    # From 3.14 on the collector tracks every dict from its creation; before, it left out those of plain values.
    assert trio.run(main) <= (104 if sys.version_info < (3, 14) else 120)


@pytest.mark.trio
async def test_many_steps_of_a_run_are_written_in_few_statements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each statement the thread that writes loses the interpreter, which a busy loop gives back late."""
    singly, inserted = 0, _record_writes._inserted

    def counted(*args: Any) -> Any:
        nonlocal singly
        singly += 1
        return inserted(*args)

    monkeypatch.setattr(_record_writes, "_inserted", counted)
    result = await Flujo(Step.map_over("all", Step("one", agent)), store=SqliteStore(tmp_path / "runs.db")).run_async(
        list(range(500))
    )
    assert result.output == list(range(500))
    assert singly < 100
