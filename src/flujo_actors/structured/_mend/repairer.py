"""Rewriter from damaged JSON to strict JSON for the parser.

1. One pass, left to right, with an explicit stack of open containers; each token costs one step of the budget.
2. Commas are written by the repairer itself, between items: missing, doubled and trailing ones all come out right.
3. A key is written only together with its value: a key whose value was cut off disappears, nothing is filled in.
4. A closer closes the nearest container of its kind, and every container open inside it.
5. Text that cannot be parsed as JSON without guessing raises `NotJson`.

Sections:

- Conversion of string contents and bare words to strict JSON.
- Values: strings, numbers, and words without quotes.
"""

from __future__ import annotations

import re
import unicodedata

import attrs

from . import strings
from .strings import (
    AFTER_COMMA_IN_OBJECT,
    CLOSERS,
    COLONS,
    COMMAS,
    ELEMENT,
    ELLIPSIS,
    FAST_ELEMENT,
    FAST_MEMBER,
    KEY_AHEAD,
    LEFTOVER_CLOSERS,
    MEMBER,
    MEMBER_AFTER_COMMA,
    ONLY_CLOSERS,
    OPENERS,
    PROSE_TAIL,
    QUOTED_KEY,
    QUOTES,
    SKIP_BEFORE_VALUE,
    TORN,
    WS,
    ContainerFrame,
    Writer,
)

# --- Conversion of string contents and bare words to strict JSON --------------------------------------------------


_SPECIAL = re.compile(
    r'((?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})++)'
    r'|\\(?:(u[0-9a-fA-F]{4})|(["\\/bfnrt])|x([0-9a-fA-F]{2})|(.)|\Z)|(["\x00-\x1f])',
    re.S,
)
_NEEDS_WORK = re.compile(r'["\\\x00-\x1f]')
_CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f", '"': '\\"'}
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_WINDOWS_PATH = re.compile(r"(?=.*\\[^\"\\/bfnrtu])[A-Za-z]:\\(?![\\\"])[^\n\"]*\Z")
r"""`D:\files\new` with single backslashes, recognized by an unknown escape."""
_QUOTE_LIKE = frozenset("'`´‘’‚“”„＂＇«»「」\n")

_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null", "undefined": "null", "nil": "null"}
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_LOOSE_NUMBER = re.compile(r"[+-]?(?:\d++(?:_\d++)*+\.?(?:\d++(?:_\d++)*+)?|\.\d++)(?:[eE](?:[+-]?\d++)?)?")
_CALL = re.compile(r"(?:new\s+)?[A-Z]\w*\(\s*(\"[^\"\\]*\"|'[^'\\]*'|-?\d+(?:\.\d+)?)\s*\)")
NON_FINITE = frozenset({"nan", "infinity", "-infinity", "inf", "-inf", "+infinity", "+inf"})


def quoted(content: str, *, cut: bool = False) -> str:
    """Return string content as strict JSON; `cut` drops truncated escapes."""
    if cut:
        content = drop_cut_escape(content)
    if not _NEEDS_WORK.search(content):
        return f'"{content}"'
    if _WINDOWS_PATH.match(content):
        content = content.replace("\\", "\\\\")
    return f'"{_SPECIAL.sub(_escape, content)}"'


def drop_cut_escape(content: str) -> str:
    """Without the half of an escape sequence at its end."""
    found = _CUT_ESCAPE.search(content)
    if not found:
        return content
    before = content[: found.start()]
    dangling = (len(before) - len(before.rstrip("\\"))) % 2 == 0
    return before if dangling else content


def _escape(found: re.Match[str]) -> str:
    healthy, code, short, byte, other, control = found.groups()
    if healthy or code or short:
        return found[0]
    if byte:
        return f"\\u00{byte}"
    if control:
        return _CONTROL.get(control) or f"\\u{ord(control):04x}"
    if other is None:
        return "\\\\"
    if other in _QUOTE_LIKE:
        return "" if other == "\n" else other
    return "\\\\" + (_CONTROL.get(other, other) if other >= " " else f"\\u{ord(other):04x}")


