"""`RunClient`: stored runs, seen and handled from outside: listed, answered, cancelled, forgotten."""

from __future__ import annotations

import datetime as dt
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast
from urllib.parse import quote

from .. import _fleet
from .._core.outcomes import RunId
from .._core.policies.rate_limits import RateInfo
from .._core.policies.selection import DEFAULT_CATEGORY, Belief, Selection
from .._core.policies.shared_budgets import BudgetInfo, budget_infos
from .._core.records.records import (
    ENDED,
    WOKEN,
    RunQuery,
    StoredStatus,
)
from .._core.records.sent_events import EventInfo as EventInfo
from .._core.records.sent_events import EventStatus, SteerWhen
from .._core.records.sent_events import Sent as Sent
from .._core.records.sent_events import Steered as Steered
from .._core.settings_model import RetentionSettings, checked_retention
from .._core.step_paths import StepPath
from .._durable.cancel_requests import cancel
from .._durable.forks import SAME_INPUT, ResumeMode, fork, retry
from .._durable.operations import run_files
from .._durable.operations.bulk_actions import BulkReport as BulkReport
from .._durable.operations.bulk_actions import RunFilter as RunFilter
from .._durable.operations.bulk_actions import checked_status, checked_where, matching_runs
from .._durable.operations.run_files import ExportReport as ExportReport
from .._durable.operations.run_files import IfExists, RunFile
from .._durable.operations.run_files import ImportReport as ImportReport
from .._durable.operations.run_totals import TotalsRow as TotalsRow
from .._durable.pause_lookup import Question as Question
from .._durable.pause_lookup import expire, give_answer
from .._durable.pause_lookup import send as send_event
from .._durable.recorded_results import steer
from .._durable.retention import PruneReport as PruneReport
from .._durable.retention import delete_in_batches, pages_of, prune
from .._durable.selection_rewards import choices_in, reward
from .._durable.watch_poller import required, watchers
from .._fleet.health_probe import KNOWN_FOR_S
from ..errors import CorruptRecord, DeclarationError
from ..telemetry._redaction.redactor import redacted
from .bulk_client import BulkClient, ReadClient, StoreClient, blocking
from .bulk_client import is_at_rest as is_at_rest
from .bulk_client import stored_result as stored_result
from .run_info import QueueInfo as QueueInfo
from .run_info import RunInfo as RunInfo
from .run_info import Wait as Wait
from .run_info import WebhookInfo as WebhookInfo
from .run_info import WorkerInfo as WorkerInfo
from .run_info import (
    wait_of,
)
from .wiring import evaluations, settings_of

if TYPE_CHECKING:
    from pydantic_ai.messages import UserContent

    from .._fleet.schedules import ScheduleInfo
    from .evaluation.evaluation_results import Evaluation


Prompt = Question
"""Earlier name of `Question`."""

P = ParamSpec("P")
T = TypeVar("T")


