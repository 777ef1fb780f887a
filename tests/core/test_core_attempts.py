"""What happens after an attempt: the numbered rules of `_core.retry_decisions`, for any history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_actors import Aborted, Backoff, ErrorInfo, Paused
from flujo_actors._core.attempt_results import AttemptFailed, AttemptStopped, AttemptSucceeded, escalating
from flujo_actors._core.retry_decisions import Accept, Decision, RedirectTo, RetryAttempt, StopRun, UseFallback, decide
from flujo_actors.errors import (
    InfiniteRedirectError,
    MissingAgentError,
    MockDetectionError,
    PricingNotConfiguredError,
    UsageLimitExceededError,
)

CONTROL = [
    UsageLimitExceededError,
    PricingNotConfiguredError,
    MissingAgentError,
    MockDetectionError,
    InfiniteRedirectError,
    KeyboardInterrupt,
    SystemExit,
]
BACKOFF = Backoff(first=1.0, factor=2.0, ceiling=60.0, jitter=0.5)

counts = st.integers(1, 50)
retries = st.integers(0, 50)
controls = st.sampled_from(CONTROL).map(lambda cls: cls("stop"))
plain_errors = st.sampled_from([None, ValueError("x"), ErrorInfo(type_name="E", message="m"), TimeoutError()])
plain_failures = st.builds(AttemptFailed, error=plain_errors, feedback=st.just("f"))


def decided(ended: Any, failures: int, max_retries: int, has_fallback: bool = False) -> Decision:
    return decide(
        ended,
        failures=failures,
        max_retries=max_retries,
        backoff=BACKOFF,
        has_fallback=has_fallback,
        rng=lambda: 0.5,
    )


@settings(deadline=None)
@given(controls, counts, retries, st.booleans(), st.integers(0, 3))
def test_rule_1_a_control_error_escalates_whatever_else_there_is(
    error: BaseException, failures: int, max_retries: int, has_fallback: bool, depth: int
) -> None:
    """Retries, fallbacks and redirects are not asked, and groups at any depth do not hide it."""
    wrapped = error
    for _ in range(depth):
        wrapped = BaseExceptionGroup("several", [ValueError("other"), wrapped])
    ended = AttemptFailed(error=wrapped, feedback="f", redirect=object())
    assert decided(ended, failures, max_retries, has_fallback) == StopRun(error=error)


@settings(deadline=None)
@given(
    st.sampled_from(
        [
            AttemptSucceeded(output=1, context=None),
            AttemptStopped(outcome=Paused(message="?")),
            AttemptStopped(outcome=Aborted(reason="late")),
        ]
    ),
    counts,
    retries,
    st.booleans(),
)
def test_rule_2_what_is_done_paused_or_aborted_is_accepted(
    ended: Any, failures: int, max_retries: int, has_fallback: bool
) -> None:
    """Nothing is tried again that did not fail."""
    assert decided(ended, failures, max_retries, has_fallback) == Accept()


@settings(deadline=None)
@given(counts, retries, st.booleans())
def test_rule_3_a_failure_that_names_another_agent_goes_there(
    failures: int, max_retries: int, has_fallback: bool
) -> None:
    """A redirect comes before retries and before the fallback."""
    agent = object()
    decision = decided(AttemptFailed(error=None, feedback="f", redirect=agent), failures, max_retries, has_fallback)
    assert isinstance(decision, RedirectTo)
    assert decision.to is agent


@settings(deadline=None)
@given(plain_failures, counts, retries, st.booleans())
def test_rule_4_a_failure_is_tried_again_while_retries_are_left(
    ended: AttemptFailed, failures: int, max_retries: int, has_fallback: bool
) -> None:
    """With retries left, and only then, the step starts again after its backoff."""
    decision = decided(ended, failures, max_retries, has_fallback)
    assert isinstance(decision, RetryAttempt) is (failures <= max_retries)
    if isinstance(decision, RetryAttempt):
        assert decision.after == BACKOFF.delay(failures, lambda: 0.5)


@settings(deadline=None)
@given(plain_failures, retries, st.integers(1, 50))
def test_rules_5_and_6_without_retries_the_fallback_decides(
    ended: AttemptFailed, max_retries: int, beyond: int
) -> None:
    """The fallback is used if there is one; otherwise the failure stands."""
    assert decided(ended, max_retries + beyond, max_retries, has_fallback=True) == UseFallback()
    assert decided(ended, max_retries + beyond, max_retries) == Accept()


@settings(deadline=None)
@given(plain_failures, retries)
def test_a_step_that_always_fails_makes_one_call_more_than_its_retries(ended: AttemptFailed, max_retries: int) -> None:
    """Following the decisions ends, after exactly `max_retries + 1` attempts."""
    calls = 1
    while isinstance(decided(ended, calls, max_retries), RetryAttempt):
        calls += 1
    assert calls == max_retries + 1


@pytest.mark.parametrize("error", [None, ErrorInfo(type_name="SystemExit", message=""), ValueError(), "text"])
def test_ordinary_errors_do_not_escalate(error: object) -> None:
    """Only control errors, interrupts and exits stop a run."""
    assert escalating(error) is None
    assert escalating(ExceptionGroup("g", [ValueError(), ExceptionGroup("h", [KeyError()])])) is None
