"""The inbox: open questions with one answer schema per kind, on every store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent

import flujo_actors
from flujo_actors import (
    Compensate,
    Decision,
    DeclarationError,
    Flujo,
    InvalidAnswer,
    LoopGuard,
    MemoryStore,
    Pipeline,
    Question,
    Rejected,
    RunClient,
    Step,
    Undo,
    UsageLimitExceededError,
    UsageLimits,
)
from flujo_actors.testing import CallTool, scripted_model


class Claim(BaseModel):
    """An answer with fields."""

    amount: int


async def echo(data: Any) -> Any:
    return data


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        yield request.getfixturevalue(f"{request.param}_place").open()


def refunding() -> tuple[Agent[None, str], list[int]]:
    """An agent whose refunds need approval, and the refunds."""
    agent: Agent[None, str] = Agent(scripted_model(CallTool("refund", {"amount": 900}), "done"))
    done: list[int] = []

    @agent.tool_plain(requires_approval=True)
    async def refund(amount: int) -> str:
        """Pay money back."""
        done.append(amount)
        return f"refunded {amount}"

    return agent, done


def only_question(store: Any) -> Question:
    [question] = RunClient(store).questions()
    return question


def test_prompts_are_questions_under_their_earlier_name(store: Any) -> None:
    """The class is one, and so is the list without filters."""
    assert flujo_actors.Prompt is Question
    Flujo(Step.human_in_the_loop("ok", "Go?"), store=store).run(1)
    assert list(RunClient(store).prompts()) == list(RunClient(store).questions())


def test_an_input_question_has_the_schema_of_its_step(store: Any) -> None:
    """Its schema is empty if every answer fits."""
    asking = Pipeline([Step.human_in_the_loop("ok", "Go?", input_schema=Claim)], name="claims")
    Flujo(asking, store=store).run(1, run_id="r")
    question = only_question(store)
    assert (question.kind, question.path, question.pipeline, question.step) == ("input", "ok", "claims", "ok")
    assert question.schema["properties"]["amount"]["type"] == "integer"
    assert question.asked_at is not None
    assert question.asked_at == pytest.approx(RunClient(store).get("r").created_at, abs=60)
    assert RunClient(store).schema_of(question.state_token) == question.schema
    Flujo(Step.human_in_the_loop("any", "Go?"), store=store).run(1, run_id="s")
    assert RunClient(store).questions(run_id="s")[0].schema == {}


def test_an_approval_takes_an_option_and_a_comment(store: Any) -> None:
    """The comment reaches the error and its metadata."""
    flujo = Flujo(Step.approval("boss", "Pay?", {"approve": "Yes", "reject": "No"}, to="ada"), store=store)
    flujo.run(1, run_id="r")
    question = only_question(store)
    assert question.schema == {
        "type": "object",
        "properties": {
            "option": {"oneOf": [{"const": "approve", "title": "Yes"}, {"const": "reject", "title": "No"}]},
            "comment": {"type": "string"},
        },
        "required": ["option"],
        "additionalProperties": False,
        "x-flujo-kind": "approval",
    }
    RunClient(store).answer(question.state_token, {"option": "reject", "comment": "too much"}, by="ada")
    result = flujo.resume("r")
    assert isinstance(result.error, Rejected)
    assert result.error.decision == Decision("reject", by="ada", comment="too much")
    assert result.step_history[-1].metadata["decision"].comment == "too much"


def test_a_rejection_may_need_a_comment(store: Any) -> None:
    """An approval does not; the schema has the rule, too."""
    flujo = Flujo(Step.approval("boss", "Pay?", comment_required=True), store=store)
    flujo.run(1, run_id="r")
    question, client = only_question(store), RunClient(store)
    for wrong in (False, "reject", {"option": "reject"}, {"option": "reject", "comment": " "}):
        with pytest.raises(
            InvalidAnswer, match="the answer to 'boss': 'reject' needs a comment; the question is still"
        ):
            client.answer(question.state_token, wrong)
    fits = jsonschema_rs.validator_for(question.schema).is_valid
    assert fits({"option": "approve"})
    assert not fits({"option": "reject"})
    client.answer(question.state_token, {"option": "reject", "comment": "no receipt"})
    assert isinstance(flujo.resume("r").error, Rejected)


def test_a_tool_question_names_the_call_and_validates_edited_arguments(store: Any) -> None:
    """A wrong name is refused with the nearest one, and the question stays open."""
    agent, done = refunding()
    flujo = Flujo(Step("help", agent), store=store)
    flujo.run("money back", run_id="r")
    question, client = only_question(store), RunClient(store)
    assert question.kind == "tool"
    assert question.tool is not None
    assert (question.tool.name, question.tool.arguments) == ("refund", {"amount": 900})
    assert question.tool.description == "Pay money back."
    assert dict(question.tool)["schema"] == question.tool.schema
    assert set(question.schema["properties"]) == {"option", "reason", "arguments"}
    assert question.schema["required"] == ["option"]
    assert client.schema_of(question.state_token) == question.schema
    with pytest.raises(InvalidAnswer) as refused:
        client.answer(question.state_token, {"option": "approve", "arguments": {"amont": 3}})
    assert str(refused.value) == (
        "the answer to 'help': arguments.amont is not expected; did you mean 'amount'? arguments.amount is missing; "
        "the question is still open"
    )
    assert only_question(store) == question
    client.answer(question.state_token, {"option": "approve", "arguments": {"amount": 3}})
    assert flujo.resume("r").output == "done"
    assert done == [3]


def test_the_reason_of_a_denial_reaches_the_model(store: Any) -> None:
    """It is the result of the tool call."""
    agent, done = refunding()
    flujo = Flujo(Step("help", agent), store=store)
    flujo.run("money back", run_id="r")
    RunClient(store).answer(only_question(store).state_token, {"option": "deny", "reason": "over the limit"})
    flujo.resume("r")
    model: Any = agent.model
    assert "over the limit" in str(model.asked[-1].messages)
    assert done == []


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"option": "raise", "limits": {"step_limit": 10}}, "completed"),
        ({"step_limit": 10}, "completed"),
        ({"option": "stop"}, "failed"),
        (False, "failed"),
    ],
)
def test_a_limit_is_raised_or_the_run_stops(store: Any, answer: Any, status: str) -> None:
    """By the schema's form or the earlier one."""
    limits = UsageLimits(step_limit=1, when_reached="pause")
    flujo = Flujo(Step("a", echo) >> Step("b", echo), store=store, usage_limits=limits)
    flujo.run(1, run_id="r")
    question, client = only_question(store), RunClient(store)
    assert (question.kind, question.schema["x-flujo-kind"]) == ("limit", "limit")
    assert "step_limit" in question.schema["properties"]["limits"]["properties"]
    with pytest.raises(InvalidAnswer, match="limits is missing; the question is still open"):
        client.answer(question.state_token, {"option": "raise"})
    with pytest.raises(InvalidAnswer, match=r"limits\.step_limt is not expected; did you mean 'step_limit'\?"):
        client.answer(question.state_token, {"option": "raise", "limits": {"step_limt": 3}})
    client.answer(question.state_token, answer)
    with contextlib.suppress(UsageLimitExceededError):
        flujo.resume("r")
    assert client.get("r").status == status


