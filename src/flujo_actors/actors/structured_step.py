"""The one way a structured step ends: read, mend, validate, repair, fall back; in a value, or saying exactly why not.

What comes next is decided by the pure `structured.stages`; here it is carried out. Rules:

1. Every text goes through the same reading, however it came: from a call, a stream, a repair or an error.
2. A text that ended inside its value is not accepted while the model can be asked again.
3. A control error passes through every stage.
4. Reading a large text happens in a worker thread: it does not hold up other runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, assert_never

import attrs
import trio
from pydantic_core import to_json, to_jsonable_python

from ..core.attempts import Attempt, Done, Failed, Stopped, escalating
from ..core.events import ArosFallbackStage, ArosRepairFailed, ArosRepairStarted, ArosRepairSuccess
from ..core.settings import ArosSettings
from ..dsl.processing import Processing
from ..dsl.step import Step
from ..errors import StructuredOutputError
from ..structured import stages
from ..structured.builtins import ensure_object
from ..structured.extract import extract_from_text
from ..structured.limits import is_heavy
from ..structured.read import read_structured
from ..structured.reading import Flaw, Reading
from ..structured.schema import Schema, compile_schema
from ..structured.stages import (
    Degrade,
    Deterministic,
    Extract,
    GiveUp,
    History,
    LlmRepair,
    Simplified,
    StageFailure,
    StrictRetry,
    plan_next,
    stage_of,
)
from .composites import Work
from .run import Run

T = TypeVar("T")

_EVENT_STAGE = {
    "deterministic": "deterministic",
    "llm": "llm",
    "strict_retry": "retry",
    "simplified": "retry",
    "extractor": "extractor",
    "degrade": "degrade",
}


class Caller(Protocol):
    """The agent behind a structured step."""

    async def ask(self, instruction: str | None) -> Attempt:
        """One call; an instruction is added to what the agent is told."""

    async def repair(self, prompt: str) -> Attempt:
        """One call of the bare model with nothing but the prompt; its output is text."""

    @property
    def can_ask_again(self) -> bool:
        """Whether an instruction would reach the agent."""

    @property
    def validates(self) -> bool:
        """Whether an answer that is not text has been checked against the schema already."""

    @property
    def can_repair(self) -> bool:
        """Whether there is a model to repair with."""

    def is_about_content(self, failed: Failed) -> bool:
        """Whether a failed call failed because of what the model wrote; `failed.output` is that text."""


async def structured_attempt(run: Run, step: Step, work: Work, caller: Caller, schema: Any) -> Attempt:
    """One attempt of a step whose output must fit a schema."""
    attempt = StructuredStep(
        run=run,
        work=work,
        caller=caller,
        schema=compile_schema(schema),
        processing=step.processing,
        for_object=work.for_object,
    )
    return await attempt.attempt()


@attrs.frozen(kw_only=True)
class _Valid:
    """A stage ended in a value."""

    value: Any
    passes: tuple[str, ...] = ()
    engine: str = ""


@attrs.define(kw_only=True, eq=False)
class StructuredStep:
    """One attempt of a structured step."""

    run: Run
    work: Work
    caller: Caller
    schema: Schema
    processing: Processing
    for_object: bool = False
    """Whether the next step asks for a dict."""
    _history: History = ()
    _metadata: dict[str, Any] = attrs.field(factory=dict)
    _error: Any = None
    _provider_error: str | None = None

    async def attempt(self) -> Attempt:
        """Call the agent and bring its answer to a value."""
        first = await self.caller.ask(None)
        settled = self._settled_at_once(first)
        if settled is not None:
            return settled
        text = self._text_of(first)
        while True:
            decision = plan_next(self._settings(), self._history, text=text, schema=self.schema)
            ended = await self._carry_out(decision)
            if isinstance(ended, _Valid):
                self._note_success(decision, ended)
                return self._done(ended)
            if isinstance(ended, Done | Failed | Stopped):
                return ended
            self._note_failure(decision, ended)
            self._history = (*self._history, ended)
            text = "" if self._cut_off(ended) else text

    # --- the first answer ---

    def _settled_at_once(self, first: Attempt) -> Attempt | None:
        """The attempt, if it is not a text to be read: a value that fits, a failure of another kind, a pause."""
        match first:
            case Stopped():
                return first
            case Failed():
                return None if self.caller.is_about_content(first) else first
            case Done(output=str() | bytes() | bytearray()):
                return None
            case Done():
                checked = self._checked(first, "deterministic")
                if isinstance(checked, _Valid):
                    return attrs.evolve(first, output=checked.value)
                self._history = (checked,)
                return None
        raise AssertionError(f"an attempt ended as {first!r}")

    def _checked(self, done: Done, stage: stages.Stage) -> _Valid | StageFailure:
        """An answer that is a value already: fine if it fits the schema."""
        if self.caller.validates:
            return _Valid(value=done.output)
        value = _plain(done.output)
        flaws = self.schema.validate(value)
        if flaws:
            return StageFailure(stage=stage, reason=_listed(flaws), text=_json(value), flaws=tuple(flaws))
        built = not self.schema.constructs or not isinstance(done.output, dict | list | int | float)
        return _Valid(value=done.output if built else self.schema.construct(value))

    def _text_of(self, first: Attempt) -> str:
        if isinstance(first, Failed):
            self._error, self._provider_error = first.error, type(first.error).__name__
            text = _as_text(first.output)
            if not text.strip():
                reason = f"the provider refused the answer: {first.feedback}"
                self._history = (StageFailure(stage="deterministic", reason=reason, provider_error=True),)
            return text
        assert isinstance(first, Done)
        self._metadata = dict(first.metadata)
        return _as_text(first.output) if isinstance(first.output, str | bytes | bytearray) else ""

    # --- stages ---

    def _settings(self) -> stages.RepairSettings:
        aros: ArosSettings = self.run.settings.aros
        return stages.RepairSettings(
            enforcement="validate" if self.processing.enforcement == "validate" else "repair",
            max_attempts=aros.repair.max_attempts,
            enable_llm=aros.repair.enable_llm and self.caller.can_repair,
            max_stages=aros.fallback.max_stages,
            enable_extractor=aros.fallback.enable_extractor,
            degrade_to_string=aros.fallback.degrade_to_string,
            degrade_on_unexpected_behavior=aros.degrade_on_unexpected_behavior,
            schema_simplify=aros.schema_simplify,
        )

    async def _carry_out(self, decision: stages.Decision) -> _Valid | StageFailure | Attempt:
        self._announce(decision)
        match decision:
            case Deterministic(text=text):
                return await self._read(text, "deterministic")
            case LlmRepair(prompt=prompt):
                return await self._read_answer(await self.caller.repair(prompt), "llm")
            case StrictRetry(instruction=instruction):
                return await self._ask_again(instruction, "strict_retry")
            case Simplified(instruction=instruction, schema=flat):
                return await self._ask_simplified(instruction, flat)
            case Extract(text=text):
                return await self._extract(text)
            case Degrade(text=text):
                return self._degraded(text)
            case GiveUp(stage=stage, reason=reason, flaws=flaws):
                return self._given_up(stage, reason, flaws)
            case _:
                assert_never(decision)

    async def _read(self, text: str, stage: stages.Stage) -> _Valid | StageFailure:
        try:
            reading: Reading = await _aside(text, lambda: read_structured(text, self.schema))
        except StructuredOutputError as error:
            return self._refused(stage, error, text)
        if reading.truncated and self.caller.can_ask_again and self._may_retry():
            flaw = Flaw(path="$", message="the answer was cut off before its end")
            return StageFailure(stage=stage, reason=_CUT_OFF, text=text, flaws=(flaw,))
        return _Valid(value=reading.value, passes=reading.passes, engine=reading.engine)

    async def _read_answer(self, ended: Attempt, stage: stages.Stage) -> _Valid | StageFailure | Attempt:
        """What an answer to a repair or a retry is worth."""
        match ended:
            case Stopped():
                return ended
            case Failed(error=error) if escalating(error) is not None:
                return ended
            case Failed():
                refused = self.caller.is_about_content(ended)
                text = _as_text(ended.output) if refused else ""
                if text.strip():
                    return await self._read(text, stage)
                return StageFailure(stage=stage, reason=ended.feedback, provider_error=refused)
            case Done(output=str() | bytes() | bytearray()):
                return await self._read(_as_text(ended.output), stage)
            case Done():
                return self._checked(ended, stage)
        raise AssertionError(f"an attempt ended as {ended!r}")

    async def _ask_again(self, instruction: str, stage: stages.Stage) -> _Valid | StageFailure | Attempt:
        if not self.caller.can_ask_again:
            return StageFailure(stage=stage, reason="the agent takes no feedback, so it is not asked again")
        return await self._read_answer(await self.caller.ask(instruction), stage)

    async def _ask_simplified(self, instruction: str, flat: Any) -> _Valid | StageFailure | Attempt:
        if not self.caller.can_repair:
            return StageFailure(stage="simplified", reason="there is no model to ask")
        ended = await self.caller.ask(instruction)
        if not isinstance(ended, Done):
            return await self._read_answer(ended, "simplified")
        text = _as_text(ended.output)
        try:
            return _Valid(value=await _aside(text, lambda: flat.read(text)), engine="simplified")
        except StructuredOutputError as error:
            return self._refused("simplified", error, text)

    async def _extract(self, text: str) -> _Valid | StageFailure:
        try:
            value = await _aside(text, lambda: extract_from_text(text, self.schema))
        except StructuredOutputError as error:
            return self._refused("extractor", error, text)
        return _Valid(value=value, engine="extractor")

    def _degraded(self, text: str) -> Done | StageFailure:
        if not text.strip():
            return StageFailure(stage="degrade", reason="there is no text to fall back on")
        output = ensure_object(text) if self.for_object else text
        noted = {**self._metadata, "degraded": True, "structured_output_error": self._history[-1].reason}
        return Done(output=output, context=self.work.context, metadata=noted)

    def _given_up(self, stage: str, reason: str, flaws: tuple[Flaw, ...]) -> Failed:
        error = StructuredOutputError(f"no valid value after stage {stage!r}: {reason}")
        error.stage, error.errors, error.schema_hash = stage, list(flaws), self.schema.schema_hash
        error.__cause__ = self._error if isinstance(self._error, BaseException) else None
        text = self.run.redact(f"Structured output failed at stage {stage!r}: {reason}")
        last = next((failure.text for failure in reversed(self._history) if failure.text), None)
        return Failed(error=error, feedback=text, output=last, metadata=self._metadata)

    def _refused(self, stage: stages.Stage, error: StructuredOutputError, text: str) -> StageFailure:
        refused = self._provider_error is not None
        return StageFailure(
            stage=stage, reason=str(error), text=text, flaws=tuple(error.errors), provider_error=refused
        )

    def _may_retry(self) -> bool:
        tried = any(failure.stage == "strict_retry" for failure in self._history)
        return not tried and self.run.settings.aros.fallback.max_stages > 0 and self.processing.enforcement == "repair"

    def _cut_off(self, failure: StageFailure) -> bool:
        return failure.reason == _CUT_OFF

    def _done(self, valid: _Valid) -> Done:
        metadata = dict(self._metadata)
        if valid.passes or self._history:
            tried = [failure.stage for failure in self._history]
            metadata["structured"] = {"engine": valid.engine, "passes": list(valid.passes), "failed_stages": tried}
        return Done(output=valid.value, context=self.work.context, metadata=metadata)

    # --- telemetry ---

    def _announce(self, decision: stages.Decision) -> None:
        stage = _EVENT_STAGE.get(stage_of(decision))
        if stage in ("deterministic", "llm"):
            self._emit(ArosRepairStarted, stage)
        elif stage is not None:
            self._emit(ArosFallbackStage, stage, feedback=self._history[-1].reason if self._history else None)

    def _note_success(self, decision: stages.Decision, valid: _Valid) -> None:
        self._emit(ArosRepairSuccess, _EVENT_STAGE[stage_of(decision)], passes=valid.passes)

    def _note_failure(self, decision: stages.Decision, failure: StageFailure) -> None:
        feedback = self.run.redact(failure.reason)
        self._emit(ArosRepairFailed, _EVENT_STAGE[stage_of(decision)], feedback=feedback, raw_text=failure.text)

    def _emit(self, kind: type[Any], stage: str, **facts: Any) -> None:
        self.run.emit(
            kind,
            self.work.span,
            step_name=self.work.name,
            attempt=self.work.attempt,
            stage=stage,
            provider_error=self._provider_error,
            schema_hash=self.schema.schema_hash,
            **facts,
        )


_CUT_OFF = "the answer was cut off before its end"


async def _aside(text: str, read: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(read) if is_heavy(text) else read()


def _as_text(output: Any) -> str:
    if isinstance(output, bytes | bytearray):
        return bytes(output).decode("utf-8", "replace")
    return output if isinstance(output, str) else ""


def _plain(value: Any) -> Any:
    """A value as JSON data, for a schema to look at."""
    return to_jsonable_python(attrs.asdict(value) if attrs.has(type(value)) else value)


def _json(value: Any) -> str:
    return to_json(value).decode()


def _listed(flaws: list[Flaw]) -> str:
    return "; ".join(f"{flaw.path}: {flaw.message}" for flaw in flaws)
