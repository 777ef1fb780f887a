"""Next action after an attempt: pure decisions for the step actor.

Rules, first match wins:

1. A control error, `KeyboardInterrupt` or `SystemExit` escalates: nothing else is tried.
2. A done, paused or aborted attempt is accepted.
3. A failure that names another agent is redirected to that agent at once.
4. An attempt without an outcome is not retried, since its effect is unknown.
5. Any other failure is retried while retries are left, after the step's backoff or the provider's longer
   `retry_after`, unless another attempt cannot change it: a context that is too large, a loop, a failure that
   `retry_on` does not match, a `retry_after` beyond the longest accepted one.
6. An answer of low confidence without retries left is reviewed, if there is a review.
7. A failure without retries left uses the fallback, if there is one; else it is accepted.

Sections:

- Retry rules: matches of exceptions, HTTP statuses and recorded errors.
- Common end of concurrent siblings: stop decision and combined result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

import attrs
from outcome import Error

from ..errors import ContextTooLarge, DeclarationError, LoopDetected, RefusedOutput
from .attempt_results import Attempt, AttemptFailed, AttemptStopped, escalating
from .error_info import cause_of, leaves_of, tried
from .exit_rules import RestartType, exit_action
from .outcomes import Aborted, ErrorInfo, Failure, Paused, Success, TerminalOutcome
from .validators import is_number, suggests_options


@suggests_options
@attrs.frozen(kw_only=True)
class Backoff:
    """Exponential waiting times with jitter, in seconds.

    Args:
        first: wait before the first retry.
        factor: growth with each retry.
        ceiling: longest wait.
        jitter: random share of a wait, from 0 to 1.
        longest_retry_after_s: longest `Retry-After` of a provider that is honored.

    Raises:
        DeclarationError: a value is negative or not finite.

    Example:
        ```python
        flaky = ScriptedAgent(ConnectionError("down"), "up")
        step = Step("ask", flaky, max_retries=1, backoff=Backoff(first=20))
        assert run_on_mock_clock(Flujo(step)).output == "up"
        ```
    """

    first: float = 0.1
    factor: float = 2.0
    ceiling: float = 30.0
    jitter: float = 0.1
    longest_retry_after_s: float = 120.0
    """Longest accepted `retry_after` of a provider."""

    def __attrs_post_init__(self) -> None:
        for name in ("first", "factor", "ceiling", "jitter", "longest_retry_after_s"):
            value = getattr(self, name)
            _require(is_number(value), name, value, "a finite number")
        _require(self.first >= 0, "first", self.first, "a number of seconds, 0 or more")
        _require(self.factor >= 1, "factor", self.factor, "1 or more: waits never shrink")
        _require(self.first <= self.ceiling, "ceiling", self.ceiling, "not below `first`")
        _require(0 <= self.jitter <= 1, "jitter", self.jitter, "a share between 0 and 1")
        longest = self.longest_retry_after_s
        _require(longest >= 0, "longest_retry_after_s", longest, "a number of seconds, 0 or more")

    @classmethod
    def none(cls) -> Backoff:
        """Return a backoff without delays."""
        return cls(first=0.0, ceiling=0.0, jitter=0.0)

    def delay(self, attempt: int, rng: Callable[[], float]) -> float:
        """Seconds to wait before `attempt` (1, 2, …); `rng` is like `random.random`.

        Args:
            attempt: number of the failed attempt, from 1.
            rng: function that returns a random number from 0 to 1.
        """
        if attempt < 1:
            raise ValueError(f"attempts count from 1, got {attempt}")
        return self._longest(attempt) * (1.0 - self.jitter * rng())

    def _longest(self, attempt: int) -> float:
        try:
            return min(self.ceiling, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            # A value beyond a float's range is beyond every ceiling, unless there is nothing to multiply.
            return self.ceiling if self.first else 0.0


def _require(holds: bool, field: str, value: float, wanted: str) -> None:
    if not holds:
        raise DeclarationError(f"Backoff.{field} is {value!r:.100}; it must be {wanted}")


@attrs.frozen(kw_only=True)
class Accept:
    """The attempt is the step's outcome."""


@attrs.frozen(kw_only=True)
class RetryAttempt:
    """Try again after a while."""

    after: float


@attrs.frozen(kw_only=True, eq=False)
class RedirectTo:
    """Redirect the next attempt to another agent, without a delay."""

    to: Any


