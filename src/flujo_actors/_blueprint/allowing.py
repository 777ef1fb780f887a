"""Which Python a blueprint may name. Pure: importing is somebody else's.

Rules:

1. An entry is a module (`shop`), which allows itself and what is below a dot, or one name (`shop.agents:clerk`).
2. The text is checked before anything is imported, the object afterwards: see `importing`.
3. Nothing is allowed by default, and there is no entry for everything.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import DeclarationError
from .used import is_python


def checked_entries(entries: Iterable[str]) -> tuple[str, ...]:
    """The entries of an allow-list; `DeclarationError` if one is neither a module nor a name in one."""
    listed = (entries,) if isinstance(entries, str) else tuple(entries)
    for entry in listed:
        if not isinstance(entry, str) or not is_python(entry if ":" in entry else f"{entry}:name"):
            raise DeclarationError(
                f"allow: {entry!r} is neither a module (`shop.agents`) nor a name in one (`shop.agents:clerk`)"
            )
    return listed


def is_module_allowed(allow: Iterable[str], module: str) -> bool:
    """Whether everything in a module is allowed."""
    return any(module == entry or module.startswith(f"{entry}.") for entry in allow if ":" not in entry)


def is_allowed(allow: Iterable[str], target: str) -> bool:
    """Whether `package.module:name` may be imported."""
    listed = list(allow)
    return target in listed or is_module_allowed(listed, target.partition(":")[0])
