"""Live text of steps, exchanged between processes through the store.

Rules:

1. A watcher marks a run as watched in the store, and reads its owner's text: twice a second, only
   for runs of other processes.
2. The claim of a run reads whether it is watched, so the first step streams already. Later the owner polls as often as
   for requests to cancel, with the same thread. While a run is watched, its text is kept and published in the store.
3. Text is best effort: its errors affect nothing else, and no store needs to support it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Container, Iterable, Sequence
from typing import cast

from .._core.outcomes import RunId
from .._core.records.records import Lease
from ..errors import StoreError
from ..stores._store_port import RunTexts, Store
from .live_text import LiveKey, live_key, live_texts

EVERY_S = 0.5
"""Poll interval of a watcher."""

WANTED_FOR_S = 3.0
"""Lifetime of a watcher's mark, unless it is repeated."""


class _OwnedRuns:
    """Runs executed by this process, and their watched subset."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owned: set[LiveKey] = set()
        self._watched: set[LiveKey] = set()

    def __contains__(self, run: LiveKey) -> bool:
        return run in self._owned

    def begin(self, run: LiveKey, *, watched: bool) -> None:
        """Add a run before its first step; `watched` comes from its claim."""
        with self._lock:
            self._owned.add(run)
            if watched:
                self._join(run)

    def update(self, runs: Iterable[LiveKey], watched: Container[LiveKey]) -> None:
        """Set which of these runs other processes watch now."""
        with self._lock:
            for run in runs:
                if run not in watched:
                    self._leave(run)
                elif run in self._owned:
                    self._join(run)

    def forget(self, run: LiveKey) -> None:
        """Remove a run whose lease is released."""
        with self._lock:
            self._owned.discard(run)
            self._leave(run)

    def _join(self, run: LiveKey) -> None:
        if run not in self._watched:
            self._watched.add(run)
            live_texts.join(run, _wake_nothing)

    def _leave(self, run: LiveKey) -> None:
        if run in self._watched:
            self._watched.discard(run)
            live_texts.unwatch(run, _wake_nothing)


def _wake_nothing() -> None:
    """Watchers in other processes poll the store."""


_owned = _OwnedRuns()


def own_texts(store: Store | None, lease: Lease) -> None:
    """Owner, before the first step: keep text for a watcher."""
    if store is not None:
        _owned.begin(live_key(store, lease.run_id), watched=lease.watched)


def forget_texts(store: Store | None, lease: Lease) -> None:
    """Owner's side, when the lease is released."""
    if store is not None:
        _owned.forget(live_key(store, lease.run_id))


def publish_texts(store: Store, run_ids: Sequence[RunId]) -> None:
    """Owner: publish watched runs' text and find new watchers; blocks."""
    if hasattr(store, "swap_texts"):
        with contextlib.suppress(StoreError):
            keys = {run_id: live_key(store, run_id) for run_id in run_ids}
            texts = {run_id: live_texts.since(key, -1)[0] for run_id, key in keys.items()}
            wanted = cast(RunTexts, store).swap_texts(texts)
            _owned.update(keys.values(), {keys[run_id] for run_id in wanted})


def fetch_texts(store: Store, run_ids: Sequence[RunId]) -> None:
    """Watcher: register for remote runs and read their text; blocks."""
    keys = {run_id: live_key(store, run_id) for run_id in run_ids}
    wanted = [run_id for run_id, key in keys.items() if live_texts.is_watched(key) and key not in _owned]
    if wanted and hasattr(store, "watch_texts"):
        with contextlib.suppress(StoreError):
            left = cast(RunTexts, store).watch_texts(wanted, for_s=WANTED_FOR_S)
            for run_id, texts in left.items():
                live_texts.replace(keys[run_id], texts)
