"""Bulk actions: cancel, retry, delete or answer all runs of a filter.

Rules:

1. The set is fixed at the start: runs that are created later are not part of it.
2. Runs are read in pages of 500. Deletions are one transaction each page, other actions one transaction each run.
3. A run that the action does not apply to is skipped with the reason, and the action continues.
4. An interrupted action can be repeated: a run that it has changed no longer matches, or is skipped.
5. A dry run counts, and writes nothing.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, get_args

import attrs

from ..._core.labels import checked_filter
from ..._core.outcomes import RunId
from ..._core.records.records import AskedPause, RunQuery, StoredRun, StoredStatus, has_ended
from ..._core.validators import brief_repr, is_count, is_number, span_seconds
from ...errors import (
    AlreadyAnswered,
    CorruptRecord,
    DeclarationError,
    InvalidAnswer,
    LeaseLost,
    NotPaused,
    NotRetryable,
    RunExists,
    RunLeased,
    RunNotFound,
)
from ...stores._run_lists import fits
from ...stores._store_port import Store, required
from ..cancel_requests import cancel
from ..forks import retry
from ..pause_lookup import give_answer, question_of
from ..pipeline_diff import ResumeMode
from ..retention import MOST_IN_BATCH, delete_batch, pages_of
from ..run_states import RUN_STATES, RunStateName, StateInfo, states_of, stored_statuses

Moment: TypeAlias = float | dt.datetime | str
"""Seconds since the epoch, a datetime, or a span before now."""


def epoch_seconds(given: Moment, *, subject: str, now: float) -> float:
    """Return a time in seconds since the epoch (rule 2)."""
    if isinstance(given, dt.datetime):
        return given.timestamp()
    if isinstance(given, str):
        return now - span_seconds(given)
    if not is_number(given):
        raise DeclarationError(
            f"{subject} must be seconds since the epoch, a datetime or a span, not {brief_repr(given)}"
        )
    return float(given)


def checked_status(status: StoredStatus) -> StoredStatus:
    """Return a valid status; an unknown one would match no run."""
    if status not in get_args(StoredStatus):
        raise ValueError(f"there is no status {status!r}; a run is {', '.join(get_args(StoredStatus))}")
    return status


def checked_states(state: RunStateName | Sequence[RunStateName]) -> Sequence[RunStateName]:
    """Return the states; `ValueError` for one that does not exist."""
    states: Sequence[RunStateName] = (state,) if isinstance(state, str) else tuple(state)
    for each in states:
        if each not in RUN_STATES:
            raise ValueError(f"there is no state {each!r}; a run is {', '.join(RUN_STATES)}")
    return states


@attrs.frozen(kw_only=True)
class RunFilter:
    """Selection of runs; all conditions must hold.

    Args:
        status: stored status.
        state: derived state, or several.
        labels: labels that a run must have; `None` matches any value.
        pipeline: name of the pipeline.
        queue: name of the queue.
        created_after: seconds, a `datetime`, or a span such as `"7d"`.
        created_before: time of creation.
        ended_before: time of the end.
        search: beginning of an id, or else a part of a pipeline's name.
        run_ids: ids of the runs.
        all: whether a filter without a condition is meant.

    Raises:
        DeclarationError: a condition is not valid.
        ValueError: there is no such status or state.

    Example:
        ```python
        Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", labels={"user": "ada"})
        client = RunClient("sqlite:///runs.db")
        assert client.bulk_delete(RunFilter(labels={"user": "ada"})).done == 1
        ```
    """

    status: StoredStatus | None = attrs.field(default=None, converter=attrs.converters.optional(checked_status))
    """Stored status."""
    state: RunStateName | Sequence[RunStateName] | None = attrs.field(
        default=None, converter=attrs.converters.optional(checked_states)
    )
    """State, or several."""
    labels: Mapping[str, str | None] | None = None
    """Labels that a run must have; the value `None` matches any value."""
    pipeline: str | None = None
    queue: str | None = None
    created_after: Moment | None = None
    created_before: Moment | None = None
    ended_before: Moment | None = None
    search: str | None = None
    """Beginning of the run id, else part of the pipeline's name."""
    run_ids: Sequence[str] | None = None
    all: bool = False
    """Whether a bulk action may act on every run."""

    def __attrs_post_init__(self) -> None:
        checked_filter(self.labels)
        self.query(now=0.0)
        if isinstance(self.run_ids, str):
            raise DeclarationError(f"RunFilter: run_ids must be a list of ids, not the text {self.run_ids!r:.100}")

    @property
    def is_empty(self) -> bool:
        """Return whether no condition is given."""
        return all(each is None for each in (*self._conditions(), self.run_ids)) and not self.labels

    def query(self, *, now: float) -> RunQuery:
        """Return the conditions that a store evaluates."""
        times = {name: getattr(self, name) for name in ("created_after", "created_before", "ended_before")}
        read: dict[str, Any] = {
            name: None if given is None else epoch_seconds(given, subject=f"RunFilter: {name}", now=now)
            for name, given in times.items()
        }
        only_open = self.state is not None and not any(map(has_ended, self._statuses()))
        return RunQuery(
            status=self.status or (self._statuses()[0] if len(self._statuses()) == 1 else None),
            pipeline=self.pipeline,
            queue=self.queue,
            search=self.search,
            labels=checked_filter(self.labels),
            is_open=only_open,
            order="created",
            **read,
        )

    def _conditions(self) -> tuple[object, ...]:
        times = (self.created_after, self.created_before, self.ended_before)
        return (self.status, self.state, self.pipeline, self.queue, self.search, *times)

    def _statuses(self) -> list[StoredStatus]:
        """Return the statuses that runs of the states can have."""
        return [] if self.state is None else stored_statuses(checked_states(self.state))


