"""Attempts of a granular step: a failure goes on in its conversation, a refused answer begins another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bookings import SETTINGS, booker, booking_run, bookings, come_to
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from flujo_actors import Backoff, Flujo, MaxTurnsReached, PipelineResult, RunClient, Step, StepResult
from flujo_actors.testing import CallTool, MemorySink, scripted_model
from kit.durable_places import AN_HOUR_LATER, Place, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, Points, in_another_process

AT_ONCE = {"backoff": Backoff.none()}


def failing_at(*points: str) -> Callable[[str], None]:
    """Raises the first time that each of the points is passed."""
    left = list(points)

    def pass_by(point: str) -> None:
        if point in left:
            left.remove(point)
            raise ConnectionError(f"broken: {point}")

    return pass_by


def step_of(result: PipelineResult) -> StepResult:
    return next(step for step in result.step_history if step.name == "book")


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, sqlite_place: SqlitePlace) -> Any:
    """No store, and one."""
    return None if request.param == "memory" else sqlite_place.open()


@pytest.mark.parametrize("point", ["turn 2 is asked for", "2a is to be booked", "2b is booked"])
def test_a_failed_attempt_goes_on_where_it_failed(store: Any, effects: Effects, point: str) -> None:
    """A model or a tool that raises: the retry repeats no call that was committed, and asks for no turn again."""
    whole = come_to(booking_run(booker(effects, turns=2), store).run("x", run_id="whole"))
    agent = booker(effects, failing_at(point, point), turns=2)
    result = booking_run(agent, store, max_retries=2, **AT_ONCE).run("x", run_id="run")
    assert come_to(result) == whole
    assert step_of(result).attempts == 3
    rooms = [each.room for each in bookings(effects, "run")]
    assert (rooms.count("1a"), rooms.count("1b")) == (1, 1)


def test_each_turn_is_in_the_history_once_however_often_it_was_recalled(store: Any, effects: Effects) -> None:
    """The usage of the turns adds up to the step's."""
    fails = failing_at("2a is to be booked")
    agent = booker(effects, fails, turns=2)
    step = step_of(booking_run(agent, store, max_retries=1, **AT_ONCE).run("x", run_id="run"))
    assert [turn.name for turn in step.step_history] == ["turn 1", "turn 2", "turn 3"]
    assert sum(turn.token_counts for turn in step.step_history) == step.token_counts == 45
    assert [turn.metadata["recalled"] for turn in step.step_history] == [True, True, False]


