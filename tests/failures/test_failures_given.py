"""The given cases of failure handling and compensation, each in a trio host and in an asyncio host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sagas import Saga, both_hosts, run_in

from flujo_actors import Compensate, Pipeline, Recovered, Step, StepFailure, Undo


@both_hosts
def test_a_failed_payment_is_tried_thrice_then_told_of_then_undone(host: Callable[..., Any]) -> None:
    """F1: attempts, handler, undoing; what stands behind it is never begun."""
    saga = Saga()
    pay = saga.step("pay", raises="no funds", max_retries=2, on_failure=saga.handler("notify"))
    result = run_in(host, Step("prepare", saga.call("prepare")) >> pay >> Step("never", saga.call("never")))
    assert result.status == "failed"
    assert saga.log == ["prepare", "pay", "pay", "pay", "notify", "undo pay?"]
    failure, undo = saga.told
    assert isinstance(failure, StepFailure)
    assert isinstance(undo, Undo)
    assert (failure.attempts, failure.input, failure.step_name) == (3, "prepare!", "pay")
    assert (failure.error_type, failure.message) == ("ValueError", "no funds")
    assert "no funds" in failure.stack_trace
    assert undo.failure == failure
    assert [(each.step_name, each.success) for each in result.undone] == [("pay", True)]
    assert result.fully_undone


@both_hosts
def test_what_failed_is_undone_first_and_then_what_came_before_it(host: Callable[..., Any]) -> None:
    """F2: the last started is undone first."""
    saga = Saga()
    result = run_in(host, saga.step("flight") >> saga.step("hotel") >> saga.step("car", raises="none left"))
    assert saga.log == ["flight", "hotel", "car", "undo car?", "undo hotel", "undo flight"]
    assert [each.step_name for each in result.undone] == ["car", "hotel", "flight"]


@both_hosts
def test_a_compensation_for_completed_steps_leaves_a_failed_one_alone(host: Callable[..., Any]) -> None:
    """F3: `when="completed"` opts out."""
    saga = Saga()
    careful = Compensate(saga.undo("car"), when="completed")
    run_in(host, saga.step("flight") >> saga.step("hotel") >> saga.step("car", raises="none left", compensate=careful))
    assert saga.log == ["flight", "hotel", "car", "undo hotel", "undo flight"]


@both_hosts
def test_a_handler_that_recovers_makes_a_success_of_it(host: Callable[..., Any]) -> None:
    """F4: the next step gets its output, later handlers do not run, nothing is undone."""
    saga = Saga()
    desk, second = saga.handler("desk", returns=Recovered("cash")), saga.handler("second")
    pay = Step("pay", saga.call("pay", raises="declined"), on_failure=[desk, second])
    seen: list[Any] = []

    async def ship(data: str) -> str:
        saga.log.append("ship")
        seen.append(data)
        return "shipped"

    result = run_in(host, saga.step("a") >> pay >> Step("ship", ship))
    assert (result.status, result.output) == ("completed", "shipped")
    assert saga.log == ["a", "pay", "desk", "ship"]
    assert seen == ["cash"]
    assert result.undone == ()
    assert result.step_history[1].metadata["recovered"] is True


@both_hosts
def test_a_step_whose_fallback_worked_has_completed_when_it_is_undone(host: Callable[..., Any]) -> None:
    """F5: its compensation sees the fallback's output, and no handler is told."""
    saga = Saga()
    pay = saga.step(
        "pay", raises="declined", fallback=Step("invoice", saga.call("invoice")), on_failure=saga.handler("notify")
    )
    run_in(host, pay >> Step("ship", saga.call("ship", raises="no truck")))
    assert saga.log == ["pay", "invoice", "ship", "undo pay"]
    [undo] = saga.told
    assert (undo.output, undo.completed, undo.attempts) == ("invoice!", True, 2)


@both_hosts
def test_siblings_are_undone_from_the_last_declared(host: Callable[..., Any]) -> None:
    """F6: what completed and what was cut short, one at a time."""
    saga = Saga()
    branches = {
        "a": saga.step("a", takes=0.01),
        "b": saga.step("b", takes=0.05, raises="broke"),
        "c": saga.step("c", takes=1.0),
    }
    result = run_in(host, Step.parallel("all", branches))
    assert saga.log[3:] == ["undo c?", "undo b?", "undo a"]
    assert sorted(saga.log[:3]) == ["a", "b", "c"]
    assert result.fully_undone


