"""The exit rule that supervisors, retries and siblings share."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors._core.attempt_results import AttemptFailed, AttemptSucceeded
from flujo_actors._core.exit_rules import RestartType, exit_action
from flujo_actors._core.outcomes import Aborted, Failure, Paused, StepResult, Success, TerminalOutcome
from flujo_actors._core.retry_decisions import (
    Accept,
    Backoff,
    RetryAttempt,
    decide,
    stops_siblings,
)
from flujo_actors._runtime.run.messages import StepSettled
from flujo_actors.actors import _supervision_rules
from flujo_actors.actors._supervision_rules import ChildSpec, Intensity, SupervisorState, admit, on_exit
from flujo_actors.errors import UsageLimitExceededError

types = st.sampled_from(get_args(RestartType))
left = st.integers(min_value=-3, max_value=5)


@pytest.mark.parametrize(
    ("restart", "failed", "restarts_left", "action"),
    [
        ("permanent", True, 1, "restart"),
        ("permanent", False, 1, "restart"),
        ("permanent", True, 0, "escalate"),
        ("permanent", False, 0, "escalate"),
        ("transient", True, 1, "restart"),
        ("transient", True, 0, "escalate"),
        ("transient", False, 1, "end"),
        ("transient", False, 0, "end"),
        ("temporary", True, 1, "end"),
        ("temporary", False, 0, "end"),
    ],
)
def test_the_table_of_restart_types(restart: RestartType, failed: bool, restarts_left: int, action: str) -> None:
    """Every row of the table in the documents."""
    assert exit_action(restart, failed=failed, restarts_left=restarts_left) == action


@given(types, st.booleans(), left)
def test_a_child_is_restarted_only_while_restarts_are_left(restart: RestartType, failed: bool, count: int) -> None:
    """Without any, an exit that calls for a restart escalates instead."""
    action = exit_action(restart, failed=failed, restarts_left=count)
    assert action != "restart" or count > 0
    assert action != "escalate" or count <= 0


@given(types, st.booleans(), left, left)
def test_whether_an_exit_ends_a_child_depends_on_no_count(
    restart: RestartType, failed: bool, first: int, second: int
) -> None:
    """The restart type and the failure decide that alone."""
    ends = {exit_action(restart, failed=failed, restarts_left=count) == "end" for count in (first, second)}
    assert len(ends) == 1


@given(st.integers(min_value=0, max_value=5), st.integers(min_value=1, max_value=8))
def test_a_step_is_retried_as_a_transient_child_is_restarted(max_retries: int, failures: int) -> None:
    """Its restarts are the retries that are left."""
    action = exit_action("transient", failed=True, restarts_left=max_retries - failures + 1)
    decision = decide(
        AttemptFailed(error=ValueError("no"), feedback="no"),
        failures=failures,
        max_retries=max_retries,
        backoff=Backoff(),
        has_fallback=False,
        rng=lambda: 0.5,
    )
    assert isinstance(decision, RetryAttempt if action == "restart" else Accept)


@given(st.integers(min_value=0, max_value=5))
def test_a_step_that_is_done_is_not_retried(max_retries: int) -> None:
    """As a transient child that ended without a failure is not restarted."""
    done = AttemptSucceeded(output=1, context=None)
    settings = {"failures": 1, "max_retries": max_retries, "backoff": Backoff(), "has_fallback": False}
    assert isinstance(decide(done, rng=lambda: 0.5, **settings), Accept)  # type: ignore[arg-type]


OUTCOMES: list[TerminalOutcome] = [
    Success(step_result=StepResult(name="s")),
    Failure(error=ValueError("no"), feedback="no"),
    Failure(error=UsageLimitExceededError("no"), feedback="no"),
    Paused(message="?"),
    Aborted(reason="no"),
]


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_failure_stops_siblings_by_the_same_rule(outcome: TerminalOutcome, patient: bool) -> None:
    """`propagate` is a transient child without restarts, `ignore` a temporary one; aborts always escalate."""
    failed = isinstance(outcome, Failure)
    escalates = isinstance(outcome, Aborted) or (failed and isinstance(outcome.error, UsageLimitExceededError))
    restart: RestartType = "temporary" if patient else "transient"
    expected = escalates or exit_action(restart, failed=failed, restarts_left=0) == "escalate"
    assert stops_siblings(StepSettled(index=0, outcome=outcome, context=None), patient=patient) is expected


@given(types, st.booleans(), st.integers(min_value=0, max_value=3))
def test_a_supervisor_goes_by_the_same_rule(restart: RestartType, crashed: bool, allowed: int) -> None:
    """Its restarts are what the intensity allows."""
    family = admit(
        SupervisorState(intensity=Intensity(restarts=allowed)), ChildSpec(name="child", restart=restart), now=0.0
    )
    _, decision = on_exit(family, "child", crashed=crashed, now=1.0, rng=lambda: 0.5)
    kinds = {
        "end": _supervision_rules.NoAction,
        "restart": _supervision_rules.Restart,
        "escalate": _supervision_rules.Escalate,
    }
    assert isinstance(decision, kinds[exit_action(restart, failed=crashed, restarts_left=allowed)])
