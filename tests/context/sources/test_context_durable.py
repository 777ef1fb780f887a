"""A process dies while a step works on its context: the next one shows the agent the same, and searches for nothing."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from context_papers import Papers, passage, sent

from flujo_actors import (
    AssembledContext,
    Backoff,
    ContextFormat,
    ContextSources,
    FingerprintMismatch,
    Flujo,
    Retrieved,
    Step,
    Usage,
    from_literal,
    from_retrieval,
    from_state,
    make_agent_async,
)
from flujo_actors._dsl.context_sources import sources_text
from flujo_actors.testing import CallTool, ScriptedRetriever, scripted_model
from kit.durable_places import AN_HOUR_LATER, Place
from kit.other_processes import KILLED, in_another_process

CITED = ContextSources(
    [from_literal("L"), from_state("s"), from_retrieval(Papers, top_k=2, filters={"tenant": "a"})],
    max_tokens=1000,
    format=ContextFormat.cited(),
)


def die(*_: Any, **__: Any) -> Any:
    """The end of a process, without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


def found(name: str) -> Retrieved:
    """What a retriever finds, different in every process."""
    results = [passage(f"found by {name}", 0.9, "p1", tenant="a", year=1), passage("second", 0.5, "p2", tenant="a")]
    return Retrieved(results=results, usage=Usage(input_tokens=7, cost_usd=0.5))


def made(step: Callable[..., Step], model: Any, retriever: Any, store: Any) -> Flujo:
    agent = make_agent_async(model, "SYS", tools=[look])
    pipeline = step("ask", agent, context_sources=CITED)
    return Flujo(pipeline, initial_context_data={"s": {"n": 1}}, retrievers={Papers: retriever}, store=store)


def look() -> str:
    return "looked"


@pytest.mark.slow
@pytest.mark.parametrize("step", [Step, Step.granular], ids=["atomic", "granular"])
def test_a_step_that_was_killed_in_its_model_call_sees_the_same_context(
    step: Callable[..., Step], place: Place, tmp_path: Path
) -> None:
    """The text is the same, nothing is searched for, and what the embedder used is counted once."""
    seen = tmp_path / "seen"

    def note_and_die(messages: Any) -> Any:
        seen.write_text(sent(messages)[1][1])
        die()

    def life() -> None:
        made(step, scripted_model(note_and_die), ScriptedRetriever(found("1")), place.open()).run("q", run_id="r")

    assert in_another_process(life) == KILLED
    model, retriever = scripted_model("ok"), ScriptedRetriever(found("2"))
    result = made(step, model, retriever, place.open(AN_HOUR_LATER)).resume("r")
    assert result.output == "ok"
    assert model.asked[0].context == seen.read_text()
    assert "found by 1" in (model.asked[0].context or "")
    assert retriever.searches == []
    assert result.total_tokens == 7 + 15
    assert result.step_history[0].metadata["context"]["sources"] == [["papers", "p1", 0.9], ["papers", "p2", 0.5]]


@pytest.mark.slow
def test_a_granular_step_that_was_killed_between_its_turns_goes_on_in_its_own_context(place: Place) -> None:
    """Its recorded turn saw a context, and so does the next."""

    def life() -> None:
        model = scripted_model(CallTool("look"), die)
        made(Step.granular, model, ScriptedRetriever(found("1")), place.open()).run("q", run_id="r")

    assert in_another_process(life) == KILLED
    model, retriever = scripted_model("ok"), ScriptedRetriever(found("2"))
    result = made(Step.granular, model, retriever, place.open(AN_HOUR_LATER)).resume("r")
    assert result.output == "ok"
    assert [kind for kind, _ in sent(model.asked[0].messages)] == ["system", "user", "user", "model", "tool"]
    assert "found by 1" in (model.asked[0].context or "")
    assert retriever.searches == []
    assert result.total_tokens == 7 + 15 + 15


@pytest.mark.slow
def test_a_step_that_was_killed_in_its_search_searches_again(place: Place) -> None:
    """Nothing was assembled, so nothing is recalled."""

    def life() -> None:
        made(Step, scripted_model("never"), ScriptedRetriever(die), place.open()).run("q", run_id="r")

    assert in_another_process(life) == KILLED
    model, retriever = scripted_model("ok"), ScriptedRetriever(found("2"))
    assert made(Step, model, retriever, place.open(AN_HOUR_LATER)).resume("r").output == "ok"
    assert "found by 2" in (model.asked[0].context or "")
    assert len(retriever.searches) == 1


