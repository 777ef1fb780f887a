"""Which retriever answers for which collection: checked when a `Flujo` is made, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .._context.known_paths import check_history, check_path
from .._dsl.call_plan import accepts, shape_of
from .._dsl.collections import Collection, checked_collection, collection_name
from .._dsl.context_sources import FromHistory, FromRetrieval, FromState
from .._dsl.pipeline import Pipeline
from .._dsl.step import Step
from .._dsl.tree import walk_steps
from ..errors import DeclarationError
from .searching import SearchPlan

_OPTIONS = ("top_k", "min_relevance", "filters")


def planned_searches(
    pipeline: Pipeline, retrievers: Mapping[object, object] | None, context_model: type | None
) -> Mapping[str, SearchPlan]:
    """How every collection that a step searches is searched; `DeclarationError` if one cannot be."""
    given = _checked_retrievers(retrievers)
    steps = [step for step in walk_steps(pipeline) if isinstance(step, Step) and step.context_sources is not None]
    asked: dict[type[Collection], list[tuple[Step, FromRetrieval]]] = {}
    for step in steps:
        _check_paths(step, context_model)
        for source in step.context_sources.searches if step.context_sources else ():
            asked.setdefault(source.collection, []).append((step, source))
    _refuse_unasked(given, asked)
    plans = {collection: _planned(collection, given, who) for collection, who in asked.items()}
    _refuse_same_names(plans)
    return {collection_name(collection): plan for collection, plan in plans.items()}


def _checked_retrievers(retrievers: object) -> dict[type[Collection], object]:
    if retrievers is None:
        return {}
    if not isinstance(retrievers, Mapping):
        raise DeclarationError(f"retrievers must be a dict of retrievers by collection, not {retrievers!r:.100}")
    return {checked_collection(each, what="a key of retrievers"): found for each, found in retrievers.items()}


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
    collection: type[Collection], given: Mapping[type[Collection], object], who: list[tuple[Step, FromRetrieval]]
) -> SearchPlan:
    steps = ", ".join(dict.fromkeys(repr(step.name) for step, _ in who))
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
    filtered = next((step for step, source in who if source.filters), None)
    if filtered is not None and "filters" not in takes:
        raise DeclarationError(
            f"step {filtered.name!r} filters {collection.__name__}, but its retriever takes no `filters`: it would "
            "find what it must not"
        )
    return SearchPlan(
        target=target,
        shape=shape_of(target),
        takes=takes,
        embedder=getattr(retriever, "embedder", None),
        search_embedded=getattr(retriever, "search_embedded", None),
    )


def _check_paths(step: Step, context_model: type | None) -> None:
    """Refuse a field that the context has not; a free-form context is looked at when the step runs."""
    assert step.context_sources is not None
    if context_model is None:
        return
    for source in step.context_sources.sources:
        match source:
            case FromHistory(where=where):
                check_history(context_model, where, what=f"step {step.name!r}: from_history")
            case FromState():
                _check_state(context_model, source, step)
            case FromRetrieval():
                for each in (source.query, *source.filters.values()):
                    _check_state(context_model, each, step)


def _check_state(context_model: type, source: object, step: Step) -> None:
    if isinstance(source, FromState) and isinstance(source.where, str):
        check_path(context_model, source.where, what=f"step {step.name!r}: from_state")
