"""Structured step: parse, repair, validate, fall back.

The pure `structured._stages` decides the next stage; this module executes it. Rules:

1. Every answer goes through the same reading: from a call, a stream, a repair or an error. An unfit value is read as
   its JSON.
2. A text that ended inside its value is requested again, not repaired; one that the provider reported as truncated
   is never accepted.
3. An agent that validates its own outputs validates repaired values too.
4. Plain text is the last resort: not while the step has retries or a fallback left, and never if the agent itself
   declares a type, unless the step requests it.
5. A control error passes through every stage.
6. Longer texts are parsed in a worker thread: they do not block other runs.

Sections:

- Agent interface of a structured step, and its available stages.
- Telemetry of a structured step's repairs and fallback stages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, assert_never

import attrs
import trio
from typing_extensions import is_typeddict

from ..._core.attempt_results import Attempt, AttemptFailed, AttemptStopped, AttemptSucceeded, escalating
from ..._core.event_kinds import EventKind
from ..._core.settings_model import ArosSettings
from ..._dsl.output_options import Processing
from ..._dsl.step_declaration import Step
from ...errors import DeclarationError, StructuredOutputError
from ...structured import _stages as stages
from ...structured._compiled_schema import Schema, compile_schema
from ...structured._extract import extract_from_text, labelled_value
from ...structured._read_result import Flaw, ReadResult
from ...structured._reader import read_structured
from ...structured._stages import (
    Decision,
    Degrade,
    Deterministic,
    Extract,
    GiveUp,
    History,
    LlmRepair,
    RepairPlanSettings,
    Simplified,
    StageFailure,
    StrictRetry,
    as_data,
    as_json,
    as_text,
    last_judged,
    plan_next,
    stage_of,
)
from ...structured._strict import refusing
from ..run.messages import AttemptInput
from ..run.run_environment import Run

# --- Agent interface of a structured step -------------------------------------------------------------------------


class Caller(Protocol):
    """The agent behind a structured step."""

    async def request(self, instruction: str | None, *, as_text: bool = False) -> Attempt:
        """Call the agent with an extra instruction, maybe for text."""

    async def repair(self, prompt: str) -> Attempt:
        """Call the bare model with only the prompt; the output is text."""

    async def validate(self, value: object) -> Attempt:
        """Validate a schema-valid value by the agent; return output or failure."""

    @property
    def can_retry(self) -> bool:
        """Return whether an instruction would reach the agent."""

    @property
    def validates(self) -> bool:
        """Return whether the schema is the agent's own, already validated."""

    @property
    def is_typed(self) -> bool:
        """Return whether the agent declares an output type."""

    @property
    def can_repair(self) -> bool:
        """Return whether there is a model for repairs."""

    @property
    def last_repaired(self) -> tuple[str, ReadResult] | None:
        """Return the last answer's text and reading, if repaired inside."""

    @property
    def cut_off(self) -> bool:
        """Return whether the provider reported a truncated last answer."""

    def is_about_content(self, failed: AttemptFailed) -> bool:
        """Return whether a call failed because of the model's text, in `failed.output`."""

    def settled(self, output: object) -> None:
        """Receive the final value, or the text in its place."""


def repair_settings(
    aros: ArosSettings, switches: Processing, caller: Caller, *, last_resort: bool
) -> RepairPlanSettings:
    """Return the available stages; plain text only as a declared last resort."""
    return RepairPlanSettings(
        enforcement="validate" if switches.enforcement == "validate" else "repair",
        max_attempts=aros.repair.max_attempts,
        enable_llm=aros.repair.enable_llm and caller.can_repair,
        max_stages=aros.fallback.max_stages,
        enable_extractor=aros.fallback.enable_extractor,
        degrade_to_string=aros.fallback.degrade_to_string and last_resort and _asks_for_text(switches, caller),
        degrade_on_unexpected_behavior=aros.degrade_on_unexpected_behavior,
        schema_simplify=aros.schema_simplify,
    )


def _asks_for_text(switches: Processing, caller: Caller) -> bool:
    """Return whether text is acceptable, by the step or agent."""
    return not caller.is_typed if switches.degrade is None else switches.degrade


# --- Telemetry of a structured step's repairs and fallback stages -------------------------------------------------
# 1. A started stage is reported as ended once: as a success, or as failed with the reason.
# 2. The deterministic reading is a repair only if it changed something; a clean answer emits nothing.
# 3. Plain text repairs nothing, and giving up tries nothing: the former is a fallback stage, the latter emits
#    nothing.


