"""One question on its way: the slot into which an actor puts its reply.

1. A question is open until the actor replies (or fails it), or until nobody waits for it any more.
2. The actor answers once; a second answer is a `ProtocolError`.
3. An answer to a question that nobody waits for any more is dropped: the asker timed out, was cancelled, or
   was told that the actor died.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from outcome import Error, Maybe, Value
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

from ..errors import ProtocolError

R = TypeVar("R")


class Ask(Generic[R]):
    """Part of a message that wants a reply: `Total(ask: Ask[int])` is answered by `total.ask.reply(3)`."""

    __slots__ = ("_answer", "_answered", "_asker", "_withdrawn")

    def __init__(self) -> None:
        self._asker: Task | None = None
        self._answer: Maybe[R] | None = None
        self._answered = False
        self._withdrawn = False

    def reply(self, value: R) -> None:
        """Give the asker this value."""
        self._settle(Value(value))

    def fail(self, error: Exception) -> None:
        """Raise this error where the question was asked."""
        self._settle(Error(error))

    @property
    def open(self) -> bool:
        """Whether somebody still waits for an answer."""
        return not (self._answered or self._withdrawn)

    def _settle(self, answer: Maybe[R]) -> None:
        if self._answered:
            raise ProtocolError("this question was answered before; an actor replies once")
        self._answered = True
        self._deliver(answer)

    def withdraw(self, error: Exception | None = None) -> None:
        """Stop waiting: the asker, if it still waits, gets the error; a later answer is dropped."""
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
        """The answer, when it comes."""
        if self._answer is not None:
            return self._answer.unwrap()
        self._asker = current_task()
        reply: Any = await wait_task_rescheduled(self._give_up)
        answer: R = reply
        return answer

    def _give_up(self, _: object) -> Abort:
        self._asker = None
        return Abort.SUCCEEDED
