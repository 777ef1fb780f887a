"""What a resumed run carries on: attempts, usage, limits, answers; and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from flujo_actors import (
    Backoff,
    Failure,
    Flujo,
    NotPaused,
    Pipeline,
    RunClient,
    Step,
    StepResult,
    Success,
    UsageLimitExceededError,
    UsageLimits,
)
from flujo_actors._dsl.output_options import Redirect
from flujo_actors.errors import NotSerializable, RunExists, RunNotFound
from flujo_actors.stores._memory_store import MemoryStore
from kit.durable_places import AN_HOUR_LATER, ON_TIME, LateClock, Place, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, Points, in_another_process

ODD_NAMES = ['it\'s "quoted"', "nul\0name", "x" * 10_000, "🦜 emoji", "../../etc/passwd", "a/b~c:d", "\ud800 lone"]


def spending(name: str, tokens: int, passing: Points) -> Step:
    """A step that uses tokens, and may be killed when it has."""

    async def work(data: int) -> Success:
        passing(name)
        return Success(step_result=StepResult(name="", output=data + 1, token_counts=tokens))

    return Step(name, work)


def spenders(passing: Points) -> Pipeline:
    """Four steps of 10 tokens, the last two of them nested."""
    one, two, three, four = (spending(name, 10, passing) for name in ("one", "two", "three", "four"))
    return one >> two >> Step.parallel("inside", {"only": three >> four})


def killed_at(name: str, flujo: Any, data: Any = 0, run_id: str = "run") -> None:
    """Run in another process, which is killed where it passes that point."""
    assert in_another_process(lambda: flujo(Points(name=name)).run(data, run_id=run_id)) == KILLED


def test_a_limit_that_was_half_spent_before_the_crash_still_holds(place: Place) -> None:
    """What the dead process used is counted: the limit is reached where it would have been without the crash."""

    def limited(passing: Points, clock: LateClock = ON_TIME) -> Flujo:
        limits = UsageLimits(total_tokens_limit=25)
        return Flujo(spenders(passing), store=place.open(clock), usage_limits=limits)

    with pytest.raises(UsageLimitExceededError) as whole:
        limited(Points()).run(0, run_id="whole")
    killed_at("three", limited)
    with pytest.raises(UsageLimitExceededError) as resumed:
        limited(Points(), AN_HOUR_LATER).resume("run")
    assert resumed.value.result.total_tokens == whole.value.result.total_tokens == 30
    assert RunClient(place.open()).get("run").status == "failed"


def test_usage_is_counted_once_over_all_parts_of_a_run(place: Place) -> None:
    """Tokens of committed steps come from their records, those of the rest from doing it."""
    killed_at("four", lambda passing: Flujo(spenders(passing), store=place.open()))
    result = Flujo(spenders(Points()), store=place.open(AN_HOUR_LATER)).resume("run")
    assert (result.status, result.output, result.total_tokens) == ("completed", {"only": 4}, 40)


def test_a_step_goes_on_with_the_attempts_it_has_left(place: Place, effects: Effects) -> None:
    """Failed attempts are remembered: a crash gives no step more of them."""

    def pipeline(passing: Points) -> Step:
        async def fail(data: int) -> Failure:
            effects.add("attempt")
            passing(f"attempt {effects.counted()['attempt']}")
            result = StepResult(name="", success=False, token_counts=5)
            return Failure(error=ValueError("no"), feedback="no", step_result=result)

        return Step("never", fail, max_retries=3, backoff=Backoff.none())

    killed_at("attempt 3", lambda passing: Flujo(pipeline(passing), store=place.open()))
    result = Flujo(pipeline(Points()), store=place.open(AN_HOUR_LATER)).resume("run")
    assert result.status == "failed"
    assert result.step_history[0].attempts == 4
    assert effects.counted()["attempt"] == 5  # the third one twice: it was in flight
    assert result.total_tokens == 20


def test_a_crash_after_a_redirect_lets_the_step_begin_anew(sqlite_place: SqlitePlace) -> None:
    """To which agent a step was sent cannot be stored, so it is sent again instead of failing."""

    def pipeline(passing: Points) -> Step:
        async def second(data: str) -> str:
            passing("second")
            return "good"

        async def first(data: str) -> str:
            return "bad"

        return Step("try", first, validators=[lambda output: Redirect(to=second) if output == "bad" else None])

    killed_at("second", lambda passing: Flujo(pipeline(passing), store=sqlite_place.open()))
    result = Flujo(pipeline(Points()), store=sqlite_place.open(AN_HOUR_LATER)).resume("run")
    assert (result.status, result.output) == ("completed", "good")


def test_what_is_not_there_cannot_be_resumed(place: Place) -> None:
    """An unknown run, and a token of one."""
    flujo = Flujo(spenders(Points()), store=place.open())
    with pytest.raises(RunNotFound, match="'nobody'"):
        flujo.resume("nobody")
    with pytest.raises(NotPaused):
        flujo.resume("nobody:0123:ask", "yes")


def test_an_id_names_one_run(place: Place) -> None:
    """Starting it again is refused, also after it has ended."""
    flujo = Flujo(spenders(Points()), store=place.open())
    flujo.run(0, run_id="run")
    with pytest.raises(RunExists):
        flujo.run(0, run_id="run")


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_every_name_is_taken_as_it_is(place: Place, name: str) -> None:
    """As a step's name and as a run's id: stored, listed, paused and resumed."""
    inside = Step("same", lambda data: data) >> Step.human_in_the_loop(f"{name}?", f"{name}?")
    flujo = Flujo(Step(name, lambda data: data) >> Step.parallel("all", {name: inside}), store=place.open())
    paused = flujo.run(name, run_id=name)
    client = RunClient(place.open())
    assert [(run.run_id, run.message) for run in client.list("paused")] == [(name, f"{name}?")]
    assert paused.state_token is not None
    result = Flujo(flujo.pipeline, store=place.open()).resume(paused.state_token, name)
    assert (result.status, result.output) == ("completed", {name: name})
    assert len(client.outcomes(name)) == 5


@pytest.mark.parametrize("nesting", ["top", "inside"])
def test_an_output_that_cannot_be_stored_fails_its_step(nesting: str) -> None:
    """The failure says so, and a fallback may still help."""
    step = Step("odd", lambda data: (each for each in ()))
    pipeline = step if nesting == "top" else Step.parallel("around", {"odd": step})
    result = Flujo(pipeline, store=MemoryStore()).run(0)
    assert result.status == "failed"
    assert "cannot be stored" in (result.feedback or "")
    assert "generator" in (result.feedback or "")


def test_a_context_that_cannot_be_stored_fails_the_step_that_made_it_so() -> None:
    """The context that follows is the one from before."""

    async def spoil(data: int, *, context: Any) -> int:
        context.handle = object()
        return data

    result = Flujo(Step("spoil", spoil), store=MemoryStore()).run(0)
    assert (result.status, len(result.final_context)) == ("failed", 0)
    assert "cannot be stored" in (result.feedback or "")


def test_an_input_that_cannot_be_stored_starts_nothing() -> None:
    """There is no run without its input."""
    store = MemoryStore()
    with pytest.raises(NotSerializable, match="was not started: its input cannot be stored; a value of type"):
        Flujo(spenders(Points()), store=store).run(object())
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(NotSerializable, match="its input cannot be stored; it is nested too deeply"):
        Flujo(spenders(Points()), store=store).run(endless)
    with pytest.raises(NotSerializable, match="its context cannot be stored"):
        Flujo(spenders(Points()), store=store, initial_context_data={"handle": object()}).run(0)
    assert RunClient(store).list() == []


def test_a_fork_after_the_start_goes_on_with_connections_of_its_own(place: Place) -> None:
    """Parent and child use the same Flujo, one after the other and at the same time."""
    flujo = Flujo(spenders(Points()), store=place.open())
    flujo.run(0, run_id="before")
    child = lambda: [flujo.run(0, run_id=f"child {number}") for number in range(5)]  # noqa: E731
    assert in_another_process(child) == 0
    assert flujo.run(0, run_id="after").status == "completed"
    assert {run.status for run in RunClient(place.open()).list()} == {"completed"}
    assert len(RunClient(place.open()).list()) == 7
    place.check()


def test_secrets_in_errors_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an exception says goes into the store redacted; inputs, outputs and contexts go as they are."""
    monkeypatch.setenv("SOME_API_KEY", "sk-very-secret-0123456789")

    async def fail(data: str) -> str:
        raise ValueError("refused key sk-very-secret-0123456789")

    store = MemoryStore()
    Flujo(Step("fail", fail), store=store).run("input", run_id="run")
    stored = "".join(record.body for record in store.read("run"))
    assert "very-secret" not in stored
    assert "refused key" in stored


def test_no_two_steps_of_any_runs_share_an_idempotency_key() -> None:
    """A `:` in a run's id or in a step's name is not taken for the one between them."""
    keys: list[str] = []

    async def pay(data: int, *, idempotency_key: str) -> int:
        keys.append(idempotency_key)
        return data

    for run_id, name in (("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c"), ("plain", "pay")):
        Flujo(Step(name, pay)).run(1, run_id=run_id)
    assert keys == ["a:b%3Ac", "a%3Ab:c", "a%253Ab:c", "plain:pay"]
