"""The one way a structured step ends: read, mend, validate, repair, fall back; in a value, or saying exactly why not.

What comes next is decided by the pure `structured._stages`; here it is carried out. Rules:

1. Every answer goes through the same reading, however it came: from a call, a stream, a repair or an error. A value
   that does not fit is read as the JSON it is.
2. A text that ended inside its value is not repaired but asked for again; where the provider says that it was cut
   off, it is never accepted.
3. An agent that judges its own outputs judges repaired values too.
4. Plain text is the last resort: not while the step has retries or a fallback left, and never where the agent itself
   declares a type, unless the step asks for it.
5. A control error passes through every stage.
6. Reading anything but a short text happens in a worker thread: it does not hold up other runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, assert_never

import attrs
import trio
from typing_extensions import is_typeddict

from .._core.attempts import Attempt, Done, Failed, Stopped, escalating
from .._dsl.processing import Processing
from .._dsl.step import Step
from .._run.messages import Work
from .._run.run import Run
from ..errors import DeclarationError, StructuredOutputError
from ..structured import _stages as stages
from ..structured._extract import extract_from_text, labelled_value
from ..structured._output_data import as_data, as_json, as_text
from ..structured._reader import read_structured
from ..structured._reading import Flaw, Reading
from ..structured._refusals import refusing
from ..structured._schema import Schema, compile_schema
from ..structured._stages import (
    Degrade,
    Deterministic,
    Extract,
    GiveUp,
    History,
    LlmRepair,
    Simplified,
    StageFailure,
    StrictRetry,
    last_judged,
    plan_next,
    stage_of,
)
from .caller import Caller, repair_settings
from .repair_events import RepairEvents

T = TypeVar("T")


async def structured_attempt(run: Run, step: Step, work: Work, caller: Caller, schema: object) -> Attempt:
    """One attempt of a step whose output must fit a schema."""
    try:
        compiled = compile_schema(schema)
    except DeclarationError as error:
        return Failed(error=error, feedback=run.redact(f"The schema of step {step.name!r}: {error}"))
    attempt = StructuredStep(
        run=run,
        work=work,
        caller=caller,
        declared=schema,
        schema=compiled,
        processing=step.processing,
        last_resort=work.attempt > step.max_retries and step.fallback is None,
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


@attrs.define(kw_only=True, eq=False)
class StructuredStep:
    """One attempt of a structured step."""

    run: Run
    work: Work
    caller: Caller
    declared: object
    """The schema as the user gave it."""
    schema: Schema
    processing: Processing
    last_resort: bool = True
    """Whether the step has nothing else left than to degrade or to fail."""
    _history: History = ()
    _partial: str = ""
    """What there was of an answer that was cut off."""
    _unheard: bool = False
    """Whether the connection broke before there was anything of the first answer: the model did nothing wrong."""
    _read_last: str = ""
    """The text that was read last, which need not be read again."""
    _metadata: dict[str, object] = attrs.field(factory=dict)
    _error: object = None
    _events: RepairEvents = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._events = RepairEvents(run=self.run, work=self.work, schema_hash=self.schema.schema_hash)

    async def attempt(self) -> Attempt:
        """Call the agent and bring its answer to a value."""
        first = await self.caller.ask(None)
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
            if not isinstance(ended, Stopped):
                self.caller.settled(ended.output)
            return ended

    # --- the first answer ---

    def _settled_at_once(self, first: Attempt) -> Attempt | None:
        """The attempt, if it is not a text to be read: a value that fits, a failure of another kind, a pause."""
        match first:
            case Stopped():
                return first
            case Failed(error=StructuredOutputError() as error) if error.stage in ("limits", "stream"):
                return attrs.evolve(first, feedback=self._feedback(error.stage, str(error)))
            case Failed():
                return None if self.caller.is_about_content(first) else first
            case Done(output=str() | bytes() | bytearray()) if not self.caller.validates:
                return None
            case Done():
                checked = self._checked(first.output, "deterministic")
                return attrs.evolve(first, output=checked.value) if isinstance(checked, _Valid) else None
            case _:
                assert_never(first)

    def _text_of(self, first: Attempt) -> str:
        if isinstance(first, Failed):
            self._error, self._events.provider_error = first.error, type(first.error).__name__
            self._metadata, self._unheard = dict(first.metadata), self.caller.cut_off and not first.output
            return self._given_text(first.output) or self._unanswered(first)
        assert isinstance(first, Done)
        self._metadata = dict(first.metadata)
        return self._given_text(first.output)

    def _given_text(self, output: object) -> str:
        """The text of an answer; what has none is a failed stage already."""
        try:
            return as_text(output)
        except ValueError as error:
            return self._nothing(str(error))

    def _nothing(self, reason: str) -> str:
        self._history = (StageFailure(stage="deterministic", reason=reason, provider_error=self._was_refused),)
        return ""

    def _unanswered(self, first: Failed) -> str:
        if not self._history:
            reason, own = f"the provider refused the answer: {first.feedback}", first.refusal is not None
            failure = StageFailure(stage="deterministic", reason=reason, provider_error=True, unanswered=not own)
            self._history = (failure,)
        return ""

    # --- values ---

    def _checked(self, output: object, stage: stages.Stage) -> _Valid | StageFailure:
        """An answer that is a value already: fine if it fits the schema."""
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
        """Carry out one stage, told when it begins and when it ends, in whatever way."""
        self._events.begins(decision, self._reason(), self._read_last)
        ended: _Valid | StageFailure | Attempt | None = None
        try:
            ended = await self._carry_out(decision)
        finally:
            self._tell_end(decision, ended)
        return ended

    def _tell_end(self, decision: stages.Decision, ended: _Valid | StageFailure | Attempt | None) -> None:
        match ended:
            case _Valid(passes=passes, clean=clean):
                self._events.succeeded(decision, passes, self._read_last, clean=clean)
            case StageFailure(reason=reason, text=text):
                self._events.failed(decision, reason, text)
            case Failed(feedback=feedback):
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
                return await self._ask_again(instruction)
            case Simplified(instruction=instruction, schema=flat):
                return await self._ask_simplified(instruction, flat)
            case Extract(text=text):
                return await self._extract(text)
            case Degrade(text=text):
                return self._degraded(text or self._partial)
            case GiveUp(stage=stage, reason=reason, flaws=flaws):
                return self._given_up(stage, reason, flaws)
            case _:
                assert_never(decision)

    async def _read(self, text: str, stage: stages.Stage) -> _Valid | StageFailure | Attempt:
        cut_off, self._read_last = self.caller.cut_off, text
        try:
            reading: Reading = await _aside(text, lambda: read_structured(text, self.schema))
        except StructuredOutputError as error:
            return self._cut(text, stage) if cut_off else self._refused(stage, error, text)
        unsure = reading.truncated or (cut_off and reading.engine == "scalar")
        if unsure and (cut_off or self._may_ask_again()):
            return self._cut(text, stage)
        valid = _Valid(
            value=reading.value,
            passes=reading.passes,
            engine=reading.engine,
            truncated=reading.truncated,
            clean=reading.engine == "strict" and not reading.passes and not reading.coercions,
        )
        return await self._judged(valid, stage, text)

    async def _judged(self, valid: _Valid, stage: stages.Stage, text: str) -> _Valid | StageFailure | Attempt:
        """The value, if the agent that promised it has nothing against it."""
        if not self.caller.validates:
            return valid
        match await self.caller.judge(valid.value):
            case Done(output=output):
                return attrs.evolve(valid, value=output)
            case Failed() as failed if not self.caller.is_about_content(failed):
                return failed
            case Failed(feedback=feedback):
                flaw = Flaw(path="$", message=feedback)
                return StageFailure(stage=stage, reason=feedback, text=text, flaws=(flaw,))
            case stopped:
                return stopped

    async def _read_answer(self, ended: Attempt, stage: stages.Stage) -> _Valid | StageFailure | Attempt:
        """What an answer to a repair or a retry is worth."""
        match ended:
            case Stopped():
                return ended
            case Failed(error=error) if escalating(error) is not None:
                return ended
            case Failed():
                return await self._read_failed(ended, stage)
            case Done(output=str() | bytes() | bytearray() as output) if stage == "llm" or not self.caller.validates:
                return await self._read_output(output, stage)
            case Done():
                checked = self._checked(ended.output, stage)
                unread = isinstance(checked, StageFailure) and checked.text
                return await self._read(unread, stage) if unread else checked
            case _:
                assert_never(ended)

    async def _read_failed(self, failed: Failed, stage: stages.Stage) -> _Valid | StageFailure | Attempt:
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

    async def _ask_again(self, instruction: str) -> _Valid | StageFailure | Attempt:
        if not self.caller.can_ask_again:
            return StageFailure(stage="strict_retry", reason=f"{_NOT_ASKED}; {self._reason()}")
        told = None if self._unheard else instruction
        return await self._read_answer(await self.caller.ask(told), "strict_retry")

    async def _ask_simplified(self, instruction: str, flat: Any) -> _Valid | StageFailure | Attempt:
        if not self.caller.can_ask_again:
            return StageFailure(stage="simplified", reason=f"{_NOT_ASKED}; {self._reason()}")
        ended = await self.caller.ask(instruction, as_text=True)
        if not isinstance(ended, Done) or not isinstance(ended.output, str):
            return await self._read_answer(ended, "simplified")
        text = ended.output
        try:
            value = await _aside(text, lambda: flat.read(text))
        except StructuredOutputError as error:
            return self._refused("simplified", error, text)
        return await self._judged(_Valid(value=value, engine="simplified"), "simplified", text)

    async def _extract(self, text: str) -> _Valid | StageFailure | Attempt:
        find = labelled_value if text == self._read_last else extract_from_text
        try:
            value = await _aside(text, lambda: find(text, self.schema))
        except StructuredOutputError as error:
            return self._refused("extractor", error, text)
        return await self._judged(_Valid(value=value, engine="extractor"), "extractor", text)

    def _degraded(self, text: str) -> Done | StageFailure:
        if not text.strip():
            return StageFailure(stage="degrade", reason=f"there is no text to fall back on; {self._reason()}")
        noted = {**self._metadata, "degraded": True, "structured_output_error": self._reason()}
        return Done(output=text, context=self.work.context, metadata=noted)

    def _given_up(self, stage: str, reason: str, flaws: tuple[Flaw, ...]) -> Failed:
        reason = _with_flaws(reason, flaws)
        error = StructuredOutputError(f"no valid value after stage {stage!r}: {reason}")
        error.stage, error.errors, error.schema_hash = stage, list(flaws), self.schema.schema_hash
        error.__cause__ = self._error if isinstance(self._error, BaseException) else None
        last = next((failure.text for failure in reversed(self._history) if failure.text), self._partial) or None
        return Failed(
            error=error,
            feedback=self._feedback(stage, reason),
            refusal=self._refusal(flaws),
            output=last,
            metadata=self._metadata,
        )

    def _refusal(self, flaws: tuple[Flaw, ...]) -> str | None:
        """What the model is told of why its answer will not do; why a call failed is not for it."""
        judged = last_judged(self._history)
        return None if judged is None else self._feedback(judged.stage, _with_flaws(judged.reason, flaws))

    # --- failures ---

    def _refused(self, stage: stages.Stage, error: StructuredOutputError, text: str) -> StageFailure:
        return StageFailure(
            stage=stage, reason=str(error), text=text, flaws=tuple(error.errors), provider_error=self._was_refused
        )

    def _cut(self, text: str, stage: stages.Stage) -> StageFailure:
        """A text without its end: what is missing cannot be repaired, so it does not go to the repairing stages."""
        self._partial = text
        flaw = Flaw(path="$", message=_CUT_OFF)
        return StageFailure(stage=stage, reason=_CUT_OFF, flaws=(flaw,), provider_error=self._was_refused)

    @property
    def _was_refused(self) -> bool:
        """Whether the provider itself refused the first answer."""
        return self._error is not None

    def _may_ask_again(self) -> bool:
        tried = any(failure.stage == "strict_retry" for failure in self._history)
        allowed = self.run.settings.aros.fallback.max_stages > 0 and self.processing.enforcement == "repair"
        return not tried and allowed and self.caller.can_ask_again

    def _reason(self) -> str:
        """What was last known to be wrong with the answer."""
        return self.run.redact(self._history[-1].reason) if self._history else ""

    def _feedback(self, stage: str, reason: str) -> str:
        return self.run.redact(f"Structured output failed at stage {stage!r}: {reason}")

    def _done(self, decision: stages.Decision, valid: _Valid) -> Done:
        metadata = dict(self._metadata)
        if not valid.clean or self._history:
            metadata["structured"] = {
                "stage": stage_of(decision),
                "engine": valid.engine,
                "passes": list(valid.passes),
                "failed_stages": [failure.stage for failure in self._history],
                **({"truncated": True} if valid.truncated else {}),
            }
        return Done(output=valid.value, context=self.work.context, metadata=metadata)


_READ_AT_ONCE = 500
"""Texts up to this length take a few milliseconds at worst; a thread takes a tenth of one."""
_CUT_OFF = "the answer was cut off before its end"
_NOT_ASKED = "the agent takes no feedback, so it is not asked again"


async def _aside(text: str, read: Callable[[], T]) -> T:
    if len(text) <= _READ_AT_ONCE:
        return read()
    return await trio.to_thread.run_sync(read, abandon_on_cancel=True)


def _with_flaws(reason: str, flaws: tuple[Flaw, ...]) -> str:
    return f"{reason}; {_listed(flaws[:3])}" if flaws and flaws[0].message not in reason else reason


def _listed(flaws: tuple[Flaw, ...]) -> str:
    return "; ".join(f"{flaw.path}: {flaw.message}" for flaw in flaws)
