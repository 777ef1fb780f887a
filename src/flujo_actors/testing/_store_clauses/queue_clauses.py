"""Clauses: queued runs, remote steps, workers and schedules."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest

from ..._core.outcomes import RunId
from ..._core.policies.schedule_rules import StoredSchedule
from ..._core.records.records import (
    Admission,
    CancelRequest,
    ClaimOrder,
    Lease,
    RunQuery,
    StoredRun,
    StoredStatus,
    WorkerNote,
)
from ...errors import LeaseLost, RunExists, RunLeased
from ...stores._store_port import Store
from .store_target import LEASE_S, StorePlace, admission, admit, answer, claim, pause, put_to_sleep, record, write

QUEUE = "queue “1”"


class QueueClauses:
    """Queues, children and workers."""

    @pytest.fixture(autouse=True)
    def _knows_queues(self, store: Store) -> None:
        if not hasattr(store, "wanting"):
            pytest.skip("this store has no queues")

    def test_a_run_without_an_owner_waits_for_whoever_claims_it(self, store: Store) -> None:
        """It exists without an owner, and its admission lease permits no write."""
        lease = enqueue(store, "run")
        run = store.get(RunId("run"))
        assert (run.status, run.leased, run.owner, run.queue, run.unclaimed) == ("running", False, None, QUEUE, True)
        assert isinstance(write(store, lease, record("mine")), LeaseLost)
        assert claim(store).epoch == 1
        assert not store.get(RunId("run")).unclaimed

    def test_what_nobody_began_was_not_abandoned(self, store: Store, place: StorePlace) -> None:
        """The listing of abandoned runs does not include queued ones."""
        enqueue(store, "waits")
        admit(store, "left")
        place.advance(LEASE_S + 1)
        assert [run.run_id for run in store.find(RunQuery(abandoned=True))] == ["left"]

    @pytest.mark.parametrize("status", ["paused", "sleeping"])
    def test_a_claim_without_a_write_is_found_at_any_status(
        self, store: Store, place: StorePlace, status: StoredStatus
    ) -> None:
        """An owner may die between its claim and its first write."""
        enqueue(store, "run")
        write(store, claim(store), record(), status=status, release=True)
        claim(store)
        place.advance(LEASE_S + 1)
        assert wanting(store) == ["run"]
        run = store.get(RunId("run"))
        assert (run.status, run.is_unreleased, run.is_asleep) == (status, True, False)
        assert [each.run_id for each in store.find(RunQuery(facts=("unreleased",)))] == ["run"]

    def test_a_taken_id_is_refused_without_an_owner_too(self, store: Store) -> None:
        """The others of the batch are admitted."""
        admit(store, "taken")
        answers = store.admit_all([waiting("taken"), waiting("new")], owner=None, lease_s=LEASE_S)
        assert [type(each) for each in answers] == [RunExists, Lease]

    def test_runs_want_a_worker_oldest_first(self, store: Store) -> None:
        """Those of one pipeline in some queues, up to the limit."""
        for run_id in ("b", "a", "c"):
            enqueue(store, run_id)
        enqueue(store, "elsewhere", queue="another")
        enqueue(store, "other", pipeline="another")
        admit(store, "at work")
        assert wanting(store) == ["b", "a", "c"]
        assert wanting(store, limit=2) == ["b", "a"]
        assert wanting(store, queues=("another", QUEUE)) == ["b", "a", "c", "elsewhere"]

    def test_a_run_that_somebody_holds_wants_nobody(self, store: Store, place: StorePlace) -> None:
        """A held run is not claimable until expiry, release or death."""
        enqueue(store, "run")
        lease = claim(store, owner="host \0:1")
        assert wanting(store) == []
        assert wanting(store, host="host \0:") == ["run"]
        place.advance(LEASE_S + 1)
        assert wanting(store) == ["run"]
        assert store.get(RunId("run")).last_owner == "host \0:1"
        assert write(store, lease, release=True) is None
        assert wanting(store) == ["run"]
        assert store.get(RunId("run")).last_owner is None

    def test_a_run_that_has_ended_wants_nobody(self, store: Store) -> None:
        """For ever."""
        enqueue(store, "run")
        write(store, claim(store), status="completed", release=True)
        assert wanting(store) == []

    def test_a_paused_run_wants_a_worker_when_it_was_answered(self, store: Store) -> None:
        """After all of its pauses are answered."""
        enqueue(store, "run")
        put_to_sleep(store, claim(store), pause("token"))
        assert wanting(store) == []
        answer(store)
        assert wanting(store) == ["run"]

    def test_orphans_belong_to_nobody_and_are_in_no_queue(self, store: Store, place: StorePlace) -> None:
        """Oldest first and up to the limit, regardless of running ones."""
        for run_id in ("b", "a", "c", "live"):
            admit(store, run_id, owner=f"host \0:{run_id}")
        enqueue(store, "in a queue")
        enqueue(store, "a child", parent="a")
        assert orphans(store) == []
        assert orphans(store, host="host \0:a") == ["a"]
        place.advance(LEASE_S + 1)
        claim(store, "live")
        assert orphans(store) == ["b", "a", "c"]
        assert orphans(store, limit=2) == ["b", "a"]
        assert orphans(store, updated_before=1.0) == []
        write(store, claim(store, "b"), status="completed", release=True)
        assert orphans(store) == ["a", "c"]

    def test_an_answered_run_is_an_orphan_until_somebody_goes_on_with_it(self, store: Store) -> None:
        """After all of its pauses are answered."""
        put_to_sleep(store, admit(store, "run"), pause("token"))
        assert orphans(store) == []
        answer(store)
        assert orphans(store) == ["run"]
        claim(store)
        assert orphans(store) == []

    def test_a_remote_step_is_part_of_its_run(self, store: Store) -> None:
        """Listings omit it; it is found by id and as child."""
        admit(store, "root \0")
        child = enqueue(store, "child", parent="root \0")
        assert [run.run_id for run in store.find(RunQuery())] == ["root \0"]
        assert store.children(RunId("root \0")) == [child.run_id]
        assert store.get(child.run_id).parent == "root \0"
        assert wanting(store) == ["child"]

    def test_remote_steps_are_forgotten_with_their_run(self, store: Store) -> None:
        """Even a leased one, but not those of other runs."""
        root = admit(store, "root")
        write(store, root, release=True)
        admit(store, "other")
        enqueue(store, "child", parent="root")
        enqueue(store, "nephew", parent="other")
        lease = claim(store, "child")
        assert store.delete([RunId("root")]) == 1
        assert [run.run_id for run in store.standing([RunId("child"), RunId("nephew")])] == ["nephew"]
        assert isinstance(write(store, lease, record("late")), LeaseLost)

    def test_a_remote_step_at_rest_wants_nobody_until_it_is_asked_for(self, store: Store) -> None:
        """A waiting parent requeues it, which drops a cancel request."""
        enqueue(store, "run", parent="root")
        lease = claim(store)
        store.request_cancel(RunId("run"), reason="stop")
        assert write(store, lease, status="paused", release=True) == CancelRequest(reason="stop")
        assert wanting(store) == []
        store.requeue([RunId("run"), RunId("nobody")])
        assert wanting(store) == ["run"]
        assert store.cancel_requests([RunId("run")]) == {}

    def test_a_remote_step_that_nobody_waits_for_is_put_to_rest(self, store: Store) -> None:
        """At once without an owner; otherwise its owner receives the reason."""
        enqueue(store, "free", parent="root")
        enqueue(store, "held", parent="root")
        enqueue(store, "root")
        lease = claim(store, "held")
        store.park([RunId("free"), RunId("held"), RunId("root"), RunId("nobody")], reason="enough \0")
        assert wanting(store) == ["root"]
        assert [store.get(RunId(each)).status for each in ("free", "held")] == ["paused", "running"]
        assert write(store, lease, record("mine")) == CancelRequest(reason="enough \0")
        store.requeue([RunId("free")])
        assert wanting(store) == ["free", "root"]

    def test_only_remote_steps_are_asked_for_like_that(self, store: Store) -> None:
        """And only before their end."""
        put_to_sleep(store, admit(store, "root"), pause("token"))
        enqueue(store, "done", parent="root")
        write(store, claim(store, "done"), status="failed", release=True)
        store.requeue([RunId("root"), RunId("done")])
        assert [store.get(RunId(each)).status for each in ("root", "done")] == ["paused", "failed"]

    def test_many_runs_are_looked_at_at_once(self, store: Store) -> None:
        """Those that are there."""
        enqueue(store, "one")
        enqueue(store, "two")
        assert {run.run_id for run in store.standing([RunId("one"), RunId("two"), RunId("none")])} == {"one", "two"}
        assert store.standing([]) == []

    def test_workers_sign_on_and_off(self, store: Store) -> None:
        """A repeated report replaces the earlier one."""
        store.sign_on(WorkerNote(name="b", body='{"busy": 1}'))
        store.sign_on(WorkerNote(name="a \0", body='"\0"'))
        store.sign_on(WorkerNote(name="b", body='{"busy": 2}'))
        there = store.signed_on(within_s=3600)
        assert [(each.name, each.body) for each in there] == [("a \0", '"\0"'), ("b", '{"busy": 2}')]
        assert all(each.seen_at > 0 for each in there)
        store.sign_off("b")
        assert [each.name for each in store.signed_on(within_s=3600)] == ["a \0"]


def waiting(
    run_id: str, *, queue: str = QUEUE, pipeline: str = "pipeline", parent: str | None = None, **order: Any
) -> Admission:
    of = None if parent is None else RunId(parent)
    return attrs.evolve(admission(run_id, pipeline=pipeline), queue=queue, parent=of, **order)


def enqueue(store: Store, run_id: str, **options: Any) -> Lease:
    [answer] = store.admit_all([waiting(run_id, **options)], owner=None, lease_s=LEASE_S)
    assert isinstance(answer, Lease)
    return answer


def orphans(store: Store, *, host: str = "nowhere", updated_before: float = 1e12, limit: int = 10) -> list[str]:
    runs: list[StoredRun] = store.orphans(pipeline="pipeline", host=host, updated_before=updated_before, limit=limit)
    return [run.run_id for run in runs]


def wanting(store: Store, *, queues: tuple[str, ...] = (QUEUE,), host: str = "nowhere", limit: int = 10) -> list[str]:
    runs: list[StoredRun] = store.wanting(pipeline="pipeline", queues=queues, host=host, limit=limit)
    return [run.run_id for run in runs]


# --- Claims in order, for stores that have `claim_next` -----------------------------------------------------------


class ClaimClauses:
    """Claims of queued runs by priority, key and time."""

    @pytest.fixture(autouse=True)
    def _claims_in_order(self, store: Store) -> None:
        if not hasattr(store, "claim_next"):
            pytest.skip("this store has no order of claims")

    def test_the_oldest_runs_are_claimed_together(self, store: Store) -> None:
        """One call claims several runs of one pipeline."""
        for run_id in ("b", "a", "c"):
            enqueue(store, run_id)
        enqueue(store, "foreign", queue="another")
        enqueue(store, "other", pipeline="another")
        taken = store.claim_next(order(limit=2), owner="me", lease_s=LEASE_S)
        assert [each.lease.run_id for each in taken] == ["b", "a"]
        assert [list(each.records) for each in taken] == [store.read(RunId("b")), store.read(RunId("a"))]
        assert all(write(store, each.lease, record("mine")) is None for each in taken)
        assert next_runs(store) == ["c"]
        assert next_runs(store) == []

    def test_runs_of_tickets_are_claimed_first(self, store: Store) -> None:
        """The oldest runs follow; tickets of unclaimable runs are skipped."""
        for run_id in ("a", "b", "c", "d"):
            enqueue(store, run_id)
        enqueue(store, "other", pipeline="another")
        tickets = tuple(map(RunId, ("c", "other", "gone")))
        assert next_runs(store, limit=2, tickets=tickets) == ["c", "a"]
        assert next_runs(store, limit=1, tickets=(RunId("d"),)) == ["d"]
        assert next_runs(store, tickets=tickets) == ["b"]

    def test_priorities_and_keys_precede_tickets(self, store: Store) -> None:
        """The order of a queue holds for every worker."""
        for run_id, priority in (("low", -5), ("high", 5)):
            enqueue(store, run_id, priority=priority)
        assert next_runs(store, limit=1, tickets=(RunId("low"),)) == ["high"]

    def test_a_released_run_is_claimed_again_without_its_records(self, store: Store) -> None:
        """The next owner reads a long run, not the claim."""
        enqueue(store, "run")
        [first] = store.claim_next(order(), owner="me", lease_s=LEASE_S)
        write(store, first.lease, record("mine"), release=True)
        [again] = store.claim_next(order(), owner="you", lease_s=LEASE_S)
        assert (again.lease.epoch, again.records, again.run.leased, again.run.last_owner) == (2, (), False, None)

    def test_runs_with_an_owner_a_question_or_a_request_are_left_out(self, store: Store, place: StorePlace) -> None:
        """An expired lease is found by `wanting`, which counts deaths."""
        for run_id in ("cancelled", "held", "paused", "left alone"):
            enqueue(store, run_id)
        store.request_cancel(RunId("cancelled"), reason="enough")
        claim(store, "held")
        put_to_sleep(store, claim(store, "paused"), pause())
        assert next_runs(store, without=(RunId("left alone"),)) == []
        place.advance(LEASE_S + 1)
        assert next_runs(store) == ["left alone"]

    def test_a_higher_priority_is_claimed_first(self, store: Store) -> None:
        """Runs of one priority keep their order."""
        for run_id, priority in (("low", -5), ("first", 0), ("second", 0), ("high", 5)):
            enqueue(store, run_id, priority=priority)
        assert next_runs(store, limit=1) == ["high"]
        assert next_runs(store) == ["first", "second", "low"]

    def test_keys_take_turns(self, store: Store) -> None:
        """A key with one run does not wait for another key."""
        for number in range(5):
            enqueue(store, f"a{number}", key="a")
        enqueue(store, "b0", key="b")
        enqueue(store, "none")
        assert next_runs(store, limit=4) == ["none", "a0", "b0", "a1"]
        enqueue(store, "b1", key="b")
        assert next_runs(store, limit=2, after={QUEUE: "a"}) == ["b1", "a2"]

    def test_the_turn_continues_behind_the_last_key(self, store: Store) -> None:
        """After the last key the first one follows."""
        for key in ("a", "b", "c"):
            for number in range(2):
                enqueue(store, f"{key}{number}", key=key)
        assert next_runs(store, limit=1, after={QUEUE: "b"}) == ["c0"]
        assert next_runs(store, limit=2, after={QUEUE: "c"}) == ["a0", "b0"]

    def test_a_key_has_a_limited_number_of_leases(self, store: Store, place: StorePlace) -> None:
        """Counted by unexpired leases of that key in that queue."""
        for number in range(4):
            enqueue(store, f"a{number}", key="a")
        enqueue(store, "b0", key="b")
        enqueue(store, "theirs", key="a", queue="another")
        claim(store, "theirs")
        assert next_runs(store, per_key=2) == ["a0", "b0", "a1"]
        assert next_runs(store, per_key=2) == []
        with pytest.raises(RunLeased, match="2 runs of its key"):
            claim_within(store, "a2", per_key=2)
        place.advance(LEASE_S + 1)
        assert claim_within(store, "a0", per_key=2).epoch == 2
        assert next_runs(store, per_key=2) == ["a2"]

    def test_a_dead_owner_is_replaced_within_the_limit(self, store: Store) -> None:
        """Its own lease does not count against its successor."""
        enqueue(store, "run", key="a")
        store.claim(RunId("run"), owner="dead", lease_s=LEASE_S)
        within: Any = store
        assert within.take_over(RunId("run"), dead="dead", owner="me", lease_s=LEASE_S, per_key=1).epoch == 2

    def test_concurrent_claims_get_different_runs_within_the_limit(self, store: Store) -> None:
        """The claim's transaction counts the leases of a key."""
        for number in range(12):
            enqueue(store, f"run {number}", key="ab"[number % 2])
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: next_runs(store, limit=3, per_key=2), range(8)))
        taken = [run_id for each in found for run_id in each]
        assert len(taken) == len(set(taken)) == 4
        assert sorted(store.get(RunId(run_id)).key for run_id in taken) == ["a", "a", "b", "b"]

    def test_a_remote_step_has_the_key_and_priority_of_its_run(self, store: Store) -> None:
        """Both are stored, and count in the queue of the step."""
        enqueue(store, "run", key="a", priority=7)
        child = attrs.evolve(waiting("child"), parent=RunId("run"))
        store.admit_all([child], owner=None, lease_s=0.0)
        found = store.get(RunId("child"))
        assert (found.key, found.priority) == ("a", 7)
        assert store.ready_keys() == [(QUEUE, "a", 1)]

    def test_only_runs_of_a_version_or_without_one_are_claimed(self, store: Store) -> None:
        """Others are refused by their worker, with a reason."""
        for run_id, version in (("old", "v1"), ("new", "v2"), ("any", None)):
            store.admit_all([attrs.evolve(waiting(run_id), fingerprint=version)], owner=None, lease_s=0.0)
        assert next_runs(store, fingerprint="v2") == ["new", "any"]
        assert next_runs(store) == ["old"]

    def test_an_engine_has_time_to_deliver_new_runs(self, store: Store) -> None:
        """A run that was never claimed is selected from an age on."""
        enqueue(store, "new")
        assert next_runs(store, waiting_s=60.0) == []
        assert next_runs(store, waiting_s=0.0) == ["new"]


