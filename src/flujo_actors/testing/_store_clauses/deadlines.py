"""Clauses: a question waits only so long. For stores that have `expire`, `next_due_s` and `defer`."""

from __future__ import annotations

import attrs
import pytest

from ..._core.outcomes import RunId
from ..._core.records import OpenPause
from ...errors import AlreadyAnswered, Expired
from ...stores._port import Store
from .place import StorePlace
from .samples import STEP, admit, answer, bodies, claim, pause, put_to_sleep, record, write

AN_HOUR = 3600.0
OVER = -1.0
"""A time that is over from the start: no clause has to wait for it."""
BODY = '{"v": 2, "timeout": true}'


def timed(seconds: float, token: str = "token") -> OpenPause:
    """A question that waits so long."""
    return attrs.evolve(pause(token), timeout_s=seconds)


class DeadlineClauses:
    """Questions that time ends."""

    @pytest.fixture
    def keeping(self, place: StorePlace) -> Store:
        """A store that keeps deadlines."""
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
        """It is what questions were before."""
        put_to_sleep(keeping, admit(keeping), pause())
        assert keeping.get(RunId("run")).pauses[0].due_at is None
        assert (keeping.expire(body=BODY), keeping.next_due_s()) == ([], None)

    def test_time_ends_a_question_once(self, keeping: Store) -> None:
        """As an answer does: with a record, and the run is known until somebody goes on with it."""
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
        """Whether somebody has swept or not."""
        put_to_sleep(keeping, admit(keeping), timed(OVER))
        if swept:
            keeping.expire(body=BODY)
        with pytest.raises(Expired):
            answer(keeping, "yes")

    def test_a_question_is_put_off(self, keeping: Store) -> None:
        """The old token is used up, before and after its time; the new one has its full time."""
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
