"""Every kind of step, alone and inside every other kind."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import trio
from scripted import AT_ONCE, PLACES, Scripted, double, failing, named, nested, same, unwrapped

from flujo_actors import Flujo, Pipeline, Step, step
from flujo_actors.errors import DeclarationError


@pytest.mark.trio
async def test_a_pipeline_feeds_each_step_with_the_output_before(autojump_clock: Any) -> None:
    """Steps run in order, each on what the one before returned."""
    result = await Flujo(Step("a", double) >> Step("b", double) >> Step("c", double)).run_async(3)
    assert (result.output, result.status, result.success) == (24, "completed", True)
    assert [(each.name, each.output, each.attempts) for each in result.step_history] == [
        ("a", 6, 1),
        ("b", 12, 1),
        ("c", 24, 1),
    ]
    assert result.feedback is None


def test_flujo_runs_a_single_step_from_synchronous_code() -> None:
    """A step needs no pipeline around it."""
    assert Flujo(Step("a", double)).run(2).output == 4


@pytest.mark.trio
async def test_functions_of_every_shape_are_agents(autojump_clock: Any) -> None:
    """Async and sync functions, partials, bound methods, callable objects, lambdas and objects with `run`."""

    class Adder:
        def __call__(self, data: int) -> int:
            return data + 1

        async def add(self, data: int) -> int:
            return data + 1

    class Runner:
        async def run(self, data: int) -> int:
            return data + 1

    async def add(n: int, data: int) -> int:
        return data + n

    agents = [lambda data: data + 1, Adder(), Adder().add, Runner(), functools.partial(add, 1)]
    steps = [Step(f"s{n}", agent) for n, agent in enumerate(agents)]
    assert (await Flujo(Pipeline(steps)).run_async(0)).output == 5


@pytest.mark.trio
async def test_a_decorated_function_is_a_step_of_its_name(autojump_clock: Any) -> None:
    """`@step` with and without settings."""

    @step
    async def shout(text: str) -> str:
        return text.upper()

    @step(max_retries=1, name="bang", backoff=AT_ONCE)
    def exclaim(text: str) -> str:
        return text + "!"

    assert (shout.name, exclaim.name, exclaim.max_retries) == ("shout", "bang", 1)
    assert (await Flujo(shout >> exclaim).run_async("hey")).output == "HEY!"


@pytest.mark.trio
async def test_from_callable_takes_the_name_of_the_function_or_yours(autojump_clock: Any) -> None:
    """The function's name is the default."""
    assert Step.from_callable(double).name == "double"
    assert Step.from_callable(functools.partial(double)).name == "double"
    assert Step.from_callable(double, "twice", max_retries=2).max_retries == 2


@pytest.mark.trio
@pytest.mark.parametrize("declared", ["a value", 0, False, [], {"k": 1}])
async def test_input_replaces_what_was_handed_over(autojump_clock: Any, declared: Any) -> None:
    """A declared value is the agent's input, also a falsy one."""
    agent = Scripted("ok")
    await Flujo(Step("a", same) >> Step("b", agent, input=declared)).run_async("ignored")
    assert agent.calls == [declared]


@pytest.mark.trio
async def test_a_callable_input_sees_the_previous_output_and_the_context(autojump_clock: Any) -> None:
    """`input=(previous, context) -> value`, sync or async, called once however many attempts there are."""
    agent, asked = Scripted(ValueError("first"), "ok"), []

    def ask(previous: Any, context: Any) -> str:
        asked.append(previous)
        context.secret = "a look changes nothing"
        return f"{previous} {context.name}"

    async def ask_later(previous: Any, context: Any) -> str:
        await trio.sleep(1)
        return f"later {previous}"

    pipeline = Step("a", agent, input=ask, max_retries=1, backoff=AT_ONCE) >> Step("b", same, input=ask_later)
    result = await Flujo(pipeline, initial_context_data={"name": "Ada"}).run_async("hello")
    assert agent.calls == ["hello Ada", "hello Ada"]
    assert asked == ["hello"]
    assert result.output == "later ok"
    assert "secret" not in result.final_context


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["parallel", "map", "branch", "loop"])
async def test_input_works_for_steps_that_contain_others(autojump_clock: Any, kind: str) -> None:
    """A composite's `input` is what its children get."""
    agent = Scripted("ok")
    inner = Step("inner", agent)
    config: Any = {"input": lambda previous, context: [previous + 1]}
    composite = {
        "parallel": lambda: Step.parallel("c", {"x": inner}, **config),
        "map": lambda: Step.map_over("c", inner, **config),
        "branch": lambda: Step.branch_on("c", lambda data, context: data[0], {2: inner}, **config),
        "loop": lambda: Step.loop_until("c", inner, lambda output, context: True, **config),
    }[kind]()
    await Flujo(composite).run_async(1)
    assert agent.calls == [2 if kind == "map" else [2]]


