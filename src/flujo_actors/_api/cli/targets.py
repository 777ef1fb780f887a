"""Command line TARGET: a blueprint, `file.py:name` or `package.module:name`.

The user of the command names it, so Python targets need no allow-list.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from outcome import Value, capture

from ..._dsl.pipeline import Pipeline, as_step
from ...errors import DeclarationError, FlujoError
from .. import blueprint_loader
from ..blueprint_files import lint_file, project_of
from .entry import missing_extra

DEFAULT = "pipeline.yaml"


def is_python(target: str) -> bool:
    """Return whether a target names something of Python."""
    return not target.endswith((".yaml", ".yml")) and not Path(target).is_file()


def pipeline_of(target: str | None = None, *, allow: Iterable[str] = (), config: Path | None = None) -> Pipeline:
    """Return the pipeline of a target; a blueprint uses its own settings."""
    named = target or DEFAULT
    if is_python(named):
        return _as_pipeline(named, object_of(named))
    file = Path(named)
    project = project_of(file, allow=allow, config=config)
    return blueprint_loader.pipeline_of(lint_file(file, project), project)


def target_of(target: str, *, allow: Iterable[str] = (), config: Path | None = None) -> Any:
    """Return the object of a target: a pipeline, a step, a `Flujo`."""
    return object_of(target) if is_python(target) else pipeline_of(target, allow=allow, config=config)


def object_of(target: str) -> object:
    """Return the object at `file.py:name` or `package.module:name`."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise DeclarationError(f"{target!r} is not a pipeline: use package.module:name, or file.py:name")
    found: Any = _module(place, target)
    for part in name.split("."):
        if not hasattr(found, part):
            raise DeclarationError(f"there is no {name!r} in {place!r}")
        found = getattr(found, part)
    return found


def _module(place: str, target: str) -> ModuleType:
    if place.endswith(".py"):
        return _from_file(Path(place), target)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return _imported(place, target)


def _from_file(path: Path, target: str) -> ModuleType:
    """Import a file under its own name, preserving qualified names."""
    if not path.is_file():
        raise DeclarationError(f"there is no file {str(path)!r}")
    sys.path.insert(0, str(path.resolve().parent))
    return _imported(path.stem, target)


def _imported(name: str, target: str) -> ModuleType:
    """Import a module of the user; `DeclarationError` locates its error."""
    got = capture(importlib.import_module, name)
    if isinstance(got, Value):
        return got.value
    error = got.error
    if isinstance(error, FlujoError) or not isinstance(error, Exception) or _misses_extra(error):
        raise error
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        raise DeclarationError(f"{target!r}: there is no module {error.name!r} here or on the path") from error
    raise DeclarationError(f"{target!r} cannot be imported: {_raised_where(error)}") from error


def _misses_extra(error: Exception) -> bool:
    return isinstance(error, ModuleNotFoundError) and missing_extra(error) is not None


def _raised_where(error: Exception) -> str:
    """Return an error of the user's module with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if isinstance(error, SyntaxError) else f" ({place.filename}, line {place.lineno})"
    relative = isinstance(error, ImportError) and "relative import" in str(error)
    todo = "; name a module of a package as package.module:name, from the directory above it" if relative else ""
    return f"{type(error).__name__}: {error}{where}{todo}"


def _as_pipeline(target: str, found: Any) -> Pipeline:
    runs = getattr(found, "pipeline", None)  # a Flujo has one
    if isinstance(runs, Pipeline):
        return runs
    return Pipeline.from_step(as_step(found, where=f"the target {target}"))