@attrs.frozen(kw_only=True)
class UseFallback:
    """Let the fallback try."""


@attrs.frozen(kw_only=True)
class Review:
    """Send an answer of low confidence to its review step."""


@attrs.frozen(kw_only=True)
class StopRun:
    """Stop the run with this error."""

    error: BaseException


Decision: TypeAlias = Accept | RetryAttempt | RedirectTo | Review | UseFallback | StopRun

ACCEPT = Accept()
USE_FALLBACK = UseFallback()
REVIEW = Review()


def decide(
    ended: Attempt,
    *,
    failures: int,
    max_retries: int,
    backoff: Backoff,
    has_fallback: bool,
    has_review: bool = False,
    lost: bool = False,
    matched: bool = True,
    rng: Callable[[], float],
) -> Decision:
    """Return the next action after an attempt; see the module's rules.

    `failures` are those that count against the retries; `matched` is the result of `retry_on`.
    """
    if not isinstance(ended, AttemptFailed):
        return ACCEPT
    control = escalating(ended.error)
    if control is not None:
        return StopRun(error=control)
    if ended.redirect is not None:
        return RedirectTo(to=ended.redirect)
    asked = retry_after_of(ended.error)
    final = lost or not matched or isinstance(ended.error, ContextTooLarge | LoopDetected)
    left = 0 if final or asked > backoff.longest_retry_after_s else max_retries - failures + 1
    if exit_action("transient", failed=True, restarts_left=left) == "restart":
        return RetryAttempt(after=max(backoff.delay(failures, rng), asked))
    if has_review:
        return REVIEW
    return USE_FALLBACK if has_fallback else ACCEPT


# --- Retry rules --------------------------------------------------------------------------------------------------
# Rules:
#
# 1. A class matches its instances, a number the HTTP status of a provider, a function every error it accepts.
# 2. A failure matches with its exception or any exception of the `__cause__` chain. A group matches if every member
#    does: another attempt repeats all of them.
# 3. A refused answer is a `RefusedOutput`, caused by the exception of the validator or schema.
# 4. An error of another process has no class: it matches by the names of the class and its subclasses.
# 5. A provider that cannot be reached raises no `ConnectionError`, but pydantic-ai's class for it: both match.


RetryRule: TypeAlias = type[BaseException] | int | Callable[[BaseException], bool]
"""Condition of a retry: exception class, HTTP status or function."""

provider_errors: Final[tuple[RetryRule, ...]] = (429, 500, 502, 503, 504, 529, ConnectionError, TimeoutError)
"""Rules for the passing failures of a provider."""

_LONGEST_CHAIN = 20

_TRANSPORT = {"ModelConnectionError": ConnectionError, "ModelTimeoutError": TimeoutError}
"""Classes of pydantic-ai, which this layer cannot import, by the builtin meant."""


def retry_subjects(failed: AttemptFailed) -> Iterator[tuple[BaseException | ErrorInfo, ...]]:
    """Yield the cause chain of the failure, or of each group member."""
    leaves = leaves_of(failed.error) if isinstance(failed.error, BaseExceptionGroup) else (failed.error,)
    for leaf in leaves:
        chain = tuple(_chain_of(leaf))
        yield chain if failed.refusal is None else (_refused(failed.refusal, leaf), *chain)


def _refused(reason: str, error: BaseException | ErrorInfo | None) -> RefusedOutput:
    refused = RefusedOutput(reason)
    refused.__cause__ = error if isinstance(error, BaseException) else None
    return refused


def _chain_of(error: BaseException | ErrorInfo | None) -> Iterator[BaseException | ErrorInfo]:
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return
        yield error
        error = next(iter(error.causes), None) if isinstance(error, ErrorInfo) else cause_of(error)


def rule_holds(rule: type[BaseException] | int, error: BaseException | ErrorInfo) -> bool:
    """Return whether a class or HTTP status matches one exception."""
    if isinstance(error, ErrorInfo):
        return _holds_by_name(rule, error)
    if isinstance(rule, int):
        status = tried(getattr, error, "status_code", None)
        return not isinstance(status, Error) and status.value == rule
    names = {each.__name__ for each in type(error).__mro__}
    return isinstance(error, rule) or any(name in names and meant is rule for name, meant in _TRANSPORT.items())


