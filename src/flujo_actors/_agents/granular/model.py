"""Model requests as units."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from ..metered_model import MeteredModel, is_metered, layers_of
from .conversation import GranularCall
from .units import RecordedUnit, UnitKey, entered


def durable_model(model: Model, call: GranularCall) -> Model:
    """The model with its requests as units, and metered where they are really made; wrapped once."""
    if any(isinstance(layer, UnitModel) for layer in layers_of(model)):
        return model
    return UnitModel(model if is_metered(model) else MeteredModel(model), call)


class UnitModel(WrapperModel):
    """A model whose requests are units. A recalled turn is shown, in a stream, with its whole text at once."""

    def __init__(self, wrapped: Model, call: GranularCall) -> None:
        super().__init__(wrapped)
        self._call = call

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        await self._call.turn_ended(messages)
        key = self._call.next_request(messages)
        recorded = await self._call.recall(key)
        if isinstance(recorded, RecordedUnit):
            return self._recalled(key, recorded, model_request_parameters)
        async with self._call.doing(key, self._intent()) as unit:
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
        await self._call.turn_ended(messages)
        key = self._call.next_request(messages)
        recorded = await self._call.recall(key)
        if isinstance(recorded, RecordedUnit):
            response = self._recalled(key, recorded, model_request_parameters)
            yield CompletedStreamedResponse(
                response, model_request_parameters=model_request_parameters, replay_events=True
            )
            return
        async with self._call.doing(key, self._intent()):
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

    def _intent(self) -> dict[str, object]:
        return {"model": self.model_name, "provider": self.system}
