"""Assembled context: passages, states and literals of a model's prompt.

Rules:

1. Every class here is a frozen value. Segments keep the order in which their sources were declared.
2. `to_prompt_string()` is plain concatenation; a format (any function on the assembled context) may add more.
3. Text is passed through unchanged, `None` and an empty result render nothing, any other value is rendered as JSON.
4. Omitted passages are reported: `dropped` for lack of room, `skipped` because their source failed.

Sections:

- JSON form of assembled contexts, independent of class locations.
- Passage selection within a token budget.
- Validation of retriever results: an invalid result is an error, never a prompt.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import attrs

from ...errors import ContextTooLarge, NotSerializable, RetrievalError
from ..type_registry import register_public_type
from ..usage import NO_USAGE, Usage
from .json_codec import from_data, value_data

SEPARATOR = "\n\n"
"""Between two segments."""

RESULT_SEPARATOR = "\n---\n"
"""Between two passages of a segment."""

CountTokens: TypeAlias = Callable[[str], int]
"""Function that returns the length of a text in tokens."""


def estimated_tokens(text: str) -> int:
    """Return a token estimate without tables: four bytes of UTF-8 per token."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def prompt_text(value: object) -> str:
    """Return a value as a model is shown it (rule 3)."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    from pydantic_core import to_json  # most states are texts

    return to_json(value, fallback=str, indent=2).decode()


@register_public_type
@attrs.frozen(kw_only=True)
class RetrievalResult:
    """Passage found by a retriever, with a relevance from 0 to 1."""

    content: str
    """Text of the passage."""
    score: float
    """Relevance, 0 to 1."""
    source_id: str | None = None
    """Id of the passage."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    """Further fields of the passage in its collection."""


def _as_results(results: Iterable[RetrievalResult]) -> tuple[RetrievalResult, ...]:
    return tuple(results)


@attrs.frozen(kw_only=True)
class Retrieved:
    """Retriever result with the tokens and dollars of its embedder."""

    results: tuple[RetrievalResult, ...] = attrs.field(converter=_as_results, kw_only=False)
    """Passages, best first."""
    usage: Usage = NO_USAGE
    """Usage of the search, such as tokens of the embedding."""

    def __iter__(self) -> Iterator[RetrievalResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> RetrievalResult:
        return self.results[index]


# --- segments -----------------------------------------------------------------------------------------------


@register_public_type
@attrs.frozen
class StateSegment:
    """A value of the run's context, or one made of it."""

    name: str
    """Name of the context field."""
    value: Any
    """Value of the field."""

    def to_prompt_string(self) -> str:
        """Return the value as text (rule 3)."""
        return prompt_text(self.value)


@register_public_type
@attrs.frozen
class RetrievalSegment:
    """The passages found in one collection, the most relevant first."""

    collection: str
    """Name of the collection."""
    results: tuple[RetrievalResult, ...] = attrs.field(default=(), converter=_as_results)
    """Passages, best first."""
    if_empty: str | None = attrs.field(default=None, kw_only=True)
    """Text rendered when nothing was found."""
    name: str = attrs.field(kw_only=True)
    """Name of the source; its collection by default."""

    @name.default
    def _as_collection(self) -> str:
        return self.collection

    def to_prompt_string(self) -> str:
        """Return the passages, with a line between them."""
        if not self.results:
            return self.if_empty or ""
        return RESULT_SEPARATOR.join(result.content for result in self.results)


@register_public_type
@attrs.frozen
class LiteralSegment:
    """A text that was declared with the step."""

    text: str
    """Text of the segment."""

    def to_prompt_string(self) -> str:
        """Return the text."""
        return self.text


ContextSegment: TypeAlias = StateSegment | RetrievalSegment | LiteralSegment
"""One part of an assembled context."""


@register_public_type
class Dropped(NamedTuple):
    """A passage that was found, and for which there was no room."""

    collection: str
    """Name of the collection."""
    source_id: str | None
    """Id of the passage."""
    score: float
    """Relevance of the passage."""


@register_public_type
class Skipped(NamedTuple):
    """Optional source that failed."""

    source: str
    """Name of the source."""
    reason: str
    """Text of the failure."""


# --- the whole ----------------------------------------------------------------------------------------------


