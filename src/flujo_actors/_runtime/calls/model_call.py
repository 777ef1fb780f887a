"""Attempt at a model agent, on the trio side.

Sections:

- Common arguments of an attempt's model calls: deps, history, context.
- Tool approvals of an atomic agent call: pause, and continue the conversation.
- Tool calls as outcomes, for readers that request them.
- Metered calls of a step's model agent: usage, telemetry and metadata.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
from collections.abc import Awaitable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import trio
from outcome import Error
from pydantic_ai import AgentRunResult
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults

from ..._agents.agent_cache import SomeAgent
from ..._agents.agent_options import checked_options
from ..._agents.agent_request import AgentRequest, prompt_of, refusal_note, with_options
from ..._agents.approved_tools import CallToApprove, asks_for_approval, defers_calls, question_about, verdict_of
from ..._agents.compaction import (
    ShownContext,
    history_options,
    messages_of,
    messages_since,
    shortened_history,
    to_remember,
)
from ..._agents.output_schema import has_own_validators, promoted_schema, provider_output, schema_of
from ..._agents.prices import Pricing
from ..._agents.provider_errors import broke_off, is_about_content, own_refusal, quoted_text, refusal_of, text_of_error
from ..._agents.repair import OutputRepair, RepairedOutput, continued, repairer
from ..._agents.request_meter import AgentCall, Emit
from ..._bridge.to_trio import TrioCaller
from ..._bridge.user_code_guard import guarded
from ..._core import step_paths
from ..._core.attempt_results import Attempt, AttemptFailed, AttemptStopped, AttemptSucceeded
from ..._core.locks import QUOTA_LOCK
from ..._core.outcomes import Paused, ToolCalled, ToolCallStatus
from ..._core.step_paths import StepPath
from ..._core.telemetry_events import ToolEnded, ToolStarted
from ..._core.usage import NO_USAGE, Usage
from ..._dsl.step_declaration import Step
from ..._durable.journal import Journal
from ...errors import DeclarationError, MaxTurnsReached
from ...structured import ReadResult, compile_schema
from .. import calls
from ..run.messages import AttemptInput
from ..run.run_environment import Run
from ..run.step_results import caller_of, within_limits
from ..run.user_functions import failure_of, made
from .agent_call import is_structured, taker_of
from .message_history import history_in
from .structured_call import structured_attempt

if TYPE_CHECKING:
    from ..._bridge.host_loop import ChunkConsumer
    from .conversations import Request


# --- Common arguments of an attempt's model calls -----------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class CallDefaults:
    """Common arguments of one attempt's calls."""

    deps: object = None
    history: list[ModelMessage] = attrs.field(factory=list)
    """Earlier messages."""
    shown: str = ""
    """The context of the step, as the model is shown it."""
    given: dict[str, Any] = attrs.field(factory=dict)
    """The step's `agent_options`."""

    def options(self) -> dict[str, Any]:
        """Return arguments of pydantic-ai's `run`: history and shown context."""
        if not self.history and not self.shown:
            return dict(self.given)
        shown = {"capabilities": [ShownContext(self.shown)]} if self.shown else {}
        return with_options(self.given, with_options(history_options(self.history), shown))

    def shortened(self, options: dict[str, object], keep_last: int | None) -> dict[str, object]:
        """Return the arguments with a shortened conversation; its history stays."""
        return with_options(options, shortened_history(keep_last, after=len(self.history)))


def ready_defaults(step: Step, work: AttemptInput) -> CallDefaults | None:
    """Return an attempt's static deps and history, without calls."""
    made = step.deps_plan is not None or step.message_history is not None or step.context_sources is not None
    made = made or step.agent_options is not None or step.conversation is not None
    return None if made or work.assembly is not None else CallDefaults(deps=step.deps)


