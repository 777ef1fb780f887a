"""Every model request of a step, counted: reserved before it is made, settled after, told to telemetry.

The model of an agent is wrapped once; which step a request belongs to is found in a context variable, which flows
into tools and nested tasks by itself. Rules:

1. A request is made only when every quota above the step grants it; one that must wait is woken by each settlement.
2. What a response used is counted exactly once, also when the step fails or is cancelled afterwards.
3. Where a cost limit holds or pricing is strict, a model without a price is refused before it is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import attrs
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage, RunUsage

from ..core.events import AgentSystem, AgentUsage, ModelEnded, ModelStarted
from ..core.quota import QUOTA_LOCK, Amount, Quota
from ..core.usage import NO_USAGE, Usage
from .pricing import Pricing

logger = logging.getLogger("flujo_actors")

Emit = Callable[..., None]
"""Tells telemetry of an event: its class, and its facts."""

_current: ContextVar[AgentCall | None] = ContextVar("flujo_actors agent call", default=None)
_waiting: set[asyncio.Future[None]] = set()


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
    model_name: str | None = None
    last_text: str = ""
    """The text of the last response, for those who must repair it."""
    unmeasured: int = 0
    """How many responses came without a token count."""
    _announced: bool = False

    def total(self) -> Usage:
        """Everything the attempt used: what was metered, and what tools used through nested agents."""
        counted, metered = self.run_usage, self.usage
        return Usage(
            input_tokens=max(counted.input_tokens, metered.input_tokens),
            output_tokens=max(counted.output_tokens, metered.output_tokens),
            cached_tokens=max(counted.cache_read_tokens, metered.cached_tokens),
            requests=max(counted.requests, metered.requests),
            tool_calls=counted.tool_calls,
            cost_usd=max(metered.cost_usd, float(counted.cost or 0.0)),
        )

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make this the call that model requests in this context belong to."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    # --- one request ---

    async def reserve(self, model: Model, messages: list[ModelMessage]) -> tuple[Amount, ...]:
        """Wait until the request may be made; `UsageLimitExceededError` if it may not."""
        self.model_name = model.model_name
        self._require_price(model)
        reserved = await self._granted()
        if self.emit is not None:
            self._announce(messages)
            self.emit(ModelStarted, model=model.model_name, provider=model.system)
        return reserved

    def _require_price(self, model: Model) -> None:
        if any(quota.limits.total_cost_usd_limit is not None for quota in self.quotas):
            self.pricing.require(model, why="a cost limit is set")
        elif self.pricing.settings.strict_pricing:
            self.pricing.require(model, why="pricing is strict")

    async def _granted(self) -> tuple[Amount, ...]:
        while True:
            with QUOTA_LOCK:
                verdicts = {quota.ask(self.caller): quota for quota in self.quotas}
                if "refused" in verdicts:
                    raise verdicts["refused"].error()
                if "wait" not in verdicts:
                    return tuple(quota.reserve(self.caller) for quota in self.quotas)
                settled = asyncio.get_running_loop().create_future()
                _waiting.add(settled)
            try:
                await settled
            finally:
                _waiting.discard(settled)

    def settle(self, reserved: tuple[Amount, ...], response: ModelResponse | None, model: Model) -> None:
        """Count what the request used; nothing, if there was no response."""
        used = NO_USAGE if response is None else self._counted(response, model)
        with QUOTA_LOCK:
            for quota, amount in zip(self.quotas, reserved, strict=True):
                quota.settle(self.caller, amount, used)
            self.usage += used
            waiting = list(_waiting)
        for future in waiting:
            future.get_loop().call_soon_threadsafe(_wake, future)
        if self.emit is not None:
            self._tell(response, used, model)

    def _counted(self, response: ModelResponse, model: Model) -> Usage:
        self.last_text = response.text or ""
        usage = response.usage
        if not usage.input_tokens and not usage.output_tokens:
            self.unmeasured += 1
            logger.warning("model %s answered, but reported no tokens: usage is incomplete", model.model_name)
        return usage_of(usage, cost_usd=self.pricing.cost_of(response, model) or 0.0)

    # --- telemetry ---

    def _announce(self, messages: list[ModelMessage]) -> None:
        if not self._announced and self.emit is not None:
            self._announced = True
            self.emit(AgentSystem, text=system_text(messages))

    def _tell(self, response: ModelResponse | None, used: Usage, model: Model) -> None:
        assert self.emit is not None
        where = {"model": model.model_name, "provider": model.system}
        tokens = {
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "cached_tokens": used.cached_tokens,
        }
        if response is None:
            self.emit(ModelEnded, **where, status="failure")
            return
        self.emit(
            ModelEnded,
            **where,
            **tokens,
            response_model=response.model_name,
            finish_reason=response.finish_reason,
        )
        self.emit(AgentUsage, **where, **tokens, requests=1, cost_usd=self.pricing.cost_of(response, model))


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def usage_of(usage: RequestUsage, *, cost_usd: float) -> Usage:
    """A provider's usage of one request, as ours."""
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        requests=1,
        cost_usd=cost_usd,
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


class MeteredModel(WrapperModel):
    """A model whose requests are counted for the step they belong to."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        call = _current.get()
        if call is None:
            return await super().request(messages, model_settings, model_request_parameters)
        reserved = await call.reserve(self.wrapped, messages)
        response: ModelResponse | None = None
        try:
            response = await super().request(messages, model_settings, model_request_parameters)
        finally:
            call.settle(reserved, response, self.wrapped)
        return response

    @contextlib.asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        call = _current.get()
        if call is None:
            async with super().request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream:
                yield stream
            return
        reserved = await call.reserve(self.wrapped, messages)
        streamed: StreamedResponse | None = None
        try:
            async with super().request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream:
                streamed = stream
                yield stream
        finally:
            call.settle(reserved, None if streamed is None else streamed.get(), self.wrapped)


_metered: weakref.WeakKeyDictionary[Any, dict[int, MeteredModel]] = weakref.WeakKeyDictionary()


def metered_model(agent: AbstractAgent[Any, Any]) -> MeteredModel | None:
    """The agent's model, wrapped once for the running loop: its connections belong to that loop."""
    model = getattr(agent, "model", None)
    if model is None:
        return None
    wrappers = _metered.setdefault(asyncio.get_running_loop(), {})
    wrapper = wrappers.get(id(agent))
    if wrapper is None:
        weakref.finalize(agent, wrappers.pop, id(agent), None)
    if wrapper is None or (wrapper.wrapped is not model and not isinstance(model, str)):
        wrapper = wrappers[id(agent)] = MeteredModel(model)
    return wrapper