def bare(word: str) -> str:
    """Return a bare word as JSON literal, number, argument or string."""
    literal = _WORDS.get(word.lower())
    if literal:
        return literal
    number = loose_number(word)
    if number:
        return number
    call = _CALL.fullmatch(word)
    if call:
        inner = call[1]
        return quoted(inner[1:-1]) if inner[0] in "\"'" else inner
    return quoted(word)


def loose_number(word: str) -> str | None:
    """Return the JSON number of a sloppy spelling (`.5`, `1.`, `1_000`)."""
    if not word[:1].isdigit() and word[:1] not in ("+", "-", "."):
        return None
    if _PLAIN_NUMBER.fullmatch(word) and word.isascii():
        return word
    plain = unicodedata.normalize("NFKC", word)
    if not plain.isascii() or not _LOOSE_NUMBER.fullmatch(plain):
        return None
    return _tidy(plain.replace("_", "").removeprefix("+"))


def _tidy(number: str) -> str | None:
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    mantissa, mark, exponent = digits.partition("e") if "e" in digits else digits.partition("E")
    whole, dot, fraction = mantissa.partition(".")
    if len(whole) > 1 and whole[0] == "0":
        return None  # 007 is a code, not a number
    tail = f"e{exponent}" if exponent.strip("+-") else ""
    point = f".{fraction or '0'}" if dot or (mark and not tail) else ""
    return f"{sign}{whole or '0'}{point}{tail}"


# --- Values -------------------------------------------------------------------------------------------------------


_CONCATENATION = re.compile(rf"{WS}*\+{WS}*(?=[\"'])")
_THOUSANDS = re.compile(rf"-?\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?(?={WS}*(?:[,}}\]]|\n|\Z))(?!{WS}*,\d)")
_NUMBER = re.compile(
    rf"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?={WS}*(?:[,，;}}\]){{\[]|//|/\*|\#|\Z)|{WS}*\n|{WS}+[\"'“‘])"
)
_BARE_STOP = re.compile(r"[,，、;；\n}\]｝］{\[()）\"“]|(?<=\s)(?://|/\*|\#\s)")
_QUOTED_KEY_AHEAD = re.compile(QUOTED_KEY)
_CUT_WORDS = {word[:size] for word in ("true", "false", "null", "none") for size in range(1, len(word))} | {"-", "+"}
_STRAY_QUOTE_LATER = re.compile(rf"[^\"\n]{{0,200}}[^\s\",:\[{{]\"{WS}*(?:[,}}\]]|\n)")
"""`a, b"]`: the missing quote may belong before `a` or before `b`."""

_VALUES_BEGIN = frozenset("-0123456789tfn")
_GLUED = re.compile(r"(?:true|false|null|-?\d++(?:\.\d++)?+){2,}+|-?\d++\.\d{2,}+\.\d++", re.A)
_CHARS_PER_STEP = 2_000
"""Length of string scanned in the time of one step."""


