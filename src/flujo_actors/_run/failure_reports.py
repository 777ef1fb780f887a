"""What is said of a step's failure where it happened: a note on the exception, and one line in the log.

A step that failed because one inside it did says nothing: it has been said.
"""

from __future__ import annotations

import logging

from .._bridge.guard import holds_vanished
from .._core.attempts import escalating
from .._core.error_info import place_of, put_note
from .._core.outcomes import ErrorInfo
from .messages import Request
from .run import Run

logger = logging.getLogger("flujo_actors")

_NOTE = "flujo_actors: "
"""How the note on an exception begins."""


def report_failure(run: Run, request: Request, error: BaseException | ErrorInfo | None, feedback: str) -> None:
    """Note on the exception where in the run it belongs, and tell the log, unless it is raised to the caller."""
    where = f"run {run.run_id!r}, path {str(request.path)!r}, attempt {request.tally.attempts}"
    if isinstance(error, BaseException):
        put_note(error, _NOTE, where)
    if escalating(error) is None:
        text = f"step {request.name!r} failed{_place(error)} ({where}): {feedback}"
        logger.log(_level(error), "%s", run.redact(text))


def report_fallback(run: Run, request: Request, error: BaseException | ErrorInfo | None, feedback: str) -> None:
    """Tell the log why a fallback has its turn: if it succeeds, nobody else keeps the place of the failure."""
    where = f"run {run.run_id!r}, path {str(request.path)!r}, attempt {request.tally.attempts}"
    text = f"step {request.name!r} goes to its fallback; it failed{_place(error)} ({where}): {feedback}"
    logger.info("%s", run.redact(text))


def _level(error: object) -> int:
    """A loop that shuts down cancels the tasks of all steps, and steps then end without an outcome: no news."""
    return logging.INFO if holds_vanished(error) else logging.WARNING


def _place(error: BaseException | ErrorInfo | None) -> str:
    place = place_of(error) if isinstance(error, BaseException) else None
    return "" if place is None else f" at {place}"
