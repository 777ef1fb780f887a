"""Stored data names models; only those this process knows are made, and nothing is imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from flujo_actors import Success, from_json
from flujo_actors._core.records.data_models import register_annotation
from flujo_actors._core.type_registry import register_type
from flujo_actors.errors import NotSerializable
from kit import preloaded

TRAP = """
from dataclasses import dataclass
open("sprung", "w").close()
@dataclass
class Bait:
    value: int = 0
"""
READER = """
import sys
from flujo_actors import Success, from_json
from flujo_actors.errors import NotSerializable
bait = '{"$":"model","type":"trap_module.Bait","value":{"value":1}}'
for text, kind in ((bait, object), ('{"kind":"success","step_result":{"name":"a","output":%s}}' % bait, Success)):
    try:
        from_json(text, kind)
    except NotSerializable as error:
        assert "trap_module.Bait" in str(error), error
    else:
        raise SystemExit("it was read")
assert "trap_module" not in sys.modules
import trap_module
assert from_json(bait, trap_module.Bait) == trap_module.Bait(1)
"""


@pytest.mark.slow
def test_a_module_is_not_imported_because_stored_data_names_it(tmp_path: Path) -> None:
    """A fresh process refuses the model of an importable module, and reads it once code names the class."""
    (tmp_path / "trap_module.py").write_text(TRAP)
    script = READER.replace(
        "import trap_module\n", "import os; assert not os.path.exists('sprung')\nimport trap_module\n"
    )
    preloaded.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=240)


@pytest.mark.parametrize("name", ["os.system", "subprocess.Popen", "antigravity.Anything", "builtins.eval"])
def test_a_name_that_is_no_registered_model_is_refused(name: str) -> None:
    """Knowing a module is not enough: its callables are no models."""
    with pytest.raises(NotSerializable, match=name):
        from_json(f'{{"$":"model","type":"{name}","value":{{}}}}', object)
    assert "antigravity" not in sys.modules


@attrs.frozen
class Inner:
    value: int


@attrs.frozen
class Outer:
    inner: list[Inner] | None


def stored(cls: type, value: str) -> str:
    return f'{{"$":"model","type":"{cls.__module__}.{cls.__qualname__}","value":{value}}}'


def test_naming_a_model_in_code_makes_it_known_with_its_fields() -> None:
    """An annotation registers the models in it and those of their fields, also through unions and lists."""
    register_annotation(dict[str, Outer | None])
    assert from_json(stored(Inner, '{"value":1}'), object) == Inner(1)
    assert from_json(f'{{"a":{stored(Outer, chr(123) + chr(34) + "inner" + chr(34) + ":null}")}}}', object) == {
        "a": Outer(None)
    }


def test_a_registered_type_can_be_read() -> None:
    """`register_type` is a decorator that lets one model be read."""

    @register_type
    @attrs.frozen
    class Local:
        value: Any

    assert from_json(stored(Local, '{"value":[1]}'), object) == Local([1])


def test_the_expected_type_is_known_by_being_expected() -> None:
    """Who asks for a model need not register it."""

    @attrs.frozen
    class Asked:
        value: int

    text = stored(Asked, '{"value":1}')
    with pytest.raises(NotSerializable, match="does not know"):
        from_json(text, object)
    assert from_json(text, Asked) == Asked(1)


def test_an_unknown_model_inside_a_message_is_named() -> None:
    """The reason is not lost on the way out of a message."""
    text = '{"kind":"success","step_result":{"name":"a","output":{"$":"model","type":"lost.Model"}}}'
    with pytest.raises(NotSerializable, match=r"'lost\.Model', which this process does not know"):
        from_json(text, Success)