class Values(Writer):
    """Reads one value where one belongs."""

    # --- values -----------------------------------------------------------------------------------------

    def value(self, place: strings.Place) -> None:
        if self.pos >= self.end:
            return  # rule 3: the next step sees the end and closes
        ch = self.text[self.pos]
        if ch in QUOTES:
            self.write_scalar(self.joined_strings(place), solid=True)
        elif ch in OPENERS:
            self.open(OPENERS[ch])
        elif ch in COMMAS or ch in CLOSERS:
            self.stack[-1].key = None
            self.note("dropped_key")
        elif not self.number(place):
            self.bare(place)

    def joined_strings(self, place: strings.Place) -> str:
        whole = self.string(place)
        while found := _CONCATENATION.match(self.text, self.pos, self.end):
            self.note("concatenation")
            self.pos = found.end()
            whole = whole[:-1] + self.string(place)[1:]
        return whole

    def string(self, place: strings.Place) -> str:
        if self.text[self.pos] != '"':
            self.note("quotes")
        try:
            span = strings.locate(self.text, self.pos, self.end, place)
        except strings.NoEnd:
            self.steps += strings.MAX_PASSED_QUOTES + (self.end - self.pos) // _CHARS_PER_STEP
            raise self.refuse("a string without an end", ambiguous=True) from None
        self.steps += 2 + span.passed + (span.resume - self.pos) // _CHARS_PER_STEP
        self.note(span.repair)
        self.complete = self.complete and span.closed
        self.pos = span.resume
        content = self.text[span.start : span.end]
        written = quoted(content, cut=not span.closed)
        self.note("escapes" if len(written) != len(content) + 2 else None)
        return written

    def number(self, place: strings.Place) -> bool:
        if place == "member" and (found := _THOUSANDS.match(self.text, self.pos, self.end)):
            self.note("thousands_separator")
            self.pos = found.end()
            self.write_scalar(found[0].replace(",", ""))
            return True
        found = _NUMBER.match(self.text, self.pos, self.end)
        if not found or (place == "member" and not self.comma_separates(found.end())):
            return False
        self.pos = found.end()
        self.write_scalar(found[0])
        return True

    def comma_separates(self, at: int) -> bool:
        """Return whether a comma at `at` ends a member."""
        if self.text[at : at + 1] not in COMMAS or at >= self.end:
            return True
        return AFTER_COMMA_IN_OBJECT.match(self.text, at + 1, self.end) is not None

    def bare(self, place: strings.Place) -> None:
        start = self.pos
        stop = self.bare_stop(place)
        word = self.text[start:stop].strip()
        if word[-1:] in ('"', "”") and word.count(word[-1]) == 1:
            if word[0] in ":[]{}":
                raise self.refuse("a mark in the place of a quote", ambiguous=True)
            self.note("missing_quote")
            self.pos = stop
            self.write_scalar(quoted(word[:-1]), solid=True)
            return
        if stop >= self.end and word.lower() in _CUT_WORDS:
            self.pos = self.end  # half a literal has no value
            return
        if not word or word[0] in ":=":
            raise self.refuse("no value", ambiguous=bool(word))
        if place == "element" and self.is_glued(word):
            raise self.refuse("values without a comma between them, or a text", ambiguous=True)
        self.pos = stop
        self.write_bare(word)

    def is_glued(self, word: str) -> bool:
        """Return whether a word may be glued values, like `truefalse`."""
        if word[0] not in _VALUES_BEGIN or not _GLUED.fullmatch(word):
            return False
        beside_number = self.stack[-1].count > 0 and self.out[-1][-1:].isdigit()
        return beside_number or "." in word or word[-1].isalpha()

    def write_bare(self, word: str) -> None:
        piece = bare(word)
        if word.lower() in NON_FINITE:
            self.note("non_finite")
        elif piece != word:
            self.note("literal" if piece[0] != '"' else "unquoted_value")
        self.write_scalar(piece)

    def bare_stop(self, place: strings.Place) -> int:
        depth, at = 0, self.pos
        while found := _BARE_STOP.search(self.text, at, self.end):
            self.spend()
            ch, at = found[0], found.end()
            if ch in "{[(":
                depth += 1
            elif ch in CLOSERS and (depth or ch in ")）") and self.stack[-1].kind != "(":
                depth = max(0, depth - 1)
            elif depth == 0 and self.bare_ends(ch, found.start(), place):
                return self.quote_end(ch, found)
        return self.end

    def quote_end(self, ch: str, found: re.Match[str]) -> int:
        keeps = ch in '"“' and not _QUOTED_KEY_AHEAD.match(self.text, found.start(), self.end)
        return found.end() if keeps else found.start()

    def bare_ends(self, ch: str, at: int, place: strings.Place) -> bool:
        if ch in CLOSERS or ch[0] in "/#":
            return True
        if ch in '"“':
            key_ahead = _QUOTED_KEY_AHEAD.match(self.text, at, self.end) is not None
            return key_ahead or strings.may_follow(self.text, at + 1, self.end, place)
        if place == "element" and ch in ";；":
            return False
        if place == "element":
            if ch != "\n" and self.text[at - 1] != '"' and _STRAY_QUOTE_LATER.match(self.text, at, self.end):
                raise self.refuse("a comma that may or may not separate", ambiguous=True)
            return True
        if ch == "\n":
            return KEY_AHEAD.match(self.text, at, self.end) is not None
        # One quote missing before the whole text is likelier than a bare text and a member without a quote.
        return self.comma_separates(at) and not _STRAY_QUOTE_LATER.match(self.text, at, self.end)


