"""Messages of a run: step outcomes and the pipeline result.

All of them are frozen, slotted and keyword-only. `StepOutcome` is closed: match it exhaustively.

Sections:

- Outcomes that user code makes itself, checked before anybody relies on them.
- The chunks of a stream, which are made by the hundred thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NewType, TypeAlias

import attrs

from .. import _core
from ..errors import RunAborted, RunFailed, RunPaused
from . import views
from .labels import NO_LABELS
from .step_paths import StepPath, index_of
from .type_parameters import NOTHING, Ctx, Generic, Out
from .usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from .model_messages import ModelMessage


RunId = NewType("RunId", str)
"""Names one run, everywhere and for ever."""

RunStatus: TypeAlias = Literal["completed", "failed", "paused", "sleeping", "aborted"]
"""Status of a run when control returns to the caller."""


@attrs.frozen(kw_only=True)
class TracebackFrame:
    """One line of a traceback."""

    file: str
    """Source file."""
    line: int
    """Line in the file."""
    function: str
    """Name of the function."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@attrs.frozen(kw_only=True)
class ErrorInfo:
    """Description of an exception that crossed a process boundary."""

    type_name: str
    """Name of the exception's class."""
    message: str
    """Text of the exception."""
    notes: tuple[str, ...] = ()
    """Notes of the exception."""
    causes: tuple[ErrorInfo, ...] = ()
    """Cause or context of the exception, and the members of a group."""
    frames: tuple[TracebackFrame, ...] = attrs.field(default=(), eq=False)
    """End of the traceback; excluded from comparison."""

    @property
    def type(self) -> str:
        """Return the same as `type_name`."""
        return self.type_name

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


class StoredResults(Sequence["StepResult"]):
    """Nested results of a stored step, read when they are used.

    A step with thousands of items or turns does not keep them in memory. They cannot be read after the run was deleted.
    """

    __slots__ = ("_found", "_length", "_read", "parts")

    _found: tuple[StepResult, ...] | None

    def __init__(self, parts: list[StepResult | ItemRange], read: Callable[[], Sequence[StepResult]]) -> None:
        self.parts = parts
        """Results in memory, and ranges of items with records of their own."""
        self._read, self._found = read, None
        self._length = sum(len(part) if isinstance(part, ItemRange) else 1 for part in parts)

    def add(self, part: StepResult | ItemRange) -> None:
        """Add the next result, or the next items."""
        last = self.parts[-1] if self.parts else None
        self._length += len(part) if isinstance(part, ItemRange) else 1
        if isinstance(part, ItemRange) and isinstance(last, ItemRange) and last.precedes(part):
            self.parts[-1] = ItemRange(last.parent, last.first, part.last)
        else:
            self.parts.append(part)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __iter__(self) -> Iterator[StepResult]:
        return iter(self._all())

    def _all(self) -> tuple[StepResult, ...]:
        if self._found is None:
            self._found = tuple(self._read())
        return self._found

    def __eq__(self, other: object) -> bool:
        return (
            len(other) == len(self) and tuple(other) == self._all() if isinstance(other, Sequence) else NotImplemented
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self._all()),)

    def __repr__(self) -> str:
        return f"<{len(self):,} stored results>"


@attrs.frozen
class ItemRange:
    """Consecutive items of a map, or turns of a loop."""

    parent: StepPath
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def precedes(self, other: ItemRange) -> bool:
        """Return whether the other range continues this one."""
        return self.parent == other.parent and self.last + 1 == other.first


def _as_tuple(results: Iterable[StepResult]) -> tuple[StepResult, ...]:
    return results if isinstance(results, StoredResults) else tuple(results)  # type: ignore[return-value]


