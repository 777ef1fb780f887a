"""Clauses: record summaries, run states, listing pages and forks."""

from __future__ import annotations

from typing import Any, get_args

import attrs
import pytest

from ..._core.labels import Labels
from ..._core.outcomes import RunId
from ..._core.policies.selection import Evidence
from ..._core.records.records import (
    Admission,
    Lease,
    ListOrder,
    OpenFact,
    QuestionQuery,
    Record,
    RunCounts,
    RunFigures,
    RunQuery,
)
from ..._core.step_paths import StepPath
from ..._core.views.record_summaries import gist
from ...errors import DeclarationError, RunExists, RunNotFound, SingletonBusy
from ...stores._store_port import Store
from .store_target import (
    ANSWERED,
    LEASE_S,
    STEP,
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
LONG = "x" * 200_000
ORDERS: tuple[ListOrder, ...] = ("created", "updated")


class ScanClauses:
    """Looking at runs while they run."""

    def test_a_scan_shows_records_without_their_bodies(self, store: Store) -> None:
        """All records in order, with time and gist, even the longest."""
        lease = admit(store)
        write(store, lease, record("a", path=STEP), record(LONG), record("“b”"))
        rows = store.scan(RUN)
        assert [(row.seq, row.kind, row.path) for row in rows][1:] == [(seq, "unit", STEP) for seq in (2, 3, 4)]
        assert [row.at for row in rows] == [each.at for each in store.read(RUN)]
        assert all(isinstance(row.at, float) for row in rows)
        assert not hasattr(rows[0], "body")

    def test_a_scan_begins_and_ends_where_it_is_told(self, store: Store) -> None:
        """Page by page, without gaps; a missing run is named."""
        lease = admit(store)
        write(store, lease, *(record(str(number)) for number in range(6)))
        assert [row.seq for row in store.scan(RUN, 2, 3)] == [3, 4, 5]
        assert [row.seq for row in store.scan(RUN, after=5)] == [6, 7]
        assert store.scan(RUN, after=7) == []
        with pytest.raises(RunNotFound):
            store.scan(RunId("nobody"))

    def test_a_gist_is_kept_as_it_was_written(self, store: Store) -> None:
        """The writer's gist, in any characters."""
        facts = {"name": "na\x1ame \0 \u2028", "status": "failure", "tokens": 7, "cost_usd": 0.25, "note": "why “not”"}
        write(store, admit(store), Record(kind="settled", path=STEP, body=record("a").body, gist=gist(**facts)))
        [row] = store.scan(RUN, after=1)
        assert {name: getattr(row, name) for name in facts} == facts

    def test_records_carry_their_time(self, store: Store) -> None:
        """Read with or without bodies, and never earlier than the previous one."""
        lease = admit(store)
        write(store, lease, record("a"))
        write(store, lease, record("b"))
        times = [each.at for each in store.read(RUN)]
        assert None not in times
        assert times == sorted(times, key=lambda at: at or 0.0)

    def test_one_record_is_read_by_its_number(self, store: Store) -> None:
        """With its body, long or short; a missing number is named."""
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
        """From the write that reports it, until another one does."""
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

    def test_a_listing_in_created_order_is_stable(self, store: Store) -> None:
        """Newest run first, page by page, whatever changes meanwhile."""
        leases = [admit(store, f"run {number}") for number in range(5)]
        first = store.find(RunQuery(limit=2, order="created"))
        write(store, leases[0], record("late"), status="completed", release=True)
        second = store.find(RunQuery(limit=2, order="created", cursor=first[-1].cursor))
        third = store.find(RunQuery(limit=2, order="created", cursor=second[-1].cursor))
        listed = [run.run_id for page in (first, second, third) for run in page]
        assert listed == [f"run {number}" for number in reversed(range(5))]

    def test_a_cursor_is_refused_by_the_other_order(self, store: Store) -> None:
        """Both ways, with the order that it belongs to."""
        admit(store)
        for mine, other in zip(ORDERS, reversed(ORDERS), strict=True):
            [run] = store.find(RunQuery(order=mine))
            with pytest.raises(DeclarationError, match=f"this cursor belongs to order='{mine}'"):
                store.find(RunQuery(order=other, cursor=run.cursor))

    def test_runs_are_listed_by_queue_and_by_creation(self, store: Store) -> None:
        """In both orders, and with other filters."""
        queued = [attrs.evolve(admission(name), queue=queue) for name, queue in (("a", "gpu"), ("b", "cpu"))]
        store.admit_all(queued, owner=None, lease_s=0.0)
        admit(store, "c")
        times = {run.run_id: run.created_at for run in store.find(RunQuery())}
        for order in ORDERS:
            assert _listed(store, RunQuery(queue="gpu", order=order)) == ["a"]
            assert _listed(store, RunQuery(queue="tpu", order=order)) == []
            assert _listed(store, RunQuery(queue="cpu", status="running", limit=9, order=order)) == ["b"]
            later = _listed(store, RunQuery(created_after=times[RunId("a")], limit=9, order=order))
            assert set(later) == {name for name, at in times.items() if at > times[RunId("a")]}
            earlier = _listed(store, RunQuery(created_before=times[RunId("c")], limit=9, order=order))
            assert set(earlier) == {name for name, at in times.items() if at < times[RunId("c")]}
            assert _listed(store, RunQuery(created_after=times[RunId("c")] + 1, order=order)) == []

    def test_a_reward_after_the_end_does_not_move_a_run(self, store: Store) -> None:
        """An ended run is listed by the time of its end."""
        if not hasattr(store, "reward"):
            pytest.skip("this store has no selection statistics")
        first, second = admit(store, "first"), admit(store, "second")
        for lease in (first, second):
            write(store, lease, record("end"), status="completed", release=True)
        evidence = Evidence(name="agents", category="default", arm="a", reward=1.0)
        store.reward(RunId("first"), STEP, record=record(kind="rewarded"), evidence=evidence)
        assert _listed(store, RunQuery()) == ["second", "first"]
        assert _listed(store, RunQuery(status="completed", limit=1)) == ["second"]

    def test_answered_runs_are_listed_by_themselves(self, store: Store) -> None:
        """Not while a pause is open, and not after a resume."""
        lease = admit(store)
        put_to_sleep(store, admit(store, "waits"), pause())
        put_to_sleep(store, lease, pause(), pause("other", path=StepPath("other")))
        assert _listed(store, RunQuery(answered=True)) == []
        answer(store)
        assert _listed(store, RunQuery(answered=True)) == []
        store.answer(RUN, StepPath("other"), token="other", record=record("yes", kind="answered"))
        for order in ORDERS:
            assert _listed(store, RunQuery(answered=True, status="paused", order=order)) == ["run"]
        write(store, claim(store), record("on"), status="running")
        assert _listed(store, RunQuery(answered=True)) == []

    def test_open_pauses_are_read_page_by_page(self, store: Store) -> None:
        """Latest first, without answered ones; later pauses do not shift a page."""
        for name in "abc":
            put_to_sleep(store, admit(store, name), pause(name), pause(f"{name}2", path=StepPath("other")))
        first = store.asked(QuestionQuery(limit=2))
        put_to_sleep(store, admit(store, "later"), pause())
        answer(store, run_id="b", token="b")
        rest = store.asked(QuestionQuery(cursor=first[-1].cursor))
        assert [each.pause.token for each in (*first, *rest)] == ["c2", "c", "b2", "a2", "a"]
        assert [each.run_id for each in rest] == ["b", "a", "a"]
        assert rest[-1].pause == store.get(RunId("a")).pauses[0]
        with pytest.raises(DeclarationError, match="no cursor of questions"):
            store.asked(QuestionQuery(cursor="7"))

    def test_open_pauses_are_filtered(self, store: Store) -> None:
        """Filters by addressee, kind, run and deadline, in pages."""
        for name, to, timeout_s in (("a", "ada", None), ("b", "bob", 50.0), ("c", "ada", 10.0)):
            put_to_sleep(
                store, admit(store, name), attrs.evolve(pause(name), to=to, kind="approval", timeout_s=timeout_s)
            )

        def tokens(**wanted: Any) -> list[str]:
            return [each.pause.token for each in store.asked(QuestionQuery(**wanted))]

        assert tokens(to="ada") == ["c", "a"]
        assert tokens(kind="approval", run_id=RunId("b")) == ["b"]
        assert tokens(kind="tool") == tokens(labels=(("tenant", None),)) == tokens(pipeline="none") == []
        assert tokens(order="oldest", limit=2) == ["a", "b"]
        assert tokens(order="due") == ["c", "b", "a"]
        first = store.asked(QuestionQuery(order="due", limit=1))[0]
        assert tokens(order="due", cursor=first.cursor) == ["b", "a"]
        assert first.pause.asked_at is not None
        assert first.pause.due_at is not None
        assert tokens(due_before=first.pause.due_at + 1) == ["c"]
        assert first.pipeline == store.get(RunId("c")).pipeline

    def test_runs_and_open_pauses_are_counted(self, store: Store, place: StorePlace) -> None:
        """Counts by status, with expired leases and without remote steps."""
        put_to_sleep(store, admit(store, "asks"), pause(), pause("b", path=StepPath("other")))
        write(store, admit(store, "done"), record("end"), status="completed", release=True)
        admit(store, "left")
        store.admit_all([attrs.evolve(admission("child"), queue="gpu", parent=RunId("left"))], owner=None, lease_s=0.0)
        assert store.counts() == RunCounts(
            by_status={"paused": 1, "completed": 1, "running": 1}, abandoned=0, questions=2
        )
        place.advance(LEASE_S + 1)
        assert store.counts().abandoned == 1

    def test_runs_are_grouped_by_the_facts_of_their_state(self, store: Store, place: StorePlace) -> None:
        """Open runs of one group have the same state."""
        for number in range(3):
            put_to_sleep(store, admit(store, f"asks {number}"), pause())
            write(store, admit(store, f"done {number}"), record("end"), status="completed", release=True)
        admit(store, "held")
        waiting = [attrs.evolve(admission(f"queued {number}"), queue="gpu \0") for number in range(2)]
        store.admit_all(waiting, owner=None, lease_s=0.0)
        store.admit_all([attrs.evolve(admission("child"), queue="gpu", parent=RunId("held"))], owner=None, lease_s=0.0)
        found = {(each.run.status, each.run.leased, each.run.queue): each for each in store.groups()}
        assert {key: group.count for key, group in found.items()} == {
            ("completed", False, None): 3,
            ("paused", False, None): 3,
            ("running", True, None): 1,
            ("running", False, "gpu \0"): 2,
        }
        assert len(found["paused", False, None].run.pauses) == 1
        queued = found["running", False, "gpu \0"].run
        assert (queued.pipeline, queued.last_owner, queued.cancel) == ("pipeline", None, None)
        assert queued.created_at == store.get(RunId("queued 0")).created_at

    def test_open_runs_are_found_by_their_facts(self, store: Store, place: StorePlace) -> None:
        """Of several facts the first one counts; ended runs have none."""
        put_to_sleep(store, admit(store, "asks"), pause())
        write(store, admit(store, "done"), record("end"), status="completed", release=True)
        admit(store, "lost")
        place.advance(LEASE_S + 1)
        admit(store, "held")
        admit(store, "stopped")
        store.request_cancel(RunId("stopped"), reason="enough")
        store.admit_all([admission("free")], owner=None, lease_s=0.0)
        facts: dict[str, tuple[OpenFact, ...]] = {
            "asks": ("asking",),
            "lost": ("unreleased",),
            "held": ("leased",),
            "stopped": ("cancelling",),
            "free": ("unowned",),
        }
        for run_id, fact in facts.items():
            for order in get_args(ListOrder):
                found = [run.run_id for run in store.find(RunQuery(facts=fact, order=order, limit=5))]
                assert found == [run_id]
        both = store.find(RunQuery(facts=("leased", "cancelling"), order="created"))
        assert [run.run_id for run in both] == ["stopped", "held"]

    def test_runs_are_found_by_the_beginning_of_their_id_and_by_their_pipeline(self, store: Store) -> None:
        """Ids match by prefix, pipelines by any part, without wildcards."""
        admit(store, "tea-1", pipeline="draft >> Publish")
        admit(store, "tea-2", pipeline="100% \\ _sure_")
        admit(store, "coffee", pipeline="draft")
        assert _found(store, "tea") == ["tea-2", "tea-1"]
        assert _found(store, "publish") == ["tea-1"]
        admit(store, "draft-1", pipeline="other")
        assert _found(store, "draft") == ["draft-1"]
        assert _found(store, "DRAFT") == ["coffee", "tea-1"]
        assert _found(store, "draft-1" + 300 * "x") == []
        assert _found(store, "% \\ _") == ["tea-2"]
        assert _found(store, "a_1") == _found(store, "ea-1") == []

    def test_a_fork_exists_with_its_records_or_not_at_all(self, store: Store) -> None:
        """A fork is unowned and claimable; its id must be free."""
        store.admit_fork(admission("fork"), [record("a"), record("b")], pauses=[pause()], status="paused")
        run = store.get(RunId("fork"))
        assert (run.status, run.leased, run.records, len(run.pauses)) == ("paused", False, 3, 1)
        assert bodies(store, "fork") == [record("a").body, record("b").body]
        assert claim(store, "fork").epoch == 2
        with pytest.raises(RunExists):
            store.admit_fork(admission("fork"), [record("c")])
        assert len(bodies(store, "fork")) == 2


def _listed(store: Store, query: RunQuery) -> list[str]:
    return [run.run_id for run in store.find(query)]


def _found(store: Store, search: str) -> list[str]:
    return [run.run_id for run in store.find(RunQuery(search=search))]


def _written_by_another(store: Store) -> int:
    write(store, claim(store), record("theirs"))
    return ANSWERED


HOSTILE = {
    "quoted": 'it\'s "7"; DROP TABLE flujo_labels --',
    "nul": "a\0b",
    "surrogate": "\ud800",
    "pattern": "100%_",
    "long": "\U0001f600" * 256,
}


class LabelClauses:
    """Labels: written with a run, listed by, changed and deleted."""

    @pytest.fixture(autouse=True)
    def _labels(self, store: Store) -> None:
        if not hasattr(store, "set_labels"):
            pytest.skip("this store has no labels")

    def test_labels_of_any_text_are_returned_and_found(self, store: Store) -> None:
        """Quotes, NUL, lone surrogates, patterns and 256 characters."""
        store.admit(attrs.evolve(admission("run"), labels=Labels(HOSTILE)), owner="me", lease_s=LEASE_S)
        admit(store, "other")
        assert store.get(RUN).labels == HOSTILE
        assert store.labels_of([RUN, RunId("other")]) == {RUN: HOSTILE}
        for name, value in HOSTILE.items():
            assert found(store, (name, value)) == ["run"]
            assert found(store, (name, f"{value[:-1]}x")) == []

    @pytest.mark.parametrize("order", ORDERS)
    def test_a_listing_matches_all_labels(self, store: Store, order: ListOrder) -> None:
        """In both orders, in pages, and together with other filters."""
        for number in range(6):
            labels = Labels({"parity": str(number % 2), **({"third": "yes"} if number % 3 == 0 else {})})
            store.admit(attrs.evolve(admission(f"r{number}"), labels=labels), owner="me", lease_s=LEASE_S)
        query = RunQuery(labels=(("parity", "0"),), order=order, limit=2)
        first = store.find(query)
        assert [run.run_id for run in first] == ["r4", "r2"]
        assert [run.run_id for run in store.find(attrs.evolve(query, cursor=first[-1].cursor))] == ["r0"]
        assert found(store, ("parity", "0"), ("third", "yes"), order=order) == ["r0"]
        assert found(store, ("third", None), order=order) == ["r3", "r0"]
        assert found(store, ("parity", "1"), order=order, status="failed") == []
        assert found(store, ("parity", "1"), order=order, status="running", search="r1") == ["r1"]

    def test_labels_change_without_a_lease_and_a_record(self, store: Store) -> None:
        """Also those of a run with an owner, whose writes continue."""
        lease = admit(store)
        assert store.set_labels(RUN, {"a": "1", "b": "2"}) == {"a": "1", "b": "2"}
        assert store.set_labels(RUN, {"a": "3"}, remove=["b", "missing"]) == {"a": "3"}
        assert (found(store, ("a", "1")), found(store, ("a", "3")), found(store, ("b", None))) == ([], ["run"], [])
        assert bodies(store) == []
        assert write(store, lease, record()) is None
        with pytest.raises(RunNotFound):
            store.set_labels(RunId("missing"), {"a": "1"})

    def test_a_run_has_at_most_sixteen_labels(self, store: Store) -> None:
        """A change that would exceed the limit changes nothing."""
        admit(store)
        store.set_labels(RUN, {f"l{number}": "x" for number in range(16)})
        with pytest.raises(DeclarationError, match="17 given"):
            store.set_labels(RUN, {"one": "more"})
        assert len(store.set_labels(RUN, {"one": "more"}, remove=["l0"])) == 16

    def test_numbers_of_runs_are_read_in_pages(self, store: Store) -> None:
        """Ended runs by end, open runs by creation."""
        if not hasattr(store, "figures"):
            pytest.skip("this store has no totals")
        for number in range(5):
            labelled = attrs.evolve(admission(f"r{number}"), labels=Labels(parity=str(number % 2)))
            lease = store.admit(labelled, owner="me", lease_s=LEASE_S)
            if number < 3:
                write(store, lease, record(), status="failed", release=True, tokens=7)
        assert [each.labels for each in pages(store, ended=True)] == [("0", None), ("1", None), ("0", None)]
        assert [each.labels for each in pages(store, ended=False)] == [("1", None), ("0", None)]
        first = pages(store, ended=True)[0]
        assert (first.status, first.tokens, first.pipeline, first.queue) == ("failed", 7, "pipeline", None)
        assert first.ended_at is not None
        assert pages(store, ended=True, period=(first.ended_at + 3600, 1e18)) == []
        assert len(pages(store, ended=True, query=RunQuery(labels=(("parity", "0"),), order="created"))) == 2

    def test_an_open_run_has_a_key_until_it_ends(self, store: Store) -> None:
        """The end frees it in its transaction; a retry finds it taken."""
        if not hasattr(store, "holder_of"):
            pytest.skip("this store has no singleton keys")
        lease = store.admit(keyed("run"), owner="me", lease_s=LEASE_S)
        [busy] = store.admit_all([keyed("two")], owner=None, lease_s=LEASE_S)
        assert isinstance(busy, SingletonBusy)
        assert (busy.run_id, store.holder_of("k \0")) == ("run", "run")
        write(store, lease, record(), status="failed", release=True)
        assert store.holder_of("k \0") is None
        store.admit(keyed("two"), owner="me", lease_s=LEASE_S)
        with pytest.raises(SingletonBusy):
            store.retry(RUN, number=1, record=record(kind="retried"), queue="queue")
        assert (store.get(RUN).status, store.get(RUN).retries) == ("failed", 0)

    def test_a_key_moves_with_a_cancel_request(self, store: Store) -> None:
        """The new lease names the former run."""
        if not hasattr(store, "holder_of"):
            pytest.skip("this store has no singleton keys")
        store.admit(keyed("run"), owner="me", lease_s=LEASE_S)
        [lease] = store.admit_all([keyed("two", replaces=True)], owner=None, lease_s=LEASE_S)
        assert isinstance(lease, Lease)
        assert (lease.replaced, store.holder_of("k \0")) == ("run", "two")
        assert "two" in (store.get(RUN).cancel or "")
        assert isinstance(store.admit_all([keyed("two", replaces=True)], owner=None, lease_s=LEASE_S)[0], RunExists)
        assert store.get(RunId("two")).cancel is None

    def test_labels_are_deleted_with_their_run(self, store: Store) -> None:
        """A later run has none of them."""
        labelled = attrs.evolve(admission("run"), labels=Labels(a="1"))
        put_to_sleep(store, store.admit(labelled, owner="me", lease_s=LEASE_S), pause())
        assert store.delete([RUN]) == 1
        admit(store)
        assert store.get(RUN).labels == {}
        assert found(store, ("a", "1")) == []


def keyed(run_id: str, *, replaces: bool = False) -> Admission:
    """Return the admission of a run with a singleton key."""
    return attrs.evolve(admission(run_id), singleton="k \0", replaces=replaces)


def pages(
    store: Store,
    *,
    ended: bool,
    period: tuple[float, float] = (0.0, 1e18),
    query: RunQuery = RunQuery(order="created"),  # noqa: B008 (it is frozen)
) -> list[RunFigures]:
    """Return the numbers of runs, read one by one."""
    read: list[RunFigures] = []
    while True:
        after = read[-1] if read else None
        page = store.figures(query, labels=["parity", "x"], period=period, ended=ended, after=after, limit=1)
        if not page:
            return read
        read += page


def found(store: Store, *labels: tuple[str, str | None], order: ListOrder = "created", **filters: object) -> list[str]:
    """Return the ids of a listing by labels."""
    return [run.run_id for run in store.find(RunQuery(labels=labels, order=order, limit=10, **filters))]  # type: ignore[arg-type]
