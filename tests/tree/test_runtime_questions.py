"""What is around a question: processors and validators on its answer, retries, the fallback."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from scripted import AT_ONCE, Scripted, failing, same

from flujo_actors import Flujo, Paused, Pipeline, Redirect, Step
from flujo_actors.errors import NotPaused, UsageLimitExceededError


def note(answer: Any, *, context: Any) -> Any:
    """A processor that writes down what it saw."""
    context.seen = [*context.seen, answer]
    return answer


def only_good(answer: Any) -> str | None:
    """A validator that knows one right answer."""
    return None if answer == "good" else f"{answer!r} is not good"


ASK = Step.human_in_the_loop("ask", "ok?", processors={"after": note}, validators=only_good)
SEEN = {"seen": []}


# --- the context ---------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_refused_answer_leaves_nothing_in_the_context(autojump_clock: Any) -> None:
    """What a processor wrote before the validator refused is dropped with the attempt."""
    flujo = Flujo(ASK, initial_context_data=SEEN)
    paused = await flujo.run_async(1)
    result = await flujo.resume_async(paused.state_token, "bad")
    assert (result.status, result.final_context.seen) == ("failed", [])


@pytest.mark.trio
async def test_a_taken_answer_keeps_what_its_processors_wrote(autojump_clock: Any) -> None:
    """An attempt that succeeds merges its copy, a question's like any other."""
    flujo = Flujo(ASK >> Step("end", same), initial_context_data=SEEN)
    paused = await flujo.run_async(1)
    result = await flujo.resume_async(paused.state_token, "good")
    assert (result.output, result.final_context.seen) == ("good", ["good"])


@pytest.mark.trio
async def test_questions_side_by_side_do_not_see_each_others_answers(autojump_clock: Any) -> None:
    """Each branch has a copy of the context, also when it goes on after its pause."""
    saw: dict[str, list[Any]] = {}

    def branch(name: str) -> Step | Any:
        def look(answer: Any, *, context: Any) -> Any:
            saw[name] = list(context.seen)
            context.seen.append(answer)
            return answer

        return Step.human_in_the_loop(name, f"{name}?", processors={"after": look})

    step = Step.parallel("p", {"a": branch("a"), "b": branch("b")}, merge="keep_first")
    flujo = Flujo(step, initial_context_data=SEEN)
    paused = await flujo.run_async(1)
    paused = await flujo.resume_async(paused.state_token, "first")
    result = await flujo.resume_async(paused.state_token, "second")
    assert saw == {"a": [], "b": []}
    assert result.final_context.seen == ["first"]


@pytest.mark.trio
@pytest.mark.parametrize("which", ["before", "after", "validator"])
async def test_no_code_around_a_question_reaches_the_shared_context(autojump_clock: Any, which: str) -> None:
    """What the run was put away with stays as it was, whoever wrote into what they were given."""
    calls = []

    def spoil(value: Any, *, context: Any) -> Any:
        calls.append(value)
        context.spoilt = True
        return None if which == "validator" else value

    code = {"validators": spoil} if which == "validator" else {"processors": {which: spoil}}
    flujo = Flujo(Step.human_in_the_loop("ask", "?", **code) >> Step("stop", failing()))
    paused = await flujo.run_async(1)
    await flujo.resume_async(paused.state_token, "yes")
    assert calls
    assert not hasattr(paused.final_context, "spoilt")


# --- refused answers -----------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["validator", "processor", "agent's own pause"])
async def test_a_refused_answer_goes_to_the_fallback(autojump_clock: Any, kind: str) -> None:
    """A question is a step like any other: what its validators or processors refuse, its fallback settles."""
    instead = Scripted("instead")
    options: dict[str, Any] = {"fallback": Step("robot", instead), "validators": only_good}
    if kind == "processor":
        options = {"fallback": Step("robot", instead), "processors": {"after": lambda answer: answer["missing"]}}
    asks = Step.human_in_the_loop("ask", "ok?", **options)
    if kind == "agent's own pause":
        asks = Step("ask", Scripted(Paused(message="ok?")), **options)
    flujo = Flujo(asks >> Step("end", same))
    paused = await flujo.run_async("data")
    result = await flujo.resume_async(paused.state_token, {})
    assert (result.status, result.output, instead.calls) == ("completed", "instead", ["data"])
    assert result.step_history[0].metadata["fallback_triggered"] is True
    assert result.step_history[0].attempts == 2


