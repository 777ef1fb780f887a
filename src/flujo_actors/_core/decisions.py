"""What happens after an attempt: pure decisions for the step actor to carry out.

Rules, first match wins:

1. A control error, `KeyboardInterrupt` or `SystemExit` escalates: nothing else is tried.
2. Work that is done, paused or aborted is accepted.
3. A failure that names another agent goes to that agent at once.
4. Work that ended without an outcome is not tried again, since nobody knows what it did.
5. Any other failure is tried again while retries are left, after the step's backoff, unless another attempt cannot
   change it: a context that is too large, a loop.
6. An answer that was not sure enough, and is not tried again, goes to its review, if there is one.
7. A failure that is not tried again goes to the fallback, if there is one; else it is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from ..errors import ContextTooLarge, LoopDetected
from .attempts import Attempt, Failed, escalating
from .backoff import Backoff


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
class Review:
    """Let somebody look at an answer that was not sure enough."""


@attrs.frozen(kw_only=True)
class Escalate:
    """Stop the run with this error."""

    error: BaseException


Decision: TypeAlias = Accept | Restart | HandOver | Review | UseFallback | Escalate

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
    if failures <= max_retries and not lost and not isinstance(ended.error, ContextTooLarge | LoopDetected):
        return Restart(after=backoff.delay(failures, rng))
    if has_review:
        return REVIEW
    return USE_FALLBACK if has_fallback else ACCEPT
