"""The assembled context on its way to the model: where it stands, and that it is the same for every attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from context_papers import Notes, Papers, heard, sent
from pydantic import BaseModel
from pydantic_ai import Agent

from flujo_actors import (
    AssembledContext,
    Chunk,
    ContextFormat,
    ContextSources,
    DeclarationError,
    Flujo,
    Redirect,
    Step,
    from_literal,
    from_retrieval,
    from_state,
    make_agent_async,
)
from flujo_actors.testing import CallTool, ScriptedAgent, ScriptedRetriever, scripted_model

SOURCES = [from_literal("L"), from_state("s"), from_retrieval(Papers)]
SHOWN = "Context:\nL\n\nS\n\nr1\n---\nr2"
EXPECTED = [("system", "SYS"), ("user", SHOWN), ("user", "PROMPT")]


def found() -> ScriptedRetriever:
    return ScriptedRetriever(("r1", 0.9), ("r2", 0.8))


def flujo(step: Step, retriever: Any = None) -> Flujo:
    return Flujo(step, initial_context_data={"s": "S"}, retrievers={Papers: retriever or found()})


def test_a_model_is_sent_system_context_and_prompt_in_this_order() -> None:
    """The sources stand in the order of their declaration."""
    model = scripted_model("ok")
    result = flujo(Step("ask", make_agent_async(model, "SYS"), context_sources=SOURCES)).run("PROMPT")
    assert result.output == "ok"
    assert sent(model.asked[0].messages) == EXPECTED
    assert (model.asked[0].context, model.prompts) == (SHOWN, ["PROMPT"])


def test_an_agent_with_instructions_is_sent_the_same() -> None:
    """Instructions are the provider's system prompt."""
    model = scripted_model("ok")
    flujo(Step("ask", Agent(model, instructions="SYS"), context_sources=SOURCES)).run("PROMPT")
    assert sent(model.asked[0].messages) == EXPECTED[1:]
    assert model.asked[0].instructions == "SYS"


@pytest.mark.trio
async def test_a_watched_run_sends_the_same_and_shows_nothing_of_it() -> None:
    """Assembly is over before the first chunk; chunks are the model's only."""
    model = scripted_model("o k")
    steps = flujo(Step("ask", make_agent_async(model, "SYS"), context_sources=SOURCES))
    chunks = [each.data async for each in steps.run_async("PROMPT") if isinstance(each, Chunk)]
    assert "".join(chunks) == "o k"
    assert model.asked[0].streamed
    assert sent(model.asked[0].messages) == EXPECTED


@pytest.mark.trio
async def test_a_failed_assembly_yields_no_chunk() -> None:
    """There is nothing to show before the model was asked."""
    step = Step("ask", make_agent_async(scripted_model("ok")), context_sources=[from_retrieval(Papers)])
    told = [each async for each in flujo(step, ScriptedRetriever(OSError("down"))).run_async("PROMPT")]
    assert [type(each).__name__ for each in told] == ["Failure"]


@pytest.mark.parametrize("keep_last", [None, 1])
def test_every_request_of_a_granular_step_holds_it_once_before_the_prompt(keep_last: int | None) -> None:
    """Also if the conversation is shortened to its last message."""
    model = scripted_model(CallTool("looked"), CallTool("looked"), "done")
    agent = make_agent_async(model, "SYS", tools=[looked])
    result = flujo(Step.granular("ask", agent, keep_last=keep_last, context_sources=SOURCES)).run("PROMPT")
    assert result.output == "done"
    assert len(model.asked) == 3
    for asked in model.asked:
        said = sent(asked.messages)
        assert said[:3] == EXPECTED
        assert said.count(("user", SHOWN)) == 1


def looked() -> str:
    return "looked"


def test_the_tool_loop_of_an_atomic_step_holds_it_once() -> None:
    """Later requests of one call repeat the first."""
    model = scripted_model(CallTool("looked"), "done")
    step = Step("ask", make_agent_async(model, "SYS", tools=[looked]), context_sources=SOURCES)
    assert flujo(step).run("PROMPT").output == "done"
    assert [sent(asked.messages)[:3] for asked in model.asked] == [EXPECTED, EXPECTED]