# --- Rewriter from damaged JSON to strict JSON --------------------------------------------------------------------


_BARE_KEY = re.compile(rf"([^\n\"'“”{{}}\[\](),:：=，]{{1,200}}?)[\"'”’`]?{WS}*(?=[:：]|=)")
_WORD = re.compile(r"[^\s\"'`“‘{}\[\](),:：，]+")
_QUOTED_KEY = re.compile(QUOTED_KEY)
_ELEMENT_AFTER_COMMA = re.compile(rf"{WS}*[,，]{WS}*(?!{QUOTED_KEY})[{{\[\"\d]|[^\S\n]*\n?[^\S\n]*[{{\[]")
_CONTRADICTIONS = (
    *({"stray_closer", other} for other in ("missing_quote", "inner_quotes", "doubled_quotes", "missing_colon")),
    {"stray_closer", "doubled_colon"},
    {"missing_closer", "dropped_key"},
    {"inner_quotes", "missing_colon"},
)
"""Combinations of repairs that reveal a misread mark."""
_MAX_TAIL = 1_000
"""Maximum final closers examined for one too many."""
_CLOSING_REPAIRS = frozenset({"missing_closer", "wrong_closer", "stray_closer", "missing_comma", "doubled_opener"})


@attrs.frozen(kw_only=True)
class RepairedJson:
    """Strict JSON text for `source[start:end]`, and the applied repairs."""

    json: str
    start: int
    end: int
    complete: bool
    """False if the source ended inside the value."""
    solid: bool
    """Whether it has evidence of data, unlike `[see 1]`."""
    repairs: tuple[str, ...]
    steps: int


def repair_container(text: str, start: int, end: int, *, max_depth: int, max_steps: int) -> RepairedJson:
    """Rewrite the container that opens at `start`, reading no further than `end`."""
    return _Repairer(text, start, end, max_depth, max_steps).run()


