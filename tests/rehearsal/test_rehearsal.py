"""A rehearsal runs stored runs on a changed pipeline, from the first changed step."""

from __future__ import annotations

import asyncio
import functools
import json
import operator
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from rehearsed_agents import Counted, untyped

from flujo_actors import DeclarationError, Flujo, GateError, NotRetryable, Pipeline, Rehearsal, RunClient, Step
from flujo_actors.stores import MemoryStore, Store

PAYS: list[Any] = [[("pay", {"n": 1})], [("pay", {"n": 2})], "done"]


class Shop:
    """A pipeline with an agent between two functions, and its stored runs."""

    def __init__(self, runs: int = 1) -> None:
        self.counted, self.store, self.sent = Counted(), MemoryStore(), list[str]()
        self.flujo = self.changed()
        for number in range(runs):
            self.flujo.run(number, run_id=f"r{number}")
        self.ids = [f"r{number}" for number in range(runs)]

    def send(self, text: str) -> str:
        self.sent.append(text)
        return text.upper()

    def changed(self, turns: Any = PAYS, store: Store | None = None, **options: Any) -> Flujo[Any, Any]:
        agent = self.counted.agent(turns, **options)
        steps = Step("first", str) >> Step.granular("ask", agent) >> Step("send", self.send)
        return Flujo(steps, store=store or self.store)

    def rehearse(self, turns: Any = PAYS, prompt: str = "Pay now.", ids: str = "z", **options: Any) -> Rehearsal:
        given = {"max_cost_usd": 1.0, **options}
        rehearse = given.pop("rehearse", None)
        changed = self.changed(turns, prompt=prompt, ids=ids, rehearse=rehearse)
        return self.flujo.rehearse(self.ids, changed=changed, **given)


def test_a_change_that_does_not_reach_a_run_executes_nothing() -> None:
    """Its verdict is `same`."""
    shop = Shop()
    before = shop.counted.effects
    [run] = shop.flujo.rehearse(shop.ids, max_cost_usd=1.0).runs
    assert (run.verdict, run.ran, run.reason) == ("same", False, "the change does not reach this run")
    assert (run.fork_seq, run.same_of, shop.counted.effects) == (None, (1, 1), before)


def test_a_changed_prompt_asks_live_models_with_recorded_tools() -> None:
    """R3: the tool has no execution, and functions answer for the same input."""
    shop = Shop(3)
    requests, paid = shop.counted.effects
    rehearsal = shop.rehearse()
    assert rehearsal.counts == {"same": 3, "different": 0, "diverged": 0, "skipped": 0}
    assert shop.counted.effects == (requests + 9, paid)
    assert [len(shop.sent), rehearsal.passed] == [3, True]
    [first, *_] = rehearsal.runs
    assert (first.ran, first.fork_seq, first.turns_before, first.turns_after) == (True, 2, 3, 3)
    assert first.tokens_before > 0


@pytest.mark.parametrize(
    ("turns", "sentence"),
    [
        ([[("pay", {"n": 99})], "done"], "tool 'pay' was called with {\"n\": 99}, which is not recorded"),
        (
            [[("pay", {"n": 1})], [("pay", {"n": 1})], "done"],
            "tool 'pay' was called 2 times with {\"n\": 1}, recorded 1 time",
        ),
        (["short"], "step 'send' got another input; declare rehearse=\"live\" if it has no effect"),
    ],
)
def test_anything_without_a_record_stops_the_run(turns: Any, sentence: str) -> None:
    """It is never executed."""
    shop = Shop()
    paid = list(shop.counted.paid)
    [run] = shop.rehearse(turns).runs
    assert (run.verdict, run.reason, run.ran) == ("diverged", sentence, True)
    assert run.difference is not None
    assert str(run.difference) == sentence
    assert (shop.counted.paid, len(shop.sent)) == (paid, 1)


