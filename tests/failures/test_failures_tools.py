"""Granular steps: the tool calls of an agent are undone one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent
from sagas import both_hosts, run_in

from flujo_actors import Compensate, DeclarationError, Flujo, MemoryStore, Step, Undo, current_unit
from flujo_actors.testing import CallTool, scripted_model


class Desk:
    """An agent's desk at which flights are booked and cancelled."""

    def __init__(self, *answers: Any) -> None:
        self.log: list[str] = []
        self.keys: dict[str, str] = {}
        self.undone: list[Undo] = []
        self.agent: Agent[Any, Any] = Agent(scripted_model(*answers))
        self.agent.tool_plain(self.book_flight)
        self.agent.tool_plain(self.look_up)

    async def book_flight(self, city: str) -> str:
        """Book a flight."""
        self.log.append(f"book {city}")
        unit = current_unit()
        assert unit is not None
        self.keys[city] = unit.idempotency_key
        if city == "Atlantis":
            raise RuntimeError("no such place")
        return f"seat to {city}"

    async def look_up(self, city: str) -> str:
        """Look something up, which nobody has to undo."""
        self.log.append(f"look up {city}")
        return city

    async def cancel_flight(self, undo: Undo) -> None:
        mark = "" if undo.completed else "?"
        self.log.append(f"cancel {undo.input['city']}{mark}")
        self.undone.append(undo)


BOOKED = (CallTool("book_flight", {"city": "Oslo"}), CallTool("look_up", {"city": "Lima"}))


def _desk(*more: Any) -> Desk:
    return Desk(*BOOKED, CallTool("book_flight", {"city": "Lima"}), *more)


@both_hosts
def test_the_calls_of_a_failed_agent_are_undone_the_last_first(host: Callable[..., Any]) -> None:
    """With arguments, result and key of each; tools without a compensation are left alone."""
    desk = _desk(RuntimeError("the model is down"))
    book = Step.granular("book", desk.agent, compensate={"book_flight": desk.cancel_flight})
    result = run_in(host, book, "two flights")
    assert result.status == "failed"
    assert desk.log == ["book Oslo", "look up Lima", "book Lima", "cancel Lima", "cancel Oslo"]
    lima, oslo = desk.undone
    assert (lima.input, lima.output, lima.completed) == ({"city": "Lima"}, "seat to Lima", True)
    assert [lima.forward_key, oslo.forward_key] == [desk.keys["Lima"], desk.keys["Oslo"]]
    assert [call.name for call in lima.tool_calls] == ["book_flight"]
    assert [each.step_name for each in result.undone] == ["book", "book"]
    assert len({each.path for each in result.undone}) == 2


@both_hosts
def test_the_calls_of_an_agent_that_completed_are_undone_by_what_fails_later(host: Callable[..., Any]) -> None:
    """As any other step that completed."""
    desk = _desk("booked")

    async def pay(text: str) -> str:
        raise ValueError("no funds")

    book = Step.granular("book", desk.agent, compensate={"book_flight": desk.cancel_flight})
    run_in(host, book >> Step("pay", pay), "two flights")
    assert desk.log[-2:] == ["cancel Lima", "cancel Oslo"]


def test_a_call_that_broke_is_told_to_be_uncertain() -> None:
    """Nobody knows what a tool had done when it raised; `when="completed"` leaves it alone."""
    for when, expected in (("started", ["cancel Atlantis?", "cancel Oslo"]), ("completed", ["cancel Oslo"])):
        desk = Desk(*BOOKED, CallTool("book_flight", {"city": "Atlantis"}))
        by_tool = {"book_flight": Compensate(desk.cancel_flight, when=when)}  # type: ignore[arg-type]
        Flujo(Step.granular("book", desk.agent, compensate=by_tool)).run("go")
        assert [each for each in desk.log if each.startswith("cancel")] == expected


def test_one_compensation_for_the_whole_step_sees_all_the_calls() -> None:
    """`undo.tool_calls` has them in the order in which they began."""
    desk = _desk(RuntimeError("the model is down"))
    seen: list[Undo] = []

    async def undo_all(undo: Undo) -> None:
        seen.append(undo)

    Flujo(Step.granular("book", desk.agent, compensate=undo_all)).run("go")
    [undo] = seen
    assert [(call.name, call.arguments["city"]) for call in undo.tool_calls] == [
        ("book_flight", "Oslo"), ("look_up", "Lima"), ("book_flight", "Lima"),
    ]  # fmt: skip
    assert (undo.input, undo.completed) == ("go", False)


def test_a_durable_agent_is_undone_from_its_records() -> None:
    """The calls are read from the store, also those of an earlier part of the run."""
    desk = _desk("booked")
    book = Step.granular("book", desk.agent, compensate={"book_flight": desk.cancel_flight})
    flujo = Flujo(book >> Step.human_in_the_loop("ask", "Pay?") >> Step("pay", _broke), store=MemoryStore())
    paused = flujo.run("go")
    result = flujo.resume(paused.state_token or "", "yes")
    assert result.status == "failed"
    assert desk.log[-2:] == ["cancel Lima", "cancel Oslo"]
    assert desk.undone[0].forward_key == desk.keys["Lima"]


async def _broke(data: Any) -> Any:
    raise ValueError("no funds")


def test_compensations_by_tool_are_for_granular_steps() -> None:
    """Elsewhere nobody knows the calls one by one."""
    with pytest.raises(DeclarationError, match=r"step 'a': `compensate` by tool is for Step.granular"):
        Step("a", _broke, compensate={"book_flight": _broke})
    with pytest.raises(DeclarationError, match="at least one tool"):
        Step.granular("a", Desk().agent, compensate={})