@attrs.frozen(kw_only=True)
class StepResult(Generic[Out]):
    """Result of one step over all its attempts, including nested steps.

    Example:
        ```python
        [step] = Flujo(Step("greet", str.upper)).run("ada").step_history
        assert (step.name, step.output, step.attempts) == ("greet", "ADA", 1)
        ```
    """

    name: str
    """Name of the step."""
    output: Out = NOTHING
    """Output of the step."""
    success: bool = True
    """Whether the step succeeded."""
    attempts: int = 1
    """Number of attempts."""
    latency_s: float = 0.0
    """Seconds from the first attempt to the outcome."""
    token_counts: int = 0
    """Input and output tokens of all attempts."""
    cost_usd: float = 0.0
    """Cost of all attempts."""
    feedback: str | None = None
    """Text of the failure."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    """Facts of the runtime and of user code, by name."""
    step_history: tuple[StepResult, ...] = attrs.field(default=(), converter=_as_tuple)
    """Results of nested steps, in order."""
    usage: Usage = NO_USAGE
    """The details behind `token_counts` and `cost_usd`."""
    transcript: Any = attrs.field(default=None, eq=False, repr=False)
    """Messages of the model agent; read `messages` instead."""

    @property
    def messages(self) -> tuple[ModelMessage, ...]:
        """Return the conversation of the step's model agent; empty for other steps.

        In a stored run it is part of the step's record, and read when it is asked for. Messages that were given as
        history are not repeated.
        """
        if isinstance(self.transcript, str | bytes):
            return _core.messages_in(self.transcript)
        return () if self.transcript is None else tuple(self.transcript())


@attrs.frozen(kw_only=True)
class _WithPath:
    """Outcome with the path of its step."""

    path: str = attrs.field(default="", eq=False, repr=False)
    """Path of the step in the run; excluded from comparison."""

    @property
    def index(self) -> int | None:
        """Item index of the innermost enclosing map or loop, or None."""
        return index_of(StepPath(self.path))


@attrs.frozen(kw_only=True)
class Success(_WithPath, Generic[Out]):
    """The step has its output."""

    step_result: StepResult[Out]
    """Result of the step."""


@attrs.frozen(kw_only=True)
class Failure(_WithPath):
    """A step failed; `step_result` holds the partial result."""

    error: BaseException | ErrorInfo | None = attrs.field(default=None, repr=False)
    """Original exception in the process that raised it; never logged."""
    feedback: str | None = None
    """Text of the failure."""
    step_result: StepResult | None = None
    """Partial result of the step."""


@attrs.frozen(kw_only=True)
class Paused(_WithPath):
    """The run waits for an answer; `resume(state_token, answer)` continues it.

    Example:
        ```python
        flujo = Flujo(Step.approval("send", "Send it?"))
        paused = flujo.run("a letter")
        assert (paused.status, paused.feedback) == ("paused", "Send it?")
        assert flujo.resume(paused.state_token, "approve").output == "a letter"
        ```
    """

    message: str
    """Question to the person."""
    state_token: str | None = None
    """Token for the answer."""


@attrs.frozen(kw_only=True)
class Aborted(_WithPath):
    """The step was stopped before it could end by itself."""

    reason: str
    """Reason of the end."""


@attrs.frozen(kw_only=True)
class Chunk(_WithPath):
    """Live chunk of a step's output: not durable, repeated by retries.

    Example:
        ```python
        async def main() -> str:
            agent = make_agent_async(scripted_model("Hello Ada."))
            outcomes = [each async for each in Flujo(Step("greet", agent)).run_async("ada")]
            return "".join(each.data for each in outcomes if isinstance(each, Chunk))

        assert trio.run(main) == "Hello Ada."
        ```
    """

    data: Any
    """Part of the output."""
    step_name: str = ""
    """Name of the step."""
    attempt: int = 1
    """Number of the attempt, from 1."""
    seq: int = 0
    """Number of the chunk within its step."""
    partial_value: Any = None
    """Preview of a structured value parsed so far; never the value itself."""


@attrs.frozen(kw_only=True)
class Started(_WithPath):
    """A step started; delivered with `run_async(…, started=True)`."""

    step_name: str
    """Name of the step."""
    of: int = 0
    """Number of siblings in a map or parallel stage, itself included."""


ToolCallStatus: TypeAlias = Literal["started", "returned", "failed"]
"""Status of a tool call."""


@attrs.frozen(kw_only=True)
class ToolCalled(_WithPath):
    """A tool call of an agent; delivered with `run_async(…, tools=True)`.

    Each call is delivered twice with the same `tool_call_id`: at its start with its arguments, and at its end.
    """

    tool_name: str
    """Name of the tool."""
    tool_call_id: str
    """Id of the call."""
    status: ToolCallStatus
    """`"started"`, `"returned"` or `"failed"`."""
    arguments: Any = None
    """Arguments of the call."""
    result: Any = None
    """Result of a call that returned."""
    feedback: str | None = None
    """Reason of a failure."""
    step_name: str = ""
    """Name of the step."""
    attempt: int = 1
    """Number of the attempt, from 1."""


StepOutcome: TypeAlias = Success | Failure | Paused | Aborted | Chunk
"""Union of all outcomes of a step."""

ToldOutcome: TypeAlias = StepOutcome | Started | ToolCalled
"""Union of all outcomes and events available to a run's reader."""