def test_usage_is_counted_once_over_a_failure_and_a_death(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """What the failed attempt has counted is not counted again when the next one recalls it in another process."""
    whole = come_to(booking_run(booker(effects, turns=2), sqlite_place.open()).run("x", run_id="whole"))
    fails, dies = failing_at("2a is to be booked"), Points(name="the run is to die")

    def die_in_the_second_attempt(point: str) -> None:
        fails(point)
        dies("the run is to die" if point == "2a is booked" else point)

    def life() -> None:
        agent = booker(effects, die_in_the_second_attempt, turns=2)
        booking_run(agent, sqlite_place.open(), max_retries=1, **AT_ONCE).run("x", run_id="run")

    assert in_another_process(life) == KILLED
    store = sqlite_place.open(AN_HOUR_LATER)
    result = booking_run(booker(effects, turns=2), store, max_retries=1, **AT_ONCE).resume("run")
    assert come_to(result) == whole
    assert RunClient(store).state("run").usage == step_of(result).usage


def refusing(*times: int) -> Callable[[Any], Any]:
    """A validator that refuses the first answers."""
    verdicts: Iterator[Any] = iter([*("too dear" for _ in range(*times or (1,)))])
    return lambda output: next(verdicts, None)


def test_a_refused_answer_begins_a_new_conversation(store: Any, effects: Effects) -> None:
    """The agent is told why and does its work again, under other keys: it is other work."""
    agent = booker(effects, turns=1)
    flujo = booking_run(agent, store, validators=[refusing()], max_retries=1, **AT_ONCE)
    result = flujo.run("x", run_id="run")
    step = step_of(result)
    assert (result.status, step.attempts) == ("completed", 2)
    found = bookings(effects, "run")
    assert [each.room for each in found].count("1a") == 2
    assert len({each.key for each in found}) == 4
    assert not any(each.before for each in found)
    assert {each.key.rpartition(":")[0] for each in found} == {"run:book:1", "run:book/~g1.1:1"}
    assert [turn.name for turn in step.step_history] == ["turn 1", "turn 2", "turn 1", "turn 2"]
    assert sum(turn.token_counts for turn in step.step_history) == step.token_counts == 60


def test_a_failure_after_a_refusal_goes_on_in_the_new_conversation(store: Any, effects: Effects) -> None:
    """Refused, then broken, then done: the second conversation is not begun again."""
    fails = failing_at()
    broken: list[str] = []

    def break_in_the_second(point: str) -> None:
        broken.append(point)
        if broken.count("1b is booked") == 2 and point == "turn 2 is asked for" and "broke" not in broken:
            broken.append("broke")
            raise ConnectionError("broken")
        fails(point)

    agent = booker(effects, break_in_the_second, turns=1)
    flujo = booking_run(agent, store, validators=[refusing()], max_retries=2, **AT_ONCE)
    result = flujo.run("x", run_id="run")
    assert (result.status, step_of(result).attempts) == ("completed", 3)
    assert len(bookings(effects, "run")) == 4


def test_a_conversation_goes_on_word_for_word(place: Place, effects: Effects) -> None:
    """Refused, then broken, then killed: in the next process, too, it begins with what the model was told."""

    def answer(messages: list[ModelMessage]) -> Any:
        effects.add(repr(messages[0].parts[-1].content))  # type: ignore[union-attr]
        asked = effects.counted()[TOLD]
        if asked in (0, 1):
            return "dear" if asked == 0 else CallTool("look")
        if asked == 2:
            raise ConnectionError("10.0.0.7 is down")
        points("asked for the last time")
        return "cheap"

    def flujo(store: Any) -> Flujo:
        agent: Agent[None, str] = Agent(scripted_model(answer, forever=True), tools=[look])
        step = Step.granular("book", agent, validators=refuse_dear, max_retries=2, **AT_ONCE)
        return Flujo(step, store=store)

    points = Points(name="asked for the last time")
    dying = flujo(place.open())
    assert in_another_process(lambda: dying.run("x", run_id="run")) == KILLED
    points = Points()
    result = flujo(place.open(AN_HOUR_LATER)).resume("run")
    assert (result.output, result.step_history[0].attempts) == ("cheap", 3)
    assert effects.counted() == {"'x'": 1, TOLD: 4}


TOLD = repr("x\n\nYour previous answer was not accepted: Validation failed: too dear")


def look() -> str:
    """A tool."""
    return "seen"


def refuse_dear(text: str) -> str | None:
    return "too dear" if text == "dear" else None


def test_too_many_turns_are_a_failure_with_what_there_is(store: Any, effects: Effects) -> None:
    """The last text is the output, the turns are in the history, and all that was done is counted."""
    result = booking_run(booker(effects), store, max_turns=2).run("x", run_id="run")
    step = step_of(result)
    assert (result.status, step.success, step.output) == ("failed", False, "turn 2. ")
    assert "not done after 2 model turns" in (result.feedback or "")
    assert [turn.name for turn in step.step_history] == ["turn 1", "turn 2"]
    assert (step.token_counts, result.total_tokens) == (30, 30)
    assert len(bookings(effects, "run")) == 4


def test_a_retry_after_too_many_turns_asks_and_does_nothing_again(store: Any, effects: Effects) -> None:
    """What is committed is not done again, and there is no turn left: only a fallback gets further."""
    result = booking_run(booker(effects), store, max_turns=2, max_retries=2, **AT_ONCE).run("x", run_id="run")
    step = step_of(result)
    assert (result.status, step.attempts, step.token_counts) == ("failed", 3, 30)
    assert [turn.name for turn in step.step_history] == ["turn 1", "turn 2"]
    assert len(bookings(effects, "run")) == 4


def test_the_failure_of_too_many_turns_holds_the_messages(effects: Effects) -> None:
    """Whoever wants to go on by hand has the conversation."""
    found: list[Any] = []
    flujo = booking_run(booker(effects), None, {"hooks": found.append}, max_turns=2)
    flujo.run("x", run_id="run")
    [error] = [payload.outcome.error for payload in found if payload.kind == "on_step_failure"]
    assert isinstance(error, MaxTurnsReached)
    assert (error.max_turns, error.last_text, len(error.messages)) == (2, "turn 2. ", 5)


def test_a_turn_has_what_was_said_and_done_in_it(effects: Effects) -> None:
    """Visible in the step's history, and after a round trip to JSON."""
    result = booking_run(booker(effects, turns=1), None).run("x", run_id="run")
    first, last = step_of(result).step_history
    assert (first.name, first.output, first.token_counts, first.cost_usd > 0) == ("turn 1", "turn 1. ", 15, True)
    assert [(call["name"], call["ended"]) for call in first.metadata["tool_calls"]] == [("book", "returned")] * 2
    assert (last.output, last.metadata["tool_calls"]) == (result.output, [])


def test_a_run_that_reads_everything_back_comes_to_the_same(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """Going on from the store after every step, turns and calls are as they were in memory."""
    warm = booking_run(booker(effects, turns=2), sqlite_place.open()).run("x", run_id="warm")
    settings = {**SETTINGS, "durability": {"cold": True}}
    pipeline = booking_run(booker(effects, turns=2), None).pipeline
    cold = Flujo(pipeline, store=sqlite_place.open(), settings=settings).run("x", run_id="cold")
    assert come_to(cold) == come_to(warm)


# --- fallbacks ---


def test_a_granular_fallback_is_resumed_like_any_other(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """It has its own units, below its own path."""

    async def fails(data: Any) -> None:
        raise ValueError("never works")

    def flujo(store: Any, passing: Any = lambda point: None) -> Flujo:
        fallback = Step.granular("book", booker(effects, passing, turns=2, sides="a"))
        return Flujo(Step("work", fails, fallback=fallback), store=store, settings=SETTINGS)

    dying = flujo(sqlite_place.open(), Points(name="2a is booked"))
    assert in_another_process(lambda: dying.run("book", run_id="run")) == KILLED
    result = flujo(sqlite_place.open(AN_HOUR_LATER)).resume("run")
    assert (result.status, result.output, result.total_tokens) == ("completed", "room 1a; room 2a", 45)
    assert [(each.room, each.before) for each in bookings(effects, "run")] == [
        ("1a", False),
        ("2a", False),
        ("2a", True),
    ]
    assert all(each.key.startswith("run:work/~f:") for each in bookings(effects, "run"))


def test_a_granular_step_falls_back_with_all_it_used(effects: Effects) -> None:
    """What the primary did is done and counted; the fallback's result is the step's."""

    async def instead(data: Any) -> str:
        return "by hand"

    result = booking_run(booker(effects), None, max_turns=2, fallback=Step("by hand", instead)).run("x", run_id="run")
    step = step_of(result)
    assert (result.output, step.attempts, step.token_counts) == ("by hand", 2, 30)
    assert step.metadata["fallback_triggered"] is True
    assert "not done after 2 model turns" in step.metadata["original_error"]


def test_recalled_units_are_told_to_nobody_as_new(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """Telemetry of a resumed run shows the requests and calls that were made in it."""
    dying = booking_run(booker(effects, Points(name="2a is booked"), turns=2, sides="a"), sqlite_place.open())
    assert in_another_process(lambda: dying.run("x", run_id="run")) == KILLED
    sink = MemorySink()
    settings = {**SETTINGS, "telemetry": {"sinks": (sink,)}}
    pipeline = booking_run(booker(effects, turns=2, sides="a"), None).pipeline
    Flujo(pipeline, store=sqlite_place.open(AN_HOUR_LATER), settings=settings).resume("run")
    kinds = [type(event).__name__ for event in sink.events]
    assert (kinds.count("ModelStarted"), kinds.count("ToolStarted"), kinds.count("ToolEnded")) == (1, 1, 1)
