"""Messages between a run's actors, and the state of a step.

Rules:

1. A parent starts a child with one `StepRequest`; the child answers with one `StepSettled`. Both are frozen at run
   time.
2. The state of a running step (attempts, usage, history, chunks, transaction) is in its `StepState`; no message holds
   it.
3. Only the actor of a step creates and changes the step's state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import attrs
import trio

from ..._core import step_paths
from ..._core.attempt_results import NO_TEXTS, AttemptFailed
from ..._core.failure_info import Cause, StepFailure, ToUndo, Undo, Undoable
from ..._core.locks import QUOTA_LOCK
from ..._core.outcomes import (
    Aborted,
    Failure,
    ItemRange,
    StepResult,
    StoredResults,
    Success,
    TerminalOutcome,
    ToldOutcome,
)
from ..._core.quota import Quota
from ..._core.step_paths import StepPath
from ..._core.usage import NO_USAGE, Usage
from ..._dsl.call_plan import CallPlan
from ..._dsl.pipeline import AnyStep
from ..._durable.journal import OpenTransaction
from ...actors._mailbox import Mailbox

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from ..._core.policies.selection import Evidence, Selection
    from ..._core.records.assembled import AssembledContext
    from ..._core.records.records import CacheEntry
    from ..._dsl.chunk_filter import ShownChunks
    from .step_results import Scope


@attrs.frozen(kw_only=True, eq=False)
class Selected:
    """Choice of a selection in the current attempt, and its outcome."""

    choice: Selection
    result: StepResult | None


NO_KEYWORDS: Mapping[str, object] = {}
"""Keywords outside of reviews and rejections: none."""


@attrs.frozen(kw_only=True, eq=False)
class CompletedStep:
    """Completed step with a compensation, as one small object.

    It does not keep the request, which would keep the step's data alive.
    """

    step: AnyStep
    name: str
    path: StepPath
    input: object
    output: object
    attempts: int
    context: object
    """Context after the step, if changed."""


class CompensationState:
    """State left by a step's attempts."""

    __slots__ = ("cause", "input", "own", "undo")

    def __init__(self) -> None:
        self.input: tuple[object] | None = None
        """Value of the step's own `input`, if it has one."""
        self.cause: Cause | None = None
        """The first failure inside the current attempt."""
        self.own: Cause | None = None
        """The step's own failure, as passed to its handlers."""
        self.undo: dict[int, Sequence[ToUndo | CompletedStep]] = {}
        """Compensation entries of nested steps by start number."""


def expanded(entry: ToUndo | CompletedStep) -> ToUndo:
    """Return a compensation entry with all arguments of its compensation."""
    return completed(entry) if isinstance(entry, CompletedStep) else entry


def completed(entry: CompletedStep) -> Undoable:
    """Return a completed step's entry with its compensation's arguments."""
    return Undoable(
        step=entry.step,
        name=entry.name,
        path=entry.path,
        input=entry.input,
        output=entry.output,
        attempts=entry.attempts,
        context=entry.context,
    )


@attrs.frozen(kw_only=True, eq=False)
class HandlerScope:
    """Values for handlers and compensations: the failure, or the entry."""

    failure: StepFailure | None = None
    undo: Undo | None = None


class UsageTotal:
    """Usage and nested results of a step over all its attempts.

    It is separate from the attempts' results, so that a cancelled attempt loses nothing.
    """

    attempts = 0
    last_context: object = None
    """Context after the last successful nested step of a sequence."""
    usage: Usage = NO_USAGE
    history: Sequence[StepResult] = ()
    compensation_state: CompensationState | None = None
    """Compensation state; `None` without entries."""

    def leave(self, started: int, undo: tuple[ToUndo | CompletedStep, ...], cause: Cause | None = None) -> None:
        """Keep the entries of a nested step by its start number."""
        if self.compensation_state is None:
            self.compensation_state = CompensationState()
        if undo:
            self.compensation_state.undo[started] = undo
        if cause is not None and self.compensation_state.cause is None:
            self.compensation_state.cause = cause

    def nested_entries(self) -> tuple[ToUndo, ...]:
        """Return the nested compensation entries in start order."""
        if self.compensation_state is None:
            return ()
        return tuple(expanded(each) for _, left in sorted(self.compensation_state.undo.items()) for each in left)

    def spend(self, usage: Usage) -> None:
        """Count a call."""
        self.usage += usage

    def include(self, result: StepResult | None) -> None:
        """Count a nested step, if it left a result."""
        if result is not None:
            if isinstance(self.history, list):
                self.history.append(result)
            elif isinstance(self.history, StoredResults):
                self.history.add(result)
            else:
                self.history = [result]
            if result.usage is not NO_USAGE:
                self.usage += result.usage

    def refer(self, items: ItemRange, read: Callable[[], Sequence[StepResult]]) -> None:
        """Let the history refer to stored items, whose usage is counted."""
        if not isinstance(self.history, StoredResults):
            self.history = StoredResults(list(self.history), read)
        self.history.add(items)