TerminalOutcome: TypeAlias = Success | Failure | Paused | Aborted
"""Union of the outcomes that end a step, exactly one each."""


@attrs.frozen(kw_only=True)
class Undone:
    """Step whose compensation ran."""

    step_name: str
    """Name of the compensated step."""
    path: StepPath
    """Path of the compensated step."""
    success: bool
    """Whether the compensation succeeded."""
    feedback: str | None = None
    """Reason of a failed compensation."""


@attrs.frozen(kw_only=True)
class PipelineResult(Generic[Out, Ctx]):
    """Result of a run.

    Example:
        ```python
        result = Flujo(Step("greet", str.upper)).run("ada")
        assert (result.status, result.output) == ("completed", "ADA")
        assert [step.name for step in result.step_history] == ["greet"]
        ```
    """

    run_id: str
    """Id of the run."""
    status: RunStatus
    """Status of the run when control returned to the caller."""
    output: Out = NOTHING
    """Output of the last step, if the run completed."""
    step_history: tuple[StepResult, ...] = attrs.field(default=(), converter=_as_tuple)
    """Results of the top-level steps, in order."""
    total_cost_usd: float = 0.0
    """Cost of all model calls."""
    total_tokens: int = 0
    """Input and output tokens of all model calls."""
    final_context: Ctx = NOTHING
    """Context after the last step."""
    feedback: str | None = None
    """Text of the failure, or reason of the end."""
    state_token: str | None = None
    """Token for the answer, if the run is paused."""
    error: BaseException | ErrorInfo | None = attrs.field(default=None, eq=False, repr=False)
    """Exception that failed the run, in its process; else `None`.

    Excluded from comparison: an exception comes back from JSON as an `ErrorInfo`.
    """
    undone: tuple[Undone, ...] = ()
    """Compensated steps, in order of compensation."""
    labels: Mapping[str, str] = NO_LABELS
    """Labels of the run; read-only."""
    wakes_at: float | None = None
    """End of a sleeping run's earliest wait in epoch seconds, if any."""
    success: bool = attrs.field()
    """Whether the status is `"completed"`."""

    @property
    def fully_undone(self) -> bool:
        """Return whether every compensation that was run has succeeded."""
        return all(each.success for each in self.undone)

    @success.default
    def _completed(self) -> bool:
        return self.status == "completed"

    def unwrap(self) -> Out:
        """Return a completed run's output, or raise the reason for its absence.

        A failed run raises the original exception, with its traceback and a note that names run, path and attempt.

        Raises:
            RunFailed: nothing was raised, or another process raised it.
            RunPaused: the run waits for an answer.
            RunAborted: the run was cancelled.

        Example:
            ```python
            assert Flujo(Step("greet", str.upper)).run("ada").unwrap() == "ADA"
            ```
        """
        match self.status:
            case "completed":
                return self.output
            case "paused" | "sleeping":
                raise RunPaused(self)
            case "aborted":
                raise RunAborted(self)
            case "failed" if isinstance(self.error, BaseException):
                raise self.error
            case _:
                raise RunFailed(self)

    def tree(self) -> str:
        """Return the run as text: outcome, latency and notes per step."""
        return views.drawn(self)

    def _repr_html_(self) -> str:
        """Return the same for notebooks."""
        return views.as_html(self)

    def walk(self) -> Iterator[tuple[int, StepResult]]:
        """Yield every step's result with its depth, parents before children."""
        stack = [(0, result) for result in reversed(self.step_history)]
        while stack:
            depth, result = stack.pop()
            yield depth, result
            stack.extend((depth + 1, nested) for nested in reversed(result.step_history))


