"""Scripts for agents that are not there: what is answered, call by call."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any

import anyio
import attrs

from .._core.outcomes import Aborted, Failure, Paused, StepResult, Success

_OUTCOMES = (Success, Failure, Paused, Aborted, StepResult)


def _as_tuple(pieces: Iterable[object]) -> tuple[object, ...]:
    return tuple(pieces)


@attrs.frozen
class Streamed:
    """A reply in pieces. With an `error`, the stream breaks after them."""

    pieces: tuple[Any, ...] = attrs.field(converter=_as_tuple)
    error: BaseException | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class Delayed:
    """A reply that takes its time."""

    seconds: float
    reply: Any


@attrs.frozen(kw_only=True)
class Call:
    """What a scripted agent was called with."""

    data: Any
    context: Any = None
    resources: Any = None
    feedback: str | None = None
    """Why the attempt before was refused."""
    assembled: Any = None
    """The `AssembledContext` of the step, which is empty if it has no sources."""


class Script:
    """Replies in the order of the calls, from any thread."""

    def __init__(self, replies: tuple[object, ...], *, forever: bool, whose: str) -> None:
        self._replies, self._forever, self._whose = replies, forever, whose
        self._taken = 0
        self._lock = threading.Lock()

    def next(self) -> object:
        """The next reply; the last one again and again, if the script goes on forever."""
        with self._lock:
            self._taken += 1
            number = self._taken
        if self._replies and (number <= len(self._replies) or self._forever):
            return self._replies[min(number, len(self._replies)) - 1]
        have = len(self._replies)
        raise AssertionError(f"the script of {self._whose} has {have} replies, but this is call {number}")


async def settled(reply: object, *arguments: object) -> object:
    """What a reply comes to: delays waited for, callables called, exceptions raised."""
    while True:
        match reply:
            case Delayed(seconds=seconds, reply=later):
                await anyio.sleep(seconds)
                reply = later
            case BaseException():
                raise reply
            case type() if issubclass(reply, BaseException):
                raise reply
            case type():
                return reply
            case _ if callable(reply):
                reply = reply(*arguments)
                if isinstance(reply, Awaitable):
                    reply = await reply
            case _:
                return reply


class ScriptedAgent:
    """An agent that plays a script, one reply per call, and keeps what it was called with.

    A reply is the output; or an exception, which is raised; `Streamed(pieces)`, live where the run is watched;
    `Delayed(seconds, reply)`; an outcome such as `Paused(message=…)`; or a callable on the data that returns one of
    these. After the last reply a call fails, unless the script goes on `forever` with it.
    """

    def __init__(self, *replies: object, name: str = "scripted agent", forever: bool = False) -> None:
        self.name = name
        self.calls: list[Call] = []
        self._script = Script(replies, forever=forever, whose=name)

    @property
    def inputs(self) -> list[Any]:
        """The data of every call."""
        return [call.data for call in self.calls]

    async def run(
        self,
        data: object,
        *,
        context: object = None,
        resources: object = None,
        feedback: str | None = None,
        assembled: object = None,
    ) -> Any:
        """Answer a call in one piece."""
        reply = await self._reply(data, context, resources, feedback, assembled)
        if not isinstance(reply, Streamed):
            return reply
        if reply.error is not None:
            raise reply.error
        return _joined(reply.pieces)

    async def stream(
        self,
        data: object,
        *,
        context: object = None,
        resources: object = None,
        feedback: str | None = None,
        assembled: object = None,
    ) -> AsyncIterator[Any]:
        """Answer a call whose step is watched."""
        reply = await self._reply(data, context, resources, feedback, assembled)
        if not isinstance(reply, Streamed):
            yield reply if isinstance(reply, _OUTCOMES) else Success(step_result=StepResult(name="", output=reply))
            return
        for piece in reply.pieces:
            yield piece
        if reply.error is not None:
            raise reply.error

    async def _reply(
        self, data: object, context: object, resources: object, feedback: str | None, assembled: object
    ) -> object:
        call = Call(data=data, context=context, resources=resources, feedback=feedback, assembled=assembled)
        self.calls.append(call)
        return await settled(self._script.next(), data)


def _joined(pieces: tuple[Any, ...]) -> object:
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces)
    if all(isinstance(piece, bytes) for piece in pieces):
        return b"".join(pieces)
    return list(pieces)
