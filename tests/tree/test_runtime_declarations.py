"""Declarations are frozen values, and a wrong one fails when it is built."""

from __future__ import annotations

import functools
from typing import Any

import attrs
import pytest
from scripted import same

import flujo_actors
from flujo_actors import (
    Backoff,
    Cache,
    Flujo,
    LoopGuard,
    Pipeline,
    PostgresStore,
    RateLimit,
    Step,
    UsageLimits,
    Votes,
    errors,
)
from flujo_actors.errors import DeclarationError

A, B = Step("a", same), Step("b", same)

PROMISED = """
Flujo Pipeline Step step Context StepResult Success Failure Paused Aborted Chunk PipelineResult StepOutcome ErrorInfo
UsageLimits to_json from_json UsageLimitExceededError PricingNotConfiguredError MissingAgentError MockDetectionError
InfiniteRedirectError InvalidAnswer NotPaused RunExists PreRun PreStep PostStep OnStepFailure OnPause PostRun Backoff
"""


@pytest.mark.parametrize("name", PROMISED.split())
def test_promised_names_are_importable(name: str) -> None:
    """From the package; exceptions also from `errors`."""
    public = getattr(flujo_actors, name)
    if isinstance(public, type) and issubclass(public, Exception):
        assert getattr(errors, name) is public


