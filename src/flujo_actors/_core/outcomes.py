"""The messages of a run: how a step ended, and what the run came to.

All of them are frozen, slotted and keyword-only. `StepOutcome` is closed: match it exhaustively.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NewType, TypeAlias

import attrs

from ..errors import RunAborted, RunFailed, RunPaused
from .path_names import index_of
from .paths import StepPath
from .type_parameters import NOTHING, Ctx, Generic, Out
from .usage import NO_USAGE, Usage

RunId = NewType("RunId", str)
"""Names one run, everywhere and for ever."""

RunStatus: TypeAlias = Literal["completed", "failed", "paused", "aborted"]
"""How a run stands when control returns to the caller."""


@attrs.frozen(kw_only=True)
class Frame:
    """One line of a traceback."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@attrs.frozen(kw_only=True)
class ErrorInfo:
    """An exception that crossed a process boundary: what it said, without the object."""

    type_name: str
    message: str
    notes: tuple[str, ...] = ()
    causes: tuple[ErrorInfo, ...] = ()
    """The exceptions behind it: its cause or context, and the members of a group."""
    frames: tuple[Frame, ...] = attrs.field(default=(), eq=False)
    """The end of its traceback, where it was raised last. Not compared: it is the same error without them."""

    @property
    def type(self) -> str:
        """The same as `type_name`."""
        return self.type_name

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


def _as_tuple(results: Iterable[StepResult]) -> tuple[StepResult, ...]:
    return tuple(results)


@attrs.frozen(kw_only=True)
class StepResult(Generic[Out]):
    """What one step did, over all its attempts and with everything nested in it."""

    name: str
    output: Out = NOTHING
    success: bool = True
    attempts: int = 1
    latency_s: float = 0.0
    token_counts: int = 0
    cost_usd: float = 0.0
    feedback: str | None = None
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    step_history: tuple[StepResult, ...] = attrs.field(default=(), converter=_as_tuple)
    usage: Usage = NO_USAGE
    """The details behind `token_counts` and `cost_usd`."""


@attrs.frozen(kw_only=True)
class _Placed:
    """What a step says, and where it stands."""

    path: str = attrs.field(default="", eq=False, repr=False)
    """Where the step stands in the run, as whoever watches it is told; not compared, it is the same outcome."""

    @property
    def index(self) -> int | None:
        """Which item of the innermost map around it the step is or belongs to; `None` outside of maps and loops."""
        return index_of(StepPath(self.path))


@attrs.frozen(kw_only=True)
class Success(_Placed, Generic[Out]):
    """The step has its output."""

    step_result: StepResult[Out]


@attrs.frozen(kw_only=True)
class Failure(_Placed):
    """The step has no output; `step_result` holds what there was."""

    error: BaseException | ErrorInfo | None = attrs.field(default=None, repr=False)
    """The original exception, in the process where it happened. What is logged should not show the secrets in it."""
    feedback: str | None = None
    step_result: StepResult | None = None


@attrs.frozen(kw_only=True)
class Paused(_Placed):
    """The run waits for an answer; `resume(state_token, answer)` continues it."""

    message: str
    state_token: str | None = None


@attrs.frozen(kw_only=True)
class Aborted(_Placed):
    """The step was stopped before it could end by itself."""

    reason: str


@attrs.frozen(kw_only=True)
class Chunk(_Placed):
    """A piece of a step's output, live: it may be lost with the process, and a retry sends new ones."""

    data: Any
    step_name: str = ""
    attempt: int = 1
    seq: int = 0
    partial_value: Any = None
    """What a structured step could read so far; a preview, never the value."""


@attrs.frozen(kw_only=True)
class Started(_Placed):
    """A step begins: told to whoever asks for it with `run_async(…, started=True)`."""

    step_name: str
    of: int = 0
    """How many siblings it has, itself included, if it is one of a map or a parallel stage."""


ToolCallStatus: TypeAlias = Literal["started", "returned", "failed"]
"""Where a tool call stands."""


@attrs.frozen(kw_only=True)
class ToolCalled(_Placed):
    """An agent calls a tool, and the tool has answered: told to whoever asks for it with `run_async(…, tools=True)`.

    Each call is told twice, with the same `tool_call_id`: when it begins, with its arguments, and when it has ended.
    """

    tool_name: str
    tool_call_id: str
    status: ToolCallStatus
    arguments: Any = None
    result: Any = None
    feedback: str | None = None
    """Why it failed."""
    step_name: str = ""
    attempt: int = 1


StepOutcome: TypeAlias = Success | Failure | Paused | Aborted | Chunk
"""Everything a step can say."""

ToldOutcome: TypeAlias = StepOutcome | Started | ToolCalled
"""Everything that the reader of a run can ask to be told."""

TerminalOutcome: TypeAlias = Success | Failure | Paused | Aborted
"""The one thing every step says last."""


@attrs.frozen(kw_only=True)
class Undone:
    """A step whose compensation was run."""

    step_name: str
    path: StepPath
    success: bool
    feedback: str | None = None
    """Why it could not be undone."""


@attrs.frozen(kw_only=True)
class PipelineResult(Generic[Out, Ctx]):
    """What a run came to."""

    run_id: str
    status: RunStatus
    output: Out = NOTHING
    step_history: tuple[StepResult, ...] = attrs.field(default=(), converter=_as_tuple)
    total_cost_usd: float = 0.0
    total_tokens: int = 0
    final_context: Ctx = NOTHING
    feedback: str | None = None
    state_token: str | None = None
    """Where to send the answer, if the run is paused."""
    error: BaseException | ErrorInfo | None = attrs.field(default=None, eq=False, repr=False)
    """What made the run fail, the original exception in the process where it happened; `None` if nothing was raised.

    Not compared: an exception comes back from JSON as an `ErrorInfo`, and the result is the same.
    """
    undone: tuple[Undone, ...] = ()
    """The steps whose compensations were run, in the order of undoing."""
    success: bool = attrs.field()

    @property
    def fully_undone(self) -> bool:
        """Whether every compensation that was run has succeeded."""
        return all(each.success for each in self.undone)

    @success.default
    def _completed(self) -> bool:
        return self.status == "completed"

    def unwrap(self) -> Out:
        """The output of a completed run; for any other, an exception that says why there is none.

        A failed run raises the original exception, with its traceback and a note that names run, path and attempt;
        `RunFailed` stands in for it where nothing was raised, or another process did it. A paused run raises
        `RunPaused`, an aborted one `RunAborted`.
        """
        match self.status:
            case "completed":
                return self.output
            case "paused":
                raise RunPaused(self)
            case "aborted":
                raise RunAborted(self)
            case "failed" if isinstance(self.error, BaseException):
                raise self.error
            case _:
                raise RunFailed(self)

    def tree(self) -> str:
        """The run as text, one line per step: how it ended, how long it took, and what is worth knowing about it."""
        from .result_tree import drawn  # what only people who look at a result need

        return drawn(self)

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        from .result_tree import as_html  # as above

        return as_html(self)

    def walk(self) -> Iterator[tuple[int, StepResult]]:
        """Every step's result with its depth, parents before children."""
        stack = [(0, result) for result in reversed(self.step_history)]
        while stack:
            depth, result = stack.pop()
            yield depth, result
            stack.extend((depth + 1, nested) for nested in reversed(result.step_history))
