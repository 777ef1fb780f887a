"""Clauses: records without bodies, how runs stand, pages of a listing, and forks."""

from __future__ import annotations

import pytest

from ..._core.light_records import gist
from ..._core.outcomes import RunId
from ..._core.records import Record, RunQuery
from ...errors import DeclarationError, RunExists, RunNotFound
from ...stores._port import Store
from .place import StorePlace
from .processes import ANSWERED, all_at_once
from .samples import LEASE_S, STEP, admission, admit, bodies, claim, pause, put_to_sleep, record, write

RUN = RunId("run")
LONG = "x" * 200_000


class ScanClauses:
    """Looking at runs while they run."""

    def test_a_scan_shows_records_without_their_bodies(self, store: Store) -> None:
        """All of them in order, when they were written, and what their gist says; also of the longest."""
        lease = admit(store)
        write(store, lease, record("a", path=STEP), record(LONG), record("“b”"))
        rows = store.scan(RUN)
        assert [(row.seq, row.kind, row.path) for row in rows][1:] == [(seq, "unit", STEP) for seq in (2, 3, 4)]
        assert [row.at for row in rows] == [each.at for each in store.read(RUN)]
        assert all(isinstance(row.at, float) for row in rows)
        assert not hasattr(rows[0], "body")

    def test_a_scan_begins_and_ends_where_it_is_told(self, store: Store) -> None:
        """A page at a time, without gaps; a run that is not there is named."""
        lease = admit(store)
        write(store, lease, *(record(str(number)) for number in range(6)))
        assert [row.seq for row in store.scan(RUN, 2, 3)] == [3, 4, 5]
        assert [row.seq for row in store.scan(RUN, after=5)] == [6, 7]
        assert store.scan(RUN, after=7) == []
        with pytest.raises(RunNotFound):
            store.scan(RunId("nobody"))

    def test_a_gist_is_kept_as_it_was_written(self, store: Store) -> None:
        """What whoever wrote the record said of it, in whatever characters."""
        facts = {"name": "na\x1ame \0 \u2028", "status": "failure", "tokens": 7, "cost_usd": 0.25, "note": "why “not”"}
        write(store, admit(store), Record(kind="settled", path=STEP, body=record("a").body, gist=gist(**facts)))
        [row] = store.scan(RUN, after=1)
        assert {name: getattr(row, name) for name in facts} == facts

    def test_records_carry_their_time(self, store: Store) -> None:
        """Read with or without bodies, and never earlier than the one before."""
        lease = admit(store)
        write(store, lease, record("a"))
        write(store, lease, record("b"))
        times = [each.at for each in store.read(RUN)]
        assert None not in times
        assert times == sorted(times, key=lambda at: at or 0.0)

    def test_one_record_is_read_by_its_number(self, store: Store) -> None:
        """With its body, long or short; a number that there is not is named."""
        write(store, admit(store), record("a"), record(LONG))
        assert store.record(RUN, 3).body == record(LONG).body
        assert store.record(RUN, 2) == store.read(RUN)[1]
        for seq in (0, 4):
            with pytest.raises(RunNotFound):
                store.record(RUN, seq)

    def test_a_look_shows_how_runs_stand(self, store: Store, place: StorePlace) -> None:
        """Those that are there, as a listing shows them, at every moment."""
        lease = admit(store)
        admit(store, "other")
        asked = [RUN, RunId("other"), RunId("nobody")]
        assert {run_id: run.records for run_id, run in store.look(asked).items()} == {"run": 1, "other": 1}
        write(store, lease, record("a"))
        assert store.look(asked)[RUN].records == 2
        put_to_sleep(store, lease, pause())
        seen = store.look(asked)[RUN]
        assert (seen.status, seen.leased, [each.token for each in seen.pauses]) == ("paused", False, ["token"])
        place.advance(LEASE_S + 1)
        assert not store.look(asked)[RunId("other")].leased
        assert store.look([]) == {}

    def test_a_look_sees_what_another_process_wrote(self, place: StorePlace) -> None:
        """At once, although nothing was written here."""
        if not place.between_processes:
            pytest.skip("this store is not shared between processes")
        store = place.open()
        admit(store)
        before = store.look([RUN])[RUN].records
        place.advance(LEASE_S + 1)
        assert all_at_once(1, lambda number: _written_by_another(place.open())) == [ANSWERED]
        assert store.look([RUN])[RUN].records == before + 1
        assert [row.seq for row in store.scan(RUN, after=before)] == [before + 1]

    def test_what_a_run_has_used_stands_on_its_row(self, store: Store) -> None:
        """From the write that says so, until another one does."""
        lease = admit(store)
        assert (store.get(RUN).tokens, store.get(RUN).cost_usd) == (0, 0.0)
        write(store, lease, record("a"), tokens=30, cost_usd=0.5)
        write(store, lease, record("end"), status="completed", release=True)
        assert (store.get(RUN).tokens, store.get(RUN).cost_usd) == (30, 0.5)

    def test_a_listing_is_read_page_by_page(self, store: Store) -> None:
        """Every run once, latest change first, whatever begins meanwhile."""
        for number in range(7):
            admit(store, f"run {number}")
        first = store.find(RunQuery(limit=3))
        admit(store, "newcomer")
        second = store.find(RunQuery(limit=3, cursor=first[-1].cursor))
        third = store.find(RunQuery(limit=3, cursor=second[-1].cursor))
        listed = [run.run_id for page in (first, second, third) for run in page]
        assert listed == [f"run {number}" for number in reversed(range(7))]
        with pytest.raises(DeclarationError, match="cursor"):
            store.find(RunQuery(cursor="nonsense"))

    def test_runs_are_found_by_the_beginning_of_their_id_and_by_their_pipeline(self, store: Store) -> None:
        """An id by its beginning, a pipeline by any part of its name, and no character means anything else."""
        admit(store, "tea-1", pipeline="draft >> Publish")
        admit(store, "tea-2", pipeline="100% \\ _sure_")
        admit(store, "coffee", pipeline="draft")
        assert _found(store, "tea") == ["tea-2", "tea-1"]
        assert _found(store, "publish") == ["tea-1"]
        assert _found(store, "% \\ _") == ["tea-2"]
        assert _found(store, "a_1") == _found(store, "ea-1") == []

    def test_a_fork_exists_with_its_records_or_not_at_all(self, store: Store) -> None:
        """It belongs to nobody, and can be claimed at once; its id must be free."""
        store.admit_fork(admission("fork"), [record("a"), record("b")], pauses=[pause()], status="paused")
        run = store.get(RunId("fork"))
        assert (run.status, run.leased, run.records, len(run.pauses)) == ("paused", False, 3, 1)
        assert bodies(store, "fork") == [record("a").body, record("b").body]
        assert claim(store, "fork").epoch == 2
        with pytest.raises(RunExists):
            store.admit_fork(admission("fork"), [record("c")])
        assert len(bodies(store, "fork")) == 2


def _found(store: Store, search: str) -> list[str]:
    return [run.run_id for run in store.find(RunQuery(search=search))]


def _written_by_another(store: Store) -> int:
    write(store, claim(store), record("theirs"))
    return ANSWERED
