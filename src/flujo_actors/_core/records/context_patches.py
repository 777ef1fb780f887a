"""Stored contexts: one full copy, then patches against the last stored one.

Rules:

1. A step that leaves its context equal stores none. Contexts are compared as JSON data, including the order of keys.
2. A short context is stored in full. A longer one has an id, by which later patches refer to it.
3. A patch refers to a context that is in the store, or in the same commit.
4. All patches after a full copy are together no longer than that copy; then another full copy is stored. So stored
   bytes grow with the changes, and reading a context costs at most twice its length.
5. Ids are content hashes over the chain, so equal ids mean equal contexts, in forks as well.

Sections:

- Differences of JSON data.
- Reader of stored contexts.
- Writer of contexts.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from ...errors import CorruptRecord
from ..step_paths import StepPath
from . import record_bodies
from .records import Record, RecordKind

# --- Differences of JSON data -------------------------------------------------------------------------------------


def difference(old: object, new: object) -> dict[str, Any] | None:
    """Return the change from `old` to `new`, or None if equal."""
    if old is new:
        return None
    if type(old) is type(new):
        if isinstance(old, dict) and isinstance(new, dict):
            return _object_difference(old, new)
        if isinstance(old, list) and isinstance(new, list):
            return _list_difference(old, new)
        if isinstance(old, str) and isinstance(new, str):
            return _text_difference(old, new)
        if repr(old) == repr(new):  # which distinguishes 0.0 from -0.0
            return None
    return {"value": new}


def _object_difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | None:
    added = {key: each for key, each in new.items() if key not in old}
    removed = [key for key in old if key not in new]
    if [*(key for key in old if key in new), *added] != list(new):
        return {"value": new}
    changed = {key: change for key in old if key in new and (change := difference(old[key], new[key])) is not None}
    parts = {"fields": changed, "removed": removed, "added": added}
    return {name: part for name, part in parts.items() if part} or None


def _list_difference(old: list[Any], new: list[Any]) -> dict[str, Any] | None:
    start = _equal_items(old, new)
    if start == 0 and (dropped := _dropped_items(old, new)):
        return {"window": [dropped, new[len(old) - dropped :]]}
    if len(old) == len(new):
        rest = ((at, difference(old[at], new[at])) for at in range(start, len(old)))
        changed = [[at, change] for at, change in rest if change is not None]
        return {"items": changed} if changed else None
    end = _equal_items(old[start:][::-1], new[start:][::-1])
    return {"splice": [start, len(old) - end - start, new[start : len(new) - end]]}


def _dropped_items(old: list[Any], new: list[Any]) -> int:
    """Return the number of items dropped by a sliding window."""
    first = (at for at in range(1, len(old)) if new and difference(old[at], new[0]) is None)
    at = next(first, 0)
    return at if _equal_items(old[at:], new) == len(old) - at else 0


def _equal_items(old: Sequence[object], new: Sequence[object]) -> int:
    """Return the number of equal items at the start of both lists."""
    if all(map(operator.is_, old, new)):  # unchanged texts stay the same objects: 15 times as fast as the loop
        return min(len(old), len(new))
    for at, (one, other) in enumerate(zip(old, new, strict=False)):
        if one is not other and difference(one, other) is not None:
            return at
    return min(len(old), len(new))


def _text_difference(old: str, new: str) -> dict[str, Any] | None:
    if old == new:
        return None
    return {"append": new[len(old) :]} if old and new.startswith(old) else {"value": new}


def patched(old: Any, change: dict[str, Any] | None) -> Any:
    """Return the changed data, which shares unchanged parts with `old`."""
    if change is None:
        return old
    if "value" in change:
        return change["value"]
    if "append" in change:
        return old + change["append"]
    if "splice" in change:
        start, cut, items = change["splice"]
        return [*old[:start], *items, *old[start + cut :]]
    if "window" in change:
        dropped, items = change["window"]
        return [*old[dropped:], *items]
    if "items" in change:
        return _with_items(old, change["items"])
    removed, changed = set(change.get("removed", ())), change.get("fields", {})
    kept = {key: patched(each, changed.get(key)) for key, each in old.items() if key not in removed}
    return {**kept, **change.get("added", {})}


def _with_items(old: list[Any], changed: Iterable[Sequence[Any]]) -> list[Any]:
    items = list(old)
    for at, change in changed:
        items[at] = patched(items[at], change)
    return items


# --- Reader of stored contexts ------------------------------------------------------------------------------------


_PATCH, _ID = "context_patch", "context_id"
_WITH_CONTEXT: tuple[RecordKind, ...] = ("settled", "paused", "compacted")


def has_context(body: dict[str, Any]) -> bool:
    """Return whether a record body holds a context or a patch."""
    return "context" in body or _PATCH in body


def _may_refer(record: Record) -> bool:
    return f'"{_PATCH}":' in record.body or f'"{_ID}":' in record.body


class StoredContexts:
    """Contexts of a run by id; `take` its records in order."""

    __slots__ = ("_last", "_parts", "_resolved")

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._parts: dict[str, tuple[str | None, Any]] = {}
        """Full copies, and changes with the id that they apply to."""
        self._resolved: tuple[str | None, Any] = (None, None)
        self._last: str | None = None
        for record in records:
            self.take_record(record)

    def take_record(self, record: Record) -> None:
        """Register the context of a record; most bodies are not parsed."""
        if record.kind in _WITH_CONTEXT and _may_refer(record):
            where = f"record {record.seq}"
            with record_bodies.reading(where):
                self.take(record_bodies.read_body(record.body, where=where))

    def take(self, body: dict[str, Any]) -> None:
        """Register the context of a parsed record body."""
        patch = body.get(_PATCH)
        if _ID in body:
            self._parts[body[_ID]] = (None, body["context"])
            self._last = body[_ID]
        elif patch is not None:
            self._last = patch.get("id", patch["of"])
            if "id" in patch:
                self._parts[patch["id"]] = (patch["of"], patch["delta"])

    def can_read(self, record: Record) -> bool:
        """Return whether the base of the record's patch was taken."""
        return json.loads(record.body)[_PATCH]["of"] in self._parts

    def data(self, body: dict[str, Any]) -> Any:
        """Return the context of a record body as JSON data."""
        if "context" in body:
            return body["context"]
        patch = body[_PATCH]
        return self._resolve(patch.get("id", patch["of"]))

    def _resolve(self, wanted: str) -> Any:
        changes: list[Any] = []
        at, (known, data) = wanted, self._resolved
        while at != known:
            if at not in self._parts:
                raise CorruptRecord(f"it refers to the context {at!r}, which no earlier record holds")
            base, part = self._parts[at]
            if base is None:
                data = part
                break
            changes.append(part)
            at = base
        for change in reversed(changes):
            data = patched(data, change)
        self._resolved = (wanted, data)
        return data

    def last(self) -> Base | None:
        """Return the last stored context that a patch can refer to."""
        if self._last is None:
            return None
        data, since, at = self._resolve(self._last), 0, self._last
        while (part := self._parts[at])[0] is not None:
            since += len(record_bodies.as_text(part[1]))
            at = part[0]
        return Base(id=self._last, data=data, full=len(record_bodies.as_text(part[1])), since=since)


