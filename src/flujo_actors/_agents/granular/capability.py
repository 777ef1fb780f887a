"""An agent whose every model request and tool call is a unit, without a change to the agent.

`Durability` is a durable-execution capability in pydantic-ai's sense, given to one run of the agent. Of the public
surface for such engines it takes the binding and the operations that other capabilities declare durable. Two parts it
does in its own way, through the public hooks for models and toolsets:

- The model is wrapped where a request is made, not rebuilt behind a boundary, so its stream stays live and a model that
  another capability put in its place is covered, too.
- The agent's whole toolset is wrapped once instead of each leaf by its id, so that toolsets without an id and toolsets
  of the user's own making are covered like function, MCP and dynamic ones, and what wraps a tool runs with it.

So every hook in which pydantic-ai's engines touch the model or the toolset is overridden here, and nothing that is
private to pydantic-ai. A release that adds such a hook is found by `tests/agents/granular/test_pydantic_ai_surface.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

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
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolDenied
from pydantic_ai.toolsets import AbstractToolset

from ..._core.usage import NO_USAGE
from ..approved_tools import CallToApprove
from .conversation import GranularCall
from .model import durable_model
from .toolset import UnitToolset
from .units import RecordedUnit, UnitKey, current_unit, entered

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
        verdicts: dict[str, bool | ToolApproved | ToolDenied] = {}
        for call in map(CallToApprove.of, requests.approvals):
            verdicts[call.tool_call_id] = await self._call.approval_of(call)
        return DeferredToolResults(approvals=verdicts) if verdicts else None

    async def wrap_model_request(
        self, ctx: RunContext[object], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        return await handler(self._durable(request_context))

    async def before_model_request(
        self, ctx: RunContext[object], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        # Again: a capability whose hook ran in between may have put in a model of its own.
        return self._durable(request_context)

    async def prepare_model_request(
        self, ctx: RunContext[object], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        # And again before each attempt at a request, as from pydantic-ai 2.66: the next one may be at another model.
        return self._durable(request_context)

    def _durable(self, request_context: ModelRequestContext) -> ModelRequestContext:
        request_context.model = durable_model(request_context.model, self._call)
        return request_context


class _AsBound(WrapperAgent[Any, Any]):
    """An agent as pydantic-ai's engines want to bind it: with the model it runs with, and no toolset without an id."""

    def __init__(self, wrapped: AbstractAgent[Any, Any], model: Model | str | None) -> None:
        super().__init__(wrapped)
        self._model = model

    @property
    def model(self) -> Model | str:
        """Whom the operations of other capabilities find in their context; a name if it is chosen in the run."""
        return self._model or "chosen in the run"

    @property
    def toolsets(self) -> Sequence[AbstractToolset[Any]]:
        """None to register: `get_wrapper_toolset` covers every toolset of the run."""
        return ()


class UnitOperations(DurableOperationBackend[None]):
    """Does what other capabilities declare durable, such as a summary of the history, as units."""

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
    """One operation, done or recalled whenever it is called; inside another unit it is part of that."""

    def __init__(self, call: GranularCall, operation: DurableOperation[ParamsT, WireT, ResultT], name: str) -> None:
        self._call, self._operation, self._name = call, operation, name

    @property
    def operation(self) -> DurableOperation[ParamsT, WireT, ResultT]:
        return self._operation

    async def __call__(self, params: ParamsT, *, config: object | None = None) -> ResultT:
        if current_unit() is not None:
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
