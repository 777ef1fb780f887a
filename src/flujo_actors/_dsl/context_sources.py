"""Where the context of an agent comes from: the run's state, searches, fixed texts, the conversation so far.

Declarations are frozen, and a wrong one fails when it is made. What a source does not know yet (which step it belongs
to, which retriever answers it, whether the context has such a field) is checked by its step, and by `Flujo`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import attrs

from .._core.assembled import AssembledContext, CountTokens, estimated_tokens
from .._core.seconds import checked_seconds
from ..errors import DeclarationError
from .call_plan import check_takes_pair
from .collections import Collection, check_field, checked_collection, collection_name, filterable, fits
from .context_format import ContextFormat

if TYPE_CHECKING:
    from .._core.fields import Field, V

OnError: TypeAlias = Literal["fail", "skip"]
"""What becomes of a step whose search fails: it fails, or it goes on without the passages, and says so."""


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)


def _checked_where(value: object, *, what: str) -> None:
    if _is_function(value):
        assert callable(value)
        check_takes_pair(value, what=what, first="data")
    elif not isinstance(value, str) or not all(value.split(".")):
        raise DeclarationError(
            f"{what} must be a field of the context, a dotted path, or a function (data, context), not {value!r}"
        )


def _checked_own_name(value: object, *, what: str) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise DeclarationError(f"{what}: name must be a non-empty text, not {value!r}")


@attrs.frozen(kw_only=True)
class FromState:
    """A value of the run's context; make it with `from_state`."""

    where: str | Callable[..., object]
    name: str
    """Empty for a function that has no name of its own."""


@attrs.frozen(kw_only=True)
class FromLiteral:
    """A fixed text; make it with `from_literal`."""

    text: str


@attrs.frozen(kw_only=True)
class FromHistory:
    """The conversation so far; make it with `from_history`."""

    where: str
    keep_last: int | None = None
    remember: bool = False

    @property
    def name(self) -> str:
        """The field that holds the messages."""
        return self.where


@attrs.frozen(kw_only=True)
class FromRetrieval:
    """A search; make it with `from_retrieval`."""

    collection: type[Collection]
    query: str | FromState | Callable[..., Any] | None
    top_k: int
    min_relevance: float
    filters: Mapping[str, Any]
    rerank: Callable[..., object] | None
    if_empty: str | None
    timeout_s: float | None
    on_error: OnError
    cache: bool
    name: str


Source: TypeAlias = FromState | FromLiteral | FromHistory | FromRetrieval
"""One source of an agent's context."""


# --- making them --------------------------------------------------------------------------------------------


def from_state(where: str | Callable[..., object], *, name: str | None = None) -> FromState:
    """A value of the run's context: a field, a dotted path, or what a function `(data, context)` makes of it.

    It serves as a source, as the `query` of a search, and as the value of a filter.
    """
    _checked_where(where, what="from_state")
    _checked_own_name(name, what="from_state")
    usual = where if isinstance(where, str) else getattr(where, "__name__", "").replace("<lambda>", "")
    return FromState(where=where, name=name or usual)


def from_literal(text: str) -> FromLiteral:
    """A fixed text."""
    if not isinstance(text, str) or not text.strip():
        raise DeclarationError(f"from_literal: the text must not be empty, and it must be a text, not {text!r}")
    return FromLiteral(text=text)


def from_history(where: str, *, keep_last: int | None = None, remember: bool = False) -> FromHistory:
    """The messages in a field of the context, as pydantic-ai's `message_history`: before the context and the prompt.

    `keep_last` shortens a long one, tool calls kept whole. With `remember`, what the step said and heard is appended to
    the field when it succeeds, without contexts and system prompts.
    """
    if not isinstance(where, str) or not all(where.split(".")):
        raise DeclarationError(f"from_history must name a field of the context, or a dotted path, not {where!r}")
    if keep_last is not None and (isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1):
        raise DeclarationError(f"from_history({where!r}): keep_last must be at least 1, not {keep_last!r}")
    if not isinstance(remember, bool):
        raise DeclarationError(f"from_history({where!r}): remember must be True or False, not {remember!r}")
    return FromHistory(where=where, keep_last=keep_last, remember=remember)


