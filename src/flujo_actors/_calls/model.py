"""One attempt of a step at its model agent: the trio side of `_agents.request`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Any

import attrs
from outcome import Error
from pydantic_ai import AgentRunResult
from pydantic_ai.models import Model
from pydantic_ai.tools import DeferredToolRequests

from .._agents.output_schema import has_own_validators, promoted_schema, provider_output
from .._agents.provider_errors import broke_off, is_about_content, own_refusal, quoted_text, refusal_of, text_of_error
from .._agents.repair import Replay, repairer
from .._agents.request import AgentRequest, prompt_of, refusal_note
from .._bridge.guard import guarded
from .._core.attempts import Attempt, Done, Failed
from .._dsl.step import Step
from .._run.limits import within_limits
from .._run.messages import Work
from .._run.run import Run
from .._run.user_calls import failure_of
from ..errors import MaxTurnsReached
from .agent import is_structured, taker_of
from .metered_calls import metered_call, noted, spend_rest
from .standing import Standing, ready_standing, standing_for
from .structured import structured_attempt
from .tool_approvals import ToolApprovals, approvals_for

if TYPE_CHECKING:
    from .._agents.per_agent import SomeAgent
    from .conversations import Conversations, Request

_MORE_TRIES = (
    "let the model try more often (`retries` of the agent, `max_retries` of the step), or give the step a `fallback`"
)


async def call_model_agent(run: Run, step: Step, work: Work, agent: SomeAgent) -> Attempt:
    """Let the agent answer the step's data, and bring its answer to a value if there is a schema."""
    own = promoted_schema(agent)
    validates = own is not None and step.processing.schema is None
    schema = own if validates else step.processing.wanted
    if schema is not None and not is_structured(run, step):
        schema = None
    standing = ready_standing(step, work) or await standing_for(run, step, work)
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
        kept=_conversations(run, step, work, standing),
        approvals=None if step.resumable is not None else approvals_for(run, work, agent),
    )
    ended = await (caller.ask(None) if schema is None else structured_attempt(run, step, work, caller, schema))
    if not isinstance(ended, Failed) or step.resumable is None:
        return ended
    heard_out = caller.kept is not None and caller.kept.heard_out(ended)
    work.tally.refused += heard_out
    return ended if heard_out else attrs.evolve(ended, refusal=None)  # it goes on, so what it began with must stay


def _conversations(run: Run, step: Step, work: Work, standing: Standing) -> Conversations | None:
    if step.resumable is None:
        return None
    from .conversations import Conversations  # what only granular steps need: a tenth of all that agents load

    return Conversations(run=run, work=work, resumable=step.resumable, standing=standing)


