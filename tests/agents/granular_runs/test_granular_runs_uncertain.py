"""Calls that may have run when their process died: run again, asked about, or refused, across processes."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from bookings import booker
from hotel import Hotel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ToolReturnPart

from flujo_actors import AlreadyAnswered, Flujo, NotPaused, OnStepFailure, RunClient, Step, UncertainUnit
from flujo_actors.testing import CallTool, Recorder, scripted_model
from kit.durable_places import AN_HOUR_LATER, Place, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, Points, in_another_process

pytestmark = pytest.mark.slow

WHAT = "tool 'book' may have run already"


def test_by_default_a_call_in_flight_is_run_again_and_told_so(place: Place, effects: Effects) -> None:
    """Both of two, whether they had their effect or not; the run ends as if nothing had happened."""
    hotel = Hotel(place, effects, sides="ab")
    hotel.die("1a is booked", together=True)
    assert hotel.resume().output == "room 1a; room 1b"
    assert ("1a", False) in hotel.booked
    assert sorted(each for each in hotel.booked if each[1]) == [("1a", True), ("1b", True)]


def test_a_step_may_rather_fail(place: Place, effects: Effects) -> None:
    """The failure says which call it was; nothing is run."""
    hotel = Hotel(place, effects, on_uncertain="fail")
    hotel.die("1a is booked")
    result = hotel.resume()
    assert result.status == "failed"
    assert WHAT in (result.feedback or "")
    assert '{"room":"1a"}' in (result.feedback or "")
    assert ("1a", True) not in hotel.booked


def test_a_refused_call_is_an_error_with_its_facts(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """Whoever handles the failure finds the tool, its arguments and its key."""
    hotel = Hotel(sqlite_place, effects, on_uncertain="fail")
    hotel.die("1a is booked")
    recorder = Recorder()
    flujo = hotel.flujo(hooks=recorder)
    flujo.resume("run")
    [error] = [payload.outcome.error for payload in recorder.of_kind(OnStepFailure)]
    assert isinstance(error, UncertainUnit)
    assert (error.tool, error.arguments, error.policy) == ("book", '{"room":"1a"}', "fail")
    assert error.idempotency_key.startswith("run:book:1:")


def test_a_pause_asks_whether_the_call_was_made(place: Place, effects: Effects) -> None:
    """The question names tool, arguments and key; a process that goes on without an answer asks the same again."""
    hotel = Hotel(place, effects, on_uncertain="pause")
    hotel.die("1a is booked")
    paused = hotel.resume()
    assert paused.status == "paused"
    assert WHAT in (paused.feedback or "")
    assert '{"room":"1a"}' in (paused.feedback or "")
    again = hotel.resume()
    assert (again.status, again.state_token) == ("paused", paused.state_token)
    assert len(hotel.client.prompts()) == 1
    assert ("1a", True) not in hotel.booked


@pytest.mark.parametrize("answer", ["rerun", {"option": "rerun"}])
def test_rerun_lets_the_call_run_again_and_tells_it_so(place: Place, effects: Effects, answer: Any) -> None:
    """A person allows it; the tool knows all the same that it may be the second time."""
    hotel = Hotel(place, effects, on_uncertain="pause")
    hotel.die("1a is booked")
    assert hotel.resume().status == "paused"
    [question] = hotel.client.questions(kind="uncertain")
    assert [each["const"] for each in question.schema["properties"]["option"]["oneOf"]] == ["rerun", "result"]
    assert hotel.resume(answer).output == "room 1a"
    assert hotel.booked.count(("1a", False)) == hotel.booked.count(("1a", True)) == 1


@pytest.mark.parametrize("answer", ["the room with a view", {"option": "result", "result": "the room with a view"}])
def test_any_other_answer_is_what_the_call_returned(place: Place, effects: Effects, answer: Any) -> None:
    """The tool is not run; the model is told what the person found out."""
    hotel = Hotel(place, effects, on_uncertain="pause")
    hotel.die("1a is booked")
    assert hotel.resume().status == "paused"
    assert hotel.resume(answer).output == "the room with a view"
    assert [room for room, _ in hotel.booked].count("1a") == 1


def test_an_answer_by_the_client_is_used_by_the_process_that_goes_on(place: Place, effects: Effects) -> None:
    """Answered in one process, resumed in another; answered once."""
    hotel = Hotel(place, effects, on_uncertain="pause")
    hotel.die("1a is booked")
    assert hotel.resume().status == "paused"
    token = hotel.token
    assert in_another_process(lambda: hotel.client.answer(token, {"room": 7})) == 0
    with pytest.raises(AlreadyAnswered):
        hotel.client.answer(token, "rerun")
    assert hotel.resume().output == "{'room': 7}"
    assert ("1a", True) not in hotel.booked


def test_an_answered_call_outlives_the_next_death(place: Place, effects: Effects) -> None:
    """Nobody is asked twice for the same call: the answer is stored with the run."""
    hotel = Hotel(place, effects, on_uncertain="pause")
    hotel.die("1a is booked")
    hotel.resume()
    hotel.die_again("after answer", "it was booked")
    assert hotel.resume().output == "it was booked"


def test_a_call_that_dies_again_is_asked_about_again(place: Place, effects: Effects) -> None:
    """`rerun` allows one more time; whether that one had its effect is another question."""
    hotel = Hotel(place, effects, on_uncertain="pause")
    hotel.die("1a is booked")
    first = hotel.resume()
    hotel.die_again("1a is booked", "rerun")
    second = hotel.resume()
    assert (first.status, second.status) == ("paused", "paused")
    assert hotel.booked.count(("1a", True)) == 1
    with pytest.raises((AlreadyAnswered, NotPaused)):
        hotel.client.answer(first.state_token or "", "rerun")  # it was about the time before
    assert hotel.resume("booked twice").output == "booked twice"


def test_a_permission_to_run_again_is_good_until_it_is_used(place: Place, effects: Effects) -> None:
    """A process that dies before it runs the call has not used it."""
    hotel = Hotel(place, effects, on_uncertain="pause")
    hotel.die("1a is booked")
    hotel.resume()
    hotel.die_again("after answer", "rerun")
    assert hotel.resume().output == "room 1a"


@pytest.mark.parametrize("answers", [("rerun", "rerun"), ("A", "B"), ("rerun", "B")])
def test_two_calls_in_flight_are_asked_about_one_after_the_other(
    place: Place, effects: Effects, answers: tuple[str, str]
) -> None:
    """Each has its own question; the first answer is kept while the second is asked for."""
    hotel = Hotel(place, effects, on_uncertain="pause", sides="ab")
    hotel.die("1a is booked", together=True)
    first = hotel.resume()
    second = hotel.resume(answers[0])
    assert (first.status, second.status) == ("paused", "paused")
    assert first.state_token != second.state_token
    asked = ["1a" if '"1a"' in str(each.feedback) else "1b" for each in (first, second)]
    assert sorted(asked) == ["1a", "1b"]
    told = {room: f"room {room}" if said == "rerun" else said for room, said in zip(asked, answers, strict=True)}
    assert hotel.resume(answers[1]).output == f"{told['1a']}; {told['1b']}"


@pytest.mark.parametrize(
    ("step", "tool", "status"),
    [("rerun", "pause", "paused"), ("fail", "rerun", "completed"), ("pause", "fail", "failed")],
)
def test_a_tools_own_declaration_holds(
    sqlite_place: SqlitePlace, effects: Effects, step: Any, tool: str, status: str
) -> None:
    """Whatever the step says."""
    agent = functools.partial(booker, metadata={"on_uncertain": tool})
    hotel = Hotel(sqlite_place, effects, on_uncertain=step, agent=agent)
    hotel.die("1a is booked")
    assert hotel.resume().status == status


def test_steps_side_by_side_ask_each_for_themselves(place: Place, effects: Effects) -> None:
    """Two branches die in a call each: two questions wait, are answered in any order, and one resume goes on."""

    def flujo(store: Any, points: Points | None = None) -> Flujo:
        met = asyncio.Barrier(2)

        async def work(side: str) -> str:
            effects.add(side)
            if points is not None:
                await met.wait()
                points("both are at work")
            return side

        def answer(side: str, messages: list[ModelMessage]) -> Any:
            told = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
            return str(told[0].content) if told else CallTool("work", {"side": side})

        def branch(side: str) -> Step:
            model = scripted_model(functools.partial(answer, side), forever=True)
            return Step.granular(side, Agent(model, tools=[work]), on_uncertain="pause")

        return Flujo(Step.parallel("both", {side: branch(side) for side in ("left", "right")}), store=store)

    dying = flujo(place.open(), Points(name="both are at work"))
    assert in_another_process(lambda: dying.run("x", run_id="run")) == KILLED
    assert flujo(place.open(AN_HOUR_LATER)).resume("run").status == "paused"
    client = RunClient(place.open(AN_HOUR_LATER))
    tokens = {side: each.state_token for each in client.prompts() for side in ("left", "right") if side in each.message}
    client.answer(tokens["right"], "it was done")
    client.answer(tokens["left"], "rerun")
    [result] = flujo(place.open(AN_HOUR_LATER)).recover()
    assert result.output == {"left": "left", "right": "it was done"}
    assert effects.counted() == {"left": 2, "right": 1}
