"""Agents and loops that go in circles: noticed, hinted at, asked about, ended. Through the front door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, UserPromptPart

from flujo_actors import DeclarationError, Flujo, LoopDetected, LoopGuard, Step
from flujo_actors.testing import CallTool, MemorySink, scripted_model

LOOK = CallTool("look", {"id": 1})


def looking(*replies: Any, results: Any = None) -> tuple[Agent[None, str], Any, list[int]]:
    """An agent that looks again and again, what its model was asked, and how often it looked."""
    model = scripted_model(*replies)
    agent = Agent(model)
    calls: list[int] = []

    @agent.tool_plain
    async def look(id: int) -> Any:
        calls.append(id)
        return "nothing" if results is None else results[len(calls) - 1]

    return agent, model, calls


def texts(messages: list[ModelMessage]) -> str:
    parts = [part for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
    return " ".join(str(part.content) for part in parts)


def test_a_loop_ends_an_agent_that_is_guarded() -> None:
    """L8: four requests and four calls; it is not tried again, and the fallback runs."""
    agent, model, calls = looking(*[LOOK] * 9)
    guard = LoopGuard(then=("fail",))
    result = Flujo(Step.granular("find", agent, guard=guard, max_retries=3)).run("go")
    assert isinstance(result.error, LoopDetected)
    assert (result.error.kind, result.error.cycle, result.error.times) == ("repetition", ("look",), 4)
    assert (len(model.asked), len(calls)) == (4, 4)
    agent, model, calls = looking(*[LOOK] * 9)

    async def spare(data: Any) -> str:
        return "spare"

    assert Flujo(Step.granular("find", agent, guard=guard, fallback=spare)).run("go").output == "spare"


def test_a_model_is_told_before_it_is_ended() -> None:
    """L10: the hint is in the fifth request and in no earlier one; then it fails."""
    agent, model, calls = looking(*[LOOK] * 20)
    result = Flujo(Step.granular("find", agent, guard=LoopGuard())).run("go")
    assert isinstance(result.error, LoopDetected)
    told = ["4 times with the same result" in texts(call.messages) for call in model.asked]
    assert told[:5] == [False] * 4 + [True]
    assert len(calls) == 8


@pytest.mark.parametrize("stored", [True, False])
def test_a_person_may_be_asked(stored: bool, tmp_path: Path) -> None:
    """L9: paused after four calls; "go on" pauses again after eight; anything else is a hint."""
    store = f"sqlite:///{tmp_path / 'runs.db'}" if stored else None
    agent, model, calls = looking(*[LOOK] * 8, "done")
    flujo = Flujo(Step.granular("find", agent, guard=LoopGuard(then=("pause",))), store=store)
    paused = flujo.run("go")
    assert (paused.status, len(calls)) == ("paused", 4)
    again = flujo.resume(paused.state_token, "go on")
    assert (again.status, len(calls)) == ("paused", 8)
    assert flujo.resume(again.state_token, "look elsewhere").output == "done"
    assert "look elsewhere" in texts(model.asked[-1].messages)
    assert "look elsewhere" not in texts(model.asked[-2].messages)


def test_what_changes_is_no_loop() -> None:
    """L6: a poll whose result changes; and a tool that is called on purpose."""
    agent, _, _ = looking(*[LOOK] * 10, "done", results=list(range(10)))
    assert Flujo(Step.granular("find", agent, guard=LoopGuard(then=("fail",)))).run("go").output == "done"
    agent, _, _ = looking(*[LOOK] * 10, "done")
    guard = LoopGuard(then=("fail",), polling={"look"})
    assert Flujo(Step.granular("find", agent, guard=guard)).run("go").output == "done"


def test_parallel_calls_in_another_order_are_the_same_turn() -> None:
    """L11."""
    one, other = CallTool("look", {"id": 1}), CallTool("look", {"id": 2})
    agent, _, calls = looking([one, other], [other, one], [one, other], [other, one], "done")
    result = Flujo(Step.granular("find", agent, guard=LoopGuard(then=("fail",)))).run("go")
    assert isinstance(result.error, LoopDetected)
    assert len(calls) == 8


def test_a_loop_is_told_of_without_a_guard() -> None:
    """3.3: as an event, and nothing else happens."""
    sink = MemorySink()
    agent, _, _ = looking(*[LOOK] * 4, "done")
    settings = {"telemetry": {"sinks": [sink], "content": True}}
    assert Flujo(Step.granular("find", agent), settings=settings).run("go").output == "done"
    [found] = sink.of("loop.detected")
    assert (found.loop, list(found.cycle), found.times, found.reaction) == ("repetition", ["look"], 4, None)


def test_a_measure_of_meaning_is_asked_only_if_nothing_exact_was_found() -> None:
    """L7: five different outputs at 0.95 are found, at 0.3 they are not."""
    asked: list[list[str]] = []

    def measure(number: float) -> Any:
        def similar(said: list[str]) -> float:
            asked.append(said)
            return number

        return similar

    def looped(body: Any, guard: LoopGuard) -> Any:
        return Flujo(Step.loop_until("loop", body, lambda *_: False, 7, guard=guard)).run(0)

    async def other(data: Any) -> Any:
        return data + 1

    async def same(data: Any) -> str:
        return "same"

    found = looped(other, LoopGuard(then=("fail",), similar=measure(0.95)))
    assert isinstance(found.error, LoopDetected)
    assert (found.error.kind, len(asked), asked[0]) == ("similarity", 1, ["1", "2", "3", "4", "5"])
    assert "max_loops" in looped(other, LoopGuard(then=("fail",), similar=measure(0.3))).feedback
    asked.clear()
    assert looped(same, LoopGuard(then=("fail",), similar=measure(0.95))).error.kind == "repetition"
    assert asked == []


def test_a_loop_over_a_body_is_guarded() -> None:
    """3.1: by output and context; the names are the outputs' texts."""
    turns: list[Any] = []

    async def flip(data: Any) -> str:
        turns.append(data)
        return "b" if data == "a" else "a"

    loop = Step.loop_until("loop", flip, lambda *_: False, 20, guard=LoopGuard(then=("fail",)))
    result = Flujo(loop).run("b")
    assert isinstance(result.error, LoopDetected)
    assert (result.error.kind, result.error.cycle, len(turns)) == ("cycle", ("a", "b"), 6)