@attrs.frozen(kw_only=True, eq=False)
class InheritedScope:
    """Scope shared with all nested steps; empty for most."""

    quotas: tuple[Quota, ...] = ()
    """Budgets of the run and of limited enclosing steps."""
    scope: Scope | None = None
    """Scope keywords of functions; `None` if unused in the run."""
    aside: HandlerScope | None = None
    """Set inside handlers and compensations."""
    keywords: Mapping[str, Any] = NO_KEYWORDS
    """Values by keyword: an approver's decision, a confidence."""


NOTHING_AROUND = InheritedScope()


class _Inside:
    """Base of objects with an enclosing scope."""

    __slots__ = ()

    around: InheritedScope

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """Return the budgets it draws on."""
        return self.around.quotas

    @property
    def scope(self) -> Scope | None:
        """Return the scope keywords of its functions."""
        return self.around.scope

    @property
    def aside(self) -> HandlerScope | None:
        """Return the values for handlers and compensations."""
        return self.around.aside

    @property
    def keywords(self) -> Mapping[str, Any]:
        """Return the values by keyword."""
        return self.around.keywords


@attrs.frozen(kw_only=True, eq=False)
class StepRequest(_Inside):
    """Parent to child: do this step, here, on this data and context."""

    step: AnyStep
    name: str
    path: StepPath
    parent: StepPath | None
    data: object
    context: object
    index: int = 0
    """Index among its parent's children."""
    around: InheritedScope = NOTHING_AROUND
    runs_on: str | None = None
    """Queue whose workers execute the items of the enclosing map, if any."""
    batch_id: StepPath | None = None
    """Batch of items submitted together by the dispatcher, if any."""
    degraded: frozenset[str] = NO_TEXTS
    """Degraded texts in the data; a dict consumer gets one."""
    of: int = 0
    """Number of the parent's children, in a map or parallel stage."""
    served: bool = False
    """Whether another process requested the step and handles recall and limits."""

    def with_keywords(self, **keywords: object) -> StepRequest:
        """Return the request with further values by keyword, here and below."""
        return attrs.evolve(self, around=attrs.evolve(self.around, keywords={**self.keywords, **keywords}))


class StepState(UsageTotal):
    """State of one running step: request, usage, progress of its attempts.

    It is created by the step's actor and changed by that actor alone; no message holds it.
    """

    lost = 0
    """Number of attempts rolled back by the store; they use no retries."""
    refused = 0
    """Number of complete answers refused by validators, agent or schema."""
    refusal: str | None = None
    """Reason of the last refusal, passed to the model in later attempts."""
    pauses = False
    """Whether the step itself pauses the run, and not one inside it."""
    questions = 0
    """Number of agent calls in the current attempt."""
    transaction: OpenTransaction | None = None
    """Writes of the successful attempt, committed with its outcome."""
    selected: Selected | None = None
    """Choice of the current attempt, if the step is a selection."""
    evidence: tuple[Evidence, ...] = ()
    """Unwritten outcomes of selected agents."""
    chunks: Sequence[object] = ()
    """Streamed chunks of the current attempt."""
    assembly: AssembledInput | None = None
    """Assembled context of the step's agent, from the first attempt."""
    new_messages: Sequence[ModelMessage] = ()
    """Messages of the last model call with an assembled context."""
    transcript: Callable[[], object] | None = None
    """Function that lists the messages of the last agent call."""
    cached: tuple[CacheEntry, ...] = ()
    """Output of the step for later runs."""
    conversation: Any = None
    """Stored conversation that the last agent call continued."""
    conflict: AttemptFailed | None = None
    """Failure of the last attempt, whose messages could not be stored."""
    settled: StepSettled | None = None
    """Report of the step, once it exists."""
    timeout: trio.CancelScope | None = None
    """Scope of the current attempt's `timeout_s`, if any."""
    waiters = 0
    """Number of requests that wait for a rate limit."""
    timeout_left_s = 0.0
    """Rest of the timeout while they wait."""

    def __init__(self, request: StepRequest) -> None:
        self.request = request

    step = property(attrgetter("request.step"))
    name = property(attrgetter("request.name"))
    path = property(attrgetter("request.path"))
    parent = property(attrgetter("request.parent"))
    data = property(attrgetter("request.data"))
    context = property(attrgetter("request.context"))
    index = property(attrgetter("request.index"))
    around = property(attrgetter("request.around"))
    quotas = property(attrgetter("request.around.quotas"))
    scope = property(attrgetter("request.around.scope"))
    aside = property(attrgetter("request.around.aside"))
    keywords = property(attrgetter("request.around.keywords"))
    runs_on = property(attrgetter("request.runs_on"))
    batch_id = property(attrgetter("request.batch_id"))
    degraded = property(attrgetter("request.degraded"))
    of = property(attrgetter("request.of"))


