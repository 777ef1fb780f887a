"""What an engine must do: carry tickets from whoever has work to whoever does it (a job queue, a task broker).

Rules:

1. A ticket is a hint and holds nothing but names. What is to be done, what was done and who may do it stands in the
   store: so a ticket may come late, twice, to the wrong worker, or not at all, and nothing but time is lost.
2. Every method blocks, and may be called from any thread, from several at once.
3. Whoever waits for a run asks for it `again` when nobody holds its lease. An engine that loses tickets is slow; one
   that cannot be asked again is none.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import attrs

from ..errors import DeclarationError

DEFAULT_QUEUE = "default"
"""Where runs wait for a worker if nobody says otherwise."""

TICKET_BYTES = 1_000
"""How long a ticket may be as JSON."""

QUEUE_CHARACTERS = 100
"""How long the name of a queue may be: engines keep names in columns and channels."""


def checked_queue(queue: str, *, what: str) -> str:
    """The name of a queue, if it is one that every engine takes."""
    if not isinstance(queue, str) or not 0 < len(queue) <= QUEUE_CHARACTERS or not queue.isprintable():
        raise DeclarationError(
            f"{what} must be the name of a queue, 1 to {QUEUE_CHARACTERS} printable characters, not {queue!r:.120}"
        )
    return queue


@attrs.frozen(kw_only=True)
class Ticket:
    """Says that a run wants a worker. Names only, less than 1 kB of them."""

    run_id: str
    queue: str = DEFAULT_QUEUE
    pipeline: str = ""
    """What the runs of one pipeline have in common."""
    fingerprint: str = ""
    """Which version of it the run was started with."""
    priority: int = 0
    """Of two tickets that wait in one queue, the higher one goes first, where the engine has priorities."""
    not_before: float | None = None
    """Seconds since the epoch before which it need not be delivered."""
    trace: Mapping[str, str] = attrs.field(factory=dict)
    """W3C trace headers."""

    def __attrs_post_init__(self) -> None:
        size = len(json.dumps(attrs.asdict(self)))
        if size >= TICKET_BYTES:
            raise DeclarationError(
                f"the ticket of run {self.run_id[:60]!r}… has {size} bytes, and a ticket holds names of less than "
                f"{TICKET_BYTES} in all: choose a shorter run_id, pipeline name or queue"
            )


Play: TypeAlias = Callable[[str], None]
"""Plays the run of that id, if it wants to be played; blocks, and never raises."""


class Engine(Protocol):
    """Carries tickets; see the module's rules."""

    def prepare(self) -> None:
        """Make what the engine needs (tables, say), once; nothing happens if it is there."""

    def submit(self, tickets: Sequence[Ticket], connection: Any = None) -> None:
        """Hand in tickets, durably where the engine is when this returns.

        With an open `connection` of the store's database, they are part of its transaction, if the engine lives in that
        database; otherwise it is ignored.
        """

    def again(self, tickets: Sequence[Ticket]) -> None:
        """Nobody works on these: deliver them, unless they wait in their queue already."""

    def serve(self, queues: Sequence[str], slots: int, play: Play, stopping: threading.Event) -> None:
        """Call `play` with the run of every ticket, in threads of the engine's own, at most `slots` at a time.

        Returns after `stopping` is set and what is being played has ended; takes nothing new from then on. Survives a
        restart of the engine's server.
        """

    def withdraw(self, run_ids: Sequence[str]) -> None:
        """Drop the tickets of these runs that were not delivered; best effort."""
