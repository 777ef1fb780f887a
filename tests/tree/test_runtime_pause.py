"""Pausing and resuming within one process, at any depth."""

from __future__ import annotations

import dataclasses
from typing import Any, TypedDict

import attrs
import pydantic
import pytest
import trio
from scripted import AT_ONCE, PLACES, Scripted, collected, nested, same, spent, told, unwrapped, wasted

from flujo_actors import Flujo, Paused, Pipeline, PipelineResult, Step
from flujo_actors.errors import InvalidAnswer, NotPaused, UsageLimitExceededError

ASK = Step.human_in_the_loop("ask", "ok?")


@pytest.mark.trio
async def test_a_run_pauses_and_goes_on_with_the_answer(autojump_clock: Any) -> None:
    """The answer is the human step's output; finished steps are not run again, their usage stays."""
    before, after = Scripted(spent("before", 5, 0.5)), Scripted(spent("after", 7, 0.7))
    flujo = Flujo(Step("a", before) >> ASK >> Step("b", after))
    paused = await flujo.run_async("in", run_id="r")
    assert (paused.status, paused.success, paused.output) == ("paused", False, None)
    assert (paused.feedback, paused.total_tokens) == ("ok?", 5)
    assert [each.name for each in paused.step_history] == ["a"]
    result = await flujo.resume_async(paused.state_token, {"any": "thing"})
    assert (result.status, result.output, result.run_id) == ("completed", "after", "r")
    assert (before.calls, after.calls) == (["in"], [{"any": "thing"}])
    assert (result.total_tokens, result.total_cost_usd) == (12, pytest.approx(1.2))
    assert [(each.name, each.output) for each in result.step_history] == [
        ("a", "before"),
        ("ask", {"any": "thing"}),
        ("b", "after"),
    ]


def test_synchronous_code_can_resume() -> None:
    """`run` and `resume`, each with a loop of its own."""
    flujo = Flujo(ASK >> Step("b", same))
    paused = flujo.run(1)
    assert flujo.resume(paused.state_token, "yes").output == "yes"


@pytest.mark.trio
async def test_the_paused_outcome_carries_message_and_token(autojump_clock: Any) -> None:
    """Iterating ends with it; iterating the rest yields the human step and what follows."""
    flujo = Flujo(
        Step("a", same) >> Step.human_in_the_loop("h", lambda data, context: f"ok, {data}?") >> Step("b", same)
    )
    outcomes = await collected(flujo.run_async("Ada"))
    assert told(outcomes) == ["success a", "paused ok, Ada?"]
    rest = flujo.resume_async(outcomes[-1].state_token, "sure")
    assert told(await collected(rest)) == ["success h", "success b"]
    assert (await rest).output == "sure"


@pytest.mark.trio
@pytest.mark.parametrize("place", PLACES, ids="-".join)
async def test_a_pause_at_any_depth_pauses_and_resumes_the_run(autojump_clock: Any, place: tuple[str, str]) -> None:
    """What was done before is kept and not done again; totals add up before and after."""
    before, first, later = Scripted(spent("before", 5)), Scripted(spent("first", 11)), Scripted(spent("later", 7))
    leaf = Pipeline((Step("first", first), ASK, Step("later", later)), name="leaf")
    flujo = Flujo(Step("before", before) >> nested(place, leaf) >> Step("end", same))
    outcomes = await collected(flujo.run_async("in"))
    assert isinstance(outcomes[-1], Paused)
    assert outcomes[-1].message == "ok?"
    paused_totals = (await flujo.run_async("in")).total_tokens
    assert paused_totals == 16
    before.calls.clear(), first.calls.clear()
    result = await flujo.resume_async(outcomes[-1].state_token, "the answer")
    assert (result.status, unwrapped(place, result.output)) == ("completed", "later")
    assert (before.calls, first.calls, later.calls) == ([], [], ["the answer"])
    assert result.total_tokens == sum(each.token_counts for each in result.step_history) == 23


@pytest.mark.trio
@pytest.mark.parametrize("place", PLACES, ids="-".join)
async def test_an_agent_may_pause_at_any_depth(autojump_clock: Any, place: tuple[str, str]) -> None:
    """By returning `Paused`; the agent is not called again, the answer is its output."""
    agent = Scripted(wasted("once", 3), Paused(message="which?"))
    flujo = Flujo(nested(place, Step("leaf", agent, max_retries=1, backoff=AT_ONCE)))
    paused = await flujo.run_async("in")
    assert (paused.status, paused.feedback, paused.total_tokens) == ("paused", "which?", 3)
    result = await flujo.resume_async(paused.state_token, "this one")
    assert unwrapped(place, result.output) == "this one"
    assert (len(agent.calls), result.total_tokens) == (2, 3)