# --- Outcomes that user code makes itself -------------------------------------------------------------------------
# The runtime's own are right by construction; checking those would cost every step.


_FIELDS: dict[type, dict[str, tuple[type, ...]]] = {
    Success: {"step_result": (StepResult,)},
    Failure: {
        "error": (BaseException, ErrorInfo, NoneType),
        "feedback": (str, NoneType),
        "step_result": (StepResult, NoneType),
    },
    Paused: {"message": (str,)},
    Aborted: {"reason": (str,)},
    StepResult: {
        "success": (bool,),
        "token_counts": (int,),
        "cost_usd": (int, float),
        "feedback": (str, NoneType),
        "metadata": (Mapping,),
        "usage": (Usage,),
    },
}


def checked_outcome(outcome: object) -> object:
    """Return the outcome; raise `TypeError` or `ValueError` naming an invalid field."""
    for name, kinds in _FIELDS[type(outcome)].items():
        part = getattr(outcome, name)
        if not isinstance(part, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds if kind is not NoneType)
            raise TypeError(f"the {name} of a {type(outcome).__name__} is a {type(part).__name__}, not a {wanted}")
        _check_amount(part, f"the {name} of a {type(outcome).__name__}")
        if isinstance(part, Usage):
            for field in attrs.fields(Usage):
                _check_amount(getattr(part, field.name), f"{field.name} in the usage of a {type(outcome).__name__}")
        if isinstance(part, StepResult):
            checked_outcome(part)
    return outcome


def _check_amount(part: object, subject: str) -> None:
    """Raise for an invalid amount, which would disable a limit."""
    if isinstance(part, int | float) and not 0 <= part < math.inf:
        raise ValueError(f"{subject} is {part}, not a number of at least 0")


# --- The chunks of a stream ---------------------------------------------------------------------------------------


MakeChunk: TypeAlias = Callable[..., Chunk]
"""`make(data)` or `make(data, partial_value)`: the next chunk."""

_SLOTS = [getattr(Chunk, field.name).__set__ for field in attrs.fields(Chunk)]


def chunk_maker(step_name: str, attempt: int, numbers: Iterator[int], path: str = "") -> MakeChunk:
    """Return a function that creates one attempt's chunks, numbered by `numbers`.

    It returns the same values as `Chunk(...)` at half the cost: the constructor of a frozen class resolves each field
    by name to bypass the lock, while a slot descriptor sets its value directly.
    """
    set_path, set_data, set_step_name, set_attempt, set_seq, set_partial_value = _SLOTS
    blank = object.__new__

    def make(data: object, partial_value: object = None) -> Chunk:
        chunk = blank(Chunk)
        set_data(chunk, data)
        set_step_name(chunk, step_name)
        set_attempt(chunk, attempt)
        set_seq(chunk, next(numbers))
        set_partial_value(chunk, partial_value)
        set_path(chunk, path)
        return chunk

    return make
