"""`ContextFormat`: how an assembled context is written down for a model.

Rules:

1. Text is data: it cannot open or close a frame, nor speak as the application. pydantic-ai's `framing` sees to it,
   framed or not; a text without its tags goes out as it is.
2. A frame says where a passage comes from: its id, and how relevant it is.
3. What says nothing is left out, with its separator.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from .._core.assembled import (
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

if TYPE_CHECKING:
    from pydantic_ai.framing import RegisteredTag

HEADING = "Context:"
"""The line above an assembled context."""


def _checked_text(instance: object, attribute: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str):
        raise DeclarationError(f"ContextFormat: {attribute.name} must be a text, not {value!r}")


def _checked_switch(instance: object, attribute: attrs.Attribute[bool], value: object) -> None:
    if not isinstance(value, bool):
        raise DeclarationError(f"ContextFormat: {attribute.name} must be True or False, not {value!r}")


@attrs.frozen(kw_only=True)
class ContextFormat:
    """The switches of the text that a model is shown; see the module's rules. A function on assembled contexts."""

    heading: str = attrs.field(default=HEADING, validator=_checked_text)
    """The line above all of it; an empty one is left out."""
    titles: bool = attrs.field(default=False, validator=_checked_switch)
    """Whether each state and each search has its name above it."""
    ids: bool = attrs.field(default=False, validator=_checked_switch)
    """Whether each passage begins with its id: `[p1]`."""
    framed: bool = attrs.field(default=False, validator=_checked_switch)
    """Whether each passage stands in a frame: `<retrieved_passage id="p1" score="0.82">`."""
    separator: str = attrs.field(default=SEPARATOR, validator=_checked_text)
    result_separator: str = attrs.field(default=RESULT_SEPARATOR, validator=_checked_text)

    @classmethod
    def cited(cls) -> ContextFormat:
        """Every passage in a frame with its id, for answers that say where they come from."""
        return cls(framed=True)

    def __call__(self, assembled: AssembledContext) -> str:
        """The text, without the heading."""
        shown = [(self._is_framed(segment), text) for segment in assembled.segments if (text := self._segment(segment))]
        runs = itertools.groupby(shown, key=lambda each: each[0])
        # Where unframed texts meet, they could make up a tag together, so they are looked at together.
        return self.separator.join(self._joined([text for _, text in run], framed=framed) for framed, run in runs)

    def _joined(self, texts: list[str], *, framed: bool) -> str:
        text = self.separator.join(texts)
        return text if framed else harmless(text)

    def _is_framed(self, segment: ContextSegment) -> bool:
        return self.framed and isinstance(segment, RetrievalSegment) and bool(segment.results)

    def shown(self, assembled: AssembledContext) -> str:
        """The text, with the heading; empty if there is nothing to show."""
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
    """What a model is shown: a function's text as it is, a format's with its heading."""
    if isinstance(format, ContextFormat):
        return format.shown(assembled)
    assert callable(format)
    return str(format(assembled))


def harmless(text: str) -> str:
    """The text, unable to open or close a frame."""
    if "<" not in text:
        return text
    _tag()
    from pydantic_ai.framing import neutralize_tags  # only what could hold a tag is looked at

    return neutralize_tags(text)


def _framed(text: str, result: RetrievalResult) -> str:
    from pydantic_ai.framing import wrap  # only for those who want frames

    return wrap(_tag(), text, id=result.source_id, score=f"{result.score:.2f}")


@functools.cache
def _tag() -> RegisteredTag:
    from pydantic_ai.framing import register_tag  # the same

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no frame of ours before this one, so nothing is written differently
        return register_tag("retrieved_passage")
