"""How long to wait before trying again. Pure: chance comes in as an argument.

1. The wait before attempt 1 is `first`; each further attempt waits `factor` times longer.
2. No wait is longer than `ceiling`, however many attempts there were.
3. Chance only shortens a wait, by at most the share `jitter` of it, so rule 2 holds with jitter too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from ..errors import DeclarationError


@attrs.frozen(kw_only=True)
class Backoff:
    """Exponential waiting times with jitter, in seconds."""

    first: float = 0.1
    factor: float = 2.0
    ceiling: float = 30.0
    jitter: float = 0.1

    def __attrs_post_init__(self) -> None:
        for name in ("first", "factor", "ceiling", "jitter"):
            value = getattr(self, name)
            _require(isinstance(value, int | float) and not isinstance(value, bool), name, value, "a number")
        _require(0 <= self.first < math.inf, "first", self.first, "a number of seconds, 0 or more")
        _require(1 <= self.factor < math.inf, "factor", self.factor, "1 or more: waits never shrink")
        _require(self.first <= self.ceiling < math.inf, "ceiling", self.ceiling, "finite, not below `first`")
        _require(0 <= self.jitter <= 1, "jitter", self.jitter, "a share between 0 and 1")

    @classmethod
    def none(cls) -> Backoff:
        """No waiting at all."""
        return cls(first=0.0, ceiling=0.0, jitter=0.0)

    def delay(self, attempt: int, rng: Callable[[], float]) -> float:
        """Seconds to wait before `attempt` (1, 2, …); `rng` is like `random.random`."""
        if attempt < 1:
            raise ValueError(f"attempts count from 1, got {attempt}")
        return self._longest(attempt) * (1.0 - self.jitter * rng())

    def _longest(self, attempt: int) -> float:
        try:
            return min(self.ceiling, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            # Beyond what a float can hold is beyond every ceiling, unless there is nothing to multiply.
            return self.ceiling if self.first else 0.0


def _require(holds: bool, field: str, value: float, wanted: str) -> None:
    if not holds:
        raise DeclarationError(f"Backoff.{field} is {value!r}; it must be {wanted}")