@pytest.mark.trio
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("kind", ["parallel", "map"])
async def test_two_branches_may_pause_at_once(autojump_clock: Any, kind: str, order: tuple[int, int]) -> None:
    """Siblings run to their end; each pause has its own token and they are answered in any order."""
    beside = Scripted(spent("beside", 5))
    asks = [Step.human_in_the_loop(f"ask {n}", f"question {n}") for n in range(2)]
    if kind == "parallel":
        step: Any = Step.parallel("p", {0: asks[0], 1: asks[1], 2: Step("beside", beside)})
    else:
        body = Step.branch_on("b", lambda data, context: data, {0: asks[0], 1: asks[1], 2: Step("beside", beside)})
        step = Step.map_over("p", body, items=[0, 1, 2])
    flujo = Flujo(step >> Step("end", same))
    outcomes = await collected(flujo.run_async("in"))
    tokens = {each.message: each.state_token for each in outcomes if isinstance(each, Paused)}
    assert len(set(tokens.values())) == 2
    paused = await flujo.resume_async(tokens[f"question {order[0]}"], f"answer {order[0]}")
    assert (paused.status, paused.feedback) == ("paused", f"question {order[1]}")
    assert paused.state_token == tokens[f"question {order[1]}"]
    with pytest.raises(NotPaused):
        await flujo.resume_async(tokens[f"question {order[0]}"], "again")
    result = await flujo.resume_async(tokens[f"question {order[1]}"], f"answer {order[1]}")
    assert list(result.output.values() if kind == "parallel" else result.output) == ["answer 0", "answer 1", "beside"]
    assert (len(beside.calls), result.total_tokens) == (1, 5)


@pytest.mark.trio
async def test_every_turn_of_a_loop_may_pause(autojump_clock: Any) -> None:
    """Each is a pause of its own."""
    counted = Scripted(spent("n", 1))
    body = Pipeline((Step("count", counted), ASK), name="body")
    flujo = Flujo(Step.loop_until("l", body, lambda output, context: output == "stop"))
    result = await flujo.run_async("in")
    for answer in ("go on", "go on", "stop"):
        assert result.status == "paused"
        result = await flujo.resume_async(result.state_token, answer)
    assert (result.status, result.output) == ("completed", "stop")
    assert (len(counted.calls), result.total_tokens) == (3, 3)


@pytest.mark.trio
async def test_a_failed_primary_is_not_called_again_after_its_fallback_paused(autojump_clock: Any) -> None:
    """Its calls are counted once, with the fallback's; the original error is still known."""
    primary = Scripted(wasted("one", 1), wasted("two", 2))
    standby = Step("first", Scripted(spent("x", 4))) >> ASK
    flujo = Flujo(Step("s", primary, max_retries=1, backoff=AT_ONCE, fallback=standby))
    paused = await flujo.run_async("in")
    assert (paused.status, paused.total_tokens) == ("paused", 7)
    result = await flujo.resume_async(paused.state_token, "yes")
    assert (result.output, len(primary.calls), result.total_tokens) == ("yes", 2, 7)
    assert result.step_history[0].metadata["original_error"] == "two"
    assert result.step_history[0].attempts == 3


@pytest.mark.trio
@pytest.mark.parametrize("how", ["failure", "timeout"])
async def test_a_pause_in_a_later_attempt_does_not_repeat_the_earlier_ones(autojump_clock: Any, how: str) -> None:
    """Whatever ended the first attempt, its work is not done again and its usage is counted once."""
    calls: list[str] = []

    async def flaky(data: Any) -> Any:
        calls.append("flaky")
        if len(calls) > 1:
            return spent("ok", 4)
        if how == "timeout":
            await trio.sleep(60)
        return wasted("first", 2)

    paid = Scripted(spent("paid", 10))
    body = Pipeline((Step("paid", paid), Step("flaky", flaky), ASK), name="body")
    flujo = Flujo(Step.parallel("p", {"x": body}, max_retries=1, backoff=AT_ONCE, timeout_s=5))
    paused = await flujo.run_async("in")
    spent_by_then = 24 if how == "timeout" else 26
    assert (paused.status, paused.total_tokens) == ("paused", spent_by_then)
    result = await flujo.resume_async(paused.state_token, "yes")
    assert result.output == {"x": "yes"}
    assert (len(calls), len(paid.calls), result.total_tokens) == (2, 2, spent_by_then)
    assert result.step_history[0].attempts == 2


