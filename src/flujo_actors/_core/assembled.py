"""What an agent is shown besides its prompt: passages, states and fixed texts, put together before the model is asked.

Rules:

1. Everything here is a frozen value. Segments stand in the order in which their sources were declared.
2. `to_prompt_string()` is plain concatenation; a format (any function on the assembled context) may say more.
3. Text goes out as it is, `None` and nothing found say nothing, and anything else is written as JSON, as prompts are.
4. What was found and not shown is told: `dropped` for want of room, `skipped` because its source failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias

import attrs

from .._type_registry import register_public_type
from .usage import NO_USAGE, Usage

SEPARATOR = "\n\n"
"""Between two segments."""

RESULT_SEPARATOR = "\n---\n"
"""Between two passages of a segment."""

CountTokens: TypeAlias = Callable[[str], int]
"""How long a text is, in tokens."""


def estimated_tokens(text: str) -> int:
    """A guess that needs no tables: four bytes of UTF-8 are a token."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def prompt_text(value: object) -> str:
    """A value as a model is shown it (rule 3)."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    from pydantic_core import to_json  # most states are texts

    return to_json(value, fallback=str, indent=2).decode()


@register_public_type
@attrs.frozen(kw_only=True)
class RetrievalResult:
    """A passage that a retriever found: its relevance is 0 to 1, higher is better."""

    content: str
    score: float
    source_id: str | None = None
    metadata: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    """What else is known of the passage: the fields of its collection."""


def _as_results(results: Iterable[RetrievalResult]) -> tuple[RetrievalResult, ...]:
    return tuple(results)


@attrs.frozen(kw_only=True)
class Retrieved:
    """What a retriever may return instead of a sequence, to have the tokens and dollars of its embedder counted."""

    results: tuple[RetrievalResult, ...] = attrs.field(converter=_as_results, kw_only=False)
    usage: Usage = NO_USAGE

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
    value: Any

    def to_prompt_string(self) -> str:
        """The value as text (rule 3)."""
        return prompt_text(self.value)


@register_public_type
@attrs.frozen
class RetrievalSegment:
    """The passages found in one collection, the most relevant first."""

    collection: str
    results: tuple[RetrievalResult, ...] = attrs.field(default=(), converter=_as_results)
    if_empty: str | None = attrs.field(default=None, kw_only=True)
    """What is said if nothing was found."""
    name: str = attrs.field(kw_only=True)
    """What the source is called: its collection, unless it was given a name."""

    @name.default
    def _as_collection(self) -> str:
        return self.collection

    def to_prompt_string(self) -> str:
        """The passages, with a line between them."""
        if not self.results:
            return self.if_empty or ""
        return RESULT_SEPARATOR.join(result.content for result in self.results)


@register_public_type
@attrs.frozen
class LiteralSegment:
    """A text that was declared with the step."""

    text: str

    def to_prompt_string(self) -> str:
        """The text."""
        return self.text


ContextSegment: TypeAlias = StateSegment | RetrievalSegment | LiteralSegment
"""One part of an assembled context."""


@register_public_type
class Dropped(NamedTuple):
    """A passage that was found, and for which there was no room."""

    collection: str
    source_id: str | None
    score: float


@register_public_type
class Skipped(NamedTuple):
    """A source that failed, and without which the step was to go on."""

    source: str
    reason: str


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
    """What an agent is shown besides its prompt; see the module's rules."""

    EMPTY: ClassVar[AssembledContext]

    segments: tuple[ContextSegment, ...] = attrs.field(converter=_as_segments)
    dropped: tuple[Dropped, ...] = attrs.field(default=(), converter=_as_dropped)
    skipped: tuple[Skipped, ...] = attrs.field(default=(), converter=_as_skipped)
    tokens: int = attrs.field()
    """The length of what is shown, as the step counts tokens: estimated, unless it has a counter."""

    @tokens.default
    def _estimated(self) -> int:
        return estimated_tokens(self.to_prompt_string())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not any(segment.to_prompt_string() for segment in self.segments)

    @property
    def retrieval_results(self) -> tuple[RetrievalResult, ...]:
        """The passages that are shown, in the order in which they are."""
        return tuple(result for _, result in self.passages())

    @property
    def source_ids(self) -> tuple[str, ...]:
        """The ids of the passages that are shown, as far as they have one."""
        return tuple(each.source_id for each in self.retrieval_results if each.source_id is not None)

    def passages(self) -> Iterable[tuple[str, RetrievalResult]]:
        """Every passage that is shown, with the name of its collection."""
        for segment in self.segments:
            if isinstance(segment, RetrievalSegment):
                yield from ((segment.collection, result) for result in segment.results)

    def to_prompt_string(self, format: Callable[[AssembledContext], str] | None = None) -> str:
        """The segments with a blank line between them, or what a `ContextFormat` or function makes of them."""
        if format is not None:
            return format(self)
        return SEPARATOR.join(text for segment in self.segments if (text := segment.to_prompt_string()))


AssembledContext.EMPTY = AssembledContext(segments=())
