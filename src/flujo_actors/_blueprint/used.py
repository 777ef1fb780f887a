"""What a step runs, as it is written: `agents.X`, `imports.X`, `builtins.X` or `package.module:name`."""

from __future__ import annotations

import re

from . import refusals
from .model import Used
from .nodes import Mapping, Node, Scalar
from .old_forms import agent_as_uses
from .telling import Told

_TABLES = {"agents": "agent", "imports": "import", "builtins": "builtin"}
_PYTHON = re.compile(r"(?:[A-Za-z][A-Za-z0-9_]*\.)*[A-Za-z][A-Za-z0-9_]*:[A-Za-z][A-Za-z0-9_]*\Z", re.ASCII)
_DOTTED = re.compile(r"((?:[A-Za-z_]\w*\.)+)([A-Za-z_]\w*)\Z", re.ASCII)
_GRAMMAR = "write `agents.X`, `imports.X`, `builtins.X` or `package.module:name`"


def read_uses(told: Told, node: Node, key: Scalar) -> Used | None:
    """What `uses` names; a text that names nothing is told."""
    text = node.value if isinstance(node, Scalar) else None
    if not isinstance(text, str) or not text:
        told.tell("V-A6", key, f"`uses` must name what the step runs: {_GRAMMAR}")
        return None
    return _named(told, text, key)


def _named(told: Told, text: str, key: Scalar) -> Used | None:
    table, dot, name = text.partition(".")
    if ":" not in text and dot and table in _TABLES and name:
        return Used(_TABLES[table], name)  # type: ignore[arg-type]
    if text.startswith("flujo.builtins."):
        return Used("builtin", text.removeprefix("flujo.builtins."))
    if is_python(text):
        return Used("python", text)
    dotted = _DOTTED.match(text)
    hint = f"; did you mean `{dotted.group(1).rstrip('.')}:{dotted.group(2)}`?" if dotted else ""
    told.tell("V-A6", key, f"{text[:80]!r} names nothing: {_GRAMMAR}{hint}")
    return None


def is_python(text: str) -> bool:
    """Whether a text is `package.module:name`, with public names throughout."""
    return _PYTHON.match(text) is not None and len(text) <= 200


def read_function(told: Told, node: Node, key: Scalar, where: str) -> str | None:
    """What a key names that wants a function of Python."""
    text = node.value if isinstance(node, Scalar) else None
    if isinstance(text, str) and is_python(text):
        return text
    shown = f"{text[:80]!r}" if isinstance(text, str) else "this"
    told.tell("V-A6", key, f"{where} must be `package.module:name`, and {shown} is not")
    return None


def read_agent_key(told: Told, step: Mapping, node: Node, key: Scalar) -> Used | None:
    """What the old key `agent` names: a text, or a mapping with `id` or `path`, and perhaps `params`."""
    inner = node
    if isinstance(node, Mapping):
        found = node.get("id") or node.get("path")
        if found is None:
            told.tell("V-A6", key, f"`agent` names nothing: write `uses: …`; {_GRAMMAR}")
            return None
        inner = found
    text = inner.value if isinstance(inner, Scalar) else None
    used = None if not isinstance(text, str) else _named(told, text, key)
    if used is not None:
        new = f"builtins.{used.name}" if used.kind == "builtin" else str(text)
        fix = agent_as_uses(told.source, step, key, node, new)
        told.tell("V-K4", key, f"`agent` is called `uses` now: write `uses: {new}`", fix=fix)
    elif not isinstance(text, str):
        told.tell("V-A6", key, f"`agent` names nothing: {_GRAMMAR}")
    return used


def refused_builtin(name: str) -> str | None:
    """What to use instead of a function that came with the language before this one."""
    if name in refusals.BUILTINS:
        return refusals.BUILTINS[name]
    return "use `sink_to` and templates over `context`" if name.startswith("context_") else None