_TAG = {
    "deterministic": "deterministic",
    "llm": "llm",
    "strict_retry": "retry",
    "simplified": "simplified",
    "extractor": "extractor",
    "degrade": "degrade",
}


@attrs.define(kw_only=True, eq=False)
class RepairEvents:
    """Emits the `aros.*` events of one attempt."""

    run: Run
    work: AttemptInput
    schema_hash: str
    provider_error: str | None = None
    """Error type with which the provider refused the first answer."""

    def begins(self, decision: Decision, why: str, text: str) -> None:
        """Report a stage's start; the deterministic reading is reported at its end."""
        if isinstance(decision, Deterministic | GiveUp):
            return
        if not isinstance(decision, LlmRepair):
            self._emit("aros.fallback.stage", _TAG[stage_of(decision)], text, feedback=why or None)
        if not isinstance(decision, Degrade):
            self._emit("aros.repair.started", _TAG[stage_of(decision)], text)

    def succeeded(self, decision: Decision, passes: tuple[str, ...], text: str, *, clean: bool) -> None:
        """Report a stage's success; a clean text needed no repair."""
        if isinstance(decision, Deterministic):
            if clean:
                return
            self._emit("aros.repair.started", "deterministic", text)
        self._emit("aros.repair.success", _TAG[stage_of(decision)], text, passes=passes)

    def failed(self, decision: Decision, reason: str, text: str = "") -> None:
        """A stage did not end in a value."""
        if isinstance(decision, Degrade | GiveUp):
            return
        if isinstance(decision, Deterministic):
            self._emit("aros.repair.started", "deterministic", text)
        self._emit("aros.repair.failed", _TAG[stage_of(decision)], text, feedback=self.run.redact(reason))

    def _emit(self, kind: EventKind, stage: str, text: str, **facts: object) -> None:
        self.run.emit(
            kind,
            self.work.span,
            step_name=self.work.name,
            attempt=self.work.attempt,
            stage=stage,
            provider_error=self.provider_error,
            schema_hash=self.schema_hash,
            raw_text=text or None,
            **facts,
        )


# --- Structured step ----------------------------------------------------------------------------------------------


T = TypeVar("T")


async def structured_attempt(run: Run, step: Step, work: AttemptInput, caller: Caller, schema: object) -> Attempt:
    """Run one attempt of a step whose output must fit a schema."""
    try:
        compiled = compile_schema(schema)
    except DeclarationError as error:
        return AttemptFailed(error=error, feedback=run.redact(f"The schema of step {step.name!r}: {error}"))
    attempt = StructuredStep(
        run=run,
        work=work,
        caller=caller,
        declared=schema,
        schema=compiled,
        processing=step.processing,
        last_resort=(work.attempt > step.max_retries or not step.retries_refusals) and step.fallback is None,
    )
    return await attempt.attempt()


@attrs.frozen(kw_only=True)
class _Valid:
    """A stage ended in a value."""

    value: object
    passes: tuple[str, ...] = ()
    engine: str = ""
    truncated: bool = False
    clean: bool = False
    """Nothing had to be done: the answer was the value."""


def _valid_of(reading: ReadResult) -> _Valid:
    return _Valid(
        value=reading.value,
        passes=reading.passes,
        engine=reading.engine,
        truncated=reading.truncated,
        clean=reading.engine == "strict" and not reading.passes and not reading.coercions,
    )


