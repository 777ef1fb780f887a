"""An actor that does what it is told and writes down what it did."""

from __future__ import annotations

from typing import TypeAlias

import attrs
import trio

from flujo_actors.actors import Ask, Mailbox


@attrs.frozen
class Note:
    """Remember this."""

    number: int


@attrs.frozen
class Crash:
    """Raise `Boom`."""

    reason: str = "boom"


@attrs.frozen
class Finish:
    """Return."""


@attrs.frozen
class Seen:
    """How many notes has this incarnation seen?"""

    ask: Ask[int]


@attrs.frozen
class Ignore:
    """Keep the question and never answer it."""

    ask: Ask[int]


Order: TypeAlias = Note | Crash | Finish | Seen | Ignore


class Boom(Exception):
    """The crash of a puppet."""


async def puppet(
    mailbox: Mailbox[Order], name: str = "puppet", log: list[str] | None = None, stubborn: bool = False
) -> None:
    """Obey until the mailbox ends; a stubborn one then stays until it is cancelled."""
    events = [] if log is None else log
    events.append(f"start {name}")
    try:
        told_to_finish = await _obey(mailbox)
        if stubborn and not told_to_finish:
            await trio.sleep_forever()
    finally:
        events.append(f"end {name}")


async def _obey(mailbox: Mailbox[Order]) -> bool:
    seen = 0
    async for order in mailbox:
        match order:
            case Note():
                seen += 1
            case Crash(reason=reason):
                raise Boom(reason)
            case Finish():
                return True
            case Seen(ask=ask):
                ask.reply(seen)
            case Ignore():
                pass
    return False
