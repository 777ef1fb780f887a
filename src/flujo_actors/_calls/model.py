"""One attempt of a step at its model agent: the trio side of `_agents.request`."""

from __future__ import annotations

import contextvars
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import attrs
import trio
from outcome import Error
from pydantic_ai import AgentRunResult
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model

from .._agents.granular.conversation import GranularCall
from .._agents.granular.request import GranularRequest
from .._agents.metering import AgentCall, Emit
from .._agents.output_schema import has_own_validators, promoted_schema, provider_output
from .._agents.pricing import Pricing
from .._agents.provider_errors import broke_off, is_about_content, own_refusal, quoted_text, refusal_of, text_of_error
from .._agents.repair import Replay, repairer
from .._agents.request import AgentRequest, Finished, prompt_of, refusal_note
from .._agents.turns import Turn
from .._bridge.guard import guarded
from .._bridge.to_trio import TrioCaller
from .._core import paths
from .._core.attempts import Attempt, Done, Failed, Stopped
from .._core.chunks import chunk_maker
from .._core.outcomes import Paused, StepResult
from .._core.paths import StepPath
from .._core.pause_tokens import idempotency_key
from .._core.usage import Usage
from .._dsl.resumable import Resumable
from .._dsl.step import Step
from .._run.limits import caller_of, within_limits
from .._run.messages import Work
from .._run.run import Run
from .._run.user_calls import failure_of
from ..errors import MaxTurnsReached, StructuredOutputError, UncertainUnit
from .agent import is_structured
from .aggregator import Aggregator
from .standing import Standing, standing_for
from .structured import structured_attempt
from .tool_calls import tell_if_tool, tells_tools
from .units import RERUN, RunUnits

_MORE_TRIES = (
    "let the model try more often (`retries` of the agent, `max_retries` of the step), or give the step a `fallback`"
)


async def call_model_agent(run: Run, step: Step, work: Work, agent: AbstractAgent[Any, Any]) -> Attempt:
    """Let the agent answer the step's data, and bring its answer to a value if there is a schema."""
    own = promoted_schema(agent)
    validates = own is not None and step.processing.schema is None
    schema = own if validates else step.processing.wanted
    if schema is not None and not is_structured(run, step):
        schema = None
    standing = await standing_for(run, step, work)
    if isinstance(standing, Failed):
        return standing
    caller = ModelCaller(
        run=run,
        step=step,
        work=work,
        agent=agent,
        schema=schema,
        validates=validates,
        is_typed=own is not None,
        standing=standing,
    )
    ended = await (caller.ask(None) if schema is None else structured_attempt(run, step, work, caller, schema))
    if not isinstance(ended, Failed) or step.resumable is None:
        return ended
    heard_out = caller.has_heard_out(ended)
    work.tally.refused += heard_out
    return ended if heard_out else attrs.evolve(ended, refusal=None)  # it goes on, so what it began with must stay


