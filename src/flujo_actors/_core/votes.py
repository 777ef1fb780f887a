"""What several answers to one question come to: the most frequent one, and the share that gave it.

A vote that failed counts for nothing, and against everybody. A tie goes to the answer whose first vote comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import DeclarationError
from .loops import canonical

if TYPE_CHECKING:
    from .fields import Field, V


def _checked_count(_: object, attribute: Field, value: V) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 2:
        raise DeclarationError(f"Votes: n must be a whole number of at least 2, not {value!r}")


def _checked_key(_: object, attribute: Field, value: V) -> None:
    if value is not None and not callable(value):
        raise DeclarationError(f"Votes: key must be a function of an output, not {value!r}")


@attrs.frozen
class Votes:
    """Ask `n` times at once; the share of the most frequent answer is the confidence in it."""

    n: int = attrs.field(validator=_checked_count)
    key: Callable[[Any], Any] | None = attrs.field(default=None, validator=_checked_key)
    """What makes two answers the same; by default they must be equal."""


@attrs.frozen
class Vote:
    """One answer, and what it is compared by."""

    index: int
    compared: object


@attrs.frozen
class Elected:
    """The answer that won."""

    index: int
    """The place of its first vote."""
    votes: int
    share: float


def elect(votes: Sequence[Vote], asked: int) -> Elected | None:
    """The most frequent of the votes of `asked` that were asked; `None` if nobody answered."""
    groups: list[list[Vote]] = []
    for vote in sorted(votes, key=lambda each: each.index):
        group = next((each for each in groups if same_answer(each[0].compared, vote.compared)), None)
        if group is None:
            groups.append([vote])
        else:
            group.append(vote)
    if not groups:
        return None
    winner = max(groups, key=len)  # the first of the largest
    return Elected(index=winner[0].index, votes=len(winner), share=len(winner) / asked)


def same_answer(one: object, other: object) -> bool:
    """Whether two answers are the same: by their JSON, or by what they say of themselves."""
    text = canonical(one)
    if text is not None:
        return text == canonical(other)
    return type(one) is type(other) and bool(one == other)


def confidence_in(value: object) -> tuple[float | None, str]:
    """A confidence from 0 to 1, or why there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, f"its confidence is no number: {value!r:.100}"
    if not 0.0 <= value <= 1.0:  # nor is it if it is not a number
        return None, f"its confidence is not between 0 and 1: {value!r}"
    return float(value), ""


def field_of(output: object, name: str) -> object:
    """The field of an output, whether it is a dict or has attributes; `None` if it has no such field."""
    if isinstance(output, dict):
        return output.get(name)
    return getattr(output, name, None)