def _as_segments(segments: Iterable[ContextSegment]) -> tuple[ContextSegment, ...]:
    return tuple(segments)


def _as_dropped(dropped: Iterable[Dropped]) -> tuple[Dropped, ...]:
    return tuple(dropped)


def _as_skipped(skipped: Iterable[Skipped]) -> tuple[Skipped, ...]:
    return tuple(skipped)


@register_public_type
@attrs.frozen(kw_only=True)
class AssembledContext:
    """Context shown to a model with its prompt; see the module's rules."""

    EMPTY: ClassVar[AssembledContext]

    segments: tuple[ContextSegment, ...] = attrs.field(converter=_as_segments)
    """Parts of the context, in order."""
    dropped: tuple[Dropped, ...] = attrs.field(default=(), converter=_as_dropped)
    """Passages without room."""
    skipped: tuple[Skipped, ...] = attrs.field(default=(), converter=_as_skipped)
    """Optional sources that failed."""
    tokens: int = attrs.field()
    """Length in tokens by the step's counter, or an estimate without one."""

    @tokens.default
    def _estimated(self) -> int:
        return estimated_tokens(self.to_prompt_string())

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to show."""
        return not any(segment.to_prompt_string() for segment in self.segments)

    @property
    def retrieval_results(self) -> tuple[RetrievalResult, ...]:
        """Return the shown passages in their order."""
        return tuple(result for _, result in self.passages())

    @property
    def source_ids(self) -> tuple[str, ...]:
        """Return the ids of the shown passages that have one."""
        return tuple(each.source_id for each in self.retrieval_results if each.source_id is not None)

    def passages(self) -> Iterable[tuple[str, RetrievalResult]]:
        """Yield every passage that is shown, with the name of its collection."""
        for segment in self.segments:
            if isinstance(segment, RetrievalSegment):
                yield from ((segment.collection, result) for result in segment.results)

    def to_prompt_string(self, format: Callable[[AssembledContext], str] | None = None) -> str:
        """Return the segments joined by blank lines, or formatted.

        Args:
            format: format to use instead of the one of the sources.
        """
        if format is not None:
            return format(self)
        return SEPARATOR.join(text for segment in self.segments if (text := segment.to_prompt_string()))


AssembledContext.EMPTY = AssembledContext(segments=())


# --- JSON form of assembled contexts ------------------------------------------------------------------------------


def assembled_to_data(context: AssembledContext) -> dict[str, object]:
    """Return the context as JSON data.

    A state without a JSON form is stored as its rendered text.
    """
    return {
        "segments": [_segment_data(segment) for segment in context.segments],
        "dropped": [list(each) for each in context.dropped],
        "skipped": [list(each) for each in context.skipped],
        "tokens": context.tokens,
    }


def _segment_data(segment: ContextSegment) -> dict[str, object]:
    match segment:
        case StateSegment(name=name, value=value):
            return {"state": name, "value": _state_data(value)}
        case LiteralSegment(text=text):
            return {"literal": text}
        case RetrievalSegment():
            return {
                "collection": segment.collection,
                "name": segment.name,
                "if_empty": segment.if_empty,
                "results": [
                    [each.content, each.score, each.source_id, _metadata_data(dict(each.metadata))]
                    for each in segment.results
                ],
            }


def _state_data(value: object) -> object:
    try:
        return value_data(value)
    except NotSerializable:
        return prompt_text(value)


def _metadata_data(metadata: dict[str, object]) -> object:
    try:
        return value_data(metadata)
    except NotSerializable:
        return {str(name): str(value) for name, value in metadata.items()}


def assembled_from_data(data: Any) -> AssembledContext:
    """Return the context that `assembled_to_data` wrote; `NotSerializable` if it did not."""
    try:
        return AssembledContext(
            segments=[_segment_from(each) for each in data["segments"]],
            dropped=[Dropped(*each) for each in data["dropped"]],
            skipped=[Skipped(*each) for each in data["skipped"]],
            tokens=data["tokens"],
        )
    except (LookupError, TypeError, ValueError) as error:
        raise NotSerializable(f"stored context cannot be read: {error}") from error


def _segment_from(data: dict[str, Any]) -> ContextSegment:
    if "state" in data:
        return StateSegment(data["state"], from_data(data["value"], Any))
    if "literal" in data:
        return LiteralSegment(data["literal"])
    results = [
        RetrievalResult(content=content, score=score, source_id=source_id, metadata=from_data(metadata, dict))
        for content, score, source_id, metadata in data["results"]
    ]
    return RetrievalSegment(data["collection"], results, name=data["name"], if_empty=data["if_empty"])


# --- Passage selection within a token budget ----------------------------------------------------------------------
# Rules:
#
# 1. Of passages with the same id in one collection, or the same text anywhere, the more relevant one is shown; of
#    equals
#    the one that was declared first.
# 2. States and literals are never cut. If they alone exceed the budget, the error lists the length of each.
# 3. Passages enter by relevance, over all collections, until one does not fit; that one and the rest are dropped
#    whole.
# 4. If not even the best passage fits, it is cut at a word.


CUT = "[…]"
"""Ends a passage of which only the beginning is shown."""

Render = Callable[[AssembledContext], str]
_SPACE = re.compile(r"\s+")


class _PassageRank(NamedTuple):
    """Position of a passage: segment index and result index."""

    segment: int
    result: int


def without_duplicates(segments: Sequence[ContextSegment]) -> tuple[ContextSegment, ...]:
    """Return the segments with every passage once (rule 1)."""
    ids: set[tuple[str, str]] = set()
    texts: set[str] = set()
    kept: set[_PassageRank] = set()
    for place, collection, result in _by_relevance(segments):
        key = None if result.source_id is None else (collection, result.source_id)
        if key not in ids and result.content not in texts:
            kept.add(place)
            texts.add(result.content)
            if key is not None:
                ids.add(key)
    return _showing(segments, kept)


def _by_relevance(segments: Sequence[ContextSegment]) -> list[tuple[_PassageRank, str, RetrievalResult]]:
    found = [
        (_PassageRank(number, index), segment.collection, result)
        for number, segment in enumerate(segments)
        if isinstance(segment, RetrievalSegment)
        for index, result in enumerate(segment.results)
    ]
    return sorted(found, key=lambda each: -each[2].score)


def _showing(segments: Sequence[ContextSegment], kept: set[_PassageRank]) -> tuple[ContextSegment, ...]:
    """Return the segments restricted to the given passages.

    A segment whose passages were dropped does not render its `if_empty` text.
    """
    return tuple(
        attrs.evolve(
            segment,
            results=[each for index, each in enumerate(segment.results) if _PassageRank(number, index) in kept],
            if_empty=None,
        )
        if isinstance(segment, RetrievalSegment) and segment.results
        else segment
        for number, segment in enumerate(segments)
    )


def within_budget(
    segments: Sequence[ContextSegment], *, max_tokens: int, render: Render, count: CountTokens
) -> tuple[tuple[ContextSegment, ...], tuple[Dropped, ...]]:
    """Return the fitting segments and the dropped passages; see the module's rules."""
    budget = _Budget(segments, max_tokens, render, count)
    if not budget.fits(()):
        raise ContextTooLarge(max_tokens=max_tokens, sizes=dict(_sizes(segments, count)))
    ranked = _by_relevance(segments)
    room = _most(len(ranked), lambda number: budget.fits([place for place, _, _ in ranked[:number]]))
    shown = _showing(segments, {place for place, _, _ in ranked[:room]})
    if ranked and not room:
        shown, room = budget.cut(ranked[0][0])
    return shown, tuple(Dropped(name, result.source_id, result.score) for _, name, result in ranked[room:])


