"""Operations of a client on many runs: labels, totals and bulk actions.

Sections:

- Refusal of methods that would block an event loop.
- Schedules, rate limits and evaluations of a store.
"""

from __future__ import annotations

import datetime as dt
import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from .. import _fleet
from .._bridge.host_loop import IN_HOOK, running_loop
from .._core.labels import checked_labels, checked_names
from .._core.outcomes import RunId
from .._core.policies.rate_limits import RateInfo
from .._core.policies.shared_budgets import BudgetInfo, budget_infos
from .._durable.operations.bulk_actions import BulkAction, BulkReport, Moment, RunFilter, checked_limit
from .._durable.operations.run_totals import TotalsRow, totals
from .._durable.pipeline_diff import ResumeMode
from .._fleet.health_probe import KNOWN_FOR_S
from ..errors import LoopAlreadyRunning
from ..stores._memory_store import MemoryStore
from ..stores._store_factory import open_store
from ..stores._store_port import Store, required
from ..telemetry._redaction.redactor import redacted
from .wiring import evaluations, settings_of, telemetry_of

if TYPE_CHECKING:
    from .._core.event_kinds import EventKind
    from .._core.settings_model import Settings
    from .._fleet.schedules import ScheduleInfo
    from ..telemetry._null_telemetry import NullTelemetry
    from ..telemetry._sinks import Telemetry
    from .evaluation.evaluation_results import Evaluation

# --- Refusal of methods that would block an event loop ------------------------------------------------------------


C = TypeVar("C", bound="StoreClient")
P = ParamSpec("P")
T = TypeVar("T")


