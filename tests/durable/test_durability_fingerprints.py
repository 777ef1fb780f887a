"""A run goes on with the pipeline it was started with: what changed is named, and two modes go further."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from flujo_actors import FingerprintMismatch, Flujo, Pipeline, RunClient, Step
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.step_paths import StepPath
from flujo_actors._durable.fingerprint import Fingerprint, read_fingerprint
from flujo_actors._durable.pipeline_diff import changes_between
from flujo_actors.stores._memory_store import MemoryStore


async def one(data: Any) -> Any:
    return data


async def two(data: Any) -> Any:
    return data


def line(*names: str, agent: Any = one) -> Pipeline:
    """Steps of these names, one after the other."""
    return Pipeline(steps=tuple(Step(name, agent) for name in names))


def loop(max_loops: int) -> Step:
    return Step.loop_until("loop", line("body"), lambda output, context: True, max_loops=max_loops)


def agent(model: str = "m1", prompt: str = "Be kind.", instructions: str = "", tools: tuple[Any, ...] = ()) -> Step:
    made = Agent(TestModel(model_name=model), system_prompt=prompt, instructions=instructions or None, tools=tools)
    return Step("ask", made)


def look_up(name: str) -> str:
    """Look something up."""
    return name


def look_up_twice() -> Callable[..., str]:
    def look_up(name: str, times: int = 2) -> str:
        """Look something up."""
        return name * times

    return look_up


def changed(before: Any, after: Any, done: tuple[str, ...] = (), mode: Any = "strict") -> list[str]:
    """What stands in the way of going from one pipeline to the other."""
    old, new = (Fingerprint.of(Pipeline.from_step(each)) for each in (before, after))
    return changes_between(read_fingerprint(old.data()), new.steps, [StepPath(path) for path in done], mode=mode)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (line("a", "b"), line("a"), "step 'b' was removed"),
        (line("a"), line("a", "b"), "step 'b' was added"),
        (line("a", "b"), line("a", "c"), "step 'b' is called 'c' now"),
        (line("a", "b"), line("b", "a"), "the order 'a', 'b' became 'b', 'a'"),
        (line("a"), line("a", agent=two), f"the agent of step 'a' changed from '{__name__}.one' to '{__name__}.two'"),
        (loop(3), loop(5), "the max_loops of step 'loop' changed from 3 to 5"),
        (agent("m1"), agent("m2"), "the model of step 'ask' changed from 'm1' to 'm2'"),
        (agent(), agent(prompt="Be strict."), "the prompt of step 'ask' changed"),
        (agent(), agent(instructions="Hurry."), "the prompt of step 'ask' changed"),
        (agent(instructions="Rest."), agent(instructions="Hurry."), "the prompt of step 'ask' changed"),
        (agent(), agent(tools=(look_up,)), "the tools of step 'ask' changed ('look_up' was added)"),
        (agent(tools=(look_up,)), agent(), "the tools of step 'ask' changed ('look_up' was removed)"),
        (
            agent(tools=(look_up,)),
            agent(tools=(look_up_twice(),)),
            "the tools of step 'ask' changed (the schema of 'look_up' is another)",
        ),
        (
            Step.human_in_the_loop("ask", "Pay 10?"),
            Step.human_in_the_loop("ask", "Pay 20?"),
            "the message of step 'ask' changed",
        ),
        (
            Step.parallel("x", {"k": line("a")}),
            Step.branch_on("x", lambda data, context: "k", {"k": line("a")}),
            "'x' was a parallel and is a branch now",
        ),
        (
            Step.map_over("each", line("a", "b")),
            Step.map_over("each", line("a", "b", agent=two)),
            f"the agent of step 'each/~i/a' changed from '{__name__}.one' to '{__name__}.two'",
        ),
        (
            Step("a", one, fallback=Step("plan b", one)),
            Step("a", one, fallback=Step("plan b", two)),
            f"the agent of step 'a/~f' changed from '{__name__}.one' to '{__name__}.two'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_change_is_named(before: Any, after: Any, sentence: str) -> None:
    """In a sentence that says which step, and what is other about it."""
    assert sentence in changed(before, after)
    assert changed(before, before) == changed(after, after) == []


def test_force_minds_nothing() -> None:
    """Whoever forces it knows better."""
    assert changed(line("a"), line("b"), done=("a",), mode="force") == []


@pytest.mark.parametrize(
    ("before", "after", "done"),
    [
        (line("a", "b"), line("a", "b", "c"), ("a",)),
        (line("a", "b"), line("a", "c", "b"), ("a",)),
        (line("a", "b"), line("a"), ("a",)),
        (line("a", "b"), line("a") >> Step("b", two), ("a",)),
        (loop(3), loop(5), ("loop/~i1/body", "loop/~i1")),
        (Step.parallel("x", {"k": line("a", "b")}), Step.parallel("x", {"k": line("a", "c")}), ("x/k/a",)),
    ],
    ids=["appended", "inserted later", "removed later", "changed later", "more loops", "inside a branch"],
)
def test_compat_lets_what_is_not_done_change(before: Any, after: Any, done: tuple[str, ...]) -> None:
    """Strict refuses each of these."""
    assert changed(before, after, done)
    assert changed(before, after, done, mode="compat") == []


@pytest.mark.parametrize(
    ("before", "after", "done", "word"),
    [
        (line("a", "b"), line("b"), ("a",), "which is done, was removed"),
        (line("a", "b"), line("c", "b"), ("a",), "is called 'c' now"),
        (line("a", "b"), line("b", "a"), ("a",), "in the order"),
        (line("a", "b"), line("new", "a", "b"), ("a",), "in the order"),
        (line("a"), line("a", agent=two), ("a",), "the agent of step 'a' changed"),
        (
            Step.map_over("each", line("a")),
            Step.map_over("each", line("a", agent=two)),
            ("each/~i0/a",),
            "the agent of step 'each/~i/a' changed",
        ),
        (
            Step("a", one, max_retries=2, fallback=line("x")),
            Step("a", one, max_retries=2, fallback=line("x", agent=two)),
            ("a/~t", "a/~f/x"),
            "the agent of step 'a/~f/x' changed",
        ),
        (
            Step.branch_on("x", lambda data, context: 1, {2: line("a")}, default=line("b")),
            Step.branch_on("x", lambda data, context: 1, {2: line("a")}, default=line("b", agent=two)),
            ("x/1/b",),
            "the agent of step 'x/~default/b' changed",
        ),
        (
            Step.parallel("x", {"k": line("a", "b")}),
            Step.map_over("x", line("a", "b")),
            ("x/k/a",),
            "'x' was a parallel and is a map now",
        ),
    ],
    ids=["removed", "renamed", "reordered", "put before", "changed", "in a map", "in a fallback", "default", "kind"],
)
def test_compat_refuses_changes_of_what_is_done(before: Any, after: Any, done: tuple[str, ...], word: str) -> None:
    """The records of done steps would be taken for something that they are not."""
    assert any(word in sentence for sentence in changed(before, after, done, mode="compat"))


def test_a_changed_pipeline_is_refused_until_it_is_forced() -> None:
    """From the error of a resume to a mode that goes on; what is done is not done again."""
    store = MemoryStore()
    ask = Step.human_in_the_loop("ask", "?")
    Flujo(line("a") >> ask, store=store).run(1, run_id="run")
    with pytest.raises(FingerprintMismatch, match=r"run 'run'.*the agent of step 'a' changed.*mode="):
        Flujo(line("a", agent=two) >> ask, store=store).resume("run")
    with pytest.raises(FingerprintMismatch):
        Flujo(line("a", agent=two) >> ask, store=store).resume("run", mode="compat")
    assert RunClient(store).get("run").status == "paused"
    forced = Flujo(line("a", agent=two) >> ask, store=store).resume("run", mode="force")
    assert forced.status == "paused"


def test_the_same_declaration_made_again_is_the_same_pipeline() -> None:
    """Another process declares it anew: lambdas, partials, objects with `run`, agents and nested pipelines alike."""

    class Writer:
        async def run(self, data: Any) -> Any:
            return data

    def declared() -> Pipeline:
        return (
            Step("lambda", lambda data: data)
            >> Step("object", Writer())
            >> agent(tools=(look_up,), instructions="Now.")
            >> Step.parallel("p", {1: line("x"), "b": line("y", "z")})
            >> Step.branch_on("c", lambda data, context: 1, {1: line("w")}, default=line("d"))
        )

    assert changed(declared(), declared()) == []


@pytest.mark.parametrize(
    ("function", "name"), [(str.upper, "builtins.str.upper"), (len, "builtins.len"), ("-".join, "str.join")]
)
def test_functions_of_python_itself_have_names(function: Any, name: str) -> None:
    """A method of a builtin type says no module, and is known all the same."""
    assert name in str(Fingerprint.of(Pipeline.from_step(Step("say", function))))


def test_a_tool_that_an_agent_is_given_between_two_runs_is_in_the_fingerprint_of_the_second() -> None:
    """What cannot change is written down once; an agent can be given tools at any time."""
    agent: Agent[None, str] = Agent(TestModel(call_tools=[]))
    store = MemoryStore()
    flujo = Flujo(Step("ask", agent), store=store)

    def admitted(run_id: str) -> dict[str, Any]:
        flujo.run("x", run_id=run_id)
        body: dict[str, Any] = json.loads(store.read(RunId(run_id))[0].body)
        return body

    first = admitted("first")

    @agent.tool_plain
    def look() -> str:
        """Look."""
        return "seen"

    assert admitted("again")["fingerprint"] != first["fingerprint"]
    assert set(first) == {"v", "input", "context", "fingerprint"}


def test_runs_of_functions_share_one_fingerprint_text() -> None:
    """Each says what it was given, and the same pipeline."""
    store = MemoryStore()
    flujo = Flujo(Step("same", lambda data: data), store=store)
    bodies = []
    for number, data in enumerate([1, "text", [1], {"a": None}, None, 1.5]):
        flujo.run(data, run_id=str(number), context={"n": 1} if number else None)
        bodies.append(json.loads(store.read(RunId(str(number)))[0].body))
    assert [body["input"] for body in bodies] == [1, "text", [1], {"a": None}, None, 1.5]
    assert all(body["fingerprint"] == bodies[0]["fingerprint"] for body in bodies)
    assert bodies[0]["context"] != bodies[1]["context"]
