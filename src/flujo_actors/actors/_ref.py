"""Actor references: `ActorRef` for senders, `ActorAddress` for the actor's owner.

1. A message is sent when its mailbox accepts or refuses it. A `tell` that is cancelled while it waits for
   room sent nothing.
2. A message is handled when the actor takes it from its mailbox, also if the actor then crashes:
   it is not delivered a second time. The caller of an `ask` gets `ActorDied` with the crash.
3. A message is dead when the mailbox refused it, or when it was still queued as the actor ended for good.
4. So at every moment: sent == handled + dead + queued.

Sections:

- Request with a reply: the slot into which an actor puts its answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, TypeVarTuple

import attrs
import trio
from outcome import Error, Maybe, Value
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

from ..errors import ActorDied, AskTimeout, ProtocolError
from ._mailbox import Mailbox

# --- Request with a reply -----------------------------------------------------------------------------------------
# 1. A request is open until the actor replies (or fails it), or until the caller stops waiting.
# 2. The actor answers once; a second answer is a `ProtocolError`.
# 3. An answer to an abandoned request is dropped: the caller timed out, was cancelled, or got `ActorDied`.


R = TypeVar("R")


class Ask(Generic[R]):
    """Reply slot of a message: `Total(ask: Ask[int])` is answered by `total.ask.reply(3)`."""

    __slots__ = ("_answer", "_answered", "_asker", "_withdrawn")

    def __init__(self) -> None:
        self._asker: Task | None = None
        self._answer: Maybe[R] | None = None
        self._answered = False
        self._withdrawn = False

    def reply(self, value: R) -> None:
        """Give the asker this value.

        Args:
            value: result of `ask`.
        """
        self._settle(Value(value))

    def fail(self, error: Exception) -> None:
        """Raise this error in the caller.

        Args:
            error: exception of `ask`.
        """
        self._settle(Error(error))

    @property
    def open(self) -> bool:
        """Return whether the caller still waits."""
        return not (self._answered or self._withdrawn)

    def _settle(self, answer: Maybe[R]) -> None:
        if self._answered:
            raise ProtocolError("this question was answered before; an actor replies once")
        self._answered = True
        self._deliver(answer)

    def withdraw(self, error: Exception | None = None) -> None:
        """Stop waiting: callers get the error; a later answer is dropped."""
        if error is not None:
            self._deliver(Error(error))
        self._withdrawn = True

    def _deliver(self, answer: Maybe[R]) -> None:
        if self._answer is not None:
            return
        self._answer = answer
        if self._asker is not None:
            reschedule(self._asker, answer)

    async def wait(self) -> R:
        """Wait for the answer and return it."""
        if self._answer is not None:
            return self._answer.unwrap()
        self._asker = current_task()
        reply: Any = await wait_task_rescheduled(self._give_up)
        answer: R = reply
        return answer

    def _give_up(self, _: object) -> Abort:
        self._asker = None
        return Abort.SUCCEEDED


# --- Actor references ---------------------------------------------------------------------------------------------


M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
Ts = TypeVarTuple("Ts")

REFUSED = (trio.ClosedResourceError, trio.BrokenResourceError)


@attrs.frozen(kw_only=True)
class DeadLetter:
    """Dead message: `refused` came too late, `abandoned` was still queued."""

    actor: str
    """Name of the addressed actor."""
    message: object
    """Message without a handler."""
    reason: Literal["refused", "abandoned"]
    """Whether the mailbox refused it, or the actor ended before it."""


class DeadLetters:
    """Count dead letters; copy each to a subscriber with room.

    Letters are not kept. One that finds the subscriber's mailbox full or closed is counted as `missed`: an observer
    neither slows a sender nor fails it.

    Args:
        subscriber: mailbox that receives each letter, if it has room.
    """

    def __init__(self, subscriber: Mailbox[DeadLetter] | None = None) -> None:
        self._subscriber = subscriber
        self._by_actor: Counter[str] = Counter()
        self.missed: int = 0
        """Number of letters that the subscriber had no room for."""

    @property
    def count(self) -> int:
        """Return all dead letters so far."""
        return self._by_actor.total()

    def count_for(self, actor: str) -> int:
        """Return the dead letters of the actors of that name.

        Args:
            actor: name of the actor.
        """
        return self._by_actor[actor]

    def add(self, letter: DeadLetter) -> None:
        """Count the letter and show it to the subscriber.

        Args:
            letter: letter to count and to send.
        """
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
    """Message counts of an actor: `sent == handled + dead + queued`."""

    sent: int = 0
    """Number of accepted messages."""
    handled: int = 0
    """Number of messages that the actor took."""
    dead: int = 0
    """Number of dead letters."""
    queued: int = 0
    """Number of messages in the mailbox."""

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            sent=self.sent + other.sent,
            handled=self.handled + other.handled,
            dead=self.dead + other.dead,
            queued=self.queued + other.queued,
        )


class ActorAddress(Generic[M]):
    """Owner's side of an actor: mailbox, unanswered requests, and end.

    Args:
        name: name of the actor.
        mailbox: queue of the actor's messages.
        dead_letters: collector of messages that no actor handles.
    """

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
        """Return a reference for senders."""
        return ActorRef(self)

    @property
    def alive(self) -> bool:
        """Return whether the actor runs or will be restarted."""
        return not self._ended.is_set()

    @property
    def cause(self) -> Exception | None:
        """Return the actor's final crash, or None."""
        return self._cause

    async def wait_end(self) -> None:
        """Return when the actor has ended for good."""
        await self._ended.wait()

    def refuse(self, message: M) -> None:
        """Make a dead letter of a message that the mailbox refused."""
        self._refused += 1
        self._lose(message, "refused")

    def fail_taken(self, cause: Exception | None) -> None:
        """Fail the taken, unanswered requests; queued ones wait for the next incarnation."""
        waiting = {id(message) for message in self.mailbox.untaken()}
        for question, message in list(self.questions.items()):
            if id(message) not in waiting:
                question.withdraw(ActorDied(self.name, cause))

    def terminate(self, cause: Exception | None) -> None:
        """End the actor for good: dead letters, and failed requests."""
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
        """Return the counts of rule 4."""
        return Traffic(
            sent=self.mailbox.accepted + self._refused,
            handled=self.mailbox.taken,
            dead=self._refused + self._abandoned,
            queued=len(self.mailbox),
        )

    def _lose(self, message: M, reason: Literal["refused", "abandoned"]) -> None:
        self.dead_letters.add(DeadLetter(actor=self.name, message=message, reason=reason))


