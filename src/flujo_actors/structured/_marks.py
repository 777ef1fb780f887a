"""The marks models put around their answer: thinking blocks, fences, tags, escapes of a whole text."""

from __future__ import annotations

import html
import re

_THINKING = r"(?:think|thinking|thought|thoughts|reasoning|reflection|scratchpad|analysis|seed:think)"
THINK_OPEN = re.compile(rf"<({_THINKING})(?:\s[^<>]*)?>|\[THINK\]|◁think▷", re.I)
THINK_CLOSE = re.compile(rf"</{_THINKING}\s*>|\[/THINK\]|◁/think▷", re.I)
OPEN_TAG = re.compile(r"<([A-Za-z][\w:.-]*)(?:[\s=][^<>]*)?>|<!\[CDATA\[|<\|[\w ]+\|>")
FENCE = re.compile(r"(`{3,}|~{3,})[^\S\n]*([\w+.-]*)")

_THINK_MARKS = ("</", "[/THINK]", "◁")
_BLOCKQUOTE = re.compile(r"\s*(?:>[^\n]*(?:\n\s*|\Z))++")
_QUOTE_PREFIX = re.compile(r"^[^\S\n]*>[^\S\n]?", re.M)
_ESCAPED_QUOTE = re.compile(r'[{\[](?:\s|\\[nrt])*\\+"')
_HTML_QUOTE = re.compile(r"[{\[]\s*&(?:quot|#34|#x22|#39|apos);")
_ESCAPE = re.compile(r'\\(["\\/nrt])')
_PLAIN = {"n": "\n", "r": "\r", "t": "\t"}


def closing_of(tag: re.Match[str]) -> str:
    """The text that would close what an `OPEN_TAG` match opens."""
    if tag[1]:
        return f"</{tag[1]}"
    return "]]>" if tag[0].startswith("<!") else "<|"


def unwrapped_text(text: str) -> tuple[str, str | None]:
    """The text with one layer of whole-text escaping taken off, and the name of that pass."""
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
    """The text without its thinking blocks, for answers that are not JSON containers."""
    if not any(mark in text for mark in _THINK_MARKS):  # a pattern that ignores case is slow on megabytes
        return text
    kept, at = "", 0
    while (opened := THINK_OPEN.search(text, at)) and (closed := THINK_CLOSE.search(text, opened.end())):
        kept, at = kept + text[at : opened.start()], closed.end()
    text = kept + text[at:]
    lone = THINK_CLOSE.search(text)
    return text[lone.end() :] if lone else text


def without_fence(text: str) -> str:
    """The inside of the fence, if the whole text is one fence; else the text itself, stripped."""
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
    """An object whose braces are missing, or the keyword arguments of a call, as an object; and the pass's name."""
    answer = without_fence(after_thinking(text))
    if len(answer) > _MAX_BRACELESS:
        return None
    if found := _HEADLESS.fullmatch(answer):
        body = found[1].rstrip().rstrip(",")
        return "{" + body + ("" if body.count("}") > body.count("{") else "}"), "missing_braces"
    if found := _CALL.fullmatch(answer):
        return "{" + found[1] + "}", "call_arguments"
    return None