@pytest.mark.parametrize(
    ("answer", "status"),
    [({"option": "continue"}, "completed"), ({"option": "hint", "hint": "x"}, "completed"), ("go on", "completed")],
)
def test_a_loop_continues_or_gets_a_hint(store: Any, answer: Any, status: str) -> None:
    """By the schema's form or the earlier one."""
    flujo = looping(store)
    flujo.run(1, run_id="r")
    question = only_question(store)
    assert question.kind == "loop"
    assert [each["const"] for each in question.schema["properties"]["option"]["oneOf"]] == ["continue", "hint", "stop"]
    RunClient(store).answer(question.state_token, answer)
    assert flujo.resume("r").status == status


def test_a_loop_is_stopped_by_an_answer(store: Any) -> None:
    """It fails as a detected loop."""
    flujo = looping(store)
    flujo.run(1, run_id="r")
    RunClient(store).answer(only_question(store).state_token, {"option": "stop"})
    result = flujo.resume("r")
    assert result.status == "failed"
    assert type(result.error).__name__ == "LoopDetected"


def looping(store: Any) -> Flujo[Any, Any, Any]:
    turns: list[Any] = []

    async def same(data: Any) -> Any:
        turns.append(data)
        return data

    def over(data: object, context: object) -> bool:
        return len(turns) > 4

    loop = Step.loop_until("loop", same, over, max_loops=9, guard=LoopGuard(then=("pause",)))
    return Flujo(loop, store=store)


