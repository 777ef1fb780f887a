"""YAML as a tree of nodes that know where they stand. The grammar is YAML's, the language less (a safe subset).

Rules:

1. Depth and number of values are counted while the text is read, values behind aliases each time they are used: a text
   that is too deep or too wide is refused before anybody walks through it.
2. Tags, merge keys, a second document, an alias inside its own anchor and keys that are no texts are refused.
3. A key that stands twice is refused; the first one counts.
4. `{{ … }}` without quotes is a mapping for YAML. It is refused as what it was meant to be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import attrs
import yaml
from yaml import events
from yaml._yaml import CParser

from .scalars import Plain, meaning

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
    """Whether an alias refers to it, so that an edit of it would be one of several places."""


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
    """Values by keys, which are texts; `True` and `1` as keys are the texts they are written as."""

    start: int
    end: int
    pairs: list[tuple[Scalar, Node]]
    flow: bool
    weight: int = 1
    depth: int = 1
    shared: bool = False

    def get(self, key: str) -> Node | None:
        """The value of a key."""
        return next((value for name, value in self.pairs if key_of(name) == key), None)

    def key(self, key: str) -> Scalar | None:
        """The node of a key itself."""
        return next((name for name, _ in self.pairs if key_of(name) == key), None)


Node: TypeAlias = Scalar | Sequence | Mapping


def key_of(node: Scalar) -> str:
    """What a key is called."""
    if isinstance(node.value, str):
        return node.value
    return {True: "true", False: "false", None: "null"}.get(node.value, str(node.value))  # type: ignore[arg-type]


@attrs.frozen(kw_only=True)
class Trouble:
    """What is wrong with a text as YAML: a rule, a place, and a sentence."""

    rule: str
    at: int
    message: str
    end: int | None = None
    """Where the trouble ends, if it is a stretch of text."""


class Refused(Exception):
    """The text cannot be read any further."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


@attrs.define
class Composed:
    """A document, if there is one, and the trouble that did not keep it from being read."""

    root: Node | None
    troubles: list[Trouble]


def compose(text: str) -> Composed:
    """The nodes of a text; `Refused` where nothing can be read."""
    return _Composer(text).document()


class _Composer:
    def __init__(self, text: str) -> None:
        self._parser = CParser(text)
        self._troubles: list[Trouble] = []
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
        self._share_what_is_inside()
        return Composed(root, self._troubles)

    def _share_what_is_inside(self) -> None:
        """What stands inside a shared node is shared with it."""
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
        """The node that is complete with this event."""
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
            why = "stands inside what it names" if known else "names nothing before it"
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
                self._tell("V-Y4", key, "the merge key << is not read; write the keys out, or use an alias for a value")
            elif key_of(key) in seen:
                self._tell("V-Y2", key, f"the key {key_of(key)!r} stands here twice; remove one of them")
            else:
                seen.add(key_of(key))
                pairs.append((key, value))
        return pairs

    def _tell(self, rule: str, node: Node, message: str) -> None:
        self._troubles.append(Trouble(rule=rule, at=node.start, message=message))


def _start(event: Any) -> int:
    return int(event.start_mark.index)


def _no_key(mapping: Mapping, key: Node) -> Trouble:
    if mapping.flow and isinstance(key, Mapping) and key.flow and key.start == mapping.start + 1:
        return unquoted(mapping.start, mapping.end)
    return Trouble(rule="V-K2", at=key.start, message="a key must be a text, not a list or a mapping")


def unquoted(start: int, end: int) -> Trouble:
    """What is said of braces that YAML takes for a mapping."""
    told = "put quotes around the template: YAML reads {{ … }} without them as a mapping"
    return Trouble(rule="V-Y3", at=start, message=told, end=end)


def _refuse_tag(event: events.ScalarEvent | events.CollectionStartEvent) -> None:
    if event.tag is not None and event.tag != "!":
        raise Refused(_limit(event, f"tags are not read: remove {str(event.tag)[:60]!r}"))


def _limit(event: Any, message: str) -> Trouble:
    return Trouble(rule="V-Y4", at=event.start_mark.index, message=message)


def data_of(node: Node | None) -> object:
    """The plain data of a node, every alias written out."""
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
    """The node and everything below it, each once however many aliases name it."""
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
