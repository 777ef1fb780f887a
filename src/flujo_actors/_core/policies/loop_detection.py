"""Loop detection: comparison of recent turns with earlier ones.

Rules:

1. One entry of the history is one turn: its calls with their arguments and their results, in no order.
2. Entries are equal if their JSON is. `1`, `1.0` and `True` are different; a value without a JSON form equals nothing.
3. A cycle is found at the end of the history: `same` equal entries, `same_error` equal failed ones, or `repeats` times
   the same block of 2 to `max_period` entries.
4. `then` lists the reactions: the first entry for the first detection, the last one from then on. The history is
   cleared after each detection.
5. Texts are compared by similarity only if nothing exact was found and a measure was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import attrs

from ...errors import DeclarationError
from ..validators import brief_repr, is_count, is_number, suggests_options

if TYPE_CHECKING:
    from ..validators import AttrsField, V

LoopKind: TypeAlias = Literal["repetition", "error", "cycle", "similarity"]
"""Kind of loop: same entry, same failure, block or similar texts."""

Reaction: TypeAlias = Literal["hint", "rotate", "pause", "fail"]
"""Reaction to a detection."""


@attrs.frozen
class LoopStep:
    """One turn, as it is compared."""

    signature: str | None
    """Canonical JSON; `None` without a JSON form, which equals nothing."""
    names: tuple[str, ...] = ()
    """Display names of the calls."""
    failed: bool = False

    def equals(self, other: LoopStep) -> bool:
        """Return whether both turns did the same with the same result."""
        return self.signature is not None and self.signature == other.signature


@attrs.frozen
class DetectedLoop:
    """A cycle at the end of a history."""

    kind: LoopKind
    cycle: tuple[str, ...]
    """Names of the repeated entries."""
    times: int


def canonical(value: object) -> str | None:
    """Return a value as canonical JSON that separates number types, or None."""
    import json  # plain runs do without

    try:
        return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None


def entry_of(calls: Iterable[tuple[str, object, object, bool]]) -> LoopStep | None:
    """Return the entry of a turn from its calls; `None` without calls.

    A call is name, arguments, result and whether it failed.
    """
    listed = list(calls)
    if not listed:
        return None
    texts = [canonical([name, arguments, result, failed]) for name, arguments, result, failed in listed]
    known = [text for text in texts if text is not None]
    signature = "\n".join(sorted(known)) if len(known) == len(texts) else None
    names = tuple(sorted(name for name, *_ in listed))
    return LoopStep(signature, names, failed=all(failed for *_, failed in listed))


def _checked_times(_: object, attribute: AttrsField, value: V) -> None:
    if not is_count(value, at_least=2):
        raise DeclarationError(
            f"LoopGuard: {attribute.name} must be a whole number of at least 2, not {brief_repr(value)}"
        )


def _as_names(value: Any) -> frozenset[str]:
    names = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(each, str) and each for each in names):
        raise DeclarationError(f"LoopGuard: polling must be names of tools, not {brief_repr(value)}")
    return frozenset(names)


def _as_reactions(value: Any) -> Any:
    return (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)


def _checked_reactions(_: object, attribute: AttrsField, value: tuple[object, ...]) -> None:
    if not value or any(each not in get_args(Reaction) for each in value):
        allowed = ", ".join(map(repr, get_args(Reaction)))
        raise DeclarationError(f"LoopGuard: then must be one or more of {allowed}, not {brief_repr(value)}")


def _checked_share(_: object, attribute: AttrsField, value: V) -> None:
    if not is_number(value) or not 0 < value <= 1:
        raise DeclarationError(f"LoopGuard: similar_at must be above 0 and at most 1, not {brief_repr(value)}")


def _checked_measure(_: object, attribute: AttrsField, value: V) -> None:
    if value is not None and not callable(value):
        raise DeclarationError(f"LoopGuard: similar must be a function of a list of texts, not {brief_repr(value)}")


@suggests_options
@attrs.frozen(kw_only=True)
class LoopGuard:
    """Thresholds and reactions of loop detection; see the module's rules.

    Example:
        ```python
        agent = make_agent_async(scripted_model("Done."))
        step = Step.granular("research", agent, guard=LoopGuard(same=3, then=("hint", "fail")))
        assert Flujo(step).run("tea").output == "Done."
        ```
    """

    same: int = attrs.field(default=4, validator=_checked_times)
    """Equal turns in a row that are a loop."""
    same_error: int = attrs.field(default=3, validator=_checked_times)
    """Equal failed turns in a row that are a loop."""
    repeats: int = attrs.field(default=3, validator=_checked_times)
    """Repetitions of a block of turns that are a loop."""
    max_period: int = attrs.field(default=5, validator=_checked_times)
    """Most turns of a repeated block."""
    polling: frozenset[str] = attrs.field(default=frozenset(), converter=_as_names)
    """Tools that poll; their calls are ignored."""
    then: tuple[Reaction, ...] = attrs.field(
        default=("hint", "fail"), converter=_as_reactions, validator=_checked_reactions
    )
    """Reactions to the first loop and to each following one."""
    similar: Callable[[list[str]], Any] | None = attrs.field(default=None, validator=_checked_measure)
    """Similarity of the last `window` texts, 0 to 1; called last."""
    similar_at: float = attrs.field(default=0.85, validator=_checked_share)
    """Lowest similarity that is a loop, 0 to 1."""
    window: int = attrs.field(default=5, validator=_checked_times)

    @property
    def longest(self) -> int:
        """Return the number of turns that a detection compares at most."""
        return max(self.same, self.same_error, self.repeats * self.max_period)

    def reaction(self, detection: int) -> Reaction:
        """Return the reaction to the `detection`-th detection, counted from 1."""
        return self.then[min(detection, len(self.then)) - 1]


DEFAULT_GUARD = LoopGuard()
"""Default guard: it reports to telemetry and has no other effect."""


def find_loop(history: Sequence[LoopStep], guard: LoopGuard = DEFAULT_GUARD) -> DetectedLoop | None:
    """Return the cycle that the history ends with, if it does."""
    if not history or history[-1].signature is None:
        return None
    if history[-1].failed and _ends_with(history, 1, guard.same_error):
        return DetectedLoop("error", history[-1].names, guard.same_error)
    if _ends_with(history, 1, guard.same):
        return DetectedLoop("repetition", history[-1].names, guard.same)
    for period in range(2, guard.max_period + 1):
        if _ends_with(history, period, guard.repeats) and _differs(history[-period:]):
            return DetectedLoop("cycle", _names_of(history[-period:]), guard.repeats)
    return None


def _ends_with(history: Sequence[LoopStep], period: int, times: int) -> bool:
    """Return whether the last `times` blocks of `period` entries are equal."""
    length = period * times
    if len(history) < length:
        return False
    first = len(history) - length
    return all(history[place].equals(history[place + period]) for place in range(first, len(history) - period))


def _differs(block: Sequence[LoopStep]) -> bool:
    """Return whether a block has different entries."""
    return any(not each.equals(block[0]) for each in block[1:])


def _names_of(block: Sequence[LoopStep]) -> tuple[str, ...]:
    return tuple(name for each in block for name in each.names)
