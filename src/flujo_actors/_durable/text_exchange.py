"""What steps are writing, exchanged between processes through the store.

Rules:

1. A watcher leaves word in the store that somebody watches a run, and takes what its owner left: twice a second, only
   of runs that are not at work in its own process.
2. The owner looks for such word as often as for requests to cancel, with the same thread. While somebody watches, it
   keeps the ends of texts and leaves them in the store.
3. Text is a courtesy: what goes wrong with it goes wrong with nothing else, and no store needs to pass it on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import cast

from .._core.outcomes import RunId
from ..errors import StoreError
from ..stores._port import RunTexts, Store
from .claiming import is_at_work_here
from .live_texts import live_texts

EVERY_S = 0.5
"""How often a watcher asks."""

WANTED_FOR_S = 3.0
"""How long a watcher's word holds, unless it is given again."""


class _Elsewhere:
    """The runs of this process that are watched in others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: set[RunId] = set()

    def wanted(self, run_ids: Sequence[RunId], wanted: set[RunId]) -> None:
        """Of these runs, those are watched elsewhere."""
        with self._lock:
            for run_id in run_ids:
                if run_id in wanted and run_id not in self._runs:
                    self._runs.add(run_id)
                    live_texts.join(run_id, _nobody_waits)
                elif run_id not in wanted:
                    self._leave(run_id)

    def forget(self, run_id: RunId) -> None:
        """A run is not at work here any more."""
        if self._runs:
            with self._lock:
                self._leave(run_id)

    def _leave(self, run_id: RunId) -> None:
        if run_id in self._runs:
            self._runs.discard(run_id)
            live_texts.leave(run_id, _nobody_waits)


def _nobody_waits() -> None:
    """Whoever watches elsewhere is told by the next look."""


_elsewhere = _Elsewhere()

forget_texts = _elsewhere.forget
"""The owner's side, when it lets a run go."""


def leave_texts(store: Store, run_ids: Sequence[RunId]) -> None:
    """The owner's side; blocks."""
    if hasattr(store, "swap_texts"):
        with contextlib.suppress(StoreError):
            said = {run_id: live_texts.since(run_id, -1)[0] for run_id in run_ids}
            _elsewhere.wanted(run_ids, cast(RunTexts, store).swap_texts(said))


def take_texts(store: Store, run_ids: Sequence[RunId]) -> None:
    """The watcher's side, for those of the runs whose texts somebody wants; blocks."""
    wanted = [run_id for run_id in run_ids if live_texts.is_watched(run_id) and not is_at_work_here(run_id)]
    if wanted and hasattr(store, "watch_texts"):
        with contextlib.suppress(StoreError):
            left = cast(RunTexts, store).watch_texts(wanted, for_s=WANTED_FOR_S)
            for run_id, texts in left.items():
                live_texts.replace(run_id, texts)
