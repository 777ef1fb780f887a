"""Context sources of an agent: run state, retrieval, literals, conversation history.

Declarations are frozen, and a wrong one fails when it is made. Facts that a source does not know (its step, its
retriever, the fields of the context) are checked by its step, and by `Flujo`.

Sections:

- Validation of a step's context sources and conversation options.
- Text form of context sources, compared on resume to detect a changed declaration.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, assert_never, get_args

import attrs

from .._core.records.assembled import AssembledContext, CountTokens, estimated_tokens
from .._core.validators import brief_repr, checked_seconds, is_count, is_number, suggests_options
from ..errors import DeclarationError
from .call_plan import check_takes_pair
from .context_format import ContextFormat
from .retrieval_collections import Collection, check_field, checked_collection, collection_name, filterable, fits

if TYPE_CHECKING:
    from .._core.validators import AttrsField, V
    from .step_declaration import Step


OnError: TypeAlias = Literal["fail", "skip"]
"""Effect of a failed search: fail the step, or skip."""


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)


def _checked_where(value: object, *, subject: str) -> None:
    if _is_function(value):
        assert callable(value)
        check_takes_pair(value, subject=subject, first="data")
    elif not isinstance(value, str) or not all(value.split(".")):
        raise DeclarationError(
            f"{subject} must be a field of the context, a dotted path, or a function (data, context), "
            f"not {brief_repr(value)}"
        )


def _checked_own_name(value: object, *, subject: str) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise DeclarationError(f"{subject}: name must be a non-empty text, not {brief_repr(value)}")


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
        """Return the field that holds the messages."""
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
    """Return a source for a value of the run's context.

    It serves as a source, as the `query` of a search, and as the value of a filter.

    Args:
        where: a field, a dotted path, or a function `(data, context)`.
        name: name of the source.

    Raises:
        DeclarationError: `where` is neither a text nor a function.

    Example:
        ```python
        step = Step("answer", make_agent_async(scripted_model("ok")), context_sources=[from_state("style")])
        assert Flujo(step).run("hi", context={"style": "One sentence."}).output == "ok"
        ```
    """
    _checked_where(where, subject="from_state")
    _checked_own_name(name, subject="from_state")
    usual = where if isinstance(where, str) else getattr(where, "__name__", "").replace("<lambda>", "")
    return FromState(where=where, name=name or usual)


def from_literal(text: str) -> FromLiteral:
    """Return a fixed text.

    Args:
        text: text of the segment.

    Example:
        ```python
        agent = make_agent_async(scripted_model("Oolong."))
        step = Step("ask", agent, context_sources=[from_literal("The shop sells only oolong.")])
        assert Flujo(step).run("Which tea?").output == "Oolong."
        ```
    """
    if not isinstance(text, str) or not text.strip():
        raise DeclarationError(
            f"from_literal: the text must not be empty, and it must be a text, not {brief_repr(text)}"
        )
    return FromLiteral(text=text)


def from_history(where: str, *, keep_last: int | None = None, remember: bool = False) -> FromHistory:
    """Return a source for pydantic-ai's `message_history`, read from a context field.

    `keep_last` shortens a long history and keeps tool calls whole. With `remember`, the step's messages are appended to
    the field when it succeeds, without contexts and system prompts.

    Args:
        where: name of the context field, or a dotted path.
        keep_last: number of latest messages to send; tool calls stay whole.
        remember: whether the step's messages are appended to the field.

    Example:
        ```python
        agent = make_agent_async(scripted_model("Ada.", "You asked twice."))
        step = Step("chat", agent, context_sources=[from_history("turns", keep_last=20, remember=True)])
        flujo = Flujo(step, initial_context_data={"turns": []})
        first = flujo.run("Who are you?")
        assert len(first.final_context.turns) == 2
        ```
    """
    if not isinstance(where, str) or not all(where.split(".")):
        raise DeclarationError(
            f"from_history must name a field of the context, or a dotted path, not {brief_repr(where)}"
        )
    if keep_last is not None and not is_count(keep_last):
        raise DeclarationError(f"from_history({where!r}): keep_last must be at least 1, not {brief_repr(keep_last)}")
    if not isinstance(remember, bool):
        raise DeclarationError(f"from_history({where!r}): remember must be True or False, not {brief_repr(remember)}")
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
    """Return a source of passages; `query` defaults to the step's data.

    Args:
        collection: collection that is searched.
        query: text, `from_state(…)`, or a function `(data, context)`.
        top_k: most passages.
        min_relevance: lowest score, from 0 to 1.
        filters: a value, a list, `from_state(…)` or a function for each field; `None` fails the step.
        rerank: function of the passages, and of `query=` if it has that parameter.
        if_empty: text if nothing was found.
        timeout_s: longest search.
        on_error: `"fail"`, or `"skip"` to continue without the passages.
        cache: whether equal searches of a run are made once.
        name: name of the source.

    Raises:
        DeclarationError: a filter names no field of the collection, or an argument is not valid.

    Example:
        ```python
        class Manuals(Collection, name="manuals"):
            tenant: str

        manuals = InMemoryRetriever(Manuals)
        manuals.add("Green tea wants 80 degrees.", id="tea", tenant="acme")
        source = from_retrieval(Manuals, top_k=3, filters={"tenant": "acme"})
        step = Step("answer", make_agent_async(scripted_model("80")), context_sources=[source])
        assert Flujo(step, retrievers={Manuals: manuals}).run("How hot?").output == "80"
        ```
    """
    found = checked_collection(collection, subject="from_retrieval: collection")
    subject = f"from_retrieval({found.__name__})"
    _check_query(query, subject)
    _check_numbers(top_k, min_relevance, timeout_s, subject)
    _check_choices(on_error, cache, if_empty, rerank, subject)
    _checked_own_name(name, subject=subject)
    return FromRetrieval(
        collection=found,
        query=query,
        top_k=top_k,
        min_relevance=float(min_relevance),
        filters=_checked_filters(found, filters, subject),
        rerank=rerank,
        if_empty=if_empty,
        timeout_s=timeout_s,
        on_error=on_error,
        cache=cache,
        name=name or collection_name(found),
    )


def _check_query(query: object, subject: str) -> None:
    if query is None or isinstance(query, FromState):
        return
    if _is_function(query):
        assert callable(query)
        check_takes_pair(query, subject=f"{subject}: query", first="data")
    elif not isinstance(query, str) or not query.strip():
        raise DeclarationError(
            f"{subject}: query must be a text that is not empty, from_state(…), or a function (data, context), "
            f"not {query!r}"
        )


def _check_numbers(top_k: object, min_relevance: object, timeout_s: object, subject: str) -> None:
    if not is_count(top_k):
        raise DeclarationError(f"{subject}: top_k must be at least 1, not {brief_repr(top_k)}")
    if not is_number(min_relevance) or not 0 <= min_relevance <= 1:
        raise DeclarationError(f"{subject}: min_relevance must be from 0 to 1, not {brief_repr(min_relevance)}")
    if timeout_s is not None:
        checked_seconds(timeout_s, subject=f"{subject}: timeout_s")  # type: ignore[arg-type]  # checked by the call


def _check_choices(on_error: object, cache: object, if_empty: object, rerank: object, subject: str) -> None:
    if on_error not in get_args(OnError):
        raise DeclarationError(
            f"{subject}: on_error must be one of {', '.join(get_args(OnError))}, not {brief_repr(on_error)}"
        )
    if not isinstance(cache, bool):
        raise DeclarationError(f"{subject}: cache must be True or False, not {brief_repr(cache)}")
    if if_empty is not None and (not isinstance(if_empty, str) or not if_empty.strip()):
        raise DeclarationError(f"{subject}: if_empty must be a text that is not empty, not {brief_repr(if_empty)}")
    if rerank is not None and not _is_function(rerank):
        raise DeclarationError(f"{subject}: rerank must be a function on passages, not {brief_repr(rerank)}")


def _checked_filters(collection: type[Collection], filters: object, subject: str) -> Mapping[str, object]:
    if not isinstance(filters, Mapping):
        raise DeclarationError(f"{subject}: filters must be a dict of values by field, not {brief_repr(filters)}")
    for field, value in filters.items():
        check_field(collection, field, subject=f"{subject}: filters has")
        _check_filter(field, filterable(collection)[field], value, subject)
    return MappingProxyType(dict(filters))


def _check_filter(field: str, kind: type, value: object, subject: str) -> None:
    if isinstance(value, FromState):
        return
    if _is_function(value):
        assert callable(value)
        check_takes_pair(value, subject=f"{subject}: filters[{field!r}]", first="data")
        return
    wrong = filter_flaw(kind, value)
    if wrong is not None:
        raise DeclarationError(f"{subject}: filters[{field!r}] {wrong}")


def filter_flaw(kind: type, value: object) -> str | None:
    """Return why a filter cannot have this value, or None.

    An empty list is a value: it matches nothing.
    """
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
    raise DeclarationError(
        f"context_sources must be a list of from_state(…), from_retrieval(…), …, not {brief_repr(value)}"
    )


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
    if value is not None and not is_count(value):
        raise DeclarationError(f"ContextSources: max_tokens must be at least 1, or None, not {brief_repr(value)}")


def _checked_format(_: object, attribute: AttrsField, value: V) -> None:
    if not callable(value) or isinstance(value, type):
        raise DeclarationError(
            f"ContextSources: {attribute.name} must be a ContextFormat(…) or a function on the assembled context, "
            f"not {value!r}"
        )


def _checked_counter(_: object, attribute: AttrsField, value: V) -> None:
    if value is not None and not callable(value):
        raise DeclarationError(
            f"ContextSources: {attribute.name} must be a function on a text, not {brief_repr(value)}"
        )


@suggests_options
@attrs.frozen
class ContextSources:
    """Context sources of an agent, with token budget and format."""

    sources: tuple[Source, ...] = attrs.field(converter=_as_sources, validator=_checked_sources)
    """Sources, in the order of the prompt."""
    max_tokens: int | None = attrs.field(default=4000, kw_only=True, validator=_checked_budget)
    """Maximum length of the text without its heading; `None` for no limit."""
    format: ContextFormat | Callable[[AssembledContext], str] = attrs.field(
        factory=ContextFormat, kw_only=True, validator=_checked_format
    )
    """Format of the prompt, or a function of the assembled context."""
    count_tokens: CountTokens | None = attrs.field(default=None, kw_only=True, validator=_checked_counter)
    """Token counter; by default an estimate."""

    @property
    def counter(self) -> CountTokens:
        """Return the token counter."""
        return self.count_tokens or estimated_tokens

    @property
    def history(self) -> FromHistory | None:
        """Return the conversation, if it is one of the sources."""
        return next((each for each in self.sources if isinstance(each, FromHistory)), None)

    def functions(self) -> Iterator[Callable[..., Any]]:
        """Yield the functions behind states, queries and filters."""
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
        """Return the sources that search."""
        return tuple(each for each in self.sources if isinstance(each, FromRetrieval))


def as_context_sources(value: Any) -> ContextSources:
    """Return the sources of a step; a plain list has no budget."""
    if isinstance(value, ContextSources):
        return value
    return ContextSources(value, max_tokens=None)


# --- Validation of a step's context sources and conversation options ----------------------------------------------


def sources_of(name: str, value: object) -> ContextSources:
    """Return the sources of the named step; errors carry that name."""
    try:
        return as_context_sources(value)
    except DeclarationError as error:
        raise DeclarationError(f"step {name!r}: {error}") from None


def check_sources(step: Step) -> None:
    """Refuse options that require a model agent, and sources without a consumer."""
    is_model = step.plan.shape == "model"
    if step.message_history is not None:
        _ = step.history_plan  # planned now, so that a wrong function is refused now
        if not is_model:
            raise _needs_model(step, "a message_history")
        if not callable(step.message_history) and not isinstance(step.message_history, str | bytes | Sequence):
            raise DeclarationError(
                f"step {step.name!r}: message_history must be a list of messages, their JSON, or a function, not "
                f"{step.message_history!r:.100}"
            )
    if step.conversation is not None:
        _check_conversation(step)
    if step.context_sources is not None:
        (_check_of_model if is_model else _check_of_function)(step, step.context_sources)


def _check_conversation(step: Step) -> None:
    where = f"step {step.name!r}: conversation"
    if step.plan.shape != "model":
        raise _needs_model(step, "a conversation")
    sources = step.context_sources
    if step.message_history is not None or (sources is not None and sources.history is not None):
        other = "message_history" if step.message_history is not None else "from_history"
        raise DeclarationError(f"{where} and {other} exclude each other: both are the history of its agent")
    if step.cache is not None:
        raise DeclarationError(f"{where} and cache exclude each other: a stored output has no messages")
    if callable(step.conversation):
        check_takes_pair(step.conversation, subject=where, first="data")
    elif not isinstance(step.conversation, str) or not step.conversation:
        raise DeclarationError(
            f"{where} must be an id, or a function of data and context, not {step.conversation!r:.100}"
        )


def _check_of_model(step: Step, sources: ContextSources) -> None:
    if sources.history is not None and step.message_history is not None:
        raise DeclarationError(
            f"step {step.name!r} has a message_history and from_history({sources.history.where!r}): one will do"
        )


def _check_of_function(step: Step, sources: ContextSources) -> None:
    if sources.history is not None:
        raise _needs_model(step, f"from_history({sources.history.where!r})")
    if not any(plan is not None and "assembled" in plan.named for plan in (step.plan, step.plan.stream)):
        raise DeclarationError(
            f"step {step.name!r} has context_sources, but its function takes no `assembled`: add the parameter "
            "`*, assembled: AssembledContext`, or leave the sources away"
        )


def _needs_model(step: Step, subject: str) -> DeclarationError:
    return DeclarationError(
        f"step {step.name!r} has {subject}, so its agent must be a pydantic-ai agent, not {step.agent!r}"
    )


# --- Text form of context sources ---------------------------------------------------------------------------------
# A function counts by its name. A search counts by the options that determine its result, not by its timeout.


def sources_text(sources: ContextSources) -> str:
    """Return the sources, their order, their budget and their format."""
    parts = [*map(_source, sources.sources), f"max_tokens={sources.max_tokens}", f"format={_named(sources.format)}"]
    return "; ".join(parts)


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
    """Return a value unchanged, a function by name, another callable by class."""
    if isinstance(value, FromState):
        value = value.where
    if not callable(value) or isinstance(value, ContextFormat):
        return repr(value)
    while isinstance(value, functools.partial):
        value = value.func
    return str(getattr(value, "__qualname__", type(value).__qualname__))