@pytest.mark.trio
async def test_the_context_survives_a_pause(autojump_clock: Any) -> None:
    """Also inside a branch; the answer may update it."""

    async def write(data: Any, *, context: Any) -> None:
        context.notes = [*context.notes, "written"]

    ask = Step.human_in_the_loop("ask", "?", updates_context=True)
    branch = Pipeline((Step("w", write), ask), name="branch")
    flujo = Flujo(Step.parallel("p", {"x": branch}), initial_context_data={"notes": [], "name": ""})
    paused = await flujo.run_async(1)
    assert paused.final_context.notes == []
    result = await flujo.resume_async(paused.state_token, {"name": "Ada"})
    assert (result.final_context.notes, result.final_context.name) == (["written"], "Ada")


@pytest.mark.trio
async def test_a_validator_judges_the_answer_as_the_steps_output(autojump_clock: Any) -> None:
    """The schema guards the door, validators judge the output."""
    flujo = Flujo(Step.human_in_the_loop("ask", "?", validators=[lambda output: output == "good"]))
    paused = await flujo.run_async(1)
    assert (await flujo.resume_async(paused.state_token, "bad")).status == "failed"


# --- answers ------------------------------------------------------------------------------------------------


class Model(pydantic.BaseModel):
    name: str
    n: int = 0


@attrs.frozen
class Attrs:
    name: str
    n: int = 0


@dataclasses.dataclass
class Data:
    name: str
    n: int = 0


class Typed(TypedDict):
    name: str


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.mark.trio
@pytest.mark.parametrize(
    ("schema", "bad", "good", "output"),
    [
        (int, "many", 3, 3),
        (str, 5, "text", "text"),
        (bool, "perhaps", True, True),
        (list[int], ["x"], [1], [1]),
        (int | None, "x", None, None),
        (Model, {"nam": "x"}, {"name": "Ada"}, Model(name="Ada")),
        (Model, None, Model(name="Ada", n=2), Model(name="Ada", n=2)),
        (Attrs, {"nam": "x"}, {"name": "Ada"}, Attrs(name="Ada")),
        (Attrs, "text", Attrs(name="Ada"), Attrs(name="Ada")),
        (Attrs, {"name": "Ada", "n": "many"}, {"name": "Ada", "n": 3}, Attrs(name="Ada", n=3)),
        (Attrs, None, {"name": "Ada"}, Attrs(name="Ada")),
        (Data, {"nam": "x"}, {"name": "Ada"}, Data(name="Ada")),
        (Data, 5, Data(name="Ada"), Data(name="Ada")),
        (Typed, {"name": 5}, {"name": "Ada"}, {"name": "Ada"}),
        (SCHEMA, {"name": 5}, {"name": "Ada"}, {"name": "Ada"}),
        (SCHEMA, "text", {"name": "Ada", "more": 1}, {"name": "Ada", "more": 1}),
    ],
)
async def test_an_answer_must_fit_its_schema(
    autojump_clock: Any, schema: Any, bad: Any, good: Any, output: Any
) -> None:
    """A bad one is refused and the run stays paused; a good one becomes the schema's type."""
    flujo = Flujo(Step.human_in_the_loop("ask", "?", input_schema=schema) >> Step("b", same))
    paused = await flujo.run_async(1)
    for _ in range(2):
        with pytest.raises(InvalidAnswer, match="'ask'"):
            await flujo.resume_async(paused.state_token, bad)
    result = await flujo.resume_async(paused.state_token, good)
    assert (result.status, result.output) == ("completed", output)
    assert type(result.output) is type(output)


@pytest.mark.trio
async def test_a_bad_answer_is_refused_when_iterating_too(autojump_clock: Any) -> None:
    """The error comes with the first outcome asked for."""
    flujo = Flujo(Step.human_in_the_loop("ask", "?", input_schema=int))
    paused = await flujo.run_async(1)
    with pytest.raises(InvalidAnswer):
        await collected(flujo.resume_async(paused.state_token, "many"))
    assert (await flujo.resume_async(paused.state_token, 4)).output == 4


@pytest.mark.trio
async def test_an_answer_counts_once(autojump_clock: Any) -> None:
    """The second one is told that the run is not paused, whatever became of it."""
    flujo = Flujo(ASK >> Step("b", same))
    paused = await flujo.run_async(1)
    await flujo.resume_async(paused.state_token, "yes")
    with pytest.raises(NotPaused):
        await flujo.resume_async(paused.state_token, "no")


