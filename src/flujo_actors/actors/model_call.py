"""One call of a model agent by a step: the trio side of `agents.calling`."""

from __future__ import annotations

import functools
from typing import Any

import trio
from outcome import Error
from pydantic_ai import AgentRunResult

from ..agents.calling import AgentRequest, Finished, prompt_of
from ..agents.metering import AgentCall, Emit
from ..agents.pricing import Pricing
from ..bridge.guard import guarded
from ..core.attempts import Attempt, Done
from ..core.events import AgentInput, AgentResponse
from ..core.outcomes import Chunk
from ..dsl.step import Step
from .composites import Work
from .limits import within_limits
from .run import Run
from .usercode import failure_of


async def call_model_agent(run: Run, step: Step, work: Work, agent: Any) -> Attempt:
    """Let the agent answer the step's data; its text is shown live if somebody watches."""
    call = AgentCall(
        caller=f"agent {id(agent):x}",
        pricing=Pricing(run.settings.usage),
        quotas=work.quotas,
        emit=_emitter(run, work) if run.telemetry.enabled else None,
    )
    request = AgentRequest(agent=agent, prompt=prompt_of(work.data, work.feedback), call=call, deps=step.deps)
    run.emit(AgentInput, work.span, step_name=work.name, attempt=work.attempt, data=work.data)
    try:
        got = await guarded(_answer, run, request, work)
    finally:
        work.tally.spend(call.total())
    if isinstance(got, Error):
        return failure_of(run, got.error)
    result: AgentRunResult[Any] = got.value
    run.emit(AgentResponse, work.span, step_name=work.name, attempt=work.attempt, output=result.output)
    metadata: dict[str, Any] = {"model": call.model_name} if call.model_name else {}
    if call.unmeasured:
        metadata["unmeasured_responses"] = call.unmeasured
    return within_limits(Done(output=result.output, context=work.context, metadata=metadata), work)


async def _answer(run: Run, request: AgentRequest, work: Work) -> AgentRunResult[Any]:
    loop = run.host.asyncio()
    if run.outlet is None:
        return await loop.call(request.run)
    source = loop.stream(request.stream)
    pieces = work.tally.pieces
    try:
        async for piece in source:
            if isinstance(piece, Finished):
                return piece.result
            pieces.append(piece)
            await run.publish(Chunk(data=piece, step_name=work.name, attempt=work.attempt, seq=len(pieces) - 1))
    finally:
        await source.aclose()
    raise RuntimeError("the agent's stream ended without a result")


def _emitter(run: Run, work: Work) -> Emit:
    """Telemetry for code on the asyncio loop, which may be another thread."""
    tell = functools.partial(run.emit, path=work.span, step_name=work.name, attempt=work.attempt)
    if run.host.asyncio().same_thread:
        return tell
    token = trio.lowlevel.current_trio_token()
    return lambda kind, **facts: token.run_sync_soon(functools.partial(tell, kind, **facts))
