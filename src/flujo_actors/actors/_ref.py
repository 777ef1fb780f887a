"""How to talk to an actor: `ActorRef` for everybody, `Addressee` for the one who runs the actor.

1. A message is sent when its mailbox accepts or refuses it. A `tell` that is cancelled while it waits for
   room sent nothing.
2. A message is handled when the actor takes it from its mailbox, also if the actor then crashes over it:
   it is not delivered a second time. Whoever asked it gets `ActorDied` with the crash.
3. A message is dead when the mailbox refused it, or when it was still queued as the actor ended for good.
4. So at every moment: sent == handled + dead + queued.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, TypeVarTuple

import attrs
import trio

from ..errors import ActorDied, AskTimeout
from ._ask import Ask
from ._mailbox import Mailbox

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

REFUSED = (trio.ClosedResourceError, trio.BrokenResourceError)


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
        self.missed: int = 0

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


@attrs.frozen(kw_only=True)
class Traffic:
    """What became of the messages sent to an actor: `sent == handled + dead + queued`."""

    sent: int = 0
    handled: int = 0
    dead: int = 0
    queued: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            sent=self.sent + other.sent,
            handled=self.handled + other.handled,
            dead=self.dead + other.dead,
            queued=self.queued + other.queued,
        )


class Addressee(Generic[M]):
    """The owner's side of an actor: its mailbox, the questions it owes an answer, and its end."""

    __slots__ = ("_abandoned", "_cause", "_ended", "_refused", "dead_letters", "mailbox", "name", "questions")

    def __init__(self, name: str, mailbox: Mailbox[M], dead_letters: DeadLetters | None = None) -> None:
        self.name: str = name
        self.mailbox: Mailbox[M] = mailbox
        self.dead_letters: DeadLetters = DeadLetters() if dead_letters is None else dead_letters
        self.questions: dict[Ask[Any], M] = {}
        self._ended = trio.Event()
        self._cause: Exception | None = None
        self._refused = 0
        self._abandoned = 0

    def ref(self) -> ActorRef[M]:
        """A handle for those who send."""
        return ActorRef(self)

    @property
    def alive(self) -> bool:
        """Whether the actor runs or will be restarted."""
        return not self._ended.is_set()

    @property
    def cause(self) -> Exception | None:
        """What the actor crashed with in the end, if it did."""
        return self._cause

    async def wait_end(self) -> None:
        """Return when the actor has ended for good."""
        await self._ended.wait()

    def refuse(self, message: M) -> None:
        """Make a dead letter of a message that the mailbox refused."""
        self._refused += 1
        self._lose(message, "refused")

    def disown_taken(self, cause: Exception | None) -> None:
        """Fail the questions the actor took and did not answer; those queued wait for its successor."""
        waiting = {id(message) for message in self.mailbox.untaken()}
        for question, message in list(self.questions.items()):
            if id(message) not in waiting:
                question.withdraw(ActorDied(self.name, cause))

    def bury(self, cause: Exception | None) -> None:
        """End the actor for good: what is queued becomes dead letters, all its questions fail."""
        if not self.alive:
            return
        self._cause = cause
        self._ended.set()
        for message in self.mailbox.break_off():
            self._abandoned += 1
            self._lose(message, "abandoned")
        for question in list(self.questions):
            question.withdraw(ActorDied(self.name, cause))

    def traffic(self) -> Traffic:
        """The counts of rule 4."""
        return Traffic(
            sent=self.mailbox.accepted + self._refused,
            handled=self.mailbox.taken,
            dead=self._refused + self._abandoned,
            queued=len(self.mailbox),
        )

    def _lose(self, message: M, reason: Literal["refused", "abandoned"]) -> None:
        self.dead_letters.add(DeadLetter(actor=self.name, message=message, reason=reason))


class ActorRef(Generic[M_contra]):
    """Sends messages of type `M` to one actor; it stays good when the actor is restarted."""

    __slots__ = ("_addressee", "_mailbox")

    def __init__(self, addressee: Addressee[M_contra]) -> None:
        self._addressee = addressee
        self._mailbox = addressee.mailbox

    def __repr__(self) -> str:
        return f"<ActorRef {self.name!r} {'alive' if self.alive else 'dead'}>"

    @property
    def name(self) -> str:
        """The actor's name."""
        return self._addressee.name

    @property
    def alive(self) -> bool:
        """Whether the actor runs or will be restarted."""
        return self._addressee.alive

    async def tell(self, message: M_contra) -> None:
        """Send the message, waiting for room; to an actor that has ended it becomes a dead letter."""
        await self._send(message)

    async def _send(self, message: M_contra) -> bool:
        try:
            await self._mailbox.put(message)
        except REFUSED:
            self._addressee.refuse(message)
            return False
        return True

    def tell_nowait(self, message: M_contra) -> bool:
        """Send the message if there is room; False if nothing was sent, or if it became a dead letter."""
        try:
            self._mailbox.put_nowait(message)
        except trio.WouldBlock:
            return False
        except REFUSED:
            self._addressee.refuse(message)
            return False
        return True

    async def ask(
        self,
        make_message: Callable[[Ask[R], *Ts], M_contra],
        *args: *Ts,
        timeout: float | None = None,
    ) -> R:
        """Send `make_message(ask, *args)` and return the reply: `await ref.ask(Total, "2024", timeout=1)`.

        `AskTimeout` if `timeout` seconds pass, `ActorDied` if the actor ends without having replied.
        """
        question = Ask[R]()
        seconds = math.inf if timeout is None else timeout
        with trio.move_on_after(seconds):
            return await self._put_question(question, make_message(question, *args))
        raise AskTimeout(self.name, seconds)

    async def _put_question(self, question: Ask[R], message: M_contra) -> R:
        questions = self._addressee.questions
        questions[question] = message
        try:
            if not await self._send(message):
                question.withdraw(ActorDied(self.name, self._addressee.cause))
            return await question.wait()
        finally:
            question.withdraw()
            del questions[question]

    async def ended(self) -> Exception | None:
        """Wait until the actor has ended for good; what it crashed with, or None."""
        await self._addressee.wait_end()
        return self._addressee.cause

    def traffic(self) -> Traffic:
        """How many messages were sent and what became of them."""
        return self._addressee.traffic()
