"""One attempt of a granular step: which unit comes next, what is recalled and what is done.

Rules:

1. Turns are counted as responses come or are recalled. A request that continues a suspended response belongs to the
   same turn, and one after a request that failed, at the same model or at another, stands in its place. The request
   after turn `max_turns` is not made.
2. A unit is recalled, or it is intended, done and committed, in this order; `units` says what each means.
3. What was done is committed even while the run is being cancelled: only the wait for it is not cut short.
4. A recalled unit is not billed. Its usage is counted, in the step's total and against the limits, if this process
   has not counted it yet.
5. The first refusal (an uncertain unit, no more turns, a journal that cannot write) stops the attempt: no further unit
   begins, those under way end and are committed, and the refusal is what the attempt ends with, whatever the agent's
   own hooks make of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from decimal import Decimal
from typing import TypeVar

import attrs
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.tools import ToolApproved, ToolDenied
from pydantic_ai.usage import RunUsage
from pydantic_core import to_json

from ..._core.usage import Usage
from ..._locks import QUOTA_LOCK
from ...errors import FlujoError, MaxTurnsReached
from ..approved_tools import ApprovalNeeded, CallToApprove, verdict_of
from ..metered_model import MeteredModel
from ..metering import AgentCall, usage_of
from ..pricing import estimated_cost
from ..turns import Turn, joined, turn_of, with_tool_ended
from .loop_watch import LoopWatch
from .message_json import response_from_json, response_to_json
from .units import OnUncertain, RecordedUnit, RunAgain, Unit, UnitJournal, UnitKey

T = TypeVar("T")


@attrs.define(eq=False, kw_only=True)
class GranularCall:
    """The units of one attempt; see the module's rules."""

    journal: UnitJournal
    scope: str
    """`run:path`: what the idempotency keys of the step begin with."""
    call: AgentCall
    max_turns: int
    watch: LoopWatch
    on_uncertain: OnUncertain = "rerun"
    turns: list[Turn] = attrs.field(factory=list)
    stopped: FlujoError | None = None
    """Why no further unit may begin."""
    _undone: set[UnitKey] = attrs.field(factory=set)
    _suspended: bool = False
    _parts: int = 0
    """Of how many responses the current turn consists."""
    _seen: dict[tuple[int, str], int] = attrs.field(factory=dict)
    _under_way: set[UnitKey] = attrs.field(factory=set)
    _fewer_under_way: asyncio.Event = attrs.field(factory=asyncio.Event)

    @property
    def broken(self) -> bool:
        """Whether a unit was begun and not committed: another attempt has something to do again."""
        return bool(self._undone)

    # --- keys ---

    @property
    def turn(self) -> int:
        """The number of the current turn; 0 before the first."""
        return self.turns[-1].number if self.turns else 0

    async def turn_ended(self, messages: list[ModelMessage]) -> None:
        """Before a request: look whether the agent goes in circles; a loop may end the attempt."""
        if self.turns and not self._suspended:
            try:
                await self.watch.turn_ended(self.turns[-1].text, messages)
            except FlujoError as error:
                raise self.stop(error) from None

    def next_request(self, messages: list[ModelMessage]) -> UnitKey:
        """The key of the model request that comes now; `MaxTurnsReached` if there may be none."""
        turn, nth = (self.turn, self._parts + 1) if self._suspended else (self.turn + 1, 1)
        if turn > self.max_turns:
            text = self.turns[-1].text if self.turns else ""
            raise self.stop(MaxTurnsReached(self.max_turns, messages=tuple(messages), last_text=text))
        return UnitKey(turn=turn, nth=nth)

    def key(self, turn: int, call: str) -> UnitKey:
        """The key of a call that comes now; the second of the same turn and id gets a number."""
        nth = self._seen[turn, call] = self._seen.get((turn, call), 0) + 1
        return UnitKey(turn=turn, call=call, nth=nth)

    def idempotency_key(self, key: UnitKey) -> str:
        """The unit's name in the world outside."""
        return f"{self.scope}:{key}"

    # --- units ---

    async def recall(self, key: UnitKey) -> RecordedUnit | RunAgain | None:
        """The unit's result, if an earlier attempt has committed it."""
        await self._require_going()
        return await self._heard(self.journal.recall(key))

    @contextlib.asynccontextmanager
    async def doing(self, key: UnitKey, intent: dict[str, object]) -> AsyncIterator[Unit]:
        """Around the doing of a unit and its commit: its intent is durable when the block begins."""
        await self._require_going()
        self._under_way.add(key)
        try:
            before = await self._heard(self.journal.intend(key, to_json(intent, fallback=str).decode()))
            yield Unit(idempotency_key=self.idempotency_key(key), may_have_run_before=before)
            self._undone.discard(key)
        except FlujoError:
            self._undone.add(key)
            self._leave(key)
            await self._require_going()
            raise
        except BaseException:
            self._undone.add(key)
            raise
        finally:
            self._leave(key)

    def _leave(self, key: UnitKey) -> None:
        self._under_way.discard(key)
        self._fewer_under_way.set()

    async def commit(self, key: UnitKey, result: str, usage: Usage) -> None:
        """Record what was done, cancelled or not."""
        writing = asyncio.ensure_future(self._heard(self.journal.commit(key, result, usage)))
        cancelled: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                await asyncio.wait([writing])
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
        if cancelled is not None:
            raise cancelled from (None if writing.cancelled() else writing.exception())
        writing.result()

    def count(self, usage: Usage) -> None:
        """Count, where pydantic-ai would, what a unit used now, or before and was not counted yet."""
        self.call.run_usage.incr(run_usage_of(usage))

    def count_recalled(self, usage: Usage) -> None:
        """Count what a unit used in an earlier process, where telemetry was told of it."""
        self.count(usage)
        self.call.told += usage

    # --- tool calls ---

    async def begin_tool(self) -> None:
        """Count a tool call that begins; a limit that is reached stops the attempt."""
        try:
            await self.call.begin_tool_call()
        except FlujoError as error:
            raise self.stop(error) from None

    def count_recalled_tool(self, usage: Usage, *, returned: bool) -> None:
        """Count a tool call of an earlier process, and what it used."""
        if self.call.quotas:
            self.call.count_tool_call()
            self.call.end_tool_call(returned=returned)
        self.count_recalled(usage)

    async def approval_of(self, call: CallToApprove) -> ToolApproved | ToolDenied:
        """What was decided about a tool call that needs approval; the attempt ends if that is still to be asked."""
        key = f"{self.turn}:{call.tool_call_id}~{call.hash}"
        told = await self._heard(self.journal.told(key))
        if told is None:
            self.stop(ApprovalNeeded(call, key))
            await self._require_going()
        assert told is not None
        return verdict_of(told[0])

    # --- model turns ---

    def recalled_response(
        self, key: UnitKey, unit: RecordedUnit, *, model: Model, function_tools: frozenset[str]
    ) -> ModelResponse:
        """The response of an earlier attempt, as this one's."""
        call, response = self.call, response_from_json(unit.result)
        call.model, call.function_tools = innermost(model), function_tools
        call.last_response = response
        if not unit.counted:
            self._charge(unit.usage)
        self._note(key, response, usage=unit.usage, recalled=True)
        return response

    async def commit_response(self, key: UnitKey, response: ModelResponse, model: Model) -> ModelResponse:
        """Record a response; the answer is what a later attempt would get."""
        text = response_to_json(response)
        cost = self.call.pricing.cost_of(response, innermost(model))
        usage = usage_of(response.usage, cost_usd=cost or 0.0)
        self.count(attrs.evolve(usage, cost_usd=estimated_cost(response) or 0.0))
        await self.commit(key, text, usage)
        self._note(key, response, usage=usage, recalled=False)
        return response_from_json(text)

    def _note(self, key: UnitKey, response: ModelResponse, *, usage: Usage, recalled: bool) -> None:
        turn = turn_of(key.turn, response, usage=usage, recalled=recalled)
        if key.turn == self.turn:
            self.turns[-1] = joined(self.turns[-1], turn)
        else:
            self.turns.append(turn)
        self._suspended, self._parts = response.state == "suspended", key.nth

    def note_tool(self, tool_call_id: str, *, ended: str, usage: Usage, recalled: bool) -> None:
        """Add the end of a tool call to the current turn."""
        if self.turns:
            turn = self.turns[-1]
            self.turns[-1] = with_tool_ended(turn, tool_call_id, ended=ended, usage=usage, recalled=recalled)

    def _charge(self, usage: Usage) -> None:
        """Count a request that was metered in an earlier process."""
        with QUOTA_LOCK:
            for quota in self.call.quotas:
                quota.spend(usage, self.call.caller)
            self.call.usage += usage
        self.count(attrs.evolve(usage, cost_usd=0.0))
        self.call.told += usage

    # --- stopping ---

    def stop(self, why: FlujoError) -> FlujoError:
        """End the attempt for this reason, unless it has one."""
        if self.stopped is None:
            self.stopped = why
        return self.stopped

    async def _require_going(self) -> None:
        """Raise the refusal, if there is one, when nothing is under way: an agent that hears of it cancels the rest."""
        if self.stopped is None:
            return
        while self._under_way:
            self._fewer_under_way.clear()
            await self._fewer_under_way.wait()
        raise self.stopped

    async def _heard(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except FlujoError as error:
            raise self.stop(error) from error.__cause__

    @contextlib.contextmanager
    def stops_heard(self) -> Iterator[None]:
        """Around the agent's run: it ends with the refusal, if there was one."""
        try:
            yield
        finally:
            raised = sys.exception()
            unheard = self.stopped is not None and raised is not self.stopped
            if unheard and not isinstance(raised, asyncio.CancelledError | GeneratorExit):
                assert self.stopped is not None
                raise self.stopped


def innermost(model: Model) -> Model:
    """The model that a metered one stands for."""
    return model.wrapped if isinstance(model, MeteredModel) else model


def run_usage_of(usage: Usage) -> RunUsage:
    """Our usage as pydantic-ai counts it."""
    return RunUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
        requests=usage.requests,
        tool_calls=usage.tool_calls,
        cost=Decimal(str(usage.cost_usd)) if usage.cost_usd else None,
    )