@pytest.mark.slow
def test_a_retried_step_that_was_killed_counts_its_embedder_once(place: Place) -> None:
    """The first attempt assembled and failed, the second died: the third shows the same, and all is counted once."""

    def step(name: str, agent: Any, **config: Any) -> Step:
        return Step(name, agent, max_retries=2, backoff=Backoff.none(), **config)

    def life() -> None:
        model = scripted_model(ValueError("first"), die)
        made(step, model, ScriptedRetriever(found("1")), place.open()).run("q", run_id="r")

    assert in_another_process(life) == KILLED
    model, retriever = scripted_model("ok"), ScriptedRetriever(found("2"))
    result = made(step, model, retriever, place.open(AN_HOUR_LATER)).resume("r")
    assert result.output == "ok"
    assert "found by 1" in (model.asked[0].context or "")
    assert retriever.searches == []
    assert result.total_tokens == 7 + 15
    assert result.total_cost_usd == 0.5


def test_a_search_that_failed_is_not_recorded_as_a_context(place: Place) -> None:
    """The second attempt searches, and its context is the one that is kept."""
    retriever = ScriptedRetriever(OSError("down"), found("2"))
    model = scripted_model("ok")
    agent = make_agent_async(model, "SYS")
    step = Step("ask", agent, context_sources=CITED, max_retries=1, backoff=Backoff.none())
    flujo = Flujo(step, initial_context_data={"s": None}, retrievers={Papers: retriever}, store=place.open())
    result = flujo.run("q")
    assert result.output == "ok"
    assert len(retriever.searches) == 2
    assert result.total_tokens == 7 + 15


def test_another_declaration_of_sources_is_noticed_at_resume(place: Place) -> None:
    """A run goes on with the context it was declared with."""

    async def write(data: str, *, assembled: AssembledContext) -> str:
        return assembled.to_prompt_string()

    def flujo(*sources: Any) -> Flujo:
        ask = Step.human_in_the_loop("wait", "well?")
        return Flujo(ask >> Step("write", write, context_sources=list(sources)), store=place.open())

    paused = flujo(from_literal("one")).run("q")
    with pytest.raises(FingerprintMismatch, match="context_sources"):
        flujo(from_literal("two")).resume(paused.state_token or "", "go on")
    assert flujo(from_literal("one")).resume(paused.state_token or "", "go on").output == "one"


def test_what_a_function_was_shown_is_shown_to_it_again(place: Place) -> None:
    """All of an assembled context is kept: values, passages with their fields, what was dropped."""
    seen: list[AssembledContext] = []

    async def write(data: str, *, assembled: AssembledContext) -> str:
        seen.append(assembled)
        if len(seen) == 1:
            raise KeyboardInterrupt
        return "ok"

    step = Step("write", write, context_sources=CITED)

    def flujo(retriever: Any) -> Flujo:
        data = {"s": {"when": ("now", None)}}
        return Flujo(step, initial_context_data=data, retrievers={Papers: retriever}, store=place.open(AN_HOUR_LATER))

    with pytest.raises(KeyboardInterrupt):
        flujo(ScriptedRetriever(found("1"))).run("q", run_id="r")
    assert flujo(ScriptedRetriever(found("2"))).resume("r").output == "ok"
    assert seen[0] == seen[1]


def test_a_state_without_a_json_form_is_recalled_as_its_text(place: Place) -> None:
    """The agent sees the same, whatever the state was."""

    class Odd:
        def __str__(self) -> str:
            return "an odd thing"

    texts: list[str] = []

    async def write(data: str, *, assembled: AssembledContext) -> str:
        texts.append(assembled.to_prompt_string())
        if len(texts) == 1:
            raise KeyboardInterrupt
        return "ok"

    step = Step("write", write, context_sources=[from_state(lambda data, context: Odd(), name="odd")])
    with pytest.raises(KeyboardInterrupt):
        Flujo(step, store=place.open(AN_HOUR_LATER)).run("q", run_id="r")
    assert Flujo(step, store=place.open(AN_HOUR_LATER)).resume("r").output == "ok"
    assert texts[0] == texts[1]


def test_functions_of_sources_are_known_by_name_in_every_process() -> None:
    """Partials, objects that can be called and lambdas have no address in what is compared."""

    class Shape:
        def __call__(self, assembled: AssembledContext) -> str:
            return ""

    def state(data: str, context: Any, extra: int = 0) -> int:
        return extra

    def declared() -> str:
        sources = ContextSources(
            [
                from_state(functools.partial(state, extra=1), name="s"),
                from_retrieval(Papers, query=lambda data, context: data, rerank=functools.partial(sorted)),
            ],
            format=Shape(),
        )
        return sources_text(sources)

    assert declared() == declared()
    assert " at 0x" not in declared()
