"""Clauses: runs that wait for a worker, remote steps of others, and who is there to work."""

from __future__ import annotations

import attrs
import pytest

from ..._core.outcomes import RunId
from ..._core.records import Admission, CancelRequest, Lease, RunQuery, StoredRun, WorkerNote
from ...errors import LeaseLost, RunExists
from ...stores._port import Store
from .place import StorePlace
from .samples import LEASE_S, admission, admit, answer, claim, pause, put_to_sleep, record, write

QUEUE = "queue “1”"


class QueueClauses:
    """Queues, children and workers."""

    @pytest.fixture(autouse=True)
    def _knows_queues(self, store: Store) -> None:
        if not hasattr(store, "wanting"):
            pytest.skip("this store has no queues")

    def test_a_run_without_an_owner_waits_for_whoever_claims_it(self, store: Store) -> None:
        """It is there, nobody holds it, and what it was admitted with allows no write."""
        lease = enqueue(store, "run")
        run = store.get(RunId("run"))
        assert (run.status, run.leased, run.owner, run.queue, run.unclaimed) == ("running", False, None, QUEUE, True)
        assert isinstance(write(store, lease, record("mine")), LeaseLost)
        assert claim(store).epoch == 1
        assert not store.get(RunId("run")).unclaimed

    def test_what_nobody_began_was_not_abandoned(self, store: Store, place: StorePlace) -> None:
        """A listing of what processes left does not show what only waits."""
        enqueue(store, "waits")
        admit(store, "left")
        place.advance(LEASE_S + 1)
        assert [run.run_id for run in store.find(RunQuery(abandoned=True))] == ["left"]

    def test_a_taken_id_is_refused_without_an_owner_too(self, store: Store) -> None:
        """The others of the batch are admitted."""
        admit(store, "taken")
        answers = store.admit_all([waiting("taken"), waiting("new")], owner=None, lease_s=LEASE_S)
        assert [type(each) for each in answers] == [RunExists, Lease]

    def test_runs_want_a_worker_oldest_first(self, store: Store) -> None:
        """Those of one pipeline in some queues, and no more than are wanted."""
        for run_id in ("b", "a", "c"):
            enqueue(store, run_id)
        enqueue(store, "elsewhere", queue="another")
        enqueue(store, "other", pipeline="another")
        admit(store, "at work")
        assert wanting(store) == ["b", "a", "c"]
        assert wanting(store, limit=2) == ["b", "a"]
        assert wanting(store, queues=("another", QUEUE)) == ["b", "a", "c", "elsewhere"]

    def test_a_run_that_somebody_holds_wants_nobody(self, store: Store, place: StorePlace) -> None:
        """Until its lease runs out, or is given up; or if its owner may be known to be dead."""
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
        """All of its questions were."""
        enqueue(store, "run")
        put_to_sleep(store, claim(store), pause("token"))
        assert wanting(store) == []
        answer(store)
        assert wanting(store) == ["run"]

    def test_orphans_belong_to_nobody_and_are_in_no_queue(self, store: Store, place: StorePlace) -> None:
        """Oldest first, and no more than are wanted, however many are under way."""
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
        """Not before all of its questions are."""
        put_to_sleep(store, admit(store, "run"), pause("token"))
        assert orphans(store) == []
        answer(store)
        assert orphans(store) == ["run"]
        claim(store)
        assert orphans(store) == []

    def test_a_remote_step_is_part_of_its_run(self, store: Store) -> None:
        """Listings leave it out; it is found by its own id, and as a child."""
        admit(store, "root \0")
        child = enqueue(store, "child", parent="root \0")
        assert [run.run_id for run in store.find(RunQuery())] == ["root \0"]
        assert store.children(RunId("root \0")) == [child.run_id]
        assert store.get(child.run_id).parent == "root \0"
        assert wanting(store) == ["child"]

    def test_remote_steps_are_forgotten_with_their_run(self, store: Store) -> None:
        """Also one that somebody works on, who is refused then; not those of others."""
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
        """Whoever waits for it asks; a request to end it is dropped with that."""
        enqueue(store, "run", parent="root")
        lease = claim(store)
        store.request_cancel(RunId("run"), reason="stop")
        assert write(store, lease, status="paused", release=True) == CancelRequest(reason="stop")
        assert wanting(store) == []
        store.requeue([RunId("run"), RunId("nobody")])
        assert wanting(store) == ["run"]
        assert store.cancel_requests([RunId("run")]) == {}

    def test_a_remote_step_that_nobody_waits_for_is_put_to_rest(self, store: Store) -> None:
        """At once if nobody works on it; otherwise whoever does is told why."""
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
        """And only as long as they have not ended."""
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
        """Whoever signs on again says something new."""
        store.sign_on(WorkerNote(name="b", body='{"busy": 1}'))
        store.sign_on(WorkerNote(name="a \0", body='"\0"'))
        store.sign_on(WorkerNote(name="b", body='{"busy": 2}'))
        there = store.signed_on(within_s=3600)
        assert [(each.name, each.body) for each in there] == [("a \0", '"\0"'), ("b", '{"busy": 2}')]
        assert all(each.seen_at > 0 for each in there)
        store.sign_off("b")
        assert [each.name for each in store.signed_on(within_s=3600)] == ["a \0"]


def waiting(run_id: str, *, queue: str = QUEUE, pipeline: str = "pipeline", parent: str | None = None) -> Admission:
    of = None if parent is None else RunId(parent)
    return attrs.evolve(admission(run_id, pipeline=pipeline), queue=queue, parent=of)


def enqueue(store: Store, run_id: str, **options: str) -> Lease:
    [answer] = store.admit_all([waiting(run_id, **options)], owner=None, lease_s=LEASE_S)
    assert isinstance(answer, Lease)
    return answer


def orphans(store: Store, *, host: str = "nowhere", updated_before: float = 1e12, limit: int = 10) -> list[str]:
    runs: list[StoredRun] = store.orphans(pipeline="pipeline", host=host, updated_before=updated_before, limit=limit)
    return [run.run_id for run in runs]


def wanting(store: Store, *, queues: tuple[str, ...] = (QUEUE,), host: str = "nowhere", limit: int = 10) -> list[str]:
    runs: list[StoredRun] = store.wanting(pipeline="pipeline", queues=queues, host=host, limit=limit)
    return [run.run_id for run in runs]
