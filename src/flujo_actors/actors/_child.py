"""One child of a supervisor: its address, which stays, and its incarnations, which come and go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import outcome
import trio

from ._ref import Addressee
from ._supervision import ChildSpec


@attrs.define(eq=False)
class Incarnation:
    """One run of a child's actor, from its start to its end."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    begun: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    asked_to_end: bool = False


@attrs.define(eq=False)
class RunningChild:
    """A child: what to run, where its messages go, and the run it is in."""

    spec: ChildSpec
    addressee: Addressee[Any]
    act: Callable[[], Awaitable[object]]
    incarnation: Incarnation = attrs.field(factory=Incarnation)
    cause: Exception | None = None
    """What the last incarnation crashed with, if it did."""

    async def live(self, incarnation: Incarnation) -> None:
        """Run the actor once. A crash is remembered as the cause; cancellation and the like pass."""
        incarnation.begun.set()
        result = await outcome.acapture(self._act_within, incarnation.scope)
        self.cause = _crash(result)
        self.addressee.disown_taken(self.cause)
        incarnation.ended.set()
        if self.cause is None:
            result.unwrap()

    async def _act_within(self, scope: trio.CancelScope) -> None:
        with scope:
            await self.act()

    async def end(self, *, for_good: bool) -> None:
        """Ask the incarnation to end, and cancel it when its time is over.

        For good, its mailbox is closed and it may handle what is queued. Before a restart its mailbox is
        suspended: it finishes what it has, and the queue waits for the next incarnation.
        """
        self.incarnation.asked_to_end = True
        if for_good:
            self.addressee.mailbox.close()
        else:
            self.addressee.mailbox.suspend()
        with trio.move_on_after(self.spec.shutdown_s):
            await self.incarnation.ended.wait()
        self.incarnation.scope.cancel()
        await self.incarnation.ended.wait()

    def renew(self) -> Incarnation:
        """The next incarnation, reading on where the last one stopped."""
        self.addressee.mailbox.resume()
        self.incarnation = Incarnation()
        return self.incarnation


def _crash(result: outcome.Maybe[None]) -> Exception | None:
    match result:
        case outcome.Error(error=Exception() as crash):
            return crash
        case _:
            return None