def test_recorded_calls_answer_in_another_order() -> None:
    """A call is known by tool and arguments."""
    shop = Shop()
    [run] = shop.rehearse([[("pay", {"n": 2})], [("pay", {"n": 1})], "done"]).runs
    assert run.verdict == "same"


def counting_agent(results: list[str], turns: list[Any], prompt: str) -> Any:
    """Return an agent whose tool returns another number each time, and whose answer lists them."""

    def respond(messages: list[Any], info: Any) -> ModelResponse:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        if number < len(turns):
            calls = [ToolCallPart(tool, {"key": 1}, tool_call_id=f"{number}") for tool in turns[number]]
            return ModelResponse(parts=calls)
        got = [str(part.content) for each in messages for part in each.parts if part.part_kind == "tool-return"]
        return ModelResponse(parts=[TextPart(" ".join(got) or "none")])

    agent: Agent[None, str] = Agent(FunctionModel(respond), name="counter", instructions=prompt)
    for name in ("get", "other"):

        def tool(key: int) -> str:
            results.append(str(len(results) + 1))
            return results[-1]

        agent.tool_plain(name=name)(tool)
    return agent


@pytest.mark.parametrize(
    ("before", "after", "output"),
    [
        ([[["get"], ["get"], ["other"]]], [[["other"], ["get"]]], "3 1"),
        ([[["get"]], [["get"]]], [[], [["get"]]], "1"),
        ([[["get"]], [["get"], ["get"]]], [[["get"]], [["get"], ["get"]]], "2 3"),
    ],
)
def test_identical_calls_answer_in_recorded_order(before: list[Any], after: list[Any], output: str) -> None:
    """Whichever turn and step made them; steps are given by the tools of their turns."""
    results, store = list[str](), MemoryStore()

    def flow(steps: list[Any], prompt: str) -> Flujo[Any, Any]:
        agents = [counting_agent(results, turns, prompt) for turns in steps]
        first, *others = [Step.granular(f"ask {number}", agent) for number, agent in enumerate(agents)]
        return Flujo(functools.reduce(operator.rshift, others, untyped(first)), store=store)

    flow(before, "one").run("x", run_id="r")
    seen: list[object] = []
    changed = flow(after, "two")
    changed.rehearse("r", max_cost_usd=1.0, same=lambda recorded, now: seen.append(now) or True)
    assert (seen, len(results)) == ([output], 3 if len(before) == 1 else 2 + len(before[1]) - 1)


@pytest.mark.parametrize(("rehearse", "paid"), [("repeat", 0), ("live", 2)])
def test_a_tool_can_repeat_its_result_or_be_executed(rehearse: str, paid: int) -> None:
    """By its metadata."""
    shop = Shop()
    before = len(shop.counted.paid)
    [run] = shop.rehearse([[("pay", {"n": 1})], [("pay", {"n": 1})], "done"], rehearse=rehearse).runs
    assert (run.verdict, len(shop.counted.paid) - before) == ("same", paid)


def test_a_different_output_is_judged_by_same_or_live_steps() -> None:
    """`same` gets the recorded and the present output."""
    shop = Shop()
    short: list[Any] = ["short"]
    [run] = shop.rehearse(short, live_steps=["send"]).runs
    assert (run.verdict, len(shop.sent)) == ("different", 2)
    assert run.difference is not None
    assert str(run.difference).startswith('step \'ask\' gave "short", recorded "done" (record ')
    [run] = shop.rehearse(short, live_steps=["send"], same=lambda recorded, now: recorded == "DONE").runs
    assert (run.verdict, run.difference) == ("same", None)


def test_evaluators_get_the_recorded_output_as_the_expected_one() -> None:
    """All of their assertions must hold."""
    pytest.importorskip("pydantic_evals")
    from pydantic_evals.evaluators import EqualsExpected

    shop = Shop()
    options: dict[str, Any] = {"live_steps": ["send"], "evaluators": [EqualsExpected()]}
    assert [run.verdict for run in shop.rehearse(PAYS, **options).runs] == ["same"]
    assert [run.verdict for run in shop.rehearse(["short"], **options).runs] == ["different"]


