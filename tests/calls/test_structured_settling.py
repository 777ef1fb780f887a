"""A structured step always settles, and a run is completed only after it has (AROS-1, 2, 3, 6 and 8)."""

from __future__ import annotations

import pytest
import trio
from pydantic_ai import Agent, ModelHTTPError, ModelRetry, UnexpectedModelBehavior
from said_by_models import LIMA, LIMA_JSON, NOISY, PROSE, Call, City, Heard, Played, run, says, watch

from flujo_actors import Aborted, Failure, Flujo, Pipeline, PostRun, PostStep, Step, Success, wrap_dict

ANSWERS = [
    LIMA_JSON,
    NOISY,
    PROSE,
    "",
    Call(LIMA_JSON),
    Call("{'name'"),
    Call("[]"),
    UnexpectedModelBehavior("x", body=NOISY),
    UnexpectedModelBehavior("x"),
    ModelRetry("again"),
    ModelHTTPError(400, "m", {"message": "json mode failed"}),
    ModelHTTPError(503, "m"),
    RuntimeError("bug"),
]


async def double(data: str) -> str:
    return data * 2


@pytest.mark.trio
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: repr(answer)[:30])
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("degrades", [False, True])
async def test_whatever_the_model_does_the_step_settles_last(answer, watched, degrades):
    """Every answer and every error ends in one outcome; the step is the last of the history; nothing stays open."""
    heard, told = Heard(), []
    agent = Agent(Played(answer).model, output_type=City)
    pipeline = Pipeline([Step("double", double), Step("say", agent)])
    settings = {"aros": {"fallback": {"degrade_to_string": degrades}}, "telemetry": {"sinks": [heard]}}
    config = {"settings": settings, "hooks": [told.append]}
    result = (await watch(pipeline, **config))[1] if watched else await run(pipeline, **config)
    assert [step.name for step in result.step_history] == ["double", "say"]
    assert result.status == ("completed" if result.step_history[-1].success else "failed")
    if result.success:
        assert result.output == result.step_history[-1].output
    spans = [(event.kind, event.path) for event in heard.events if event.kind in ("step.started", "step.ended")]
    assert sorted(path for kind, path in spans if kind == "step.started") == sorted(
        path for kind, path in spans if kind == "step.ended"
    )
    assert isinstance(told[-1], PostRun)
    assert isinstance([payload for payload in told if isinstance(payload, PostStep)][-1].outcome, Success | Failure)


@pytest.mark.trio
async def test_an_answer_is_told_even_when_it_is_streamed():
    """There is an `agent.response` for a streamed answer, and the step's end comes after it."""
    heard = Heard()
    step = Step("say", Agent(Played(Call(LIMA_JSON)).model, output_type=City))
    await watch(step, settings={"telemetry": {"sinks": [heard]}})
    kinds = [event.kind for event in heard.events]
    assert kinds.index("agent.response") < kinds.index("step.ended") < kinds.index("run.ended")


@pytest.mark.trio
async def test_a_step_that_is_cancelled_settles_as_aborted(autojump_clock):
    """Also in the middle of a repair."""

    ended = []
    step = Step("say", hanging, processing={"schema": City})
    with trio.move_on_after(1):
        async with Flujo(step, hooks=[ended.append]).run_async("x") as handle:
            await handle
    outcomes = [payload.outcome for payload in ended if isinstance(payload, PostStep)]
    assert [type(outcome) for outcome in outcomes] == [Aborted]


async def hanging(data: str) -> str:
    if "Return only JSON" in data:
        await trio.sleep_forever()
    return PROSE


@pytest.mark.trio
async def test_a_timeout_counts_for_all_stages_together(autojump_clock):
    """An attempt's time covers its repairs and retries."""
    result = await run(Step("say", hanging, processing={"schema": City}, timeout_s=3))
    assert "timeout_s=3" in result.feedback


@pytest.mark.trio
async def test_the_next_step_gets_the_value():
    """Steps after a structured one get what it promised."""

    async def name(city: City) -> str:
        return city.name

    assert (await run(says(NOISY) >> Step("name", name))).output == "Lima"


@pytest.mark.trio
async def test_a_value_can_be_merged_into_the_context():
    """`updates_context` takes a model or a dict, also one that was repaired."""
    step = Step("say", lambda data: NOISY, processing={"schema": City}, updates_context=True, mergeable_output=True)
    result = await run(step)
    assert result.final_context.people == 10


@pytest.mark.trio
async def test_validators_and_processors_see_the_value(autojump_clock):
    """What stands around a step's agent works on the value, not on the text."""
    step = Step("say", lambda data: NOISY, processing={"schema": City}, validators=[lambda city: city.people == 10])
    assert (await run(step)).success


@pytest.mark.trio
async def test_many_structured_steps_run_at_once():
    """Branches and items keep their values apart."""
    step = Step("say", lambda data: f"{{'name': '{data}', 'people': {data},}}", processing={"schema": City})
    result = await run(Step.map_over("all", step), list(range(50)))
    assert [city.people for city in result.output] == list(range(50))
    both = await run(Step.parallel("both", {"a": says(NOISY), "b": says(LIMA_JSON)}))
    assert both.output == {"a": City(**LIMA), "b": City(**LIMA)}


@pytest.mark.trio
async def test_builtins_are_steps():
    """The built-ins stand in pipelines like any function."""
    from flujo_actors import ensure_object

    pipeline = says(NOISY) >> Step("object", ensure_object) >> Step("wrap", wrap_dict("city"))
    assert (await run(pipeline)).output == {"city": LIMA}