@attrs.define(kw_only=True, eq=False)
class ModelCaller:
    """A pydantic-ai agent behind a step."""

    run: Run
    step: Step
    work: Work
    agent: AbstractAgent[Any, Any]
    schema: Any = None
    validates: bool = False
    is_typed: bool = False
    standing: Standing
    """What all calls of the attempt have in common."""
    can_ask_again: bool = True
    cut_off: bool = False
    """Whether the last answer ended before its end, as far as the provider says."""
    numbers: Iterator[int] = attrs.field(factory=itertools.count)
    """Numbers the chunks of the attempt."""
    _answered_by: Model | None = None
    _granular: GranularCall | None = None
    """The last conversation, if it is kept."""
    _said: list[ModelMessage] = attrs.field(factory=list)
    """The messages of the last call that had a result."""
    _repairs: int = 0
    _unanswered: bool = False
    """Whether the last question got an answer that pydantic-ai refused, so that nobody was told of one yet."""

    @property
    def can_repair(self) -> bool:
        """Whether a model is known that could repair."""
        return self._repairing_model is not None

    @property
    def _repairing_model(self) -> Model | str | None:
        """The model that answered: it may be another than the agent's own, as in tests."""
        return self._answered_by or getattr(self.agent, "model", None)

    def is_about_content(self, failed: Failed) -> bool:
        """Whether the call failed because of what the model wrote."""
        return is_about_content(failed.error)

    def has_heard_out(self, failed: Failed) -> bool:
        """Whether a kept conversation came to an end that was refused: recalled, it would come to the same again."""
        kept, error = self._granular, failed.error
        refused = isinstance(error, StructuredOutputError) or is_about_content(error)
        return kept is not None and not kept.broken and kept.stopped is None and refused

    async def ask(self, instruction: str | None, *, as_text: bool = False) -> Attempt:
        """One call of the agent on the step's data; its text is shown live if somebody watches."""
        run, work, resumable = self.run, self.work, self.step.resumable
        run.emit("agent.input", work.span, step_name=work.name, attempt=work.attempt, data=work.data)
        prompt, options = self._prompt(instruction), self._options(as_text=as_text)
        request = self._atomic(prompt, options) if resumable is None else self._kept(prompt, options, resumable)
        ended = await self._answered(request, _watched if run.outlet is not None else _unwatched)
        self._unanswered = isinstance(ended, Failed) and self.is_about_content(ended)
        if work.assembly is not None:
            work.assembly.said = self._said
        if isinstance(ended, Done):
            self._tell_response(ended.output)
        return ended

    def settled(self, output: Any) -> None:
        """Tell what the agent's answer came to, unless it was told as the agent gave it."""
        if self._unanswered:
            self._tell_response(output)

    def _tell_response(self, output: Any) -> None:
        work = self.work
        self.run.emit("agent.response", work.span, step_name=work.name, attempt=work.attempt, output=output)

    def _prompt(self, instruction: str | None = None) -> Any:
        return prompt_of(self.work.data, refusal_note(self.work.tally.refusal), instruction)

    def _atomic(self, prompt: Any, options: dict[str, Any]) -> AgentRequest:
        return AgentRequest(
            agent=self.agent, prompt=prompt, call=self._call(), deps=self.standing.deps, options=options
        )

    def _kept(self, prompt: Any, options: dict[str, Any], resumable: Resumable) -> GranularRequest:
        """A request whose units are kept: a refused answer begins a new conversation, a failure goes on in its own."""
        work = self.work
        work.tally.questions += 1
        path = paths.conversation(work.span, work.tally.refused, work.tally.questions)
        options = self.standing.shortened(options, resumable.keep_last)
        return self._kept_at(
            path,
            agent=self.agent,
            prompt=prompt,
            options=options,
            deps=self.standing.deps,
            max_turns=resumable.max_turns,
        )

    def _kept_at(self, path: StepPath, **asked: Any) -> GranularRequest:
        assert self.step.resumable is not None
        return GranularRequest(
            call=self._call(),
            journal=RunUnits(journal=self.run.journal, path=path, trio=TrioCaller(self.run.host.asyncio().keep_awake)),
            scope=idempotency_key(self.run.run_id, path),
            on_uncertain=self.step.resumable.on_uncertain,
            **asked,
        )

    async def repair(self, prompt: str) -> Attempt:
        """One call of the agent's model with nothing but the prompt; nobody watches."""
        model = self._repairing_model
        if model is None:
            return Failed(error=None, feedback="the agent has no model to repair with")
        return await self._answered(self._repair(repairer(model), prompt), _unwatched)

    def _repair(self, agent: AbstractAgent[Any, Any], prompt: str) -> AgentRequest | GranularRequest:
        """A repair of a granular step is kept under the question whose answer it mends: it is not paid for twice."""
        if self.step.resumable is None:
            return AgentRequest(agent=agent, prompt=prompt, call=self._call())
        self._repairs += 1
        tally = self.work.tally
        path = paths.repair(self.work.span, tally.refused, tally.questions, self._repairs)
        return self._kept_at(path, agent=agent, prompt=prompt, max_turns=1)

    async def judge(self, value: Any) -> Attempt:
        """What the agent's own validators make of a value that its model did not say like this."""
        if not has_own_validators(self.agent):
            return Done(output=value, context=self.work.context)
        replay = Replay(agent=self.agent, prompt=self._prompt(), deps=self.standing.deps, value=value)
        got = await guarded(self.run.host.asyncio().call, replay.judged)
        if isinstance(got, Error):
            return Failed(error=got.error, feedback=self.run.redact(refusal_of(got.error)))
        return Done(output=got.value, context=self.work.context)

    def _options(self, *, as_text: bool) -> dict[str, Any]:
        """Structured answers are not asked for again by pydantic-ai: the stages do that, the cheap ones first."""
        standing = self.standing.options()
        if self.schema is None:
            return standing
        output: Any = None
        if as_text and not has_own_validators(self.agent):
            output = str
        elif self.step.processing.structured_output == "openai_json":
            output = provider_output(self.agent, self.schema)
        return {**standing, "retries": {"output": 0}, **({} if output is None else {"output_type": output})}

    def _call(self) -> AgentCall:
        run, work = self.run, self.work
        return AgentCall(
            caller=caller_of(work.plan or self.step.plan, work.name),
            pricing=Pricing(run.settings.usage),
            quotas=work.quotas,
            emit=_emitter(run, work) if run.telemetry.enabled or tells_tools(run) else None,
        )

    async def _answered(self, request: AgentRequest | GranularRequest, how: Any) -> Attempt:
        work, call = self.work, request.call
        try:
            got = await guarded(how, self, request)
        finally:
            used = call.finish()
            work.tally.spend(used)
            if self.run.telemetry.enabled:
                self._tell_rest(call, used - call.told)
            self._answered_by, self.cut_off = call.model, call.cut_short
            if isinstance(request, GranularRequest):
                self._granular = request.granular
                _note_turns(work.tally.history, request)
        if isinstance(got, Error):
            return self._failed(request, got.error)
        result: AgentRunResult[Any] = got.value
        self._said = result.new_messages()
        return within_limits(Done(output=result.output, context=work.context, metadata=_noted(call)), work)

    def _tell_rest(self, call: AgentCall, rest: Usage) -> None:
        """What was used after the last request, or by agents that tools called by themselves."""
        if call.model is None or not (rest.tokens or rest.requests or rest.tool_calls):
            return
        self.run.emit(
            "agent.usage",
            self.work.span,
            step_name=self.work.name,
            attempt=self.work.attempt,
            model=call.model_name,
            provider=call.model.system,
            input_tokens=rest.input_tokens,
            output_tokens=rest.output_tokens,
            cached_tokens=rest.cached_tokens,
            requests=rest.requests,
            tool_calls=rest.tool_calls,
            cost_usd=max(0.0, rest.cost_usd),
            zero_tokens=False,
        )

    def _failed(self, request: AgentRequest | GranularRequest, error: BaseException) -> Attempt:
        if isinstance(request, GranularRequest) and isinstance(error, UncertainUnit) and error.policy == "pause":
            return self._asks(request, error)
        self.cut_off = self.cut_off or broke_off(error)
        if isinstance(error, MaxTurnsReached):
            return attrs.evolve(failure_of(self.run, error), output=error.last_text or None)
        text = quoted_text(error) or request.call.last_text or text_of_error(error)
        failed = attrs.evolve(failure_of(self.run, error), output=text or None, metadata=_noted(request.call))
        own = own_refusal(error)
        return failed if own is None else self._refused(failed, self.run.redact(own))

    def _refused(self, failed: Failed, reason: str) -> Failed:
        """The failure of an agent that accepted no answer: with why, which pydantic-ai leaves out, and what to do."""
        failed = attrs.evolve(failed, refusal=reason)
        if reason in failed.feedback:
            return failed
        why = f"the agent refused its model's answer: {reason}" if failed.output else "the model's answer was empty"
        todo = (
            "" if self.schema is not None else f"; {_MORE_TRIES}"
        )  # the stages of a structured step try by themselves
        return attrs.evolve(failed, feedback=f"{failed.feedback}: {why}{todo}")

    def _asks(self, request: GranularRequest, error: UncertainUnit) -> Stopped:
        """A pause that asks what became of a tool call; each time another question, so no answer counts twice."""
        units = request.journal
        assert isinstance(units, RunUnits)
        place = units.place(error.key)
        asked = self.run.journal.times_answered(place)
        again = f" This was asked {asked} times before, and it was run again since." if asked else ""
        question = f"{error}.{again} Answer {RERUN!r} to run it again, or with what it returned."
        return Stopped(outcome=Paused(message=self.run.redact(question)), place=place)


