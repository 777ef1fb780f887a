"""Granular agent: every model request and tool call is a unit.

`Durability` is a durable-execution capability in pydantic-ai's sense, given to one run of the agent. Of the public
surface for such engines it uses the binding and the operations that other capabilities declare durable. Two parts are
its own, through the public hooks for models and toolsets:

- The model is wrapped where a request is made, not rebuilt behind a boundary, so its stream stays live and a model
  replaced by another capability is covered, too.
- The agent's whole toolset is wrapped once instead of each leaf by its id, so that toolsets without an id and custom
  toolsets are covered like function, MCP and dynamic ones, and wrappers of a tool run with it.

So every hook in which pydantic-ai's engines touch the model or the toolset is overridden here, and nothing that is
private to pydantic-ai. A release that adds such a hook is found by `tests/agents/granular/test_pydantic_ai_surface.py`.

Sections:

- Model requests as units.
- Tool calls as units.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, Literal, NoReturn, TypeVar, get_args

from pydantic_ai.agent import AbstractAgent, WrapperAgent
from pydantic_ai.capabilities import AbstractCapability, WrapModelRequestHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    BoundDurableOperation,
    DurabilityEngineSpec,
    DurableOperation,
    DurableOperationBackend,
    JournalOperationNamer,
    conversation_id_from_run_id,
    durable_unit_scope,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import (
    CompletedStreamedResponse,
    Model,
    ModelRequestContext,
    ModelRequestParameters,
    StreamedResponse,
)
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolDenied
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_ai.usage import RunUsage
from pydantic_core import to_json
from pydantic_graph import End

from ..._core.records.sent_events import SteeringMessage
from ..._core.usage import NO_USAGE, Usage, sanitized
from ...errors import DeclarationError, UncertainUnit
from ..agent_request import ToolSpan, no_telemetry
from ..approved_tools import CallToApprove, verdict_of
from ..metered_model import MeteredModel, is_metered, layers_of
from .conversation import GranularCall, run_usage_of
from .tool_outcomes import (
    Returned,
    ToolOutcome,
    messages_in,
    name_of,
    outcome_from_json,
    outcome_of,
    outcome_to_json,
    refuse_misused_return,
    unwrap,
    with_messages,
    without_secrets,
)
from .units import (
    ASKED,
    ON_UNCERTAIN_KEY,
    REHEARSE_KEY,
    OnUncertain,
    RecordedUnit,
    Rehearse,
    RunAgain,
    ToolRequest,
    UnitKey,
    UnitRecord,
    entered,
)

# --- Model requests as units --------------------------------------------------------------------------------------


def durable_model(model: Model, call: GranularCall) -> Model:
    """Return the model with its requests metered and recorded as units."""
    if any(isinstance(layer, UnitModel) for layer in layers_of(model)):
        return model
    return UnitModel(model if is_metered(model) else MeteredModel(model), call)


class UnitModel(WrapperModel):
    """Model whose requests are units; a recalled turn is one chunk."""

    def __init__(self, wrapped: Model, call: GranularCall) -> None:
        super().__init__(wrapped)
        self._call = call

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        if self._call.inside_unit:
            return await super().request(messages, model_settings, model_request_parameters)
        await self._call.turn_ended(messages)
        key = self._call.next_request(messages)
        asked = self._call.requests_hash(key, messages)
        recorded = await self._call.recall(key)
        if isinstance(recorded, RecordedUnit):
            return self._recalled(key, recorded, model_request_parameters)
        async with self._call.doing(key, self._intent(asked)) as unit:
            with entered(unit):
                response = await super().request(messages, model_settings, model_request_parameters)
            return await self._call.commit_response(key, response, self.wrapped)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[object] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        if self._call.inside_unit:
            async with super().request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream:
                yield stream
            return
        await self._call.turn_ended(messages)
        key = self._call.next_request(messages)
        asked = self._call.requests_hash(key, messages)
        recorded = await self._call.recall(key)
        if isinstance(recorded, RecordedUnit):
            response = self._recalled(key, recorded, model_request_parameters)
            yield CompletedStreamedResponse(
                response, model_request_parameters=model_request_parameters, replay_events=True
            )
            return
        async with self._call.doing(key, self._intent(asked)):
            async with super().request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream:
                yield stream
            await self._commit_stream(key, stream.get())

    def _recalled(self, key: UnitKey, recorded: RecordedUnit, parameters: ModelRequestParameters) -> ModelResponse:
        tools = frozenset(tool.name for tool in parameters.function_tools)
        return self._call.recalled_response(key, recorded, model=self.wrapped, function_tools=tools)

    async def _commit_stream(self, key: UnitKey, response: ModelResponse) -> None:
        if response.state in ("complete", "suspended"):  # otherwise the reader left before the end
            await self._call.commit_response(key, response, self.wrapped)

    def _intent(self, asked: str) -> dict[str, object]:
        return {"model": self.model_name, "provider": self.system, ASKED: asked, **self._call.steered_part()}


# --- Tool calls as units ------------------------------------------------------------------------------------------


@dataclasses.dataclass
class UnitToolset(WrapperToolset[Any]):
    """Toolset whose calls are units, including their nested calls."""

    call: GranularCall

    async def call_tool(
        self, name: str, tool_args: dict[str, object], ctx: RunContext[object], tool: ToolsetTool[Any]
    ) -> object:
        if self.call.inside_unit:
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        tool_call = _ToolCall(self, name, tool_args, ctx, tool)
        return unwrap(await tool_call.outcome())


@dataclasses.dataclass
class _ToolCall:
    """One call of a tool by the model."""

    toolset: UnitToolset
    name: str
    args: dict[str, object]
    ctx: RunContext[object]
    tool: ToolsetTool[Any]

    @property
    def tool_call_id(self) -> str:
        return self.ctx.tool_call_id or self.name

    async def outcome(self) -> ToolOutcome:
        """Return the call's outcome, from this or an earlier attempt."""
        call = self.toolset.call
        key = call.key(call.turn, self.tool_call_id)
        rehearsed = call.rehearsed is not None
        recorded = await (call.recall_call(key, self._request()) if rehearsed else call.recall(key))
        if isinstance(recorded, RecordedUnit):
            return self._recalled(recorded)
        return await self._done(key, allowed=isinstance(recorded, RunAgain))

    def _request(self) -> ToolRequest:
        return ToolRequest(tool=self.name, arguments=self.args, rehearse=rehearse_of(self.tool))

    def _recalled(self, recorded: RecordedUnit) -> ToolOutcome:
        call, outcome = self.toolset.call, outcome_from_json(recorded.result)
        if not recorded.counted:
            call.count_recalled_tool(recorded.usage, returned=isinstance(outcome, Returned))
        self._enqueue(recorded.result)
        self.ctx.usage.incr(_nested(recorded.usage, outcome))
        call.note_tool(self.tool_call_id, ended=name_of(outcome), usage=recorded.usage, recalled=True)
        call.watch.note(self.name, self.args, outcome, recorded.result)
        return outcome

    async def _done(self, key: UnitKey, *, allowed: bool) -> ToolOutcome:
        call, policy = self.toolset.call, policy_of(self.tool, self.toolset.call.on_uncertain)
        async with call.doing(key, {"tool": self.name, "arguments": self.args}) as unit:
            if unit.may_have_run_before and policy != "rerun" and not allowed:
                self._refuse(key, unit, policy)
            queue = _UnitQueue()
            own = _context_of_unit(self.ctx, queue)
            before = _copied(own.usage)
            with entered(unit), durable_unit_scope():
                outcome = without_secrets(await self._counted(own), call.redact)
            refuse_misused_return(outcome, tool=self.name)
            queue.is_recorded = True
            result = with_messages(outcome_to_json(outcome, tool=self.name), queue)
            usage = _usage_of(own.usage - before, outcome)
            call.count(usage)
            await call.commit(key, result, usage)
        self._enqueue(result)
        self.ctx.usage.incr(own.usage - before)
        call.note_tool(self.tool_call_id, ended=name_of(outcome), usage=usage, recalled=False)
        call.watch.note(self.name, self.args, outcome, result)
        return outcome_from_json(result)

    def _enqueue(self, result: str) -> None:
        """Add the messages of the call to the conversation, as recorded."""
        for content, priority in messages_in(result):
            self.ctx.enqueue(*content, priority=priority)

    async def _counted(self, own: RunContext[object]) -> ToolOutcome:
        """Run the call, counted against limits from its start."""
        counted = self.toolset.call.call
        await self.toolset.call.begin_tool()
        returned = False
        try:
            outcome = await outcome_of(self._called(own))
            returned = isinstance(outcome, Returned)
        finally:
            counted.end_tool_call(returned=returned)
        return outcome

    async def _called(self, own: RunContext[object]) -> object:
        """Call the tool and report it to telemetry."""
        emit = self.toolset.call.call.emit or no_telemetry
        with ToolSpan(emit, self.name, self.tool_call_id, self.args) as span:
            span.result = await self.toolset.wrapped.call_tool(self.name, self.args, own, self.tool)
        return span.result

    def _refuse(self, key: UnitKey, unit: UnitRecord, policy: OnUncertain) -> NoReturn:
        arguments = to_json(self.args, fallback=str).decode()
        raise self.toolset.call.stop(
            UncertainUnit(self.name, arguments, key=str(key), idempotency_key=unit.idempotency_key, policy=policy)
        )


