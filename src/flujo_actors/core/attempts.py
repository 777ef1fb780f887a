"""What happens after an attempt: pure decisions for the step actor to carry out.

Rules, first match wins:

1. A control error, `KeyboardInterrupt` or `SystemExit` escalates: nothing else is tried.
2. Work that is done, paused or aborted is accepted.
3. A failure that names another agent goes to that agent at once.
4. Work that ended without an outcome is not tried again, since nobody knows what it did.
5. Any other failure is tried again while retries are left, after the step's backoff.
6. A failure that is not tried again goes to the fallback, if there is one; else it is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs

from ..errors import ControlError
from .backoff import Backoff
from .outcomes import Aborted, ErrorInfo, Paused
from .paths import StepPath

NOTHING: Mapping[str, Any] = {}
"""The metadata of an attempt that has none to report."""

PLAIN = frozenset({str, int, float, bool, bytes, list, dict, tuple, type(None)})
"""Types of answers that are outputs and nothing else."""


@attrs.frozen(kw_only=True)
class Done:
    """The attempt has an output; `context` is the copy it worked on."""

    output: Any
    context: Any
    metadata: Mapping[str, Any] = NOTHING


@attrs.frozen(kw_only=True)
class Failed:
    """The attempt has no output, or one that was refused; `output` is what there was."""

    error: BaseException | ErrorInfo | None
    feedback: str
    output: Any = None
    metadata: Mapping[str, Any] = NOTHING
    redirect: Any = None
    """The agent that shall have the next attempt, if a validator named one."""


@attrs.frozen(kw_only=True)
class Stopped:
    """The attempt ended in a pause or was aborted."""

    outcome: Paused | Aborted
    place: StepPath | None = None
    """What waits, if it is something inside the step: a tool call."""


Attempt: TypeAlias = Done | Failed | Stopped
"""How one attempt of a step ended."""


@attrs.frozen(kw_only=True)
class Accept:
    """The attempt is the step's outcome."""


@attrs.frozen(kw_only=True)
class Restart:
    """Try again after a while."""

    after: float


@attrs.frozen(kw_only=True, eq=False)
class HandOver:
    """Let another agent try, at once."""

    to: Any


@attrs.frozen(kw_only=True)
class UseFallback:
    """Let the fallback try."""


@attrs.frozen(kw_only=True)
class Escalate:
    """Stop the run with this error."""

    error: BaseException


Decision: TypeAlias = Accept | Restart | HandOver | UseFallback | Escalate

ACCEPT = Accept()
USE_FALLBACK = UseFallback()


def must_escalate(error: object) -> bool:
    """Whether an error stops the run, whatever stands around the step."""
    return isinstance(error, ControlError | KeyboardInterrupt | SystemExit)


def escalating(error: object) -> BaseException | None:
    """The error that stops the run: the error itself, or the first such in a group."""
    if isinstance(error, BaseException) and must_escalate(error):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for member in error.exceptions if (found := escalating(member))), None)
    return None


def decide(
    ended: Attempt,
    *,
    failures: int,
    max_retries: int,
    backoff: Backoff,
    has_fallback: bool,
    lost: bool = False,
    rng: Callable[[], float],
) -> Decision:
    """What to do after an attempt, with `failures` so far that count against the retries; see the module's rules."""
    if not isinstance(ended, Failed):
        return ACCEPT
    control = escalating(ended.error)
    if control is not None:
        return Escalate(error=control)
    if ended.redirect is not None:
        return HandOver(to=ended.redirect)
    if failures <= max_retries and not lost:
        return Restart(after=backoff.delay(failures, rng))
    return USE_FALLBACK if has_fallback else ACCEPT
