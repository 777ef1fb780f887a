"""Metering of a step's model requests: reserve, call, settle, report.

The model of an agent is wrapped (see `metered_model`); a context variable, which propagates into tools and nested
tasks, identifies the step of a request. Rules:

1. A request is made only when every enclosing quota grants it; a waiting one is woken by each settlement.
2. The usage of a response is counted exactly once, also when the step fails or is cancelled afterwards.
3. Under a cost limit or strict pricing, a model without a price is refused before it is called.
   An answer without a price, or without a token count, is charged at its reservation.
4. Usage of nested agents in tools, as far as pydantic-ai knows it, is counted when the call ends.

Sections:

- Tool calls of one attempt counted against limits at their start.
- The requests that wait for room in a quota, on whatever loop.
- Reservations in quotas shared with other processes through the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Protocol, TypeVar

import attrs
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage, RunUsage

from .._core.error_info import message_of
from .._core.locks import QUOTA_LOCK
from .._core.quota import ONE_TOOL_CALL, Amount, Quota, Shared, any_sized
from .._core.telemetry_events import AgentSystem, AgentUsage, ModelEnded, ModelStarted, StepStatus
from .._core.usage import MOST_TOKENS, NO_USAGE, Usage, counted, dollars
from .prices import Pricing, answer_tokens, estimated_cost, is_of_text, sure_amount
from .provider_errors import raw_text

# --- Tool calls of one attempt counted against limits at their start ----------------------------------------------


_inside: ContextVar[ToolCount | None] = ContextVar("flujo_actors tool call", default=None)
"""Count of the call whose tool is running."""


class ToolCount:
    """Number of started, running and failed tool calls."""

    def __init__(self) -> None:
        self._begun = self._under_way = self._failed = 0
        self._ended: asyncio.Event | None = None

    def begin(self) -> None:
        """One more has begun."""
        self._begun += 1
        self._under_way += 1

    def end(self, *, returned: bool) -> None:
        """One has ended."""
        self._under_way -= 1
        self._failed += not returned
        if self._ended is not None:
            self._ended.set()

    def uncounted(self, nested: Usage) -> Usage:
        """Return usage through tools without the calls counted at their start."""
        counted = self._begun - self._failed
        return attrs.evolve(nested, tool_calls=max(0, nested.tool_calls - counted)) if counted else nested

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Mark a tool's code, whose own calls must not wait for it."""
        token = _inside.set(self)
        try:
            yield
        finally:
            _inside.reset(token)

    async def none_in_flight(self) -> None:
        """Wait until no call is running, before a refusal cancels them.

        Inside a tool this returns at once, because that tool's own call is open.
        """
        while self._under_way and _inside.get() is not self:
            self._ended = asyncio.Event()
            await self._ended.wait()


# --- The requests that wait for room in a quota -------------------------------------------------------------------


class QuotaWaiters:
    """Waiting requests; each settlement wakes them all."""

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()
        self._lock = threading.Lock()

    def join(self) -> asyncio.Future[None]:
        """Return a future that is done at the next settlement."""
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            self._futures.add(future)
        return future

    def wake(self) -> None:
        """Wake all waiters."""
        with self._lock:
            futures, self._futures = self._futures, set()
        for future in futures:
            with contextlib.suppress(RuntimeError):  # its loop was closed, and has no waiters any more
                future.get_loop().call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


waiting = QuotaWaiters()
"""All that wait in this process."""


# --- Metering of a step's model requests --------------------------------------------------------------------------


logger = logging.getLogger("flujo_actors")


class Fence(Protocol):
    """The right of this process to start effects of a run."""

    @property
    def lapsed(self) -> bool:
        """Return whether that right must have expired."""

    async def confirm(self) -> None:
        """Return when it was renewed; raise if it was not."""


Emit = Callable[..., None]
"""Callback that emits a telemetry event."""

current_call: ContextVar[AgentCall | None] = ContextVar("flujo_actors agent call", default=None)

_FAILED_REQUEST = Usage(failed_requests=1)
_FAILED_TOOL_CALL = Usage(failed_tool_calls=1)
_NO_TOOLS: frozenset[str] = frozenset()


