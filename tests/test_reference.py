"""The reference: each field of a public class and each parameter of a public function has its sentence."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"^::: (flujo_actors\.\S+)\n((?:    .*\n)*)", re.MULTILINE)
DESCRIBING = {"parameters", "other parameters", "attributes"}


@cache
def entries() -> dict[str, dict[str, Any]]:
    """Options of each entry of the reference, by the public name."""
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    found = (each for page in pages for each in ENTRY.findall(page.read_text(encoding="utf-8")))
    return {name: (yaml.safe_load(below) or {}).get("options", {}) if below else {} for name, below in found}


@cache
def package() -> griffe.ModulesCollection:
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"], docstring_parser="google")
    loader.load("flujo_actors")
    loader.resolve_aliases()
    return loader.modules_collection


@cache
def hidden() -> tuple[re.Pattern[str], ...]:
    """Patterns of the members that the site leaves out."""
    plugins = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["plugins"]
    (found,) = (each["mkdocstrings"] for each in plugins if "mkdocstrings" in each)
    filters = found["handlers"]["python"]["options"]["filters"]
    return tuple(re.compile(each[1:]) for each in filters if each.startswith("!"))


def is_shown(name: str, options: dict[str, Any]) -> bool:
    listed = options.get("members", True)
    named = listed if isinstance(listed, bool) else name in listed
    return named and not any(pattern.search(name) for pattern in hidden())


def found(name: str) -> griffe.Object:
    there = package()[name]
    return there.final_target if isinstance(there, griffe.Alias) else there


def described(documented: griffe.Object | None) -> set[str]:
    """Return the names that the docstring of a class or a function describes."""
    if documented is None or documented.docstring is None:
        return set()
    sections = documented.docstring.parse("google", warnings=False)
    return {each.name.lstrip("*") for part in sections if part.kind.value in DESCRIBING for each in part.value}


def parameters(function: griffe.Object | None) -> list[str]:
    names = [each.name.lstrip("*") for each in function.parameters] if isinstance(function, griffe.Function) else []
    return [name for name in names if name not in {"self", "cls"} and not name.startswith("_")]


def members(owner: griffe.Class) -> dict[str, griffe.Object]:
    """Return the members of a class, inherited ones included."""
    every = {**owner.inherited_members, **owner.members}
    return {name: each.final_target if isinstance(each, griffe.Alias) else each for name, each in every.items()}


def is_field(member: griffe.Object) -> bool:
    """Return whether it is an annotated attribute that differs from value to value."""
    if not isinstance(member, griffe.Attribute) or member.annotation is None:
        return False
    return "instance-attribute" in member.labels or "class-attribute" not in member.labels


def is_port(owner: griffe.Class) -> bool:
    """Return whether only the library calls the methods, which state guarantees."""
    return any(str(base).startswith("Protocol") for base in owner.bases)


def lacking_in_class(name: str, owner: griffe.Class) -> Iterator[str]:
    options, every = entries()[name], members(owner)
    init = owner.members.get("__init__") if options.get("merge_init_into_class", True) else None
    fields = {each: member for each, member in every.items() if is_field(member)}
    there = described(owner) | described(init) | {each for each, field in fields.items() if field.docstring}
    there |= {"message"} if owner.filepath.name == "errors.py" else set()
    yield from (f"{name}({each})" for each in parameters(init) if each not in there)
    yield from (f"{name}.{each}" for each in fields if is_shown(each, options) and each not in there)
    for method, function in () if is_port(owner) else every.items():
        if is_shown(method, options):
            twin = every.get(re.sub("_a?sync$", "", method))
            yield from lacking_in_function(f"{name}.{method}", function, described(twin))


def lacking_in_function(name: str, function: griffe.Object, of_twin: set[str]) -> Iterator[str]:
    there = of_twin | described(function)
    yield from (f"{name}({each})" for each in parameters(function) if each not in there)


def test_every_field_and_parameter_of_a_public_name_has_its_sentence() -> None:
    """A reader of the reference learns the meaning of each without the source."""
    assert len(entries()) > 300
    assert {name: missing for name in entries() if (missing := lacking(name))} == {}


def lacking(name: str) -> list[str]:
    public = found(name)
    if isinstance(public, griffe.Class):
        return [*lacking_in_class(name, public)]
    return [*lacking_in_function(name, public, set())]


def test_the_site_shows_the_constructor_of_an_attrs_class() -> None:
    """A parameter has its type and its default, not "required", though no source text has the constructor."""
    backoff = found("flujo_actors.Backoff")
    assert isinstance(backoff, griffe.Class)
    runpy.run_path(str(ROOT / ".ci" / "attrs_constructors.py"))["add_constructor"](backoff)
    parameters = {each.name: each for each in backoff.parameters}
    assert (str(parameters["first"].annotation), parameters["first"].default) == ("float", "0.1")


def test_an_entry_without_members_shows_no_inherited_ones() -> None:
    """Inherited members of such an entry would be shown past the filters, private ones too."""
    hiding = {name: options for name, options in entries().items() if options.get("members") is False}
    assert len(hiding) > 5
    assert [name for name, options in hiding.items() if options.get("inherited_members") is not False] == []
