"""How long a run, and steps with a time limit of their own, have worked: summed over all parts of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .._core.paths import StepPath


class WorkedTime:
    """Clocks that run while something works, and what they showed when it stopped."""

    __slots__ = ("_earlier", "_running")

    def __init__(self) -> None:
        self._earlier: dict[StepPath, float] = {}
        self._running: dict[StepPath, Callable[[], float]] = {}

    def of(self, path: StepPath) -> float:
        """How many seconds were worked there in earlier parts of the run."""
        return self._earlier.get(path, 0.0)

    def begin(self, path: StepPath, seconds: Callable[[], float]) -> None:
        """From now on `seconds` tells it."""
        self._running[path] = seconds

    def end(self, path: StepPath) -> None:
        """What was worked there in this part is over."""
        self._earlier[path] = self._running.pop(path)()

    def now(self) -> dict[str, float]:
        """What every running clock shows, to be written down."""
        return {path: round(seconds(), 6) for path, seconds in self._running.items()}

    def take_in(self, written: Mapping[str, float]) -> None:
        """Take in what an earlier part of the run wrote down; it only grows."""
        for path, seconds in written.items():
            self._earlier[StepPath(path)] = max(seconds, self.of(StepPath(path)))
