"""YAML as a tree of nodes with positions; a safe subset.

Rules:

1. Depth and number of values are counted during parsing, values behind aliases at each use: a text
   that is too deep or too wide is refused before it is traversed.
2. Tags, merge keys, a second document, an alias inside its own anchor and keys that are no texts are refused.
3. A duplicate key is refused; the first one counts.
4. `{{ … }}` without quotes is a mapping for YAML. It is refused with its intended meaning.

Sections:

- Unquoted YAML scalars by the core schema of YAML 1.2: `no`, `on` and `1:30` are words.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, TypeAlias

import attrs
import yaml
from yaml import events
from yaml._yaml import CParser

from ..lint.rules import RULES
from .findings import Finding, Fix, Severity

# --- Unquoted YAML scalars by the core schema of YAML 1.2: `no` ---------------------------------------------------


Plain: TypeAlias = str | int | float | bool | None

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WHOLE = re.compile(r"[-+]?[0-9]{1,19}\Z")
_OTHER_WHOLE = re.compile(r"0(?:o[0-7]{1,21}|x[0-9a-fA-F]{1,15})\Z")
_REAL = re.compile(r"[-+]?(?:\.[0-9]{1,40}|[0-9]{1,40}(?:\.[0-9]{0,40})?)(?:[eE][-+]?[0-9]{1,3})?\Z")
_INFINITE = re.compile(r"([-+]?)\.(?:inf|Inf|INF)\Z")
_LARGEST = 2**63

YES_AND_NO = dict.fromkeys(("yes", "y", "on"), True) | dict.fromkeys(("no", "n", "off"), False)
"""Booleans of YAML 1.1, in lower case."""


def meaning(word: str) -> Plain:
    """Return a plain scalar's value; an oversized number is a text."""
    if word in _NULLS:
        return None
    if word in _TRUTHS:
        return _TRUTHS[word]
    if word[0] not in "-+.0123456789":
        return word
    return _number(word)


def _number(word: str) -> Plain:
    if _WHOLE.match(word):
        return _bounded(int(word), word)
    if _OTHER_WHOLE.match(word):
        return _bounded(int(word, 0), word)
    if _REAL.match(word):
        return float(word)
    infinite = _INFINITE.match(word)
    if infinite:
        return float(f"{infinite.group(1)}inf")
    return float("nan") if word in (".nan", ".NaN", ".NAN") else word


def _bounded(number: int, word: str) -> Plain:
    return number if -_LARGEST <= number < _LARGEST else word


_SAFE = re.compile(r"[A-Za-z_][\w ./:-]*(?<![ :])\Z", re.ASCII)


def written(value: str | bool | int | float | None) -> str:
    """Return a scalar on one line, quoted if needed."""
    if isinstance(value, str):
        return value if _needs_no_quotes(value) else quoted(value)
    return json.dumps(value)


def written_like(style: str, value: str) -> str:
    """Return a text in the quotes of another scalar, if any."""
    if style == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return json.dumps(value, ensure_ascii=False) if style in ("'", '"') else written(value)


def _needs_no_quotes(text: str) -> bool:
    plain = _SAFE.match(text) is not None and ": " not in text and " #" not in text
    return plain and meaning(text) == text and text.lower() not in YES_AND_NO


def quoted(text: str) -> str:
    """Return a text in double quotes, or single if it has double."""
    simple = '"' not in text or not text.isprintable()
    if simple or "'" in text:
        return json.dumps(text, ensure_ascii=False)
    return f"'{text}'"


# --- YAML as a tree of nodes with positions -----------------------------------------------------------------------


MOST_LEVELS = 60
MOST_VALUES = 50_000


@attrs.define(slots=True, eq=False, repr=False)
class Scalar:
    """One text, number, truth or nothing."""

    start: int
    end: int
    value: Plain
    style: str
    """As YAML has it: `''` plain, `'`, `"`, `|` or `>`."""
    weight: int = 1
    depth: int = 1
    shared: bool = False
    """Whether an alias refers to it, so edits affect several places."""


@attrs.define(slots=True, eq=False, repr=False)
class Sequence:
    """A list."""

    start: int
    end: int
    items: list[Node]
    flow: bool
    weight: int = 1
    depth: int = 1
    shared: bool = False


@attrs.define(slots=True, eq=False, repr=False)
class Mapping:
    """Values by text keys; `True` and `1` are kept as source text."""

    start: int
    end: int
    pairs: list[tuple[Scalar, Node]]
    flow: bool
    weight: int = 1
    depth: int = 1
    shared: bool = False

    def get(self, key: str) -> Node | None:
        """Return the value of a key."""
        return next((value for name, value in self.pairs if key_of(name) == key), None)

    def key(self, key: str) -> Scalar | None:
        """Return the node of a key itself."""
        return next((name for name, _ in self.pairs if key_of(name) == key), None)


