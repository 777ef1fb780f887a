"""Sidecar processes of engines, as far as they need no engine's library."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import flujo_actors._fleet.contrib

CONTRIB = Path(flujo_actors._fleet.contrib.__file__).parent


def started_modules() -> Iterator[str]:
    """Modules that the engines start by `python -m`, relative to the package of sidecars."""
    for source in CONTRIB.glob("*_engine.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith("_sidecar"):
                yield node.value


def test_every_sidecar_that_an_engine_starts_exists() -> None:
    """A module that moved is started under its new name, by callers and by workers."""
    started = list(started_modules())
    assert len(started) >= 3
    assert [name for name in started if importlib.util.find_spec(f"flujo_actors._fleet.{name}") is None] == []