class LimitsClient(StoreClient):
    """Schedules, rate limits and evaluations of a client."""

    @blocking
    def schedules(self, pipeline: str | None = None) -> Sequence[ScheduleInfo]:
        """Return the schedules of a pipeline, or all, by name.

        Args:
            pipeline: name of the pipeline.
        """
        return _fleet.schedule_infos(self._store, pipeline)

    @blocking
    def schedule(self, name: str) -> ScheduleInfo:
        """Return one schedule; raise `StoreError` if there is none.

        Args:
            name: name of the schedule.
        """
        return _fleet.schedule_info(self._store, name)

    @blocking
    def pause_schedule(self, name: str) -> None:
        """Pause a schedule; its instants until `resume_schedule` have no runs.

        Args:
            name: name of the schedule.
        """
        _fleet.pause_schedule(self._store, name)

    @blocking
    def resume_schedule(self, name: str) -> None:
        """Resume a paused schedule from now.

        Args:
            name: name of the schedule.
        """
        _fleet.resume_schedule(self._store, name)

    @blocking
    def delete_schedule(self, name: str) -> None:
        """Delete a schedule; its runs stay.

        Args:
            name: name of the schedule.
        """
        _fleet.delete_schedule(self._store, name)

    @blocking
    def trigger(self, name: str) -> str:
        """Request a run of a schedule now; return its id.

        The next worker of the pipeline creates the run, also of a paused schedule.

        Args:
            name: name of the schedule.
        """
        return _fleet.trigger_schedule(self._store, name)

    @blocking
    def backfill(
        self, name: str, start: dt.datetime | float, end: dt.datetime | float, *, limit: int = 1000
    ) -> Sequence[str]:
        """Request the missing runs of `[start, end)`; return their ids.

        The next worker of the pipeline creates them, oldest first.

        Args:
            name: name of the schedule.
            start: first instant, included.
            end: last instant, excluded.
            limit: most instants; a longer range raises `ValueError`.
        """
        return _fleet.backfill_schedule(self._store, name, start, end, limit=limit)

    @blocking
    def rates(self) -> Sequence[RateInfo]:
        """Return the rate limits in use, by name and resource."""
        required(self._store, "rates", subject="reading rate limits")
        return self._store.rates()

    @blocking
    def budgets(self, name: str | None = None, *, scope: str | None = None) -> Sequence[BudgetInfo]:
        """Return the budgets of windows, by name and scope value.

        Args:
            name: only budgets of this name.
            scope: only budgets of this scope value.
        """
        required(self._store, "window_budgets", subject="reading budgets")
        return budget_infos(self._store.window_budgets(), name, scope)

    @blocking
    def clear_cache(self, pipeline: str | None = None, step: str | None = None) -> int:
        """Delete cached outputs of a pipeline or step; return their number.

        Args:
            pipeline: name of the pipeline; by default all.
            step: name of the step; by default all.
        """
        required(self._store, "clear_cache", subject="clearing the cache of steps")
        return self._store.clear_cache(pipeline, step)

    @blocking
    def evaluation(self, run_id: str) -> Evaluation:
        """Return an evaluation, also while it runs; `RunNotFound` if it is none.

        Neither its pipeline nor pydantic-evals is needed.

        Args:
            run_id: run of the evaluation.
        """
        found: Evaluation = evaluations().stored_evaluation(self._store, run_id)
        return found


