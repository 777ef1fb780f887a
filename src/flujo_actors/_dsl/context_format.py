"""`ContextFormat`: rendering of an assembled context for a model.

Rules:

1. Text is data: it cannot open or close a frame, nor speak as the application. pydantic-ai's `framing` escapes it,
   framed or not; a text without its tags is unchanged.
2. A frame names the source of a passage: its id, and its relevance.
3. Empty parts are omitted with their separator.
"""

from __future__ import annotations

import functools
import html
import itertools
import re
import warnings
from collections.abc import Callable, Iterator

import attrs

from .._core.records.assembled import (
    RESULT_SEPARATOR,
    SEPARATOR,
    AssembledContext,
    ContextSegment,
    LiteralSegment,
    RetrievalResult,
    RetrievalSegment,
    StateSegment,
)
from ..errors import DeclarationError

HEADING = "Context:"
"""The line above an assembled context."""

_TAG = "retrieved_passage"
_TAGS_OF_PYDANTIC_AI = (
    "system",
    "tool_result",
    "assistant_thinking",
    "context",
    "context_diff",
    "validation_errors",
    "retry_feedback",
    "conversation_summary",
)
"""The tags that pydantic-ai writes, for releases that do not publish them."""


def _checked_text(instance: object, attribute: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str):
        raise DeclarationError(f"ContextFormat: {attribute.name} must be a text, not {value!r}")


def _checked_switch(instance: object, attribute: attrs.Attribute[bool], value: object) -> None:
    if not isinstance(value, bool):
        raise DeclarationError(f"ContextFormat: {attribute.name} must be True or False, not {value!r}")


@attrs.frozen(kw_only=True)
class ContextFormat:
    """Options of the rendered text, callable on contexts (module rules)."""

    heading: str = attrs.field(default=HEADING, validator=_checked_text)
    """The line above all of it; an empty one is left out."""
    titles: bool = attrs.field(default=False, validator=_checked_switch)
    """Whether each state and each search has its name above it."""
    ids: bool = attrs.field(default=False, validator=_checked_switch)
    """Whether each passage begins with its id: `[p1]`."""
    framed: bool = attrs.field(default=False, validator=_checked_switch)
    """Whether each passage has a frame: `<retrieved_passage id="p1" score="0.82">`."""
    separator: str = attrs.field(default=SEPARATOR, validator=_checked_text)
    """Text between two segments."""
    result_separator: str = attrs.field(default=RESULT_SEPARATOR, validator=_checked_text)
    """Text between two passages."""

    @classmethod
    def cited(cls) -> ContextFormat:
        """Return a format that frames passages by id, for citations."""
        return cls(framed=True)

    def __call__(self, assembled: AssembledContext) -> str:
        """Return the text, without the heading."""
        shown = [(self._is_framed(segment), text) for segment in assembled.segments if (text := self._segment(segment))]
        runs = itertools.groupby(shown, key=lambda each: each[0])
        # Adjacent unframed texts could form a tag together, so they are checked together.
        return self.separator.join(self._joined([text for _, text in run], framed=framed) for framed, run in runs)

    def _joined(self, texts: list[str], *, framed: bool) -> str:
        text = self.separator.join(texts)
        return text if framed else harmless(text)

    def _is_framed(self, segment: ContextSegment) -> bool:
        return self.framed and isinstance(segment, RetrievalSegment) and bool(segment.results)

    def shown(self, assembled: AssembledContext) -> str:
        """Return the text with the heading, or an empty text."""
        text = self(assembled)
        return f"{self.heading}\n{text}" if text and self.heading else text

    def _segment(self, segment: ContextSegment) -> str:
        if isinstance(segment, RetrievalSegment) and segment.results:
            text = self.result_separator.join(map(self._passage, segment.results))
        else:
            text = segment.to_prompt_string()
        return "\n".join([*self._title(segment), text]) if text else ""

    def _title(self, segment: ContextSegment) -> Iterator[str]:
        match segment:
            case StateSegment(name=name) | RetrievalSegment(name=name) if self.titles and name:
                yield f"{harmless(name)}:"
            case StateSegment() | RetrievalSegment() | LiteralSegment():
                return

    def _passage(self, result: RetrievalResult) -> str:
        text = f"[{result.source_id}] {result.content}" if self.ids and result.source_id else result.content
        return _framed(text, result) if self.framed else text


def shown_text(format: ContextFormat | object, assembled: AssembledContext) -> str:
    """Return the model's text: a function's, or a format's with heading."""
    if isinstance(format, ContextFormat):
        return format.shown(assembled)
    assert callable(format)
    return str(format(assembled))


def harmless(text: str) -> str:
    """Escape every tag that could open or close a frame."""
    return _escape()(text) if "<" in text else text


def _framed(text: str, result: RetrievalResult) -> str:
    opening = f'<{_TAG} id="{html.escape(result.source_id)}"' if result.source_id is not None else f"<{_TAG}"
    return f'{opening} score="{result.score:.2f}">{harmless(text)}</{_TAG}>'


@functools.cache
def _escape() -> Callable[[str], str]:
    """Return pydantic-ai's tag escape, or ours before its 2.63."""
    try:
        from pydantic_ai.framing import neutralize_tags, register_tag  # only a text with a tag needs it
    except ModuleNotFoundError:
        return functools.partial(_known_tags().sub, "&lt;")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no frame of ours precedes this one, so nothing is escaped differently
        register_tag(_TAG)
    return neutralize_tags


def _known_tags() -> re.Pattern[str]:
    """Match the `<` of a frame's tag, even incomplete ones."""
    names = "|".join((*_TAGS_OF_PYDANTIC_AI, _TAG))
    return re.compile(rf"<(?=\s*(?:/\s*)?(?:{names})(?:[\s/>]|$))", re.IGNORECASE)