@pytest.mark.parametrize("declare", [Step.granular, Step])
def test_a_conversation_is_not_continued_without_its_messages(declare: Any) -> None:
    """Messages of earlier runs are in no record: no model is asked; recorded responses still answer."""
    pytest.importorskip("pydantic_ai.conversation_store")
    counted, store = Counted(), MemoryStore()

    def chat(prompt: str) -> Flujo[Any, Any]:
        step = declare("chat", counted.agent(["first", "second"], prompt=prompt), conversation="c1")
        return Flujo(step, store=store)

    assert [chat("Pay.").run("go on", run_id=name).output for name in ("r1", "r2")] == ["first", "second"]
    assert chat("Pay more.").replay("r2").verdict == "same"
    [run] = chat("Pay.").rehearse(["r2"], changed=chat("Pay more."), max_cost_usd=1).runs
    assert (run.verdict, counted.requests) == ("diverged", 2)
    if declare is not Step:
        assert run.reason == "the conversation of step 'chat' is not recorded: messages of earlier runs are missing"


def test_models_can_answer_from_the_record() -> None:
    """Then no request is made, and a further turn is missing."""
    shop = Shop()
    before = shop.counted.effects
    [run] = shop.rehearse(models="recorded", max_cost_usd=None).runs
    assert (run.verdict, run.ran, shop.counted.effects) == ("same", True, before)


def test_a_step_is_rehearsed_by_hand() -> None:
    """The body of a function is no fact; `at` names the step."""
    shop = Shop()
    [run] = shop.flujo.rehearse(shop.ids, at="send", live_steps=["send"], models="recorded").runs
    assert (run.verdict, run.ran, len(shop.sent)) == ("same", True, 2)
    [run] = shop.flujo.rehearse(shop.ids, at="send", models="recorded").runs
    assert run.reason == "step 'send' is changed; declare rehearse=\"live\" if it has no effect"


def test_an_atomic_agent_with_tools_is_not_asked() -> None:
    """Its tool calls are not recorded; without tools its model is asked."""
    counted, store = Counted(), MemoryStore()
    Flujo(Step("ask", counted.agent(PAYS)), store=store).run("x", run_id="r")
    changed = Flujo(Step("ask", counted.agent(PAYS, prompt="Other.")), store=store)
    [run] = changed.rehearse(["r"], max_cost_usd=1.0).runs
    assert run.reason == "step 'ask' is atomic: its tools are not recorded; make it granular"


