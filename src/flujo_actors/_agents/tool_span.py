"""What telemetry hears of one tool call."""

from __future__ import annotations

from types import TracebackType

import attrs

from .._core.events import ToolEnded, ToolStarted
from .metering import Emit, ending_of


@attrs.define(eq=False)
class ToolSpan:
    """One tool call, told when it begins and when it ends, in whatever way."""

    _emit: Emit
    _tool_name: str
    _tool_call_id: str
    _arguments: object
    result: object = None

    def __enter__(self) -> ToolSpan:
        self._tell(ToolStarted, arguments=self._arguments)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ending = {"result": self.result} if error is None else ending_of(error)
        ending.pop("error_type", None)
        self._tell(ToolEnded, **ending)

    def _tell(self, kind: object, **facts: object) -> None:
        self._emit(kind, tool_name=self._tool_name, tool_call_id=self._tool_call_id, **facts)


def no_telemetry(kind: type, **facts: object) -> None:
    """Nobody listens."""