@pytest.mark.trio
async def test_a_fallback_after_a_refused_answer_may_ask_and_fail_itself(autojump_clock: Any) -> None:
    """Its question is one of its own, and the answer of the first one is not asked for again."""
    second = Step.human_in_the_loop("second", "really?", validators=only_good)
    flujo = Flujo(Step.human_in_the_loop("ask", "ok?", validators=only_good, fallback=second))
    paused = await flujo.run_async(1)
    paused = await flujo.resume_async(paused.state_token, "bad")
    assert (paused.status, paused.feedback) == ("paused", "really?")
    result = await flujo.resume_async(paused.state_token, "worse")
    assert result.status == "failed"
    assert "'bad' is not good" in (result.feedback or "")
    assert "'worse' is not good" in (result.feedback or "")


@pytest.mark.trio
async def test_a_question_with_retries_is_asked_again_and_says_why(autojump_clock: Any) -> None:
    """Each time it is another question: an answer that came twice is not taken for the next one."""
    flujo = Flujo(
        Step.human_in_the_loop("ask", "ok?", validators=only_good, max_retries=2, backoff=AT_ONCE) >> Step("end", same)
    )
    first = await flujo.run_async(1)
    second = await flujo.resume_async(first.state_token, "bad")
    assert (second.status, second.feedback) == (
        "paused",
        "ok?\n\nThe last answer was not taken: Validation failed: 'bad' is not good",
    )
    with pytest.raises(NotPaused):
        await flujo.resume_async(first.state_token, "good")
    third = await flujo.resume_async(second.state_token, "worse")
    assert "'worse' is not good" in (third.feedback or "")
    result = await flujo.resume_async(third.state_token, "good")
    assert (result.status, result.output, result.step_history[0].attempts) == ("completed", "good", 3)


@pytest.mark.trio
async def test_a_question_asked_again_too_often_fails(autojump_clock: Any) -> None:
    """Retries of a question are counted as those of any step."""
    flujo = Flujo(Step.human_in_the_loop("ask", "ok?", validators=only_good, max_retries=1, backoff=AT_ONCE))
    paused = await flujo.run_async(1)
    paused = await flujo.resume_async(paused.state_token, "bad")
    result = await flujo.resume_async(paused.state_token, "bad")
    assert (result.status, result.step_history[0].attempts) == ("failed", 2)


@pytest.mark.trio
async def test_an_agent_whose_answer_was_refused_is_called_again(autojump_clock: Any) -> None:
    """An agent that asked a person gets its next attempt with the reason, if it has one left."""
    told: list[str | None] = []

    async def agent(data: Any, *, feedback: str | None = None) -> Any:
        told.append(feedback)
        return Paused(message="which?") if feedback is None else "good"

    flujo = Flujo(Step("ask", agent, validators=only_good, max_retries=1, backoff=AT_ONCE))
    paused = await flujo.run_async(1)
    result = await flujo.resume_async(paused.state_token, "bad")
    assert (result.output, told) == ("good", [None, "Validation failed: 'bad' is not good"])


@pytest.mark.trio
async def test_a_validator_may_send_the_work_of_an_agent_that_asked_to_another(autojump_clock: Any) -> None:
    """A redirect means the same after a pause as before it."""
    expert = Scripted("good")
    verdict = [Redirect(to=expert, feedback="ask an expert"), None]
    flujo = Flujo(Step("ask", Scripted(Paused(message="which?")), validators=lambda output: verdict.pop(0)))
    paused = await flujo.run_async("data")
    result = await flujo.resume_async(paused.state_token, "dunno")
    assert (result.output, expert.calls) == ("good", ["data"])


