"""A coroutine in a context of its own, without a task of its own.

A task costs more than all the rest of a short step. What such a step needs of one is that nobody else sees the context
variables that it sets (rule 1), and that others get their turn, which somebody has to see to (rule 2).

1. The coroutine runs in a copy of the context (`contextvars`) of whoever made this; so does all that it starts.
2. `waited` says whether it has given way to other tasks so far.
3. Whatever is sent or thrown to whoever awaits it, cancellation too, reaches the coroutine.
4. A call into asyncio that the coroutine makes runs in the same context, as in a task of trio it runs in the task's:
   `context_of_caller` says which one that is.
"""

from __future__ import annotations

import contextvars
from collections.abc import Coroutine, Generator
from typing import Any, Generic, Self, TypeVar

from trio.lowlevel import Task, current_task

T = TypeVar("T")

_here: contextvars.ContextVar[tuple[Task, contextvars.Context] | None] = contextvars.ContextVar("_here", default=None)
"""The task and the context of the coroutine that runs here; what that starts has a copy of this in another task."""


class OwnContext(Generic[T]):
    """Await it once for what the coroutine returns; see the module's rules."""

    __slots__ = ("_coroutine", "_run", "waited")

    def __init__(self, coroutine: Coroutine[object, object, T]) -> None:
        self._coroutine = coroutine
        context = contextvars.copy_context()
        self._run = context.run
        context.run(_here.set, (current_task(), context))
        self.waited = False

    def leave(self) -> None:
        """Let the context go, which holds itself while it is known as that of the caller (rule 4)."""
        self._run(_here.set, None)

    def __await__(self) -> Generator[Any, Any, T]:
        return self  # it has all of a generator's methods that `await` uses

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        return self._run(self._coroutine.send, None)

    def send(self, value: object) -> object:
        """Go on with what the loop has for the coroutine."""
        self.waited = True
        return self._run(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Go on with an error."""
        self.waited = True
        return self._run(self._coroutine.throw, *error)

    def close(self) -> None:
        """Give the coroutine up."""
        self._run(self._coroutine.close)


def context_of_caller(task: Task) -> contextvars.Context:
    """The context in which the current task runs just now."""
    here = _here.get()
    return here[1] if here is not None and here[0] is task else task.context
