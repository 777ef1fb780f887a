"""Differences between a run's original pipeline and the present one.

Rules:

1. `strict` refuses every difference, `force` none.
2. `compat` checks completed steps: they must exist, be the same, and come in the same order with
   nothing new between them. Everything else may change.
3. The instructions of a completed step (its prompt, model, tools and input, or its decision) may change: it will
   not run again.
4. A started composite must keep its kind.
5. An open or answered pause counts as completed: an answer to it is no answer to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Literal, TypeAlias, assert_never, get_args

import attrs

from .._core.records.records import Record
from .._core.step_paths import (
    DEFAULT,
    ROOT,
    Compensation,
    Handler,
    Segment,
    StepPath,
    above_of,
    at_or_below,
    child,
    in_declaration,
    is_tried,
    known_segment,
    parent_of,
    step_of,
    whose,
)
from .fingerprint import Facts, is_same

ResumeMode: TypeAlias = Literal["strict", "compat", "force"]
"""Handling of a changed pipeline: refuse, refuse completed steps, or accept."""

Steps = Mapping[StepPath, Facts]


def checked_mode(mode: ResumeMode) -> ResumeMode:
    """Return a valid mode, or raise `ValueError`."""
    if mode not in get_args(ResumeMode):
        raise ValueError(f"there is no mode {mode!r}; choose one of {', '.join(map(repr, get_args(ResumeMode)))}")
    return mode


def steps_done(records: Iterable[Record]) -> set[StepPath]:
    """Return the settled, failed and paused steps (rule 5)."""
    done: set[StepPath] = set()
    asked: dict[StepPath, None] = {}
    for record in records:
        if record.kind == "settled":
            done.add(record.path)
            for withdrawn in at_or_below(record.path, asked):
                del asked[withdrawn]
        elif record.kind == "paused" and step_of(record.path) == record.path:
            asked[record.path] = None
    return done | asked.keys()


_REFERENCES = frozenset({"agent", "input", "message", "until", "select", "items"})
"""Facts that name functions or expressions."""

_HASHED = frozenset({"prompt"}) | _REFERENCES - {"agent"}

_OVER_WHEN_DONE = frozenset({"prompt", "model", "tools", "input", "until", "select", "items", "retry_on"})


def changes_between(before: Steps, after: Steps, done: Iterable[StepPath], *, mode: ResumeMode) -> list[str]:
    """Return the obstacles to resuming, one sentence each."""
    before = {path: _text_as_in(after.get(path, {}), facts) for path, facts in before.items()}
    if list(before.items()) == list(after.items()):
        return []
    match mode:
        case "force":
            return []
        case "strict":
            return list(_Comparison(before, after).sentences())
        case "compat":
            return list(_Comparison(before, after).sentences_about(_Done.of(done, before)))
        case _:
            assert_never(mode)


@attrs.frozen(kw_only=True)
class ChangedSteps:
    """Declared steps that two pipelines do not share."""

    differing: frozenset[StepPath]
    """Steps of both with other facts, or another order."""
    removed: frozenset[StepPath]
    added: tuple[StepPath, ...]

    def __bool__(self) -> bool:
        return bool(self.differing or self.removed or self.added)


def changed_steps(before: Steps, after: Steps) -> ChangedSteps:
    """Return the steps that differ, regardless of completed work."""
    before = {path: _text_as_in(after.get(path, {}), facts) for path, facts in before.items()}
    differing = {path for path, facts in before.items() if path in after and after[path] != facts}
    for parent in (ROOT, *(path for path in before if path in after)):
        old = [path for path in before if _is_child(path, parent) and path in after]
        if old != [path for path in after if _is_child(path, parent) and path in before]:
            differing.update(old)
    removed = frozenset(path for path in before if path not in after)
    added = tuple(_topmost(path for path in after if path not in before))
    return ChangedSteps(differing=frozenset(differing), removed=removed, added=added)


def _text_as_in(after: Facts, before: Facts) -> Facts:
    """Return the facts in the present vocabulary."""
    return {name: after[name] if _is_stated(name, after, fact) else fact for name, fact in before.items()}


def _is_stated(name: str, after: Facts, before: object) -> bool:
    now = after.get(name)
    return name in _REFERENCES and isinstance(now, str) and isinstance(before, str) and is_same(before, now)


@attrs.frozen
class _Done:
    """Completed and started steps of a declaration."""

    settled: Set[StepPath]
    begun: Set[StepPath]

    @classmethod
    def of(cls, done: Iterable[StepPath], declared: Steps) -> _Done:
        settled = {place for path in done if not is_tried(path) and (place := declared_at(path, declared))}
        begun = {place for path in done if (place := declared_at(whose(path), declared))}
        return cls(settled, begun | {above for place in begun for above in above_of(place)})


def declared_at(path: StepPath, declared: Steps) -> StepPath | None:
    """Return the declaration path of a run path, or None."""
    place = ROOT
    for segment in in_declaration(path) or ():
        place = _below(place, segment, declared)
    return place if place in declared else None


def _below(place: StepPath, segment: Segment, declared: Steps) -> StepPath:
    below, otherwise = child(place, segment), child(place, DEFAULT)
    return otherwise if below not in declared and otherwise in declared else below


class _Comparison:
    """Two declarations side by side."""

    def __init__(self, before: Steps, after: Steps) -> None:
        self._before, self._after = before, after
        self._removed = [path for path in before if path not in after]
        self._added = [path for path in after if path not in before]
        self._renamed = dict(self._find_renamed())

    def sentences(self) -> Iterator[str]:
        """Yield every difference."""
        yield from (_renaming(old, new) for old, new in self._renamed.items())
        yield from (f"{_what(path)} was removed" for path in _topmost(self._removed) if path not in self._renamed)
        added = set(_topmost(self._added)) - set(self._renamed.values())
        yield from (f"{_what(path)} was added" for path in self._added if path in added)
        for path in self._in_both():
            yield from _facts_changed(path, self._before[path], self._after[path])
        yield from self._reordered()

    def sentences_about(self, done: _Done) -> Iterator[str]:
        """Yield the differences that concern completed work."""
        for path in _topmost(path for path in self._removed if path in done.begun):
            renamed = self._renamed.get(path)
            yield f"{_what(path)}, which is done, was removed" if renamed is None else _renaming(path, renamed)
        for path in self._in_both():
            if path in done.settled:
                yield from _facts_changed(path, *map(_lasting, (self._before[path], self._after[path])))
            elif path in done.begun:
                yield from _facts_changed(path, *({"kind": each[path]["kind"]} for each in (self._before, self._after)))
        yield from self._reordered_sequences(done)

    def _in_both(self) -> Iterator[StepPath]:
        return (path for path in self._before if path in self._after)

    def _find_renamed(self) -> Iterator[tuple[StepPath, StepPath]]:
        """Yield steps with equal facts under another name at the same position."""
        for old in _topmost(self._removed):
            for new in _topmost(self._added):
                if self._before[old] == self._after[new] and self._place(self._before, old) == self._place(
                    self._after, new
                ):
                    yield old, new

    @staticmethod
    def _place(steps: Steps, path: StepPath) -> tuple[StepPath, int]:
        siblings = [each for each in steps if parent_of(each) == parent_of(path)]
        return parent_of(path), siblings.index(path)

    def _reordered(self) -> Iterator[str]:
        for parent in (ROOT, *self._in_both()):
            old = [path for path in self._before if _is_child(path, parent) and path in self._after]
            new = [path for path in self._after if _is_child(path, parent) and path in self._before]
            if old != new:
                yield f"the order {_listed(old)} became {_listed(new)}"

    def _reordered_sequences(self, done: _Done) -> Iterator[str]:
        """Yield sequences with new or moved steps among completed ones."""
        for parent in (ROOT, *self._in_both()):
            if parent == ROOT or self._before[parent]["kind"] in ("pipeline", "sequence"):
                old = [path for path in self._before if _is_child(path, parent)]
                count = max((place for place, path in enumerate(old, 1) if path in done.begun), default=0)
                new = [path for path in self._after if _is_child(path, parent)][:count]
                if new != old[:count] and set(old[:count]) <= set(self._after):
                    yield f"steps that are done came in the order {_listed(old[:count])}, now it begins {_listed(new)}"


def _is_child(path: StepPath, parent: StepPath) -> bool:
    return parent_of(path) == parent and path != ROOT


def _topmost(listed: Iterable[StepPath]) -> list[StepPath]:
    """Return the paths without an ancestor in the list."""
    found = list(listed)
    among = set(found)
    return [path for path in found if among.isdisjoint(above_of(path))]


def _listed(listed: Iterable[StepPath]) -> str:
    return ", ".join(map(repr, listed))


def _renaming(old: StepPath, new: StepPath) -> str:
    return f"step {old!r} is called {new!r} now"


def _lasting(facts: Facts) -> Facts:
    """Return the facts that a completed step must keep."""
    return {name: fact for name, fact in facts.items() if name not in _OVER_WHEN_DONE}


def _what(path: StepPath) -> str:
    """Return a description of a step, its compensation or its handlers."""
    around, _, last = path.rpartition("/")
    whose = f"step {around!r}" if around else "the pipeline"
    match known_segment(last):
        case Compensation(None):
            return f"the compensation of {whose}"
        case Compensation(tool):
            return f"the compensation of tool {tool!r} of {whose}"
        case Handler(number):
            return f"handler {number} of {whose}"
        case _:
            return f"step {path!r}"


def _is_handler(path: StepPath) -> bool:
    return isinstance(known_segment(path.rpartition("/")[2]), Compensation | Handler)


def _facts_changed(path: StepPath, before: Facts, after: Facts) -> Iterator[str]:
    if before != after and _is_handler(path):
        changed = (name for name in {**before, **after} if before.get(name) != after.get(name))
        changes = ", ".join(f"{name}{_from_to(name, before.get(name), after.get(name))}" for name in changed)
        yield f"{_what(path)} changed: {changes}"
        return
    if before["kind"] != after["kind"]:
        yield f"{path!r} was a {before['kind']} and is a {after['kind']} now"
        return
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old != new:
            yield f"the {name} of step {path!r} changed{_from_to(name, old, new)}"


def _from_to(name: str, old: object, new: object) -> str:
    if name in _HASHED:
        return ""
    if isinstance(old, dict) and isinstance(new, dict):
        return f" ({'; '.join(_tools_changed(old, new))})"
    return f" from {old!r} to {new!r}"


def _tools_changed(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    yield from (f"{name!r} was removed" for name in old if name not in new)
    yield from (f"{name!r} was added" for name in new if name not in old)
    yield from (f"the schema of {name!r} is another" for name in old if name in new and old[name] != new[name])
