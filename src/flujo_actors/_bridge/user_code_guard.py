"""Guard: the one place where exceptions of user code are caught.

Rules:

1. An exception of user code is returned as an `Error` value, traceback intact, also `KeyboardInterrupt`.
2. Cancellation propagates: if the task is being cancelled, `Cancelled` is raised, not returned.
3. A stray cancellation (a `Cancelled` or `CancelledError` that no scope around the call requested) is an
   error like any other: the step ended without an outcome.
4. Cancel scopes and nurseries that user code left open are closed, the innermost first, and are an error of that code.
   Otherwise their deadlines would cancel library code of the same task, as if a parent had requested it.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from traceback import walk_tb
from typing import Any, TypeVar

import attrs
import trio
from outcome import Error, Value
from trio.lowlevel import Task, checkpoint_if_cancelled, current_task

from .._core.error_info import leaves_of, put_note

T = TypeVar("T")


async def guarded(fn: Callable[..., Awaitable[T]], *args: object) -> Value[T] | Error:
    """Await `fn(*args)`; return its value or error (module rules)."""
    task: Any = current_task()
    status = task._cancel_status  # a scope around every call would cost 4.5 µs, this comparison costs 0.1 µs
    try:
        value = await fn(*args)
    except BaseException as error:  # user code: rule 1
        left = None if task._cancel_status is status else await _closed(task, status)
        if not _is_cancellation(error):
            return Error(error if left is None else _noted(error, left))
        await checkpoint_if_cancelled()
        return Error(left or _without_cancellation(error))
    return Value(value) if task._cancel_status is status else Error(await _closed(task, status))


def asyncio_cancellation() -> tuple[type[BaseException], ...]:
    """Return asyncio's cancellation types; empty while asyncio is not loaded."""
    asyncio = sys.modules.get("asyncio.exceptions")
    cancelled = getattr(asyncio, "CancelledError", None)  # missing while another thread loads asyncio
    return () if cancelled is None else (cancelled,)


def left_scope_open(error: BaseException) -> bool:
    """Return whether the error means that the code ended without saying how."""
    return isinstance(error, (trio.Cancelled, GeneratorExit, *asyncio_cancellation()))


def contains_left_scope(error: object) -> bool:
    """Return whether an error or any group member left a scope open."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(left_scope_open, leaves_of(error)))
    return isinstance(error, BaseException) and left_scope_open(error)


def _is_cancellation(error: BaseException) -> bool:
    kinds: tuple[type[BaseException], ...] = (trio.Cancelled, *asyncio_cancellation())
    if isinstance(error, BaseExceptionGroup):
        return any(isinstance(leaf, kinds) for leaf in leaves_of(error))
    return isinstance(error, kinds)


def _without_cancellation(error: BaseException) -> BaseException:
    """Return a group without its cancellations."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] or error
    return error


# --- scopes and nurseries that were left open ---------------------------------------------------------------


class _Errors(list[BaseException]):
    """Errors of a nursery closed by the guard.

    Trio closes an abandoned generator in another task. Both would wait for the same children, and one forever.
    """

    def append(self, error: BaseException) -> None:
        if isinstance(error, GeneratorExit):
            raise RuntimeError("the nursery of this generator was closed with the code that left it open")
        super().append(error)


@attrs.frozen(eq=False)
class _NoTask:
    """Parent of a nursery closed by the guard, for late generators.

    The end of a block removes the newest nursery of its task, which is one of the library by then.
    """

    _child_nurseries: list[trio.Nursery]


async def _closed(task: Any, status: Any) -> RuntimeError:
    """Close scopes and nurseries above `status`; return their error (rule 4)."""
    scopes, above = [], task._cancel_status
    while above is not None and above is not status:
        scopes.append(above._scope)
        above = above.parent
    nurseries = {nursery.cancel_scope: nursery for nursery in task.child_nurseries}
    for scope in scopes:
        if scope in nurseries:
            await _end(nurseries[scope])
        scope.__exit__(None, None, None)
    return _left_open(task, "a cancel scope" if nurseries.keys().isdisjoint(scopes) else "a nursery")


async def _end(nursery: Any) -> None:
    """Cancel a nursery's tasks and wait, as its block would."""
    nursery.cancel_scope.cancel()
    nursery._pending_excs = _Errors(nursery._pending_excs)
    await nursery._nested_child_finished(None)
    nursery._parent_task = _NoTask([nursery])


def _left_open(task: Task, what: str) -> RuntimeError:
    return RuntimeError(
        f"code of {task.name!r} left {what} open: leave every `with` block before the code ends, and use "
        "`contextlib.aclosing` for an async generator that is not read to its end"
    )


def _noted(error: BaseException, left: RuntimeError) -> BaseException:
    put_note(error, "flujo_actors: ", str(left))
    return error


def task_behind_crash(error: BaseException | None) -> str | None:
    """Return the task whose nursery crashed trio's scheduler, if known."""
    while error is not None:
        for frame, _ in walk_tb(error.__traceback__):
            nursery = frame.f_locals.get("self")
            if isinstance(nursery, trio.Nursery):
                return nursery.parent_task.name
        error = error.__cause__ or error.__context__
    return None