@attrs.frozen(kw_only=True, eq=False)
class StepSettled:
    """Report from child to parent, sent exactly once: outcome and context."""

    index: int
    outcome: TerminalOutcome
    context: object
    overruled: Aborted | Failure | None = None
    """Veto of a hook that ends the run despite the outcome."""
    cut_short: bool = False
    """Whether the step was stopped from outside, instead of settling by itself."""
    unfinished: StepResult | None = None
    """Usage of a paused or aborted step until then, if any."""
    undo: tuple[ToUndo | CompletedStep, ...] = ()
    """Compensation entries in case the enclosing attempt is discarded."""
    cause: Cause | None = None
    """Failure of the step, if it failed."""
    agent_name: str = ""
    """Agent name of a failed step, for messages."""

    @property
    def verdict(self) -> TerminalOutcome:
        """Return the outcome for the parent to act on."""
        return self.overruled or self.outcome

    @property
    def success(self) -> StepResult | None:
        """The result of a step that succeeded and that no hook overruled."""
        outcome = self.outcome
        return outcome.step_result if type(outcome) is Success and self.overruled is None else None

    @property
    def result(self) -> StepResult | None:
        """Return the result to count, or None."""
        if isinstance(self.outcome, (Success, Failure)):
            return self.outcome.step_result
        return self.unfinished


@attrs.frozen(kw_only=True, eq=False)
class PendingNotification:
    """An outcome that hooks or readers were not notified of yet."""

    request: StepRequest
    outcome: TerminalOutcome
    pauses: bool = False
    """Whether the step itself pauses the run, and not one inside it."""
    hooks_know: bool = False


# --- one attempt --------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class AssembledInput:
    """Assembled context of a step's agent."""

    context: AssembledContext
    text: str
    """Rendered context; empty if there is nothing to show."""


@attrs.frozen(kw_only=True, eq=False)
class AttemptInput(_Inside):
    """One attempt of a step: path, input and state."""

    name: str
    span: StepPath
    """The path of the step in the ledger."""
    path: StepPath
    """Parent path of this attempt's children."""
    data: object
    context: object
    state: StepState
    attempt: int = 1
    feedback: str | None = None
    """Failure of the previous attempt."""
    around: InheritedScope = NOTHING_AROUND
    plan: CallPlan | None = None
    """The agent that was redirected to, instead of the step's own."""
    degraded: frozenset[str] = NO_TEXTS
    """Degraded texts in the data."""
    transaction: OpenTransaction | None = None
    """Transaction of the step, if it requested one."""
    assembly: AssembledInput | None = None
    """Assembled context, if the step has sources."""

    @property
    def caller(self) -> str:
        """Return the quota key of this step's calls."""
        return f"step {self.name}"

    def spend(self, usage: Usage) -> None:
        """Count a call in the step's state and every budget."""
        if usage is not NO_USAGE:
            self.state.spend(usage.as_one_request())
            with QUOTA_LOCK:
                for quota in self.quotas:
                    quota.spend(usage, self.caller)

    def child(
        self,
        step: AnyStep,
        name: str,
        path: StepPath,
        data: object,
        context: object,
        index: int = 0,
        degraded: frozenset[str] = NO_TEXTS,
        around: InheritedScope | None = None,
        of: int = 0,
    ) -> StepRequest:
        """Return the request for a child of this attempt."""
        return StepRequest(
            step=step,
            name=step.name or name,
            path=path,
            parent=self.span,
            data=data,
            context=context,
            index=index,
            around=around or self.around,
            degraded=degraded,
            of=of,
        )


def work_of(
    state: StepState, data: object, *, feedback: str | None = None, plan: CallPlan | None = None
) -> AttemptInput:
    """Return the input of the step's current attempt."""
    request = state.request
    return AttemptInput(
        name=request.name,
        span=request.path,
        path=step_paths.attempt(request.path, state.attempts),
        data=data,
        context=request.context,
        state=state,
        attempt=state.attempts,
        feedback=feedback,
        around=request.around,
        plan=plan,
        degraded=request.degraded,
    )


def input_of(state: StepState) -> object:
    """Return a step's data, or the value of its `input`."""
    compensation_state = state.compensation_state
    return state.data if compensation_state is None or compensation_state.input is None else compensation_state.input[0]


class EventStream(Mailbox[ToldOutcome]):
    """Bounded channel from a run to its reader, with backpressure."""

    __slots__ = ("chunks", "started", "tools")

    def __init__(
        self, capacity: int, *, started: bool = False, tools: bool = False, chunks: ShownChunks | None = None
    ) -> None:
        super().__init__(capacity)
        self.chunks = chunks
        """Requested chunks; `None` for all."""
        self.started = started
        """Whether the reader wants to know when a step begins."""
        self.tools = tools
        """Whether the reader wants to know of tool calls."""

    def shows(self, path: StepPath) -> bool:
        """Return whether the reader sees the chunks at a path."""
        return self.chunks is None or self.chunks.shows(path)

    def force_put(self, outcome: ToldOutcome) -> None:
        """Add an outcome beyond the bound, for senders that cannot wait."""
        with contextlib.suppress(trio.ClosedResourceError, trio.BrokenResourceError):  # there is no reader any more
            if not self.offer(outcome):
                self._items.append(outcome)
                self._accepted += 1
