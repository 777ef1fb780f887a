"""What telemetry hears of repairs and fallback stages, and what it does not."""

from __future__ import annotations

from collections import Counter

import pytest
from pydantic_ai import Agent, UnexpectedModelBehavior
from said_by_models import LIMA, LIMA_JSON, NOISY, PROSE, Call, City, Heard, Played, noted, run, says, watch

from flujo_actors import Step, UsageLimitExceededError, UsageLimits
from flujo_actors.structured import compile_schema


async def heard_of(step, **settings):
    heard = Heard()
    telemetry = {"sinks": [heard], **settings.pop("telemetry", {})}
    await run(step, settings={"telemetry": telemetry, "aros": settings})
    return heard


@pytest.mark.trio
@pytest.mark.parametrize("said", [LIMA_JSON, {"name": "Lima", "people": 10}])
async def test_what_needs_no_repair_is_not_told_as_one(said):
    """A valid answer makes no noise."""
    assert (await heard_of(says(said))).stages == []


@pytest.mark.trio
async def test_a_deterministic_repair_is_told():
    """Begun and done, with the step, the attempt and the hash of the schema."""
    heard = await heard_of(says(NOISY))
    assert heard.stages == [("aros.repair.started", "deterministic"), ("aros.repair.success", "deterministic")]
    event = next(event for event in heard.events if event.kind == "aros.repair.success")
    assert (event.step_name, event.attempt, event.provider_error) == ("say", 1, None)
    assert event.schema_hash == compile_schema(City).schema_hash


@pytest.mark.trio
async def test_repairs_by_the_model_are_told():
    """Each failure with its reason, then the success."""
    played = Played(Call('{"name": "Lima"}'), PROSE, LIMA_JSON)
    heard = await heard_of(Step("say", Agent(played.model, output_type=City, retries=0)))
    assert heard.stages == [
        ("aros.repair.started", "deterministic"),
        ("aros.repair.failed", "deterministic"),
        ("aros.repair.started", "llm"),
        ("aros.repair.failed", "llm"),
        ("aros.repair.started", "llm"),
        ("aros.repair.success", "llm"),
    ]
    failed = [event for event in heard.events if event.kind == "aros.repair.failed"]
    assert "people" in failed[0].feedback
    assert failed[0].provider_error == "UnexpectedModelBehavior"
    assert sum(event.kind == "agent.usage" for event in heard.events) == 3


@pytest.mark.trio
async def test_fallback_stages_are_told_as_they_begin():
    """With the reason why the stage before did not do."""
    error = UnexpectedModelBehavior("no")
    heard = await heard_of(Step("say", Agent(Played(error, Call(LIMA_JSON)).model, output_type=City)))
    assert heard.stages[0] == ("aros.fallback.stage", "retry")
    first = next(event for event in heard.events if event.kind == "aros.fallback.stage")
    assert "the provider refused the answer" in first.feedback
    assert first.provider_error == "UnexpectedModelBehavior"


ENDS = ("aros.repair.success", "aros.repair.failed")


def pairs(heard):
    """How often each stage was begun, and how often it ended."""
    begun = Counter(stage for kind, stage in heard.stages if kind == "aros.repair.started")
    return begun, Counter(stage for kind, stage in heard.stages if kind in ENDS)


STUBBORN = {
    "agent that promises the value": lambda: Step("say", Agent(Played(PROSE).model, output_type=City)),
    "agent that returns text": lambda: Step("say", Agent(Played(PROSE).model), processing={"schema": City}),
    "function": lambda: says(PROSE),
    "value that is not clean": lambda: says(NOISY),
    "provider that refuses": lambda: Step("say", Agent(Played(UnexpectedModelBehavior("no")).model, output_type=City)),
}