def test_repeated_rehearsals_count_the_same_ones() -> None:
    """One that differs decides."""
    shop = Shop()
    texts = iter(["done", "short", "done"])

    def turns() -> Any:
        return next(texts)

    class Once(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            return turns()

    [run] = shop.rehearse(Once(), repeat=3, live_steps=["send"]).runs
    assert (run.verdict, run.same_of) == ("different", (2, 3))


def test_runs_that_cannot_be_rehearsed_are_skipped_with_a_reason() -> None:
    """They never stop the others."""
    shop = Shop()
    Flujo(Step("other", str), store=shop.store).run(1, run_id="other")
    asking = Flujo(Step("first", str) >> Step.human_in_the_loop("ask", "?"), store=shop.store)
    asking.run(1, run_id="paused")
    shop.ids += ["gone", "other", "paused"]
    rehearsal = shop.rehearse(gates=["skipped<=0.75", "same>0.2 and cost<=1.1x"])
    assert [run.verdict for run in rehearsal.runs] == ["same", "skipped", "skipped", "skipped"]
    reasons = [run.reason or "" for run in rehearsal.runs[1:]]
    assert reasons[0] == "there is no such run"
    assert reasons[1].startswith("it is a run of another pipeline")
    assert reasons[2] == "it has not ended: it is paused"
    assert [gate.holds for gate in rehearsal.gates] == [True, True]
    assert rehearsal.passed


def test_the_budget_of_live_models_is_shared() -> None:
    """Its end skips the rest."""
    shop = Shop(3)
    prices = {"usage": {"prices": {"function:respond:": {"input_usd": 1_000_000.0, "output_usd": 1_000_000.0}}}}
    changed = shop.changed(prompt="Pay now.")
    priced = Flujo(changed.pipeline, store=shop.store, settings=prices)
    rehearsal = shop.flujo.rehearse(shop.ids, changed=priced, max_cost_usd=60.0, max_concurrency=1)
    assert "skipped" in [run.verdict for run in rehearsal.runs]
    assert rehearsal.cost_usd > 0


def test_impossible_options_are_refused_before_anything_runs() -> None:
    """Each with its text."""
    shop = Shop()
    rehearse: Any = shop.flujo.rehearse
    with pytest.raises(ValueError, match="there is no live mode: run the pipeline instead"):
        rehearse(shop.ids, tools="live", max_cost_usd=1)
    with pytest.raises(DeclarationError, match="rehearse with live models needs max_cost_usd"):
        rehearse(shop.ids)
    with pytest.raises(ValueError, match="models must be 'live' or 'recorded'"):
        rehearse(shop.ids, models="free")
    with pytest.raises(DeclarationError, match="repeat must be at least 1"):
        rehearse(shop.ids, max_cost_usd=1, repeat=0)
    with pytest.raises(DeclarationError, match="into must be another store"):
        rehearse(shop.ids, max_cost_usd=1, into=shop.store)
    with pytest.raises(DeclarationError, match="changed must be a Flujo"):
        rehearse(shop.ids, max_cost_usd=1, changed=3)
    with pytest.raises(GateError, match="'pass' is not known here"):
        rehearse(shop.ids, max_cost_usd=1, gates=["pass>1"])
    with pytest.raises(DeclarationError, match=r"live_steps: there is no step 'sent' .* did you mean 'send'"):
        rehearse(shop.ids, max_cost_usd=1, live_steps=["sent"])
    with pytest.raises(DeclarationError, match="there is no step 'gone' in the pipeline"):
        rehearse(shop.ids, max_cost_usd=1, at="gone")


def test_forks_are_kept_as_ended_runs_of_another_store(tmp_path: Path) -> None:
    """A diverged one as aborted with its reason; nothing resumes them."""
    shop, into = Shop(), f"sqlite:///{tmp_path / 'rehearsals.db'}"
    [same] = shop.rehearse(into=into).runs
    [diverged] = shop.rehearse([[("pay", {"n": 99})], "done"], into=into).runs
    client = RunClient(into)
    kept = {run.run_id: run for run in client.list()}
    assert {run.pipeline for run in kept.values()} == {"rehearsal of first >> ask >> send"}
    assert same.rehearsed_id is not None
    assert diverged.rehearsed_id is not None
    assert (kept[same.rehearsed_id].status, kept[diverged.rehearsed_id].status) == ("completed", "aborted")
    state = client.state(diverged.rehearsed_id)
    assert state.feedback == diverged.reason
    assert state.origin is not None
    assert (state.origin.run_id, state.origin.seq) == ("r0", 2)
    assert client.state(same.rehearsed_id).output == "DONE"
    assert list(shop.changed(store=None).recover()) == []
    with pytest.raises(NotRetryable, match="is kept by a rehearsal"):
        client.retry(diverged.rehearsed_id)
    assert len(RunClient(shop.store).list()) == 1


def test_the_copy_of_a_failed_run_is_not_retried(tmp_path: Path) -> None:
    """Its steps had their effects in the recorded run."""

    def fail(text: str) -> str:
        raise ValueError(text)

    def flow(prefix: str) -> Flujo[Any, Any]:
        return Flujo(Step("first", prefix.__add__) >> Step("fail", fail), store=store)

    store = MemoryStore()
    flow("a").run("x", run_id="r")
    into = f"sqlite:///{tmp_path / 'rehearsals.db'}"
    [run] = (
        flow("a").rehearse("r", changed=flow("b"), models="recorded", at="fail", live_steps=["fail"], into=into).runs
    )
    assert run.verdict == "same"
    with pytest.raises(NotRetryable, match="is kept by a rehearsal"):
        RunClient(into).retry(f"{run.rehearsed_id}/recorded")


@pytest.mark.parametrize("seconds", [3600, None], ids=["changed", "added"])
def test_a_rehearsal_does_not_sleep(seconds: float | None) -> None:
    """A sleep passes its input on, also one that was changed or added, or has another input."""

    def flow(seconds: float | None, add: int = 1) -> Any:
        first = Step("first", lambda n: n + add, rehearse="live")
        pause = [] if seconds is None else [Step.sleep("pause", seconds)]
        return Pipeline([first, *pause, Step("last", lambda n: n * 2, rehearse="live")], name="sleepy")

    store = MemoryStore()
    recorded = Flujo(flow(0.001 if seconds else None), store=store)
    recorded.run(1, run_id="r")
    [run] = recorded.rehearse("r", changed=Flujo(flow(seconds or 3600, 2)), models="recorded", at="first").runs
    assert (run.verdict, str(run.difference)) == ("different", "step 'first' gave 3, recorded 2 (record 2)")


@pytest.mark.parametrize("run", [trio.run, lambda fn: asyncio.run(fn())])
def test_a_rehearsal_runs_inside_a_loop(run: Any) -> None:
    """`rehearse_async` returns the same on trio and asyncio."""
    shop = Shop(2)

    async def rehearse() -> Rehearsal:
        return await shop.flujo.rehearse_async(shop.ids, changed=shop.changed(prompt="New."), max_cost_usd=1.0)

    assert run(rehearse).counts["same"] == 2


def test_reports_name_the_runs_that_are_not_the_same() -> None:
    """As text, JSON, JUnit and Markdown."""
    shop = Shop(2)
    rehearsal = shop.rehearse(["short"], gates=["same>=1"])
    sentence = "step 'send' got another input"
    assert sentence in rehearsal.to_text()
    assert "r0" in rehearsal.to_markdown()
    data = json.loads(rehearsal.to_json())
    assert (data["counts"]["diverged"], data["passed"], data["runs"][0]["difference"]["what"]) == (2, False, "status")
    suite = ElementTree.fromstring(rehearsal.to_junit())[0]
    assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("3", "2", "1")


def test_an_added_step_is_reached_by_completed_runs() -> None:
    """It is executed if it is live."""
    shop = Shop()
    added = Flujo(
        shop.flujo.pipeline >> Step("more", untyped(lambda text: text + "!"), rehearse="live"), store=shop.store
    )
    [run] = shop.flujo.rehearse(shop.ids, changed=added, models="recorded").runs
    assert (run.verdict, run.ran) == ("different", True)
    assert run.difference is not None
    assert (run.difference.recorded, run.difference.now) == ("DONE", "DONE!")


def test_a_changed_branch_that_was_not_taken_is_not_reached() -> None:
    """Only the steps that the run began count."""
    store = MemoryStore()

    def flow(prompt: str) -> Flujo[Any, Any]:
        counted = Counted()
        ways = {True: Step("plain", str), False: Step.granular("ask", counted.agent(["done"], prompt=prompt))}
        return Flujo(Step.branch_on("way", lambda n, context: n > 0, ways), store=store)

    flow("one").run(1, run_id="r")
    [run] = flow("two").rehearse(["r"], max_cost_usd=1.0).runs
    assert (run.verdict, run.ran) == ("same", False)
