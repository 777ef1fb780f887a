"""One attempt of a step at its model agent: the trio side of `agents.calling`."""

from __future__ import annotations

import functools
from typing import Any

import attrs
import trio
from outcome import Error
from pydantic_ai import AgentRunResult
from pydantic_ai.agent import AbstractAgent

from ..agents.calling import AgentRequest, Finished, prompt_of, refusal_note
from ..agents.metering import AgentCall, Emit
from ..agents.output_schema import promoted_schema, provider_output
from ..agents.pricing import Pricing
from ..agents.provider_errors import is_about_content, text_of_error
from ..agents.repairing import repairer
from ..bridge.guard import guarded
from ..core.attempts import Attempt, Done, Failed
from ..core.events import AgentInput, AgentResponse
from ..core.outcomes import Chunk
from ..dsl.step import Step
from .agent_call import is_structured
from .aggregator import Aggregator
from .composites import Work
from .limits import within_limits
from .run import Run
from .structured_step import structured_attempt
from .usercode import failure_of


async def call_model_agent(run: Run, step: Step, work: Work, agent: AbstractAgent[Any, Any]) -> Attempt:
    """Let the agent answer the step's data, and bring its answer to a value if there is a schema."""
    own = promoted_schema(agent)
    schema = (step.processing.schema or own) if is_structured(run, step) else None
    caller = ModelCaller(
        run=run, step=step, work=work, agent=agent, schema=schema, validates=step.processing.schema is None
    )
    if schema is None:
        return await caller.ask(None)
    return await structured_attempt(run, step, work, caller, schema)


@attrs.frozen(kw_only=True, eq=False)
class ModelCaller:
    """A pydantic-ai agent behind a step."""

    run: Run
    step: Step
    work: Work
    agent: AbstractAgent[Any, Any]
    schema: Any = None
    validates: bool = False
    can_ask_again: bool = True

    @property
    def can_repair(self) -> bool:
        """Whether the agent has a model of its own."""
        return getattr(self.agent, "model", None) is not None

    def is_about_content(self, failed: Failed) -> bool:
        """Whether the call failed because of what the model wrote."""
        return is_about_content(failed.error)

    async def ask(self, instruction: str | None) -> Attempt:
        """One call of the agent on the step's data; its text is shown live if somebody watches."""
        run, work = self.run, self.work
        run.emit(AgentInput, work.span, step_name=work.name, attempt=work.attempt, data=work.data)
        prompt = prompt_of(work.data, refusal_note(work.feedback), instruction)
        request = AgentRequest(
            agent=self.agent, prompt=prompt, call=self._call(), deps=self.step.deps, options=self._options()
        )
        return await self._answered(request, _watched if run.outlet is not None else _unwatched)

    async def repair(self, prompt: str) -> Attempt:
        """One call of the agent's model with nothing but the prompt; nobody watches."""
        agent = repairer(self.agent)
        if agent is None:
            return Failed(error=None, feedback="the agent has no model to repair with")
        return await self._answered(AgentRequest(agent=agent, prompt=prompt, call=self._call()), _unwatched)

    def _options(self) -> dict[str, Any]:
        """Structured answers are not asked for again by pydantic-ai: the stages do that, the cheap ones first."""
        if self.schema is None:
            return {}
        options: dict[str, Any] = {"retries": {"output": 0}}
        if self.step.processing.structured_output == "openai_json" and not self.validates:
            options["output_type"] = provider_output(self.schema)
        return options

    def _call(self) -> AgentCall:
        run, work = self.run, self.work
        return AgentCall(
            caller=f"agent {id(self.agent):x}",
            pricing=Pricing(run.settings.usage),
            quotas=work.quotas,
            emit=_emitter(run, work) if run.telemetry.enabled else None,
        )

    async def _answered(self, request: AgentRequest, how: Any) -> Attempt:
        run, work, call = self.run, self.work, request.call
        try:
            got = await guarded(how, self, request)
        finally:
            work.tally.spend(call.finish())
        if isinstance(got, Error):
            text = text_of_error(got.error) or call.last_text
            return attrs.evolve(failure_of(run, got.error), output=text or None)
        result: AgentRunResult[Any] = got.value
        run.emit(AgentResponse, work.span, step_name=work.name, attempt=work.attempt, output=result.output)
        metadata: dict[str, Any] = {"model": call.model_name} if call.model_name else {}
        if call.unmeasured:
            metadata["unmeasured_responses"] = call.unmeasured
        return within_limits(Done(output=result.output, context=work.context, metadata=metadata), work)


async def _unwatched(caller: ModelCaller, request: AgentRequest) -> AgentRunResult[Any]:
    return await caller.run.host.asyncio().call(request.run)


async def _watched(caller: ModelCaller, request: AgentRequest) -> AgentRunResult[Any]:
    run, work = caller.run, caller.work
    source = run.host.asyncio().stream(request.stream)
    settings = run.settings.aros.streaming
    try:
        if caller.schema is not None and settings.aggregate_structured:
            final = await Aggregator(run, work, settings).gather(source, last=Finished)
        else:
            final = await _shown(run, work, source)
    finally:
        await source.aclose()
    if not isinstance(final, Finished):
        raise RuntimeError("the agent's stream ended without a result")
    return final.result


async def _shown(run: Run, work: Work, source: Any) -> Finished | None:
    pieces = work.tally.pieces
    async for piece in source:
        if isinstance(piece, Finished):
            return piece
        pieces.append(piece)
        await run.publish(Chunk(data=piece, step_name=work.name, attempt=work.attempt, seq=len(pieces) - 1))
    return None


def _emitter(run: Run, work: Work) -> Emit:
    """Telemetry for code on the asyncio loop, which may be another thread."""
    tell = functools.partial(run.emit, path=work.span, step_name=work.name, attempt=work.attempt)
    if run.host.asyncio().same_thread:
        return tell
    token = trio.lowlevel.current_trio_token()
    return lambda kind, **facts: token.run_sync_soon(functools.partial(tell, kind, **facts))
