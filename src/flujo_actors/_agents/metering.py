"""Every model request of a step, counted: reserved before it is made, settled after, told to telemetry.

The model of an agent is wrapped (see `metered_model`); which step a request belongs to is found in a context variable,
which flows into tools and nested tasks by itself. Rules:

1. A request is made only when every quota above the step grants it; one that must wait is woken by each settlement.
2. What a response used is counted exactly once, also when the step fails or is cancelled afterwards.
3. Where a cost limit holds or pricing is strict, a model without a price is refused before it is called.
4. What tools used through agents of their own, as far as pydantic-ai was told, is counted when the call ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType

import attrs
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage, RunUsage

from .._core.error_info import message_of
from .._core.events import AgentSystem, AgentUsage, ModelEnded, ModelStarted, StepStatus
from .._core.quota import ONE_TOOL_CALL, Amount, Quota
from .._core.usage import NO_USAGE, Usage
from .._locks import QUOTA_LOCK
from .pricing import Pricing, estimated_cost
from .provider_errors import raw_text
from .reckoning import sure_amount
from .tool_count import ToolCount
from .waiting_requests import waiting

logger = logging.getLogger("flujo_actors")

Emit = Callable[..., None]
"""Tells telemetry of an event: its class, and its facts."""

current_call: ContextVar[AgentCall | None] = ContextVar("flujo_actors agent call", default=None)

_FAILED_REQUEST = Usage(failed_requests=1)
_FAILED_TOOL_CALL = Usage(failed_tool_calls=1)
_NO_TOOLS: frozenset[str] = frozenset()


@attrs.define(eq=False, kw_only=True)
class AgentCall:
    """One attempt of a step at its agent: its quotas, and what it has used so far."""

    caller: str
    """What calls of about the same size have in common."""
    pricing: Pricing
    quotas: tuple[Quota, ...] = ()
    emit: Emit | None = None
    usage: Usage = NO_USAGE
    run_usage: RunUsage = attrs.field(factory=RunUsage)
    """Where pydantic-ai counts, tools and nested agents included."""
    model: Model | None = None
    """The model that was asked last."""
    last_response: ModelResponse | None = None
    """What the model answered last; `None` while it is being asked."""
    function_tools: frozenset[str] = frozenset()
    """The tools of the agent in the last request, without those through which it answers."""
    unmeasured: int = 0
    """How many responses came without a token count."""
    begun: int = 0
    """How many requests were begun."""
    told: Usage = NO_USAGE
    """What telemetry was told of, in this process or in an earlier one."""
    _responses: list[ModelResponse] = attrs.field(factory=list)
    tools: ToolCount = attrs.field(factory=ToolCount)
    """The tool calls that were counted as they began."""

    @property
    def model_name(self) -> str | None:
        """The name of the model that was asked last."""
        return None if self.model is None else self.model.model_name

    @property
    def last_text(self) -> str:
        """What the last response said as an answer, for those who must repair it."""
        return "" if self.last_response is None else raw_text(self.last_response, self.function_tools)

    @property
    def cut_short(self) -> bool:
        """Whether the last response ran into the limit on its tokens."""
        return self.last_response is not None and self.last_response.finish_reason == "length"

    def nested(self) -> Usage:
        """What tools used through nested agents, and how many tool calls there were."""
        counted, metered = self.run_usage, self.usage
        if not counted.tool_calls and (counted.requests, counted.total_tokens) == (metered.requests, metered.tokens):
            return NO_USAGE  # as for most calls: all that was used was metered
        input_tokens = max(0, counted.input_tokens - metered.input_tokens)
        output_tokens = max(0, counted.output_tokens - metered.output_tokens)
        cached_tokens = max(0, counted.cache_read_tokens - metered.cached_tokens)
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
        """pydantic-ai prices what it counts by itself; its estimates of the metered responses are taken off again."""
        estimates = sum(estimated_cost(response) or 0.0 for response in self._responses)
        return max(0.0, float(self.run_usage.cost or 0.0) - estimates)

    def finish(self) -> Usage:
        """The call has ended: charge what was not metered, and say what was used in all."""
        nested = self.nested()
        if self.quotas:
            uncounted = self.tools.uncounted(nested)
            with QUOTA_LOCK:
                for quota in self.quotas:
                    quota.spend(uncounted)
        return self.usage + nested

    # --- tool calls ---

    async def begin_tool_call(self) -> None:
        """Count a tool call that begins; `UsageLimitExceededError` if it may not, once no other is under way."""
        if self._shares_tool_calls:
            await self._begin_shared_tool_call()
            return
        with QUOTA_LOCK:
            refusing = next((quota for quota in self.quotas if not quota.allows(ONE_TOOL_CALL)), None)
            if refusing is None:
                self.count_tool_call()
                return
        await self.tools.none_under_way()
        raise refusing.error(needed=ONE_TOOL_CALL)

    @property
    def _shares_tool_calls(self) -> bool:
        limited = any(quota.limits.tool_calls_limit is not None for quota in self.quotas)
        return limited and self.quotas[0].shared is not None

    async def _begin_shared_tool_call(self) -> None:
        from .shared_quotas import begun_with_all  # as below

        refusing = await begun_with_all(self.quotas, ONE_TOOL_CALL)
        if refusing is not None:
            await self.tools.none_under_way()
            raise refusing.error(needed=ONE_TOOL_CALL)
        self.tools.begin()

    def count_tool_call(self) -> None:
        """Count a tool call, which may have been made in an earlier process."""
        with QUOTA_LOCK:
            for quota in self.quotas:
                quota.begin(ONE_TOOL_CALL)
        self.tools.begin()

    def end_tool_call(self, *, returned: bool) -> None:
        """A tool call that was counted has ended."""
        self.tools.end(returned=returned)
        if not returned and self.quotas:
            self.usage += _FAILED_TOOL_CALL

    def untold_tool_calls(self) -> int:
        """How many tool calls have ended since usage was told last."""
        return self.run_usage.tool_calls - self.told.tool_calls

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
        reserved: tuple[Amount, ...] = ()
        if self.quotas:
            reserved = await self._granted(sure_amount(messages, settings, model, self.pricing))
        if self.emit is not None and self.begun == 0:
            self.emit(AgentSystem, text=system_text(messages))
        self.begun += 1
        return MeteredRequest(call=self, model=model, reserved=reserved, number=self.begun)

    @property
    def is_only_counted(self) -> bool:
        """Whether nobody limits the call, and nobody is told of it."""
        return not self.quotas and self.emit is None

    async def counted(
        self,
        model: Model,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """The answer to a request of a call that is only counted; one that fails leaves nothing to count."""
        self._begin(model, parameters)
        self.begun += 1
        response = await model.request(messages, settings, parameters)
        self.count(response, model, (), error=None)
        return response

    def _begin(self, model: Model, parameters: ModelRequestParameters) -> None:
        self.model, self.last_response = model, None
        tools = parameters.function_tools
        self.function_tools = frozenset([tool.name for tool in tools]) if tools else _NO_TOOLS
        self._require_price(model)

    def _require_price(self, model: Model) -> None:
        if self.quotas and any(quota.limits.total_cost_usd_limit is not None for quota in self.quotas):
            self.pricing.require(model, why="a cost limit is set")
        elif self.pricing.settings.strict_pricing:
            self.pricing.require(model, why="pricing is strict")

    async def _granted(self, sure: Amount) -> tuple[Amount, ...]:
        while True:
            shared = self.quotas[0].shared
            if shared is not None:
                from .shared_quotas import granted_by_all  # what only runs with remote steps need

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
        """Count what a request used, instead of what was reserved for it."""
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
        """Count what a response used, and keep it in mind; with what it cost, `None` if no price is known."""
        self.last_response = response
        self._responses.append(response)
        cost = self.pricing.cost_of(response, model)
        used = usage_of(response.usage, cost_usd=cost or 0.0)
        self.settle(reserved, used)
        if error is None and not used.tokens:
            self.note_unmeasured(model)
        return used, cost

    def note_unmeasured(self, model: Model) -> None:
        """A complete response counted no tokens: say so, for what is not counted cannot be limited."""
        self.unmeasured += 1
        logger.warning("model %s answered, but reported no tokens: usage is incomplete", model.model_name)


@attrs.define(eq=False)
class _Current:
    """A stretch of code whose model requests belong to a call."""

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
    """One request under way: entered when it is made, and settled when it is left, in whatever way."""

    call: AgentCall
    model: Model
    reserved: tuple[Amount, ...]
    number: int
    response: Callable[[], ModelResponse] | None = None
    """Where to find the response, as soon as there is some of it."""

    def __enter__(self) -> MeteredRequest:
        if self.call.emit is not None:
            self._tell(ModelStarted, call_id=str(self.number))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.response is None:
            self.call.settle(self.reserved, _FAILED_REQUEST if self.call.quotas else NO_USAGE)
            self._tell_ended({}, error)
        else:
            self._settle(self.response(), error)

    def _settle(self, response: ModelResponse, error: BaseException | None) -> None:
        used, cost = self.call.count(response, self.model, self.reserved, error=error)
        if self.call.emit is not None:
            self._tell_used(used, cost, response, error)

    def _tell_used(self, used: Usage, cost: float | None, response: ModelResponse, error: BaseException | None) -> None:
        tokens = {
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "cached_tokens": used.cached_tokens,
        }
        said = {"response_model": response.model_name, "finish_reason": response.finish_reason}
        self._tell_ended({**tokens, **said}, error)
        tools = self.call.untold_tool_calls()
        self._tell(AgentUsage, requests=1, tool_calls=tools, cost_usd=cost, **tokens)
        self.call.told += attrs.evolve(used, tool_calls=tools)

    def _tell(self, kind: object, **facts: object) -> None:
        if self.call.emit is not None:
            self.call.emit(kind, model=self.model.model_name, provider=self.model.system, **facts)

    def _tell_ended(self, facts: dict[str, object], error: BaseException | None) -> None:
        ending = {} if error is None else ending_of(error)
        self._tell(ModelEnded, call_id=str(self.number), **facts, **ending)


def ending_of(error: BaseException) -> dict[str, object]:
    """How a call that raised ended, for telemetry."""
    status: StepStatus = "failure" if isinstance(error, Exception) else "aborted"
    name = type(error).__name__
    return {"status": status, "error_type": name, "feedback": f"{name}: {message_of(error)}"}


def usage_of(usage: RequestUsage, *, cost_usd: float) -> Usage:
    """A provider's usage of one request, as ours."""
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        requests=1,
        cost_usd=cost_usd,
        largest_request_tokens=usage.input_tokens + usage.output_tokens,
        largest_request_usd=cost_usd,
    )


def system_text(messages: list[ModelMessage]) -> str:
    """The system prompt and instructions as the model gets them."""
    parts: list[str] = []
    for message in messages:
        if isinstance(message, ModelRequest):
            parts.extend(part.content for part in message.parts if isinstance(part, SystemPromptPart))
            if message.instructions and message.instructions not in parts:
                parts.append(message.instructions)
    return "\n\n".join(parts)
