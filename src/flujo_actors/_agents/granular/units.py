"""The units of a granular step, and the journal that keeps them.

A unit is one model request or one tool call. Rules:

1. A unit is known by its key: the model turn it belongs to and, for a tool call, the provider's `tool_call_id`.
   Both are the same on every attempt, because the responses that hold the ids are recorded.
2. Before a unit is done, its intent is durable; after it is done, its result is. A unit with a result is never done
   again. One with an intent alone was under way when the process died: it may or may not have had its effect.
3. Such a tool call is done again, under the same idempotency key, unless it was declared otherwise. Such a model
   request is always made again: it has no effect but its price.
4. A call that was asked about is done again if the answer says so, once: if that time ends in a crash, too, it is
   asked about again. Whatever was declared or answered, the tool is told that it may have run before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeAlias

import attrs

from ..._core.usage import NO_USAGE, Usage

OnUncertain: TypeAlias = Literal["rerun", "pause", "fail"]
"""What happens to a tool call that may have run before: it is run, the run asks, or the step fails."""

ON_UNCERTAIN_KEY = "on_uncertain"
"""Under this key of its `metadata`, a tool says what holds for itself: `@agent.tool(metadata={"on_uncertain": …})`."""


@attrs.frozen(kw_only=True)
class UnitKey:
    """Which unit of a step: stable over attempts and processes."""

    turn: int
    """The model turn, from 1; 0 for what is done before the first one."""
    call: str = ""
    """The `tool_call_id` of a tool call; empty for the turn's model request."""
    nth: int = 1
    """Tells apart what shares turn and call: parts of one model turn, or ids that a provider used twice."""

    def __str__(self) -> str:
        text = f"{self.turn}:{self.call}" if self.call else f"{self.turn}"
        return text if self.nth == 1 else f"{text}#{self.nth}"


@attrs.frozen(kw_only=True)
class RecordedUnit:
    """A unit that was done and committed by an earlier attempt."""

    result: str
    """JSON text, as it was committed."""
    usage: Usage = NO_USAGE
    counted: bool = False
    """Whether this process has counted the usage already, as it has after a retry in the same process."""


@attrs.frozen
class RunAgain:
    """Somebody who was asked about a unit that may have run before said: run it again. Good for one time."""


class UnitJournal(Protocol):
    """Where the units of one step are kept. Called on the asyncio side, from concurrent tasks."""

    async def recall(self, key: UnitKey) -> RecordedUnit | RunAgain | None:
        """The unit's result, if any attempt, of this process or another, has committed it."""

    async def intend(self, key: UnitKey, intent: str) -> bool:
        """Make it durable, before returning, that the unit is about to be done.

        True if it was so already: then the unit has been begun before, and nobody knows how far it came.
        """

    async def commit(self, key: UnitKey, result: str, usage: Usage) -> None:
        """Make the unit's result durable before returning."""

    async def told(self, key: str) -> tuple[Any] | None:
        """What was answered to a question that the conversation asked under this key."""


@attrs.frozen(kw_only=True)
class Unit:
    """The unit in which code is running."""

    idempotency_key: str
    """`run:path:turn:tool_call_id`: the same on every attempt, different for every call."""
    may_have_run_before: bool
    """Whether an earlier attempt began this call and died before its result was recorded."""


_current: ContextVar[Unit | None] = ContextVar("flujo_actors unit", default=None)


def current_unit() -> Unit | None:
    """The unit a tool runs in, also from sync tools; `None` outside of granular steps."""
    return _current.get()


@contextlib.contextmanager
def entered(unit: Unit) -> Iterator[None]:
    """Make `unit` the current one."""
    token = _current.set(unit)
    try:
        yield
    finally:
        _current.reset(token)
