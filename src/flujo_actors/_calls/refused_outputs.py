"""What a step may return by mistake and nobody can use: a test double, and what was never awaited."""

from __future__ import annotations

import sys
from collections.abc import Awaitable

from .._core.attempts import PLAIN, Failed
from ..errors import MockDetectionError, NotAwaited


def refused_output(name: str, output: object) -> Failed | None:
    """The failure of a step with such an output; `None` if the output is one."""
    if type(output) in PLAIN:
        return None
    return _leaked_mock(name, output) or _not_awaited(name, output)


def _leaked_mock(name: str, output: object) -> Failed | None:
    mock = sys.modules.get("unittest.mock")
    if mock is None or not isinstance(output, mock.NonCallableMock):
        return None
    text = f"step {name!r} returned a {type(output).__name__}: a test double leaked into the run"
    return Failed(error=MockDetectionError(text), feedback=text)


def _not_awaited(name: str, output: object) -> Failed | None:
    if not isinstance(output, Awaitable):
        return None
    what = getattr(output, "__qualname__", None)
    shown = f"{type(output).__name__} of {what!r}" if what else type(output).__name__
    text = f"step {name!r} returned a {shown} that nobody has awaited: write `return await …` where it is made"
    _let_go(output)
    return Failed(error=NotAwaited(text), feedback=text)


def _let_go(output: object) -> None:
    """End what will never be awaited: a coroutine without a warning about it, a task without waiting for it."""
    end = getattr(output, "close", None) or getattr(output, "cancel", None)
    if end is not None:
        end()
