"""Clauses of pauses: one answer, timeouts, times and events."""

from __future__ import annotations

import attrs
import pytest

from ..._core.outcomes import RunId
from ..._core.records.records import TIMED_OUT, WOKEN, Admission, Append, OpenPause, RunQuery
from ..._core.records.sent_events import OutgoingEvent
from ..._core.step_paths import StepPath
from ...errors import AlreadyAnswered, Expired, InvalidEvent, NotPaused, RunNotFound
from ...stores._store_port import Store
from .store_target import (
    ANSWERED,
    LEASE_S,
    REFUSED,
    STEP,
    StorePlace,
    admission,
    admit,
    all_at_once,
    answer,
    bodies,
    claim,
    give_up,
    pause,
    put_to_sleep,
    record,
    write,
)


class AnsweringClauses:
    """Pauses and answers."""

    def test_a_pause_can_be_seen_and_answered(self, store: Store) -> None:
        """The listing shows the pause; the answer is a record."""
        put_to_sleep(store, admit(store), pause())
        assert store.get(RunId("run")).pauses == (pause(),)
        assert store.find(RunQuery(status="paused"))[0].pauses == (pause(),)
        answer(store, "yes")
        run = store.get(RunId("run"))
        assert (run.status, run.leased, run.pauses, run.records) == ("paused", False, (), 3)
        last = store.read(RunId("run"))[-1]
        assert (last.kind, last.path, last.body, last.seq) == ("answered", STEP, record("yes").body, 3)

    def test_a_second_answer_is_refused(self, store: Store) -> None:
        """The first answer wins."""
        put_to_sleep(store, admit(store), pause())
        answer(store, "yes")
        with pytest.raises(AlreadyAnswered):
            answer(store, "no")
        assert bodies(store)[1:] == [record("yes").body]

    def test_what_does_not_wait_cannot_be_answered(self, store: Store) -> None:
        """A wrong run, path or token is not a pause."""
        put_to_sleep(store, admit(store), pause())
        for run_id, path, token in (("nobody", STEP, "token"), ("run", "other", "token"), ("run", STEP, "other")):
            with pytest.raises(NotPaused) as caught:
                store.answer(RunId(run_id), StepPath(path), token=token, record=record(kind="answered"))
            assert not isinstance(caught.value, AlreadyAnswered)
        assert store.get(RunId("run")).records == 2

    def test_pauses_of_one_run_are_answered_apart_oldest_first(self, store: Store) -> None:
        """Branches wait side by side."""
        left, right = pause("l", path=StepPath("left")), pause("r", path=StepPath("right"))
        put_to_sleep(store, admit(store), left, right)
        assert store.get(RunId("run")).pauses == (left, right)
        store.answer(RunId("run"), StepPath("left"), token="l", record=record(kind="answered"))
        assert store.get(RunId("run")).pauses == (right,)

    def test_a_step_that_asks_again_can_be_answered_again(self, store: Store) -> None:
        """A later pause at the same path replaces the open one."""
        put_to_sleep(store, admit(store), pause("first"))
        put_to_sleep(store, claim(store), pause("second"))
        assert store.get(RunId("run")).pauses == (pause("second"),)
        with pytest.raises(NotPaused):
            answer(store, token="first")
        answer(store, token="second")
        put_to_sleep(store, claim(store), pause("second"))
        answer(store, token="second")

    def test_a_run_that_somebody_works_on_takes_an_answer(self, store: Store) -> None:
        """The owner continues after one answer; a second is refused."""
        left, right = pause("l", path=StepPath("left")), pause("r", path=StepPath("right"))
        put_to_sleep(store, admit(store), left, right)
        store.answer(RunId("run"), StepPath("left"), token="l", record=record(kind="answered"))
        lease = claim(store)
        store.answer(RunId("run"), StepPath("right"), token="r", record=record("meanwhile", kind="answered"))
        for place, token in (("left", "l"), ("right", "r")):
            with pytest.raises(AlreadyAnswered):
                store.answer(RunId("run"), StepPath(place), token=token, record=record(kind="answered"))
        write(store, lease, record("after it"))
        assert (store.get(RunId("run")).pauses, store.get(RunId("run")).records) == ((), 5)
        assert bodies(store)[-2:] == [record("meanwhile").body, record("after it").body]

    def test_a_run_may_ask_while_it_is_at_work(self, store: Store) -> None:
        """The pause is stored before the run changes status or owner."""
        lease = admit(store)
        write(store, lease, record(kind="paused"), pauses=(pause(),))
        run = store.get(lease.run_id)
        assert (run.status, run.leased, run.pauses) == ("running", True, (pause(),))
        answer(store, "yes")
        assert store.get(lease.run_id).pauses == ()

    def test_a_question_that_is_withdrawn_takes_no_answer(self, store: Store) -> None:
        """Other pauses stay open, and an earlier answer stays valid."""
        asked = [pause(name, path=StepPath(name)) for name in ("left", "right", "told")]
        lease = admit(store)
        write(store, lease, record(kind="paused"), pauses=tuple(asked))
        store.answer(RunId("run"), StepPath("told"), token="told", record=record(kind="answered"))
        write(store, lease, record(), withdrawn=(StepPath("left"), StepPath("told")))
        assert store.get(RunId("run")).pauses == (asked[1],)
        with pytest.raises(NotPaused):
            store.answer(RunId("run"), StepPath("left"), token="left", record=record(kind="answered"))
        with pytest.raises(AlreadyAnswered):
            store.answer(RunId("run"), StepPath("told"), token="told", record=record(kind="answered"))

    def test_nothing_waits_in_a_run_that_has_ended(self, store: Store) -> None:
        """A run cancelled while paused accepts no answer."""
        put_to_sleep(store, admit(store), pause())
        write(store, claim(store), record(kind="ended"), status="aborted", release=True)
        assert store.get(RunId("run")).pauses == ()
        with pytest.raises(NotPaused):
            answer(store)

    def test_a_pause_is_written_with_its_records_or_not_at_all(self, store: Store) -> None:
        """A transaction that fails leaves no pause behind."""
        lease = admit(store)
        with pytest.raises(ZeroDivisionError):
            give_up(store, Append(lease=lease, records=(), pauses=(pause(),), status="paused"))
        assert store.get(lease.run_id).pauses == ()

    def test_one_of_eight_processes_answers(self, place: StorePlace) -> None:
        """Of eight concurrent answers one wins and is recorded."""
        if not place.between_processes:
            pytest.skip("this store is not shared between processes")
        store = place.open()
        put_to_sleep(store, admit(store), pause())
        codes = all_at_once(8, lambda number: _try_to_answer(place.open(), f"answer {number}"))
        assert sorted(codes) == [ANSWERED] + [REFUSED] * 7
        assert bodies(store)[1:] == [record(f"answer {codes.index(ANSWERED)}").body]