def _most(limit: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number up to the limit satisfying a predicate."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


class _Budget:
    """Token budget of one assembly."""

    def __init__(self, segments: Sequence[ContextSegment], max_tokens: int, render: Render, count: CountTokens) -> None:
        self._segments, self._max, self._render, self._count = segments, max_tokens, render, count

    def fits(self, places: Sequence[_PassageRank]) -> bool:
        return self._has_room(_showing(self._segments, set(places)))

    def _has_room(self, segments: tuple[ContextSegment, ...]) -> bool:
        return self._count(self._render(AssembledContext(segments=segments, tokens=0))) <= self._max

    def cut(self, place: _PassageRank) -> tuple[tuple[ContextSegment, ...], int]:
        """Return a passage's fitting beginning and the number of shown passages.

        Nothing is returned if no word fits.
        """
        segment = self._segments[place.segment]
        assert isinstance(segment, RetrievalSegment)
        text = segment.results[place.result].content
        ends = [space.start() for space in _SPACE.finditer(text) if space.start()]
        room = _most(
            len(ends), lambda number: not number or self._has_room(self._cut_at(place, text[: ends[number - 1]]))
        )
        return (self._cut_at(place, text[: ends[room - 1]]), 1) if room else (_showing(self._segments, set()), 0)

    def _cut_at(self, place: _PassageRank, beginning: str) -> tuple[ContextSegment, ...]:
        shown = list(_showing(self._segments, {place}))
        segment = shown[place.segment]
        assert isinstance(segment, RetrievalSegment)
        shown[place.segment] = attrs.evolve(
            segment, results=[attrs.evolve(segment.results[0], content=f"{beginning} {CUT}")]
        )
        return tuple(shown)


def _sizes(segments: Sequence[ContextSegment], count: CountTokens) -> Iterator[tuple[str, int]]:
    """Return the length of each source that cannot be cut."""
    for number, segment in enumerate(segments):
        match segment:
            case StateSegment(name=name):
                yield name, count(segment.to_prompt_string())
            case LiteralSegment(text=text):
                yield f"literal {number + 1}", count(text)
            case RetrievalSegment():
                pass


# --- Validation of retriever results ------------------------------------------------------------------------------
# Rules:
#
# 1. A relevance is a number from 0 to 1.
# 2. A filter is strict: a passage with another value in a filtered field is refused.
# 3. The floor, the order (best first, ties in input order) and `top_k` are applied again after the retriever.
# 4. Errors name collection, field and id, never the text of a passage.


def read_found(answer: object, *, collection: str) -> Retrieved:
    """Return a retriever's result as `Retrieved`."""
    found = answer if isinstance(answer, Retrieved) else Retrieved(results=_listed(answer, collection))
    for result in found.results:
        if not isinstance(result, RetrievalResult):
            raise RetrievalError(
                f"the retriever of {collection!r} returned a {type(result).__name__}, not a RetrievalResult(…)"
            )
    return found


def _listed(answer: object, collection: str) -> tuple[Any, ...]:
    if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
        raise RetrievalError(
            f"the retriever of {collection!r} returned a {type(answer).__name__}, not a list of RetrievalResult(…)"
        )
    return tuple(answer)


def admitted(
    results: Iterable[RetrievalResult],
    *,
    collection: str,
    filters: Mapping[str, Any],
    min_relevance: float,
    top_k: int,
    in_order: bool = True,
) -> tuple[RetrievalResult, ...]:
    """Return the passages that may be shown; see the module's rules.

    `in_order` is false for results in a deliberate order.
    """
    checked = [_checked(result, collection, filters) for result in results]
    relevant = [result for result in checked if result.score >= min_relevance]
    ordered = sorted(relevant, key=lambda result: -result.score) if in_order else relevant
    return tuple(ordered[:top_k])


def _checked(result: RetrievalResult, collection: str, filters: Mapping[str, Any]) -> RetrievalResult:
    which = "a passage" if result.source_id is None else f"passage {result.source_id!r}"
    if not isinstance(result.content, str):
        raise RetrievalError(
            f"{which} of {collection!r} has a {type(result.content).__name__} as its content, not text"
        )
    if not is_relevance(result.score):
        raise RetrievalError(
            f"{which} of {collection!r} has the score {result.score!r}; a relevance is a number from 0 to 1"
        )
    for field, wanted in filters.items():
        if field in result.metadata and not lets_through(wanted, result.metadata[field]):
            raise RetrievalError(
                f"{which} of {collection!r} has another {field!r} than was asked for: the retriever does not keep to "
                "the filter"
            )
    return result if type(result.score) is float else attrs.evolve(result, score=float(result.score))


def is_relevance(score: object) -> bool:
    """Return whether this is a number from 0 to 1."""
    if not isinstance(score, numbers.Real) or isinstance(score, bool):
        return False
    return math.isfinite(score) and 0 <= float(score) <= 1


def lets_through(wanted: object, value: object) -> bool:
    """Return whether a value matches a filter; `1` is not `True`."""
    allowed = wanted if isinstance(wanted, list | tuple) else (wanted,)
    return any(isinstance(each, bool) is isinstance(value, bool) and each == value for each in allowed)