class _Repairer(Values):
    def run(self) -> RepairedJson:
        self.open(OPENERS[self.text[self.pos]])
        while self.stack:
            self.spend()
            if not (self.fast_step() or self.odd_step()):
                self.step()
        if self.repairs.keys() & _CLOSING_REPAIRS and TORN.match(self.text, self.pos, self.end):
            raise self.refuse("data continues after the end", ambiguous=True)
        if any(pair <= self.repairs.keys() for pair in _CONTRADICTIONS):
            raise self.refuse("repairs that contradict one another", ambiguous=True)
        if LEFTOVER_CLOSERS.match(self.text, self.pos, self.end):
            self.note("leftover_closers")
        empty = self.scalars == 0 and len(self.out) <= 2
        return RepairedJson(
            json="".join(self.out),
            start=self.start,
            end=self.pos,
            complete=self.complete,
            solid=self.solid or self.pairs > 0 or self.scalars > 1 or empty,
            repairs=tuple(self.repairs),
            steps=self.steps,
        )

    # --- one step ---------------------------------------------------------------------------------------

    def fast_step(self) -> bool:
        frame = self.stack[-1]
        found = (FAST_MEMBER if frame.kind == "{" else FAST_ELEMENT).match(self.text, self.pos, self.end)
        if not found:
            return False
        before, *key, scalar, string, opener = found.groups()
        if "," in before:
            frame.comma = True
        if key:
            frame.key = f'"{key[0]}"'
        self.pos = found.end()
        if opener:
            self.pos -= 1
            self.open(opener)
        else:
            self.scalars += 1
            self.solid = self.solid or string is not None
            self.write(scalar or string)
        return True

    def odd_step(self) -> bool:
        """Consume one whole member or element with harmless oddities, in one match."""
        frame = self.stack[-1]
        found = (MEMBER if frame.kind == "{" else ELEMENT).match(self.text, self.pos, self.end)
        if not found:
            return False
        before, *key, scalar, plain, single, curly, opener = found.groups()
        self.note_oddities(before, *key, single, curly)
        frame.comma = frame.comma or "," in before or "，" in before
        if key:
            frame.key = f'"{next(part for part in key[:4] if part is not None)}"'
        self.pos = found.end()
        if opener:
            self.pos -= 1
            self.open(OPENERS[opener])
        elif scalar:
            self.write_bare(scalar)
        else:
            content = plain if plain is not None else single if single is not None else curly
            self.write_scalar(f'"{content}"', solid=True)
        return True

    def note_oddities(self, before: str, *parts: str | None) -> None:
        if before and not before.isspace() and before.strip(" ,\n"):
            self.note("comment" if "/" in before or "#" in before else "punctuation")
        if not parts:
            return
        *names, single, curly = parts
        if single is not None or curly is not None or (names and (names[1] is not None or names[2] is not None)):
            self.note("quotes")
        if names and names[3] is not None:
            self.note("unquoted_key")
        if names and names[4] == "：":
            self.note("punctuation")

    def step(self) -> None:
        self.skip()
        if self.pos >= self.end:
            self.truncate()
            return
        ch, frame = self.text[self.pos], self.stack[-1]
        if ch in COMMAS:
            self.commas(frame)
        elif ch in CLOSERS:
            self.close(CLOSERS[ch])
        elif ELLIPSIS.match(self.text, self.pos, self.end):
            self.ellipsis()
        elif frame.kind == "{":
            self.member(ch, frame)
        else:
            self.element(ch)

    def commas(self, frame: ContainerFrame) -> None:
        """Consume a whole run of commas, scanned only once."""
        while self.pos < self.end and (ch := self.text[self.pos]) in COMMAS:
            frame.comma = True
            self.note("punctuation" if ch != "," else None)
            self.pos += 1
            self.skip()

    def ellipsis(self) -> None:
        self.note("ellipsis")
        self.pos = ELLIPSIS.match(self.text, self.pos, self.end).end()  # type: ignore[union-attr]

    def truncate(self) -> None:
        self.complete = False
        self.note("truncated")
        while self.stack:
            self.pop()

    # --- closing ----------------------------------------------------------------------------------------

    def close(self, kind: str) -> None:
        if self.stack[-1].kind == kind:
            self.close_matching()
        elif any(frame.kind == kind for frame in self.stack):
            self.close_crossing(kind)
        elif self.end - self.pos <= _MAX_TAIL and ONLY_CLOSERS.match(self.text, self.pos + 1, self.end):
            self.note("wrong_closer")
            self.pos += 1
            self.pop()
        else:
            self.note("stray_closer")
            self.pos += 1

    def close_matching(self) -> None:
        self.pos += 1
        premature = len(self.stack) == 1 and self.stack[0].kind == "{" and self.stack[0].count
        if premature and MEMBER_AFTER_COMMA.match(self.text, self.pos, self.end):
            self.note("stray_closer")
        else:
            self.pop()

    def close_crossing(self, kind: str) -> None:
        would_end = kind == "{" and len(self.stack) == 2 and self.stack[-1].kind != "{"
        if would_end and MEMBER_AFTER_COMMA.match(self.text, self.pos + 1, self.end):
            self.note("wrong_closer")
            self.pos += 1
            self.pop()
            return
        outer = next(i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i].kind == kind)
        if kind == "{" and (outer == 0 or self.stack[outer - 1].kind == "{") and self.element_follows():
            self.note("stray_closer")
            self.pos += 1
            return
        self.note("missing_closer")
        while self.stack[-1].kind != kind:
            self.pop()
        self.close_matching()

    def element_follows(self) -> bool:
        """Return whether the array continues after this closer."""
        return _ELEMENT_AFTER_COMMA.match(self.text, self.pos + 1, self.end) is not None

    # --- members and elements ---------------------------------------------------------------------------

    def member(self, ch: str, frame: ContainerFrame) -> None:
        if ch in OPENERS:
            self.open_where_key_belongs(ch)
            return
        quoted = ch in QUOTES
        key = self.string("key") if quoted else self.bare_key(frame)
        if key is None or not self.stack:
            return
        self.skip(SKIP_BEFORE_VALUE)
        if self.pos >= self.end or self.text[self.pos] not in COLONS:
            self.keyless(key, quoted, frame)
            return
        self.pos += 2 if self.text.startswith("=>", self.pos, self.end) else 1
        frame.key = key
        self.skip(SKIP_BEFORE_VALUE)
        while self.pos < self.end and self.text[self.pos] in COLONS:
            self.note("doubled_colon")
            self.pos += 1
            self.skip(SKIP_BEFORE_VALUE)
        self.value("member")

    def open_where_key_belongs(self, ch: str) -> None:
        if not self.stack[-1].count and OPENERS[ch] == "{":
            self.note("doubled_opener")
            self.pos += 1
            return
        inside_array = len(self.stack) > 1 and self.stack[-2].kind == "["
        if OPENERS[ch] != "{" or not inside_array or not self.stack[-1].count:
            raise self.refuse("a container in the place of a key")
        self.note("missing_closer")
        self.pop()

    def bare_key(self, frame: ContainerFrame) -> str | None:
        found = _BARE_KEY.match(self.text, self.pos, self.end)
        if found:
            self.note("unquoted_key")
            self.pos = found.end()
            return quoted(found[1].strip())
        return self.stray_word(frame)

    def stray_word(self, frame: ContainerFrame) -> str | None:
        found = _WORD.match(self.text, self.pos, self.end)
        if self.prose_follows(frame):
            self.truncate()
            return None
        if not found:
            raise self.refuse("neither a key nor a closer")
        self.pos = found.end()
        self.skip()
        following = self.text[self.pos : self.pos + 1] if self.pos < self.end else ""
        trailing = frame.count > 0 and not frame.comma and (following in CLOSERS or not following)
        cut = frame.count > 0 and not following
        if trailing or cut or _QUOTED_KEY.match(self.text, self.pos, self.end):
            self.note("truncated" if cut else "stray_words")
            return None
        if following in QUOTES and following:
            self.note("unquoted_key")
            return quoted(found[0])
        raise self.refuse("a word without a value")

    def start_member(self, key: str) -> None:
        """Start a member in an unclosed array or unopened object."""
        if len(self.stack) > 1 and self.stack[-2].kind == "{" and self.stack[-1].count:
            self.note("missing_closer")
            self.pop()
            self.stack[-1].comma = True
        else:
            self.note("missing_opener")
            self.pos -= 1
            self.open("{")
        self.stack[-1].key = key

    def prose_follows(self, frame: ContainerFrame) -> bool:
        """Return whether only prose follows the last item: the closers were forgotten."""
        line = self.text.rfind("\n", max(self.start, self.pos - 200), self.pos)
        behind = self.text[line : self.pos].strip() if line >= 0 else "?"
        return bool(frame.count) and not behind and PROSE_TAIL.match(self.text, line, self.end) is not None

    def keyless(self, key: str, quoted: bool, frame: ContainerFrame) -> None:
        following = self.text[self.pos : self.pos + 1] if self.pos < self.end else ""
        if not following:
            self.truncate()
        elif following in COMMAS or following in CLOSERS:
            self.become_set(key, quoted, frame)
        else:
            self.note("missing_colon")
            frame.key = key
            self.value("member")

    def become_set(self, key: str, quoted: bool, frame: ContainerFrame) -> None:
        if frame.count or not quoted:
            raise self.refuse("a key without a value")
        self.note("set")
        frame.kind = "["
        self.out[frame.mark] = "["
        self.solid = True
        self.write(key)

    def element(self, ch: str) -> None:
        if ch not in QUOTES:
            self.value("element")
            return
        item = self.string("element")
        self.skip()
        if self.pos < self.end and self.text[self.pos] in COLONS:
            self.start_member(item)
            self.pos += 1
            self.skip(SKIP_BEFORE_VALUE)
            self.value("member")
        else:
            self.write_scalar(item, solid=True)
