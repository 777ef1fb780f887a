"""Clauses: many at once, threads and processes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from ..._core.outcomes import RunId
from ..._core.records import Append, RunQuery
from ...errors import RunExists, RunLeased
from ...stores._port import Store
from .place import StorePlace
from .processes import ANSWERED, REFUSED, all_at_once
from .samples import LEASE_S, admit, bodies, claim, record, write

T = TypeVar("T")
THREADS = 8
APPENDS = 5


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
        """Parallel branches of one run write at the same time: no gap, no number twice."""
        lease = admit(store)
        _in_threads(lambda number: [write(store, lease, record(f"{number} {index}")) for index in range(APPENDS)])
        assert [each.seq for each in store.read(lease.run_id)] == list(range(1, THREADS * APPENDS + 2))
        assert len(set(bodies(store))) == THREADS * APPENDS

    def test_leases_are_renewed_beside_those_who_write(self, store: Store) -> None:
        """Renewals come from a thread of their own: they and the run's writes never harm one another."""
        leases = [admit(store, f"run {number}") for number in range(THREADS)]

        def work(number: int) -> None:
            for index in range(APPENDS):
                assert store.renew(leases, lease_s=LEASE_S) == [None] * THREADS
                assert write(store, leases[number], record(str(index))) is None

        _in_threads(work)
        assert {run.records for run in store.find(RunQuery())} == {1 + APPENDS}

    def test_readers_see_whole_batches(self, store: Store) -> None:
        """Whoever reads while others write sees all of an append or nothing."""
        lease = admit(store)

        def work(number: int) -> set[int]:
            if number == 0:
                for _ in range(APPENDS * 2):
                    write(store, lease, record("a"), record("b"), record("c"))
            return {len(bodies(store)) % 3 for _ in range(APPENDS)}

        assert set().union(*_in_threads(work)) == {0}

    def test_batches_that_meet_on_the_same_runs_do_not_block_one_another(self, place: StorePlace) -> None:
        """Owner and thief of the same runs write in opposite orders; both come to an end."""
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
        """A free run is claimed once, and a new id is admitted once."""
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
        """Runs of several processes grow at the same time, in a place that all of them opened for the first time."""
        if not place.between_processes:
            pytest.skip("this store is not shared between processes")
        assert all_at_once(4, lambda number: _write_run(place.open(), f"run {number}")) == [ANSWERED] * 4
        runs = place.open().find(RunQuery())
        assert {(run.run_id, run.records) for run in runs} == {(f"run {number}", 1 + APPENDS) for number in range(4)}

    def test_a_store_that_was_used_before_a_fork_works_on_both_sides(self, place: StorePlace) -> None:
        """A child opens connections of its own; those of its parent keep working."""
        if not place.between_processes:
            pytest.skip("this store is not shared between processes")
        store = place.open()
        lease = admit(store)
        store.read(lease.run_id)
        assert all_at_once(2, lambda number: _write_run(store, f"child {number}")) == [ANSWERED] * 2
        assert write(store, lease, record("parent")) is None
        assert {run.run_id for run in store.find(RunQuery())} == {"run", "child 0", "child 1"}

    def test_forks_in_the_middle_of_work_harm_nobody(self, place: StorePlace) -> None:
        """Threads write and read without a break while children are forked, which use the same store at once."""
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
