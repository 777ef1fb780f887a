"""Candidate JSON containers of a text, in order.

1. Marks are visited from left to right; a parsed container is skipped, so its strings hide nothing.
2. A thinking block is skipped; a closing think mark without an opening one discards the text before it.
3. A container without an end is parsed again up to the close of its wrapper.
4. Starts and steps are counted over the whole text; past the limit the text is refused.
"""

from __future__ import annotations

import html
import re
from typing import Any

import attrs

from . import _strict as strict
from ._mend import MEMBER_AFTER_COMMA, NotJson, RepairedJson, TooDeep, repair_container
from ._read_result import Limits, TooMuchWork

_BRACKETS = "{[｛［"
_MARK_CHARS = (*_BRACKETS, "<", "`", "~~~", "◁", "[THINK]")
_LEADING_TUPLE = re.compile(r"\s*\(")
_BRACKET = re.compile(r"[{}\[\]]")
_NEVER = 1 << 62
_MAX_UNREAD = 20
_MAX_GUESSES = 3
"""Maximum guesses at a value's end in a long text."""
_MAX_BRACKETS = 100_000
"""Maximum brackets counted for ends of unreadable regions, about 0.05 s."""
_VISIT_STEPS = 3
_MEND_STEPS = 10
"""Cost of a visit and a repair's start, in repair steps."""


@attrs.frozen(kw_only=True)
class Candidate:
    """A container found in the text."""

    start: int
    end: int
    value: Any
    json: str
    engine: str
    complete: bool = True
    solid: bool = True
    passes: tuple[str, ...] = ()
    fragment: bool = False
    """Whether it is inside a larger, unparsable JSON region."""
    readable: bool = True
    """Whether it is possible JSON, without half characters or infinite numbers."""


@attrs.frozen
class Candidates:
    """All containers of a text that can be read, first to last."""

    found: list[Candidate]
    ambiguous: bool = False
    """Whether a region had several readings; then no guess is accepted."""
    unreadable: bool = False
    """The last region is JSON that no value can hold."""


def find_candidates(text: str, limits: Limits) -> Candidates:
    """Search `text`; raises `TooMuchWork` past the limits."""
    return _Search(text, limits).run()