# --- parallel, map ------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_parallel_gives_all_branches_the_same_input_at_once(autojump_clock: Any) -> None:
    """The output is a dict by key in declaration order, whatever ended first."""

    async def slow(data: int) -> int:
        await trio.sleep(2)
        return data + 1

    async def quick(data: int) -> int:
        await trio.sleep(1)
        return data + 2

    begun = trio.current_time()
    result = await Flujo(Step.parallel("p", {"slow": Step("s", slow), 7: Step("q", quick)})).run_async(1)
    assert list(result.output.items()) == [("slow", 2), (7, 3)]
    assert trio.current_time() - begun == pytest.approx(2)
    assert [each.name for each in result.step_history[0].step_history] == ["s", "q"]


class HighWater:
    """Measures how many calls were under way at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def run(self, data: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        await trio.sleep(1)
        self.now -= 1
        return data


@pytest.mark.trio
@pytest.mark.parametrize(("limit", "most", "seconds"), [(None, 7, 1), (1, 1, 7), (3, 3, 3), (7, 7, 1), (99, 7, 1)])
@pytest.mark.parametrize("kind", ["parallel", "map"])
async def test_max_concurrency_is_a_limit_and_is_reached(
    autojump_clock: Any, kind: str, limit: int | None, most: int, seconds: int
) -> None:
    """As many at once as allowed, never more, and a free place is taken at once."""
    agent = HighWater()
    body = Step("body", agent)
    fan = (
        Step.parallel("fan", dict.fromkeys(range(7), body), max_concurrency=limit)
        if kind == "parallel"
        else Step.map_over("fan", body, items=range(7), max_concurrency=limit)
    )
    begun = trio.current_time()
    assert (await Flujo(fan).run_async("x")).success
    assert agent.most == most
    assert trio.current_time() - begun == pytest.approx(seconds)


@pytest.mark.trio
async def test_map_over_keeps_item_order(autojump_clock: Any) -> None:
    """The list is in item order, whatever ended first."""

    async def wait_and_double(data: int) -> int:
        await trio.sleep(10 - data)
        return data * 2

    result = await Flujo(Step.map_over("m", Step("w", wait_and_double))).run_async([1, 2, 3])
    assert result.output == [2, 4, 6]


@pytest.mark.trio
@pytest.mark.parametrize(
    ("items", "output"),
    [([1, 2], [2, 4]), ((3,), [6]), ([], []), (range(2), [0, 2]), (lambda data, context: [data, context.n], [10, 18])],
)
async def test_map_over_declared_items(autojump_clock: Any, items: Any, output: list[int]) -> None:
    """Items can be declared as a value or as a callable on previous output and context."""
    flujo = Flujo(Step.map_over("m", Step("d", double), items=items), initial_context_data={"n": 9})
    assert (await flujo.run_async(5)).output == output
    assert (await flujo.run_async(5)).output == output


@pytest.mark.trio
async def test_map_over_an_iterator_that_a_step_made(autojump_clock: Any) -> None:
    """Whatever can be iterated has items; a declaration, which is run often, must have a collection."""
    flujo = Flujo(Step("a", lambda data: iter([1, 2])) >> Step.map_over("m", Step("d", double)))
    assert [(await flujo.run_async(None)).output for _ in range(2)] == [[2, 4], [2, 4]]
    with pytest.raises(DeclarationError, match="'m'"):
        Step.map_over("m", Step("d", double), items=iter([1, 2]))


@pytest.mark.trio
@pytest.mark.parametrize("data", ["text", b"bytes", 5, None])
async def test_map_over_something_that_has_no_items_fails_and_says_so(autojump_clock: Any, data: Any) -> None:
    """Text is not a list of letters."""
    result = await Flujo(Step.map_over("m", Step("d", double))).run_async(data)
    assert result.status == "failed"
    assert "'m' maps over items" in result.feedback


@pytest.mark.trio
async def test_a_failing_item_stops_the_others_and_fails_the_map(autojump_clock: Any) -> None:
    """The rest is cut short, the map fails with the item's error."""
    ended: list[int] = []

    async def work(data: int) -> int:
        await trio.sleep(data)
        if data == 2:
            raise ValueError("two is odd")
        ended.append(data)
        return data

    result = await Flujo(Step.map_over("m", Step("w", work))).run_async([1, 2, 3])
    assert (result.status, ended) == ("failed", [1])
    assert "two is odd" in result.feedback


