"""Selecting agents by what is known of them: through the front door, in memory and in every store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import (
    ByBudget,
    Choice,
    DeclarationError,
    Flujo,
    MemoryStore,
    NoRewardDue,
    PostgresStore,
    RunClient,
    SqliteStore,
    Step,
    StepResult,
    ThompsonSampling,
    Usage,
    UsageLimits,
)
from kit.other_processes import KILLED, all_at_once, in_another_process
from kit.postgres_server import session_server


class Always:
    """A rule that takes the first candidate, and keeps what it was shown."""

    memory = None

    def __init__(self, *order: str) -> None:
        self.order = order
        self.seen: list[dict[str, Any]] = []

    def choose(self, candidates: Any, beliefs: Any, budget: Any, rng: Any) -> Choice:
        self.seen.append(dict(beliefs))
        return Choice(arm=next(arm for arm in (*self.order, *candidates) if arm in candidates))


async def fine(data: Any) -> str:
    return f"fine {data}"


async def broken(data: Any) -> str:
    raise ValueError("no")


def evidence(belief: Any) -> tuple[float, float]:
    return round(belief.alpha, 6), round(belief.beta, 6)


def selected(result: Any) -> Any:
    return result.step_history[0].metadata["selection"]


@pytest.fixture(params=["nothing", "memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    match request.param:
        case "nothing":
            yield None
        case "memory":
            yield MemoryStore()
        case "sqlite":
            yield SqliteStore(tmp_path / "runs.db")
        case _:
            made = PostgresStore(session_server().fresh_url())
            yield made
            made.close()


def test_a_seed_chooses_alike_everywhere() -> None:
    """S1: two Flujos, twenty runs."""

    def arms() -> list[str]:
        step = Step.select_agent("answer", {"cheap": fine, "good": fine}, by=ThompsonSampling(seed=7))
        return [selected(Flujo(step).run("?", run_id=f"r{number}"))["arm"] for number in range(1, 21)]

    assert arms() == arms()
    assert set(arms()) == {"cheap", "good"}


def test_evidence_is_what_was_told_without_any_prior(store: Any) -> None:
    """S2: success, failure and 0.6."""
    by = Always()
    rewards = iter([1.0, 0.0, 0.6, None])
    step = Step.select_agent("answer", {"a": fine}, by=by, reward=lambda result, context: next(rewards))
    flujo = Flujo(step, store=store)
    for _ in range(4):
        assert flujo.run("?").success
    assert [evidence(seen["a"]) for seen in by.seen] == [(0, 0), (1, 0), (1, 1), (1.6, 1.4)]
    assert [seen["a"].observations for seen in by.seen] == [0, 1, 2, 3]


def test_a_retry_takes_the_other_arm(store: Any) -> None:
    """S3: each attempt is an outcome of its own arm."""
    by = Always("bad")
    step = Step.select_agent("answer", {"bad": broken, "good": fine}, by=by, max_retries=1)
    flujo = Flujo(step, store=store)
    result = flujo.run("?")
    assert (result.output, selected(result)["arm"]) == ("fine ?", "good")
    flujo.run("?")
    assert evidence(by.seen[-2]["bad"]) == (0, 1)
    assert evidence(by.seen[-2]["good"]) == (1, 0)


def test_categories_are_learned_apart(store: Any) -> None:
    """S6: ten outcomes in "code" leave "text" alone."""
    by = Always()
    step = Step.select_agent("answer", {"a": fine}, by=by, category=lambda data, context: data)
    flujo = Flujo(step, store=store)
    for _ in range(10):
        flujo.run("code")
    assert selected(flujo.run("text"))["observations"] == 0
    assert selected(flujo.run("code")) == {
        "arm": "a", "category": "code", "theta": None, "confidence": 0.5, "observations": 10,
    }  # fmt: skip


def test_confidence_grows_with_outcomes() -> None:
    """S7: 0.0, 0.25 and 1.0 after 0, 5 and 20."""
    flujo = Flujo(Step.select_agent("answer", {"a": fine}))
    seen = [selected(flujo.run("?"))["confidence"] for _ in range(21)]
    assert (seen[0], seen[5], seen[20]) == (0.0, 0.25, 1.0)


def test_what_works_is_asked(store: Any) -> None:
    """S4: after some outcomes the arm that fails is left alone."""
    step = Step.select_agent("answer", {"bad": broken, "good": fine}, by=ThompsonSampling(seed=1), max_retries=1)
    flujo = Flujo(step, store=store)
    for number in range(20):
        flujo.run("?", run_id=f"learn {number}")
    chosen = [selected(flujo.run("?", run_id=f"use {number}"))["arm"] for number in range(20)]
    assert chosen.count("good") >= 18


def test_a_reward_can_be_told_later(tmp_path: Path) -> None:
    """S8: nothing is known until then, and it is told once."""
    for store in (MemoryStore(), SqliteStore(tmp_path / "runs.db"), PostgresStore(session_server().fresh_url())):
        by, client = Always(), RunClient(store)
        flujo = Flujo(Step.select_agent("answer", {"a": fine}, by=by, reward="later"), store=store)
        flujo.run("?", run_id="r")
        assert client.beliefs("answer") == {}
        with pytest.raises(NoRewardDue):
            client.reward("r", "nowhere", 1.0)
        with pytest.raises(ValueError, match="from 0 to 1"):
            client.reward("r", "answer", 3)
        client.reward("r", "answer", 0.8)
        with pytest.raises(NoRewardDue):
            client.reward("r", "answer", 0.8)
        assert (client.beliefs("answer")["a"].observations, evidence(client.beliefs("answer")["a"])) == (1, (0.8, 0.2))
        store.close()


@pytest.mark.parametrize("wrong", [lambda result, context: 2.0, lambda result, context: 1 / 0, lambda *_: "good"])
def test_a_reward_that_says_nothing_changes_nothing(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    """2.6: a warning, and no evidence; the step is as it was."""
    by = Always()
    flujo = Flujo(Step.select_agent("answer", {"a": fine}, by=by, reward=wrong))
    with caplog.at_level(logging.WARNING, logger="flujo_actors"):
        assert flujo.run("?").success
        assert flujo.run("?").success
    assert by.seen[-1]["a"].observations == 0
    assert "reward of step 'answer'" in caplog.text


def test_validators_have_a_say_in_the_reward() -> None:
    """An answer that was refused is no success of its arm."""
    by = Always("a")
    step = Step.select_agent("answer", {"a": fine, "b": fine}, by=by, validators=[lambda output: False])
    flujo = Flujo(step)
    flujo.run("?")
    flujo.run("?")
    assert evidence(by.seen[-1]["a"]) == (0, 1)


def test_the_budget_chooses() -> None:
    """B8: six steps of 150 of 1,000 tokens."""

    async def spend(data: Any) -> StepResult:
        return StepResult(name="spend", output=data, usage=Usage(input_tokens=150))

    by = ByBudget(abundant="good", normal="good", scarce="cheap", critical="cheap")
    loop = Step.map_over("six", Step.select_agent("answer", {"cheap": spend, "good": spend}, by=by), max_concurrency=1)
    result = Flujo(loop, usage_limits=UsageLimits(total_tokens_limit=1000)).run(range(6))
    arms = [each.metadata["selection"]["arm"] for each in result.step_history[0].step_history]
    assert arms == ["good"] * 5 + ["cheap"]


def test_the_choice_is_there_to_be_evaluated(tmp_path: Path) -> None:
    """2.4: what was chosen, and what was believed then."""
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    by = ThompsonSampling()
    flujo = Flujo(Step.select_agent("answer", {"a": fine, "b": fine}, by=by), store=store)
    result = flujo.run("?", run_id="r")
    [choice] = RunClient(store).choices("r").values()
    assert (choice.arm, choice.theta) == (selected(result)["arm"], selected(result)["theta"])
    assert by.propensities(choice.beliefs) == pytest.approx({"a": 0.5, "b": 0.5})


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_a_choice_is_recalled_and_an_outcome_counts_once(place: str, tmp_path: Path) -> None:
    """The process dies inside the arm; another one goes on with the same arm, and learns once."""
    url = f"sqlite:///{tmp_path / 'runs.db'}" if place == "sqlite" else session_server().fresh_url()

    def dying(by: Any) -> Any:
        def die(data: Any) -> Any:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)

        arms = {"a": Step("ask", fine) >> Step("die", die), "b": Step("ask", fine) >> Step("die", die)}
        return Flujo(Step.select_agent("answer", arms, by=by), store=url)

    assert in_another_process(lambda: dying(Always("b")).run("?", run_id="r")) == KILLED
    arms = {"a": Step("ask", fine) >> Step("die", fine), "b": Step("ask", fine) >> Step("die", fine)}
    flujo = Flujo(Step.select_agent("answer", arms, by=Always("a")), store=url)
    [result] = flujo.recover(mode="force")
    assert selected(result)["arm"] == "b"
    assert {arm: each.observations for arm, each in RunClient(url).beliefs("answer").items()} == {"b": 1}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_processes_that_learn_at_once_lose_nothing(place: str, tmp_path: Path) -> None:
    """2.3: four processes, ten outcomes each."""
    url = f"sqlite:///{tmp_path / 'runs.db'}" if place == "sqlite" else session_server().fresh_url()
    RunClient(url).list()

    def learn(number: int) -> int:
        flujo = Flujo(Step.select_agent("answer", {"a": fine}, by=Always()), store=url)
        for _ in range(10):
            flujo.run("?")
        return 0

    assert all_at_once(4, learn) == [0] * 4
    belief = RunClient(url).beliefs("answer")["a"]
    assert (belief.observations, evidence(belief)) == (40, (40, 0))


@pytest.mark.parametrize(
    ("arms", "options", "said"),
    [
        ({}, {}, "at least one arm"),
        ({"a": fine}, {"by": 3}, "choose"),
        ({"a": fine}, {"by": ByBudget(abundant="b")}, "ByBudget names 'b'"),
        ({"a": fine, "b": fine, "c": fine}, {"by": ThompsonSampling(floor=0.5)}, "floor"),
        ({"a": fine}, {"reward": 1}, "reward"),
        ({"a": fine}, {"category": "x"}, "category"),
        ({"a": fine}, {"beliefs": ""}, "beliefs"),
        ({3: fine}, {}, "text"),
    ],
)
def test_a_selection_that_cannot_work_is_refused(arms: Any, options: Any, said: str) -> None:
    """S9, and what else can be written wrongly."""
    with pytest.raises(DeclarationError, match=said):
        Step.select_agent("answer", arms, **options)


def test_a_rule_that_chooses_what_is_not_there_fails_its_step() -> None:
    """The failure names the arms that there are."""

    class Wrong:
        def choose(self, candidates: Any, beliefs: Any, budget: Any, rng: Any) -> Choice:
            return Choice(arm="c")

    result = Flujo(Step.select_agent("answer", {"a": fine}, by=Wrong())).run("?")
    assert "chose 'c', but its arms are 'a'" in (result.feedback or "")


def test_a_store_that_keeps_no_beliefs_says_so() -> None:
    """A third-party store without the new methods does all the rest."""

    class Older:
        def __init__(self) -> None:
            self._store = MemoryStore()

        def __getattr__(self, name: str) -> Any:
            if name in ("beliefs", "reward"):
                raise AttributeError(name)
            return getattr(self._store, name)

    with pytest.raises(DeclarationError, match="Older cannot keep beliefs"):
        Flujo(Step.select_agent("answer", {"a": fine}), store=Older())