class _Search:
    def __init__(self, text: str, limits: Limits) -> None:
        self.text, self.limits = text, limits
        self.found: list[Candidate] = []
        self.next_at: dict[str, int] = dict.fromkeys(_MARK_CHARS, -1)
        self.steps_left, self.starts_left = limits.max_steps, limits.max_starts
        self.closing: str | None = None
        self.closes_at: dict[str, int] = {}
        self.fence: str | None = None
        self.thinking_from = _NEVER
        self.think_closes_at = -1
        self.trimmed_end = len(text.rstrip()) if text[-1:].isspace() else len(text)
        self.said_until = len(text.rstrip("`\n \t"))
        self.unread_until = -1
        self.ambiguous = self.unreadable = False
        self.unread_left, self.brackets_left, self.guesses_left = _MAX_UNREAD, _MAX_BRACKETS, _MAX_GUESSES

    def run(self) -> Candidates:
        pos = self.leading_tuple(0)
        while (pos := self.next_mark(pos)) < _NEVER:
            pos = self.visit(pos)
        found = [candidate for candidate in self.found if not self.is_draft(candidate)]
        return Candidates(found, self.ambiguous, self.unreadable and not found)

    def is_draft(self, candidate: Candidate) -> bool:
        """Return whether it is inside an unclosed thinking block."""
        return candidate.start > self.thinking_from and candidate.end < self.said_until

    def next_mark(self, pos: int) -> int:
        best = _NEVER
        for mark, at in self.next_at.items():
            if at < pos:
                at = self.text.find(mark, pos)
                at = self.next_at[mark] = _NEVER if at < 0 else at
            best = min(best, at)
        return best

    def visit(self, pos: int) -> int:
        self.spend_steps(_VISIT_STEPS)
        ch = self.text[pos]
        if ch in "<◁" or self.text.startswith("[THINK]", pos):
            return self.visit_tag(pos)
        if ch in "`~":
            return self.visit_fence(pos)
        return self.visit_bracket(pos)

    def visit_tag(self, pos: int) -> int:
        if opened := THINK_OPEN.match(self.text, pos):
            closed_at = self.next_think_close(opened.end())
            if closed_at < _NEVER:
                return closed_at
            self.thinking_from = min(self.thinking_from, pos)
            return opened.end()
        if closed := THINK_CLOSE.match(self.text, pos):
            self.found.clear()
            return closed.end()
        if tag := OPEN_TAG.match(self.text, pos):
            self.closing = closing_of(tag)
            return tag.end()
        return pos + 1

    def next_think_close(self, pos: int) -> int:
        if self.think_closes_at < pos:
            found = THINK_CLOSE.search(self.text, pos)
            self.think_closes_at = found.end() if found else _NEVER
        return self.think_closes_at

    def visit_fence(self, pos: int) -> int:
        fence = FENCE.match(self.text, pos)
        if not fence:
            return pos + 1
        if self.fence:
            self.fence = None
            return fence.end(1)
        self.fence = fence[1][:3]
        return self.leading_tuple(fence.end())

    def leading_tuple(self, pos: int) -> int:
        """Return a leading tuple's end; other parentheses are no data."""
        found = _LEADING_TUPLE.match(self.text, pos)
        if not found:
            return pos
        candidate = self.repaired(found.end() - 1)
        if candidate and not candidate.readable:
            return self.skip_unreadable(candidate)
        if candidate is None or isinstance(candidate.value, str) or not candidate.solid:
            return pos
        self.found.append(candidate)
        return candidate.end

    def visit_bracket(self, pos: int) -> int:
        candidate = self.strict(pos) or self.repaired(pos)
        if candidate and not candidate.readable:
            return self.skip_unreadable(candidate)
        if candidate is None or not candidate.solid:
            self.spend_start()
        if candidate is None:
            return pos + 1
        inside = pos < self.unread_until
        self.found.append(attrs.evolve(candidate, fragment=True) if inside else candidate)
        return max(candidate.end, pos + 1)

    def skip_unreadable(self, candidate: Candidate) -> int:
        """Skip an unreadable region, so earlier candidates are not final."""
        self.found.clear()
        self.ambiguous = self.unreadable = True
        return candidate.end

    def spend_start(self) -> None:
        self.starts_left -= 1
        if self.starts_left <= 0:
            raise TooMuchWork(f"more than {self.limits.max_starts} places look like JSON and are not")

    def strict(self, pos: int) -> Candidate | None:
        if not strict.can_decode(self.text, pos):
            self.guesses_left -= 1
            if self.guesses_left < 0:
                return None
        end = strict.end_of_value(self.text, pos)
        if end is None or (self.text[pos] == "{" and MEMBER_AFTER_COMMA.match(self.text, end)):
            return None
        json = self.text[pos:end]
        value = _value_of(json)
        if value is _UNREADABLE:
            known = strict.can_decode(self.text, pos)
            return (
                Candidate(start=pos, end=end, value=None, json=json, engine="strict", readable=False) if known else None
            )
        solid = isinstance(value, dict) or len(value) != 1 or not isinstance(value[0], int | float)
        return Candidate(start=pos, end=end, value=value, json=json, engine="strict", solid=solid)

    def repaired(self, pos: int) -> Candidate | None:
        self.spend_steps(_MEND_STEPS)
        first = self.repaired_until(pos, len(self.text))
        if first and first.complete:
            return self.parsed(first)
        cut = self.wrapper_end(pos)
        second = self.repaired_until(pos, cut) if cut > pos else None
        return self.parsed(second or first)

    def repaired_until(self, pos: int, end: int) -> RepairedJson | None:
        try:
            repaired = repair_container(self.text, pos, end, max_depth=self.limits.max_depth, max_steps=self.steps_left)
        except TooDeep as problem:
            raise TooMuchWork(str(problem)) from None
        except NotJson as problem:
            self.spend_steps(problem.steps)
            self.ambiguous = self.ambiguous or problem.ambiguous
            if (problem.solid or problem.ambiguous) and pos >= self.unread_until:
                self.unread_until = self.region_end(pos)
            return None
        self.spend_steps(repaired.steps)
        return repaired

    def region_end(self, pos: int) -> int:
        """Return the position of balanced brackets, or the text's end."""
        self.unread_left -= 1
        depth = 0
        for bracket in _BRACKET.finditer(self.text, pos) if self.unread_left > 0 else ():
            depth += 1 if bracket[0] in "{[" else -1
            self.brackets_left -= 1
            if depth == 0:
                return bracket.end()
            if self.brackets_left <= 0:
                break
        return len(self.text)

    def spend_steps(self, steps: int) -> None:
        self.steps_left -= steps
        if self.steps_left <= 0:
            raise TooMuchWork(f"more than {self.limits.max_steps} steps were needed to mend the text")

    def wrapper_end(self, pos: int) -> int:
        """Return where the container's wrapper closes, or -1."""
        end = min((self.closing_at(c, pos) for c in (self.fence, self.closing) if c), default=_NEVER)
        if end < _NEVER:
            return end
        fenced = self.text.endswith("```", 0, self.trimmed_end)
        return self.trimmed_end - 3 if fenced else -1

    def closing_at(self, closing: str, pos: int) -> int:
        """Return the next position of `closing`; cached, since positions only grow."""
        at = self.closes_at.get(closing, -1)
        if at < pos:
            at = self.text.find(closing, pos)
            at = self.closes_at[closing] = _NEVER if at < 0 else at
        return at

    def parsed(self, repaired: RepairedJson | None) -> Candidate | None:
        if repaired is None:
            return None
        value = _value_of(repaired.json)
        return Candidate(
            start=repaired.start,
            end=repaired.end,
            value=value,
            json=repaired.json,
            engine="mended",
            complete=repaired.complete,
            solid=repaired.solid,
            passes=repaired.repairs,
            readable=value is not _UNREADABLE and "non_finite" not in repaired.repairs,
        )


