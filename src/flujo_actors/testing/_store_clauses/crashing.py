"""Clauses: what a process that is killed leaves behind."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from ..._core.outcomes import RunId
from ..._core.records import Append, RunQuery
from ...stores._port import Store
from .place import StorePlace
from .processes import kill_after
from .samples import LEASE_S, admit, bodies, claim, record, write

BATCH = 3
"""How many records a process writes at a time before it is killed."""


class CrashClauses:
    """`SIGKILL` between and inside commits."""

    @pytest.mark.parametrize("reports", [1, 2, 5, 9])
    def test_what_was_answered_survives_and_nothing_is_partial(self, place: StorePlace, reports: int) -> None:
        """Every append that returned is there, the one that was cut off is there as a whole or not at all."""
        _needs_processes(place)
        kill_after(lambda report: _write_for_ever(place.open(), report), reports)
        store = place.open()
        written = bodies(store)
        assert len(written) >= BATCH * (reports - 1)
        assert len(written) % BATCH == 0
        assert written == [record(str(number)).body for number in range(len(written))]

    def test_a_run_left_by_a_killed_process_is_taken_over(self, place: StorePlace) -> None:
        """It is abandoned once its lease has run out, and goes on where its records end."""
        _needs_processes(place)
        kill_after(lambda report: _write_for_ever(place.open(), report), 3)
        store = place.open()
        place.advance(LEASE_S + 1)
        assert [run.run_id for run in store.find(RunQuery(abandoned=True))] == ["run"]
        before = store.get(RunId("run")).records
        assert write(store, claim(store), record("mine"), status="completed") is None
        assert store.read(RunId("run"))[-1].seq == before + 1

    def test_an_open_transaction_dies_with_its_process(self, place: StorePlace) -> None:
        """What was appended in a transaction that never ended is not there, and blocks nobody."""
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