def order(**wanted: Any) -> ClaimOrder:
    """Return an order of the clauses' queue."""
    return ClaimOrder(**{"pipeline": "pipeline", "queues": (QUEUE,), "limit": 10, **wanted})


def claim_within(store: Any, run_id: str, *, per_key: int) -> Lease:
    """Claim one run within a limit per key."""
    lease: Lease = store.claim(RunId(run_id), owner="me", lease_s=LEASE_S, per_key=per_key)
    return lease


def next_runs(store: Store, **wanted: Any) -> list[str]:
    """Claim the next runs; return their ids."""
    taken = store.claim_next(order(**wanted), owner="me", lease_s=LEASE_S)
    return [each.lease.run_id for each in taken]


# --- Schedules, for stores that have `fire` -----------------------------------------------------------------------


ROW = StoredSchedule(
    name="daily é\0", pipeline="p \0", queue="default", declared='{"cron": "\\u0000"}', progress="{}", due_at=1.0
)


def instant_run(run_id: str) -> Admission:
    """Return a run of the schedule."""
    return Admission(run_id=RunId(run_id), pipeline=ROW.pipeline, body='{"v":2}', queue="default")


class ScheduleClauses:
    """Schedules and the runs of their instants."""

    @pytest.fixture
    def schedules(self, place: StorePlace) -> Store:
        """Store with schedules."""
        store = place.open()
        if not hasattr(store, "fire"):
            pytest.skip(f"{type(store).__name__} keeps no schedules: it has no `fire`")
        return store

    def test_a_schedule_is_declared_once_and_returned_unchanged(self, schedules: Store) -> None:
        """Texts are opaque; a read has the store's time."""
        assert schedules.declare(ROW)
        assert not schedules.declare(attrs.evolve(ROW, progress="other"))
        [found] = schedules.get_all()
        assert attrs.evolve(found, version=0, now=0.0) == ROW
        assert found.now > 0

    def test_a_list_of_schedules_has_filters(self, schedules: Store) -> None:
        """By pipeline, by name, and by the time of the next look."""
        later = attrs.evolve(ROW, name="later", pipeline="other", due_at=1e12)
        for row in (ROW, later, attrs.evolve(ROW, name="never", due_at=None)):
            schedules.declare(row)
        assert [each.name for each in schedules.get_all(due=True)] == [ROW.name]
        assert [each.name for each in schedules.get_all(pipeline="other")] == ["later"]
        assert [each.due_at for each in schedules.get_all(name="never")] == [None]

    def test_a_change_of_another_version_is_refused(self, schedules: Store) -> None:
        """Of two readers, one changes the schedule."""
        schedules.declare(ROW)
        [read] = schedules.get_all()
        assert schedules.change(attrs.evolve(read, progress="first"))
        assert not schedules.change(attrs.evolve(read, progress="second"))
        assert schedules.get_all()[0].progress == "first"

    def test_a_run_is_created_with_the_progress_or_not_at_all(self, schedules: Store) -> None:
        """A refused firing creates nothing; a used id is returned."""
        schedules.declare(ROW)
        [read] = schedules.get_all()
        answers = schedules.fire(attrs.evolve(read, progress="first"), [instant_run("daily@1")])
        assert answers is not None
        assert isinstance(answers[0], Lease)
        assert schedules.fire(attrs.evolve(read, progress="second"), [instant_run("daily@2")]) is None
        assert schedules.standing([RunId("daily@2")]) == []
        [again] = schedules.get_all()
        repeated = schedules.fire(again, [instant_run("daily@1"), instant_run("daily@3")])
        assert repeated is not None
        assert isinstance(repeated[0], RunExists)
        assert [each.run_id for each in schedules.standing([RunId("daily@3")])] == ["daily@3"]

    def test_of_many_that_fire_at_once_one_does(self, place: StorePlace, schedules: Store) -> None:
        """Through one store or several."""
        schedules.declare(ROW)
        [read] = schedules.get_all()
        stores = [schedules, place.open()]

        def fire(number: int) -> bool:
            return stores[number % 2].fire(read, [instant_run(f"daily@{number}")]) is not None

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(fire, range(8))) == 1

    def test_a_removed_schedule_keeps_its_runs(self, schedules: Store) -> None:
        """A second removal finds none."""
        schedules.declare(ROW)
        schedules.fire(schedules.get_all()[0], [instant_run("daily@1")])
        assert schedules.remove(ROW.name)
        assert not schedules.remove(ROW.name)
        assert schedules.get_all() == []
        assert schedules.standing([RunId("daily@1")])
