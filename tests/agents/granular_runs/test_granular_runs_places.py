"""Granular steps wherever a step may stand, in every host, under limits, and cut short."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import uvloop
from bookings import SETTINGS, booker, booking_run, bookings, calls_of
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse

from flujo_actors import (
    Backoff,
    Flujo,
    PipelineResult,
    RunClient,
    Step,
    UsageLimitExceededError,
    UsageLimits,
    current_unit,
)
from flujo_actors.testing import CallTool, scripted_model
from kit.durable_places import AN_HOUR_LATER, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, Points, in_another_process

pytestmark = pytest.mark.slow

# --- nested ---

Make = Callable[[str], Step]
"""Makes a granular step of that name."""


def in_a_loop(make: Make) -> Any:
    rounds: list[Any] = []

    def enough(output: Any, context: Any) -> bool:
        rounds.append(output)
        return len(rounds) == 2

    return Step.loop_until("loop", make("in"), enough)


def side_by_side(make: Make) -> Any:
    return Step.parallel("both", {"left": make("l"), "right": make("r") >> make("r2")})


def for_each(make: Make) -> Any:
    return Step.map_over("each", make("item"), items=["one", "two"])


def in_a_pipeline(make: Make) -> Any:
    return make("first") >> (make("second") >> make("third"))


def in_a_branch(make: Make) -> Any:
    return Step.branch_on("which", lambda data, context: "this", {"this": make("in") >> make("next")})


@pytest.mark.parametrize("nested", [in_a_loop, side_by_side, for_each, in_a_pipeline, in_a_branch])
def test_a_granular_step_is_resumed_at_any_depth(
    sqlite_place: SqlitePlace, effects: Effects, nested: Callable[[Make], Any]
) -> None:
    """Every step has units of its own; killed in the middle of the whole, none that was committed is done again."""

    def flujo(store: Any, passing: Any = lambda point: None) -> Flujo:
        def make(name: str) -> Step:
            return Step.granular(name, booker(effects, passing, turns=2, sides="a"))

        return Flujo(nested(make), store=store, settings=SETTINGS)

    points, store = Points(), sqlite_place.open()
    whole = flujo(store, points).run("x", run_id="whole")
    assert whole.status == "completed"
    for kill_at in (len(points.passed) // 3, len(points.passed) * 3 // 4):
        run_id = f"run-{kill_at}"
        dying = flujo(sqlite_place.open(), Points(kill_at))
        assert in_another_process(lambda dying=dying, run_id=run_id: dying.run("x", run_id=run_id)) == KILLED
        state = RunClient(store).state(run_id)
        result = flujo(sqlite_place.open(AN_HOUR_LATER)).resume(run_id)
        assert (result.output, result.total_tokens) == (whole.output, whole.total_tokens)
        found = bookings(effects, run_id)
        assert len({each.key for each in found}) == len(bookings(effects, "whole"))
        assert {each.key for each in found if each.before} == calls_of(state.uncertain, run_id)
        done = Counter(each.key for each in found)
        assert state.units
        assert {done[key] for key in calls_of(state.units, run_id)} <= {1}


# --- hosts ---

Main = Callable[[], Awaitable[Any]]
HOSTS: dict[str, Callable[[Main], Any]] = {
    "trio": trio.run,
    "asyncio": lambda main: asyncio.run(main()),
    "uvloop": lambda main: uvloop.run(main()),
}


@pytest.mark.parametrize("dies", [*HOSTS, "run"])
@pytest.mark.parametrize("goes_on", [*HOSTS, "run"])
def test_a_run_that_died_in_one_host_goes_on_in_another(
    sqlite_place: SqlitePlace, effects: Effects, dies: str, goes_on: str
) -> None:
    """Trio, asyncio and no loop at all: the records are the same."""
    dying = booking_run(booker(effects, Points(name="2a is booked"), turns=2, together=True), sqlite_place.open())
    assert in_another_process(lambda: _in(dies, dying, dying.run_async, "x", run_id="run")) == KILLED
    flujo = booking_run(booker(effects, turns=2), sqlite_place.open(AN_HOUR_LATER))
    result = _in(goes_on, flujo, flujo.resume_async, "run")
    assert (result.output, result.total_tokens) == ("room 1a; room 1b; room 2a; room 2b", 45)
    assert sorted(each.room for each in bookings(effects, "run") if each.before) == ["2a", "2b"]


def _in(host: str, flujo: Flujo, call: Any, *arguments: Any, **options: Any) -> PipelineResult:
    if host == "run":
        plain = {flujo.run_async: flujo.run, flujo.resume_async: flujo.resume}[call]
        return plain(*arguments, **options)

    async def main() -> PipelineResult:
        result: PipelineResult = await call(*arguments, **options)
        return result

    return HOSTS[host](main)


def test_recover_finishes_what_dead_processes_left(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """Three runs, each in the middle of its work; none has to be known by name."""
    for number in range(3):
        dying = booking_run(booker(effects, Points(name="2a is booked"), turns=2), sqlite_place.open())
        assert in_another_process(lambda dying=dying, n=number: dying.run("x", run_id=f"run-{n}")) == KILLED
    results = booking_run(booker(effects, turns=2), sqlite_place.open(AN_HOUR_LATER)).recover()
    assert {result.run_id: result.status for result in results} == {f"run-{n}": "completed" for n in range(3)}
    assert {result.output for result in results} == {"room 1a; room 1b; room 2a; room 2b"}


# --- limits ---


def test_limits_hold_over_a_death(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """What was used before counts: the resumed run is stopped at the same request as an uninterrupted one."""
    limits = {"usage_limits": UsageLimits(total_tokens_limit=40)}
    with pytest.raises(UsageLimitExceededError) as whole:
        booking_run(booker(effects), sqlite_place.open(), limits).run("x", run_id="whole")
    dying = booking_run(booker(effects, Points(name="2a is booked")), sqlite_place.open(), limits)
    assert in_another_process(lambda: dying.run("x", run_id="run")) == KILLED
    with pytest.raises(UsageLimitExceededError) as resumed:
        booking_run(booker(effects), sqlite_place.open(AN_HOUR_LATER), limits).resume("run")
    assert resumed.value.result is not None
    assert whole.value.result is not None
    assert resumed.value.result.total_tokens == whole.value.result.total_tokens
    rooms = {each.room for each in bookings(effects, "run")}
    assert rooms == {each.room for each in bookings(effects, "whole")}


# --- cut short ---


def working(effects: Effects, store: Any, on_second: Callable[[], object] | None = None, **config: Any) -> Flujo:
    """Three calls, one after the other; with `on_second`, the second one tells and never ends."""

    def answer(messages: list[ModelMessage]) -> Any:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        return CallTool("work", {"number": turn + 1}) if turn < 3 else "done"

    async def work(number: int) -> int:
        unit = current_unit()
        assert unit is not None
        effects.add(f"{number} again" if unit.may_have_run_before else str(number))
        if number == 2 and on_second is not None:
            on_second()
            await asyncio.Event().wait()
        return number

    agent: Agent[Any, str] = Agent(scripted_model(answer, forever=True), tools=[work])
    return Flujo(Step.granular("s", agent, **config), store=store)


async def _cancelled_by_trio(effects: Effects, store: Any) -> None:
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:
        flujo = working(effects, store, lambda: token.run_sync_soon(scope.cancel))
        await flujo.run_async("x", run_id="run")
    assert scope.cancelled_caught


async def _cancelled_by_asyncio(effects: Effects, store: Any) -> None:
    async def run() -> PipelineResult:
        return await working(effects, store, lambda: task.cancel()).run_async("x", run_id="run")

    task = asyncio.create_task(run())
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("library", ["trio", "asyncio"])
def test_a_cancelled_run_has_committed_what_was_done_and_nothing_half_way(
    sqlite_place: SqlitePlace, effects: Effects, library: str
) -> None:
    """Cancelled in the second of three calls: that one is uncertain, and the run can be resumed at once."""
    store = sqlite_place.open()
    if library == "trio":
        trio.run(_cancelled_by_trio, effects, store)
    else:
        asyncio.run(_cancelled_by_asyncio(effects, store))
    state = RunClient(store).state("run")
    assert [path.partition("/~u")[2][:2] for path in state.units] == ["1", "1:", "2"]
    assert [path.partition("/~u")[2][:2] for path in state.uncertain] == ["2:"]
    result = working(effects, store).resume("run")
    assert (result.output, result.total_tokens) == ("done", 60)
    assert effects.counted() == {"1": 1, "2": 1, "2 again": 1, "3": 1}


@pytest.mark.slow
def test_a_timeout_cuts_the_attempt_and_the_next_one_goes_on(effects: Effects) -> None:
    """The call that was cut off is told that it may have run before; what was done before it is not repeated."""
    ran: list[str] = []

    def once() -> None:
        ran.append("second")

    flujo = working(effects, None, once, timeout_s=1.5, max_retries=1, backoff=Backoff.none())
    result = flujo.run("x", run_id="run")
    assert result.status == "failed"
    assert "took longer than timeout_s=1.5" in (result.feedback or "")
    assert effects.counted() == {"1": 1, "2": 1, "2 again": 1}


# --- without a store ---


def test_a_run_without_a_store_asks_about_a_call_that_broke(effects: Effects) -> None:
    """In one process, too: a tool that raised may have had its effect, so a retry asks, and the answer is taken."""
    broken = iter([True])

    def flujo() -> Flujo:
        def passing(point: str) -> None:
            if point == "2a is booked" and next(broken, False):
                raise ConnectionError("nobody knows")

        agent = booker(effects, passing, turns=2, sides="a")
        return booking_run(agent, None, on_uncertain="pause", max_retries=1, backoff=Backoff.none())

    running = flujo()
    paused = running.run("x", run_id="run")
    assert paused.status == "paused"
    assert "tool 'book' may have run already" in (paused.feedback or "")
    result = running.resume(paused.state_token or "", "a room, I was told")
    assert (result.output, result.total_tokens) == ("room 1a; a room, I was told", 45)
    assert [(each.room, each.before) for each in bookings(effects, "run")] == [("1a", False), ("2a", False)]
    step = next(step for step in result.step_history if step.name == "book")
    assert (step.attempts, [turn.name for turn in step.step_history]) == (2, ["turn 1", "turn 2", "turn 3"])


def test_an_answer_may_let_a_broken_call_run_again_without_a_store(effects: Effects) -> None:
    """It is told that it may be the second time."""
    broken = iter([True])

    def passing(point: str) -> None:
        if point == "1a is booked" and next(broken, False):
            raise ConnectionError("nobody knows")

    agent = booker(effects, passing, turns=1, sides="a")
    flujo = booking_run(agent, None, on_uncertain="pause", max_retries=1, backoff=Backoff.none())
    paused = flujo.run("x", run_id="run")
    assert flujo.resume(paused.state_token or "", "rerun").output == "room 1a"
    assert [each.before for each in bookings(effects, "run")] == [False, True]


def test_a_person_and_a_granular_step_share_a_run(effects: Effects) -> None:
    """A question after the step: what the step did is not done again when the answer comes."""
    step = Step.granular("book", booker(effects, turns=1, sides="a"))
    flujo = Flujo(step >> Step.human_in_the_loop("ask", "Enough?"), settings=SETTINGS)
    paused = flujo.run("x", run_id="run")
    result = flujo.resume(paused.state_token or "", "yes")
    assert (result.output, result.total_tokens) == ("yes", 30)
    assert len(bookings(effects, "run")) == 1