def blocking(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """Refuse a method in a thread whose event loop it would block."""

    @functools.wraps(method)
    def call(client: C, /, *given: P.args, **named: P.kwargs) -> T:
        client._refuse_inside_loop(method.__name__)
        return method(client, *given, **named)

    return call


class StoreClient:
    """A store, for methods that block."""

    def __init__(
        self,
        store: Store | str,
        *,
        allow_blocking: bool = False,
        settings: Settings | Mapping[str, object] | None = None,
    ) -> None:
        self._store = open_store(store, reader=True)
        self._allow_blocking = allow_blocking
        self._given = settings
        self._telemetry: Telemetry | NullTelemetry | None = None

    def _emit(self, kind: EventKind, **facts: object) -> None:
        """Emit an event to the sinks of the configured telemetry."""
        if self._telemetry is None:
            self._telemetry = telemetry_of(settings_of(self._given), None, None)
        self._telemetry.report(kind, at=time.monotonic(), **facts)

    def _refuse_inside_loop(self, name: str) -> None:
        in_memory = isinstance(self._store, MemoryStore) and name != "wait"
        if self._allow_blocking or in_memory or running_loop() is None or IN_HOOK.get():
            return
        raise LoopAlreadyRunning(
            f"RunClient.{name} blocks this event loop; use AsyncRunClient(store), or call it in a thread"
        )


# --- Operations of a client on many runs --------------------------------------------------------------------------


class BulkClient(StoreClient):
    """Labels, totals and bulk actions of a client."""

    @blocking
    def set_labels(
        self, run_id: str, labels: Mapping[str, str] | None = None, *, remove: Iterable[str] = ()
    ) -> Mapping[str, str]:
        """Add, change or remove labels of a run; return all its labels.

        It needs no lease and writes no record, so it works in every state of the run. The steps of a running run read
        the labels of its claim. Labels are stored and exported as they are: they hold no secrets.
        """
        required(self._store, "set_labels", what="set_labels", port="RunLabels")
        gone = checked_names(remove, what="remove")
        return self._store.set_labels(RunId(run_id), checked_labels(labels), remove=gone)

    @blocking
    def totals(
        self,
        by: Sequence[str] = ("pipeline", "day"),
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        where: RunFilter | None = None,
        zone: str = "UTC",
    ) -> Sequence[TotalsRow]:
        """Return counts, percentiles, tokens and cost of runs by group.

        `by` is any of `pipeline`, `day`, `hour`, `status`, `queue` and `label:<name>`, at most three. Ended runs count
        in the period of their end, open ones in that of their creation. Times are those of `RunFilter`, days and hours
        those of the time `zone`. Percentiles are exact; deleted runs are not counted.
        """
        return totals(self._store, by, since=since, until=until, where=where, zone=zone)

    @blocking
    def bulk_cancel(
        self,
        where: RunFilter,
        reason: str = "cancelled from outside",
        *,
        undo: bool = True,
        dry_run: bool = False,
        limit: int | None = None,
    ) -> BulkReport:
        """Cancel all open runs of a filter, as `cancel` does.

        Bulk actions fix their set of runs at the start, skip runs that they do not apply to, and can be repeated after
        an interruption. `dry_run` counts the matching runs, `limit` is the most that are acted on.
        """
        return self._bulk(dry_run, limit).cancel(where, reason=redacted(reason), undo=undo)

    @blocking
    def bulk_retry(
        self,
        where: RunFilter,
        *,
        mode: ResumeMode = "strict",
        from_start: bool = False,
        queue: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
    ) -> BulkReport:
        """Retry all failed and aborted runs of a filter, as `retry` does."""
        told, named = None if reason is None else redacted(reason), queue or "default"
        bulk = self._bulk(dry_run, limit)
        return bulk.retry(where, mode=mode, from_start=from_start, queue=named, reason=told)

    @blocking
    def bulk_delete(
        self, where: RunFilter, *, cancel_first: bool = False, dry_run: bool = False, limit: int | None = None
    ) -> BulkReport:
        """Delete all runs of a filter that have no owner.

        With `cancel_first`, open runs are cancelled without compensation before, also those that have an owner.
        """
        return self._bulk(dry_run, limit).delete(where, cancel_first=cancel_first)

    @blocking
    def bulk_answer(
        self,
        where: RunFilter,
        answer: object,
        *,
        to: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
    ) -> BulkReport:
        """Answer the questions of a filter's runs that accept the answer."""
        return self._bulk(dry_run, limit).answer(where, answer, to=to, by=by)

    def _bulk(self, dry_run: bool, limit: int | None) -> BulkAction:
        most = checked_limit(limit, what="a bulk action")
        return BulkAction(store=self._store, within_s=KNOWN_FOR_S, dry_run=dry_run, limit=most)


# --- Schedules, rate limits and evaluations of a store ------------------------------------------------------------


class LimitsClient(StoreClient):
    """Schedules, rate limits and evaluations of a client."""

    @blocking
    def schedules(self, pipeline: str | None = None) -> Sequence[ScheduleInfo]:
        """Return the schedules of a pipeline, or all, by name."""
        return _fleet.schedule_infos(self._store, pipeline)

    @blocking
    def schedule(self, name: str) -> ScheduleInfo:
        """Return one schedule; raise `StoreError` if there is none."""
        return _fleet.schedule_info(self._store, name)

    @blocking
    def pause_schedule(self, name: str) -> None:
        """Pause a schedule; its instants until `resume_schedule` have no runs."""
        _fleet.pause_schedule(self._store, name)

    @blocking
    def resume_schedule(self, name: str) -> None:
        """Resume a paused schedule from now."""
        _fleet.resume_schedule(self._store, name)

    @blocking
    def delete_schedule(self, name: str) -> None:
        """Delete a schedule; its runs stay."""
        _fleet.delete_schedule(self._store, name)

    @blocking
    def trigger(self, name: str) -> str:
        """Request a run of a schedule now; return its id.

        The next worker of the pipeline creates the run, also of a paused schedule.
        """
        return _fleet.trigger_schedule(self._store, name)

    @blocking
    def backfill(
        self, name: str, start: dt.datetime | float, end: dt.datetime | float, *, limit: int = 1000
    ) -> Sequence[str]:
        """Request the missing runs of `[start, end)`; return their ids.

        The next worker of the pipeline creates them, oldest first. More than `limit` instants: `ValueError`.
        """
        return _fleet.backfill_schedule(self._store, name, start, end, limit=limit)

    @blocking
    def rates(self) -> Sequence[RateInfo]:
        """Return the rate limits in use, by name and resource."""
        required(self._store, "rates", what="reading rate limits")
        return self._store.rates()

    @blocking
    def budgets(self, name: str | None = None, *, scope: str | None = None) -> Sequence[BudgetInfo]:
        """Return the budgets of windows, by name and scope value."""
        required(self._store, "window_budgets", what="reading budgets")
        return budget_infos(self._store.window_budgets(), name, scope)

    @blocking
    def clear_cache(self, pipeline: str | None = None, step: str | None = None) -> int:
        """Delete cached outputs of a pipeline or step; return their number."""
        required(self._store, "clear_cache", what="clearing the cache of steps")
        return self._store.clear_cache(pipeline, step)

    @blocking
    def evaluation(self, run_id: str) -> Evaluation:
        """Return an evaluation, also while it runs; `RunNotFound` if it is none.

        Neither its pipeline nor pydantic-evals is needed.
        """
        found: Evaluation = evaluations().stored_evaluation(self._store, run_id)
        return found
