"""Clauses: claim from a dead owner, and requests to cancel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from ..._core.attempt_results import CancelPending
from ..._core.outcomes import RunId
from ..._core.records.records import Append, CancelRequest, Lease, MessageNotice, OutboxMessage, Record, StoredStatus
from ..._core.step_paths import StepPath
from ...errors import LeaseLost, NotRetryable, RunLeased, RunNotFound
from ...stores._store_port import Store
from .store_target import (
    ANSWERED,
    LEASE_S,
    REFUSED,
    StorePlace,
    admission,
    admit,
    all_at_once,
    answer,
    bodies,
    claim,
    pause,
    put_to_sleep,
    record,
    write,
)

RUN = RunId("run")
WANTED = CancelRequest(reason="too “expensive” \0")


class ControlClauses:
    """Claims from dead owners, and requests to cancel."""

    def test_a_lease_says_who_holds_it_and_for_how_long(self, store: Store, place: StorePlace) -> None:
        """A listing and a refused claim show it until release."""
        lease = admit(store, owner="owner \0")
        place.advance(20)
        with pytest.raises(RunLeased) as refused:
            claim(store)
        for holder in (store.get(lease.run_id), refused.value):
            assert holder.owner == "owner \0"
            assert holder.left_s is not None
            assert 0 < holder.left_s <= LEASE_S - 20
        write(store, lease, release=True)
        assert (store.get(lease.run_id).owner, store.get(lease.run_id).left_s) == (None, None)

    def test_a_run_is_taken_over_from_an_owner_that_is_known_to_be_dead(self, store: Store) -> None:
        """The claim raises the epoch, so former owners are refused."""
        dead = admit(store, owner="dead \0")
        lease = _take_over(store, dead="dead \0")
        assert (lease.owner, lease.epoch > dead.epoch) == ("heir", True)
        assert write(store, lease, record("mine")) is None
        assert isinstance(write(store, dead, record("ghost")), LeaseLost)
        assert bodies(store) == [record("mine").body]

    def test_nothing_is_taken_over_from_anybody_else(self, store: Store) -> None:
        """A later claimant keeps the run; a free run needs none."""
        lease = admit(store, owner="living")
        with pytest.raises(RunLeased):
            _take_over(store, dead="dead")
        write(store, lease, release=True)
        assert _take_over(store, dead="dead").epoch > lease.epoch
        with pytest.raises(RunNotFound):
            store.take_over(RunId("nobody"), dead="dead", owner="heir", lease_s=LEASE_S)

    def test_one_of_many_processes_takes_over(self, place: StorePlace) -> None:
        """Concurrent claimants of a dead owner's run exclude one another."""
        if not place.between_processes:
            pytest.skip("this store is not shared between processes")
        admit(place.open(), owner="dead")
        codes = all_at_once(4, lambda number: _try_to_take_over(place.open(), f"heir {number}"))
        assert sorted(codes) == [ANSWERED, REFUSED, REFUSED, REFUSED]

    def test_an_owner_is_told_of_a_request_with_its_next_append(self, store: Store) -> None:
        """The append is written, other runs unaffected; queries show it."""
        lease, other = admit(store), admit(store, "other")
        assert store.cancel_requests([lease.run_id, other.run_id]) == {}
        store.request_cancel(lease.run_id, reason=WANTED.reason)
        batch = [Append(lease=each, records=(record("a"),)) for each in (other, lease)]
        assert store.append(batch) == [None, WANTED]
        assert bodies(store) == bodies(store, "other") == [record("a").body]
        assert store.cancel_requests([lease.run_id, other.run_id, RunId("nobody")]) == {RUN: WANTED}
        assert store.cancel_requests([other.run_id]) == store.cancel_requests([]) == {}

    def test_a_request_waits_for_the_next_owner(self, store: Store, place: StorePlace) -> None:
        """The next owner of a left run receives the request."""
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
        """An ended run accepts no request; a missing run is named."""
        lease = admit(store)
        store.request_cancel(RUN, reason="enough")
        assert write(store, lease, record("end"), status=status, release=True) is None
        store.request_cancel(RUN, reason="again")
        assert store.cancel_requests([RUN]) == {}
        assert store.get(RUN).status == status
        with pytest.raises(RunNotFound):
            store.request_cancel(RunId("nobody"), reason="why")

    def test_a_request_refuses_an_end_that_asks_for_it(self, store: Store, place: StorePlace) -> None:
        """Nothing of the refused append is written; others of its batch are."""
        lease, other = admit(store), admit(store, "other")
        end = Append(
            lease=lease, records=(record("end"),), status="completed", release=True, tokens=7, unless_cancelled=True
        )
        store.request_cancel(RUN, reason=WANTED.reason)
        before = Append(lease=lease, records=(record("before"),))
        free = attrs.evolve(end, lease=other)
        written, refused, ended = store.append([before, end, free])
        assert (written, ended, store.get(other.run_id).status) == (WANTED, None, "completed")
        assert isinstance(refused, CancelPending)
        assert refused.request == WANTED
        assert (bodies(store), store.get(RUN).status) == ([record("before").body], "running")
        assert store.get(RUN).tokens != 7
        place.advance(LEASE_S + 1)
        heir = claim(store)
        [lost] = store.append([end])
        assert isinstance(lost, LeaseLost)
        aborted = Append(lease=heir, records=(record("aborted"),), status="aborted", release=True)
        assert store.append([aborted]) == [None]
        assert bodies(store) == [record("before").body, record("aborted").body]

    def test_a_request_changes_nothing_else(self, store: Store) -> None:
        """Records, status, lease and pauses of the run are unchanged."""
        put_to_sleep(store, admit(store), pause())
        before = store.get(RUN)
        store.request_cancel(RUN, reason="enough")
        assert attrs.evolve(store.get(RUN), cancel=None) == before

    def test_another_process_leaves_a_request(self, place: StorePlace) -> None:
        """The owner receives a request of another process."""
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


