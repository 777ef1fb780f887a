"""What a TARGET of the command line is: a blueprint, `file.py:name` or `package.module:name`.

A user names a target, not a text that anybody may have written: Python that is named here needs no allow-list.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import DeclarationError

if TYPE_CHECKING:
    from .. import Pipeline

DEFAULT = "pipeline.yaml"


def is_python(target: str) -> bool:
    """Whether a target names something of Python."""
    return not target.endswith((".yaml", ".yml")) and not Path(target).is_file()


def pipeline_of(target: str | None = None, *, allow: Iterable[str] = (), config: Path | None = None) -> Pipeline:
    """The pipeline that a target names; a blueprint is looked at with the settings that hold for it."""
    named = target or DEFAULT
    if is_python(named):
        return _as_pipeline(named, object_of(named))
    from .._blueprint_loading import pipeline_of
    from .._blueprints import look_at, project_of

    file = Path(named)
    project = project_of(file, allow=allow, config=config)
    return pipeline_of(look_at(file, project), project)


def target_of(target: str, *, allow: Iterable[str] = (), config: Path | None = None) -> Any:
    """What a target names: a pipeline, a step, a `Flujo`."""
    return object_of(target) if is_python(target) else pipeline_of(target, allow=allow, config=config)


def object_of(target: str) -> object:
    """What stands at `file.py:name` or `package.module:name`."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise DeclarationError(f"{target!r} names nothing to play: use package.module:name, or file.py:name")
    found: Any = _module(place, target)
    for part in name.split("."):
        if not hasattr(found, part):
            raise DeclarationError(f"there is no {name!r} in {place!r}")
        found = getattr(found, part)
    return found


def _module(place: str, target: str) -> ModuleType:
    if place.endswith(".py"):
        return _from_file(Path(place))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
            raise
        raise DeclarationError(f"{target!r}: there is no module {error.name!r} here or on the path") from error


def _from_file(path: Path) -> ModuleType:
    """A file is imported under its own name, so that its functions are called what they are called elsewhere."""
    if not path.is_file():
        raise DeclarationError(f"there is no file {str(path)!r}")
    sys.path.insert(0, str(path.resolve().parent))
    return importlib.import_module(path.stem)


def _as_pipeline(target: str, found: Any) -> Pipeline:
    from .. import Pipeline
    from .._dsl.pipeline import as_step

    runs = getattr(found, "pipeline", None)  # a Flujo has one
    if isinstance(runs, Pipeline):
        return runs
    return Pipeline.from_step(as_step(found, where=f"the target {target}"))
