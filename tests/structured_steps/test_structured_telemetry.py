"""What telemetry hears of repairs and fallback stages, and what it does not."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent, UnexpectedModelBehavior
from said_by_models import LIMA_JSON, NOISY, PROSE, Call, City, Heard, Played, run, says

from flujo_actors import Step
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
    heard = await heard_of(Step("say", Agent(played.model, output_type=City)))
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