@pytest.mark.trio
async def test_of_many_answers_at_once_exactly_one_wins(autojump_clock: Any) -> None:
    """The others are refused while the run goes on."""
    agent = Scripted("done")

    async def slow(data: Any) -> Any:
        await trio.sleep(1)
        return await agent.run(data)

    flujo = Flujo(ASK >> Step("b", slow))
    paused = await flujo.run_async(1)
    won: list[PipelineResult] = []
    lost: list[NotPaused] = []

    async def answer(n: int) -> None:
        try:
            won.append(await flujo.resume_async(paused.state_token, n))
        except NotPaused as error:
            lost.append(error)

    async with trio.open_nursery() as nursery:
        for n in range(10):
            nursery.start_soon(answer, n)
    assert (len(won), len(lost), len(agent.calls)) == (1, 9, 1)


@pytest.mark.trio
@pytest.mark.parametrize("token", ["", "garbage", "a:b", ":", "%", "::::", "../..", None, 5, b"x", "\x00:\x00"])
async def test_a_token_that_names_no_pause_is_refused(autojump_clock: Any, token: Any) -> None:
    """Garbage, and tokens of runs that are not there."""
    flujo = Flujo(ASK)
    await flujo.run_async(1)
    with pytest.raises(NotPaused):
        await flujo.resume_async(token, "yes")


@pytest.mark.trio
async def test_a_run_that_never_paused_cannot_be_resumed(autojump_clock: Any) -> None:
    """Nor one that failed, nor by another `Flujo`."""
    flujo, other = Flujo(Step("a", same)), Flujo(ASK)
    await flujo.run_async(1, run_id="r")
    with pytest.raises(NotPaused):
        await flujo.resume_async("r:a", "yes")
    paused = await other.run_async(1)
    with pytest.raises(NotPaused):
        await flujo.resume_async(paused.state_token, "yes")


@pytest.mark.trio
@pytest.mark.parametrize("run_id", ["a:b", "a/b", "ü", "100%", " ", "~i1"])
@pytest.mark.parametrize("name", ["ask", "a/b", "a:b", "~f", "~i1", "ü"])
async def test_any_run_id_and_any_step_name_make_a_working_token(autojump_clock: Any, run_id: str, name: str) -> None:
    """Tokens are only handed back, so any character will do."""
    flujo = Flujo(Step.loop_until("l/~1", Step.human_in_the_loop(name, "?"), lambda output, context: True))
    paused = await flujo.run_async(1, run_id=run_id)
    assert (await flujo.resume_async(paused.state_token, "yes")).output == "yes"


@pytest.mark.trio
async def test_a_failure_beside_a_pause_fails_the_run(autojump_clock: Any) -> None:
    """There is nothing to wait for any more, and nobody is told of a question that could not be answered."""
    flujo = Flujo(Step.parallel("p", {"ask": ASK, "bad": Step("bad", Scripted(ValueError("no")))}))
    outcomes = await collected(flujo.run_async(1, run_id="r"))
    assert told(outcomes)[-1] == "failure p"
    assert not [each for each in outcomes if isinstance(each, Paused)]
    with pytest.raises(NotPaused):
        await flujo.resume_async("r")


@pytest.mark.trio
async def test_control_errors_after_a_pause_carry_the_whole_result(autojump_clock: Any) -> None:
    """Also what was done before the pause."""
    pipeline = Step("a", Scripted(spent("x", 5))) >> ASK >> Step("b", Scripted(UsageLimitExceededError("stop")))
    flujo = Flujo(pipeline)
    paused = await flujo.run_async(1)
    with pytest.raises(UsageLimitExceededError) as caught:
        await flujo.resume_async(paused.state_token, "yes")
    assert caught.value.result.total_tokens == 5
    assert [each.name for each in caught.value.result.step_history] == ["a", "ask", "b"]


@pytest.mark.trio
async def test_many_paused_runs_wait_side_by_side(autojump_clock: Any) -> None:
    """Each goes on with its own answer."""
    flujo = Flujo(Step("a", same) >> ASK >> Step("b", same))
    tokens = [(await flujo.run_async(n)).state_token for n in range(20)]
    results = [await flujo.resume_async(token, n) for n, token in reversed(list(enumerate(tokens)))]
    assert [result.output for result in results] == list(reversed(range(20)))
