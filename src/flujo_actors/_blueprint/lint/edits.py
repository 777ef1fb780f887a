"""Text edits by splicing: all other characters stay unchanged.

Rules:

1. Nothing is rewritten: only lines named by an edit change; comments, quotes and blank lines stay.
2. An impossible edit is refused (`None`): flow style, values shared by an alias, keys with `?`.
3. An edit declares its effect on the data (`Change`), so that parsing the new text can verify it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Several
from typing import Any

from ..parser.findings import Change, Edit, Fix
from ..parser.nodes import Mapping, Node, Scalar, Sequence, Source, key_of, written_like

_SPACES = re.compile(r"[ ]*\Z")
_SPACES_AND_DASHES = re.compile(r"[ ]*(?:-[ ]+)*\Z")


def replacing(node: Scalar, text: str, value: object, *, safe: bool) -> Fix | None:
    """Return the replacement of a scalar by another value."""
    if node.shared or node.style in ("|", ">"):
        return None
    edit = Edit(start=node.start, end=node.end, text=text)
    return Fix(safe=safe, edits=(edit,), changes=(Change(kind="value", node=node, value=value),))


def renaming(mapping: Mapping, key: Scalar, new: str, *, safe: bool) -> Fix | None:
    """Return the renaming of a key."""
    if mapping.shared or key.style in ("|", ">") or mapping.key(new) is not None:
        return None
    edit = Edit(start=key.start, end=key.end, text=written_like(key.style, new))
    change = Change(kind="rename", node=mapping, key=str(key.value), value=new)
    return Fix(safe=safe, edits=(edit,), changes=(change,))


def replacing_pair(key: Scalar, value: Node, new_key: str, new_value: str) -> Fix | None:
    """Return the replacement of a one-line pair by a key and scalar."""
    on_one_line = isinstance(value, Scalar) or value.flow
    if key.shared or value.shared or not on_one_line or value.start < key.end:
        return None
    edits = (
        Edit(start=key.start, end=key.end, text=written_like(key.style, new_key)),
        Edit(start=value.start, end=value.end, text=written_like(style_of(value), new_value)),
    )
    changes = (Change(kind="value", node=key, value=new_key), Change(kind="value", node=value, value=new_value))
    return Fix(safe=True, edits=edits, changes=changes)


def style_of(node: Node) -> str:
    """Return the quoting of a scalar, also inside a one-scalar mapping."""
    if isinstance(node, Mapping):
        return next((style_of(value) for key, value in node.pairs if key.value in ("id", "path")), "")
    return node.style if isinstance(node, Scalar) else ""


# --- lines ------------------------------------------------------------------------------------------------------


def setting(source: Source, mapping: Mapping, after: str, key: str, value: object, lines: Several[str]) -> Fix | None:
    """Return the insertion of a key after another one, as `lines`."""
    at = _line_after_key(source, mapping, after)
    if at is None or mapping.key(key) is not None:
        return None
    edit = _lines_at(source, at, " " * column_of(source, mapping), lines)
    return Fix(safe=True, edits=(edit,), changes=(Change(kind="set", node=mapping, key=key, value=value),))


def column_of(source: Source, mapping: Mapping) -> int:
    """Return the indentation of a block mapping's keys."""
    return source.place(mapping.pairs[0][0].start)[1] - 1


def _line_after_key(source: Source, mapping: Mapping, key: str) -> int | None:
    if mapping.flow or mapping.shared or not _is_plain_block(source, mapping):
        return None
    pair = next((pair for pair in mapping.pairs if pair[0].value == key), None)
    tail = None if pair is None else tail_of_pair(source, *pair)
    return None if tail is None else source.next_line(tail)


def _is_plain_block(source: Source, mapping: Mapping) -> bool:
    """Return whether each key starts its line, after spaces and dashes."""
    columns = {source.place(key.start)[1] for key, _ in mapping.pairs}
    return len(columns) == 1 and all(_begins_its_line(source, key) for key, _ in mapping.pairs)


def _begins_its_line(source: Source, key: Scalar) -> bool:
    before = source.text[source.line_start(key.start) : key.start]
    return _SPACES_AND_DASHES.match(before) is not None


def _lines_at(source: Source, at: int, indent: str, lines: Several[str]) -> Edit:
    """Return the insertion of lines at a line start or end."""
    newline = source.newline
    written_lines = [f"{indent}{line}" if line else line for line in lines]
    if at == len(source.text) and source.text and not source.text.endswith(("\n", "\r")):
        return Edit(start=at, end=at, text="".join(f"{newline}{line}" for line in written_lines))
    return Edit(start=at, end=at, text="".join(f"{line}{newline}" for line in written_lines))


def removing(source: Source, mapping: Mapping, key_name: str) -> Fix | None:
    """Return the removal of a key with its line, except comments."""
    pair = next((pair for pair in mapping.pairs if pair[0].value == key_name), None)
    if pair is None or mapping.flow or mapping.shared or len(mapping.pairs) < 2:
        return None
    key, value = pair
    if not isinstance(value, Scalar) or value.style in ("|", ">") or value.start < key.start:
        return None
    edit = _removed(source, mapping, key, value)
    if edit is None:
        return None
    return Fix(safe=True, edits=(edit,), changes=(Change(kind="remove", node=mapping, key=key_name),))