def _holds_by_name(rule: type[BaseException] | int, error: ErrorInfo) -> bool:
    if isinstance(rule, int):
        return error.message.startswith(f"status_code: {rule},")
    return error.type_name in {each.__name__ for each in _with_subclasses(rule)} or (
        _TRANSPORT.get(error.type_name) is rule
    )


def _with_subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _with_subclasses(each)


def retry_after_of(error: BaseException | ErrorInfo | None) -> float:
    """Return the seconds that a provider asked to wait, 0 by default."""
    leaves = leaves_of(error) if isinstance(error, BaseExceptionGroup) else (error,)
    return max((_retry_after(each) for leaf in leaves for each in _chain_of(leaf)), default=0.0)


def _retry_after(error: BaseException | ErrorInfo) -> float:
    asked = tried(getattr, error, "retry_after", None)
    value = 0.0 if isinstance(asked, Error) else asked.value
    if is_number(value):
        return max(0.0, float(value))
    is_endless = isinstance(value, int | float) and not isinstance(value, bool) and value > 0  # infinite, or no float
    return math.inf if is_endless else 0.0


# --- Common end of concurrent siblings ----------------------------------------------------------------------------
# Rules:
#
# 1. A failure stops the others, unless failures are ignored; an abort and a control error stop them always.
# 2. Together they end by the gravest report: control error, abort, failure, pause, and only then success.
# 3. Where failures are ignored, one sibling that succeeded or waits for an answer is enough to continue.
# 4. A cancelled sibling does not count: its canceller has reported the reason.


class ChildReport(Protocol):
    """Report of one sibling."""

    @property
    def verdict(self) -> TerminalOutcome:
        """Return the outcome for the parent to act on."""

    @property
    def cut_short(self) -> bool:
        """Return whether it was stopped from outside."""


@attrs.frozen(kw_only=True)
class ContinueWith:
    """Permission to continue: contexts of successful siblings are merged."""

    ignored: dict[str, str | None]
    """Ignored failures by name."""


def stops_siblings(report: ChildReport, *, patient: bool) -> bool:
    """Return whether siblings must stop (rule 1); `patient` parents ignore failures."""
    match report.verdict:
        case Success() | Paused():
            return False
        case Failure(error=error):
            restart: RestartType = "temporary" if patient and escalating(error) is None else "transient"
            return exit_action(restart, failed=True, restarts_left=0) == "escalate"
        case Aborted():
            return True


def gathered(
    name: str, reports: Mapping[str, ChildReport], output: object, *, patient: bool
) -> AttemptFailed | AttemptStopped | ContinueWith:
    """Return the common end of the step's siblings (rules 2 to 4).

    `output` is their available output.
    """
    verdicts = {sibling: report.verdict for sibling, report in reports.items()}
    failures = {sibling: verdict for sibling, verdict in verdicts.items() if isinstance(verdict, Failure)}
    control = next((found for each in failures.values() if (found := escalating(each.error))), None)
    aborted = next((r.verdict for r in reports.values() if isinstance(r.verdict, Aborted) and not r.cut_short), None)
    if aborted is not None and control is None:
        return AttemptStopped(outcome=aborted)
    paused = next((verdict for verdict in verdicts.values() if isinstance(verdict, Paused)), None)
    alive = paused is not None or any(isinstance(verdict, Success) for verdict in verdicts.values())
    if control is not None or (failures and not (patient and alive)):
        return _failed(name, failures, output, control)
    if paused is not None:
        return AttemptStopped(outcome=paused)
    return ContinueWith(ignored={sibling: failure.feedback for sibling, failure in failures.items()})


def _failed(name: str, failures: Mapping[str, Failure], output: object, control: BaseException | None) -> AttemptFailed:
    text = "; ".join(f"branch {key!r} of {name!r} failed: {each.feedback}" for key, each in failures.items())
    return AttemptFailed(error=control or _one_error(name, failures), feedback=text, output=output, of_child=True)


def _one_error(name: str, failures: Mapping[str, Failure]) -> BaseException | ErrorInfo | None:
    """Return the failed sibling's exception, or a group of several."""
    errors = [each.error for each in failures.values() if each.error is not None]
    if len(errors) < 2:
        return errors[0] if errors else None
    originals = [error for error in errors if isinstance(error, BaseException)]
    return BaseExceptionGroup(f"{len(failures)} branches of {name!r} failed", originals) if originals else errors[0]
