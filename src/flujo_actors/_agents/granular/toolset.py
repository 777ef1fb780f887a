"""Tool calls as units."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, NoReturn, get_args

from pydantic_ai.durable_exec import durable_unit_scope
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset
from pydantic_ai.usage import RunUsage
from pydantic_core import to_json

from ..._core.usage import Usage
from ...errors import DeclarationError, UncertainUnit
from ..tool_span import ToolSpan, no_telemetry
from .conversation import GranularCall, run_usage_of
from .tool_outcomes import Returned, ToolOutcome, name_of, outcome_from_json, outcome_of, outcome_to_json, unwrap
from .units import ON_UNCERTAIN_KEY, OnUncertain, RecordedUnit, RunAgain, Unit, UnitKey, current_unit, entered


@dataclasses.dataclass
class UnitToolset(WrapperToolset[Any]):
    """A toolset whose calls are units. What a tool's own calls inside it do is part of its unit."""

    call: GranularCall

    async def call_tool(
        self, name: str, tool_args: dict[str, object], ctx: RunContext[object], tool: ToolsetTool[Any]
    ) -> object:
        if current_unit() is not None:
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
        """How the call ended, now or in an earlier attempt."""
        call = self.toolset.call
        key = call.key(call.turn, self.tool_call_id)
        recorded = await call.recall(key)
        if isinstance(recorded, RecordedUnit):
            return self._recalled(recorded)
        return await self._done(key, allowed=isinstance(recorded, RunAgain))

    def _recalled(self, recorded: RecordedUnit) -> ToolOutcome:
        call, outcome = self.toolset.call, outcome_from_json(recorded.result)
        if not recorded.counted:
            call.count_recalled_tool(recorded.usage, returned=isinstance(outcome, Returned))
        self.ctx.usage.incr(_nested(recorded.usage, outcome))
        call.note_tool(self.tool_call_id, ended=name_of(outcome), usage=recorded.usage, recalled=True)
        call.watch.note(self.name, self.args, outcome, recorded.result)
        return outcome

    async def _done(self, key: UnitKey, *, allowed: bool) -> ToolOutcome:
        call, policy = self.toolset.call, policy_of(self.tool, self.toolset.call.on_uncertain)
        async with call.doing(key, {"tool": self.name, "arguments": self.args}) as unit:
            if unit.may_have_run_before and policy != "rerun" and not allowed:
                self._refuse(key, unit, policy)
            own = _context_of_unit(self.ctx)
            before = _copied(own.usage)
            with entered(unit), durable_unit_scope():
                outcome = await self._counted(own)
            result, usage = outcome_to_json(outcome, tool=self.name), _usage_of(own.usage - before, outcome)
            call.count(usage)
            await call.commit(key, result, usage)
        self.ctx.usage.incr(own.usage - before)
        call.note_tool(self.tool_call_id, ended=name_of(outcome), usage=usage, recalled=False)
        call.watch.note(self.name, self.args, outcome, result)
        return outcome_from_json(result)

    async def _counted(self, own: RunContext[object]) -> ToolOutcome:
        """How the call ended, counted against limits from its beginning."""
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
        """What the tool returns, told to telemetry."""
        emit = self.toolset.call.call.emit or no_telemetry
        with ToolSpan(emit, self.name, self.tool_call_id, self.args) as span:
            span.result = await self.toolset.wrapped.call_tool(self.name, self.args, own, self.tool)
        return span.result

    def _refuse(self, key: UnitKey, unit: Unit, policy: OnUncertain) -> NoReturn:
        arguments = to_json(self.args, fallback=str).decode()
        raise self.toolset.call.stop(
            UncertainUnit(self.name, arguments, key=str(key), idempotency_key=unit.idempotency_key, policy=policy)
        )


def policy_of(tool: ToolsetTool[Any], default: OnUncertain) -> OnUncertain:
    """What holds for a tool: what its metadata says, or what the step says."""
    policy: OnUncertain = (tool.tool_def.metadata or {}).get(ON_UNCERTAIN_KEY, default)
    if policy not in get_args(OnUncertain):
        raise DeclarationError(
            f"tool {tool.tool_def.name!r} has {ON_UNCERTAIN_KEY}={policy!r} in its metadata; "
            f"it must be one of {', '.join(map(repr, get_args(OnUncertain)))}"
        )
    return policy


class _NoQueue(list[Any]):
    """Stands where a tool would enqueue messages for the model, which a recalled call could not do again."""

    def append(self, _: Any) -> None:
        raise UserError("ctx.enqueue() cannot be used by a tool of a granular step: return the content instead")


def _context_of_unit(ctx: RunContext[object]) -> RunContext[object]:
    """The context for one call, which counts what the call uses apart from its siblings."""
    return dataclasses.replace(ctx, usage=_copied(ctx.usage), pending_messages=_NoQueue())


def _copied(usage: RunUsage) -> RunUsage:
    copied = copy.copy(usage)
    copied.details = dict(usage.details)
    return copied


def _usage_of(nested: RunUsage, outcome: ToolOutcome) -> Usage:
    return Usage(
        input_tokens=nested.input_tokens,
        output_tokens=nested.output_tokens,
        cached_tokens=nested.cache_read_tokens,
        requests=nested.requests,
        tool_calls=nested.tool_calls + isinstance(outcome, Returned),
        failed_tool_calls=int(not isinstance(outcome, Returned)),
        cost_usd=float(nested.cost or 0.0),
    )


def _nested(usage: Usage, outcome: ToolOutcome) -> RunUsage:
    """What a recorded call used through agents of its own; the call itself is counted by pydantic-ai."""
    total = run_usage_of(usage)
    total.tool_calls -= isinstance(outcome, Returned)
    return total