@pytest.mark.parametrize(
    "sources",
    [
        None,
        [],
        [from_state("nothing")],
        [from_state("nothing"), from_retrieval(Papers)],
        ContextSources([from_retrieval(Papers)], format=ContextFormat.cited()),
    ],
)
def test_what_is_empty_is_not_sent(sources: Any) -> None:
    """Without sources, or with empty ones, the request is that of a step without."""
    model = scripted_model("ok")
    step = Step("ask", make_agent_async(model, "SYS"), context_sources=sources)
    searched = sources is not None and any(
        "Retrieval" in type(each).__name__ for each in getattr(sources, "sources", sources)
    )
    retrievers = {Papers: ScriptedRetriever()} if searched else None
    result = Flujo(step, initial_context_data={"nothing": None}, retrievers=retrievers).run("PROMPT")
    assert result.success
    assert sent(model.asked[0].messages) == [("system", "SYS"), ("user", "PROMPT")]
    assert model.asked[0].context is None


def test_empty_segments_leave_no_blank_lines() -> None:
    """What says nothing is left out, with its separator."""
    model = scripted_model("ok")
    sources = [from_literal("A"), from_state("nothing"), from_literal("B")]
    step = Step("ask", make_agent_async(model), context_sources=sources)
    Flujo(step, initial_context_data={"nothing": None}).run("PROMPT")
    assert model.asked[0].context == "Context:\nA\n\nB"


def test_a_refused_answer_is_asked_for_again_with_the_same_context() -> None:
    """The reason stands in the prompt, after the context, and nothing is searched for again."""
    retriever, model = found(), scripted_model("bad", "good")
    refuse: Callable[[str], Any] = lambda output: True if output == "good" else "not good"  # noqa: E731
    step = Step("ask", make_agent_async(model, "SYS"), context_sources=SOURCES, validators=refuse, max_retries=1)
    assert flujo(step, retriever).run("PROMPT").output == "good"
    assert len(retriever.searches) == 1
    first, second = (sent(asked.messages) for asked in model.asked)
    assert first == EXPECTED
    assert second[:2] == EXPECTED[:2]
    assert second[2][1].startswith("PROMPT\n\nYour previous answer was not accepted: Validation failed: not good")


def test_whoever_is_redirected_to_sees_the_same_context() -> None:
    """The step's context belongs to the step, not to its agent."""
    retriever, expert = found(), scripted_model("expert", name="expert")
    to = make_agent_async(expert, "EXPERT")
    step = Step(
        "ask",
        make_agent_async(scripted_model("?"), "SYS"),
        context_sources=SOURCES,
        validators=lambda output: True if output == "expert" else Redirect(to=to, feedback="ask the expert"),
    )
    assert flujo(step, retriever).run("PROMPT").output == "expert"
    assert expert.asked[0].context == SHOWN
    assert len(retriever.searches) == 1


def test_a_structured_step_that_asks_again_shows_the_same_context() -> None:
    """Whatever is asked for again, and however often."""

    class Answer(BaseModel):
        degrees: int

    retriever, model = found(), scripted_model("no idea", '{"degrees": "?"}', "none", '{"degrees": 80}', forever=True)
    agent = make_agent_async(model, "SYS", output_type=Answer)
    result = flujo(Step("ask", agent, context_sources=SOURCES), retriever).run("PROMPT")
    assert result.output == Answer(degrees=80)
    asked = [each for each in model.asked if ("system", "SYS") in sent(each.messages)]
    assert len(asked) >= 2
    assert {each.context for each in asked} == {SHOWN}
    assert len(retriever.searches) == 1


def test_a_function_gets_the_assembled_context_by_its_signature() -> None:
    """So do validators and processors."""
    seen: list[AssembledContext] = []

    async def write(data: str, *, assembled: AssembledContext) -> str:
        seen.append(assembled)
        return assembled.to_prompt_string()

    def check(output: str, *, assembled: AssembledContext) -> None:
        seen.append(assembled)

    def before(data: str, *, assembled: AssembledContext) -> str:
        seen.append(assembled)
        return data

    step = Step(
        "write", write, context_sources=SOURCES, validators=check, processors={"before": before, "after": check}
    )
    assert flujo(step).run("PROMPT").status == "completed"
    assert len(seen) == 4
    assert all(each is seen[0] for each in seen)
    assert [each.content for each in seen[0].retrieval_results] == ["r1", "r2"]