@pytest.mark.parametrize("answer", [{"option": "skip"}, "skip"])
def test_a_failed_compensation_is_skipped_or_tried_again(store: Any, answer: Any) -> None:
    """By the schema's form or the earlier one."""

    async def undo(undo: Undo) -> None:
        raise ConnectionError("down")

    async def fail(data: Any) -> Any:
        raise ValueError("no")

    paid = Step("pay", echo, compensate=Compensate(undo, if_it_fails="pause"))
    flujo = Flujo(paid >> Step("ship", fail), store=store)
    flujo.run(1, run_id="r")
    question, client = only_question(store), RunClient(store)
    assert (question.kind, question.schema["x-flujo-kind"]) == ("uncertain", "uncertain")
    assert [each["const"] for each in question.schema["properties"]["option"]["oneOf"]] == ["retry", "skip"]
    with pytest.raises(InvalidAnswer):
        client.answer(question.state_token, {"option": "skp"})
    client.answer(question.state_token, answer)
    assert flujo.resume("r").status == "failed"
    assert client.questions() == []


def test_questions_are_found_by_the_labels_of_their_runs(store: Any) -> None:
    """All of them must match; a name alone matches every value."""
    flujo = Flujo(Step.human_in_the_loop("ok", "Go?"), store=store)
    flujo.run(1, run_id="a", labels={"tenant": "7", "team": "x"})
    flujo.run(1, run_id="b", labels={"tenant": "8 \0 %"})
    flujo.run(1, run_id="c")
    client = RunClient(store)
    assert [each.run_id for each in client.questions(labels={"tenant": "7", "team": "x"})] == ["a"]
    assert [each.run_id for each in client.questions(labels={"tenant": None})] == ["b", "a"]
    assert client.questions(labels={"tenant": "8"}) == []
    assert [dict(each.labels) for each in client.questions()] == [
        {},
        {"tenant": "8 \0 %"},
        {"tenant": "7", "team": "x"},
    ]


def test_questions_are_filtered_and_paged(store: Any) -> None:
    """By addressee, run, pipeline, kind and deadline, in three orders."""
    for number in range(6):
        to, due = ("ada", "bob")[number % 2], (600.0 - number * 60 if number < 4 else None)
        step = Step.approval("boss", "Pay?", to=to, timeout_s=due)
        Flujo(Pipeline([step], name=f"p{number % 3}"), store=store).run(number, run_id=f"r{number}")
    Flujo(Step.human_in_the_loop("ok", "Go?"), store=store).run(1, run_id="plain")
    client = RunClient(store)

    def ids(**wanted: Any) -> list[str]:
        return [each.run_id for each in client.questions(**wanted)]

    assert ids(to="ada") == ["r4", "r2", "r0"]
    assert ids(to="nobody") == []
    assert ids(run_id="r3") == ["r3"]
    assert ids(pipeline="p1") == ["r4", "r1"]
    assert ids(kind="input") == ["plain"]
    assert ids(kind="approval", order="oldest") == ["r0", "r1", "r2", "r3", "r4", "r5"]
    assert ids(order="due") == ["r3", "r2", "r1", "r0", "r4", "r5", "plain"]
    by_due = client.questions(order="due")
    assert ids(due_before=by_due[2].due_at) == ["r3", "r2"]
    for order in ("newest", "oldest", "due"):
        pages, cursor = [], None
        while page := client.questions(order=order, limit=2, cursor=cursor):  # type: ignore[arg-type]
            pages, cursor = [*pages, *page], page[-1].cursor
        assert [each.run_id for each in pages] == ids(order=order)
    assert ids(to="ada", order="due", limit=2) == ["r2", "r0"]
    with pytest.raises(DeclarationError, match="this cursor belongs to order='due'"):
        client.questions(cursor=by_due[0].cursor)
    with pytest.raises(DeclarationError, match="is no cursor of questions"):
        client.questions(cursor="x/y")
    with pytest.raises(DeclarationError, match="questions: kind must be 'input' or"):
        client.questions(kind="tols")  # type: ignore[arg-type]
