"""Parser from nodes to the model by the table of fields."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ... import errors
from ..._core.validators import nearest
from ..lint import unsupported_keys
from ..lint.edits import renaming, replacing
from ..lint.step_references import read_agent_key, read_function, read_uses
from . import field_table
from .blueprint_model import AgentEntry, Entries
from .field_table import BlueprintField, fields_of
from .nodes import YES_AND_NO, FindingCollector, Mapping, Node, Scalar, Sequence, data_of, key_of, meaning

_GROUPS_OF_STEPS = frozenset(field_table.STEP_KINDS)


class FieldParser:
    """Reads one file."""

    def __init__(self, collector: FindingCollector) -> None:
        self._told = collector
        self.report = collector.report
        self._steps_of_agents: dict[int, Mapping] = {}

    # --- mappings

    def group(self, node: Node | None, group: str, where: str) -> Entries | None:
        """Return the entries of a mapping with the keys of a group."""
        if not isinstance(node, Mapping):
            if node is not None:
                self.report("V-K2", node, f"{where} must be a mapping with keys such as {_some(group)}")
            return None
        entries: Entries = {}
        for key, value in node.pairs:
            field = self._field(node, key, value, group, where)
            if field is not None and field.name in entries:
                self.report("V-Y2", key, f"the key {field.name!r} occurs twice here, once in its old spelling")
            elif field is not None:
                entry = self.entry(field, key, value, group, where)
                if entry is not None:
                    entries[field.name] = entry
        self._report_missing(node, entries, group, where)
        return entries

    def _report_missing(self, node: Mapping, entries: Entries, group: str, where: str) -> None:
        wanted = [field for field in fields_of(group).values() if field.required and field.name not in entries]
        missing = [field for field in wanted if not _given(node, field)]
        meant = {nearest(key_of(key), list(fields_of(group))) for key, _ in node.pairs} if missing else set()
        for field in missing:
            if field.name not in meant:  # a misspelled key is already reported
                self._missing(node, field, where)

    def _missing(self, node: Mapping, field: BlueprintField, where: str) -> None:
        if isinstance(field.kind, field_table.Uses):
            return  # V-A1 reports it
        at = node.key("name") or node
        self.report("V-K2", at, f"{where} needs `{field.name}`: {_first_lower(field.doc)}")

    def _field(self, mapping: Mapping, key: Scalar, value: Node, group: str, where: str) -> BlueprintField | None:
        name = key_of(key)
        known = fields_of(group).get(name)
        if known is not None:
            return known
        old = field_table.OLD_SPELLINGS[group].get(name)
        if old is not None:
            self._old_key(mapping, key, value, old)
            return old
        self._unknown(mapping, key, group, where)
        return None

    def _old_key(self, mapping: Mapping, key: Scalar, value: Node, field: BlueprintField) -> None:
        if field.name == "uses":
            self._steps_of_agents[id(key)] = mapping  # its contents determine the suggestion: see `_uses`
            return
        fix = renaming(mapping, key, field.name, safe=True)
        self.report("V-K4", key, f"`{key_of(key)}` is called `{field.name}` now", fix=fix)

    def _unknown(self, mapping: Mapping, key: Scalar, group: str, where: str) -> None:
        name = key_of(key)
        refused = _refused_key(group, name)
        if refused is not None:
            self.report("V-K3", key, f"`{name}` is not of this language: {refused}")
            return
        if name in field_table.ONLY_IN_PYTHON and group in (*_GROUPS_OF_STEPS, "blueprint"):
            self.report("V-K5", key, _only_in_python(name))
            return
        known = list(fields_of(group))
        near = nearest(name, known)
        hint = f"did you mean `{near}`?" if near else f"it has {', '.join(known)}"
        fix = renaming(mapping, key, near, safe=False) if near and mapping.key(near) is None else None
        self.report("V-K1", key, f"{where} has no key `{name[:60]}`: {hint}", fix=fix)

    # --- values

    def entry(self, field: BlueprintField, key: Scalar, node: Node, group: str, where: str) -> AgentEntry | None:
        """Return the entry of a key, if its value's kind fits."""
        value = self.value(field.kind, node, key, f"`{field.name}` of {where}", (group, field.name))
        return None if value is _WRONG else AgentEntry(field, key, node, value)

    def value(self, kind: field_table.Kind, node: Node, key: Scalar, where: str, place: tuple[str, str]) -> Any:
        """Return a node's value for its kind; `_WRONG` for another kind."""
        match kind:
            case field_table.TextField():
                return self._text(node, key, where, nullable=kind.nullable)
            case field_table.Expression():
                return self._expression(node, key, where)
            case field_table.Flag():
                return self._flag(node, key, where)
            case field_table.Number():
                return self._number(kind, node, key, where)
            case field_table.OneOf():
                return self._word(kind, node, key, where, place)
            case field_table.Anything():
                return data_of(node)
            case field_table.Table():
                return self._table(node, key, where)
            case field_table.SchemaField():
                return self._schema(kind, node, key, where)
            case field_table.Uses():
                return self._uses(node, key)
            case field_table.Function():
                return self._function(node, key, where)
            case field_table.FailureRule():
                return self._failure_rule(node, key, where)
            case field_table.ListOf():
                return self._list(kind, node, key, where, place)
            case field_table.TableOf():
                return self._table_of(kind, node, key, where, place)
            case field_table.Group():
                found = self.group(node, kind.name, where)
                return _WRONG if found is None else found
            case field_table.Steps() | field_table.OneStep():
                return node  # parsed by the caller that knows their position
            case field_table.Either():
                return self._either(kind, node, key, where, place)

    def _wrong(self, node: Node, key: Scalar, where: str, wanted: str) -> object:
        self.report("V-K2", key, f"{where} must be {wanted}, not {described(node)}")
        return _WRONG

    def _text(self, node: Node, key: Scalar, where: str, *, nullable: bool) -> object:
        if isinstance(node, Scalar):
            if nullable and node.value is None:
                return None
            if isinstance(node.value, str) and node.value:
                return node.value
            if isinstance(node.value, int | float) and not isinstance(node.value, bool):
                return self._told.source.text[node.start : node.end]  # a name such as 2024: as it is written
        return self._wrong(node, key, where, "a text")

    def _expression(self, node: Node, key: Scalar, where: str) -> Any:
        if isinstance(node, Scalar) and node.value is not None:
            return node.value if isinstance(node.value, str) else self._told.source.text[node.start : node.end]
        return self._wrong(node, key, where, "an expression")

    def _flag(self, node: Node, key: Scalar, where: str) -> object:
        if not isinstance(node, Scalar):
            return self._wrong(node, key, where, "true or false")
        if isinstance(node.value, bool):
            return node.value
        meant = _meant_truth(node.value)
        if meant is None:
            return self._wrong(node, key, where, "true or false")
        fix = replacing(node, "true" if meant else "false", meant, safe=True)
        self.report("V-K2", key, f"{where} must be true or false: {node.value!r} is a word in YAML 1.2", fix=fix)
        return _WRONG

    def _number(self, kind: field_table.Number, node: Node, key: Scalar, where: str) -> Any:
        value = node.value if isinstance(node, Scalar) else None
        if kind.nullable and isinstance(node, Scalar) and value is None:
            return None
        if isinstance(value, str) and isinstance(node, Scalar) and node.style in ("'", '"'):
            value = self._number_in_quotes(node, key, where)
        wanted = _wanted(kind)
        if isinstance(value, bool) or not isinstance(value, int | float) or (kind.whole and value != int_of(value)):
            self.report("V-A7", key, f"{where} must be {wanted}, not {described(node)}")
            return _WRONG
        small = value <= kind.least if kind.above else value < kind.least
        if small or not value < float("inf") or (kind.most is not None and value > kind.most):
            self.report("V-A7", key, f"{where} must be {wanted}, not {value:g}")
            return _WRONG
        return int(value) if kind.whole else value

    def _number_in_quotes(self, node: Scalar, key: Scalar, where: str) -> Any:
        meant = meaning(str(node.value).strip() or "-")
        if isinstance(meant, bool) or not isinstance(meant, int | float):
            return node.value
        fix = replacing(node, str(node.value).strip(), meant, safe=True)
        self.report("V-K4", key, f"{where} is a number: write it without quotes", fix=fix)
        return meant

    def _word(self, kind: field_table.OneOf, node: Node, key: Scalar, where: str, place: tuple[str, str]) -> object:
        value = node.value if isinstance(node, Scalar) else None
        word = value if isinstance(value, str) else f"{value:g}" if isinstance(value, int | float) else None
        if word in kind.words and not isinstance(value, bool):
            return word
        refused = unsupported_keys.WORDS.get(place, {}).get(str(word))
        if refused is not None:
            self.report("V-K3", key, f"`{place[1]}: {word}` is not of this language: {refused}")
            return _WRONG
        near = nearest(str(word), list(kind.words), cutoff=0.5) if isinstance(value, str) else None
        hint = f"; did you mean `{near}`?" if near else ""
        self.report("V-K2", key, f"{where} must be one of {', '.join(kind.words)}, not {described(node)}{hint}")
        return _WRONG

    def _table(self, node: Node, key: Scalar, where: str) -> object:
        return data_of(node) if isinstance(node, Mapping) else self._wrong(node, key, where, "a mapping")

    def _schema(self, kind: field_table.SchemaField, node: Node, key: Scalar, where: str) -> object:
        if isinstance(node, Mapping):
            return data_of(node)
        if kind.reference and isinstance(node, Scalar) and isinstance(node.value, str):
            if node.value.startswith("agents."):
                return node.value
            return self._wrong(node, key, where, "a JSON Schema, or `agents.X`")
        return self._wrong(node, key, where, "a JSON Schema")

    def _uses(self, node: Node, key: Scalar) -> object:
        step = self._steps_of_agents.get(id(key))
        found = read_uses(self._told, node, key) if step is None else read_agent_key(self._told, step, node, key)
        return _WRONG if found is None else found

    def _function(self, node: Node, key: Scalar, where: str) -> object:
        found = read_function(self._told, node, key, where)
        return _WRONG if found is None else found

    def _failure_rule(self, node: Node, key: Scalar, where: str) -> object:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
            return value
        if not isinstance(value, str):
            return self._wrong(node, key, where, "an HTTP status from 100 to 599 or the name of an exception")
        if value == "provider_errors" or exception_named(value) is not None:
            return value
        near = nearest(value, _exception_names())
        hint = f"; did you mean `{near}`?" if near else ""
        known = "an exception of Python, pydantic-ai or this library"
        self.report("V-K2", key, f"{where} must name {known}, not {described(node)}{hint}")
        return _WRONG

    def _list(self, kind: field_table.ListOf, node: Node, key: Scalar, where: str, place: tuple[str, str]) -> object:
        if not isinstance(node, Sequence):
            return self._wrong(node, key, where, "a list")
        values = [self.value(kind.item, item, _as_key(item, key), where, place) for item in node.items]
        return _WRONG if any(value is _WRONG for value in values) else values

    def _table_of(
        self, kind: field_table.TableOf, node: Node, key: Scalar, where: str, place: tuple[str, str]
    ) -> object:
        if not isinstance(node, Mapping):
            return self._wrong(node, key, where, "a mapping")
        if isinstance(kind.item, field_table.Steps | field_table.Group):
            return node  # agents and branches, read one by one
        values = {
            key_of(name): self.value(kind.item, value, name, f"{key_of(name)!r} in {where}", place)
            for name, value in node.pairs
        }
        return {name: value for name, value in values.items() if value is not _WRONG}

    def _either(self, kind: field_table.Either, node: Node, key: Scalar, where: str, place: tuple[str, str]) -> object:
        lists = isinstance(kind.other, field_table.Steps)
        chosen = kind.other if isinstance(node, Mapping) or (lists and isinstance(node, Sequence)) else kind.one
        return self.value(chosen, node, key, where, place)