def from_retrieval(
    collection: type[Collection],
    *,
    query: str | FromState | Callable[..., object] | None = None,
    top_k: int = 5,
    min_relevance: float = 0.0,
    filters: Mapping[str, Any] = MappingProxyType({}),
    rerank: Callable[..., object] | None = None,
    if_empty: str | None = None,
    timeout_s: float | None = None,
    on_error: OnError = "fail",
    cache: bool = True,
    name: str | None = None,
) -> FromRetrieval:
    """The passages of a collection that a query finds; without a `query` it is the step's data, which must be text.

    `filters` are walls: a value, a list (any of them), `from_state(…)` or a function `(data, context)` for each field;
    one that comes to `None` fails the step. `rerank` gets the passages (and `query=`, if it asks) and returns them in
    another order. `if_empty` is what is said if nothing was found. `on_error="skip"` goes on without the passages.
    """
    found = checked_collection(collection, what="from_retrieval: collection")
    what = f"from_retrieval({found.__name__})"
    _check_query(query, what)
    _check_numbers(top_k, min_relevance, timeout_s, what)
    _check_choices(on_error, cache, if_empty, rerank, what)
    _checked_own_name(name, what=what)
    return FromRetrieval(
        collection=found,
        query=query,
        top_k=top_k,
        min_relevance=float(min_relevance),
        filters=_checked_filters(found, filters, what),
        rerank=rerank,
        if_empty=if_empty,
        timeout_s=timeout_s,
        on_error=on_error,
        cache=cache,
        name=name or collection_name(found),
    )


def _check_query(query: object, what: str) -> None:
    if query is None or isinstance(query, FromState):
        return
    if _is_function(query):
        assert callable(query)
        check_takes_pair(query, what=f"{what}: query", first="data")
    elif not isinstance(query, str) or not query.strip():
        raise DeclarationError(
            f"{what}: query must be a text that is not empty, from_state(…), or a function (data, context), "
            f"not {query!r}"
        )


def _check_numbers(top_k: object, min_relevance: object, timeout_s: object, what: str) -> None:
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
        raise DeclarationError(f"{what}: top_k must be at least 1, not {top_k!r}")
    number = isinstance(min_relevance, int | float) and not isinstance(min_relevance, bool)
    if not number or not 0 <= min_relevance <= 1:  # type: ignore[operator]  # it is a number
        raise DeclarationError(f"{what}: min_relevance must be from 0 to 1, not {min_relevance!r}")
    if timeout_s is not None:
        checked_seconds(timeout_s, what=f"{what}: timeout_s")  # type: ignore[arg-type]  # that is what it checks


def _check_choices(on_error: object, cache: object, if_empty: object, rerank: object, what: str) -> None:
    if on_error not in get_args(OnError):
        raise DeclarationError(f"{what}: on_error must be one of {', '.join(get_args(OnError))}, not {on_error!r}")
    if not isinstance(cache, bool):
        raise DeclarationError(f"{what}: cache must be True or False, not {cache!r}")
    if if_empty is not None and (not isinstance(if_empty, str) or not if_empty.strip()):
        raise DeclarationError(f"{what}: if_empty must be a text that is not empty, not {if_empty!r}")
    if rerank is not None and not _is_function(rerank):
        raise DeclarationError(f"{what}: rerank must be a function on passages, not {rerank!r}")


def _checked_filters(collection: type[Collection], filters: object, what: str) -> Mapping[str, object]:
    if not isinstance(filters, Mapping):
        raise DeclarationError(f"{what}: filters must be a dict of values by field, not {filters!r}")
    for field, value in filters.items():
        check_field(collection, field, what=f"{what}: filters has")
        _check_filter(field, filterable(collection)[field], value, what)
    return MappingProxyType(dict(filters))


def _check_filter(field: str, kind: type, value: object, what: str) -> None:
    if isinstance(value, FromState):
        return
    if _is_function(value):
        assert callable(value)
        check_takes_pair(value, what=f"{what}: filters[{field!r}]", first="data")
        return
    wrong = filter_flaw(kind, value)
    if wrong is not None:
        raise DeclarationError(f"{what}: filters[{field!r}] {wrong}")


