"""Lazily imported names of a package, and tables of optional parts.

Importing a package then costs only the common part, and other parts are paid for on use. A package maps these names to
their modules, relative to itself:

    if TYPE_CHECKING:
        from .stores.sqlite import SqliteStore as SqliteStore
    else:
        __getattr__, __dir__ = lazy_names(__name__, {"SqliteStore": ".stores.sqlite"})

Type checkers see plain imports, so they know the types, and refuse an unknown name.

A former name is an alias: `"Old": ".module:New"`.

A `PartTable` is the other way: a module enters its functions when it is loaded, and its users find them by name. The
wiring loads the modules that a declaration needs.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import ProtocolError

F = TypeVar("F", bound=Callable[..., Any])


def missing_extra(error: ModuleNotFoundError, *, extra: str | None, needed_by: str) -> ModuleNotFoundError:
    """Return an import's error naming the command that installs its extra.

    Without an extra, the command installs the package itself.
    """
    if (error.name or "").partition(".")[0] == __name__.partition(".")[0]:
        return error
    command = f"pip install {error.name}" if extra is None else f"pip install 'flujo-actors[{extra}]'"
    return ModuleNotFoundError(
        f"{needed_by} needs the package {error.name!r}, which is not installed: run `{command}`", name=error.name
    )


def leave_out(names: list[str], of_extra: set[str], *, without: str) -> None:
    """Remove the names of a missing extra from `__all__`."""
    try:
        found = importlib.util.find_spec(without)
    except (ImportError, ValueError):  # ValueError: `sys.modules[without] = None`
        found = None
    if found is None:
        names[:] = [name for name in names if name not in of_extra]


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` (PEP 562) for lazily imported names."""
    namespace = vars(sys.modules[package])

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, _, attribute = homes[name].partition(":")
        value = namespace[name] = getattr(importlib.import_module(home, package), attribute or name)
        return value

    def names() -> list[str]:
        return sorted({*namespace, *homes})

    return load, names


class FlujoDeprecationWarning(DeprecationWarning):
    """A deprecated name was used; the message names its replacement."""


def warn_deprecated(name: str, *, instead: str, removed_in: str) -> None:
    """Warn the caller of a deprecated function or name; see docs/version-policy.md."""
    warnings.warn(
        f"{name} is deprecated and will be removed in {removed_in}; use {instead}",
        FlujoDeprecationWarning,
        stacklevel=3,
    )


class PartTable(dict[str, Callable[..., Any]]):
    """Functions of optional parts by name, entered by their modules."""

    def __init__(self, subject: str) -> None:
        super().__init__()
        self.subject = subject

    def entry(self, name: str) -> Callable[[F], F]:
        """Return a decorator that enters a function under a name."""

        def enter(function: F) -> F:
            self[name] = function
            return function

        return enter

    def __missing__(self, name: str) -> Callable[..., Any]:
        raise ProtocolError(
            f"the runtime has no {self.subject} {name!r}: its module is not loaded; a Flujo loads the modules that its "
            "pipeline needs"
        )