@pytest.mark.parametrize(
    "value",
    [A, A >> B, Step.parallel("p", {"a": A}), Step.loop_until("l", A, lambda output, context: True)],
    ids=["step", "pipeline", "parallel", "loop"],
)
def test_declarations_are_frozen(value: Any) -> None:
    """Sharing one between runs is safe because nobody can change it."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        value.name = "other"


def test_the_dicts_of_a_declaration_are_copied() -> None:
    """Changing the original dict later changes nothing."""
    branches, meta = {"a": A}, {"k": 1}
    parallel = Step.parallel("p", branches, meta=meta)
    branches["b"], meta["k"] = B, 2
    assert list(parallel.branches) == ["a"]
    assert parallel.meta["k"] == 1
    with pytest.raises(TypeError):
        parallel.meta["k"] = 3


@pytest.mark.parametrize(
    "build",
    [
        lambda: A >> Step("a", same),
        lambda: Pipeline((A, B, Step("a", same))),
        lambda: A >> B >> Step.parallel("a", {"x": A}),
        lambda: Pipeline((A, Pipeline((B,), name="a"))),
    ],
)
def test_two_steps_of_one_pipeline_may_not_share_a_name(build: Any) -> None:
    """The error names both places."""
    with pytest.raises(DeclarationError, match=r"'a': number 1 and number \d"):
        build()


def test_steps_of_different_pipelines_may_share_a_name() -> None:
    """Names are told apart by their place."""
    assert Flujo(Pipeline((A, Pipeline((A,), name="inner"), Pipeline((A, B))))).run(1).success


WRONG: dict[str, Any] = {
    "no name": lambda: Step("", same),
    "a name that is no text": lambda: Step(5, same),
    "an agent that cannot be called": lambda: Step("s", 5),
    "a step as agent": lambda: Step("s", A),
    "a pipeline as agent": lambda: Step("s", A >> B),
    "a class as agent": lambda: Step("s", type("Agent", (), {"run": same})),
    "a plain generator": lambda: Step("s", lambda data: (yield data)),
    "negative retries": lambda: Step("s", same, max_retries=-1),
    "retries that are no number": lambda: Step("s", same, max_retries="2"),
    "no time": lambda: Step("s", same, timeout_s=0),
    "endless time": lambda: Step("s", same, timeout_s=float("inf")),
    "time that is no number": lambda: Step("s", same, timeout_s="5"),
    "a backoff that is none": lambda: Step("s", same, backoff="slow"),
    "limits that are none": lambda: Step("s", same, usage_limits=5),
    "meta that is no dict": lambda: Step("s", same, meta=5),
    "validators that are none": lambda: Step("s", same, validators=5),
    "an unknown setting": lambda: Step("s", same, retries=2),
    "no branches": lambda: Step.parallel("p", {}),
    "branches that are no dict": lambda: Step.parallel("p", [A, B]),
    "a class as branch": lambda: Step.parallel("p", {"x": int}),
    "branches that look the same": lambda: Step.parallel("p", {1: A, "1": B}),
    "no places": lambda: Step.parallel("p", {"x": A}, max_concurrency=0),
    "an unknown reaction": lambda: Step.parallel("p", {"x": A}, on_branch_failure="cry"),
    "a class as body": lambda: Step.map_over("m", int),
    "items that are none": lambda: Step.map_over("m", A, items=5),
    "a text as items": lambda: Step.map_over("m", A, items="text"),
    "a selector that cannot be called": lambda: Step.branch_on("b", "x", {"x": A}),
    "a class as default": lambda: Step.branch_on("b", lambda data, context: "x", {"x": A}, default=int),
    "a condition that cannot be called": lambda: Step.loop_until("l", A, True),
    "no turns": lambda: Step.loop_until("l", A, lambda output, context: True, max_loops=0),
    "a message that is none": lambda: Step.human_in_the_loop("h", 5),
    "a schema that is none": lambda: Step.human_in_the_loop("h", "?", input_schema=5),
    "a JSON Schema that is none": lambda: Step.human_in_the_loop("h", "?", input_schema={"type": "nothing"}),
    "an empty pipeline": lambda: Pipeline(()),
    "a class in a pipeline": lambda: Pipeline((A, int)),
    "a class behind an arrow": lambda: A >> int,
    "a class as pipeline": lambda: Flujo(int),
    "limits of a run that are none": lambda: Flujo(A, usage_limits=5),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_declaration_fails_when_it_is_built(what: str) -> None:
    """Not when it runs."""
    with pytest.raises((DeclarationError, TypeError)):
        WRONG[what]()


UNCALLABLE: dict[str, tuple[Any, str]] = {
    "an agent": (lambda: Step("s", lambda data, key: key), "needs 'key', which no caller passes"),
    "an agent's keyword": (lambda: Step("s", lambda data, *, key: key), "needs 'key', which no caller passes"),
    "a validator of two": (lambda: Step("s", same, validators=lambda one, other: True), "needs 'other'"),
    "a validator of nothing": (lambda: Step("s", same, validators=lambda: True), "takes no argument"),
    "an input": (
        lambda: Step("s", same, input=lambda previous: 1),
        r"\(previous, context\), but this one takes previous",
    ),
    "items": (lambda: Step.map_over("s", A, items=lambda previous: []), r"'s': items .* \(previous, context\)"),
    "a selector": (lambda: Step.branch_on("s", lambda data: 1, {1: A}), r"'s': select .* \(data, context\)"),
    "a condition": (
        lambda: Step.loop_until("s", A, lambda: True),
        r"'s': until .* \(output, context\).* takes nothing",
    ),
    "a message": (lambda: Step.human_in_the_loop("s", lambda data: "?"), r"'s': message .* \(data, context\)"),
}


@pytest.mark.parametrize("what", UNCALLABLE)
def test_a_function_that_cannot_be_called_as_it_will_be_fails_when_it_is_declared(what: str) -> None:
    """The error says how it will be called."""
    build, said = UNCALLABLE[what]
    with pytest.raises(DeclarationError, match=said):
        build()


@pytest.mark.parametrize(
    "agent",
    [
        lambda data, key=1: data,
        lambda data, *more, **others: data,
        lambda context, data: data,
        functools.partial(lambda data, key: data, key=1),
        functools.partial(lambda key, data: data, "bound"),
        int,
    ],
)
def test_a_function_that_can_be_called_is_no_wrong_declaration(agent: Any) -> None:
    """Defaults, variadic parameters and bound arguments need nobody to pass them."""
    assert Flujo(Step("s", agent)).run(1).output == 1


def test_a_pipeline_from_a_step_is_that_step_in_a_row_of_one() -> None:
    """A pipeline stays what it is."""
    assert Pipeline.from_step(A).steps == (A,)
    chain = A >> B
    assert Pipeline.from_step(chain) is chain
    assert [step.name for step in (chain >> Step("c", same)).steps] == ["a", "b", "c"]
    assert chain.steps == (A, B)


NO_FLOAT = 10**400

DURATIONS: dict[str, Any] = {
    "timeout_s": lambda: Step("s", same, timeout_s=NO_FLOAT),
    "approval": lambda: Step.approval("s", "Fine?", timeout_s=NO_FLOAT, on_timeout="reject"),
    "sleep": lambda: Step.sleep("s", NO_FLOAT),
    "event": lambda: Step.wait_for("s", "paid", timeout_s=NO_FLOAT),
    "cache": lambda: Cache(ttl_s=NO_FLOAT),
    "time limit": lambda: UsageLimits(time_limit_s=NO_FLOAT),
    "cost limit": lambda: UsageLimits(total_cost_usd_limit=NO_FLOAT),
    "backoff": lambda: Backoff(first=NO_FLOAT, ceiling=NO_FLOAT),
    "rate": lambda: RateLimit("r", requests_per_min=NO_FLOAT),
}


COUNTS: dict[str, Any] = {
    "retries": lambda n: Step("s", same, max_retries=n),
    "loops": lambda n: Step.loop_until("s", A, until=lambda output, context: True, max_loops=n),
    "concurrency": lambda n: Step.map_over("s", A, max_concurrency=n),
    "votes": Votes,
    "repeats": lambda n: LoopGuard(same=n),
    "tokens": lambda n: UsageLimits(total_tokens_limit=n),
    "slots": lambda n: RateLimit("r", at_once=n),
    "pool": lambda n: PostgresStore("postgresql://db/runs", pool_size=n),
}


@pytest.mark.parametrize("option", sorted(COUNTS))
def test_a_count_of_thousands_of_digits_is_refused_with_its_length(option: str) -> None:
    """No loop ends at it and no store can hold it; its digits are not printed."""
    for count in (10**5000, -(10**5000)):
        with pytest.raises(DeclarationError, match=r"not a number of about 5001 digits$"):
            COUNTS[option](count)


@pytest.mark.parametrize("option", sorted(DURATIONS))
def test_a_whole_number_that_no_float_can_hold_is_refused(option: str) -> None:
    """It would raise in the clock or in the store, in the middle of a run."""
    with pytest.raises(DeclarationError):
        DURATIONS[option]()