class SteeringClauses:
    """Messages to granular steps."""

    @pytest.fixture(autouse=True)
    def _takes_messages(self, store: Store) -> None:
        if not hasattr(store, "steer"):
            pytest.skip("this store has no messages")

    def test_an_owner_learns_of_a_message_with_its_next_append(self, store: Store) -> None:
        """The message is a numbered record; a cancel request is more urgent."""
        lease, other = admit(store), admit(store, "other")
        seq = store.steer(RUN, record=_steered("by train"), after=0)
        assert seq == store.read(RUN)[-1].seq
        assert store.read(RUN)[-1].kind == "steered"
        notice = MessageNotice(seq=seq)
        batch = [Append(lease=each, records=(record("a"),)) for each in (other, lease)]
        assert store.append(batch) == [None, notice]
        assert store.cancel_requests([RUN, other.run_id]) == {RUN: notice}
        store.request_cancel(RUN, reason=WANTED.reason)
        assert write(store, lease, record("b")) == WANTED
        assert store.cancel_requests([RUN]) == {RUN: WANTED}

    def test_a_message_needs_a_run_that_has_not_ended(self, store: Store) -> None:
        """An ended run keeps its records; a missing run is named."""
        lease = admit(store)
        assert write(store, lease, status="completed", release=True) is None
        before = store.read(RUN)
        assert store.steer(RUN, record=_steered("late"), after=0) is None
        assert store.read(RUN) == before
        with pytest.raises(RunNotFound):
            store.steer(RunId("nobody"), record=_steered("lost"), after=0)

    def test_a_message_waits_for_the_next_owner(self, store: Store, place: StorePlace) -> None:
        """A run without an owner accepts it, otherwise unchanged."""
        put_to_sleep(store, admit(store), pause())
        before = store.get(RUN)
        seq = store.steer(RUN, record=_steered("by train"), after=0)
        assert seq is not None
        after = store.get(RUN)
        assert (after.status, after.pauses, after.leased) == (before.status, before.pauses, before.leased)
        assert write(store, claim(store), status="running") == MessageNotice(seq=seq)

    def test_a_message_is_refused_after_a_newer_one(self, store: Store) -> None:
        """So two senders with one id cannot both write."""
        admit(store)
        first = store.steer(RUN, record=_steered("one"), after=0)
        assert first
        assert store.steer(RUN, record=_steered("two"), after=0) == 0
        second = store.steer(RUN, record=_steered("two"), after=first)
        assert second is not None
        assert second > first
        assert [each.body for each in store.read(RUN) if each.kind == "steered"] == [
            _steered("one").body,
            _steered("two").body,
        ]


