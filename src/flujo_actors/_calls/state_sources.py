"""What states, queries and filters come to: read from the context, or made by functions of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outcome import Error, Value

from .._bridge.guard import guarded
from .._context.isolation import own
from .._context.reading import read_path
from .._dsl.context_sources import FromState
from .._run.messages import Work
from .._run.run import Run
from .._run.user_calls import with_context_copy


class Unassembled(Exception):
    """A source cannot be had; `cause` is what it raised."""

    def __init__(self, what: str, cause: BaseException) -> None:
        self.what, self.cause = what, cause
        super().__init__(what)


async def state_of(run: Run, work: Work, source: FromState | Callable[..., Any], *, what: str) -> object:
    """What a source, a query or a filter comes to; `Unassembled` if it cannot be had."""
    where = source.where if isinstance(source, FromState) else source
    if isinstance(where, str):
        got: Value[object] | Error = await guarded(_read, work.context, where)
    else:
        got = await with_context_copy(run, where, own(work.data), work.context, work.scope)
    if isinstance(got, Error):
        raise Unassembled(what, got.error)
    return got.value


async def _read(context: object, where: str) -> object:
    return own(read_path(context, where))