def _noted(call: AgentCall) -> dict[str, Any]:
    """What a step's metadata says of a call: who answered, and how often without saying what it cost."""
    noted: dict[str, Any] = {"model": call.model_name} if call.model_name else {}
    return noted | ({"unmeasured_responses": call.unmeasured} if call.unmeasured else {})


def _note_turns(history: list[StepResult], request: GranularRequest) -> None:
    """Each turn of a conversation is in the history once, as the last attempt that came to it left it."""
    places = {(turn.metadata.get("conversation"), turn.name): place for place, turn in enumerate(history)}
    for result in (_turn_result(turn, request.scope) for turn in request.turns):
        place = places.get((request.scope, result.name))
        if place is None:
            history.append(result)
        else:
            history[place] = result


def _turn_result(turn: Turn, conversation: str) -> StepResult:
    """A turn of a granular step, as part of the step's history."""
    calls = [{"name": call.name, "tool_call_id": call.tool_call_id, "ended": call.ended} for call in turn.tool_calls]
    return StepResult(
        name=f"turn {turn.number}",
        output=turn.text,
        token_counts=turn.usage.tokens,
        cost_usd=turn.usage.cost_usd,
        usage=turn.usage,
        metadata={"tool_calls": calls, "recalled": turn.recalled, "conversation": conversation},
    )


