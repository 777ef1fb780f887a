"""Searches of one run: retriever calls and cached results.

Rules:

1. A synchronous retriever is called in a thread, an asynchronous one on the library of the run's host; a query is
   embedded on asyncio, since embedders are pydantic-ai's.
2. The same search (collection, query, `top_k`, floor, filters) is made once in a run: concurrent callers wait
   for it. Waiters of a failed search fail with it; the next caller searches again.
3. If the caller that makes a shared search is cancelled, another one makes it.
4. Results are checked for every caller, cached or not (`_core.records.assembled`).

Sections:

- Outputs of steps that later runs reuse.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

import attrs
import trio
from outcome import Error, Value

from ..._bridge.threads import in_thread
from ..._bridge.user_code_guard import guarded
from ..._core.records import record_bodies
from ..._core.records.assembled import RetrievalResult, Retrieved, read_found
from ..._core.records.records import CacheEntry
from ..._dsl.call_plan import Shape, accepts, shape_of
from ..._dsl.context_sources import FromHistory, FromRetrieval, FromState
from ..._dsl.declaration_tree import walk_steps
from ..._dsl.declared_step import Declared
from ..._dsl.output_options import Cache
from ..._dsl.pipeline import Pipeline
from ..._dsl.retrieval_collections import Collection, checked_collection, collection_name
from ..._dsl.step_declaration import Step
from ..._durable.fingerprint import digest, named, step_facts
from ..._durable.store_executor import call_store
from ...errors import DeclarationError
from ...stores._store_port import Store
from ..context.context_paths import check_history, check_path
from .run_environment import Run
from .user_functions import call

_Key: TypeAlias = tuple[object, ...]


@attrs.frozen(kw_only=True)
class SearchPlan:
    """Call plan of a collection's retriever, made once per `Flujo`."""

    target: Callable[..., Any]
    shape: Shape
    takes: frozenset[str]
    """Accepted keywords of `top_k`, `min_relevance` and `filters`."""
    embedder: Any = None
    """Embedder of the query for semantic search, if any."""
    search_embedded: Callable[..., object] | None = None


@attrs.frozen(kw_only=True)
class Search:
    """Search request."""

    collection: str
    query: str
    top_k: int
    min_relevance: float
    filters: Mapping[str, Any]

    @property
    def key(self) -> _Key:
        """Return the cache key of equal searches."""
        filters = tuple(sorted((field, _comparable(value)) for field, value in self.filters.items()))
        return self.collection, self.query, self.top_k, self.min_relevance, filters

    @property
    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of a retriever."""
        return {"top_k": self.top_k, "min_relevance": self.min_relevance, "filters": dict(self.filters)}


def _comparable(value: object) -> tuple[str, ...]:
    """Return a filter's value; `1`, `True` and `"1"` are three."""
    values = value if isinstance(value, list | tuple) else [value]
    return type(value).__name__, *(f"{type(each).__name__}:{each!r}" for each in values)


@attrs.frozen(kw_only=True)
class RetrievalAnswer:
    """Result of a search."""

    found: Retrieved
    cached: bool = False
    """Whether it came from the cache: then nothing was used for it."""


@attrs.define(eq=False)
class _InFlight:
    """Search in flight, shared by concurrent callers."""

    over: trio.Event = attrs.field(factory=trio.Event)
    results: tuple[RetrievalResult, ...] | None = None
    error: BaseException | None = None


class Searches:
    """The searches of one run; see the module's rules."""

    def __init__(self, plans: Mapping[str, SearchPlan]) -> None:
        self._plans = plans
        self._made: dict[_Key, _InFlight] = {}

    async def search(
        self, run: Run, search: Search, *, cache: bool, if_left: Callable[[], None], label: str
    ) -> RetrievalAnswer:
        """Return the results; exceptions of the retriever propagate."""
        make = functools.partial(self._called, run, search, if_left=if_left, label=label)
        if not cache:
            return RetrievalAnswer(found=await make())
        while (other := self._made.get(search.key)) is not None:
            await other.over.wait()
            if other.error is not None:
                raise other.error
            if other.results is not None:
                return RetrievalAnswer(found=Retrieved(results=other.results), cached=True)
        return RetrievalAnswer(found=await self._for_all(search.key, make))

    async def _for_all(self, key: _Key, make: Callable[[], Awaitable[Retrieved]]) -> Retrieved:
        mine = self._made[key] = _InFlight()
        try:
            got = await guarded(make)  # cancellation is not a failure and not shared: it propagates
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


# --- Outputs of steps that later runs reuse -----------------------------------------------------------------------


@attrs.frozen
class StepCache:
    """Cache of one `Flujo`'s steps in its store."""

    store: Store
    pipeline: str

    async def found(self, run: Run, step: Declared, data: object, context: object) -> tuple[str, Value[object] | None]:
        """Return the key and the stored output of a step's entry."""
        assert step.cache is not None
        key = await self._key(run, step, step.cache, data, context)
        text = await call_store(lambda: self.store.cached(key))
        if text is None:
            return key, None
        return key, Value(record_bodies.read_value(json.loads(text), where=f"the cache of step {step.name!r}"))

    def entry(self, step: Declared, key: str, output: object) -> CacheEntry:
        """Return the entry of an output; raise `NotSerializable`."""
        assert step.cache is not None
        body = record_bodies.as_text(record_bodies.stored_value(output))
        return CacheEntry(key=key, pipeline=self.pipeline, step=step.name, ttl_s=step.cache.ttl_s, body=body)

    async def _key(self, run: Run, step: Declared, cache: Cache, data: object, context: object) -> str:
        if cache.key is not None:
            made = await call(run, cache.key, data, context)
            given = ["key", made.unwrap()]
        else:
            given = ["input", record_bodies.stored_value(data)]
        facts = [step_facts(step), *_details(step), self._scope(run, cache), given]
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=named).encode("utf-8", "replace")).hexdigest()

    def _scope(self, run: Run, cache: Cache) -> list[str]:
        scope = cache.scope or "pipeline"
        if scope == "pipeline":
            return [scope, self.pipeline]
        return [scope, run.key if scope == "key" else run.labels.get(scope.removeprefix("label:"), "")]


