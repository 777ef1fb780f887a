"""Target of a step: `agents.X`, `imports.X`, `builtins.X` or `package.module:name`.

Sections:

- Fixes that rewrite old forms of the language in the present one.
"""

from __future__ import annotations

import re

from ..parser.blueprint_model import Used
from ..parser.findings import Change, Edit, Fix
from ..parser.nodes import FindingCollector, Mapping, Node, Scalar, Sequence, Source, data_of, key_of, written_like
from . import unsupported_keys
from .edits import column_of, replacing_pair, style_of, tail_of

# --- Fixes that rewrite old forms of the language in the present one ----------------------------------------------
# Text between the parts (comments above all) must stay, so a form with any is left alone.


_PARTS = {"id", "path", "params"}


def without_steps_key(source: Source, key: Scalar, node: Mapping) -> Fix | None:
    """Return a fix from `body: {steps: […]}` to `body: […]`, line-only."""
    ((steps, inner),) = node.pairs
    if key.shared or node.shared or inner.shared or not isinstance(inner, Sequence):
        return None
    edits = _around_flow(source, node, inner) if node.flow else _line_of(source, steps, inner)
    if edits is None:
        return None
    return Fix(safe=True, edits=edits, changes=(Change(kind="unwrap", node=node, value=inner),))


def _around_flow(source: Source, node: Mapping, inner: Sequence) -> tuple[Edit, ...] | None:
    before, behind = source.text[node.start : inner.start], source.text[inner.end : node.end]
    if "#" in before + behind or "&" in before:
        return None
    return Edit(start=node.start, end=inner.start, text=""), Edit(start=inner.end, end=node.end, text="")


def _line_of(source: Source, steps: Scalar, inner: Node) -> tuple[Edit, ...] | None:
    """Return the removal of a line that has only a key."""
    start, end = source.line_start(steps.start), source.next_line(steps.start)
    alone = source.text[start:end].strip() == f"{source.text[steps.start : steps.end]}:"
    return (Edit(start=start, end=end, text=""),) if alone and inner.start >= end else None


def without_kind_key(source: Source, step: Mapping, key: Scalar, inner: Mapping) -> Fix | None:
    """Return a fix that unnests `loop: {…}` or `map: {…}`.

    It removes one line and dedents the others.
    """
    tail = None if step.flow or inner.flow or not inner.pairs else tail_of(source, inner)
    line = _line_of(source, key, inner)
    if tail is None or line is None or step.shared or inner.shared or key.shared:
        return None
    surplus = column_of(source, inner) - column_of(source, step)
    edits = _dedented(source, source.line_start(inner.start), tail, surplus)
    if edits is None:
        return None
    change = Change(kind="spread", node=step, key=key_of(key), value=inner)
    return Fix(safe=True, edits=(*line, *edits), changes=(change,))


def _dedented(source: Source, at: int, tail: int, surplus: int) -> list[Edit] | None:
    """Return an edit per line from `at` to `tail`, or None."""
    edits: list[Edit] = []
    while surplus > 0 and at <= tail:
        line = source.text[at : source.line_end(at)]
        spaces = len(line) - len(line.lstrip(" "))
        if spaces < surplus and line.strip() and not line.lstrip().startswith("#"):
            return None
        if spaces:
            edits.append(Edit(start=at, end=at + min(spaces, surplus), text=""))
        at = source.next_line(at)
    return edits if surplus > 0 else None


def agent_as_uses(source: Source, step: Mapping, key: Scalar, node: Node, new: str) -> Fix | None:
    """Return a fix from `agent: X` to `uses: X`, with params."""
    params = node.get("params") if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping) or (node.flow and params is None):
        return replacing_pair(key, node, "uses", new)
    if key.shared or node.shared or step.shared or not {key_of(each) for each, _ in node.pairs} <= _PARTS:
        return None
    end = _end_of(source, node)
    message = "" if params is None else _params_line(source, step, key, params)
    if message is None or end is None or "#" in source.text[key.end : end] or node.start < key.end:
        return None
    edits = (
        Edit(start=key.start, end=key.end, text=written_like(key.style, "uses")),
        Edit(start=key.end, end=end, text=f": {written_like(style_of(node), new)}{message}"),
    )
    changes = [Change(kind="value", node=key, value="uses"), Change(kind="value", node=node, value=new)]
    if params is not None:
        changes.append(Change(kind="set", node=step, key="params", value=data_of(params)))
    return Fix(safe=True, edits=edits, changes=tuple(changes))


def _end_of(source: Source, node: Mapping) -> int | None:
    """Return the end of a mapping's last character, without block marks."""
    tail = tail_of(source, node)
    return None if tail is None else tail + 1


