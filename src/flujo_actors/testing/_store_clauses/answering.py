"""Clauses: a pause is answered once."""

from __future__ import annotations

import pytest

from ..._core.outcomes import RunId
from ..._core.paths import StepPath
from ..._core.records import Append, RunQuery
from ...errors import AlreadyAnswered, NotPaused
from ...stores._port import Store
from .place import StorePlace
from .processes import ANSWERED, REFUSED, all_at_once
from .samples import STEP, admit, answer, bodies, claim, give_up, pause, put_to_sleep, record, write


class AnsweringClauses:
    """Pauses and answers."""

    def test_a_pause_can_be_seen_and_answered(self, store: Store) -> None:
        """The listing shows what waits; the answer is a record; the run stays paused until it is claimed."""
        put_to_sleep(store, admit(store), pause())
        assert store.get(RunId("run")).pauses == (pause(),)
        assert store.find(RunQuery(status="paused"))[0].pauses == (pause(),)
        answer(store, "yes")
        run = store.get(RunId("run"))
        assert (run.status, run.leased, run.pauses, run.records) == ("paused", False, (), 3)
        last = store.read(RunId("run"))[-1]
        assert (last.kind, last.path, last.body, last.seq) == ("answered", STEP, record("yes").body, 3)

    def test_a_second_answer_is_refused(self, store: Store) -> None:
        """The first answer stands, whatever the second one says."""
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
        """A later pause at the same path replaces the one that waited, also under the same token."""
        put_to_sleep(store, admit(store), pause("first"))
        put_to_sleep(store, claim(store), pause("second"))
        assert store.get(RunId("run")).pauses == (pause("second"),)
        with pytest.raises(NotPaused):
            answer(store, token="first")
        answer(store, token="second")
        put_to_sleep(store, claim(store), pause("second"))
        answer(store, token="second")

    def test_a_run_that_somebody_works_on_takes_an_answer(self, store: Store) -> None:
        """Once: the record stands among those of the owner, who goes on writing; a second answer is told so."""
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
        """The pause is there with its record, before the run has another status or another owner."""
        lease = admit(store)
        write(store, lease, record(kind="paused"), pauses=(pause(),))
        run = store.get(lease.run_id)
        assert (run.status, run.leased, run.pauses) == ("running", True, (pause(),))
        answer(store, "yes")
        assert store.get(lease.run_id).pauses == ()

    def test_a_question_that_is_withdrawn_takes_no_answer(self, store: Store) -> None:
        """The others wait on, and an answer that was given before stays one."""
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
        """A run that was cancelled while it was paused takes no answer any more."""
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
        """Eight answers at the same moment: one wins, seven are told so, one record is written."""
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
