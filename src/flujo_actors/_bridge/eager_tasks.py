"""Tasks of an event loop that begin at once: asyncio's `eager_start`, and what does the same on Python 3.11.

Rules:

1. The coroutine runs to its first wait before `begin_task` returns, as the current task of the loop.
2. A cancellation that comes before the first wait cancels what it waits for, and is raised there.
3. Two kinds of loops give a task its first turn as they give every other one: those that may be run inside themselves,
   and from Python 3.12 those with a task factory of the program (asyncio's own eager one begins tasks at once).
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Coroutine

Main = Coroutine[object, object, None]

TASK_NAME = "flujo_actors step"
"""What the tasks are called in a list of all tasks."""


def begin_task(loop: asyncio.AbstractEventLoop, main: Main, context: contextvars.Context) -> asyncio.Task[None]:
    """A task for a coroutine; unless the loop is one of those of rule 3, its first part is over."""
    if runs_inside_itself(loop):
        return loop.create_task(main, name=TASK_NAME, context=context)
    return _begin_now(loop, main, context)


def runs_inside_itself(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop was patched, as notebooks do it with `nest_asyncio`, to be run by the code that it runs.

    Such code must be in a step of its task from the beginning: the loop could come to the task before it takes over.
    """
    return getattr(loop, "_nest_patched", False)


if sys.version_info >= (3, 12):

    def _begin_now(loop: asyncio.AbstractEventLoop, main: Main, context: contextvars.Context) -> asyncio.Task[None]:
        if loop.get_task_factory() is not None:
            return loop.create_task(main, name=TASK_NAME, context=context)
        return asyncio.Task(main, loop=loop, name=TASK_NAME, context=context, eager_start=True)

else:
    from .two_parts import begin_in_two_parts

    def _begin_now(loop: asyncio.AbstractEventLoop, main: Main, context: contextvars.Context) -> asyncio.Task[None]:
        return begin_in_two_parts(loop, main, context, name=TASK_NAME)