def _params_line(source: Source, step: Mapping, key: Scalar, params: Node) -> str | None:
    """Return an indented line with short params, or None."""
    before = source.text[source.line_start(key.start) : key.start]
    text = _in_one_line(source, params)
    if text is None or step.flow or step.key("params") is not None or before.strip(" -"):
        return None
    return f"{source.newline}{' ' * len(before)}params: {text}"


def _in_one_line(source: Source, params: Node) -> str | None:
    if not isinstance(params, Mapping) or params.shared:
        return None
    if params.flow:
        return source.text[params.start : params.end]
    parts = [
        (each, value) for each, value in params.pairs if isinstance(value, Scalar) and value.style not in ("|", ">")
    ]
    if len(parts) != len(params.pairs) or any(value.shared or value.start < each.end for each, value in parts):
        return None
    written_parts = (f"{_text(source, each)}: {_text(source, value)}" for each, value in parts)
    return "{" + ", ".join(written_parts) + "}"


def _text(source: Source, node: Scalar) -> str:
    return source.text[node.start : node.end]


# --- Target of a step ---------------------------------------------------------------------------------------------


_TABLES = {"agents": "agent", "imports": "import", "builtins": "builtin"}
_PYTHON = re.compile(r"(?:[A-Za-z][A-Za-z0-9_]*\.)*[A-Za-z][A-Za-z0-9_]*:[A-Za-z][A-Za-z0-9_]*\Z", re.ASCII)
_DOTTED = re.compile(r"((?:[A-Za-z_]\w*\.)+)([A-Za-z_]\w*)\Z", re.ASCII)
_GRAMMAR = "write `agents.X`, `imports.X`, `builtins.X` or `package.module:name`"


def read_uses(collector: FindingCollector, node: Node, key: Scalar) -> Used | None:
    """Return the target of `uses`; an invalid text is a finding."""
    text = node.value if isinstance(node, Scalar) else None
    if not isinstance(text, str) or not text:
        collector.report("V-A6", key, f"`uses` must name the target of the step: {_GRAMMAR}")
        return None
    return _named(collector, text, key)


def _named(collector: FindingCollector, text: str, key: Scalar) -> Used | None:
    table, dot, name = text.partition(".")
    if ":" not in text and dot and table in _TABLES and name:
        return Used(_TABLES[table], name)  # type: ignore[arg-type]
    if text.startswith("flujo.builtins."):
        return Used("builtin", text.removeprefix("flujo.builtins."))
    if is_python(text):
        return Used("python", text)
    dotted = _DOTTED.match(text)
    hint = f"; did you mean `{dotted.group(1).rstrip('.')}:{dotted.group(2)}`?" if dotted else ""
    collector.report("V-A6", key, f"{text[:80]!r} names nothing: {_GRAMMAR}{hint}")
    return None


def is_python(text: str) -> bool:
    """Return whether a text is `package.module:name`, with public names throughout."""
    return _PYTHON.match(text) is not None and len(text) <= 200


def read_function(collector: FindingCollector, node: Node, key: Scalar, where: str) -> str | None:
    """Return the Python function name of a key."""
    text = node.value if isinstance(node, Scalar) else None
    if isinstance(text, str) and is_python(text):
        return text
    shown = f"{text[:80]!r}" if isinstance(text, str) else "this"
    collector.report("V-A6", key, f"{where} must be `package.module:name`, and {shown} is not")
    return None


def read_agent_key(collector: FindingCollector, step: Mapping, node: Node, key: Scalar) -> Used | None:
    """Return the target of the old key `agent`: text or mapping."""
    inner = node
    if isinstance(node, Mapping):
        found = node.get("id") or node.get("path")
        if found is None:
            collector.report("V-A6", key, f"`agent` names nothing: write `uses: …`; {_GRAMMAR}")
            return None
        inner = found
    text = inner.value if isinstance(inner, Scalar) else None
    used = None if not isinstance(text, str) else _named(collector, text, key)
    if used is not None:
        new = f"builtins.{used.name}" if used.kind == "builtin" else str(text)
        fix = agent_as_uses(collector.source, step, key, node, new)
        collector.report("V-K4", key, f"`agent` is called `uses` now: write `uses: {new}`", fix=fix)
    elif not isinstance(text, str):
        collector.report("V-A6", key, f"`agent` names nothing: {_GRAMMAR}")
    return used


def refused_builtin(name: str) -> str | None:
    """Return the replacement of a builtin of the predecessor language, or None."""
    if name in unsupported_keys.BUILTINS:
        return unsupported_keys.BUILTINS[name]
    return "use `sink_to` and templates over `context`" if name.startswith("context_") else None
