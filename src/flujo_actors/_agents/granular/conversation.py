"""One attempt of a granular step: unit order, recall and execution.

Rules:

1. Turns are counted as responses come or are recalled. A request that continues a suspended response belongs to the
   same turn, and one after a failed request, at the same model or at another, replaces it. The request
   after turn `max_turns` is not made.
2. A unit is recalled, or it is intended, executed and committed, in this order; see `units`.
3. Completed work is committed even while the run is being cancelled: only the wait for it is not cancelled.
4. A recalled unit is not billed. Its usage is counted, in the step's total and against the limits, if this process
   has not counted it yet.
5. The first refusal (an uncertain unit, no more turns, a journal that cannot write) stops the attempt: no further unit
   begins, running ones end and are committed, and the attempt ends with the refusal, regardless of the agent's own
   hooks.
6. Code inside a unit never waits for units to end, because its own unit would be among them. Model requests, tool
   calls and operations inside a unit are part of that unit.

Sections:

- Lossless JSON form of model responses.
- Hash of requests, for replays.
- Turns of an agent, for display and for a step's history.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from decimal import Decimal
from typing import Any, TypeVar

import anyio
import attrs
from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    RetryPromptPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.usage import RunUsage
from pydantic_core import PydanticSerializationError, to_json

from ..._core import seams
from ..._core.locks import QUOTA_LOCK
from ..._core.quota import ONE_TOOL_CALL
from ..._core.records.sent_events import SteeringMessage, SteerWhen
from ..._core.telemetry_events import AgentSteered
from ..._core.usage import NO_USAGE, Usage
from ...errors import FlujoError, MaxTurnsReached
from ..approved_tools import ApprovalNeeded, CallToApprove
from ..metered_model import MeteredModel
from ..prices import estimated_cost
from ..request_meter import AgentCall, usage_of
from .loop_detector import LoopWatch
from .units import (
    MESSAGES,
    STEERED,
    OnUncertain,
    RecordedUnit,
    RehearsedUnits,
    RunAgain,
    ToolRequest,
    UnitJournal,
    UnitKey,
    UnitRecord,
    UnitSteering,
    current_unit,
)

# --- Hash of requests ---------------------------------------------------------------------------------------------
# 4 to 45 microseconds per turn, 0.3 % of its CPU time. Times, ids and responses, which are recorded, are left out.


def chained_hash(before: str, message: ModelMessage) -> str:
    """Return 16 hex digits of a message after those before it."""
    if isinstance(message, ModelResponse):
        return before
    digest = hashlib.blake2b(before.encode(), digest_size=8)
    for text in (message.instructions or "", *map(_part_text, message.parts)):
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def _part_text(part: ModelRequestPart) -> str:
    """Return the text of a part as the model gets it."""
    name = f"{part.part_kind} {getattr(part, 'tool_name', None) or ''}"
    match part:
        case UserPromptPart(content=content) if not isinstance(content, str):
            return f"{name} {' '.join(map(_content_text, content))}"
        case ToolReturnPart() | RetryPromptPart():
            return f"{name} {_returned_text(part)}"
        case _:
            return f"{name} {getattr(part, 'content', '')}"


def _returned_text(part: ToolReturnPart | RetryPromptPart) -> str:
    """Return the text of a value, also of one without JSON."""
    try:
        return part.model_response() if isinstance(part, RetryPromptPart) else part.model_response_str().strip('"')
    except ValueError:  # pydantic's error for half of a surrogate pair
        return str(part.content)


def _content_text(item: object) -> str:
    return item if isinstance(item, str) else str(getattr(item, "identifier", type(item).__name__))


# --- Lossless JSON form of model responses ------------------------------------------------------------------------


_response: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)


def response_to_json(response: ModelResponse) -> str:
    """Return one response as JSON text; a lone surrogate is escaped."""
    try:
        return _response.dump_json(response).decode()
    except PydanticSerializationError:
        return json.dumps(_response.dump_python(response, mode="json"))


def response_from_json(text: str) -> ModelResponse:
    """Return the response that `response_to_json` wrote."""
    try:
        return _response.validate_json(text)
    except ValidationError:  # pydantic reads no half of a surrogate pair, not even an escaped one
        return _response.validate_python(json.loads(text))


# --- Turns of an agent --------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ToolUse:
    """One tool call requested by the model."""

    name: str
    tool_call_id: str
    arguments: str
    """JSON text, as the model wrote it."""
    ended: str | None = None
    """`returned`, `retry`, `failed`, …; `None` for an unexecuted call."""
    recalled: bool = False
    """Whether an earlier attempt ran it."""


@attrs.frozen(kw_only=True)
class AgentTurn:
    """One model request, with the tool calls it led to."""

    number: int
    text: str = ""
    tool_calls: tuple[ToolUse, ...] = ()
    usage: Usage = NO_USAGE
    """Of the request and of its tool calls."""
    recalled: bool = False
    """Whether an earlier attempt made the request."""


def turn_of(number: int, response: ModelResponse, *, usage: Usage, recalled: bool) -> AgentTurn:
    """Return the turn that begins with a response."""
    calls = tuple(
        ToolUse(name=call.tool_name, tool_call_id=call.tool_call_id, arguments=call.args_as_json_str())
        for call in response.tool_calls
    )
    return AgentTurn(number=number, text=response.text or "", tool_calls=calls, usage=usage, recalled=recalled)


def joined(before: AgentTurn, more: AgentTurn) -> AgentTurn:
    """Two parts of one turn, which its provider had suspended in between."""
    return attrs.evolve(
        more, text=before.text + more.text, usage=before.usage + more.usage, recalled=before.recalled and more.recalled
    )


def with_tool_ended(turn: AgentTurn, tool_call_id: str, *, ended: str, usage: Usage, recalled: bool) -> AgentTurn:
    """Return the turn after one of its tool calls ended."""
    mark: Callable[..., Any] = attrs.evolve
    calls = tuple(
        mark(call, ended=ended, recalled=recalled) if call.tool_call_id == tool_call_id and call.ended is None else call
        for call in turn.tool_calls
    )
    return attrs.evolve(turn, tool_calls=calls, usage=turn.usage + usage)


# --- One attempt of a granular step -------------------------------------------------------------------------------


T = TypeVar("T")


@attrs.define(eq=False, kw_only=True)
class GranularCall:
    """The units of one attempt; see the module's rules."""

    journal: UnitJournal
    scope: str
    """`run:path`: prefix of the step's idempotency keys."""
    call: AgentCall
    max_turns: int
    watch: LoopWatch
    on_uncertain: OnUncertain = "rerun"
    redact: Callable[[str], str] = str
    """Hides secrets in the errors that tools raise for the model."""
    steering: UnitSteering | None = None
    turns: list[AgentTurn] = attrs.field(factory=list)
    undelivered: tuple[str, ...] = ()
    """Ids of messages that came after the last request."""
    stopped: FlujoError | None = None
    """Reason why no further unit may begin."""
    rehearsed: RehearsedUnits | None = None
    """Recorded tool calls, in a replay or rehearsal."""
    _asked: str = ""
    _hashed: int = 0
    """Number of the messages that the hash of requests includes."""
    _given: set[int] = attrs.field(factory=set)
    """Numbers of the messages that are part of the conversation."""
    _delivering: list[SteeringMessage] = attrs.field(factory=list)
    """Those that the next request contains first."""
    _undone: set[UnitKey] = attrs.field(factory=set)
    _suspended: bool = False
    _parts: int = 0
    """Of how many responses the current turn consists."""
    _seen: dict[tuple[int, str], int] = attrs.field(factory=dict)
    _under_way: set[str] = attrs.field(factory=set)
    """Idempotency keys of the open units."""
    _fewer_in_flight: asyncio.Event = attrs.field(factory=asyncio.Event)

    @property
    def broken(self) -> bool:
        """Return whether a unit started without a commit: another attempt repeats it."""
        return bool(self._undone)

    # --- keys ---

    @property
    def turn(self) -> int:
        """Return the number of the current turn; 0 before the first."""
        return self.turns[-1].number if self.turns else 0

    async def turn_ended(self, messages: list[ModelMessage]) -> None:
        """Detect loops before a request; a loop may end the attempt."""
        if self.turns and not self._suspended:
            try:
                await self.watch.turn_ended(self.turns[-1].text, messages)
            except FlujoError as error:
                raise self.stop(error) from None

    def next_request(self, messages: list[ModelMessage]) -> UnitKey:
        """Return the key of the next model request, or raise `MaxTurnsReached`."""
        turn, nth = (self.turn, self._parts + 1) if self._suspended else (self.turn + 1, 1)
        if turn > self.max_turns:
            text = self.turns[-1].text if self.turns else ""
            raise self.stop(MaxTurnsReached(self.max_turns, messages=tuple(messages), last_text=text))
        return UnitKey(turn=turn, nth=nth)

    def requests_hash(self, key: UnitKey, messages: list[ModelMessage]) -> str:
        """Return the hash of all requests; it reads new messages only."""
        if len(messages) < self._hashed:  # the history was compacted
            self._asked, self._hashed = "", 0
        for message in messages[self._hashed :]:
            self._asked = chained_hash(self._asked, message)
        self._hashed = len(messages)
        if self.rehearsed is not None:
            self.rehearsed.compare_request(key, self._asked)
        return self._asked

    def key(self, turn: int, call: str) -> UnitKey:
        """Return the next call's key, numbered if turn and id repeat."""
        nth = self._seen[turn, call] = self._seen.get((turn, call), 0) + 1
        return UnitKey(turn=turn, call=call, nth=nth)

    def idempotency_key(self, key: UnitKey) -> str:
        """Return the unit's name in the world outside."""
        return f"{self.scope}:{key}"

    # --- units ---

    async def recall(self, key: UnitKey) -> RecordedUnit | RunAgain | None:
        """Return the unit's result, if an earlier attempt has committed it."""
        await self._require_running()
        return await self._raise_if_stopped(self.journal.recall(key))

    async def recall_call(self, key: UnitKey, request: ToolRequest) -> RecordedUnit | RunAgain | None:
        """Return a rehearsed tool call's recorded result; None for a live call."""
        await self._require_running()
        assert self.rehearsed is not None
        return await self._raise_if_stopped(self.rehearsed.recall_call(key, request))

    @contextlib.asynccontextmanager
    async def doing(self, key: UnitKey, intent: dict[str, object]) -> AsyncIterator[UnitRecord]:
        """Run a unit and its commit, after making its intent durable."""
        await self._require_running()
        name = self.idempotency_key(key)
        self._under_way.add(name)
        try:
            before = await self._raise_if_stopped(self.journal.intend(key, to_json(intent, fallback=str).decode()))
            await self.call.pass_fence()  # the process may have been stopped since the intent was written
            if seams.on_call is not None:
                seams.on_call("", name, name)
            yield UnitRecord(idempotency_key=name, may_have_run_before=before)
            self._undone.discard(key)
        except FlujoError:
            self._undone.add(key)
            self._call_ended(name)
            await self._require_running()
            raise
        except BaseException:
            self._undone.add(key)
            raise
        finally:
            self._call_ended(name)

    @property
    def inside_unit(self) -> bool:
        """Return whether the caller runs inside an open unit of this conversation."""
        unit = current_unit()
        return unit is not None and unit.idempotency_key in self._under_way

    def _call_ended(self, name: str) -> None:
        self._under_way.discard(name)
        self._fewer_in_flight.set()

    async def commit(self, key: UnitKey, result: str, usage: Usage) -> None:
        """Record the result, cancelled or not."""
        writing = asyncio.ensure_future(self._raise_if_stopped(self.journal.commit(key, result, usage)))
        cancelled: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                with anyio.CancelScope(shield=True):  # anyio repeats a cancellation in every round of the loop
                    await asyncio.wait([writing])
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
        if cancelled is not None:
            raise cancelled from (None if writing.cancelled() else writing.exception())
        writing.result()

    def count(self, usage: Usage) -> None:
        """Count new or uncounted usage of a unit, as pydantic-ai would."""
        self.call.run_usage.incr(run_usage_of(usage))

    def count_recalled(self, usage: Usage) -> None:
        """Count the usage of a recalled unit, already in telemetry."""
        self.count(usage)
        self.call.reported += usage

    # --- tool calls ---

    async def begin_tool(self) -> None:
        """Count a starting tool call; a reached limit stops the attempt."""
        try:
            await self.call.begin_tool_call()
        except FlujoError as error:
            raise self.stop(error) from None

    def count_recalled_tool(self, usage: Usage, *, returned: bool) -> None:
        """Count a tool call of an earlier process with its usage."""
        if self.call.quotas:
            with QUOTA_LOCK:
                for quota in self.call.quotas:
                    quota.recall_tool_call(ONE_TOOL_CALL)
            self.call.tools.begin()
            self.call.end_tool_call(returned=returned)
        self.count_recalled(usage)

    async def answer_to(self, call: CallToApprove) -> Any:
        """Return the answer to a deferred tool call, or end the attempt."""
        key = f"{self.turn}:{call.tool_call_id}~{call.hash}"
        answered = await self._raise_if_stopped(self.journal.answer(key))
        if answered is None:
            self.stop(ApprovalNeeded(call, key))
            await self._require_running()
        assert answered is not None
        return answered[0]

    # --- messages from outside ---

    async def steered(self, when: SteerWhen) -> list[SteeringMessage]:
        """Return the messages that become part of the conversation now."""
        if self.steering is None or self._suspended:
            return []
        accepted = await self._raise_if_stopped(self.steering.accepted(UnitKey(turn=self.turn + 1)))
        waiting = [each for each in accepted if each.seq not in self._given]
        found = [each for each in waiting if each.when == when]
        self._given.update(each.seq for each in found)
        self._delivering += found
        self.undelivered = tuple(each.id for each in waiting if each.seq not in self._given)
        return found

    def steered_part(self) -> dict[str, object]:
        """Return the part of an intent that lists new messages; report them."""
        if not self._delivering:
            return {}
        if self.call.emit is not None:
            self.call.emit(AgentSteered, messages=len(self._delivering))
        return {STEERED: [each.seq for each in self._delivering], MESSAGES: [each.id for each in self._delivering]}

    # --- model turns ---

    def recalled_response(
        self, key: UnitKey, unit: RecordedUnit, *, model: Model, function_tools: frozenset[str]
    ) -> ModelResponse:
        """Return the response of an earlier attempt as this one's."""
        call, response = self.call, response_from_json(unit.result)
        call.model, call.function_tools = innermost(model), function_tools
        call.last_response = response
        if not unit.counted:
            self._charge(unit.usage)
        self._note(key, response, usage=unit.usage, recalled=True)
        return response

    async def commit_response(self, key: UnitKey, response: ModelResponse, model: Model) -> ModelResponse:
        """Record a response; return it as a later attempt would recall it."""
        text = response_to_json(response)
        usage = self.call.last_used
        if usage is NO_USAGE:  # a model of the user's answered without asking the metered one
            usage = usage_of(response.usage, cost_usd=self.call.pricing.cost_of(response, innermost(model)) or 0.0)
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
        self._delivering = []
        self._suspended, self._parts = response.state == "suspended", key.nth

    def note_tool(self, tool_call_id: str, *, ended: str, usage: Usage, recalled: bool) -> None:
        """Add the end of a tool call to the current turn."""
        if self.turns:
            turn = self.turns[-1]
            self.turns[-1] = with_tool_ended(turn, tool_call_id, ended=ended, usage=usage, recalled=recalled)

    def _charge(self, usage: Usage) -> None:
        """Count a request metered in an earlier process."""
        with QUOTA_LOCK:
            for quota in self.call.quotas:
                quota.recall(usage, self.call.caller)
            self.call.usage += usage
        self.count(attrs.evolve(usage, cost_usd=0.0))
        self.call.reported += usage

    # --- stopping ---

    def stop(self, why: FlujoError) -> FlujoError:
        """End the attempt for this reason, unless it has one."""
        if self.stopped is None:
            self.stopped = why
        return self.stopped

    async def _require_running(self) -> None:
        """Raise the refusal, if any, once no unit is running."""
        if self.stopped is None:
            return
        while self._under_way and not self.inside_unit:
            self._fewer_in_flight.clear()
            await self._fewer_in_flight.wait()
        raise self.stopped

    async def _raise_if_stopped(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except FlujoError as error:
            raise self.stop(error) from error.__cause__

    @contextlib.contextmanager
    def raise_pending_stop(self) -> Iterator[None]:
        """Run the agent; end with the refusal, if there was one."""
        try:
            yield
        finally:
            raised = sys.exception()
            unheard = self.stopped is not None and raised is not self.stopped
            if unheard and not isinstance(raised, asyncio.CancelledError | GeneratorExit):
                assert self.stopped is not None
                raise self.stopped


def innermost(model: Model) -> Model:
    """Return the model behind a metered one."""
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
