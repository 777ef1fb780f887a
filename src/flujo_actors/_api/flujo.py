"""`Flujo`: a pipeline that can run, recover and submit runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from .._bridge.host_loop import Host, checked_backend, current_host, in_own_loop
from .._core.default_settings import BACKEND, default_settings
from .._core.labels import CHARGED, Labels, checked_labels
from .._core.outcomes import PipelineResult, RunId
from .._core.type_parameters import NOTHING, Ctx, Generic, In, Out
from .._core.usage import UsageLimits
from .._core.validators import checked_seconds, suggests_options
from .._dsl.pipeline import Pipeline, StepLike, as_step
from .._durable.live_text import live_key
from .._durable.run_registry import (
    NO_ANSWER,
    MemoryRunRegistry,
    OpenRun,
    RunRegistry,
    RunRelease,
    checked_id,
    reopened,
)
from .._runtime.context.copies import FirstContext, isolated
from .._runtime.run.run_environment import Run
from .._runtime.run.step_results import set_scheduled
from .._runtime.tree.run_supervisor import Windows, drive
from .fleet_api import EvaluationApi, FleetApi, RehearsalApi
from .handle import Drive, EventStream, RunHandle, RunStart
from .wiring import (
    background_recovery,
    cache_of,
    carry_of,
    check_context,
    checked_answer,
    checked_mode,
    checked_runs,
    chunks_of,
    compensated_before,
    engine_of,
    handles_failures,
    hook_reporter,
    hooks_of,
    initial_data,
    limits_of,
    load_for_attempts,
    load_for_steps,
    opened_to_cancel,
    puts_off,
    rate_limits_of,
    recovered,
    refuse_unreachable,
    refuse_without_store,
    retry_stored,
    searches_of,
    settings_of,
    statistics_of,
    store_of,
    stored_runs,
    telemetry_of,
    webhooks_of,
    windows_of,
)

if TYPE_CHECKING:
    from .._agents.retrieval.retriever_port import Retriever
    from .._core.default_settings import Backend
    from .._core.policies.rate_limits import RateLimit
    from .._core.records.records import RecoveryReport
    from .._core.settings_model import Settings
    from .._dsl.chunk_filter import Chunks
    from .._dsl.retrieval_collections import Collection
    from .._dsl.typed_parts import Answers, I, O, Returns, TypedStep
    from .._durable.claims import BackgroundRecovery
    from .._durable.operations.bulk_actions import RunFilter
    from .._durable.operations.run_check import RunCheck
    from .._durable.operations.webhooks import Webhook
    from .._durable.pipeline_diff import ResumeMode
    from .._fleet.engine_port import Engine
    from .._runtime.context.freeform import Context
    from .._runtime.run.hooks import Hooks
    from .._runtime.run.run_environment import RemoteSteps
    from ..stores._store_port import Store
    from .fleet_api import FlujoOptions, Hook
    from .rehearsal.playback import RunRehearsal


# --- `Flujo`: a pipeline with everything it needs to run ----------------------------------------------------------


if TYPE_CHECKING:
    C = TypeVar("C")


@suggests_options
class Flujo(FleetApi[In], EvaluationApi, RehearsalApi, Generic[In, Out, Ctx]):
    """Run one pipeline, repeatedly and concurrently, from sync code, trio or anyio.

    Args:
        pipeline: a step, a pipeline or a function.
        context_model: type of the context: a pydantic model, a dataclass or an attrs class.
        initial_context_data: fields of every run's context.
        resources: clients and connections for steps with a parameter `resources`; never stored.
        usage_limits: limits of each run, and limits with a `window` over all runs.
        hooks: functions that are called at starts and ends of runs and steps.
        store: a store or its URL; without one, runs are kept in memory.
        settings: settings over those of `flujo.toml` and the environment.
        engine: job queue that notifies workers, e.g. `"postgres"`.
        undo_grace_s: time for compensations of a cancelled run without a store.
        retrievers: retriever of each collection that a step searches.
        carry: context variables that remote steps and submitted runs receive.
        rate_limits: rate limits by model pattern, e.g. `{"openai:*": RateLimit(…)}`.
        labels: labels of every run.
        webhooks: endpoints for questions and ended runs.

    Raises:
        DeclarationError: a step, an option or a URL is not valid.

    Example:
        ```python
        flujo = Flujo(Step("greet", str.upper), store="sqlite:///runs.db")
        assert flujo.run("ada").output == "ADA"
        ```
    """

    @overload
    def __init__(
        self: Flujo[I, O, Context], pipeline: TypedStep[I, O] | Answers[I, O], **options: Unpack[FlujoOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: Flujo[I, O, C],
        pipeline: TypedStep[I, O] | Answers[I, O],
        context_model: type[C],
        **options: Unpack[FlujoOptions],
    ) -> None: ...
    @overload
    def __init__(self: Flujo[I, O, Context], pipeline: Returns[I, O], **options: Unpack[FlujoOptions]) -> None: ...
    @overload
    def __init__(
        self: Flujo[I, O, C], pipeline: Returns[I, O], context_model: type[C], **options: Unpack[FlujoOptions]
    ) -> None: ...
    def __init__(
        self,
        pipeline: StepLike,
        context_model: type | None = None,
        initial_context_data: Mapping[str, object] | None = None,
        resources: object = None,
        usage_limits: UsageLimits | Sequence[UsageLimits] | None = None,
        hooks: Hook | Iterable[Hook] = (),
        store: Store | str | None = None,
        settings: Settings | Mapping[str, object] | None = None,
        engine: Engine | str | None = None,
        undo_grace_s: float | None = None,
        retrievers: Mapping[type[Collection], Retriever | Callable[..., Any]] | None = None,
        carry: Iterable[ContextVar[Any]] = (),
        rate_limits: Mapping[str, RateLimit] | None = None,
        labels: Mapping[str, str] | None = None,
        webhooks: Iterable[Webhook] = (),
    ) -> None:
        self._declared_schedules = {}
        self.pipeline: Pipeline = Pipeline.from_step(as_step(pipeline, where="what Flujo runs"))
        load_for_steps(self.pipeline)
        check_context(context_model)
        self._make_searches = searches_of(self.pipeline, retrievers, context_model)
        self._first_context = FirstContext(context_model, initial_data(self.pipeline, initial_context_data))
        self._labels = checked_labels(labels, checked_labels(self.pipeline.labels))
        self._resources, self._limits = resources, limits_of(usage_limits, self.pipeline)
        self._make_hooks = hooks_of(hooks)
        self._configured = settings_of(settings)
        self._handles_failures = handles_failures(self.pipeline)
        self._undo_grace_s = None if undo_grace_s is None else checked_seconds(undo_grace_s, subject="undo_grace_s")
        self._telemetry = telemetry_of(self._configured, self.pipeline, resources)
        self._in_memory = MemoryRunRegistry()
        self._stored: dict[ResumeMode, RunRegistry] = {}
        self._store = None if store is None else store_of(store, self.pipeline, context_model, self._configured)
        self._webhooks = webhooks_of(webhooks, self._store)
        self._beliefs = statistics_of(self._store, self.pipeline)
        self._cache = cache_of(self._store, self.pipeline)
        self._rates = rate_limits_of(self._store, self.pipeline, rate_limits, self._configured)
        if self._store is None:
            refuse_without_store(self.pipeline)
        self._windows = windows_of(usage_limits, self.pipeline, self._store)
        self._engine, self._carry = engine_of(engine, self._store), carry_of(carry)
        self._is_remote = refuse_unreachable(self.pipeline, self._store, self._engine)

    # --- running ---

    def run(
        self,
        data: In = NOTHING,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        backend: Backend | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> PipelineResult[Out, Ctx]:
        """Run the pipeline from synchronous code and return its result.

        Args:
            data: input of the first step.
            run_id: id of the run; a random one by default.
            context: fields of this run's context, over those of `initial_context_data`.
            backend: library of the steps, `"trio"` or `"asyncio"`; by default the setting `run.backend`.
            labels: texts to find the run by, over those of the `Flujo`.

        Raises:
            LoopAlreadyRunning: this thread runs an event loop; use `run_async`.
            RunExists: the store has a run with this id.
            ControlError: a limit or a configuration error stopped the run; its `result` is partial.
            StoreError: the store failed; the run can be resumed.

        Example:
            ```python
            result = Flujo(Step("double", lambda number: 2 * number)).run(21)
            assert (result.status, result.output) == ("completed", 42)
            ```
        """
        return in_own_loop(
            self._start(data, run_id, context, labels), backend=self.backend(backend), instead="run_async"
        )

    def run_async(
        self,
        data: In = NOTHING,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        started: bool = False,
        tools: bool = False,
        chunks: Chunks = True,
        labels: Mapping[str, str] | None = None,
    ) -> RunHandle[Out, Ctx]:
        """Return a run's handle: await it, iterate over outcomes, or enter.

        Args:
            data: input of the first step.
            run_id: id of the run; a random one by default.
            context: fields of this run's context.
            started: whether the iteration includes starts of steps (`Started`).
            tools: whether the iteration includes tool calls (`ToolCalled`).
            chunks: live chunks of all steps, none (`False`), the `"last"` step, or these names or paths. An agent
                without shown chunks is called without streaming.
            labels: texts to find the run by.

        Raises:
            DeclarationError: `chunks` names an unknown step.

        Awaiting or iterating the handle raises the errors of `run`.

        Example:
            ```python
            async def main():
                async with Flujo(Step("double", lambda number: 2 * number)).run_async(21) as run:
                    return [type(outcome).__name__ async for outcome in run]

            assert trio.run(main) == ["Success"]
            ```
        """
        shown = chunks_of(self.pipeline, chunks)
        return RunHandle(self._start(data, run_id, context, labels), started=started, tools=tools, chunks=shown)

    def run_outcomes_async(
        self,
        data: In = NOTHING,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        started: bool = False,
        tools: bool = False,
        chunks: Chunks = True,
        labels: Mapping[str, str] | None = None,
    ) -> RunHandle[Out, Ctx]:
        """Return the handle of `run_async`, under the name for iteration.

        Args:
            data: input of the first step.
            run_id: id of the run; a random one by default.
            context: fields of this run's context.
            started: whether the iteration includes starts of steps (`Started`).
            tools: whether the iteration includes tool calls (`ToolCalled`).
            chunks: live chunks, as in `run_async`.
            labels: texts to find the run by.
        """
        shown = chunks_of(self.pipeline, chunks)
        return RunHandle(self._start(data, run_id, context, labels), started=started, tools=tools, chunks=shown)

    def _start(
        self, data: object, run_id: str | None, context: Mapping[str, Any] | None, labels: Mapping[str, str] | None
    ) -> Drive:
        named = self._labels if labels is None else checked_labels(labels, self._labels)
        return RunStart(self, data, checked_id(run_id), self._first_context.of_run(context), named)

    async def _run_new(
        self, data: object, run_id: RunId, context: object, labels: Labels, host: Host, event_stream: EventStream | None
    ) -> PipelineResult:
        runs = self._runs()
        opened = await runs.admit(run_id, data, isolated(context), labels)
        return await self._drive(runs, opened, host, event_stream)

    # --- resuming ---

    def resume(
        self,
        token: str,
        answer: object = NO_ANSWER,
        *,
        mode: ResumeMode = "strict",
        wait: bool = True,
        backend: Backend | None = None,
    ) -> PipelineResult[Out, Ctx]:
        """Continue a run from synchronous code, on the `backend` of `run`.

        Args:
            token: `state_token` of a pause, or without an answer the id of an unfinished run.
            answer: answer to the pause.
            mode: handling of a changed pipeline: `"strict"`, `"compat"` or `"force"`.
            wait: whether to wait for the lease of an owner that is not provably dead.
            backend: library that the steps are written for.

        Raises:
            InvalidAnswer: the answer does not fit; the question stays open.
            AlreadyAnswered: another answer was used.
            NotPaused: the run has ended, or has no such pause.
            RunNotFound: there is no such run.
            FingerprintMismatch: the pipeline changed, and `mode` does not accept the change.
            RunLeased: another process owns the run; `left_s` is the time left.

        Example:
            ```python
            flujo = Flujo(Step.approval("pay", "Pay 900 dollars?"))
            paused = flujo.run(900)
            assert flujo.resume(paused.state_token, "approve").output == 900
            ```
        """
        start = functools.partial(self._run_on, token, answer, checked_mode(mode), wait)
        return in_own_loop(start, backend=self.backend(backend), instead="resume_async")

    def resume_async(
        self,
        token: str,
        answer: object = NO_ANSWER,
        *,
        mode: ResumeMode = "strict",
        wait: bool = True,
        started: bool = False,
        tools: bool = False,
        chunks: Chunks = True,
    ) -> RunHandle[Out, Ctx]:
        """Return a handle on a resumed run; arguments of `resume`, `run_async`.

        Args:
            started: whether the iteration includes starts of steps.
            tools: whether the iteration includes tool calls.
            chunks: live chunks, as in `run_async`.
        """
        start = functools.partial(self._run_on, token, answer, checked_mode(mode), wait)
        return RunHandle(start, started=started, tools=tools, chunks=chunks_of(self.pipeline, chunks))

    async def _run_on(
        self, token: str, answer: object, mode: ResumeMode, wait: bool, host: Host, event_stream: EventStream | None
    ) -> PipelineResult:
        runs = self._runs(mode)
        if answer is NO_ANSWER:
            if isinstance(opened := await reopened(runs, token, wait=wait), PipelineResult):
                return opened
        else:
            pause = await runs.pause_at(token)
            checked = checked_answer(answer, pause)
            take = runs.defer if puts_off(pause, checked) else runs.answer
            opened = await take(token, checked, wait=wait)
        return await self._drive(runs, opened, host, event_stream, answer=None if answer is NO_ANSWER else answer)

    def retry(
        self,
        run_id: str,
        *,
        from_start: bool = False,
        mode: ResumeMode = "strict",
        reason: str | None = None,
        backend: Backend | None = None,
    ) -> PipelineResult[Out, Ctx]:
        """Retry a failed or aborted run here, from synchronous code.

        Args:
            run_id: id of the run.
            from_start: whether all steps are executed again, with other idempotency keys.
            mode: handling of a changed pipeline, as in `resume`.
            reason: text that is recorded.
            backend: library that the steps are written for.

        Raises:
            NotRetryable: the run has not ended, was retried by another caller, or undid steps.
            RunEnded: the run has completed.

        Example:
            ```python
            model = ScriptedAgent(ConnectionError("down"), "back again")
            flujo = Flujo(Step("ask", model), store="sqlite:///runs.db")
            assert flujo.run("why?", run_id="r1").status == "failed"
            assert flujo.retry("r1").output == "back again"
            ```
        """
        start = functools.partial(self._retry, RunId(run_id), from_start, checked_mode(mode), reason)
        return in_own_loop(start, backend=self.backend(backend), instead="retry_async")

    def retry_async(
        self,
        run_id: str,
        *,
        from_start: bool = False,
        mode: ResumeMode = "strict",
        reason: str | None = None,
        started: bool = False,
        tools: bool = False,
        chunks: Chunks = True,
    ) -> RunHandle[Out, Ctx]:
        """Return a handle on a retried run; arguments of `retry`, `run_async`.

        Args:
            started: whether the iteration includes starts of steps.
            tools: whether the iteration includes tool calls.
            chunks: live chunks, as in `run_async`.
        """
        start = functools.partial(self._retry, RunId(run_id), from_start, checked_mode(mode), reason)
        return RunHandle(start, started=started, tools=tools, chunks=chunks_of(self.pipeline, chunks))

    async def _retry(
        self,
        run_id: RunId,
        from_start: bool,
        mode: ResumeMode,
        reason: str | None,
        host: Host,
        event_stream: EventStream | None,
    ) -> PipelineResult:
        reason = None if reason is None else self._telemetry.redact(reason)
        await retry_stored(self._store, run_id, from_start=from_start, mode=mode, reason=reason)
        return await self._run_on(run_id, NO_ANSWER, mode, True, host, event_stream)

    def recover(
        self, *, mode: ResumeMode = "strict", wait: bool = False, backend: Backend | None = None
    ) -> RecoveryReport:
        """Claim and finish this pipeline's runs left by dead processes.

        Return their results, and in `left` the other runs with the reason: a live owner, an unreadable record, another
        pipeline, or an error.

        Args:
            mode: handling of a changed pipeline, as in `resume`.
            wait: whether to wait for leases until they expire.
            backend: library that the steps are written for.

        Raises:
            LoopAlreadyRunning: this thread runs an event loop; use `recover_async`.
            StoreError: the store failed.

        Example:
            ```python
            flujo = Flujo(Step.approval("pay", "Pay?"), store="sqlite:///runs.db")
            RunClient("sqlite:///runs.db").answer(flujo.run(900).state_token, "approve")
            assert [result.output for result in flujo.recover()] == [900]
            ```
        """
        start = functools.partial(self._recover, checked_mode(mode), wait)
        return in_own_loop(start, backend=self.backend(backend), instead="recover_async")

    async def recover_async(self, *, mode: ResumeMode = "strict", wait: bool = False) -> RecoveryReport:
        """Return the same as `recover`, inside a loop."""
        host = await current_host()
        return await host.enter(self._recover, checked_mode(mode), wait, host, None)

    async def _recover(self, mode: ResumeMode, wait: bool, host: Host, _: EventStream | None) -> RecoveryReport:
        runs = self._runs(mode)
        return await recovered(
            runs,
            lambda opened: self._drive(runs, opened, host, None),
            redact=self._telemetry.redact,
            wait=wait,
            at_once=self._settings.durability.recover_at_once,
        )

    def recovering(self, *, every_s: float = 1.0, mode: ResumeMode = "strict") -> BackgroundRecovery:
        """Recover repeatedly while the block runs: `async with flujo.recovering():`.

        It wakes at the next pause timeout, and at least every `every_s` seconds. A pass that fails because the store is
        away is logged, and the next one tries again.

        Args:
            every_s: longest time between two passes.
            mode: handling of a changed pipeline, as in `resume`.
        """

        seconds = checked_seconds(every_s, subject="recovering: every_s")
        return background_recovery(functools.partial(self._pass, checked_mode(mode)), every_s=seconds)

    async def _pass(self, mode: ResumeMode, host: Host) -> float | None:
        """Recover once; return the seconds until the next pause timeout."""
        await self._recover(mode, False, host, None)
        return await self._runs(mode).next_due_s()

    def cancel(
        self, run_id: str, reason: str = "cancelled", *, mode: ResumeMode = "strict", backend: Backend | None = None
    ) -> PipelineResult[Out, Ctx] | None:
        """Cancel and compensate a run from synchronous code; return its result.

        It applies to unowned runs: paused, cancelled by a `RunClient`, or left by a dead process. A running one is
        requested to end, and the result is `None`.

        Args:
            run_id: id of the run.
            reason: text that becomes the feedback of the run.
            mode: handling of a changed pipeline, as in `resume`.
            backend: library that the compensations are written for.

        Raises:
            NotPaused: the run has ended.
            RunNotFound: there is no such run.

        Example:
            ```python
            flujo = Flujo(Step.approval("pay", "Pay 900 dollars?"))
            flujo.run(900, run_id="invoice")
            assert flujo.cancel("invoice", "wrong amount").status == "aborted"
            ```
        """
        start = functools.partial(self._cancel, RunId(run_id), reason, checked_mode(mode))
        return in_own_loop(start, backend=self.backend(backend), instead="cancel_async")

    async def cancel_async(
        self, run_id: str, reason: str = "cancelled", *, mode: ResumeMode = "strict"
    ) -> PipelineResult[Out, Ctx] | None:
        """Return the same as `cancel`, inside a loop."""
        host = await current_host()
        return await host.enter(self._cancel, RunId(run_id), reason, checked_mode(mode), host, None)

    async def _cancel(
        self, run_id: RunId, reason: str, mode: ResumeMode, host: Host, _: EventStream | None
    ) -> PipelineResult | None:
        runs = self._runs(mode)
        opened = await opened_to_cancel(runs, self._store, run_id, self._telemetry.redact(reason))
        return None if opened is None else await self._drive(runs, opened, host, None)

    def forget(self, run_id: str) -> bool:
        """Drop a paused run without an answer; return whether it existed.

        Without a store, paused runs are kept in memory until they are answered or forgotten. Blocks if there is one.

        Args:
            run_id: id of the run.
        """
        if self._store is None:
            return self._in_memory.forget(RunId(run_id))
        return self._store.delete([RunId(run_id)]) > 0

    # --- both ---

    def check_runs(self, where: RunFilter | None = None, mode: ResumeMode = "strict") -> Sequence[RunCheck]:
        """Return for each open run whether this pipeline can resume it.

        Nothing is executed or written: use it before a deploy. `RunFilter(pipeline=…)` leaves out other pipelines.

        Args:
            where: runs to check; by default all open ones.
            mode: handling of a changed pipeline, as in `resume`.
        """
        return checked_runs(self._runs(), where, mode)

    @property
    def _settings(self) -> Settings:
        return self._configured()

    def backend(self, asked: Backend | None = None) -> Backend:
        """Return the library of `run`: as requested, or from the settings."""
        if asked is not None:
            return checked_backend(asked)
        return BACKEND if self._configured is default_settings else self._settings.run.backend

    def _runs(self, mode: ResumeMode = "strict") -> RunRegistry:
        if self._store is None:
            return self._in_memory
        if mode not in self._stored:
            options = {"redact": self._telemetry.redact, "mode": mode, "webhooks": self._webhooks}
            self._stored[mode] = stored_runs(self._store, self.pipeline, self._settings, **options)
        return self._stored[mode]

    async def _drive(
        self,
        runs: RunRegistry,
        opened: OpenRun,
        host: Host,
        event_stream: EventStream | None,
        *,
        answer: object = None,
        rehearsing: RunRehearsal | None = None,
    ) -> PipelineResult:
        result: PipelineResult | None = None
        set_scheduled(opened.carried)
        try:
            remote = self._remote_steps() if self._is_remote and rehearsing is None else None
            run = self._make_run(opened, host, event_stream=event_stream, remote=remote)
            limits: UsageLimits | None = self._limits
            windows: Windows | None = self._windows
            if CHARGED in opened.labels and rehearsing is None:
                limits, windows = self._budgets(opened)
            if rehearsing is not None:
                run, limits, windows = rehearsing.prepared(run), rehearsing.limits(limits), rehearsing.windows
            with runs.lease_hold(opened) as hold:
                result = await drive(
                    run,
                    self.pipeline,
                    opened.data,
                    opened.context,
                    limits=limits,
                    resumed=opened.resumed,
                    rest=RunRelease(runs, opened),
                    halt=hold.halt,
                    answer=answer,
                    windows=windows,
                )
            hold.check()
        finally:
            await runs.put_back(opened)
        assert result is not None
        return result

    def _make_run(
        self,
        opened: OpenRun,
        host: Host,
        *,
        root: RunId | None = None,
        event_stream: EventStream | None = None,
        remote: RemoteSteps | None = None,
    ) -> Run:
        """Return the run, or part of another run."""
        if opened.resumed or opened.journal.cancelled is not None:
            load_for_attempts()
        run_id = opened.run_id if root is None else root
        return Run(
            run_id=run_id,
            host=host,
            journal=opened.journal,
            resumed=opened.resumed,
            hooks=self._hooks_of(run_id, host, opened.labels),
            telemetry=self._telemetry,
            event_stream=event_stream,
            remote=remote,
            live=None if self._store is None else live_key(self._store, run_id),
            resources=self._resources,
            searches=None if self._make_searches is None else self._make_searches(),
            configured=self._configured,
            stopping=opened.journal.cancelled,
            retry=opened.retry,
            dropped_usage=opened.dropped_usage,
            keyed_as=opened.key_id,
            labels=opened.labels,
            key=opened.key,
            **(self._undoing(opened) if self._handles_failures else {}),
            beliefs=self._beliefs,
            rates=self._rates,
            cache=self._cache,
        )

    def _undoing(self, opened: OpenRun) -> dict[str, Any]:
        """Return the state of a run with handlers or compensations."""
        grace_s = self._settings.run.undo_grace_s if self._undo_grace_s is None else self._undo_grace_s
        return {
            "handles_failures": True,
            "undo_grace_s": grace_s,
            "compensated": compensated_before(opened, self.pipeline),
        }

    def _hooks_of(self, run_id: RunId, host: Host, labels: Labels) -> Hooks | None:
        made, telemetry = self._make_hooks, self._telemetry
        return None if made is None else made(run_id, host, hook_reporter(telemetry), telemetry.redact, labels)
