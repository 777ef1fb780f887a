"""Edits that write old forms of the language as they are written now: a mapping around what can stand by itself.

What is between the parts (a comment, above all) must stay, so a form with anything there is left alone.
"""

from __future__ import annotations

from .edits import replacing_pair, tail_of
from .findings import Change, Edit, Fix
from .nodes import Mapping, Node, Scalar, Sequence, data_of, key_of
from .scalars import written
from .source import Source

_PARTS = {"id", "path", "params"}


def without_steps_key(source: Source, key: Scalar, node: Mapping) -> Fix | None:
    """`body: […]` instead of `body: {steps: […]}`: the line of `steps` goes, and no other one changes."""
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


def _line_of(source: Source, steps: Scalar, inner: Sequence) -> tuple[Edit, ...] | None:
    """The line of a key that has nothing on it but the key, and its list below it."""
    start, end = source.line_start(steps.start), source.next_line(steps.start)
    alone = source.text[start:end].strip() == f"{source.text[steps.start : steps.end]}:"
    return (Edit(start=start, end=end, text=""),) if alone and inner.start >= end else None


def agent_as_uses(source: Source, step: Mapping, key: Scalar, node: Node, new: str) -> Fix | None:
    """`uses: X` instead of `agent: X` or `agent: {id: X}`; its `params` become those of the step."""
    params = node.get("params") if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping) or (node.flow and params is None):
        return replacing_pair(key, node, "uses", new)
    if key.shared or node.shared or step.shared or not {key_of(each) for each, _ in node.pairs} <= _PARTS:
        return None
    end = _end_of(source, node)
    told = "" if params is None else _params_line(source, step, key, params)
    if told is None or end is None or "#" in source.text[key.end : end] or node.start < key.end:
        return None
    edits = (
        Edit(start=key.start, end=key.end, text="uses"),
        Edit(start=key.end, end=end, text=f": {written(new)}{told}"),
    )
    changes = [Change(kind="value", node=key, value="uses"), Change(kind="value", node=node, value=new)]
    if params is not None:
        changes.append(Change(kind="set", node=step, key="params", value=data_of(params)))
    return Fix(safe=True, edits=edits, changes=tuple(changes))


def _end_of(source: Source, node: Mapping) -> int | None:
    """Where the last character of a mapping is over: the marks of a block reach into the next line."""
    tail = tail_of(source, node)
    return None if tail is None else tail + 1


def _params_line(source: Source, step: Mapping, key: Scalar, params: Node) -> str | None:
    """A line with the params, indented as the step is; `None` if they are no short table, or have no line."""
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