async def defaults_for(run: Run, step: Step, work: AttemptInput) -> CallDefaults | AttemptFailed:
    """Return deps and history of an attempt, calling the step's functions."""
    deps, history = step.deps, step.message_history
    if deps is not None and step.deps_plan is not None:
        got = await made(run, step.deps_plan, deps, work)
        if isinstance(got, Error):
            return failure_of(run, got.error, plan=step.deps_plan, subject=f"The deps of step {step.name!r}")
        deps = got.value
        run.telemetry.learn(deps)
    what = f"The message_history of step {step.name!r}"
    if history is not None and step.history_plan is not None:
        got = await made(run, step.history_plan, history, work)
        if isinstance(got, Error):
            return failure_of(run, got.error, plan=step.history_plan, subject=what)
        history = got.value
    if step.conversation is not None:
        loaded = await calls.conversation_for(run, step, work)
        if isinstance(loaded, AttemptFailed):
            return loaded
        history = loaded.messages
    given = await _options_for(run, step, work)
    if isinstance(given, AttemptFailed):
        return given
    read = await guarded(_messages, step, work, history)
    if isinstance(read, Error):
        return failure_of(run, read.error, subject=what)
    shown = "" if work.assembly is None else work.assembly.text
    return CallDefaults(deps=deps, history=read.value, shown=shown, given=given)


async def _options_for(run: Run, step: Step, work: AttemptInput) -> dict[str, Any] | AttemptFailed:
    """Return the step's `agent_options` for this attempt, checked."""
    where, given = f"step {step.name!r}: agent_options", step.agent_options
    if given is None:
        return {}
    plan, agent = step.options_plan, (work.plan or step.plan).target
    if plan is not None:
        got = await made(run, plan, given, work)
        if isinstance(got, Error):
            return failure_of(run, got.error, plan=plan, subject=f"The agent_options of step {step.name!r}")
        given = {} if got.value is None else got.value
    try:
        return checked_options(given, agent, where=where)
    except DeclarationError as error:
        return AttemptFailed(error=error, feedback=run.redact(str(error)))


async def _messages(step: Step, work: AttemptInput, given: object) -> list[ModelMessage]:
    source = None if step.context_sources is None else step.context_sources.history
    if source is not None:
        return history_in(work.context, source)
    return [] if given is None else messages_of(given, subject="message_history")


# --- Tool approvals of an atomic agent call -----------------------------------------------------------------------
# The conversation so far is stored with the pause. The calls of one response are approved one after the other; when
# all
# are answered, the agent continues from there. A retry of the step is another conversation, and pauses again.