def _try_to_answer(store: Store, text: str) -> int:
    try:
        answer(store, text)
    except AlreadyAnswered:
        return REFUSED
    return ANSWERED


AN_HOUR = 3600.0
OVER = -1.0
"""Expired timeout: no clause has to wait for it."""
BODY = '{"v": 2, "timeout": true}'


def timed(seconds: float, token: str = "token") -> OpenPause:
    """Return a pause with this timeout."""
    return attrs.evolve(pause(token), timeout_s=seconds)


class DeadlineClauses:
    """Pauses with a timeout."""

    @pytest.fixture
    def keeping(self, place: StorePlace) -> Store:
        """Store with deadlines."""
        store = place.open()
        if not hasattr(store, "expire"):
            pytest.skip(f"{type(store).__name__} keeps no deadlines: it has no `expire`")
        return store

    def test_a_question_says_until_when_it_waits(self, keeping: Store) -> None:
        """The store counts from the moment at which it wrote it."""
        put_to_sleep(keeping, admit(keeping), timed(AN_HOUR))
        [asked] = keeping.get(RunId("run")).pauses
        assert asked.due_at is not None
        due_s = keeping.next_due_s()
        assert due_s is not None
        assert 0 < due_s <= AN_HOUR
        assert keeping.expire(body=BODY) == []
        answer(keeping, "yes")
        assert keeping.next_due_s() is None

    def test_a_question_without_a_time_is_never_over(self, keeping: Store) -> None:
        """A pause without a timeout stays open."""
        put_to_sleep(keeping, admit(keeping), pause())
        assert keeping.get(RunId("run")).pauses[0].due_at is None
        assert (keeping.expire(body=BODY), keeping.next_due_s()) == ([], None)

    def test_time_ends_a_question_once(self, keeping: Store) -> None:
        """A timeout is a record, reported until the run resumes."""
        put_to_sleep(keeping, admit(keeping), timed(OVER))
        assert keeping.expire(body=BODY) == [RunId("run")]
        assert keeping.expire(body=BODY) == []
        run = keeping.get(RunId("run"))
        assert (run.status, run.pauses, run.expired) == ("paused", (), True)
        assert (keeping.read(RunId("run"))[-1].kind, bodies(keeping)[-1]) == ("answered", BODY)
        write(keeping, claim(keeping), record("on"), status="running")
        assert not keeping.get(RunId("run")).expired

    @pytest.mark.parametrize("swept", [True, False])
    def test_an_answer_that_comes_too_late_is_refused(self, keeping: Store, swept: bool) -> None:
        """With and without a sweep."""
        put_to_sleep(keeping, admit(keeping), timed(OVER))
        if swept:
            keeping.expire(body=BODY)
        with pytest.raises(Expired):
            answer(keeping, "yes")

    def test_a_question_is_put_off(self, keeping: Store) -> None:
        """The old token is consumed; the new one has its timeout."""
        put_to_sleep(keeping, admit(keeping), timed(AN_HOUR))
        again = timed(OVER, "again")
        records = (record("later", kind="answered"), record("asked", kind="paused"))
        keeping.defer(RunId("run"), STEP, token="token", records=records, pause=again)
        assert [each.token for each in keeping.get(RunId("run")).pauses] == ["again"]
        with pytest.raises(AlreadyAnswered):
            answer(keeping, "yes")
        assert keeping.expire(body=BODY) == [RunId("run")]
        with pytest.raises(AlreadyAnswered):
            answer(keeping, "yes")


