"""A provider that means well and writes badly: seeded noise around an intended JSON value.

1. The same seed gives the same replies, call by call, whatever else runs beside it.
2. From a lossless reply the intended value can be read, by whoever knows how; from a lossy one it cannot.
3. After `max_lossy` lossy replies none follows, and after `clean_after` replies each is the plain value:
   a client that asks again gets its answer.
4. If the request has an output tool, a value comes as its arguments or as text, as the seed has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from random import Random
from typing import Any

import attrs

from ._handwriting import Style, texts_in, write
from ._phrases import PHRASES
from ._phrases import Language as Language
from ._phrases import Phrases as Phrases
from ._replies import Json, Refusal, Reply, ServerError, Text, ToolCall, TruncatedStream, to_text
from ._requests import Request


class Noise(StrEnum):
    """What is wrong with a reply."""

    NONE = "none"
    FENCED = "fenced"
    PROSE_BEFORE = "prose before"
    PROSE_AFTER = "prose after"
    PROSE_AND_FENCE = "prose around a fence"
    THINKING = "a thinking block first"
    DRAFT = "an example first"
    SINGLE_QUOTES = "single quotes"
    CURLY_QUOTES = "curly quotes"
    BARE_KEYS = "bare keys"
    FULL_WIDTH = "full-width punctuation"
    TRAILING_COMMAS = "trailing commas"
    COMMENT = "a comment"
    PYTHON = "a Python literal"
    TRUNCATED = "truncated at the token limit"
    HALF_STREAM = "connection lost half-way"
    REFUSAL = "refusal"
    APOLOGY = "an apology instead of a value"
    EMPTY = "empty content"
    BAD_ARGUMENTS = "invalid tool arguments"
    JSON_MODE_ERROR = "JSON mode failed at the provider"


LOSSY = frozenset(
    {
        Noise.TRUNCATED,
        Noise.HALF_STREAM,
        Noise.REFUSAL,
        Noise.APOLOGY,
        Noise.EMPTY,
        Noise.BAD_ARGUMENTS,
        Noise.JSON_MODE_ERROR,
    }
)
"""The kinds of noise in which the value is lost."""

_STYLES = {
    Noise.SINGLE_QUOTES: Style(quotes=("'", "'")),
    Noise.CURLY_QUOTES: Style(quotes=("“", "”")),
    Noise.BARE_KEYS: Style(bare_keys=True),
    Noise.FULL_WIDTH: Style(colon="：", comma="，"),
    Noise.TRAILING_COMMAS: Style(trailing_comma=True),
}


@attrs.frozen(kw_only=True)
class Noisy:
    """A reply, what is wrong with it, and the value it is about."""

    reply: Reply
    kind: Noise
    language: Language
    intended: Any

    @property
    def lossless(self) -> bool:
        """Whether the intended value can be read from the reply."""
        return self.kind not in LOSSY


class FlakyProvider:
    """A script of noisy replies around one object or list. `history` tells what was answered."""

    def __init__(
        self,
        seed: int,
        value: dict[str, Any] | list[Any],
        *,
        language: Language | None = None,
        kinds: Collection[Noise] = tuple(Noise),
        max_lossy: int = 1,
        clean_after: int = 4,
    ) -> None:
        self.intended = value
        self._seed = seed
        self._language = language
        self._kinds = sorted(kinds, key=list(Noise).index)
        self._max_lossy = max_lossy
        self._clean_after = clean_after
        self._history: list[Noisy] = []

    @property
    def history(self) -> tuple[Noisy, ...]:
        """The replies so far."""
        return tuple(self._history)

    def __call__(self, request: Request) -> Reply:
        rng = Random(f"{self._seed}/{len(self._history)}")
        language = rng.choice(list(Language)) if self._language is None else self._language
        answer = noisy(self.intended, self._choose(rng, request), language, rng, tool=request.output_tool)
        self._history.append(answer)
        return answer.reply

    def _choose(self, rng: Random, request: Request) -> Noise:
        lost = sum(not answer.lossless for answer in self._history)
        kinds = [kind for kind in self._kinds if applies(kind, self.intended, tool=request.output_tool)]
        if lost >= self._max_lossy:
            kinds = [kind for kind in kinds if kind not in LOSSY]
        return Noise.NONE if not kinds or len(self._history) >= self._clean_after else rng.choice(kinds)


class ByModel:
    """A script of scripts: each model name gets its own, made when it is first asked for.

    So that one stub and one connection pool serve many cases at once, told apart by the model they call.
    """

    def __init__(self, make: Callable[[str], Callable[[Request], Reply]]) -> None:
        self._make = make
        self._scripts: dict[str, Callable[[Request], Reply]] = {}

    def __call__(self, request: Request) -> Reply:
        if request.model not in self._scripts:
            self._scripts[request.model] = self._make(request.model)
        return self._scripts[request.model](request)


def applies(kind: Noise, value: object, *, tool: str | None) -> bool:
    """Whether this noise leaves no doubt about the value, and fits the way it is asked for."""
    match kind:
        case Noise.BAD_ARGUMENTS:
            return tool is not None
        case Noise.CURLY_QUOTES:
            return not set(texts_in(value)) & set('“”"')
        case Noise.PYTHON:
            return texts_in(value).isprintable()
    return True


def noisy(value: object, kind: Noise, language: Language, rng: Random, *, tool: str | None = None) -> Noisy:
    """One reply with this noise; `tool` is the output tool, if the request has one."""
    reply = _lossy(value, kind, language, rng, tool) if kind in LOSSY else _lossless(value, kind, language, rng, tool)
    return Noisy(reply=reply, kind=kind, language=language, intended=value)


def _lossless(value: object, kind: Noise, language: Language, rng: Random, tool: str | None) -> Reply:
    if kind is Noise.NONE:
        return Json(value)
    text = noisy_text(value, kind, language, rng)
    if tool is not None and rng.random() < 0.5:
        return ToolCall(tool, text)
    return Text(text, random_cut(text, rng))


def _lossy(value: object, kind: Noise, language: Language, rng: Random, tool: str | None) -> Reply:
    text = to_text(value)
    kept = rng.randint(len(text) // 4, len(text) - 1)
    sorry = rng.choice(PHRASES[language].refusal)
    match kind:
        case Noise.TRUNCATED if tool is not None:
            return ToolCall(tool, text[:kept], finish="length")
        case Noise.TRUNCATED:
            return Text(text[:kept], random_cut(text[:kept], rng), finish="length")
        case Noise.HALF_STREAM:
            return TruncatedStream(text, kept, tool=tool)
        case Noise.REFUSAL:
            return Refusal(sorry)
        case Noise.APOLOGY:
            return Text(sorry)
        case Noise.EMPTY:
            return Text("")
        case Noise.BAD_ARGUMENTS:
            return ToolCall(tool or "", text[:kept])
    return ServerError(400, message="Failed to generate valid JSON", code="json_validate_failed")


def noisy_text(value: object, kind: Noise, language: Language, rng: Random) -> str:
    """The value as a text with lossless noise."""
    spoken = PHRASES[language]
    plain = write(value, Style()) if rng.random() < 0.5 else to_text(value)
    match kind:
        case Noise.FENCED:
            return _fence(plain, rng)
        case Noise.PROSE_BEFORE:
            return f"{rng.choice(spoken.before)}\n{plain}"
        case Noise.PROSE_AFTER:
            return f"{plain}\n\n{rng.choice(spoken.after)}"
        case Noise.PROSE_AND_FENCE:
            return f"{rng.choice(spoken.before)}\n\n{_fence(plain, rng)}\n\n{rng.choice(spoken.after)}"
        case Noise.THINKING:
            return f"<think>\n{rng.choice(spoken.thinking)}\n</think>\n{plain}"
        case Noise.DRAFT:
            return f"{rng.choice(spoken.draft)} {{}}\n{rng.choice(spoken.before)}\n{plain}"
        case Noise.COMMENT:
            return write(value, Style(comment=spoken.comment))
        case Noise.PYTHON:
            return repr(value)
    return write(value, _STYLES.get(kind, Style()))


def _fence(text: str, rng: Random) -> str:
    return f"```{rng.choice(('json', 'JSON', ''))}\n{text}\n```"


def random_cut(text: str, rng: Random) -> tuple[str, ...]:
    """The text in pieces of 1 to 12 characters, cut anywhere."""
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = rng.randint(1, 12)
        pieces.append(text[at : at + size])
        at += size
    return tuple(pieces)
