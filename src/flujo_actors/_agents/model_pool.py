"""Models given by name: built once for each event loop, with one connection pool for each provider.

pydantic-ai builds a model from its name for every run of an agent, and a connection pool with it, which it closes when
that run ends. Here they live as long as their loop. Rules:

1. Agents that name the same provider share its connections, also if they name different models.
2. A name is resolved again when the environment has changed, because keys and addresses come from there.
3. Pools are closed when their loop shuts down, which asyncio announces by closing its async generators: one is ours.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator
from typing import Any

from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider

_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, NamedModels] = weakref.WeakKeyDictionary()


class Environment:
    """The environment's variables, and a mark by which they are known: equal ones have equal marks."""

    def __init__(self) -> None:
        self._seen: dict[Any, Any] = {}
        self._mark = hash(frozenset())

    def mark(self) -> int:
        """The mark of the variables as they are now; that they are as before, as they mostly are, is seen at once."""
        # `os.environ` decodes every variable that is read; what lies behind it can be compared as it is.
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
        """The model of that name."""
        key = name, self._environment.mark()
        if key not in self._models:
            self._models[key] = infer_model(name, provider_factory=self._provider)
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


def _begin(watch: AsyncGenerator[None]) -> None:
    """Run an async generator to its first `yield`, which introduces it to the running loop."""
    try:
        watch.__anext__().__await__().send(None)
    except StopIteration:
        return
    raise RuntimeError("the generator waits for something before its first yield")


def model_named(name: str) -> Model:
    """The model of that name on the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _by_loop:
        _by_loop[loop] = NamedModels()
    return _by_loop[loop].model(name)
