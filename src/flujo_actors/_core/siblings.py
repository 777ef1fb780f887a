"""What siblings come to that ran at the same time: when one of them stops the others, and how they end together.

Rules:

1. A failure stops the others, unless failures are ignored; an abort and a control error stop them always.
2. Together they end by the gravest report: control error, abort, failure, pause, and only then success.
3. Where failures are ignored, one sibling that succeeded or waits for an answer is enough to go on.
4. A sibling that was cut short says nothing: whoever stopped it has reported why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from .attempts import Failed, Stopped, escalating
from .outcomes import Aborted, ErrorInfo, Failure, Paused, Success, TerminalOutcome


class Report(Protocol):
    """How one sibling ended."""

    @property
    def verdict(self) -> TerminalOutcome:
        """What its parent has to act on."""

    @property
    def cut_short(self) -> bool:
        """Whether it was stopped from outside."""


@attrs.frozen(kw_only=True)
class Survived:
    """They may go on: what those that succeeded left is merged."""

    ignored: dict[str, str | None]
    """Why others failed, by name."""


def stops_siblings(report: Report, *, patient: bool) -> bool:
    """Whether the others need not go on (rule 1); `patient` is who ignores failures."""
    match report.verdict:
        case Success() | Paused():
            return False
        case Failure(error=error):
            return not patient or escalating(error) is not None
        case Aborted():
            return True


def gathered(name: str, reports: Mapping[str, Report], output: object, *, patient: bool) -> Failed | Stopped | Survived:
    """What the siblings of step `name` come to (rules 2 to 4), by their reports; `output` is what there is of them."""
    verdicts = {sibling: report.verdict for sibling, report in reports.items()}
    failures = {sibling: verdict for sibling, verdict in verdicts.items() if isinstance(verdict, Failure)}
    control = next((found for each in failures.values() if (found := escalating(each.error))), None)
    aborted = next((r.verdict for r in reports.values() if isinstance(r.verdict, Aborted) and not r.cut_short), None)
    if aborted is not None and control is None:
        return Stopped(outcome=aborted)
    paused = next((verdict for verdict in verdicts.values() if isinstance(verdict, Paused)), None)
    alive = paused is not None or any(isinstance(verdict, Success) for verdict in verdicts.values())
    if control is not None or (failures and not (patient and alive)):
        return _failed(name, failures, output, control)
    if paused is not None:
        return Stopped(outcome=paused)
    return Survived(ignored={sibling: failure.feedback for sibling, failure in failures.items()})


def _failed(name: str, failures: Mapping[str, Failure], output: object, control: BaseException | None) -> Failed:
    text = "; ".join(f"branch {key!r} of {name!r} failed: {each.feedback}" for key, each in failures.items())
    return Failed(error=control or _one_error(name, failures), feedback=text, output=output, of_child=True)


def _one_error(name: str, failures: Mapping[str, Failure]) -> BaseException | ErrorInfo | None:
    """The original exception of the sibling that failed; a group of them, if several did."""
    errors = [each.error for each in failures.values() if each.error is not None]
    if len(errors) < 2:
        return errors[0] if errors else None
    originals = [error for error in errors if isinstance(error, BaseException)]
    return BaseExceptionGroup(f"{len(failures)} branches of {name!r} failed", originals) if originals else errors[0]
