"""`RunClient`: stored runs, seen and handled from outside: listed, answered, cancelled, forgotten."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, get_args
from urllib.parse import quote

import attrs

from .._core.labels import PARENT, checked_filter
from .._core.outcomes import PipelineResult, RunId, TerminalOutcome
from .._core.policies.approval_policy import JsonSchema, QuestionKind
from .._core.policies.selection import DEFAULT_CATEGORY, Belief, Selection
from .._core.records.records import (
    ENDED,
    WOKEN,
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
from .._core.records.sent_events import EventInfo as EventInfo
from .._core.records.sent_events import EventStatus, SteerWhen
from .._core.records.sent_events import Sent as Sent
from .._core.records.sent_events import Steered as Steered
from .._core.settings_model import RetentionSettings, checked_retention
from .._core.step_paths import StepPath
from .._core.validators import checked_seconds
from .._core.views.record_summaries import RecordSummary
from .._durable.cancel_requests import cancel
from .._durable.forks import SAME_INPUT, ResumeMode, fork, retry
from .._durable.operations import run_files
from .._durable.operations.bulk_actions import BulkReport as BulkReport
from .._durable.operations.bulk_actions import RunFilter as RunFilter
from .._durable.operations.bulk_actions import checked_states, checked_status, checked_where, matching_runs
from .._durable.operations.run_files import ExportReport as ExportReport
from .._durable.operations.run_files import IfExists, RunFile
from .._durable.operations.run_files import ImportReport as ImportReport
from .._durable.operations.run_totals import TotalsRow as TotalsRow
from .._durable.pause_lookup import Question as Question
from .._durable.pause_lookup import expire, give_answer, open_questions, question_at
from .._durable.pause_lookup import send as send_event
from .._durable.recorded_results import steer
from .._durable.retention import PruneReport as PruneReport
from .._durable.retention import delete_in_batches, pages_of, prune
from .._durable.run_admission import projected, whole_record
from .._durable.selection_rewards import choices_in, reward
from .._durable.watch_poller import RunWatch, required, wait_until, watchers
from .._fleet.health_probe import KNOWN_FOR_S
from ..errors import CorruptRecord, DeclarationError
from ..stores._store_port import Store
from ..telemetry._redaction.redactor import redacted
from .bulk_client import BulkClient, LimitsClient, blocking
from .run_info import QueueInfo as QueueInfo
from .run_info import RunInfo as RunInfo
from .run_info import (
    RunStateName,
    RunsWatch,
    filtered_runs,
    found_runs,
    info_of,
    queue_infos,
    run_infos,
    wait_of,
    webhook_info,
    worker_infos,
)
from .run_info import Wait as Wait
from .run_info import WebhookInfo as WebhookInfo
from .run_info import WorkerInfo as WorkerInfo
from .wiring import settings_of

if TYPE_CHECKING:
    from pydantic_ai.messages import UserContent


Prompt = Question
"""Earlier name of `Question`."""

P = ParamSpec("P")
T = TypeVar("T")
Choice = TypeVar("Choice")


class RunClient(BulkClient, LimitsClient):
    """Runs of a store, for synchronous code; otherwise use `AsyncRunClient`.

    A method that would block a running loop raises `LoopAlreadyRunning`; `allow_blocking=True` permits it. Hooks may
    block, and so may all methods but `wait` on a `MemoryStore`, which has no I/O.
    """

    # --- looking ---

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

        `order="created"` lists the newest run first, at the same cost in a store of any size; no run moves between its
        pages. A run matches `labels` if it has all of them; `None` matches any value. `where` replaces other filters.

        `search` finds runs whose id begins with a text, or else whose pipeline contains it. `cursor` of the
        last run requests the next page of the same order. `parent` lists the cases of an evaluation.
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
        """One run; `RunNotFound` if it is not there."""
        return run_infos(self._store, [self._store.get(RunId(run_id))])[0]

    @blocking
    def queues(self) -> Sequence[QueueInfo]:
        """Return the queues with live workers or waiting runs, by name."""
        return queue_infos(self._store)

    @blocking
    def outcomes(self, run_id: str) -> dict[StepPath, TerminalOutcome]:
        """Return the steps' outcomes by path, in order of their end."""
        found = self.state(run_id).outcomes
        return {path: attrs.evolve(outcome, path=path) for path, outcome in found.items()}

    @blocking
    def state(self, run_id: str) -> RunState:
        """Return the present state of the run.

        A value of a class unknown to this process is plain data: its name under `type`, and its fields under `value`,
        next to the tag `$` of stored data.
        """
        return projected(self._store, RunId(run_id))

    @blocking
    def state_at(self, run_id: str, seq: int) -> RunState:
        """Return the state of the run at its record number `seq`."""
        return projected(self._store, RunId(run_id), up_to=seq)

    @blocking
    def records(self, run_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[RecordSummary]:
        """Return record summaries after a record, up to a limit."""
        required(self._store, "scan", what="reading records without their bodies")
        return self._store.scan(RunId(run_id), after, limit)

    @blocking
    def record(self, run_id: str, seq: int) -> Record:
        """Return one record with its body; raise `RunNotFound` if there is none."""
        required(self._store, "record", what="reading one record")
        return whole_record(self._store, RunId(run_id), seq)

    def watch(self, run_id: str, *, after: int = 0, texts: bool = False, reconnect_s: float = 60.0) -> RunWatch:
        """Watch the run in any process: `async for record in client.watch(run_id)`.

        It begins after a record, the first by default, and continues with new ones, half a second behind at most, until
        the run has ended. On trio and asyncio; all watches share one query. With `texts`, its `new_texts()` returns the
        new live text of open steps, of this process or another.

        If the store fails, the watch retries with backoff and continues after its last record. It raises the
        `StoreError` after `reconnect_s` seconds of failures.
        """
        return RunWatch(self._store, RunId(run_id), after=after, texts=texts, reconnect_s=reconnect_s)

    def watch_runs(self, where: RunFilter | None = None, every_s: float = 1.0) -> RunsWatch:
        """Watch many runs: `async for info in client.watch_runs(where)`.

        It begins with all open runs of the filter. Then it yields a run when its state, its number of questions or of
        retries has changed, also when it has ended or left the states of the filter. The open runs are read every
        `every_s` seconds.
        """
        seconds = checked_seconds(every_s, what="watch_runs: every_s")
        if where is not None and not isinstance(where, RunFilter):
            raise DeclarationError(f"watch_runs needs a RunFilter(…), not {where!r:.100}")
        wanted = RunFilter() if where is None else where
        return RunsWatch(self._store, wanted, seconds)

    @blocking
    def wait(self, run_id: str, timeout: float | None = None) -> PipelineResult:
        """Block until the run has ended or paused; return its result.

        Raise `TimeoutError` after `timeout` seconds, `RunNotFound` if there is no such run.
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

        `to` is the addressee. All `labels` of the run must match; a value `None` matches every value. `order="due"`
        lists the nearest deadline first, and questions without a deadline last.

        `cursor`, that of the last question of one page, requests the next page of the same order; new questions do
        not shift it.
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
        """Return the open questions, newest first: `questions` without a filter."""
        return open_questions(self._store, QuestionQuery(limit=limit, cursor=cursor))

    @blocking
    def workers(self) -> Sequence[WorkerInfo]:
        """Return the live workers by name: those with a recent status report."""
        return worker_infos(self._store)

    @blocking
    def webhooks(
        self, *, status: OutboxStatus | None = None, run_id: str | None = None, limit: int | None = None
    ) -> Sequence[WebhookInfo]:
        """Return the messages to webhooks, newest first: pending, delivered, failed."""
        required(self._store, "messages", what="a list of webhook messages", port="RunOutbox")
        wanted = _checked_choice("webhooks: status", status, get_args(OutboxStatus))
        named = None if run_id is None else RunId(run_id)
        return [webhook_info(each) for each in self._store.messages(status=wanted, run_id=named, limit=limit)]

    @blocking
    def schema_of(self, token: str) -> JsonSchema:
        """Return the JSON Schema of a question's answer; empty for any."""
        return question_at(self._store, token).schema

    # --- handling ---

    @blocking
    def answer(self, token: str, answer: object, *, by: str | None = None) -> None:
        """Answer a pause once: it is validated, stored, and used on resume.

        `by` is stored with the answer; authorization belongs to the application. Raise `InvalidAnswer` if it does not
        fit, `AlreadyAnswered` after another answer, `NotPaused` if there is no pause.
        """
        give_answer(self._store, token, answer, by=by)
        watchers.poke(self._store)

    @blocking
    def retry_webhooks(self, ids: Sequence[str] | None = None) -> int:
        """Retry failed webhook messages now; return their number."""
        required(self._store, "retry_messages", what="retrying webhook messages", port="RunOutbox")
        return self._store.retry_messages(None if ids is None else list(ids))

    @blocking
    def reward(self, run_id: str, path: str, value: float) -> None:
        """Report a later selection's reward at `path`, 0 to 1, once.

        Raise `NoRewardDue` if it was reported already, if the selection has not ended, or if there is none.
        """
        reward(self._store, RunId(run_id), StepPath(path), value)

    @blocking
    def choices(self, run_id: str) -> dict[StepPath, Selection]:
        """Return a run's choices with their statistics, for off-policy evaluation."""
        return choices_in(self._store.read(RunId(run_id)))

    @blocking
    def beliefs(self, name: str, category: str = DEFAULT_CATEGORY) -> dict[str, Belief]:
        """Return each arm's statistics without prior, by name or step path."""
        return self._store.beliefs(name, category)

    @blocking
    def expire(self) -> Sequence[str]:
        """End every timed-out pause; return the ids of their runs.

        The pipelines apply `on_timeout` when the runs are resumed: call `flujo.recover()`.
        """
        return list(expire(self._store)) if hasattr(self._store, "expire") else []

    @blocking
    def send(
        self,
        event: str,
        *,
        key: str,
        data: Any = None,
        id: str | None = None,
        to: Literal["one", "all"] = "one",
        by: str | None = None,
    ) -> Sent:
        """Send an event to a waiting run, or buffer it.

        The oldest open wait with this name and key gets it, else the next one that opens within `events.retain_s`. With
        `to="all"` every open wait gets it, and none later. A second event with the same `id` changes nothing. Raise
        `InvalidEvent` if the data is no JSON, too large, or does not fit the wait.
        """
        settings = settings_of(self._given)().events
        sent = send_event(self._store, event, key=key, data=data, id=id, to=to, by=by, settings=settings)
        first, receivers = next(iter(sent.delivered_to), ""), len(sent.delivered_to)
        self._emit("event.sent", run_id=first, event=event, key=key, status=sent.status, receivers=receivers)
        watchers.poke(self._store)
        return sent

    @blocking
    def steer(
        self,
        run_id: str,
        message: str | Sequence[UserContent],
        *,
        path: str | None = None,
        when: SteerWhen = "next_turn",
        id: str | None = None,
        by: str | None = None,
    ) -> Steered:
        """Send a message to the agent of an open granular step.

        It is part of the agent's next request, after the tool results; with `when="when_done"`, of one more turn at the
        end. A second message with the same `id` changes nothing. Raise `NotSteerable`, `AmbiguousStep` or `TooLate`.
        """
        step = None if path is None else StepPath(path)
        steered = steer(self._store, RunId(run_id), message, path=step, when=when, id=id, by=by)
        watchers.poke(self._store)
        return steered

    @blocking
    def events(
        self,
        event: str | None = None,
        *,
        key: str | None = None,
        status: EventStatus | None = None,
        limit: int = 100,
    ) -> Sequence[EventInfo]:
        """Return stored events, latest first; they are kept for a while."""
        required(self._store, "events", what="a list of events", port="Events")
        return self._store.events(event=event, key=key, status=status, limit=limit)

    @blocking
    def waits(self, event: str | None = None, *, key: str | None = None) -> Sequence[Wait]:
        """Return the open waits for events, oldest first."""
        required(self._store, "waits", what="a list of waits", port="Events")
        return [wait_of(run_id, pause) for run_id, pause in self._store.waits(event=event, key=key)]

    @blocking
    def wake(self, run_id: str, path: str | None = None) -> bool:
        """End the sleeps or the start delay of a run now.

        With `path`, it ends the wait of one step. Waits for a rate or a budget end, too; waits for an event do not.
        Return whether it waited. Raise `RunNotFound` if there is no such run.
        """
        required(self._store, "wake", what="a run that wakes before its time")
        woken = self._store.wake(RunId(run_id), None if path is None else StepPath(path), body=WOKEN)
        watchers.poke(self._store)
        return woken

    @blocking
    def cancel(self, run_id: str, reason: str = "cancelled from outside", *, undo: bool = True) -> None:
        """Cancel a run for good; it ends as aborted.

        If its pipeline has compensations, its work is compensated: by its owner if it is running, else by a process
        with the pipeline (`recover()`, `flujo.cancel(run_id)`, a worker), and until then it can be neither answered nor
        resumed. With `undo=False` it ends at once without compensation.

        A running run ends within a second: a request is stored, its owner reads it and cancels the run's steps. Raise
        `NotPaused` if the run has ended, `RunNotFound` if it does not exist, `RunLeased` if it has an owner and the
        store cannot pass on requests.
        """
        cancel(self._store, RunId(run_id), redacted(reason), undo=undo)
        watchers.poke(self._store)

    @blocking
    def retry(
        self,
        run_id: str,
        *,
        from_start: bool = False,
        mode: ResumeMode = "strict",
        queue: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> None:
        """Continue a failed or aborted run from its failures; workers claim it.

        Steps that succeeded are not executed again, and usage continues. The run keeps its id and its records. A run
        without a queue gets `queue`, by default `"default"`. `mode` is that of `resume`, for the worker that claims it.
        `from_start` executes all steps again, with other idempotency keys; a run that undid steps needs it.
        `reason` and `by`, the name of the caller, are recorded.

        `NotRetryable` if the run has not ended or another caller was faster, `RunEnded` if it has completed.
        """
        retry(
            self._store,
            RunId(run_id),
            state=self.get(run_id).state,
            from_start=from_start,
            mode=mode,
            queue=queue or "default",
            reason=None if reason is None else redacted(reason),
            by=by,
        )
        watchers.poke(self._store)

    @blocking
    def fork(self, run_id: str, seq: int, *, input: object = SAME_INPUT, new_id: str | None = None) -> str:
        """Create a run from another one's records up to `seq`.

        The new run has no owner: `flujo.resume(new_id)` or `recover()` continues it without repeating completed steps.
        With `input`, it has another input: completed steps stay completed.
        """
        return fork(self._store, RunId(run_id), seq, input=input, new_id=None if new_id is None else RunId(new_id))

    @blocking
    def export(
        self,
        where: str | Sequence[str] | RunFilter,
        path: RunFile | None = None,
        *,
        file: RunFile | None = None,
        redact: bool | None = None,
        content: bool = True,
    ) -> Any:
        """Write runs to a file as JSON lines, with their remote steps.

        `where` is a run id, several, or a filter; `path` is a path or a binary file, also under the name `file`. The
        file replaces an older one when it is complete. The result is an `ExportReport`.

        The path of one run may have the suffix `.flujo.jsonl`, and has it by default. Such a file can be replayed, it
        passes the redactor unless `redact=False`, and the result is its path.

        With `redact`, bodies and messages pass the redactor. With `content=False`, inputs, outputs, contexts, messages
        and answers are replaced by type and size. Files of several runs can then not be imported.
        """
        path = file if path is None else path
        if isinstance(where, str) and content and (path is None or run_files.single_name(path) is not None):
            named = _default_file([where]) if path is None else os.fspath(cast("str", path))
            return run_files.export_run(self._store, RunId(where), named, redact=redact is not False)
        ids = self._exported(where)
        return run_files.export_runs(self._store, ids, path or _default_file(ids), redact=bool(redact), content=content)

    def _exported(self, where: str | Sequence[str] | RunFilter) -> Sequence[RunId]:
        """Return the runs of an export, in order of creation."""
        if not isinstance(where, RunFilter):
            return self._in_order([where] if isinstance(where, str) else list(where))
        pages = matching_runs(self._store, checked_where(where, what="export"), within_s=KNOWN_FOR_S)
        return run_files.by_creation(run for page in pages for run, _ in page)

    def _in_order(self, run_ids: Sequence[str]) -> Sequence[RunId]:
        if len(run_ids) < 2:
            return [RunId(run_id) for run_id in run_ids]
        return run_files.by_creation(self._store.get(RunId(run_id)) for run_id in run_ids)

    @blocking
    def import_runs(self, file: RunFile, *, if_exists: IfExists = "raise") -> ImportReport:
        """Create the runs of an exported file, each one atomically.

        They have no owner: open runs can be answered under their tokens, claimed and resumed. `RunExists` if an id is
        used, unless it is skipped. A cut, changed or redacted file is a `DeclarationError`, one of a newer version a
        `StoreVersionError`; then nothing is written.
        """
        report = run_files.import_runs(self._store, file, if_exists=if_exists)
        watchers.poke(self._store)
        return report

    @blocking
    def import_run(
        self,
        path: RunFile,
        new_id: str | None = None,
        *,
        max_bytes: int = 100_000_000,
        max_records: int = 1_000_000,
    ) -> str:
        """Create the only run of an exported file; return its id.

        `CorruptRecord` names the line of a cut or changed file; then nothing is written. 0 is no bound.
        """
        try:
            new = None if new_id is None else RunId(new_id)
            report = run_files.import_runs(
                self._store, path, new_id=new, only=True, max_bytes=max_bytes, max_records=max_records
            )
        except DeclarationError as error:
            where = "" if run_files.single_name(path) is not None else f" (in {_file_name(path)})"
            raise CorruptRecord(f"{error}{where}") from error
        watchers.poke(self._store)
        return report.run_ids[0]

    @blocking
    def delete(self, run_id: str) -> bool:
        """Delete an unowned run; return whether there was one."""
        return self._store.delete([RunId(run_id)]) > 0

    @blocking
    def prune(self, retention: RetentionSettings | Mapping[str, object], *, dry_run: bool = False) -> PruneReport:
        """Delete the ended runs that retention settings delete, `{"completed": "30d"}`.

        Workers do that by themselves if their settings have a retention. It can be repeated after an interruption.
        `dry_run` counts the runs and deletes nothing.
        """
        return prune(self._store, checked_retention(retention), dry_run=dry_run)

    @blocking
    def forget(self, *, older_than_s: float, statuses: tuple[StoredStatus, ...] = ENDED, dry_run: bool = False) -> int:
        """Delete runs without a change for that long; return their number.

        It deletes small batches, so that other writers continue, and can be repeated after an interruption.
        For an ended run the time of its end counts. `dry_run` returns the number of matching runs and deletes nothing.
        Events that no wait can consume any more are deleted, too, and budgets of windows that ended 400 days ago.
        """
        if not 0 <= older_than_s < math.inf:
            raise DeclarationError(f"forget: older_than_s must be a finite number of seconds, not {older_than_s!r}")
        before = time.time() - older_than_s
        queries = [RunQuery(status=checked_status(status), updated_before=before) for status in statuses]
        pages = ([run.run_id for run in page] for query in queries for page in pages_of(self._store, query))
        if dry_run:
            return sum(map(len, pages))
        for name in ("purge", "purge_budgets"):
            while hasattr(self._store, name) and getattr(self._store, name)():
                pass
        return delete_in_batches(self._store, pages)


def _default_file(run_ids: Sequence[str]) -> str:
    """Return the path of an exported run in the current directory."""
    if len(run_ids) != 1:
        raise DeclarationError("export: name a file for more than one run")
    return f"{quote(run_ids[0], safe=' ')}.flujo.jsonl"


def _file_name(file: RunFile) -> str:
    name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", "the file")
    return os.path.basename(os.fspath(name)) if isinstance(name, str | os.PathLike) else "the file"


def _check_store(store: Store, query: RunQuery) -> None:
    """Refuse a listing that a custom store cannot answer."""
    if query.cursor is not None or query.search is not None:
        required(store, "scan", what="a listing with `cursor` or `search`")
    if query.labels:
        required(store, "set_labels", what="a listing by labels", port="RunLabels")


def _checked_choice(what: str, given: Choice, known: Sequence[Choice]) -> Choice:
    """Return a valid choice or None."""
    if given is not None and given not in known:
        raise DeclarationError(f"{what} must be {' or '.join(map(repr, known))}, not {given!r}")
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
