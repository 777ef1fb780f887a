"""Units of a granular step, and their journal.

A unit is one model request or one tool call. Rules:

1. The key of a unit is its model turn and, for a tool call, the provider's `tool_call_id`.
   Both are the same on every attempt, because the responses that hold the ids are recorded.
2. Before a unit is executed, its intent is durable; afterwards, its result is. A unit with a result is never executed
   again. One with an intent alone was running when the process died: its effect is unknown.
3. Such a tool call is executed again, under the same idempotency key, unless it was declared otherwise. Such a model
   request is always made again: it has no effect but its price.
4. A call behind a pause is executed again if the answer approves, once: if that ends in a crash, too, the run pauses
   again. In every case the tool can read that it may have run before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeAlias

import attrs

from ..._core.records.sent_events import SteeringMessage
from ..._core.usage import NO_USAGE, Usage

OnUncertain: TypeAlias = Literal["rerun", "pause", "fail"]
"""Handling of a possibly repeated tool call: rerun, pause or fail."""

ON_UNCERTAIN_KEY = "on_uncertain"
"""Metadata key of a tool's own policy: `@agent.tool(metadata={"on_uncertain": …})`."""

STEERED, MESSAGES = "steered", "messages"
"""Keys of an intent that list the numbers and ids of messages from outside.

A fork numbers its records anew, so ids identify them.
"""


@attrs.frozen(kw_only=True)
class UnitKey:
    """Key of a unit, stable over attempts and processes."""

    turn: int
    """Model turn, from 1; 0 before the first one."""
    call: str = ""
    """The `tool_call_id` of a tool call; empty for the turn's model request."""
    nth: int = 1
    """Ordinal among keys of equal turn and call id."""

    def __str__(self) -> str:
        text = f"{self.turn}:{self.call}" if self.call else f"{self.turn}"
        return text if self.nth == 1 else f"{text}#{self.nth}"


@attrs.frozen(kw_only=True)
class RecordedUnit:
    """Unit committed by an earlier attempt."""

    result: str
    """JSON text, as it was committed."""
    usage: Usage = NO_USAGE
    counted: bool = False
    """Whether this process has counted the usage, as after a retry."""


Rehearse: TypeAlias = Literal["recorded", "repeat", "live"]
"""Handling of a tool call in a rehearsal: its record, the last one again, or a call."""

ASKED = "asked"
"""Part of a model request's intent: chained hash of all requests so far."""

REHEARSE_KEY = "rehearse"
"""Metadata key of a tool's handling in rehearsals."""


@attrs.frozen(kw_only=True)
class ToolRequest:
    """Tool call of a rehearsed step."""

    tool: str
    arguments: Any
    rehearse: Rehearse = "recorded"


@attrs.frozen
class RunAgain:
    """Approval to rerun a unit that may have run before. Valid once."""


class UnitJournal(Protocol):
    """Journal of one step's units, called by concurrent asyncio tasks."""

    async def recall(self, key: UnitKey) -> RecordedUnit | RunAgain | None:
        """Return the committed result of a unit of any attempt, if any."""

    async def intend(self, key: UnitKey, intent: str) -> bool:
        """Make the unit's intent durable before returning.

        Return True if it existed already: then the unit was started before, and its effect is unknown.
        """

    async def commit(self, key: UnitKey, result: str, usage: Usage) -> None:
        """Make the unit's result durable before returning."""

    async def answer(self, key: str) -> tuple[Any] | None:
        """Return the answer to a pause under this key, or None."""


class UnitSteering(Protocol):
    """Messages from outside to one conversation."""

    async def accepted(self, key: UnitKey) -> Sequence[SteeringMessage]:
        """Return the messages before a model turn, or those of its record."""


class RehearsedUnits(Protocol):
    """Recorded tool calls of a rehearsed step."""

    async def recall_call(self, key: UnitKey, request: ToolRequest) -> RecordedUnit | None:
        """Return the recorded result of a call; `None` for a live one."""

    def compare_request(self, key: UnitKey, asked: str) -> None:
        """Compare the hash of a model request with the recorded one."""


@attrs.frozen(kw_only=True)
class UnitRecord:
    """The unit in which code is running."""

    idempotency_key: str
    """`run:path:turn:tool_call_id`: the same on every attempt, different for every call."""
    may_have_run_before: bool
    """Whether an earlier attempt started this call without recording its result."""


_current: ContextVar[UnitRecord | None] = ContextVar("flujo_actors unit", default=None)


def current_unit() -> UnitRecord | None:
    """Return the unit of the running tool; `None` outside granular steps.

    Example:
        ```python
        def book(city: str) -> str:
            return current_unit().idempotency_key

        script = scripted_model([CallTool("book", {"city": "Oslo"})], "Booked.")
        step = Step.granular("travel", make_agent_async(script, tools=[book]))
        assert Flujo(step).run("Oslo").output == "Booked."
        assert current_unit() is None
        ```
    """
    return _current.get()


@contextlib.contextmanager
def entered(unit: UnitRecord) -> Iterator[None]:
    """Make `unit` the current one."""
    token = _current.set(unit)
    try:
        yield
    finally:
        _current.reset(token)
