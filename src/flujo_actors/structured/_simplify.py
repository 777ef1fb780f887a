"""A flat object of strings that a struggling model can fill in, and the way back to the real schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from ..errors import StructuredOutputError
from ._coerce import coerce
from ._fitting import container_in
from ._reader import read_structured
from ._references import resolved
from ._refusals import refusal, refusing
from ._schema import Schema, compile_schema

_MAX_DEPTH = 6
_LINE_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")


@attrs.frozen(kw_only=True)
class Slot:
    """One string of the flat object, and where its value belongs."""

    name: str
    path: tuple[str, ...]
    kind: str
    """What the string must spell: `text`, `number`, `boolean`, `lines` or `json`."""
    required: bool
    hint: str


@attrs.frozen(kw_only=True)
class SimplifiedSchema:
    """A flat schema and how to read what was filled in."""

    schema: Schema
    """The real one."""
    slots: tuple[Slot, ...]

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the flat object: strings only, nothing nested."""
        return {
            "type": "object",
            "properties": {s.name: {"type": "string", "description": s.hint} for s in self.slots},
            "required": [s.name for s in self.slots if s.required],
            "additionalProperties": False,
        }

    def restore(self, flat: Mapping[str, object]) -> Any:
        """The value of the real schema that `flat` spells; raises `StructuredOutputError` if it does not."""
        said = repr(dict(flat))
        with refusing("simplify", said, self.schema):
            value, _ = coerce(self._nested(flat), self.schema, container_in)
            flaws = self.schema.validate(value)
            if flaws:
                raise refusal("simplify", f"{flaws[0].path}: {flaws[0].message}", said, self.schema, flaws)
            return self.schema.construct(value)

    def _nested(self, flat: Mapping[str, object]) -> object:
        nested: dict[str, object] = {}
        for slot in self.slots:
            filled = flat.get(slot.name)
            if filled is not None and not (filled == "" and (slot.kind != "text" or not slot.required)):
                _put(nested, slot.path, _spelled(slot, filled))
        return nested.get("", nested)

    def read(self, text: str) -> Any:
        """The value of the real schema from a model's answer to the flat one."""
        try:
            flat = read_structured(text, self.json_schema).value
        except StructuredOutputError as error:
            error.stage = "simplify"
            raise
        return self.restore(flat)


def simplify(schema: object) -> SimplifiedSchema:
    """The flat form of `schema`: nested objects by dotted names, lists as lines or JSON, everything a string."""
    compiled = compile_schema(schema)
    root = compiled.json_schema
    slots = tuple(_slots(_meant(root, root), root, (), required=True))
    return SimplifiedSchema(schema=compiled, slots=slots)


def _slots(
    part: Mapping[str, Any], root: Mapping[str, object], path: tuple[str, ...], *, required: bool
) -> Iterator[Slot]:
    properties = part.get("properties")
    if not properties or len(path) >= _MAX_DEPTH:
        yield _slot(part, path or ("",), required)
        return
    for name, child in properties.items():
        needed = required and name in part.get("required", ())
        yield from _slots(_meant(child, root), root, (*path, name), required=needed)


def _slot(part: Mapping[str, object], path: tuple[str, ...], required: bool) -> Slot:
    kind, hint = _kind(part)
    said = str(part.get("description", "")).strip()
    name = ".".join(path) or "value"
    return Slot(name=name, path=path, kind=kind, required=required, hint=f"{said} ({hint})" if said else hint)


def _kind(part: Mapping[str, Any]) -> tuple[str, str]:
    if "enum" in part:
        return "text", "one of: " + ", ".join(str(member) for member in part["enum"])
    match part.get("type"):
        case "string":
            return "text", "text"
        case "integer":
            return "number", "a whole number"
        case "number":
            return "number", "a number"
        case "boolean":
            return "boolean", "true or false"
        case "array" if _is_scalar(part.get("items")):
            return "lines", "one item per line"
    return "json", "JSON text"


def _is_scalar(items: object) -> bool:
    return isinstance(items, Mapping) and items.get("type") in ("string", "number", "integer", "boolean")


def _meant(part: object, root: Mapping[str, object]) -> Mapping[str, object]:
    """What a part stands for; of an optional one, what it is if it is there."""
    part = resolved(part, root)
    variants = [v for v in part.get("anyOf", ()) if not (isinstance(v, Mapping) and v.get("type") == "null")]
    return resolved(variants[0], root) if len(variants) == 1 else part


def _put(nested: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for step in path[:-1]:
        nested = nested.setdefault(step, {})
    nested[path[-1]] = value


def _spelled(slot: Slot, filled: object) -> object:
    if slot.kind == "lines" and isinstance(filled, str) and not filled.lstrip().startswith("["):
        return [_LINE_MARK.sub("", line).strip() for line in filled.splitlines() if line.strip()]
    return filled
