"""The choke point, outcomes that user code returns, and mocks."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any
from unittest import mock

import pytest
from scripted import AT_ONCE, Scripted, collected, failing, nested, same, told

from flujo_actors import (
    Aborted,
    ErrorInfo,
    Failure,
    Flujo,
    Paused,
    PipelineResult,
    Step,
    StepOutcome,
    StepResult,
    Success,
    from_json,
    to_json,
)
from flujo_actors.errors import MockDetectionError


class Odd(Exception):
    """An exception of the user's own."""


@pytest.mark.trio
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad"), "Agent execution failed with ValueError: bad"),
        (KeyError("k"), "Agent execution failed with KeyError: 'k'"),
        (Odd(), "Agent execution failed with Odd: "),
        (Odd("a", 1), "Agent execution failed with Odd: ('a', 1)"),
        (TimeoutError("slow"), "Agent execution failed with TimeoutError: slow"),
    ],
)
async def test_an_exception_becomes_a_failure_with_the_documented_feedback(
    autojump_clock: Any, error: Exception, text: str
) -> None:
    """One text in the outcome and the step's result, behind the step in the run's; the error is the very object."""
    flujo = Flujo(Step("s", Scripted(error)))
    (outcome,) = await collected(flujo.run_async(1))
    assert isinstance(outcome, Failure)
    assert outcome.error is error
    assert outcome.feedback == outcome.step_result.feedback == text
    assert (outcome.step_result.name, outcome.step_result.success) == ("s", False)
    assert (await flujo.run_async(1)).feedback == f"step 's' failed: {text}"


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["async", "sync", "stream"])
async def test_the_traceback_reaches_down_to_the_users_line(autojump_clock: Any, kind: str) -> None:
    """Whatever kind of function raised, also through a worker thread; the cause is kept."""

    def the_users_line() -> None:
        try:
            {}["missing"]
        except KeyError as error:
            raise Odd("here") from error

    async def in_async(data: Any) -> None:
        the_users_line()

    async def in_stream(data: Any) -> Any:
        yield 1
        the_users_line()

    def in_sync(data: Any) -> None:
        the_users_line()

    agent = {"async": in_async, "sync": in_sync, "stream": in_stream}[kind]
    error = (await collected(Flujo(Step("s", agent)).run_async(1)))[-1].error
    assert "the_users_line" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert isinstance(error.__cause__, KeyError)


@pytest.mark.trio
async def test_an_exception_that_cannot_be_printed_is_still_a_failure(autojump_clock: Any) -> None:
    """Its class may do anything in `__str__`."""

    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    result = await Flujo(Step("s", failing("", Rude))).run_async(1)
    assert result.feedback.startswith("step 's' failed: Agent execution failed with Rude: ")


@pytest.mark.trio
async def test_a_group_of_exceptions_is_one_failure(autojump_clock: Any) -> None:
    """A step's own nursery may raise several at once."""
    error = ExceptionGroup("both", [ValueError("a"), KeyError("b")])
    (outcome,) = await collected(Flujo(Step("s", Scripted(error))).run_async(1))
    assert outcome.error is error


@pytest.mark.trio
async def test_branches_that_fail_together_are_a_group_of_the_originals(autojump_clock: Any) -> None:
    """All exceptions are there, and all texts."""
    errors = [ValueError("a"), KeyError("b"), Odd("c")]
    branches = {n: Step(f"s{n}", Scripted(error)) for n, error in enumerate(errors)}
    outcomes = await collected(Flujo(Step.parallel("p", branches, on_branch_failure="ignore")).run_async(1))
    assert list(outcomes[-1].error.exceptions) == errors
    assert all(str(error) in outcomes[-1].feedback for error in errors)


@pytest.mark.trio
async def test_one_failed_branch_gives_its_own_exception(autojump_clock: Any) -> None:
    """No group around a single one, at any depth."""
    error = Odd("alone")
    inner = Step.parallel("inner", {"x": Step("s", Scripted(error))})
    outcomes = await collected(Flujo(Step.parallel("outer", {"y": inner})).run_async(1))
    assert [outcome.error for outcome in outcomes] == [error, error, error]


@pytest.mark.trio
@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("place", [(), ("parallel",), ("loop", "map")], ids="-".join)
async def test_a_step_that_ends_without_an_outcome_is_never_run_again(
    autojump_clock: Any, kind: Any, place: tuple[str, ...]
) -> None:
    """It becomes a failure that says so; retries, its own and those around it, are not used to find out."""
    agent = Scripted(kind())
    leaf = nested(place, Step("leaf", agent, max_retries=2, backoff=AT_ONCE))
    around = Step.branch_on("around", lambda data, context: 1, {1: leaf}, max_retries=2, backoff=AT_ONCE)
    result = await Flujo(around).run_async(1)
    assert (result.status, len(agent.calls)) == ("failed", 1)
    assert "ended without an outcome" in result.feedback
    rescued = await Flujo(Step("s", agent, max_retries=2, fallback=Step("f", same))).run_async("in")
    assert (rescued.output, len(agent.calls)) == ("in", 2)


# --- returned outcomes --------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_returned_success_or_step_result_is_the_result(autojump_clock: Any) -> None:
    """Its output, usage and metadata count; name and attempts are the runtime's."""
    result = StepResult(name="other", output=5, token_counts=3, cost_usd=0.5, metadata={"k": 1}, attempts=9)
    for answer in (Success(step_result=result), result):
        got = (await Flujo(Step("s", Scripted(answer))).run_async(1)).step_history[0]
        assert (got.name, got.output, got.attempts) == ("s", 5, 1)
        assert (got.token_counts, got.cost_usd, got.metadata["k"]) == (3, 0.5, 1)


