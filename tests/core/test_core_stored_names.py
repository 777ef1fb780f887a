"""Names of the package's own classes in stored data, which outlive the modules they are defined in."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import FunctionType

import pytest

import flujo_actors
from flujo_actors import Decision, from_json, load_blueprint, to_json
from flujo_actors._core import type_registry
from flujo_actors._durable.fingerprint import Fingerprint

PACKAGE = "flujo_actors."
FROZEN = Path(__file__).with_name("stored_names.txt")
BLUEPRINT = "steps: [{name: a, uses: builtins.passthrough, input: '{{ input }}'}]\n"


def test_a_stored_value_keeps_the_name_of_its_class() -> None:
    """A value is written and read under the name that earlier releases wrote."""
    decision = Decision("yes", by="ann")
    text = to_json(decision)
    assert '"flujo_actors._core.approvals.Decision"' in text
    assert from_json(text, Decision) == decision


def test_a_fingerprint_keeps_the_names_of_templates(tmp_path: Path) -> None:
    """A run that an earlier release stored can be resumed by its blueprint."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(BLUEPRINT, encoding="utf-8")
    assert "flujo_actors._blueprint.templates.Input " in repr(Fingerprint.of(load_blueprint(file)).data())


def names_now() -> set[str]:
    """The stored names of everything public, and of what has moved since it was stored first."""
    public = (getattr(flujo_actors, name) for name in flujo_actors.__all__)
    ours = [each for each in public if isinstance(each, type | FunctionType) and each.__module__.startswith(PACKAGE)]
    kept = {type_registry.type_name(each) if isinstance(each, type) else _name(each) for each in ours}
    return kept | {PACKAGE + name for name in type_registry._STORED_AS.values()}


def _name(function: FunctionType) -> str:
    return type_registry.stored_name(f"{function.__module__}.{function.__qualname__}")


def test_stored_names_are_frozen() -> None:
    """A new name adds a line to the file, and no line of a released version changes or goes."""
    assert sorted(names_now()) == FROZEN.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", sorted(type_registry._STORED_AS))
def test_every_stored_name_belongs_to_something(name: str) -> None:
    """A class that moves again takes its line along."""
    module, _, attribute = f"flujo_actors.{name}".rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    assert type_registry.stored_name(f"{found.__module__}.{found.__qualname__}") != f"flujo_actors.{name}"
