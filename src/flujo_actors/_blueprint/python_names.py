"""What can be known of Python without importing it: where a module is, what it defines, what a function returns."""

from __future__ import annotations

import ast
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import attrs

from .project import Project
from .shapes import LIST, OBJECT, TEXT, Shape

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
class Found:
    """What a name of a module is."""

    is_module_there: bool = False
    is_there: bool = False
    returns: Shape = None
    returns_class: bool = False
    """Whether it returns an object of a class that is defined beside it."""


def look_up(project: Project, module: str, name: str) -> Found:
    """What a module says of a name; nothing is imported."""
    file = _file_of(project, module)
    tree = None if file is None else _parsed(file)
    if tree is None:
        return Found(is_module_there=file is not None, is_there=file is not None)
    return _defined(tree, name)


def _file_of(project: Project, module: str) -> Path | None:
    """The source file of a module, found as an import would find it, part by part."""
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


def _defined(tree: ast.Module, name: str) -> Found:
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            shape, is_class = _returned(node.returns, classes, tree)
            return Found(True, True, shape if not node.decorator_list else None, is_class and not node.decorator_list)
        if name in _names_bound(node):
            return Found(True, True)
    dynamic = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)
    starred = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in tree.body)
    return Found(True, dynamic or starred or _bound_inside(tree, name))


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
    """Whether a name is bound below an `if`, a `try` or a `with` of the module."""
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