class ActorRef(Generic[M_contra]):
    """Reference to one actor for messages of type `M`; valid across restarts."""

    __slots__ = ("_addressee", "_mailbox")

    def __init__(self, addressee: ActorAddress[M_contra]) -> None:
        self._addressee = addressee
        self._mailbox = addressee.mailbox

    def __repr__(self) -> str:
        return f"<ActorRef {self.name!r} {'alive' if self.alive else 'dead'}>"

    @property
    def name(self) -> str:
        """Return the actor's name."""
        return self._addressee.name

    @property
    def alive(self) -> bool:
        """Return whether the actor runs or will be restarted."""
        return self._addressee.alive

    async def tell(self, message: M_contra) -> None:
        """Send the message, waiting for room; an ended actor's is dead.

        Args:
            message: message to append to the mailbox.
        """
        await self._send(message)

    async def _send(self, message: M_contra) -> bool:
        try:
            await self._mailbox.put(message)
        except REFUSED:
            self._addressee.refuse(message)
            return False
        return True

    def tell_nowait(self, message: M_contra) -> bool:
        """Send without waiting; return False if not sent or dead.

        Args:
            message: message to append to the mailbox.
        """
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

        Args:
            make_message: class or function of the message.
            args: further arguments of the message.
            timeout: most seconds to wait.
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
        """Wait for the actor's final end; return its crash, or None."""
        await self._addressee.wait_end()
        return self._addressee.cause

    def traffic(self) -> Traffic:
        """Return the message counts of the actor."""
        return self._addressee.traffic()
