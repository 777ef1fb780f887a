"""Check of open runs against a pipeline, before it is deployed.

Rules:

1. A run is checked as `resume` would open it: its admission, its fingerprint and its records. Nothing is claimed,
   executed or written.
2. `ok`: a strict resume accepts the run, or its retry recorded a wider mode. `compat`: only `mode="compat"` does.
   `blocked`: neither does; the reason is that of the refused resume.
3. Every open run is checked, unless the filter names a pipeline: a pipeline without a name of its own has that of its
   steps, so a new step changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from ..._core.outcomes import RunId
from ..._core.records.records import Record, StoredRun, has_ended
from ..._core.records.run_state import kept_records, retries_in
from ...errors import CorruptRecord, FingerprintMismatch, StoreVersionError
from ..pipeline_diff import ResumeMode, checked_mode
from ..run_admission import start_values, widest_mode
from .bulk_actions import RunFilter, matching_runs

if TYPE_CHECKING:
    from ..durable_run_registry import DurableRunRegistry

Verdict: TypeAlias = Literal["ok", "compat", "blocked"]

_WITHIN_S = 15.0
"""Age of the reports of workers that count, for filters by state."""


@attrs.frozen(kw_only=True)
class RunCheck:
    """Verdict about an open run and a pipeline."""

    run_id: RunId
    """Id of the run."""
    verdict: Verdict
    """Whether the pipeline can resume the run."""
    reason: str | None = None
    """Reason of the refusal, in one sentence."""


def check_runs(runs: DurableRunRegistry, where: RunFilter | None, mode: ResumeMode) -> Sequence[RunCheck]:
    """Return a verdict for each open run, newest first. Blocks."""
    checked_mode(mode)
    return [_checked(runs, run, mode) for run in _open_runs(runs, where or RunFilter(all=True))]


def _open_runs(runs: DurableRunRegistry, where: RunFilter) -> Iterator[StoredRun]:
    for page in matching_runs(runs.store, where, within_s=_WITHIN_S):
        yield from (run for run, _ in page if not has_ended(run.status))


def _checked(runs: DurableRunRegistry, run: StoredRun, mode: ResumeMode) -> RunCheck:
    try:
        records = runs.store.read(run.run_id)
        kept = kept_records(records) if retries_in(records) else records
        verdict, reason = _verdict(runs, run, kept, "strict" if mode == "compat" else mode)
        runs.check_records(run.run_id, kept)
    except (CorruptRecord, StoreVersionError) as error:
        return RunCheck(run_id=run.run_id, verdict="blocked", reason=str(error))
    return RunCheck(run_id=run.run_id, verdict=verdict, reason=reason)


def _verdict(
    runs: DurableRunRegistry, run: StoredRun, records: list[Record], mode: ResumeMode
) -> tuple[Verdict, str | None]:
    refused = _refusal(runs, run, records, mode)
    if refused is None:
        return "ok", None
    wider = _refusal(runs, run, records, "compat")
    return ("compat", str(refused)) if wider is None else ("blocked", str(wider))


def _refusal(
    runs: DurableRunRegistry, run: StoredRun, records: list[Record], mode: ResumeMode
) -> FingerprintMismatch | None:
    try:
        start_values(runs.pipeline, run.run_id, records, widest_mode(mode, records))
    except FingerprintMismatch as error:
        return error
    return None