def _steered(text: str) -> Record:
    return Record(kind="steered", path=StepPath("s"), body=f'{{"message": "{text}"}}')


class RecoveryClauses:
    """Claims of left runs, many at once."""

    @pytest.fixture(autouse=True)
    def _claims(self, store: Store) -> None:
        if not hasattr(store, "claim_all"):
            pytest.skip("this store claims runs one by one")

    def test_left_runs_are_claimed_with_their_records(self, store: Store, place: StorePlace) -> None:
        """Released, expired and dead owners' runs, in one call."""
        write(store, admit(store, "released"), record("a"), release=True)
        write(store, admit(store, "expired"), record("b"))
        place.advance(LEASE_S + 1)
        write(store, admit(store, "dead", owner="dead \0"), record("c"))
        runs = [store.get(RunId(run_id)) for run_id in ("released", "expired", "dead")]
        taken = {each.run.run_id: each for each in store.claim_all(runs, owner="thief \0", lease_s=LEASE_S)}
        assert {run_id: each.lease.epoch for run_id, each in taken.items()} == {"released": 2, "expired": 2, "dead": 2}
        assert [each.records for each in taken.values()] == [tuple(store.read(run_id)) for run_id in taken]
        for each in taken.values():
            assert store.get(each.run.run_id).owner == "thief \0"
            assert write(store, each.lease, record("more")) is None

    def test_a_run_that_changed_since_it_was_seen_is_left_out(self, store: Store) -> None:
        """Claimed, ended, deleted or held by a living owner: nothing is written."""
        write(store, admit(store, "claimed"), record(), release=True)
        write(store, admit(store, "ended"), record(), release=True)
        write(store, admit(store, "gone"), record(), release=True)
        held = admit(store, "held")
        seen = [store.get(RunId(run_id)) for run_id in ("claimed", "ended", "gone", "held")]
        claim(store, "claimed")
        write(store, claim(store, "ended"), record(), status="completed", release=True)
        store.delete([RunId("gone")])
        living = attrs.evolve(seen[3], owner=None, leased=False)
        assert store.claim_all([*seen[:3], living], owner="late", lease_s=LEASE_S) == []
        assert write(store, held, record()) is None
        assert store.claim_all([], owner="late", lease_s=LEASE_S) == []

    def test_of_many_callers_one_claims_a_left_run(self, store: Store) -> None:
        """At the same moment."""
        for number in range(8):
            write(store, admit(store, f"run {number}"), record(), release=True)
        seen = [store.get(RunId(f"run {number}")) for number in range(8)]

        def take(number: int) -> int:
            return len(store.claim_all(seen, owner=f"caller {number}", lease_s=LEASE_S))

        with ThreadPoolExecutor(4) as threads:
            assert sum(threads.map(take, range(4))) == 8