_UNREADABLE = object()


def _value_of(json: str) -> Any:
    try:
        return strict.parse(json)
    except strict.JsonSyntaxError:
        return _UNREADABLE


_THINKING = r"(?:think|thinking|thought|thoughts|reasoning|reflection|scratchpad|analysis|seed:think)"
THINK_OPEN = re.compile(rf"<({_THINKING})(?:\s[^<>]*)?>|\[THINK\]|◁think▷", re.I)
THINK_CLOSE = re.compile(rf"</{_THINKING}\s*>|\[/THINK\]|◁/think▷", re.I)
OPEN_TAG = re.compile(r"<([A-Za-z][\w:.-]*)(?:[\s=][^<>]*)?>|<!\[CDATA\[|<\|[\w ]+\|>")
FENCE = re.compile(r"(`{3,}|~{3,})[^\S\n]*([\w+.-]*)")

_THINK_MARKS = ("</", "[/THINK]", "◁")
_BLOCKQUOTE = re.compile(r"\s*(?!>\s*[=\d.$€£+-])(?:>[^\n]*(?:\n\s*|\Z))++")  # `> 5` compares
_QUOTE_PREFIX = re.compile(r"^[^\S\n]*>[^\S\n]?", re.M)
_ESCAPED_QUOTE = re.compile(r'[{\[](?:\s|\\[nrt])*\\+"')
_HTML_QUOTE = re.compile(r"[{\[]\s*&(?:quot|#34|#x22|#39|apos);")
_ESCAPE = re.compile(r'\\(["\\/nrt])')
_PLAIN = {"n": "\n", "r": "\r", "t": "\t"}


def closing_of(tag: re.Match[str]) -> str:
    """Return the closing text of an `OPEN_TAG` match."""
    if tag[1]:
        return f"</{tag[1]}"
    return "]]>" if tag[0].startswith("<!") else "<|"


def unwrapped_text(text: str) -> tuple[str, str | None]:
    """Return the text without one escape layer, and the pass."""
    if _BLOCKQUOTE.fullmatch(text):
        return _QUOTE_PREFIX.sub("", text), "blockquote"
    first = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    if first < 0:
        return text, None
    if _ESCAPED_QUOTE.match(text, first):
        return _ESCAPE.sub(lambda found: _PLAIN.get(found[1], found[1]), text), "unescaped"
    if _HTML_QUOTE.match(text, first):
        return html.unescape(text), "html_entities"
    return text, None


def after_thinking(text: str) -> str:
    """Return the text without thinking blocks, for non-containers."""
    if not any(mark in text for mark in _THINK_MARKS):  # a pattern that ignores case is slow on megabytes
        return text
    kept, at = "", 0
    while (opened := THINK_OPEN.search(text, at)) and (closed := THINK_CLOSE.search(text, opened.end())):
        kept, at = kept + text[at : opened.start()], closed.end()
    text = kept + text[at:]
    lone = THINK_CLOSE.search(text)
    return text[lone.end() :] if lone else text


def without_fence(text: str) -> str:
    """Return the content of a whole-text fence, or the stripped text."""
    stripped = text.strip().strip("\ufeff\u200b\u2060")
    head = _FENCE_HEAD.match(stripped)
    if not head:
        return stripped
    inside = stripped[head.end() :]
    return inside.rstrip(inside[-1]).rstrip() if inside.endswith(("```", "~~~")) else inside


_FENCE_HEAD = re.compile(r"(?:`{3,}|~{3,})[\w+.-]*\s*")
_HEADLESS = re.compile(r"\s*(\"[^\"\n]{1,100}\"\s*:.*)", re.S)
_CALL = re.compile(r"[\s\[`]*[\w.]+\(\s*([^\W\d]\w*\s*=(?!=).*)\)[\s\]`;]*", re.S)
_MAX_BRACELESS = 100_000


def with_braces(text: str) -> tuple[str, str] | None:
    """Return an object for missing braces or keyword arguments, and pass."""
    answer = without_fence(after_thinking(text))
    if len(answer) > _MAX_BRACELESS:
        return None
    if found := _HEADLESS.fullmatch(answer):
        body = found[1].rstrip().rstrip(",")
        return "{" + body + ("" if body.count("}") > body.count("{") else "}"), "missing_braces"
    if found := _CALL.fullmatch(answer):
        return "{" + found[1] + "}", "call_arguments"
    return None
