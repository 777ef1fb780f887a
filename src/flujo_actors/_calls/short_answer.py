"""The short way to the answer of a model agent: one question, in a run that nobody listens to.

Its answer is what the agent says, so nobody reads it as a value; it is limited by nothing, and goes on from nothing.
The rules of `model` hold here, too: requests are metered one by one, what was used is counted however the call ends,
and cancellation reaches the agent. What is left out does nothing for such a question. How a call that failed is told,
is for `model` to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outcome import Value

from .._agents.metering import AgentCall
from .._agents.output_schema import promoted_schema
from .._agents.pricing import Pricing
from .._agents.request import AgentRequest, prompt_of
from .._bridge.guard import guarded
from .._core.attempts import Attempt, Done
from .._dsl.step import Step
from .._run.messages import Request, work_of
from .._run.run import Run
from .metered_calls import noted
from .model import failure_of_call
from .tool_approvals import may_ask_for_approval

if TYPE_CHECKING:
    from .._agents.per_agent import SomeAgent


def has_short_answer(step: Step) -> bool:
    """Whether a step that is just a question can take the short way."""
    alone = step.resumable is None and step.message_history is None and step.deps_plan is None
    if not alone or step.processing.wanted is not None:
        return False
    agent: SomeAgent = step.plan.target
    return promoted_schema(agent) is None and not may_ask_for_approval(agent)


async def short_answer(run: Run, step: Step, request: Request) -> Attempt:
    """Let the agent answer the step's data."""
    data = request.data if step.input is None else step.input
    call = AgentCall(caller="", pricing=Pricing(run.settings.usage))
    asked = AgentRequest(agent=step.plan.target, prompt=prompt_of(data), call=call, deps=step.deps)
    try:
        got = await guarded(run.host.asyncio().call, asked.run)
    finally:
        request.tally.spend(call.finish())
    if isinstance(got, Value):
        return Done(output=got.value.output, context=request.context, metadata=noted(call))
    return failure_of_call(run, step, work_of(request, data), asked, got.error)
