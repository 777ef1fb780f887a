"""Python that a blueprint names, imported after the text is valid.

Rules:

1. The text is checked before anything is imported, the object afterwards.
2. No module is an object of a pipeline. A function or a class must be *defined* in an allowed module, wherever it was
   found; an instance must be a model agent, a step, a pipeline, or of a class that is defined in one.
3. An exact entry (`shop:clerk`) allows what stands there, wherever it was defined.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .._dsl.call_plan import is_model_agent
from .._dsl.declared import Declared
from .._dsl.pipeline import Pipeline
from .allowing import is_allowed, is_module_allowed
from .project import Project


class NotThere(Exception):
    """A name of Python that cannot be used; the message says why."""


def import_object(project: Project, target: str) -> Any:
    """The object behind `package.module:name`, if it may be used."""
    if not is_allowed(project.allow, target):
        raise NotThere(f"`{target}` is not allowed")
    _make_findable(project)
    found = _found(target)
    if isinstance(found, ModuleType):
        raise NotThere(f"`{target}` is a module; name something in it")
    if target not in project.allow and not _is_from_allowed(found, project.allow):
        raise NotThere(
            f"`{target}` is defined in {_home(found)!r}, which is not allowed; allow that, or {target!r} itself"
        )
    return found


def _make_findable(project: Project) -> None:
    """The project's directories come last, so that none of its files stands for a module of somebody else."""
    for directory in project.module_directories():
        path = str(Path(directory).resolve())
        if path not in sys.path:
            sys.path.append(path)


def _found(target: str) -> object:
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise NotThere(f"there is no module {error.name!r} for `{target}`") from error
    except AttributeError as error:
        raise NotThere(f"module {module!r} has no {name!r}") from error


def _is_from_allowed(found: Any, allow: tuple[str, ...]) -> bool:
    if is_model_agent(found) or isinstance(found, Declared | Pipeline):
        return True
    return is_module_allowed(allow, _home(found))


def _home(found: Any) -> str:
    """The module in which a function, a class, or the class of anything else is defined."""
    while isinstance(found, functools.partial):
        found = found.func
    if inspect.ismethod(found):
        found = found.__func__
    if inspect.isroutine(found) or inspect.isclass(found):
        found = inspect.unwrap(found)
        return str(getattr(found, "__module__", None) or "")
    return str(type(found).__module__)
