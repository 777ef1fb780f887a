"""The one place where exceptions of user code are caught.

Rules:

1. Whatever user code raises comes back as an `Error` value, traceback intact, also `KeyboardInterrupt`.
2. Cancellation passes by: if the task is being cancelled, `Cancelled` is raised, not returned.
3. A cancellation that nobody asked for (a `Cancelled` or `CancelledError` of somebody else's making) is an
   error like any other: the step ended without an outcome.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from outcome import Error, Value

from .._core.error_info import leaves_of

T = TypeVar("T")


async def guarded(fn: Callable[..., Awaitable[T]], *args: object) -> Value[T] | Error:
    """Await `fn(*args)` and return what came of it; see the module's rules."""
    try:
        return Value(await fn(*args))
    except BaseException as error:  # user code: rule 1
        if not _is_cancellation(error):
            return Error(error)
        await trio.lowlevel.checkpoint_if_cancelled()
        return Error(_without_cancellation(error))


def asyncio_cancellation() -> tuple[type[BaseException], ...]:
    """What asyncio cancels with, to be caught; nothing while asyncio is not loaded, since then nobody can raise it."""
    asyncio = sys.modules.get("asyncio.exceptions")
    cancelled = getattr(asyncio, "CancelledError", None)  # not there yet while another thread loads asyncio
    return () if cancelled is None else (cancelled,)


def vanished(error: BaseException) -> bool:
    """Whether the error means that the code ended without saying how."""
    return isinstance(error, (trio.Cancelled, GeneratorExit, *asyncio_cancellation()))


def holds_vanished(error: object) -> bool:
    """The same of an error or of any member of a group."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(vanished, leaves_of(error)))
    return isinstance(error, BaseException) and vanished(error)


def _is_cancellation(error: BaseException) -> bool:
    kinds: tuple[type[BaseException], ...] = (trio.Cancelled, *asyncio_cancellation())
    if isinstance(error, BaseExceptionGroup):
        return any(isinstance(leaf, kinds) for leaf in leaves_of(error))
    return isinstance(error, kinds)


def _without_cancellation(error: BaseException) -> BaseException:
    """What is left of a group when the cancellations in it are set aside."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] or error
    return error