def checked_where(where: object, *, subject: str) -> RunFilter:
    """Return the filter of an action; refuse an empty one."""
    if not isinstance(where, RunFilter):
        raise DeclarationError(f"{subject} needs a RunFilter(…), not {brief_repr(where)}")
    if where.is_empty and not where.all:
        raise DeclarationError(f"{subject}: this filter matches every run; pass RunFilter(all=True)")
    return where


def matching_runs(store: Store, where: RunFilter, *, within_s: float) -> Iterator[list[tuple[StoredRun, StateInfo]]]:
    """Yield pages of a filter's runs with states (rule 3). Blocks."""
    query = where.query(now=time.time())
    if query.labels:
        required(store, "set_labels", subject="a filter by labels", port="RunLabels")
    pages = pages_of(store, query) if where.run_ids is None else _named(store, where.run_ids, query)
    for page in pages:
        found = states_of(store, page, within_s=within_s)
        yield [each for each in found if where.state is None or each[1].state in where.state]


def _named(store: Store, run_ids: Sequence[str], query: RunQuery) -> Iterator[list[StoredRun]]:
    """Yield the runs of these ids that a query selects, in pages."""
    ids = list(dict.fromkeys(map(RunId, run_ids)))
    for start in range(0, len(ids), MOST_IN_BATCH):
        found = store.look(ids[start : start + MOST_IN_BATCH])
        by_id = query.search is not None and any(run.run_id.startswith(query.search) for run in found.values())
        roots = [run for run in found.values() if run.parent is None]
        yield [run for run in roots if fits(run, query, by_id=by_id)]


MOST_SKIPPED = 1000
"""Number of skipped runs that a report names."""

ENDING_S = 10.0
"""Timeout for owners of runs that are cancelled before their deletion."""

_POLL_S = 0.1

Matched = tuple[StoredRun, StateInfo]
Act = Callable[[StoredRun, StateInfo], str | None]
"""Act on a run; return the reason if it is skipped."""


@attrs.frozen(kw_only=True)
class BulkReport:
    """Result of a bulk action."""

    matched: int
    """Number of runs that match the filter."""
    done: int
    """Number of runs that were changed."""
    skipped: Mapping[str, str]
    """Reasons by run id, of at most 1,000 runs."""
    skipped_count: int
    """Number of runs that were left as they are."""
    bytes: int = 0
    """Size of deleted bodies and blobs."""
    dry_run: bool = False
    """Whether nothing was changed."""


@attrs.define(eq=False)
class _Count:
    """A report in the making."""

    dry_run: bool
    matched: int = 0
    done: int = 0
    bytes: int = 0
    skipped_count: int = 0
    skipped: dict[str, str] = attrs.Factory(dict)

    def note(self, run_id: str, reason: str | None) -> None:
        if reason is None:
            self.done += 1
            return
        self.skipped_count += 1
        if len(self.skipped) < MOST_SKIPPED:
            self.skipped[run_id] = reason

    def report(self) -> BulkReport:
        return BulkReport(**attrs.asdict(self, recurse=False))


