"""Clauses: what is written can be read, in order, and runs can be found."""

from __future__ import annotations

import pytest

from ..._core.outcomes import RunId
from ..._core.paths import ROOT
from ..._core.records import Append, Record, RunQuery
from ...errors import RunExists, RunNotFound
from ...stores._port import Store
from .place import StorePlace
from .samples import LEASE_S, admission, admit, bodies, claim, give_up, pause, put_to_sleep, record, write


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
        """Whoever starts a run under a taken id is refused, and the first one is unharmed."""
        admit(store, pipeline="first")
        with pytest.raises(RunExists):
            admit(store, pipeline="second")
        assert store.get(RunId("run")).pipeline == "first"

    def test_admissions_of_one_transaction_are_answered_one_by_one(self, store: Store) -> None:
        """A taken id among several is refused at its place, and the others are admitted."""
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
        """`after` leaves out what the reader has already."""
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
        """Nothing can be read from, or done to, a run that is not there."""
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
        """The listing begins with what happened last, and time selects."""
        leases = [admit(store, name) for name in ("a", "b", "c")]
        write(store, leases[0], record("later"))
        times = {run.run_id: run.updated_at for run in store.find(RunQuery())}
        assert [run.run_id for run in store.find(RunQuery())] == sorted(times, key=times.__getitem__, reverse=True)
        assert store.find(RunQuery())[0].run_id == "a"
        assert _found(store, RunQuery(updated_before=times[RunId("a")])) == {"b", "c"}
        assert _found(store, RunQuery(updated_after=times[RunId("c")])) == {"a"}

    def test_a_transaction_commits_at_the_end_of_its_block(self, store: Store) -> None:
        """What is appended in the block is there after it."""
        lease = admit(store)
        with store.transaction() as transaction:
            transaction.append(Append(lease=lease, records=(record("a"),), status="completed", release=True))
        assert bodies(store) == [record("a").body]
        assert store.get(lease.run_id).status == "completed"

    def test_a_transaction_left_by_an_exception_leaves_nothing(self, store: Store) -> None:
        """All of a transaction is written, or nothing, and the store goes on."""
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