def policy_of(tool: ToolsetTool[Any], default: OnUncertain) -> OnUncertain:
    """Return the policy of a tool: its metadata, or the step's default."""
    policy: OnUncertain = (tool.tool_def.metadata or {}).get(ON_UNCERTAIN_KEY, default)
    if policy not in get_args(OnUncertain):
        raise DeclarationError(
            f"tool {tool.tool_def.name!r} has {ON_UNCERTAIN_KEY}={policy!r} in its metadata; "
            f"it must be one of {', '.join(map(repr, get_args(OnUncertain)))}"
        )
    return policy


def rehearse_of(tool: ToolsetTool[Any]) -> Rehearse:
    """Return a tool's handling in rehearsals, from its metadata or record."""
    found: Rehearse = (tool.tool_def.metadata or {}).get(REHEARSE_KEY, "recorded")
    if found not in get_args(Rehearse):
        raise DeclarationError(
            f"tool {tool.tool_def.name!r} has {REHEARSE_KEY}={found!r} in its metadata; "
            f"it must be one of {', '.join(map(repr, get_args(Rehearse)))}"
        )
    return found


class _UnitQueue(list[Any]):
    """Messages enqueued by a tool until its call is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.is_recorded = False

    def append(self, pending: Any) -> None:
        if self.is_recorded:
            raise UserError("ctx.enqueue() was called after the tool's call had ended: enqueue before it returns")
        super().append(pending)


def _context_of_unit(ctx: RunContext[object], queue: _UnitQueue) -> RunContext[object]:
    """Return the context of one call, with its own usage and messages."""
    return dataclasses.replace(ctx, usage=_copied(ctx.usage), pending_messages=queue)


def _copied(usage: RunUsage) -> RunUsage:
    copied = copy.copy(usage)
    copied.details = dict(usage.details)
    return copied


def _usage_of(nested: RunUsage, outcome: ToolOutcome) -> Usage:
    return sanitized(
        Usage(
            input_tokens=nested.input_tokens,
            output_tokens=nested.output_tokens,
            cached_tokens=nested.cache_read_tokens,
            requests=nested.requests,
            tool_calls=nested.tool_calls + isinstance(outcome, Returned),
            failed_tool_calls=int(not isinstance(outcome, Returned)),
            cost_usd=float(nested.cost or 0.0),
        )
    )


def _nested(usage: Usage, outcome: ToolOutcome) -> RunUsage:
    """Return a recorded call's usage through nested agents, without the call itself."""
    total = run_usage_of(usage)
    total.tool_calls -= isinstance(outcome, Returned)
    return total


