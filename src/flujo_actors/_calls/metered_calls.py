"""The calls of a step's model agent as quotas and telemetry know them: made, told while they happen, and noted."""

from __future__ import annotations

import contextvars
import functools
from typing import Any

import trio

from .._agents.metering import AgentCall, Emit
from .._agents.pricing import Pricing
from .._core.usage import Usage
from .._dsl.step import Step
from .._run.limits import caller_of
from .._run.messages import Work
from .._run.run import Run
from .tool_calls import tell_if_tool, tells_tools


def metered_call(run: Run, step: Step, work: Work) -> AgentCall:
    """A call that an attempt is about to make."""
    return AgentCall(
        caller=caller_of(work.plan or step.plan, work.name),
        pricing=Pricing(run.settings.usage),
        quotas=work.quotas,
        emit=_emitter(run, work) if run.telemetry.enabled or tells_tools(run) else None,
    )


def spend_rest(run: Run, work: Work, call: AgentCall) -> None:
    """Count what a call used that ended, also of what was used after its last request."""
    used = call.finish()
    work.tally.spend(used)
    if run.telemetry.enabled:
        _tell_rest(run, work, call, used - call.told)


def noted(call: AgentCall) -> dict[str, object]:
    """What a step's metadata says of a call: who answered, and how often without saying what it cost."""
    said: dict[str, Any] = {"model": call.model_name} if call.model_name else {}
    return said | ({"unmeasured_responses": call.unmeasured} if call.unmeasured else {})


def _tell_rest(run: Run, work: Work, call: AgentCall, rest: Usage) -> None:
    """What was used after the last request, or by agents that tools called by themselves."""
    if call.model is None or not (rest.tokens or rest.requests or rest.tool_calls):
        return
    run.emit(
        "agent.usage",
        work.span,
        step_name=work.name,
        attempt=work.attempt,
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


def _emitter(run: Run, work: Work) -> Emit:
    """Telemetry for code on the asyncio loop, which may be another thread."""

    def tell(kind: type[Any], **facts: object) -> None:
        run.emit(kind.kind, work.span, step_name=work.name, attempt=work.attempt, **facts)
        tell_if_tool(run, work, kind, facts)

    if run.host.asyncio().same_thread:
        return tell
    token = trio.lowlevel.current_trio_token()

    def tell_from_afar(kind: type[object], **facts: object) -> None:
        # In a copy of the teller's context: what a sink makes current there is current in no task.
        token.run_sync_soon(functools.partial(contextvars.copy_context().run, tell, kind, **facts))

    return tell_from_afar
