"""Visible chunks: the meaning of `run_async(chunks=…)` for a declaration.

Rules:

1. `True` shows the chunks of all steps, `False` of none.
2. `"last"` shows the steps whose output is the pipeline's own: the last of a sequence, every branch, the body of a map
   or a loop, and their replacements (a fallback, a review).
3. A name shows every step of that name and every branch of that key, at any depth, with all nested steps. A path
   shows one step with its nested steps; the path of one item of a map selects all items.
4. An unknown name is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import attrs

from .._core import step_paths
from .._core.step_paths import DEFAULT, ROOT, Named, Segment, StepPath
from .._core.validators import nearest
from ..errors import DeclarationError
from .declaration_tree import walk_places
from .kinds import SequenceOf
from .pipeline import AnyStep, Pipeline

Chunks: TypeAlias = bool | Literal["last"] | Iterable[str]
"""Requested chunks: all, none, the last step's, or named steps'."""

_NAMES_SHOWN = 20


@attrs.frozen(eq=False)
class ShownChunks:
    """Declaration paths whose chunks are shown."""

    places: frozenset[StepPath] = frozenset()
    root: Pipeline | None = None
    """Declaration; unused without paths."""
    _known: dict[tuple[Segment, ...], bool] = attrs.field(factory=dict, init=False)

    def shows(self, path: StepPath) -> bool:
        """Return whether the chunks at a path of a run are shown."""
        if self.root is None or not self.places:
            return False
        way = tuple(step_paths.in_declaration(path) or ())
        if way not in self._known:
            self._known[way] = _place_of(self.root, way) in self.places
        return self._known[way]

    def inside(self, path: StepPath) -> list[StepPath]:
        """Return the paths whose chunks a remote worker must show."""
        if self.root is None or not self.places:
            return []
        return sorted(
            step_paths.at_or_below(_place_of(self.root, tuple(step_paths.in_declaration(path) or ())), self.places)
        )


NO_CHUNKS = ShownChunks()
"""Selection without chunks."""


def shown_chunks(root: Pipeline, chunks: Chunks) -> ShownChunks | None:
    """Return the selection; `None` for all chunks, `DeclarationError` for unknown names."""
    if chunks is True:
        return None
    if chunks is False:
        return NO_CHUNKS
    if chunks == "last":
        return ShownChunks(frozenset(_last(ROOT, root)), root)
    names = (chunks,) if isinstance(chunks, str) else chunks
    if not isinstance(names, Iterable):
        raise DeclarationError(f'chunks must be True, False, "last" or names of steps, not {chunks!r}')
    return ShownChunks(frozenset(_named(root, list(names))), root)


# --- by name ------------------------------------------------------------------------------------------------


def _named(root: Pipeline, names: list[object]) -> Iterator[StepPath]:
    places = dict(walk_places(root))
    by_name = _by_name(places)
    for name in names:
        if not isinstance(name, str):
            raise DeclarationError(f"chunks: a step is known by its name or its path, not by {name!r}")
        found = by_name.get(name) or _at_path(places, name)
        if not found:
            raise DeclarationError(_unknown(name, list(by_name)))
        for place in found:
            yield from step_paths.at_or_below(place, places)


def _by_name(places: dict[StepPath, AnyStep]) -> dict[str, list[StepPath]]:
    found: dict[str, list[StepPath]] = {}
    for place, step in places.items():
        if place == ROOT:
            continue
        last = step_paths.parse(place)[-1]
        for name in {step.name, last.name if isinstance(last, Named) else None} - {None}:
            found.setdefault(str(name), []).append(place)
    return found


def _at_path(places: dict[StepPath, AnyStep], path: str) -> list[StepPath]:
    place = step_paths.formatted(step_paths.in_declaration(StepPath(path)) or ())
    return [place] if place != ROOT and place in places else []


def _unknown(name: str, known: list[str]) -> str:
    near = nearest(name, known)
    hint = "" if near is None else f"did you mean {near!r}? "
    more = f" and {len(known) - _NAMES_SHOWN} more" if len(known) > _NAMES_SHOWN else ""
    return f"chunks: no step is called {name!r}; {hint}There are {', '.join(map(repr, known[:_NAMES_SHOWN]))}{more}"


# --- the last step ------------------------------------------------------------------------------------------


def _last(path: StepPath, step: AnyStep) -> Iterator[StepPath]:
    """Yield the paths that make the output of a step."""
    pending = [(path, step)]
    while pending:
        path, step = pending.pop()
        makers = list(_makers(step))
        if not any(inside for inside, _, _ in makers):
            yield path
        pending.extend((step_paths.child(path, segment), child) for _, segment, child in makers)


def _makers(step: AnyStep) -> Iterator[tuple[bool, Segment, AnyStep]]:
    """Yield the steps that make a step's output, with nesting."""
    if isinstance(step, Pipeline):
        last, name = step.named_steps[-1]
        yield True, Named(name), last
        return
    inside = list(step._inside())
    yield from ((True, *each) for each in (inside[-1:] if isinstance(step, SequenceOf) else inside))
    beside = ((step_paths.FALLBACK, step.fallback), (step_paths.REVIEW, step.on_low_confidence))
    yield from ((False, segment, child) for segment, child in beside if child is not None)


# --- places -------------------------------------------------------------------------------------------------


def _place_of(root: Pipeline, way: tuple[Segment, ...]) -> StepPath:
    """Return the declaration path of a run path, or its ancestor's."""
    step: AnyStep = root
    place = ROOT
    for segment in way:
        children = dict(step.children())
        known = segment if segment in children or not isinstance(segment, Named) else DEFAULT
        if known not in children:
            break
        step, place = children[known], step_paths.child(place, known)
    return place
