"""A task whose coroutine begins before the loop has a turn for it: `eager_start` for Python 3.11, which has none.

The first part runs to the first wait, with the task as the current one. Its task takes over there: it waits for what
the coroutine waits for. What only Python 3.11 needs is all here, with the two private functions of asyncio it takes.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def begin_in_two_parts(
    loop: asyncio.AbstractEventLoop, main: Coroutine[object, object, None], context: contextvars.Context, *, name: str
) -> asyncio.Task[None]:
    """A task for a coroutine, whose first part is over."""
    parts = _in_two_parts(main)
    try:
        task = loop.create_task(parts, name=name, context=context)
    except BaseException:  # of the program's own task factory
        parts.close()
        raise
    _enter_task(loop, task)
    try:
        context.run(parts.send, None)
    finally:
        _leave_task(loop, task)
    return task


async def _in_two_parts(main: Coroutine[object, object, None]) -> None:
    try:
        awaited = main.send(None)
    except StopIteration:
        await _the_end_of_the_first_part
    else:
        await _rest(main, awaited)


class _FirstPart:
    """Awaited at the end of the first part: gives way to whoever ran it; what comes next is a step of the task."""

    def __await__(self) -> Any:
        return iter((None,))


_the_end_of_the_first_part = _FirstPart()


@types.coroutine
def _rest(coroutine: Coroutine[object, object, T], awaited: Any) -> Generator[Any, None, T]:
    """The rest of a coroutine that waits for `awaited`, which is left to the task to wait for."""
    owed: BaseException | None = None
    try:
        yield  # the end of the first part
    except asyncio.CancelledError as cancellation:
        if awaited is None or not awaited.cancel(*cancellation.args):
            owed = cancellation
    return (yield from _wait(coroutine, awaited, owed))


def _wait(
    coroutine: Coroutine[object, object, T], awaited: object, owed: BaseException | None = None
) -> Generator[object, None, T]:
    try:
        yield awaited
    except GeneratorExit:  # the loop was closed, and who collects what is left may have come to the coroutine first
        coroutine.close()
        raise
    except BaseException as error:  # meant for the coroutine, which gets it
        owed = error
    return (yield from _resume(coroutine, owed))


def _resume(coroutine: Coroutine[object, object, T], owed: BaseException | None) -> Generator[object, None, T]:
    if owed is None:
        return (yield from coroutine.__await__())
    try:
        awaited = coroutine.throw(owed)
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        owed = None  # it holds this frame, and the frame holds it
    return (yield from _wait(coroutine, awaited))