# --- Wake times and events, for stores with `due` and `send` ------------------------------------------------------


QUEUE = "waits"


def sleep(seconds: float, path: str = "nap") -> OpenPause:
    """Return a sleep of this duration."""
    return attrs.evolve(pause(f"token {path}", path=StepPath(path)), wait="sleep", timeout_s=seconds)


def awaited(key: str = "7", schema: str = "null") -> OpenPause:
    """Return a wait for an event."""
    body = f'{{"v": 2, "step_name": "paid?", "schema": {schema}}}'
    return attrs.evolve(pause("token", path=StepPath("paid?")), wait="event", event="paid \0", key=key, body=body)


def sent(id: str, *, key: str = "7", data: str = "1", to_all: bool = False) -> OutgoingEvent:
    """Return an event that is kept for an hour."""
    body = f'{{"v": 2, "answer": {data}}}'
    return OutgoingEvent(event="paid \0", key=key, id=id, body=body, retain_s=AN_HOUR, dedupe_s=AN_HOUR, to_all=to_all)


def accept(run_id: str, wait: OpenPause) -> None:
    """Accept any data."""


def put_away(store: Store, run_id: str, *waits: OpenPause) -> None:
    """Put a queued run away, as its owner does."""
    [_] = store.admit_all([_queued(run_id)], owner=None, lease_s=LEASE_S)
    lease = claim(store, run_id)
    batch = [Append(lease=lease, records=(record(kind="paused"),), pauses=waits, status="sleeping", release=True)]
    assert store.append(batch) == [None]


def _queued(run_id: str, *, start_at: float | None = None, delay_s: float | None = None) -> Admission:
    return attrs.evolve(admission(run_id), queue=QUEUE, start_at=start_at, delay_s=delay_s)


def claimable(store: Store) -> list[str]:
    """Return the runs that a worker may claim now."""
    return [run.run_id for run in store.wanting(pipeline="pipeline", queues=(QUEUE,), host="nowhere", limit=10)]