Node: TypeAlias = Scalar | Sequence | Mapping


def key_of(node: Scalar) -> str:
    """Return the name of a key."""
    if isinstance(node.value, str):
        return node.value
    return {True: "true", False: "false", None: "null"}.get(node.value, str(node.value))  # type: ignore[arg-type]


@attrs.frozen(kw_only=True)
class YamlProblem:
    """YAML problem: a rule, a position, and a sentence."""

    rule: str
    at: int
    message: str
    end: int | None = None
    """End position, if the problem is a span."""


class Refused(Exception):
    """The text cannot be read any further."""

    def __init__(self, trouble: YamlProblem) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


@attrs.define
class Composed:
    """Parsed document, if any, and the non-fatal problems."""

    root: Node | None
    troubles: list[YamlProblem]


def compose(text: str) -> Composed:
    """Return the nodes of a text; `Refused` where nothing can be read."""
    return _Composer(text).document()


class _Composer:
    def __init__(self, text: str) -> None:
        self._parser = CParser(text)
        self._troubles: list[YamlProblem] = []
        self._anchors: dict[str, Node | None] = {}
        self._open: list[tuple[Sequence | Mapping, list[Node], str | None]] = []
        self._shared: list[Node] = []
        self._values = 0

    def document(self) -> Composed:
        root: Node | None = None
        documents = 0
        for event in self._events():
            if isinstance(event, events.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise Refused(_limit(event, "a blueprint is one document; put the other into a file of its own"))
            node = self._node(event)
            if node is not None and not self._open:
                root = node
        self._share_descendants()
        return Composed(root, self._troubles)

    def _share_descendants(self) -> None:
        """Mark the descendants of shared nodes as shared."""
        for target in self._shared:
            for each in walk(target):
                each.shared = True

    def _events(self) -> Iterator[object]:
        while True:
            event = self._parser.get_event()
            if event is None:
                return
            yield event
            if isinstance(event, events.StreamEndEvent):
                return

    def _node(self, event: object) -> Node | None:
        """Return the node that is complete with this event."""
        match event:
            case events.ScalarEvent():
                return self._scalar(event)
            case events.AliasEvent():
                return self._alias(event)
            case events.SequenceStartEvent():
                self._begin(event, Sequence(_start(event), 0, [], bool(event.flow_style)))
            case events.MappingStartEvent():
                self._begin(event, Mapping(_start(event), 0, [], bool(event.flow_style)))
            case events.SequenceEndEvent() | events.MappingEndEvent():
                return self._end(event)
        return None

    def _scalar(self, event: Any) -> Node:
        _refuse_tag(event)
        value = meaning(event.value) if event.implicit[0] else event.value
        node = Scalar(event.start_mark.index, event.end_mark.index, value, event.style or "")
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return self._complete(event, node)

    def _alias(self, event: Any) -> Node:
        known = event.anchor in self._anchors
        target = self._anchors.get(event.anchor)
        if target is None:
            why = "is inside its own anchor" if known else "names nothing before it"
            raise Refused(_limit(event, f"the alias *{event.anchor} {why}"))
        if not target.shared:
            target.shared = True
            self._shared.append(target)
        return self._complete(event, target)

    def _begin(self, event: events.CollectionStartEvent, node: Sequence | Mapping) -> None:
        _refuse_tag(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if len(self._open) >= MOST_LEVELS:
            raise Refused(_limit(event, f"a blueprint has at most {MOST_LEVELS} levels"))
        self._open.append((node, [], event.anchor))

    def _end(self, event: Any) -> Node:
        node, inside, anchor = self._open.pop()
        node.end = event.end_mark.index
        node.weight = 1 + sum(each.weight for each in inside)
        node.depth = 1 + max((each.depth for each in inside), default=0)
        if isinstance(node, Sequence):
            node.items = inside
        else:
            node.pairs = self._pairs(node, inside)
        if anchor is not None:
            self._anchors[anchor] = node
        return self._complete(event, node)

    def _complete(self, event: events.Event, node: Node) -> Node:
        self._values += node.weight if isinstance(event, events.AliasEvent) else 1
        if self._values > MOST_VALUES:
            raise Refused(_limit(event, f"a blueprint has at most {MOST_VALUES:,} values, with those behind aliases"))
        if len(self._open) + node.depth > MOST_LEVELS + 1:
            raise Refused(_limit(event, f"a blueprint has at most {MOST_LEVELS} levels, with those behind aliases"))
        if self._open:
            self._open[-1][1].append(node)
        return node

    def _pairs(self, mapping: Mapping, inside: list[Node]) -> list[tuple[Scalar, Node]]:
        pairs: list[tuple[Scalar, Node]] = []
        seen: set[str] = set()
        for key, value in zip(inside[::2], inside[1::2], strict=True):
            if not isinstance(key, Scalar):
                self._troubles.append(_no_key(mapping, key))
            elif key.value == "<<" and key.style == "":
                self._report(
                    "V-Y4", key, "the merge key << is not read; write the keys out, or use an alias for a value"
                )
            elif key_of(key) in seen:
                self._report("V-Y2", key, f"the key {key_of(key)!r} occurs twice here; remove one of them")
            else:
                seen.add(key_of(key))
                pairs.append((key, value))
        return pairs

    def _report(self, rule: str, node: Node, message: str) -> None:
        self._troubles.append(YamlProblem(rule=rule, at=node.start, message=message))


def _start(event: Any) -> int:
    return int(event.start_mark.index)


def _no_key(mapping: Mapping, key: Node) -> YamlProblem:
    if mapping.flow and isinstance(key, Mapping) and key.flow and key.start == mapping.start + 1:
        return unquoted(mapping.start, mapping.end)
    return YamlProblem(rule="V-K2", at=key.start, message="a key must be a text, not a list or a mapping")


def unquoted(start: int, end: int) -> YamlProblem:
    """Return the problem of braces that YAML parses as a mapping."""
    message = "put quotes around the template: YAML reads {{ … }} without them as a mapping"
    return YamlProblem(rule="V-Y3", at=start, message=message, end=end)


def _refuse_tag(event: events.ScalarEvent | events.CollectionStartEvent) -> None:
    if event.tag is not None and event.tag != "!":
        raise Refused(_limit(event, f"tags are not read: remove {str(event.tag)[:60]!r}"))


def _limit(event: Any, message: str) -> YamlProblem:
    return YamlProblem(rule="V-Y4", at=event.start_mark.index, message=message)


def data_of(node: Node | None) -> object:
    """Return the plain data of a node, every alias written out."""
    match node:
        case None:
            return None
        case Scalar():
            return node.value
        case Sequence():
            return [data_of(each) for each in node.items]
        case Mapping():
            return {key_of(key): data_of(value) for key, value in node.pairs}


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and its descendants, each once regardless of aliases."""
    pending: list[Node] = [node]
    seen: set[int] = set()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        match each:
            case Sequence():
                pending.extend(reversed(each.items))
            case Mapping():
                pending.extend(item for pair in reversed(each.pairs) for item in reversed(pair))


YamlError = yaml.YAMLError


MOST_BYTES = 1024 * 1024
"""No blueprint is longer."""

BOM = "\ufeff"
_LINE_END = re.compile(r"\r\n|\n|\r")


@attrs.frozen(eq=False)
class Source:
    """The text of one file, without its byte order mark."""

    file: str
    """File name in findings."""
    text: str
    has_bom: bool = False
    _lines: list[int] = attrs.field(init=False, repr=False)

    @_lines.default
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in _LINE_END.finditer(self.text))]

    @classmethod
    def of(cls, file: str, text: str) -> Source:
        """Return the source of a text with an optional byte order mark."""
        return cls(file, text.removeprefix(BOM), text.startswith(BOM))

    @property
    def newline(self) -> str:
        """Return the line ending of the file, as of its first line."""
        found = _LINE_END.search(self.text)
        return found.group() if found else "\n"

    def place(self, at: int) -> tuple[int, int]:
        """Line and column of a character, both counted from 1."""
        line = bisect_right(self._lines, at)
        return line, at - self._lines[line - 1] + 1

    def line_start(self, at: int) -> int:
        """Return the start of a position's line."""
        return self._lines[bisect_right(self._lines, at) - 1]

    def line_end(self, at: int) -> int:
        """Return the end of a position's line, before its line break."""
        found = _LINE_END.search(self.text, at)
        return found.start() if found else len(self.text)

    def next_line(self, at: int) -> int:
        """Return the start of the next line, or the text's end."""
        found = _LINE_END.search(self.text, at)
        return found.end() if found else len(self.text)

    def with_text(self, text: str) -> Source:
        """Return the same file with another text."""
        return attrs.evolve(self, text=text)

    @property
    def whole(self) -> str:
        """Return the text as stored in the file."""
        return BOM + self.text if self.has_bom else self.text


@attrs.define
class FindingCollector:
    """The findings of one file."""

    source: Source
    findings: list[Finding] = attrs.field(factory=list)

    def report(
        self, rule: str, at: Node | int, message: str, *, severity: Severity | None = None, fix: Fix | None = None
    ) -> None:
        """Put down a finding at a node or a place."""
        place = at if isinstance(at, int) else at.start
        line, column = self.source.place(place)
        self.findings.append(
            Finding(
                rule=rule,
                severity=severity or RULES[rule].severity,
                file=self.source.file,
                line=line,
                column=column,
                message=message,
                fix=fix,
                at=place,
            )
        )