class RetryClauses:
    """Facts that decide a run's state, and its retry."""

    @pytest.fixture(autouse=True)
    def _retries(self, store: Store) -> None:
        if not hasattr(store, "retry"):
            pytest.skip("this store does not retry runs")

    def test_a_listing_has_version_and_times(self, store: Store) -> None:
        """A run starts with its first claim, and ends once."""
        waits = attrs.evolve(admission("run"), queue="queue", fingerprint="3f2a91")
        store.admit_all([waits], owner=None, lease_s=LEASE_S)
        run = store.get(RUN)
        assert (run.fingerprint, run.started_at, run.ended_at, run.retries) == ("3f2a91", None, None, 0)
        lease = claim(store)
        started = store.get(RUN).started_at
        assert started is not None
        assert write(store, lease, record(), release=True) is None
        again = claim(store)
        assert store.get(RUN).started_at == started
        assert write(store, again, record(kind="ended"), status="completed", release=True) is None
        run = store.get(RUN)
        assert run.ended_at is not None
        assert run.ended_at >= started
        assert run.worked_s >= 0

    def test_a_listing_shows_a_cancel_request_until_the_end(self, store: Store) -> None:
        """With its reason."""
        lease = admit(store)
        store.request_cancel(RUN, reason="enough \0")
        assert store.get(RUN).cancel == "enough \0"
        write(store, lease, record(kind="ended"), status="aborted", release=True)
        assert store.get(RUN).cancel is None

    @pytest.mark.parametrize("status", ["failed", "aborted"])
    def test_a_retry_makes_a_run_claimable_and_appends_its_record(self, store: Store, status: StoredStatus) -> None:
        """Its former owner cannot write to it, and its records stay."""
        lease = admit(store)
        write(store, lease, record("ended"), status=status, release=True)
        store.retry(RUN, number=1, record=record("again", kind="retried"), queue="queue \0")
        run = store.get(RUN)
        assert (run.status, run.leased, run.queue, run.retries, run.ended_at) == ("running", False, "queue \0", 1, None)
        assert run.records == 3
        assert [each.kind for each in store.read(RUN)] == ["admitted", "unit", "retried"]
        assert bodies(store)[-1] == record("again").body
        [wants] = store.wanting(pipeline="pipeline", queues=["queue \0"], host="nobody", limit=5)
        assert wants.run_id == "run"
        assert write(store, claim(store), record("more")) is None

    def test_a_run_keeps_its_queue(self, store: Store) -> None:
        """The queue of a retry is for runs without one."""
        store.admit_all([attrs.evolve(admission("run"), queue="mine")], owner=None, lease_s=LEASE_S)
        write(store, claim(store), record(), status="failed", release=True)
        store.retry(RUN, number=1, record=record(kind="retried"), queue="other")
        assert store.get(RUN).queue == "mine"

    def test_only_a_failed_or_aborted_run_is_retried(self, store: Store) -> None:
        """An open or completed run is unchanged; a missing one is refused."""
        lease = admit(store)
        with pytest.raises(NotRetryable):
            store.retry(RUN, number=1, record=record(kind="retried"), queue="queue")
        write(store, lease, record(), status="completed", release=True)
        with pytest.raises(NotRetryable):
            store.retry(RUN, number=1, record=record(kind="retried"), queue="queue")
        assert store.get(RUN).records == 2
        with pytest.raises(RunNotFound):
            store.retry(RunId("gone"), number=1, record=record(kind="retried"), queue="queue")

    def test_of_many_callers_one_retries(self, store: Store) -> None:
        """The number of the retry decides."""
        write(store, admit(store), record(), status="failed", release=True)

        def retry(_: int) -> bool:
            try:
                store.retry(RUN, number=1, record=record(kind="retried"), queue="queue")
            except NotRetryable:
                return False
            return True

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(retry, range(16))) == 1
        assert [each.kind for each in store.read(RUN)] == ["admitted", "unit", "retried"]

    def test_a_retried_run_can_ask_again(self, store: Store, place: StorePlace) -> None:
        """A run's pauses end with it, and return with their tokens."""
        put_to_sleep(store, admit(store), pause())
        write(store, claim(store), record(kind="ended"), status="aborted", release=True)
        assert store.get(RUN).pauses == ()
        store.retry(RUN, number=1, record=record(kind="retried"), queue="queue")
        put_to_sleep(store, claim(store), pause())
        answer(place.open())
        assert store.get(RUN).pauses == ()