@attrs.define(kw_only=True, eq=False)
class StructuredStep:
    """One attempt of a structured step."""

    run: Run
    work: AttemptInput
    caller: Caller
    declared: object
    """The schema as the user gave it."""
    schema: Schema
    processing: Processing
    last_resort: bool = True
    """Whether the step can only degrade or fail."""
    _history: History = ()
    _partial: str = ""
    """Available part of a truncated answer."""
    _unheard: bool = False
    """Whether the connection broke before any part of the first answer."""
    _read_last: str = ""
    """The text that was read last, which need not be read again."""
    _metadata: dict[str, object] = attrs.field(factory=dict)
    _error: object = None
    _events: RepairEvents = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._events = RepairEvents(run=self.run, work=self.work, schema_hash=self.schema.schema_hash)

    async def attempt(self) -> Attempt:
        """Call the agent and bring its answer to a value."""
        first = await self.caller.request(None)
        settled = self._settled_at_once(first)
        if settled is not None:
            return settled
        text, aros = self._text_of(first), self.run.settings.aros
        settings = repair_settings(aros, self.processing, self.caller, last_resort=self.last_resort)
        while True:
            decision = plan_next(settings, self._history, text=text, schema=self.schema)
            ended = await self._stage(decision)
            if isinstance(ended, _Valid):
                ended = self._done(decision, ended)
            if isinstance(ended, StageFailure):
                self._history = (*self._history, ended)
                text = "" if self._partial else text
                continue
            if not isinstance(ended, AttemptStopped):
                self.caller.settled(ended.output)
            return ended

    # --- the first answer ---

    def _settled_at_once(self, first: Attempt) -> Attempt | None:
        """Return the attempt if there is no text to parse."""
        match first:
            case AttemptStopped():
                return first
            case AttemptFailed(error=StructuredOutputError() as error) if error.stage in ("limits", "stream"):
                return attrs.evolve(first, feedback=self._feedback(error.stage, str(error)))
            case AttemptFailed():
                return None if self.caller.is_about_content(first) else first
            case AttemptSucceeded(output=str() | bytes() | bytearray()) if not self.caller.validates:
                return None
            case AttemptSucceeded():
                checked = self._checked(first.output, "deterministic")
                return self._accepted(first, checked) if isinstance(checked, _Valid) else None
            case _:
                assert_never(first)

    def _accepted(self, first: AttemptSucceeded, checked: _Valid) -> AttemptSucceeded:
        """Return the first answer as output, with inner repairs."""
        if self.caller.last_repaired is None:
            return attrs.evolve(first, output=checked.value)
        text, reading = self.caller.last_repaired
        self._metadata, self._read_last = dict(first.metadata), text
        valid, decision = attrs.evolve(_valid_of(reading), value=checked.value), Deterministic(text=text)
        self._emit_end(decision, valid)
        return self._done(decision, valid)

    def _text_of(self, first: Attempt) -> str:
        if isinstance(first, AttemptFailed):
            self._error, self._events.provider_error = first.error, type(first.error).__name__
            self._metadata, self._unheard = dict(first.metadata), self.caller.cut_off and not first.output
            return self._given_text(first.output) or self._unanswered(first)
        assert isinstance(first, AttemptSucceeded)
        self._metadata = dict(first.metadata)
        return self._given_text(first.output)

    def _given_text(self, output: object) -> str:
        """Return an answer's text; one without is a failed stage."""
        try:
            return as_text(output)
        except ValueError as error:
            return self._nothing(str(error))

    def _nothing(self, reason: str) -> str:
        self._history = (StageFailure(stage="deterministic", reason=reason, provider_error=self._was_refused),)
        return ""

    def _unanswered(self, first: AttemptFailed) -> str:
        if not self._history:
            reason, own = f"the provider refused the answer: {first.feedback}", first.refusal is not None
            failure = StageFailure(stage="deterministic", reason=reason, provider_error=True, unanswered=not own)
            self._history = (failure,)
        return ""

    # --- values ---

    def _checked(self, output: object, stage: stages.Stage) -> _Valid | StageFailure:
        """Check an answer that is a value against the schema."""
        if self.caller.validates:
            return _Valid(value=output, clean=True)
        try:
            with refusing("validate", "", self.schema):
                data = as_data(output)
                flaws = tuple(self.schema.validate(data))
                if flaws:
                    return StageFailure(stage=stage, reason=_listed(flaws), text=as_json(data), flaws=flaws)
                return _Valid(value=output if self._is_built(output) else self.schema.construct(data), clean=True)
        except StructuredOutputError as error:
            return StageFailure(stage=stage, reason=f"the value cannot be used: {error}")

    def _is_built(self, output: object) -> bool:
        if not self.schema.constructs:
            return True
        declared = self.declared
        return isinstance(declared, type) and not is_typeddict(declared) and isinstance(output, declared)

    # --- stages ---

    async def _stage(self, decision: stages.Decision) -> _Valid | StageFailure | Attempt:
        """Execute one stage, reported at its start and end."""
        self._events.begins(decision, self._reason(), self._read_last)
        ended: _Valid | StageFailure | Attempt | None = None
        try:
            ended = await self._carry_out(decision)
        finally:
            self._emit_end(decision, ended)
        return ended

    def _emit_end(self, decision: stages.Decision, ended: _Valid | StageFailure | Attempt | None) -> None:
        match ended:
            case _Valid(passes=passes, clean=clean):
                self._events.succeeded(decision, passes, self._read_last, clean=clean)
            case StageFailure(reason=reason, text=text):
                self._events.failed(decision, reason, text)
            case AttemptFailed(feedback=feedback):
                self._events.failed(decision, feedback)
            case _:
                self._events.failed(decision, "it was cut short")

    async def _carry_out(self, decision: stages.Decision) -> _Valid | StageFailure | Attempt:
        match decision:
            case Deterministic(text=text):
                return await self._read(text, "deterministic")
            case LlmRepair(prompt=prompt):
                return await self._read_answer(await self.caller.repair(prompt), "llm")
            case StrictRetry(instruction=instruction):
                return await self._retry(instruction)
            case Simplified(instruction=instruction, schema=flat):
                return await self._request_simplified(instruction, flat)
            case Extract(text=text):
                return await self._extract(text)
            case Degrade(text=text):
                return self._degraded(text or self._partial)
            case GiveUp(stage=stage, reason=reason, flaws=flaws):
                return self._failed(stage, reason, flaws)
            case _:
                assert_never(decision)

    async def _read(self, text: str, stage: stages.Stage) -> _Valid | StageFailure | Attempt:
        cut_off, self._read_last = self.caller.cut_off, text
        try:
            reading: ReadResult = await _read_in_thread(text, lambda: read_structured(text, self.schema))
        except StructuredOutputError as error:
            return self._cut(text, stage) if cut_off else self._refused(stage, error, text)
        unsure = reading.truncated or (cut_off and reading.engine == "scalar")
        if unsure and (cut_off or self._may_retry()):
            return self._cut(text, stage)
        return await self._validated(_valid_of(reading), stage, text)

    async def _validated(self, valid: _Valid, stage: stages.Stage, text: str) -> _Valid | StageFailure | Attempt:
        """Return the value, if the promising agent accepts it."""
        if not self.caller.validates:
            return valid
        match await self.caller.validate(valid.value):
            case AttemptSucceeded(output=output):
                return attrs.evolve(valid, value=output)
            case AttemptFailed() as failed if not self.caller.is_about_content(failed):
                return failed
            case AttemptFailed(feedback=feedback):
                flaw = Flaw(path="$", message=feedback)
                return StageFailure(stage=stage, reason=feedback, text=text, flaws=(flaw,))
            case stopped:
                return stopped

    async def _read_answer(self, ended: Attempt, stage: stages.Stage) -> _Valid | StageFailure | Attempt:
        """Parse the answer to a repair or a retry."""
        match ended:
            case AttemptStopped():
                return ended
            case AttemptFailed(error=error) if escalating(error) is not None:
                return ended
            case AttemptFailed():
                return await self._read_failed(ended, stage)
            case AttemptSucceeded(output=str() | bytes() | bytearray() as output) if (
                stage == "llm" or not self.caller.validates
            ):
                return await self._read_output(output, stage)
            case AttemptSucceeded():
                checked = self._checked(ended.output, stage)
                unread = isinstance(checked, StageFailure) and checked.text
                return await self._read(unread, stage) if unread else checked
            case _:
                assert_never(ended)

    async def _read_failed(self, failed: AttemptFailed, stage: stages.Stage) -> _Valid | StageFailure | Attempt:
        refused = self.caller.is_about_content(failed)
        if refused and isinstance(failed.output, str) and failed.output.strip():
            return await self._read(failed.output, stage)
        unanswered = failed.refusal is None
        return StageFailure(stage=stage, reason=failed.feedback, provider_error=refused, unanswered=unanswered)

    async def _read_output(self, output: object, stage: stages.Stage) -> _Valid | StageFailure | Attempt:
        try:
            text = as_text(output)
        except ValueError as error:
            return StageFailure(stage=stage, reason=str(error))
        return await self._read(text, stage)

    async def _retry(self, instruction: str) -> _Valid | StageFailure | Attempt:
        if not self.caller.can_retry:
            return StageFailure(stage="strict_retry", reason=f"{_NOT_REQUESTED}; {self._reason()}")
        passed = None if self._unheard else instruction
        return await self._read_answer(await self.caller.request(passed), "strict_retry")

    async def _request_simplified(self, instruction: str, flat: Any) -> _Valid | StageFailure | Attempt:
        if not self.caller.can_retry:
            return StageFailure(stage="simplified", reason=f"{_NOT_REQUESTED}; {self._reason()}")
        ended = await self.caller.request(instruction, as_text=True)
        if not isinstance(ended, AttemptSucceeded) or not isinstance(ended.output, str):
            return await self._read_answer(ended, "simplified")
        text = ended.output
        try:
            value = await _read_in_thread(text, lambda: flat.read(text))
        except StructuredOutputError as error:
            return self._refused("simplified", error, text)
        return await self._validated(_Valid(value=value, engine="simplified"), "simplified", text)

    async def _extract(self, text: str) -> _Valid | StageFailure | Attempt:
        find = labelled_value if text == self._read_last else extract_from_text
        try:
            value = await _read_in_thread(text, lambda: find(text, self.schema))
        except StructuredOutputError as error:
            return self._refused("extractor", error, text)
        return await self._validated(_Valid(value=value, engine="extractor"), "extractor", text)

    def _degraded(self, text: str) -> AttemptSucceeded | StageFailure:
        if not text.strip():
            return StageFailure(stage="degrade", reason=f"there is no text to fall back on; {self._reason()}")
        noted = {**self._metadata, "degraded": True, "structured_output_error": self._reason()}
        return AttemptSucceeded(output=text, context=self.work.context, metadata=noted)

    def _failed(self, stage: str, reason: str, flaws: tuple[Flaw, ...]) -> AttemptFailed:
        reason = _with_flaws(reason, flaws)
        error = StructuredOutputError(f"no valid value after stage {stage!r}: {reason}")
        error.stage, error.errors, error.schema_hash = stage, list(flaws), self.schema.schema_hash
        error.__cause__ = self._error if isinstance(self._error, BaseException) else None
        last = next((failure.text for failure in reversed(self._history) if failure.text), self._partial) or None
        return AttemptFailed(
            error=error,
            feedback=self._feedback(stage, reason),
            refusal=self._refusal(flaws),
            output=last,
            metadata=self._metadata,
        )

    def _refusal(self, flaws: tuple[Flaw, ...]) -> str | None:
        """Return the reason for the model, without a failed call's cause."""
        judged = last_judged(self._history)
        return None if judged is None else self._feedback(judged.stage, _with_flaws(judged.reason, flaws))

    # --- failures ---

    def _refused(self, stage: stages.Stage, error: StructuredOutputError, text: str) -> StageFailure:
        return StageFailure(
            stage=stage, reason=str(error), text=text, flaws=tuple(error.errors), provider_error=self._was_refused
        )

    def _cut(self, text: str, stage: stages.Stage) -> StageFailure:
        """Return the failure of a truncated text, which skips the repair stages."""
        self._partial = text
        flaw = Flaw(path="$", message=_CUT_OFF)
        return StageFailure(stage=stage, reason=_CUT_OFF, flaws=(flaw,), provider_error=self._was_refused)

    @property
    def _was_refused(self) -> bool:
        """Return whether the provider itself refused the first answer."""
        return self._error is not None

    def _may_retry(self) -> bool:
        tried = any(failure.stage == "strict_retry" for failure in self._history)
        allowed = self.run.settings.aros.fallback.max_stages > 0 and self.processing.enforcement == "repair"
        return not tried and allowed and self.caller.can_retry

    def _reason(self) -> str:
        """Return the last known flaw of the answer."""
        return self.run.redact(self._history[-1].reason) if self._history else ""

    def _feedback(self, stage: str, reason: str) -> str:
        return self.run.redact(f"Structured output failed at stage {stage!r}: {reason}")

    def _done(self, decision: stages.Decision, valid: _Valid) -> AttemptSucceeded:
        metadata = dict(self._metadata)
        if not valid.clean or self._history:
            metadata["structured"] = {
                "stage": stage_of(decision),
                "engine": valid.engine,
                "passes": list(valid.passes),
                "failed_stages": [failure.stage for failure in self._history],
                **({"truncated": True} if valid.truncated else {}),
            }
        return AttemptSucceeded(output=valid.value, context=self.work.context, metadata=metadata)


_READ_AT_ONCE = 500
"""Maximum text length parsed on the loop: a few milliseconds at worst."""
_CUT_OFF = "the answer was cut off before its end"
_NOT_REQUESTED = "the agent takes no feedback, so it is not asked again"


async def _read_in_thread(text: str, read: Callable[[], T]) -> T:
    if len(text) <= _READ_AT_ONCE:
        return read()
    return await trio.to_thread.run_sync(read, abandon_on_cancel=True)


def _with_flaws(reason: str, flaws: tuple[Flaw, ...]) -> str:
    return f"{reason}; {_listed(flaws[:3])}" if flaws and flaws[0].message not in reason else reason


def _listed(flaws: tuple[Flaw, ...]) -> str:
    return "; ".join(f"{flaw.path}: {flaw.message}" for flaw in flaws)
