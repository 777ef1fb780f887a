"""Fallbacks: attempts, usage, texts and metadata of both."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import AT_ONCE, Scripted, collected, failing, named, same, spent, told, wasted

from flujo_actors import Failure, Flujo, Paused, Pipeline, Step, Success
from flujo_actors.errors import DeclarationError


@pytest.mark.trio
async def test_a_fallback_that_works_makes_the_step_a_success(autojump_clock: Any) -> None:
    """Attempts of both, usage of both, the primary's error in the metadata, no feedback."""
    primary = Scripted(wasted("one", 1, 0.1), wasted("two", 2, 0.2), wasted("three", 4, 0.4))
    standby = Scripted(wasted("four", 8, 0.8), spent("rescued", 16, 1.6))
    fallback = Step("standby", standby, max_retries=1, backoff=AT_ONCE)
    result = await Flujo(Step("s", primary, max_retries=2, backoff=AT_ONCE, fallback=fallback)).run_async("in")
    step = result.step_history[0]
    assert (result.status, result.output) == ("completed", "rescued")
    assert (step.name, step.success, step.attempts, step.feedback) == ("s", True, 5, None)
    assert (result.total_tokens, result.total_cost_usd) == (31, pytest.approx(3.1))
    assert step.metadata["fallback_triggered"] is True
    assert step.metadata["original_error"] == "three"
    assert [(each.name, each.attempts, each.token_counts) for each in step.step_history] == [("standby", 2, 24)]
    assert standby.calls == ["in", "in"]


@pytest.mark.trio
async def test_a_fallback_that_fails_leaves_both_texts_and_the_first_error(autojump_clock: Any) -> None:
    """Attempts and usage of both are kept; the primary's exception is the step's error."""
    primary, standby = Scripted(wasted("primary text", 3, 1.0)), Scripted(wasted("fallback text", 4, 2.0))
    outcomes = await collected(Flujo(Step("s", primary, fallback=Step("f", standby))).run_async(1))
    last = outcomes[-1]
    assert told(outcomes) == ["failure f", "failure s"]
    assert "primary text" in last.feedback
    assert "fallback text" in last.feedback
    assert str(last.error) == "primary text"
    step = last.step_result
    assert (step.attempts, step.token_counts, step.cost_usd) == (2, 7, 3.0)
    assert step.feedback == last.feedback
    assert step.metadata["fallback_triggered"] is True


@pytest.mark.trio
async def test_without_failure_there_is_no_fallback(autojump_clock: Any) -> None:
    """It is not called, and the metadata does not speak of it."""
    standby = Scripted("no")
    result = await Flujo(Step("s", same, fallback=Step("f", standby))).run_async(1)
    assert (result.output, standby.calls, result.step_history[0].attempts) == (1, [], 1)
    assert not result.step_history[0].metadata.get("fallback_triggered")


@pytest.mark.trio
@pytest.mark.parametrize("standby", [same, failing("second")], ids=["works", "fails"])
async def test_long_error_texts_are_kept_verbatim(autojump_clock: Any, standby: Any) -> None:
    """A megabyte of text, with markup, line ends and other alphabets, is the same in the feedback."""
    text = "".join(f"line {n}: {{weiß}} <b>%s</b> \\n 日本語 \t|\r\n" for n in range(26_000))
    assert len(text) > 1_000_000
    result = await Flujo(Step("s", failing(text), fallback=Step("f", standby))).run_async(1)
    step = result.step_history[0]
    whole = f"Agent execution failed with ValueError: {text}"
    assert step.metadata["original_error"] == whole
    assert (result.feedback is None) if result.success else (whole in result.feedback)


@pytest.mark.trio
async def test_a_fallback_may_have_a_fallback(autojump_clock: Any) -> None:
    """Attempts and usage add up over the whole chain, and so do the texts."""
    third = Step("c", Scripted(wasted("text c", 4)))
    second = Step("b", Scripted(wasted("text b", 2)), max_retries=1, backoff=AT_ONCE, fallback=third)
    result = await Flujo(Step("a", Scripted(wasted("text a", 1)), fallback=second)).run_async(1)
    assert result.status == "failed"
    assert all(f"text {name}" in result.feedback for name in "abc")
    assert (result.step_history[0].attempts, result.total_tokens) == (4, 1 + 2 * 2 + 4)
    rescued = Step("b", failing("b"), fallback=Step("c", same))
    result = await Flujo(Step("a", failing("a"), fallback=rescued)).run_async("in")
    assert (result.output, result.step_history[0].attempts) == ("in", 3)
    assert result.step_history[0].metadata["original_error"].endswith(": a")
    assert named(result, "b").metadata["original_error"].endswith(": b")


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["parallel", "map", "branch", "loop"])
async def test_composites_fall_back_too(autojump_clock: Any, kind: str) -> None:
    """What was used inside the failed composite stays counted."""
    body = Step("ok", Scripted(spent(1, 10))) >> Step("bad", Scripted(wasted("inside", 5)))
    config: Any = {"fallback": Step("f", Scripted(spent("rescued", 1)))}
    composite = {
        "parallel": lambda: Step.parallel("c", {"x": body}, **config),
        "map": lambda: Step.map_over("c", body, items=[1], **config),
        "branch": lambda: Step.branch_on("c", lambda data, context: "x", {"x": body}, **config),
        "loop": lambda: Step.loop_until("c", body, lambda output, context: True, **config),
    }[kind]()
    result = await Flujo(composite).run_async(1)
    assert (result.output, result.total_tokens, result.step_history[0].attempts) == ("rescued", 16, 2)
    assert "inside" in result.step_history[0].metadata["original_error"]


