"""The searches of one run: who answers them, and what was found already.

Rules:

1. A synchronous retriever is called in a thread, an asynchronous one on the library of the run's host; a query is
   embedded on asyncio, since embedders are pydantic-ai's.
2. The same search (collection, query, `top_k`, floor, filters) is made once in a run: who asks while it is made waits
   for it. Whoever waited for a search that failed, failed with it; the next one searches again.
3. Whoever makes a search for others may be cancelled: then one of them makes it.
4. What was found is checked for everybody, found now or before (`_core.found`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import attrs
import trio
from outcome import Error

from .._bridge.guard import guarded
from .._bridge.threads import in_thread
from .._core.assembled import RetrievalResult, Retrieved
from .._core.found import read_found
from .._dsl.call_plan import Shape
from .run import Run

_Key: TypeAlias = tuple[object, ...]


@attrs.frozen(kw_only=True)
class SearchPlan:
    """How a collection's retriever is called: decided once, when the `Flujo` is made."""

    target: Callable[..., Any]
    shape: Shape
    takes: frozenset[str]
    """Which of `top_k`, `min_relevance` and `filters` it takes."""
    embedder: Any = None
    """What embeds the query first, if meaning is searched for."""
    search_embedded: Callable[..., object] | None = None


@attrs.frozen(kw_only=True)
class Search:
    """What is asked for."""

    collection: str
    query: str
    top_k: int
    min_relevance: float
    filters: Mapping[str, Any]

    @property
    def key(self) -> _Key:
        """What is the same for searches that find the same."""
        filters = tuple(sorted((field, _comparable(value)) for field, value in self.filters.items()))
        return self.collection, self.query, self.top_k, self.min_relevance, filters

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of a retriever."""
        return {"top_k": self.top_k, "min_relevance": self.min_relevance, "filters": dict(self.filters)}


def _comparable(value: object) -> tuple[str, ...]:
    """A filter's value; `1`, `True` and `"1"` are three."""
    values = value if isinstance(value, list | tuple) else [value]
    return type(value).__name__, *(f"{type(each).__name__}:{each!r}" for each in values)


@attrs.frozen(kw_only=True)
class Answered:
    """What a search came to."""

    found: Retrieved
    cached: bool = False
    """Whether it was found before, by somebody else: then nothing was used for it."""


@attrs.define(eq=False)
class _UnderWay:
    """A search that somebody makes, for everybody who asks meanwhile."""

    over: trio.Event = attrs.field(factory=trio.Event)
    results: tuple[RetrievalResult, ...] | None = None
    error: BaseException | None = None


class Searches:
    """The searches of one run; see the module's rules."""

    def __init__(self, plans: Mapping[str, SearchPlan]) -> None:
        self._plans = plans
        self._made: dict[_Key, _UnderWay] = {}

    async def search(
        self, run: Run, search: Search, *, cache: bool, if_left: Callable[[], None], label: str
    ) -> Answered:
        """What is found; what the retriever raises is raised."""
        make = functools.partial(self._called, run, search, if_left=if_left, label=label)
        if not cache:
            return Answered(found=await make())
        while (other := self._made.get(search.key)) is not None:
            await other.over.wait()
            if other.error is not None:
                raise other.error
            if other.results is not None:
                return Answered(found=Retrieved(results=other.results), cached=True)
        return Answered(found=await self._for_all(search.key, make))

    async def _for_all(self, key: _Key, make: Callable[[], Awaitable[Retrieved]]) -> Retrieved:
        mine = self._made[key] = _UnderWay()
        try:
            got = await guarded(make)  # cancellation is no failure, and nobody else's: it passes by
            if isinstance(got, Error):
                mine.error = got.error
                raise got.error
            mine.results = got.value.results
            return got.value
        finally:
            if mine.results is None:
                del self._made[key]
            mine.over.set()

    async def _called(self, run: Run, search: Search, *, if_left: Callable[[], None], label: str) -> Retrieved:
        plan = self._plans[search.collection]
        aside = functools.partial(in_thread, label=label, limit=run.sync_step_threads, if_left=if_left)
        if plan.embedder is not None and plan.search_embedded is not None:
            embed = functools.partial(plan.embedder.embed_query, search.query)
            embedded = await run.host.asyncio().call(embed)
            call = functools.partial(plan.search_embedded, search.query, embedded, **search.options)
            return read_found(await aside(call), collection=search.collection)
        options = {name: value for name, value in search.options.items() if name in plan.takes}
        call = functools.partial(plan.target, search.query, **options)
        answer = call() if plan.shape == "async" else await aside(call)
        if isinstance(answer, Awaitable):
            answer = await run.host.finish(answer)
        return read_found(answer, collection=search.collection)
