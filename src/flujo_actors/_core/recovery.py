"""What `recover()` tells: the results of the runs that it took over, and what it left."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from .outcomes import PipelineResult, RunId


@attrs.frozen(kw_only=True)
class LeftRun:
    """A run that was not taken over, or not finished."""

    run_id: RunId
    reason: str
    """Why, in a sentence without secrets."""
    error: Exception | None = attrs.field(default=None, eq=False, repr=False)
    """What stood in the way: `RunLeased` knows how long it will, `FingerprintMismatch` what changed."""


class RecoveryReport(list[PipelineResult]):
    """The results of the runs that were taken over, latest change first; `left` are those that were not."""

    def __init__(self, results: Iterable[PipelineResult] = (), *, left: Iterable[LeftRun] = ()) -> None:
        super().__init__(results)
        self.left: tuple[LeftRun, ...] = tuple(left)

    def __repr__(self) -> str:
        return f"RecoveryReport({super().__repr__()}, left={self.left!r})"
