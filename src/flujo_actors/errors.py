"""Exceptions of the library, one class per reaction of a caller.

Three families:

- `DeclarationError`: a pipeline was declared wrongly; raised while it is built, never while it runs.
- `ControlError`: the run must stop now, regardless of the step's retries, its fallback or its siblings;
  it reaches the caller from any depth and carries the partial `result`.
- all others concern one request that cannot be granted (a resume, an answer, an id, a message).

A step that merely fails raises nothing: it is a `Failure` in the result.
"""

from __future__ import annotations

from typing import Any


class FlujoError(Exception):
    """Base of everything this library raises on purpose."""


# --- declarations -----------------------------------------------------------------------------------------


class DeclarationError(FlujoError):
    """A step, pipeline, hook or setting has an impossible declaration."""


class UnknownOption(DeclarationError, TypeError):
    """A step, or an object given to one, got an unknown keyword."""


class BlueprintError(DeclarationError):
    """A blueprint is refused; `findings` have rule, file, line and column."""

    findings: tuple[Any, ...]
    """Findings that refused the blueprint."""

    def __init__(self, message: str, findings: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


class NotExportable(DeclarationError):
    """A pipeline has parts that a blueprint cannot express; `reasons` lists them."""

    reasons: tuple[str, ...]
    """Parts that a blueprint cannot express."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__(f"the pipeline cannot be written as a blueprint: {'; '.join(reasons)}")
        self.reasons = reasons


# --- control ----------------------------------------------------------------------------------------------


class ControlError(FlujoError):
    """The run stops here. `result` is the partial result."""

    result: Any = None
    """The partial `PipelineResult`."""


class MissingAgentError(ControlError, DeclarationError):
    """A step has no agent to call."""


class MockDetectionError(ControlError):
    """A step's output is a `unittest.mock` object, leaked from a test."""


class UsageLimitExceededError(ControlError):
    """A usage limit was exceeded, or the next call would exceed it."""

    limits: tuple[str, ...] = ()
    """Names of all exhausted limits, in field order of `UsageLimits`."""
    reached: Any = None
    """The budget that ran out, for the run that stops at it."""


class PricingNotConfiguredError(ControlError):
    """A cost is needed and no price is known for the model."""


class InfiniteRedirectError(ControlError):
    """Redirects between agents came back to an agent that had its turn."""


# --- runs without an output ---------------------------------------------------------------------------------


class NoOutput(FlujoError):
    """`result.unwrap()` of a run without an output; `result` has its status.

    Args:
        result: result of the run.
        text: text of the error.
    """

    def __init__(self, result: Any, text: str) -> None:
        self.result = result
        super().__init__(text)


class RunFailed(NoOutput):
    """The run failed without a local exception to raise again.

    `error` describes the original exception, if there was one; its location and notes are notes of this one.

    Args:
        result: result of the run.
    """

    def __init__(self, result: Any) -> None:
        super().__init__(result, f"run {result.run_id!r} failed: {result.feedback}")
        self.error: Any = result.error
        """Exception of the failed step, or its description."""
        for frame in getattr(result.error, "frames", ()):
            self.add_note(f"  {frame}")
        for note in getattr(result.error, "notes", ()):
            self.add_note(note)


class RunPaused(NoOutput):
    """The run waits for an answer, a time or an event.

    Args:
        result: result of the run.
    """

    def __init__(self, result: Any) -> None:
        if result.status == "sleeping":
            text = f"run {result.run_id!r} sleeps: a worker or `flujo.recover()` resumes it when it is due"
        else:
            answer = f"answer it with `flujo.resume({result.state_token!r}, answer)`"
            text = f"run {result.run_id!r} is paused ({result.feedback}): {answer}"
        super().__init__(result, text)


class RunAborted(NoOutput):
    """The run was stopped before it had an output.

    Args:
        result: result of the run.
    """

    def __init__(self, result: Any) -> None:
        super().__init__(result, f"run {result.run_id!r} was aborted: {result.feedback}")


# --- pausing, resuming, identity --------------------------------------------------------------------------


class NotPaused(FlujoError):
    """There is no paused run behind this token."""


class InvalidAnswer(FlujoError):
    """The answer does not fit the pause's `input_schema`; the run stays paused."""


class ScheduleExists(FlujoError):
    """Another pipeline uses the name of this schedule."""


class RunExists(FlujoError):
    """A run with this id has already been started."""


class SingletonBusy(RunExists):
    """Another open run has the singleton key; `run_id` names it."""

    run_id: str
    """Id of the open run."""

    def __init__(self, message: str, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


# --- stores -----------------------------------------------------------------------------------------------


class AlreadyAnswered(NotPaused):
    """Another answer to this pause was faster."""


class Expired(NotPaused):
    """The pause has timed out."""


class RunEnded(NotPaused):
    """The run has ended, so it cannot be resumed, answered or cancelled."""


class NotRetryable(FlujoError):
    """The run cannot be retried now; the message has the remedy."""


class NotSteerable(FlujoError):
    """The run has no open granular step for a message."""


class AmbiguousStep(FlujoError):
    """Several granular steps are open; a message needs a `path`."""


class TooLate(FlujoError):
    """The run has ended or the step has settled; nothing was stored."""


class StoreError(FlujoError):
    """The store failed; `__cause__` is the database error."""


class RunNotFound(StoreError):
    """The store has no run with this id."""


class RunLeased(StoreError):
    """Another process owns this run, and its lease has not expired."""

    owner: str | None = None
    """Lease owner, as stored."""
    left_s: float | None = None
    """Remaining seconds of the lease; a live owner renews it."""


class LeaseLost(StoreError):
    """Another process has claimed the run; this one must stop."""


class TransactionLost(StoreError):
    """A store lost a transaction before its commit; retry is safe."""


class TransactionRefused(StoreError):
    """The database refused a borrower's writes, e.g. by a constraint."""


class CorruptRecord(StoreError):
    """A stored record is unreadable; the message names run and sequence."""


class StoreVersionError(StoreError):
    """The schema version of the store is not used by this process."""


class RecordVersionError(StoreVersionError):
    """A record has a newer format; other runs are readable."""


class FingerprintMismatch(StoreError):
    """The pipeline differs from the run's start; the message lists changes."""


# --- the runtime's own rules ------------------------------------------------------------------------------


class ProtocolError(FlujoError):
    """Messages in a forbidden order: a defect of the runtime."""


class UnsettledSteps(ProtocolError):
    """A run was ending with open steps, named by `paths`."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = paths
        names = ", ".join(repr(str(path)) for path in paths)
        super().__init__(f"run cannot finish: {names} started but did not settle")


class LoopAlreadyRunning(FlujoError, RuntimeError):
    """`run()` was called where an event loop runs; await `run_async()` there."""


class NotSerializable(FlujoError, TypeError):
    """A value has no JSON form, or stored data an unknown type."""


# --- steps ------------------------------------------------------------------------------------------------


class AbortRun(FlujoError):
    """Abort of the run by a hook, with its reason."""


class ContextError(FlujoError):
    """A context could not be copied, updated or merged by key."""


class MergeConflict(ContextError):
    """Two branches changed the same key of the context.

    Args:
        where: name of the parallel step.
    """

    key: str
    """Key of the context."""
    first: str
    """Branch that changed it first."""
    second: str
    """Branch that changed it, too."""

    def __init__(self, key: str, first: str, second: str, where: str) -> None:
        self.key, self.first, self.second = key, first, second
        super().__init__(
            f"branches {first!r} and {second!r} of {where!r} both changed context key {key!r}; say how to combine it "
            f"(Annotated[…, Add] on the field of the context, or merge={{{key!r}: Add}} on the step), choose "
            'merge="overwrite", "keep_first" or "no_merge", or let each branch return its part and combine the outputs'
        )


class ContextTooLarge(FlujoError):
    """The required context exceeds the step's `max_tokens`; `sizes` are by source.

    Another attempt would not change it, so there is none.
    """

    def __init__(self, *, max_tokens: int, sizes: dict[str, int]) -> None:
        self.max_tokens: int = max_tokens
        """Limit of the context."""
        self.sizes: dict[str, int] = sizes
        """Tokens of each source."""
        sources = ", ".join(f"{source!r} has {size}" for source, size in sizes.items())
        super().__init__(
            f"states and literals are never cut, and they alone have more than max_tokens={max_tokens}: {sources}; "
            "shorten them, or raise max_tokens"
        )


class RetrievalError(FlujoError):
    """A search is impossible as declared, or its result violates the port.

    Examples are a filter without a value, a passage that violates a filter, a score that is no relevance.
    `on_error="skip"` does not cover it.
    """


class RefusedOutput(FlujoError, ValueError):
    """A validator or schema refused the answer; a rule for `retry_on`.

    Its `__cause__` is the exception of the validator, if it raised one.
    """


class NotAwaited(FlujoError, TypeError):
    """A step returned a coroutine or another object that must be awaited."""


class RateLimited(FlujoError):
    """A request would exceed the `max_wait_s` of its rate limit."""

    name: str
    """Name of the rate limit."""
    wait_s: float
    """Seconds that the request would wait."""
    max_wait_s: float
    """Most seconds that it may wait."""

    def __init__(self, message: str, *, name: str = "", wait_s: float = 0.0, max_wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.name, self.wait_s, self.max_wait_s = name, wait_s, max_wait_s


class StepTimeout(FlujoError, TimeoutError):
    """An attempt took longer than the step's `timeout_s`."""


class WaitTimeout(FlujoError):
    """No event arrived in time."""

    event: str
    """Name of the awaited event."""
    key: str
    """Key of the awaited event."""
    timeout_s: float
    """Seconds of the wait."""

    def __init__(self, event: str, key: str, timeout_s: float) -> None:
        super().__init__(f"no event {event!r} with key {key!r} arrived within {timeout_s:g} s")
        self.event, self.key, self.timeout_s = event, key, timeout_s


class InvalidEvent(FlujoError):
    """The event was refused: by its wait, or by a limit."""


class ApprovalTimeout(FlujoError, TimeoutError):
    """An approval timed out without a decision."""


class Rejected(FlujoError):
    """An approval was rejected; `decision` has the approver and the reason.

    Args:
        decision: decision of the approver.
    """

    def __init__(self, message: str = "", decision: Any = None) -> None:
        self.decision = decision
        super().__init__(message)


class LowConfidence(FlujoError):
    """An answer had low confidence; `confidence` is `None` if unknown.

    Args:
        why: reason of an unknown confidence.
    """

    confidence: float | None
    """Confidence of the answer, 0 to 1; `None` if unknown."""
    min_confidence: float
    """Lowest confidence that the step accepts."""

    def __init__(self, confidence: float | None, min_confidence: float, why: str = "") -> None:
        self.confidence, self.min_confidence = confidence, min_confidence
        said = why if confidence is None else f"its confidence is {confidence:g}"
        super().__init__(f"the answer is not sure enough: {said}, and min_confidence is {min_confidence:g}")


class Compacted(FlujoError):
    """A record of an old loop turn was deleted (`keep_history`)."""

    run_id: str
    """Id of the run."""
    seq: int
    """Number of the deleted record."""
    oldest: int
    """Number of the oldest later record."""

    def __init__(self, run_id: str, seq: int, oldest: int) -> None:
        self.run_id, self.seq, self.oldest = run_id, seq, oldest
        super().__init__(f"record {seq:,} of run {run_id!r} was compacted; the oldest kept is {oldest:,}")


class NoRewardDue(FlujoError):
    """No selection waits for a reward: reported, not ended or nonexistent."""


class LoopDetected(FlujoError):
    """A loop was detected: `cycle` has entries, `times` counts, `kind` classifies."""

    kind: str
    """Rule that found the loop."""
    cycle: tuple[str, ...]
    """Repeated calls."""
    times: int
    """Number of repetitions."""
    rotates: bool
    """Whether the selection tries its next agent."""

    def __init__(self, kind: str, cycle: tuple[str, ...], times: int, *, rotates: bool = False) -> None:
        self.kind, self.cycle, self.times, self.rotates = kind, tuple(cycle), times, rotates
        what = ", ".join(map(repr, self.cycle)) or "the same"
        super().__init__(f"a loop was found ({kind}): {what}, {times} times with the same result")


# --- granular steps -----------------------------------------------------------------------------------------


class UncertainUnit(FlujoError):
    """A tool call may have run before, and must not rerun.

    `policy` is the declared handling: `"pause"` or `"fail"`.
    """

    tool: str
    """Name of the tool."""
    arguments: str
    """Arguments of the call, as JSON."""
    key: str
    """Key of the unit in the journal."""
    idempotency_key: str
    """Key that the call was made with."""
    policy: str
    """Declared handling: `"pause"` or `"fail"`."""

    def __init__(self, tool: str, arguments: str, *, key: str, idempotency_key: str, policy: str) -> None:
        self.tool, self.arguments, self.key = tool, arguments, key
        self.idempotency_key, self.policy = idempotency_key, policy
        super().__init__(
            f"tool {tool!r} may have run already (key {idempotency_key}) with {arguments}; its result was not recorded "
            f"and on_uncertain is {policy!r}: find out whether it ran before it is run again"
        )


class MaxTurnsReached(FlujoError):
    """The agent used `max_turns` model turns without a result."""

    max_turns: int
    """Declared limit."""
    messages: tuple[Any, ...]
    """Messages of the agent so far."""
    last_text: str
    """Last text of the model."""

    def __init__(self, max_turns: int, *, messages: tuple[Any, ...] = (), last_text: str = "") -> None:
        self.max_turns, self.messages, self.last_text = max_turns, messages, last_text
        super().__init__(f"the agent was not done after {max_turns} model turns; raise max_turns or narrow its task")


# --- evaluations --------------------------------------------------------------------------------------------


class EvaluationMismatch(FlujoError):
    """An evaluation was started with another dataset, pipeline, evaluators or repeat."""


class GateError(FlujoError, ValueError):
    """A gate is malformed, lacks a baseline or a known metric."""

    evaluation: Any = None
    """The ended `Evaluation`, if one of its gates names a metric that it does not have. This gate does not hold."""


class Diverged(ControlError):
    """A replay or rehearsal needed an unrecorded result."""

    difference: Any = None
    """The `Difference` from the recorded run."""


# --- actors -----------------------------------------------------------------------------------------------


class AskTimeout(FlujoError, TimeoutError):
    """No reply to an `ask` within its timeout; later ones drop."""

    actor: str
    timeout: float

    def __init__(self, actor: str, timeout: float) -> None:
        self.actor, self.timeout = actor, timeout
        super().__init__(f"actor {actor!r} did not reply within {timeout:g} s")


class ActorDied(FlujoError):
    """An actor ended before its reply; `cause` is its crash, if any."""

    actor: str
    cause: BaseException | None

    def __init__(self, actor: str, cause: BaseException | None) -> None:
        self.actor, self.cause = actor, cause
        why = "it had ended" if cause is None else f"{type(cause).__name__}: {cause}"
        super().__init__(f"actor {actor!r} will not reply: {why}")
        self.__cause__ = cause


class NoSuchChild(FlujoError, LookupError):
    """A supervisor has no living child of that name."""


class SupervisorStopped(FlujoError):
    """A supervisor that is stopping takes no new child."""


class Escalated(FlujoError):
    """A supervisor exceeded its restart intensity and stopped all children."""

    child: str
    crashes: int
    cause: BaseException | None

    def __init__(self, child: str, crashes: int, cause: BaseException | None, limit: str) -> None:
        self.child, self.crashes, self.cause = child, crashes, cause
        last = "it ended normally" if cause is None else f"{type(cause).__name__}: {cause}"
        super().__init__(f"more than {limit}; the last was of {child!r} (crashes: {crashes}): {last}")
        self.__cause__ = cause


# --- structured output ------------------------------------------------------------------------------------


class StructuredOutputError(FlujoError, ValueError):
    """No value that the schema accepts could be read from the text."""

    stage: str = "parse"
    """Final stage: `limits`, `parse`, `validate`, `extract`, `simplify`."""
    errors: list[Any]
    """Validation errors with JSON `path` and `message`; empty without a value."""
    text_excerpt: str = ""
    """The beginning and the end of the text."""
    schema_hash: str | None = None
    """Hash of the schema."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.errors = []


class StreamLimitExceeded(StructuredOutputError):
    """A stream exceeded its buffer limit; `partial_text` is the received part."""

    stage = "limits"
    partial_text: str = ""
    """Text up to the limit."""
