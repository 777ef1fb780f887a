"""What a host needs of a mailbox to read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from outcome import Error, Value

T_co = TypeVar("T_co", covariant=True)


class Box(Protocol[T_co]):
    """A queue that trio tasks put into; its end is `trio.EndOfChannel`."""

    async def get(self) -> T_co:
        """From a trio task: the next item."""

    def hand_next_to(self, deliver: Callable[[Value[Any] | Error], None]) -> None:
        """From anywhere else in the thread: `deliver` gets the next item, or the end, once."""

    def withdraw(self, deliver: Callable[[Value[Any] | Error], None]) -> None:
        """Let `deliver` wait no longer."""