@pytest.mark.trio
async def test_a_control_error_about_an_answer_reaches_the_caller(autojump_clock: Any) -> None:
    """No retry and no fallback is tried after it."""
    instead = Scripted("instead")

    def stop(answer: Any) -> None:
        raise UsageLimitExceededError("enough")

    flujo = Flujo(Step.human_in_the_loop("ask", "?", validators=stop, fallback=Step("robot", instead), max_retries=3))
    paused = await flujo.run_async(1)
    with pytest.raises(UsageLimitExceededError, match="enough"):
        await flujo.resume_async(paused.state_token, "yes")
    assert instead.calls == []


@pytest.mark.trio
async def test_code_that_looks_at_an_answer_has_the_steps_time(autojump_clock: Any) -> None:
    """`timeout_s` bounds what is done with the answer; the time it took to give it does not count."""

    async def look(answer: Any) -> Any:
        await trio.sleep_forever()

    step = Step.human_in_the_loop("ask", "?", processors={"after": look}, timeout_s=2, fallback=Step("robot", same))
    flujo = Flujo(Pipeline((step,), name="p"))
    paused = await flujo.run_async("data")
    await trio.sleep(3600)
    result = await flujo.resume_async(paused.state_token, "yes")
    assert (result.status, result.output) == ("completed", "data")
    assert "timeout_s=2" in result.step_history[0].metadata["original_error"]


# --- other agents --------------------------------------------------------------------------------------------


async def expert(data: Any, *, context: Any, feedback: str | None = None) -> Any:
    """An agent that others hand their work to, which writes into its context."""
    context.seen = [*context.seen, feedback]
    if data == "hopeless":
        raise ValueError("not even an expert knows")
    return f"expert on {data}"


def only_experts(output: Any) -> Redirect | None:
    """A validator that hands everything to the expert."""
    return None if "expert" in str(output) else Redirect(to=expert, feedback="too vague")


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["agent", "parallel", "map", "branch", "loop", "question"])
async def test_any_step_hands_its_work_to_another_agent(autojump_clock: Any, kind: str) -> None:
    """Also one that has no agent of its own; the other one works on the step's data, once, and on a context copy."""
    calls = Scripted("vague")
    inner, options = Step("inner", calls), {"validators": only_experts}
    step: Any = {
        "agent": lambda: Step("s", calls, **options),
        "parallel": lambda: Step.parallel("s", {"x": inner}, **options),
        "map": lambda: Step.map_over("s", inner, items=[1], **options),
        "branch": lambda: Step.branch_on("s", lambda data, context: "x", {"x": inner}, **options),
        "loop": lambda: Step.loop_until("s", inner, lambda output, context: True, **options),
        "question": lambda: Step.human_in_the_loop("s", "?", **options),
    }[kind]()
    flujo = Flujo(step, initial_context_data=SEEN)
    result = await flujo.run_async("tea")
    if kind == "question":
        result = await flujo.resume_async(result.state_token, "vague")
    assert (result.output, result.final_context.seen) == ("expert on tea", ["too vague"])
    assert len(calls.calls) == (0 if kind == "question" else 1)


@pytest.mark.trio
async def test_an_agent_that_was_handed_the_work_and_failed_leaves_no_trace(autojump_clock: Any) -> None:
    """It writes into a copy, also where the step's own agent never asks for the context."""
    flujo = Flujo(Step("s", Scripted("vague"), validators=only_experts), initial_context_data=SEEN)
    result = await flujo.run_async("hopeless")
    assert (result.status, result.final_context.seen) == ("failed", [])


@pytest.mark.trio
async def test_whoever_reads_a_paused_result_cannot_change_the_run(autojump_clock: Any) -> None:
    """The context in the result is a copy: the run goes on with its own."""

    async def look(answer: Any, *, context: Any) -> Any:
        return list(context.seen)

    flujo = Flujo(Step.human_in_the_loop("ask", "?") >> Step("look", look), initial_context_data=SEEN)
    paused = await flujo.run_async(1)
    paused.final_context.seen.append("spoilt")
    assert (await flujo.resume_async(paused.state_token, "yes")).output == []