def with_full_context(record: Record, contexts: StoredContexts) -> Record:
    """Return the record with a full context in place of its patch."""
    body = json.loads(record.body)
    patch = body.pop(_PATCH)
    full = {"context": contexts.data({_PATCH: patch}), _ID: patch.get("id", patch["of"])}
    rest = {name: part for name, part in body.items() if name != "v"}
    return attrs.evolve(record, body=record_bodies.make_body(**full, **rest))


def is_patch(record: Record) -> bool:
    """Return whether the record holds a patch of a context."""
    return record.kind in ("settled", "paused") and f'"{_PATCH}":' in record.body and _PATCH in json.loads(record.body)


def self_contained(kept: list[Record], records: Sequence[Record]) -> list[Record]:
    """Return the kept records with full contexts where the base was dropped."""
    if len(kept) == len(records) or not any(map(_may_refer, kept)):
        return kept
    contexts, held = StoredContexts(records), StoredContexts()
    found = []
    for record in kept:
        whole = with_full_context(record, contexts) if is_patch(record) and not held.can_read(record) else record
        held.take_record(whole)
        found.append(whole)
    return found


# --- Writer of contexts -------------------------------------------------------------------------------------------


SHORT = 512
"""Length of JSON text up to which contexts are stored in full."""


@attrs.frozen(kw_only=True, eq=False)
class Base:
    """Stored context that patches can refer to."""

    id: str
    data: Any
    full: int
    """Length of its last full copy."""
    since: int = 0
    """Length of all patches after that copy."""


