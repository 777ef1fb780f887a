"""Flaky provider: seeded noise around an intended JSON value.

1. The same seed gives the same replies, call by call, regardless of concurrency.
2. The intended value can be recovered from a lossless reply; from a lossy one it cannot.
3. After `max_lossy` lossy replies none follows, and after `clean_after` replies each is the plain value:
   a client that retries gets its answer.
4. If the request has an output tool, a value comes as its arguments or as text, by the seed.

Sections:

- Values as almost-JSON: other quotes, other punctuation, stray commas and comments.
- Phrases that models write around requested JSON, in four languages and scripts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from enum import StrEnum
from random import Random
from typing import Any

import attrs

from ._reply_types import HttpRequest, Json, Refusal, Reply, ServerError, TextReply, ToolCall, TruncatedStream, to_text

# --- Values as almost-JSON ----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Style:
    """Spelling of a value. The default is plain JSON over several lines."""

    quotes: tuple[str, str] = ('"', '"')
    bare_keys: bool = False
    colon: str = ": "
    comma: str = ","
    trailing_comma: bool = False
    comment: str = ""
    """Comment after the first member of the outermost object or list."""


def write(value: object, style: Style, depth: int = 0) -> str:
    """Return the value in this style."""
    match value:
        case dict():
            members = [f"{_key(key, style)}{style.colon}{write(value[key], style, depth + 1)}" for key in value]
            return _enclose("{", members, "}", style, depth)
        case list():
            return _enclose("[", [write(item, style, depth + 1) for item in value], "]", style, depth)
        case str():
            return _quoted(value, style)
    return json.dumps(value)


def _enclose(opening: str, members: list[str], closing: str, style: Style, depth: int) -> str:
    if not members:
        return opening + closing
    pad = "  " * depth
    ends = [style.comma] * (len(members) - 1) + [style.comma if style.trailing_comma else ""]
    lines = [f"{pad}  {member}{end}" for member, end in zip(members, ends, strict=True)]
    if depth == 0 and style.comment:
        lines[0] += f" // {style.comment}"
    return "\n".join([opening, *lines, pad + closing])


def _key(key: str, style: Style) -> str:
    return key if style.bare_keys and key.isidentifier() and key.isascii() else _quoted(key, style)


def _quoted(text: str, style: Style) -> str:
    inside = json.dumps(text, ensure_ascii=False)[1:-1]
    if style.quotes == ("'", "'"):
        inside = inside.replace('\\"', '"').replace("'", "\\'")
    return f"{style.quotes[0]}{inside}{style.quotes[1]}"


def texts_in(value: object) -> str:
    """Return all text in a value, keys too."""
    match value:
        case dict():
            return "".join(key + texts_in(item) for key, item in value.items())
        case list():
            return "".join(texts_in(item) for item in value)
        case str():
            return value
    return ""


# --- Phrases that models write around requested JSON --------------------------------------------------------------


class Language(StrEnum):
    """The language of the text around a value."""

    ENGLISH = "en"
    CHINESE = "zh"
    ARABIC = "ar"
    HINDI = "hi"


@attrs.frozen(kw_only=True)
class Phrases:
    """Sentences of one language, by position."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    thinking: tuple[str, ...]
    draft: tuple[str, ...]
    refusal: tuple[str, ...]
    comment: str


PHRASES: dict[Language, Phrases] = {
    Language.ENGLISH: Phrases(
        before=(
            "Sure! Here is the JSON you asked for:",
            "Here's what I found (note: all fields are filled in):",
            "Based on the {input} you gave me, the result is as follows.",
            'I read the document twice. "Final" answer:',
        ),
        after=(
            "Let me know if you'd like me to change anything!",
            "I hope this helps; it's the object you described, isn't it?",
            "Note: values were taken from the text as they stand.",
        ),
        thinking=(
            "The user wants an object. Let me check each field: first, second, done.",
            "Hmm, {maybe} a list? No: the schema says object.",
        ),
        draft=("Format example:", "The shape will be:"),
        refusal=("I'm sorry, but I can't help with that request.", "I cannot produce this output."),
        comment="as stated in the text",
    ),
    Language.CHINESE: Phrases(
        before=(
            "好的，以下是您需要的 JSON：",
            "根据您提供的内容，结果如下：",
            "我已经分析了文本（共两段），“最终”答案是：",
        ),
        after=("如需修改，请告诉我！", "希望对您有帮助。", "说明：所有字段均来自原文。"),
        thinking=("用户需要一个对象。我先检查每个字段：没有问题。", "嗯，是列表吗？不，模式要求对象。"),
        draft=("格式示例：", "结构如下："),
        refusal=("抱歉，我无法协助完成这个请求。", "对不起，我不能生成该内容。"),
        comment="来自原文",
    ),
    Language.ARABIC: Phrases(
        before=(
            "بالتأكيد! إليك كائن JSON المطلوب:",
            "بناءً على النص الذي قدمته، النتيجة هي:",
            "قرأت النص مرتين، و«النتيجة» النهائية:",
        ),
        after=(
            "أخبرني إذا كنت تريد أي تعديل.",
            "آمل أن يكون هذا مفيدًا؛ شكرًا لك.",
            "ملاحظة: القيم مأخوذة من النص كما هي.",
        ),
        thinking=(
            "المستخدم يريد كائنًا. سأتحقق من كل حقل، واحدًا تلو الآخر.",
            "هل هي قائمة؟ لا، المطلوب كائن.",
        ),
        draft=("مثال على الصيغة:", "سيكون الشكل:"),
        refusal=("عذرًا، لا أستطيع المساعدة في هذا الطلب.", "آسف، لا يمكنني إنشاء هذا المحتوى."),
        comment="كما ورد في النص",
    ),
    Language.HINDI: Phrases(
        before=(
            "ज़रूर! यह रहा आपका JSON:",
            "आपके दिए गए पाठ के आधार पर परिणाम यह है:",
            "मैंने पाठ दो बार पढ़ा। 'अंतिम' उत्तर:",
        ),
        after=("यदि कुछ बदलना हो तो बताइए।", "आशा है कि इससे मदद मिलेगी।", "टिप्पणी: सभी मान पाठ से लिए गए हैं।"),
        thinking=("उपयोगकर्ता को एक ऑब्जेक्ट चाहिए। मैं हर फ़ील्ड जाँचता हूँ।", "क्या यह सूची है? नहीं, ऑब्जेक्ट।"),
        draft=("प्रारूप का उदाहरण:", "रूप ऐसा होगा:"),
        refusal=("क्षमा करें, मैं इस अनुरोध में मदद नहीं कर सकता।", "माफ़ कीजिए, मैं यह नहीं बना सकता।"),
        comment="पाठ के अनुसार",
    ),
}
"""The sentences of every language."""


