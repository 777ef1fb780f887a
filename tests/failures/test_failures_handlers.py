"""Handlers: who is told of a failure, with what, and what becomes of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from sagas import Saga, both_hosts, run_in

from flujo_actors import (
    Aborted,
    DeclarationError,
    Flujo,
    Pipeline,
    Recovered,
    Step,
    StepFailure,
    UsageLimitExceededError,
)


@attrs.define
class Notes:
    told: list[str] = attrs.field(factory=list)
    name: str = ""


async def fine(data: Any) -> Any:
    return data


async def broken(data: Any) -> Any:
    raise ValueError("broke")


@both_hosts
def test_a_handler_may_be_a_step_a_pipeline_or_a_list_and_all_may_ask_for_the_failure(host: Callable[..., Any]) -> None:
    """The first step of a pipeline gets it as its data, the others by name."""
    log: list[Any] = []

    async def notify(failure: StepFailure) -> str:
        log.append(("notify", failure.step_name))
        return "noted"

    async def mail(text: str, *, failure: StepFailure) -> None:
        log.append((text, failure.message))

    handlers = [Step("n", notify) >> Step("m", mail), Step("again", notify, max_retries=1)]
    run_in(host, Step("a", broken, on_failure=handlers))
    assert log == [("notify", "a"), ("noted", "broke"), ("notify", "a")]


def test_a_failure_says_what_when_and_where() -> None:
    """And its text without secrets; the exception itself is there, too."""
    saga = Saga()
    result = Flujo(Step("a", saga.call("a", raises="password=hunter2secret"), on_failure=saga.handler("h"))).run("x")
    [failure] = saga.told
    assert failure.run_id == result.run_id
    assert (failure.path, failure.error_type, failure.attempts, failure.input) == ("a", "ValueError", 1, "x")
    assert failure.at.tzinfo is dt.UTC
    assert isinstance(failure.error, ValueError)
    assert "hunter2secret" not in failure.message + failure.stack_trace + failure.feedback
    assert "agent" in failure.stack_trace


def test_a_failure_without_an_exception_says_its_feedback() -> None:
    """A validator that refuses raises nothing."""
    saga = Saga()
    refused = Step("a", fine, validators=lambda output: "too short", on_failure=saga.handler("h"))
    Flujo(refused).run("x")
    [failure] = saga.told
    assert (failure.error_type, failure.stack_trace, failure.error) == ("", "", None)
    assert "too short" in failure.message


def test_handlers_do_not_run_for_what_succeeds_in_the_end() -> None:
    """A retry or a fallback that works is no failure."""
    saga = Saga()
    tell = saga.handler("tell")
    Flujo(Step("a", saga.call("a", raises="once", times=1), max_retries=1, on_failure=tell)).run("x")
    Flujo(Step("b", broken, fallback=Step("c", fine), on_failure=tell)).run("x")
    assert "tell" not in saga.log


def test_a_step_whose_input_fails_tells_its_handlers() -> None:
    """It failed, though it was never called."""
    saga = Saga()

    def make(previous: Any, context: Any) -> Any:
        raise KeyError("missing")

    result = Flujo(Step("a", fine, input=make, on_failure=saga.handler("h", returns=Recovered("ok")))).run("x")
    assert result.output == "ok"
    assert saga.told[0].attempts == 0


def test_a_timeout_is_a_failure_and_an_abort_is_none() -> None:
    """Nor is a control error, or a pause."""
    saga = Saga()
    tell = saga.handler("tell")

    async def slow(data: Any) -> None:
        await trio.sleep(60)

    async def stops(data: Any) -> Any:
        return Aborted(reason="enough")

    async def limit(data: Any) -> Any:
        raise UsageLimitExceededError("too much")

    assert Flujo(Step("slow", slow, timeout_s=0.01, on_failure=tell)).run("x").status == "failed"
    assert saga.log == ["tell"]
    assert Flujo(Step("stops", stops, on_failure=tell)).run("x").status == "aborted"
    with pytest.raises(UsageLimitExceededError):
        Flujo(Step("limit", limit, on_failure=tell)).run("x")
    assert Flujo(Step.human_in_the_loop("ask", "?", on_failure=tell)).run("x").status == "paused"
    assert saga.log == ["tell"]


@both_hosts
def test_what_handlers_leave_in_the_context_stays(host: Callable[..., Any]) -> None:
    """Of a step, of one deep inside, and of a pipeline; what the failed work left is dropped as ever."""

    def tell(who: str) -> Any:
        async def told(failure: Any, *, context: Notes) -> None:
            context.told.append(who)

        return told

    async def writes(data: Any, *, context: Notes) -> Any:
        context.name = "written"
        return data

    inner = Pipeline([Step("w", writes), Step("x", broken, on_failure=[tell("one"), tell("two")])], name="inner")
    flujo = Flujo(Pipeline([inner], on_failure=tell("three")), context_model=Notes)
    result = run_in(host, flujo)
    assert result.final_context.told == ["one", "two", "three"]
    assert result.final_context.name == ""


def test_a_handler_gets_resources_and_an_idempotency_key() -> None:
    """By signature, as any step."""
    seen: list[Any] = []

    async def tell(failure: Any, *, resources: Any, idempotency_key: str) -> None:
        seen.append((resources, idempotency_key))

    Flujo(Step("a", broken, on_failure=tell), resources="db").run("x", run_id="r")
    assert seen == [("db", "r:a/~h1")]


def test_a_handler_that_fails_is_noted_with_its_step() -> None:
    """And hooks hear of both failures."""
    saga = Saga()
    heard: list[str] = []

    def hook(payload: Any) -> None:
        if payload.kind == "on_step_failure":
            heard.append(payload.step_name)

    down = Step("slack", saga.handler("slack", raises="down"))
    result = Flujo(Step("a", broken, on_failure=[down, saga.handler("mail")]), hooks=hook).run("x")
    assert "down" in result.step_history[0].metadata["failed_handlers"]["slack"]
    assert heard == ["slack", "a"]


def test_hooks_do_not_hear_of_a_failure_that_was_recovered() -> None:
    """It is none any more."""
    heard: list[str] = []

    def hook(payload: Any) -> None:
        if payload.kind == "on_step_failure":
            heard.append(payload.step_name)

    async def recover(failure: Any) -> Recovered:
        return Recovered("ok")

    assert Flujo(Step("a", broken, on_failure=recover), hooks=hook).run("x").output == "ok"
    assert heard == []


@both_hosts
def test_a_branch_that_recovers_stops_nobody(host: Callable[..., Any]) -> None:
    """Its siblings go on, and the join has its output."""
    saga = Saga()
    a = saga.step("a", raises="broke", on_failure=saga.handler("h", returns=Recovered("desk")))
    result = run_in(host, Step.parallel("p", {"a": a, "b": saga.step("b", takes=1.0)}))
    assert result.output == {"a": "desk", "b": "b!"}
    assert saga.log[-1] == "h"
    assert result.undone == ()


@both_hosts
def test_a_recovered_step_is_undone_as_one_that_completed(host: Callable[..., Any]) -> None:
    """With the output that the handler gave it."""
    saga = Saga()
    pay = saga.step("pay", raises="declined", on_failure=saga.handler("desk", returns=Recovered("cash")))
    run_in(host, pay >> Step("ship", broken))
    assert saga.log == ["pay", "desk", "undo pay"]
    assert (saga.told[-1].output, saga.told[-1].completed) == ("cash", True)


def test_a_handler_below_a_pipeline_is_told_which_step_failed() -> None:
    """Of pipelines in pipelines, the step; a composite is a step."""
    saga = Saga()
    deep = Pipeline([Pipeline([Step("x", broken)], name="inner")], on_failure=saga.handler("h"))
    Flujo(deep).run("x")
    both = Step.parallel("both", {"x": Step("x", broken)}, on_failure=saga.handler("h"))
    Flujo(both).run("x")
    assert [(each.step_name, each.path) for each in saga.told] == [("x", "inner/x"), ("both", "both")]


def test_handlers_are_nested_like_what_they_handle() -> None:
    """A handler that fails may have handlers of its own."""
    saga = Saga()
    down = Step("slack", saga.handler("slack", raises="down"), on_failure=saga.handler("pager"))
    Flujo(Step("a", broken, on_failure=[down, saga.handler("mail")])).run("x")
    assert saga.log == ["slack", "pager", "mail"]


@both_hosts
def test_a_handler_may_ask_a_person(host: Callable[..., Any]) -> None:
    """The run pauses, and goes on with the handlers where it was."""
    saga = Saga()
    ask = Step.human_in_the_loop("desk", "Cash?") >> Step("take", lambda answer: Recovered(answer))
    flujo = Flujo(
        Step("pay", saga.call("pay", raises="declined"), on_failure=[saga.handler("tell"), ask])
        >> Step("ship", saga.call("ship"))
    )

    async def main() -> Any:
        paused = await flujo.run_async("x")
        assert (paused.status, paused.feedback) == ("paused", "Cash?")
        return await flujo.resume_async(paused.state_token, "yes, cash")

    result = host(main)
    assert (result.status, saga.log) == ("completed", ["pay", "tell", "ship"])
    assert result.step_history[0].output == "yes, cash"


@pytest.mark.parametrize("wrong", [42, "text", [42], {"a": 1}])
def test_what_is_no_handler_is_refused_when_it_is_declared(wrong: Any) -> None:
    """With where it stood."""
    with pytest.raises(DeclarationError, match="on_failure must be a step or a pipeline"):
        Step("a", fine, on_failure=wrong)


def test_a_pipeline_with_a_handler_stays_a_step_of_its_own() -> None:
    """As one with a name or a compensation does."""
    plain = Pipeline([Step("a", fine)])
    handled = Pipeline([Step("b", fine)], on_failure=fine)
    undone = Pipeline([Step("c", fine)], compensate=fine)
    assert list((plain >> handled >> undone >> plain.steps[0].__class__("d", fine)).step_names()) == [
        "a", "pipeline 2", "pipeline 3", "d",
    ]  # fmt: skip