class DutyClauses:
    """Duties of one process at a time, and deletion with sizes."""

    @pytest.fixture(autouse=True)
    def _has_duties(self, store: Store) -> None:
        if not hasattr(store, "take_duty"):
            pytest.skip("this store has no duties")

    def test_one_owner_at_a_time_has_a_duty(self, store: Store, place: StorePlace) -> None:
        """Its owner extends and releases it; other duties are free."""
        other = place.open()
        assert store.take_duty("sweep \0", owner="me \udc00", for_s=60.0)
        assert store.take_duty("sweep \0", owner="me \udc00", for_s=60.0)
        assert not other.take_duty("sweep \0", owner="you", for_s=60.0)
        assert other.take_duty("other", owner="you", for_s=60.0)
        assert store.take_duty("sweep \0", owner="me \udc00", for_s=0.0)
        assert other.take_duty("sweep \0", owner="you", for_s=60.0)

    def test_a_deletion_reports_its_bytes(self, store: Store) -> None:
        """Of bodies and of blobs without another user."""
        for run_id in ("one", "two"):
            assert write(store, admit(store, run_id), record("x" * 100_000), status="failed", release=True) is None
        runs, size = store.delete_sized([RunId("one"), RunId("gone")])
        assert runs == 1
        assert size >= len(admission("one").body)
        runs, size = store.delete_sized([RunId("two")])
        assert (runs, size > 100_000) == (1, True)


class FencingClauses:
    """Leases and epochs."""

    def test_a_leased_run_cannot_be_claimed(self, store: Store) -> None:
        """A second owner is refused while the first one's lease lasts."""
        admit(store, owner="owner")
        for name in ("thief", "owner"):
            with pytest.raises(RunLeased):
                claim(store, owner=name)

    def test_a_released_run_can_be_claimed_at_once(self, store: Store) -> None:
        """A release ends the lease immediately, and every claim raises the epoch."""
        first = admit(store)
        write(store, first, record("a"), release=True)
        assert not store.get(first.run_id).leased
        second = claim(store)
        assert second.epoch > first.epoch
        assert write(store, second, record("b")) is None

    def test_an_expired_lease_can_be_claimed(self, store: Store, place: StorePlace) -> None:
        """A dead process's run is free when its lease has expired."""
        first = admit(store)
        place.advance(LEASE_S - 1)
        with pytest.raises(RunLeased):
            claim(store)
        place.advance(2)
        assert not store.get(first.run_id).leased
        assert claim(store).epoch > first.epoch

    def test_a_renewed_lease_lasts_from_the_renewal(self, store: Store, place: StorePlace) -> None:
        """Renewal counts from now, without a limit."""
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
        """An expired lease permits a claim; the claim excludes the former owner."""
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
        """After a claim, every write of the former owner is refused."""
        stale, current = _taken_over(store, place)
        assert isinstance(write(store, stale, record("x"), status="completed", release=True), LeaseLost)
        assert isinstance(store.renew([stale], lease_s=LEASE_S)[0], LeaseLost)
        with pytest.raises(LeaseLost), store.transaction() as transaction:
            transaction.append(Append(lease=stale, records=(record("x"),)))
        run = store.get(current.run_id)
        assert (run.status, run.leased, run.epoch, run.records) == ("running", True, current.epoch, 1)
        assert write(store, current, record("mine")) is None

    def test_a_stale_append_is_left_out_and_the_others_are_written(self, store: Store, place: StorePlace) -> None:
        """One lost run does not delay a batch; its error is returned."""
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
        """A write after the release is refused, even in the same transaction."""
        lease = admit(store)
        batch = [
            Append(lease=lease, records=(record("a"),), release=True),
            Append(lease=lease, records=(record("b"),)),
        ]
        assert [isinstance(each, LeaseLost) for each in store.append(batch)] == [False, True]
        assert isinstance(store.renew([lease], lease_s=LEASE_S)[0], LeaseLost)
        assert bodies(store) == [record("a").body]

    def test_a_lease_of_another_owner_or_a_missing_run_is_refused(self, store: Store) -> None:
        """Owner and epoch count; a deleted run's lease is invalid."""
        lease = admit(store)
        forged = Lease(run_id=lease.run_id, owner="forger", epoch=lease.epoch)
        missing = Lease(run_id=RunId("nobody"), owner="owner", epoch=1)
        for wrong in (forged, missing):
            assert isinstance(write(store, wrong, record("x")), LeaseLost)
            assert isinstance(store.renew([wrong], lease_s=LEASE_S)[0], LeaseLost)
        assert bodies(store) == []

    def test_a_claim_leaves_the_status_to_the_next_append(self, store: Store) -> None:
        """A claimed paused run stays paused until its owner writes."""
        put_to_sleep(store, admit(store), pause())
        lease = claim(store)
        assert store.get(lease.run_id).status == "paused"
        write(store, lease, record(kind="resumed"), status="running")
        assert store.get(lease.run_id).status == "running"


