"""Tells telemetry when a budget passes from one level to another."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import trio

from .._core.budgets import BudgetLevel, level_of
from .._core.paths import StepPath
from .._core.quota import Quota

if TYPE_CHECKING:
    from .run import Run


class LevelWatch:
    """Looks at one budget whenever it changes, on whatever thread that is."""

    def __init__(self, run: Run, path: StepPath, step_name: str) -> None:
        self._run, self._path, self._step_name = run, path, step_name
        self._level: BudgetLevel = "abundant"
        self._token = trio.lowlevel.current_trio_token()

    def look(self, quota: Quota) -> None:
        """Tell if the level is another one now."""
        fraction = quota.fraction
        level, before = level_of(fraction), self._level
        if level == before:
            return
        self._level = level
        tell = functools.partial(self._tell, level, before, fraction)
        if _here() is self._token:
            tell()
        else:
            self._token.run_sync_soon(tell)

    def _tell(self, level: BudgetLevel, before: BudgetLevel, fraction: float) -> None:
        self._run.emit(
            "budget.level", self._path, step_name=self._step_name, level=level, before=before, fraction=fraction
        )


def _here() -> trio.lowlevel.TrioToken | None:
    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None
