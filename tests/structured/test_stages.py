"""The plan of repair and fallback, and the flat schema."""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors.errors import StructuredOutputError
from flujo_actors.structured import (
    STRICT_INSTRUCTION,
    Decision,
    Degrade,
    Deterministic,
    Extract,
    Flaw,
    GiveUp,
    LlmRepair,
    RepairSettings,
    Simplified,
    StageFailure,
    StrictRetry,
    compile_schema,
    plan_next,
    repair_prompt,
    simplify,
    stage_of,
)

SCHEMA = compile_schema(
    {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "ok": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "customer": {
                "type": "object",
                "properties": {"name": {"type": "string", "description": "who pays"}, "tier": {"enum": ["A", "B"]}},
                "required": ["name"],
            },
            "rows": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "number"}}}},
        },
        "required": ["id", "customer"],
        "additionalProperties": False,
    }
)
FLAW = Flaw(path="$.id", message="is missing")


def failing_run(settings: RepairSettings, text: str = "prose", *, provider_error: bool = False) -> list[Decision]:
    """Every decision of a run in which nothing ever works."""
    history: tuple[StageFailure, ...] = ()
    decisions: list[Decision] = []
    while not decisions or not isinstance(decisions[-1], GiveUp | Degrade):
        decisions.append(plan_next(settings, history, text=text, schema=SCHEMA))
        stage = stage_of(decisions[-1])
        failed = StageFailure(stage=stage, reason="no", text=text, flaws=(FLAW,), provider_error=provider_error)
        history = (*history, failed)
        assert len(history) < 20
    return decisions


def kinds(decisions: list[Decision]) -> list[type]:
    return [type(decision) for decision in decisions]


def test_the_stages_come_in_order() -> None:
    """Deterministic, model repair twice, stricter retry, extractor, plain text."""
    assert kinds(failing_run(RepairSettings())) == [
        Deterministic,
        LlmRepair,
        LlmRepair,
        StrictRetry,
        Extract,
        Degrade,
    ]


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"enable_llm": False}, LlmRepair),
        ({"max_attempts": 0}, LlmRepair),
        ({"enable_extractor": False}, Extract),
        ({"degrade_to_string": False}, Degrade),
        ({"max_stages": 2}, Degrade),
        ({"max_stages": 1}, Extract),
        ({"max_stages": 0}, StrictRetry),
    ],
)
def test_each_switch_removes_its_stage(change: dict[str, Any], missing: type) -> None:
    """What is switched off is not planned, and the run still ends."""
    assert missing not in kinds(failing_run(RepairSettings(**change)))


def test_the_simplifier_comes_after_repeated_failures() -> None:
    """It is tried once, before the extractor, and only if it is switched on."""
    decisions = kinds(failing_run(RepairSettings(schema_simplify=True)))
    assert decisions.index(StrictRetry) < decisions.index(Simplified) < decisions.index(Extract)
    assert decisions.count(Simplified) == 1


def test_a_provider_error_is_given_up_after_repair_if_told_so() -> None:
    """Without `degrade_on_unexpected_behavior` there is no fallback for what the provider refused."""
    settings = RepairSettings(degrade_on_unexpected_behavior=False)
    assert kinds(failing_run(settings, provider_error=True)) == [Deterministic, LlmRepair, LlmRepair, GiveUp]
    assert kinds(failing_run(settings))[-1] is Degrade


def test_validation_alone_repairs_nothing() -> None:
    """`enforcement="validate"` gives up at once and names the flaws."""
    decisions = failing_run(RepairSettings(enforcement="validate"))
    assert kinds(decisions) == [Deterministic, GiveUp]
    assert decisions[-1] == GiveUp(stage="deterministic", reason="no", flaws=(FLAW,))


def test_an_empty_output_is_not_sent_to_repair() -> None:
    """There is nothing to repair or to extract from in silence."""
    assert kinds(failing_run(RepairSettings(), text="")) == [Deterministic, StrictRetry, Degrade]


def test_the_repair_prompt_holds_the_output_the_schema_and_the_flaws_only() -> None:
    """The model sees what failed and why, and is told not to invent."""
    prompt = repair_prompt("id is seven", SCHEMA, [FLAW])
    assert "id is seven" in prompt
    assert '"customer"' in prompt
    assert "$.id: is missing" in prompt
    assert STRICT_INSTRUCTION in prompt
    assert len(repair_prompt("x" * 1_000_000, SCHEMA, [])) < 30_000


def test_the_stricter_instruction_names_the_flaws() -> None:
    """It starts with the documented sentence."""
    retry = next(d for d in failing_run(RepairSettings()) if isinstance(d, StrictRetry))
    assert retry.instruction.startswith("Return only JSON. No extra text.")
    assert "$.id: is missing" in retry.instruction


@given(st.builds(RepairSettings, max_attempts=st.integers(0, 4), max_stages=st.integers(0, 4)), st.booleans())
def test_every_plan_ends(settings: RepairSettings, provider_error: bool) -> None:
    """Whatever the settings, a run of failures comes to an end that the shell can settle with."""
    decisions = failing_run(settings, provider_error=provider_error)
    assert isinstance(decisions[0], Deterministic)
    assert kinds(decisions).count(LlmRepair) <= settings.max_attempts


# --- the flat schema ------------------------------------------------------------------------------------------


def test_a_schema_becomes_a_flat_object_of_strings() -> None:
    """Nested names are dotted, every value is a string, required stays required."""
    flat = simplify(SCHEMA).json_schema
    assert set(flat["properties"]) == {"id", "ok", "tags", "customer.name", "customer.tier", "rows"}
    assert {part["type"] for part in flat["properties"].values()} == {"string"}
    assert flat["required"] == ["id", "customer.name"]
    assert flat["properties"]["customer.name"]["description"] == "who pays (text)"


def test_the_flat_object_is_mapped_back_and_validated() -> None:
    """Strings become the types of the real schema."""
    flat = {
        "id": "7",
        "ok": "yes",
        "tags": "- x\n- y, z",
        "customer.name": "Bob",
        "customer.tier": "b",
        "rows": '[{"n": 1.5}]',
    }
    assert simplify(SCHEMA).restore(flat) == {
        "id": 7,
        "ok": True,
        "tags": ["x", "y, z"],
        "customer": {"name": "Bob", "tier": "B"},
        "rows": [{"n": 1.5}],
    }
    assert simplify(SCHEMA).read('Sure: {"id": "7", "customer.name": "Bob", "tags": ""}') == {
        "id": 7,
        "customer": {"name": "Bob"},
    }


@pytest.mark.parametrize("flat", [{}, {"id": "seven", "customer.name": "Bob"}, {"id": "7", "customer.tier": "A"}])
def test_a_flat_object_that_does_not_fit_is_refused(flat: dict[str, str]) -> None:
    """The real schema decides."""
    with pytest.raises(StructuredOutputError) as caught:
        simplify(SCHEMA).restore(flat)
    assert caught.value.stage == "simplify"


def test_a_class_comes_back_as_an_instance() -> None:
    """The way back ends where the schema's own reading ends."""

    @attrs.frozen
    class Point:
        x: int
        y: int

    assert simplify(Point).restore({"x": "1", "y": "2"}) == Point(1, 2)
    assert simplify({"type": "array", "items": {"type": "integer"}}).restore({"value": "1\n2"}) == [1, 2]
