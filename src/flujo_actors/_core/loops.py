"""Whether somebody goes in circles: what was done is compared with what was done before.

Rules:

1. One entry of the history is one turn: its calls with their arguments and their results, in no order.
2. Entries are equal if their JSON is. `1`, `1.0` and `True` are different; what has no JSON form equals nothing.
3. A cycle is found at the end of the history: `same` equal entries, `same_error` equal failed ones, or `repeats` times
   the same block of 2 to `max_period` entries.
4. What happens is said by `then`: its first word at the first detection, the last one from then on. The history begins
   afresh after each.
5. Texts are compared by meaning only if nothing exact was found, and somebody brought a measure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import attrs

from ..errors import DeclarationError

if TYPE_CHECKING:
    from .fields import Field, V

LoopKind: TypeAlias = Literal["repetition", "error", "cycle", "similarity"]
"""What was found: the same thing, the same failure, a block of several, or texts that say the same."""

Reaction: TypeAlias = Literal["hint", "rotate", "pause", "fail"]
"""What a detection does."""


@attrs.frozen
class Entry:
    """One turn, as it is compared."""

    signature: str | None
    """Canonical JSON; `None` if there is none, which equals nothing."""
    names: tuple[str, ...] = ()
    """What to call it when people are told."""
    failed: bool = False

    def equals(self, other: Entry) -> bool:
        """Whether both turns did the same with the same result."""
        return self.signature is not None and self.signature == other.signature


@attrs.frozen
class Found:
    """A cycle at the end of a history."""

    kind: LoopKind
    cycle: tuple[str, ...]
    """What is repeated, by name."""
    times: int


def canonical(value: object) -> str | None:
    """A value as canonical JSON, with numbers of different types apart; `None` if it has no such form."""
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None


def entry_of(calls: Iterable[tuple[str, object, object, bool]]) -> Entry | None:
    """The entry of a turn from its calls (name, arguments, result, failed); `None` if it made none."""
    listed = list(calls)
    if not listed:
        return None
    texts = [canonical([name, arguments, result, failed]) for name, arguments, result, failed in listed]
    known = [text for text in texts if text is not None]
    signature = "\n".join(sorted(known)) if len(known) == len(texts) else None
    names = tuple(sorted(name for name, *_ in listed))
    return Entry(signature, names, failed=all(failed for *_, failed in listed))


def _checked_times(_: object, attribute: Field, value: V) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 2:
        raise DeclarationError(f"LoopGuard: {attribute.name} must be a whole number of at least 2, not {value!r}")


def _as_names(value: Any) -> frozenset[str]:
    return frozenset((value,)) if isinstance(value, str) else frozenset(value)


def _as_reactions(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value)


def _checked_reactions(_: object, attribute: Field, value: tuple[object, ...]) -> None:
    if not value or any(each not in get_args(Reaction) for each in value):
        allowed = ", ".join(map(repr, get_args(Reaction)))
        raise DeclarationError(f"LoopGuard: then must be one or more of {allowed}, not {value!r}")


def _checked_share(_: object, attribute: Field, value: V) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise DeclarationError(f"LoopGuard: similar_at must be above 0 and at most 1, not {value!r}")


def _checked_measure(_: object, attribute: Field, value: V) -> None:
    if value is not None and not callable(value):
        raise DeclarationError(f"LoopGuard: similar must be a function of a list of texts, not {value!r}")


@attrs.frozen(kw_only=True)
class LoopGuard:
    """When a loop is found, and what happens then; see the module's rules."""

    same: int = attrs.field(default=4, validator=_checked_times)
    same_error: int = attrs.field(default=3, validator=_checked_times)
    repeats: int = attrs.field(default=3, validator=_checked_times)
    max_period: int = attrs.field(default=5, validator=_checked_times)
    polling: frozenset[str] = attrs.field(default=frozenset(), converter=_as_names)
    """Tools that are called again and again on purpose: their calls are not looked at."""
    then: tuple[Reaction, ...] = attrs.field(
        default=("hint", "fail"), converter=_as_reactions, validator=_checked_reactions
    )
    similar: Callable[[list[str]], Any] | None = attrs.field(default=None, validator=_checked_measure)
    """How alike texts are, from 0 to 1: asked about the last `window` of them if nothing exact was found."""
    similar_at: float = attrs.field(default=0.85, validator=_checked_share)
    window: int = attrs.field(default=5, validator=_checked_times)

    def reaction(self, detection: int) -> Reaction:
        """What the `detection`-th detection does, counted from 1."""
        return self.then[min(detection, len(self.then)) - 1]


DEFAULT_GUARD = LoopGuard()
"""What is looked for where nobody asked: it is told to telemetry, and nothing else happens."""


def find_loop(history: Sequence[Entry], guard: LoopGuard = DEFAULT_GUARD) -> Found | None:
    """The cycle that the history ends with, if it does."""
    if not history or history[-1].signature is None:
        return None
    if history[-1].failed and _ends_with(history, 1, guard.same_error):
        return Found("error", history[-1].names, guard.same_error)
    if _ends_with(history, 1, guard.same):
        return Found("repetition", history[-1].names, guard.same)
    for period in range(2, guard.max_period + 1):
        if _ends_with(history, period, guard.repeats) and _differs(history[-period:]):
            return Found("cycle", _names_of(history[-period:]), guard.repeats)
    return None


def _ends_with(history: Sequence[Entry], period: int, times: int) -> bool:
    """Whether the last `times` blocks of `period` entries are equal."""
    length = period * times
    if len(history) < length:
        return False
    first = len(history) - length
    return all(history[place].equals(history[place + period]) for place in range(first, len(history) - period))


def _differs(block: Sequence[Entry]) -> bool:
    """Whether a block is more than one entry over and over, which is for `same` to judge."""
    return any(not each.equals(block[0]) for each in block[1:])


def _names_of(block: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(name for each in block for name in each.names)