@attrs.frozen(kw_only=True, eq=False)
class BulkAction:
    """Bulk actions on the runs of a store; see the module's rules."""

    store: Store
    within_s: float
    """Age of the last sign of life of a live worker."""
    dry_run: bool = False
    limit: int | None = None

    def cancel(self, where: RunFilter, *, reason: str, undo: bool) -> BulkReport:
        """Cancel the open runs of a filter. Blocks."""

        def act(run: StoredRun, now: StateInfo) -> str | None:
            if has_ended(run.status):
                return f"{run.status}; nothing to cancel"
            cancel(self.store, run.run_id, reason, undo=undo)
            return None

        return self._each("bulk_cancel", where, act)

    def retry(
        self, where: RunFilter, *, mode: ResumeMode, from_start: bool, queue: str, reason: str | None
    ) -> BulkReport:
        """Retry the failed and aborted runs of a filter. Blocks."""

        def act(run: StoredRun, now: StateInfo) -> str | None:
            if run.status == "completed":
                return "completed; nothing to retry"
            if not has_ended(run.status):
                return now.state
            options = {"state": now.state, "from_start": from_start, "queue": queue, "reason": reason}
            retry(self.store, run.run_id, mode=mode, **options)  # type: ignore[arg-type]
            return None

        return self._each("bulk_retry", where, act)

    def answer(self, where: RunFilter, answer: object, *, to: str | None, by: str | None) -> BulkReport:
        """Answer the open questions of a filter's runs. Blocks."""

        def act(run: StoredRun, now: StateInfo) -> str | None:
            asked = [question_of(AskedPause(run_id=run.run_id, pause=pause)) for pause in run.pauses]
            meant = [question for question in asked if to in (None, question.to)]
            reasons = [self._answered(question.state_token, answer, by) for question in meant]
            if not reasons:
                return "no open question" if to is None else f"no open question to {to!r}"
            return next((why for why in reasons if why is not None), None)

        return self._each("bulk_answer", where, act)

    def delete(self, where: RunFilter, *, cancel_first: bool) -> BulkReport:
        """Delete the runs of a filter without an owner. Blocks."""
        count = _Count(self.dry_run)
        for page in self._pages("bulk_delete", where, count):
            if cancel_first:
                self._end([run for run, _ in page if not has_ended(run.status)])
            runs = [run.run_id for run, _ in page]
            deleted = delete_batch(self.store, runs)
            count.bytes += deleted.bytes
            left = {run.run_id for run in self.store.standing(runs)} if deleted.runs < len(runs) else set()
            for run_id in runs:
                count.note(run_id, "running" if run_id in left else None)
        if count.done and hasattr(self.store, "trim"):
            self.store.trim()
        return count.report()

    def _each(self, subject: str, where: RunFilter, act: Act) -> BulkReport:
        count = _Count(self.dry_run)
        for page in self._pages(subject, where, count):
            for run, now in page:
                count.note(run.run_id, self._reason(act, run, now))
        return count.report()

    def _pages(self, subject: str, where: RunFilter, count: _Count) -> Iterator[list[Matched]]:
        """Yield the runs to act on; a dry run only counts them."""
        checked_where(where, subject=subject)
        required(self.store, "scan", subject=subject)
        found = (each for page in matching_runs(self.store, where, within_s=self.within_s) for each in page)
        limited = itertools.islice(found, self.limit)
        while page := list(itertools.islice(limited, 500)):
            count.matched += len(page)
            if not self.dry_run:
                yield page

    def _reason(self, act: Act, run: StoredRun, now: StateInfo) -> str | None:
        try:
            return act(run, now)
        except (RunNotFound, NotPaused, NotRetryable, RunLeased, RunExists, LeaseLost, CorruptRecord) as error:
            return str(error)  # of this run; an error of the store ends the action

    def _answered(self, token: str, answer: object, by: str | None) -> str | None:
        try:
            give_answer(self.store, token, answer, by=by)
        except (InvalidAnswer, AlreadyAnswered, NotPaused) as error:
            return str(error)
        return None

    def _end(self, runs: Sequence[StoredRun]) -> None:
        """Cancel open runs without compensation; wait for their owners."""
        for run in runs:
            try:
                cancel(self.store, run.run_id, "deleted", undo=False)
            except (NotPaused, RunNotFound):
                continue  # it has ended meanwhile
        waiting, deadline = [run.run_id for run in runs], time.monotonic() + ENDING_S
        while waiting and time.monotonic() < deadline:
            waiting = [run.run_id for run in self.store.standing(waiting) if run.leased]
            if waiting:
                time.sleep(_POLL_S)


def checked_limit(limit: int | None, *, subject: str) -> int | None:
    """Return a limit of a bulk action; refuse numbers below 1."""
    if limit is not None and not is_count(limit):
        raise ValueError(f"{subject}: limit must be a number of at least 1 or None, not {brief_repr(limit)}")
    return limit
