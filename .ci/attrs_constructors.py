"""Griffe extension of the docs site: constructors of attrs classes, which no source text has."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import attrs
import griffe

KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
}


class AttrsConstructors(griffe.Extension):
    """Adds the `__init__` that attrs makes, with types and defaults."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for module in modules(pkg):
            for owner in [each for each in module.members.values() if isinstance(each, griffe.Class)]:
                add_constructor(owner)


def modules(module: griffe.Module) -> list[griffe.Module]:
    inside = [each for each in module.members.values() if isinstance(each, griffe.Module)]
    return [module, *(each for one in inside for each in modules(one))]


def add_constructor(owner: griffe.Class) -> None:
    if "__init__" in owner.members or not is_attrs(owner):
        return
    made = getattr(importlib.import_module(owner.module.path), owner.name)
    if not attrs.has(made) or "__init__" not in vars(made):
        return
    found = [
        parameter(owner, made, each)
        for each in inspect.signature(made.__init__).parameters.values()
        if each.kind in KINDS
    ]
    constructor = griffe.Function("__init__", parameters=griffe.Parameters(*found))
    owner.set_member("__init__", constructor)
    for each in owner.members.values():
        if isinstance(each, griffe.Attribute) and str(each.value).startswith("attrs."):
            each.value = None


def is_attrs(owner: griffe.Class) -> bool:
    return any(str(each.value).startswith("attrs.") for each in owner.decorators)


def parameter(owner: griffe.Class, made: type, given: inspect.Parameter) -> griffe.Parameter:
    declared = owner.all_members.get(given.name)
    annotation = getattr(declared, "annotation", None)
    return griffe.Parameter(given.name, annotation=annotation, kind=KINDS[given.kind], default=default(made, given))


def default(made: type, given: inspect.Parameter) -> str | None:
    """Return the text of a default, of a factory that of the value it makes."""
    if given.default is inspect.Parameter.empty:
        return None
    field = next((each for each in attrs.fields(made) if each.alias == given.name), None)
    factory = field.default if field is not None else None
    if isinstance(factory, attrs.Factory):  # type: ignore[arg-type]
        return made_by(factory.factory)
    shown = repr(given.default)
    return "…" if shown.startswith("<") else shown


def made_by(factory: Any) -> str:
    name = getattr(factory, "__name__", "<lambda>")
    if factory in {dict, list, tuple, set, frozenset}:
        return repr(factory())
    return "…" if name.startswith("<") else f"{name}()"
