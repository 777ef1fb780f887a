"""Where an exception is found again: in the result, in the log, in the store, and raised by `unwrap`."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import traceback
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from scripted import AT_ONCE

from flujo_actors import (
    Aborted,
    ErrorInfo,
    Flujo,
    Frame,
    Pipeline,
    PipelineResult,
    RunAborted,
    RunClient,
    RunFailed,
    RunPaused,
    Step,
    UsageLimitExceededError,
    from_json,
    to_json,
)

HERE = Path(__file__).name
BACKENDS = ["trio", "asyncio"]


class Broken(Exception):
    pass


async def breaks(data: Any) -> Any:
    raise Broken("the real reason")


LINE = inspect.getsourcelines(breaks)[1] + 1


def breaks_in_a_thread(data: Any) -> Any:
    json.loads("{")


async def breaks_in_a_group(data: Any) -> Any:
    async with anyio.create_task_group() as group:
        group.start_soon(breaks, data)


async def streams_and_breaks(data: Any) -> Any:
    yield "piece"
    raise Broken("the real reason")


# --- the result ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("agent", [breaks, streams_and_breaks])
def test_a_result_has_the_original_exception_with_its_traceback(agent: Any, backend: Any) -> None:
    """Whoever runs or awaits loses nothing against whoever iterates."""
    error = Flujo(Step("s", agent)).run(1, backend=backend).error
    assert isinstance(error, Broken)
    assert agent.__name__ in "".join(traceback.format_exception(error))


def test_the_exception_comes_from_any_depth() -> None:
    """Through pipelines, maps, branches and loops."""
    inner = Step.map_over("each", Pipeline([Step("deep", breaks)], name="inner"))
    looped = Step.loop_until("loop", inner, lambda output, context: True)
    assert isinstance(Flujo(Step.parallel("all", {"a": looped})).run([1]).error, Broken)


@pytest.mark.parametrize("step", [Step("ok", lambda data: data), Step.human_in_the_loop("ask", "?")])
def test_a_run_that_did_not_fail_has_no_error(step: Any) -> None:
    """Nor has one that waits."""
    assert Flujo(step).run(1).error is None


def test_the_feedback_of_a_run_names_the_step() -> None:
    """At the top, too, where the reader does not know which of forty it was."""
    result = Flujo(Step("first", lambda data: data) >> Step("second", breaks)).run(1)
    assert (
        result.feedback == "step 'second' failed: Agent execution failed with Broken: the real reason (agent: breaks)"
    )


# --- unwrap -------------------------------------------------------------------------------------------------


def test_unwrap_gives_the_output_of_a_completed_run() -> None:
    """Also one that is `None`."""
    assert Flujo(Step("ok", lambda data: data)).run(7).unwrap() == 7
    assert Flujo(Step("ok", lambda data: data)).run(None).unwrap() is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_unwrap_raises_the_original_with_a_note_that_says_where_in_the_run(backend: Any) -> None:
    """Run, path and attempt; as often as it is asked, and once in the notes."""
    step = Step("deep", breaks, max_retries=2, backoff=AT_ONCE)
    result = Flujo(Step.parallel("all", {"a": step})).run(1, run_id="r1", backend=backend)
    for _ in range(2):
        with pytest.raises(Broken) as raised:
            result.unwrap()
        assert raised.value is result.error
        assert raised.value.__notes__ == ["flujo_actors: run 'r1', path 'all/a', attempt 3"]
    assert raised.traceback[-1].name == "breaks"


def test_an_exception_that_is_raised_again_and_again_has_the_last_note_only() -> None:
    """One object may serve a thousand runs; the user's own notes stay."""
    error = ValueError("always the same")
    error.add_note("mine")

    async def same(data: Any) -> None:
        raise error

    for number in range(3):
        Flujo(Step("s", same)).run(1, run_id=f"r{number}")
    assert error.__notes__ == ["mine", "flujo_actors: run 'r2', path 's', attempt 1"]


