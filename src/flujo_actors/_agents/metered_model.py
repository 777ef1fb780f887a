"""The models of agents, wrapped so that their requests are counted: see `metering`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from .metering import current_call
from .model_pool import model_named
from .per_agent import PerAgent, SomeAgent
from .unstreamed import streamed


class MeteredModel(WrapperModel):
    """A model whose requests are counted for the step they belong to."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        call = current_call.get()
        if call is None:
            return await self.wrapped.request(messages, model_settings, model_request_parameters)
        if call.is_only_counted:
            return await call.counted(self.wrapped, messages, model_settings, model_request_parameters)
        with await call.request(self.wrapped, messages, model_settings, model_request_parameters) as metered:
            response = await self.wrapped.request(messages, model_settings, model_request_parameters)
            metered.response = lambda: response
        return response

    @contextlib.asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[object] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        streaming = streamed(self.wrapped, messages, model_settings, model_request_parameters, run_context)
        call = current_call.get()
        if call is None:
            async with streaming as stream:
                yield stream
            return
        with await call.request(self.wrapped, messages, model_settings, model_request_parameters) as metered:
            async with streaming as stream:
                metered.response = stream.get
                yield stream


_metered: PerAgent[MeteredModel] = PerAgent()


def metered_model(agent: SomeAgent) -> MeteredModel | None:
    """The agent's model, metered; `None` if the agent chooses it when it runs, which is for `Metering` to meter."""
    model = getattr(agent, "model", None)
    if model is None or _may_be_overridden(agent):
        return None
    model, kept = model_named(model) if isinstance(model, str) else model, _metered.get(agent)
    if kept is None or kept.wrapped is not model:
        kept = _metered.keep(agent, MeteredModel(model))
    return kept


def _may_be_overridden(agent: SomeAgent) -> bool:
    """Whether another model may stand in for the agent's own.

    `Agent.override` keeps it in a variable of its own; where that is not found, it may be in use.
    """
    override = getattr(agent, "_override_model", None)
    return override is None or override.get() is not None


class Metering(AbstractCapability[Any]):
    """Meters whatever model an agent calls in the end. It costs time: agents with a model of their own do without."""

    def get_wrapper_model(self, model: Model) -> Model:
        return model if is_metered(model) else MeteredModel(model)


def is_metered(model: Model) -> bool:
    """Whether requests of this model are counted, at whatever layer."""
    return any(isinstance(layer, MeteredModel) for layer in layers_of(model))


def layers_of(model: Model) -> Iterator[Model]:
    """The model and what it wraps, from the outermost to the innermost."""
    yield model
    while isinstance(model, WrapperModel):
        model = model.wrapped
        yield model
