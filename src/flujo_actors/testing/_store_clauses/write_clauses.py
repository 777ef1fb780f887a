"""Clauses: written records are readable in order, and runs can be found."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from ..._core import step_paths
from ..._core.outcomes import RunId
from ..._core.records.records import Append, Compaction, Lease, Record, RunQuery
from ..._core.step_paths import ROOT, StepPath, item
from ...errors import AlreadyAnswered, LeaseLost, NotPaused, RunExists, RunLeased, RunNotFound
from ...stores._store_port import Store
from .store_target import (
    ANSWERED,
    LEASE_S,
    REFUSED,
    StorePlace,
    admission,
    admit,
    all_at_once,
    bodies,
    claim,
    give_up,
    kill_after,
    pause,
    put_to_sleep,
    record,
    write,
)


class WritingClauses:
    """Reading and writing."""

    def test_an_admitted_run_is_there_with_its_first_record(self, store: Store) -> None:
        """Admission makes a run exist, leased and running, before any work."""
        lease = admit(store)
        run = store.get(lease.run_id)
        assert (run.status, run.leased, run.epoch, run.records) == ("running", True, lease.epoch, 1)
        first = Record(kind="admitted", path=ROOT, body='{"v": 1, "input": "hello"}', seq=1)
        assert store.read(lease.run_id) == [first]

    def test_a_run_id_is_given_once(self, store: Store) -> None:
        """A used id is refused, and its first run is unharmed."""
        admit(store, pipeline="first")
        with pytest.raises(RunExists):
            admit(store, pipeline="second")
        assert store.get(RunId("run")).pipeline == "first"

    def test_admissions_of_one_transaction_are_answered_one_by_one(self, store: Store) -> None:
        """A used id is refused at its position; others are admitted."""
        admit(store, "b")
        batch = [admission("a"), admission("b"), admission("c"), admission("a")]
        answers = store.admit_all(batch, owner="owner", lease_s=LEASE_S)
        assert [isinstance(each, RunExists) for each in answers] == [False, True, False, True]
        assert {run.run_id for run in store.find(RunQuery())} == {"a", "b", "c"}
        assert [len(store.read(RunId(run_id))) for run_id in "abc"] == [1, 1, 1]

    def test_records_are_numbered_without_gaps(self, store: Store) -> None:
        """The store gives every record its place, whatever place it came with."""
        lease = admit(store)
        assert write(store, lease, record("a"), record("b")) is None
        assert write(store, lease) is None
        assert write(store, lease, record("c")) is None
        assert [each.seq for each in store.read(lease.run_id)] == [1, 2, 3, 4]
        assert bodies(store) == [record(text).body for text in "abc"]

    def test_reading_starts_after_a_number(self, store: Store) -> None:
        """`after` skips the records that the reader has."""
        lease = admit(store)
        write(store, lease, record("a"), record("b"))
        assert [each.seq for each in store.read(lease.run_id, after=1)] == [2, 3]
        assert store.read(lease.run_id, after=3) == []

    def test_a_batch_of_many_runs_keeps_the_order_of_each(self, store: Store) -> None:
        """One transaction writes for many runs, also several times for one."""
        first, second = admit(store, "first"), admit(store, "second")
        appends = [
            Append(lease=first, records=(record("1"),)),
            Append(lease=second, records=(record("a"),)),
            Append(lease=first, records=(record("2"), record("3")), status="completed", release=True),
        ]
        assert store.append(appends) == [None, None, None]
        assert bodies(store, "first") == [record(text).body for text in "123"]
        assert bodies(store, "second") == [record("a").body]
        assert store.get(RunId("first")).status == "completed"
        assert store.get(RunId("second")).status == "running"

    def test_every_kind_of_record_comes_back_as_it_was(self, store: Store) -> None:
        """Kind, path and body survive."""
        lease = admit(store)
        written = [
            record(kind, kind=kind)
            for kind in ("started", "intent", "unit", "settled", "paused", "answered", "resumed", "ended")
        ]
        write(store, lease, *written)
        read = store.read(lease.run_id, after=1)
        assert [(each.kind, each.path, each.body) for each in read] == [(w.kind, w.path, w.body) for w in written]

    def test_an_unknown_run_is_an_error(self, store: Store) -> None:
        """No operation succeeds on a missing run."""
        with pytest.raises(RunNotFound):
            store.get(RunId("nobody"))
        with pytest.raises(RunNotFound):
            store.read(RunId("nobody"))
        with pytest.raises(RunNotFound):
            claim(store, "nobody")

    def test_runs_are_found_by_what_they_are(self, store: Store, place: StorePlace) -> None:
        """Status, pipeline, abandonment and a limit select runs."""
        write(store, admit(store, "done", pipeline="a"), status="completed", release=True)
        put_to_sleep(store, admit(store, "asleep", pipeline="a"), pause())
        admit(store, "left", pipeline="b")
        place.advance(LEASE_S + 1)
        admit(store, "alive", pipeline="b")
        assert _found(store, RunQuery()) == {"done", "asleep", "left", "alive"}
        assert _found(store, RunQuery(status="paused")) == {"asleep"}
        assert _found(store, RunQuery(pipeline="b")) == {"left", "alive"}
        assert _found(store, RunQuery(abandoned=True)) == {"left"}
        assert len(store.find(RunQuery(limit=3))) == 3
        assert _found(store, RunQuery(status="completed", pipeline="b")) == set()

    def test_runs_are_found_by_when_they_changed_latest_first(self, store: Store) -> None:
        """The listing begins with the latest change, and time selects."""
        leases = [admit(store, name) for name in ("a", "b", "c")]
        write(store, leases[0], record("later"))
        times = {run.run_id: run.updated_at for run in store.find(RunQuery())}
        assert [run.run_id for run in store.find(RunQuery())] == sorted(times, key=times.__getitem__, reverse=True)
        assert store.find(RunQuery())[0].run_id == "a"
        assert _found(store, RunQuery(updated_before=times[RunId("a")])) == {"b", "c"}
        assert _found(store, RunQuery(updated_after=times[RunId("c")])) == {"a"}

    def test_a_transaction_commits_at_the_end_of_its_block(self, store: Store) -> None:
        """Appends in the block are visible after it."""
        lease = admit(store)
        with store.transaction() as transaction:
            transaction.append(Append(lease=lease, records=(record("a"),), status="completed", release=True))
        assert bodies(store) == [record("a").body]
        assert store.get(lease.run_id).status == "completed"

    def test_a_transaction_left_by_an_exception_leaves_nothing(self, store: Store) -> None:
        """A transaction is written completely or not at all."""
        lease = admit(store)
        with pytest.raises(ZeroDivisionError):
            give_up(store, Append(lease=lease, records=(record("a"),), status="completed"))
        assert bodies(store) == []
        assert store.get(lease.run_id).status == "running"
        assert write(store, lease, record("b")) is None

    def test_nothing_to_write_is_fine(self, store: Store) -> None:
        """Empty batches are answered by empty answers."""
        assert store.append([]) == []
        assert store.renew([], lease_s=LEASE_S) == []
        assert store.admit_all([], owner="owner", lease_s=LEASE_S) == []
        assert store.delete([]) == 0

    def test_a_closed_store_opens_again(self, place: StorePlace) -> None:
        """Closing gives up connections, not runs."""
        store = place.open()
        lease = admit(store)
        store.close()
        assert write(store, lease, record("a")) is None
        store.close()
        store.close()
        assert bodies(place.open()) == [record("a").body]


def _found(store: Store, query: RunQuery) -> set[str]:
    return {run.run_id for run in store.find(query)}


RUN = RunId("run")
LONG = "long " * 40_000
LOOP = StepPath("chat \0 ~")
"""A loop whose name databases must escape."""


def turns(store: Store, lease: Lease, *numbers: int, keep: int = 2, text: str = "") -> None:
    """Write turns of a loop that compacts all but `keep`."""
    for number in numbers:
        path = item(LOOP, number)
        records = (
            record(kind="started", path=LOOP),
            record(text, kind="settled", path=path),
            record(kind="compacted", path=path),
        )
        compaction = Compaction(loop=LOOP, base=item(LOOP, number - keep)) if number > keep else None
        assert write(store, lease, *records, compaction=compaction) is None


class CompactionClauses:
    """Loops that delete their old turns."""

    @pytest.fixture(autouse=True)
    def _compacts(self, store: Store) -> None:
        if not hasattr(store, "compacted"):
            pytest.skip("this store does not compact loops")

    def test_old_turns_are_deleted_with_a_later_one(self, store: Store) -> None:
        """Numbers stay; the turn before them is a `compacted` record."""
        lease = admit(store)
        write(store, lease, record("outside", path=StepPath("first")), record(path=step_paths.named(LOOP, "~i1")))
        assert store.compacted(RUN) is None
        turns(store, lease, 1, 2, 3, 4, 5)
        kept = [(each.seq, each.kind, each.path) for each in store.read(RUN)]
        assert kept[:4] == [
            (1, "admitted", ""),
            (2, "unit", "first"),
            (3, "unit", step_paths.named(LOOP, "~i1")),
            (12, "compacted", item(LOOP, 3)),
        ]
        assert [seq for seq, _, _ in kept[4:]] == [13, 14, 15, 16, 17, 18]
        assert store.compacted(RUN) == 12
        assert store.get(RUN).records == 18
        assert [each.seq for each in store.read(RUN, after=5)][:2] == [12, 13]
        assert [each.seq for each in store.scan(RUN, after=5, limit=1)] == [12]
        with pytest.raises(RunNotFound):
            store.record(RUN, 5)
        assert store.record(RUN, 12).kind == "compacted"
        assert write(store, lease, record("next")) is None
        assert store.read(RUN)[-1].seq == 19

    def test_a_lower_number_of_turns_deletes_all_older_ones(self, store: Store) -> None:
        """A deploy may begin to compact, or keep fewer turns."""
        lease = admit(store)
        write(store, lease, *(record(kind="settled", path=item(LOOP, number)) for number in (1, 2)))
        turns(store, lease, 3, 4, 5, 6, keep=9)
        turns(store, lease, 7, keep=1)
        assert [each.path for each in store.read(RUN) if each.kind == "settled"] == [item(LOOP, 7)]

    def test_a_refused_write_deletes_nothing(self, store: Store, place: StorePlace) -> None:
        """The lease is checked first."""
        lease = admit(store)
        turns(store, lease, 1, 2)
        place.advance(LEASE_S + 1)
        claim(store)
        before = store.read(RUN)
        path = item(LOOP, 3)
        append = Append(lease=lease, records=(record(path=path),), compaction=Compaction(loop=LOOP, base=item(LOOP, 1)))
        [verdict] = store.append([append])
        assert isinstance(verdict, LeaseLost)
        assert store.read(RUN) == before

    def test_blobs_and_answers_of_old_turns_are_deleted_too(self, store: Store, place: StorePlace) -> None:
        """A long body that another record shares is kept."""
        lease = admit(store)
        write(store, lease, record(LONG))
        write(store, lease, record(kind="paused", path=item(LOOP, 1)), pauses=(pause(path=item(LOOP, 1)),))
        store.answer(RUN, item(LOOP, 1), token="token", record=record(kind="answered", path=item(LOOP, 1)))
        turns(store, lease, 1, 2, 3, 4, text=LONG)
        assert bodies(store)[0] == record(LONG).body
        with pytest.raises(NotPaused) as refused:
            store.answer(RUN, item(LOOP, 1), token="token", record=record(kind="answered"))
        assert not isinstance(refused.value, AlreadyAnswered)


T = TypeVar("T")
THREADS = 8
APPENDS = 5
BATCH = 3
"""Number of records per write before the kill."""


class ConcurrencyClauses:
    """Threads and processes on one place."""

    def test_threads_write_to_runs_of_their_own(self, place: StorePlace) -> None:
        """Nothing is lost or mixed up, through one store or through several."""
        stores = [place.open(), place.open()]

        def work(number: int) -> None:
            store = stores[number % 2]
            lease = admit(store, f"run {number}")
            for index in range(APPENDS):
                assert write(store, lease, record(f"{number} {index}")) is None

        _in_threads(work)
        for number in range(THREADS):
            assert bodies(stores[0], f"run {number}") == [record(f"{number} {index}").body for index in range(APPENDS)]

    def test_threads_that_share_a_lease_share_the_numbers(self, store: Store) -> None:
        """Parallel branches of one run write concurrently: no gap, no duplicate number."""
        lease = admit(store)
        _in_threads(lambda number: [write(store, lease, record(f"{number} {index}")) for index in range(APPENDS)])
        assert [each.seq for each in store.read(lease.run_id)] == list(range(1, THREADS * APPENDS + 2))
        assert len(set(bodies(store))) == THREADS * APPENDS

    def test_leases_are_renewed_beside_those_who_write(self, store: Store) -> None:
        """Renewals from another thread never interfere with the run's writes."""
        leases = [admit(store, f"run {number}") for number in range(THREADS)]

        def work(number: int) -> None:
            for index in range(APPENDS):
                assert store.renew(leases, lease_s=LEASE_S) == [None] * THREADS
                assert write(store, leases[number], record(str(index))) is None

        _in_threads(work)
        assert {run.records for run in store.find(RunQuery())} == {1 + APPENDS}

    def test_readers_see_whole_batches(self, store: Store) -> None:
        """A concurrent reader sees all of an append or nothing."""
        lease = admit(store)

        def work(number: int) -> set[int]:
            if number == 0:
                for _ in range(APPENDS * 2):
                    write(store, lease, record("a"), record("b"), record("c"))
            return {len(bodies(store)) % 3 for _ in range(APPENDS)}

        assert set().union(*_in_threads(work)) == {0}

    def test_batches_that_meet_on_the_same_runs_do_not_block_one_another(self, place: StorePlace) -> None:
        """Two owners of the same runs write in opposite orders; both finish."""
        stores = [place.open(), place.open()]
        leases = [admit(stores[0], f"run {number}") for number in range(6)]

        def work(number: int) -> None:
            ordered = leases if number % 2 else leases[::-1]
            for _ in range(APPENDS):
                batch = [Append(lease=lease, records=(record("a"),)) for lease in ordered]
                assert stores[number % 2].append(batch) == [None] * len(batch)

        _in_threads(work)
        assert {run.records for run in stores[0].find(RunQuery())} == {1 + THREADS * APPENDS}

    def test_one_of_many_threads_gets_the_run(self, store: Store) -> None:
        """A free run is claimed once; a new id is admitted once."""
        write(store, admit(store), release=True)
        assert sorted(_in_threads(lambda number: _try(lambda: claim(store)))) == [ANSWERED] + [REFUSED] * (THREADS - 1)
        assert sorted(_in_threads(lambda number: _try(lambda: admit(store, "new")))) == [ANSWERED] + [REFUSED] * (
            THREADS - 1
        )
        assert store.get(RunId("run")).epoch == 2

    def test_one_of_many_processes_gets_the_run(self, place: StorePlace) -> None:
        """Two resumes at once, in any number of processes: one runs."""
        if not place.between_processes:
            pytest.skip("this store is not shared between processes")
        store = place.open()
        write(store, admit(store), release=True)
        codes = all_at_once(4, lambda number: _try(lambda: claim(place.open())))
        assert sorted(codes) == [ANSWERED, REFUSED, REFUSED, REFUSED]

    def test_processes_write_side_by_side(self, place: StorePlace) -> None:
        """Several processes' runs grow concurrently in a newly opened store."""
        if not place.between_processes:
            pytest.skip("this store is not shared between processes")
        assert all_at_once(4, lambda number: _write_run(place.open(), f"run {number}")) == [ANSWERED] * 4
        runs = place.open().find(RunQuery())
        assert {(run.run_id, run.records) for run in runs} == {(f"run {number}", 1 + APPENDS) for number in range(4)}

    def test_a_store_that_was_used_before_a_fork_works_on_both_sides(self, place: StorePlace) -> None:
        """A child opens its own connections; those of its parent keep working."""
        if not place.between_processes:
            pytest.skip("this store is not shared between processes")
        store = place.open()
        lease = admit(store)
        store.read(lease.run_id)
        assert all_at_once(2, lambda number: _write_run(store, f"child {number}")) == [ANSWERED] * 2
        assert write(store, lease, record("parent")) is None
        assert {run.run_id for run in store.find(RunQuery())} == {"run", "child 0", "child 1"}

    def test_forks_in_the_middle_of_work_harm_nobody(self, place: StorePlace) -> None:
        """Threads write and read continuously while forked children use the same store."""
        if not place.between_processes:
            pytest.skip("this store is not shared between processes")
        store, done = place.open(), threading.Event()

        def work(number: int) -> int:
            lease, count = admit(store, f"thread {number}"), 0
            while not done.is_set():
                assert write(store, lease, record("a")) is None
                count += 1
                assert len(bodies(store, f"thread {number}")) == count
            return count

        with ThreadPoolExecutor(3) as threads:
            working = [threads.submit(work, number) for number in range(3)]
            for turn in range(5):
                names = [f"child {turn} {number}" for number in range(2)]
                assert all_at_once(2, functools.partial(_write_one_of, store, names)) == [ANSWERED] * 2
            done.set()
            counts = [each.result() for each in working]
        assert [len(bodies(store, f"thread {number}")) for number in range(3)] == counts
        assert len(store.find(RunQuery())) == 13


