"""Where a step's context comes from, as a text: what a resumed run compares, so that another declaration is noticed.

Of a function its name counts, as everywhere; of searches what decides what is found, not how long one waits for it.
"""

from __future__ import annotations

import functools
from typing import assert_never

from .collections import collection_name
from .context_format import ContextFormat
from .context_sources import ContextSources, FromHistory, FromLiteral, FromRetrieval, FromState, Source


def sources_text(sources: ContextSources) -> str:
    """The sources, their order, their budget and their format."""
    told = [*map(_source, sources.sources), f"max_tokens={sources.max_tokens}", f"format={_named(sources.format)}"]
    return "; ".join(told)


def _source(source: Source) -> str:
    match source:
        case FromState():
            return f"state {_named(source)}"
        case FromLiteral(text=text):
            return f"literal {text!r}"
        case FromHistory():
            return f"history {source.where} {source.keep_last} {source.remember}"
        case FromRetrieval():
            filters = ", ".join(f"{field}={_named(value)}" for field, value in sorted(source.filters.items()))
            return (
                f"retrieval {collection_name(source.collection)} query={_named(source.query)} top_k={source.top_k} "
                f"min_relevance={source.min_relevance} filters=({filters}) rerank={_named(source.rerank)} "
                f"if_empty={source.if_empty!r}"
            )
        case _:
            assert_never(source)


def _named(value: object) -> str:
    """A value as it is; a function by its name, also behind partials, and what else can be called by its class."""
    if isinstance(value, FromState):
        value = value.where
    if not callable(value) or isinstance(value, ContextFormat):
        return repr(value)
    while isinstance(value, functools.partial):
        value = value.func
    return str(getattr(value, "__qualname__", type(value).__qualname__))