@attrs.define(kw_only=True, eq=False)
class ModelCaller:
    """A pydantic-ai agent behind a step."""

    run: Run
    step: Step
    work: Work
    agent: SomeAgent
    schema: object = None
    validates: bool = False
    is_typed: bool = False
    standing: Standing
    """What all calls of the attempt have in common."""
    kept: Conversations | None = None
    """What the agent is asked, if that is kept unit by unit."""
    approvals: ToolApprovals | None = None
    """What tools of the agent wait for, if one of them needs approval."""
    can_ask_again: bool = True
    cut_off: bool = False
    """Whether the last answer ended before its end, as far as the provider says."""
    numbers: Iterator[int] = attrs.field(factory=itertools.count)
    """Numbers the chunks of the attempt."""
    _answered_by: Model | None = None
    _result: AgentRunResult[object] | None = None
    """Of the last call that had one."""
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

    async def ask(self, instruction: str | None, *, as_text: bool = False) -> Attempt:
        """One call of the agent on the step's data; its text is shown live if somebody watches."""
        run, work = self.run, self.work
        run.emit("agent.input", work.span, step_name=work.name, attempt=work.attempt, data=work.data)
        prompt, options = self._prompt(instruction), self._options(as_text=as_text)
        if self.kept is None and self.approvals is not None:
            options, goes_on, asks = self.approvals.options(options)
            if asks is not None:
                return asks
            prompt = None if goes_on else prompt
        request = self._request(prompt, options)
        ended = await self._answered(request, _watched if run.is_seen(work.span) else _unwatched)
        self._unanswered = isinstance(ended, Failed) and self.is_about_content(ended)
        if work.assembly is not None and self._result is not None:
            work.assembly.said = self._result.new_messages()
        if isinstance(ended, Done):
            self._tell_response(ended.output)
        return ended

    def settled(self, output: object) -> None:
        """Tell what the agent's answer came to, unless it was told as the agent gave it."""
        if self._unanswered:
            self._tell_response(output)

    def _tell_response(self, output: object) -> None:
        work = self.work
        self.run.emit("agent.response", work.span, step_name=work.name, attempt=work.attempt, output=output)

    def _prompt(self, instruction: str | None = None) -> Any:
        return prompt_of(self.work.data, refusal_note(self.work.tally.refusal), instruction)

    def _request(self, prompt: Any, options: dict[str, object]) -> Request:
        call = metered_call(self.run, self.step, self.work)
        if self.kept is not None:
            return self.kept.question(self.agent, prompt, options, call)
        return AgentRequest(agent=self.agent, prompt=prompt, call=call, deps=self.standing.deps, options=options)

    async def repair(self, prompt: str) -> Attempt:
        """One call of the agent's model with nothing but the prompt; nobody watches."""
        model = self._repairing_model
        if model is None:
            return Failed(error=None, feedback="the agent has no model to repair with")
        return await self._answered(self._repair(repairer(model), prompt), _unwatched)

    def _repair(self, agent: SomeAgent, prompt: str) -> Request:
        call = metered_call(self.run, self.step, self.work)
        if self.kept is not None:
            return self.kept.repair(agent, prompt, call)
        return AgentRequest(agent=agent, prompt=prompt, call=call)

    async def judge(self, value: object) -> Attempt:
        """What the agent's own validators make of a value that its model did not say like this."""
        if not has_own_validators(self.agent):
            return Done(output=value, context=self.work.context)
        replay = Replay(agent=self.agent, prompt=self._prompt(), deps=self.standing.deps, value=value)
        got = await guarded(self.run.host.asyncio().call, replay.judged)
        if isinstance(got, Error):
            return Failed(error=got.error, feedback=self.run.redact(refusal_of(got.error)))
        return Done(output=got.value, context=self.work.context)

    def _options(self, *, as_text: bool) -> dict[str, object]:
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

    async def _answered(self, request: Request, how: Any) -> Attempt:
        work, call = self.work, request.call
        try:
            got = await guarded(how, self, request)
        finally:
            spend_rest(self.run, work, call)
            self._answered_by, self.cut_off = call.model, call.cut_short
            if self.kept is not None:
                self.kept.ended(request)
        if isinstance(got, Error):
            return self.failed(request, got.error)
        result: AgentRunResult[object] = got.value
        self._result = result
        if self.approvals is not None and isinstance(result.output, DeferredToolRequests) and result.output.approvals:
            return self.approvals.asks(result.output, result.all_messages_json())
        return within_limits(Done(output=result.output, context=work.context, metadata=noted(call)), work)

    def failed(self, request: Request, error: BaseException) -> Attempt:
        """How an attempt ends whose call raised."""
        asks = None if self.kept is None else self.kept.asks_about(request, error)
        if asks is not None:
            return asks
        self.cut_off = self.cut_off or broke_off(error)
        if isinstance(error, MaxTurnsReached):
            return attrs.evolve(failure_of(self.run, error), output=error.last_text or None)
        text = quoted_text(error) or request.call.last_text or text_of_error(error)
        failed = attrs.evolve(failure_of(self.run, error), output=text or None, metadata=noted(request.call))
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


def failure_of_call(run: Run, step: Step, work: Work, request: AgentRequest, error: BaseException) -> Attempt:
    """How an attempt ends whose only call raised, where nothing but the step itself is to be known of it."""
    standing = Standing(deps=request.deps)
    return ModelCaller(run=run, step=step, work=work, agent=request.agent, standing=standing).failed(request, error)


def _unwatched(caller: ModelCaller, request: Request) -> Awaitable[AgentRunResult[object]]:
    return caller.run.host.asyncio().call(request.run)


async def _watched(caller: ModelCaller, request: Request) -> AgentRunResult[object]:
    run = caller.run
    taker = taker_of(run, caller.work, caller.numbers, structured=caller.schema is not None)
    return await taker.within(functools.partial(run.host.asyncio().produced, request.run, taker))
