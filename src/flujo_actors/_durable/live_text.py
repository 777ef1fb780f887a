"""Live text of running steps for same-process watchers, bounded.

Rules:

1. Without watchers it costs one dict lookup per chunk.
2. It is bounded and lossy: of each open step the last `TAIL_CHARS` characters are kept, and a slow watcher sees less.
   A run never waits for its watchers.
3. A new attempt of a step begins anew.
4. A run is identified by its store and its id: two stores of one process may use the same run id.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping
from typing import TypeAlias

import attrs

from .._core.outcomes import RunId
from .._core.step_paths import StepPath

TAIL_CHARS = 4_096
"""Number of kept characters per step."""

Wake: TypeAlias = Callable[[], object]

LiveKey: TypeAlias = tuple[object, RunId]
"""A run of one store, as `live_key` names it."""


def place_of(store: object) -> object:
    """Identity of a store: the database it names, or the object itself.

    The id of an object is unique while the object lives, so a key must not outlive its store.
    """
    return getattr(store, "place", None) or id(store)


def live_key(store: object, run_id: RunId) -> LiveKey:
    """Key of a run of this store."""
    return place_of(store), run_id


@attrs.define(eq=False)
class Tail:
    """End of one step's text."""

    attempt: int
    text: str = ""
    version: int = 0
    """Chunk count of the run, as a watcher's position."""


@attrs.define(eq=False)
class _Watched:
    """One watched run."""

    tails: dict[StepPath, Tail] = attrs.Factory(dict)
    wakes: list[Wake] = attrs.Factory(list)
    version: int = 0


class LiveTexts:
    """Watched runs of this process; thread-safe. See the module's rules."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[LiveKey, _Watched] = {}
        self.watched: Container[LiveKey] = self._runs
        """Watched runs, looked up for each chunk."""

    def is_watched(self, run: LiveKey) -> bool:
        """Return whether a run has watchers of its text."""
        return run in self._runs

    def join(self, run: LiveKey, wake: Wake) -> None:
        """Watch a run: `wake` is called whenever a step has written something."""
        with self._lock:
            self._runs.setdefault(run, _Watched()).wakes.append(wake)

    def unwatch(self, run: LiveKey, wake: Wake) -> None:
        """Watch no longer."""
        with self._lock:
            watched = self._runs.get(run)
            if watched is not None and wake in watched.wakes:
                watched.wakes.remove(wake)
                if not watched.wakes:
                    del self._runs[run]

    def append(self, run: LiveKey, path: StepPath, attempt: int, chunk: object) -> None:
        """Add a chunk of a watched run; ignore data without text."""
        if not isinstance(chunk, str):
            return
        with self._lock:
            watched = self._runs.get(run)
            if watched is None:
                return
            watched.version += 1
            tail = watched.tails.get(path)
            if tail is None or tail.attempt != attempt:
                tail = watched.tails[path] = Tail(attempt)
            tail.text, tail.version = (tail.text + chunk)[-TAIL_CHARS:], watched.version
            wakes = list(watched.wakes)
        for wake in wakes:
            wake()

    def replace(self, run: LiveKey, texts: Mapping[StepPath, str]) -> None:
        """Set the texts of a watched run of another process."""
        with self._lock:
            watched = self._runs.get(run)
            changed = {} if watched is None else _changed(watched.tails, texts)
            if watched is None or not changed:
                return
            watched.version += 1
            watched.tails.update({path: Tail(1, text, watched.version) for path, text in changed.items()})
            wakes = list(watched.wakes)
        for wake in wakes:
            wake()

    def since(self, run: LiveKey, version: int) -> tuple[dict[StepPath, str], int]:
        """Return texts changed since a version, and the new version."""
        with self._lock:
            watched = self._runs.get(run)
            if watched is None or watched.version == version:
                return {}, version
            new = {path: tail.text for path, tail in watched.tails.items() if tail.version > version}
            return new, watched.version


def _changed(tails: Mapping[StepPath, Tail], texts: Mapping[StepPath, str]) -> dict[StepPath, str]:
    return {path: text for path, text in texts.items() if path not in tails or tails[path].text != text}


live_texts = LiveTexts()
"""The watched runs of this process."""