@pytest.mark.trio
@pytest.mark.parametrize("simplify", [False, True])
@pytest.mark.parametrize("make", STUBBORN.values(), ids=list(STUBBORN))
async def test_every_stage_that_begins_ends(make, simplify):
    """As many ends as starts for each stage, so that rates can be reckoned; the flat schema is a stage of its own."""
    heard = await heard_of(make(), schema_simplify=simplify)
    begun, ended = pairs(heard)
    assert begun == ended
    assert ("simplified" in begun) == (simplify and "retry" in begun)


@pytest.mark.trio
async def test_a_stage_that_a_limit_cuts_short_is_told_as_ended():
    """The error passes through the repair, and the repair has ended all the same."""
    heard, played = Heard(), Played(PROSE)
    step = Step("say", Agent(played.model, output_type=City, retries=0))
    with pytest.raises(UsageLimitExceededError):
        await run(step, usage_limits=UsageLimits(total_tokens_limit=35), settings={"telemetry": {"sinks": [heard]}})
    assert len(played.asked) == 1
    assert pairs(heard) == ({"deterministic": 1, "llm": 1}, {"deterministic": 1, "llm": 1})


# --- what the agent said ------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("go", [run, watch])
@pytest.mark.parametrize(
    "said",
    [
        [NOISY],
        [Call("{'name': 'Lima', 'people': '10',}")],
        [Call('{"name": "Lima"}'), LIMA_JSON],
        [PROSE, PROSE, PROSE, Call(LIMA_JSON)],
        [Call(LIMA_JSON)],
    ],
)
async def test_an_agent_whose_answer_was_mended_has_answered(go, said):
    """The value that its answer came to is told, once, and the metadata names the model: watched or not."""
    heard = Heard()
    settings = {"telemetry": {"sinks": [heard], "content": True}}
    result = await go(Step("say", Agent(Played(*said).model, output_type=City)), settings=settings)
    result = result if go is run else result[1]
    told = [event.output for event in heard.events if event.kind == "agent.response"]
    assert result.output == City(**LIMA)
    assert told == [LIMA]
    assert noted(result)["model"] == "played"


@pytest.mark.trio
@pytest.mark.parametrize("go", [run, watch])
async def test_an_agent_whose_answer_nobody_could_use_has_answered(go):
    """What it wrote is told where the step fails."""
    heard = Heard()
    settings = {"telemetry": {"sinks": [heard], "content": True}, "aros": {"fallback": {"degrade_to_string": False}}}
    await go(Step("say", Agent(Played(PROSE).model, output_type=City)), settings=settings)
    assert [event.output for event in heard.events if event.kind == "agent.response"] == [PROSE]


# --- what is told on request --------------------------------------------------------------------------------


@pytest.mark.trio
async def test_what_models_wrote_is_told_only_on_request():
    """The raw text is content, the passes are detail: both are off by default."""
    for settings, text in (({}, None), ({"content": True}, PROSE)):
        heard = await heard_of(says(PROSE), telemetry=settings)
        failed = next(event for event in heard.events if event.kind == "aros.repair.failed")
        assert failed.raw_text == text
    heard = await heard_of(says(NOISY))
    assert next(event for event in heard.events if event.kind == "aros.repair.success").passes is None


@pytest.mark.trio
async def test_verbose_telemetry_shows_the_passes():
    """`aros.telemetry.verbose` says what the repair did."""
    heard = Heard()
    await run(says(NOISY), settings={"telemetry": {"sinks": [heard]}, "aros": {"telemetry": {"verbose": True}}})
    assert next(event for event in heard.events if event.kind == "aros.repair.success").passes


@pytest.mark.trio
async def test_secrets_in_reasons_are_hidden():
    """A reason that quotes the text is redacted before anybody sees it."""
    secret = "sk-" + "a1B2c3D4" * 6
    result = await run(
        says(f'{{"name": "{secret}", "people": "{secret}"}}'),
        settings={"aros": {"fallback": {"degrade_to_string": False}}},
    )
    assert secret not in result.feedback