@attrs.frozen(kw_only=True, eq=False)
class ContextPart:
    """Context of one record: JSON data, and the text to store."""

    data: Any
    text: str
    is_patch: bool = False
    base: Base | None = None
    """The context that later patches refer to once this record is stored."""

    def added_to(self, body: str) -> str:
        """Return the record body with this context."""
        if self.is_patch:
            return record_bodies.with_patch(body, _PATCH, self.text)
        return record_bodies.with_part(body, "context", self.text)


class ContextWriter:
    """Writer of the contexts of one session; see the module's rules."""

    __slots__ = ("_base", "_held", "_known", "_patches", "_pending")

    def __init__(self, *, patches: bool = True) -> None:
        self._patches = patches
        """Whether the store's record format has patches."""
        self._known: tuple[object, Any] | None = None
        """The last context that was converted, and its data."""
        self._base: Base | None = None
        self._held: Base | None = None
        """Context of a held record, committed with the next one."""
        self._pending: dict[StepPath, Base] = {}

    def resume(self, base: Base | None) -> None:
        """Continue with the last context of an earlier session."""
        self._base = base

    def part(self, path: StepPath, context: object, given: object = None) -> ContextPart | None:
        """Return the stored form of a context, or None if unchanged."""
        before = None if given is None else self._data(given)
        data = self._data(context)
        if given is not None and difference(before, data) is None:
            return None
        part = (self._patch(data) if self._patches else None) or _full(data)
        if part.base is not None:
            self._pending[path] = part.base
        return part

    def full(self, path: StepPath, context: object) -> ContextPart:
        """Return a full copy, the base of later patches."""
        part = _full(self._data(context), short=-1)
        assert part.base is not None
        self._pending[path] = part.base
        return part

    def _data(self, context: object) -> Any:
        if self._known is None or self._known[0] is not context:
            self._known = (context, record_bodies.stored_value(context))
        return self._known[1]

    def _patch(self, data: Any) -> ContextPart | None:
        """Return a patch, or None where a full copy is due."""
        base = self._held or self._base
        if base is None:
            return None
        change = difference(base.data, data)
        if change is None:
            return ContextPart(data=data, text=f'{{"of":"{base.id}"}}', is_patch=True, base=base)
        delta = record_bodies.as_text(change)
        since = base.since + len(delta)
        if since > base.full:
            return None
        new_id = _hash(base.id + delta)
        text = f'{{"of":"{base.id}","id":"{new_id}","delta":{delta}}}'
        new = Base(id=new_id, data=data, full=base.full, since=since)
        return ContextPart(data=data, text=text, is_patch=True, base=new)

    def discard(self, path: StepPath) -> None:
        """Forget the step's pending context, which was not stored."""
        self._pending.pop(path, None)

    def hold(self, path: StepPath) -> None:
        """Let the next record refer to the context of this held one."""
        self._held = self._pending.pop(path, self._held)

    def release(self) -> None:
        """Held records are being written: later records may be in another commit."""
        self._held = None

    def is_pending(self, path: StepPath) -> bool:
        """Return whether the step's record holds a base for patches."""
        return path in self._pending

    def confirm(self, path: StepPath) -> None:
        """Use the stored context of this step as base of later patches."""
        self._base = self._pending.pop(path, self._base)


def _full(data: Any, *, short: int = SHORT) -> ContextPart:
    text = record_bodies.as_text(data)
    if len(text) <= short:
        return ContextPart(data=data, text=text)
    new_id = _hash(text)
    return ContextPart(data=data, text=f'{text},"{_ID}":"{new_id}"', base=Base(id=new_id, data=data, full=len(text)))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