@pytest.mark.trio
async def test_a_failing_branch_stops_the_others_and_fails_the_step(autojump_clock: Any) -> None:
    """`on_branch_failure="propagate"` is the default."""
    ended: list[str] = []

    async def slow(data: Any) -> None:
        await trio.sleep(5)
        ended.append("slow")

    begun = trio.current_time()
    branches = {"slow": Step("slow", slow), "bad": Step("bad", failing("no"))}
    result = await Flujo(Step.parallel("p", branches)).run_async(1)
    assert (result.status, ended) == ("failed", [])
    assert "Agent execution failed with ValueError: no" in result.feedback
    assert trio.current_time() == begun


@pytest.mark.trio
async def test_ignored_branch_failures_leave_the_others_alone(autojump_clock: Any) -> None:
    """`on_branch_failure="ignore"`: the output has the branches that worked, the metadata the others."""

    async def slow(data: Any) -> str:
        await trio.sleep(5)
        return "done"

    branches = {"slow": Step("slow", slow), "bad": Step("bad", failing("no"))}
    result = await Flujo(Step.parallel("p", branches, on_branch_failure="ignore")).run_async(1)
    assert (result.status, result.output) == ("completed", {"slow": "done"})
    assert "ValueError: no" in result.step_history[0].metadata["failed_branches"]["bad"]
    assert named(result, "bad").success is False


@pytest.mark.trio
async def test_ignoring_failures_does_not_make_a_success_of_nothing(autojump_clock: Any) -> None:
    """If every branch failed, so did the step, with all the texts and all the exceptions."""
    branches = {"a": Step("a", failing("one")), "b": Step("b", failing("two", KeyError))}
    result = await Flujo(Step.parallel("p", branches, on_branch_failure="ignore")).run_async(1)
    assert result.status == "failed"
    assert "one" in result.feedback
    assert "two" in result.feedback


# --- branch, loop -------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize(("data", "output"), [(1, "odd"), (2, "even"), ("?", "neither")])
async def test_branch_on_runs_the_selected_branch_only(autojump_clock: Any, data: Any, output: str) -> None:
    """One branch, or the default."""
    agents = {name: Scripted(name) for name in ("odd", "even", "neither")}
    branching = Step.branch_on(
        "b",
        lambda data, context: data % 2 if isinstance(data, int) else ["unhashable"],
        {1: Step("odd", agents["odd"]), 0: Step("even", agents["even"])},
        default=Step("neither", agents["neither"]),
    )
    assert (await Flujo(branching).run_async(data)).output == output
    assert [name for name, agent in agents.items() if agent.calls] == [output]


@pytest.mark.trio
async def test_a_selection_without_a_branch_fails_and_names_the_choices(autojump_clock: Any) -> None:
    """No default: the feedback says what was selected and what there is."""
    result = await Flujo(Step.branch_on("b", lambda data, context: "z", {"x": Step("x", same)})).run_async(1)
    assert result.status == "failed"
    assert "'z'" in result.feedback
    assert "'x'" in result.feedback


@pytest.mark.trio
async def test_select_sees_data_and_context_and_cannot_change_it(autojump_clock: Any) -> None:
    """The selector gets `(data, context)` and looks at a copy; it may be async."""

    async def select(data: Any, context: Any) -> str:
        context.way = "changed"
        return f"{data}-x"

    branching = Step.branch_on("b", select, {"1-x": Step("x", same)})
    result = await Flujo(branching, initial_context_data={"way": "x"}).run_async(1)
    assert (result.success, result.final_context.way) == (True, "x")


@pytest.mark.trio
async def test_a_loop_feeds_the_body_with_its_own_last_output(autojump_clock: Any) -> None:
    """Until the condition holds; the loop's output is the last one."""
    result = await Flujo(Step.loop_until("l", Step("d", double), lambda output, context: output > 20)).run_async(3)
    assert result.output == 24
    assert [each.output for each in result.step_history[0].step_history] == [6, 12, 24]


@pytest.mark.trio
@pytest.mark.parametrize("loops", [1, 3, 5])
async def test_a_loop_may_use_all_its_turns_and_fails_past_them(autojump_clock: Any, loops: int) -> None:
    """`max_loops` turns are allowed, one more is not made."""
    agent = Scripted(*range(1, 9))
    loop = functools.partial(Step.loop_until, "l", Step("s", agent))
    assert (await Flujo(loop(lambda output, context: output == loops, max_loops=loops)).run_async(0)).success
    agent.calls.clear()
    result = await Flujo(loop(lambda output, context: False, max_loops=loops)).run_async(0)
    assert (result.status, len(agent.calls)) == ("failed", loops)
    assert f"max_loops={loops}" in result.feedback


@pytest.mark.trio
async def test_a_loop_turns_five_times_by_default(autojump_clock: Any) -> None:
    """The contract's default."""
    agent = Scripted(0)
    await Flujo(Step.loop_until("l", Step("s", agent), lambda output, context: False)).run_async(0)
    assert len(agent.calls) == 5


