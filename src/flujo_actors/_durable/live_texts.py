"""What steps at work are writing, for whoever watches their run in the same process: the end of it, and no more.

Rules:

1. It is free while nobody watches: one look into a dict for each piece of a stream.
2. It is bounded and lossy: of each open step the last `TAIL_CHARS` characters are kept, and who looks seldom sees less.
   A run never waits for who watches it.
3. A new attempt of a step begins anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping
from typing import TypeAlias

import attrs

from .._core.outcomes import RunId
from .._core.paths import StepPath

TAIL_CHARS = 4_096
"""How much is kept of what a step has written."""

Wake: TypeAlias = Callable[[], object]


@attrs.define(eq=False)
class Tail:
    """The end of what one step has written."""

    attempt: int
    text: str = ""
    version: int = 0
    """Counts the pieces of the whole run, so that a watcher knows what it has seen."""


@attrs.define(eq=False)
class _Watched:
    """One run that somebody watches."""

    tails: dict[StepPath, Tail] = attrs.Factory(dict)
    wakes: list[Wake] = attrs.Factory(list)
    version: int = 0


class LiveTexts:
    """The watched runs of this process; see the module's rules. To be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[RunId, _Watched] = {}
        self.watched: Container[RunId] = self._runs
        """The runs that somebody watches, to be asked for each piece of a stream."""

    def is_watched(self, run_id: RunId) -> bool:
        """Whether somebody wants to see what the steps of a run write."""
        return run_id in self._runs

    def join(self, run_id: RunId, wake: Wake) -> None:
        """Watch a run: `wake` is called whenever a step has written something."""
        with self._lock:
            self._runs.setdefault(run_id, _Watched()).wakes.append(wake)

    def leave(self, run_id: RunId, wake: Wake) -> None:
        """Watch no longer."""
        with self._lock:
            watched = self._runs.get(run_id)
            if watched is not None and wake in watched.wakes:
                watched.wakes.remove(wake)
                if not watched.wakes:
                    del self._runs[run_id]

    def hear(self, run_id: RunId, path: StepPath, attempt: int, piece: object) -> None:
        """A step of a watched run has written a piece; what is no text is not kept."""
        if not isinstance(piece, str):
            return
        with self._lock:
            watched = self._runs.get(run_id)
            if watched is None:
                return
            watched.version += 1
            tail = watched.tails.get(path)
            if tail is None or tail.attempt != attempt:
                tail = watched.tails[path] = Tail(attempt)
            tail.text, tail.version = (tail.text + piece)[-TAIL_CHARS:], watched.version
            wakes = list(watched.wakes)
        for wake in wakes:
            wake()

    def replace(self, run_id: RunId, texts: Mapping[StepPath, str]) -> None:
        """What the steps of a watched run have written in another process."""
        with self._lock:
            watched = self._runs.get(run_id)
            changed = {} if watched is None else _changed(watched.tails, texts)
            if watched is None or not changed:
                return
            watched.version += 1
            watched.tails.update({path: Tail(1, text, watched.version) for path, text in changed.items()})
            wakes = list(watched.wakes)
        for wake in wakes:
            wake()

    def since(self, run_id: RunId, version: int) -> tuple[dict[StepPath, str], int]:
        """What has changed since a version, by path, and the version that this is."""
        with self._lock:
            watched = self._runs.get(run_id)
            if watched is None or watched.version == version:
                return {}, version
            new = {path: tail.text for path, tail in watched.tails.items() if tail.version > version}
            return new, watched.version


def _changed(tails: Mapping[StepPath, Tail], texts: Mapping[StepPath, str]) -> dict[StepPath, str]:
    return {path: text for path, text in texts.items() if path not in tails or tails[path].text != text}


live_texts = LiveTexts()
"""The watched runs of this process."""