def test_a_body_gets_the_hint_as_feedback() -> None:
    """3.4: in the turn after, and in no other."""
    told: list[str | None] = []

    async def same(data: Any, *, feedback: str | None) -> str:
        told.append(feedback)
        return "same"

    loop = Step.loop_until("loop", same, lambda *_: False, 6, guard=LoopGuard(then=("hint",)))
    assert "max_loops" in (Flujo(loop).run("x").feedback or "")
    assert [each is not None for each in told] == [False, False, False, False, True, False]


def test_a_loop_without_a_guard_is_left_alone() -> None:
    """3.3: to poll until something is done is what loops are for."""

    async def same(data: Any) -> str:
        return "same"

    assert "max_loops" in (Flujo(Step.loop_until("loop", same, lambda *_: False, 9)).run("x").feedback or "")


@pytest.mark.parametrize("stored", [True, False])
def test_a_loop_over_a_body_may_ask(stored: bool, tmp_path: Path) -> None:
    """A person lets it go on, or says what the body shall be told."""
    store = f"sqlite:///{tmp_path / 'runs.db'}" if stored else None

    async def stubborn(data: Any, *, feedback: str | None) -> str:
        return feedback or "same"

    loop = Step.loop_until(
        "loop", stubborn, lambda output, context: output == "stop", 20, guard=LoopGuard(then="pause")
    )
    flujo = Flujo(loop, store=store)
    paused = flujo.run("x")
    again = flujo.resume(paused.state_token, "go on")
    assert (paused.status, again.status) == ("paused", "paused")
    assert flujo.resume(again.state_token, "stop").output == "stop"


def test_an_arm_that_goes_in_circles_gives_way_to_the_next() -> None:
    """3.4: "rotate" takes another agent in the same attempt, and learns from it."""

    class First:
        memory = None
        seen: list[Any] = []

        def choose(self, candidates: Any, beliefs: Any, budget: Any, rng: Any) -> Any:
            from flujo_actors import Choice

            self.seen.append(dict(beliefs))
            return Choice(arm=candidates[0])

    stuck, _, _ = looking(*[LOOK] * 9)
    fine, _, _ = looking("done")
    guard = LoopGuard(then=("rotate",))
    arms = {"stuck": Step.granular("stuck", stuck, guard=guard), "fine": Step.granular("fine", fine, guard=guard)}
    by = First()
    flujo = Flujo(Step.select_agent("answer", arms, by=by))
    result = flujo.run("go")
    assert (result.output, result.step_history[0].metadata["selection"]["arm"]) == ("done", "fine")


@pytest.mark.parametrize(
    "make", [Step.granular, lambda name, agent, guard: Step.loop_until(name, agent, len, guard=guard)]
)
def test_a_guard_is_a_guard(make: Any) -> None:
    """Anything else is refused when it is declared."""
    agent, _, _ = looking("x")
    with pytest.raises(DeclarationError):
        make("find", agent, guard=3)