@pytest.mark.trio
async def test_until_sees_the_output_and_the_context_the_body_left(autojump_clock: Any) -> None:
    """The condition gets `(output, context)` after each turn."""

    async def count(data: int, *, context: Any) -> int:
        context.turns += 1
        return data + 1

    seen: list[tuple[int, int]] = []

    def until(output: int, context: Any) -> bool:
        seen.append((output, context.turns))
        context.turns += 100
        return output == 3

    flujo = Flujo(Step.loop_until("l", Step("c", count), until), initial_context_data={"turns": 0})
    result = await flujo.run_async(0)
    assert seen == [(1, 1), (2, 2), (3, 3)]
    assert result.final_context.turns == 3


@pytest.mark.trio
async def test_a_failing_body_ends_the_loop(autojump_clock: Any) -> None:
    """A turn that fails is the loop's failure."""
    agent = Scripted(1, ValueError("turn two"))
    result = await Flujo(Step.loop_until("l", Step("s", agent), lambda output, context: False)).run_async(0)
    assert (result.status, len(agent.calls)) == ("failed", 2)
    assert "turn two" in result.feedback


@pytest.mark.trio
@pytest.mark.parametrize("where", ["select", "until", "items", "input", "message"])
async def test_exceptions_of_other_user_code_are_failures_at_the_same_choke_point(
    autojump_clock: Any, where: str
) -> None:
    """Whatever users wrote: the exception is the failure's error, its text is in the feedback."""

    def bad(data: Any, context: Any) -> Any:
        raise KeyError("lost")

    declared = {
        "select": lambda: Step.branch_on("s", bad, {"x": Step("x", same)}),
        "until": lambda: Step.loop_until("s", Step("x", same), bad),
        "items": lambda: Step.map_over("s", Step("x", same), items=bad),
        "input": lambda: Step("s", same, input=bad),
        "message": lambda: Step.human_in_the_loop("s", bad),
    }[where]()
    outcomes = [each async for each in Flujo(declared).run_async(1)]
    assert isinstance(outcomes[-1].error, KeyError)
    assert "Agent execution failed with KeyError: 'lost'" in outcomes[-1].feedback


# --- everything in everything -------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("place", PLACES, ids="-".join)
async def test_every_kind_of_step_can_stand_in_every_other(autojump_clock: Any, place: tuple[str, str]) -> None:
    """The leaf gets the input, its output comes out, and the tree of results reaches down to it."""
    result = await Flujo(Step("first", double) >> nested(place, Step("leaf", double))).run_async(1)
    assert result.status == "completed"
    assert unwrapped(place, result.output) == 4
    assert [each.output for _, each in result.walk() if each.name == "leaf"] == [4]


@pytest.mark.trio
@pytest.mark.parametrize("place", PLACES, ids="-".join)
async def test_a_failure_at_any_depth_fails_the_run_with_its_text_and_exception(
    autojump_clock: Any, place: tuple[str, str]
) -> None:
    """The original text is in the run's feedback, and no later step runs."""
    later = Scripted("never")
    pipeline = nested(place, Step("leaf", failing("deep down"))) >> Step("later", later)
    outcomes = [each async for each in Flujo(pipeline).run_async(1)]
    assert "Agent execution failed with ValueError: deep down" in outcomes[-1].feedback
    assert isinstance(outcomes[-1].error, ValueError)
    assert later.calls == []


@pytest.mark.trio
async def test_a_pipeline_is_a_step_at_any_depth(autojump_clock: Any) -> None:
    """Fifty pipelines inside one another."""
    step_or_pipeline: Any = Step("leaf", double)
    for depth in range(50):
        step_or_pipeline = Pipeline((step_or_pipeline,), name=f"p{depth}")
    result = await Flujo(step_or_pipeline).run_async(1)
    assert result.output == 2
    assert max(depth for depth, _ in result.walk()) == 49


@pytest.mark.trio
async def test_one_declaration_serves_concurrent_runs(autojump_clock: Any) -> None:
    """A hundred runs of one `Flujo` at once do not see each other."""

    async def remember(data: int, *, context: Any) -> int:
        context.seen = [*context.seen, data]
        await trio.sleep(1)
        return data

    flujo = Flujo(Step("a", remember) >> Step("b", remember), initial_context_data={"seen": []})
    results = {}

    async def one(n: int) -> None:
        results[n] = await flujo.run_async(n)

    async with trio.open_nursery() as nursery:
        for n in range(100):
            nursery.start_soon(one, n)
    assert all(result.final_context.seen == [n, n] for n, result in results.items())
    assert len({result.run_id for result in results.values()}) == 100