@pytest.mark.trio
async def test_a_pipeline_can_be_the_fallback(autojump_clock: Any) -> None:
    """Named or not, it gets the step's input; its last output is the step's."""
    for standby in (Pipeline((Step("x", same), Step("y", same)), name="p"), Step("x", same) >> Step("y", same)):
        result = await Flujo(Step("s", failing(), fallback=standby)).run_async("in")
        assert result.output == "in"
        assert [depth for depth, _ in result.walk()] == [0, 1, 2, 2]


@pytest.mark.trio
async def test_the_fallback_gets_the_input_the_primary_got(autojump_clock: Any) -> None:
    """The declared `input` counts for both, unless the fallback declares its own."""
    one, two = Scripted(1), Scripted(2)
    await Flujo(Step("s", failing(), input="declared", fallback=Step("f", one))).run_async("in")
    own = Step("f", two, input=lambda previous, context: f"own after {previous}")
    await Flujo(Step("s", failing(), input="declared", fallback=own)).run_async("in")
    assert (one.calls, two.calls) == (["declared"], ["own after declared"])


@pytest.mark.trio
async def test_the_fallback_starts_from_the_context_before_the_primary(autojump_clock: Any) -> None:
    """What the failed primary wrote is gone; what the fallback writes stays."""

    async def spoil(data: Any, *, context: Any) -> None:
        context.notes.append("spoiled")
        raise ValueError("no")

    async def keep(data: Any, *, context: Any) -> None:
        context.notes.append("kept")

    flujo = Flujo(Step("s", spoil, fallback=Step("f", keep)), initial_context_data={"notes": []})
    assert (await flujo.run_async(1)).final_context.notes == ["kept"]


@pytest.mark.trio
@pytest.mark.parametrize("refusal", [False, "not good enough"])
async def test_a_refused_output_leads_to_the_fallback(autojump_clock: Any, refusal: Any) -> None:
    """A validator's no is a failure like any other."""
    result = await Flujo(Step("s", same, validators=[lambda output: refusal], fallback=Step("f", same))).run_async(1)
    assert result.output == 1
    assert "Validation failed" in result.step_history[0].metadata["original_error"]


@pytest.mark.trio
@pytest.mark.parametrize("answer", [Failure(feedback="my own words"), Paused(message="wait")])
async def test_outcomes_of_the_fallback_are_the_steps(autojump_clock: Any, answer: Any) -> None:
    """A fallback may pause or fail by returning an outcome."""
    result = await Flujo(Step("s", failing("first"), fallback=Step("f", Scripted(answer)))).run_async(1)
    if isinstance(answer, Paused):
        assert (result.status, result.feedback) == ("paused", "wait")
    else:
        assert result.status == "failed"
        assert "first" in result.feedback
        assert "my own words" in result.feedback


@pytest.mark.trio
async def test_primary_usage_is_counted_before_the_fallback_starts(autojump_clock: Any) -> None:
    """A hook that sees the fallback fail finds, in the end, each counted once and in order."""
    seen: list[tuple[str, int]] = []

    def note(payload: Any) -> None:
        if payload.kind == "post_step" and isinstance(payload.outcome, Success):
            seen.append((payload.step_name, payload.outcome.step_result.token_counts))

    step = Step("s", Scripted(wasted("x", 5)), fallback=Step("f", Scripted(spent("y", 7))))
    result = await Flujo(step, hooks=note).run_async(1)
    assert seen == [("f", 7), ("s", 12)]
    assert result.total_tokens == 12


def test_circular_fallbacks_are_an_error_when_they_are_built() -> None:
    """A step may not stand in for itself, at any distance; the error names the circle."""
    inner = Step("a", same)
    with pytest.raises(DeclarationError, match="'a' -> 'a'"):
        Step("a", same, fallback=inner)
    with pytest.raises(DeclarationError, match="'a' -> 'b' -> 'a'"):
        Step("a", same, fallback=Step("b", failing(), fallback=inner))


@pytest.mark.parametrize("wrong", [int, "f", 5, object()])
def test_a_fallback_that_is_no_step_is_an_error_when_it_is_built(wrong: Any) -> None:
    """A wrong declaration fails when it is built, not when it runs."""
    with pytest.raises(DeclarationError, match="fallback"):
        Step("s", same, fallback=wrong)
