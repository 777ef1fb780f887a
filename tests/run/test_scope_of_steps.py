"""What functions of a pipeline ask for: outputs of settled steps, the item of a map, the input of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from flujo_actors import Context, DeclarationError, Flujo, Paused, Pipeline, Step


def step(name: str, **config: Any) -> Step:
    """A step that returns its data with its name."""

    async def agent(data: Any) -> Any:
        return f"{name}({data})"

    return Step(name, agent, **config)


async def same(data: Any) -> Any:
    return data


def test_an_input_sees_the_outputs_of_earlier_steps_by_name() -> None:
    """By key and as an attribute, however many steps stand between."""
    last = Step("c", same, input=lambda previous, context, *, steps: [previous, steps["a"], steps.b, "x" in steps])
    result = Flujo(step("a") >> step("b") >> last).run("q")
    assert result.output == ["b(a(q))", "a(q)", "b(a(q))", False]


def test_the_run_input_is_there_at_any_depth() -> None:
    """As the run was given it, whatever the first step made of it in place."""

    async def spoil(data: list[int]) -> str:
        data.clear()
        return "spoiled"

    inner = Step("use", same, input=lambda previous, context, *, run_input: (previous, run_input))
    pipeline = Step("first", spoil) >> Step.parallel("all", {"x": inner})
    assert Flujo(pipeline).run([1, 2]).output == {"x": ("spoiled", [1, 2])}


def test_a_body_sees_out_and_nobody_sees_in() -> None:
    """Scopes are lexical: a branch sees the steps around it, not those of its sibling."""

    def names(previous: Any, context: Context, *, steps: Any) -> list[str]:
        return list(steps)

    left = Pipeline((step("l1"), Step("l2", same, input=names)))
    right = Pipeline((step("r1"), Step("r2", same, input=names)))
    pipeline = step("a") >> Step.parallel("both", {"left": left, "right": right}) >> Step("end", same, input=names)
    result = Flujo(pipeline).run("q")
    assert result.step_history[1].output == {"left": ["a", "l1"], "right": ["a", "r1"]}
    assert result.output == ["a", "both"]


def test_of_two_steps_of_one_name_the_inner_one_is_seen() -> None:
    """As with variables."""
    inner = Pipeline((step("a", input="inner"), Step("use", same, input=lambda previous, context, *, steps: steps.a)))
    assert Flujo(step("a") >> Step.parallel("p", {"x": inner})).run("q").output == {"x": "a(inner)"}


def test_a_map_gives_its_item_to_every_function_of_its_body() -> None:
    """Also after steps that made something else of it; an inner map gives its own."""
    body = step("one") >> Step("pair", same, input=lambda previous, context, *, item: (item, previous))
    assert Flujo(Step.map_over("each", body)).run([1, 2]).output == [(1, "one(1)"), (2, "one(2)")]
    inner = Step.map_over(
        "inner", Step("i", same, input=lambda p, c, *, item: item), items=lambda d, c, *, item: [item] * 2
    )
    assert Flujo(Step.map_over("outer", inner)).run([1, 2]).output == [[1, 1], [2, 2]]


def test_selections_conditions_items_and_messages_may_ask() -> None:
    """All functions that decide are asked in the same way."""
    chosen = Step.branch_on("pick", lambda data, context, *, steps: steps.kind, {"x": step("x"), "y": step("y")})
    looped = Step.loop_until("loop", step("turn"), lambda output, context, *, steps, run_input: steps.kind == run_input)
    mapped = Step.map_over("map", same, items=lambda data, context, *, steps: [steps.kind, data])
    asked = Step.human_in_the_loop("ask", lambda data, context, *, steps: f"is it {steps.kind}?")
    pipeline = Step("kind", same) >> chosen >> looped >> mapped >> asked
    result = Flujo(pipeline).run("y")
    assert result.status == "paused"
    assert result.feedback == "is it y?"
    assert result.step_history[2].metadata["loops"] == 1
    assert result.step_history[3].output == ["y", "turn(y(y))"]


def test_a_fallback_sees_what_its_step_sees() -> None:
    """It stands in its place."""

    async def fail(data: Any) -> None:
        raise ValueError

    standby = Step("standby", same, input=lambda previous, context, *, steps: steps.a)
    assert Flujo(step("a") >> step("b") >> Step("c", fail, fallback=standby)).run("q").output == "a(q)"


def test_what_a_function_changes_nobody_else_sees() -> None:
    """Everybody gets a copy, of outputs, items and inputs."""

    def change(previous: Any, context: Context, *, steps: Any, run_input: Any) -> Any:
        steps.a.append("changed")
        run_input.append("changed")
        return steps.a, run_input

    async def listed(data: Any) -> list[str]:
        return ["fresh"]

    pipeline = Step("a", listed) >> Step("b", same, input=change) >> Step("c", same, input=change)
    assert Flujo(pipeline).run([]).output == (["fresh"], ["changed"])


@pytest.mark.parametrize("name", ["items", "keys", "get", "values", "output", "names"])
def test_any_name_of_a_step_is_an_attribute(name: str) -> None:
    """There are no methods in the way."""
    last = Step("last", same, input=lambda previous, context, *, steps: getattr(steps, name))
    assert Flujo(step(name) >> last).run("q").output == f"{name}(q)"


def test_an_unknown_step_is_told_with_the_one_that_was_meant() -> None:
    """The step fails, and says what is in sight."""
    pipeline = step("classify") >> step("b", input=lambda previous, context, *, steps: steps["clasify"])
    feedback = Flujo(pipeline).run("q").feedback
    assert feedback is not None
    assert "no step 'clasify' has settled before this one" in feedback
    assert "did you mean 'classify'?" in feedback


def test_a_step_that_comes_later_is_not_in_sight() -> None:
    """Only settled steps are."""
    pipeline = step("a", input=lambda previous, context, *, steps: steps.b) >> step("b")
    feedback = Flujo(pipeline).run("q").feedback or ""
    assert "no step 'b' has settled before this one, in its own sequence or around it; there is none yet" in feedback


def test_a_function_that_asks_for_something_else_is_refused_when_it_is_declared() -> None:
    """The error says what there is to ask for."""
    with pytest.raises(DeclarationError, match="item, run_input, scheduled_at, steps"):
        step("a", input=lambda previous, context, *, outputs: outputs)


def test_async_functions_ask_in_the_same_way() -> None:
    """Sync or async makes no difference."""

    async def earlier(previous: Any, context: Context, *, steps: Any) -> Any:
        return steps.a

    assert Flujo(step("a") >> step("b") >> Step("c", same, input=earlier)).run("q").output == "a(q)"


def test_a_loop_sees_the_steps_of_its_own_turn_only() -> None:
    """A turn begins with what stands around the loop."""
    seen: list[list[str]] = []

    def look(previous: Any, context: Context, *, steps: Any) -> Any:
        seen.append(list(steps))
        return previous

    body = Pipeline((Step("first", same, input=look), Step("second", same, input=look)))
    loop = Step.loop_until("loop", body, lambda output, context: len(seen) >= 4)
    assert Flujo(step("a") >> loop).run("q").success
    assert seen == [["a"], ["a", "first"]] * 2


def test_scopes_are_the_same_in_a_later_part_of_the_run(tmp_path: Path) -> None:
    """A resumed run replays settled outputs into them; nothing of them is stored."""
    calls: list[str] = []

    async def classify(data: str) -> dict[str, str]:
        calls.append(data)
        return {"kind": "complaint"}

    body = Pipeline(
        (
            Step.human_in_the_loop("ask", lambda data, context, *, steps: f"a {steps.classify['kind']}?"),
            Step("use", same, input=lambda previous, context, *, steps, item: (previous, item, steps.classify)),
        )
    )
    pipeline = Step("classify", classify) >> Step.map_over("each", body, items=lambda d, c, *, run_input: [run_input])
    store = f"sqlite:///{tmp_path}/runs.db"
    first = Flujo(pipeline, store=store).run("q")
    assert first.feedback == "a complaint?"
    result = Flujo(pipeline, store=store).resume(first.state_token or "", "yes")
    assert result.output == [("yes", "q", {"kind": "complaint"})]
    assert calls == ["q"]


def test_nothing_is_kept_if_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs of a pipeline without such functions are not held on to."""
    import flujo_actors._runtime.run.step_results as scope

    def fail(*_: object) -> None:
        raise AssertionError("somebody made a scope")

    monkeypatch.setattr(scope.Scope, "of_run", fail)
    assert Flujo(step("a") >> step("b", input=lambda previous, context: previous)).run("q").output == "b(a(q))"


def test_models_come_out_of_scopes_as_models() -> None:
    """An output is what the step returned, not data made of it."""

    @attrs.frozen
    class Ticket:
        kind: str

    async def read(data: str) -> Ticket:
        return Ticket(data)

    last = Step("last", same, input=lambda previous, context, *, steps: steps.read.kind)
    assert Flujo(Step("read", read) >> step("b", input="x") >> last).run("bug").output == "bug"


def test_a_pause_is_no_output() -> None:
    """A step that paused has not settled with one, so nobody after it runs."""

    async def pause(data: Any) -> Paused:
        return Paused(message="well?")

    result = Flujo(Step("a", pause) >> step("b", input=lambda p, c, *, steps: steps.a)).run("q")
    assert result.status == "paused"
