"""Every exception of the library: one class for each thing a caller can do differently.

Three families, and what each is for:

- `DeclarationError`: a pipeline was written wrongly; raised while it is built, never while it runs.
- `ControlError`: the run must stop now, whatever the step, its retries, its fallback or its siblings say;
  it reaches the caller from any depth and carries the partial `result`.
- everything else is about one request that cannot be granted (a resume, an answer, an id, a message).

A step that merely fails raises nothing: it is a `Failure` in the result.
"""

from __future__ import annotations

from typing import Any


class FlujoError(Exception):
    """Base of everything this library raises on purpose."""


# --- declarations -----------------------------------------------------------------------------------------


class DeclarationError(FlujoError):
    """A step, pipeline, hook or setting was declared in a way that cannot work."""


class UnknownOption(DeclarationError, TypeError):
    """A step was declared with a keyword that steps of its kind do not have."""


class BlueprintError(DeclarationError):
    """A blueprint is refused; `findings` say why, each with its rule, file, line and column."""

    findings: tuple[Any, ...]

    def __init__(self, message: str, findings: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


class NotExportable(DeclarationError):
    """A pipeline has parts that no blueprint can say; `reasons` names them all."""

    reasons: tuple[str, ...]

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__(f"the pipeline cannot be written as a blueprint: {'; '.join(reasons)}")
        self.reasons = reasons


# --- control ----------------------------------------------------------------------------------------------


class ControlError(FlujoError):
    """The run stops here. `result` is what it had reached, filled in before the caller sees the error."""

    result: Any = None
    """The partial `PipelineResult`."""


class MissingAgentError(ControlError, DeclarationError):
    """A step has no agent to call."""


class MockDetectionError(ControlError):
    """A step's output is a `unittest.mock` object: a test double leaked into a run."""


class UsageLimitExceededError(ControlError):
    """A usage limit would be passed by the next call, or was passed by the last one."""

    limits: tuple[str, ...] = ()
    """The names of all limits that are short, in the order of the fields of `UsageLimits`."""
    reached: Any = None
    """The budget that ran out, for the run that stops at it."""


class PricingNotConfiguredError(ControlError):
    """A cost is needed and no price is known for the model."""


class InfiniteRedirectError(ControlError):
    """Redirects between agents came back to an agent that had its turn."""


# --- runs without an output ---------------------------------------------------------------------------------


class NoOutput(FlujoError):
    """`result.unwrap()` of a run that has no output; `result` says how it stands."""

    def __init__(self, result: Any, text: str) -> None:
        self.result = result
        super().__init__(text)


class RunFailed(NoOutput):
    """The run failed, and there is no exception here to raise again: nothing was raised, or another process did it.

    `error` is what was kept of the exception, if there was one; its place and its notes are the notes of this one.
    """

    def __init__(self, result: Any) -> None:
        super().__init__(result, f"run {result.run_id!r} failed: {result.feedback}")
        self.error: Any = result.error
        for frame in getattr(result.error, "frames", ()):
            self.add_note(f"  {frame}")
        for note in getattr(result.error, "notes", ()):
            self.add_note(note)


class RunPaused(NoOutput):
    """The run waits for an answer."""

    def __init__(self, result: Any) -> None:
        answer = f"answer it with `flujo.resume({result.state_token!r}, answer)`"
        super().__init__(result, f"run {result.run_id!r} is paused ({result.feedback}): {answer}")


class RunAborted(NoOutput):
    """The run was stopped before it had an output."""

    def __init__(self, result: Any) -> None:
        super().__init__(result, f"run {result.run_id!r} was aborted: {result.feedback}")


# --- pausing, resuming, identity --------------------------------------------------------------------------


class NotPaused(FlujoError):
    """There is no paused run behind this token."""


class InvalidAnswer(FlujoError):
    """The answer does not fit the pause's `input_schema`; the run stays paused."""


class RunExists(FlujoError):
    """A run with this id has already been started."""


# --- stores -----------------------------------------------------------------------------------------------


class AlreadyAnswered(NotPaused):
    """Somebody else's answer to this pause was faster."""


class Expired(NotPaused):
    """The question waited for its answer only so long, and that time is over."""


class StoreError(FlujoError):
    """The store could not do what it was asked; `__cause__` is what its database said."""


class RunNotFound(StoreError):
    """The store has no run with this id."""


class RunLeased(StoreError):
    """Somebody else works on this run, and their lease has not expired."""

    owner: str | None = None
    """Who holds it, as the store has it."""
    left_s: float | None = None
    """How many seconds are left of the lease; it is longer if the owner lives and renews it."""


class LeaseLost(StoreError):
    """Another process has taken the run over; this one must stop."""


class TransactionLost(StoreError):
    """A store lost a transaction before its commit: nothing of it was written, and it can be done again."""


class TransactionRefused(StoreError):
    """The database refused at its commit what a borrower wrote, a constraint for example: it would do so again."""


class CorruptRecord(StoreError):
    """A stored record cannot be read; the message names the run and the sequence number."""


class StoreVersionError(StoreError):
    """The database was written by a version of the schema that this code does not know."""


class FingerprintMismatch(StoreError):
    """The pipeline is not the one the run was started with; the message says what changed."""


# --- the runtime's own rules ------------------------------------------------------------------------------


class ProtocolError(FlujoError):
    """Messages came in an order that the runtime's rules forbid: a defect of the runtime, not of the pipeline."""


class UnsettledSteps(ProtocolError):
    """A run was about to end while steps were open; `paths` names them."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = paths
        names = ", ".join(repr(str(path)) for path in paths)
        super().__init__(f"run cannot finish: {names} started but did not settle")


class LoopAlreadyRunning(FlujoError, RuntimeError):
    """`run()` was called where an event loop runs; await `run_async()` there."""


class NotSerializable(FlujoError, TypeError):
    """A value has no JSON form here, or a stored form names a type this process does not know."""


# --- steps ------------------------------------------------------------------------------------------------


class AbortRun(FlujoError):
    """Raised by a hook to abort the run; the message is the reason."""


class ContextError(FlujoError):
    """A context could not be copied, updated or merged; the message names the key."""


class MergeConflict(ContextError):
    """Two branches changed the same key of the context."""

    key: str
    first: str
    second: str

    def __init__(self, key: str, first: str, second: str, where: str) -> None:
        self.key, self.first, self.second = key, first, second
        super().__init__(
            f"branches {first!r} and {second!r} of {where!r} both changed context key {key!r}; say how to combine it "
            f"(Annotated[…, Add] on the field of the context, or merge={{{key!r}: Add}} on the step), choose "
            'merge="overwrite", "keep_first" or "no_merge", or let each branch return its part and combine the outputs'
        )


class ContextTooLarge(FlujoError):
    """What an agent must be shown is longer than the step's `max_tokens`, without any passage; `sizes` are by source.

    Another attempt would not change it, so there is none.
    """

    def __init__(self, *, max_tokens: int, sizes: dict[str, int]) -> None:
        self.max_tokens: int = max_tokens
        self.sizes: dict[str, int] = sizes
        told = ", ".join(f"{source!r} has {size}" for source, size in sizes.items())
        super().__init__(
            f"states and literals are never cut, and they alone have more than max_tokens={max_tokens}: {told}; "
            "shorten them, or raise max_tokens"
        )


class RetrievalError(FlujoError):
    """A search cannot be made as declared, or was not answered as the port asks: a filter without a value, a passage
    behind a filter, a score that is no relevance. `on_error="skip"` does not cover it."""


class NotAwaited(FlujoError, TypeError):
    """A step returned a coroutine, or something else that has to be awaited before there is a value."""


class StepTimeout(FlujoError, TimeoutError):
    """An attempt took longer than the step's `timeout_s`."""


class ApprovalTimeout(FlujoError, TimeoutError):
    """Nobody decided about an approval in time."""


class Rejected(FlujoError):
    """Somebody decided against it; `decision` says who and why, as far as they said."""

    def __init__(self, message: str = "", decision: Any = None) -> None:
        self.decision = decision
        super().__init__(message)


class LowConfidence(FlujoError):
    """An answer was not sure enough; `confidence` is how sure it was, `None` if nobody knows."""

    confidence: float | None
    min_confidence: float

    def __init__(self, confidence: float | None, min_confidence: float, why: str = "") -> None:
        self.confidence, self.min_confidence = confidence, min_confidence
        said = why if confidence is None else f"its confidence is {confidence:g}"
        super().__init__(f"the answer is not sure enough: {said}, and min_confidence is {min_confidence:g}")


class NoRewardDue(FlujoError):
    """No selection waits for a reward there: it was told already, the selection has not ended, or there is none."""


class LoopDetected(FlujoError):
    """The same was done again and again: `cycle` names what, `times` how often, `kind` how it was found."""

    kind: str
    cycle: tuple[str, ...]
    times: int
    rotates: bool

    def __init__(self, kind: str, cycle: tuple[str, ...], times: int, *, rotates: bool = False) -> None:
        self.kind, self.cycle, self.times, self.rotates = kind, tuple(cycle), times, rotates
        what = ", ".join(map(repr, self.cycle)) or "the same"
        super().__init__(f"a loop was found ({kind}): {what}, {times} times with the same result")


# --- granular steps -----------------------------------------------------------------------------------------


class UncertainUnit(FlujoError):
    """A tool call may have run before the process died, and it was declared not to be run again unasked.

    `policy` says what the declaration wants instead: `"pause"` or `"fail"`.
    """

    tool: str
    arguments: str
    key: str
    idempotency_key: str
    policy: str

    def __init__(self, tool: str, arguments: str, *, key: str, idempotency_key: str, policy: str) -> None:
        self.tool, self.arguments, self.key = tool, arguments, key
        self.idempotency_key, self.policy = idempotency_key, policy
        super().__init__(
            f"tool {tool!r} may have run already (key {idempotency_key}) with {arguments}; its result was not recorded "
            f"and on_uncertain is {policy!r}: find out whether it ran before it is run again"
        )


class MaxTurnsReached(FlujoError):
    """The agent had `max_turns` model turns and was not done; what there is, is here."""

    max_turns: int
    messages: tuple[Any, ...]
    last_text: str

    def __init__(self, max_turns: int, *, messages: tuple[Any, ...] = (), last_text: str = "") -> None:
        self.max_turns, self.messages, self.last_text = max_turns, messages, last_text
        super().__init__(f"the agent was not done after {max_turns} model turns; raise max_turns or narrow its task")


# --- actors -----------------------------------------------------------------------------------------------


class AskTimeout(FlujoError, TimeoutError):
    """No reply came within the time of an `ask`; the message may still be handled, its reply goes nowhere."""

    actor: str
    timeout: float

    def __init__(self, actor: str, timeout: float) -> None:
        self.actor, self.timeout = actor, timeout
        super().__init__(f"actor {actor!r} did not reply within {timeout:g} s")


class ActorDied(FlujoError):
    """An actor ended before it replied; `cause` is its crash, `None` if it was stopped or was done."""

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
    """A supervisor gave up: restarts came faster than its intensity allows, so it stopped all children."""

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
    """Where it ended: `limits`, `parse`, `validate`, `extract`, `simplify`."""
    errors: list[Any]
    """The validation errors, each with a JSON `path` and a `message`; empty if there was no value to validate."""
    text_excerpt: str = ""
    """The beginning and the end of the text."""
    schema_hash: str | None = None

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.errors = []


class StreamLimitExceeded(StructuredOutputError):
    """A stream delivered more than its buffer may hold; `partial_text` is what had arrived."""

    stage = "limits"
    partial_text: str = ""
