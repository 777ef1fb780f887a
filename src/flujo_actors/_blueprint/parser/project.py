"""Project of a blueprint: root directory and allow-list.

Rules:

1. The root is the directory of the nearest `flujo.toml` upward, else the directory of the file.
2. No file outside the root is read, whether it is named by an absolute path, with `..` or through a link.
3. The allow-list comes from `flujo.toml`, the command line or the caller, never from a blueprint.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import attrs

from ..._core.default_settings import CONFIG_FILE
from ...errors import DeclarationError
from ..lint.step_references import is_python
from ..lint.value_schemas import LIST, OBJECT, TEXT, Shape
from .nodes import MOST_BYTES


@attrs.frozen(kw_only=True)
class Project:
    """Location of a blueprint and its allowed names."""

    root: Path
    allow: tuple[str, ...] = ()
    path: tuple[str, ...] = (".",)
    """Directories, relative to the root, that are searched for allowed modules."""
    ignore: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    warning: tuple[str, ...] = ()
    total_cost_usd_limit: float | None = None
    total_tokens_limit: int | None = None
    resolve: bool = False
    """Whether Python names are resolved, without importing anything."""

    def module_directories(self) -> list[Path]:
        """Return the search directories of the project's own modules."""
        return [self.root / each for each in self.path]


def config_of(directory: Path) -> Path | None:
    """Return the nearest `flujo.toml` upward."""
    for each in (directory, *directory.parents):
        if (each / CONFIG_FILE).is_file():
            return each / CONFIG_FILE
    return None


class Outside(Exception):
    """A path leaves the root."""


def inside(root: Path, directory: Path, path: str) -> Path:
    """Return a relative path's file; raise `Outside` beyond the root."""
    if "\x00" in path or Path(path).is_absolute() or path.startswith(("~", "\\")):
        raise Outside
    found = (directory / path).resolve()
    if not found.is_relative_to(root.resolve()):
        raise Outside
    return found


def content_of(file: Path) -> bytes:
    """Return content up to the limit plus one byte; raise `OSError`."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file.name!r}" if not file.exists() else f"{file.name!r} is no file")
    with file.open("rb") as opened:
        return opened.read(MOST_BYTES + 1)


def checked_entries(entries: Iterable[str]) -> tuple[str, ...]:
    """Return the allow-list entries; raise `DeclarationError` for an invalid one."""
    listed = (entries,) if isinstance(entries, str) else tuple(entries)
    for entry in listed:
        if not isinstance(entry, str) or not is_python(entry if ":" in entry else f"{entry}:name"):
            raise DeclarationError(
                f"allow: {entry!r} is neither a module (`shop.agents`) nor a name in one (`shop.agents:clerk`)"
            )
    return listed


def is_module_allowed(allow: Iterable[str], module: str) -> bool:
    """Return whether everything in a module is allowed."""
    return any(module == entry or module.startswith(f"{entry}.") for entry in allow if ":" not in entry)


def is_allowed(allow: Iterable[str], target: str) -> bool:
    """Return whether `package.module:name` may be imported."""
    listed = list(allow)
    return target in listed or is_module_allowed(listed, target.partition(":")[0])


_LARGEST = 2_000_000
_SHAPES: dict[str, Shape] = {
    "str": TEXT,
    "bytes": TEXT,
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "None": {"type": "null"},
    **dict.fromkeys(("dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict"), OBJECT),
    **dict.fromkeys(("list", "List", "tuple", "Tuple", "set", "Set", "frozenset", "Sequence", "Iterable"), LIST),
}


@attrs.frozen
class PythonSymbol:
    """Static facts of a name in a module."""

    is_module_there: bool = False
    is_there: bool = False
    returns: Shape = None
    returns_class: bool = False
    """Whether it returns an object of a class of the same module."""


def look_up(project: Project, module: str, name: str) -> PythonSymbol:
    """Return the static facts of a name; nothing is imported."""
    file = _file_of(project, module)
    tree = None if file is None else _parsed(file)
    if tree is None:
        return PythonSymbol(is_module_there=file is not None, is_there=file is not None)
    return _defined(tree, name)


def _file_of(project: Project, module: str) -> Path | None:
    """Return a module's source file, resolved like an import."""
    search: list[str] | None = [*map(str, project.module_directories()), *sys.path]
    origin: str | None = None
    walked = ""
    for part in module.split("."):
        walked = f"{walked}.{part}" if walked else part
        spec = PathFinder.find_spec(walked, search)
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or [])
        origin = spec.origin
    return None if origin is None else Path(origin)


def _parsed(file: Path) -> ast.Module | None:
    try:
        if file.suffix != ".py" or file.stat().st_size > _LARGEST:
            return None
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _defined(tree: ast.Module, name: str) -> PythonSymbol:
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            shape, is_class = _returned(node.returns, classes, tree)
            return PythonSymbol(
                True, True, shape if not node.decorator_list else None, is_class and not node.decorator_list
            )
        if name in _names_bound(node):
            return PythonSymbol(True, True)
    dynamic = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)
    starred = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in tree.body)
    return PythonSymbol(True, dynamic or starred or _bound_inside(tree, name))


def _names_bound(node: ast.stmt) -> set[str]:
    match node:
        case ast.ClassDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        case ast.Assign():
            return {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=bound)):
            return {bound}
    return set()


def _bound_inside(tree: ast.Module, name: str) -> bool:
    """Return whether a name is bound below `if`, `try` or `with`."""
    blocks = [node for node in tree.body if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While)]
    return any(
        isinstance(each, ast.stmt) and (name in _names_bound(each) or getattr(each, "name", None) == name)
        for block in blocks
        for each in ast.walk(block)
    )


def _returned(annotation: ast.expr | None, classes: set[str], tree: ast.Module) -> tuple[Shape, bool]:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = _expression(annotation.value)
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return _SHAPES["None"], False
    named = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    name = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
    if name in classes:
        return (OBJECT, False) if _is_typed_dict(tree, name) else (None, True)
    return _SHAPES.get(name), False


def _expression(text: str) -> Any:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _is_typed_dict(tree: ast.Module, name: str) -> bool:
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    bases = {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in found.bases}
    return bool(bases & {"TypedDict", "dict", "Dict"})