@both_hosts
def test_a_branch_that_is_ignored_is_undone_while_the_others_stand(host: Callable[..., Any]) -> None:
    """F7: the run completes without it."""
    saga = Saga()
    branches = {
        "a": saga.step("a"),
        "b": saga.step("x") >> Step("y", saga.call("y", raises="broke")),
    }
    result = run_in(host, Step.parallel("all", branches, on_branch_failure="ignore"))
    assert (result.status, result.output) == ("completed", {"a": "a!"})
    assert sorted(saga.log[:2]) == ["a", "x"]
    assert saga.log[2:] == ["y", "undo x"]


@both_hosts
def test_an_attempt_that_is_made_again_is_undone_before(host: Callable[..., Any]) -> None:
    """F8: inside the loop, and then the loop begins anew."""
    saga = Saga()
    body = saga.step("a") >> saga.step("b", raises="once", times=1)
    result = run_in(host, Step.loop_until("loop", body, lambda output, context: True, max_retries=1))
    assert result.status == "completed"
    assert saga.log == ["a", "b", "undo b?", "undo a", "a", "b"]


@both_hosts
def test_a_compensation_that_fails_does_not_keep_the_others_from_running(host: Callable[..., Any]) -> None:
    """F9: it is tried as often as it says, and then named."""
    saga = Saga()
    closed = Step("cancel room", saga.undo("hotel", raises="closed"), max_retries=1)
    result = run_in(
        host,
        saga.step("flight")
        >> saga.step("hotel", compensate=closed)
        >> Step("car", saga.call("car", raises="none left")),
    )
    assert saga.log == ["flight", "hotel", "car", "undo hotel", "undo hotel", "undo flight"]
    assert [(each.step_name, each.success) for each in result.undone] == [("hotel", False), ("flight", True)]
    assert result.status == "failed"
    assert not result.fully_undone
    assert "none left" in result.feedback
    assert "1 of 2 could not be undone: 'hotel': " in result.feedback
    assert "closed" in result.feedback.partition("could not be undone")[2]


@both_hosts
def test_a_pipeline_is_undone_before_its_handler_is_told(host: Callable[..., Any]) -> None:
    """F10: inside out."""
    saga = Saga()
    pipeline = Pipeline(
        [Step("prepare", saga.call("prepare")), saga.step("pay", raises="declined")], on_failure=saga.handler("tell")
    )
    result = run_in(host, pipeline)
    assert saga.log == ["prepare", "pay", "undo pay?", "tell"]
    assert result.status == "failed"


@both_hosts
def test_undoing_stops_where_a_compensation_says_so(host: Callable[..., Any]) -> None:
    """F11: nothing is undone after the one that failed."""
    saga = Saga()
    strict = Compensate(Step("cancel room", saga.undo("hotel", raises="closed"), max_retries=1), if_it_fails="stop")
    result = run_in(
        host,
        saga.step("flight")
        >> saga.step("hotel", compensate=strict)
        >> Step("car", saga.call("car", raises="none left")),
    )
    assert saga.log == ["flight", "hotel", "car", "undo hotel", "undo hotel"]
    assert not result.fully_undone


@both_hosts
def test_a_handler_that_fails_does_not_replace_the_failure(host: Callable[..., Any]) -> None:
    """F12: the next one is told all the same."""
    saga = Saga()
    told = [saga.handler("slack", raises="slack is down"), saga.handler("mail")]
    result = run_in(host, Step("a", saga.call("a", raises="first"), on_failure=told))
    assert saga.log == ["a", "slack", "mail"]
    assert result.status == "failed"
    assert "first" in result.feedback
    assert isinstance(result.error, ValueError)


@both_hosts
def test_a_pipeline_that_recovers_has_been_undone(host: Callable[..., Any]) -> None:
    """F13: it completes with the handler's output, after undoing."""
    saga = Saga()
    pipeline = Pipeline(
        [Step("prepare", saga.call("prepare")), saga.step("pay", raises="declined")],
        on_failure=saga.handler("tell", returns=Recovered("sorry")),
    )
    result = run_in(host, pipeline)
    assert saga.log == ["prepare", "pay", "undo pay?", "tell"]
    assert (result.status, result.output) == ("completed", "sorry")
    assert [each.step_name for each in result.undone] == ["pay"]
