"""Clauses: what others may do about a run that has an owner: take it over from the dead, and ask that it ends."""

from __future__ import annotations

import pytest

from ..._core.outcomes import RunId
from ..._core.records import Append, CancelRequest, Lease, StoredStatus
from ...errors import LeaseLost, RunLeased, RunNotFound
from ...stores._port import Store
from .place import StorePlace
from .processes import ANSWERED, REFUSED, all_at_once
from .samples import LEASE_S, admit, bodies, claim, pause, put_to_sleep, record, write

RUN = RunId("run")
WANTED = CancelRequest(reason="too “expensive” \0")


class ControlClauses:
    """Taking over from the dead, and requests to cancel."""

    def test_a_lease_says_who_holds_it_and_for_how_long(self, store: Store, place: StorePlace) -> None:
        """In a listing and in the refusal of a claim; nothing once it is free."""
        lease = admit(store, owner="owner \0")
        place.advance(20)
        with pytest.raises(RunLeased) as refused:
            claim(store)
        for told in (store.get(lease.run_id), refused.value):
            assert told.owner == "owner \0"
            assert told.left_s is not None
            assert 0 < told.left_s <= LEASE_S - 20
        write(store, lease, release=True)
        assert (store.get(lease.run_id).owner, store.get(lease.run_id).left_s) == (None, None)

    def test_a_run_is_taken_over_from_an_owner_that_is_known_to_be_dead(self, store: Store) -> None:
        """At once; the epoch rises, and should the dead come back, nothing of it gets in."""
        dead = admit(store, owner="dead \0")
        lease = _take_over(store, dead="dead \0")
        assert (lease.owner, lease.epoch > dead.epoch) == ("heir", True)
        assert write(store, lease, record("mine")) is None
        assert isinstance(write(store, dead, record("ghost")), LeaseLost)
        assert bodies(store) == [record("mine").body]

    def test_nothing_is_taken_over_from_anybody_else(self, store: Store) -> None:
        """Whoever claimed the run since the caller looked keeps it, and a free run needs nobody's death."""
        lease = admit(store, owner="living")
        with pytest.raises(RunLeased):
            _take_over(store, dead="dead")
        write(store, lease, release=True)
        assert _take_over(store, dead="dead").epoch > lease.epoch
        with pytest.raises(RunNotFound):
            store.take_over(RunId("nobody"), dead="dead", owner="heir", lease_s=LEASE_S)

    def test_one_of_many_processes_takes_over(self, place: StorePlace) -> None:
        """The heirs of one owner exclude one another as claimants do."""
        if not place.between_processes:
            pytest.skip("this store is not shared between processes")
        admit(place.open(), owner="dead")
        codes = all_at_once(4, lambda number: _try_to_take_over(place.open(), f"heir {number}"))
        assert sorted(codes) == [ANSWERED, REFUSED, REFUSED, REFUSED]

    def test_an_owner_is_told_of_a_request_with_its_next_append(self, store: Store) -> None:
        """The append is written all the same, the other runs of the batch hear nothing, and a look shows it too."""
        lease, other = admit(store), admit(store, "other")
        assert store.cancel_requests([lease.run_id, other.run_id]) == {}
        store.request_cancel(lease.run_id, reason=WANTED.reason)
        batch = [Append(lease=each, records=(record("a"),)) for each in (other, lease)]
        assert store.append(batch) == [None, WANTED]
        assert bodies(store) == bodies(store, "other") == [record("a").body]
        assert store.cancel_requests([lease.run_id, other.run_id, RunId("nobody")]) == {RUN: WANTED}
        assert store.cancel_requests([other.run_id]) == store.cancel_requests([]) == {}

    def test_a_request_waits_for_the_next_owner(self, store: Store, place: StorePlace) -> None:
        """If the one that should have heard of it died, or paused the run, the next one hears of it."""
        lease = admit(store)
        store.request_cancel(RUN, reason="first")
        store.request_cancel(RUN, reason=WANTED.reason)
        place.advance(LEASE_S + 1)
        heir = claim(store)
        assert isinstance(write(store, lease, record("late")), LeaseLost)
        assert write(store, heir, record("heir")) == WANTED
        [verdict] = store.append([Append(lease=heir, records=(), pauses=(pause(),), status="paused", release=True)])
        assert verdict == WANTED
        assert write(store, claim(store), status="running") == WANTED

    @pytest.mark.parametrize("status", ["completed", "failed", "aborted"])
    def test_a_request_ends_with_its_run(self, store: Store, status: StoredStatus) -> None:
        """It is not there any more, and none can be left; a run that is not there is named."""
        lease = admit(store)
        store.request_cancel(RUN, reason="enough")
        assert write(store, lease, record("end"), status=status, release=True) is None
        store.request_cancel(RUN, reason="again")
        assert store.cancel_requests([RUN]) == {}
        assert store.get(RUN).status == status
        with pytest.raises(RunNotFound):
            store.request_cancel(RunId("nobody"), reason="why")

    def test_a_request_changes_nothing_else(self, store: Store) -> None:
        """Not the run's records, status or lease, nor what waits for an answer in it."""
        put_to_sleep(store, admit(store), pause())
        before = store.get(RUN)
        store.request_cancel(RUN, reason="enough")
        assert store.get(RUN) == before

    def test_another_process_leaves_a_request(self, place: StorePlace) -> None:
        """The owner hears of what was asked elsewhere."""
        if not place.between_processes:
            pytest.skip("this store is not shared between processes")
        store = place.open()
        lease = admit(store)
        assert all_at_once(1, lambda number: _request(place.open())) == [ANSWERED]
        assert store.cancel_requests([RUN]) == {RUN: WANTED}
        assert write(store, lease, record("a")) == WANTED


def _take_over(store: Store, *, dead: str, owner: str = "heir") -> Lease:
    return store.take_over(RUN, dead=dead, owner=owner, lease_s=LEASE_S)


def _try_to_take_over(store: Store, owner: str) -> int:
    try:
        _take_over(store, dead="dead", owner=owner)
    except RunLeased:
        return REFUSED
    return ANSWERED


def _request(store: Store) -> int:
    store.request_cancel(RUN, reason=WANTED.reason)
    return ANSWERED