_WRONG: object = object()
"""Marker of a value of the wrong kind, already reported."""


def _namespaces() -> Iterator[ModuleType]:
    yield builtins
    yield errors
    yield importlib.import_module("pydantic_ai.exceptions")  # by name: blueprints are read without pydantic-ai


def exception_named(name: str) -> type[BaseException] | None:
    """Return the exception of Python, pydantic-ai or ours, or None."""
    found = (vars(space).get(name) for space in _namespaces())
    return next((each for each in found if isinstance(each, type) and issubclass(each, BaseException)), None)


def _exception_names() -> list[str]:
    return [name for space in _namespaces() for name in vars(space) if exception_named(name) is not None]


def int_of(value: float) -> float:
    """Return the integer part of a number; non-finite numbers have none."""
    return int(value) if value == value and abs(value) != float("inf") else 0.5


def _as_key(item: Node, key: Scalar) -> Scalar:
    return item if isinstance(item, Scalar) else key


def _given(node: Mapping, field: BlueprintField) -> bool:
    return any(node.key(name) is not None for name in (field.name, *field.old))


def _only_in_python(name: str) -> str:
    reason = field_table.ONLY_IN_PYTHON[name]
    text = f"`{name}` can only be set in Python: "
    if name in field_table.OF_THE_RUN:
        return f"{text}`Flujo(…, {name}=…)` ({reason})"
    return f"{text}`Step(…, {name}=…)`; a blueprint names the step by `uses` ({reason})"


def _refused_key(group: str, name: str) -> str | None:
    where = "step" if group in _GROUPS_OF_STEPS else group
    return unsupported_keys.KEYS.get(where, {}).get(name)


def _some(group: str) -> str:
    return ", ".join(list(fields_of(group))[:3])


def _first_lower(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _meant_truth(value: object) -> bool | None:
    word = value.lower() if isinstance(value, str) else ""
    return {"true": True, "false": False}.get(word, YES_AND_NO.get(word))


def _wanted(kind: field_table.Number) -> str:
    what = "a whole number" if kind.whole else "a number"
    least = f"greater than {kind.least:g}" if kind.above else f"of at least {kind.least:g}"
    return f"{what} {least}" + (f" and at most {kind.most:g}" if kind.most is not None else "")


def described(node: Node) -> str:
    """Return a description of a value for messages."""
    match node:
        case Scalar(value=None):
            return "nothing"
        case Scalar(value=str() as text):
            return f"the text {text[:40]!r}"
        case Scalar():
            return str(data_of(node)).lower()
        case Sequence():
            return "a list"
        case Mapping():
            return "a mapping"
