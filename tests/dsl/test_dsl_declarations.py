"""Declarations: frozen, and wrong ones fail when they are built, by the step's name."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from flujo_actors import Backoff, Flujo, Pipeline, Step, UsageLimits, step
from flujo_actors._dsl.declared_step import Processors
from flujo_actors.errors import ControlError, DeclarationError, MissingAgentError


async def agent(data: Any) -> Any:
    return data


class NotAnAgent:
    pass


def always(*_: Any) -> bool:
    return True


A = Step("a", agent)

WRONG: list[tuple[str, Any, str]] = [
    ("max_retries", -1, "max_retries must be 0 or more, not -1"),
    ("max_retries", 1.5, "max_retries must be 0 or more, not 1.5"),
    ("max_retries", True, "max_retries must be 0 or more, not True"),
    ("backoff", 2.0, r"backoff must be a Backoff\(…\), not 2.0"),
    ("backoff", None, "backoff must be a Backoff"),
    ("timeout_s", 0, "timeout_s must be seconds > 0, not 0"),
    ("timeout_s", float("inf"), "timeout_s must be seconds > 0"),
    ("timeout_s", float("nan"), "timeout_s must be seconds > 0"),
    ("timeout_s", "5", "timeout_s must be seconds > 0, not '5'"),
    ("fallback", 5, "the fallback of step 'wrong' must be a step or a pipeline"),
    ("validators", 5, "validators holds 5, not a callable"),
    ("validators", [always, "x"], "validators holds 'x', not a callable"),
    ("processors", 5, "processors must be Processors"),
    ("processors", {"during": always}, "processors must be Processors"),
    ("updates_context", "yes", "updates_context must be True or False, not 'yes'"),
    ("usage_limits", 5, "usage_limits must be UsageLimits"),
    ("meta", 5, "meta must be a dict, not 5"),
]


@pytest.mark.parametrize(
    ("option", "value", "problem"), WRONG, ids=[f"{option}, {said}"[:60] for option, _, said in WRONG]
)
def test_a_wrong_option_fails_by_the_name_of_its_step(option: str, value: Any, problem: str) -> None:
    """The message says which step, which option and what is wrong with it, for every kind of step."""
    makers = [
        lambda **config: Step("wrong", agent, **config),
        lambda **config: Step.parallel("wrong", {"a": A}, **config),
        lambda **config: Step.map_over("wrong", A, **config),
        lambda **config: Step.branch_on("wrong", always, {"a": A}, **config),
        lambda **config: Step.loop_until("wrong", A, always, **config),
        lambda **config: Step.human_in_the_loop("wrong", "?", **config),
    ]
    for make in makers:
        with pytest.raises(DeclarationError, match=problem) as caught:
            make(**{option: value})
        assert "step 'wrong'" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Step.parallel("wrong", {}), "branches must be a dict of at least one step"),
        (lambda: Step.parallel("wrong", [A]), "branches must be a dict"),
        (lambda: Step.parallel("wrong", {"k": 5}), "branch 'k' of step 'wrong' must be a step or a pipeline"),
        (lambda: Step.parallel("wrong", {1: A, "1": A}), "branches 1 and '1' look the same"),
        (lambda: Step.parallel("wrong", {"k": A}, merge="guess"), "merge must be one of"),
        (lambda: Step.parallel("wrong", {"k": A}, on_branch_failure="panic"), "on_branch_failure must be one of"),
        (lambda: Step.parallel("wrong", {"k": A}, max_concurrency=0), "max_concurrency must be at least 1, not 0"),
        (lambda: Step.map_over("wrong", 5), "the body of step 'wrong' must be a step or a pipeline"),
        (lambda: Step.map_over("wrong", A, max_concurrency=-1), "max_concurrency must be at least 1"),
        (lambda: Step.map_over("wrong", A, items=5), "items must be a collection"),
        (lambda: Step.map_over("wrong", A, items="text"), "items must be a collection"),
        (lambda: Step.map_over("wrong", A, items=iter([1])), "items must be a collection that every run can read"),
        (lambda: Step.map_over("wrong", A, merge="guess"), "merge must be one of"),
        (lambda: Step.branch_on("wrong", "key", {"k": A}), "select must be a callable, not 'key'"),
        (lambda: Step.branch_on("wrong", always, {}), "branches must be a dict"),
        (lambda: Step.branch_on("wrong", always, {"k": A}, default=5), "the default of 'wrong' must be a step"),
        (lambda: Step.loop_until("wrong", int, always), "the body of step 'wrong'"),
        (lambda: Step.loop_until("wrong", A, True), "until must be a callable, not True"),
        (lambda: Step.loop_until("wrong", A, always, max_loops=0), "max_loops must be at least 1, not 0"),
        (lambda: Step.loop_until("wrong", A, always, max_loops=None), "max_loops must be at least 1, not None"),
        (lambda: Step.human_in_the_loop("wrong", None), "message must be a text or a callable"),
        (lambda: Step("wrong", A), r"its agent is itself a step, Step\('a'\)"),
        (lambda: Step("wrong", Pipeline([A])), "cannot call its agent, a Pipeline"),
        (lambda: Step("wrong", 5), "cannot call its agent, a int"),
        (lambda: Step("wrong", NotAnAgent()), "cannot call its agent, a NotAnAgent"),
    ],
)
def test_a_wrong_part_fails_by_the_name_of_its_step(make: Any, problem: str) -> None:
    """What belongs to one kind of step is checked there, and the message names the step too."""
    with pytest.raises(DeclarationError, match=problem) as caught:
        make()
    assert "'wrong'" in str(caught.value)


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_step_needs_a_name(name: Any) -> None:
    """Steps are told apart by name."""
    with pytest.raises(DeclarationError, match="a step's name must be a non-empty text"):
        Step(name, agent)


def test_a_step_without_an_agent_is_a_missing_agent() -> None:
    """It is both a control error and a declaration error, and it names the step."""
    for make in (lambda: Step("lonely"), lambda: Step("lonely", None)):
        with pytest.raises(MissingAgentError, match="step 'lonely' has no agent") as caught:
            make()
        assert isinstance(caught.value, ControlError)
        assert isinstance(caught.value, DeclarationError)


def test_processors_are_callables() -> None:
    """A processor that cannot be called fails where it is declared."""
    with pytest.raises(DeclarationError, match="before holds 5, not a callable"):
        Processors(before=[5])  # type: ignore[list-item]
    assert Step("a", agent, processors={"after": always}).processors.after == (always,)


@pytest.mark.parametrize("what", [int, None, "step", [A]])
def test_flujo_runs_steps_and_pipelines_only(what: Any) -> None:
    """What cannot run is refused before there is a run."""
    with pytest.raises(DeclarationError, match="what Flujo runs must be a step or a pipeline"):
        Flujo(what)


# --- fallbacks ----------------------------------------------------------------------------------------------


def test_circular_fallbacks_are_refused_with_the_circle() -> None:
    """A step that comes back as its own fallback's fallback is an error that shows the way round."""
    circle = Step("b", always, fallback=Step("a", agent))
    with pytest.raises(DeclarationError, match="fallbacks go in a circle: 'a' -> 'b' -> 'a'"):
        Step("a", agent, fallback=circle)
    with pytest.raises(DeclarationError, match="'a' -> 'a'"):
        Step("a", agent, fallback=A)


