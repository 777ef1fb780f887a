"""The registry of types: the models that this process knows by name.

Rules:

1. A value is stored under the name of its class, and read by a process that knows a class of that name. Nothing is
   imported to find one.
2. Declared classes are known: those that were registered, and those that annotations of a pipeline name. A fresh
   process that declares the same pipeline knows the same.
3. What a run stores may besides be of any model that stands at the top of a module (or inside a class there): the same
   program has loaded the same modules. Only modules that are loaded are looked at, and nothing in them is run to look.
4. What a run stores must be readable by a fresh process: a class that is neither is refused when it is written.
5. What is read from elsewhere may be of a declared class, or of one that this process has written before.
6. `__main__` is known by the name under which it would be imported.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Literal, ParamSpec, TypeAlias, TypeVar

from .errors import NotSerializable

P = ParamSpec("P")
T = TypeVar("T")

Reader: TypeAlias = Literal["this process", "a fresh process", "anybody"]
"""Who shall be able to read what is written, or reads it: `anybody` takes what it does not know as plain data."""

_declared: dict[str, type] = {}
_written: dict[str, type] = {}
_findable: dict[str, type] = {}
"""What was written for a fresh process and found where it will look, so that it is looked for once."""
_public: dict[type, str] = {}
"""Classes of this library that are stored under the name by which users know them."""
_reader: ContextVar[Reader] = ContextVar("reader of values", default="this process")


def read_by(reader: Reader) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function that writes values for, or reads them as, `reader`."""

    def decorated(fn: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(fn)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            before = _reader.set(reader)
            try:
                return fn(*args, **kwargs)
            finally:
                _reader.reset(before)

        return called

    return decorated


_MAIN = ("__main__", "__mp_main__")
"""What a program's own module is called where it runs, and in processes that `multiprocessing` spawned."""


def type_name(cls: type) -> str:
    """The name under which values of `cls` are stored."""
    return _public.get(cls) or f"{imported_as(cls.__module__)}.{cls.__qualname__}"


def imported_as(module: str) -> str:
    """The name of a module as others import it (rule 6)."""
    if module not in _MAIN:
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        name: str = spec.name
        return name
    return module if file is None else _name_in_package(file)


@functools.cache
def _name_in_package(file: str) -> str:
    """The name of a script: with its package, if it stands in one."""
    path = Path(file).resolve()
    packages = itertools.takewhile(lambda folder: (folder / "__init__.py").is_file(), path.parents)
    return ".".join((*reversed([folder.name for folder in packages]), path.stem))


def register_type(cls: type[T]) -> type[T]:
    """Let stored values of `cls` be read back in this process. Usable as a decorator."""
    _declared[type_name(cls)] = cls
    return cls


def register_public_type(cls: type[T]) -> type[T]:
    """Store values of a class of this library under its public name; those under where it is defined are read, too."""
    register_type(cls)
    _public[cls] = f"flujo_actors.{cls.__qualname__}"
    return register_type(cls)


def register_former_name(name: str, cls: type) -> None:
    """Let values of `cls` be read that were stored when it was called `name`."""
    _declared[name] = cls


def name_to_write(cls: type, is_model: Callable[[type], bool]) -> str:
    """The name of a model that is written; `NotSerializable` if whoever shall read it cannot know it."""
    name = type_name(cls)
    if _declared.get(name) is cls or _findable.get(name) is cls:
        return name
    if _reader.get() == "this process":
        _written[name] = cls
        return name
    if loaded_model(name, is_model) is not cls:
        raise NotSerializable(
            f"no other process could read a {name}: it does not stand at the top of a module, where it could be found; "
            "move it there, annotate the step that returns it with it, or call register_type(cls)"
        )
    _findable[name] = cls
    return name


def known_type(name: object, is_model: Callable[[type], bool]) -> type | None:
    """The model of this name; if there is none, `None` for a reader that takes plain data, else `NotSerializable`."""
    reader = _reader.get()
    found = _known(_as_imported(name), is_model, reader) if isinstance(name, str) else None
    if found is None and reader != "anybody":
        raise NotSerializable(
            f"stored value is a {name!r}, which this process does not know: import the module that defines it, "
            "annotate the step that returns it, or call register_type(cls)"
        )
    return found


def _known(name: str, is_model: Callable[[type], bool], reader: Reader) -> type | None:
    if name in _declared:
        return _declared[name]
    found = _written.get(name) if reader != "a fresh process" else None
    return found if found or reader == "this process" else loaded_model(name, is_model)


def _as_imported(name: str) -> str:
    """A name that may have been written before `__main__` went by its other name."""
    module, _, rest = name.partition(".")
    return f"{imported_as(module)}.{rest}" if module == "__main__" else name


# --- what is loaded -----------------------------------------------------------------------------------------


def loaded_model(name: str, is_model: Callable[[type], bool]) -> type | None:
    """The model of this name in a module that is loaded (rule 3)."""
    parts = name.split(".")
    for place in range(len(parts) - 1, 0, -1):
        module = _loaded_module(".".join(parts[:place]))
        if module is not None:
            found = _at(module, parts[place:])
            return found if found is not None and type_name(found) == name and is_model(found) else None
    return None


def _loaded_module(name: str) -> ModuleType | None:
    module = sys.modules.get("__main__" if name == imported_as("__main__") else name)
    return module if isinstance(module, ModuleType) else None


def _at(module: ModuleType, way: list[str]) -> type | None:
    """The class at the end of the way, through classes only. Not by `getattr`, which may run code, or import."""
    place: object = module
    for part in way:
        place = vars(place).get(part)
        if not isinstance(place, type):
            return None
    return place if isinstance(place, type) else None
