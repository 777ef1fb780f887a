"""Tools that need approval: asked about, approved, denied and changed, in this process and in another."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelMessage, ToolReturnPart

from flujo_actors import Decision, Flujo, InvalidAnswer, RunClient, Step, UsageLimitExceededError, UsageLimits
from flujo_actors.testing import CallTool, scripted_model
from kit.other_processes import KILLED, in_another_process
from kit.postgres_server import session_server

REFUND = CallTool("refund", {"amount": 900})
LOOK = CallTool("look", {})


def refunding(*replies: Any, **options: Any) -> tuple[Agent[None, Any], Any, list[Any]]:
    """An agent whose refunds need approval, its model, and what was done."""
    model = scripted_model(*replies)
    agent: Agent[None, Any] = Agent(model, **options)
    done: list[Any] = []

    @agent.tool_plain(requires_approval=True)
    async def refund(amount: int) -> str:
        done.append(amount)
        return f"refunded {amount}"

    @agent.tool_plain
    async def look() -> str:
        done.append("look")
        return "a customer"

    return agent, model, done


def results(messages: list[ModelMessage]) -> list[Any]:
    return [part.content for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]


each_kind = pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
each_store = pytest.mark.parametrize("stored", [True, False], ids=["stored", "in memory"])


def url(stored: bool, tmp_path: Path) -> str | None:
    return f"sqlite:///{tmp_path / 'runs.db'}" if stored else None


@each_kind
@each_store
@pytest.mark.parametrize("answer", [True, "approve", Decision("approve", by="ada")])
def test_what_is_approved_runs(make: Any, stored: bool, answer: Any, tmp_path: Path) -> None:
    """The question names tool and arguments; the conversation goes on."""
    agent, model, done = refunding(REFUND, "done")
    flujo = Flujo(make("help", agent), store=url(stored, tmp_path))
    paused = flujo.run("I want my money back")
    assert (paused.status, done) == ("paused", [])
    assert "refund" in (paused.feedback or "")
    assert '{"amount": 900}' in (paused.feedback or "")
    result = flujo.resume(paused.state_token, answer)
    assert (result.output, done, len(model.asked)) == ("done", [900], 2)
    assert results(model.asked[-1].messages) == ["refunded 900"]
    assert result.total_tokens == 30


@each_kind
@each_store
@pytest.mark.parametrize(
    "answer", [{"option": "deny", "reason": "too much"}, Decision("deny", comment="too much")], ids=["dict", "decision"]
)
def test_what_is_denied_is_told_to_the_model(make: Any, stored: bool, answer: Any, tmp_path: Path) -> None:
    """With the reason, and the tool does not run."""
    agent, model, done = refunding(REFUND, "sorry")
    flujo = Flujo(make("help", agent), store=url(stored, tmp_path))
    result = flujo.resume(flujo.run("?").state_token, answer)
    assert (result.output, done) == ("sorry", [])
    assert results(model.asked[-1].messages) == ["too much"]


@each_kind
def test_other_arguments_are_what_runs(make: Any) -> None:
    """What the person wrote, and not what the model did."""
    agent, _, done = refunding(REFUND, "done")
    flujo = Flujo(make("help", agent))
    assert flujo.resume(flujo.run("?").state_token, {"arguments": {"amount": 100}}).output == "done"
    assert done == [100]


@each_kind
@each_store
def test_calls_are_asked_about_one_after_the_other(make: Any, stored: bool, tmp_path: Path) -> None:
    """Two of one response, beside one that needs no approval, which runs once."""
    agent, model, done = refunding([REFUND, LOOK, CallTool("refund", {"amount": 1})], "done")
    flujo = Flujo(make("help", agent), store=url(stored, tmp_path))
    first = flujo.run("?")
    second = flujo.resume(first.state_token, True)
    assert (second.status, "1}" in (second.feedback or "")) == ("paused", True)
    assert flujo.resume(second.state_token, False).output == "done"
    assert sorted(map(str, done)) == ["900", "look"]
    assert len(model.asked) == 2


@each_kind
def test_a_second_round_asks_again(make: Any) -> None:
    """An approval counts for one call."""
    agent, _, done = refunding(REFUND, CallTool("refund", {"amount": 5}), "done")
    flujo = Flujo(make("help", agent))
    second = flujo.resume(flujo.run("?").state_token, True)
    assert (second.status, done) == ("paused", [900])
    assert flujo.resume(second.state_token, True).output == "done"
    assert done == [900, 5]


@each_kind
def test_an_answer_that_says_nothing_is_refused(make: Any, tmp_path: Path) -> None:
    """And the run still waits, for whoever answers without the pipeline, too."""
    agent, _, done = refunding(REFUND, "done")
    flujo = Flujo(make("help", agent), store=url(True, tmp_path))
    token, client = flujo.run("?").state_token, RunClient(url(True, tmp_path) or "")
    for wrong in ("perhaps", 3, {}, {"amount": 3}):
        for answer in (flujo.resume, client.answer):
            with pytest.raises(InvalidAnswer):
                answer(token, wrong)
    [prompt] = client.prompts()
    assert prompt.metadata["tool"] == "refund"
    assert prompt.metadata["arguments"] == {"amount": 900}
    client.answer(token, True)
    assert [each.output for each in flujo.recover()] == ["done"]
    assert done == [900]


@each_kind
@each_store
@pytest.mark.parametrize("wrong", [{"amount": "many"}, {}, {"amount": 1, "currency": "eur"}])
def test_arguments_that_the_tool_does_not_take_are_refused(
    make: Any, stored: bool, wrong: dict[str, Any], tmp_path: Path
) -> None:
    """The approver is told, the model is not; the run is still paused and takes a better answer."""
    agent, model, done = refunding(REFUND, "done")
    flujo = Flujo(make("help", agent), store=url(stored, tmp_path))
    paused = flujo.run("I want my money back")
    with pytest.raises(InvalidAnswer, match=r"the answer to .help.: arguments\..*the question is still open"):
        flujo.resume(paused.state_token, {"option": "approve", "arguments": wrong})
    if stored:
        with pytest.raises(InvalidAnswer, match=r"the answer to .help.: arguments\..*the question is still open"):
            RunClient(url(stored, tmp_path)).answer(paused.state_token, {"arguments": wrong})
    result = flujo.resume(paused.state_token, {"option": "approve", "arguments": {"amount": 5}})
    assert (result.output, done, len(model.asked)) == ("done", [5], 2)


def test_an_agent_that_declares_deferred_requests_pauses_too() -> None:
    """As pydantic-ai's own documents write it."""
    agent, _, done = refunding(REFUND, "done", output_type=[str, DeferredToolRequests])
    flujo = Flujo(Step("help", agent))
    assert flujo.resume(flujo.run("?").state_token, True).output == "done"
    assert done == [900]


@each_kind
def test_what_was_used_before_the_question_counts_after_it(make: Any) -> None:
    """Limits hold over the pause."""
    agent, _, _ = refunding(REFUND, REFUND, "done")
    flujo = Flujo(make("help", agent), usage_limits=UsageLimits(request_limit=1))
    with pytest.raises(UsageLimitExceededError):
        flujo.resume(flujo.run("?").state_token, True)


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_another_process_goes_on_in_the_same_conversation(make: Any, place: str, tmp_path: Path) -> None:
    """The one that asked is killed; the model of the other one hears what was said and done before."""
    store = f"sqlite:///{tmp_path / 'runs.db'}" if place == "sqlite" else session_server().fresh_url()

    def asked() -> None:
        agent, _, _ = refunding(LOOK, REFUND)
        Flujo(make("help", agent), store=store).run("?", run_id="r")
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_another_process(asked) == KILLED
    agent, model, done = refunding("done")
    flujo = Flujo(make("help", agent), store=store)
    token = RunClient(store).get("r").state_token
    assert token is not None
    assert flujo.resume(token, True).output == "done"
    assert done == [900]
    assert results(model.asked[-1].messages) == ["a customer", "refunded 900"]
