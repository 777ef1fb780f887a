"""Granular execution: an agent whose model turns and tool calls are each committed by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import attrs

from .._core.loops import LoopGuard
from ..errors import DeclarationError

if TYPE_CHECKING:
    from .._core.fields import Field, V

OnUncertain: TypeAlias = Literal["rerun", "pause", "fail"]
"""What happens to a tool call that may have run before the process died: it is run again under the same idempotency
key, the run asks a person, or the step fails. A tool may say otherwise for itself in its `metadata`."""


def _checked_turns(_: object, attribute: Field, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DeclarationError(f"max_turns must be at least 1, not {value!r}")


def _checked_history(_: object, attribute: Field, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise DeclarationError(f"keep_last must be at least 1, or None for the whole history, not {value!r}")


def _checked_policy(_: object, attribute: Field, value: str) -> None:
    if value not in get_args(OnUncertain):
        raise DeclarationError(f"on_uncertain must be one of {', '.join(get_args(OnUncertain))}, not {value!r}")


def _checked_guard(_: object, attribute: Field, value: V) -> None:
    if value is not None and not isinstance(value, LoopGuard):
        raise DeclarationError(f"guard must be a LoopGuard(…) or None, not {value!r}")


@attrs.frozen(kw_only=True)
class Resumable:
    """How an agent goes on after a crash: from its last committed unit."""

    max_turns: int = attrs.field(default=20, validator=_checked_turns)
    on_uncertain: OnUncertain = attrs.field(default="rerun", validator=_checked_policy)
    keep_last: int | None = attrs.field(default=None, validator=_checked_history)
    """How many messages, at the least, the model is shown besides the first user message; `None` is all of them.

    Tool calls stay together with their answers.
    """
    guard: LoopGuard | None = attrs.field(default=None, validator=_checked_guard)
    """What happens when the agent goes in circles."""