def _details(step: Declared) -> list[object]:
    """Return the parts of a step outside the run's fingerprint."""
    agent = getattr(step, "agent", None)
    settings = getattr(agent, "model_settings", None)
    output = getattr(agent, "output_type", None)
    schema = getattr(getattr(step, "processing", None), "schema", None)
    return [repr(settings), repr(output), digest(schema), [named(each) for each in step.validators]]


_OPTIONS = ("top_k", "min_relevance", "filters")


def planned_searches(
    pipeline: Pipeline, retrievers: Mapping[object, object] | None, context_model: type | None
) -> Mapping[str, SearchPlan]:
    """Return the search plan of every collection, or raise `DeclarationError`."""
    given = _checked_retrievers(retrievers)
    steps = [step for step in walk_steps(pipeline) if isinstance(step, Step) and step.context_sources is not None]
    asked: dict[type[Collection], list[tuple[Step, FromRetrieval]]] = {}
    for step in steps:
        _check_paths(step, context_model)
        for source in step.context_sources.searches if step.context_sources else ():
            asked.setdefault(source.collection, []).append((step, source))
    _refuse_unasked(given, asked)
    plans = {collection: _planned(collection, given, owner) for collection, owner in asked.items()}
    _refuse_same_names(plans)
    return {collection_name(collection): plan for collection, plan in plans.items()}


def _checked_retrievers(retrievers: object) -> dict[type[Collection], object]:
    if retrievers is None:
        return {}
    if not isinstance(retrievers, Mapping):
        raise DeclarationError(f"retrievers must be a dict of retrievers by collection, not {retrievers!r:.100}")
    return {checked_collection(each, subject="a key of retrievers"): found for each, found in retrievers.items()}


def _refuse_unasked(given: Mapping[type[Collection], object], asked: Mapping[type[Collection], object]) -> None:
    spare = next((each for each in given if each not in asked), None)
    if spare is not None:
        known = ", ".join(each.__name__ for each in asked) or "none"
        raise DeclarationError(
            f"there is a retriever for {spare.__name__}, but no step searches in it; the steps search in: {known}"
        )


def _refuse_same_names(plans: Iterable[type[Collection]]) -> None:
    names: dict[str, type[Collection]] = {}
    for each in plans:
        other = names.setdefault(collection_name(each), each)
        if other is not each:
            raise DeclarationError(f"two collections are named {collection_name(each)!r}: {other!r} and {each!r}")


def _planned(
    collection: type[Collection], given: Mapping[type[Collection], object], owner: list[tuple[Step, FromRetrieval]]
) -> SearchPlan:
    steps = ", ".join(dict.fromkeys(repr(step.name) for step, _ in owner))
    if collection not in given:
        raise DeclarationError(
            f"no retriever for {collection.__name__}, which is searched by step {steps}: give it to "
            f"Flujo(…, retrievers={{{collection.__name__}: …}})"
        )
    retriever = given[collection]
    target = getattr(retriever, "search", retriever)
    if not callable(target) or isinstance(retriever, type):
        raise DeclarationError(
            f"the retriever of {collection.__name__} must have a method `search`, or be a function, "
            f"not {retriever!r:.100}"
        )
    own = getattr(retriever, "collection", collection)
    if own is not collection and isinstance(own, type) and issubclass(own, Collection):
        raise DeclarationError(f"the retriever of {collection.__name__} holds the passages of {own.__name__}")
    takes = frozenset(option for option in _OPTIONS if accepts(target, option, also=True))
    filtered = next((step for step, source in owner if source.filters), None)
    if filtered is not None and "filters" not in takes:
        raise DeclarationError(
            f"step {filtered.name!r} filters {collection.__name__}, but its retriever takes no `filters`: it would "
            "return forbidden passages"
        )
    return SearchPlan(
        target=target,
        shape=shape_of(target),
        takes=takes,
        embedder=getattr(retriever, "embedder", None),
        search_embedded=getattr(retriever, "search_embedded", None),
    )


def _check_paths(step: Step, context_model: type | None) -> None:
    """Refuse an unknown context field, unless the context is free-form."""
    assert step.context_sources is not None
    if context_model is None:
        return
    for source in step.context_sources.sources:
        match source:
            case FromHistory(where=where):
                check_history(context_model, where, subject=f"step {step.name!r}: from_history")
            case FromState():
                _check_state(context_model, source, step)
            case FromRetrieval():
                for each in (source.query, *source.filters.values()):
                    _check_state(context_model, each, step)


def _check_state(context_model: type, source: object, step: Step) -> None:
    if isinstance(source, FromState) and isinstance(source.where, str):
        check_path(context_model, source.where, subject=f"step {step.name!r}: from_state")
