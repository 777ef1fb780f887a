"""Faults that `simulate` injects; each has a chance `p` per opportunity.

simulate(app, faults=[*faults.only("crash", "ack_lost"), faults.store_slow(p=0.05, seconds=(0, 90))])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import attrs

from .._core.validators import brief_repr, is_number
from ..errors import DeclarationError

Place: TypeAlias = Literal["write", "call", "effect", "model", "answer"]
"""Kind of opportunity."""

Range: TypeAlias = tuple[float, float]


def _is_chance(_: FaultKind, field: attrs.Attribute[float], value: object) -> None:
    if not is_number(value) or not 0 <= value <= 1:
        raise DeclarationError(f"faults: {field.name} must be a number from 0 to 1, not {brief_repr(value)}")


def _is_range(kind: FaultKind, _: attrs.Attribute[Range | None], value: object) -> None:
    """Refuse seconds other than a lower and an upper bound."""
    wanted = "two numbers" if kind.name == "clock_jump" else "two numbers of at least 0"
    least = -math.inf if kind.name == "clock_jump" else 0
    match value:
        case None:
            return
        case (low, high) if is_number(low) and is_number(high) and least <= low <= high:
            return
        case _:
            raise DeclarationError(
                f"faults.{kind.name}: {kind.argument} must be {wanted}, the lower one first, not {brief_repr(value)}"
            )


@attrs.frozen
class FaultKind:
    """One kind of fault and its chance."""

    name: str
    p: float = attrs.field(validator=_is_chance)
    places: tuple[Place, ...]
    seconds: Range | None = attrs.field(default=None, validator=_is_range)

    @property
    def argument(self) -> str:
        """Name of the argument with its seconds."""
        return "retry_after" if self.name == "rate_limited" else "seconds"

    def __str__(self) -> str:
        """Return the call that makes it."""
        given = "" if self.seconds == _KINDS[self.name]().seconds else f", {self.argument}={self.seconds}"
        return f"faults.{self.name}(p={self.p}{given})"


def crash(p: float = 0.03) -> FaultKind:
    """Process crash around a write, an effect or a model call."""
    return FaultKind("crash", p, ("write", "effect", "model"))


def store_fails(p: float = 0.01) -> FaultKind:
    """Failing store write, before the commit."""
    return FaultKind("store_fails", p, ("write",))


def ack_lost(p: float = 0.01) -> FaultKind:
    """Failing store write, after the commit."""
    return FaultKind("ack_lost", p, ("write",))


def store_slow(p: float = 0.01, seconds: Range = (0, 40)) -> FaultKind:
    """Slow store call, possibly longer than the lease."""
    return FaultKind("store_slow", p, ("call",), seconds)


def cancel(p: float = 0.002) -> FaultKind:
    """Cancellation of the run by another process, once per seed."""
    return FaultKind("cancel", p, ("write",))


def clock_jump(p: float = 0.003, seconds: Range = (-3600, 3600)) -> FaultKind:
    """Jump of the wall clock."""
    return FaultKind("clock_jump", p, ("write", "effect"), seconds)


def lease_lost(p: float = 0.003) -> FaultKind:
    """Claim of the run by another owner."""
    return FaultKind("lease_lost", p, ("write",))


def duplicate_answer(p: float = 0.2) -> FaultKind:
    """Second answer to a question."""
    return FaultKind("duplicate_answer", p, ("answer",))


def late_answer(p: float = 0.2, seconds: Range = (1, 7200)) -> FaultKind:
    """Late answer to a question, also after its deadline."""
    return FaultKind("late_answer", p, ("answer",), seconds)


def model_fails(p: float = 0.03) -> FaultKind:
    """Model request that ends with a server error."""
    return FaultKind("model_fails", p, ("model",))


def rate_limited(p: float = 0.03, retry_after: Range = (1, 60)) -> FaultKind:
    """Model request that is refused with a wait time."""
    return FaultKind("rate_limited", p, ("model",), retry_after)


def truncated_answer(p: float = 0.02) -> FaultKind:
    """Model answer that ends in the middle."""
    return FaultKind("truncated_answer", p, ("model",))


_KINDS: dict[str, Callable[[], FaultKind]] = {
    kind.__name__: kind
    for kind in (
        crash,
        store_fails,
        ack_lost,
        store_slow,
        cancel,
        clock_jump,
        lease_lost,
        duplicate_answer,
        late_answer,
        model_fails,
        rate_limited,
        truncated_answer,
    )
}


def default() -> list[FaultKind]:
    """Return all kinds of faults with their default chances."""
    return [kind() for kind in _KINDS.values()]


def only(*names: str) -> list[FaultKind]:
    """Return the named kinds of faults with their default chances."""
    unknown = [name for name in names if not isinstance(name, str) or name not in _KINDS]
    if unknown:
        raise DeclarationError(f"faults.only: there is no fault {unknown[0]!r:.100}; known are {', '.join(_KINDS)}")
    return [_KINDS[name]() for name in names]


def none() -> list[FaultKind]:
    """Return no faults: only the order of tasks varies."""
    return []
