"""End of a string with unreliable quotes.

1. A quote ends the string only if the next token could follow a string in this place (a comma and a key, a closer…).
2. A closer that balances an opener inside the string belongs to the string.
3. When an odd number of quotes was passed over, one is missing or one too many: a quote next to the string's own
   is a doubled one; else the string ends where the text before a passed quote looks like the end of a member
   (`…, "key":`) or of a line.
4. Without any end, closers at the end of the text are the container's, the rest is the string.
5. A bounded number of quotes is passed over: the work stays linear.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, NamedTuple

import attrs

OPENERS = {"{": "{", "｛": "{", "[": "[", "［": "[", "(": "(", "（": "("}
CLOSERS = {"}": "{", "｝": "{", "]": "[", "］": "[", ")": "(", "）": "("}
COMMAS = frozenset(",，、;；")
COLONS = frozenset(":：=")

QUOTES = {
    '"': '"',
    "'": "'",
    "“": '”“"',
    "”": '”"',
    "„": '“”"',
    "‟": '”"',
    "＂": '＂"',
    "″": '″"',
    "‘": "’‘'",
    "’": "’'",
    "‚": "‘’'",
    "＇": "＇'",
    "`": "`´'",
    "´": "´`'",
    "「": "」",
    "『": "』",
    "«": "»",
}
"""Opening quote -> the characters that may close it."""

WS = r"[\s\u200b-\u200f\u2060\ufeff\u180e\u202a-\u202e\u2066-\u2069\u00ad]"
"""White space as pasted: every Unicode space, plus the invisible marks."""

_OPEN = "".join(re.escape(c) for c in QUOTES)
_ANY = "".join(sorted({re.escape(c) for q, closing in QUOTES.items() for c in q + closing}))

QUOTED_KEY = rf"[{_OPEN}]{{1,2}}[^{_ANY}\\\n]{{0,200}}[{_ANY}]{{1,2}}{WS}*[:：=]"
BARE_NAME = rf"[^\W\d][\w.$-]*\"?{WS}*[:：](?!//)"
KEYLIKE = rf"(?:{QUOTED_KEY}|{BARE_NAME})"
COMMENT = r"(?://|/\*|\#|<!--)"
STOP = rf"(?:\Z|[}}\]｝］)）]|{COMMENT})"
ELLIPSIS_TEXT = r"(?:\.\.\.+|…)"

SKIP_BETWEEN = re.compile(rf"(?:{WS}++|//[^\n]*+|/\*.*?(?:\*/|\Z)|\#[^\n]*+|<!--.*?(?:-->|\Z))*+", re.S)
SKIP_BEFORE_VALUE = re.compile(rf"(?:{WS}++|//[^\n]*+|/\*.*?(?:\*/|\Z)|\#(?!\w)[^\n]*+|<!--.*?(?:-->|\Z))*+", re.S)
ELLIPSIS = re.compile(ELLIPSIS_TEXT)
KEY_AHEAD = re.compile(rf"{WS}*{KEYLIKE}")
PROSE_TAIL = re.compile(r"[^\S\n]*\n[^\"{}\[\]]*\Z")
"""A line end, then only prose: an unclosed value."""
LEFTOVER_CLOSERS = re.compile(rf"{WS}*[}}\]]")
ONLY_CLOSERS = re.compile(rf"(?:{WS}|[}}\]｝］)）,;`])*\Z")
TORN = re.compile(rf"{WS}*(?:{QUOTED_KEY}|[,，]{WS}*[{{\[\"])")
"""More data right after the expected end."""
MEMBER_AFTER_COMMA = re.compile(rf"{WS}*[,，]{WS}*{QUOTED_KEY}")

AFTER_COMMA_IN_OBJECT = re.compile(
    rf"{WS}*(?:{STOP}|[,，]|{KEYLIKE}|{ELLIPSIS_TEXT}|\w+{WS}+{QUOTED_KEY}|[^\"\n,:={{}}\[\]]{{1,60}}[:：=]|\{{)"
)
"""Tokens that may follow a comma between members."""

FAST_MEMBER = re.compile(
    r"""([\s,]*)"([^"\\\x00-\x1f]*)"\s*:\s*(?:
        (-?(?:0|[1-9]\d{0,17})(?:\.\d{1,18})?|true|false|null)(?=\s*(?:,\s*["}\]]|[}\]]))
        |("[^"\\\x00-\x1f]*")(?=\s*(?:,\s*(?:"[^"\\\x00-\x1f]*"\s*:|[}\]])|[}\]]))
        |([{\[]))""",
    re.X,
)
"""One well-formed member, so that distant damage costs nothing."""

FAST_ELEMENT = re.compile(
    r"""([\s,]*)(?:
        (-?(?:0|[1-9]\d{0,17})(?:\.\d{1,18})?|true|false|null)(?=\s*(?:,\s*[-"\d{\[\]tfn]|\]))
        |("[^"\\\x00-\x1f]*")(?=\s*(?:,\s*["\d{\[\]]|\]))
        |([{\[]))""",
    re.X,
)

_GAP = rf"(?:{WS}++|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/|\#[^\n]*+)*+"
_LEAD = rf"((?:{WS}++|[,，]|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/|\#[^\n]*+)*+)"
_NAME = r"[^\W\d][\w$-]*+"
_CLEAN_STRING = r"\"([^\"\\\x00-\x1f]*)\"|'([^'\"\\\x00-\x1f]*)'|“([^“”\"\\\x00-\x1f]*)”"
_SCALAR = r"(-?(?:0|[1-9]\d{0,17})(?:\.\d{1,18})?|(?i:true|false|null)|None|undefined)"
_NEXT_KEY = rf"(?:[\"'“][^\"'“”\\\n]*[\"'”]|{_NAME}){WS}*[:：]"
_MEMBER_ENDS = rf"(?={_GAP}(?:[}}\]｝］]|[,，]{_GAP}(?:{_NEXT_KEY}|[}}\]｝］])))"
_ELEMENT_ENDS = rf"(?={_GAP}(?:[\]］]|[,，]{_GAP}(?:[\"'“\d\-{{\[\]｛［］]|(?i:true|false|null|none)\b)))"

MEMBER = re.compile(
    rf"{_LEAD}(?:{_CLEAN_STRING}|({_NAME})){WS}*([:：]){WS}*(?:{_SCALAR}{_MEMBER_ENDS}|(?:{_CLEAN_STRING}){_MEMBER_ENDS}|([{{\[｛［]))"
)
ELEMENT = re.compile(rf"{_LEAD}(?:{_SCALAR}{_ELEMENT_ENDS}|(?:{_CLEAN_STRING}){_ELEMENT_ENDS}|([{{\[｛［]))")
"""Element of consistently odd text: quotes, bare keys, comments, punctuation."""


Place = Literal["key", "member", "element"]

MAX_PASSED_QUOTES = 500

_OPENING = "".join(re.escape(c) for c in QUOTES)
_VALUE_START = rf"(?:[{_OPENING}\d\-\[{{(]|true\b|false\b|null\b|True\b|False\b|None\b|{ELLIPSIS_TEXT})"
_BARE_WORD = rf"[^\"\n,:\[\]{{}}]+{WS}*(?:[,\]\n]|\Z)"

_MAIMED_KEY = rf"[\"'][^\W\d][\w -]{{0,40}}(?:{WS}*:|[\"']{WS}+(?:[\"'\d\-\[{{]|true\b|false\b|null\b))"
"""A key that lacks its end quote or its colon."""

_CUT_KEY = rf"[\"'][^\"'\n]*[\"']?{WS}*\Z"

_AFTER_KEY = re.compile(rf"{WS}*(?:[:：=]|[,}}｝]|[{_OPENING}](?!{WS}*[:：=])|[\d\-\[{{]|true\b|false\b|null\b|\Z)")
_AFTER_MEMBER = re.compile(
    rf"{WS}*(?:{STOP}|[,，、;；]{WS}*(?:{STOP}|[,，]|{QUOTED_KEY}|{BARE_NAME}|{ELLIPSIS_TEXT}|\w+{WS}+{QUOTED_KEY}|{_MAIMED_KEY}|{_CUT_KEY}"
    rf"|[^\"\n,:={{}}\[\]]{{1,60}}[:：=]|\{{)|{QUOTED_KEY}|\+{WS}*[{_OPENING}])"
    rf"|[^\S\n]*\n{WS}*{BARE_NAME}"
)
_AFTER_ELEMENT = re.compile(
    rf"{WS}*(?:{STOP}|[,，、;；]{WS}*(?:{STOP}|[,，]|{_VALUE_START}|{_BARE_WORD})|[:：]|\+{WS}*[{_OPENING}]|[\[{{])"
    rf"|{WS}+(?:[{_OPENING}]|\d)|[{_OPENING}](?!{WS}*[,，\]}}])"
)
_AFTER: dict[Place, re.Pattern[str]] = {"key": _AFTER_KEY, "member": _AFTER_MEMBER, "element": _AFTER_ELEMENT}
_EMPTY_THEN = re.compile(rf"{WS}*(?:[:：,，;}}\]｝］)]|\Z|{COMMENT})")

_ENDS_LIKE_MEMBER = re.compile(rf",{WS}*\Z|{WS}*\n{WS}*\Z")
_ENDS_WITH_BARE_KEY = re.compile(rf",{WS}*[^\W\d]\w*{WS}*:{WS}*\Z")
_NEXT_MEMBER = re.compile(rf",{WS}*(?:{QUOTED_KEY}|[^\W\d]\w*{WS}*:(?!//))")
_NEXT_QUOTED_MEMBER = re.compile(rf",{WS}*{QUOTED_KEY}")
_TRAILING_CLOSERS = re.compile(rf"(?:{WS}|[}}\]])*\Z")
_NAME_AND_COLON = re.compile(rf"({WS}*[\w .$-]{{1,60}}?){WS}*:")
_NAME_AND_VALUE = re.compile(rf"({WS}*[\w .$-]{{1,60}}?){WS}*:{WS}*[\[{{]?{WS}*")
_STRUCTURE = re.compile(r"[{}\[\]]|,\s*:")
_LIST_ENDS = re.compile(rf"{WS}*[\]］]")
_COMMA = re.compile(rf"{WS}*,")
_OPENED_BY = {"}": "{", "]": "["}
_PAIRS = (("{", "}"), ("[", "]"), ("(", ")"))


class Span(NamedTuple):
    """Content of a string, end position, and assumptions."""

    start: int
    end: int
    resume: int
    closed: bool
    repair: str | None = None
    passed: int = 0
    """Quotes that were passed over: the work it took."""


class NoEnd(Exception):
    """No end of the string makes sense."""


def locate(text: str, pos: int, end: int, place: Place) -> Span:
    """Return the span of the string that opens at `pos`."""
    return _triple(text, pos, end) or _doubled(text, pos, end) or _ordinary(text, pos, end, place)


def _triple(text: str, pos: int, end: int) -> Span | None:
    mark = text[pos] * 3
    if text[pos] not in "\"'`" or not text.startswith(mark, pos, end):
        return None
    close = text.find(mark, pos + 3, end)
    return Span(pos + 3, close, close + 3, True, "triple_quotes") if close >= 0 else None


def _doubled(text: str, pos: int, end: int) -> Span | None:
    quote = text[pos]
    if not text.startswith(quote, pos + 1, end) or quote not in QUOTES[quote]:
        return None
    if _EMPTY_THEN.match(text, pos + 2, end):
        return Span(pos + 1, pos + 1, pos + 2, True)
    close = text.find(quote * 2, pos + 2, min(end, pos + 2_000))
    wordlike = text[pos + 2 : pos + 3].isalnum() and quote not in text[pos + 2 : max(close, pos + 2)]
    if wordlike and close >= 0 and _EMPTY_THEN.match(text, close + 2, end):
        return Span(pos + 2, close, close + 2, True, "doubled_quotes")
    return None


@cache
def _body(closing: str) -> re.Pattern[str]:
    chars = re.escape(closing)
    return re.compile(rf"[^{chars}\\]*+(?:\\.[^{chars}\\]*+)*+", re.S)


def _ordinary(text: str, pos: int, end: int, place: Place) -> Span:
    body, after = _body(QUOTES[text[pos]]), _AFTER[place]
    depth = {"}": 0, "]": 0, ")": 0}
    passed: list[int] = []
    at = start = pos + 1
    while True:
        quote = body.match(text, at, end).end()  # type: ignore[union-attr]  # the pattern matches everywhere
        if quote >= end or text[quote] == "\\":
            return _unclosed(text, start, end, place, passed)
        _balance(depth, text, at, quote)
        if place == "key" and not passed and (name := _NAME_AND_VALUE.fullmatch(text, start, quote)):
            return Span(start, name.end(1), name.end(1), True, "missing_quote")
        if _may_end(text, quote + 1, end, after, depth):
            return _settle(text, start, quote, place, passed)
        if place == "key" and not passed and (name := _NAME_AND_COLON.match(text, start, quote)):
            return Span(start, name.end(1), name.end(1), True, "missing_quote")
        passed.append(quote)
        if len(passed) > MAX_PASSED_QUOTES:
            raise NoEnd
        at = quote + 1


def _balance(depth: dict[str, int], text: str, at: int, to: int) -> None:
    for opener, closer in _PAIRS:
        depth[closer] = max(0, depth[closer] + text.count(opener, at, to) - text.count(closer, at, to))


def _may_end(text: str, at: int, end: int, after: re.Pattern[str], depth: dict[str, int]) -> bool:
    found = after.match(text, at, end)
    if not found:
        return False
    nearest = text[at : min(at + 64, end)].lstrip()[:1]
    # Rule 2: `{"x": "an object {"a": "b"} in text"}`; a healthy string seldom ends right before its own closer.
    return not depth.get(nearest)


def may_follow(text: str, at: int, end: int, place: Place) -> bool:
    """Return whether the token at `at` could follow a string."""
    return _AFTER[place].match(text, at, end) is not None


def _settle(text: str, start: int, quote: int, place: Place, passed: list[int]) -> Span:
    if place == "key" and _STRUCTURE.search(text, start, quote) and (passed or "\n" in text[start:quote]):
        raise NoEnd
    if len(passed) % 2 == 1:  # rule 3
        other = _doubled_quote(text, start, quote, passed) or _missing_end(text, start, passed[0], place)
        if other:
            return other
    if (
        passed
        and place == "member"
        and _LIST_ENDS.match(text, quote + 1)
        and text.count("[", start, quote) <= text.count("]", start, quote)
    ):
        raise NoEnd  # `"tags": "a", "b"]`: a list without its opening bracket
    return Span(start, quote, quote + 1, True, "inner_quotes" if passed else None, len(passed))


def _doubled_quote(text: str, start: int, quote: int, passed: list[int]) -> Span | None:
    if passed[-1] == quote - 1 and len(passed) == 1:
        return Span(start, passed[-1], quote + 1, True, "doubled_quotes")
    if not text[start : passed[0]].strip():
        return Span(passed[0] + 1, quote, quote + 1, True, "doubled_quotes")
    return None


def _missing_end(text: str, start: int, quote: int, place: Place) -> Span | None:
    if place == "element" and _COMMA.match(text, quote + 1):
        return Span(start, quote, quote + 1, True)  # the next element lacks its opening quote
    before = text[max(start, quote - 400) : quote]
    found = _ENDS_LIKE_MEMBER.search(before)
    if not found and place == "member":
        found = _ENDS_WITH_BARE_KEY.search(before)
        return _cut(text, start, quote - len(before) + found.start()) if found else None
    if not found or (place == "member" and not KEY_AHEAD.match(text, quote)):
        return None
    stop = quote - len(before) + found.start()
    return _cut(text, start, _before_closers(text, start, stop - (text[stop - 1 : stop] == ",")))


def _before_closers(text: str, start: int, stop: int) -> int:
    """Return the string's end if final closers are the container's."""
    while (last := text[start:stop].rstrip()[-1:]) in _OPENED_BY:
        at = text.rindex(last, start, stop)
        if text.count(_OPENED_BY[last], start, at) > text.count(last, start, at):
            break
        stop = start + len(text[start:at].rstrip())
    return stop


def _cut(text: str, start: int, stop: int) -> Span:
    if stop <= start or text[stop - 1] in ":,[]{}":
        raise NoEnd  # a mark in the place of the quote or of the string: ambiguous
    return Span(start, stop, stop, True, "missing_quote")


def _unclosed(text: str, start: int, end: int, place: Place, passed: list[int]) -> Span:
    if place == "member" and passed:
        following = _NEXT_QUOTED_MEMBER.search(text, start, end)
        if following:
            return _cut(text, start, following.start())
    if passed and place != "key":
        earlier = _missing_end(text, start, passed[0], place)
        if earlier:
            return earlier
    if passed and PROSE_TAIL.match(text, passed[-1] + 1, end):
        return Span(start, passed[-1], passed[-1] + 1, True, "inner_quotes" if len(passed) > 1 else None)
    closers = _container_closers(text, start, end)
    if len(passed) == 1 and closers < end and place != "key":
        return Span(start, passed[0], passed[0] + 1, True)
    if closers >= end or place == "key":
        return Span(start, end, end, False, "truncated")
    following = _NEXT_MEMBER.search(text, start, closers) if place == "member" else None
    return _cut(text, start, following.start() if following else closers)


def _container_closers(text: str, start: int, end: int) -> int:
    """Return the start of closers opened outside the string, or `end`."""
    at = _TRAILING_CLOSERS.search(text, max(start, end - 2_000), end).start()  # type: ignore[union-attr]
    while at < end:
        found = text[at]
        opener = {"}": "{", "]": "["}.get(found)
        if opener is None or text.count(opener, start, at) > text.count(found, start, at):
            at += 1
            continue
        before = text[max(start, at - 200) : at]
        return at - len(before) + len(before.rstrip())
    return end


_SKIPPED_PER_STEP = 200
"""Length of comment skipped in the time of one step."""


class TooDeep(Exception):
    """The text nests deeper than any answer does."""


class NotJson(Exception):
    """The text cannot be parsed as JSON without guessing; `reason` explains it.

    `ambiguous`: it has several readings, so no other engine's guess is better.
    """

    def __init__(self, reason: str, at: int, *, steps: int, solid: bool, ambiguous: bool) -> None:
        super().__init__(f"{reason} at character {at}")
        self.reason, self.at, self.steps, self.solid, self.ambiguous = reason, at, steps, solid, ambiguous


@attrs.define
class ContainerFrame:
    kind: str
    mark: int
    """Output position of its opening bracket."""
    count: int = 0
    comma: bool = False
    key: str | None = None
    keys: set[str] = attrs.field(factory=set)


class Writer:
    """Position of the repairer in the source, and its output so far."""

    def __init__(self, text: str, start: int, end: int, max_depth: int, max_steps: int) -> None:
        self.text, self.start, self.pos, self.end = text, start, start, end
        self.max_depth, self.max_steps, self.steps = max_depth, max_steps, 0
        self.out: list[str] = []
        self.stack: list[ContainerFrame] = []
        self.repairs: dict[str, None] = {}
        self.complete, self.solid, self.pairs, self.scalars = True, False, 0, 0

    # --- bookkeeping ------------------------------------------------------------------------------------

    def spend(self) -> None:
        self.steps += 1
        if self.steps > self.max_steps:
            raise self.refuse("too many tokens")

    def note(self, repair: str | None) -> None:
        if repair:
            self.repairs[repair] = None

    def refuse(self, reason: str, *, ambiguous: bool = False) -> NotJson:
        solid = self.pairs > 0 or self.scalars > 1
        return NotJson(reason, self.pos, steps=self.steps + 1, solid=solid, ambiguous=ambiguous)

    def skip(self, pattern: re.Pattern[str] = SKIP_BETWEEN) -> None:
        was = self.pos
        self.pos = pattern.match(self.text, was, self.end).end()  # type: ignore[union-attr]
        self.steps += (self.pos - was) // _SKIPPED_PER_STEP
        if self.pos - was > 1 and not self.text[was : self.pos].isspace():
            self.note("comment")

    # --- writing ----------------------------------------------------------------------------------------

    def write(self, piece: str) -> None:
        frame = self.stack[-1] if self.stack else None
        if frame:
            if frame.count:
                self.out.append(",")
                if not frame.comma:
                    self.note("missing_comma")
            if frame.key is not None:
                self.out.append(frame.key + ":")
                self.pairs += 1
                if frame.key in frame.keys:
                    self.note("duplicate_key")
                frame.keys.add(frame.key)
            frame.count, frame.comma, frame.key = frame.count + 1, False, None
        self.out.append(piece)

    def open(self, kind: str) -> None:
        if len(self.stack) >= self.max_depth:
            raise TooDeep(f"the text nests deeper than {self.max_depth}")
        if self.stack:
            self.solid = True
        self.write("{" if kind == "{" else "[")
        self.stack.append(ContainerFrame(kind, len(self.out) - 1))
        self.pos += 1
        if kind == "(":
            self.note("tuple")

    def pop(self) -> None:
        frame = self.stack.pop()
        if frame.comma and frame.count and frame.kind != "(":
            self.note("trailing_comma")
        if frame.key is not None:
            self.note("dropped_key")
        grouping = frame.kind == "(" and frame.count == 1 and not frame.comma
        if grouping:
            self.out[frame.mark] = ""
        self.out.append("" if grouping else "}" if frame.kind == "{" else "]")

    def write_scalar(self, piece: str, *, solid: bool = False) -> None:
        self.scalars += 1
        self.solid = self.solid or solid
        self.write(piece)
