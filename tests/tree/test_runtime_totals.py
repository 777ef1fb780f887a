"""Whatever a pipeline does, its tokens and dollars add up: a property over random pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import AT_ONCE

from flujo_actors import Aborted, Failure, Flujo, Paused, Pipeline, PipelineResult, Step, StepResult, Success


@attrs.define
class Till:
    """Where every agent notes what it reported, as it reports it."""

    tokens: int = 0
    cents: int = 0

    def charge(self, tokens: int) -> StepResult:
        self.tokens += tokens
        self.cents += tokens * 3
        return StepResult(name="r", output=tokens, token_counts=tokens, cost_usd=tokens * 0.03)


Plan = Callable[[Till, "Names"], Any]


class Names:
    """A new name for every step."""

    def __init__(self) -> None:
        self.n = 0

    def new(self) -> str:
        self.n += 1
        return f"s{self.n}"


@attrs.frozen
class Play:
    """One call of a scripted agent."""

    tokens: int
    does: str
    takes: int


plays = st.builds(
    Play,
    st.integers(0, 50),
    st.sampled_from(["succeed", "succeed", "succeed", "fail", "fail", "raise", "pause", "abort"]),
    st.integers(0, 3),
)


def agent_for(script: list[Play], till: Till) -> Any:
    """Plays the script, over and over."""
    calls = 0

    async def agent(data: Any) -> Any:
        nonlocal calls
        play = script[calls % len(script)]
        calls += 1
        await trio.sleep(play.takes)
        match play.does:
            case "succeed":
                return Success(step_result=till.charge(play.tokens))
            case "fail":
                return Failure(feedback="failed", step_result=attrs.evolve(till.charge(play.tokens), success=False))
            case "raise":
                raise ValueError("raised")
            case "pause":
                return Paused(message="?")
            case _:
                return Aborted(reason="!")

    return agent


def step_of(script: list[Play], retries: int, timeout: float | None, fallback: Plan | None) -> Plan:
    def build(till: Till, names: Names) -> Any:
        return Step(
            names.new(),
            agent_for(script, till),
            max_retries=retries,
            backoff=AT_ONCE,
            timeout_s=timeout,
            fallback=None if fallback is None else fallback(till, names),
        )

    return build


def composite_of(kind: str, parts: list[Plan], retries: int, timeout: float | None, patient: bool, limit: int) -> Plan:
    def build(till: Till, names: Names) -> Any:
        name, inner = names.new(), [part(till, names) for part in parts]
        config: Any = {"max_retries": retries, "backoff": AT_ONCE, "timeout_s": timeout}
        by_key = dict(enumerate(inner))
        match kind:
            case "pipeline":
                return Pipeline(inner, name=name)
            case "parallel":
                on_failure = "ignore" if patient else "propagate"
                return Step.parallel(name, by_key, on_branch_failure=on_failure, max_concurrency=limit, **config)
            case "map":
                return Step.map_over(name, inner[0], items=range(limit), max_concurrency=2, **config)
            case "branch":
                return Step.branch_on(name, lambda data, context: 0, by_key, **config)
            case _:
                return Step.loop_until(name, inner[0], lambda output, context: patient, max_loops=limit, **config)

    return build


timeouts = st.sampled_from([None, None, 1.5, 2.5])
retries = st.integers(0, 2)
steps = st.builds(step_of, st.lists(plays, min_size=1, max_size=4), retries, timeouts, st.none())
plans: st.SearchStrategy[Plan] = st.recursive(
    steps,
    lambda inner: st.one_of(
        st.builds(step_of, st.lists(plays, min_size=1, max_size=3), retries, timeouts, inner),
        st.builds(
            composite_of,
            st.sampled_from(["pipeline", "parallel", "map", "branch", "loop"]),
            st.lists(inner, min_size=1, max_size=3),
            retries,
            timeouts,
            st.booleans(),
            st.integers(1, 3),
        ),
    ),
    max_leaves=8,
)


def check(result: PipelineResult, till: Till) -> None:
    """Everything reported is in the totals once, and every level of the tree is the sum of what is below it."""
    assert result.total_tokens == till.tokens
    assert round(result.total_cost_usd * 100) == till.cents
    assert result.total_tokens == sum(each.token_counts for each in result.step_history)
    assert abs(result.total_cost_usd - sum(each.cost_usd for each in result.step_history)) < 1e-9
    for _, each in result.walk():
        assert each.token_counts >= sum(inner.token_counts for inner in each.step_history)
        assert each.token_counts == each.usage.tokens
        assert each.attempts >= 0


async def play(flujo: Flujo, till: Till) -> None:
    result = await flujo.run_async(0)
    check(result, till)
    for _ in range(20):
        if result.status != "paused":
            break
        result = await flujo.resume_async(result.state_token, "answer")
        check(result, till)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans)
def test_totals_are_the_sum_of_everything_that_was_reported(plan: Plan) -> None:
    """Over retries, fallbacks, loops, branches, timeouts, pauses and aborts: once each, whatever happened."""
    till = Till()
    flujo = Flujo(Pipeline.from_step(plan(till, Names())))
    trio.run(play, flujo, till, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans)
def test_every_step_that_began_ends_once_for_hooks_and_watchers(plan: Plan) -> None:
    """Whatever is cut short, retried or rescued: one terminal outcome per started step, the same for both."""

    async def watch() -> None:
        begun: list[str] = []
        ended: list[tuple[str, Any]] = []

        def note(payload: Any) -> None:
            if payload.kind == "pre_step":
                begun.append(payload.path)
            elif payload.kind == "post_step":
                ended.append((payload.path, payload.outcome))

        till = Till()
        handle = Flujo(Pipeline.from_step(plan(till, Names())), hooks=note).run_async(0)
        outcomes = [outcome async for outcome in handle]
        assert sorted(begun) == sorted(path for path, _ in ended)
        for _, outcome in ended:  # hooks get copies of outputs
            outcomes.remove(outcome)
        assert outcomes == []
        check(await handle, till)

    trio.run(watch, clock=trio.testing.MockClock(autojump_threshold=0))
