"""Which of the passages that were found are shown: each once, and no more than there is room for.

Rules:

1. Of passages with the same id in one collection, or the same text anywhere, the more relevant one is shown; of equals
   the one that was declared first.
2. States and literals are never cut. If they alone are too long, it is an error that tells how long each of them is.
3. Passages enter by relevance, over all collections, until one does not fit; that one and the rest are dropped whole.
4. If not even the best passage fits, it is cut at a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import attrs

from ..errors import ContextTooLarge
from .assembled import (
    AssembledContext,
    ContextSegment,
    CountTokens,
    Dropped,
    LiteralSegment,
    RetrievalResult,
    RetrievalSegment,
    StateSegment,
)

CUT = "[…]"
"""Ends a passage of which only the beginning is shown."""

Render = Callable[[AssembledContext], str]
_SPACE = re.compile(r"\s+")


class _Place(NamedTuple):
    """Where a passage stands: in which segment, and as which of its results."""

    segment: int
    result: int


def without_duplicates(segments: Sequence[ContextSegment]) -> tuple[ContextSegment, ...]:
    """The segments with every passage once (rule 1)."""
    ids: set[tuple[str, str]] = set()
    texts: set[str] = set()
    kept: set[_Place] = set()
    for place, collection, result in _by_relevance(segments):
        key = None if result.source_id is None else (collection, result.source_id)
        if key not in ids and result.content not in texts:
            kept.add(place)
            texts.add(result.content)
            if key is not None:
                ids.add(key)
    return _showing(segments, kept)


def _by_relevance(segments: Sequence[ContextSegment]) -> list[tuple[_Place, str, RetrievalResult]]:
    found = [
        (_Place(number, index), segment.collection, result)
        for number, segment in enumerate(segments)
        if isinstance(segment, RetrievalSegment)
        for index, result in enumerate(segment.results)
    ]
    return sorted(found, key=lambda each: -each[2].score)


def _showing(segments: Sequence[ContextSegment], kept: set[_Place]) -> tuple[ContextSegment, ...]:
    """The segments with no passages but these; one that found something does not say that it found nothing."""
    return tuple(
        attrs.evolve(
            segment,
            results=[each for index, each in enumerate(segment.results) if _Place(number, index) in kept],
            if_empty=None,
        )
        if isinstance(segment, RetrievalSegment) and segment.results
        else segment
        for number, segment in enumerate(segments)
    )


def within_budget(
    segments: Sequence[ContextSegment], *, max_tokens: int, render: Render, count: CountTokens
) -> tuple[tuple[ContextSegment, ...], tuple[Dropped, ...]]:
    """The segments that fit, and the passages that were dropped; see the module's rules."""
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
    """The largest number up to the limit for which it holds, given that it holds for all smaller ones."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


class _Budget:
    """How much room there is."""

    def __init__(self, segments: Sequence[ContextSegment], max_tokens: int, render: Render, count: CountTokens) -> None:
        self._segments, self._max, self._render, self._count = segments, max_tokens, render, count

    def fits(self, places: Sequence[_Place]) -> bool:
        return self._has_room(_showing(self._segments, set(places)))

    def _has_room(self, segments: tuple[ContextSegment, ...]) -> bool:
        return self._count(self._render(AssembledContext(segments=segments, tokens=0))) <= self._max

    def cut(self, place: _Place) -> tuple[tuple[ContextSegment, ...], int]:
        """The beginning of a passage, as much as fits, and nothing if no word does; how many passages are shown."""
        segment = self._segments[place.segment]
        assert isinstance(segment, RetrievalSegment)
        text = segment.results[place.result].content
        ends = [space.start() for space in _SPACE.finditer(text) if space.start()]
        room = _most(
            len(ends), lambda number: not number or self._has_room(self._cut_at(place, text[: ends[number - 1]]))
        )
        return (self._cut_at(place, text[: ends[room - 1]]), 1) if room else (_showing(self._segments, set()), 0)

    def _cut_at(self, place: _Place, beginning: str) -> tuple[ContextSegment, ...]:
        shown = list(_showing(self._segments, {place}))
        segment = shown[place.segment]
        assert isinstance(segment, RetrievalSegment)
        shown[place.segment] = attrs.evolve(
            segment, results=[attrs.evolve(segment.results[0], content=f"{beginning} {CUT}")]
        )
        return tuple(shown)


def _sizes(segments: Sequence[ContextSegment], count: CountTokens) -> Iterator[tuple[str, int]]:
    """How long each source is that cannot be cut."""
    for number, segment in enumerate(segments):
        match segment:
            case StateSegment(name=name):
                yield name, count(segment.to_prompt_string())
            case LiteralSegment(text=text):
                yield f"literal {number + 1}", count(text)
            case RetrievalSegment():
                pass