class RunClient(ReadClient, BulkClient, LimitsClient):
    """Runs of a store, for synchronous code; otherwise use `AsyncRunClient`.

    Args:
        store: a store or its URL. It is not migrated.
        allow_blocking: whether methods may block a running event loop.
        settings: settings of telemetry, for `send`.

    Raises:
        LoopAlreadyRunning: a method would block a running loop. Hooks may block, and so may all methods but `wait` on a
            `MemoryStore`, which has no I/O.
        StoreVersionError: the schema of the database is of another release.

    Example:
        ```python
        Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")
        assert [info.run_id for info in RunClient("sqlite:///runs.db").list("completed")] == ["ada-1"]
        ```
    """

    @blocking
    def answer(self, token: str, answer: object, *, by: str | None = None) -> None:
        """Answer a pause once: it is validated, stored, and used on resume.

        Args:
            token: `state_token` of the question.
            answer: a value that fits the `schema` of the question.
            by: name of the person; authorization belongs to the application.

        Raises:
            InvalidAnswer: the answer does not fit; the question stays open.
            AlreadyAnswered: another answer was stored.
            Expired: the deadline has passed.
            NotPaused: there is no such pause.

        Example:
            ```python
            flujo = Flujo(Step.approval("pay", "Pay?"), store="sqlite:///runs.db")
            token = flujo.run(900, run_id="invoice").state_token
            RunClient("sqlite:///runs.db").answer(token, "approve", by="ada")
            assert flujo.resume("invoice").status == "completed"
            ```
        """
        give_answer(self._store, token, answer, by=by)
        watchers.wake(self._store)

    @blocking
    def retry_webhooks(self, ids: Sequence[str] | None = None) -> int:
        """Retry failed webhook messages now; return their number.

        Args:
            ids: messages; by default all failed ones.
        """
        required(self._store, "retry_messages", subject="retrying webhook messages", port="RunOutbox")
        return self._store.retry_messages(None if ids is None else list(ids))

    @blocking
    def reward(self, run_id: str, path: str, value: float) -> None:
        """Report a later selection's reward at `path`, 0 to 1, once.

        Raise `NoRewardDue` if it was reported already, if the selection has not ended, or if there is none.

        Args:
            run_id: id of the run.
            path: path of the selecting step.
            value: reward, 0 to 1.
        """
        reward(self._store, RunId(run_id), StepPath(path), value)

    @blocking
    def choices(self, run_id: str) -> dict[StepPath, Selection]:
        """Return a run's choices with their statistics, for off-policy evaluation.

        Args:
            run_id: id of the run.
        """
        return choices_in(self._store.read(RunId(run_id)))

    @blocking
    def beliefs(self, name: str, category: str = DEFAULT_CATEGORY) -> dict[str, Belief]:
        """Return each arm's statistics without prior, by name or step path.

        Args:
            name: name of the selection, or the path of its step.
            category: category of the data.
        """
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

        Args:
            event: name of the event.
            key: key of the event.
            data: JSON data.
            id: id of the event; a second event with the same id changes nothing.
            to: `"one"`: the oldest open wait, or the next within `events.retain_s`; `"all"`: every open wait.
            by: name of the sender, recorded.

        Raises:
            InvalidEvent: the data is no JSON, too large, or does not fit the wait.

        Example:
            ```python
            flujo = Flujo(Step.wait_for("paid", "payment"), store="sqlite:///runs.db")
            flujo.run("order", run_id="order-7")
            sent = RunClient("sqlite:///runs.db").send("payment", key="order-7", data=12)
            assert sent.status == "delivered"
            ```
        """
        settings = settings_of(self._given)().events
        sent = send_event(self._store, event, key=key, data=data, id=id, to=to, by=by, settings=settings)
        first, receivers = next(iter(sent.delivered_to), ""), len(sent.delivered_to)
        self._emit("event.sent", run_id=first, event=event, key=key, status=sent.status, receivers=receivers)
        watchers.wake(self._store)
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

        Args:
            run_id: id of the run.
            message: text or content of pydantic-ai.
            path: path of the step; by default the only open granular step.
            when: `"next_turn"`: part of the next request; `"when_done"`: of one more turn at the end.
            id: id of the message; a second one with the same id changes nothing.
            by: name of the sender, recorded.

        Raises:
            NotSteerable: no granular step is open.
            AmbiguousStep: several are open, and `path` is missing.
            TooLate: the run or the step has ended.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")
            with pytest.raises(TooLate):
                RunClient("sqlite:///runs.db").steer("ada-1", "by train, please")
            ```
        """
        step = None if path is None else StepPath(path)
        steered = steer(self._store, RunId(run_id), message, path=step, when=when, id=id, by=by)
        watchers.wake(self._store)
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
        """Return stored events, latest first; they are kept for a while.

        Args:
            event: only events of this name.
            key: only events with this key.
            status: only events with this status.
            limit: most events.
        """
        required(self._store, "events", subject="a list of events", port="Events")
        return self._store.events(event=event, key=key, status=status, limit=limit)

    @blocking
    def waits(self, event: str | None = None, *, key: str | None = None) -> Sequence[Wait]:
        """Return the open waits for events, oldest first.

        Args:
            event: only waits for events of this name.
            key: only waits for this key.
        """
        required(self._store, "waits", subject="a list of waits", port="Events")
        return [wait_of(run_id, pause) for run_id, pause in self._store.waits(event=event, key=key)]

    @blocking
    def wake(self, run_id: str, path: str | None = None) -> bool:
        """End the sleeps or the start delay of a run now.

        Waits for a rate or a budget end, too; waits for an event do not. Return whether it waited.

        Args:
            run_id: id of the run.
            path: path of one step.

        Raises:
            RunNotFound: there is no such run.

        Example:
            ```python
            flujo = Flujo(Step.sleep("a week", 7 * 24 * 3600), store="sqlite:///runs.db")
            flujo.run("x", run_id="nap")
            assert RunClient("sqlite:///runs.db").wake("nap")
            ```
        """
        required(self._store, "wake", subject="a run that wakes before its time")
        woken = self._store.wake(RunId(run_id), None if path is None else StepPath(path), body=WOKEN)
        watchers.wake(self._store)
        return woken

    @blocking
    def cancel(self, run_id: str, reason: str = "cancelled from outside", *, undo: bool = True) -> None:
        """Cancel a run for good; it ends as aborted.

        A running run ends within a second: its owner reads the request and cancels the steps. A run that waits for
        its compensations can be neither answered nor resumed.

        Args:
            run_id: id of the run.
            reason: text that becomes the feedback of the run.
            undo: whether completed steps are compensated: by the owner, or by a process with the pipeline.

        Raises:
            NotPaused: the run has ended.
            RunNotFound: there is no such run.
            RunLeased: it has an owner, and the store cannot pass on requests.

        Example:
            ```python
            Flujo(Step.approval("pay", "Pay?"), store="sqlite:///runs.db").run(900, run_id="invoice")
            client = RunClient("sqlite:///runs.db")
            client.cancel("invoice", "wrong amount")
            assert client.get("invoice").status == "aborted"
            ```
        """
        cancel(self._store, RunId(run_id), redacted(reason), undo=undo)
        watchers.wake(self._store)

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

        Steps that succeeded are not executed again, and usage continues. The run keeps its id and its records.

        Args:
            run_id: id of the run.
            from_start: whether all steps are executed again, with other keys; a run that undid steps needs it.
            mode: handling of a changed pipeline by the worker, as in `Flujo.resume`.
            queue: queue of a run that has none.
            reason: text that is recorded.
            by: name of the caller, recorded.

        Raises:
            NotRetryable: the run has not ended, or another caller was faster.
            RunEnded: the run has completed.
            RunNotFound: there is no such run.

        Example:
            ```python
            flujo = Flujo(Step("ask", ScriptedAgent(OSError("down"), "up")), store="sqlite:///runs.db")
            flujo.run("?", run_id="r1")
            RunClient("sqlite:///runs.db").retry("r1", reason="the provider is back")
            assert [result.output for result in flujo.recover()] == ["up"]
            ```
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
        watchers.wake(self._store)

    @blocking
    def fork(self, run_id: str, seq: int, *, input: object = SAME_INPUT, new_id: str | None = None) -> str:
        """Create a run from another one's records up to `seq`.

        The new run has no owner: `flujo.resume(new_id)` or `recover()` continues it.

        Args:
            run_id: id of the original run, which is unchanged.
            seq: number of the last record that is kept.
            input: other input; completed steps stay completed.
            new_id: id of the new run.

        Raises:
            RunNotFound: there is no such run.
            RunExists: the new id is used.
            Compacted: the record was deleted by `keep_history`.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")
            forked = RunClient("sqlite:///runs.db").fork("ada-1", 1, input="eve")
            assert Flujo(Step("greet", str.upper), store="sqlite:///runs.db").resume(forked).output == "EVE"
            ```
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

        The result is an `ExportReport`, or the path of a file `.flujo.jsonl`, which can be replayed. A file without
        content cannot be imported.

        Args:
            where: a run id, several, or a filter.
            path: path or binary file; by default `<id>.flujo.jsonl`. It replaces an older file when it is complete.
            file: other name of `path`.
            redact: whether texts pass the redactor; by default for paths that end in `.flujo.jsonl`.
            content: whether inputs, outputs, contexts, messages and answers are written, or their type and size.

        Raises:
            DeclarationError: no file is named for several runs.
            RunNotFound: there is no such run.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")
            report = RunClient("sqlite:///runs.db").export("ada-1", "runs.jsonl")
            assert report.runs == 1
            ```
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
        pages = matching_runs(self._store, checked_where(where, subject="export"), within_s=KNOWN_FOR_S)
        return run_files.by_creation(run for page in pages for run, _ in page)

    def _in_order(self, run_ids: Sequence[str]) -> Sequence[RunId]:
        if len(run_ids) < 2:
            return [RunId(run_id) for run_id in run_ids]
        return run_files.by_creation(self._store.get(RunId(run_id)) for run_id in run_ids)

    @blocking
    def import_runs(self, file: RunFile, *, if_exists: IfExists = "raise") -> ImportReport:
        """Create the runs of an exported file, each one atomically.

        They have no owner: open runs can be answered under their tokens, claimed and resumed.

        Args:
            file: path or binary file.
            if_exists: for a used id: `"raise"` or `"skip"`.

        Raises:
            RunExists: an id is used.
            DeclarationError: the file is cut, changed or redacted.
            StoreVersionError: the file is of a newer version.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")
            RunClient("sqlite:///runs.db").export("ada-1", "runs.jsonl")
            assert RunClient("sqlite:///other.db").import_runs("runs.jsonl").runs == 1
            ```
        """
        report = run_files.import_runs(self._store, file, if_exists=if_exists)
        watchers.wake(self._store)
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

        `CorruptRecord` names the line of a cut or changed file; then nothing is written.

        Args:
            path: file of `export_run`, or an open binary file.
            new_id: id of the new run; by default that of the file.
            max_bytes: most bytes to read after decompression; 0 is no bound.
            max_records: most records to read; 0 is no bound.
        """
        try:
            new = None if new_id is None else RunId(new_id)
            report = run_files.import_runs(
                self._store, path, new_id=new, only=True, max_bytes=max_bytes, max_records=max_records
            )
        except DeclarationError as error:
            where = "" if run_files.single_name(path) is not None else f" (in {_file_name(path)})"
            raise CorruptRecord(f"{error}{where}") from error
        watchers.wake(self._store)
        return report.run_ids[0]

    @blocking
    def delete(self, run_id: str) -> bool:
        """Delete an unowned run; return whether it was deleted.

        Args:
            run_id: id of the run.

        Raises:
            LoopAlreadyRunning: this thread runs an event loop.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")
            assert RunClient("sqlite:///runs.db").delete("ada-1")
            ```
        """
        return self._store.delete([RunId(run_id)]) > 0

    @blocking
    def prune(self, retention: RetentionSettings | Mapping[str, object], *, dry_run: bool = False) -> PruneReport:
        """Delete the ended runs that retention settings delete.

        Workers do that by themselves if their settings have a retention. It can be repeated after an interruption.

        Args:
            retention: settings such as `{"completed": "30d"}`.
            dry_run: whether the runs are only counted.

        Raises:
            DeclarationError: the settings are not valid.

        Example:
            ```python
            Flujo(Step("greet", str.upper), store="sqlite:///runs.db").run("ada", run_id="ada-1")
            report = RunClient("sqlite:///runs.db").prune({"completed": "30d"}, dry_run=True)
            assert report.runs == 0
            ```
        """
        return prune(self._store, checked_retention(retention), dry_run=dry_run)

    @blocking
    def forget(self, *, older_than_s: float, statuses: tuple[StoredStatus, ...] = ENDED, dry_run: bool = False) -> int:
        """Delete runs without a change for that long; return their number.

        It deletes small batches, so that other writers continue, and can be repeated after an interruption.
        For an ended run the time of its end counts.
        Events that no wait can consume any more are deleted, too, and budgets of windows that ended 400 days ago.

        Args:
            older_than_s: seconds since the last change of a run.
            statuses: only runs with these statuses.
            dry_run: whether to count the runs only.
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