async def _unwatched(caller: ModelCaller, request: AgentRequest | GranularRequest) -> AgentRunResult[Any]:
    return await caller.run.host.asyncio().call(request.run)


async def _watched(caller: ModelCaller, request: AgentRequest | GranularRequest) -> AgentRunResult[Any]:
    run, work = caller.run, caller.work
    source = run.host.asyncio().stream(request.stream)
    work.tally.pieces = []
    try:
        if caller.schema is not None and run.settings.aros.streaming.aggregate_structured:
            final = await Aggregator(run, work, numbers=caller.numbers).gather(source, last=Finished)
        else:
            final = await _shown(caller, source)
    finally:
        await source.aclose()
    if not isinstance(final, Finished):
        raise RuntimeError("the agent's stream ended without a result")
    return final.result


async def _shown(caller: ModelCaller, source: Any) -> Finished | None:
    work, outlet = caller.work, caller.run.outlet
    chunk_of = chunk_maker(work.name, work.attempt, caller.numbers, work.span)
    async for piece in source:
        if isinstance(piece, Finished):
            return piece
        work.tally.pieces.append(piece)
        if outlet is not None and not outlet.offer(chunk := chunk_of(piece)):
            await outlet.put(chunk)
    return None


def _emitter(run: Run, work: Work) -> Emit:
    """Telemetry for code on the asyncio loop, which may be another thread."""

    def tell(kind: type[Any], **facts: Any) -> None:
        run.emit(kind.kind, work.span, step_name=work.name, attempt=work.attempt, **facts)
        tell_if_tool(run, work, kind, facts)

    if run.host.asyncio().same_thread:
        return tell
    token = trio.lowlevel.current_trio_token()

    def tell_from_afar(kind: type[Any], **facts: Any) -> None:
        # In a copy of the teller's context: what a sink makes current there is current in no task.
        token.run_sync_soon(functools.partial(contextvars.copy_context().run, tell, kind, **facts))

    return tell_from_afar
