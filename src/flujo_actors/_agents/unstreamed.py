"""Models that cannot stream, in runs that are watched: they are asked for a whole answer, which is an output."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext


@contextlib.asynccontextmanager
async def streamed(
    model: Model,
    messages: list[ModelMessage],
    settings: ModelSettings | None,
    parameters: ModelRequestParameters,
    run_context: RunContext[object] | None,
) -> AsyncGenerator[StreamedResponse]:
    """The model's stream; where it has none, its whole answer as a stream that is over."""
    async with AsyncExitStack() as stack:
        stream: StreamedResponse | None = None
        if can_stream(model):
            stream = await _begun(stack, model, messages, settings, parameters, run_context)
        if stream is None:
            whole = await model.request(messages, settings, parameters)
            stream = CompletedStreamedResponse(whole, model_request_parameters=parameters)
        yield stream


async def _begun(stack: AsyncExitStack, model: Model, *asked: Any) -> StreamedResponse | None:
    try:
        return await stack.enter_async_context(model.request_stream(*asked))
    except NotImplementedError:  # pydantic-ai's way to say that a model, or what it stands for, has no streams
        return None


def can_stream(model: Model) -> bool:
    """Whether the model may have streams, as far as can be seen; what stands for several needs those of each."""
    match model:
        case FallbackModel(models=models):
            return all(map(can_stream, models))
        case WrapperModel(wrapped=wrapped):
            return can_stream(wrapped)
        case FunctionModel(stream_function=stream):
            return stream is not None
        case _:
            return type(model).request_stream is not Model.request_stream