def test_fallbacks_in_a_row_are_fine() -> None:
    """The same agent under another name, or another agent under the same name, is no circle."""
    last = Step("last", agent)
    assert Step("first", agent, fallback=Step("second", agent, fallback=last)).fallback is not None
    assert Step("a", always, fallback=A).fallback is A
    assert isinstance(Step("a", agent, fallback=A >> last).fallback, Pipeline)


# --- what a declaration is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "declared",
    [
        A,
        Step.parallel("p", {"a": A}),
        Step.map_over("m", A),
        Step.branch_on("b", always, {"a": A}),
        Step.loop_until("l", A, always),
        Step.human_in_the_loop("h", "?"),
        A >> Step("b", agent),
        Processors(),
    ],
    ids=lambda declared: type(declared).__name__,
)
def test_declarations_are_frozen_and_slotted(declared: Any) -> None:
    """No run can change what another run shares."""
    for field in attrs.fields(type(declared)):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(declared, field.name, None)
    with pytest.raises((AttributeError, TypeError)):
        declared.unheard_of = 1


def test_declarations_do_not_follow_the_dicts_they_were_made_from() -> None:
    """Branches and meta are copies, and read-only."""
    branches, meta = {"a": A}, {"owner": "me"}
    parallel = Step.parallel("p", branches, meta=meta)
    branches["b"], meta["owner"] = A, "you"
    assert list(parallel.branches) == ["a"]
    assert parallel.meta == {"owner": "me"}
    with pytest.raises(TypeError):
        parallel.branches["c"] = A  # type: ignore[index]


def test_steps_compare_by_identity() -> None:
    """Two steps that look alike are two steps."""
    assert Step("a", agent) != Step("a", agent)
    assert len({A, A, Step("a", agent)}) == 2


def test_a_function_becomes_a_step_named_after_it() -> None:
    """`@step`, with or without options, and `Step.from_callable` take the function's name."""

    @step
    async def shout(text: str) -> str:
        return text

    @step(max_retries=2, name="loud")
    async def louder(text: str) -> str:
        return text

    assert (shout.name, louder.name, louder.max_retries) == ("shout", "loud", 2)
    assert Step.from_callable(agent).name == "agent"
    assert Step.from_callable(agent, "other", timeout_s=1).name == "other"
    assert Step.from_callable(NotAnAgent.__init__).name == "__init__"


def test_options_that_are_right_are_kept() -> None:
    """Every documented option is a field of the step."""
    limits, backoff = UsageLimits(total_tokens_limit=5), Backoff.none()
    full = Step(
        "full", agent, input="i", max_retries=1, backoff=backoff, timeout_s=2, fallback=A, validators=always,
        updates_context=True, usage_limits=limits, meta={"k": 1},
    )  # fmt: skip
    assert (full.input, full.max_retries, full.backoff, full.timeout_s) == ("i", 1, backoff, 2)
    assert (full.fallback, full.validators, full.updates_context) == (A, (always,), True)
    assert (full.usage_limits, full.meta) == (limits, {"k": 1})