class WaitClauses:
    """Wake times and events."""

    @pytest.fixture
    def waking(self, place: StorePlace) -> Store:
        """Store with wake times."""
        store = place.open()
        if not hasattr(store, "due"):
            pytest.skip(f"{type(store).__name__} keeps no wake times: it has no `due`")
        return store

    @pytest.fixture
    def receiving(self, place: StorePlace) -> Store:
        """Store with events."""
        store = place.open()
        if not hasattr(store, "send"):
            pytest.skip(f"{type(store).__name__} has no events: it has no `send`")
        return store

    def test_a_sleeping_run_is_ready_when_it_is_due(self, waking: Store) -> None:
        """Not before; a promotion makes it so, once."""
        put_away(waking, "later", sleep(AN_HOUR))
        put_away(waking, "now", sleep(OVER))
        assert claimable(waking) == []
        wake_s = waking.next_wake_s()
        assert wake_s is not None
        assert wake_s <= 0
        assert (waking.due(), waking.due(), claimable(waking)) == (1, 0, ["now"])
        run = waking.get(RunId("later"))
        assert (run.status, run.ready, [wait.wait for wait in run.waits], run.pauses) == (
            "sleeping",
            False,
            ["sleep"],
            (),
        )
        assert run.wake_at is not None
        assert 0 < run.wake_at - waking.now() <= AN_HOUR

    def test_a_claim_ends_the_due_waits_of_its_run(self, waking: Store) -> None:
        """Each with a record; the others stay."""
        put_away(waking, "run", sleep(OVER, "over"), sleep(AN_HOUR, "later"))
        claim(waking)
        run = waking.get(RunId("run"))
        assert ([wait.path for wait in run.waits], run.expired) == (["later"], True)
        assert (waking.read(RunId("run"))[-1].path, bodies(waking)[-1]) == ("over", TIMED_OUT)

    def test_a_wait_is_no_question(self, waking: Store) -> None:
        """It is in no list of questions and in no count."""
        put_away(waking, "run", sleep(AN_HOUR))
        assert waking.counts().questions == 0
        assert [run.run_id for run in waking.find(RunQuery(status="sleeping"))] == ["run"]
        assert waking.find(RunQuery(status="sleeping", answered=True)) == []

    def test_a_sleep_is_ended_before_its_time(self, waking: Store) -> None:
        """Once; a wait for an event stays."""
        put_away(waking, "run", sleep(AN_HOUR, "a"), sleep(AN_HOUR, "b"))
        assert waking.wake(RunId("run"), StepPath("other"), body=WOKEN) is False
        assert waking.wake(RunId("run"), StepPath("a"), body=WOKEN) is True
        assert ([wait.path for wait in waking.get(RunId("run")).waits], claimable(waking)) == (["b"], ["run"])
        assert (waking.wake(RunId("run"), body=WOKEN), waking.wake(RunId("run"), body=WOKEN)) == (True, False)
        assert bodies(waking)[-2:] == [WOKEN, WOKEN]
        put_away(waking, "event", awaited())
        assert waking.wake(RunId("event"), body=WOKEN) is False
        with pytest.raises(RunNotFound):
            waking.wake(RunId("nobody"), body=WOKEN)

    def test_a_later_start_is_a_sleeping_run(self, waking: Store) -> None:
        """A claim starts it; until then only `wake` does."""
        later = [_queued("delayed", delay_s=AN_HOUR), _queued("timed", start_at=waking.now() + AN_HOUR)]
        waking.admit_all([*later, _queued("past", start_at=1.0)], owner=None, lease_s=LEASE_S)
        assert [waking.get(RunId(each)).status for each in ("delayed", "timed", "past")] == [
            "sleeping",
            "sleeping",
            "running",
        ]
        assert claimable(waking) == ["past"]
        assert waking.wake(RunId("delayed"), body=WOKEN) is True
        assert set(claimable(waking)) == {"past", "delayed"}
        claim(waking, "delayed")
        assert waking.get(RunId("delayed")).status == "running"

    def test_a_cancel_request_wakes_a_sleeping_run(self, waking: Store) -> None:
        """Its next owner ends it."""
        put_away(waking, "run", sleep(AN_HOUR))
        waking.request_cancel(RunId("run"), reason="stop")
        assert waking.get(RunId("run")).ready

    def test_a_released_run_is_ready(self, waking: Store) -> None:
        """It keeps its place before younger runs."""
        for name in ("older", "younger"):
            waking.admit_all([_queued(name)], owner=None, lease_s=LEASE_S)
        lease = claim(waking, "older")
        assert claimable(waking) == ["younger"]
        write(waking, lease, release=True)
        assert claimable(waking) == ["older", "younger"]

    def test_an_event_ends_the_oldest_wait(self, receiving: Store) -> None:
        """Its body is that of the record; the run can be claimed."""
        for name in ("older", "younger"):
            put_away(receiving, name, awaited())
        assert [run_id for run_id, _ in receiving.waits(event="paid \0", key="7")] == ["older", "younger"]
        assert receiving.send(sent("one"), accept).delivered_to == ("older",)
        assert (claimable(receiving), bodies(receiving, "older")[-1]) == (["older"], sent("one").body)
        assert receiving.send(sent("two"), accept).delivered_to == ("younger",)
        assert receiving.waits() == []

    def test_an_event_without_a_wait_is_buffered(self, receiving: Store) -> None:
        """The next wait consumes the oldest, when it opens."""
        for name in ("one", "two"):
            assert receiving.send(sent(name, data=f'"{name}"'), accept).status == "buffered"
        put_away(receiving, "run", awaited())
        assert (receiving.get(RunId("run")).waits, claimable(receiving)) == ((), ["run"])
        assert bodies(receiving)[-1] == sent("one", data='"one"').body
        assert [info.id for info in receiving.events(status="buffered")] == ["two"]

    def test_an_event_is_accepted_once(self, receiving: Store) -> None:
        """By its name and id, whatever its key."""
        receiving.send(sent("one"), accept)
        assert receiving.send(sent("one", key="other"), accept).status == "duplicate"
        assert len(receiving.events()) == 1

    def test_a_broadcast_is_for_all_open_waits(self, receiving: Store) -> None:
        """It is never buffered."""
        for name in ("a", "b"):
            put_away(receiving, name, awaited())
        assert receiving.send(sent("one", to_all=True), accept).delivered_to == ("a", "b")
        assert receiving.send(sent("two", to_all=True), accept).status == "delivered"
        put_away(receiving, "c", awaited())
        assert len(receiving.get(RunId("c")).waits) == 1

    def test_a_refused_event_leaves_everything_as_it_was(self, receiving: Store) -> None:
        """Its id is not used up."""

        def refuse(run_id: str, wait: OpenPause) -> None:
            raise InvalidEvent(f"{run_id} {wait.path}")

        put_away(receiving, "run", awaited())
        with pytest.raises(InvalidEvent, match=r"run paid\?"):
            receiving.send(sent("one"), refuse)
        assert (receiving.events(), len(receiving.get(RunId("run")).waits)) == ([], 1)
        assert receiving.send(sent("one"), accept).status == "delivered"

    def test_a_buffered_event_that_does_not_fit_is_passed_over(self, receiving: Store) -> None:
        """The wait takes the next one."""
        receiving.send(sent("bad", data='"text"'), accept)
        receiving.send(sent("good", data="2"), accept)
        put_away(receiving, "run", awaited(schema='{"type": "integer"}'))
        found = {info.id: (info.status, info.refused_by) for info in receiving.events()}
        assert found == {"bad": ("refused", "run"), "good": ("delivered", None)}

    def test_a_wait_that_is_over_gets_no_event(self, receiving: Store) -> None:
        """Time was faster; the event is buffered."""
        put_away(receiving, "run", attrs.evolve(awaited(), timeout_s=OVER))
        assert receiving.send(sent("one"), accept).status == "buffered"

    def test_old_events_are_purged(self, receiving: Store) -> None:
        """Some at a time."""
        for name in ("a", "b"):
            receiving.send(attrs.evolve(sent(name), retain_s=0.0, dedupe_s=0.0), accept)
        receiving.send(sent("c"), accept)
        assert (receiving.purge(limit=1), receiving.purge(), receiving.purge()) == (1, 1, 0)
        assert [info.id for info in receiving.events()] == ["c"]

    def test_an_owner_that_waits_is_not_ready(self, waking: Store) -> None:
        """A run with a lease is claimed by no other process."""
        lease = admit(waking)
        write(waking, lease, record(kind="paused"), pauses=(sleep(OVER),))
        assert (waking.due(), waking.get(RunId("run")).ready) == (0, False)