def _in_threads(work: Callable[[int], T]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(work, range(THREADS)))


def _try(work: Callable[[], object]) -> int:
    try:
        work()
    except (RunLeased, RunExists):
        return REFUSED
    return ANSWERED


def _write_one_of(store: Store, run_ids: list[str], number: int) -> int:
    return _write_run(store, run_ids[number])


def _write_run(store: Store, run_id: str) -> int:
    lease = admit(store, run_id)
    for index in range(APPENDS):
        assert write(store, lease, record(str(index))) is None
        assert len(bodies(store, run_id)) == index + 1
    assert store.renew([lease], lease_s=LEASE_S) == [None]
    return ANSWERED


class CrashClauses:
    """`SIGKILL` between and inside commits."""

    @pytest.mark.parametrize("reports", [1, 2, 5, 9])
    def test_what_was_answered_survives_and_nothing_is_partial(self, place: StorePlace, reports: int) -> None:
        """Returned appends exist; interrupted ones exist completely or not."""
        _needs_processes(place)
        kill_after(lambda report: _write_for_ever(place.open(), report), reports)
        store = place.open()
        written = bodies(store)
        assert len(written) >= BATCH * (reports - 1)
        assert len(written) % BATCH == 0
        assert written == [record(str(number)).body for number in range(len(written))]

    def test_a_run_left_by_a_killed_process_is_taken_over(self, place: StorePlace) -> None:
        """It is abandoned at expiry, and resumes after its last record."""
        _needs_processes(place)
        kill_after(lambda report: _write_for_ever(place.open(), report), 3)
        store = place.open()
        place.advance(LEASE_S + 1)
        assert [run.run_id for run in store.find(RunQuery(abandoned=True))] == ["run"]
        before = store.get(RunId("run")).records
        assert write(store, claim(store), record("mine"), status="completed") is None
        assert store.read(RunId("run"))[-1].seq == before + 1

    def test_an_open_transaction_dies_with_its_process(self, place: StorePlace) -> None:
        """Appends of an unfinished transaction do not exist and block no writer."""
        _needs_processes(place)
        store = place.open()
        lease = admit(store)
        lost = Append(lease=lease, records=(record("x"),))
        kill_after(lambda report: _stay_in_transaction(place.open(), lost, report), 1)
        assert bodies(store) == []
        assert write(store, lease, record("a")) is None
        assert bodies(store) == [record("a").body]


def _needs_processes(place: StorePlace) -> None:
    if not place.between_processes:
        pytest.skip("this store does not survive its process")


def _write_for_ever(store: Store, report: Callable[[], None]) -> None:
    lease, number = admit(store), 0
    report()
    while True:
        assert write(store, lease, *(record(str(number + index)) for index in range(BATCH))) is None
        number += BATCH
        report()


def _stay_in_transaction(store: Store, append: Append, report: Callable[[], None]) -> None:
    with store.transaction() as transaction:
        transaction.append(append)
        report()
        signal.pause()
