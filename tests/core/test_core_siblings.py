"""What siblings come to, by the numbered rules of `_core.retry_decisions`."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors import Aborted, Failure, Paused, StepResult, Success
from flujo_actors._core.attempt_results import AttemptFailed, AttemptStopped
from flujo_actors._core.outcomes import TerminalOutcome
from flujo_actors._core.retry_decisions import ContinueWith, gathered, stops_siblings
from flujo_actors.errors import UsageLimitExceededError


@attrs.frozen
class Ended:
    verdict: TerminalOutcome
    cut_short: bool = False


WELL = Success(step_result=StepResult(name="s", success=True))
BROKEN = Failure(error=ValueError("no"), feedback="no", step_result=None)
LIMIT = Failure(error=UsageLimitExceededError("too much"), feedback="too much", step_result=None)
WAITING = Paused(message="?")
GONE = Aborted(reason="enough")


@pytest.mark.parametrize(
    ("verdict", "impatient", "patient"),
    [(WELL, False, False), (WAITING, False, False), (BROKEN, True, False), (LIMIT, True, True), (GONE, True, True)],
)
def test_who_stops_the_others(verdict: TerminalOutcome, impatient: bool, patient: bool) -> None:
    """Rule 1."""
    assert stops_siblings(Ended(verdict), patient=False) is impatient
    assert stops_siblings(Ended(verdict), patient=True) is patient


verdicts = st.sampled_from([WELL, BROKEN, LIMIT, WAITING, GONE])


@given(st.lists(verdicts, min_size=1, max_size=5))
def test_the_gravest_report_decides(listed: list[TerminalOutcome]) -> None:
    """Rule 2, whatever the order of the reports is."""
    found = gathered("all", {str(n): Ended(each) for n, each in enumerate(listed)}, None, patient=False)
    gravest = next(each for each in (LIMIT, GONE, BROKEN, WAITING, WELL) if each in listed)
    match gravest:
        case Failure(error=error):
            assert isinstance(found, AttemptFailed)
            assert error is found.error or listed.count(BROKEN) > 1
        case Success():
            assert found == ContinueWith(ignored={})
        case _:
            assert found == AttemptStopped(outcome=gravest)


@given(st.lists(st.sampled_from([WELL, BROKEN, WAITING]), min_size=1, max_size=5))
def test_whoever_ignores_failures_goes_on_with_one_that_lives(listed: list[TerminalOutcome]) -> None:
    """Rule 3: a success or a question is enough."""
    found = gathered("all", {str(n): Ended(each) for n, each in enumerate(listed)}, None, patient=True)
    assert isinstance(found, AttemptFailed) is (set(map(id, listed)) == {id(BROKEN)})
    if WAITING in listed:
        assert found == AttemptStopped(outcome=WAITING)
    elif WELL in listed:
        assert found == ContinueWith(ignored={str(n): "no" for n, each in enumerate(listed) if each is BROKEN})


def test_who_was_cut_short_says_nothing() -> None:
    """Rule 4: the failure that stopped the others is what is told."""
    found = gathered("all", {"a": Ended(GONE, cut_short=True), "b": Ended(BROKEN)}, None, patient=False)
    assert isinstance(found, AttemptFailed)
    assert found.feedback == "branch 'b' of 'all' failed: no"


def test_several_failures_are_a_group() -> None:
    """Nobody's exception is lost."""
    found = gathered("all", {"a": Ended(BROKEN), "b": Ended(BROKEN)}, None, patient=False)
    assert isinstance(found, AttemptFailed)
    assert isinstance(found.error, BaseExceptionGroup)
    assert len(found.error.exceptions) == 2
