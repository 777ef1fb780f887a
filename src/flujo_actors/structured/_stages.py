"""What to do next with an output that did not fit. Pure: the shell carries it out and reports back.

1. The deterministic reading comes first, once for each text.
2. Then the model repairs its output, at most `max_attempts` times, if there is an output to repair.
3. Then the fallback stages, each once: (1) a stricter retry, (2) the extractor, (3) plain text; `max_stages` says
   how many of the three may be used.
4. After two failures with `schema_simplify`, the flat schema is tried once, between the first and the second stage.
5. An output the provider itself refused goes to the fallback stages only if `degrade_on_unexpected_behavior`.
6. With `enforcement="validate"` nothing is repaired: what does not fit is given up.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, assert_never

import attrs

from ._prompts import MAX_QUOTED_OUTPUT, repair_prompt, simplified_instruction, strict_instruction
from ._reading import Flaw
from ._schema import Schema
from ._simplify import SimplifiedSchema, simplify

Stage: TypeAlias = Literal["deterministic", "llm", "strict_retry", "simplified", "extractor", "degrade", "give_up"]
"""The name of a stage, as telemetry knows it."""

_RETRY, _EXTRACT, _DEGRADE = 1, 2, 3


@attrs.frozen(kw_only=True)
class RepairSettings:
    """The switches of repair and fallback (`aros.repair.*`, `aros.fallback.*`)."""

    enforcement: Literal["validate", "repair"] = "repair"
    max_attempts: int = attrs.field(default=2, validator=attrs.validators.ge(0))
    enable_llm: bool = True
    max_stages: int = attrs.field(default=3, validator=attrs.validators.ge(0))
    enable_extractor: bool = True
    degrade_to_string: bool = True
    degrade_on_unexpected_behavior: bool = True
    schema_simplify: bool = False


@attrs.frozen(kw_only=True)
class StageFailure:
    """One stage that was tried and did not end in a valid value."""

    stage: Stage
    reason: str
    text: str = ""
    """The output that failed; empty if the stage brought none."""
    flaws: tuple[Flaw, ...] = ()
    provider_error: bool = False
    """The provider refused the output itself (JSON mode, unexpected behavior)."""
    unanswered: bool = False
    """The call failed: there was no output to judge, and why is nothing that the model should be told."""


@attrs.frozen(kw_only=True)
class Deterministic:
    """Read the text without a model."""

    text: str


@attrs.frozen(kw_only=True)
class LlmRepair:
    """Ask the model to correct its output; `prompt` is all it may see."""

    attempt: int
    prompt: str


@attrs.frozen(kw_only=True)
class StrictRetry:
    """Run the step's agent again with this instruction added."""

    instruction: str


@attrs.frozen(kw_only=True)
class Simplified:
    """Run the step's agent again, asking for the flat schema."""

    instruction: str
    schema: SimplifiedSchema


@attrs.frozen(kw_only=True)
class Extract:
    """Search the text for the schema's values."""

    text: str


@attrs.frozen(kw_only=True)
class Degrade:
    """Settle with plain text, marked as degraded."""

    text: str


@attrs.frozen(kw_only=True)
class GiveUp:
    """Settle as a failure that names the stage and the flaws."""

    stage: Stage
    reason: str
    flaws: tuple[Flaw, ...] = ()


Decision: TypeAlias = Deterministic | LlmRepair | StrictRetry | Simplified | Extract | Degrade | GiveUp
History: TypeAlias = tuple[StageFailure, ...]


def plan_next(settings: RepairSettings, history: History, *, text: str, schema: Schema) -> Decision:
    """What comes after `history`, for the step whose first output was `text`."""
    if not history:
        return Deterministic(text=text)
    if settings.enforcement == "validate":
        return _give_up(history)
    return _repair(settings, history, text, schema) or _fallback(settings, history, text, schema) or _give_up(history)


def _tried(history: History, stage: Stage) -> int:
    return sum(failure.stage == stage for failure in history)


def _last_text(history: History, first: str) -> str:
    return next((failure.text for failure in reversed(history) if failure.text), first)


def _last_flaws(history: History) -> tuple[Flaw, ...]:
    last = next((failure for failure in reversed(history) if failure.flaws), None)
    return last.flaws if last else (Flaw(path="$", message=(last_judged(history) or history[-1]).reason),)


def last_judged(history: History) -> StageFailure | None:
    """The last stage that had an output to judge."""
    return next((failure for failure in reversed(history) if not failure.unanswered), None)


def _repair(settings: RepairSettings, history: History, text: str, schema: Schema) -> LlmRepair | None:
    attempts, output = _tried(history, "llm"), _last_text(history, text)
    moved_on = any(failure.stage not in ("deterministic", "llm") for failure in history)
    # A model that sees only part of an output would leave out the rest.
    readable = output.strip() and len(output) <= MAX_QUOTED_OUTPUT
    if moved_on or not settings.enable_llm or attempts >= settings.max_attempts or not readable:
        return None
    return LlmRepair(attempt=attempts + 1, prompt=repair_prompt(output, schema, _last_flaws(history)))


def _fallback(settings: RepairSettings, history: History, text: str, schema: Schema) -> Decision | None:
    refused = any(failure.provider_error for failure in history)
    if refused and not settings.degrade_on_unexpected_behavior:
        return None
    output = _last_text(history, text)
    if settings.max_stages >= _RETRY and not _tried(history, "strict_retry"):
        judged = last_judged(history) is not None
        return StrictRetry(instruction=strict_instruction(_last_flaws(history) if judged else ()))
    if settings.schema_simplify and len(history) >= 2 and not _tried(history, "simplified"):
        return _simplified(schema)
    if settings.max_stages >= _EXTRACT and settings.enable_extractor and _worth_extracting(history, output):
        return Extract(text=output)
    if settings.max_stages >= _DEGRADE and settings.degrade_to_string and not _tried(history, "degrade"):
        return Degrade(text=output)
    return None


def _simplified(schema: Schema) -> Simplified:
    flat = simplify(schema)
    return Simplified(instruction=simplified_instruction(flat), schema=flat)


def _worth_extracting(history: History, output: str) -> bool:
    return not _tried(history, "extractor") and bool(output.strip())


def _give_up(history: History) -> GiveUp:
    last = history[-1]
    return GiveUp(stage=last.stage, reason=last.reason, flaws=_last_flaws(history))


def stage_of(decision: Decision) -> Stage:
    """The name under which telemetry and failures know what a decision starts."""
    match decision:
        case Deterministic():
            return "deterministic"
        case LlmRepair():
            return "llm"
        case StrictRetry():
            return "strict_retry"
        case Simplified():
            return "simplified"
        case Extract():
            return "extractor"
        case Degrade():
            return "degrade"
        case GiveUp():
            return "give_up"
        case _:
            assert_never(decision)