# --- Flaky provider -----------------------------------------------------------------------------------------------


class Noise(StrEnum):
    """Kind of noise in a reply."""

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
    """Reply, its noise, and the intended value."""

    reply: Reply
    kind: Noise
    language: Language
    intended: Any

    @property
    def lossless(self) -> bool:
        """Return whether the intended value can be read from the reply."""
        return self.kind not in LOSSY


class FlakyProvider:
    """Script of noisy replies around one object or list; `history` records them."""

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
        """Return the replies so far."""
        return tuple(self._history)

    def __call__(self, request: HttpRequest) -> Reply:
        rng = Random(f"{self._seed}/{len(self._history)}")
        language = rng.choice(list(Language)) if self._language is None else self._language
        answer = noisy(self.intended, self._choose(rng, request), language, rng, tool=request.output_tool)
        self._history.append(answer)
        return answer.reply

    def _choose(self, rng: Random, request: HttpRequest) -> Noise:
        lost = sum(not answer.lossless for answer in self._history)
        kinds = [kind for kind in self._kinds if applies(kind, self.intended, tool=request.output_tool)]
        if lost >= self._max_lossy:
            kinds = [kind for kind in kinds if kind not in LOSSY]
        return Noise.NONE if not kinds or len(self._history) >= self._clean_after else rng.choice(kinds)


class ByModel:
    """Script per model name, created on first use.

    One stub and one connection pool serve many cases at once, separated by the model they call.
    """

    def __init__(self, make: Callable[[str], Callable[[HttpRequest], Reply]]) -> None:
        self._make = make
        self._scripts: dict[str, Callable[[HttpRequest], Reply]] = {}

    def __call__(self, request: HttpRequest) -> Reply:
        if request.model not in self._scripts:
            self._scripts[request.model] = self._make(request.model)
        return self._scripts[request.model](request)


def applies(kind: Noise, value: object, *, tool: str | None) -> bool:
    """Return whether this noise keeps the value unambiguous and fits the request."""
    match kind:
        case Noise.BAD_ARGUMENTS:
            return tool is not None
        case Noise.CURLY_QUOTES:
            return not set(texts_in(value)) & set('“”"')
        case Noise.PYTHON:
            return texts_in(value).isprintable()
    return True


def noisy(value: object, kind: Noise, language: Language, rng: Random, *, tool: str | None = None) -> Noisy:
    """Return one reply with this noise; `tool` is the output tool."""
    reply = _lossy(value, kind, language, rng, tool) if kind in LOSSY else _lossless(value, kind, language, rng, tool)
    return Noisy(reply=reply, kind=kind, language=language, intended=value)


def _lossless(value: object, kind: Noise, language: Language, rng: Random, tool: str | None) -> Reply:
    if kind is Noise.NONE:
        return Json(value)
    text = noisy_text(value, kind, language, rng)
    if tool is not None and rng.random() < 0.5:
        return ToolCall(tool, text)
    return TextReply(text, random_cut(text, rng))


def _lossy(value: object, kind: Noise, language: Language, rng: Random, tool: str | None) -> Reply:
    text = to_text(value)
    kept = rng.randint(len(text) // 4, len(text) - 1)
    sorry = rng.choice(PHRASES[language].refusal)
    match kind:
        case Noise.TRUNCATED if tool is not None:
            return ToolCall(tool, text[:kept], finish="length")
        case Noise.TRUNCATED:
            return TextReply(text[:kept], random_cut(text[:kept], rng), finish="length")
        case Noise.HALF_STREAM:
            return TruncatedStream(text, kept, tool=tool)
        case Noise.REFUSAL:
            return Refusal(sorry)
        case Noise.APOLOGY:
            return TextReply(sorry)
        case Noise.EMPTY:
            return TextReply("")
        case Noise.BAD_ARGUMENTS:
            return ToolCall(tool or "", text[:kept])
    return ServerError(400, message="Failed to generate valid JSON", code="json_validate_failed")


def noisy_text(value: object, kind: Noise, language: Language, rng: Random) -> str:
    """Return the value as a text with lossless noise."""
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
    """Return the text in chunks of 1 to 12 characters, cut anywhere."""
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = rng.randint(1, 12)
        pieces.append(text[at : at + size])
        at += size
    return tuple(pieces)