def filter_flaw(kind: type, value: object) -> str | None:
    """Why a filter cannot have this value; `None` if it can. An empty list is a value: it lets nothing through."""
    values: Sequence[object] = value if isinstance(value, list | tuple) else (value,)
    wrong = next((each for each in values if not fits(kind, each)), values)
    if wrong is values:
        return None
    if wrong is None:
        return "has no value (None): a filter is a wall, and without a value it would let everything through"
    return f"must be {kind.__name__}, or a list of them, not {type(wrong).__name__}"


# --- all of a step's sources --------------------------------------------------------------------------------


def _as_sources(value: Iterable[Source]) -> tuple[Source, ...]:
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return tuple(value)
    raise DeclarationError(f"context_sources must be a list of from_state(…), from_retrieval(…), …, not {value!r}")


def _checked_sources(_: object, __: object, value: tuple[Source, ...]) -> None:
    for each in value:
        if not isinstance(each, Source):
            raise DeclarationError(
                f"context_sources holds {each!r:.100}; it takes from_state(…), from_retrieval(…), from_literal(…) and "
                "from_history(…)"
            )
    names = Counter(each.name for each in value if not isinstance(each, FromLiteral) and each.name)
    twice = next((name for name, count in names.items() if count > 1), None)
    if sum(isinstance(each, FromHistory) for each in value) > 1:
        raise DeclarationError("context_sources has two histories; an agent has one conversation")
    if twice is not None:
        raise DeclarationError(f"context_sources has two sources named {twice!r}: give one of them another name=")


def _checked_budget(_: object, __: object, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise DeclarationError(f"ContextSources: max_tokens must be at least 1, or None, not {value!r}")


def _checked_format(_: object, attribute: Field, value: V) -> None:
    if not callable(value) or isinstance(value, type):
        raise DeclarationError(
            f"ContextSources: {attribute.name} must be a ContextFormat(…) or a function on the assembled context, "
            f"not {value!r}"
        )


def _checked_counter(_: object, attribute: Field, value: V) -> None:
    if value is not None and not callable(value):
        raise DeclarationError(f"ContextSources: {attribute.name} must be a function on a text, not {value!r}")


@attrs.frozen
class ContextSources:
    """What an agent is shown besides its prompt: the sources in their order, how much of them, and how it looks."""

    sources: tuple[Source, ...] = attrs.field(converter=_as_sources, validator=_checked_sources)
    max_tokens: int | None = attrs.field(default=4000, kw_only=True, validator=_checked_budget)
    """How long the text may be, without its heading; `None` is no limit."""
    format: ContextFormat | Callable[[AssembledContext], str] = attrs.field(
        factory=ContextFormat, kw_only=True, validator=_checked_format
    )
    count_tokens: CountTokens | None = attrs.field(default=None, kw_only=True, validator=_checked_counter)
    """How many tokens a text has; by default it is estimated."""

    @property
    def counter(self) -> CountTokens:
        """What counts the tokens."""
        return self.count_tokens or estimated_tokens

    @property
    def history(self) -> FromHistory | None:
        """The conversation, if it is one of the sources."""
        return next((each for each in self.sources if isinstance(each, FromHistory)), None)

    def functions(self) -> Iterator[Callable[..., Any]]:
        """The functions `(data, context)` that states, queries and filters are made by."""
        for source in self.sources:
            match source:
                case FromState(where=where):
                    yield from filter(_is_function, [where])
                case FromRetrieval(query=query, filters=filters):
                    given = (query, *filters.values())
                    values = (each.where if isinstance(each, FromState) else each for each in given)
                    yield from filter(_is_function, values)
                case FromLiteral() | FromHistory():
                    pass

    @property
    def searches(self) -> tuple[FromRetrieval, ...]:
        """The sources that search."""
        return tuple(each for each in self.sources if isinstance(each, FromRetrieval))


def as_context_sources(value: Any) -> ContextSources:
    """The sources of a step: as they are, or of a plain list, which has no budget."""
    if isinstance(value, ContextSources):
        return value
    return ContextSources(value, max_tokens=None)
