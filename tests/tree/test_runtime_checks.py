"""Validators and processors."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from scripted import AT_ONCE, Scripted, collected, same, spent

from flujo_actors import Flujo, Step
from flujo_actors.errors import DeclarationError


@pytest.mark.trio
@pytest.mark.parametrize("verdict", [None, True])
async def test_a_validator_that_says_nothing_or_true_is_content(autojump_clock: Any, verdict: Any) -> None:
    """`None` and `True` are fine."""
    assert (await Flujo(Step("s", same, validators=[lambda output: verdict])).run_async(1)).output == 1


@pytest.mark.trio
@pytest.mark.parametrize("verdict", [False, "too short"])
async def test_a_validator_that_says_false_or_a_reason_refuses(autojump_clock: Any, verdict: Any) -> None:
    """The step fails, the reason is in the feedback, the refused output in the partial result."""
    outcomes = await collected(Flujo(Step("s", same, validators=lambda output: verdict)).run_async("x"))
    assert outcomes[-1].step_result.output == "x"
    assert not outcomes[-1].step_result.success
    assert "Validation failed" in outcomes[-1].feedback
    assert not isinstance(verdict, str) or verdict in outcomes[-1].feedback


def must_be_even(number: int) -> bool:
    return number % 2 == 0


class Strict:
    def __call__(self, number: int) -> bool:
        return False


@pytest.mark.parametrize(
    ("validator", "told"),
    [
        (must_be_even, "validator 'must_be_even' returned False"),
        (functools.partial(must_be_even), "validator 'must_be_even' returned False"),
        (Strict(), "validator 'Strict' returned False"),
        (lambda number: [], "validator '<lambda>' returned [], which is no verdict"),
        (lambda number: "", "validator '<lambda>' returned '', which is no verdict"),
        (lambda number: 0, "validator '<lambda>' returned 0, which is no verdict"),
        (lambda number: number, "validator '<lambda>' returned 3, which is no verdict"),
    ],
)
def test_a_validator_that_gives_no_reason_is_named_with_what_it_returned(validator: Any, told: str) -> None:
    """Nobody has to guess which of five it was, nor that an empty list is no verdict."""
    feedback = Flujo(Step("s", same, validators=[lambda number: None, validator])).run(3).feedback
    assert feedback is not None
    assert told in feedback


@pytest.mark.trio
async def test_a_validator_that_raises_refuses_with_its_exception(autojump_clock: Any) -> None:
    """Sync or async; the exception is the failure's error."""

    async def check(output: Any) -> None:
        raise KeyError("title")

    outcomes = await collected(Flujo(Step("s", same, validators=[check])).run_async("x"))
    assert isinstance(outcomes[-1].error, KeyError)
    assert "KeyError: 'title'" in outcomes[-1].feedback


@pytest.mark.trio
async def test_a_validator_whose_exception_cannot_be_printed_still_refuses(autojump_clock: Any) -> None:
    """An exception class may do anything in `__str__`."""

    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def check(output: Any) -> None:
        raise Rude

    result = await Flujo(Step("s", same, validators=[check])).run_async("x")
    assert result.status == "failed"
    assert "Rude" in result.feedback


@pytest.mark.trio
async def test_validators_see_output_context_and_resources_if_they_ask(autojump_clock: Any) -> None:
    """All are asked in order until one refuses."""
    seen: list[Any] = []

    def plain(output: int) -> bool:
        seen.append(output)
        return True

    async def careful(output: int, *, context: Any, resources: Any) -> bool:
        seen.append((output, context.limit, resources))
        return output < context.limit

    def never(output: int) -> None:
        seen.append("asked")

    flujo = Flujo(
        Step("s", same, validators=(plain, careful, never)),
        initial_context_data={"limit": 5},
        resources={"db": 1},
    )
    assert (await flujo.run_async(9)).status == "failed"
    assert seen == [9, (9, 5, {"db": 1})]


@pytest.mark.trio
async def test_a_refused_attempt_is_tried_again_and_costs(autojump_clock: Any) -> None:
    """Validation is part of the attempt."""
    agent = Scripted(spent("bad", 3), spent("good", 4))
    step = Step("s", agent, validators=[lambda output: output == "good"], max_retries=1, backoff=AT_ONCE)
    result = await Flujo(step).run_async(1)
    assert (result.output, result.step_history[0].attempts, result.total_tokens) == ("good", 2, 7)


@pytest.mark.trio
async def test_a_refused_attempt_leaves_no_trace_in_the_context(autojump_clock: Any) -> None:
    """Neither the agent's changes nor the validator's."""

    async def write(data: Any, *, context: Any) -> int:
        context.n += 1
        return context.n

    def refuse(output: int, context: Any) -> bool:
        context.n += 100
        return False

    flujo = Flujo(Step("s", write, validators=[refuse], max_retries=2, backoff=AT_ONCE), initial_context_data={"n": 0})
    result = await flujo.run_async(1)
    assert (result.status, result.final_context.n) == ("failed", 0)
    assert result.step_history[0].output == 1


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["parallel", "map", "branch", "loop"])
async def test_composites_have_validators_and_processors(autojump_clock: Any, kind: str) -> None:
    """They work on the composite's own input and output."""
    inner = Step("x", same)
    config: Any = {
        "validators": [lambda output: "seen" if output == "done" else False],
        "processors": {"before": lambda data: [data], "after": [lambda output: "done"]},
    }
    composite = {
        "parallel": lambda: Step.parallel("c", {"x": inner}, **config),
        "map": lambda: Step.map_over("c", inner, **config),
        "branch": lambda: Step.branch_on("c", lambda data, context: data[0], {1: inner}, **config),
        "loop": lambda: Step.loop_until("c", inner, lambda output, context: True, **config),
    }[kind]()
    assert "seen" in (await Flujo(composite).run_async(1)).feedback


@pytest.mark.trio
async def test_processors_change_the_data_on_its_way_in_and_out(autojump_clock: Any) -> None:
    """In order, sync or async, with context if they ask, before the validators."""

    async def add(data: str, *, context: Any) -> str:
        return data + context.mark

    seen: list[str] = []
    processors = {"before": [str.strip, add], "after": [str.upper, add]}
    step = Step("s", same, processors=processors, validators=[seen.append])
    result = await Flujo(step, initial_context_data={"mark": "!"}).run_async("  hey ")
    assert result.output == "HEY!!"
    assert seen == ["HEY!!"]


@pytest.mark.trio
@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_processor_that_raises_fails_the_attempt(autojump_clock: Any, side: str) -> None:
    """It is retried like any other failure; the exception is the error."""
    calls: list[Any] = []

    def once(data: Any) -> Any:
        calls.append(data)
        if len(calls) == 1:
            raise LookupError("first time")
        return data

    step = Step("s", same, processors={side: [once]}, max_retries=1, backoff=AT_ONCE)
    result = await Flujo(step).run_async(1)
    assert (result.success, result.step_history[0].attempts) == (True, 2)
    calls.clear()
    outcomes = await collected(Flujo(Step("s", same, processors={side: [once]})).run_async(1))
    assert isinstance(outcomes[-1].error, LookupError)
    assert "Agent execution failed with LookupError: first time" in outcomes[-1].feedback


def test_wrong_validators_and_processors_fail_when_they_are_built() -> None:
    """Each names the step or what is expected."""
    with pytest.raises(DeclarationError, match="'s'"):
        Step("s", same, validators=["no callable"])
    with pytest.raises(DeclarationError, match="before"):
        Step("s", same, processors={"befor": []})
    with pytest.raises(DeclarationError):
        Step("s", same, processors={"before": [5]})