def _taken_over(store: Store, place: StorePlace) -> tuple[Lease, Lease]:
    """Return a run's stale and current leases."""
    stale = admit(store)
    place.advance(LEASE_S + 1)
    return stale, claim(store)


class OutboxClauses:
    """Messages to webhooks, written with their appends."""

    @pytest.fixture(autouse=True)
    def _has_outbox(self, store: Store) -> None:
        if not hasattr(store, "claim_messages"):
            pytest.skip("this store has no outbox")

    def test_a_message_is_claimed_by_one_and_settled(self, store: Store, place: StorePlace) -> None:
        """A failed or lost delivery is due again until it is delivered."""
        assert write(store, admit(store), record("x"), outbox=(_message("a"), _message("b", hook="other"))) is None
        other = place.open()
        [claimed] = store.claim_messages(["hook"], owner="me", for_s=60.0, limit=9)
        assert (claimed.id, claimed.run_id, claimed.body) == ("a", "run", _message("a").body)
        assert other.claim_messages(["hook"], owner="you", for_s=60.0, limit=9) == []
        other.settle_message("a", owner="you", error=None, after_s=None)
        store.settle_message("a", owner="me", error="status 500 \0", after_s=0.0)
        [again] = other.claim_messages(["hook"], owner="you", for_s=0.0, limit=9)
        assert (again.attempts, again.error) == (1, "status 500 \0")
        [lost] = store.claim_messages(["hook"], owner="me", for_s=60.0, limit=9)
        store.settle_message(lost.id, owner="me", error=None, after_s=None)
        assert [(each.id, each.status) for each in store.messages()] == [("b", "pending"), ("a", "delivered")]

    def test_failed_messages_are_listed_retried_and_deleted_with_their_run(self, store: Store) -> None:
        """A refused append leaves no message."""
        lease = admit(store)
        write(store, lease, record("x"), outbox=(_message("a"),), status="failed", release=True)
        assert isinstance(write(store, lease, record("y"), outbox=(_message("c"),)), LeaseLost)
        store.claim_messages(["hook"], owner="me", for_s=60.0, limit=9)
        store.settle_message("a", owner="me", error="status 404", after_s=None)
        [failed] = store.messages(status="failed", run_id=RUN)
        assert (failed.attempts, failed.next_at) == (1, None)
        assert store.messages(status="pending") == store.messages(run_id=RunId("gone")) == []
        assert (store.retry_messages(["c"]), store.retry_messages()) == (0, 1)
        assert [each.status for each in store.messages(limit=1)] == ["pending"]
        assert store.delete([RUN]) == 1
        assert store.messages() == []


def _message(name: str, *, hook: str = "hook") -> OutboxMessage:
    return OutboxMessage(id=name, hook=hook, url="https://example.org", event="ended", body=f'{{"id": "{name} “”"}}')