@pytest.mark.trio
async def test_a_returned_failure_is_a_failure_with_its_words(autojump_clock: Any) -> None:
    """Error, feedback and partial output are kept; it is retried like any other."""
    error = Odd("why")
    partial = StepResult(name="x", output="half", success=False, token_counts=2)
    agent = Scripted(Failure(error=error, feedback="in my words", step_result=partial))
    (outcome,) = await collected(Flujo(Step("s", agent, max_retries=1, backoff=AT_ONCE)).run_async(1))
    assert (outcome.error, outcome.feedback) == (error, "in my words")
    assert (outcome.step_result.output, outcome.step_result.token_counts) == ("half", 4)
    assert len(agent.calls) == 2


@pytest.mark.trio
async def test_a_returned_failure_without_words_gets_those_of_its_error(autojump_clock: Any) -> None:
    """The documented text, or at least a sentence."""
    result = await Flujo(Step("s", Scripted(Failure(error=Odd("why"))))).run_async(1)
    assert result.feedback == "step 's' failed: Agent execution failed with Odd: why"
    assert "'s'" in (await Flujo(Step("s", Scripted(Failure()))).run_async(1)).feedback
    from_result = Failure(step_result=StepResult(name="x", success=False, feedback="from the result"))
    assert (await Flujo(Step("s", Scripted(from_result))).run_async(1)).feedback == "step 's' failed: from the result"


@pytest.mark.trio
async def test_an_unsuccessful_step_result_is_a_failure(autojump_clock: Any) -> None:
    """`success=False` says so."""
    answer = StepResult(name="x", success=False, feedback="no luck", output="half")
    (outcome,) = await collected(Flujo(Step("s", Scripted(answer))).run_async(1))
    assert isinstance(outcome, Failure)
    assert (outcome.feedback, outcome.step_result.output) == ("no luck", "half")


@pytest.mark.trio
async def test_a_returned_pause_pauses_and_gets_a_token(autojump_clock: Any) -> None:
    """A token that user code invents is not used; the answer becomes the step's output."""
    flujo = Flujo(Step("s", Scripted(Paused(message="well?", state_token="mine"))) >> Step("t", same))
    result = await flujo.run_async(1)
    assert (result.status, result.feedback) == ("paused", "well?")
    assert result.state_token != "mine"
    assert (await flujo.resume_async(result.state_token, "yes")).output == "yes"


@pytest.mark.trio
async def test_a_returned_abort_aborts(autojump_clock: Any) -> None:
    """The reason is the run's feedback."""
    result = await Flujo(Step("s", Scripted(Aborted(reason="stop it")))).run_async(1)
    assert (result.status, result.feedback) == ("aborted", "stop it")


@pytest.mark.trio
async def test_an_output_object_may_report_usage(autojump_clock: Any) -> None:
    """Attributes `token_counts` and `cost_usd` of an output are counted."""

    class Answer:
        token_counts = 12
        cost_usd = 0.25

    result = await Flujo(Step("s", Scripted(Answer()))).run_async(1)
    assert (result.total_tokens, result.total_cost_usd) == (12, 0.25)


# --- mocks --------------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("double", [mock.Mock, mock.MagicMock, mock.AsyncMock, mock.NonCallableMock])
async def test_a_mock_as_output_is_an_error(autojump_clock: Any, double: Any) -> None:
    """Past retries and fallback, with the step's name."""
    step = Step("s", Scripted(double()), max_retries=1, fallback=Step("f", same))
    with pytest.raises(MockDetectionError, match="'s'"):
        await Flujo(step).run_async(1)


@pytest.mark.trio
@pytest.mark.parametrize("how", ["success", "result", "processor", "validated"])
async def test_a_mock_is_found_wherever_the_output_comes_from(autojump_clock: Any, how: str) -> None:
    """In a returned result, or made by a processor."""
    leaked = mock.Mock()
    result = StepResult(name="x", output=leaked)
    step = {
        "success": lambda: Step("s", Scripted(Success(step_result=result))),
        "result": lambda: Step("s", Scripted(result)),
        "processor": lambda: Step("s", same, processors={"after": [lambda output: leaked]}),
        "validated": lambda: Step("s", Scripted(leaked), validators=[lambda output: True]),
    }[how]()
    with pytest.raises(MockDetectionError, match="'s'"):
        await Flujo(step).run_async(1)


@pytest.mark.trio
async def test_a_mock_agent_that_answers_plainly_is_fine(autojump_clock: Any) -> None:
    """Only outputs are looked at."""
    agent = mock.AsyncMock()
    agent.run.return_value = "plain"
    assert (await Flujo(Step("s", agent)).run_async(1)).output == "plain"


# --- values -------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_outcomes_and_results_of_real_runs_survive_json(autojump_clock: Any) -> None:
    """Equal after the round trip, but for exceptions, which come back as `ErrorInfo`."""
    body = Step("a", same) >> Step.parallel("p", {"x": Step("b", same), "y": Step("c", failing("no"))})
    flujo = Flujo(body, initial_context_data={"k": [1]})
    outcomes = await collected(flujo.run_async({"n": (1, 2)}))
    assert told(outcomes)[0] == "success a"
    for outcome in outcomes:
        again: Any = from_json(to_json(outcome), StepOutcome)
        if isinstance(outcome, Failure):
            assert isinstance(again.error, ErrorInfo)
            assert (again.error.type_name, again.error.message) == ("ValueError", "no")
            assert again.step_result == outcome.step_result
        else:
            assert again == outcome
    result = await flujo.run_async({"n": (1, 2)})
    assert from_json(to_json(result), PipelineResult) == result