def test_a_synchronous_function_gets_it_too() -> None:
    """Called in a thread, by the same signature."""

    def write(data: str, assembled: AssembledContext) -> str:
        return f"{data}: {assembled.to_prompt_string()}"

    step = Step("write", write, context_sources=[from_literal("L")])
    assert Flujo(step).run("q").output == "q: L"


def test_a_function_without_the_parameter_is_refused() -> None:
    """The error names the step and the parameter."""

    async def write(data: str) -> str:
        return data

    with pytest.raises(
        DeclarationError, match="step 'write' has context_sources, but its function takes no `assembled`"
    ):
        Step("write", write, context_sources=SOURCES)


def test_who_asks_for_it_without_sources_gets_an_empty_one() -> None:
    """A function may stand in steps with and without sources."""

    async def write(data: str, *, assembled: AssembledContext) -> bool:
        return assembled is AssembledContext.EMPTY and assembled.is_empty

    assert Flujo(Step("write", write)).run("q").output is True


def test_a_scripted_agent_keeps_what_it_was_shown() -> None:
    """For tests of steps with sources, without a model."""
    agent = ScriptedAgent("ok")
    flujo(Step("ask", agent, context_sources=SOURCES)).run("PROMPT")
    assert agent.calls[0].assembled.to_prompt_string() == SHOWN.removeprefix("Context:\n")


def test_a_callable_format_makes_the_whole_text() -> None:
    """What it returns is shown as it is."""
    model = scripted_model("ok")
    sources = ContextSources(SOURCES, format=lambda assembled: f"<<{len(assembled.segments)}>>")
    flujo(Step("ask", make_agent_async(model), context_sources=sources)).run("PROMPT")
    assert model.asked[0].context == "<<3>>"


def test_a_format_that_fails_is_a_failed_attempt() -> None:
    """It is user code, and told as such."""
    sources = ContextSources(SOURCES, format=lambda assembled: 1 / 0)
    step = Step("ask", make_agent_async(scripted_model("ok")), context_sources=sources)
    feedback = flujo(step).run("PROMPT").feedback or ""
    assert "Assembling the context of step 'ask': the format failed with ZeroDivisionError" in feedback


def test_metadata_tells_what_was_shown() -> None:
    """Tokens, the passages by collection, id and score, and what was left out."""
    retriever = ScriptedRetriever(("r1", 0.9), ("r2", 0.8))
    result = flujo(Step("ask", make_agent_async(scripted_model("ok")), context_sources=SOURCES), retriever).run("q")
    assert result.step_history[0].metadata["context"] == {
        "tokens": 4,
        "sources": [["papers", "s1", 0.9], ["papers", "s2", 0.8]],
        "dropped": [],
        "skipped": [],
    }


def test_values_that_are_no_text_are_shown_as_json() -> None:
    """As prompts are."""
    model = scripted_model("ok")
    step = Step("ask", make_agent_async(model), context_sources=[from_state("s")])
    Flujo(step, initial_context_data={"s": {"a": [1, None]}}).run("q")
    assert model.asked[0].context == 'Context:\n{\n  "a": [\n    1,\n    null\n  ]\n}'


def test_two_collections_are_searched_by_their_own_retrievers() -> None:
    """And shown where they were declared."""
    model = scripted_model("ok")
    sources = [from_retrieval(Notes), from_literal("-"), from_retrieval(Papers)]
    retrievers = {Papers: ScriptedRetriever(("p", 0.5)), Notes: ScriptedRetriever(("n", 0.1))}
    Flujo(Step("ask", make_agent_async(model), context_sources=sources), retrievers=retrievers).run("q")
    assert model.asked[0].context == "Context:\nn\n\n-\n\np"


def test_a_shown_context_does_not_cost_tool_events() -> None:
    """Capabilities of a call add up: the one that shows contexts drops no other."""
    model = scripted_model(CallTool("looked"), "done")
    step = Step("ask", make_agent_async(model, tools=[looked]), context_sources=[from_literal("L")])
    sink, settings = heard()
    Flujo(step, settings=settings).run("q")
    assert [event.kind for event in sink.events if event.kind.startswith("tool.")] == ["tool.started", "tool.ended"]