# --- Granular agent -----------------------------------------------------------------------------------------------


ParamsT = TypeVar("ParamsT")
WireT = TypeVar("WireT")
ResultT = TypeVar("ResultT")


class Durability(BaseDurabilityCapability[Any]):
    """Makes the units of one run of an agent durable."""

    engine_spec = DurabilityEngineSpec(
        engine_name="flujo_actors", durable_unit_noun="unit", durable_container_noun="granular step", codec=JSON_CODEC
    )

    def __init__(self, call: GranularCall, *, name: str, model: Model | str | None = None) -> None:
        super().__init__(name=name)
        self._call, self._model = call, model
        self._operations = UnitOperations(call, JournalOperationNamer(name))

    @property
    def in_durable_context(self) -> bool:
        return True

    def get_durable_operation_backend(self) -> DurableOperationBackend[None]:
        return self._operations

    def for_agent(self, agent: AbstractAgent[Any, Any]) -> AbstractCapability[Any]:
        return super().for_agent(_AsBound(agent, self._model or agent.model))

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return UnitToolset(toolset, self._call)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[object], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        if self._call.inside_unit:
            return None  # a call by a tool: pydantic-ai raises `ApprovalRequired` in that tool, as outside of steps
        verdicts: dict[str, bool | ToolApproved | ToolDenied] = {}
        for part in requests.approvals:
            call = CallToApprove.of(part, self._call.call.unapproved_tools.get(part.tool_name))
            verdicts[call.tool_call_id] = verdict_of(await self._call.answer_to(call))
        outside = [CallToApprove.of(part, external=True) for part in requests.calls]
        results = {call.tool_call_id: await self._call.answer_to(call) for call in outside}
        return DeferredToolResults(approvals=verdicts, calls=results) if verdicts or results else None

    async def wrap_model_request(
        self, ctx: RunContext[object], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        return await handler(self._durable(request_context))

    async def before_model_request(
        self, ctx: RunContext[object], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        for message in await self._call.steered("next_turn"):
            ctx.enqueue(*_contents(message))
        # Again: a capability whose hook ran in between may have put in a model of its own.
        return self._durable(request_context)

    async def prepare_model_request(
        self, ctx: RunContext[object], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        # And again before each attempt at a request, as from pydantic-ai 2.66: the next one may be at another model.
        return self._durable(request_context)

    async def after_node_run(self, ctx: RunContext[object], *, node: Any, result: Any) -> Any:
        if isinstance(result, End) and not isinstance(result.data.output, DeferredToolRequests):
            for message in await self._call.steered("when_done"):
                ctx.enqueue(*_contents(message), priority="when_idle")
        return result

    def _durable(self, request_context: ModelRequestContext) -> ModelRequestContext:
        request_context.model = durable_model(request_context.model, self._call)
        return request_context


def _contents(message: SteeringMessage) -> Sequence[Any]:
    return [message.content] if isinstance(message.content, str) else message.content


class _AsBound(WrapperAgent[Any, Any]):
    """Agent as bound by pydantic-ai's engines: with model and toolset ids."""

    def __init__(self, wrapped: AbstractAgent[Any, Any], model: Model | str | None) -> None:
        super().__init__(wrapped)
        self._model = model

    @property
    def model(self) -> Model | str:
        """Return the model for other capabilities; a name if still unresolved."""
        return self._model or "chosen in the run"

    @property
    def toolsets(self) -> Sequence[AbstractToolset[Any]]:
        """None to register: `get_wrapper_toolset` covers every toolset of the run."""
        return ()


class UnitOperations(DurableOperationBackend[None]):
    """Durable operations of other capabilities, such as a history summary, as units."""

    def __init__(self, call: GranularCall, namer: JournalOperationNamer) -> None:
        self._call, self._namer = call, namer

    def bind(
        self, operation: DurableOperation[ParamsT, WireT, ResultT]
    ) -> BoundDurableOperation[ParamsT, WireT, ResultT]:
        return UnitOperation(self._call, operation, self._namer.operation_name(operation.operation_id))

    def config_for_tool(
        self, operation: DurableOperation[ParamsT, WireT, ResultT], *, tool: object | None, tool_name: str
    ) -> Literal[False] | None:
        return None

    def registrations(self) -> Sequence[Callable[..., object]]:
        return ()


class UnitOperation(BoundDurableOperation[ParamsT, WireT, ResultT], Generic[ParamsT, WireT, ResultT]):
    """One operation, executed or recalled; part of an enclosing unit if any."""

    def __init__(self, call: GranularCall, operation: DurableOperation[ParamsT, WireT, ResultT], name: str) -> None:
        self._call, self._operation, self._name = call, operation, name

    @property
    def operation(self) -> DurableOperation[ParamsT, WireT, ResultT]:
        return self._operation

    async def __call__(self, params: ParamsT, *, config: object | None = None) -> ResultT:
        if self._call.inside_unit:
            return await self._operation.handler(params)
        key = self._call.key(self._call.turn, f"~{self._name}")
        recorded = await self._call.recall(key)
        text = recorded.result if isinstance(recorded, RecordedUnit) else await self._done(key, params)
        return self._operation.result_codec.load(json.loads(text))

    async def _done(self, key: UnitKey, params: ParamsT) -> str:
        async with self._call.doing(key, {"operation": self._name}) as unit:
            with entered(unit), durable_unit_scope():
                result = await self._operation.handler(params)
            text = json.dumps(self._operation.result_codec.dump(result))
            await self._call.commit(key, text, NO_USAGE)
        return text