@attrs.define(eq=False)
class ToolApprovals:
    """The approvals of one attempt."""

    run: Run
    work: AttemptInput
    agent: SomeAgent
    _asked: int = 0
    """Number of answered pauses."""

    def options(self, options: dict[str, object]) -> tuple[dict[str, Any], bool, AttemptStopped | None]:
        """Return run options, whether a conversation continues, and the next pause."""
        output = options.get("output_type", getattr(self.agent, "output_type", str))
        options = {**options, "output_type": [output, DeferredToolRequests]}
        batch, verdicts = self._answers()
        if batch is None:
            return options, False, None
        left = [call for call in batch["calls"] if call["tool_call_id"] not in verdicts]
        if left:
            call = CallToApprove(**left[0], description=batch.get("descriptions", {}).get(left[0]["tool"]))
            return options, True, self._question(call, {})
        messages = ModelMessagesTypeAdapter.validate_json(batch["messages"])
        outside = {call["tool_call_id"] for call in batch["calls"] if call.get("external")}
        decided: dict[str, Any] = {name: verdict_of(verdicts[name]) for name in verdicts.keys() - outside}
        results = DeferredToolResults(approvals=decided, calls={name: verdicts[name] for name in outside})
        goes_on = {"message_history": messages, "deferred_tool_results": results}
        return {**options, **goes_on}, True, None

    def first_pause(self, requests: DeferredToolRequests, messages: bytes, tools: Mapping[str, Any]) -> AttemptStopped:
        """Return the first pause about the requested tools."""
        calls = [CallToApprove.of(call, tools.get(call.tool_name)) for call in requests.approvals]
        calls += [CallToApprove.of(call, external=True) for call in requests.calls]
        batch: dict[str, Any] = {"messages": messages.decode(), "calls": [call.data for call in calls]}
        if described := {call.tool: call.description for call in calls[1:] if call.description}:
            batch["descriptions"] = described
        return self._question(calls[0], batch)

    def _answers(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Return the last approved calls with answers; usage is counted."""
        batch: dict[str, Any] | None = None
        verdicts: dict[str, Any] = {}
        used = NO_USAGE
        while (answered := self.run.journal.answered(self._place(self._asked + 1))) is not None:
            self._asked += 1
            question = answered.pause.question
            assert question is not None
            if question.facts.get("batch"):
                batch, verdicts = question.facts["batch"], {}
            verdicts[question.facts["metadata"]["tool_call_id"]] = answered.answer
            used = answered.pause.usage
        self._count(used)
        return batch, verdicts

    def _count(self, used: Usage) -> None:
        if used is NO_USAGE or self.work.state.usage is not NO_USAGE:
            return
        self.work.state.spend(used)
        with QUOTA_LOCK:
            for quota in self.work.quotas:
                quota.spend(used)

    def _question(self, call: CallToApprove, batch: dict[str, Any]) -> AttemptStopped:
        question = attrs.evolve(question_about(call), facts={**call.facts, "batch": batch})
        text = self.run.redact(call.question)
        return AttemptStopped(outcome=Paused(message=text), place=self._place(self._asked + 1), question=question)

    def _place(self, number: int) -> StepPath:
        return step_paths.unit(self.work.path, f"approval {number}")


def approvals_for(run: Run, work: AttemptInput, agent: SomeAgent, given: Mapping[str, Any]) -> ToolApprovals | None:
    """Return an attempt's approvals, if any tool needs them."""
    first_pause = may_ask_for_approval(agent, given.get("output_type")) or any(
        map(defers_calls, given.get("toolsets", ()))
    )
    return ToolApprovals(run, work, agent) if first_pause else None


def may_ask_for_approval(agent: SomeAgent, output_type: object = None) -> bool:
    """Return whether any tool is deferred or the output type allows it."""
    declared = output_type or getattr(agent, "output_type", None)
    asked = isinstance(declared, list | tuple) and DeferredToolRequests in declared
    return asked or asks_for_approval(agent)


# --- Tool calls as outcomes ---------------------------------------------------------------------------------------


def emits_tools(run: Run) -> bool:
    """Return whether the reader requested tool calls."""
    return run.event_stream is not None and run.event_stream.tools


def emit_if_tool(run: Run, work: AttemptInput, kind: type[object], facts: dict[str, Any]) -> None:
    """Pass a tool event to the reader."""
    if kind in (ToolStarted, ToolEnded) and emits_tools(run):
        _emit_tool(run, work, ended=kind is ToolEnded, **facts)


def _emit_tool(
    run: Run,
    work: AttemptInput,
    *,
    tool_name: str,
    tool_call_id: str,
    arguments: object = None,
    result: object = None,
    status: str | None = None,
    feedback: str | None = None,
    error_type: str | None = None,
    ended: bool,
) -> None:
    """Notify the reader; the type of an error is for telemetry alone."""
    assert run.event_stream is not None
    stands: ToolCallStatus = "started" if not ended else "returned" if status in (None, "success") else "failed"
    text = None if feedback is None else run.redact(feedback)
    run.event_stream.force_put(
        ToolCalled(
            tool_name=tool_name,
            tool_call_id=tool_call_id,
            status=stands,
            arguments=arguments,
            result=result,
            feedback=text,
            step_name=work.name,
            attempt=work.attempt,
            path=work.span,
        )
    )


# --- Metered calls of a step's model agent ------------------------------------------------------------------------


def metered_call(run: Run, step: Step, work: AttemptInput) -> AgentCall:
    """Return a call that an attempt is about to make."""
    plan = work.plan or step.plan
    return AgentCall(
        caller=caller_of(plan, work.name),
        agent_name=getattr(plan.target, "name", None),
        pricing=Pricing(run.settings.usage),
        quotas=work.quotas,
        fence=fence_of(run),
        emit=_emitter(run, work) if run.telemetry.enabled or emits_tools(run) else None,
        rates=None if run.rates is None else run.rates.gate(run, step, work, caller_of(plan, work.name)),
    )


@attrs.frozen(eq=False)
class LeaseFence:
    """Lease check of a durable run for code on the asyncio loop."""

    journal: Journal
    trio: TrioCaller

    @property
    def lapsed(self) -> bool:
        """Return whether the lease must have expired."""
        return self.journal.lapsed

    async def confirm(self) -> None:
        """Return once the store renewed the lease; else raise `LeaseLost`."""
        await self.trio.call(self.journal.confirm)


def fence_of(run: Run) -> LeaseFence | None:
    """Return the fence of a stored run; None in memory."""
    return LeaseFence(run.journal, TrioCaller(run.host.asyncio().keep_awake)) if run.journal.durable else None


def spend_rest(run: Run, work: AttemptInput, call: AgentCall) -> None:
    """Count the remaining usage of an ended call."""
    used = call.finish()
    work.state.spend(used)
    if run.telemetry.enabled:
        _emit_rest(run, work, call, used - call.reported)


def noted(call: AgentCall) -> dict[str, object]:
    """Return the call metadata of a step: answering model, unmetered answers."""
    facts: dict[str, Any] = {"model": call.model_name} if call.model_name else {}
    return facts | ({"unmeasured_responses": call.unmeasured} if call.unmeasured else {})


def _emit_rest(run: Run, work: AttemptInput, call: AgentCall, rest: Usage) -> None:
    """Report usage after the last request, or by nested agents of tools."""
    if call.model is None or not (rest.tokens or rest.requests or rest.tool_calls):
        return
    run.emit(
        "agent.usage",
        work.span,
        step_name=work.name,
        attempt=work.attempt,
        model=call.model_name,
        provider=call.model.system,
        agent_name=call.agent_name,
        input_tokens=rest.input_tokens,
        output_tokens=rest.output_tokens,
        cached_tokens=rest.cached_tokens,
        requests=rest.requests,
        tool_calls=rest.tool_calls,
        cost_usd=max(0.0, rest.cost_usd),
        zero_tokens=False,
    )


def _emitter(run: Run, work: AttemptInput) -> Emit:
    """Return a telemetry emitter for the asyncio loop, possibly another thread."""

    def emit(kind: type[Any], **facts: object) -> None:
        run.emit(kind.kind, work.span, step_name=work.name, attempt=work.attempt, **facts)
        emit_if_tool(run, work, kind, facts)

    if run.host.asyncio().same_thread:
        return emit
    token = trio.lowlevel.current_trio_token()

    def emit_remote(kind: type[object], **facts: object) -> None:
        # In a copy of the caller's context: a sink's current span does not leak into a task.
        token.run_sync_soon(functools.partial(contextvars.copy_context().run, emit, kind, **facts))

    return emit_remote


# --- Attempt at a model agent -------------------------------------------------------------------------------------


_MORE_TRIES = (
    "let the model try more often (`retries` of the agent, `max_retries` of the step), or give the step a `fallback`"
)


async def call_model_agent(run: Run, step: Step, work: AttemptInput, agent: SomeAgent) -> Attempt:
    """Call the agent with the step's data; a schema gives a value."""
    defaults = ready_defaults(step, work) or await defaults_for(run, step, work)
    if isinstance(defaults, AttemptFailed):
        return defaults
    own = schema_of(defaults.given["output_type"]) if "output_type" in defaults.given else promoted_schema(agent)
    validates = own is not None and step.processing.schema is None
    schema = own if validates else step.processing.wanted
    if schema is not None and not is_structured(run, step):
        schema = None
    caller = ModelCaller(
        run=run,
        step=step,
        work=work,
        agent=agent,
        schema=schema,
        validates=validates,
        is_typed=own is not None,
        defaults=defaults,
        kept=_conversations(run, step, work, defaults),
        approvals=None if step.resumable is not None else approvals_for(run, work, agent, defaults.given),
    )
    ended = await (caller.request(None) if schema is None else structured_attempt(run, step, work, caller, schema))
    if not isinstance(ended, AttemptFailed) or step.resumable is None:
        return ended
    heard_out = caller.kept is not None and caller.kept.ended_with_refusal(ended)
    work.state.refused += heard_out
    return ended if heard_out else attrs.evolve(ended, refusal=None)  # it continues, so its beginning must stay


def _conversations(run: Run, step: Step, work: AttemptInput, defaults: CallDefaults) -> calls.Conversations | None:
    if step.resumable is None:
        return None
    return calls.Conversations(run=run, work=work, resumable=step.resumable, defaults=defaults)


@attrs.define(kw_only=True, eq=False)
class ModelCaller:
    """A pydantic-ai agent behind a step."""

    run: Run
    step: Step
    work: AttemptInput
    agent: SomeAgent
    schema: object = None
    validates: bool = False
    is_typed: bool = False
    defaults: CallDefaults
    """Common arguments of the attempt's calls."""
    kept: calls.Conversations | None = None
    """Conversations recorded by unit, if the step is granular."""
    approvals: ToolApprovals | None = None
    """Tool approvals, if a tool needs them."""
    can_retry: bool = True
    cut_off: bool = False
    """Whether the provider reported a truncated last answer."""
    numbers: Iterator[int] = attrs.field(factory=itertools.count)
    """Numbers the chunks of the attempt."""
    _answered_by: Model | None = None
    _result: AgentRunResult[object] | None = None
    """Of the last call that had one."""
    _messages: list[ModelMessage] = attrs.field(factory=list)
    """Messages of the attempt's conversation so far, with its history."""
    _function_tools: frozenset[str] = frozenset()
    _mending: OutputRepair | None = None
    _unanswered: bool = False
    """Whether pydantic-ai refused the last answer, so that none was reported yet."""

    @property
    def last_repaired(self) -> tuple[str, ReadResult] | None:
        """Return the last answer's text and reading, if repaired deterministically."""
        return None if self._mending is None else self._mending.mended

    @property
    def can_repair(self) -> bool:
        """Return whether a model is known that could repair."""
        return self._repairing_model is not None

    @property
    def _repairing_model(self) -> Model | str | None:
        """Return the answering model; it may differ from the agent's own."""
        return self._answered_by or getattr(self.agent, "model", None)

    def is_about_content(self, failed: AttemptFailed) -> bool:
        """Return whether the call failed because of the model's text."""
        return is_about_content(failed.error)

    async def request(self, instruction: str | None, *, as_text: bool = False) -> Attempt:
        """Call the agent on the step's data, streaming to a reader."""
        run, work = self.run, self.work
        run.emit("agent.input", work.span, step_name=work.name, attempt=work.attempt, data=work.data)
        prompt, options = self._question(instruction, self._options(as_text=as_text))
        if self.kept is None and self.approvals is not None:
            options, goes_on, first_pause = self.approvals.options(options)
            if first_pause is not None:
                return first_pause
            prompt = None if goes_on else prompt
        request = self._request(prompt, options)
        ended = await self._answered(request, _watched if run.is_watched(work.span) else _unwatched)
        self._messages = request.heard
        # Called when the messages are read or stored: most are never.
        work.state.transcript = functools.partial(_transcript, self._messages or self._result, self.defaults.history)
        self._unanswered = isinstance(ended, AttemptFailed) and self.is_about_content(ended)
        if work.assembly is not None and self._result is not None:
            work.state.new_messages = messages_since(self._result.all_messages(), self.defaults.history)
        if isinstance(ended, AttemptSucceeded):
            self._emit_response(ended.output)
        return ended

    def settled(self, output: object) -> None:
        """Report the final answer, unless it was reported as given."""
        if self._unanswered:
            self._emit_response(output)

    def _emit_response(self, output: object) -> None:
        work = self.work
        self.run.emit("agent.response", work.span, step_name=work.name, attempt=work.attempt, output=output)

    def _question(self, instruction: str | None, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return prompt and options of the next call of a conversation.

        So no finished tool call is repeated. Earlier messages are part of the conversation.
        """
        messages = self._messages and messages_since(self._messages, self.defaults.history)
        if not messages or not any(isinstance(message, ModelResponse) for message in messages):
            return self._prompt(instruction), options
        refusal = instruction or "The answer was not complete."
        history = continued(self._messages, refusal, self._function_tools)
        return instruction, {**options, "message_history": history, "retries": {"output": 0}}  # those were used up

    def _prompt(self, instruction: str | None = None) -> Any:
        return prompt_of(self.work.data, refusal_note(self.work.state.refusal), instruction)

    def _request(self, prompt: Any, options: dict[str, object]) -> Request:
        call = metered_call(self.run, self.step, self.work)
        keeps = self.schema is not None
        if self.kept is not None:
            return self.kept.question(self.agent, prompt, options, call, keeps_messages=keeps)
        return AgentRequest(
            agent=self.agent,
            prompt=prompt,
            call=call,
            deps=self.defaults.deps,
            options=options,
            keeps_messages=keeps,
        )

    async def repair(self, prompt: str) -> Attempt:
        """Call the agent's model with only the prompt, unstreamed."""
        model = self._repairing_model
        if model is None:
            return AttemptFailed(error=None, feedback="the agent has no model to repair with")
        return await self._answered(self._repair(repairer(model), prompt), _unwatched)

    def _repair(self, agent: SomeAgent, prompt: str) -> Request:
        call = metered_call(self.run, self.step, self.work)
        if self.kept is not None:
            return self.kept.repair(agent, prompt, call)
        return AgentRequest(agent=agent, prompt=prompt, call=call)

    async def validate(self, value: object) -> Attempt:
        """Validate a repaired value with the agent's own validators."""
        if not has_own_validators(self.agent):
            return AttemptSucceeded(output=value, context=self.work.context)
        replay = RepairedOutput(agent=self.agent, prompt=self._prompt(), deps=self.defaults.deps, value=value)
        got = await guarded(self.run.host.asyncio().call, replay.judged)
        if isinstance(got, Error):
            return AttemptFailed(error=got.error, feedback=self.run.redact(refusal_of(got.error)))
        return AttemptSucceeded(output=got.value, context=self.work.context)

    def _options(self, *, as_text: bool) -> dict[str, object]:
        """Return arguments of pydantic-ai's `run`, which retries unrepairable answers itself."""
        defaults, self._mending = self.defaults.options(), None
        if self.schema is None:
            return defaults
        if self.validates and not as_text:
            self._mending = OutputRepair(compile_schema(self.schema))
            defaults = with_options(defaults, {"capabilities": [self._mending]})
        output: Any = None
        if as_text and not has_own_validators(self.agent):
            output = str
        elif self.step.processing.structured_output == "openai_json":
            output = provider_output(self.agent, self.schema)
        never_again = {"retries": {"output": 0}} if self.step.processing.enforcement == "validate" else {}
        return {**defaults, **never_again, **({} if output is None else {"output_type": output})}

    async def _answered(self, request: Request, how: Any) -> Attempt:
        work, call = self.work, request.call
        if self.run.journal.lapsed:
            await self.run.journal.confirm()
        try:
            got = await guarded(how, self, request)
        finally:
            spend_rest(self.run, work, call)
            self._answered_by, self.cut_off = call.model, call.cut_short
            self._function_tools = call.function_tools or self._function_tools
            if self.kept is not None:
                self.kept.ended(request)
        if isinstance(got, Error):
            if self.kept is not None and self.kept.is_store_error(got.error):
                raise got.error  # as a failed commit of an outcome: the run can be resumed
            return self.failed(request, got.error)
        result: AgentRunResult[object] = got.value
        self._result = result
        if self.approvals is not None and isinstance(result.output, DeferredToolRequests):
            return self.approvals.first_pause(result.output, result.all_messages_json(), request.call.unapproved_tools)
        metadata = noted(call) | ({} if self.kept is None else self.kept.undelivered())
        return within_limits(AttemptSucceeded(output=result.output, context=work.context, metadata=metadata), work)

    def failed(self, request: Request, error: BaseException) -> Attempt:
        """Return the end of an attempt whose call raised."""
        first_pause = None if self.kept is None else self.kept.asks_about(request, error)
        if first_pause is not None:
            return first_pause
        self.cut_off = self.cut_off or broke_off(error)
        if isinstance(error, MaxTurnsReached):
            return attrs.evolve(failure_of(self.run, error), output=error.last_text or None)
        text = quoted_text(error) or request.call.last_text or text_of_error(error)
        failed = attrs.evolve(failure_of(self.run, error), output=text or None, metadata=noted(request.call))
        own = own_refusal(error)
        return failed if own is None else self._refused(failed, self.run.redact(own))

    def _refused(self, failed: AttemptFailed, reason: str) -> AttemptFailed:
        """Return the failure of a refused answer, with reason and remedy."""
        failed = attrs.evolve(failed, refusal=reason)
        if reason in failed.feedback:
            return failed
        why = f"the agent refused its model's answer: {reason}" if failed.output else "the model's answer was empty"
        todo = (
            "" if self.schema is not None else f"; {_MORE_TRIES}"
        )  # the stages of a structured step try by themselves
        return attrs.evolve(failed, feedback=f"{failed.feedback}: {why}{todo}")


def _transcript(
    heard: list[ModelMessage] | AgentRunResult[object] | None, history: list[ModelMessage]
) -> list[ModelMessage]:
    """Return the messages of an attempt, without given history and shown context."""
    messages = heard.all_messages() if isinstance(heard, AgentRunResult) else heard or []
    return list(to_remember(messages_since(messages, history)))


def _unwatched(caller: ModelCaller, request: Request) -> Awaitable[AgentRunResult[object]]:
    return caller.run.host.asyncio().call(request.run)


async def _watched(caller: ModelCaller, request: Request) -> AgentRunResult[object]:
    run = caller.run
    taker = taker_of(run, caller.work, caller.numbers, structured=caller.schema is not None)
    takes: ChunkConsumer[object, Any] = taker
    return await taker.within(functools.partial(run.host.asyncio().produced, request.run, takes))
