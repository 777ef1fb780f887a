"""A rewriter from damaged JSON to strict JSON. It parses nothing: what it writes goes through the strict parser.

1. One pass, left to right, with an explicit stack of open containers; each token costs one step of the budget.
2. Commas are written by the mender itself, between items: missing, doubled and trailing ones all come out right.
3. A key is written only together with its value: a key whose value was cut off disappears, nothing is filled in.
4. A closer closes the nearest container of its kind, and what stands open inside it.
5. What cannot be read as JSON without guessing raises `NotJson`.
"""

from __future__ import annotations

import re

import attrs

from . import literal
from .glyphs import (
    CLOSERS,
    COLONS,
    COMMAS,
    ELEMENT,
    ELLIPSIS,
    FAST_ELEMENT,
    FAST_MEMBER,
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
)
from .values import Values
from .writer import Frame

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
"""Together they mean that one mark stood in for another and everything behind it was misread."""
_MAX_TAIL = 1_000
"""How many closers at the end of a text may be one too many: each time, all of them are looked at."""
_CLOSING_REPAIRS = frozenset({"missing_closer", "wrong_closer", "stray_closer", "missing_comma", "doubled_opener"})


@attrs.frozen(kw_only=True)
class Mended:
    """Strict JSON text for `source[start:end]`, and what was done to get it."""

    json: str
    start: int
    end: int
    complete: bool
    """False if the source ended inside the value."""
    solid: bool
    """True if it has something only data has (a key with a value, quotes, nesting); `[see 1]` has not."""
    repairs: tuple[str, ...]
    steps: int


def mend(text: str, start: int, end: int, *, max_depth: int, max_steps: int) -> Mended:
    """Rewrite the container that opens at `start`, reading no further than `end`."""
    return _Mender(text, start, end, max_depth, max_steps).run()


class _Mender(Values):
    def run(self) -> Mended:
        self.open(OPENERS[self.text[self.pos]])
        while self.stack:
            self.spend()
            if not (self.fast_step() or self.odd_step()):
                self.step()
        if self.repairs.keys() & _CLOSING_REPAIRS and TORN.match(self.text, self.pos, self.end):
            raise self.refuse("data goes on behind the end", ambiguous=True)
        if any(pair <= self.repairs.keys() for pair in _CONTRADICTIONS):
            raise self.refuse("repairs that contradict one another", ambiguous=True)
        if LEFTOVER_CLOSERS.match(self.text, self.pos, self.end):
            self.note("leftover_closers")
        empty = self.scalars == 0 and len(self.out) <= 2
        return Mended(
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
        """One whole member or element whose oddities are harmless, in one match."""
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

    def commas(self, frame: Frame) -> None:
        """A whole run of them: after each one, the fast steps would look over all the others again."""
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
        """Whether, behind this closer, the array goes on that it would close."""
        return _ELEMENT_AFTER_COMMA.match(self.text, self.pos + 1, self.end) is not None

    # --- members and elements ---------------------------------------------------------------------------

    def member(self, ch: str, frame: Frame) -> None:
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
            raise self.refuse("a container stands where a key belongs")
        self.note("missing_closer")
        self.pop()

    def bare_key(self, frame: Frame) -> str | None:
        found = _BARE_KEY.match(self.text, self.pos, self.end)
        if found:
            self.note("unquoted_key")
            self.pos = found.end()
            return literal.quoted(found[1].strip())
        return self.stray_word(frame)

    def stray_word(self, frame: Frame) -> str | None:
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
            return literal.quoted(found[0])
        raise self.refuse("a word without a value")

    def start_member(self, key: str) -> None:
        """A key in an array: the array was not closed, or an object in it was not opened."""
        if len(self.stack) > 1 and self.stack[-2].kind == "{" and self.stack[-1].count:
            self.note("missing_closer")
            self.pop()
            self.stack[-1].comma = True
        else:
            self.note("missing_opener")
            self.pos -= 1
            self.open("{")
        self.stack[-1].key = key

    def prose_follows(self, frame: Frame) -> bool:
        """Whether only prose comes after the last item: the closers were forgotten."""
        line = self.text.rfind("\n", max(self.start, self.pos - 200), self.pos)
        behind = self.text[line : self.pos].strip() if line >= 0 else "?"
        return bool(frame.count) and not behind and PROSE_TAIL.match(self.text, line, self.end) is not None

    def keyless(self, key: str, quoted: bool, frame: Frame) -> None:
        following = self.text[self.pos : self.pos + 1] if self.pos < self.end else ""
        if not following:
            self.truncate()
        elif following in COMMAS or following in CLOSERS:
            self.become_set(key, quoted, frame)
        else:
            self.note("missing_colon")
            frame.key = key
            self.value("member")

    def become_set(self, key: str, quoted: bool, frame: Frame) -> None:
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
