"""Public names of a package that are imported when they are first used.

Importing a package then costs what all its users need, and whoever uses more pays for that when it is used. A package
says which names these are and in which module they live, seen from itself:

    if TYPE_CHECKING:
        from .stores.sqlite import SqliteStore as SqliteStore
    else:
        __getattr__, __dir__ = lazy_names(__name__, {"SqliteStore": ".stores.sqlite"})

Type checkers see plain imports, so they know the types, and refuse a name that is not there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package (PEP 562) some of whose names are imported late."""
    namespace = vars(sys.modules[package])

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name], package)
        value = namespace[name] = getattr(module, name)
        return value

    def names() -> list[str]:
        return sorted({*namespace, *homes})

    return load, names
