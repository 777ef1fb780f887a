"""Model wrappers that meter requests: see `request_meter`.

Sections:

- Models by name: built once per event loop, one connection pool per provider.
- Models without streaming in watched runs: they return a whole answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from pydantic_ai.capabilities import AbstractCapability, ReinjectSystemPrompt
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse, infer_model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers import Provider, infer_provider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from .agent_cache import PerAgent, SomeAgent
from .provider_errors import require_end
from .request_meter import current_call

# --- Models by name -----------------------------------------------------------------------------------------------
# pydantic-ai builds a model from its name for every run of an agent, and a connection pool with it, which it closes
# when
# that run ends. Here they live as long as their loop. Rules:
#
# 1. Agents that name the same provider share its connections, also if they name different models.
# 2. A name is resolved again when the environment has changed, because keys and addresses come from there.
# 3. Pools are closed when their loop shuts down, which asyncio announces by closing its async generators: one is
#    ours.


_EXTRAS = ("openai", "anthropic")
"""Extras of this library that install a provider of the same name."""

_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, NamedModels] = weakref.WeakKeyDictionary()


class Environment:
    """Environment variables with a version mark: equal ones have equal marks."""

    def __init__(self) -> None:
        self._seen: dict[Any, Any] = {}
        self._mark = hash(frozenset())

    def mark(self) -> int:
        """Return the mark of the present variables; unchanged ones are detected quickly."""
        # `os.environ` decodes every variable that is read; its underlying data can be compared directly.
        now = getattr(os.environ, "_data", os.environ)
        if now != self._seen:
            self._seen = dict(now)
            self._mark = hash(frozenset(self._seen.items()))
        return self._mark


class NamedModels:
    """The models and providers of one event loop."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, int], Model] = {}
        self._providers: dict[tuple[str, int], Provider[Any]] = {}
        self._environment = Environment()
        self._watch = self._until_loop_shutdown()
        _begin(self._watch)

    def model(self, name: str) -> Model:
        """Return the model of that name."""
        key = name, self._environment.mark()
        if key not in self._models:
            self._models[key] = _inferred(name, self._provider)
        return self._models[key]

    def _provider(self, name: str) -> Provider[Any]:
        key = name, self._environment.mark()
        if key not in self._providers:
            self._providers[key] = infer_provider(name)
        return self._providers[key]

    async def _until_loop_shutdown(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            _by_loop.pop(asyncio.get_running_loop(), None)
            for provider in self._providers.values():
                async with provider:  # leaving it for the last time closes its connections
                    pass


def _inferred(name: str, provider: Callable[[str], Provider[Any]]) -> Model:
    """Model of that name; `ModuleNotFoundError` names the extra that its provider needs."""
    try:
        return infer_model(name, provider_factory=provider)
    except ImportError as error:
        extra = next((each for each in _EXTRAS if name.startswith(each)), None)
        if extra is None:
            raise
        why = f"model {name!r} needs the package {extra!r}, which is not installed"
        raise ModuleNotFoundError(f"{why}: run `pip install 'flujo-actors[{extra}]'`", name=extra) from error


def _begin(watch: AsyncGenerator[None]) -> None:
    """Run an async generator to its first `yield`, registering it."""
    try:
        watch.__anext__().__await__().send(None)
    except StopIteration:
        return
    raise RuntimeError("the generator waits for something before its first yield")


def model_named(name: str) -> Model:
    """Return the model of that name on the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _by_loop:
        _by_loop[loop] = NamedModels()
    return _by_loop[loop].model(name)


# --- Models without streaming in watched runs ---------------------------------------------------------------------


@contextlib.asynccontextmanager
async def streamed(
    model: Model,
    messages: list[ModelMessage],
    settings: ModelSettings | None,
    parameters: ModelRequestParameters,
    run_context: RunContext[object] | None,
) -> AsyncGenerator[StreamedResponse]:
    """Yield the model's stream, or its whole answer as a completed stream."""
    async with AsyncExitStack() as stack:
        stream: StreamedResponse | None = None
        if can_stream(model):
            stream = await _open_stream(stack, model, messages, settings, parameters, run_context)
        if stream is None:
            whole = await model.request(messages, settings, parameters)
            stream = CompletedStreamedResponse(whole, model_request_parameters=parameters)
        yield stream


async def _open_stream(stack: AsyncExitStack, model: Model, *asked: Any) -> StreamedResponse | None:
    try:
        return await stack.enter_async_context(model.request_stream(*asked))
    except NotImplementedError:  # pydantic-ai's error for a model without streams
        return None


def can_stream(model: Model) -> bool:
    """Return whether the model, or each fallback model, may stream."""
    match model:
        case FallbackModel(models=models):
            return all(map(can_stream, models))
        case WrapperModel(wrapped=wrapped):
            return can_stream(wrapped)
        case FunctionModel(stream_function=stream):
            return stream is not None
        case _:
            return type(model).request_stream is not Model.request_stream


# --- Model wrappers that meter requests ---------------------------------------------------------------------------


class MeteredModel(WrapperModel):
    """Model whose requests are counted for their step."""

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
        for tries in itertools.count(1):
            metered = await call.request(self.wrapped, messages, model_settings, model_request_parameters)
            try:
                with metered:
                    response = await self.wrapped.request(messages, model_settings, model_request_parameters)
                    metered.response = lambda response=response: response
                return response
            except ModelAPIError as error:
                if metered.held is None or not await metered.repeats(error, tries):
                    raise
            finally:
                await metered.release()
        raise AssertionError("unreachable")

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
                require_end(stream)
            return
        for tries in itertools.count(1):
            metered = await call.request(self.wrapped, messages, model_settings, model_request_parameters)
            try:
                with metered:
                    async with streaming as stream:
                        metered.response = stream.get
                        yield stream
                        require_end(stream)
                return
            except ModelAPIError as error:
                if metered.held is None or not await metered.repeats(error, tries):
                    raise
                streaming = streamed(self.wrapped, messages, model_settings, model_request_parameters, run_context)
            finally:
                await metered.release()


_metered: PerAgent[MeteredModel] = PerAgent()


def metered_model(agent: SomeAgent, options: Mapping[str, Any]) -> MeteredModel | str | None:
    """Return the run's metered model; unresolved names and `None` pass through."""
    chosen = any(map(may_choose_model, options.get("capabilities", ()))) or options.get("spec") is not None
    if options.get("model") is not None:
        return _metered_override(options["model"], resolved=chosen or _may_be_chosen(agent))
    model = None if chosen else getattr(agent, "model", None)
    if model is None or _may_be_overridden(agent) or _may_be_chosen(agent):
        return None
    model, kept = model_named(model) if isinstance(model, str) else model, _metered.get(agent)
    if kept is None or kept.wrapped is not model:
        kept = _metered.keep(agent, MeteredModel(model))
    return kept


def _metered_override(model: Model | str, *, resolved: bool) -> MeteredModel | str:
    """Return the step's model; capabilities may still resolve its name."""
    if isinstance(model, str):
        return model if resolved else MeteredModel(model_named(model))
    return MeteredModel(model)


def _may_be_overridden(agent: SomeAgent) -> bool:
    """Return whether another model may replace the agent's own.

    `Agent.override` keeps it in a private variable; if that is not found, the answer is yes.
    """
    override = getattr(agent, "_override_model", None)
    return override is None or override.get() is not None


def _may_be_chosen(agent: SomeAgent) -> bool:
    """Return whether a capability may choose the model, so `model=` is unsafe."""
    override = getattr(agent, "_override_root_capability", None)
    if override is None or override.get() is not None:
        return True
    return any(map(may_choose_model, agent.root_capability.capabilities))


def may_choose_model(capability: object) -> bool:
    """Return whether a capability may affect the model; a dynamic one may."""
    if not isinstance(capability, AbstractCapability):
        return True
    if type(capability) is ReinjectSystemPrompt:
        return False  # it is made in each run, but knows of prompts alone
    made_in_run = type(capability).for_run is not AbstractCapability.for_run
    return made_in_run or capability.has_resolve_model_id or capability.get_model() is not None


class RequestMeter(AbstractCapability[Any]):
    """Meter for the model that an agent finally calls."""

    def get_wrapper_model(self, model: Model) -> Model:
        return model if is_metered(model) else MeteredModel(model)


def is_metered(model: Model) -> bool:
    """Return whether requests of this model are counted, at whatever layer."""
    return any(isinstance(layer, MeteredModel) for layer in layers_of(model))


def layers_of(model: Model) -> Iterator[Model]:
    """Yield the model and its wrapped models, outermost first."""
    yield model
    while isinstance(model, WrapperModel):
        model = model.wrapped
        yield model
