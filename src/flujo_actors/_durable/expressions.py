"""What a pipeline refers to, by name or by text, so that another process can say whether it refers to the same.

Rules:

1. A function is known by its qualified name. What a program defines in `__main__` has the name of the module it is: a
   run of `python app.py` is the same as one of `import app`.
2. Of what decides between steps (a condition, items, an input, a question) the text counts, too: texts and plain data
   as they are, a lambda by its code, a partial by what it is bound to, and what has a `text` (a template, an
   expression of a blueprint) by that.
3. Code is compared only between equal versions of Python: others compile the same text to other code.
4. How much of its package a module's name has depends on how the program was started: `app.f` is `shop.app.f`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from types import CodeType
from typing import Any

from .._type_registry import imported_as

_LAMBDA = "<lambda>"


def named(target: Any) -> str:
    """The qualified name of a function or class; of the class of anything else."""
    target = _nameable(target)
    return f"{imported_as(_module_of(target))}.{target.__qualname__}"


def named_as_it_ran(target: Any) -> str:
    """The same with `__main__` as it is, as earlier versions wrote it."""
    target = _nameable(target)
    return f"{_module_of(target)}.{target.__qualname__}"


def _module_of(target: object) -> str:
    """Where it is defined; a method of a builtin type does not say so."""
    return getattr(target, "__module__", None) or "builtins"


def _nameable(target: object) -> object:
    target = getattr(target, "func", target)
    return target if hasattr(target, "__qualname__") else type(target)


def expression(value: object) -> str:
    """What stands for a condition, items, an input or a question (rule 2)."""
    if isinstance(value, functools.partial):
        return f"{expression(value.func)} {digest([value.args, value.keywords])}"
    if not callable(value):
        return digest(value)
    text = getattr(value, "text", None)
    if isinstance(text, str):
        return f"{named(value)} {digest(text)}"
    code = getattr(value, "__code__", None)
    return f"{named(value)} {_code(code)}" if code is not None and code.co_name == _LAMBDA else named(value)


def digest(value: object) -> str:
    """A short hash of plain data; what is not plain counts by its type."""
    try:
        text = json.dumps(value, sort_keys=True, skipkeys=True, default=named)
    except (TypeError, ValueError, RecursionError):
        text = named(value)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _code(code: CodeType) -> str:
    return f"{sys.implementation.cache_tag}:{_code_digest(code)}"


@functools.lru_cache(maxsize=4096)  # a pipeline is looked at for every run
def _code_digest(code: CodeType) -> str:
    consts = [_const(each) for each in code.co_consts]
    parts = (code.co_code.hex(), consts, code.co_names, code.co_varnames, code.co_freevars)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _const(value: object) -> str:
    if isinstance(value, CodeType):
        return _code_digest(value)
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def is_same(old: str, new: str) -> bool:
    """Whether two names or expressions stand for the same."""
    (old_name, *old_parts), (new_name, *new_parts) = old.split(" "), new.split(" ")
    if len(old_parts) != len(new_parts) or not _is_same_name(old_name, new_name):
        return False
    return all(map(_is_same_text, old_parts, new_parts))


def _is_same_name(one: str, other: str) -> bool:
    shorter, longer = sorted((one.removeprefix("__main__."), other.removeprefix("__main__.")), key=len)
    return shorter == longer or ("." in one and "." in other and longer.endswith(f".{shorter}"))


def _is_same_text(old: str, new: str) -> bool:
    (old_tag, _, _), (new_tag, _, _) = old.rpartition(":"), new.rpartition(":")
    return old == new or old_tag != new_tag