def _removed(source: Source, mapping: Mapping, key: Scalar, value: Scalar) -> Edit | None:
    start, end = source.line_start(key.start), source.line_end(value.end)
    rest = source.text[value.end : end]
    if _SPACES.match(source.text[start : key.start]) is None:
        following = mapping.pairs[1][0].start if mapping.pairs[0][0] is key else None
        alone = following is not None and not source.text[value.end : following].strip()
        return Edit(start=key.start, end=following, text="") if following is not None and alone else None
    if rest.strip():
        return Edit(start=key.start, end=value.end + len(rest) - len(rest.lstrip()), text="")
    return Edit(start=start, end=source.next_line(value.end), text="")


def inserting(source: Source, steps: Sequence, after: Node, item: object, lines: Several[str]) -> Fix | None:
    """Return the insertion of an item into a block list."""
    if steps.flow or steps.shared or after.shared or not any(each is after for each in steps.items):
        return None
    tail = tail_of(source, after)
    dash = _dash_before(source, after)
    if tail is None or dash is None:
        return None
    edit = _lines_at(source, source.next_line(tail), " " * (source.place(dash)[1] - 1), lines)
    return Fix(safe=True, edits=(edit,), changes=(Change(kind="insert", node=steps, after=after, value=item),))


def _dash_before(source: Source, item: Node) -> int | None:
    before = source.text[: item.start].rstrip(" \r\n")
    at = len(before) - 1
    clean = before.endswith("-") and _SPACES.match(source.text[source.line_start(at) : at]) is not None
    return at if clean else None


# --- where values end ------------------------------------------------------------------------------------------


def tail_of_pair(source: Source, key: Scalar, value: Node) -> int | None:
    """Return a place on the last line of a key's value."""
    if value.start < key.end:
        return None if not isinstance(value, Scalar) else key.end  # an alias, or nothing at all
    return tail_of(source, value)


def tail_of(source: Source, node: Node) -> int | None:
    """Return a position on a value's last line, or None."""
    match node:
        case Scalar():
            return _tail_of_scalar(source, node)
        case Mapping(flow=False):
            return tail_of_pair(source, *node.pairs[-1]) if node.pairs else None
        case Sequence(flow=False):
            last = node.items[-1] if node.items else None
            return None if last is None or last.start < node.start else tail_of(source, last)
        case _:
            return max(node.start, node.end - 1)


def _tail_of_scalar(source: Source, node: Scalar) -> int:
    if node.style not in ("|", ">"):
        return max(node.start, node.end - 1) if node.end > node.start else node.start
    header = source.text[node.start : source.line_end(node.start)].partition("#")[0]
    body = source.text[node.start : node.end]
    if "+" in header:
        return (
            node.start + len(body.rstrip("\r\n")) if not body.endswith(("\n", "\r")) else _last_break(node.start, body)
        )
    return node.start + max(0, len(body.rstrip()) - 1)


def _last_break(start: int, body: str) -> int:
    """Return the last line break of a literal block, or its end."""
    return start + len(body) - (2 if body.endswith("\r\n") else 1 if body.endswith(("\n", "\r")) else 0)


# --- effect of an edit on the data ------------------------------------------------------------------------------


def changed_data(node: Node, changes: Several[Change]) -> object:
    """Return the data of a node after the changes."""
    by_node: dict[int, list[Change]] = {}
    for change in changes:
        by_node.setdefault(id(change.node), []).append(change)
    return _data(node, by_node)


def _data(node: Node, changes: dict[int, list[Change]]) -> object:
    mine = changes.get(id(node), [])
    replaced = next((change for change in mine if change.kind == "value"), None)
    if replaced is not None:
        return replaced.value
    unwrapped = next((change for change in mine if change.kind == "unwrap"), None)
    if unwrapped is not None:
        return _data(unwrapped.value, changes)
    match node:
        case Scalar():
            return node.value
        case Sequence():
            return _items(node, mine, changes)
        case Mapping():
            return _pairs(node, mine, changes)


def _items(node: Sequence, mine: list[Change], changes: dict[int, list[Change]]) -> list[object]:
    items: list[Any] = []
    for each in node.items:
        items.append(_data(each, changes))
        items.extend(change.value for change in mine if change.kind == "insert" and change.after is each)
    return items


def _pairs(node: Mapping, mine: list[Change], changes: dict[int, list[Change]]) -> dict[str, object]:
    renamed = {change.key: change.value for change in mine if change.kind == "rename"}
    removed = {change.key for change in mine if change.kind == "remove"}
    spread = {id(change.value): change.value for change in mine if change.kind == "spread"}
    pairs: dict[str, Any] = {}
    for key, value in node.pairs:
        if id(value) in spread:
            pairs |= _pairs(spread[id(value)], changes.get(id(value), []), changes)
            continue
        name = next((change.value for change in changes.get(id(key), []) if change.kind == "value"), key_of(key))
        if name not in removed:
            pairs[renamed.get(name, name)] = _data(value, changes)
    return pairs | {change.key: change.value for change in mine if change.kind == "set"}
