"""Messages that no actor will handle: counted always, shown to a subscriber if there is one."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import attrs
import trio

from ._mailbox import Mailbox


@attrs.frozen(kw_only=True)
class DeadLetter:
    """One such message: `refused` came too late, `abandoned` was queued when its actor ended for good."""

    actor: str
    message: object
    reason: Literal["refused", "abandoned"]


class DeadLetters:
    """Counts dead letters, and copies each to the subscriber's mailbox while that has room.

    Letters are not kept. One that finds the subscriber's mailbox full or closed is counted as `missed`: an
    observer neither slows a sender nor fails it.
    """

    def __init__(self, subscriber: Mailbox[DeadLetter] | None = None) -> None:
        self._subscriber = subscriber
        self._by_actor: Counter[str] = Counter()
        self.missed = 0

    @property
    def count(self) -> int:
        """All dead letters so far."""
        return self._by_actor.total()

    def count_for(self, actor: str) -> int:
        """The dead letters of the actors of that name."""
        return self._by_actor[actor]

    def add(self, letter: DeadLetter) -> None:
        """Count the letter and show it to the subscriber."""
        self._by_actor[letter.actor] += 1
        if self._subscriber is not None:
            self._show(self._subscriber, letter)

    def _show(self, subscriber: Mailbox[DeadLetter], letter: DeadLetter) -> None:
        try:
            subscriber.put_nowait(letter)
        except (trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            self.missed += 1