def test_an_exception_that_takes_no_notes_is_raised_as_it_is() -> None:
    """A frozen class, and one whose notes are not notes."""

    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    class Odd(Exception):
        __notes__ = "not a list"

    for error in (Frozen(7), Odd("x")):

        async def fail(data: Any, error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            Flujo(Step("s", fail)).run(1).unwrap()


def test_unwrap_of_a_failure_without_an_exception_raises_one_that_says_why() -> None:
    """A validator's refusal is not an exception; the result is with it."""
    result = Flujo(Step("s", lambda data: 3, validators=lambda output: "too small")).run(1, run_id="r")
    with pytest.raises(RunFailed, match="run 'r' failed: step 's' failed: Validation failed: too small") as raised:
        result.unwrap()
    assert raised.value.result is result


def test_unwrap_of_a_result_from_json_tells_what_was_kept_of_the_exception() -> None:
    """The object is gone; its words, its place and the note are not."""
    result = from_json(to_json(Flujo(Step("s", breaks)).run(1, run_id="r")), PipelineResult)
    with pytest.raises(RunFailed, match="Broken: the real reason") as raised:
        result.unwrap()
    assert isinstance(raised.value.error, ErrorInfo)
    assert f"{HERE}:{LINE} in breaks" in "".join(traceback.format_exception(raised.value))
    assert "flujo_actors: run 'r', path 's', attempt 1" in raised.value.__notes__


def test_unwrap_of_a_paused_run_says_how_to_answer() -> None:
    """With the token, ready to be copied."""
    result = Flujo(Step.human_in_the_loop("ask", "Publish?")).run(1)
    with pytest.raises(RunPaused, match=r"Publish\?.*flujo\.resume\(") as raised:
        result.unwrap()
    assert str(result.state_token) in str(raised.value)


def test_unwrap_of_an_aborted_run_gives_the_reason() -> None:
    """As the one who stopped it gave it."""
    with pytest.raises(RunAborted, match="was aborted: too late"):
        Flujo(Step("stop", lambda data: Aborted(reason="too late"))).run(1).unwrap()


# --- groups -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_group_is_told_by_its_leaves(backend: Any) -> None:
    """A nursery wraps what failed; the reader wants to know what it was."""
    result = Flujo(Step("fetch", breaks_in_a_group)).run(1, backend=backend)
    assert "Broken: the real reason" in result.feedback
    assert isinstance(result.error, ExceptionGroup)


def test_of_many_leaves_some_are_told_and_the_others_counted() -> None:
    """Ten thousand failures make one sentence."""

    async def fail(data: Any) -> None:
        nested = ExceptionGroup("inner", [KeyError("k")])
        raise ExceptionGroup("outer", [nested, *(ValueError(str(n)) for n in range(9))])

    feedback = str(Flujo(Step("s", fail)).run(1).feedback)
    assert "KeyError: 'k'; ValueError: 0; ValueError: 1" in feedback
    assert feedback.endswith("; and 5 more (agent: fail)")


@pytest.mark.parametrize("where", ["validators", "processors"])
def test_a_group_is_told_by_its_leaves_around_the_agent_too(where: str) -> None:
    """Validators and processors have nurseries of their own."""
    options: Any = {"validators": breaks_in_a_group, "processors": {"after": breaks_in_a_group}}
    result = Flujo(Step("s", lambda data: data, **{where: options[where]})).run(1)
    assert "Broken: the real reason" in str(result.feedback)


# --- the log ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("agent", [breaks, breaks_in_a_group, breaks_in_a_thread])
def test_a_failed_step_is_one_line_in_the_log(agent: Any, backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    """With step, path, and the place in the user's own code; steps around it add nothing."""
    flujo = Flujo(Step.map_over("each", Pipeline([Step("deep", agent)], name="inner")))
    flujo.run([1], run_id="r1", backend=backend)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    text = record.getMessage()
    own = LINE if agent is not breaks_in_a_thread else inspect.getsourcelines(breaks_in_a_thread)[1] + 1
    assert f"step 'deep' failed at {__file__}:{own} in " in text
    assert "(run 'r1', path 'each/~i0/deep', attempt 1)" in text


def test_the_log_keeps_the_place_of_a_failure_that_a_fallback_made_good(caplog: pytest.LogCaptureFixture) -> None:
    """The run completes, and nobody has the exception any more: one line, which is no warning."""

    async def primary(data: int) -> None:
        raise ValueError("no tea")

    with caplog.at_level(logging.INFO, logger="flujo_actors"):
        result = Flujo(Step("tea", primary, fallback=Step("coffee", lambda data: "coffee"))).run(1)
    assert result.output == "coffee"
    [record] = caplog.records
    assert record.levelno == logging.INFO
    assert "step 'tea' goes to its fallback; it failed at" in record.getMessage()
    assert "test_runtime_errors.py" in record.getMessage()


def test_the_log_has_no_secrets(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of the message nor those of a path."""
    monkeypatch.setenv("SERVICE_API_KEY", "late-secret-value-123")

    async def call(data: Any) -> None:
        raise RuntimeError("late-secret-value-123 was refused")

    Flujo(Step("call", call)).run(1)
    assert "was refused" in caplog.text
    assert "late-secret-value-123" not in caplog.text


def test_attempts_that_are_made_again_and_errors_that_are_raised_are_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A step that works in the end has not failed; what is raised to the caller is told there."""
    replies = iter([Broken("once"), 1])

    async def second_time(data: Any) -> Any:
        reply = next(replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def greedy(data: Any) -> None:
        raise UsageLimitExceededError("enough")

    assert Flujo(Step("s", second_time, max_retries=1, backoff=AT_ONCE)).run(1).success
    with pytest.raises(UsageLimitExceededError):
        Flujo(Step("s", greedy)).run(1)
    assert caplog.records == []


def test_a_branch_that_was_ignored_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else would say it."""
    both = {"good": Step("good", lambda data: data), "bad": Step("bad", breaks)}
    assert Flujo(Step.parallel("p", both, on_branch_failure="ignore")).run(1).success
    assert "step 'bad' failed at" in caplog.text


# --- what is kept -------------------------------------------------------------------------------------------


def test_a_stored_failure_has_its_frames(tmp_path: Path) -> None:
    """File, line and function, for the process that looks at it tomorrow."""
    url = f"sqlite:///{tmp_path}/runs.db"
    Flujo(Step("s", breaks), store=url).run(1, run_id="r")
    error = RunClient(url).state("r").error
    assert isinstance(error, ErrorInfo)
    assert error.frames[-1] == Frame(file=__file__, line=LINE, function="breaks")
    assert error.notes == ("flujo_actors: run 'r', path 's', attempt 1",)


def test_the_last_twenty_frames_are_kept() -> None:
    """Where it was raised, not where it began."""

    def dive(depth: int) -> None:
        if depth == 0:
            raise Broken("deep")
        dive(depth - 1)

    async def fail(data: Any) -> None:
        dive(50)

    back = from_json(to_json(Flujo(Step("s", fail)).run(1)), PipelineResult)
    assert isinstance(back.error, ErrorInfo)
    assert len(back.error.frames) == 20
    assert all(frame.function.endswith("dive") for frame in back.error.frames)


def test_a_failed_result_goes_to_json_and_back_as_an_equal() -> None:
    """The exception as an `ErrorInfo`; everything else as it was."""
    result = Flujo(Step("s", breaks)).run(1)
    back = from_json(to_json(result), PipelineResult)
    assert back == result
    assert isinstance(back.error, ErrorInfo)
    assert from_json(to_json(back), PipelineResult).error.frames == back.error.frames


def test_results_and_errors_of_earlier_releases_can_be_read() -> None:
    """They have neither an error nor frames."""
    data = json.loads(to_json(Flujo(Step("s", breaks)).run(1)))
    del data["error"]["frames"]
    assert attrs.evolve(from_json(json.dumps(data), PipelineResult).error, notes=()) == ErrorInfo(
        type_name="Broken", message="the real reason"
    )
    del data["error"]
    assert from_json(json.dumps(data), PipelineResult).error is None
