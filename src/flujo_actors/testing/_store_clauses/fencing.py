"""Clauses: one owner at a time, and nothing from a former one."""

from __future__ import annotations

import pytest

from ..._core.outcomes import RunId
from ..._core.records import Append, Lease
from ...errors import LeaseLost, RunLeased
from ...stores._port import Store
from .place import StorePlace
from .samples import LEASE_S, admit, bodies, claim, pause, put_to_sleep, record, write


class FencingClauses:
    """Leases and epochs."""

    def test_a_leased_run_cannot_be_claimed(self, store: Store) -> None:
        """A second owner is refused while the first one's lease lasts, whatever it calls itself."""
        admit(store, owner="owner")
        for name in ("thief", "owner"):
            with pytest.raises(RunLeased):
                claim(store, owner=name)

    def test_a_released_run_can_be_claimed_at_once(self, store: Store) -> None:
        """An owner that is done does not keep others waiting, and every claim raises the epoch."""
        first = admit(store)
        write(store, first, record("a"), release=True)
        assert not store.get(first.run_id).leased
        second = claim(store)
        assert second.epoch > first.epoch
        assert write(store, second, record("b")) is None

    def test_an_expired_lease_can_be_claimed(self, store: Store, place: StorePlace) -> None:
        """What a dead process left is free when its lease has run out, not before."""
        first = admit(store)
        place.advance(LEASE_S - 1)
        with pytest.raises(RunLeased):
            claim(store)
        place.advance(2)
        assert not store.get(first.run_id).leased
        assert claim(store).epoch > first.epoch

    def test_a_renewed_lease_lasts_from_the_renewal(self, store: Store, place: StorePlace) -> None:
        """Renewal counts from now, and can go on for ever."""
        lease = admit(store)
        for _ in range(3):
            place.advance(LEASE_S - 1)
            assert store.renew([lease], lease_s=LEASE_S) == [None]
        assert write(store, lease, record("a")) is None
        with pytest.raises(RunLeased):
            claim(store)

    def test_an_owner_that_was_only_slow_goes_on_until_somebody_claims_the_run(
        self, store: Store, place: StorePlace
    ) -> None:
        """A lease that has run out lets others in; it is the claim that shuts the former owner out."""
        lease = admit(store)
        place.advance(LEASE_S + 1)
        assert write(store, lease, record("late")) is None
        assert store.renew([lease], lease_s=LEASE_S) == [None]
        with pytest.raises(RunLeased):
            claim(store)
        place.advance(LEASE_S + 1)
        claim(store)
        assert isinstance(write(store, lease, record("too late")), LeaseLost)
        assert bodies(store) == [record("late").body]

    def test_a_stale_owner_is_refused_in_every_write(self, store: Store, place: StorePlace) -> None:
        """After a take-over nothing of the former owner gets in: append, renewal, transaction, status or release."""
        stale, current = _taken_over(store, place)
        assert isinstance(write(store, stale, record("x"), status="completed", release=True), LeaseLost)
        assert isinstance(store.renew([stale], lease_s=LEASE_S)[0], LeaseLost)
        with pytest.raises(LeaseLost), store.transaction() as transaction:
            transaction.append(Append(lease=stale, records=(record("x"),)))
        run = store.get(current.run_id)
        assert (run.status, run.leased, run.epoch, run.records) == ("running", True, current.epoch, 1)
        assert write(store, current, record("mine")) is None

    def test_a_stale_append_is_left_out_and_the_others_are_written(self, store: Store, place: StorePlace) -> None:
        """One lost run does not hold up a batch; its error stands at its place."""
        stale, current = _taken_over(store, place)
        other = admit(store, "other")
        batch = [
            Append(lease=stale, records=(record("x"),)),
            Append(lease=other, records=(record("a"),)),
            Append(lease=stale, records=(), pauses=(pause(),), status="paused"),
            Append(lease=current, records=(record("b"),)),
        ]
        verdicts = store.append(batch)
        assert [isinstance(each, LeaseLost) for each in verdicts] == [True, False, True, False]
        assert bodies(store, "other") == [record("a").body]
        assert bodies(store) == [record("b").body]
        assert store.get(current.run_id).pauses == ()

    def test_a_lease_ends_with_its_release_within_a_batch(self, store: Store) -> None:
        """What comes after the release, even in the same transaction, is refused."""
        lease = admit(store)
        batch = [
            Append(lease=lease, records=(record("a"),), release=True),
            Append(lease=lease, records=(record("b"),)),
        ]
        assert [isinstance(each, LeaseLost) for each in store.append(batch)] == [False, True]
        assert isinstance(store.renew([lease], lease_s=LEASE_S)[0], LeaseLost)
        assert bodies(store) == [record("a").body]

    def test_a_lease_of_another_owner_or_a_missing_run_is_refused(self, store: Store) -> None:
        """The owner counts, not only the epoch; a lease on a deleted run is worth nothing."""
        lease = admit(store)
        forged = Lease(run_id=lease.run_id, owner="forger", epoch=lease.epoch)
        missing = Lease(run_id=RunId("nobody"), owner="owner", epoch=1)
        for wrong in (forged, missing):
            assert isinstance(write(store, wrong, record("x")), LeaseLost)
            assert isinstance(store.renew([wrong], lease_s=LEASE_S)[0], LeaseLost)
        assert bodies(store) == []

    def test_a_claim_leaves_the_status_to_the_next_append(self, store: Store) -> None:
        """A paused run that was claimed is paused until its new owner writes."""
        put_to_sleep(store, admit(store), pause())
        lease = claim(store)
        assert store.get(lease.run_id).status == "paused"
        write(store, lease, record(kind="resumed"), status="running")
        assert store.get(lease.run_id).status == "running"


def _taken_over(store: Store, place: StorePlace) -> tuple[Lease, Lease]:
    """A run whose owner was too slow: its stale lease and the current one."""
    stale = admit(store)
    place.advance(LEASE_S + 1)
    return stale, claim(store)
