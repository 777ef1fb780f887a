"""Values: strings, numbers, and words without quotes."""

from __future__ import annotations

import re

from . import literal, strings
from .glyphs import AFTER_COMMA_IN_OBJECT, CLOSERS, COMMAS, KEY_AHEAD, OPENERS, QUOTED_KEY, QUOTES, WS
from .writer import Writer

_CONCATENATION = re.compile(rf"{WS}*\+{WS}*(?=[\"'])")
_THOUSANDS = re.compile(rf"-?\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?(?={WS}*(?:[,}}\]]|\n|\Z))(?!{WS}*,\d)")
_NUMBER = re.compile(
    rf"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?={WS}*(?:[,，;}}\]){{\[]|//|/\*|\#|\Z)|{WS}*\n|{WS}+[\"'“‘])"
)
_BARE_STOP = re.compile(r"[,，、;；\n}\]｝］{\[()）\"“]|(?<=\s)(?://|/\*|\#\s)")
_QUOTED_KEY = re.compile(QUOTED_KEY)
_CUT_WORDS = {word[:size] for word in ("true", "false", "null", "none") for size in range(1, len(word))} | {"-", "+"}
_STRAY_QUOTE_LATER = re.compile(rf"[^\"\n]{{0,200}}[^\s\",:\[{{]\"{WS}*(?:[,}}\]]|\n)")
"""`a, b"]`: the missing quote may belong before `a` or before `b`."""

_VALUES_BEGIN = frozenset("-0123456789tfn")
_GLUED = re.compile(r"(?:true|false|null|-?\d++(?:\.\d++)?+){2,}+|-?\d++\.\d{2,}+\.\d++", re.A)
_CHARS_PER_STEP = 2_000
"""How much of a string is looked over in the time of a step."""


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
        written = literal.quoted(content, cut=not span.closed)
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
        """Whether a comma at `at`, if there is one, ends a member rather than belonging to a bare text."""
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
            self.write_scalar(literal.quoted(word[:-1]), solid=True)
            return
        if stop >= self.end and word.lower() in _CUT_WORDS:
            self.pos = self.end  # half a literal says nothing
            return
        if not word or word[0] in ":=":
            raise self.refuse("no value", ambiguous=bool(word))
        if place == "element" and self.is_glued(word):
            raise self.refuse("values without a comma between them, or a text", ambiguous=True)
        self.pos = stop
        self.write_bare(word)

    def is_glued(self, word: str) -> bool:
        """Whether it may be values: `truefalse`, `1.52.5`; where a number stands before it, `1-2` too."""
        if word[0] not in _VALUES_BEGIN or not _GLUED.fullmatch(word):
            return False
        beside_number = self.stack[-1].count > 0 and self.out[-1][-1:].isdigit()
        return beside_number or "." in word or word[-1].isalpha()

    def write_bare(self, word: str) -> None:
        piece = literal.bare(word)
        if word.lower() in literal.NON_FINITE:
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
        keeps = ch in '"“' and not _QUOTED_KEY.match(self.text, found.start(), self.end)
        return found.end() if keeps else found.start()

    def bare_ends(self, ch: str, at: int, place: strings.Place) -> bool:
        if ch in CLOSERS or ch[0] in "/#":
            return True
        if ch in '"“':
            key_ahead = _QUOTED_KEY.match(self.text, at, self.end) is not None
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
