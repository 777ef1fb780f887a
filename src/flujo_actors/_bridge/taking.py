"""Whoever takes the pieces of a stream in the thread of the trio run, and where they go from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from outcome import Error, Value

T_contra = TypeVar("T_contra", contravariant=True)
H = TypeVar("H")


class PutBox(Protocol[T_contra]):
    """A bounded queue, as those see it who put into it."""

    async def put(self, item: T_contra) -> None:
        """From a trio task: add the item, waiting for room."""

    def put_when_room(self, item: T_contra, accepted: Callable[[Value[object] | Error], None]) -> None:
        """From anywhere else in the thread: add it as soon as there is room, and tell `accepted` then, once."""

    def withdraw(self, accepted: Callable[[Value[object] | Error], None]) -> None:
        """Let `accepted` wait no longer, and do not add its item."""


class Taker(Protocol[T_contra, H]):
    """Takes the pieces of one stream, in order."""

    @property
    def box(self) -> PutBox[H] | None:
        """Where pieces go that somebody reads."""

    def take(self, piece: T_contra) -> H | None:
        """Take a piece. What comes back, if it is not `None`, found no room: it is to be put into the box next."""
