"""Parts of a client: reads, labels, totals and bulk actions.

Sections:

- Refusal of methods that would block an event loop.
- Reads: lists, states, records and watches of runs.
- Schedules, rate limits and evaluations of a store.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, get_args

import attrs

from .._bridge.host_loop import IN_HOOK, running_loop
from .._core.labels import PARENT, checked_filter, checked_labels, checked_names
from .._core.outcomes import PipelineResult, RunId, TerminalOutcome
from .._core.policies.approval_policy import JsonSchema, QuestionKind
from .._core.records.records import (
    ListOrder,
    OutboxStatus,
    QuestionOrder,
    QuestionQuery,
    Record,
    RunQuery,
    StoredRun,
    StoredStatus,
    has_ended,
)
from .._core.records.run_state import RunState
from .._core.step_paths import StepPath
from .._core.validators import checked_seconds
from .._core.views.record_summaries import RecordSummary
from .._durable.operations.bulk_actions import (
    BulkAction,
    BulkReport,
    Moment,
    RunFilter,
    checked_limit,
    checked_states,
    checked_status,
)
from .._durable.operations.run_totals import TotalsRow, totals
from .._durable.pause_lookup import Question, open_questions, question_at
from .._durable.pipeline_diff import ResumeMode
from .._durable.run_admission import projected, whole_record
from .._durable.watch_poller import RunWatch, wait_until
from .._fleet.health_probe import KNOWN_FOR_S
from ..errors import DeclarationError, LoopAlreadyRunning
from ..stores._memory_store import MemoryStore
from ..stores._store_factory import open_store
from ..stores._store_port import Store, required
from ..telemetry._redaction.redactor import redacted
from .run_info import (
    QueueInfo,
    RunInfo,
    RunStateName,
    RunsWatch,
    WebhookInfo,
    WorkerInfo,
    filtered_runs,
    found_runs,
    info_of,
    queue_infos,
    run_infos,
    webhook_info,
    worker_infos,
)
from .wiring import settings_of, telemetry_of

if TYPE_CHECKING:
    from .._core.event_kinds import EventKind
    from .._core.settings_model import Settings
    from ..telemetry._null_telemetry import NullTelemetry
    from ..telemetry._sinks import Telemetry

# --- Refusal of methods that would block an event loop ------------------------------------------------------------


C = TypeVar("C", bound="StoreClient")
P = ParamSpec("P")
T = TypeVar("T")
Choice = TypeVar("Choice")


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


# --- Reads of a client --------------------------------------------------------------------------------------------


class ReadClient(StoreClient):
    """Lists, states, records and watches of runs."""

    @blocking
    def list(
        self,
        status: StoredStatus | None = None,
        *,
        state: RunStateName | Sequence[RunStateName] | None = None,
        labels: Mapping[str, str | None] | None = None,
        pipeline: str | None = None,
        queue: str | None = None,
        created_after: float | None = None,
        created_before: float | None = None,
        updated_after: float | None = None,
        updated_before: float | None = None,
        abandoned: bool = False,
        order: ListOrder = "updated",
        limit: int | None = None,
        cursor: str | None = None,
        search: str | None = None,
        parent: str | None = None,
        where: RunFilter | None = None,
    ) -> Sequence[RunInfo]:
        """Return the matching runs, latest change first; times are epoch seconds.

        Args:
            status: stored status.
            state: derived state, or several.
            labels: labels that a run must have, all of them; `None` matches any value.
            pipeline: name of the pipeline.
            queue: name of the queue.
            created_after: time of creation.
            created_before: time of creation.
            updated_after: time of the last change.
            updated_before: time of the last change.
            abandoned: whether only runs of dead owners are listed.
            order: `"created"` lists the newest run first, at the same cost in a store of any size; no run moves between
                its pages.
            limit: most runs.
            cursor: cursor of the last run, for the next page of the same order.
            search: beginning of an id, or else a part of a pipeline's name.
            parent: id of an evaluation, whose cases are listed.
            where: a filter, in place of the others.

        Raises:
            DeclarationError: an argument is not valid, or the store cannot answer it.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", labels={"tenant": "7"})
            [info] = RunClient("sqlite:///runs.db").list(labels={"tenant": "7"}, order="created")
            assert info.status == "completed"
            ```
        """
        query = RunQuery(
            status=None if status is None else checked_status(status),
            pipeline=pipeline,
            queue=queue,
            created_after=created_after,
            created_before=created_before,
            updated_after=updated_after,
            updated_before=updated_before,
            abandoned=abandoned,
            order=_checked_choice("list: order", order, get_args(ListOrder)),
            limit=limit,
            cursor=cursor,
            search=search,
            labels=(*checked_filter(labels), *(() if parent is None else ((PARENT, parent),))),
        )
        states = None if state is None else checked_states(state)
        _check_store(self._store, query)
        if where is None:
            return [info_of(*each) for each in found_runs(self._store, query, states)]
        if states is not None or query != RunQuery(order=query.order, limit=limit, cursor=cursor):
            raise DeclarationError("list: give all conditions in `where`, or none of them")
        return [info_of(*each) for each in filtered_runs(self._store, where, order, limit, cursor)]

    @blocking
    def get(self, run_id: str) -> RunInfo:
        """Return one run.

        Args:
            run_id: id of the run.

        Raises:
            RunNotFound: there is no such run.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")
            assert RunClient("sqlite:///runs.db").get("ada-1").state == "completed"
            ```
        """
        return run_infos(self._store, [self._store.get(RunId(run_id))])[0]

    @blocking
    def queues(self) -> Sequence[QueueInfo]:
        """Return the queues with live workers or waiting runs, by name."""
        return queue_infos(self._store)

    @blocking
    def outcomes(self, run_id: str) -> dict[StepPath, TerminalOutcome]:
        """Return the steps' outcomes by path, in order of their end.

        Args:
            run_id: id of the run.
        """
        found = self.state(run_id).outcomes
        return {path: attrs.evolve(outcome, path=path) for path, outcome in found.items()}

    @blocking
    def state(self, run_id: str) -> RunState:
        """Return the present state of the run.

        A value of a class unknown to this process is plain data: its name under `type`, and its fields under `value`,
        next to the tag `$` of stored data.

        Args:
            run_id: id of the run.

        Raises:
            RunNotFound: there is no such run.
            CorruptRecord: a record cannot be read.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")
            assert RunClient("sqlite:///runs.db").state("ada-1").output == "ADA"
            ```
        """
        return projected(self._store, RunId(run_id))

    @blocking
    def state_at(self, run_id: str, seq: int) -> RunState:
        """Return the state of the run at its record number `seq`.

        Args:
            run_id: id of the run.
            seq: number of the record.
        """
        return projected(self._store, RunId(run_id), up_to=seq)

    @blocking
    def records(self, run_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[RecordSummary]:
        """Return record summaries after a record, up to a limit.

        Args:
            run_id: id of the run.
            after: number of the record before the first one.
            limit: most records.

        Raises:
            RunNotFound: there is no such run.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")
            assert [record.kind for record in RunClient("sqlite:///runs.db").records("ada-1")][0] == "admitted"
            ```
        """
        required(self._store, "scan", subject="reading records without their bodies")
        return self._store.scan(RunId(run_id), after, limit)

    @blocking
    def record(self, run_id: str, seq: int) -> Record:
        """Return one record with its body; raise `RunNotFound` if there is none.

        Args:
            run_id: id of the run.
            seq: number of the record.
        """
        required(self._store, "record", subject="reading one record")
        return whole_record(self._store, RunId(run_id), seq)

    def watch(self, run_id: str, *, after: int = 0, texts: bool = False, reconnect_s: float = 60.0) -> RunWatch:
        """Watch the run in any process: `async for record in client.watch(run_id)`.

        It continues with new records, half a second behind at most, until the run has ended. On trio and asyncio; all
        watches share one query.

        Args:
            run_id: id of the run.
            after: number of the record before the first one.
            texts: whether `new_texts()` returns the live text of open steps.
            reconnect_s: time of failures of the store after which its error is raised.

        Raises:
            RunNotFound: there is no such run.
            StoreError: the store failed for `reconnect_s` seconds.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")

            async def main():
                return [record.kind async for record in RunClient("sqlite:///runs.db").watch("ada-1")]

            assert trio.run(main)[-1] == "ended"
            ```
        """
        return RunWatch(self._store, RunId(run_id), after=after, texts=texts, reconnect_s=reconnect_s)

    def watch_runs(self, where: RunFilter | None = None, every_s: float = 1.0) -> RunsWatch:
        """Watch many runs: `async for info in client.watch_runs(where)`.

        It begins with all open runs of the filter. Then it yields a run when its state, its number of questions or of
        retries has changed, also when it has ended or left the states of the filter. The open runs are read every
        `every_s` seconds.

        Args:
            where: runs to watch; by default all.
            every_s: seconds between two reads of the store.
        """
        seconds = checked_seconds(every_s, subject="watch_runs: every_s")
        if where is not None and not isinstance(where, RunFilter):
            raise DeclarationError(f"watch_runs needs a RunFilter(…), not {where!r:.100}")
        wanted = RunFilter() if where is None else where
        return RunsWatch(self._store, wanted, seconds)

    @blocking
    def wait(self, run_id: str, timeout: float | None = None) -> PipelineResult:
        """Block until the run has ended or paused; return its result.

        Args:
            run_id: id of the run.
            timeout: most seconds.

        Raises:
            TimeoutError: the run has not ended; the error has its state and `info`.
            RunNotFound: there is no such run.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")
            assert RunClient("sqlite:///runs.db").wait("ada-1", timeout=5).output == "ADA"
            ```
        """
        try:
            run = wait_until(self._store, RunId(run_id), is_at_rest, timeout=timeout)
        except TimeoutError:
            raise self.not_ended(run_id, timeout) from None
        return stored_result(run, self.state(run_id))

    def not_ended(self, run_id: str, timeout: float | None) -> TimeoutError:
        """Return the timeout error of a wait, with `info`."""
        info = self.get(run_id)
        why = "" if info.reason is None else f" ({info.reason})"
        since_s = max(0.0, time.time() - info.since)
        error = TimeoutError(
            f"run {run_id!r} has not ended within {timeout:g} s: it is {info.state} since {since_s:.0f} s{why}"
        )
        error.info = info  # type: ignore[attr-defined]
        return error

    @blocking
    def questions(
        self,
        *,
        to: str | None = None,
        labels: Mapping[str, str | None] | None = None,
        run_id: str | None = None,
        pipeline: str | None = None,
        kind: QuestionKind | None = None,
        due_before: float | None = None,
        order: QuestionOrder = "newest",
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Sequence[Question]:
        """Return the matching open questions, newest first; also of running runs.

        Args:
            to: addressee.
            labels: labels of the run, all of them; `None` matches any value.
            run_id: id of the run.
            pipeline: name of the pipeline.
            kind: `input`, `approval`, `tool`, `limit`, `loop` or `uncertain`.
            due_before: deadline, epoch seconds.
            order: `"due"` lists the nearest deadline first, and questions without a deadline last.
            limit: most questions.
            cursor: cursor of the last question, for the next page; new questions do not shift it.

        Raises:
            DeclarationError: an argument is not valid.

        Example:
            ```python
            Flujo(Step.approval("pay", "Pay?", to="ada"), store="sqlite:///runs.db").run(900)
            [question] = RunClient("sqlite:///runs.db").questions(to="ada")
            assert question.message == "Pay?"
            ```
        """
        query = QuestionQuery(
            to=to,
            labels=checked_filter(labels),
            run_id=None if run_id is None else RunId(run_id),
            pipeline=pipeline,
            kind=_checked_choice("questions: kind", kind, get_args(QuestionKind)),
            due_before=due_before,
            order=_checked_choice("questions: order", order, get_args(QuestionOrder)),
            limit=limit,
            cursor=cursor,
        )
        return open_questions(self._store, query)

    @blocking
    def prompts(self, *, limit: int | None = None, cursor: str | None = None) -> Sequence[Question]:
        """Return the open questions, newest first: `questions` without a filter.

        Args:
            limit: most questions.
            cursor: `cursor` of the last question of the page before.
        """
        return open_questions(self._store, QuestionQuery(limit=limit, cursor=cursor))

    @blocking
    def workers(self) -> Sequence[WorkerInfo]:
        """Return the live workers by name: those with a recent status report."""
        return worker_infos(self._store)

    @blocking
    def webhooks(
        self, *, status: OutboxStatus | None = None, run_id: str | None = None, limit: int | None = None
    ) -> Sequence[WebhookInfo]:
        """Return the messages to webhooks, newest first: pending, delivered, failed.

        Args:
            status: only messages with this status.
            run_id: only messages of this run.
            limit: most messages.
        """
        required(self._store, "messages", subject="a list of webhook messages", port="RunOutbox")
        wanted = _checked_choice("webhooks: status", status, get_args(OutboxStatus))
        named = None if run_id is None else RunId(run_id)
        return [webhook_info(each) for each in self._store.messages(status=wanted, run_id=named, limit=limit)]

    @blocking
    def schema_of(self, token: str) -> JsonSchema:
        """Return the JSON Schema of a question's answer; empty for any.

        Args:
            token: `state_token` of the question.
        """
        return question_at(self._store, token).schema


def _check_store(store: Store, query: RunQuery) -> None:
    """Refuse a listing that a custom store cannot answer."""
    if query.cursor is not None or query.search is not None:
        required(store, "scan", subject="a listing with `cursor` or `search`")
    if query.labels:
        required(store, "set_labels", subject="a listing by labels", port="RunLabels")


def _checked_choice(subject: str, given: Choice, known: Sequence[Choice]) -> Choice:
    """Return a valid choice or None."""
    if given is not None and given not in known:
        raise DeclarationError(f"{subject} must be {' or '.join(map(repr, known))}, not {given!r}")
    return given


def is_at_rest(run: StoredRun) -> bool:
    """Return whether the run waits for an external action."""
    return has_ended(run.status) or (run.status == "paused" and bool(run.pauses))


def stored_result(run: StoredRun, state: RunState) -> PipelineResult:
    """Return the result of a run from its stored state."""
    assert run.status != "running"
    question = run.pauses[0] if run.pauses else None
    return PipelineResult(
        run_id=run.run_id,
        status=run.status,
        output=state.output if run.status == "completed" else None,
        step_history=state.results,
        total_cost_usd=state.usage.cost_usd,
        total_tokens=state.usage.tokens,
        final_context=state.context,
        feedback=state.feedback,
        state_token=None if question is None else question.token,
        error=state.error if run.status == "failed" else None,
        labels=run.labels,
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

        Args:
            run_id: id of the run.
            labels: labels to add or change.
            remove: names of labels to remove.
        """
        required(self._store, "set_labels", subject="set_labels", port="RunLabels")
        gone = checked_names(remove, subject="remove")
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

        Ended runs count in the period of their end, open ones in that of their creation. Percentiles are exact; deleted
        runs are not counted.

        Args:
            by: at most three of `pipeline`, `day`, `hour`, `status`, `queue` and `label:<name>`.
            since: first time, as in `RunFilter`.
            until: last time.
            where: filter of the runs.
            zone: time zone of days and hours.

        Raises:
            DeclarationError: a group or a time is not valid.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")
            [row] = RunClient("sqlite:///runs.db").totals(("pipeline",), since="7d")
            assert (row.key, row.runs) == ({"pipeline": "greet"}, 1)
            ```
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
        an interruption.

        Args:
            where: runs.
            reason: reason that each run records.
            undo: whether completed steps are compensated.
            dry_run: whether to count the runs only.
            limit: most runs to act on.
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
        """Retry all failed and aborted runs of a filter, as `retry` does.

        Args:
            where: runs.
            mode: handling of a changed pipeline, as in `resume`.
            from_start: whether completed steps run again.
            queue: queue of the retries; by default `default`.
            reason: reason that each run records.
            dry_run: whether to count the runs only.
            limit: most runs to act on.
        """
        facts, named = None if reason is None else redacted(reason), queue or "default"
        bulk = self._bulk(dry_run, limit)
        return bulk.retry(where, mode=mode, from_start=from_start, queue=named, reason=facts)

    @blocking
    def bulk_delete(
        self, where: RunFilter, *, cancel_first: bool = False, dry_run: bool = False, limit: int | None = None
    ) -> BulkReport:
        """Delete all runs of a filter that have no owner.

        With `cancel_first`, open runs are cancelled without compensation before, also those that have an owner.

        Args:
            where: runs.
            cancel_first: whether open runs are cancelled and deleted, too.
            dry_run: whether to count the runs only.
            limit: most runs to act on.
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
        """Answer the questions of a filter's runs that accept the answer.

        Args:
            where: runs.
            answer: answer.
            to: addressee of the questions; by default all questions.
            by: name of the person.
            dry_run: whether to count the questions only.
            limit: most questions to answer.
        """
        return self._bulk(dry_run, limit).answer(where, answer, to=to, by=by)

    def _bulk(self, dry_run: bool, limit: int | None) -> BulkAction:
        most = checked_limit(limit, subject="a bulk action")
        return BulkAction(store=self._store, within_s=KNOWN_FOR_S, dry_run=dry_run, limit=most)