@attrs.define(eq=False, kw_only=True)
class AgentCall:
    """Quotas and usage of one attempt of a step at its agent."""

    caller: str
    """Key of calls of about the same size."""
    agent_name: str | None = None
    """The agent's own name."""
    pricing: Pricing
    quotas: tuple[Quota, ...] = ()
    emit: Emit | None = None
    fence: Fence | None = None
    """Lease check before each request and tool call; `None` without a store."""
    rates: Any = None
    """Rate limits of the requests; `None` without any."""
    usage: Usage = NO_USAGE
    run_usage: RunUsage = attrs.field(factory=RunUsage)
    """pydantic-ai's own counters, including tools and nested agents."""
    model: Model | None = None
    """Last called model."""
    last_response: ModelResponse | None = None
    """Last response; `None` during a request."""
    last_used: Usage = NO_USAGE
    """Usage that the last response was charged at."""
    function_tools: frozenset[str] = frozenset()
    """Agent's tools in the last request, without output tools."""
    unapproved_tools: dict[str, ToolDefinition] = attrs.field(factory=dict)
    """Tools that need approval, by name."""
    unmeasured: int = 0
    """Number of responses without a token count."""
    begun: int = 0
    """Number of started requests."""
    reported: Usage = NO_USAGE
    """Usage reported to telemetry, in this process or an earlier one."""
    _responses: list[ModelResponse] = attrs.field(factory=list)
    tools: ToolCount = attrs.field(factory=ToolCount)
    """The tool calls that were counted as they began."""

    @property
    def model_name(self) -> str | None:
        """Return the name of the last called model."""
        return None if self.model is None else self.model.model_name

    @property
    def last_text(self) -> str:
        """Return the answer text of the last response, for repairs."""
        return "" if self.last_response is None else raw_text(self.last_response, self.function_tools)

    @property
    def cut_short(self) -> bool:
        """Return whether the last response ran into the limit on its tokens."""
        return self.last_response is not None and self.last_response.finish_reason == "length"

    def nested(self) -> Usage:
        """Return the usage of nested agents, and the number of tool calls."""
        counted, metered = self.run_usage, self.usage
        if not counted.tool_calls and (counted.requests, counted.total_tokens) == (metered.requests, metered.tokens):
            return NO_USAGE  # as for most calls: all that was used was metered
        input_tokens = max(0, counted.input_tokens - metered.input_tokens)
        output_tokens = max(0, counted.output_tokens - metered.output_tokens)
        cached_tokens = min(input_tokens, max(0, counted.cache_read_tokens - metered.cached_tokens))
        requests = max(0, counted.requests - metered.requests)
        if not (input_tokens or output_tokens or cached_tokens or requests or counted.tool_calls):
            return NO_USAGE
        return Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            requests=requests,
            tool_calls=counted.tool_calls,
            cost_usd=self._nested_cost() if input_tokens or output_tokens else 0.0,
        )

    def _nested_cost(self) -> float:
        """Return the cost of nested agents: pydantic-ai's total without the metered responses."""
        estimates = sum(estimated_cost(response) or 0.0 for response in self._responses)
        return max(0.0, float(self.run_usage.cost or 0.0) - estimates)

    def finish(self) -> Usage:
        """Charge unmetered usage at the end of the call; return the total."""
        nested = self.nested()
        if self.quotas:
            uncounted = self.tools.uncounted(nested)
            with QUOTA_LOCK:
                for quota in self.quotas:
                    quota.spend(uncounted)
        return self.usage + nested

    # --- tool calls ---

    async def begin_tool_call(self) -> None:
        """Count a starting tool call.

        Raise `UsageLimitExceededError` if it is refused, once no other is running.
        """
        await self.pass_fence()
        if self._shares_tool_calls:
            await self._begin_shared_tool_call()
            return
        with QUOTA_LOCK:
            refusing = next((quota for quota in self.quotas if not quota.allows(ONE_TOOL_CALL)), None)
            if refusing is None:
                self.count_tool_call()
                return
        await self.tools.none_in_flight()
        raise refusing.error(needed=ONE_TOOL_CALL)

    async def pass_fence(self) -> None:
        """Let an effect start; raise `LeaseLost` if another process owns the run."""
        if self.fence is not None and self.fence.lapsed:
            await self.fence.confirm()

    @property
    def _shares_tool_calls(self) -> bool:
        limited = any(quota.limits.tool_calls_limit is not None for quota in self.quotas)
        return limited and self.quotas[0].shared is not None

    async def _begin_shared_tool_call(self) -> None:
        refusing = await begun_with_all(self.quotas, ONE_TOOL_CALL)
        if refusing is not None:
            await self.tools.none_in_flight()
            raise refusing.error(needed=ONE_TOOL_CALL)
        self.tools.begin()

    def count_tool_call(self) -> None:
        """Count a tool call, possibly of an earlier process."""
        with QUOTA_LOCK:
            for quota in self.quotas:
                quota.begin(ONE_TOOL_CALL)
        self.tools.begin()

    def end_tool_call(self, *, returned: bool) -> None:
        """A tool call that was counted has ended."""
        self.tools.end(returned=returned)
        if not returned and self.quotas:
            self.usage += _FAILED_TOOL_CALL

    def unreported_tool_calls(self) -> int:
        """Return the number of tool calls since the last usage report."""
        return self.run_usage.tool_calls - self.reported.tool_calls

    def current(self) -> _Current:
        """Make this the call that model requests in this context belong to."""
        return _Current(self)

    # --- one request ---

    async def request(
        self,
        model: Model,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> MeteredRequest:
        """Wait until the request may be made; `UsageLimitExceededError` if it may not."""
        self._begin(model, parameters)
        sure = Amount() if self.is_unlimited else sure_amount(messages, settings, model, self.pricing)
        reserved = await self._granted(sure) if self.quotas else ()
        held = None if self.rates is None else await self._rated(model, sure, reserved)
        await self._pass_fence_with(reserved)
        if self.emit is not None and self.begun == 0:
            self.emit(AgentSystem, text=system_text(messages))
        self.begun += 1
        shown = None if self.emit is None else request_settings(model, settings)
        return MeteredRequest(call=self, model=model, reserved=reserved, number=self.begun, settings=shown, held=held)

    async def _rated(self, model: Model, sure: Amount, reserved: tuple[Amount, ...]) -> Any:
        """Wait for the rate limits; a refused request gives its reservation back."""
        granted = False
        try:
            name = f"{model.system}:{model.model_name}"
            held, granted = await self.rates.acquire(name, sure.tokens, rests=_inside.get() is None), True
            return held
        finally:
            if not granted:
                self.settle(reserved, NO_USAGE)

    async def _pass_fence_with(self, reserved: tuple[Amount, ...]) -> None:
        """Pass the fence; a refused request returns its reservation."""
        passed = False
        try:
            await self.pass_fence()
            passed = True
        finally:
            if not passed:
                self.settle(reserved, NO_USAGE)

    @property
    def is_unlimited(self) -> bool:
        """Return whether the call has neither budgets nor rate limits."""
        return not self.quotas and self.rates is None

    @property
    def is_only_counted(self) -> bool:
        """Return whether the call has neither limits nor telemetry."""
        return self.is_unlimited and self.emit is None

    async def counted(
        self,
        model: Model,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Return the response of an unlimited request; a failed one counts nothing."""
        self._begin(model, parameters)
        await self.pass_fence()
        self.begun += 1
        response = await model.request(messages, settings, parameters)
        self.count(response, model, (), error=None)
        return response

    def _begin(self, model: Model, parameters: ModelRequestParameters) -> None:
        self.model, self.last_response, self.last_used = model, None, NO_USAGE
        tools = parameters.function_tools
        self.function_tools = frozenset([tool.name for tool in tools]) if tools else _NO_TOOLS
        self.unapproved_tools = {tool.name: tool for tool in tools if tool.kind == "unapproved"}
        self._require_price(model)

    def _require_price(self, model: Model) -> None:
        if self.quotas and any(quota.needs_price(model.system) for quota in self.quotas):
            self.pricing.require(model, why="a cost limit is set")
        elif self.pricing.settings.strict_pricing:
            self.pricing.require(model, why="pricing is strict")

    async def _granted(self, sure: Amount) -> tuple[Amount, ...]:
        while True:
            shared = self.quotas[0].shared
            if shared is not None:
                return await granted_by_all(shared, self.quotas, self.caller, sure, give_back=self.settle)
            with QUOTA_LOCK:
                verdicts = {quota.ask(self.caller, sure): quota for quota in self.quotas}
                if "refused" in verdicts:
                    raise verdicts["refused"].error(self.caller, sure)
                if "wait" not in verdicts:
                    return tuple(quota.reserve(self.caller, sure) for quota in self.quotas)
                settled = waiting.join()
            await settled

    def settle(self, reserved: tuple[Amount, ...], used: Usage) -> None:
        """Replace a reservation with the actual usage."""
        if not self.quotas:
            self.usage += used
            return
        with QUOTA_LOCK:
            for quota, amount in zip(self.quotas, reserved, strict=True):
                quota.settle(self.caller, amount, used)
            self.usage += used
        waiting.wake()
        if self.quotas[0].shared is not None:
            self.quotas[0].shared.changed()

    def count(
        self, response: ModelResponse, model: Model, reserved: tuple[Amount, ...], *, error: BaseException | None
    ) -> tuple[Usage, float | None]:
        """Count and keep a response; return its usage and cost, if priced."""
        self.last_response = response
        self._responses.append(response)
        correct_usage(response.usage)
        measured = response.usage.total_tokens > 0
        cost = self.pricing.cost_of(response, model)
        if reserved and isinstance(error, Exception | None) and any_sized(self.quotas, model.system):
            cost = self._charge_unreported(response, model, cost, reserved)
        used = self.last_used = usage_of(response.usage, cost_usd=cost or 0.0)
        self.settle(reserved, used)
        if error is None and not measured:
            self.note_unmeasured(model)
        return used, cost

    async def reserve(self) -> tuple[Amount, ...]:
        """Reserve a call of a model that is not metered."""
        return await self._granted(Amount()) if self.quotas else ()

    def charge(self, responses: Iterable[ModelResponse], reserved: tuple[Amount, ...]) -> None:
        """Replace the reservation with the usage of responses that were not metered."""
        used = NO_USAGE
        for response in responses:
            self.begun += 1
            correct_usage(response.usage)
            used += usage_of(response.usage, cost_usd=self.pricing.cost_of(response, None) or 0.0)
        self.settle(reserved, used)

    def _charge_unreported(
        self, response: ModelResponse, model: Model, cost: float | None, reserved: tuple[Amount, ...]
    ) -> float | None:
        """Charge an unreported call at its reservation; return the cost."""
        usage = response.usage
        if not usage.total_tokens:
            usage.output_tokens = answer_tokens(response)
            usage.input_tokens = max(1, math.ceil(max(each.tokens for each in reserved)) - usage.output_tokens)
            cost = cost or self.pricing.cost_of_usage(usage, model) or max(each.cost_usd for each in reserved)
        elif cost is None:
            cost = self.pricing.cost_of_usage(usage, model) or max(each.cost_usd for each in reserved)
        return cost

    def note_unmeasured(self, model: Model) -> None:
        """Report a complete response without token counts: it cannot be limited."""
        self.unmeasured += 1
        logger.warning("model %s answered, but reported no tokens: usage is incomplete", model.model_name)


@attrs.define(eq=False)
class _Current:
    """Code whose model requests belong to a call."""

    _call: AgentCall
    _token: Token[AgentCall | None] | None = None

    def __enter__(self) -> None:
        self._token = current_call.set(self._call)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._token is not None
        current_call.reset(self._token)


@attrs.define(eq=False, kw_only=True)
class MeteredRequest:
    """One request in flight: reserved on entry, settled on every exit."""

    call: AgentCall
    model: Model
    reserved: tuple[Amount, ...]
    number: int
    settings: dict[str, object] | None = None
    """The settings of the request that telemetry reports."""
    response: Callable[[], ModelResponse] | None = None
    """Accessor of the response, once a part of it exists."""
    held: Any = None
    """Reservations of rate limits."""

    async def release(self) -> None:
        """Settle the rate limits of the request."""
        if self.held is not None:
            used = None if self.response is None else float(self.response().usage.total_tokens)
            await self.call.rates.release(self.held, used)

    async def repeats(self, error: BaseException, tries: int) -> Any:
        """Return whether the request is repeated after a refusal."""
        return self.response is None and await self.call.rates.repeats(self.held, error, tries)

    def __enter__(self) -> MeteredRequest:
        if self.call.emit is not None:
            named = {"agent_name": self.call.agent_name, "settings": self.settings}
            self._emit(ModelStarted, call_id=str(self.number), **named)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.response is None:
            self.call.settle(self.reserved, _FAILED_REQUEST if self.call.quotas else NO_USAGE)
            self._emit_ended({}, error)
        else:
            self._settle(self.response(), error)

    def _settle(self, response: ModelResponse, error: BaseException | None) -> None:
        used, cost = self.call.count(response, self.model, self.reserved, error=error)
        if self.call.emit is not None:
            self._emit_used(used, cost, response, error)

    def _emit_used(self, used: Usage, cost: float | None, response: ModelResponse, error: BaseException | None) -> None:
        tokens = {
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "cached_tokens": used.cached_tokens,
        }
        said = {"response_model": response.model_name, "finish_reason": response.finish_reason}
        self._emit_ended({**tokens, **said}, error)
        tools = self.call.unreported_tool_calls()
        agent = self.call.agent_name
        self._emit(AgentUsage, agent_name=agent, requests=1, tool_calls=tools, cost_usd=cost, **tokens)
        self.call.reported += attrs.evolve(used, tool_calls=tools)

    def _emit(self, kind: object, **facts: object) -> None:
        if self.call.emit is not None:
            self.call.emit(kind, model=self.model.model_name, provider=self.model.system, **facts)

    def _emit_ended(self, facts: dict[str, object], error: BaseException | None) -> None:
        ending = {} if error is None else ending_of(error)
        self._emit(ModelEnded, call_id=str(self.number), **facts, **ending)


def ending_of(error: BaseException) -> dict[str, object]:
    """Return the telemetry facts of a call that raised."""
    status: StepStatus = "failure" if isinstance(error, Exception) else "aborted"
    name = type(error).__name__
    return {"status": status, "error_type": name, "feedback": f"{name}: {message_of(error)}"}


_REPORTED_SETTINGS = (
    *("temperature", "max_tokens", "top_p", "top_k", "seed"),
    *("presence_penalty", "frequency_penalty", "stop_sequences"),
)


def request_settings(model: Model, settings: ModelSettings | None) -> dict[str, object] | None:
    """Return the request settings for telemetry; the run's override the model's."""
    merged: dict[str, object] = {**(model.settings or {}), **(settings or {})}
    return {name: merged[name] for name in _REPORTED_SETTINGS if merged.get(name) is not None} or None


def correct_usage(usage: RequestUsage) -> None:
    """Correct impossible counts: below 0, or a part above its whole."""
    if usage.cost is not None and not (math.isfinite(usage.cost) and usage.cost >= 0):
        usage.cost = None
    if is_of_text(usage) and usage.total_tokens <= MOST_TOKENS:
        return
    for whole, parts in _PARTS.items():
        left = counted(getattr(usage, whole))
        setattr(usage, whole, left)
        for part in parts:
            setattr(usage, part, counted(getattr(usage, part, 0), left))
    usage.cache_write_tokens = min(usage.cache_write_tokens, usage.input_tokens - usage.cache_read_tokens)
    usage.audio_seconds = dollars(getattr(usage, "audio_seconds", 0.0))


_PARTS = {
    "input_tokens": ("cache_read_tokens", "cache_write_tokens", "input_audio_tokens"),
    "cache_read_tokens": ("cache_audio_read_tokens",),
    "cache_write_tokens": ("cache_write_1h_tokens",),
    "output_tokens": ("output_reasoning_tokens", "output_audio_tokens"),
}
"""Counts of a provider's usage and the parts of each."""


def usage_of(usage: RequestUsage, *, cost_usd: float) -> Usage:
    """Return a provider's usage of one request, as ours."""
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        requests=1,
        cost_usd=dollars(cost_usd),
        largest_request_tokens=usage.input_tokens + usage.output_tokens,
        largest_request_usd=dollars(cost_usd),
    )


def system_text(messages: list[ModelMessage]) -> str:
    """Return the system prompt and instructions as the model gets them."""
    parts: list[str] = []
    for message in messages:
        if isinstance(message, ModelRequest):
            parts.extend(part.content for part in message.parts if isinstance(part, SystemPromptPart))
            if message.instructions and message.instructions not in parts:
                parts.append(message.instructions)
    return "\n\n".join(parts)


# --- Reservations in quotas shared with other processes through the store -----------------------------------------


T = TypeVar("T")
LOOK_S = 0.2
"""Poll interval while waiting for other processes."""

GiveBack = Callable[[tuple[Amount, ...], Usage], None]
"""Callback that replaces a reservation with actual usage."""


async def granted_by_all(
    shared: Shared, quotas: tuple[Quota, ...], caller: str, sure: Amount, *, give_back: GiveBack
) -> tuple[Amount, ...]:
    """Wait for room and return the reservations; raise `UsageLimitExceededError`."""
    while True:
        reserved = await _taken(functools.partial(shared.reserve_all, quotas, caller, sure), give_back)
        if reserved is not None:
            return reserved
        with QUOTA_LOCK:
            verdicts = {quota.ask(caller, sure): quota for quota in quotas}
            if "refused" in verdicts:
                raise verdicts["refused"].error(caller, sure)
            settled = waiting.join()
        if "wait" in verdicts:
            await asyncio.wait([settled], timeout=LOOK_S)


async def begun_with_all(quotas: tuple[Quota, ...], one: Amount) -> Quota | None:
    """Count a start in all quotas; return the refusing one, if any."""
    shared = quotas[0].shared
    assert shared is not None
    return await _in_thread(functools.partial(shared.spend_one, quotas, one))


async def _taken(take: Callable[[], tuple[Amount, ...] | None], give_back: GiveBack) -> tuple[Amount, ...] | None:
    """Return the reservations; release them if the caller has left."""

    def left(taken: asyncio.Future[tuple[Amount, ...] | None]) -> None:
        reserved = None if taken.cancelled() or taken.exception() is not None else taken.result()
        if reserved is not None:
            give_back(reserved, NO_USAGE)

    taking = asyncio.ensure_future(_in_thread(take))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(left)
        raise


async def _in_thread(do: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, do)
